"""`python -m evaluation.approximation PREFIX`: what the grid's approximation costs on a trained model.

The grid's approximate form against the exact one (`duplex_model.exact`), in which every cell attends with its own
query: mean KL of the next-token distribution over the cells of the reference (nats), and BLEU and AL when each form
decides and writes.
"""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean

import torch
from sacrebleu.metrics import BLEU

from duplex_model.data import load_examples
from duplex_model.engine import Engine, translate
from duplex_model.exact import exact_forward
from duplex_model.model import Block
from duplex_model.policies import EmitHeadPolicy
from evaluation.files import write_json
from evaluation.measurement import circumstances, load_measured, measurement_parser, most_tokens
from evaluation.metrics import average_lagging, reference_length


@dataclass(frozen=True)
class ExactState:
    """A `GridState` without a cache: each cell is computed from its whole prefix, in the exact form."""

    model: object
    anchor: int
    source_ids: tuple
    target_ids: tuple
    steps: int = 0

    def read(self, ids):
        return replace(self, source_ids=self.source_ids + tuple(ids), steps=self.steps + 1)

    def write(self, token):
        return replace(self, target_ids=self.target_ids + (token,), steps=self.steps + 1)

    @cached_property
    def cell(self):
        """The last-layer states of the current cell, as a Block of one cell."""
        ids = (torch.tensor([tokens]) for tokens in (self.source_ids, self.target_ids))
        return Block(*(stream[:, -1:, -1:] for stream in exact_forward(self.model, *ids, self.anchor)), cache=None)

    def logits(self):
        return self, self.model.lm_logits(self.cell.outputs)[0, 0, 0].float()

    def emit_logit(self, lam):
        return self.model.emit_logits(self.cell, torch.tensor([lam])).item()


class ExactEngine(Engine):
    """The engine over the exact form."""

    def _state(self, anchor):
        tokenizer, config = self.tokenizer, self.model.config
        return ExactState(self.model, anchor or config.anchor, tuple(tokenizer.start_ids), (tokenizer.seed_id,))


@torch.inference_mode()
def divergence(model, examples):
    """(mean KL(exact || approximate) of the next-token distribution in nats, cells) over the decision rows."""
    total, cells = 0.0, 0
    for example in examples:
        ids = torch.tensor([example.source]), torch.tensor([example.target[:-1]])
        grid, (_, exact) = model(*ids), exact_forward(model, *ids)
        p, q = (model.lm_logits(states[0, example.decision_rows]).log_softmax(-1) for states in (exact, grid.outputs))
        total += (p.exp() * (p - q)).sum().item()
        cells += p[..., 0].numel()
    return total / cells, cells


def free_run(engine, pairs, policy):
    """{BLEU, AL} of the engine on pairs of lines."""
    outputs = [translate(engine, source, policy) for source, _ in pairs]
    lags = [
        average_lagging(delays, len(source.split()), reference_length(reference, "word"))
        for (_, delays), (source, reference) in zip(outputs, pairs, strict=True)
        if delays
    ]
    bleu = BLEU().corpus_score([" ".join(words) for words, _ in outputs], [[reference for _, reference in pairs]])
    return {"BLEU": bleu.score, "AL": mean(lags)}


def main(arguments=None):
    parser = measurement_parser("evaluation.approximation", __doc__, limit=100)
    parser.add_argument("--lam", type=float, nargs="+", default=[0.005, 0.02, 0.08])
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model, tokenizer, pairs = load_measured(args)
    if model.config.anchor == "oracle":
        raise ValueError(
            f"{args.checkpoint} has the anchor 'oracle', the true source length, which a stream cannot know while it "
            "reads; give --checkpoint a model with a fixed anchor"
        )
    if tokenizer.target_unit != "word":
        raise ValueError(f"{args.checkpoint} writes characters; the scores here are those of words")
    longest = most_tokens(model.config, tokenizer)
    pairs = [pair for pair in pairs if load_examples(tokenizer, [pair], longest)]  # no empty or long ones
    kl, cells = divergence(model, load_examples(tokenizer, pairs, longest))
    result = {"sentences": len(pairs), "kl_nats": kl, "cells": cells, "points": []}
    result |= circumstances(args, pairs)
    engines = {"approximate": Engine(model, tokenizer), "exact": ExactEngine(model, tokenizer)}
    for lam in args.lam:
        scores = {name: free_run(engine, pairs, EmitHeadPolicy(lam)) for name, engine in engines.items()}
        result["points"].append({"lam": lam, **scores})
    print(json.dumps(result, indent=1))
    if args.output:
        write_json(result, args.output)


if __name__ == "__main__":
    main()
