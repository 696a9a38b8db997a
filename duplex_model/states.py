"""The two decoders behind a stream: the dual-stream grid and the causal LM, with one interface.

A state holds what was computed for one sentence. Its methods return a new state and leave the old one as it is, so
keeping a reference is a snapshot, and any number of streams may go on from it.
"""

import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from transformers import DynamicCache

from duplex_model.layers import last_cell


@dataclass(frozen=True)
class GridState:
    """x_vis rows and y_gen columns of the grid, and the last-layer states of its current cell (x_vis-1, y_gen-1)."""

    model: object
    anchor: int
    source_ids: tuple = ()
    target_ids: tuple = ()
    cache: tuple | None = None
    cell: object = None  # Block of the current cell, [1, 1, 1, D]
    steps: int = 0  # model calls so far

    @classmethod
    def start(cls, model, start_ids, seed_id, anchor=None):
        """The state before the first word: the source start s_0..s_p read, the seed written. anchor: the config's
        unless given (the oracle's)."""
        state = cls(model, model.config.anchor if anchor is None else anchor)
        return state._extend(tuple(start_ids), (seed_id,), 0, 0)

    def read(self, ids):
        """WAIT: `ids` as new rows below the existing columns, in one block."""
        return self._extend(tuple(ids), self.target_ids, len(self.source_ids), 0)

    def write(self, token):
        """EMIT: one new column over the existing rows."""
        return self._extend(self.source_ids, (token,), 0, len(self.target_ids))

    def _extend(self, rows, columns, first_row, first_col):
        device = self.model.device
        source, target = (torch.tensor([ids], device=device) for ids in (rows, columns))
        block = self.model(source, target, self.cache, first_row, first_col, self.anchor, keep=last_cell)
        return replace(
            self,
            source_ids=self.source_ids if first_col else self.source_ids + rows,
            target_ids=self.target_ids if first_row else self.target_ids + columns,
            cache=block.cache,
            cell=block._replace(cache=None),
            steps=self.steps + 1,
        )

    def logits(self):
        """(self, next-token logits [V] of the current cell)."""
        return self, self._logits

    @cached_property
    def _logits(self):
        return self.model.lm_logits(self.cell.outputs)[0, 0, 0].float()

    def emit_logit(self, lam):
        """The EMIT logit of the current cell for the price `lam` (nats a cell)."""
        lam = torch.tensor([lam], device=self.model.device)
        return self.model.emit_logits(self.cell, lam).item()


@dataclass(frozen=True)
class LmState:
    """A causal LM that has read `source_ids` and written `target_ids`, under the wait-k masks of its training.

    The last target token is fed only when the next one is asked for, so that it sees the source words read by then;
    once the next token is chosen its keys stay as they are.
    """

    model: object
    anchor: int
    source_ids: tuple = ()
    target_ids: tuple = ()
    cache: object = None  # keys in order of arrival
    is_source: tuple = ()  # of each cached key
    ahead: object = None  # (cache, logits) with the last target token fed
    steps: int = 0

    @classmethod
    def start(cls, model, start_ids, seed_id, anchor=None):
        anchor = model.config.anchor if anchor is None else anchor
        return cls(model, anchor, target_ids=(seed_id,), cache=DynamicCache(config=model.config)).read(start_ids)

    def read(self, ids):
        """Feed source tokens; they see source tokens only."""
        n, known = len(ids), torch.tensor(self.is_source, dtype=torch.bool)
        mask = torch.cat([known.expand(n, -1), torch.ones(n, n, dtype=torch.bool).tril()], 1)
        cache, _ = self._feed(ids, len(self.source_ids), mask)
        return replace(
            self,
            source_ids=self.source_ids + tuple(ids),
            cache=cache,
            is_source=self.is_source + (True,) * n,
            ahead=None,
            steps=self.steps + 1,
        )

    def logits(self):
        """(state with the last target token fed, next-token logits [V])."""
        if self.ahead is not None:
            return self, self.ahead[1]
        mask = torch.ones(1, len(self.is_source) + 1, dtype=torch.bool)
        cache, states = self._feed(self.target_ids[-1:], self.anchor + len(self.target_ids) - 1, mask)
        head = self.model.lm_head.weight.float()  # as the grid's logits: in 16 bit the best of them would often tie
        ahead = cache, F.linear(states[0, -1].float(), head)
        return replace(self, ahead=ahead, steps=self.steps + 1), ahead[1]

    def write(self, token):
        """Append a target token; the one before it keeps the keys that it has now."""
        fed, _ = self.logits()
        return replace(
            fed,
            target_ids=self.target_ids + (token,),
            cache=fed.ahead[0],
            is_source=self.is_source + (False,),
            ahead=None,
        )

    def _feed(self, ids, position, mask):
        cache = copy.copy(self.cache)
        cache.layers = [copy.copy(layer) for layer in self.cache.layers]  # a layer grows by replacing its tensors
        device = self.model.device
        output = self.model.model(
            input_ids=torch.tensor([list(ids)], device=device),
            attention_mask=mask[None, None].to(device),
            position_ids=torch.arange(position, position + len(ids), device=device)[None],
            cache=cache,
            use_cache=True,
        )
        return cache, output.last_hidden_state
