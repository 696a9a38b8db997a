"""The four attention types of one layer for a block of new cells, one stream at a time (eq. 5-23, 31, 32).

Both streams are the same computation with the roles of rows and columns exchanged. A stream's *lines* run along its
own tokens (rows for the input stream, columns for the output stream); along each line the *other* stream passes by.
Axes as suffixes: B batch, n lines of the block, m positions along a line, k = H_k, g = H / H_k, d = H_d.
"""

from typing import NamedTuple

import torch

from duplex_model.prefix_softmax import Stats, cat, prefix_matmul, prefix_scan, softmax_stats

SCAN_FROM, SCAN_LINES = 64, 8  # blocks of few long lines are scanned; a single position is a plain merge


class Projections(NamedTuple):
    """q [B, n, m, H_k, H/H_k, H_d], k and v [B, n, m, H_k, H_d]; n or m is 1 where the states do not depend on it."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def transpose(self):
        return Projections(*(part.transpose(1, 2) for part in self))


class StreamCache(NamedTuple):
    """What one stream of one layer keeps: its own keys and values at position 0 of each line, and per line the running
    triple of the self part and the cross part so far.

    k, v: [B, N, H_k, H_d]; stats.m, stats.Z: [B, N, H_k, H/H_k], stats.S: [B, N, H_k, H/H_k, H_d].
    """

    k: torch.Tensor
    v: torch.Tensor
    stats: Stats


def _statistics_dtype(dtype):
    return torch.promote_types(dtype, torch.float32)


def self_attention(q_Bnkgd, k_BNkd, v_BNkd):
    """Triples of the self part, m, Z [B, n, H_k, H/H_k]: the last n of N lines see every line up to their own."""
    B, n, k, g, d = q_Bnkgd.shape
    N = k_BNkd.shape[1]
    q = q_Bnkgd.permute(0, 2, 3, 1, 4).reshape(B, k, g * n, d)
    scores = (q @ k_BNkd.permute(0, 2, 3, 1)).view(B, k, g, n, N).to(_statistics_dtype(q.dtype)) * d**-0.5
    later = torch.ones(n, N, dtype=torch.bool, device=q.device).triu(N - n + 1)
    scores = scores.masked_fill(later, -torch.inf).view(B, k, g * n, N)
    stats = softmax_stats(scores, v_BNkd.transpose(1, 2))
    return stats.map(lambda t: t.view(B, k, g, n, *t.shape[3:]).movedim(3, 1))


def stream_attention(own, other, past, continues, cross_from):
    """Contexts of one stream over a block, and what it keeps.

    own, other: Projections with the stream's own lines on axis 1. past: StreamCache or None.
    continues: the block's positions follow those of the lines in `past` (else the lines are new and start at 0).
    cross_from: the first position of a line that the cross attention sees: 0, 1 (all but the seed) or inf (none).
    Returns contexts [B, n, m, H, H_d] and the StreamCache after the block.
    """
    if continues:
        keys, values, init = past
    else:
        keys, values = own.k[:, :, 0], own.v[:, :, 0]
        if past is not None:
            keys, values = torch.cat([past.k, keys], 1), torch.cat([past.v, values], 1)
        init = self_attention(own.q[:, :, 0], keys, values)
    d = own.q.shape[-1]
    scores = (own.q * other.k[..., None, :]).sum(-1, dtype=_statistics_dtype(own.q.dtype)) * d**-0.5
    B, n, m, k, g = scores.shape
    skip = min(max(cross_from - continues, 0), m)
    if skip:
        scores = torch.cat([torch.full_like(scores[:, :, :skip], -torch.inf), scores[:, :, skip:]], 2)
    prefix = prefix_scan if m == 1 or (m >= SCAN_FROM and n <= SCAN_LINES) else prefix_matmul
    stats = prefix(scores.permute(0, 1, 3, 4, 2), other.v.transpose(2, 3).expand(B, n, k, m, d), init)
    contexts = stats.context().to(own.q.dtype).permute(0, 1, 4, 2, 3, 5).reshape(B, n, m, k * g, d)
    last = Stats(stats.m[..., -1], stats.Z[..., -1], stats.S[..., -1, :])
    if past is not None and not continues:
        last = cat([past.stats, last], 1)
    return contexts, StreamCache(keys, values, last)
