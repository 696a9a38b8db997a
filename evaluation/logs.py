"""The files of a point's log folder: complete lines, whose run it is, one writer at a time, shards joined."""

import fcntl
import json
from contextlib import contextmanager
from functools import reduce

from agents.base import LOG
from evaluation.files import read_json, replace_file, write_json

TIMING, IDENTITY, CIRCUMSTANCES = "timing.jsonl", "point.json", "circumstances.json"
THEN = ", then "


@contextmanager
def only_run(folder):
    """Hold `folder` for this run; ValueError if another one holds it."""
    with open(folder / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another run is writing into {folder}; wait for it, or give another --output") from error
        yield


def merge(folder, tasks):
    """Join the logs of a point's finished shards in `folder`, as one run over all sentences would have written them."""
    if [task.folder for task in tasks] == [folder]:
        return
    write_json(reduce(joined, (read_json(task.folder / CIRCUMSTANCES) for task in tasks)), folder / CIRCUMSTANCES)
    for name in (LOG, TIMING):
        replace_file(folder / name, b"".join((task.folder / name).read_bytes() for task in tasks))


def joined(earlier, now):
    """The circumstances of a log whose sentences were made in two parts: both are told where they differ."""
    if isinstance(now, dict):
        return {key: joined(earlier.get(key, value), value) for key, value in now.items()}
    parts = earlier.split(THEN)
    return THEN.join([*parts, *(part for part in now.split(THEN) if part not in parts)])


def whole_lines(path):
    """How many complete JSON lines the file begins with; 0 if there is none."""
    return sum(1 for _ in _whole_lines(path))


def _whole_lines(path):
    if path.is_file():
        with open(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n") or not _is_json(line):
                    return
                yield line


def keep_lines(path, count):
    """Cut `path` after its first `count` lines."""
    replace_file(path, b"".join(line for line, _ in zip(_whole_lines(path), range(count), strict=False)))


def _is_json(line):
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def claim(folder, wanted):
    """Mark `folder` as holding the run of the identity `wanted`; ValueError if it holds another's."""
    path = folder / IDENTITY
    wanted = json.loads(json.dumps(wanted))
    if path.is_file():
        found = read_json(path)
        differing = sorted(key for key in wanted if found.get(key) != wanted[key])
        if differing:
            raise ValueError(
                f"{folder} holds a run with another {', '.join(differing)}; use --fresh (make: FRESH=1) to start over"
            )
    else:
        write_json(wanted, path)
