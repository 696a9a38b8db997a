"""Copy a training run's models as 16-bit weights: `python -m duplex_model.package RUN FOLDER`."""

import argparse
from pathlib import Path

import torch

from duplex_model.checkpoint import load_checkpoint


def package(run, folder):
    """Write FOLDER/duplex and FOLDER/lm (float16) from the run folder's models of the same names; a run without stage 1
    has no `lm`."""
    for backbone in ("duplex", "lm") if (Path(run) / "lm").is_dir() else ("duplex",):
        model, tokenizer = load_checkpoint(Path(run), backbone, dtype=torch.float16)
        model.save_pretrained(Path(folder) / backbone)
        tokenizer.save(Path(folder) / backbone)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="output folder of duplex_model.train")
    parser.add_argument("folder", help="where to write the folders duplex and lm")
    args = parser.parse_args(arguments)
    package(args.run, args.folder)


if __name__ == "__main__":
    main()
