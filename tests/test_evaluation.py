"""The harness on real SimulEval logs, with random weights."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml
from conftest import ROOT, demo_pairs, drive, simuleval, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from simuleval.evaluator.instance import LogInstance
from simuleval.evaluator.scorers.latency_scorer import ALScorer, APScorer, DALScorer, LAALScorer

from duplex_model.checkpoint import load_checkpoint
from duplex_model.engine import Engine, Limits
from duplex_model.oracle import OraclePath
from duplex_model.policies import Confidence, EmitHeadPolicy, LocalAgreement
from duplex_model.settings import load_settings
from duplex_model.training.settings import TrainSettings
from evaluation.__main__ import main
from evaluation.logs import keep_lines, only_run, whole_lines
from evaluation.metrics import read_records, reference_length, score_log, sentence_latency
from evaluation.report import comparison_text
from evaluation.settings import TestSettings, points_of, simuleval_arguments
from evaluation.tables import table
from evaluation.unfold import unfold


def write_config(folder, checkpoint, sentences=4, **changes):
    write_files(folder, *zip(*demo_pairs()[:sentences], strict=True))
    shared = {"checkpoint": str(checkpoint), "max_len_a": 0.3, "max_len_b": 3}  # random weights never write EOS
    compare = [] if "systems" in changes else [{"system": "duplex", "baseline": "wait-k", "at": [2]}]
    config = {
        "name": "tiny",
        "source": "source.de",
        "reference": "reference.en",
        "examples": [2],
        "compare": compare,
        "systems": [
            {
                "name": "duplex",
                "agent": "agents.duplex_agent.DuplexAgent",
                "options": shared,
                "sweep": {"lam": [0.01, 0.1]},
            },
            {"name": "wait-k", "agent": "agents.waitk_agent.WaitKAgent", "options": shared, "sweep": {"k": [1, 3]}},
            {"name": "offline", "agent": "agents.offline_agent.OfflineAgent", "options": shared},
        ],
        **changes,
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_sweep_writes_table_picture_and_numbers(tmp_path, checkpoint, capsys):
    config = write_config(tmp_path, checkpoint)
    main([str(config), "--output", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(r["system"], r["values"]) for r in results] == [
        ("duplex", {"lam": 0.01}), ("duplex", {"lam": 0.1}), ("wait-k", {"k": 1}), ("wait-k", {"k": 3}), ("offline", {})
    ]  # fmt: skip
    (comparison,) = json.loads((tmp_path / "out" / "comparisons.json").read_text())
    assert comparison["at"][0]["latency"] == 2 and comparison_text(comparison) in shown
    assert table(results) in shown and "line 2, lam = 0.1" in shown
    assert (tmp_path / "out" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "out" / "results.csv").read_text().splitlines()) == 6
    for result in results:
        assert result["scores"]["sentences"] == 4 and result["scores"]["step_ms"] > 0
        assert result["versions"]["simuleval"] == "1.1.4" and len(result["point"]["checkpoint_sha256"]) == 3
        assert "tok:13a" in result["scores"]["BLEU_signature"]


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


def test_cut_lines_are_dropped(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"a": 1}\n{"b": 2}\n{"c"')
    assert whole_lines(path) == 2
    keep_lines(path, 1)
    assert path.read_bytes() == b'{"a": 1}\n'
    path.write_bytes(b'{"a": 1}\n{"b": \n{"c": 2}\n')
    assert whole_lines(path) == 1
    assert whole_lines(tmp_path / "none") == 0


def without_clock(folder):
    logs = {path.parent.name: read_records(path) for path in folder.glob("logs/*/instances.log")}
    results = json.loads((folder / "results.json").read_text())
    for result in results:
        result["scores"] = {key: value for key, value in result["scores"].items() if "_ms" not in key}
    return logs, results


def test_a_killed_run_resumes(tmp_path, checkpoint):
    """SIGKILL in the middle of a point: no finished sentence is lost, and the end is the undisturbed run's."""
    options = {"checkpoint": str(checkpoint), "max_len_a": 0.3, "max_len_b": 3}
    system = {"name": "wait-k", "agent": "agents.waitk_agent.WaitKAgent", "options": options, "sweep": {"k": [1, 3]}}
    config = write_config(tmp_path, checkpoint, sentences=80, systems=[system], examples=[])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    main([str(config), "--output", str(whole)])
    command = [sys.executable, "-m", "evaluation", str(config), "--output", str(killed)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = killed / "logs" / "wait-k_k=1" / "instances.log"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (log.is_file() and log.read_bytes().count(b"\n") >= 5):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = log.read_bytes()
    assert 5 <= finished.count(b"\n") < 80, "the run was not killed in the middle of the point"
    with open(log, "ab") as file:
        file.write(b'{"index": 99, "predic')  # what a cut write leaves
    main([str(config), "--output", str(killed)])
    assert log.read_bytes().startswith(finished[: finished.rindex(b"\n") + 1])
    assert [record["index"] for record in read_records(log.with_name("timing.jsonl"))] == list(range(80))
    assert without_clock(killed) == without_clock(whole)


def test_two_jobs_equal_one(tmp_path, checkpoint):
    config = write_config(tmp_path, checkpoint)
    for jobs in ("1", "2"):
        main([str(config), "--output", str(tmp_path / jobs), "--jobs", jobs])
    assert without_clock(tmp_path / "1") == without_clock(tmp_path / "2")


def test_shards_joined_equal_one_run(tmp_path, checkpoint):
    """In two shards, as a cluster's array job, and after a shard was cut: the whole run's logs to the byte."""
    options = {"checkpoint": str(checkpoint), "max_len_a": 0.3, "max_len_b": 3}
    system = {"name": "wait-k", "agent": "agents.waitk_agent.WaitKAgent", "options": options, "sweep": {"k": [1, 3]}}
    config = write_config(tmp_path, checkpoint, sentences=5, systems=[system], examples=[])
    whole, parts, array = (tmp_path / name for name in ("whole", "parts", "array"))
    main([str(config), "--output", str(whole)])
    main([str(config), "--output", str(parts), "--shards", "2"])
    assert without_clock(parts) == without_clock(whole)
    shard = parts / "logs" / "wait-k_k=1" / "sentences-2-5"
    keep_lines(shard / "instances.log", 1)
    for path in parts.glob("logs/*/*.log"):
        path.unlink()
    main([str(config), "--output", str(parts), "--shards", "2", "--jobs", "2"])
    pytest.importorskip("submitit", reason="the extra 'cluster' is not installed")
    main([str(config), "--output", str(array), "--shards", "2", "--cluster", "local"])
    for path in whole.glob("logs/*/instances.log"):
        for other in (parts, array):
            assert (other / path.relative_to(whole)).read_bytes() == path.read_bytes()
    timing = read_records(parts / "logs" / "wait-k_k=1" / "timing.jsonl")
    assert [record["index"] for record in timing] == list(range(5))


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no Slurm here")
def test_a_sweep_on_slurm(tmp_path, checkpoint):
    config = write_config(tmp_path, checkpoint)
    main([str(config), "--output", str(tmp_path / "here")])
    main([str(config), "--output", str(tmp_path / "slurm"), "--cluster", "slurm", "--jobs", "2"])
    assert without_clock(tmp_path / "slurm") == without_clock(tmp_path / "here")


def test_two_runs_into_one_folder_are_refused(tmp_path, checkpoint):
    config, out = write_config(tmp_path, checkpoint, sentences=1, examples=[]), tmp_path / "out"
    for held in (out, out / "logs" / "wait-k_k=1"):
        held.mkdir(parents=True, exist_ok=True)
        with only_run(held), pytest.raises(ValueError, match="another run is writing into"):
            main([str(config), "--output", str(out)])
    main([str(config), "--output", str(out)])


def test_every_baseline_runs_in_process(tmp_path, checkpoint):
    """Confidence, local agreement and the oracle path in a sweep; the log of each is the engine's output."""
    options = {"checkpoint": str(checkpoint), "max_len_a": 0.3, "max_len_b": 3}
    both = {"sweep": {"backbone": ["duplex", "lm"]}}
    systems = [
        {"name": "confidence", "agent": "agents.confidence_agent.ConfidenceAgent", "options": {**options, "tau": 0.2}},
        {"name": "agreement", "agent": "agents.agreement_agent.AgreementAgent", "options": options},
        {"name": "oracle", "agent": "agents.oracle_agent.OracleAgent", "options": options, "sweep": {"lam": [0.1, 1]}},
    ]
    systems[:2] = [{**system, **both} for system in systems[:2]]
    config, out = write_config(tmp_path, checkpoint, sentences=3, systems=systems, examples=[]), tmp_path / "out"
    main([str(config), "--output", str(out), "--limit", "2"])
    main([str(config), "--output", str(out)])  # goes on with the third sentence
    engines = {name: Engine(*load_checkpoint(checkpoint, name), Limits(0.3, 3)) for name in ("duplex", "lm")}
    for folder, backbone, policy_of in (
        ("confidence_backbone=duplex", "duplex", lambda *_: Confidence(0.2)),
        ("confidence_backbone=lm", "lm", lambda *_: Confidence(0.2)),
        ("agreement_backbone=duplex", "duplex", lambda *_: LocalAgreement()),
        ("agreement_backbone=lm", "lm", lambda *_: LocalAgreement()),
        ("oracle_lam=0.1", "duplex", lambda *pair: OraclePath(0.1, *pair)),
        ("oracle_lam=1", "duplex", lambda *pair: OraclePath(1.0, *pair)),
    ):
        records = read_records(out / "logs" / folder / "instances.log")
        assert len(records) == 3
        for record, pair in zip(records, demo_pairs(), strict=False):
            assert record["delays"] == drive(engines[backbone], pair[0], policy_of(*pair))[1]


def test_a_folder_of_another_run_is_refused(tmp_path, checkpoint):
    config = write_config(tmp_path, checkpoint, sentences=2)
    out = ["--output", str(tmp_path / "out")]
    main([str(config), *out])
    write_config(tmp_path, checkpoint, sentences=3)
    with pytest.raises(ValueError, match="reference_sha256, source_sha256; use --fresh"):
        main([str(config), *out])
    main([str(config), *out, "--fresh"])


def test_examples_must_be_there(tmp_path, checkpoint):
    for changes in ({"examples": [99]}, {"examples": [0]}, {"example_system": "wait-k"}, {"example_system": "none"}):
        with pytest.raises(ValueError, match="example"):
            main([str(write_config(tmp_path, checkpoint, **changes)), "--output", str(tmp_path / "out")])


def test_limit(tmp_path, checkpoint):
    config, out = write_config(tmp_path, checkpoint), tmp_path / "out"
    for limit, sentences in (("2", 2), ("3", 3), ("1", 1)):
        main([str(config), "--output", str(out), "--limit", limit])
        assert {r["scores"]["sentences"] for r in json.loads((out / "results.json").read_text())} == {sentences}
    with pytest.raises(SystemExit):
        main([str(config), "--limit", "0"])


def test_unfolding_shows_every_word_with_its_probability(checkpoint):
    engine, policy = Engine(*load_checkpoint(checkpoint), Limits(0.5, 5)), EmitHeadPolicy(0.05)
    source, _ = demo_pairs()[0]
    words, _ = drive(engine, source, policy)
    lines = unfold(engine, source, policy)
    assert [line.split()[0] for line in lines] == source.split()
    shown = [part.split()[-1] for line in lines for part in line.split(" | ") if "EMIT" in part]
    assert shown == words
    for probability in re.findall(r"EMIT (0\.\d\d)", "".join(lines)):
        assert float(probability) >= 0.5
    for probability in re.findall(r"WAIT (0\.\d\d)", "".join(lines)):
        assert float(probability) <= 0.5


def test_the_shipped_configurations_are_valid(tmp_path):
    for path in ROOT.glob("duplex_model/recipes/*.yaml"):
        load_settings(TrainSettings, path)
    for path in ROOT.glob("eval_configs/*.yaml"):
        for point in points_of(load_settings(TestSettings, path)):
            point.agent_class().check(simuleval_arguments(point, "s", "t", tmp_path, "word"))


def test_mistakes_are_named_before_a_model_is_loaded(tmp_path):
    def refuse(error, message, **changes):
        config = write_config(tmp_path, tmp_path / "nothing", **changes)
        with pytest.raises(error, match=message):
            main([str(config), "--output", str(tmp_path / "out")])

    system = {"name": "a", "agent": "agents.waitk_agent.WaitKAgent"}
    refuse(ValueError, r"tiny.yaml: unknown key 'exampels'; did you mean 'examples'", exampels=[1])
    refuse(ValueError, r"unknown key 'swep'; did you mean 'sweep'", systems=[{**system, "swep": {"k": [1]}}])
    refuse(ValueError, r"unrecognized arguments: --lam", systems=[{**system, "sweep": {"lam": [1]}}])
    refuse(ValueError, r"cannot be imported", systems=[{**system, "agent": "agents.nowhere.Agent"}])
    refuse(ValueError, r"occurs twice", systems=[system, system])
    refuse(ValueError, r"latency_unit 'words'", latency_unit="words")
    refuse(ValueError, r"tokenize '13b'", tokenize="13b")
    compare = [{"system": "a", "baseline": "b"}]
    refuse(ValueError, r"'b' is no system; use one of a", systems=[system], compare=compare)
    refuse(ValueError, r"k = 0", systems=[{**system, "sweep": {"k": [1, 0]}}])
    confidence = {"name": "a", "agent": "agents.confidence_agent.ConfidenceAgent", "sweep": {"tau": [0.5, 2]}}
    refuse(ValueError, r"tau = 2.0", systems=[confidence])
    refuse(ValueError, r"point 'a k=x': argument --k", systems=[{**system, "sweep": {"k": [1, "x"]}}])
    refuse(
        FileNotFoundError, r"nothing", systems=[system, {**system, "name": "b", "options": {"checkpoint": "nothing"}}]
    )
    refuse(FileNotFoundError, r"missing.de: neither", source="missing.de")
    (tmp_path / "short.en").write_text("one line\n")
    refuse(ValueError, r"source and reference must be aligned", reference="short.en")
    with pytest.raises(FileNotFoundError, match="no such configuration"):
        main([str(tmp_path / "none.yaml")])
