"""Softmax sums over every prefix of an axis, as triples (m, Z, S): running maximum, sum of e^(a-m), sum of e^(a-m) v.

The two forms give the same result: a masked triangular matmul for whole grids, a scan for long single lines, where the
triangle would be quadratic (eq. 15-21). No gradient flows through m: it cancels in S / Z.
"""

from typing import NamedTuple

import torch


class Stats(NamedTuple):
    """m, Z: [...]; S: [..., H_d]. An empty part is (-inf, 0, 0)."""

    m: torch.Tensor
    Z: torch.Tensor
    S: torch.Tensor

    def context(self):
        """S / Z, [..., H_d]; 0 for an empty part."""
        # The largest term of a part that is not empty is 1, so the bound only guards 0 / 0.
        return self.S / self.Z.clamp_min(0.5)[..., None]

    def map(self, function):
        return Stats(*(function(part) for part in self))


def cat(parts, dim):
    """Join triples along the axis `dim` of m (counted from the front, so that S shares it)."""
    return Stats(*(torch.cat(tensors, dim) for tensors in zip(*parts, strict=True)))


def _finite(m):
    return m.detach().masked_fill(m.isneginf(), 0.0)


def merge(a, b):
    """The triple of the union of two disjoint parts; merging an empty part changes nothing and gives no NaN."""
    m = torch.maximum(a.m, b.m).detach()
    weight_a, weight_b = (a.m - _finite(m)).exp(), (b.m - _finite(m)).exp()
    return Stats(m, weight_a * a.Z + weight_b * b.Z, weight_a[..., None] * a.S + weight_b[..., None] * b.S)


def softmax_stats(scores, values):
    """The triple over all n keys: scores [*, q, n], values [*, n, H_d] -> m, Z [*, q], S [*, q, H_d]."""
    m = scores.amax(-1).detach()
    weights = (scores - _finite(m)[..., None]).exp()
    return Stats(m, weights.sum(-1), (weights.to(values.dtype) @ values).to(scores.dtype))


def prefix_matmul(scores, values, init):
    """Triples of every prefix of n keys joined to `init`, by a triangular matmul; O(n^2).

    scores [*, G, n], values [*, n, H_d], init: m, Z [*, G], S [*, G, H_d] -> m, Z [*, G, n], S [*, G, n, H_d].
    """
    n = scores.shape[-1]
    m = torch.maximum(scores.detach().cummax(-1).values, init.m[..., None]).detach()
    later = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1)
    weights = (scores[..., None, :] - _finite(m)[..., None]).masked_fill(later, -torch.inf).exp()
    S = (weights.to(values.dtype).flatten(-3, -2) @ values).to(scores.dtype).view(*m.shape, -1)
    return _joined(Stats(m, weights.sum(-1), S), init)


def _joined(stats, init):
    """Add `init` to every prefix, whose m already includes init's."""
    carry = (init.m[..., None] - _finite(stats.m)).exp()
    return Stats(stats.m, stats.Z + carry * init.Z[..., None], stats.S + carry[..., None] * init.S[..., None, :])


def prefix_scan(scores, values, init):
    """The same as `prefix_matmul` by a pairwise scan: O(n) work in O(log n) vector steps."""
    S = values[..., None, :, :].expand(*scores.shape, values.shape[-1]).to(scores.dtype)
    prefixes = _scan(Stats(scores, torch.ones_like(scores), S), scores.dim() - 1)
    return merge(Stats(*(part.unsqueeze(scores.dim() - 1) for part in init)), prefixes)


def _scan(stats, axis):
    n = stats.m.shape[axis]
    if n == 1:
        return stats
    even = stats.map(lambda t: t[(slice(None),) * axis + (slice(0, None, 2),)])
    odd = stats.map(lambda t: t[(slice(None),) * axis + (slice(1, None, 2),)])
    at_odd = _scan(merge(even.map(lambda t: t.narrow(axis, 0, n // 2)), odd), axis)
    rest = (n - 1) // 2
    at_even = merge(at_odd.map(lambda t: t.narrow(axis, 0, rest)), even.map(lambda t: t.narrow(axis, 1, rest)))
    at_even = cat([even.map(lambda t: t.narrow(axis, 0, 1)), at_even], axis)
    return Stats(*(_interleave(e, o, axis) for e, o in zip(at_even, at_odd, strict=True)))


def _interleave(even, odd, axis):
    paired = torch.stack([even.narrow(axis, 0, odd.shape[axis]), odd], axis + 1).flatten(axis, axis + 1)
    return torch.cat([paired, even.narrow(axis, odd.shape[axis], even.shape[axis] - odd.shape[axis])], axis)
