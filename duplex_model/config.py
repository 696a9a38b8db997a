"""The configuration of a dual-stream model: a Llama configuration plus what the grid needs."""

import math

from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from duplex_model.settings import check_keys

# Family -> what differs from Llama. Mistral differs by its sliding window alone.
BACKBONES = {"llama": {}, "mistral": {}, "qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True}}
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # whose angles do not depend on the length, so that a cache holds
_LM_CONFIGS = {(False, False): LlamaConfig, (True, False): Qwen2Config, (False, True): Qwen3Config}
_SHARED = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "hidden_act max_position_embeddings initializer_range rms_norm_eps pad_token_id bos_token_id eos_token_id "
    "tie_word_embeddings rope_parameters"
).split()
_OPTIONAL = {"llama": ("attention_bias", "mlp_bias"), "qwen3": ("attention_bias",)}


class DuplexConfig(LlamaConfig):
    """Keys beyond `LlamaConfig`:

    qkv_bias: biases on q, k and v only (Qwen2). qk_norm: RMSNorm on each head's q and k (Qwen3).
    anchor: position of the seed t_0, tokens (eq. 44); "oracle" is the true source length, as in the paper.
    start_ids: s_0..s_p, BOS or a prompt before the text; seed_token_id: t_0; None: the tokenizer's own.
    emit_hidden_size: width of the EMIT head. lam_min, lam_max: range of lam (nats a cell) that the head was trained on.
    emit_reads_input: the EMIT head reads I[x, y] beside O[x, y]. input_cross_attention: the attention I <- O; without
    it the input stream is the causal LM's in every column.
    source_unit, target_unit: latency unit of each side, "word" or "char".
    """

    model_type = "duplex"
    # Not the backbone's, but its causal LM under wait-k needs them.
    LM_KEYS = ("anchor", "source_unit", "target_unit", "start_ids", "seed_token_id")
    ABLATIONS = ("emit_reads_input", "input_cross_attention")
    STREAM_KEYS = (*LM_KEYS, *ABLATIONS, "emit_hidden_size", "lam_min", "lam_max")
    BLOCK_KEYS = (*_SHARED, *_OPTIONAL["llama"], "qkv_bias", "qk_norm")

    qkv_bias: bool = False
    qk_norm: bool = False
    anchor: int | str = 512
    start_ids: list[int] | None = None
    seed_token_id: int | None = None
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
        """The `transformers` family whose causal LM has the same block; ValueError if none has."""
        if self.qkv_bias and self.qk_norm:
            raise ValueError("no causal LM has both qkv_bias and qk_norm; set one of the two")
        return _LM_CONFIGS[self.qkv_bias, self.qk_norm]

    @property
    def keys_without_effect(self):
        """The keys of BLOCK_KEYS that the block of this family does not have."""
        return set(_OPTIONAL["llama"]) - set(_OPTIONAL.get(self.lm_config_class.model_type, ()))

    def lm_config(self):
        """The configuration of the causal LM with the same backbone."""
        names = [*_SHARED, *_OPTIONAL.get(self.lm_config_class.model_type, ()), *self.LM_KEYS]
        return self.lm_config_class(**{name: getattr(self, name) for name in names})

    @classmethod
    def from_backbone(cls, backbone, **overrides):
        """The configuration of a grid over the causal LM configuration `backbone`.

        Raises ValueError naming a key that is none of STREAM_KEYS, or a family, RoPE scaling or sliding window that the
        grid does not support.
        """
        check_keys(overrides, cls.STREAM_KEYS, "overrides of the backbone's configuration")
        family = backbone.model_type
        if family not in BACKBONES:
            raise ValueError(f"backbone family {family!r} is not supported; use one of {', '.join(BACKBONES)}")
        rope = backbone.rope_parameters["rope_type"]
        if rope not in ROPE_TYPES:
            raise ValueError(
                f"backbone {family!r}: RoPE scaling {rope!r} is not supported; {', '.join(ROPE_TYPES)} are"
            )
        names = [*_SHARED, *_OPTIONAL.get(family, ())]
        values = {name: getattr(backbone, name) for name in names if hasattr(backbone, name)}
        config = cls(**values, **BACKBONES[family], **overrides)
        check_window(backbone, config)
        return config


def check_window(backbone, config):
    """Raise ValueError if some layer's sliding window is too short for a source below the anchor and its output."""
    window, layers = getattr(backbone, "sliding_window", None), getattr(backbone, "layer_types", None)
    if window is None or (layers is not None and "sliding_attention" not in layers):
        return
    # By the default output limit a causal LM has to see a source, one and a half times as much output, and 20 tokens.
    needed = 5 * config.anchor // 2 + 20 if isinstance(config.anchor, int) else math.inf
    if window < needed:
        raise ValueError(
            f"backbone {backbone.model_type!r}: a sliding window of {window} tokens is shorter than the {needed} that "
            f"a source below the anchor {config.anchor} and its output may need; set a smaller anchor, or use a model "
            "with full attention"
        )
