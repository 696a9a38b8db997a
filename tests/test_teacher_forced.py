"""Paths of the policies over a forced reference: by hand, and against the best path's own score."""

import json

import pytest
import torch
from conftest import demo_pairs, tiny_grid, write_files

from duplex_model.data import collate, make_example
from duplex_model.losses import DuplexLoss
from duplex_model.path import optimal_path
from evaluation.teacher_forced import K, batches_of, head_exits, main, measure, path_cost, reached, wait_k_exits

HEIGHTS = [0, 2, 3, 5, 6]  # output words of 2, 1 and 2 pieces, then EOS


def test_wait_k_exits():
    """Rows after 1, 2, 3 and 4 words, then EOS: word j (from 1) may be written after k + j - 1 words."""
    assert wait_k_exits(1, 5, HEIGHTS) == [2, 3, 5, 5, 6]
    assert wait_k_exits(3, 5, HEIGHTS) == [0, 0, 2, 3, 6]
    assert wait_k_exits(9, 5, HEIGHTS) == [0, 0, 0, 0, 6]


def test_head_exits_ask_at_word_ends_only():
    asked = torch.zeros(4, 6, dtype=torch.bool)
    asked[0, 1] = True  # inside a word: not asked
    asked[1, [0, 2]] = True  # two words in a row, then wait
    asked[2, [3, 5]] = True  # the last word; column 5 is EOS, which waits for the source's end
    assert head_exits(asked.tolist(), HEIGHTS) == [0, 3, 5, 6]


def test_the_cost_of_the_best_path_is_its_score():
    heatmap = torch.rand(1, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    path = optimal_path(heatmap, 0.05)
    nats, area = path_cost(heatmap[0].numpy(), path.row_exit[0].tolist())
    assert area == path.area.item() and 0.05 * area - nats == pytest.approx(path.score.item())


def test_reached_is_a_share_of_the_way_at_equal_area():
    curves = {
        "wait-k": {1: [4.0, 0.8], 2: [2.0, 0.4]},
        "best path": {0.1: [1.0, 0.3], 0.2: [2.0, 0.9]},
        "head": {0.01: [2.25, 0.6], 0.02: [5.0, 0.85]},
    }
    assert reached(curves) == {0.01: pytest.approx((3.0 - 2.25) / (3.0 - 1.5)), 0.02: None}


def test_no_policy_beats_the_best_path_and_the_whole_source_is_the_last_row(tokenizer):
    model = tiny_grid(vocab_size=tokenizer.vocab_size, dtype=torch.float32)
    examples = [make_example(tokenizer, *pair) for pair in demo_pairs()[:6]]
    prices, thetas = [0.01, 0.1], (0.3, 0.6)
    curves = measure(model, batches_of(examples), prices, thetas)
    tokens = sum(len(example.target) - 1 for example in examples)
    cells = sum(len(example.decision_rows) * (len(example.target) - 1) for example in examples)
    for lam, (nats, area) in curves["best path"].items():
        best = lam * area * cells - nats * tokens
        for policy in ("wait-k", "head"):
            for other_nats, other_area in curves[policy].values():
                assert lam * other_area * cells - other_nats * tokens <= best + 1e-3
    sums, counts = DuplexLoss(model, 0.02)(collate(examples), torch.tensor([0.02]))
    assert curves["wait-k"][1000][0] == pytest.approx((sums[2] / counts[2]).item(), rel=1e-5)
    for lam in prices:
        for theta in thetas:
            alone = measure(model, batches_of(examples), [lam], (theta,))["head"][lam]
            assert curves["head"][f"{lam}, {theta}"] == pytest.approx(alone)


def test_prices_and_thresholds_out_of_range_are_refused(tmp_path):
    for options in (["--lam", "0.02", "0"], ["--theta", "1.5"]):
        with pytest.raises(ValueError, match="lam = 0.0|theta = 1.5"):
            main([str(tmp_path / "text"), *options])


def test_a_price_given_twice_is_measured_once(tokenizer):
    model = tiny_grid(vocab_size=tokenizer.vocab_size)
    examples = [make_example(tokenizer, *pair) for pair in demo_pairs()[:3]]
    once, twice = (measure(model, batches_of(examples), [0.02] * count, (0.5,) * count) for count in (1, 2))
    assert once == twice


def test_a_run_over_files(tmp_path, checkpoint, capsys):
    write_files(tmp_path, *zip(*demo_pairs()[:5], strict=True))
    for side, language in (("source", "de"), ("reference", "en")):
        (tmp_path / f"{side}.{language}").rename(tmp_path / f"text.{language}")
    output = tmp_path / "out" / "forced.json"
    main([str(tmp_path / "text"), "--checkpoint", str(checkpoint), "--lam", "0.02", "--output", str(output)])
    result = json.loads(output.read_text())
    assert result["sentences"] == 5 and len(result["curves"]["wait-k"]) == len(K)
    areas = [area for _, area in result["curves"]["wait-k"].values()]
    assert areas == sorted(areas, reverse=True)
    bound = [area for _, area in result["curves"]["best path"].values()]
    assert bound == sorted(bound) and "best path" in capsys.readouterr().out
