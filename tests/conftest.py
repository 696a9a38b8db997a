"""Tiny random models and a tokenizer trained on the repository's own sentences."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: more threads only wait for each other

import pytest
import torch
from transformers import AutoModelForCausalLM

from duplex_model.config import DuplexConfig
from duplex_model.model import DuplexModel
from duplex_model.tokenizer import Tokenizer, train_tokenizer

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "eval_configs" / "demo"
SHARED = ROOT.parent / "shared" / "data"

TINY = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "initializer_range": 0.2,  # large weights, so that the parts that only two layers show are well above rounding
}


def demo_pairs():
    sides = ((DEMO / name).read_text(encoding="utf-8").splitlines() for name in ("source.de", "reference.en"))
    return list(zip(*sides, strict=True))


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    model_file = tmp_path_factory.mktemp("tokenizer") / "spm.model"
    train_tokenizer([line for pair in demo_pairs() for line in pair], model_file, vocab_size=700)
    return Tokenizer(model_file)


def tiny_config(**overrides):
    return DuplexConfig(**{"vocab_size": 90, "anchor": 64, **TINY, **overrides})


def tiny_grid(seed=0, dtype=torch.float64, **overrides):
    torch.manual_seed(seed)
    return DuplexModel(tiny_config(**overrides)).to(dtype).eval()


def tiny_lm(seed=0, dtype=torch.float64, **overrides):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(tiny_config(**overrides).lm_config()).to(dtype).eval()


@pytest.fixture(scope="session")
def checkpoint(tokenizer, tmp_path_factory):
    """A folder with the subfolders `duplex` and `lm`: random weights, the demo tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoint")
    ids = {"vocab_size": tokenizer.vocab_size, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    for name, model in (("duplex", tiny_grid(dtype=torch.float32, **ids)), ("lm", tiny_lm(dtype=torch.float32, **ids))):
        model.save_pretrained(folder / name)
        tokenizer.save(folder / name)
    return folder
