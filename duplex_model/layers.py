"""One decoder layer of the Llama/Qwen family, run on both streams of the grid with shared weights."""

import torch
from torch import nn
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

    def project(self, inputs, outputs, rotary):
        """Projections of both streams: normed states [B, x, 1 or y, D] and [B, 1 or x, y, D], rotated q and k.

        Each weight is read once for both: a step of one row or column is bound by that.
        """
        shapes = inputs.shape[:3], outputs.shape[:3]
        both = torch.cat([inputs.flatten(0, 2), outputs.flatten(0, 2)])
        counts = [shape.numel() for shape in shapes]
        q, k, v = (projection(both).split(counts) for projection in (self.q_proj, self.k_proj, self.v_proj))
        return tuple(self._heads(*parts) for parts in zip(q, k, v, shapes, rotary, strict=True))

    def _heads(self, q, k, v, shape, rotary):
        q = self.q_norm(q.view(*shape, self.heads, self.head_dim))
        k = self.k_norm(k.view(*shape, self.kv_heads, self.head_dim))
        cos, sin = (part.to(q.dtype) for part in rotary)
        q, k = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=-2)
        q = q.view(*shape, self.kv_heads, -1, self.head_dim)
        return Projections(q, k, v.view(*shape, self.kv_heads, self.head_dim))


class DuplexLayer(nn.Module):
    """Parameter names are those of `transformers`' LlamaDecoderLayer, so weights load by name."""

    def __init__(self, config):
        super().__init__()
        self.self_attn = DuplexAttention(config)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, inputs, outputs, rotary, attend, keep=None):
        """New states of both streams, [B, x, y, D] each.

        inputs [B, x, 1 or y, D], outputs [B, 1 or x, y, D]: layer 0's states do not depend on the other axis and are
        projected once a token. attend(input Projections, output Projections) -> contexts of both, [B, x, y, H, H_d].
        keep: rows [B, R] to go on with (the last layer needs only those that something reads); None keeps all.
        """
        norm = self.input_layernorm
        contexts = attend(*self.self_attn.project(norm(inputs), norm(outputs), rotary))
        shape = contexts[0].shape[:3]
        contexts = torch.stack([_rows(context.flatten(3), keep) for context in contexts])
        states = torch.stack([_rows(stream.expand(*shape, -1), keep) for stream in (inputs, outputs)])
        states = states + self.self_attn.o_proj(contexts)
        states = states + self.mlp(self.post_attention_layernorm(states))
        return states.unbind(0)


def _rows(states, keep):
    """states [B, x, y, D] -> [B, R, y, D], the rows `keep` [B, R] of each sentence."""
    if keep is None:
        return states
    return states.gather(1, keep[:, :, None, None].expand(-1, -1, *states.shape[2:]))
