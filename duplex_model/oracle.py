"""The oracle path: the word schedule of the grid's best path over the losses of the *reference* (eq. 35-41).

It sees the whole source and the reference before the first word, so what it reaches is an upper bound to hold policies
against, never a system's result. Strictly a bound are its nats at equal Area with the reference forced
(`evaluation.teacher_forced`); running freely the schedule is followed over the model's own words.
"""

from bisect import bisect_right
from dataclasses import dataclass

import torch

from duplex_model.data import collate, make_example
from duplex_model.engine import BOM
from duplex_model.losses import best_masks, decision_grid
from duplex_model.policies import check_price


@dataclass(frozen=True)
class Schedule:
    """Output words that a path has written when it leaves each of its decision rows.

    rows: index of each decision row's source token (s_0 is 0), ascending. words: output words, of the same length.
    """

    rows: tuple
    words: tuple

    def words_at(self, x_vis):
        """Output words once `x_vis` source tokens are read: those of the last decision row among them, else 0."""
        row = bisect_right(self.rows, x_vis - 1) - 1
        return self.words[row] if row >= 0 else 0


@torch.inference_mode()
def best_schedule(model, tokenizer, source, reference, lam):
    """The Schedule of a DuplexModel's best path for one sentence pair (two strings) and the price `lam` (nats a cell).

    The last decision row is EOS's: there all words of the reference are written. A source that does not fit below the
    anchor is cut where a Stream cuts it.
    """
    longest = None if model.config.anchor == "oracle" else model.config.anchor - len(tokenizer.start_ids) - 1  # EOS
    example = make_example(tokenizer, source, reference, longest)
    batch = collate([example]).to(model.device)
    _, heatmap, _ = decision_grid(model, batch)
    heights = best_masks(heatmap, batch, heatmap.new_tensor([lam]))[0, 0].sum(-1).tolist()
    end = len(example.target_word) - 1  # EOS's column: all words are complete there
    return Schedule(tuple(example.decision_rows), tuple(example.target_word[min(height, end)] for height in heights))


@dataclass
class OraclePath:
    """Policy for the sentence `source` with the translation `reference`: EMIT while the best path is further than we.

    lam: price of latency, nats a cell. The stream's model must be the grid. Once the source is finished a stream
    writes the rest without asking; with EOS read together with the last word, as SimulEval has it, that is from the
    last word on. The heatmap is computed when first asked for, and is no step of the stream.
    """

    lam: float
    source: str = ""
    reference: str = ""

    def __post_init__(self):
        check_price(self.lam)
        self._schedule = None

    def emits(self, stream):
        if self._schedule is None:
            source, reference = (text.lstrip().removeprefix(BOM) for text in (self.source, self.reference))
            model, tokenizer = stream.engine.model, stream.engine.tokenizer
            self._schedule = best_schedule(model, tokenizer, source, reference, self.lam)
        return stream.words_written < self._schedule.words_at(stream.x_vis)
