"""The dual-stream model: one function for the whole grid, new rows (WAIT) and new columns (EMIT)."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from duplex_model.attention import StreamCache, stream_attention
from duplex_model.backbone import load_config, load_lm
from duplex_model.config import DuplexConfig
from duplex_model.layers import DuplexLayer, StateNorm, autocast_dtype, cast_for


class Rotary(NamedTuple):
    """(cos, sin) of the input stream [1, x, 1, H_d] and of the output stream [B or 1, 1, y, H_d]."""

    inputs: tuple
    outputs: tuple


class LayerCache(NamedTuple):
    inputs: StreamCache
    outputs: StreamCache


class Block(NamedTuple):
    """Last-layer states of the block's cells, [B, x, y, D] for each stream, and the layers' caches after it."""

    inputs: torch.Tensor
    outputs: torch.Tensor
    cache: tuple


def cast_weights(model, dtype):
    """Convert a model's weights in place, but not its buffers: RoPE's angles need float32. Returns the model."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


class EmitHead(nn.Module):
    """EMIT logit from the normed states of both streams and log lam (beyond the paper: one head for every lam)."""

    def __init__(self, config):
        super().__init__()
        self.log_range = math.log(config.lam_min), math.log(config.lam_max)
        self.reads_input = config.emit_reads_input
        width = config.hidden_size * (2 if self.reads_input else 1)
        self.state_proj = nn.Linear(width, config.emit_hidden_size)
        self.lam_proj = nn.Linear(2, config.emit_hidden_size, bias=False)
        self.out_proj = nn.Linear(config.emit_hidden_size, 1)

    def forward(self, outputs, inputs, lam):
        """outputs, inputs: normed states [..., D]; lam: [K] prices of latency, nats a cell -> EMIT logits [K, ...]."""
        low, high = self.log_range
        outputs, inputs = (cast_for(self.state_proj, states) for states in (outputs, inputs))
        position = (lam.log() - (low + high) / 2) / ((high - low) / 2 or 1.0)  # -1..1 over the trained range
        price = self.lam_proj(torch.stack([position, position**2], -1).to(outputs.dtype))
        states = self.state_proj(torch.cat([outputs, inputs], -1) if self.reads_input else outputs)
        price = price.view(len(lam), *(1,) * (states.dim() - 1), -1)
        return self.out_proj(F.silu(states + price)).squeeze(-1)


class DuplexBackbone(nn.Module):
    """Embedding, layers and final norm, under the names of `transformers`' LlamaModel."""

    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DuplexLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = StateNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config)


class DuplexPreTrainedModel(PreTrainedModel):
    config_class = DuplexConfig
    base_model_prefix = "model"
    _no_split_modules = ["DuplexLayer"]
    supports_gradient_checkpointing = True


