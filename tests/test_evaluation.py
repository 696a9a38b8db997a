"""The harness from the configuration to the table, with random weights."""

import json

import pytest
from conftest import ROOT
from tiny_sweep import write_config

from duplex_model.settings import load_settings
from duplex_model.training.settings import TrainSettings
from evaluation.__main__ import main
from evaluation.report import comparison_text
from evaluation.settings import TestSettings, points_of, simuleval_arguments
from evaluation.tables import table


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
    for path in (tmp_path / "out" / "logs").glob("*/circumstances.json"):  # of the run, not of the scoring
        path.write_text(json.dumps({**json.loads(path.read_text()), "device": "another"}))
    main([str(tmp_path / "tiny.yaml"), "--output", str(tmp_path / "out")])
    assert {r["device"] for r in json.loads((tmp_path / "out" / "results.json").read_text())} == {"another"}
    path.unlink()
    with pytest.raises(ValueError, match="earlier version; use --fresh"):
        main([str(tmp_path / "tiny.yaml"), "--output", str(tmp_path / "out")])


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


def test_a_limit_leaves_the_results_of_the_whole_test_set_alone(tmp_path, checkpoint, monkeypatch):
    config = write_config(tmp_path, checkpoint, examples=[])
    monkeypatch.chdir(tmp_path)
    main([str(config), "--limit", "1"])
    assert (tmp_path / "runs" / "tiny-1" / "results.json").is_file() and not (tmp_path / "results").exists()


def test_a_point_without_any_output_is_named(tmp_path, checkpoint):
    config = write_config(tmp_path, checkpoint, examples=[])
    source = tmp_path / "source.de"
    source.write_text("\n" + source.read_text().split("\n", 1)[1])
    with pytest.raises(ValueError, match=r"point 'duplex lam=0.01' .*no line of the log has any output"):
        main([str(config), "--output", str(tmp_path / "out"), "--limit", "1"])


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
    refuse(ValueError, r"point 'a lam=1': unknown key 'lam'", systems=[{**system, "sweep": {"lam": [1]}}])
    for option in ("fp16", "start_index", "eval_latency_unit", "timing_file"):  # SimulEval's, or set by the sweep
        refuse(ValueError, rf"unknown key '{option}'", systems=[{**system, "options": {option: 1}}])
    refuse(ValueError, r"cannot be imported", systems=[{**system, "agent": "agents.nowhere.Agent"}])
    refuse(ValueError, r"k = False: only a switch is true or false", systems=[{**system, "sweep": {"k": [False]}}])
    refuse(ValueError, r"checkpoint is given without a value", systems=[{**system, "options": {"checkpoint": None}}])
    refuse(ValueError, r"reject_long = 1: only a switch", systems=[{**system, "options": {"reject_long": 1}}])
    refuse(ValueError, r"the name 'a' is given twice", systems=[system, {**system, "sweep": {"k": [2]}}])
    for no_agent in ("agents.base.StreamAgent", "collections.OrderedDict", "agents.base.LOG"):
        refuse(
            ValueError, rf"agent '{no_agent}' is no StreamAgent with a policy", systems=[{**system, "agent": no_agent}]
        )
    refuse(ValueError, r"occurs twice", systems=[{**system, "sweep": {"k": [1, 1]}}])
    refuse(ValueError, r"nothing to run", systems=[])
    refuse(ValueError, r"system 'a': sweep: k has no value", systems=[{**system, "sweep": {"k": []}}])
    refuse(ValueError, r"latency_unit 'words'", latency_unit="words")
    refuse(ValueError, r"tokenize '13b'", tokenize="13b")
    refuse(ValueError, r"metrics: 'BLUE' is not known; use some of BLEU, chrF, COMET", metrics=["BLUE"])
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
    for name in ("empty.de", "empty.en"):
        (tmp_path / name).touch()
    refuse(ValueError, r"empty.de has no line", source="empty.de", reference="empty.en")
    (tmp_path / "short.en").write_text("one line\n")
    refuse(ValueError, r"source and reference must be aligned", reference="short.en")
    with pytest.raises(FileNotFoundError, match="no such configuration"):
        main([str(tmp_path / "none.yaml")])
