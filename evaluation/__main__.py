"""`python -m evaluation CONFIG.yaml`: run every point of a test configuration, then print the table.

Writes below OUTPUT: logs/POINT (SimulEval's log, the agent's timing, what both depend on), points/POINT.json (scores,
settings, versions), results.json, comparisons.json, examples.json (the examples' grids), and from these alone what
evaluation.report makes.
Finished sentences are kept, so a killed run goes on where it was.
"""

import argparse
import shutil
from pathlib import Path

from sacrebleu.metrics import BLEU
from simuleval.data.dataloader import TextToTextDataloader

from duplex_model.data import check_aligned, simuleval_lines
from duplex_model.settings import add_data_dir, at_least_one, load_settings
from evaluation.comet import ENVIRONMENT, checked_model, package_version, write_comet
from evaluation.examples import compute_examples, example_point, write_examples
from evaluation.files import write_json
from evaluation.logs import only_run
from evaluation.report import comparison_text, example_text, load_points, write_report
from evaluation.run import sweep
from evaluation.scores import compare_systems, write_points
from evaluation.settings import TestSettings, points_of, simuleval_arguments
from evaluation.tables import table
from evaluation.testsets import test_files
from evaluation.workers import workers


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m evaluation", description=__doc__)
    parser.add_argument("config", type=Path, help="YAML file with the keys of evaluation.settings.TestSettings")
    parser.add_argument(
        "--output", type=Path, help="folder of the results (default: results/NAME; with --limit runs/NAME-LIMIT)"
    )
    add_data_dir(parser)
    parser.add_argument("--limit", type=at_least_one, help="only the first LIMIT sentences")
    parser.add_argument(
        "--jobs",
        type=at_least_one,
        default=1,
        help="tasks that run at once, each in a process of its own; so many also score, compare and draw",
    )
    parser.add_argument(
        "--shards",
        type=at_least_one,
        default=1,
        help="parts of the test set that run apart and are joined; a run that was cut goes on only with as many",
    )
    parser.add_argument("--cluster", help="run the tasks as an array job of submitit: slurm, or local to try it")
    parser.add_argument("--fresh", action="store_true", help="throw away the logs of an earlier run")
    return parser.parse_args(arguments)


def check_points(settings, points, source, reference, output):
    """Raise for a wrong option, value or checkpoint of any point, and for wrong examples; loads no model."""
    lines = simuleval_lines(source)
    if not lines:
        raise ValueError(f"{source} has no line")
    for point in points:
        folder = output / "logs" / point.folder_name
        args = simuleval_arguments(point, source, reference, folder, settings.latency_unit)
        agent = point.agent_class()
        agent.check(args)
        agent.check_model(args)
    check_tokenizer(settings.tokenize)
    if "COMET" in settings.metrics:
        checked_model(settings.comet_model)
        package_version(ENVIRONMENT)
    for number in settings.examples:
        if not 1 <= number <= len(lines) or not lines[number - 1].strip():
            raise ValueError(f"examples: {source} has no text at line {number}")
    if settings.examples and example_point(settings, points) is None:
        raise ValueError(f"example_system {settings.example_system!r} is no system with the duplex agent")


def check_tokenizer(name):
    """Raise ValueError if sacreBLEU's tokenizer lacks what it needs: a module, or a file that it fetches."""
    try:
        BLEU(tokenize=name)
    except (RuntimeError, OSError) as error:
        raise ValueError(f"tokenize {name!r}: {error}") from error


def main(arguments=None):
    args = parse_arguments(arguments)
    settings = load_settings(TestSettings, args.config)
    points = points_of(settings)
    source, reference = test_files(settings, args.config.parent, args.data_dir)
    check_aligned(source, reference)
    usual = Path("runs") / f"{settings.name}-{args.limit}" if args.limit else Path("results") / settings.name
    output = args.output or usual
    check_points(settings, points, source, reference, output)
    output.mkdir(parents=True, exist_ok=True)
    with only_run(output):
        evaluate(args, settings, points, source, reference, output)


def evaluate(args, settings, points, source, reference, output):
    """Run the points, score them and write everything into `output`."""
    if args.fresh:
        shutil.rmtree(output / "logs", ignore_errors=True)
    folders = [output / "logs" / point.folder_name for point in points]
    lines = len(TextToTextDataloader.from_files(source, reference))
    with workers(1 if args.cluster else args.jobs) as pool:
        sweep(
            points,
            folders,
            lines if args.limit is None else min(args.limit, lines),
            args.shards,
            {
                "source": str(source),
                "reference": str(reference),
                "latency_unit": settings.latency_unit,
                "threads": settings.threads,
                "jobs": None if args.cluster else args.jobs,
            },
            pool=pool,
            cluster=args.cluster,
            cluster_options={"slurm_array_parallelism": args.jobs, **settings.cluster},
            scratch=output / "cluster",
        )
        write_points(settings, points, folders, args.limit, output, pool)
        results = load_points(output)
        write_json(results, output / "results.json")
        comparisons = compare_systems(settings, points, folders, args.limit, pool)
        write_json(comparisons, output / "comparisons.json")
        print("\n".join([table(results), *map(comparison_text, comparisons)]))
        examples = compute_examples(settings, points, source, reference, pool)
        write_examples(examples, output / "examples.json")
        print("\n".join(map(example_text, examples)))
        written = write_report(output, pool)
    if "COMET" in settings.metrics:  # last: whatever it lacks, the rest is there
        print(table(write_comet(output, settings.comet_model)))
    print(f"\nwritten: {output}/results.json, comparisons.json, examples.json, {', '.join(written)}")


if __name__ == "__main__":
    main()
