"""Scores of finished points, and comparisons of systems, from their logs."""

import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

from evaluation.degeneracy import degeneracy, same_output
from evaluation.files import read_json, write_json
from evaluation.logs import CIRCUMSTANCES, IDENTITY, LOG, TIMING
from evaluation.metrics import read_records, score_computation_aware, score_log, score_timing
from evaluation.settings import Point
from evaluation.statistics import compare, points_of_logs
from evaluation.workers import run_all


class Finished(NamedTuple):
    """A point whose sentences are logged in `folder`; `before`: the folder of its system's point before, or None."""

    number: int
    point: Point
    folder: Path
    before: Path | None


def finished_points(points, folders):
    """The points in their order, as `Finished`."""
    finished, last = [], {}
    for number, (point, folder) in enumerate(zip(points, folders, strict=True)):
        finished.append(Finished(number, point, folder, last.get(point.system.name)))
        last[point.system.name] = folder
    return finished


def point_result(finished, settings, limit):
    """Scores and circumstances of a `Finished` point over its first `limit` sentences, ready for JSON."""
    point, folder, unit = finished.point, finished.folder, settings.latency_unit
    log, timing = (read_records(folder / name)[:limit] for name in (LOG, TIMING))
    identity, how = (read_json(folder / name) for name in (IDENTITY, CIRCUMSTANCES))
    try:
        result = {
            "number": finished.number,
            "system": point.system.name,
            "values": point.values,
            "metrics": settings.metrics,
            "scores": {
                **score_log(log, unit, settings.tokenize),
                **score_timing(timing),
                **score_computation_aware(log, timing, unit, settings.words_per_second),
                "words_per_second": settings.words_per_second,
            },
            "degeneracy": degeneracy(log, timing, unit),
            "point": identity,
            **how,
        }
    except ValueError as error:
        raise ValueError(f"point {point.label!r} ({folder}): {error}") from error
    if finished.before:
        result["degeneracy"]["same_as_previous"] = same_output(log, read_records(finished.before / LOG)[:limit])
    return result


def write_points(settings, points, folders, limit, output, pool=None):
    """Score the finished points, then write each into `output`/points, in place of what was there."""
    results = run_all(partial(point_result, settings=settings, limit=limit), finished_points(points, folders), pool)
    shutil.rmtree(output / "points", ignore_errors=True)
    for point, result in zip(points, results, strict=True):
        write_json(result, output / "points" / f"{point.folder_name}.json")


def compare_systems(settings, points, folders, limit, pool=None):
    """The comparisons that the configuration asks for, ready for JSON."""
    return run_all(partial(compare_pair, settings, points, folders, limit), settings.compare, pool)


def compare_pair(settings, points, folders, limit, pair):
    """One comparison (a `CompareSettings`), ready for JSON."""

    def side(*names):
        logs = [
            read_records(folder / LOG)[:limit]
            for point, folder in zip(points, folders, strict=True)
            if point.system.name in names
        ]
        return points_of_logs(logs, pair.metric, settings.latency_unit, settings.tokenize)

    return {**asdict(pair), **compare(side(pair.system, *pair.join), side(pair.baseline), pair.at)}
