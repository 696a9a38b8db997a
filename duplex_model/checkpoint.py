"""Model folders of the grid or of its stage-1 causal LM: config.json, weights and the tokenizer's file."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from duplex_model.backbone_tokenizer import BackboneTokenizer
from duplex_model.config import BACKBONES
from duplex_model.model import DuplexModel
from duplex_model.tokenizer import FILE_NAME, Tokenizer

PACKAGED = Path(__file__).parent / "weights" / "tatoeba-de-en"  # what agents use without --checkpoint
FILES = (  # any one of each
    ("config.json",),
    ("model.safetensors", "model.safetensors.index.json"),
    (FILE_NAME, "tokenizer.json"),  # our SentencePiece model, or a pretrained LLM's tokenizer
)


def checkpoint_folder(folder=None, backbone="duplex"):
    """The model folder that `load_checkpoint` reads: `folder`, its subfolder `backbone`, or the packaged one."""
    folder = Path(folder or PACKAGED)
    return folder / backbone if (folder / backbone / "config.json").is_file() else folder


def check_checkpoint(folder=None, backbone="duplex"):
    """The model folder, after a look at its files and its config's model type; raises as `load_checkpoint` does."""
    folder = checkpoint_folder(folder, backbone)
    other, remedy = {
        "lm": ("duplex", "use --backbone duplex"),
        "duplex": ("lm", "train the stage duplex, or use an agent of the causal LM"),
    }[backbone]
    if (folder / other / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds the model {other!r} but no {backbone!r}; {remedy}")
    for names in FILES:
        if not any((folder / name).is_file() for name in names):
            holds = ", ".join(" or ".join(names) for names in FILES)
            raise FileNotFoundError(f"{folder / names[0]} is missing; a checkpoint folder holds {holds}")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    family = config.get("model_type")
    if "anchor" not in config or family not in {"duplex": ("duplex",), "lm": tuple(BACKBONES)}[backbone]:
        raise ValueError(
            f"{folder}: model type {family!r} is not a trained {backbone!r} backbone; choose another checkpoint or "
            "--backbone"
        )
    return folder


def checkpoint_files(folder):
    """The files in a model folder that decide what it computes; of weights in several files all."""
    named = [next(path for path in (folder / name for name in names) if path.is_file()) for names in FILES]
    return list(dict.fromkeys([*named, *sorted(folder.glob("*.safetensors"))]))


def load_checkpoint(folder=None, backbone="duplex", dtype=torch.float32):
    """(model, tokenizer) of a model folder; without one, of the packaged German-English weights.

    folder: a model folder, or a folder of them with the subfolders `duplex` and `lm`. backbone: "duplex" or "lm".
    Raises FileNotFoundError naming a missing file, ValueError if the folder holds another kind of model or its
    weights do not fit its configuration.
    """
    folder = check_checkpoint(folder, backbone)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = load_tokenizer(folder, config)
    model_class = DuplexModel if backbone == "duplex" else AutoModelForCausalLM
    try:
        model, report = model_class.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(f"{folder}: the weights are damaged or do not fit config.json: {error}") from error
    wrong = {kind: names for kind, names in report.items() if names}
    if wrong or tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"{folder}: weights, config.json and tokenizer do not fit together ({wrong or 'vocabulary sizes differ'}); "
            "copy all files from the same run"
        )
    return model.eval(), tokenizer


def load_tokenizer(folder, config):
    """The tokenizer in a model folder, with the units, source start and seed of its `config` (a mapping)."""
    units = config.get("source_unit", "word"), config.get("target_unit", "word")
    if (folder / FILE_NAME).is_file():
        return Tokenizer(folder / FILE_NAME, *units)
    return BackboneTokenizer.from_folder(folder, *units, config.get("start_ids"), config.get("seed_token_id"))
