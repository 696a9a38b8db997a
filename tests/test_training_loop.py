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


# One step


@pytest.mark.parametrize("name", STAGES)
def test_steps_equal_a_plain_loop(name, tokenizer, tmp_path, monkeypatch):
    """Three steps, so that the clipped gradients and the learning rates show behind Adam's normalisation."""
    settings = replace(SETTINGS[name], dropout=0.0, ema=0.0, label_smoothing=0.0, clip=0.05, weight_decay=0.1)
    if name == "duplex":
        settings = replace(settings, emit_weight=0.3)
    monkeypatch.setitem(SETTINGS, name, settings)
    run, stream, _ = start(name, tokenizer, tmp_path)
    weights = torch.tensor(run.stage.weights)
    assert len(set(run.stage.weights)) > 1
    plain = make_stage(name, tokenizer.vocab_size)
    optimizer = torch.optim.AdamW(plain.module.parameters(), betas=(0.9, 0.98), weight_decay=0.1)
    for step in range(3):
        run._advance(stream, weights)
        batch = stream[step]
        torch.manual_seed(hash((1, step, 0)) % (1 << 31))
        sums, counts = plain.module(batch, *plain.draw(batch))
        loss = sum(w * total / count.clamp_min(1) for w, total, count in zip(weights, sums, counts, strict=True))
        optimizer.zero_grad()
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(plain.module.parameters(), 0.05) > 0.05
        optimizer.param_groups[0]["lr"] = learning_rate(step, settings)
        optimizer.step()
    for (key, mine), theirs in zip(run.raw_module.named_parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6, msg=key)


def test_epochs_have_the_same_examples_in_another_order(tokenizer):
    examples = [make_example(tokenizer, *pair) for pair in SHORTEST[:12]]
    stream = BatchStream(examples, 160, lambda X, Y: X + Y, seed=1)

    def epoch(number):
        return [
            row.tolist()
            for i in range(len(stream.batches))
            for row in stream[number * len(stream.batches) + i].source_ids
        ]

    first, second = epoch(0), epoch(1)
    assert first != second
    assert sorted(filter(None, sum(first, []))) == sorted(filter(None, sum(second, [])))


# The stages' draws and scores


def test_k_is_drawn_from_one_to_all_words(tokenizer):
    batch = collate([make_example(tokenizer, "Das ist ein gutes Buch", "x")] * 2000)
    (k,) = make_stage("lm", tokenizer.vocab_size).draw(batch)
    assert set(k.tolist()) == {1, 2, 3, 4, 5} and k.bincount()[1:].min() > 300


def test_prices_are_log_uniform(tokenizer, monkeypatch):
    monkeypatch.setitem(SETTINGS, "duplex", replace(SETTINGS["duplex"], lam_min=0.001, lam_max=0.1, lam_draws=2000))
    (lam,) = make_stage("duplex", tokenizer.vocab_size).draw(collate([make_example(tokenizer, "Ja", "Yes")]))
    assert 0.001 <= lam.min() < 0.0012 and 0.08 < lam.max() <= 0.1
    assert lam.median().item() == pytest.approx(0.01, rel=0.2)


@pytest.mark.parametrize("name", STAGES)
def test_scores_are_those_of_the_module(name, tokenizer):
    """Over two batches of different sizes, as one."""
    stage, examples = make_stage(name, tokenizer.vocab_size), [make_example(tokenizer, *p) for p in SHORTEST[:5]]
    scores = stage.validate(stage.module.eval(), [collate(examples[:2]), collate(examples[2:])])
    whole = collate(examples)
    if name == "lm":
        for key, k in (("k1", 1), ("k3", 3), ("full", 1000)):
            sums, counts = stage.module(whole, torch.full((5,), k))
            assert scores[key] == pytest.approx((sums[0] / counts[0]).item(), rel=1e-5)
        assert scores["score"] == pytest.approx((scores["k1"] + scores["k3"] + scores["full"]) / 3)
    else:
        low, high = stage.settings.lam_min, stage.settings.lam_max
        sums, counts = stage.module(whole, torch.tensor([low, (low * high) ** 0.5, high]))
        for i, key in enumerate(stage.module_terms):
            assert scores[key] == pytest.approx((sums[i] / counts[i]).item(), rel=1e-5)
        assert scores["score"] == pytest.approx(scores["lm"] + stage.settings.emit_weight * scores["emit"])


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
    with open(tmp_path / "cut" / "log.jsonl", "a") as log:
        log.write('{"step": 4}\n{"step": 5, "l')  # a cut between log and checkpoint
    resumed, stream, dev = start(name, tokenizer, tmp_path / "cut", init_seed=5)
    assert (resumed.step, resumed.cells) == (3, cut.cells)
    assert resumed.train(stream, dev) == best
    assert resumed.cells == run.cells
    steps = [[record["step"] for record in read_log(tmp_path / folder)] for folder in ("whole", "cut")]
    assert steps[0] == steps[1]
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
    assert len(scores) == 3 and scores[-1] < scores[0]
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


def test_steps_can_be_shortened_to_what_is_done_but_no_further(tokenizer, tmp_path, monkeypatch):
    """Before its first validation a run has no best weights yet: the last ones are validated."""
    monkeypatch.setitem(SETTINGS, "lm", replace(SETTINGS["lm"], validate_every=100))
    run, stream, dev = start("lm", tokenizer, tmp_path)
    with pytest.raises(PowerCut):
        run.train(CutStream(stream, 3), dev)
    done = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"]
    monkeypatch.setitem(SETTINGS, "lm", replace(SETTINGS["lm"], steps=done))
    run, stream, dev = start("lm", tokenizer, tmp_path)
    assert run.train(stream, dev) == run.validate(dev)["score"]
    monkeypatch.setitem(SETTINGS, "lm", replace(SETTINGS["lm"], steps=done - 1))
    with pytest.raises(ValueError, match=f"is at step {done}, beyond steps = {done - 1}"):
        start("lm", tokenizer, tmp_path)


def test_a_run_cut_before_its_first_checkpoint_begins_its_log_anew(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(SETTINGS, "lm", replace(SETTINGS["lm"], checkpoint_minutes=100.0))
    run, stream, dev = start("lm", tokenizer, tmp_path)
    with pytest.raises(PowerCut):
        run.train(CutStream(stream, 3), dev)
    assert read_log(tmp_path) and not (tmp_path / "checkpoint.pt").exists()
    start("lm", tokenizer, tmp_path)
    assert not read_log(tmp_path)


@pytest.mark.parametrize("name", STAGES)
def test_another_seed_is_refused(name, tokenizer, tmp_path):
    run, stream, dev = start(name, tokenizer, tmp_path)
    with pytest.raises(PowerCut):
        run.train(CutStream(stream, 1), dev)
    with pytest.raises(ValueError, match=r"checkpoint\.pt was made with another seed"):
        start(name, tokenizer, tmp_path, seed=2)
