"""Example sentences on the grid, as numbers for JSON: loss heatmap, EMIT probabilities, best path and path taken.

The columns are the model's own output, not the reference: only there do the path taken and the heatmap belong together.
"""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from agents.duplex_agent import DuplexAgent
from duplex_model.data import example_of_ids, simuleval_lines
from duplex_model.layers import only_rows
from duplex_model.path import optimal_path
from duplex_model.tokenizer import EOS, SPACE
from evaluation.files import replace_file
from evaluation.run import engine_for
from evaluation.settings import simuleval_arguments
from evaluation.unfold import unfold
from evaluation.workers import run_all

DECIMALS = 5


def example_point(settings, points):
    """The middle point of the example system, or None if that is no duplex system."""
    swept = [p for p in points if p.system.name == settings.example_system and p.agent_class() is DuplexAgent]
    return swept[len(swept) // 2] if swept else None


def compute_examples(settings, points, source, reference, pool=None):
    """The examples' lines as the middle point of the example system translates them, ready for JSON."""
    point = example_point(settings, points)
    return run_all(partial(_example_at, settings, point, source, reference), settings.examples, pool)


def _example_at(settings, point, source, reference, number):
    torch.set_num_threads(settings.threads)
    args = simuleval_arguments(point, source, reference, Path(), settings.latency_unit)
    engine, policy = engine_for(DuplexAgent, args), DuplexAgent.build_policy(args)
    return example_of(engine, number, simuleval_lines(source)[number - 1], policy)


def example_of(engine, number, line, policy):
    """Line `number` of the test set, the text `line`, as `policy` (an EmitHeadPolicy) translates it; ready for JSON."""
    unfolded = unfold(engine, line, policy)
    return {
        "line": number,
        "source": line,
        "lam": policy.lam,
        "theta": policy.theta,
        "unfolding": unfolded.lines,
        **example_grid(engine, unfolded.stream, unfolded.written, policy.lam),
    }


@torch.inference_mode()
def example_grid(engine, stream, written, lam):
    """The grid of a finished stream: R decision rows (source words and the end), Y columns (output pieces and the end).

    written: pieces there when the source was read up to a position, by that position.
    `heatmap` [R][Y]: -log p(t_{y+1}), nats; `emit` [R][Y]: EMIT probability for lam; `top` [R][Y]: the most probable
    piece; `wait_ok` [Y + 1]: heights at which a row may be left; `optimal_exit`, `taken_exit` [R]: height at which the
    best path for lam and the path taken leave each row; `ended`: False if the output limit cut it.
    """
    tokenizer, model = engine.tokenizer, engine.model
    source, target = list(stream.state.source_ids), [*stream.state.target_ids, tokenizer.eos_id]
    first = len(tokenizer.start_ids)
    words = example_of_ids(tokenizer, source[first:-1], target[1:-1])
    rows, wait_ok = words.decision_rows, words.wait_ok
    source_ids, target_ids, indices = (torch.tensor([ids], device=model.device) for ids in (source, target, rows))
    block = model(source_ids, target_ids[:, :-1], keep=only_rows(indices))
    nats = -model.lm_logits(block.outputs)[0].float().log_softmax(-1)
    top = nats[..., : tokenizer.vocab_size].argmin(-1)  # a table may have more rows than there are pieces
    heatmap = nats.gather(-1, target_ids[:, 1:, None].expand(len(rows), -1, -1)).squeeze(-1)
    emit = model.emit_logits(block, torch.tensor([lam], device=model.device))[0, 0].sigmoid()
    path = optimal_path(heatmap[None], lam, wait_ok=torch.tensor([wait_ok], device=model.device))
    return {
        "output": tokenizer.decode(target[1:-1]),
        "ended": not stream.over_limit,
        "rows": [*(tokenizer.decode(source[a + 1 : b + 1]) for a, b in pairwise([first - 1, *rows[:-1]])), EOS],
        "columns": [piece_text(tokenizer, piece) for piece in target[1:]],
        "heatmap": _rounded(heatmap),
        "emit": _rounded(emit),
        "top": [[piece_text(tokenizer, piece) for piece in row] for row in top.tolist()],
        "wait_ok": wait_ok,
        "optimal_exit": path.row_exit[0].tolist(),
        "taken_exit": _exits(written, rows, len(target) - 1 - stream.over_limit),
    }


def _exits(written, rows, final):
    """[R] heights of the path taken. Rows where the stream made no decision (the last word's, which is read together
    with the end; those inside a word of characters) are left at the height at which they are entered."""
    exits, height = [], 0
    for row in rows[:-1]:
        height = written.get(row, height)
        exits.append(height)
    return [*exits, final]


def piece_text(tokenizer, piece):
    """A piece as a label: with "@@" where it hangs on the next piece, or on the one before it if words are known by
    their first piece; "▁" if it is a blank alone, "·" for a byte."""
    if piece == tokenizer.eos_id:
        return EOS
    if tokenizer.opening_ids is not None and tokenizer.target_unit == "word":
        text = tokenizer.decode([piece])
        return (text or SPACE) if piece in tokenizer.opening_ids else "@@" + (text or "·")
    text, ends = tokenizer.decode([piece]), tokenizer.word_complete([piece], tokenizer.target_unit)
    return (text or SPACE) if ends else (text or "·") + "@@"


def _rounded(tensor):
    return [[round(value, DECIMALS) for value in row] for row in tensor.tolist()]


def write_examples(examples, path):
    """The examples as JSON, one a line."""
    lines = ",\n".join(json.dumps(example, ensure_ascii=False) for example in examples)
    replace_file(path, f"[\n{lines}\n]\n".encode())
