"""Tokenizers of pretrained LLMs: byte-level BPE as in GPT-2 and Qwen, and blanks as U+2581 with byte fallback."""

import json

import pytest
from conftest import demo_pairs
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import (
    BYTES,
    FOREIGN,
    KINDS,
    REAL,
    SENTENCES,
    SPECIAL,
    TURNS,
    fast_tokenizer,
    gpt2_like,
    real_lines,
)
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from duplex_model.backbone_tokenizer import BackboneTokenizer, has_inner_blank, source_start
from duplex_model.data import make_example
from duplex_model.tokenizer import Tokenizer, train_tokenizer

NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TURNS


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    model_file = tmp_path_factory.mktemp("suffix") / "spm.model"
    train_tokenizer([line for pair in demo_pairs() for line in pair], model_file, vocab_size=700)
    return Tokenizer(model_file)


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: BackboneTokenizer(fast_tokenizer(kind)) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(tokenizers, request):
    return tokenizers[request.param]


def test_demo_sentences_come_back_word_by_word(tokenizer):
    for sentence in SENTENCES:
        words = sentence.split()
        assert tokenizer.decode(tokenizer.encode(sentence)) == " ".join(words)
        assert [tokenizer.decode(tokenizer.encode_word(word)) for word in words] == words


@pytest.mark.parametrize("text", [*FOREIGN.values(), "<|im_end|>a", "<unk>", "<0x41>"])
def test_foreign_text_and_spelled_special_tokens_come_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == " ".join(text.split())
    assert not set(ids) & set(tokenizer.special_ids)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_with_single_blanks(tokenizers, kind, text):
    assert tokenizers[kind].decode(tokenizers[kind].encode(text)) == " ".join(text.split())


@pytest.mark.parametrize("kind", KINDS)
@given(ids=st.lists(st.integers(0, 699)))
def test_no_ids_give_the_replacement_character_or_a_special_token(tokenizers, kind, ids):
    tokenizer = tokenizers[kind]
    replacement = set(tokenizer.encode_word("\ufffd"))
    text = tokenizer.decode([i for i in ids if i not in replacement])
    assert "\ufffd" not in text and not any(special in text for special in SPECIAL)


