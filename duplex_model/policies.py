"""When to EMIT: small objects with `emits(stream)`, asked at each state while the source is open."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EmitHeadPolicy:
    """EMIT if the head's probability for the price of latency `lam` exceeds `theta`."""

    lam: float
    theta: float = 0.5

    def __post_init__(self):
        if not self.lam > 0:
            raise ValueError(f"lam = {self.lam}: the price of latency must be greater than 0")
        if not 0 <= self.theta <= 1:
            raise ValueError(f"theta = {self.theta}: the EMIT threshold is a probability, between 0 and 1")

    def emits(self, stream):
        return stream.emit_probability(self.lam) > self.theta


@dataclass(frozen=True)
class WaitK:
    """Read k words, then write one word for each word read."""

    k: int

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"k = {self.k}: wait-k needs at least one word")

    def emits(self, stream):
        return stream.words_read >= self.k + stream.words_written


@dataclass(frozen=True)
class Offline:
    """Read everything first."""

    def emits(self, stream):
        return False
