"""Short trainings of tiny models on the demo sentences."""

import json

import torch
import yaml
from conftest import TINY, demo_pairs, tiny_grid, tiny_lm

from duplex_model.training.settings import DuplexSettings, LmSettings
from duplex_model.training.stages import DuplexStage, LmStage

STAGES = ("lm", "duplex")
STEPS = {"steps": 6, "lr": 1e-2, "warmup": 2, "validate_every": 2, "log_every": 1, "checkpoint_minutes": 0.0}
STEPS |= {"dropout": 0.1, "ema": 0.5, "label_smoothing": 0.1}
SETTINGS = {"lm": LmSettings(budget=160, **STEPS), "duplex": DuplexSettings(budget=2000, **STEPS)}
SHORTEST = sorted(demo_pairs(), key=lambda pair: len(" ".join(pair)))


def make_stage(name, vocab_size, seed=0, dtype=torch.float32):
    if name == "lm":
        return LmStage(tiny_lm(seed, dtype, vocab_size=vocab_size), SETTINGS[name])
    return DuplexStage(tiny_grid(seed, dtype, vocab_size=vocab_size), SETTINGS[name])


def write_config(folder, **changes):
    """A data folder from the demo sentences and a YAML file; `changes` replaces or adds keys, per section."""
    pairs = demo_pairs()
    for prefix, part in (("train", pairs), ("dev", pairs[:20])):
        for language, lines in zip(("de", "en"), zip(*part, strict=True), strict=True):
            (folder / f"{prefix}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    steps = {"steps": 4, "lr": 1e-3, "warmup": 2, "validate_every": 2, "log_every": 2}
    config = {
        "name": "tiny",
        "vocab_size": 700,
        "data": {"train": ["train"], "dev": "dev"},
        "model": {key: value for key, value in TINY.items() if key != "pad_token_id"},
        "lm": {**steps, "budget": 600},
        "duplex": {**steps, "budget": 2000},
    }
    for section, values in changes.items():
        config[section] = {**config[section], **values} if isinstance(values, dict) else values
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def arguments(folder, output="run", *more):
    return [str(folder / "tiny.yaml"), "--data-dir", str(folder), "--output", str(folder / output), *more]


def read_log(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
