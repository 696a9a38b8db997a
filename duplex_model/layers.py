"""One decoder layer of the Llama/Qwen family, run on both streams of the grid with shared weights."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.llama.modeling_llama import LlamaMLP, apply_rotary_pos_emb

from duplex_model.attention import Projections


class DuplexAttention(nn.Module):
    """The projections of one layer; the attention itself is `duplex_model.attention` (or the exact oracle)."""

    def __init__(self, config):
        super().__init__()
        H, H_k, H_d, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.hidden_size
        self.heads, self.kv_heads, self.head_dim = H, H_k, H_d
        qkv_bias = config.attention_bias or config.qkv_bias
        self.q_proj = nn.Linear(D, H * H_d, bias=qkv_bias)
        self.k_proj = nn.Linear(D, H_k * H_d, bias=qkv_bias)
        self.v_proj = nn.Linear(D, H_k * H_d, bias=qkv_bias)
        self.o_proj = nn.Linear(H * H_d, D, bias=config.attention_bias)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(H_d, eps=config.rms_norm_eps) if config.qk_norm else nn.Identity() for _ in range(2)
        )

    def project(self, states, rotary):
        """Projections of both streams, rotated q and k; states: normed, a pair or stacked as in `DuplexLayer.forward`.

        Each weight is read once for both: a step of one row or column is bound by that.
        """
        shapes = [stream.shape[:3] for stream in states]
        counts = [shape.numel() for shape in shapes]
        stacked = isinstance(states, torch.Tensor)
        both = states.flatten(0, 3) if stacked else torch.cat([stream.flatten(0, 2) for stream in states])
        both = cast_for(self.q_proj, both)
        q, k, v = (projection(both).split(counts) for projection in (self.q_proj, self.k_proj, self.v_proj))
        return tuple(self._heads(*parts) for parts in zip(q, k, v, shapes, rotary, strict=True))

    def _heads(self, q, k, v, shape, rotary):
        q = self.q_norm(q.view(*shape, self.heads, self.head_dim))
        k = self.k_norm(k.view(*shape, self.kv_heads, self.head_dim))
        q, k = (part.to(v.dtype) for part in apply_rotary_pos_emb(q, k, *rotary, unsqueeze_dim=-2))
        q = q.view(*shape, self.kv_heads, -1, self.head_dim)
        return Projections(q, k, v.view(*shape, self.kv_heads, self.head_dim))


class StateNorm(nn.RMSNorm):
    """RMSNorm of states that are float32, whatever its weights are."""

    def forward(self, states):
        return F.rms_norm(states, self.normalized_shape, self.weight.to(states.dtype), self.eps)


class DuplexLayer(GradientCheckpointingLayer):
    """Parameter names are those of `transformers`' LlamaDecoderLayer, so weights load by name."""

    def __init__(self, config):
        super().__init__()
        self.self_attn = DuplexAttention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = StateNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = StateNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, states, rotary, attend, keep=None):
        """New states of both streams, stacked: [2, B, x, y, D], input stream first.

        states: the layer before's, or layer 0's pair [B, x, 1, D], [B, 1, y, D], which does not depend on the other
        axis and is projected once a token. attend(input Projections, output Projections) -> contexts of both,
        [B, x, y, H, H_d]. keep: takes from stacked states the cells to go on with (the last layer needs only those that
        something reads), as `only_rows` and `last_cell` do; None keeps all.
        """
        norm, stacked = self.input_layernorm, isinstance(states, torch.Tensor)
        normed = norm(states) if stacked else [norm(stream) for stream in states]
        contexts = torch.stack(attend(*self.self_attn.project(normed, rotary))).flatten(4)
        if not stacked:
            states = torch.stack([stream.expand(*contexts.shape[1:4], -1) for stream in states])
        if keep is not None:
            states, contexts = keep(states), keep(contexts)
        states = states + self.self_attn.o_proj(contexts)
        return states + self.mlp(cast_for(self.mlp.gate_proj, self.post_attention_layernorm(states)))


def cast_for(linear, states):
    """`states` in the dtype in which `linear` computes: autocast's if it is on, which would cast them anew for each
    projection that reads them, else that of its weights. Between the layers states are float32 or more."""
    return states.to(autocast_dtype(states) or linear.weight.dtype)


def autocast_dtype(states):
    """The dtype that autocast computes in on the device of `states`, or None where it is off."""
    device = states.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else None


def only_rows(indices):
    """A `keep` of the rows `indices` [B, R] of each sentence: states [2, B, x, y, D] -> [2, B, R, y, D]."""
    return lambda states: states.gather(2, indices[None, :, :, None, None].expand(2, -1, -1, *states.shape[3:]))


def last_cell(states):
    """A `keep` of the block's last row and column: [2, B, x, y, D] -> [2, B, 1, 1, D]."""
    return states[:, :, -1:, -1:]
