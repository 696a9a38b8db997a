"""What the measurements on parallel text share: their options, what they load, the JSON that they write."""

import argparse
import hashlib
import math
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

import agents
import duplex_model
from duplex_model.checkpoint import checkpoint_files, checkpoint_folder, load_checkpoint
from duplex_model.data import read_pairs
from duplex_model.settings import at_least_one
from evaluation.files import HASH_DIGITS, sha256

PACKAGES = ("torch", "transformers", "simuleval", "sacrebleu", "sentencepiece", "numpy")


def measurement_parser(module, description, limit=None):
    """A parser with the options that every measurement has; `limit` is the default of --limit."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("prefix", type=Path, help="parallel text without the language: PREFIX.de and PREFIX.en")
    parser.add_argument("--checkpoint", help="model folder (default: the packaged German-English weights)")
    parser.add_argument("--source-language", default="de")
    parser.add_argument("--target-language", default="en")
    parser.add_argument(
        "--limit", type=at_least_one, default=limit, help=f"only the first LIMIT sentences (default: {limit or 'all'})"
    )
    parser.add_argument("--output", type=Path, help="also write the JSON there")
    return parser


def versions():
    """{package: version} of what a number may depend on; `code`: a hash of this project's models and agents."""
    return {**{name: version(name) for name in PACKAGES}, "code": code_hash()}


@cache
def code_hash():
    """First digits of a SHA-256 of all files of `duplex_model` and `agents` that decide what an agent writes."""
    files = [path for package in (duplex_model, agents) for path in Path(package.__file__).parent.glob("*.py")]
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: (path.parent.name, path.name)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:HASH_DIGITS]


def checkpoint_sha256(checkpoint=None, backbone="duplex"):
    """{file name: SHA-256} of a checkpoint's model."""
    files = checkpoint_files(checkpoint_folder(checkpoint, backbone))
    return {path.name: sha256(path) for path in files}


def circumstances(args, pairs):
    """What a measurement with these parsed options on these pairs of lines was made with, ready for JSON."""
    text = "".join(line + "\n" for pair in pairs for line in pair)
    return {
        "text": f"{args.prefix}.{args.source_language}, .{args.target_language}",
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "checkpoint_sha256": checkpoint_sha256(args.checkpoint),
        "versions": versions(),
        "device": f"cpu, {torch.get_num_threads()} thread(s), {platform.machine()}",
    }


def load_measured(args):
    """(model, tokenizer, pairs of lines) of the parsed options; raises as `load_checkpoint` and `read_pairs` do."""
    model, tokenizer = load_checkpoint(args.checkpoint)
    return model, tokenizer, read_pairs(args.prefix, args.source_language, args.target_language)[: args.limit]


def most_tokens(config, tokenizer):
    """The most source pieces that a stream of the model reads before it cuts the source."""
    return math.inf if config.anchor == "oracle" else config.anchor - 1 - len(tokenizer.start_ids)
