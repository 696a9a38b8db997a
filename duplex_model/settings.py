"""Read a frozen dataclass from a YAML file, a key that it does not have being an error that names it; what several
command lines share."""

import argparse
import dataclasses
import difflib
import os
import types
import typing
from pathlib import Path

import yaml


def load_settings(cls, path):
    """Read `path` (YAML) into the frozen dataclass `cls`, nested dataclasses included.

    Raises FileNotFoundError if the file is missing, ValueError naming file, key and the nearest valid key if a key is
    unknown, missing or of the wrong type.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such configuration file; check the path")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from error
    return from_mapping(cls, values, str(path))


def from_mapping(cls, values, where):
    """Build dataclass `cls` from the mapping `values`; `where` (file and key so far) opens every message.

    Raises ValueError for a key that is unknown or missing, and for a value of the wrong type or refused by `cls`.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{where}: expected a mapping of keys to values, got {values!r}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    check_keys(values, fields, where)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ValueError(f"{where}: the key '{name}' is missing")
    values = {key: _convert(hints[key], value, f"{where}: {key}") for key, value in values.items()}
    try:
        return cls(**values)
    except ValueError as error:  # from the dataclass's own check of its values
        raise ValueError(f"{where}: {error}") from error


def check_keys(values, valid, where):
    """Raise ValueError naming the place, the key and the nearest valid key if `values` has a key that is not valid."""
    for key in values:
        if key not in valid:
            near = difflib.get_close_matches(str(key), valid, n=1, cutoff=0.0)
            raise ValueError(f"{where}: unknown key '{key}'; did you mean '{near[0]}'? Valid keys: {', '.join(valid)}")


def _convert(hint, value, where):
    """`value` as the type `hint`: a nested dataclass, a tuple, a mapping, an optional or a plain scalar."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return from_mapping(hint, value, where)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _convert(next(a for a in arguments if a is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: expected a list, got {value!r}")
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected a mapping, got {value!r}")
        return {str(key): _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _scalar(hint, value, where)


def _scalar(hint, value, where):
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)  # PyYAML reads 1e-3 as a string
        except ValueError:
            pass
    elif hint is typing.Any or (isinstance(value, hint) and (hint is bool or not isinstance(value, bool))):
        return value
    remedy = "; put an unquoted yes, no, on or off in quotes" if hint is str and isinstance(value, bool) else ""
    raise ValueError(f"{where}: expected {hint.__name__}, got {value!r}{remedy}")


def add_data_dir(parser):
    """Give an argument parser the option --data-dir, a Path."""
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=os.environ.get("DUPLEX_DATA_DIR", "data"),
        help="folder of the text (default: $DUPLEX_DATA_DIR or data)",
    )


def at_least_one(text):
    """An option's value as an int of at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than one")
    return value


def split_languages(languages):
    """(source, target) of a pair such as "de-en"; ValueError for anything but two languages."""
    source, _, target = languages.partition("-")
    if not source or not target:
        raise ValueError(f"languages {languages!r}: give source and target, such as de-en")
    return source, target
