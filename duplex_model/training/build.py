"""What a recipe's models and tokenizer are built from, and the checks before that."""

import torch
from transformers import AutoModelForCausalLM

from duplex_model.backbone import check_sizes, load_config, load_lm, load_tokenizer
from duplex_model.config import DuplexConfig
from duplex_model.data import read_lines
from duplex_model.model import DuplexModel
from duplex_model.settings import check_keys
from duplex_model.tokenizer import Tokenizer, train_tokenizer
from duplex_model.training.lora import add_adapters


def tokenizer_file(settings, data_dir, folder, may_train):
    """The file of the run's SentencePiece model; trained on the training text if it is not there and `may_train`."""
    model_file = folder / "tokenizer" / "spm.model"
    data = settings.data
    if may_train and not model_file.is_file():
        files = [data_dir / f"{prefix}.{language}" for prefix in data.train for language in (data.source, data.target)]
        lines = [line for file in files for line in read_lines(file)]  # read here: SentencePiece would hide an error
        train_tokenizer(lines, model_file, settings.vocab_size)
    return model_file


def build_tokenizer(settings, data_dir, folder, may_train):
    """The backbone's tokenizer, or the run's own SentencePiece model."""
    units = settings.data.source_unit, settings.data.target_unit
    if settings.backbone is None:
        model_file = tokenizer_file(settings, data_dir, folder, may_train)
        tokenizer = Tokenizer(model_file, *units)
        if tokenizer.vocab_size != settings.vocab_size:
            raise ValueError(
                f"{model_file} has {tokenizer.vocab_size} pieces, not vocab_size = {settings.vocab_size}; use another "
                "output folder"
            )
        return tokenizer
    return load_tokenizer(settings.backbone, *units, settings.prompt, settings.chat_template)


def check_model(settings, where):
    """Raise ValueError for a key of `model` that is unknown or set elsewhere, or an anchor that does not fit."""
    own = {"anchor", "emit_hidden_size", *DuplexConfig.ABLATIONS}
    elsewhere = {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"}
    family = DuplexConfig(**{key: settings.model.get(key, False) for key in ("qkv_bias", "qk_norm")})
    valid = own if settings.backbone else own | set(DuplexConfig.BLOCK_KEYS) - elsewhere - family.keys_without_effect
    check_keys(settings.model, sorted(valid), f"{where}: model")
    anchor = settings.model.get("anchor", DuplexConfig.anchor)
    if anchor != "oracle" and not (isinstance(anchor, int) and settings.data.max_tokens + 2 <= anchor):
        raise ValueError(
            f"{where}: model.anchor = {anchor!r} is neither 'oracle' nor at least data.max_tokens + 2 = "
            f"{settings.data.max_tokens + 2} tokens"
        )


def build_config(settings, tokenizer):
    """The DuplexConfig of the settings: over the backbone's, or of a new model for the tokenizer. Raises ValueError for
    settings that do not fit together."""
    values = {
        "lam_min": settings.duplex.lam_min,
        "lam_max": settings.duplex.lam_max,
        "source_unit": settings.data.source_unit,
        "target_unit": settings.data.target_unit,
        **settings.model,
    }
    if settings.backbone is not None:
        start = {"start_ids": list(tokenizer.start_ids), "seed_token_id": tokenizer.seed_id}
        config = load_config(settings.backbone, **start, **values)
        check_sizes(tokenizer, config)
        longest = settings.data.max_tokens + len(tokenizer.start_ids) + 1
        if isinstance(config.anchor, int) and longest > config.anchor:
            raise ValueError(
                f"the prompt and data.max_tokens make {longest} tokens, more than the anchor {config.anchor}"
            )
        return config
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    return DuplexConfig(vocab_size=tokenizer.vocab_size, **ids, **values)


def initial_lm(settings, config):
    """The causal LM that stage 1 begins from: the backbone, or random weights."""
    if settings.backbone is None:
        return AutoModelForCausalLM.from_config(config.lm_config())
    return load_lm(settings.backbone, config, getattr(torch, settings.backbone_dtype))


def initial_grid(settings, config, lm_folder):
    """The grid with the stage-1 weights in `lm_folder`, those of the backbone if there is no stage 1, or fresh ones.

    Raises FileNotFoundError if the stage-1 model is missing, ValueError if it is another one than `config` says.
    """
    if settings.duplex.from_scratch:
        return DuplexModel(config)
    if settings.lm is None:
        lm = initial_lm(settings, config)
    elif (lm_folder / "config.json").is_file():
        lm = AutoModelForCausalLM.from_pretrained(lm_folder, dtype=getattr(torch, settings.backbone_dtype))
        known = {key for key in (*DuplexConfig.BLOCK_KEYS, *DuplexConfig.LM_KEYS) if hasattr(lm.config, key)}
        known -= {"tie_word_embeddings"}  # merged adapters untie them
        other = sorted(key for key in known if getattr(lm.config, key) != getattr(config, key))
        if lm.config.model_type != config.lm_config_class.model_type:
            other.append("model_type")
        if other:
            raise ValueError(f"{lm_folder}: stage 1 was trained with another {', '.join(other)}; train it anew")
    else:
        raise FileNotFoundError(f"{lm_folder}: no stage-1 model; run the stage lm first, or set duplex.from_scratch")
    stream = {key: getattr(config, key) for key in DuplexConfig.STREAM_KEYS}
    return DuplexModel.from_causal_lm(lm, **stream)


def prepare(model, settings):
    """Adapters and gradient checkpointing, if the settings ask for them; the `peft` model around `model`, or None."""
    if settings.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    return add_adapters(model, settings.lora) if settings.lora else None
