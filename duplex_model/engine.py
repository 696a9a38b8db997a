"""Streams: sentences translated word by word over one model."""

import math
from dataclasses import dataclass, replace

import torch

from duplex_model.backbone import check_sizes
from duplex_model.data import source_text
from duplex_model.model import DuplexModel, cast_weights
from duplex_model.states import GridState, LmState

BOM = "\ufeff"
MAX_WORD = 64  # pieces; a word that never ends is cut there


@dataclass(frozen=True)
class Limits:
    """Output is cut at `max_len_a` * |x| + `max_len_b` tokens, |x| = source tokens visible (a prompt counts as one)."""

    max_len_a: float = 1.5
    max_len_b: float = 20

    def __post_init__(self):
        if not (0 <= self.max_len_a < math.inf and 1 <= self.max_len_b < math.inf):
            raise ValueError(f"max_len_a = {self.max_len_a}, max_len_b = {self.max_len_b}: use a >= 0 and b >= 1")


class Engine:
    """A model with its tokenizer, ready to open any number of streams.

    model: DuplexModel or a `transformers` causal LM whose config has an `anchor`. Raises ValueError for a tokenizer
    that does not fit the model, or a source start that leaves no room below the anchor.
    """

    def __init__(self, model, tokenizer, limits=None):
        self.model, self.tokenizer, self.limits = model.eval(), tokenizer, limits or Limits()
        size, anchor = model.config.vocab_size, model.config.anchor
        check_sizes(tokenizer, model.config)
        if anchor != "oracle" and len(tokenizer.start_ids) > anchor - 2:
            raise ValueError(
                f"the source start of {len(tokenizer.start_ids)} tokens leaves no room below the anchor {anchor}; use "
                "a shorter prompt, or train with a larger anchor"
            )
        self.inner_ban = torch.zeros(size, device=model.device)  # added to the logits inside a word
        self.inner_ban[[*tokenizer.special_ids, *range(tokenizer.vocab_size, size)]] = -math.inf
        self.first_ban = self.inner_ban.clone()  # ... and at a word's start, where EOS may come
        self.first_ban[tokenizer.eos_id] = 0.0
        self.word_enders = frozenset()  # tokens that end the word before them
        if tokenizer.opening_ids is not None and tokenizer.target_unit == "word":
            self.word_enders = tokenizer.opening_ids | {tokenizer.eos_id}
            self.inner_ban = self.first_ban
            self.first_ban = torch.full_like(self.first_ban, -math.inf)  # a written word's continuations are masked
            self.first_ban[list(self.word_enders)] = 0.0
        self._start = None

    def to(self, device, dtype=None):
        """An engine over the same model on `device`, its weights in `dtype` if given."""
        model = self.model.to(device)
        return Engine(cast_weights(model, dtype) if dtype else model, self.tokenizer, self.limits)

    def open(self, source_length=None):
        """A new Stream. source_length: tokens with BOS and EOS; only a model with the oracle anchor needs
        it, and ValueError is raised without it."""
        if self.model.config.anchor == "oracle":
            if source_length is None:
                raise ValueError("this model's anchor is the true source length, which a live system does not know")
            return Stream(self, self._state(source_length))
        if self._start is None:
            self._start = replace(self._state(None), steps=0)  # shared by all sentences, computed once
        return Stream(self, self._start)

    @torch.inference_mode()
    def _state(self, anchor):
        state_class = GridState if isinstance(self.model, DuplexModel) else LmState
        return state_class.start(self.model, self.tokenizer.start_ids, self.tokenizer.seed_id, anchor)


