"""The training loop: the schedule, what is trained and kept, resuming."""

from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator
from tiny_training import SETTINGS, SHORTEST, STAGES, make_stage, read_log

from duplex_model.data import collate, make_example
from duplex_model.training.loop import BatchStream, Run, add_dropout, learning_rate
from duplex_model.training.settings import StageSettings

pytestmark = pytest.mark.usefixtures("cpu")


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
