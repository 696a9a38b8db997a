"""What the measurements on parallel text share: their options, what they load, the JSON that they write."""

import argparse
import json
from pathlib import Path

from duplex_model.checkpoint import load_checkpoint
from duplex_model.data import read_pairs


def measurement_parser(module, description, limit=None):
    """A parser with the options that every measurement has; `limit` is the default of --limit."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("prefix", type=Path, help="parallel text without the language: PREFIX.de and PREFIX.en")
    parser.add_argument("--checkpoint", help="model folder (default: the packaged German-English weights)")
    parser.add_argument("--source-language", default="de")
    parser.add_argument("--target-language", default="en")
    parser.add_argument(
        "--limit", type=int, default=limit, help=f"only the first LIMIT sentences (default: {limit or 'all'})"
    )
    parser.add_argument("--output", type=Path, help="also write the JSON there")
    return parser


def load_measured(args):
    """(model, tokenizer, pairs of lines) of the parsed options."""
    model, tokenizer = load_checkpoint(args.checkpoint)
    return model, tokenizer, read_pairs(args.prefix, args.source_language, args.target_language)[: args.limit]


def write_json(value, path):
    """Write `value` as JSON, its folder too if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
