"""`python -m duplex_model.train`: both stages, one by one, and what it refuses."""

import shutil

import pytest
import torch
from tiny_training import STAGES, arguments, read_log, write_config

from duplex_model import train
from duplex_model.checkpoint import load_checkpoint

pytestmark = pytest.mark.usefixtures("cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with data, the YAML file and the run of both stages."""
    folder = tmp_path_factory.mktemp("trained")
    write_config(folder)
    train.main(arguments(folder))
    return folder


@pytest.mark.parametrize("name", STAGES)
def test_main_writes_models_that_load(name, trained):
    model, tokenizer = load_checkpoint(trained / "run", name)
    assert tokenizer.vocab_size == model.config.vocab_size == 700
    assert (model.config.bos_token_id, model.config.eos_token_id) == (tokenizer.bos_id, tokenizer.eos_id)
    assert (model.config.hidden_size, model.config.anchor) == (48, 512)
    best = torch.load(trained / "run" / f"stage-{name}" / "best.pt")
    prefix = {"lm": "lm.", "duplex": "model."}[name]
    for key, value in model.state_dict().items():
        assert torch.equal(value, best[prefix + key]), key


@pytest.mark.parametrize(
    "name,terms,dev_terms,unit",
    [
        ("lm", {"target", "source"}, {"dev_k1", "dev_k3", "dev_full", "dev_score"}, "tokens_per_second"),
        (
            "duplex",
            {"lm", "emit", "last_row", "area"},
            {"dev_lm", "dev_emit", "dev_last_row", "dev_area", "dev_score"},
            "cells_per_second",
        ),
    ],
)
def test_main_logs_the_terms_of_the_stage(name, terms, dev_terms, unit, trained):
    records = read_log(trained / "run" / f"stage-{name}")
    assert [record["step"] for record in records] == [2, 2, 4, 4]
    for record, expected in zip(records, [terms, dev_terms] * 2, strict=True):
        assert set(record) == {"step", "seconds", unit} | expected
        assert all(record[term] > 0 for term in expected)


def test_main_again_does_nothing_more(trained):
    files = [path for path in sorted((trained / "run").rglob("*")) if path.is_file()]
    logs = [path.read_text() for path in files if path.name == "log.jsonl"]
    weights = [path.read_bytes() for path in files if path.suffix == ".safetensors"]
    train.main(arguments(trained))
    assert [path for path in sorted((trained / "run").rglob("*")) if path.is_file()] == files
    assert [path.read_text() for path in files if path.name == "log.jsonl"] == logs
    assert [path.read_bytes() for path in files if path.suffix == ".safetensors"] == weights


def test_main_stage_by_stage_equals_both_at_once(trained):
    """Stopping between the stages changes nothing, the fresh EMIT head included."""
    for stage in STAGES:
        train.main(arguments(trained, "staged", "--stage", stage))
    for name in STAGES:
        once, staged = (load_checkpoint(trained / run, name)[0].state_dict() for run in ("run", "staged"))
        for key, value in once.items():
            assert torch.equal(staged[key], value), (name, key)


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"model": {"anchor": 256}}, "anchor"),
        ({"data": {"max_tokens": 30}}, "data"),
        ({"data": {"train": ["dev"]}}, "data"),
        ({"data": {"dev_sentences": 5}}, "data, dev text"),
    ],
)
def test_another_model_or_text_does_not_go_on_from_a_checkpoint(changes, named, trained, tmp_path):
    """The tensors may have the same shapes, so nothing else would tell."""
    write_config(tmp_path, **changes)
    config, *_ = arguments(tmp_path)
    with pytest.raises(ValueError, match=rf"checkpoint\.pt was made with another {named}"):
        train.main([config, *arguments(trained)[1:]])


def test_edited_text_does_not_go_on_from_a_checkpoint(trained, tmp_path):
    """The same files with other lines: the batches, or what the best score was measured on, would be others."""
    write_config(tmp_path)
    for name, named in (("dev.en", "dev text"), ("train.de", "text")):
        lines = (tmp_path / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join([lines[1], lines[0], *lines[2:]]))
        with pytest.raises(ValueError, match=rf"checkpoint\.pt was made with another {named}"):
            train.main([str(tmp_path / "tiny.yaml"), "--data-dir", str(tmp_path), "--output", str(trained / "run")])


def test_another_grid_does_not_go_on_from_a_checkpoint_or_stage_1(trained, tmp_path):
    """What stage 1 does not depend on may differ there; its sizes may not."""
    write_config(tmp_path, model={"input_cross_attention": False})
    config, *_ = arguments(tmp_path)
    with pytest.raises(ValueError, match=r"stage-duplex/checkpoint\.pt was made with another input_cross_attention"):
        train.main([config, *arguments(trained)[1:]])
    for model in ({"intermediate_size": 32}, {"anchor": 256}):
        write_config(tmp_path, model=model)
        with pytest.raises(ValueError, match=f"stage 1 was trained with another {next(iter(model))}"):
            train.main([config, *arguments(trained)[1:], "--stage", "duplex"])


