"""`python -m evaluation.comet FOLDER` (`make comet NAME=demo`): COMET of the points of a results folder.

COMET's package cannot be installed beside SimulEval, so its `comet-score` runs in an environment of its own. Every
point whose logs are there gets COMET, COMET_half_width and COMET_signature (model and version) among the scores of its
JSON file; results.json and the report are made again. A sweep whose configuration has COMET among its `metrics` scores
them at its end; any other writes its points without them.
"""

import argparse
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from evaluation.files import HASH_DIGITS, read_json, sha256, write_json
from evaluation.logs import IDENTITY, LOG, only_run
from evaluation.metrics import half_width, read_records
from evaluation.report import load_points, write_report
from evaluation.settings import COMET_MODEL
from evaluation.tables import table

ENVIRONMENT = Path(".venv-comet")
PACKAGE = "unbabel-comet"
BY_HAND = (
    "a model that cannot be fetched is placed by hand: FOLDER/hparams.yaml and FOLDER/checkpoints/model.ckpt, with the "
    "encoder that hparams.yaml calls pretrained_model in the Hugging Face cache; then give --model (make: MODEL=) "
    "FOLDER/checkpoints/model.ckpt"
)


def package_version(environment):
    """The version of COMET's package in a virtual environment. Raises FileNotFoundError if it is not there."""
    places = [str(place) for place in Path(environment).glob("lib/python*/site-packages")]
    found = next(iter(distributions(name=PACKAGE, path=places)), None)
    if found is None:
        raise FileNotFoundError(f"{environment}: no {PACKAGE} there; run `make comet`, which sets it up")
    return found.version


def checked_model(model):
    """(what `comet-score` is given, what the signature calls it): a name of the hub, or the path of a local `.ckpt`.

    Raises FileNotFoundError if a path lacks its checkpoint or the hparams.yaml that belongs to it.
    """
    if not str(model).endswith(".ckpt"):
        return str(model), str(model)
    path = Path(model).resolve()
    for file in (path, path.parent.parent / "hparams.yaml"):
        if not file.is_file():
            raise FileNotFoundError(f"COMET model {model}: {file} is missing; {BY_HAND}")
    return str(path), f"{'/'.join(path.parts[-3:])} sha256 {sha256(path)[:HASH_DIGITS]}"


def logged_points(folder):
    """[(JSON file, its result, the log records that it scores)] of the points whose logs are there.

    Raises FileNotFoundError if there are none, ValueError if a log is not the one that the JSON file was made from.
    """
    load_points(folder)  # for its error
    found = []
    for path in sorted((folder / "points").glob("*.json")):
        result, logs = read_json(path), folder / "logs" / path.stem
        if not (logs / LOG).is_file():
            print(f"{path.stem}: its log is not there, so it is left as it is")
            continue
        count = result["scores"]["sentences"]
        records = read_records(logs / LOG)[:count]
        if len(records) < count or read_json(logs / IDENTITY) != result["point"]:
            raise ValueError(f"{logs} does not hold the run that {path} was made from; run the sweep to its end first")
        found.append((path, result, records))
    if not found:
        raise FileNotFoundError(f"{folder}/logs holds no log of a point; COMET needs the outputs: run the sweep again")
    return found


def run_comet(environment, model, gpus, source, reference, outputs):
    """COMET of each line of each of the `outputs`, all scored in one call, so that the model is loaded once.

    source, reference: lists of lines; outputs: a list of such lists. Raises ValueError with the last words of
    `comet-score` if it fails.
    """
    names = [f"output-{i}.txt" for i in range(len(outputs))]
    with TemporaryDirectory() as scratch:
        for name, lines in zip(("source.txt", "reference.txt", *names), (source, reference, *outputs), strict=True):
            text = "".join(" ".join(line.split()) + "\n" for line in lines)  # whatever is in it, one line
            (Path(scratch) / name).write_text(text, encoding="utf-8")
        command = [str(Path(environment).absolute() / "bin" / "comet-score"), "-s", "source.txt", "-r", "reference.txt"]
        command += ["-t", *names, "--model", model, "--gpus", str(gpus), "--only_system", "--to_json", "scores.json"]
        print(f"comet-score: {len(outputs)} outputs of {len(source)} lines with the model {model}", flush=True)
        done = subprocess.run(command, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"comet-score failed with the model {model!r}: {last}\n{BY_HAND}")
        scored = read_json(Path(scratch) / "scores.json")
    return [[segment["COMET"] for segment in scored[name]] for name in names]


def add_comet(folder, model=COMET_MODEL, environment=ENVIRONMENT, gpus=0):
    """Score the points of a results folder and write the scores into their JSON files.

    Raises FileNotFoundError or ValueError naming what is missing; nothing is written then.
    """
    points = logged_points(folder)
    given, label = checked_model(model)
    signature = f"model:{label}|version:{package_version(environment)}"
    tests = {}  # (source lines, reference lines) -> its points
    for path, result, records in points:
        lines = tuple(tuple(record[side] for record in records) for side in ("source", "reference"))
        tests.setdefault(lines, []).append((path, result, [record["prediction"] for record in records]))
    scored = []
    for lines, members in tests.items():
        segments = run_comet(environment, given, gpus, *lines, [outputs for _, _, outputs in members])
        scored += [(path, result, values) for (path, result, _), values in zip(members, segments, strict=True)]
    for path, result, values in scored:
        if len(values) != result["scores"]["sentences"]:
            raise ValueError(f"comet-score gave {len(values)} scores for the sentences of {path}")
        result["scores"] |= {"COMET": mean(values), "COMET_half_width": half_width(values)}
        result["scores"]["COMET_signature"] = signature
    for path, result, _ in scored:
        write_json(result, path)


def write_comet(folder, model=COMET_MODEL, environment=ENVIRONMENT, gpus=0):
    """`add_comet`, then results.json and the report again. Returns the results of all points."""
    add_comet(folder, model, environment, gpus)
    results = load_points(folder)
    write_json(results, folder / "results.json")
    write_report(folder)
    return results


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m evaluation.comet", description=__doc__)
    parser.add_argument("folder", type=Path, help="results folder of `python -m evaluation`, with its logs")
    parser.add_argument("--model", default=COMET_MODEL, help=f"name, or path of a local .ckpt (default: {COMET_MODEL})")
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT, help=f"default: {ENVIRONMENT}")
    parser.add_argument("--gpus", type=int, default=0, help="default: 0, the CPU")
    args = parser.parse_args(arguments)
    try:
        load_points(args.folder)  # before a lock is put into a folder that is none
        with only_run(args.folder):
            print(table(write_comet(args.folder, args.model, args.environment, args.gpus)))
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
