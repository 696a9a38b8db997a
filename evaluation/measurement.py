"""What the measurements on parallel text share: their options, what they load, the JSON that they write."""

import argparse
import math
from importlib.metadata import version
from pathlib import Path

from duplex_model.checkpoint import checkpoint_files, checkpoint_folder, load_checkpoint
from duplex_model.data import read_pairs
from evaluation.files import sha256

PACKAGES = ("torch", "transformers", "simuleval", "sacrebleu", "sentencepiece", "numpy")


def at_least_one(text):
    """An option's value as an int of at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than one")
    return value


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
    """{package: version} of what a number may depend on."""
    return {name: version(name) for name in PACKAGES}


def circumstances(checkpoint=None, backbone="duplex"):
    """What a measurement on a checkpoint was made with, ready for JSON: the files' SHA-256 and the versions."""
    files = checkpoint_files(checkpoint_folder(checkpoint, backbone))
    return {"checkpoint_sha256": {path.name: sha256(path) for path in files}, "versions": versions()}


def load_measured(args):
    """(model, tokenizer, pairs of lines) of the parsed options."""
    model, tokenizer = load_checkpoint(args.checkpoint)
    return model, tokenizer, read_pairs(args.prefix, args.source_language, args.target_language)[: args.limit]


def most_tokens(config, tokenizer):
    """The most source pieces that a stream of the model reads before it cuts the source."""
    return math.inf if config.anchor == "oracle" else config.anchor - 1 - len(tokenizer.start_ids)
