from dataclasses import fields

import numpy as np
import pytest
import torch
from conftest import demo_pairs
from hypothesis import given
from hypothesis import strategies as st
from simuleval.data.dataloader import TextToTextDataloader

from duplex_model.data import (
    Example,
    collate,
    load_examples,
    make_batches,
    make_example,
    read_lines,
    read_pairs,
    simuleval_lines,
)
from duplex_model.tokenizer import Tokenizer


def cells(X, Y):
    return X * Y


def sized(X, Y):
    """An example of which only the size counts."""
    return Example([1] * X, [1] * (Y + 1), [0] * X, [0] * Y, [X - 1], [True] * (Y + 1))


def test_example_by_hand(tokenizer):
    """The demo tokenizer writes a CJK character in three bytes and the blank in a piece of its own: 4 pieces a word."""
    example = make_example(tokenizer, "日 本", "語 日  本\n")
    a, b = tokenizer.encode_word("日"), tokenizer.encode_word("本")
    assert [len(a), len(b)] == [4, 4]
    assert example.source == [tokenizer.bos_id, *a, *b, tokenizer.eos_id]
    assert example.target == [tokenizer.seed_id, *tokenizer.encode_word("語"), *a, *b, tokenizer.eos_id]
    assert example.source_word == [-1, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert example.decision_rows == [4, 8, 9]
    assert example.target_word == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3]  # the last column predicts EOS
    t, f = True, False
    assert example.wait_ok == [t, f, f, f, t, f, f, f, t, f, f, f, t, t]


def test_example_by_hand_in_characters(tokenizer):
    """Each character, and the blank, is a word; the target's unit is still the word."""
    mixed = Tokenizer(tokenizer.model_file, source_unit="char", target_unit="word")
    example = make_example(mixed, "日本", "日本")
    assert example.source_word == [-1, 0, 0, 0, 1, 1, 1, 2, 2]
    assert example.decision_rows == [3, 6, 7, 8]
    assert example.target_word == [0, 0, 0, 0, 0, 0, 0, 1]
    assert example.wait_ok == [True, False, False, False, False, False, False, True, True]


def test_example_lengths_fit_together(tokenizer):
    for source, target in demo_pairs():
        example = make_example(tokenizer, source, target)
        X, Y = len(example.source), len(example.target) - 1
        assert (len(example.source_word), len(example.target_word), len(example.wait_ok)) == (X, Y, Y + 1)
        assert len(example.decision_rows) == len(source.split()) + 1
        assert example.decision_rows[-1] == X - 1
        assert sum(example.wait_ok) == len(target.split()) + 2  # the seed, each word's last piece, EOS
        assert example.target_word[-1] == len(target.split())


def test_empty_sides(tokenizer):
    example = make_example(tokenizer, "", " ")
    assert example.source == [tokenizer.bos_id, tokenizer.eos_id]
    assert (example.source_word, example.decision_rows) == ([-1, -1], [1])
    assert (example.target_word, example.wait_ok) == ([0], [True, True])


def test_load_examples_leaves_out_empty_and_long_pairs(tokenizer):
    pairs = [("日", "日"), ("", "日"), ("日", " "), ("日 日", "日"), ("日", "日 日")]  # 4 pieces a word
    assert len(load_examples(tokenizer, pairs, max_tokens=8)) == 3
    assert len(load_examples(tokenizer, pairs, max_tokens=7)) == 1
    assert load_examples(tokenizer, pairs, max_tokens=3) == []


