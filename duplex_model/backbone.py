"""Pretrained LLMs by name, folder or GGUF file: the causal LM with the grid's configuration, and its tokenizer."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from duplex_model.backbone_tokenizer import BackboneTokenizer, source_start
from duplex_model.config import DuplexConfig


def locate(name):
    """(`from_pretrained`'s name, its keywords): `name` may be a folder, a name of the hub, or either's FILE.gguf."""
    path = Path(name).expanduser()
    if path.suffix.lower() != ".gguf":
        return (str(path) if path.is_dir() else str(name)), {}
    return str(path.parent), {"gguf_file": path.name}


def _load(auto_class, name, **options):
    """`auto_class.from_pretrained`, never with remote code; a missing model is a FileNotFoundError with a remedy."""
    where, keywords = locate(name)
    file = Path(where, keywords.get("gguf_file", "config.json"))
    if Path(where).is_dir() and not file.is_file():
        raise FileNotFoundError(f"{file} is missing; check the path of the backbone {str(name)!r}")
    try:
        return auto_class.from_pretrained(where, trust_remote_code=False, **keywords, **options)
    except ImportError as error:
        remedy = "; for GGUF files install the extra `gguf`" if keywords else ""
        raise ImportError(f"{name}: {error}{remedy}") from error
    except OSError as error:
        if Path(where).is_dir():
            raise FileNotFoundError(f"backbone {str(name)!r}: {error}; complete the folder") from error
        raise FileNotFoundError(
            f"backbone {name!r} is neither a model folder nor in the local cache, and could not be fetched "
            f"({str(error).splitlines()[0]}); fetch it where there is a network (`hf download {where}`), or give the "
            "folder that holds config.json, the weights and tokenizer.json"
        ) from error


def check_sizes(tokenizer, config):
    """Raise ValueError if the tokenizer has pieces that the embedding table of `config` has no row for."""
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} pieces but the model's embeddings {config.vocab_size} rows; "
            "resize the embeddings, or take the tokenizer that the model was trained with"
        )


def load_config(name, **overrides):
    """The DuplexConfig over the pretrained model `name`; overrides: keys of DuplexConfig beyond the backbone's.

    Raises FileNotFoundError for a missing model, ValueError for one that the grid does not support.
    """
    return DuplexConfig.from_backbone(_load(AutoConfig, name), **overrides)


def load_lm(name, config, dtype=torch.float32, device="cpu"):
    """The causal LM with the weights of the pretrained model `name` in the configuration of `config` (`load_config`).

    Quantised GGUF weights are unpacked to `dtype`. Raises ValueError if the weights do not fit the configuration.
    """
    unpack = {"quantization_config": GgufConfig(dequantize=True)} if locate(name)[1] else {}
    lm, report = _load(
        AutoModelForCausalLM, name, config=config.lm_config(), dtype=dtype, output_loading_info=True, **unpack
    )
    wrong = {kind: sorted(names) for kind, names in report.items() if names}
    if wrong:
        raise ValueError(f"backbone {name!r}: its weights do not fit its configuration: {wrong}")
    for key in ("quantization_config", "_pre_quantization_dtype"):  # unpacked: else a saved copy would not load
        if hasattr(lm.config, key):
            delattr(lm.config, key)
    lm.get_input_embeddings().padding_idx = None  # where the pad token is EOS, its embedding is trained all the same
    return lm.to(device).eval()


def load_tokenizer(name, source_unit="word", target_unit="word", prompt=None, chat_template=False):
    """The BackboneTokenizer of the pretrained model `name`; prompt: an instruction before the source text, through the
    model's chat template if `chat_template`. Raises FileNotFoundError or ValueError as the other loaders do."""
    hf = _load(AutoTokenizer, name)
    return BackboneTokenizer(hf, source_unit, target_unit, source_start(hf, prompt, chat_template))