class DuplexModel(DuplexPreTrainedModel):
    """A decoder LLM on the grid. Loads and saves like a `transformers` model; a causal LM's weights load by name."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = DuplexBackbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.emit_head = EmitHead(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def get_output_embeddings(self):
        return self.lm_head

    @classmethod
    def from_backbone(cls, name, dtype=torch.float32, device="cpu", **overrides):
        """A grid over a pretrained LLM of the Llama, Mistral, Qwen2 or Qwen3 family, with a fresh EMIT head.

        name: a name of the hub or a folder, or either's FILE.gguf (unpacked to `dtype`). overrides: keys of
        DuplexConfig beyond the backbone's. Raises FileNotFoundError for a missing model, ValueError naming a family,
        RoPE scaling or sliding window that the grid does not support.
        """
        config = load_config(name, **overrides)
        return cls.from_causal_lm(load_lm(name, config, dtype, device), **overrides)

    @classmethod
    def from_causal_lm(cls, lm, **overrides):
        """A grid that takes over the weights of the causal LM `lm` (not copied), with a fresh EMIT head.

        overrides: keys of DuplexConfig beyond the backbone's. Raises ValueError for an unsupported family.
        """
        config = DuplexConfig.from_backbone(lm.config, **overrides)
        with torch.device("meta"):
            model = cls(config)
        missing, unexpected = model.load_state_dict(lm.state_dict(), strict=False, assign=True)
        missing = [name for name in missing if not name.startswith("emit_head.")]
        if missing or unexpected:
            raise ValueError(f"weights do not fit the grid: missing {missing}, unexpected {unexpected}")
        model.tie_weights()
        model.model.rotary_emb = LlamaRotaryEmbedding(config).to(lm.device)
        model.emit_head = EmitHead(config).apply(model._init_weights).to(lm.device, lm.dtype)
        return model

    def forward(
        self, source_ids, target_ids, cache=None, first_row=0, first_col=0, anchor=None, keep=None, use_cache=True
    ):
        """Compute the cells of rows x columns of a block (eq. 5-23).

        source_ids [B, x], target_ids [B, y]: tokens of the block's rows and columns. cache: the layers' caches (a tuple
        of LayerCache) of the cells computed so far, or None. first_row, first_col: where the block starts; with a
        cache one of them is 0 and the other the number of rows (WAIT) or columns (EMIT) that the cache holds.
        anchor: position of column 0, an int or [B]; default: the config's. keep: the cells whose last-layer states are
        returned, as in `DuplexLayer.forward`. use_cache: whether the Block has a cache; in training it would keep what
        gradient checkpointing lets go. Returns a Block. Raises ValueError for a block that starts in the middle without
        a cache, or in the corner with one.
        """
        if (cache is not None) != (bool(first_row) != bool(first_col)):
            raise ValueError(f"a block starts at row 0 or column 0, not at ({first_row}, {first_col}) with this cache")
        rotary = self.rotary(source_ids, target_ids, first_row, first_col, anchor)
        states = self.embed(source_ids, target_ids)
        caches = {}
        for index, layer in enumerate(self.model.layers):
            past = cache[index] if cache is not None else LayerCache(None, None)

            def attend(own, other, index=index, past=past):
                contexts, after = self._attend(own, other, past, first_row, first_col)
                if use_cache:
                    caches[index] = after
                return contexts

            last = index == len(self.model.layers) - 1
            states = layer(states, rotary, attend, keep if last else None)
        return Block(*states, tuple(caches.values()) if use_cache else None)

    def embed(self, source_ids, target_ids):
        """Layer 0's states of both streams, a token's alone, float32 or more: [B, x, 1, D] and [B, 1, y, D]."""
        source, target = (self.model.embed_tokens(ids) for ids in (source_ids, target_ids))
        dtype = torch.promote_types(source.dtype, torch.float32)
        return source[:, :, None].to(dtype), target[:, None].to(dtype)

    def rotary(self, source_ids, target_ids, first_row=0, first_col=0, anchor=None):
        """The rotary tables of a block: inputs from position `first_row`, outputs from anchor + `first_col`."""
        anchor = self.config.anchor if anchor is None else anchor
        if isinstance(anchor, str):
            raise ValueError(f"anchor {anchor!r}: pass the true source lengths as `anchor`")
        device, dtype_like = source_ids.device, self.model.norm.weight
        rows = first_row + torch.arange(source_ids.shape[1], device=device)[None]
        columns = torch.as_tensor(anchor, device=device).reshape(-1, 1) + first_col
        columns = columns + torch.arange(target_ids.shape[1], device=device)
        rows, columns = (self.model.rotary_emb(dtype_like, positions) for positions in (rows, columns))
        return Rotary(tuple(part[:, :, None] for part in rows), tuple(part[:, None] for part in columns))

    def _attend(self, own, other, past, first_row, first_col):
        """Contexts of the input and the output stream over a block, and the layer's cache after it."""
        rows, columns = first_row > 0, first_col > 0
        contexts_in, inputs = stream_attention(own, other, past.inputs, columns, self.config.input_cross_from)
        contexts_out, outputs = stream_attention(other.transpose(), own.transpose(), past.outputs, rows, 0)
        return (contexts_in, contexts_out.transpose(1, 2)), LayerCache(inputs, outputs)

    def lm_logits(self, states):
        """Next-token logits [..., V] of last-layer states [..., D] (either stream).

        Without autocast they are float32 also from 16-bit weights: rounded to 8 bits, the best of them would often tie.
        """
        states, weight = self.model.norm(states), self.lm_head.weight
        return F.linear(states, weight if autocast_dtype(states) else weight.to(states.dtype))

    def emit_logits(self, block, lam):
        """EMIT logits [K, B, x, y] of a Block's cells for the prices `lam` [K]."""
        return self.emit_head(self.model.norm(block.outputs), self.model.norm(block.inputs), lam)
