"""Quality and latency against SimulEval, YAAL against OmniSTEval, computing time by hand, signs of degeneracy."""

import json

import pytest
from conftest import demo_pairs, simuleval, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from simuleval.evaluator.instance import LogInstance
from simuleval.evaluator.scorers.latency_scorer import ALScorer, APScorer, DALScorer, LAALScorer

from evaluation.degeneracy import copies, degeneracy, loops, same_output
from evaluation.metrics import (
    emission_times,
    reference_length,
    score_computation_aware,
    score_log,
    score_timing,
    sentence_latency,
    yet_another_average_lagging,
)


def test_scores_equal_simuleval_s(tmp_path, checkpoint):
    """The `simuleval` command's own scores of its own log, and the harness's of that log, to SimulEval's 3 decimals."""
    sources, references = zip(*demo_pairs()[:6], strict=True)
    write_files(tmp_path, [*sources, "", "Hallo Tom"], [*references, "A  doubled blank ", "Hello  Tom"])
    metrics = ("--latency-metrics", "AL", "LAAL", "DAL", "AP", "StartOffset")
    records, _ = simuleval(
        tmp_path, "--agent", "agents/waitk_agent.py", "--checkpoint", checkpoint, "--k", "2", *metrics
    )
    header, values = (tmp_path / "out" / "scores.tsv").read_text().splitlines()
    theirs = dict(zip(header.split("\t"), map(float, values.split("\t")), strict=True))
    ours = score_log(records, "word", "13a")
    assert ours["empty"] == 1 and ours["sentences"] == 8
    for name, key in [
        ("BLEU", "BLEU"),
        ("StartOffset", "first_token_words"),
        *((n, n) for n in ("AL", "LAAL", "DAL", "AP")),
    ]:
        assert theirs[name] == pytest.approx(ours[key], abs=6e-4), name


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_sentence_latency_equals_simuleval_s(data):
    source_length = data.draw(st.integers(1, 30))
    delays = sorted(data.draw(st.lists(st.integers(1, source_length), min_size=1, max_size=40)))
    reference = " ".join("w" * data.draw(st.integers(1, 40))) + data.draw(st.sampled_from(["\n", "", " \n"]))
    record = {"index": 0, "delays": delays, "source_length": source_length, "reference": reference, "prediction": ""}
    instance = LogInstance(json.dumps(record))
    ours = sentence_latency(delays, source_length, reference_length(reference, "word"))
    for name, scorer in (("AL", ALScorer), ("LAAL", LAALScorer), ("DAL", DALScorer), ("AP", APScorer)):
        assert ours[name] == pytest.approx(scorer().compute(instance), rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("length,k", [(10, 3), (7, 1), (5, 5)])
def test_wait_k_of_equal_lengths_lags_k(length, k):
    delays = [min(k + t, length) for t in range(length)]
    scores = sentence_latency(delays, length, length)
    assert scores["AL"] == scores["LAAL"] == pytest.approx(k) and scores["DAL"] == pytest.approx(k)
    assert scores["first_token_words"] == k


def test_a_log_without_output_is_an_error():
    with pytest.raises(ValueError, match="no line of the log has any output"):
        score_log([{"delays": [], "prediction": "", "reference": "x\n", "source_length": 0}], "word", "13a")


def record(prediction, delays, source="a b c d", reference="w x y z", index=0):
    length = len(source.split())
    return {
        "index": index,
        "prediction": prediction,
        "delays": delays,
        "source": source,
        "source_length": length,
        "reference": reference + "\n",
    }


def test_yaal_counts_only_what_is_written_while_the_source_is_open():
    assert yet_another_average_lagging([2, 2, 4, 4], 4, 4) == (2 + 1) / 2
    assert yet_another_average_lagging([4, 4], 4, 4) is None
    log = [record("w x y z", [2, 2, 4, 4]), record("w x", [4, 4])]
    scores = score_log(log, "word", "13a")
    assert scores["YAAL"] == 1.5 and scores["YAAL_half_width"] == 0
    assert score_log(log[1:], "word", "13a")["YAAL"] is None


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_yaal_equals_omnisteval_s(data):
    scoring = pytest.importorskip("omnisteval.scoring", reason="omnisteval is not installed")
    length = data.draw(st.integers(1, 20))
    delays = sorted(data.draw(st.lists(st.integers(1, length), min_size=1, max_size=30)))
    reference = " ".join("w" * data.draw(st.integers(1, 30)))
    fields = {"index": 0, "prediction": " ".join("v" * len(delays)), "reference": reference, "emission_cu": delays}
    instance = scoring.Instance.from_dict({**fields, "source_length": length}, latency_unit="word")
    longer = max(len(delays), len(reference.split()))
    theirs = scoring.YAALScorer().compute(instance)
    assert yet_another_average_lagging(delays, length, longer) == pytest.approx(theirs)


def test_computing_queues_behind_the_words():
    """2 words a second. Word 1 (500 ms) takes 700 ms, so word 2 (there at 1000) begins at 1200; word 3 at 1500."""
    calls = [[1, 1, 700.0], [2, 0, 100.0], [3, 2, 50.0]]
    assert emission_times(calls, 2.0) == {1: 1200.0, 2: 1300.0, 3: 1550.0}


def test_computation_aware_lagging_by_hand():
    """4 source words at 2 a second last 2000 ms; 4 reference words, so the pace is 500 ms. Words at 510, 1510, 2020 and
    2020 ms; the third is the first with the whole source."""
    calls = [[1, 1, 10.0], [2, 0, 10.0], [3, 1, 10.0], [4, 2, 20.0]]
    log = [record("w x y z", [1, 3, 4, 4]), record("", [], index=1)]
    timing = [{"calls": calls}, {"calls": [[4, 0, 5.0]]}]
    scores = score_computation_aware(log, timing, "word", 2.0)
    assert scores["LAAL_CA_ms"] == scores["AL_CA_ms"] == pytest.approx((510 + 1010 + 1020) / 3)
    short = [record("w x y z", [1, 3, 4, 4], reference="w x")]
    aware = score_computation_aware(short, timing[:1], "word", 2.0)
    assert aware["AL_CA_ms"] == pytest.approx((510 + 510 + 20) / 3)
    assert aware["LAAL_CA_ms"] == scores["AL_CA_ms"]


def test_percentiles_of_the_clock():
    timing = [
        {"first_token_ms": 10.0 * i, "calls": [[1, 1, float(i)]], "total_ms": 100.0, "steps": 4} for i in range(1, 101)
    ]
    scores = score_timing([*timing, {"first_token_ms": None, "calls": [], "total_ms": 100.0, "steps": 4}])
    assert scores["first_token_ms"] == pytest.approx(505) and scores["first_token_ms_p95"] == pytest.approx(950.5)
    assert 50 < scores["first_token_ms_half_width"] < 150 and scores["step_ms_half_width"] == 0
    assert scores["word_ms"] == pytest.approx(50.5) and scores["sentence_ms_p95"] == 100 and scores["step_ms"] == 25


def test_loops():
    assert loops("no no no".split()) and loops("x the big dog the big dog the big dog".split())
    assert not loops("no no way no no".split()) and not loops("the big dog the big dog".split())


def test_copies():
    source = "ich habe das Buch gelesen".split()
    assert copies("das Buch gelesen".split(), source) and copies("i ich habe das x".split(), source)
    assert not copies("das Buch is read".split(), source) and not copies("a b c d e f das Buch gelesen".split(), source)


def test_degeneracy_of_a_log():
    log = [
        record("w x y z", [1, 2, 3, 4]),
        record("", [], index=1),
        record("b c d", [4, 4, 4], index=2),
        record("z z z z z", [2, 4, 4, 4, 4], index=3),
        record("", [], source="", reference="", index=4),  # nothing to translate
    ]
    timing = [{"cut": index == 3} for index in range(5)]
    found = degeneracy(log, timing, "word")
    assert found == {
        "empty": 1 / 4,
        "cut_off": 1 / 4,
        "copied": 1 / 3,
        "looping": 1 / 3,
        "read_whole": 1 / 3,
        "length_ratio": 12 / 17,
    }
    characters = degeneracy([record("哈哈哈哈", [1, 2, 3, 4])], timing[:1], "char")
    assert characters["looping"] == 1 and characters["copied"] is None
    assert same_output(log, log) and not same_output(log, [record("w x y", [1, 2, 3]), *log[1:]])
