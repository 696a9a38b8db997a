"""The keys of a training YAML file, with their units and defaults."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DataSettings:
    """The parallel text, and how it is counted."""

    train: tuple[str, ...]  # file prefixes below the data directory, without the language
    dev: str
    source: str = "de"  # language codes: the files' endings
    target: str = "en"
    source_unit: str = "word"  # latency unit: word or char
    target_unit: str = "word"
    max_tokens: int = 64  # pieces a side; longer pairs are left out
    dev_sentences: int = 300  # dev pairs that validation uses


VALID = {
    "greater than 0": lambda value: value > 0,
    "of at least 0": lambda value: value >= 0,
    "from 0 to 1": lambda value: 0 <= value <= 1,
    "of at least 0 and less than 1": lambda value: 0 <= value < 1,
}


def check_values(settings, wanted, *keys):
    """Raise ValueError naming the first of the keys whose value is not as `wanted`, a key of VALID."""
    for key in keys:
        value = getattr(settings, key)
        if not VALID[wanted](value):
            raise ValueError(f"{key} = {value}: use a value {wanted}")


@dataclass(frozen=True)
class StageSettings:
    """What both stages have: size and number of steps, schedule, regularisation, validation."""

    steps: int
    budget: int  # padded tokens (stage lm) or cells (stage duplex) a batch and process
    lr: float
    warmup: int = 200  # steps of linear rise
    decay: float = 0.4  # last part of the steps in which lr falls linearly to 2% of its peak
    weight_decay: float = 0.01
    clip: float = 1.0  # gradient norm
    dropout: float = 0.0  # of the embeddings and of what each attention and MLP adds
    label_smoothing: float = 0.0  # of the next-token losses
    ema: float = 0.0  # decay a step of the averaged weights that are validated and kept; 0: the weights themselves
    validate_every: int = 500  # steps
    log_every: int = 20  # steps
    checkpoint_minutes: float = 5.0

    def __post_init__(self):
        check_values(self, "greater than 0", "steps", "budget", "lr", "clip", "validate_every", "log_every")
        check_values(self, "of at least 0", "warmup", "weight_decay")
        check_values(self, "from 0 to 1", "decay")
        check_values(self, "of at least 0 and less than 1", "dropout", "label_smoothing", "ema")


@dataclass(frozen=True)
class LmSettings(StageSettings):
    """Stage `lm`: the causal LM under wait-k masks."""

    source_weight: float = 0.3  # weight of the source-token loss

    def __post_init__(self):
        super().__post_init__()
        check_values(self, "of at least 0", "source_weight")


@dataclass(frozen=True)
class DuplexSettings(StageSettings):
    """Stage `duplex`: the grid with L_LM + emit_weight * L_emit."""

    lam_min: float = 0.003  # lam is drawn log-uniformly from [lam_min, lam_max], nats per cell
    lam_max: float = 0.15
    lam_draws: int = 2  # values of lam a batch
    lam_lm: float = 0.02  # lam of the path whose mask L_LM uses
    emit_weight: float = 1.0
    distill: float = 0.0  # share of the last row's distribution in the labels of the rows above
    from_scratch: bool = False  # ignore the stage-1 weights

    def __post_init__(self):
        super().__post_init__()
        check_values(self, "of at least 0", "emit_weight")
        check_values(self, "from 0 to 1", "distill")
        if self.lam_draws < 1:
            raise ValueError(f"lam_draws = {self.lam_draws}: without a drawn lam the EMIT head learns nothing")
        if not 0 < self.lam_min <= self.lam_max or not self.lam_lm > 0:
            raise ValueError(
                f"lam_min = {self.lam_min}, lam_max = {self.lam_max}, lam_lm = {self.lam_lm}: prices of latency must "
                "be greater than 0, and lam_min at most lam_max"
            )


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters on all linear layers of a backbone."""

    r: int = 64  # rank
    alpha: float = 128.0  # the adapters' output is scaled by alpha / r
    dropout: float = 0.0  # of the adapters' input

    def __post_init__(self):
        check_values(self, "greater than 0", "r", "alpha")
        check_values(self, "of at least 0 and less than 1", "dropout")


@dataclass(frozen=True)
class TrainSettings:
    """A recipe: text, model and stages."""

    name: str
    data: DataSettings
    duplex: DuplexSettings
    lm: LmSettings | None = None  # none: the grid begins from the backbone, or from scratch
    vocab_size: int = 6000  # of the SentencePiece model, which is trained where there is no backbone
    model: dict[str, Any] = field(
        default_factory=dict
    )  # keys of DuplexConfig; beyond the backbone's own, if there is one
    backbone: str | None = None  # a pretrained LLM: a name of the hub or a folder, or either's FILE.gguf
    backbone_dtype: str = "float32"  # of its weights; bfloat16 needs `lora` and the precision bf16
    prompt: str | None = None  # instruction to the backbone, before the source text
    chat_template: bool = False  # the prompt goes through the backbone's chat template
    lora: LoraSettings | None = None  # none: all weights are trained
    gradient_checkpointing: bool = False  # recompute each layer in the backward pass: less memory, a third more time
    seed: int = 1
    precision: str = "no"  # or bf16: mixed precision
    threads: int = 0  # CPU threads; 0 leaves torch's choice

    def __post_init__(self):
        if self.precision not in ("no", "bf16"):
            raise ValueError(f"precision = {self.precision!r}: use no (in quotes) or bf16")
        if self.backbone is None:
            for key in ("lora", "prompt", "chat_template"):
                if getattr(self, key):
                    raise ValueError(f"`{key}` is for a pretrained model; set `backbone` as well")
            if self.lm is None and not self.duplex.from_scratch:
                raise ValueError("without `lm` there is nothing to begin from; set `lm`, `backbone` or from_scratch")
        elif self.duplex.from_scratch:
            raise ValueError("duplex.from_scratch would leave the backbone out; drop one of the two")
        if self.backbone_dtype not in ("float32", "bfloat16"):
            raise ValueError(f"backbone_dtype = {self.backbone_dtype!r}: use float32 or bfloat16")
        if self.backbone_dtype == "bfloat16" and (self.lora is None or self.precision != "bf16"):
            raise ValueError("backbone_dtype bfloat16 is for frozen weights: set `lora`, and precision: bf16")
