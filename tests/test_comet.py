"""COMET of a results folder: by the real package where its environment is, and every refusal that comes before it."""

import json
import subprocess

import pytest
from conftest import ROOT
from tiny_results import RESULTS, write_folder
from tiny_sweep import write_config

from evaluation.__main__ import main as evaluate
from evaluation.comet import ENVIRONMENT, main, package_version, write_comet

ENV = ROOT / ENVIRONMENT
needs_comet = pytest.mark.skipif(not (ENV / ".ready").is_file(), reason=f"no {ENVIRONMENT}; `make comet` sets it up")

LINES = [("Ich gehe nach Hause.", "I go home."), ("", ""), ("Und\u2028du?", "And you, my friend?")]
OUTPUTS = {"10": ["I go home.", "", "And you?"], "8": ["zzz", "", ""]}  # points 0 and 2


def results_folder(folder, outputs=OUTPUTS):
    """Five points of three sentences; those in `outputs` have a log, with a fourth line that no score counts."""
    results = json.loads(json.dumps(RESULTS))
    for result in results:
        result["scores"]["sentences"] = len(LINES)
    write_folder(folder, results)
    for name, lines in outputs.items():
        logs = folder / "logs" / name
        logs.mkdir(parents=True)
        point = json.loads((folder / "points" / f"{name}.json").read_text())["point"]
        (logs / "point.json").write_text(json.dumps(point))
        with open(logs / "instances.log", "w", encoding="utf-8") as log:
            for (source, reference), output in [*zip(LINES, lines, strict=True), (("a", "b"), "c")]:
                log.write(json.dumps({"source": source, "reference": reference, "prediction": output}) + "\n")
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.glob("points/*.json"))}


def make_model(folder, samples):
    """A tiny COMET model in `folder`, and what it scores the samples with."""
    folder.mkdir()
    (folder / "samples.json").write_text(json.dumps(samples))
    subprocess.run([ENV / "bin" / "python", ROOT / "tests" / "tiny_comet.py", folder], check=True, capture_output=True)
    return folder / "checkpoints" / "model.ckpt", json.loads((folder / "expected.json").read_text())


@needs_comet
def test_real_comet_scores_every_logged_point(tmp_path, capsys):
    """One call of comet-score for two points; the same scores as COMET's Python interface gives."""
    folder = results_folder(tmp_path / "trial")
    samples = [
        {"src": " ".join(source.split()), "mt": output, "ref": reference}
        for lines in OUTPUTS.values()
        for (source, reference), output in zip(LINES, lines, strict=True)
    ]
    model, expected = make_model(tmp_path / "tiny", samples)
    main([str(folder), "--model", str(model), "--environment", str(ENV)])
    said = capsys.readouterr().out
    assert said.count("comet-score: 2 outputs of 3 lines") == 1 and "9: its log is not there" in said
    assert abs(sum(expected[:3]) - sum(expected[3:])) > 0.03  # the points are not mixed up
    points = {path.stem: json.loads(path.read_text())["scores"] for path in folder.glob("points/*.json")}
    for name, values in (("10", expected[:3]), ("8", expected[3:])):
        assert points[name]["COMET"] == pytest.approx(sum(values) / 3, abs=2e-3)  # half precision
        assert 0 < points[name]["COMET_half_width"] < max(values) - min(values)
        signature = points[name]["COMET_signature"]
        assert signature.startswith("model:tiny/checkpoints/model.ckpt sha256 ")
        assert signature.endswith(f"|version:{package_version(ENV)}")
    assert not any("COMET" in points[name] for name in ("9", "7", "6"))
    report = (folder / "report.md").read_text()
    assert f"| {points['8']['COMET']:.4f} ± {points['8']['COMET_half_width']:.4f} |" in report and signature in report
    assert "COMET" in (folder / "results.csv").read_text() and "COMET" in (folder / "results.json").read_text()


@needs_comet
def test_a_sweep_scores_comet_if_its_metrics_have_it(tmp_path, checkpoint, monkeypatch):
    monkeypatch.chdir(ROOT)
    model, _ = make_model(tmp_path / "tiny", [{"src": "a", "mt": "b", "ref": "c"}])
    config = write_config(tmp_path, checkpoint, metrics=["BLEU", "COMET"], comet_model=str(model))
    evaluate([str(config), "--output", str(tmp_path / "out")])
    assert "| system | setting | BLEU | COMET |" in (tmp_path / "out" / "report.md").read_text()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results) == 5 and all("COMET" in result["scores"] for result in results)


def test_a_sweep_without_comet_s_environment_is_refused_before_it_runs(tmp_path, checkpoint, monkeypatch):
    config = write_config(tmp_path, checkpoint, metrics=["COMET"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no unbabel-comet there; run `make comet`"):
        evaluate([str(config), "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@needs_comet
def test_a_model_that_cannot_be_fetched_is_one_clear_error(tmp_path, monkeypatch, capsys):
    """A real attempt of comet-score, through a proxy that is not there."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    folder = results_folder(tmp_path / "trial")
    before = contents(folder)
    with pytest.raises(SystemExit):
        main([str(folder), "--environment", str(ENV)])
    said = capsys.readouterr().err
    assert "comet-score failed with the model 'Unbabel/wmt22-comet-da': KeyError" in said
    assert "MODEL=" in said and "FOLDER/checkpoints/model.ckpt" in said
    assert contents(folder) == before


def test_what_is_missing_is_named_before_anything_runs(tmp_path):
    folder = results_folder(tmp_path / "trial")
    before = contents(folder)
    with pytest.raises(FileNotFoundError, match="elsewhere: no unbabel-comet there; run `make comet`"):
        write_comet(folder, environment=tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"checkpoints/model.ckpt is missing; .* placed by hand"):
        write_comet(folder, model=tmp_path / "tiny" / "checkpoints" / "model.ckpt")
    (tmp_path / "tiny" / "checkpoints").mkdir(parents=True)
    (tmp_path / "tiny" / "checkpoints" / "model.ckpt").touch()
    with pytest.raises(FileNotFoundError, match="tiny/hparams.yaml is missing"):
        write_comet(folder, model=tmp_path / "tiny" / "checkpoints" / "model.ckpt")
    assert contents(folder) == before


def test_only_logs_of_the_same_run_are_scored(tmp_path):
    with pytest.raises(FileNotFoundError, match="logs holds no log of a point"):
        write_comet(results_folder(tmp_path / "without", {}))
    folder = results_folder(tmp_path / "other")
    (folder / "logs" / "8" / "point.json").write_text("{}")
    with pytest.raises(ValueError, match="8 does not hold the run that"):
        write_comet(folder)
    folder = results_folder(tmp_path / "shorter")
    (folder / "logs" / "8" / "instances.log").write_text('{"source": "a"}\n')
    with pytest.raises(ValueError, match="8 does not hold the run that"):
        write_comet(folder)