class Stream:
    """One sentence: `read(words)`, `finish()`, `write()` in any order that the task allows.

    words_read, words_written: counts. source_finished: EOS is read. target_finished: EOS is written, or the limit is
    reached with the whole source read. truncated: the source was cut at anchor - 1 tokens and closed.
    """

    def __init__(self, engine, state):
        self.engine, self.state = engine, state
        self.words_read = self.words_written = 0
        self.source_finished = self.target_finished = self.truncated = False
        self.undone_steps = 0  # model calls that a `restore` took back

    def snapshot(self):
        """Everything that changes, to be given to `restore`; shares all tensors."""
        return dict(self.__dict__)

    def restore(self, snapshot):
        """Go back to a `snapshot` of this stream. Model calls made since then stay counted in `steps`."""
        steps = self.steps
        self.__dict__.update(snapshot)
        self.undone_steps = steps - self.state.steps

    @property
    def steps(self):
        """Model calls for this sentence so far, those for words that were not kept included."""
        return self.state.steps + self.undone_steps

    @property
    def x_vis(self):
        """Source tokens read, the source start and EOS included."""
        return len(self.state.source_ids)

    @property
    def text_rows(self):
        """Source tokens read after the source start s_0..s_p."""
        return self.x_vis - len(self.engine.tokenizer.start_ids)

    @property
    def y_gen(self):
        """Output tokens written, the seed included."""
        return len(self.state.target_ids)

    @property
    def over_limit(self):
        """Whether the output has reached the length that the source read so far allows."""
        limits = self.engine.limits
        return self.y_gen - 1 >= limits.max_len_a * (self.text_rows + 1) + limits.max_len_b

    @torch.inference_mode()
    def read(self, words, finished=False):
        """Expose source words (a string, split at whitespace, or a list); `finished` also exposes EOS, in one block.

        A source that would not fit below the anchor is cut at anchor - 1 tokens and closed (`truncated`). Raises
        ValueError if the source is closed already.
        """
        if self.source_finished and not self.truncated:
            raise ValueError("the source is finished; open a new stream for the next sentence")
        words = words.split() if isinstance(words, str) else list(words)
        if words and self.words_read == 0:
            words[0] = words[0].removeprefix(BOM)
        if not self.truncated:
            self._read(words, finished)
        self.words_read += len(words)

    def _read(self, words, finished):
        """Expose the words' pieces, and EOS; whatever fails leaves the stream as it was."""
        tokenizer = self.engine.tokenizer
        ids = [piece for word in words if word for piece in tokenizer.encode_word(source_text(word))]
        room = max(self.state.anchor - 1 - self.x_vis, 0)
        truncated = len(ids) > room
        if truncated:
            ids, finished = ids[:room], True
        empty = finished and not ids and not self.text_rows
        if finished and not empty:
            ids.append(tokenizer.eos_id)
        if ids:
            self.state = self.state.read(ids)
        self.truncated, self.source_finished = truncated, finished
        self.target_finished = empty  # an empty line has an empty translation

    def finish(self):
        """Close the source: from now on only EMIT is left."""
        if not self.source_finished:
            self.read([], finished=True)

    @property
    def can_write(self):
        """Whether the next word may be asked for: something is read, nothing forbids going on."""
        return not self.target_finished and self.text_rows > 0 and not (self.over_limit and not self.source_finished)

    @torch.inference_mode()
    def next_logits(self):
        """Logits [V] of the next token at a word's start, -inf for tokens that may not come."""
        self.state, logits = self.state.logits()
        return logits + self.engine.first_ban

    def predicts_end(self):
        """Whether EOS is the most probable next token."""
        return self.next_logits().argmax().item() == self.engine.tokenizer.eos_id

    def top_probability(self):
        """The probability of the most probable next token, among those that may come."""
        return self.next_logits().softmax(-1).max().item()

    @torch.inference_mode()
    def emit_probability(self, lam):
        """sigmoid of the EMIT logit at the current cell, for the price `lam` (nats a cell)."""
        return torch.tensor(self.state.emit_logit(lam)).sigmoid().item()

    @torch.inference_mode()
    def write(self):
        """Write one word greedily, to its end: its text ("" if it has none), or None if the model would end instead.

        Ending counts only once the source is finished, and so does the length limit inside a word. Raises ValueError if
        `can_write` is False.
        """
        if not self.can_write:
            raise ValueError("nothing can be written here: read a word first, or the sentence is finished")
        if self.over_limit or self.predicts_end():
            self.target_finished = self.source_finished
            return None
        tokenizer, pieces = self.engine.tokenizer, []
        while not pieces or not tokenizer.word_complete(pieces, tokenizer.target_unit):
            if pieces and (self.source_finished and self.over_limit or len(pieces) == MAX_WORD):
                break
            self.state, logits = self.state.logits()
            token = (logits + (self.engine.inner_ban if pieces else self.engine.first_ban)).argmax().item()
            if pieces and token in self.engine.word_enders:
                break
            pieces.append(token)
            self.state = self.state.write(token)
        self.words_written += 1
        return "".join(tokenizer.decode(pieces).split())  # byte pieces can spell a blank, which no word has

    def advance(self, policy):
        """Write until `policy` waits or the sentence ends; yields each word as it is written, but no empty one.

        A model that would end the sentence while the source is open waits, whatever the policy says.
        """
        while self.can_write and (self.source_finished or policy.emits(self)):
            word = self.write()
            if word is None:
                return
            if word:
                yield word

    def feed(self, source):
        """Read the string `source` word by word, EOS with the last one; yields each word once it is read."""
        words = source.split()
        for position, word in enumerate(words, 1):
            self.read(word, finished=position == len(words))
            yield word


def translate(engine, source, policy):
    """(words, delays) of one sentence, a string fed word by word to a new stream; delays in words read."""
    stream, words, delays = engine.open(), [], []
    for _ in stream.feed(source):
        for word in stream.advance(policy):
            words.append(word)
            delays.append(stream.words_read)
    return words, delays
