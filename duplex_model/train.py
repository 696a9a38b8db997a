"""Train a dual-stream model: `python -m duplex_model.train CONFIG.yaml`.

Stage `lm` trains a causal LM with multi-path prefix masks (baseline and initialisation), stage `duplex` the grid with
L_LM + L_emit. Both resume from their last checkpoint, to the step. Runs under `accelerate launch` as well. Writes
OUTPUT/lm and OUTPUT/duplex (model folders for the agents) and, beside each stage's checkpoints, a `log.jsonl` and the
`adapters` of a LoRA training.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator

from duplex_model.config import DuplexConfig
from duplex_model.data import collate, load_examples, make_batches, read_pairs
from duplex_model.settings import add_data_dir, load_settings
from duplex_model.training.build import build_config, build_tokenizer, check_model, initial_grid, initial_lm, prepare
from duplex_model.training.loop import BatchStream, Run, digest, fingerprint, load_trained
from duplex_model.training.lora import save_adapters
from duplex_model.training.settings import TrainSettings
from duplex_model.training.stages import DuplexStage, LmStage


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="YAML file with the keys of duplex_model.training.settings.TrainSettings")
    parser.add_argument("--output", help="folder of the run (default: runs/NAME)")
    add_data_dir(parser)
    parser.add_argument("--stage", choices=("lm", "duplex"), help="only this stage (default: both)")
    return parser.parse_args(arguments)


def run_stage(accelerator, stage_class, settings, build, folder, examples, dev_examples):
    """Train one stage from the model that `build()` gives.

    Returns (its model with the best weights, the `peft` model around it or None).
    """
    stage_settings = getattr(settings, stage_class.name)
    model = build()
    first = fingerprint(model.parameters())
    adapted = prepare(model, settings)
    stage = stage_class(model, stage_settings)
    text = {"data": asdict(settings.data), "text": digest(examples), "dev text": digest(dev_examples)}
    keys = [key for key in (*DuplexConfig.BLOCK_KEYS, *DuplexConfig.STREAM_KEYS) if hasattr(model.config, key)]
    made_of = {**text, "lora": settings.lora and asdict(settings.lora), "weights to begin with": first}
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
    return model, adapted


def main(arguments=None):
    args = parse_arguments(arguments)
    settings = load_settings(TrainSettings, args.config)
    if args.stage == "lm" and settings.lm is None:
        raise ValueError(f"{args.config} has no section lm, so there is no stage lm to train")
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
        lm, adapted = run_from(LmStage, lambda: initial_lm(settings, config))
        save(accelerator, lm, adapted, tokenizer, folder, "lm")
        del lm, adapted
        accelerator.free_memory()
    if args.stage != "lm":
        model, adapted = run_from(DuplexStage, lambda: initial_grid(settings, config, folder / "lm"))
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
