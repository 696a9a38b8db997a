import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import FOREIGN, SENTENCES

from duplex_model.tokenizer import Tokenizer

SPECIAL_SPELLINGS = ["<pad>", "<unk>", "<s>", "</s>", "<target>", "<0x41>", "a</s>b"]


@pytest.fixture(scope="module")
def by_character(tokenizer):
    return Tokenizer(tokenizer.model_file, "char", "char")


def test_demo_sentences_come_back(tokenizer):
    for sentence in SENTENCES:
        words = sentence.split()
        assert tokenizer.decode(tokenizer.encode(sentence)) == sentence
        assert [tokenizer.decode(tokenizer.encode_word(word)) for word in words] == words


@pytest.mark.parametrize("text", [*FOREIGN.values(), *SPECIAL_SPELLINGS], ids=[*FOREIGN, *SPECIAL_SPELLINGS])
def test_foreign_text_comes_back(tokenizer, text):
    words = text.split()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.decode(tokenizer.encode_word(word)) for word in words] == words


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_with_single_blanks(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())


@pytest.mark.parametrize("text", SPECIAL_SPELLINGS)
def test_spelled_special_tokens_stay_text(tokenizer, text):
    assert not set(tokenizer.encode(text)) & set(tokenizer.special_ids)


def test_special_ids(tokenizer):
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.seed_id) == (0, 2, 3, 4)
    assert tokenizer.special_ids == [0, 1, 2, 3, 4]
    assert tokenizer.vocab_size == 700
    ids = tokenizer.encode_word("Suppe")
    assert tokenizer.decode([2, 4, *ids, 1, 0, 3]) == "Suppe"


def test_lines_split_at_unicode_whitespace(tokenizer):
    assert tokenizer.encode("10\u00a0km\u3000weit\r") == [
        i for w in ("10", "km", "weit") for i in tokenizer.encode_word(w)
    ]
    assert tokenizer.decode(tokenizer.encode("10\u00a0km")) == "10 km"


def test_a_sentence_is_its_words(tokenizer):
    """Word by word is how a stream reads, so it must give the pieces of the whole line; blank lines have none."""
    for sentence in [*SENTENCES[:20], *FOREIGN.values()]:
        assert tokenizer.encode(sentence) == [i for word in sentence.split() for i in tokenizer.encode_word(word)]
    assert tokenizer.encode("") == tokenizer.encode(" \t\u00a0") == []


def test_byte_sequences_are_whole_or_nothing(tokenizer):
    smile = tokenizer.encode_word("😀")[:-1]
    assert len(smile) == 4
    a, b = tokenizer.encode_word("a▁b")[0], tokenizer.encode_word("a▁b")[-2]
    assert tokenizer.decode([a, *smile, b]) == "a😀b"
    for cut in (smile[:1], smile[:3], smile[1:], smile[2:3], smile[::-1]):
        assert tokenizer.decode(cut) == ""
        assert tokenizer.decode([a, *cut, b]) == "ab"
    assert tokenizer.decode([*smile[:3], *smile]) == "😀"


@given(st.lists(st.integers(0, 699)))
def test_no_ids_give_the_replacement_character(tokenizer, ids):
    replacement = {tokenizer.encode_word("\ufffd")[i] for i in range(3)}
    text = tokenizer.decode([i for i in ids if i not in replacement])
    assert "\ufffd" not in text
    assert text == text.strip()


@pytest.mark.parametrize("text", [*SENTENCES[:20], *FOREIGN.values()])
def test_word_ends_are_the_last_pieces_of_words(tokenizer, text):
    lengths = [len(tokenizer.encode_word(word)) for word in text.split()]
    expected = [i == length - 1 for length in lengths for i in range(length)]
    assert tokenizer.word_ends(tokenizer.encode(text), "word") == expected


@pytest.mark.parametrize(
    "text,expected",
    [
        ("日", [0, 0, 1, 1]),  # three bytes, then the blank
        ("日本 ǂ", [0, 0, 1, 0, 0, 1, 1, 0, 1, 1]),
        ("😀", [0, 0, 0, 1, 1]),
        ("▁", [0, 0, 1, 1]),
        ("a▁b", [1, 0, 0, 1, 1, 1]),
        ("e\u0301", [1, 0, 1, 1]),  # a combining mark is a character of its own
    ],
)
def test_character_ends(by_character, text, expected):
    """In the unit "char" a character that is spread over byte pieces ends with its last byte."""
    assert by_character.word_ends(by_character.encode(text), "char") == [bool(end) for end in expected]


def test_every_character_of_a_sentence_ends_once(by_character):
    """Each started unit decodes to whole characters, and together they are the sentence."""
    for text in [*SENTENCES[:20], *FOREIGN.values()]:
        ids, units, start = by_character.encode(text), [], 0
        ends = by_character.word_ends(ids, "char")
        assert ends[-1]
        for i, end in enumerate(ends):
            if end:
                units.append(by_character.decode(ids[start : i + 1]))
                start = i + 1
        assert "".join(units) == "".join(text.split())


def test_units_of_the_two_sides(tokenizer, by_character):
    assert (tokenizer.joiner, by_character.joiner) == (" ", "")
    mixed = Tokenizer(tokenizer.model_file, source_unit="char", target_unit="word")
    assert (mixed.source_unit, mixed.target_unit, mixed.joiner) == ("char", "word", " ")
    for sides in (("token", "word"), ("word", "token")):
        with pytest.raises(ValueError, match="'token'.*word, char"):
            Tokenizer(tokenizer.model_file, *sides)


def test_missing_model_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="spm.model"):
        Tokenizer(tmp_path / "spm.model")


def test_save_copies_the_model(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    copy = Tokenizer(tmp_path / "spm.model")
    copy.save(tmp_path)  # onto itself
    assert copy.model_file.read_bytes() == tokenizer.model_file.read_bytes()
    assert copy.encode(SENTENCES[0]) == tokenizer.encode(SENTENCES[0])
