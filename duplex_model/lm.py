"""Stage 1 and baseline: a `transformers` causal LM that reads the source, then writes the target, under wait-k masks.

Source positions are 0..X-1, target positions anchor..anchor+Y-1 (eq. 44 with a fixed anchor). The pieces of output
word j see the source words < k + j; with k drawn per sentence one model serves every k (multi-path training,
Elbayad et al. 2020).
"""

import torch
import torch.nn.functional as F
from torch import nn

from duplex_model.cross_entropy import token_losses


def prefix_mask(batch, words_ahead):
    """[B, 1, X+Y, X+Y] bools, True where a query may look.

    `words_ahead` [B]: k of each sentence; any value of at least the source's words lets the target see all of it.
    """
    B, X = batch.source_ids.shape
    Y = batch.target_word.shape[1]
    device = batch.source_ids.device
    mask = torch.ones(X + Y, X + Y, dtype=torch.bool, device=device).tril().repeat(B, 1, 1)
    real = torch.arange(X, device=device) < batch.source_len[:, None]
    visible = batch.source_word[:, None, :] < (words_ahead[:, None] + batch.target_word)[:, :, None]
    mask[:, X:, :X] = visible & real[:, None, :]
    return mask[:, None]


class MultipathLM(nn.Module):
    """The stage-1 loss of a causal LM whose config has an `anchor`: sums and counts, for any number of processes."""

    terms = ("target", "source")

    def __init__(self, lm, label_smoothing=0.0):
        super().__init__()
        self.lm, self.label_smoothing = lm, label_smoothing

    def forward(self, batch, words_ahead):
        """Sums of next-token losses (nats) and their counts, each [2]: target tokens, source tokens."""
        (B, X), Y = batch.source_ids.shape, batch.target_word.shape[1]
        device = batch.source_ids.device
        anchor = batch.source_len[:, None] if self.lm.config.anchor == "oracle" else self.lm.config.anchor
        columns = anchor + torch.arange(Y, device=device).expand(B, Y)
        positions = torch.cat([torch.arange(X, device=device).expand(B, X), columns], dim=1)
        hidden = self.lm.model(
            input_ids=torch.cat([batch.source_ids, batch.target_ids[:, :-1]], dim=1),
            attention_mask=prefix_mask(batch, words_ahead),
            position_ids=positions,
            use_cache=False,
        ).last_hidden_state
        real_target = torch.arange(Y, device=device) < batch.target_len[:, None]
        real_source = torch.arange(1, X, device=device) < batch.source_len[:, None]
        target = self._loss(hidden[:, X:], batch.target_ids[:, 1:], real_target)
        source = self._loss(hidden[:, : X - 1], batch.source_ids[:, 1:], real_source)
        return torch.stack([target, source]), torch.stack([real_target.sum(), real_source.sum()])

    def _loss(self, hidden, labels, real):
        if not (self.training and self.label_smoothing):
            return token_losses(hidden[real], self.lm.lm_head.weight, labels[real]).sum()
        logits = self.lm.lm_head(hidden[real]).float()
        return F.cross_entropy(logits, labels[real], reduction="sum", label_smoothing=self.label_smoothing)
