"""What every agent shares: options, checks before a model is loaded, the policy step, timing."""

import json
import logging
import time
from pathlib import Path

import torch
from simuleval.agents import TextToTextAgent
from simuleval.agents.actions import ReadAction, WriteAction

from duplex_model.checkpoint import check_checkpoint, load_checkpoint
from duplex_model.data import check_aligned
from duplex_model.engine import Engine, Limits

logger = logging.getLogger("agents")

LOG = "instances.log"  # SimulEval's name for its log, in the folder --output
PRICE = {"lam": (0.03, "price of latency, nats a cell (> 0)")}  # a knob


class StreamAgent(TextToTextAgent):
    """A SimulEval agent over one `Stream` a sentence; subclasses say which policy, made anew for each sentence.

    Every source word that SimulEval pushes is read; all words that the policy then emits go into one WriteAction.
    """

    policy_class = None  # takes the values of the knobs, in their order
    knobs = {}  # option of the policy -> (default, of the option's type; help)
    default_backbone = "duplex"

    def __init__(self, args, engine=None):
        _, limits = self.check(args)
        source, target = (getattr(args, name, None) for name in ("source", "target"))
        check_aligned(source, target)
        self.timing = Timing(args.timing_file, first_index(args), getattr(args, "continue_unfinished", False))
        if engine is None:
            self.check_model(args)
            engine = Engine(*load_checkpoint(args.checkpoint, self.backbone_of(args)), limits)
        self.engine = engine
        self._warn_of_unit(args)
        self.reject_long = args.reject_long
        super().__init__(args)

    def _warn_of_unit(self, args):
        written, unit = self.engine.tokenizer.target_unit, getattr(args, "eval_latency_unit", "word")
        if unit != written:
            logger.warning(
                f"the model writes {written}s, but latency is counted by {unit}: use --eval-latency-unit {written}"
            )

    @classmethod
    def check(cls, args):
        """(policy, Limits) of the options, before a model is loaded; ValueError if a value is out of range."""
        return cls.build_policy(args), Limits(args.max_len_a, args.max_len_b)

    @classmethod
    def check_model(cls, args):
        """Raise for a checkpoint that cannot be served, before its weights are loaded."""
        folder = check_checkpoint(args.checkpoint, cls.backbone_of(args))
        if json.loads((folder / "config.json").read_text(encoding="utf-8"))["anchor"] == "oracle":
            raise ValueError(
                f"{folder}: the model's anchor is the true source length ('oracle'), which a live system does not "
                "know; train with a fixed anchor"
            )

    @classmethod
    def backbone_of(cls, args):
        return getattr(args, "backbone", cls.default_backbone)

    @classmethod
    def build_policy(cls, args):
        """The policy of the options; ValueError if a value is out of range."""
        return cls.policy_class(*(getattr(args, name) for name in cls.knobs))

    def open_policy(self):
        """The policy of the sentence that comes next; it may keep state."""
        return self.build_policy(self.args)

    @classmethod
    def add_args(cls, parser):
        for name, (default, text) in cls.knobs.items():
            parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
        parser.add_argument("--checkpoint", help="model folder (default: the packaged German-English weights)")
        parser.add_argument(
            "--max-len-a", type=float, default=Limits.max_len_a, help="output limit: a * |x| + b tokens"
        )
        parser.add_argument(
            "--max-len-b", type=float, default=Limits.max_len_b, help="output limit: a * |x| + b tokens"
        )
        parser.add_argument(
            "--timing-file",
            help="write one JSON line a sentence: index, words_read and ms as each word is returned, calls "
            "([words read, words returned, ms of computing] of each policy call), first_token_ms, total_ms, steps "
            "(model calls), cut (the output reached its limit)",
        )
        parser.add_argument(
            "--reject-long", action="store_true", help="a source beyond the anchor is an error instead of being cut"
        )

    def reset(self):
        super().reset()
        self.stream, self.stream_policy = self.engine.open(), self.open_policy()
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
        self.timing.begin()
        if not stream.source_finished:
            self._read()
        words = list(stream.advance(self.stream_policy))
        self.timing.write(len(words), stream.words_read)
        if stream.target_finished:
            self.timing.close(stream.steps, cut=stream.over_limit)
        elif not words:
            return ReadAction()
        return WriteAction(self.engine.tokenizer.joiner.join(words), finished=stream.target_finished)

    def _read(self):
        words = self.states.source[self.stream.words_read :]
        self.stream.read(words, finished=self.states.source_finished)
        if self.stream.truncated:
            message = (
                f"line {self.timing.index + 1}: the source has more than {self.stream.state.anchor - 1} tokens, its "
                "start (BOS or a prompt) included, and was cut; split the sentence, or train with a larger anchor"
            )
            if self.reject_long:
                raise ValueError(message)
            logger.warning(message)


class BaselineAgent(StreamAgent):
    """An agent over either backbone: the stage-1 causal LM unless `--backbone` says otherwise."""

    default_backbone = "lm"

    @classmethod
    def add_args(cls, parser):
        super().add_args(parser)
        parser.add_argument(
            "--backbone",
            choices=("duplex", "lm"),
            default=cls.default_backbone,
            help="the checkpoint's causal LM, or its grid",
        )


class Timing:
    """Wall-clock times of a sentence, in ms from its first pushed word; one JSON line each at its end."""

    def __init__(self, path, index, continued):
        """continued: lines of sentences before `index` stay in the file; else it begins anew with the first line."""
        self.path, self.index, self.first = path and Path(path), index, index if continued else 0
        self.begun = False
        if self.path:
            open(self.path, "a").close()  # a missing folder is an error before a model is loaded
        self.open()

    def open(self):
        self.began, self.called, self.words, self.calls = None, None, [], []

    def start(self):
        if self.began is None:
            self.began = time.perf_counter()

    def begin(self):
        """A policy call begins."""
        self.called = time.perf_counter()

    @staticmethod
    def _since(moment):
        return round((time.perf_counter() - moment) * 1000, 3)

    def write(self, count, words_read):
        """The call is about to return `count` words, all of them now: one EMIT run is one WriteAction."""
        self.words += [(words_read, self._since(self.began))] * count
        self.calls.append((words_read, count, self._since(self.called)))

    def close(self, steps, cut):
        if self.path:
            record = {
                "index": self.index,
                "words_read": [read for read, _ in self.words],
                "ms": [ms for _, ms in self.words],
                "calls": self.calls,
                "first_token_ms": self.words[0][1] if self.words else None,
                "total_ms": self._since(self.began),
                "steps": steps,
                "cut": cut,
            }
            if not self.begun:
                self._begin()
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self.index += 1

    def _begin(self):
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.first else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["index"] < self.first]
        self.path.write_text("".join(kept), encoding="utf-8")
        self.begun = True


def first_index(args):
    """Index of the first sentence that SimulEval will send."""
    log = Path(args.output) / LOG if getattr(args, "output", None) else None
    if getattr(args, "continue_unfinished", False) and log and log.is_file():
        lines = log.read_text(encoding="utf-8").splitlines()
        if lines:
            return json.loads(lines[-1])["index"] + 1
    return getattr(args, "start_index", 0)
