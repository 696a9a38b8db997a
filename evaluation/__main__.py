"""`python -m evaluation CONFIG.yaml`: run every point of a test configuration, then print the table.

Writes below OUTPUT: logs/POINT (SimulEval's log, the agent's timing), points/POINT.json (scores, settings, versions),
results.json, results.csv and frontier.png. Finished sentences are kept, so a killed run goes on where it was.
"""

import argparse
import json
import os
import platform
import shutil
from importlib.metadata import version
from pathlib import Path

import torch

from agents.base import check_files
from duplex_model.checkpoint import load_checkpoint
from duplex_model.data import read_lines
from duplex_model.engine import Engine
from duplex_model.policies import EmitHeadPolicy
from duplex_model.settings import load_settings
from evaluation.metrics import read_records, score_log, score_timing
from evaluation.report import draw_frontier, load_points, table, write_csv
from evaluation.run import IDENTITY, LOG, TIMING, run_point
from evaluation.settings import TestSettings, find_file, points_of
from evaluation.unfold import unfold

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
    parser.add_argument("--fresh", action="store_true", help="throw away the logs of an earlier run")
    return parser.parse_args(arguments)


def point_result(number, point, folder, settings):
    """Scores and circumstances of one finished point, ready for JSON."""
    scores = score_log(read_records(folder / LOG), settings.latency_unit, settings.tokenize)
    return {
        "number": number,
        "system": point.system.name,
        "values": point.values,
        "scores": {**scores, **score_timing(read_records(folder / TIMING))},
        "point": json.loads((folder / IDENTITY).read_text(encoding="utf-8")),
        "versions": {name: version(name) for name in PACKAGES},
        "device": f"cpu, {settings.threads} thread(s), {platform.machine()}",
    }


def write_json(value, path):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def show_examples(settings, points, source):
    """The examples' lines as the middle point of the example system translates them."""
    swept = [point for point in points if point.system.name == settings.example_system]
    if not settings.examples or not swept:
        return []
    options = swept[len(swept) // 2].agent_options
    policy = EmitHeadPolicy(options["lam"], options.get("theta", 0.5))
    engine = Engine(*load_checkpoint(options.get("checkpoint")))
    lines, sentences = [], read_lines(source)
    for number in settings.examples:
        lines += ["", f"line {number}, lam = {policy.lam}: {sentences[number - 1]}"]
        lines += unfold(engine, sentences[number - 1], policy)
    return lines


def main(arguments=None):
    args = parse_arguments(arguments)
    settings = load_settings(TestSettings, args.config)
    points = points_of(settings)
    source, reference = (
        find_file(name, args.config.parent, args.data_dir) for name in (settings.source, settings.reference)
    )
    check_files(source, reference)
    output = args.output or Path("results") / settings.name
    if args.fresh:
        shutil.rmtree(output / "logs", ignore_errors=True)
    torch.set_num_threads(settings.threads)
    shutil.rmtree(output / "points", ignore_errors=True)
    (output / "points").mkdir(parents=True)
    for number, point in enumerate(points):
        folder = output / "logs" / point.folder_name
        run_point(point, source, reference, folder, settings.latency_unit, args.limit)
        write_json(point_result(number, point, folder, settings), output / "points" / f"{point.folder_name}.json")
    results = load_points(output)
    write_json(results, output / "results.json")
    write_csv(results, output / "results.csv")
    draw_frontier(results, output / "frontier.png", f"{settings.name}: {results[0]['scores']['sentences']} sentences")
    print(table(results))
    print("\n".join(show_examples(settings, points, source)))
    print(f"\nwritten: {output}/results.json, results.csv, frontier.png")


if __name__ == "__main__":
    main()