def test_a_grid_does_not_go_on_over_another_stage_1(trained, tmp_path):
    """More steps of stage 1 are allowed, but then what came from it has to be made anew."""
    shutil.copytree(trained / "run", tmp_path / "run")
    write_config(tmp_path, lm={"steps": 6})
    with pytest.raises(ValueError, match=r"stage-duplex/checkpoint\.pt was made with another weights to begin with"):
        train.main(arguments(tmp_path))


def test_the_tokenizer_of_another_vocabulary_is_refused(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    write_config(tmp_path, vocab_size=600)
    with pytest.raises(ValueError, match=r"spm\.model has 700 pieces, not vocab_size = 600; use another output folder"):
        train.main(arguments(tmp_path))


def test_a_stage_that_the_recipe_lacks_is_an_error(tmp_path):
    write_config(tmp_path, lm=None, duplex={"from_scratch": True})
    with pytest.raises(ValueError, match="has no section lm"):
        train.main(arguments(tmp_path, "run", "--stage", "lm"))


@pytest.mark.parametrize(
    "stage,message", [("lm", "the dev loss is nan; begin in another output folder"), ("duplex", "lower lr")]
)
def test_a_loss_that_is_no_number_ends_the_training(stage, message, tmp_path):
    write_config(tmp_path, **{stage: {"lr": 1e30, "warmup": 0}})
    with pytest.raises(ValueError, match=message):
        train.main(arguments(tmp_path))


def test_main_without_stage_one(trained):
    with pytest.raises(FileNotFoundError, match="run the stage lm first, or set duplex.from_scratch"):
        train.main(arguments(trained, "alone", "--stage", "duplex"))


def test_main_with_the_oracle_anchor(tmp_path):
    """The paper's positions, which start at the true source length, train in both stages."""
    steps = {"steps": 1, "log_every": 1}
    write_config(tmp_path, lm=steps, duplex=steps, model={"anchor": "oracle"})
    train.main(arguments(tmp_path))
    assert load_checkpoint(tmp_path / "run", "duplex")[0].config.anchor == "oracle"


@pytest.mark.parametrize(
    "changes,key,near",
    [
        ({"vocab_sise": 700}, "vocab_sise", "vocab_size"),
        ({"data": {"trian": ["train"]}}, "trian", "train"),
        ({"lm": {"warm_up": 3}}, "warm_up", "warmup"),
        ({"duplex": {"lam_mim": 0.1}}, "lam_mim", "lam_min"),
        ({"model": {"hiden_size": 48}}, "hiden_size", "hidden_size"),
        ({"model": {"attention_dropout": 0.1}}, "attention_dropout", "attention_bias"),  # a Llama key that does nothing
        ({"model": {"qkv_bias": True, "mlp_bias": True}}, "mlp_bias", "qkv_bias"),
    ],
)
def test_a_mistyped_key_is_an_error(changes, key, near, tmp_path):
    write_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"tiny\.yaml.*'{key}'.*'{near}'"):
        train.main(arguments(tmp_path))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["train.de", "train.en", "dev.de", "dev.en"])
def test_a_missing_data_file_is_an_error(name, tmp_path):
    write_config(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        train.main(arguments(tmp_path))


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"lam_min": 0.0}, "lam_min"),
        ({"lam_min": -0.1}, "lam_min"),
        ({"lam_min": 0.2, "lam_max": 0.1}, "lam_max"),
        ({"lam_lm": -0.1}, "lam_lm"),
        ({"lam_draws": 0}, "lam_draws"),
        ({"validate_every": 0}, "validate_every"),
        ({"steps": -1}, "steps"),
        ({"clip": 0}, "clip"),
        ({"ema": 1.0}, "ema"),
        ({"decay": 3.0}, "decay"),
    ],
)
def test_values_are_checked_before_anything_else(changes, named, tmp_path):
    write_config(tmp_path, duplex=changes)
    with pytest.raises(ValueError, match=rf"tiny\.yaml.*{named}"):
        train.main(arguments(tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_block_that_no_causal_lm_has(tmp_path):
    write_config(tmp_path, model={"qkv_bias": True, "qk_norm": True})
    with pytest.raises(ValueError, match="both qkv_bias and qk_norm"):
        train.main(arguments(tmp_path))


def test_a_dev_set_without_a_usable_pair_is_an_error(tmp_path):
    write_config(tmp_path, data={"max_tokens": 1})
    with pytest.raises(ValueError, match="max_tokens"):
        train.main(arguments(tmp_path))
