"""Tokenizers of pretrained LLMs, trained on the demo sentences, and text that a tokenizer has to bring back."""

import json

import pytest
from conftest import SHARED, demo_pairs
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from duplex_model.data import read_lines

SENTENCES = [line for pair in demo_pairs() for line in pair]
# What is not ASCII here is in no demo sentence, so it is written in bytes.
FOREIGN = {
    "emoji": "a 😀 b👨‍👩‍👧c",
    "cjk": "日本語 我们",
    "literal U+2581": "a▁b ▁ ▁▁ c▁ ▁d",
    "combining": "e\u0301 n\u0303o",
    "zero width": "x\u200by \ufeffz",
    "null": "x\x00y",
    "replacement character": "a\ufffdb",
}
REAL = {  # language -> (files below the data folder, lines to take)
    "de": (["tatoeba-de-en/train.de"], 3000),
    "fr": (["multi30k/train.fr"], 3000),
    "vi": (["iwslt15-en-vi/tst2012.vi", "iwslt15-en-vi/tst2013.vi"], 2821),
    "zh": (["simust-c-en-zh/test.zh"], 1400),
}


def real_lines(language):
    files, count = REAL[language]
    if not all((SHARED / file).is_file() for file in files):
        pytest.skip(f"needs {', '.join(files)} below $DUPLEX_DATA_DIR")
    lines = [line for file in files for line in read_lines(SHARED / file)][:count]
    assert len(lines) == count
    return lines


QWEN_SPLIT = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
BYTES = pre_tokenizers.ByteLevel.alphabet()
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def gpt2_like():
    backend = Backend(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return backend, trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, initial_alphabet=BYTES)


def qwen_like():
    backend, trainer = gpt2_like()
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return backend, trainer


def llama2_like():
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend, trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL + fallback_pieces())


def metaspace_unigram():
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    trainer = trainers.UnigramTrainer(vocab_size=900, special_tokens=SPECIAL + fallback_pieces(), unk_token="<unk>")
    return backend, trainer


def fallback_pieces():
    return ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]


KINDS = {"gpt2": gpt2_like, "qwen": qwen_like, "llama2": llama2_like, "unigram": metaspace_unigram}


def fast_tokenizer(kind, **special):
    """A `transformers` tokenizer of this kind trained on the demo sentences."""
    backend, trainer = KINDS[kind]()
    backend.train_from_iterator((" ".join(line.split()) for pair in demo_pairs() for line in pair), trainer)
    description = json.loads(backend.to_str())  # the trainer knows no other way to ask for the byte pieces
    description["added_tokens"] = [t for t in description["added_tokens"] if t["content"] in (*SPECIAL, "<unk>")]
    backend = Backend.from_str(json.dumps(description))
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TURNS, **special}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)
