"""Bootstrap and frontiers against sacreBLEU and hand-computed areas."""

import random

import numpy as np
import pytest
from conftest import demo_pairs
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from evaluation.settings import CompareSettings
from evaluation.statistics import Frontier, Points, _tested, compare, mean_gain, points_of_logs

REFERENCES = [target for _, target in demo_pairs()[:60]]


def damaged(share, seed):
    """The references with this share of their words lost."""
    rng = random.Random(seed)
    return [" ".join(word for word in line.split() if rng.random() > share) or "x" for line in REFERENCES]


def log(hypotheses, delay):
    """SimulEval records whose first word comes after `delay` words."""
    return [
        {"prediction": h, "reference": r + "\n", "delays": [delay] * len(h.split()), "source_length": 20}
        for h, r in zip(hypotheses, REFERENCES, strict=True)
    ]


def points(*systems):
    return points_of_logs([log(*system) for system in systems], "first_token_words", "word", "13a")


def test_sentence_counts_add_up_to_corpus_bleu():
    hypotheses = damaged(0.2, 1)
    frontier = Frontier.of(points((hypotheses, 3)))
    assert frontier.quality[0] == pytest.approx(BLEU().corpus_score(hypotheses, [REFERENCES]).score, abs=1e-9)
    assert frontier.latency[0] == 3


def test_the_gain_at_a_point_agrees_with_sacrebleu_s_paired_bootstrap():
    better, worse = damaged(0.25, 1), damaged(0.3, 2)
    bleu = {"BLEU": BLEU()}
    theirs = PairedTest([("worse", worse), ("better", better)], bleu, [REFERENCES], "bs", 1000)()[1]["BLEU"]
    ours = compare(points((better, 2), (better, 4)), points((worse, 2), (worse, 4)), at=(3,))["at"][0]["gain"]
    assert ours["BLEU"] == pytest.approx(theirs[1].score - theirs[0].score, abs=1e-9)
    assert ours["p"] == pytest.approx(theirs[1].p_value, abs=0.05) and 0.001 < ours["p"] < 0.5
    assert ours["interval"][0] < ours["BLEU"] < ours["interval"][1]


def test_the_interval_and_the_two_sided_p_value_by_hand():
    """Around their mean of 2, two of five resampled gains lie as far off as the observed gain; one is added to both."""
    tested = _tested(2.0, np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    assert tested == {"BLEU": 2.0, "interval": pytest.approx([0.1, 3.9]), "p": 0.5}


def test_a_system_gains_nothing_over_itself():
    one = points((damaged(0.4, 1), 1), (damaged(0.1, 1), 5))
    result = compare(one, one, at=(2, 9))
    assert result["range"] == [1, 5] and result["mean_gain"] == {"BLEU": 0.0, "interval": [0.0, 0.0], "p": 1.0}
    assert result["at"][1] == {"latency": 9, "gain": None}
    assert [place["system"] for place in result["equal_quality"]] == pytest.approx([1, 5])


def test_the_area_between_frontiers():
    """System 10 + 2 (x - 1) on 1..5, baseline 8 at 1, 12 at 3, 12 at 7: gains 2 at x = 1 to 3, then 2 to 6 at 5."""
    system = Frontier(np.array([1.0, 5.0]), np.array([10.0, 18.0]))
    baseline = Frontier(np.array([1.0, 3.0, 7.0]), np.array([8.0, 12.0, 12.0]))
    assert mean_gain(system, baseline, 1.0, 5.0) == pytest.approx((2 * 2 + 2 * 4) / 4)
    assert mean_gain(system, baseline, 2.0, 3.0) == pytest.approx(2.0)


def test_latency_at_equal_quality():
    frontier = Frontier(np.array([1.0, 2.0, 4.0]), np.array([10.0, 9.0, 13.0]))
    assert [frontier.latency_at(quality) for quality in (9.5, 11.0, 13.0, 13.1)] == [1.0, 3.0, 4.0, None]


def test_a_first_point_that_is_better_is_a_bound():
    better, worse = damaged(0.1, 1), damaged(0.4, 1)
    places = compare(points((better, 2), (REFERENCES, 4)), points((worse, 1), (better, 3)))["equal_quality"]
    assert [(place["system"], place["at_most"]) for place in places] == [(2, True), (2, False)]


def test_sentences_without_output_have_no_latency():
    records = log(damaged(0.2, 1), 3)
    records[0] |= {"delays": [], "prediction": ""}
    frontier = Frontier.of(points_of_logs([records], "AL", "word", "13a"))
    assert np.isfinite(frontier.latency).all() and np.isfinite(frontier.quality).all()


def test_two_systems_of_one_point_are_compared_wherever_they_are():
    better, worse = damaged(0.25, 1), damaged(0.3, 2)
    single = compare(points((better, 3)), points((worse, 5)))
    assert single["range"] is None and single["mean_gain"]["interval"][0] < single["mean_gain"]["interval"][1]
    both = compare(points((better, 2), (better, 4)), points((worse, 2), (worse, 4)), at=(3,))
    assert single["mean_gain"] == both["at"][0]["gain"]


def test_frontiers_without_a_common_range_have_no_gain():
    left = points((damaged(0.2, 1), 1), (damaged(0.1, 1), 2))
    right = points((damaged(0.2, 2), 4))
    assert compare(left, right, at=(2,))["mean_gain"] is None and isinstance(left, Points)


def test_an_unknown_latency_metric_is_refused():
    with pytest.raises(ValueError, match="'BLEU' cannot be compared at; use one of AL, LAAL"):
        CompareSettings("duplex", "wait-k", metric="BLEU")