@pytest.mark.parametrize(
    "content,lines",
    [
        (b"", []),
        (b"\n", [""]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\n\ntwo\n\n", ["one", "", "two", ""]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\rtwo\nthree\r", ["one\rtwo", "three"]),
        (b"\xef\xbb\xbfone\ntwo\n", ["one", "two"]),
        (b"\xef\xbb\xbf", []),
        ("a\u2028b\u0085c\x0bd\x0ce\n".encode(), ["a\u2028b\u0085c\x0bd\x0ce"]),
        ("a\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
    ],
)
def test_read_lines(tmp_path, content, lines):
    path = tmp_path / "text"
    path.write_bytes(content)
    assert read_lines(path) == lines
    theirs = TextToTextDataloader.from_files(path, path).source_list
    assert simuleval_lines(path) == [line.rstrip("\n") for line in theirs]


def test_read_lines_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing.de"):
        read_lines(tmp_path / "nothing.de")
    (tmp_path / "latin1.de").write_bytes("für\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin1\.de.*UTF-8"):
        read_lines(tmp_path / "latin1.de")


def test_read_pairs(tmp_path):
    (tmp_path / "dev.de").write_text("eins\nzwei\n")
    (tmp_path / "dev.en").write_text("one\ntwo")
    assert read_pairs(tmp_path / "dev", "de", "en") == [("eins", "one"), ("zwei", "two")]
    assert read_pairs(str(tmp_path / "dev"), "en", "de") == [("one", "eins"), ("two", "zwei")]
    (tmp_path / "dev.en").write_text("one\ntwo\nthree\n")
    with pytest.raises(ValueError, match=r"dev: 2 lines of 'de' but 3 of 'en'"):
        read_pairs(tmp_path / "dev", "de", "en")
    with pytest.raises(FileNotFoundError, match=r"dev\.fr"):
        read_pairs(tmp_path / "dev", "de", "fr")


SIZES = st.lists(st.tuples(st.integers(2, 20), st.integers(1, 20)), min_size=1, max_size=60)


@given(SIZES, st.integers(1, 500), st.integers(0, 9))
def test_batches_keep_the_budget_and_every_example(sizes, budget, seed):
    examples = [sized(*size) for size in sizes]
    batches = make_batches(examples, budget, cells, np.random.default_rng(seed))
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    for batch in batches:
        padded = cells(*(max(sizes[i][axis] for i in batch) for axis in (0, 1))) * len(batch)
        assert padded <= budget or len(batch) == 1
    assert make_batches(examples, budget, cells, np.random.default_rng(seed)) == batches
    # The training loop counts on it: the sizes alone decide how many batches an epoch has.
    assert len(make_batches(examples, budget, cells, np.random.default_rng(seed + 1))) == len(batches)


def test_epochs_differ():
    examples = [sized(4 + i % 3, 5) for i in range(60)]
    first, second = (make_batches(examples, 120, cells, np.random.default_rng(seed)) for seed in (0, 1))
    assert first != second
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}  # the members, too


def test_no_examples_are_an_error():
    with pytest.raises(ValueError, match="no "):
        make_batches([], 100, cells, np.random.default_rng(0))


def test_collate_pads_with_zeros():
    short = Example([2, 7, 3], [4, 9, 3], [-1, 0, 0], [0, 1], [1, 2], [True, True, True])
    long = Example([2, 7, 8, 9, 3], [4, 6, 7, 3], [-1, 0, 0, 1, 1], [0, 0, 1], [2, 3, 4], [True, False, True, True])
    batch = collate([short, long])
    assert batch.source_ids.tolist() == [[2, 7, 3, 0, 0], [2, 7, 8, 9, 3]]
    assert batch.target_ids.tolist() == [[4, 9, 3, 0], [4, 6, 7, 3]]
    assert batch.source_word.tolist() == [[-1, 0, 0, 0, 0], [-1, 0, 0, 1, 1]]
    assert batch.target_word.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert batch.decision_rows.tolist() == [[1, 2, 0], [2, 3, 4]]
    assert batch.wait_ok.tolist() == [[True, True, True, False], [True, False, True, True]]
    lengths = batch.source_len.tolist(), batch.target_len.tolist(), batch.row_count.tolist()
    assert lengths == ([3, 5], [2, 3], [2, 3])
    for field in fields(batch):
        expected = torch.bool if field.name == "wait_ok" else torch.int64
        assert getattr(batch, field.name).dtype == expected, field.name
    assert batch.to("cpu").source_ids.tolist() == batch.source_ids.tolist()
