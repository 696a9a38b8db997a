"""Parallel text to padded batches with the word structure that path, losses and wait-k masks need."""

import re
import unicodedata
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch


@dataclass(frozen=True)
class Example:
    """One tokenised sentence pair.

    source: ids s_0..s_{X-1} (start, pieces, EOS). target: ids t_0..t_Y (seed, pieces, EOS).
    source_word: [X] the 0-based word of each source piece; the start counts as word -1 (always visible), EOS as the
    last.
    target_word: [Y] the 0-based output word that column y predicts a piece of.
    decision_rows: rows that end a source word, and the EOS row.
    wait_ok: [Y+1] heights at which the path may leave a row: 0, Y, and where t_y ends an output word.
    """

    source: list
    target: list
    source_word: list
    target_word: list
    decision_rows: list
    wait_ok: list


@dataclass(frozen=True)
class Batch:
    """Padded examples; every index tensor is int64 and padded with 0, `wait_ok` with False.

    source_ids [B, X], target_ids [B, Y+1], source_word [B, X], target_word [B, Y], decision_rows [B, R],
    wait_ok [B, Y+1]; lengths source_len, target_len (Y of each example), row_count: [B].
    """

    source_ids: torch.Tensor
    target_ids: torch.Tensor
    source_word: torch.Tensor
    target_word: torch.Tensor
    decision_rows: torch.Tensor
    wait_ok: torch.Tensor
    source_len: torch.Tensor
    target_len: torch.Tensor
    row_count: torch.Tensor

    def to(self, device):
        return Batch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def source_text(text):
    """The text as models read it: in NFC, where text of other origin may spell an umlaut as two characters; "?" for
    half of a surrogate pair, which has no UTF-8."""
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))


def make_example(tokenizer, source, target, source_limit=None):
    """Tokenise one sentence pair (two strings) into an Example; of the source's pieces the first `source_limit`."""
    source_ids = tokenizer.encode(source_text(source))[:source_limit]
    return example_of_ids(tokenizer, source_ids, tokenizer.encode(target))


def example_of_ids(tokenizer, s_ids, t_ids):
    """The Example of the pieces of a source and a target, without start, seed and EOS."""
    start = tokenizer.start_ids
    s_ends = tokenizer.word_ends(s_ids, tokenizer.source_unit)
    t_ends = tokenizer.word_ends(t_ids, tokenizer.target_unit)
    s_word = np.concatenate([[0], np.cumsum(s_ends)[:-1]]).astype(int).tolist() if s_ids else []
    return Example(
        source=[*start, *s_ids, tokenizer.eos_id],
        target=[tokenizer.seed_id, *t_ids, tokenizer.eos_id],
        source_word=[*(-1 for _ in start), *s_word, s_word[-1] if s_word else -1],
        target_word=np.concatenate([[0], np.cumsum(t_ends)]).astype(int).tolist(),
        decision_rows=[*(i for i, end in enumerate(s_ends, len(start)) if end), len(start) + len(s_ids)],
        wait_ok=[True, *t_ends, True],
    )


def read_lines(path):
    """The lines of a UTF-8 file without line ends; a byte-order mark is dropped, a lone CR splits nothing.

    Raises FileNotFoundError or, if it is not UTF-8, ValueError, naming the file and the remedy.
    """
    return [line.rstrip("\r") for line in _lines_of(_text_of(path, "utf-8-sig"))]


def simuleval_lines(path):
    """As `read_lines`, but the lines that SimulEval reads: a lone carriage return ends one, a byte-order mark stays."""
    return _lines_of(re.sub("\r\n?", "\n", _text_of(path, "utf-8")))


def _text_of(path, encoding):
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such text file; check the path or set the data directory")
    try:
        return path.read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error}); convert the file") from error


def _lines_of(text):
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def check_aligned(source, reference):
    """Raise ValueError if the two files (None: not given) differ in their counts of SimulEval's lines; what
    `simuleval_lines` raises, too."""
    counts = [len(simuleval_lines(path)) for path in (source, reference) if path]
    if len(set(counts)) > 1:
        raise ValueError(
            f"{source} has {counts[0]} lines but {reference} has {counts[1]}; source and reference must be aligned"
        )


def read_pairs(prefix, source, target):
    """[(source line, target line)] of `prefix`.`source` and `prefix`.`target`.

    Raises ValueError if the line counts differ, FileNotFoundError if a file is missing.
    """
    sides = [read_lines(f"{prefix}.{language}") for language in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{prefix}: {len(sides[0])} lines of '{source}' but {len(sides[1])} of '{target}'; align the files first"
        )
    return list(zip(*sides, strict=True))


def load_examples(tokenizer, pairs, max_tokens):
    """Examples of the pairs with a word on either side and at most `max_tokens` pieces a side."""
    examples = (make_example(tokenizer, s, t) for s, t in pairs if s.strip() and t.strip())
    longest_source = max_tokens + len(tokenizer.start_ids) + 1
    return [e for e in examples if len(e.source) <= longest_source and len(e.target) <= max_tokens + 2]


def make_batches(examples, budget, cost, generator):
    """Lists of example indices, bucketed by (X, Y), each of padded cost at most `budget` (or one example).

    `cost(X, Y)` is the cost of one padded example (cells or tokens). The order of the batches and the membership
    within equal sizes are shuffled with the NumPy `generator`.
    """
    if not examples:
        raise ValueError("no sentence pair is left to make batches of; check the data files and data.max_tokens")
    sizes = np.array([(len(e.source), len(e.target) - 1) for e in examples])
    order = np.lexsort((generator.random(len(sizes)), sizes[:, 1], sizes[:, 0]))
    batches, current, width, height = [], [], 0, 0
    for index in order:
        x, y = sizes[index]
        if current and cost(max(width, x), max(height, y)) * (len(current) + 1) > budget:
            batches.append(current)
            current, width, height = [], 0, 0
        current.append(int(index))
        width, height = max(width, x), max(height, y)
    if current:
        batches.append(current)
    return [batches[i] for i in generator.permutation(len(batches))]


def collate(examples):
    """Pad examples into a Batch."""

    def pad(rows, dtype=torch.int64):
        out = torch.zeros(len(rows), max(len(row) for row in rows), dtype=dtype)
        for line, row in zip(out, rows, strict=True):
            line[: len(row)] = torch.tensor(row, dtype=dtype)
        return out

    return Batch(
        source_ids=pad([e.source for e in examples]),
        target_ids=pad([e.target for e in examples]),
        source_word=pad([e.source_word for e in examples]),
        target_word=pad([e.target_word for e in examples]),
        decision_rows=pad([e.decision_rows for e in examples]),
        wait_ok=pad([e.wait_ok for e in examples], torch.bool),
        source_len=torch.tensor([len(e.source) for e in examples]),
        target_len=torch.tensor([len(e.target) - 1 for e in examples]),
        row_count=torch.tensor([len(e.decision_rows) for e in examples]),
    )
