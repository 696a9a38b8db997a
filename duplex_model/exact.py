"""The exact attention of the grid, a slow oracle for tests and measurements: never what an agent runs.

No broadcast and no same-cell query: every cell attends with its own query, O(X^2 Y + X Y^2) a layer. It equals the
grid's form for one layer, for X = Y = 1, and in input column 0 at any depth.
"""

import torch


def exact_stream(own, other, cross_from):
    """Contexts [B, n, m, H, H_d] of one stream, lines on axis 1 (Projections as in `stream_attention`)."""
    q, k, v = own
    n, m = max(q.shape[1], other.k.shape[1]), max(q.shape[2], other.k.shape[2])
    q, k, v, other_k, other_v = (t.expand(-1, n, m, *t.shape[3:]) for t in (q, k, v, other.k, other.v))
    scale = q.shape[-1] ** -0.5
    own_scores = torch.einsum("bnmkgd,bpmkd->bnmkgp", q, k) * scale
    cross_scores = torch.einsum("bnmkgd,bnpkd->bnmkgp", q, other_k) * scale
    lines, positions = torch.arange(n, device=q.device), torch.arange(m, device=q.device)
    own_scores = own_scores.masked_fill((lines > lines[:, None])[:, None, None, None], -torch.inf)
    hidden = (positions > positions[:, None]) | (positions < cross_from)
    cross_scores = cross_scores.masked_fill(hidden[:, None, None], -torch.inf)
    weights = torch.cat([own_scores, cross_scores], -1).softmax(-1)
    context = torch.einsum("bnmkgp,bpmkd->bnmkgd", weights[..., :n], v)
    context = context + torch.einsum("bnmkgp,bnpkd->bnmkgd", weights[..., n:], other_v)
    return context.flatten(3, 4)


def exact_forward(model, source_ids, target_ids, anchor=None):
    """Last-layer states of both streams, [B, X, Y, D] each, of DuplexModel `model` with exact attention."""
    rotary = model.rotary(source_ids, target_ids, anchor=anchor)
    states = model.embed(source_ids, target_ids)

    def attend(own, other):
        contexts_out = exact_stream(other.transpose(), own.transpose(), 0)
        return exact_stream(own, other, model.config.input_cross_from), contexts_out.transpose(1, 2)

    for layer in model.model.layers:
        states = layer(states, rotary, attend)
    return states.unbind(0)
