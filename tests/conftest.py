"""Tiny random models, a tokenizer trained on the repository's own sentences, and what several test files use."""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: more threads only wait for each other

import pytest
import torch
from accelerate.state import AcceleratorState
from transformers import AutoModelForCausalLM

from duplex_model.config import DuplexConfig
from duplex_model.engine import Engine, Limits
from duplex_model.model import DuplexModel
from duplex_model.tokenizer import Tokenizer, train_tokenizer

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "eval_configs" / "demo"
SHARED = Path(os.environ.get("DUPLEX_DATA_DIR", ROOT.parent / "shared" / "data"))  # parallel text; may be absent

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


@pytest.fixture(autouse=True, scope="module")
def own_accelerator():
    """`accelerate` keeps the precision that it was first asked for, in the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


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


def tokens(X, Y, B=2, seed=1, vocab=90):
    """Random source ids [B, X] and target ids [B, Y]."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(5, vocab, (B, n), generator=generator) for n in (X, Y))


def random_walk(state, source, target, rng):
    """Read and write in random order, several rows at a time; yields the state at each step."""
    x, y = len(state.source_ids), len(state.target_ids)
    while x < len(source) or y < len(target):
        if y == len(target) or (x < len(source) and rng.random() < 0.5):
            step = rng.randint(1, min(3, len(source) - x))
            state = state.read(source[x : x + step])
            x += step
        else:
            state = state.write(target[y])
            y += 1
        yield state, x, y


def grid_engine(tokenizer, limits=None, **overrides):
    config = {"vocab_size": tokenizer.vocab_size, "anchor": 64, **overrides}
    return Engine(tiny_grid(dtype=torch.float32, **config), tokenizer, limits or Limits(1.0, 4))


def lm_engine(tokenizer, limits=None, **overrides):
    config = {"vocab_size": tokenizer.vocab_size, "anchor": 64, **overrides}
    return Engine(tiny_lm(dtype=torch.float32, **config), tokenizer, limits or Limits(1.0, 4))


ENGINES = pytest.mark.parametrize("make", [grid_engine, lm_engine])


def only_end(engine):
    """The engine with every token but the end of the sentence barred."""
    engine.first_ban = torch.full_like(engine.first_ban, -torch.inf)
    engine.first_ban[engine.tokenizer.eos_id] = 0.0
    return engine


@pytest.fixture(scope="module")
def cpu():
    """Bit-identical runs and two processes need the CPU, also where there is a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_USE_CPU", "true")
        yield


def simuleval(folder, *options, source=None, reference=None, check=True):
    """Run the `simuleval` command line on the files; returns (log records, completed process)."""
    output = folder / "out"
    command = [Path(sys.executable).parent / "simuleval", "--output", output, "--quality-metrics", "BLEU"]
    command += ["--source", source or folder / "source.de", "--target", reference or folder / "reference.en", *options]
    place = folder if "--agent-class" in options else ROOT  # a class is found from any folder
    done = subprocess.run([str(part) for part in command], cwd=place, capture_output=True, text=True, timeout=300)
    if check:
        assert done.returncode == 0, done.stderr[-2000:]
    log = output / "instances.log"
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    return records, done


def write_files(folder, sources, references=None):
    (folder / "source.de").write_bytes("".join(line + "\n" for line in sources).encode())
    (folder / "reference.en").write_bytes("".join(line + "\n" for line in references or sources).encode())
