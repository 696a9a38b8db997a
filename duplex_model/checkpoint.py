"""Model folders: config.json, model.safetensors and spm.model, of the grid or of its stage-1 causal LM."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from duplex_model.config import BACKBONES
from duplex_model.model import DuplexModel
from duplex_model.tokenizer import FILE_NAME, Tokenizer

PACKAGED = Path(__file__).parent / "weights" / "tatoeba-de-en"  # what agents use without --checkpoint
FILES = ("config.json", "model.safetensors", FILE_NAME)


def checkpoint_folder(folder=None, backbone="duplex"):
    """The model folder that `load_checkpoint` reads: `folder`, its subfolder `backbone`, or the packaged one."""
    folder = Path(folder or PACKAGED)
    return folder / backbone if (folder / backbone / "config.json").is_file() else folder


def check_checkpoint(folder=None, backbone="duplex"):
    """The model folder, after a look at its files and its config's model type; raises as `load_checkpoint` does."""
    folder = checkpoint_folder(folder, backbone)
    for name in FILES:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing; a checkpoint folder holds {', '.join(FILES)}")
    family = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    if family not in {"duplex": ("duplex",), "lm": tuple(BACKBONES)}[backbone]:
        raise ValueError(
            f"{folder}: model type {family!r} is not a {backbone!r} backbone; choose another checkpoint or --backbone"
        )
    return folder


def load_checkpoint(folder=None, backbone="duplex", device="cpu", dtype=torch.float32):
    """(model, tokenizer) of a model folder; without one, of the packaged German-English weights.

    folder: a model folder, or a folder of them with the subfolders `duplex` and `lm`. backbone: "duplex" or "lm".
    Raises FileNotFoundError naming a missing file, ValueError if the folder holds another kind of model or its
    weights do not fit its configuration.
    """
    folder = check_checkpoint(folder, backbone)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer(folder / FILE_NAME, config.get("source_unit", "word"), config.get("target_unit", "word"))
    model_class = DuplexModel if backbone == "duplex" else AutoModelForCausalLM
    try:
        model, report = model_class.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    except RuntimeError as error:
        raise ValueError(f"{folder}: the weights do not fit config.json: {error}") from error
    wrong = {kind: names for kind, names in report.items() if names}
    if wrong or tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"{folder}: weights, config.json and tokenizer do not fit together ({wrong or 'vocabulary sizes differ'}); "
            "copy the three files from the same run"
        )
    return model.to(device).eval(), tokenizer
