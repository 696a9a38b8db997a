"""`python -m duplex_model.training.throughput RECIPE.yaml`: stage-2 speed on real text, as one JSON line.

cells_per_second; needed_flops_per_cell (`needed_flops`); utilization: needed FLOPs a second over the machine's measured
matmul rate, in the recipe's precision and with its threads; peak_memory_gib: on the GPU, or of the process on a CPU.
The weights are random, so that a recipe with a backbone needs no more than its configuration and tokenizer.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator

from duplex_model.data import load_examples, read_pairs
from duplex_model.losses import best_masks, decision_grid
from duplex_model.model import DuplexModel, cast_weights
from duplex_model.settings import add_data_dir, at_least_one, load_settings
from duplex_model.training.build import build_config, build_tokenizer, prepare
from duplex_model.training.loop import BatchStream, backward
from duplex_model.training.settings import TrainSettings
from duplex_model.training.stages import DuplexStage

PAIRS = 20_000  # of the training text


def needed_flops(config, source_len, target_len, row_count, lm_cells, frozen=False):
    """FLOPs that forward and backward of a batch cannot do without; two per multiply-add, the backward pass twice the
    forward one, or once where the blocks are `frozen` (adapters are left out).

    source_len, target_len, row_count [B]: tokens and decision rows; lm_cells: cells that L_LM counts. Layer 0 projects
    each token once. In the last layer only decision rows are carried on. The input stream asks along those alone, but
    the output stream in every cell, since a score is its own cell's query times key. Logits: all decision cells
    forward, those of L_LM backward. Softmax sums, norms and the EMIT head's few columns are left out.
    """
    D, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
    query = config.num_attention_heads * config.head_dim
    key_value = 2 * config.num_key_value_heads * config.head_dim
    tokens, cells = (source_len + target_len).sum(), (source_len * target_len).sum()
    kept, L = (row_count * target_len).sum(), config.num_hidden_layers
    project, carry, meet = D * (query + key_value), query * D + 3 * D * F, 2 * query  # W_QKV; W_O, MLP; score, value
    self_part = query * (source_len**2 + target_len**2).sum() * L  # each token over half of the others, twice
    layers = tokens * project + (L - 1) * 2 * cells * (carry + meet) + 2 * kept * carry + (cells + kept) * meet
    if L > 1:
        layers += ((L - 2) * 2 * cells + cells + kept) * project
    emit = kept * (2 if config.emit_reads_input else 1) * D * config.emit_hidden_size
    forward = layers + self_part + emit
    return 2 * float((2 if frozen else 3) * forward + kept * D * V + 2 * lm_cells * D * V)


def matmul_rate(dtype, device, seconds=1.0):
    """FLOPs a second of a square matmul in `dtype`."""
    size = 1024 if device.type == "cpu" else 8192
    a, b = torch.randn(2, size, size).to(device, dtype)
    (a @ b).sum().item()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        (a @ b)[0, 0].item()  # waits for a GPU
        count += 1
    return 2 * size**3 * count / (time.perf_counter() - began)


def peak_memory(device):
    """The most bytes held so far: a GPU's, or on a CPU the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def lm_cells(module, batch):
    """Cells that L_LM counts for `batch`, with the weights as they are."""
    with torch.no_grad():
        _, heatmap, real = decision_grid(module.model, batch)
        return (best_masks(heatmap, batch, heatmap.new_tensor([module.lam_lm]))[0] & real).sum()


def measure(accelerator, stage, stream, steps):
    """(seconds, cells, needed FLOPs) of `steps` forward and backward passes on the stream's batches, two before them to
    warm up."""
    module, weights = accelerator.prepare(stage.module), torch.tensor(stage.weights, device=accelerator.device)
    frozen = not module.model.model.embed_tokens.weight.requires_grad
    seconds = cells = flops = 0
    for step in range(-2, steps):
        batch = stream[step % len(stream.batches)].to(accelerator.device)
        began = time.perf_counter()
        means, _ = backward(accelerator, module, weights, batch, stage.draw(batch))
        means.sum().item()  # waits for a GPU
        module.zero_grad()
        if step >= 0:
            seconds += time.perf_counter() - began
            cells += int(stage.work(batch))
            sizes = batch.source_len, batch.target_len, batch.row_count
            flops += needed_flops(module.model.config, *sizes, lm_cells(module, batch), frozen)
    return seconds, cells, flops


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m duplex_model.training.throughput", description=__doc__)
    parser.add_argument("config", help="training recipe")
    add_data_dir(parser)
    parser.add_argument("--steps", type=at_least_one, default=20)
    args = parser.parse_args(arguments)
    settings = load_settings(TrainSettings, args.config)
    torch.set_num_threads(settings.threads or torch.get_num_threads())
    data, data_dir = settings.data, args.data_dir
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = build_tokenizer(settings, data_dir, Path(folder), may_train=True)
    pairs = read_pairs(data_dir / data.train[0], data.source, data.target)[:PAIRS]
    accelerator = Accelerator(mixed_precision=settings.precision, cpu=not torch.accelerator.is_available())
    model = cast_weights(DuplexModel(build_config(settings, tokenizer)), getattr(torch, settings.backbone_dtype))
    prepare(model, settings)
    stage = DuplexStage(model.train(), settings.duplex)
    examples = load_examples(tokenizer, pairs, data.max_tokens)
    stream = BatchStream(examples, settings.duplex.budget, stage.cost, settings.seed)
    seconds, cells, flops = measure(accelerator, stage, stream, args.steps)
    device = accelerator.device
    rate = matmul_rate(torch.bfloat16 if settings.precision == "bf16" else torch.float32, device)
    result = {
        "cells_per_second": round(cells / seconds),
        "needed_flops_per_cell": round(flops / cells),
        "gflops_per_second": round(flops / seconds / 1e9, 1),
        "matmul_gflops_per_second": round(rate / 1e9, 1),
        "utilization": round(flops / seconds / rate, 3),
        "peak_memory_gib": round(peak_memory(device) / 2**30, 2),
        "threads": torch.get_num_threads(),
        "precision": settings.precision,
        "budget": settings.duplex.budget,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
