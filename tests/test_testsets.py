import importlib.util

import pytest
from conftest import ROOT
from sacrebleu.dataset import DATASETS

from duplex_model.settings import load_settings
from evaluation import testsets
from evaluation.settings import TestSettings
from evaluation.testsets import language_defaults, main, sacrebleu_files


@pytest.mark.parametrize(
    "languages,unit,tokenizer",
    [
        (None, "word", "13a"),
        ("de-en", "word", "13a"),
        ("en-vi", "word", "13a"),
        ("en-zh", "char", "zh"),
        ("en-ZH_TW", "char", "zh"),
    ],
)
def test_language_defaults(languages, unit, tokenizer):
    assert language_defaults(languages) == (unit, tokenizer, None)


def test_japanese_falls_back_to_characters_aloud(monkeypatch):
    there = importlib.util.find_spec("json")
    monkeypatch.setattr(testsets.importlib.util, "find_spec", lambda name: there)
    assert language_defaults("en-ja") == ("char", "ja-mecab", None)
    monkeypatch.setattr(testsets.importlib.util, "find_spec", lambda name: None)
    unit, tokenizer, notice = language_defaults("en-ja")
    assert (unit, tokenizer) == ("char", "char") and "MeCab" in notice


def test_a_configuration_s_own_choice_wins(tmp_path):
    (tmp_path / "a.yaml").write_text("{name: a, testset: iwslt17, languages: en-zh, tokenize: char, systems: []}")
    settings = load_settings(TestSettings, tmp_path / "a.yaml")
    assert (settings.latency_unit, settings.tokenize) == ("char", "char")


@pytest.mark.parametrize("keys", ["source: a", "testset: wmt19", "source: a, reference: b, testset: c, languages: d-e"])
def test_either_files_or_a_test_set(keys, tmp_path):
    (tmp_path / "a.yaml").write_text(f"{{name: a, systems: [], {keys}}}")
    with pytest.raises(ValueError, match="give either source and reference, or testset and languages"):
        load_settings(TestSettings, tmp_path / "a.yaml")


def test_unknown_names_and_pairs_are_refused():
    with pytest.raises(ValueError, match="'iwslt71' is not one of sacreBLEU's; near it: iwslt17"):
        sacrebleu_files("iwslt71", "de-en")
    with pytest.raises(ValueError, match="no pair 'de-vi'; it has en-fr"):
        sacrebleu_files("iwslt17", "de-vi")


def test_without_a_network_the_files_to_place_are_named(tmp_path, monkeypatch, capsys):
    """A real download attempt, through a proxy that is not there."""
    data = DATASETS["wmt08"]
    for name in ("_outdir", "_rawdir"):
        monkeypatch.setattr(data, name, str(tmp_path / name))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(FileNotFoundError, match=r"cannot be fetched .* place by hand: \S+ as \S+raw\S+"):
        sacrebleu_files("wmt08", next(iter(data.langpairs)))
    with pytest.raises(SystemExit):
        main(["wmt08", next(iter(data.langpairs))])
    assert "place by hand" in capsys.readouterr().err


def test_a_fetched_test_set_is_found(tmp_path, monkeypatch):
    """Files that sacreBLEU has unpacked already are used as they are."""
    data = DATASETS["wmt08"]
    pair = next(iter(data.langpairs))
    monkeypatch.setattr(data, "_outdir", str(tmp_path))
    for field in data.fieldnames(pair):
        (tmp_path / f"wmt08.{pair}.{field}").write_text("x\n")
    source, reference = sacrebleu_files("wmt08", pair)
    assert source.read_text() == "x\n" and reference.name.startswith(f"wmt08.{pair}.ref")


def test_the_configurations_have_their_languages():
    for path in ROOT.glob("eval_configs/*.yaml"):
        settings = load_settings(TestSettings, path)
        assert (settings.latency_unit, settings.tokenize) == ("word", "13a")
        assert settings.languages or path.stem == "demo"
