from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from duplex_model.settings import load_settings


@dataclass(frozen=True)
class Inner:
    steps: int
    lr: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    files: tuple[str, ...] = ()
    runs: tuple[Inner, ...] = ()
    limit: int | None = 3
    flag: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


FULL = """
name: full
inner: {steps: 4, lr: 1e-3}
files: [a, b]
runs:
  - {steps: 1}
  - {steps: 2, lr: 7}
limit:
flag: true
extra: {anything: [1, x], 5: no}
"""


def load(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_settings(Outer, path)


def test_every_kind_of_key(tmp_path):
    settings = load(tmp_path, FULL)
    assert settings == Outer(
        name="full",
        inner=Inner(4, 0.001),
        files=("a", "b"),
        runs=(Inner(1), Inner(2, 7.0)),
        limit=None,
        flag=True,
        extra={"anything": [1, "x"], "5": False},
    )
    assert isinstance(settings.runs[1].lr, float)
    with pytest.raises(FrozenInstanceError):
        settings.name = "other"


def test_defaults(tmp_path):
    assert load(tmp_path, "name: short\ninner: {steps: 4}") == Outer("short", Inner(4))
    assert load(tmp_path, "name: short\ninner: {steps: 4}\nlimit: 8").limit == 8


@pytest.mark.parametrize("written,value", [("1e-3", 0.001), ("1.5e-3", 0.0015), ("2", 2.0), ("'3'", 3.0), (".5", 0.5)])
def test_floats(tmp_path, written, value):
    """PyYAML reads 1e-3 as a string and 2 as an integer; both are floats where one is wanted."""
    lr = load(tmp_path, f"name: x\ninner: {{steps: 4, lr: {written}}}").inner.lr
    assert isinstance(lr, float) and lr == value


@pytest.mark.parametrize(
    "text,key,near",
    [
        ("name: x\ninner: {steps: 4}\nflie: [a]", "flie", "files"),
        ("nam: x\ninner: {steps: 4}", "nam", "name"),
        ("name: x\ninner: {steps: 4}\n5: a", "5", None),
        ("name: x\ninner: {step: 4}", "step", "steps"),
        ("name: x\ninner: {steps: 4, lrr: 1}", "lrr", "lr"),
        ("name: x\ninner: {steps: 4}\nruns: [{steps: 1}, {stepz: 1}]", "stepz", "steps"),
    ],
)
def test_unknown_keys(tmp_path, text, key, near):
    with pytest.raises(ValueError, match=rf"run\.yaml.*unknown key '{key}'; did you mean '{near or '.+'}'"):
        load(tmp_path, text)


def test_a_nested_error_says_where(tmp_path):
    with pytest.raises(ValueError, match=r"run\.yaml: inner: unknown key"):
        load(tmp_path, "name: x\ninner: {step: 4}")
    with pytest.raises(ValueError, match=r"run\.yaml: runs\[1\]: lr: expected float, got 'fast'"):
        load(tmp_path, "name: x\ninner: {steps: 4}\nruns: [{steps: 1}, {steps: 1, lr: fast}]")


@pytest.mark.parametrize(
    "text,key", [("inner: {steps: 4}", "name"), ("name: x", "inner"), ("name: x\ninner: {}", "steps")]
)
def test_missing_keys(tmp_path, text, key):
    with pytest.raises(ValueError, match=rf"run\.yaml.*'{key}' is missing"):
        load(tmp_path, text)


@pytest.mark.parametrize(
    "line,key",
    [
        ("inner: {steps: 4.0}", "inner: steps"),
        ("inner: {steps: '4'}", "inner: steps"),
        ("inner: {steps: true}", "inner: steps"),
        ("inner: {steps: }", "inner: steps"),
        ("inner: {steps: 4, lr: true}", "inner: lr"),
        ("inner: {steps: 4, lr: fast}", "inner: lr"),
        ("inner: {steps: 4, lr: [1]}", "inner: lr"),
        ("inner: 4", "inner"),
        ("inner:", "inner"),
        ("inner: {steps: 4}\nfiles: a", "files"),
        ("inner: {steps: 4}\nfiles: [a, 1]", r"files\[1\]"),
        ("inner: {steps: 4}\nruns: {steps: 1}", "runs"),
        ("inner: {steps: 4}\nlimit: many", "limit"),
        ("inner: {steps: 4}\nflag: 1", "flag"),
        ("inner: {steps: 4}\nflag: 'true'", "flag"),
        ("inner: {steps: 4}\nextra: [1]", "extra"),
    ],
)
def test_wrong_types(tmp_path, line, key):
    with pytest.raises(ValueError, match=rf"run\.yaml: {key}: expected .*, got "):
        load(tmp_path, f"name: x\n{line}")


def test_a_truth_value_for_a_string_is_explained(tmp_path):
    """YAML reads an unquoted `no` (a precision, a language code) as false."""
    with pytest.raises(ValueError, match=r"run\.yaml: name: .*quot"):
        load(tmp_path, "name: no\ninner: {steps: 4}")


@pytest.mark.parametrize("text", ["", "just text", "- a\n- b", "5"])
def test_not_a_mapping(tmp_path, text):
    with pytest.raises(ValueError, match=r"run\.yaml: expected a mapping"):
        load(tmp_path, text)


@pytest.mark.parametrize("text", ["name: [x", "name: x: y", "\tname: x", "name: !!python/name:os.system x"])
def test_not_yaml(tmp_path, text):
    with pytest.raises(ValueError, match=r"run\.yaml: not valid YAML"):
        load(tmp_path, text)


def test_not_utf8(tmp_path):
    (tmp_path / "run.yaml").write_bytes("name: für".encode("latin-1"))
    with pytest.raises(ValueError, match=r"run\.yaml.*UTF-8"):
        load_settings(Outer, tmp_path / "run.yaml")


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.yaml"):
        load_settings(Outer, tmp_path / "nowhere.yaml")
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load_settings(Outer, tmp_path)
