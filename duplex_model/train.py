"""Train a dual-stream model: `python -m duplex_model.train CONFIG.yaml`.

Stage `lm` trains a causal LM with multi-path prefix masks (baseline and initialisation), stage `duplex` the grid with
L_LM + L_emit. Both resume from their last checkpoint, to the step. Runs under `accelerate launch` as well. Writes
OUTPUT/lm and OUTPUT/duplex (model folders for the agents) and, beside each stage's checkpoints, a `log.jsonl`, the
`adapters` of a LoRA training, and `average.json` (dev scores of stage 2's averages with its initial weights).
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

from duplex_model.backbone import check_sizes, load_config, load_lm, load_tokenizer
from duplex_model.config import DuplexConfig
from duplex_model.data import collate, load_examples, make_batches, read_lines, read_pairs
from duplex_model.model import DuplexModel
from duplex_model.settings import add_data_dir, check_keys, load_settings
from duplex_model.tokenizer import Tokenizer, train_tokenizer
from duplex_model.training.average import average_with_initial, trunk_of
from duplex_model.training.loop import BatchStream, Run, load_trained
from duplex_model.training.lora import add_adapters, save_adapters
from duplex_model.training.settings import TrainSettings
from duplex_model.training.stages import DuplexStage, LmStage


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="YAML file with the keys of duplex_model.training.settings.TrainSettings")
    parser.add_argument("--output", help="folder of the run (default: runs/NAME)")
    add_data_dir(parser)
    parser.add_argument("--stage", choices=("lm", "duplex"), help="only this stage (default: both)")
    return parser.parse_args(arguments)


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
        return Tokenizer(tokenizer_file(settings, data_dir, folder, may_train), *units)
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
    """The DuplexConfig of the settings: over the backbone's, or of a new model for the tokenizer."""
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
    """The grid with the stage-1 weights in `lm_folder`, those of the backbone if there is no stage 1, or fresh ones."""
    if settings.duplex.from_scratch:
        return DuplexModel(config)
    if settings.lm is None:
        lm = initial_lm(settings, config)
    elif (lm_folder / "config.json").is_file():
        lm = AutoModelForCausalLM.from_pretrained(lm_folder, dtype=getattr(torch, settings.backbone_dtype))
        known = {key for key in DuplexConfig.BLOCK_KEYS if hasattr(lm.config, key)}
        known -= {"tie_word_embeddings"}  # merged adapters untie them
        other = sorted(key for key in known if getattr(lm.config, key) != getattr(config, key))
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


def run_stage(accelerator, stage_class, settings, build, folder, examples, dev_examples):
    """Train one stage from the model that `build()` gives.

    Returns (its model with the best weights, the `peft` model around it or None, the finished Run, its dev batches).
    """
    stage_settings = getattr(settings, stage_class.name)
    model = build()
    adapted = prepare(model, settings)
    stage = stage_class(model, stage_settings)
    text = {key: value for key, value in asdict(settings.data).items() if not key.startswith("dev")}
    keys = [key for key in (*DuplexConfig.BLOCK_KEYS, *DuplexConfig.STREAM_KEYS) if hasattr(model.config, key)]
    made_of = {"data": text, "lora": settings.lora and asdict(settings.lora)}
    made_of |= {key: getattr(model.config, key) for key in keys}
    run = Run(accelerator, stage, stage_settings, folder, settings.seed, **made_of)
    stream = BatchStream(examples, stage_settings.budget, stage.cost, settings.seed)
    batches = make_batches(dev_examples, stage_settings.budget, stage.cost, np.random.default_rng(0))
    dev = [collate([dev_examples[i] for i in indices]).to(accelerator.device) for indices in batches]
    run.train(stream, dev)
    if run.sharded:  # the best weights once more, into a whole model
        model = build()
        adapted = prepare(model, settings)
        load_trained(stage_class(model, stage_settings).module, run.best_state())
    return model, adapted, run, dev


def main(arguments=None):
    args = parse_arguments(arguments)
    settings = load_settings(TrainSettings, args.config)
    check_model(settings, args.config)
    data_dir, folder = args.data_dir, Path(args.output or Path("runs") / settings.name)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    # Without `cpu`, several processes on a machine without a GPU would not find each other and train apart.
    accelerator = Accelerator(mixed_precision=settings.precision, cpu=not torch.accelerator.is_available())
    with accelerator.main_process_first():
        tokenizer = build_tokenizer(settings, data_dir, folder, accelerator.is_main_process)
    config = build_config(settings, tokenizer)
    data = settings.data
    pairs = [pair for prefix in data.train for pair in read_pairs(data_dir / prefix, data.source, data.target)]
    dev_pairs = read_pairs(data_dir / data.dev, data.source, data.target)[: data.dev_sentences]
    examples, dev_examples = (load_examples(tokenizer, p, data.max_tokens) for p in (pairs, dev_pairs))

    def run_from(stage_class, build):
        torch.manual_seed(settings.seed)  # the same fresh weights whether a stage before ran just now or not
        place = folder / f"stage-{stage_class.name}"
        return run_stage(accelerator, stage_class, settings, build, place, examples, dev_examples)

    if args.stage != "duplex" and settings.lm is not None:
        lm, adapted = run_from(LmStage, lambda: initial_lm(settings, config))[:2]
        save(accelerator, lm, adapted, tokenizer, folder, "lm")
        del lm, adapted
        accelerator.free_memory()
    if args.stage != "lm":
        model, adapted, run, dev = run_from(DuplexStage, lambda: initial_grid(settings, config, folder / "lm"))
        if settings.duplex.average != (0.0,):
            torch.manual_seed(settings.seed)
            initial = trunk_of(initial_grid(settings, config, folder / "lm"))
            scores = average_with_initial(model, initial, settings.duplex.average, lambda: run.validate(dev)["score"])
            if accelerator.is_main_process:
                record = json.dumps({"dev_score_by_share": scores})
                (folder / "stage-duplex" / "average.json").write_text(record + "\n")
        save(accelerator, model, adapted, tokenizer, folder, "duplex")


def save(accelerator, model, adapted, tokenizer, folder, name):
    """Write the model folder FOLDER/NAME: config, weights, tokenizer; adapters alone as well, before their merge."""
    if accelerator.is_main_process:
        if adapted is not None:
            save_adapters(adapted, folder / f"stage-{name}" / "adapters")
            model = adapted.merge_and_unload()
        model.save_pretrained(folder / name)
        tokenizer.save(folder / name)
    accelerator.wait_for_everyone()  # the next stage reads it


if __name__ == "__main__":
    main()
