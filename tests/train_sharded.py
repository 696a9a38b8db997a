"""`duplex_model.train` with FSDP on CPU processes; `accelerate` shards on GPUs only, so they are said to be some."""

import os
import sys
from pathlib import Path

import yaml
from accelerate import DistributedType, PartialState

from duplex_model import train

CONFIG = Path(train.__file__).parent / "recipes" / "accelerate" / "fsdp.yaml"


def main(arguments):
    os.environ["ACCELERATE_USE_FSDP"] = "true"  # what `accelerate launch` sets from the file
    for name, value in yaml.safe_load(CONFIG.read_text())["fsdp_config"].items():
        os.environ[name.upper()] = str(value).lower() if isinstance(value, bool) else str(value)
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    train.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
