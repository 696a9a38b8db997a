"""Heatmap, path, mask and the two losses of the grid (eq. 35-41), as sums and counts."""

import torch
import torch.nn.functional as F
from torch import nn

from duplex_model.cross_entropy import token_losses
from duplex_model.layers import only_rows
from duplex_model.path import optimal_path


def labels_of(batch, real):
    """t_{y+1} of every cell, [B, R, Y]."""
    return batch.target_ids[:, None, 1:].expand(real.shape)


def decision_grid(model, batch):
    """What a DuplexModel computes for the decision rows of a data.Batch (departure: the rows of word ends and of EOS,
    the paper has every source token).

    Returns the Block of those rows; the heatmap [B, R, Y], nats, 0 in padding; real [B, R, Y], False in padding.
    """
    rows = torch.arange(batch.decision_rows.shape[1], device=batch.row_count.device)
    columns = torch.arange(batch.target_word.shape[1], device=batch.row_count.device)
    real = (rows < batch.row_count[:, None])[:, :, None] & (columns < batch.target_len[:, None])[:, None]
    anchor = batch.source_len if model.config.anchor == "oracle" else None
    keep = only_rows(batch.decision_rows)
    block = model(batch.source_ids, batch.target_ids[:, :-1], anchor=anchor, keep=keep, use_cache=False)
    losses = token_losses(model.model.norm(block.outputs[real]), model.lm_head.weight, labels_of(batch, real)[real])
    return block, losses.new_zeros(real.shape).masked_scatter(real, losses), real


def best_masks(heatmap, batch, prices):
    """Masks M [K, B, R, Y] of the best paths through the heatmap [B, R, Y] of a data.Batch for the prices [K]."""
    K, B = len(prices), len(heatmap)

    def repeat(tensor):
        return tensor.repeat(K, *(1,) * (tensor.dim() - 1))

    path = optimal_path(
        repeat(heatmap),
        prices.repeat_interleave(B),
        repeat(batch.row_count),
        repeat(batch.target_len),
        repeat(batch.wait_ok),
    )
    return path.mask.view(K, *heatmap.shape)


class DuplexLoss(nn.Module):
    """Stage-2 losses of a DuplexModel: L_LM on the path of `lam_lm`, L_emit on the paths of the drawn prices.

    Departure: the paper has one price for both.
    """

    terms = ("lm", "emit", "last_row", "area")

    def __init__(self, model, lam_lm, label_smoothing=0.0, distill=0.0):
        """lam_lm: nats a cell. label_smoothing, distill: shares of the uniform and of the last row's distribution in
        the labels of L_LM, in training only."""
        super().__init__()
        self.model, self.lam_lm = model, lam_lm
        self.label_smoothing, self.distill = label_smoothing, distill

    def forward(self, batch, lam):
        """Sums and counts, [4] each, for the terms: L_LM (nats), L_emit (nats), loss in the last row (nats), share of
        cells below the drawn paths. batch: data.Batch; lam: [K] prices of latency."""
        block, heatmap, real = decision_grid(self.model, batch)
        emit_logits = self.model.emit_logits(block, lam).float()
        masks = best_masks(heatmap.detach(), batch, torch.cat([lam.new_tensor([self.lam_lm]), lam]))
        rows = torch.arange(real.shape[1], device=real.device)
        last = real & (rows == batch.row_count[:, None] - 1)[:, :, None]
        decided = real & ~last & batch.wait_ok[:, None, :-1]  # in the last row, and inside a word, nothing is decided
        lm_mask, emit_masks = masks[0] & real, masks[1:]
        if self.training and (self.distill or self.label_smoothing):
            lm = self.softened(block, labels_of(batch, real), lm_mask, batch.row_count - 1)
        else:
            lm = heatmap[lm_mask].sum()
        emit = F.binary_cross_entropy_with_logits(emit_logits, emit_masks.to(emit_logits), reduction="none")
        last_row = heatmap.detach()[last]
        sums = [lm, emit[:, decided].sum(), last_row.sum(), emit_masks[:, real].sum()]
        counts = [lm_mask.sum(), len(lam) * decided.sum(), last_row.numel(), len(lam) * real.sum()]
        return torch.stack([s.float() for s in sums]), torch.tensor([float(c) for c in counts], device=heatmap.device)

    def softened(self, block, labels, mask, last):
        """L_LM (a sum, nats) over the cells in `mask` [B, R, Y], its labels [B, R, Y] softened; last [B]: last rows."""
        logits = self.model.lm_logits(block.outputs[mask]).float()
        wanted = self.soft_labels(block, labels[mask], mask, last) if self.distill else labels[mask]
        return F.cross_entropy(logits, wanted, reduction="sum", label_smoothing=self.label_smoothing)

    def soft_labels(self, block, labels, mask, last):
        """Label distributions [n, V] of the n cells in `mask` with the labels `labels` [n]: above the last row a share
        `distill` of what the model predicts there, with the whole source read."""
        sentence, row, column = mask.nonzero(as_tuple=True)
        with torch.no_grad():
            final = block.outputs[torch.arange(len(last), device=last.device), last]
            teacher = self.model.lm_logits(final).float().softmax(-1)
        share = self.distill * (row < last[sentence])[:, None]
        return (share * teacher[sentence, column]).scatter_add(1, labels[:, None], 1 - share)
