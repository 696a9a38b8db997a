"""`python -m evaluation.ablations CONFIG.yaml`: short trainings that differ in one setting, and what each does on dev.

Every variant trains stage 2 from the same stage-1 weights, unless it changes stage 1 itself; finished ones are not run
again. Measured on dev, teacher-forced: nats a target token with the whole source read, those of the EMIT head and of
wait-k on the same weights at equal Area, and the share of the way to the best path (`reached`).
Writes OUTPUT/ablations.json and OUTPUT/ablations.md.
"""

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from duplex_model.checkpoint import load_checkpoint
from duplex_model.config import DuplexConfig
from duplex_model.data import load_examples, read_pairs
from duplex_model.settings import add_data_dir, at_least_one, from_mapping, load_settings
from duplex_model.tokenizer import FILE_NAME
from duplex_model.training.settings import TrainSettings
from evaluation.files import write_json
from evaluation.measurement import checkpoint_sha256, versions
from evaluation.tables import markdown_table
from evaluation.teacher_forced import batches_of, measure, nats_at, reached_at, trained_prices

THETAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class AblationSettings:
    """Keys of the YAML file."""

    name: str
    recipe: str  # training recipe, beside this file or from the working directory
    base: dict[str, Any]  # changes of the recipe that all variants share
    variants: dict[str, Any]  # name -> changes of the base
    areas: tuple[float, ...] = (0.3, 0.35, 0.4, 0.45)  # at which head and wait-k are compared
    sentences: int = 300  # of dev
    sweep_theta: tuple[str, ...] = field(default_factory=tuple)  # variants whose theta is swept at one lam

    def __post_init__(self):
        for name in self.sweep_theta:
            if name not in self.variants:
                raise ValueError(f"sweep_theta: {name!r} is no variant; use some of {', '.join(self.variants)}")


def merged(settings, changes):
    """The nested mapping `settings` with `changes` put in."""
    result = dict(settings)
    for key, value in (changes or {}).items():
        result[key] = merged(result.get(key) or {}, value) if isinstance(value, dict) else value
    return result


def stage_1(recipe):
    """What of a recipe stage 1 depends on."""
    own = {*DuplexConfig.ABLATIONS, "emit_hidden_size"}
    model = {key: value for key, value in recipe.get("model", {}).items() if key not in own}
    return {**{key: value for key, value in recipe.items() if key != "duplex"}, "model": model}


def train(recipe, folder, shared, data_dir, processes):
    """Run the recipe in `folder` unless it is finished; from the stage-1 model in `shared`/lm, if one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    known, text = folder / "recipe.yaml", yaml.safe_dump(recipe, sort_keys=False)
    if known.is_file() and known.read_text(encoding="utf-8") != text:
        raise ValueError(f"{folder} was trained with another recipe; remove it, or give another --runs")
    known.write_text(text, encoding="utf-8")
    if (folder / "finished").is_file():
        return
    if shared and (shared / "lm").is_dir() and not (folder / "lm").is_dir():  # a recipe over a backbone may lack it
        shutil.copytree(shared / "lm", folder / "lm.tmp", dirs_exist_ok=True)
        if (folder / "lm.tmp" / FILE_NAME).is_file():  # a backbone has its tokenizer elsewhere
            (folder / "tokenizer").mkdir(exist_ok=True)
            shutil.copy(folder / "lm.tmp" / FILE_NAME, folder / "tokenizer")
        os.replace(folder / "lm.tmp", folder / "lm")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", "duplex_model.train", str(folder / "recipe.yaml"), "--output", str(folder)]
    command += ["--data-dir", str(data_dir), *(["--stage", "duplex"] if shared else [])]
    subprocess.run(command, check=True)
    (folder / "finished").touch()


def score(folder, settings, data_dir, areas, sentences, thetas=(0.5,)):
    """What the trained variant in `folder` does on dev, ready for JSON."""
    model, tokenizer = load_checkpoint(folder)
    data = settings.data
    pairs = read_pairs(data_dir / data.dev, data.source, data.target)[:sentences]
    curves = measure(
        model, batches_of(load_examples(tokenizer, pairs, data.max_tokens)), trained_prices(model.config), thetas
    )
    places = []
    for area in areas:
        wait_k, head = (nats_at(curves[policy], area) for policy in ("wait-k", "head"))
        places.append({"area": area, "wait_k": wait_k, "head": head, "reached": reached_at(curves, area, head)})
    shares = [place["reached"] for place in places if place["reached"] is not None]
    return {
        "whole_source": curves["wait-k"][max(curves["wait-k"])][0],
        "at_area": places,
        "reached": sum(shares) / len(shares) if shares else None,
        "curves": curves,
        "sentences": len(pairs),
        "checkpoint_sha256": checkpoint_sha256(folder),
        "versions": versions(),
    }


def table(results, areas):
    """The results as a Markdown table; a nats cell is head / wait-k."""
    titles = ["variant", "whole source", *(f"area {area:g}" for area in areas), "reached"]
    rows = []
    for name, result in results.items():
        cells = [
            " / ".join("-" if place[key] is None else f"{place[key]:.3f}" for key in ("head", "wait_k"))
            for place in result["at_area"]
        ]
        share = "-" if result["reached"] is None else f"{result['reached']:.1%}"
        rows.append([name, f"{result['whole_source']:.3f}", *cells, share])
    return "\n".join(markdown_table(titles, rows, left=1)) + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m evaluation.ablations", description=__doc__)
    parser.add_argument("config", type=Path, help="YAML file with the keys of AblationSettings")
    add_data_dir(parser)
    parser.add_argument("--runs", type=Path, help="folder of the trainings (default: runs/NAME)")
    parser.add_argument("--output", type=Path, help="folder of the results (default: results/NAME)")
    parser.add_argument(
        "--stage-1",
        type=Path,
        help="folder with the stage-1 model of the base in lm/: a run or packaged weights; stage 1 is then not trained",
    )
    parser.add_argument("--processes", type=at_least_one, default=2, help="processes of a training")
    args = parser.parse_args(arguments)
    ablation = load_settings(AblationSettings, args.config)
    beside = args.config.parent / ablation.recipe
    recipe = yaml.safe_load((beside if beside.is_file() else Path(ablation.recipe)).read_text(encoding="utf-8"))
    recipes = {name: merged(merged(recipe, ablation.base), changes) for name, changes in ablation.variants.items()}
    checked = {name: from_mapping(TrainSettings, values, f"{args.config}: {name}") for name, values in recipes.items()}
    runs, output = args.runs or Path("runs") / ablation.name, args.output or Path("results") / ablation.name
    results, first = {}, args.stage_1
    for name, values in recipes.items():
        folder = runs / name.replace(" ", "-")
        shares = first is not None and stage_1(values) == stage_1(next(iter(recipes.values())))
        train(values, folder, first if shares else None, args.data_dir, args.processes)
        first = first or folder
        thetas = THETAS if name in ablation.sweep_theta else (0.5,)
        scored = score(folder, checked[name], args.data_dir, ablation.areas, ablation.sentences, thetas)
        results[name] = {"changes": ablation.variants[name], **scored}
        write_json(results, output / "ablations.json")
        (output / "ablations.md").write_text(table(results, ablation.areas), encoding="utf-8")
        print(table(results, ablation.areas), flush=True)


if __name__ == "__main__":
    main()
