"""The shipped training recipes, for a few steps on the repository's own sentences."""

import os
import subprocess
import sys

import pytest
import torch
import yaml
from conftest import DEMO, ROOT

from duplex_model.checkpoint import load_checkpoint
from duplex_model.config import DuplexConfig
from duplex_model.model import DuplexModel
from duplex_model.settings import load_settings
from duplex_model.training.build import check_model
from duplex_model.training.settings import TrainSettings

RECIPES = {path.stem: load_settings(TrainSettings, path) for path in sorted(ROOT.glob("duplex_model/recipes/*.yaml"))}
SMALL = {"steps": 2, "validate_every": 2, "warmup": 1}


def parameters(settings):
    with torch.device("meta"):
        model = DuplexModel(DuplexConfig(vocab_size=settings.vocab_size, pad_token_id=0, **settings.model))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", [name for name, settings in RECIPES.items() if settings.backbone is None])
def test_sizes(name):
    low, high = (25e6, 60e6) if name.endswith("-gpu") else (4e6, 8e6)
    assert low <= parameters(RECIPES[name]) <= high


@pytest.mark.parametrize("name", RECIPES)
def test_keys_and_names(name):
    check_model(RECIPES[name], name)
    assert name == RECIPES[name].name


def test_the_gpu_recipe_on_the_cpu_for_a_few_steps(tmp_path):
    """Both stages in the recipe's own size and precision; the weights then load."""
    recipe = yaml.safe_load((ROOT / "duplex_model" / "recipes" / "freely-licensed-de-en-gpu.yaml").read_text())
    for name, copy in (("source.de", "text.de"), ("reference.en", "text.en")):
        (tmp_path / copy).write_bytes((DEMO / name).read_bytes())
    recipe["data"] |= {"train": ["text"], "dev": "text", "dev_sentences": 4}
    recipe |= {"vocab_size": 700, "threads": 1}
    recipe["lm"] |= {**SMALL, "budget": 200}
    recipe["duplex"] |= {**SMALL, "budget": 600}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "duplex_model.train", str(tmp_path / "recipe.yaml")]
    command += ["--data-dir", str(tmp_path), "--output", str(tmp_path / "run")]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    for name in ("lm", "duplex"):
        model, _ = load_checkpoint(tmp_path / "run", name)
        assert all(parameter.isfinite().all() for parameter in model.parameters())
