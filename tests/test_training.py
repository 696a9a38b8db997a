import json
import os
import socket
import sys
import time
from dataclasses import replace

import pytest
import torch
import yaml
from accelerate import Accelerator
from conftest import TINY, demo_pairs, tiny_grid, tiny_lm
from torch.multiprocessing import ProcessRaisedException, get_context, start_processes

from duplex_model import train
from duplex_model.checkpoint import load_checkpoint
from duplex_model.data import collate, make_example
from duplex_model.tokenizer import Tokenizer
from duplex_model.training.loop import BatchStream, Run, add_dropout, backward, learning_rate
from duplex_model.training.settings import DuplexSettings, LmSettings, StageSettings
from duplex_model.training.stages import DuplexStage, LmStage

STAGES = ("lm", "duplex")
STEPS = {"steps": 6, "lr": 1e-2, "warmup": 2, "validate_every": 2, "log_every": 1, "checkpoint_minutes": 0.0}
STEPS |= {"dropout": 0.1, "ema": 0.5, "label_smoothing": 0.1}
SETTINGS = {"lm": LmSettings(budget=160, **STEPS), "duplex": DuplexSettings(budget=2000, **STEPS)}
# Five sentences on two processes: unequal batches, so unequal counts of tokens and cells.
SHARES = (slice(0, 2), slice(2, 5))
WORDS_AHEAD = torch.tensor([1, 3, 2, 4, 1])
SHORTEST = sorted(demo_pairs(), key=lambda pair: len(" ".join(pair)))
LAM = torch.tensor([0.01, 0.05])


