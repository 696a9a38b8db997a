"""`python -m evaluation CONFIG.yaml`: run every point of a test configuration, then print the table.

Writes below OUTPUT: logs/POINT (SimulEval's log, the agent's timing), points/POINT.json (scores, settings, versions),
results.json, comparisons.json, examples.json (the examples' grids), and from these alone what evaluation.report makes.
Finished sentences are kept, so a killed run goes on where it was.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch

from agents.duplex_agent import DuplexAgent
from duplex_model.checkpoint import check_checkpoint, load_checkpoint
from duplex_model.data import check_aligned, read_lines
from duplex_model.engine import Engine
from duplex_model.settings import load_settings
from evaluation.examples import example_of, write_examples
from evaluation.metrics import read_records, score_log, score_timing
from evaluation.report import comparison_text, example_text, load_points, table, write_report
from evaluation.run import IDENTITY, LOG, TIMING, run_point
from evaluation.settings import TestSettings, find_file, points_of, simuleval_arguments
from evaluation.statistics import compare, points_of_logs

PACKAGES = ("torch", "transformers", "simuleval", "sacrebleu", "sentencepiece", "numpy")


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m evaluation", description=__doc__)
    parser.add_argument("config", type=Path, help="YAML file with the keys of evaluation.settings.TestSettings")
    parser.add_argument("--output", type=Path, help="folder of the results (default: results/NAME)")
    parser.add_argument(
        "--data-dir",
        default=os.environ.get("DUPLEX_DATA_DIR", "data"),
        help="folder of the test sets (default: $DUPLEX_DATA_DIR or data)",
    )
    parser.add_argument("--limit", type=int, help="only the first LIMIT sentences")
    parser.add_argument("--jobs", type=int, default=1, help="points that run at once, each in a process of its own")
    parser.add_argument("--fresh", action="store_true", help="throw away the logs of an earlier run")
    args = parser.parse_args(arguments)
    if args.limit is not None and args.limit < 1:
        parser.error(f"--limit {args.limit}: use at least one sentence")
    if args.jobs < 1:
        parser.error(f"--jobs {args.jobs}: use at least one")
    return args


def point_result(number, point, folder, settings, limit):
    """Scores and circumstances of one finished point, ready for JSON."""
    log, timing = (read_records(folder / name)[:limit] for name in (LOG, TIMING))
    scores = score_log(log, settings.latency_unit, settings.tokenize)
    return {
        "number": number,
        "system": point.system.name,
        "values": point.values,
        "scores": {**scores, **score_timing(timing)},
        "point": json.loads((folder / IDENTITY).read_text(encoding="utf-8")),
        "versions": {name: version(name) for name in PACKAGES},
        "device": f"cpu, {settings.threads} thread(s) a point, {platform.machine()}",
    }


def compare_systems(settings, points, folders, limit):
    """The comparisons that the configuration asks for, ready for JSON."""
    comparisons = []
    for pair in settings.compare:
        sides = []
        for name in (pair.system, pair.baseline):
            logs = [
                read_records(folder / LOG)[:limit]
                for point, folder in zip(points, folders, strict=True)
                if point.system.name == name
            ]
            sides.append(points_of_logs(logs, pair.metric, settings.latency_unit, settings.tokenize))
        comparisons.append({**asdict(pair), **compare(*sides, pair.at)})
    return comparisons


def write_json(value, path):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run_points(points, folders, source, reference, settings, limit, jobs):
    """Run all points, `jobs` of them at a time."""
    tasks = [
        (point, source, reference, folder, settings.latency_unit, limit)
        for point, folder in zip(points, folders, strict=True)
    ]
    if jobs == 1:
        torch.set_num_threads(settings.threads)
        for task in tasks:
            run_point(*task)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (settings.threads,)) as pool:
        for future in [pool.submit(run_point, *task) for task in tasks]:
            future.result()


def check_points(settings, points, source, reference, output):
    """Raise for a wrong option, value or checkpoint of any point, and for wrong examples; loads no model."""
    for point in points:
        folder = output / "logs" / point.folder_name
        args = simuleval_arguments(point, source, reference, folder, settings.latency_unit)
        agent = point.agent_class()
        agent.check(args)
        check_checkpoint(args.checkpoint, agent.backbone_of(args))
    lines = read_lines(source)
    for number in settings.examples:
        if not 1 <= number <= len(lines) or not lines[number - 1].strip():
            raise ValueError(f"examples: {source} has no text at line {number}")
    if settings.examples and example_point(settings, points) is None:
        raise ValueError(f"example_system {settings.example_system!r} is no system with the duplex agent")


def example_point(settings, points):
    """The middle point of the example system, or None if that is no duplex system."""
    swept = [p for p in points if p.system.name == settings.example_system and p.agent_class() is DuplexAgent]
    return swept[len(swept) // 2] if swept else None


def compute_examples(settings, points, source, reference, output):
    """The examples' lines as the middle point of the example system translates them, ready for JSON."""
    if not settings.examples:
        return []
    args = simuleval_arguments(example_point(settings, points), source, reference, output, settings.latency_unit)
    policy, limits = DuplexAgent.check(args)
    engine, sentences = Engine(*load_checkpoint(args.checkpoint), limits), read_lines(source)
    return [example_of(engine, number, sentences[number - 1], policy) for number in settings.examples]


def main(arguments=None):
    args = parse_arguments(arguments)
    settings = load_settings(TestSettings, args.config)
    points = points_of(settings)
    source, reference = (
        find_file(name, args.config.parent, args.data_dir) for name in (settings.source, settings.reference)
    )
    check_aligned(source, reference)
    output = args.output or Path("results") / settings.name
    check_points(settings, points, source, reference, output)
    if args.fresh:
        shutil.rmtree(output / "logs", ignore_errors=True)
    shutil.rmtree(output / "points", ignore_errors=True)
    (output / "points").mkdir(parents=True)
    folders = [output / "logs" / point.folder_name for point in points]
    run_points(points, folders, source, reference, settings, args.limit, args.jobs)
    for number, (point, folder) in enumerate(zip(points, folders, strict=True)):
        result = point_result(number, point, folder, settings, args.limit)
        write_json(result, output / "points" / f"{point.folder_name}.json")
    results = load_points(output)
    write_json(results, output / "results.json")
    comparisons = compare_systems(settings, points, folders, args.limit)
    write_json(comparisons, output / "comparisons.json")
    print("\n".join([table(results), *map(comparison_text, comparisons)]))
    examples = compute_examples(settings, points, source, reference, output)
    write_examples(examples, output / "examples.json")
    print("\n".join(map(example_text, examples)))
    written = write_report(output)
    print(f"\nwritten: {output}/results.json, comparisons.json, examples.json, {', '.join(written)}")


if __name__ == "__main__":
    main()