@pytest.mark.parametrize("text", [*SENTENCES[:20], *FOREIGN.values()])
def test_words_end_where_the_next_piece_opens_one(tokenizer, text):
    lengths = [len(tokenizer.encode_word(word)) for word in text.split()]
    ids = tokenizer.encode(text)
    assert tokenizer.word_ends(ids, "word") == [i == length - 1 for length in lengths for i in range(length)]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    assert [i for i, piece in enumerate(ids) if piece in tokenizer.opening_ids] == starts
    assert not any(tokenizer.word_complete(ids[: i + 1], "word") for i in range(len(ids)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text,characters", [("日本", 2), ("😀 a", 2), ("e\u0301", 2)])
def test_characters_end_with_their_last_byte(kind, text, characters):
    """A blank alone is a piece that completes a character, too, so that there may be one empty unit a word."""
    tokenizer = BackboneTokenizer(fast_tokenizer(kind), "char", "char")
    ids, units, start = tokenizer.encode(text), [], 0
    for i, end in enumerate(tokenizer.word_ends(ids, "char")):
        if end:
            units.append(tokenizer.decode(ids[start : i + 1]))
            start = i + 1
    assert start == len(ids) and "".join(units) == "".join(text.split())
    assert len([unit for unit in units if unit]) == characters


def test_pieces_that_no_text_has_are_special():
    """Such as those with a blank inside, which a model trained on code has many of."""
    backend, trainer = gpt2_like()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.train_from_iterator(["a b c\n    d a b c"] * 9, trainer)
    tokenizer = BackboneTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>"))
    inner = [i for i in range(tokenizer.vocab_size) if has_inner_blank(tokenizer._pieces[i])]
    assert len(inner) > 9 and set(inner) <= set(tokenizer.special_ids)
    assert tokenizer.decode(tokenizer.encode("a b c d")) == "a b c d"


def test_control_characters_that_the_vocabulary_lacks_are_left_out():
    backend, trainer = gpt2_like()
    trainer.initial_alphabet = [character for character in BYTES if character != bytes_to_unicode()[0x04]]
    backend.train_from_iterator(["a b"], trainer)
    tokenizer = BackboneTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>"))
    assert tokenizer.decode(tokenizer.encode("a\x04b \x04 c\x05")) == "ab  c\x05"


def test_start_and_seed():
    bare = BackboneTokenizer(fast_tokenizer("qwen"))
    assert bare.start_ids == (bare.eos_id,) and bare.seed_id == bare.eos_id == 2
    with_bos = BackboneTokenizer(fast_tokenizer("qwen", bos_token="<|im_start|>"))
    assert with_bos.start_ids == (1,) and with_bos.seed_id == 1


@pytest.mark.parametrize("template,roles", [(TURNS, ["system", "user"]), (NO_SYSTEM, ["user"])])
def test_a_prompt_through_a_chat_template(template, roles):
    hf = fast_tokenizer("qwen", chat_template=template)
    ids = source_start(hf, "Translate into English.", chat=True)
    assert [role for role in ("system", "user") if f"<|im_start|>{role}\n" in hf.decode(ids)] == roles
    assert "Translate into English." in hf.decode(ids) and ids.count(2) == len(roles) - 1
    tokenizer = BackboneTokenizer(hf, start_ids=ids)
    example = make_example(tokenizer, "Guten Tag", "Good day")
    assert example.source == [*ids, *tokenizer.encode("Guten Tag"), tokenizer.eos_id]
    assert example.source_word[: len(ids) + 1] == [-1] * len(ids) + [0]
    assert min(example.decision_rows) == len(ids) + len(tokenizer.encode_word("Guten")) - 1


def test_a_plain_prompt_follows_bos():
    hf = fast_tokenizer("gpt2", bos_token="<|endoftext|>")
    assert source_start(hf, "Hallo") == [0, *hf.encode("Hallo")]
    assert source_start(hf) is None


def test_prompts_that_cannot_be():
    with pytest.raises(ValueError, match="needs an instruction"):
        source_start(fast_tokenizer("gpt2"), chat=True)
    with pytest.raises(ValueError, match="no chat template"):
        source_start(fast_tokenizer("gpt2", chat_template=None), "Translate.", chat=True)
    with pytest.raises(ValueError, match="does not show the instruction"):
        source_start(fast_tokenizer("gpt2", chat_template="{{ messages[-1].content[-1:] }}"), "Translate.", chat=True)


def test_tokenizers_that_lose_text_are_refused():
    words = Backend(models.WordLevel({"a": 0, "</s>": 1}, unk_token="</s>"))
    with pytest.raises(ValueError, match="decode with nothing are not supported"):
        BackboneTokenizer(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>"))
    backend, trainer = gpt2_like()
    trainer.initial_alphabet = []
    backend.train_from_iterator(["abc"], trainer)
    with pytest.raises(ValueError, match="no piece for .* single bytes"):
        BackboneTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>"))
    with pytest.raises(ValueError, match="no EOS"):
        BackboneTokenizer(fast_tokenizer("gpt2", eos_token=None))


def test_holes_and_control_tokens_in_the_vocabulary():
    """Ids without a piece, an added token that is not special, and a name that is no sequence of bytes."""
    description = json.loads(fast_tokenizer("gpt2").backend_tokenizer.to_str())
    description["model"]["vocab"]["<｜User｜>"] = 703
    hf = PreTrainedTokenizerFast(tokenizer_object=Backend.from_str(json.dumps(description)), eos_token="<|im_end|>")
    hf.add_tokens(["<|extra|>"])
    tokenizer = BackboneTokenizer(hf)
    assert tokenizer.vocab_size > len(hf) and {700, 703, *hf.get_added_vocab().values()} <= set(tokenizer.special_ids)
    assert tokenizer.decode(tokenizer.encode("a <|extra|> b")) == "a <|extra|> b"


def test_a_prompt_s_outer_blanks_do_not_move_it():
    hf = fast_tokenizer("qwen", chat_template=TURNS.replace("m.content", "m.content | trim"))
    assert source_start(hf, " Translate.\n", chat=True) == source_start(hf, "Translate.", chat=True)


def test_saves_and_loads(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    loaded = BackboneTokenizer.from_folder(tmp_path, start_ids=[1, 2], seed_id=0)
    assert loaded.encode("Hallo 😀 <unk>") == tokenizer.encode("Hallo 😀 <unk>")
    assert (loaded.start_ids, loaded.seed_id, loaded.eos_id) == ((1, 2), 0, tokenizer.eos_id)
    assert loaded.special_ids == tokenizer.special_ids and loaded.opening_ids == tokenizer.opening_ids


@pytest.mark.parametrize("language", REAL)
@pytest.mark.parametrize("kind", [*KINDS, "sentencepiece"])
def test_ten_thousand_real_lines_come_back_word_by_word(tokenizers, sentencepiece, kind, language):
    codec = {**tokenizers, "sentencepiece": sentencepiece}[kind]
    for line in real_lines(language):
        assert " ".join(codec.decode(codec.encode_word(word)) for word in line.split()) == " ".join(line.split())
