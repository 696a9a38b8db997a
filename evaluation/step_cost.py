"""One WAIT and one EMIT on the grid against a cached step of the same causal LM: `python -m evaluation.step_cost NAME`.

NAME is a pretrained LLM: a folder or a name of the hub, or either's FILE.gguf. Prints one JSON object: milliseconds a
step (medians over repeats that take turns, next-token logits included) and bytes of the caches at `rows` source and
`columns` output tokens; the LM's cache holds rows + columns tokens.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from transformers import DynamicCache

from duplex_model.backbone import load_config, load_lm
from duplex_model.model import DuplexModel
from duplex_model.settings import at_least_one
from duplex_model.states import GridState
from evaluation.files import write_json
from evaluation.measurement import versions


def tensors(value):
    """All tensors in nested tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors(part)]


def count_bytes(value):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(value))


def grid_state(grid, source, target):
    """The state with all of `source` [x] and `target` [y] on the grid, computed as one block."""
    block = grid(source[None], target[None])
    return GridState(grid, grid.config.anchor, tuple(source.tolist()), tuple(target.tolist()), block.cache)


class CachedLm:
    """`transformers`' own step: one token after a prefix, whose cache is cut back after each."""

    def __init__(self, lm, prefix):
        self.lm, self.cache = lm, DynamicCache(config=lm.config)
        lm(prefix[None], cache=self.cache, use_cache=True)

    def step(self, token):
        logits = self.lm(token[None, None], cache=self.cache, use_cache=True).logits
        self.cache.crop(-1)
        return logits

    def bytes(self):
        return count_bytes([(layer.keys, layer.values) for layer in self.cache.layers])


def milliseconds(steps, repeats, synchronize):
    """{name: median ms} of the callables in `steps`, run in turn."""
    times = {name: [] for name in steps}
    for _ in range(repeats + 1):  # the first of each warms up
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            synchronize()
            times[name].append((time.perf_counter() - began) * 1000)
    return {name: round(statistics.median(values[1:]), 3) for name, values in times.items()}


@torch.inference_mode()
def step_cost(lm, grid, rows, columns, repeats=20):
    """{milliseconds, bytes, times_lm_step} of WAIT, EMIT and the causal LM's cached step, on random tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, grid.config.vocab_size, (rows + columns + 1,), generator=generator).to(grid.device)
    state, cached, token = grid_state(grid, ids[:rows], ids[rows:-1]), CachedLm(lm, ids[:-1]), ids[-1]
    steps = {
        "wait": lambda: state.read((token.item(),)).logits(),
        "emit": lambda: state.write(token.item()).logits(),
        "lm_step": lambda: cached.step(token),
    }
    on_gpu = grid.device.type == "cuda"
    times = milliseconds(steps, repeats, torch.cuda.synchronize if on_gpu else lambda: None)
    return {
        "milliseconds": times,
        "times_lm_step": {name: round(times[name] / times["lm_step"], 2) for name in ("wait", "emit")},
        "bytes": {
            "weights": count_bytes(list(grid.parameters())),
            "grid": count_bytes(state.cache),
            "lm": cached.bytes(),
        },
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m evaluation.step_cost", description=__doc__)
    parser.add_argument("name", help="a pretrained LLM: a folder or a name of the hub, or either's FILE.gguf")
    parser.add_argument("--rows", type=at_least_one, default=64, help="source tokens read")
    parser.add_argument("--columns", type=at_least_one, default=64, help="output tokens written")
    parser.add_argument("--repeats", type=at_least_one, default=20)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="also write the JSON there")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    lm = load_lm(args.name, load_config(args.name), getattr(torch, args.dtype), args.device)
    settings = {key: getattr(args, key) for key in ("rows", "columns", "repeats", "dtype", "device", "threads")}
    grid = DuplexModel.from_causal_lm(lm).eval()
    cost = step_cost(lm, grid, args.rows, args.columns, args.repeats)
    result = {"backbone": Path(args.name).name, **settings, **cost, "versions": versions()}
    print(json.dumps(result))
    if args.output:
        write_json(result, args.output)


if __name__ == "__main__":
    main()
