"""Next-token losses without the large tensors in between.

Logits are kept in the matmul's own dtype, softmax and gradient are made a few rows at a time, and a row whose loss
nobody uses costs no backward pass.
"""

import torch

from duplex_model.layers import autocast_dtype

CHUNK_BYTES = {"cpu": 1 << 22, "cuda": 1 << 30}  # of float32 logits at a time: what the CPU's cache holds


def token_losses(states, weight, labels):
    """-log softmax(states @ weight.T)[labels], nats, [N] in float32 (or the dtype of `states`, if that is wider).

    states [N, D]: normed last-layer states; weight [V, D]: of the LM head; labels [N]. Under autocast the matmuls run
    in its dtype. Differentiable in states and weight.
    """
    return _TokenLosses.apply(states, weight, labels)


class _TokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, weight, labels):
        dtype = autocast_dtype(states) or states.dtype
        states_in, weight_in = states.to(dtype), weight.to(dtype)
        wide = torch.promote_types(dtype, torch.float32)
        with torch.autocast(states.device.type, enabled=False):
            logits = states_in @ weight_in.T
            normaliser = states.new_empty(len(states), dtype=wide)
            for rows in _chunks(logits):
                part = logits[rows].to(wide, copy=True)
                largest = part.amax(-1, keepdim=True)
                normaliser[rows] = largest.squeeze(-1) + part.sub_(largest).exp_().sum(-1).log_()
        ctx.save_for_backward(states_in, weight_in, labels, logits, normaliser)
        ctx.dtypes = states.dtype, weight.dtype
        return normaliser - logits.gather(1, labels[:, None]).squeeze(1).to(wide)

    @staticmethod
    def backward(ctx, grad):
        states, weight, labels, logits, normaliser = ctx.saved_tensors
        used = grad.nonzero().squeeze(1)
        logits_grad = logits.new_empty(len(used), len(weight))
        for rows in _chunks(logits_grad):
            these = used[rows]
            part = logits[these].to(normaliser.dtype).sub_(normaliser[these, None]).exp_()
            part.scatter_add_(1, labels[these, None], torch.full_like(part[:, :1], -1.0))
            logits_grad[rows] = part.mul_(grad[these, None])
        states_grad = torch.zeros_like(states, dtype=ctx.dtypes[0])
        states_grad[used] = (logits_grad @ weight).to(ctx.dtypes[0])
        return states_grad, (logits_grad.T @ states[used]).to(ctx.dtypes[1]), None


def _chunks(logits):
    """Slices of rows whose logits have at most the device's share of bytes in float32."""
    size = max(1, CHUNK_BYTES.get(logits.device.type, CHUNK_BYTES["cuda"]) // (4 * logits.shape[1]))
    return [slice(start, start + size) for start in range(0, len(logits), size)]