@pytest.fixture(autouse=True, scope="module")
def cpu():
    """Bit-identical runs and two processes need the CPU, also where there is a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_USE_CPU", "true")
        yield


def make_stage(name, vocab_size, seed=0, dtype=torch.float32):
    if name == "lm":
        return LmStage(tiny_lm(seed, dtype, vocab_size=vocab_size), SETTINGS[name])
    return DuplexStage(tiny_grid(seed, dtype, vocab_size=vocab_size), SETTINGS[name])


# The schedule


def test_learning_rate():
    """Steps 0..9 rise to the peak of 2, 10..59 stay there, 60..99 fall."""
    settings = StageSettings(steps=100, budget=1, lr=2.0, warmup=10, decay=0.4)
    rates = [learning_rate(step, settings) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * step for step in range(1, 11)])
    assert rates[10:61] == [2.0] * 51
    assert rates[61:] == pytest.approx([2.0 * (100 - step) / 40 for step in range(61, 100)])


def test_learning_rate_ends_at_two_percent():
    settings = StageSettings(steps=1000, budget=1, lr=1.0, warmup=0, decay=0.5)
    assert learning_rate(0, settings) == 1.0
    assert learning_rate(750, settings) == pytest.approx(0.5)
    assert learning_rate(999, settings) == pytest.approx(0.02)
    assert learning_rate(999, StageSettings(steps=1000, budget=1, lr=1.0, warmup=0, decay=0.0)) == 1.0


# What is trained and what is kept


@pytest.mark.parametrize("name", STAGES)
def test_dropout_acts_in_training_alone(name, tokenizer):
    stage = make_stage(name, tokenizer.vocab_size)
    batch = collate([make_example(tokenizer, *pair) for pair in SHORTEST[:2]])

    def losses(training):
        stage.module.train(training)
        torch.manual_seed(3)
        return stage.module(batch, *stage.draw(batch))[0]

    before = losses(False)
    add_dropout(stage.module, 0.5)
    assert torch.equal(losses(False), before)
    assert not torch.allclose(losses(True), before, rtol=1e-2)


def test_the_averaged_weights_are_the_ones_kept(tokenizer, tmp_path):
    """After one step and one more, ema 0.5 keeps the mean of the weights after each."""
    run, stream, dev = start("lm", tokenizer, tmp_path)
    run.settings = replace(run.settings, steps=2, validate_every=2)
    seen = []
    run.module.register_forward_pre_hook(lambda *_: seen.append(run.raw_module.lm.lm_head.weight.detach().clone()))
    weights = torch.ones(2)
    run._advance(stream, weights)
    run._advance(stream, weights)
    last = run.raw_module.lm.lm_head.weight.detach()
    assert len(seen) == 2 and not torch.equal(seen[1], last)
    torch.testing.assert_close(run.averaged.module.lm.lm_head.weight, (seen[1] + last) / 2)
    run._validate(dev)
    kept = torch.load(tmp_path / "best.pt")["lm.lm_head.weight"]
    torch.testing.assert_close(kept, (seen[1] + last) / 2)


# Resuming


class PowerCut(Exception):
    pass


class CutStream:
    """A batch stream that fails where batch number `last` is wanted."""

    def __init__(self, stream, last):
        self.stream, self.last = stream, last

    def __getitem__(self, number):
        if number == self.last:
            raise PowerCut
        return self.stream[number]


def start(name, tokenizer, folder, init_seed=0, seed=1):
    """A Run of the stage in `folder`, its batches and its dev batches."""
    stage = make_stage(name, tokenizer.vocab_size, init_seed)
    examples = [make_example(tokenizer, *pair) for pair in SHORTEST[:12]]
    run = Run(Accelerator(cpu=True), stage, SETTINGS[name], folder, seed)
    return run, BatchStream(examples[4:], run.settings.budget, stage.cost, seed), [collate(examples[:4])]


@pytest.mark.parametrize("name", STAGES)
def test_resuming_is_exact(name, tokenizer, tmp_path):
    """Six steps at once, and three, a power cut and three more from other initial weights: the same bits."""
    run, stream, dev = start(name, tokenizer, tmp_path / "whole")
    assert len(stream.batches) < 6  # the cut is in another epoch than the end
    best = run.train(stream, dev)
    cut, stream, dev = start(name, tokenizer, tmp_path / "cut")
    with pytest.raises(PowerCut):
        cut.train(CutStream(stream, 3), dev)
    resumed, stream, dev = start(name, tokenizer, tmp_path / "cut", init_seed=5)
    assert (resumed.step, resumed.cells) == (3, cut.cells)
    assert resumed.train(stream, dev) == best
    assert resumed.cells == run.cells
    expected = run.raw_module.state_dict()
    for key, value in resumed.raw_module.state_dict().items():
        assert torch.equal(value, expected[key]), key
    whole, parts = (torch.load(tmp_path / folder / "checkpoint.pt") for folder in ("whole", "cut"))
    assert whole["step"] == parts["step"] == 6
    for key, value in parts["module"].items():
        assert torch.equal(value, whole["module"][key]), key
    for key, state in parts["optimizer"]["state"].items():
        assert all(torch.equal(value, whole["optimizer"]["state"][key][term]) for term, value in state.items()), key


def test_training_learns_and_keeps_the_best(tokenizer, tmp_path):
    run, stream, dev = start("lm", tokenizer, tmp_path)
    best = run.train(stream, dev)
    scores = [record["dev_score"] for record in read_log(tmp_path) if "dev_score" in record]
    assert len(scores) == 3
    assert best == pytest.approx(min(scores), abs=1e-4)
    assert run.validate(dev)["score"] == best


@pytest.mark.parametrize("name", STAGES)
def test_other_settings_are_refused_but_more_steps_are_not(name, tokenizer, tmp_path, monkeypatch):
    run, stream, dev = start(name, tokenizer, tmp_path)
    run.train(stream, dev)
    monkeypatch.setitem(SETTINGS, name, replace(SETTINGS[name], steps=SETTINGS[name].steps + 1))
    assert start(name, tokenizer, tmp_path)[0].step == SETTINGS[name].steps - 1
    monkeypatch.setitem(SETTINGS, name, replace(SETTINGS[name], lr=0.5))
    with pytest.raises(ValueError, match=r"checkpoint\.pt was made with another lr"):
        start(name, tokenizer, tmp_path)


@pytest.mark.parametrize("name", STAGES)
def test_another_seed_is_refused(name, tokenizer, tmp_path):
    run, stream, dev = start(name, tokenizer, tmp_path)
    with pytest.raises(PowerCut):
        run.train(CutStream(stream, 1), dev)
    with pytest.raises(ValueError, match=r"checkpoint\.pt was made with another seed"):
        start(name, tokenizer, tmp_path, seed=2)


# python -m duplex_model.train


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
    ],
)
def test_prices_of_latency_are_checked_before_anything_else(changes, named, tmp_path):
    write_config(tmp_path, duplex=changes)
    with pytest.raises(ValueError, match=rf"tiny\.yaml.*{named}"):
        train.main(arguments(tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_dev_set_without_a_usable_pair_is_an_error(tmp_path):
    write_config(tmp_path, data={"max_tokens": 1})
    with pytest.raises(ValueError, match="max_tokens"):
        train.main(arguments(tmp_path))


# Two processes


def share_of(name, share):
    """The draws of a share of the five sentences: k of each sentence, or the prices, which are the batch's."""
    return (WORDS_AHEAD[share],) if name == "lm" else (LAM,)


