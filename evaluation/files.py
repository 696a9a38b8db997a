"""Files written at once, JSON, and what tells one file from another."""

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path

HASH_DIGITS = 12  # of a SHA-256, where it is shown


def replace_file(path, data):
    """Write `path` at once: no reader sees half of it."""
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(data)
    os.replace(scratch, path)


def write_json(value, path):
    """Write `value` as JSON, its folder too if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path):
    """What `write_json` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def sha256(path):
    """The SHA-256 of a file, in hexadecimal digits."""
    return _sha256(Path(path), Path(path).stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _sha256(path, changed):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()
