"""What every agent shares: options, checks before a model is loaded, the policy step, timing."""

import json
import logging
import time
from pathlib import Path

import torch
from simuleval.agents import TextToTextAgent
from simuleval.agents.actions import ReadAction, WriteAction

from duplex_model.checkpoint import load_checkpoint
from duplex_model.data import read_lines
from duplex_model.engine import Engine, Limits

logger = logging.getLogger("agents")


class StreamAgent(TextToTextAgent):
    """A SimulEval agent over one `Stream` a sentence; subclasses say which policy.

    Every source word that SimulEval pushes is read; all words that the policy then emits go into one WriteAction.
    """

    default_backbone = "duplex"

    def __init__(self, args, engine=None):
        policy = self.build_policy(args)  # before the model: a wrong value is an error at once
        limits = Limits(args.max_len_a, args.max_len_b)
        check_files(args.source, args.target)
        if engine is None:
            engine = Engine(*load_checkpoint(args.checkpoint, getattr(args, "backbone", self.default_backbone)), limits)
        self.engine, self.stream_policy = engine, policy
        self.timing = Timing(args.timing_file, getattr(args, "start_index", 0) or 0)
        self.reject_long = args.reject_long
        super().__init__(args)

    @staticmethod
    def build_policy(args):
        """The policy of the options; ValueError if a value is out of range."""
        raise NotImplementedError

    @staticmethod
    def add_args(parser):
        parser.add_argument("--checkpoint", help="model folder (default: the packaged German-English weights)")
        parser.add_argument(
            "--max-len-a", type=float, default=Limits.max_len_a, help="output limit: a * |x| + b tokens"
        )
        parser.add_argument(
            "--max-len-b", type=float, default=Limits.max_len_b, help="output limit: a * |x| + b tokens"
        )
        parser.add_argument(
            "--timing-file",
            help="append one JSON line a sentence: index, words_read and ms at each written word, first_token_ms, "
            "total_ms, steps (model calls)",
        )
        parser.add_argument(
            "--reject-long", action="store_true", help="a source beyond the anchor is an error instead of being cut"
        )

    @classmethod
    def from_args(cls, args):
        return cls(args)

    def reset(self):
        super().reset()
        self.stream = self.engine.open()
        self.timing.open()

    def to(self, device, *args, fp16=False, **kwargs):
        self.device = device
        self.engine = self.engine.to(device, torch.float16 if fp16 else None)
        self.reset()

    def push(self, *args, **kwargs):
        self.timing.start()
        super().push(*args, **kwargs)

    def policy(self):
        stream = self.stream
        if not stream.source_finished:
            self._read()
        words = []
        for word in stream.advance(self.stream_policy):
            self.timing.word(stream.words_read)
            words.append(word)
        if stream.target_finished:
            self.timing.close(stream.steps)
        elif not words:
            return ReadAction()
        return WriteAction(self.engine.tokenizer.joiner.join(words), finished=stream.target_finished)

    def _read(self):
        words = self.states.source[self.stream.words_read :]
        self.stream.read(words, finished=self.states.source_finished)
        if self.stream.truncated:
            message = (
                f"line {self.timing.index + 1}: the source has more than {self.stream.state.anchor - 1} tokens and was "
                "cut; split the sentence, or train with a larger anchor"
            )
            if self.reject_long:
                raise ValueError(message)
            logger.warning(message)


class Timing:
    """Wall-clock times of a sentence, in ms from its first pushed word; one JSON line each at its end."""

    def __init__(self, path, index):
        self.path, self.index = path and Path(path), index
        self.open()

    def open(self):
        self.began, self.words = None, []

    def start(self):
        if self.began is None:
            self.began = time.perf_counter()

    def _elapsed(self):
        return round((time.perf_counter() - self.began) * 1000, 3)

    def word(self, words_read):
        self.words.append((words_read, self._elapsed()))

    def close(self, steps):
        if self.path:
            record = {
                "index": self.index,
                "words_read": [read for read, _ in self.words],
                "ms": [ms for _, ms in self.words],
                "first_token_ms": self.words[0][1] if self.words else None,
                "total_ms": self._elapsed(),
                "steps": steps,
            }
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self.index += 1


def check_files(source, target):
    """Raise FileNotFoundError for a missing file, ValueError if source and reference differ in their line counts."""
    counts = [len(read_lines(path)) for path in (source, target) if path]
    if len(set(counts)) > 1:
        raise ValueError(
            f"{source} has {counts[0]} lines but {target} has {counts[1]}; source and reference must be aligned"
        )