def gradients(name, tokenizer, share):
    """Mean losses, counts and each parameter's gradient after `backward` on a share of the five sentences."""
    accelerator, stage = Accelerator(cpu=True), make_stage(name, tokenizer.vocab_size)
    batch = collate([make_example(tokenizer, *pair) for pair in SHORTEST[:5][share]])
    module = accelerator.prepare(stage.module)
    means, counts = backward(accelerator, module, torch.tensor(stage.weights), batch, share_of(name, share))
    named = accelerator.unwrap_model(module).named_parameters()
    return {"means": means, "counts": counts, **{key: parameter.grad for key, parameter in named}}


def process(rank, port, model_file, folder):
    """One of two processes: `main` twice, with a slow disk in process 0, then the gradients of both stages."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    os.environ.pop("ACCELERATE_USE_CPU", None)  # `main` finds the other process on its own
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    tokenizer = Tokenizer(model_file)
    if rank == 0:
        Run._write, train.save = slow(Run._write), slow(train.save)
    for _ in range(2):  # the second time, each process resumes from the last checkpoints
        train.main(arguments(folder))
    torch.save({name: gradients(name, tokenizer, SHARES[rank]) for name in STAGES}, folder / f"gradients-{rank}.pt")
    torch.distributed.destroy_process_group()


def slow(function):
    def wrapped(*args):
        time.sleep(0.2)
        return function(*args)

    return wrapped


@pytest.fixture(scope="module")
def processes(tokenizer, tmp_path_factory):
    """The folder in which two processes worked, and the failure of one of them or None."""
    folder = tmp_path_factory.mktemp("processes")
    steps = {"steps": 2, "log_every": 1}
    write_config(folder, lm=steps, duplex=steps)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    get_context("forkserver").set_forkserver_preload(["duplex_model.train"])  # imports once for both
    try:
        start_processes(process, (port, tokenizer.model_file, folder), nprocs=2, start_method="forkserver")
    except ProcessRaisedException as failure:
        return folder, str(failure)
    return folder, None


@pytest.mark.parametrize("name", STAGES)
def test_two_processes_have_the_gradient_of_their_union(name, processes, tokenizer):
    union = gradients(name, tokenizer, slice(0, 5))
    parts = [torch.load(processes[0] / f"gradients-{rank}.pt")[name] for rank in (0, 1)]
    alone = [gradients(name, tokenizer, share)["counts"] for share in SHARES]
    assert not torch.equal(*alone)
    for key, expected in union.items():
        assert expected.abs().max() > 0, key
        for part in parts:
            torch.testing.assert_close(part[key], expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_main_in_two_processes(processes):
    """No process reads weights that another has still to write."""
    folder, failure = processes
    assert failure is None, failure
    for name in STAGES:
        load_checkpoint(folder / "run", name)
        steps = [record["step"] for record in read_log(folder / "run" / f"stage-{name}")]
        assert steps == [1, 2, 2]  # process 0 alone writes
