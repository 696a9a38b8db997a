import json
import shutil

import pytest
import yaml
from conftest import DEMO, ROOT, TINY

from duplex_model.settings import from_mapping, load_settings
from duplex_model.training.settings import TrainSettings
from evaluation.ablations import AblationSettings, main, merged, stage_1

RECIPE = {
    "name": "tiny",
    "vocab_size": 700,
    "threads": 1,
    "data": {"train": ["text"], "dev": "text", "dev_sentences": 4},
    "model": {key: value for key, value in TINY.items() if key != "pad_token_id"},
    "lm": {"steps": 1, "budget": 200, "lr": 1e-3, "validate_every": 1},
    "duplex": {"steps": 1, "budget": 600, "lr": 1e-3, "validate_every": 1},
}


def test_changes_go_into_nested_settings():
    assert merged({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}, "e": {"f": 5}}) == {
        "a": 1,
        "b": {"c": 4, "d": 3},
        "e": {"f": 5},
    }
    assert merged({"lora": None, "seed": 1}, {"lora": {"r": 8}}) == {"lora": {"r": 8}, "seed": 1}
    assert merged({"seed": 1}, None) == {"seed": 1}


def test_what_stage_1_depends_on():
    base = {
        "seed": 1,
        "data": {"train": ["a"]},
        "model": {"hidden_size": 8},
        "lm": {"steps": 1},
        "duplex": {"steps": 1},
    }
    same = {"duplex": {"steps": 2}}, {"model": {"emit_reads_input": False, "input_cross_attention": False}}
    other = {"seed": 2}, {"data": {"train": ["b"]}}, {"model": {"hidden_size": 9}}, {"lm": {"steps": 2}}
    assert all(stage_1(merged(base, changes)) == stage_1(base) for changes in same)
    assert not any(stage_1(merged(base, changes)) == stage_1(base) for changes in other)


@pytest.mark.parametrize("path", sorted(ROOT.glob("eval_configs/ablations/*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_ablations_are_valid(path):
    ablation = load_settings(AblationSettings, path)
    recipe = yaml.safe_load((ROOT / ablation.recipe).read_text())
    assert set(ablation.sweep_theta) <= set(ablation.variants)
    for name, changes in ablation.variants.items():
        from_mapping(TrainSettings, merged(merged(recipe, ablation.base), changes), name)


def test_two_variants(tmp_path, monkeypatch, capsys):
    """Real trainings of one step: shared stage 1, a table, and nothing is trained twice."""
    for name, copy in (("source.de", "text.de"), ("reference.en", "text.en")):
        (tmp_path / copy).write_bytes((DEMO / name).read_bytes())
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    variants = {"base": {}, "fixed lam": {"duplex": {"lam_min": 0.1, "lam_max": 0.1}}}
    config = {"name": "tiny", "recipe": "recipe.yaml", "base": {}, "variants": variants, "sentences": 3}
    (tmp_path / "ablations.yaml").write_text(yaml.safe_dump({**config, "sweep_theta": ["fixed lam"]}))
    arguments = [str(tmp_path / "ablations.yaml"), "--data-dir", str(tmp_path), "--processes", "1"]
    arguments += ["--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]
    main(arguments)
    lm = [(tmp_path / "runs" / run / "lm" / "model.safetensors").read_bytes() for run in ("base", "fixed-lam")]
    assert lm[0] == lm[1]
    results = json.loads((tmp_path / "out" / "ablations.json").read_text())
    assert list(results) == list(variants) and len(results["fixed lam"]["curves"]["head"]) == 9
    assert all(result["whole_source"] > 0 for result in results.values())
    lines = (tmp_path / "out" / "ablations.md").read_text().splitlines()
    assert len(lines) == 4 and lines[3].startswith("| fixed lam | ")
    commands = []
    monkeypatch.setattr("subprocess.run", lambda command, check: commands.append(command))
    main(arguments)
    assert "fixed lam" in capsys.readouterr().out
    assert not commands
    shutil.copytree(tmp_path / "runs" / "base" / "lm", tmp_path / "weights" / "lm")
    with pytest.raises(FileNotFoundError):  # nothing was trained, so there is nothing to measure
        main([*arguments, "--runs", str(tmp_path / "again"), "--stage-1", str(tmp_path / "weights")])
    assert [command[-2:] for command in commands] == [["--stage", "duplex"]]
    for file in ("lm/model.safetensors", "tokenizer/spm.model"):
        assert (tmp_path / "again/base" / file).read_bytes() == (tmp_path / "runs/base" / file).read_bytes()
