"""One decoder layer of the Llama/Qwen family, run on both streams of the grid with shared weights."""

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

    def project(self, hidden, rotary):
        """Rotated q, k and v of normed states `hidden` [B, x, y, D]; rotary: cos, sin [B or 1, x or 1, y or 1, H_d]."""
        shape = hidden.shape[:3]
        q = self.q_norm(self.q_proj(hidden).view(*shape, self.heads, self.head_dim))
        k = self.k_norm(self.k_proj(hidden).view(*shape, self.kv_heads, self.head_dim))
        v = self.v_proj(hidden).view(*shape, self.kv_heads, self.head_dim)
        cos, sin = (part.to(q.dtype) for part in rotary)
        q, k = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=-2)
        return Projections(q.view(*shape, self.kv_heads, -1, self.head_dim), k, v)


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
        attention = self.self_attn
        own = attention.project(self.input_layernorm(inputs), rotary.inputs)
        other = attention.project(self.input_layernorm(outputs), rotary.outputs)
        contexts = attend(own, other)
        shape = contexts[0].shape[:3]
        return tuple(
            self._finish(_rows(states.expand(*shape, -1), keep), _rows(context.flatten(3), keep))
            for states, context in zip((inputs, outputs), contexts, strict=True)
        )

    def _finish(self, states, context):
        states = states + self.self_attn.o_proj(context)
        return states + self.mlp(self.post_attention_layernorm(states))


def _rows(states, keep):
    """states [B, x, y, D] -> [B, R, y, D], the rows `keep` [B, R] of each sentence."""
    if keep is None:
        return states
    return states.gather(1, keep[:, :, None, None].expand(-1, -1, *states.shape[2:]))
