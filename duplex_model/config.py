"""The configuration of a dual-stream model: a Llama configuration plus what the grid needs."""

import math

from transformers import LlamaConfig, Qwen2Config, Qwen3Config

BACKBONES = {"llama": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}  # family -> what differs from Llama
_LM_CONFIGS = {(False, False): LlamaConfig, (True, False): Qwen2Config, (False, True): Qwen3Config}
_SHARED = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "hidden_act max_position_embeddings initializer_range rms_norm_eps pad_token_id bos_token_id eos_token_id "
    "tie_word_embeddings rope_parameters"
).split()
_LLAMA_ONLY = ("attention_bias", "mlp_bias")


class DuplexConfig(LlamaConfig):
    """Keys beyond `LlamaConfig`:

    qkv_bias: biases on q, k and v only (Qwen2). qk_norm: RMSNorm on each head's q and k (Qwen3).
    anchor: position of the seed t_0, tokens (eq. 44); "oracle" is the true source length, as in the paper.
    emit_hidden_size: width of the EMIT head. lam_min, lam_max: range of lam (nats a cell) that the head was trained on.
    emit_reads_input: the EMIT head reads I[x, y] beside O[x, y]. input_cross_attention: the attention I <- O; without
    it the input stream is the causal LM's in every column.
    source_unit, target_unit: latency unit of each side, "word" or "char".
    """

    model_type = "duplex"
    LM_KEYS = ("anchor", "source_unit", "target_unit")  # not the backbone's, but its causal LM under wait-k needs them
    ABLATIONS = ("emit_reads_input", "input_cross_attention")
    STREAM_KEYS = (*LM_KEYS, *ABLATIONS, "emit_hidden_size", "lam_min", "lam_max")

    qkv_bias: bool = False
    qk_norm: bool = False
    anchor: int | str = 512
    emit_hidden_size: int = 128
    emit_reads_input: bool = True
    input_cross_attention: bool = True
    lam_min: float = 0.003
    lam_max: float = 0.15
    source_unit: str = "word"
    target_unit: str = "word"

    @property
    def input_cross_from(self):
        """The first column that the attention I <- O sees: 1, since the seed is left out (departure); inf: none."""
        return 1 if self.input_cross_attention else math.inf

    @property
    def lm_config_class(self):
        """The `transformers` family whose causal LM has the same block."""
        return _LM_CONFIGS[self.qkv_bias, self.qk_norm]

    def lm_config(self):
        """The configuration of the causal LM with the same backbone."""
        names = _SHARED + list(_LLAMA_ONLY if self.lm_config_class is LlamaConfig else ())
        return self.lm_config_class(**{name: getattr(self, name) for name in [*names, *self.LM_KEYS]})

    @classmethod
    def from_backbone(cls, backbone, **overrides):
        """The configuration of a grid over the causal LM configuration `backbone` (Llama, Qwen2 or Qwen3).

        Raises ValueError naming a family, or a sliding window, that the grid does not support.
        """
        family = backbone.model_type
        if family not in BACKBONES:
            raise ValueError(f"backbone family {family!r} is not supported; use one of {', '.join(BACKBONES)}")
        if getattr(backbone, "use_sliding_window", False):
            raise ValueError(
                f"backbone {family!r}: sliding-window attention is not supported; use a full-attention model"
            )
        names = _SHARED + list(_LLAMA_ONLY if family == "llama" else ())
        return cls(**{name: getattr(backbone, name) for name in names}, **BACKBONES[family], **overrides)
