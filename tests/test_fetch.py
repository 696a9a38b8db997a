"""Training text through the real mtdata: from files in its cache, and without a network."""

import gzip
import zipfile

import mtdata
import pytest
from mtdata.cache import Cache

from duplex_model.data import read_pairs
from duplex_model.training.fetch import fetch, find_entry, main, write_pairs

EUROPARL, OPUS = "Statmt-europarl-10-deu-eng", "OPUS-tatoeba-v20210310-deu-eng"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of mtdata's, and no network."""
    monkeypatch.setattr(mtdata, "cache_dir", tmp_path / "cache")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    return Cache(tmp_path / "cache")


def place(cache, entry):
    """Where the file of an entry belongs by hand; its mark is there already."""
    path = cache.get_local_path(entry.url, entry.filename, fix_missing=False)
    path.parent.mkdir(parents=True)
    cache.get_flag_file(path).touch()
    return path


def test_a_table_in_the_cache_becomes_two_files(cache, tmp_path, capsys):
    lines = ["Guten  Tag\tGood day\t1\n", "\tnothing\t2\n", "Nein\u2028danke\tNo, thanks\n", "Ja\t \n"]
    with gzip.open(place(cache, find_entry(EUROPARL, "de-en")[0]), "wt", encoding="utf-8") as file:
        file.writelines(lines)
    main([EUROPARL, "de-en", "--data-dir", str(tmp_path)])
    assert f"{EUROPARL}: 2 pairs, 2 left out" in capsys.readouterr().out
    prefix = tmp_path / EUROPARL / "train"
    assert read_pairs(prefix, "de", "en") == [("Guten Tag", "Good day"), ("Nein danke", "No, thanks")]
    assert sorted(path.name for path in prefix.parent.iterdir()) == ["train.de", "train.en"]


def test_an_archive_and_the_other_direction(cache, tmp_path):
    entry, swapped = find_entry(OPUS, "en-de")
    assert swapped
    with zipfile.ZipFile(place(cache, entry), "w") as archive:
        for pattern, text in zip(entry.in_paths, ("Ja.\nNein.\n", "Yes.\nNo.\n"), strict=True):
            archive.writestr(pattern.replace("*", "x"), text)
    source, target = fetch(OPUS, "en-de", tmp_path)
    assert (source.name, target.name) == ("train.en", "train.de")
    regional = fetch(OPUS, "en-de-AT", tmp_path)
    assert [path.name for path in regional] == ["train.en", "train.de-AT"]
    assert read_pairs(tmp_path / OPUS / "train", "en", "de") == [("Yes.", "Ja."), ("No.", "Nein.")]


def test_without_a_network_the_files_to_place_are_named(cache, tmp_path, capsys):
    """A real download attempt, through a proxy that is not there; then each of the two remedies."""
    entry, _ = find_entry(EUROPARL, "de-en")
    with pytest.raises(SystemExit):
        main([EUROPARL, "de-en", "--data-dir", str(tmp_path)])
    said, path = capsys.readouterr().err, cache.get_local_path(entry.url, entry.filename, fix_missing=False)
    assert f"place by hand: either {entry.url} as {path}, with an empty {path}._valid; or" in said
    assert f"{tmp_path / EUROPARL / 'train.de'} and train.en" in said
    assert not (tmp_path / EUROPARL).exists()
    (tmp_path / EUROPARL).mkdir()
    for language in ("de", "en"):
        (tmp_path / EUROPARL / f"train.{language}").write_text("x\n")
    assert [path.read_text() for path in fetch(EUROPARL, "de-en", tmp_path)] == ["x\n", "x\n"]


def test_unknown_names_and_pairs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="europarl-11-deu-eng' is none of mtdata's for de-en; near it: Statmt-"):
        fetch("Statmt-europarl-11-deu-eng", "de-en", tmp_path)
    with pytest.raises(ValueError, match="is none of mtdata's for de-fr"):
        fetch(EUROPARL, "de-fr", tmp_path)
    with pytest.raises(ValueError, match="'de': give source and target"):
        fetch(EUROPARL, "de", tmp_path)


def test_a_data_set_without_a_pair_leaves_no_files(tmp_path):
    with pytest.raises(ValueError, match="none of its 2 records has text on both sides"):
        write_pairs([("a", " "), ("b",)], False, [tmp_path / "train.de", tmp_path / "train.en"])
    assert not list(tmp_path.iterdir())
