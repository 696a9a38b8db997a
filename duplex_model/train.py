"""Train a dual-stream model: `python -m duplex_model.train CONFIG.yaml`.

Stage `lm` trains a causal LM with multi-path prefix masks (baseline and initialisation), stage `duplex` the grid with
L_LM + L_emit. Both resume from their last checkpoint, to the step. Runs under `accelerate launch` as well. Writes
OUTPUT/lm and OUTPUT/duplex (model folders for the agents), a `log.jsonl` beside each stage's checkpoints, and
`average.json` (dev scores of stage 2's averages with its initial weights).
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

from duplex_model.config import DuplexConfig
from duplex_model.data import collate, load_examples, make_batches, read_lines, read_pairs
from duplex_model.model import DuplexModel
from duplex_model.settings import check_keys, load_settings
from duplex_model.tokenizer import Tokenizer, train_tokenizer
from duplex_model.training.average import average_with_initial, trunk_of
from duplex_model.training.loop import BatchStream, Run
from duplex_model.training.settings import TrainSettings
from duplex_model.training.stages import DuplexStage, LmStage


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="YAML file with the keys of duplex_model.training.settings.TrainSettings")
    parser.add_argument("--output", help="folder of the run (default: runs/NAME)")
    parser.add_argument(
        "--data-dir",
        default=os.environ.get("DUPLEX_DATA_DIR", "data"),
        help="folder of the parallel text (default: $DUPLEX_DATA_DIR or data)",
    )
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


def check_model(settings, where):
    """Raise ValueError for a key of `model` that is unknown or set elsewhere, or an anchor that does not fit."""
    elsewhere = {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", *DuplexConfig.STREAM_KEYS}
    valid = set(DuplexConfig().to_dict()) - elsewhere | {"anchor", "emit_hidden_size", *DuplexConfig.ABLATIONS}
    check_keys(settings.model, sorted(valid), f"{where}: model")
    anchor = settings.model.get("anchor", DuplexConfig.anchor)
    if anchor != "oracle" and not (isinstance(anchor, int) and settings.data.max_tokens + 2 <= anchor):
        raise ValueError(
            f"{where}: model.anchor = {anchor!r} is neither 'oracle' nor at least data.max_tokens + 2 = "
            f"{settings.data.max_tokens + 2} tokens"
        )


def build_config(settings, tokenizer):
    """The DuplexConfig of the settings' model and tokenizer."""
    return DuplexConfig(
        **{
            "vocab_size": tokenizer.vocab_size,
            "pad_token_id": tokenizer.pad_id,
            "bos_token_id": tokenizer.bos_id,
            "eos_token_id": tokenizer.eos_id,
            "lam_min": settings.duplex.lam_min,
            "lam_max": settings.duplex.lam_max,
            "source_unit": settings.data.source_unit,
            "target_unit": settings.data.target_unit,
            **settings.model,
        }
    )


def initial_grid(settings, config, lm_folder):
    """The grid with the stage-1 weights in `lm_folder`, or fresh ones if the settings say `from_scratch`."""
    if settings.duplex.from_scratch:
        return DuplexModel(config)
    if not (lm_folder / "config.json").is_file():
        raise FileNotFoundError(f"{lm_folder}: no stage-1 model; run the stage lm first, or set duplex.from_scratch")
    lm = AutoModelForCausalLM.from_pretrained(lm_folder)
    stream = {key: getattr(config, key) for key in DuplexConfig.STREAM_KEYS}
    return DuplexModel.from_causal_lm(lm, **stream)


def run_stage(accelerator, stage, settings, folder, seed, examples, dev_examples):
    """Train one stage; its module is left with its best weights. Returns the finished Run and its dev batches."""
    run = Run(accelerator, stage, settings, folder, seed)
    stream = BatchStream(examples, settings.budget, stage.cost, seed)
    batches = make_batches(dev_examples, settings.budget, stage.cost, np.random.default_rng(0))
    dev = [collate([dev_examples[i] for i in indices]).to(accelerator.device) for indices in batches]
    run.train(stream, dev)
    return run, dev


def main(arguments=None):
    args = parse_arguments(arguments)
    settings = load_settings(TrainSettings, args.config)
    check_model(settings, args.config)
    data_dir, folder = Path(args.data_dir), Path(args.output or Path("runs") / settings.name)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    # Without `cpu`, several processes on a machine without a GPU would not find each other and train apart.
    accelerator = Accelerator(mixed_precision=settings.precision, cpu=not torch.accelerator.is_available())
    with accelerator.main_process_first():
        model_file = tokenizer_file(settings, data_dir, folder, accelerator.is_main_process)
    data = settings.data
    tokenizer = Tokenizer(model_file, data.source_unit, data.target_unit)
    pairs = [pair for prefix in data.train for pair in read_pairs(data_dir / prefix, data.source, data.target)]
    dev_pairs = read_pairs(data_dir / data.dev, data.source, data.target)[: data.dev_sentences]
    examples, dev_examples = (load_examples(tokenizer, p, data.max_tokens) for p in (pairs, dev_pairs))
    torch.manual_seed(settings.seed)
    config = build_config(settings, tokenizer)

    if args.stage != "duplex":
        lm = AutoModelForCausalLM.from_config(config.lm_config())
        stage = LmStage(lm, settings.lm)
        run_stage(accelerator, stage, settings.lm, folder / "stage-lm", settings.seed, examples, dev_examples)
        save(accelerator, lm, tokenizer, folder / "lm")
        del lm, stage
        accelerator.free_memory()
    if args.stage != "lm":
        torch.manual_seed(settings.seed)  # the same EMIT head whether stage 1 ran just now or before
        model = initial_grid(settings, config, folder / "lm")
        stage, initial = DuplexStage(model, settings.duplex), trunk_of(model)
        run, dev = run_stage(
            accelerator, stage, settings.duplex, folder / "stage-duplex", settings.seed, examples, dev_examples
        )
        scores = average_with_initial(model, initial, settings.duplex.average, lambda: run.validate(dev)["score"])
        if accelerator.is_main_process:
            (folder / "stage-duplex" / "average.json").write_text(json.dumps({"dev_score_by_share": scores}) + "\n")
        save(accelerator, model, tokenizer, folder / "duplex")


def save(accelerator, model, tokenizer, folder):
    """Write a model folder: config, weights and tokenizer."""
    if accelerator.is_main_process:
        model.save_pretrained(folder)
        tokenizer.save(folder)
    accelerator.wait_for_everyone()  # the next stage reads it


if __name__ == "__main__":
    main()
