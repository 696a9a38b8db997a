"""When to EMIT: small objects with `emits(stream)`, asked at each state while the source is open.

The frozen ones serve any number of streams. LocalAgreement remembers what it saw of a stream: one object a sentence.
"""

import math
from dataclasses import dataclass
from itertools import takewhile


def check_price(lam):
    """Raise ValueError unless `lam` is a price of latency (nats a cell)."""
    if not 0 < lam < math.inf:
        raise ValueError(f"lam = {lam}: the price of latency must be greater than 0 and finite, such as 0.03")


@dataclass(frozen=True)
class EmitHeadPolicy:
    """EMIT if the head's probability for the price of latency `lam` exceeds `theta`."""

    lam: float
    theta: float = 0.5

    def __post_init__(self):
        check_price(self.lam)
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


@dataclass(frozen=True)
class Confidence:
    """EMIT if the most probable next token is more probable than `tau`: max_v p(v | source read, output) > tau."""

    tau: float

    def __post_init__(self):
        if not 0 <= self.tau <= 1:
            raise ValueError(f"tau = {self.tau}: the confidence threshold is a probability; use a value from 0 to 1")

    def emits(self, stream):
        return stream.top_probability() > self.tau


class LocalAgreement:
    """EMIT the words that the hypotheses of two consecutive source words have in common (their longest common prefix).

    A hypothesis is what greedy decoding would write after the words written so far, from the source read so far. One
    is made after each source word, then dropped; a word that is written is decoded again, from the same state and so
    to the same pieces. All these model calls count. Keeps state: make a new object for each sentence.
    """

    def __init__(self):
        self._forget()

    def _forget(self):
        self.words_read = 0  # when the last hypothesis was made
        self.begin, self.words = 0, []  # output words before it, and its own
        self.agreed = 0  # output words that may be written

    def emits(self, stream):
        if stream.words_read < self.words_read:
            self._forget()  # the stream was taken back
        if stream.words_read > self.words_read:
            self._compare(stream)
        return stream.words_written < self.agreed

    def _compare(self, stream):
        """Make the hypothesis of the source read so far and count the words on which it agrees with the one before."""
        before = self.words[stream.words_written - self.begin :]
        self.words_read, self.begin, self.words = stream.words_read, stream.words_written, hypothesis(stream)
        pairs = zip(before, self.words, strict=False)
        self.agreed = self.begin + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def hypothesis(stream):
    """The words that greedy decoding would write from here to EOS or the output limit; the stream stays where it is."""
    snapshot, words = stream.snapshot(), []
    while stream.can_write and (word := stream.write()) is not None:
        words.append(word)
    stream.restore(snapshot)
    return words
