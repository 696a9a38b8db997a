"""The keys of a test configuration (`eval_configs/*.yaml`), and the points that it spans."""

import importlib
import itertools
import logging
from argparse import ArgumentParser
from dataclasses import dataclass, field
from typing import Any

from sacrebleu.metrics import BLEU
from simuleval import options as simuleval_options

from agents.base import StreamAgent
from duplex_model.settings import check_keys
from evaluation.logs import TIMING
from evaluation.metrics import LATENCIES
from evaluation.tables import METRICS
from evaluation.testsets import language_defaults

logger = logging.getLogger("evaluation")

COMET_MODEL = "Unbabel/wmt22-comet-da"


@dataclass(frozen=True)
class SystemSettings:
    """One curve or point of the picture."""

    name: str  # as it stands in table and picture
    agent: str  # module.Class of an agents.base.StreamAgent
    options: dict[str, Any] = field(default_factory=dict)  # agent options, with underscores
    sweep: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # option -> its values; all combinations are run


@dataclass(frozen=True)
class CompareSettings:
    """Two systems compared at equal latency, along straight lines between their points."""

    system: str
    baseline: str
    join: tuple[str, ...] = ()  # systems whose points lie on the same line as those of `system`
    metric: str = "AL"  # of latency: AL, LAAL, DAL, AP or first_token_words (YAAL is not there for every sentence)
    at: tuple[float, ...] = ()  # latencies (words; of AP shares) at which the gain is tested

    def __post_init__(self):
        valid = [name for name in LATENCIES if name != "YAAL"]
        if self.metric not in valid:
            raise ValueError(f"metric {self.metric!r} cannot be compared at; use one of {', '.join(valid)}")


@dataclass(frozen=True)
class TestSettings:
    """Either `source` and `reference`, files looked up beside the YAML file, then below the data directory, or
    `testset` and `languages`. Latency unit and tokenizer follow from the target language unless they are given."""

    __test__ = False  # not a pytest class

    name: str  # of the folder below results/
    systems: tuple[SystemSettings, ...]
    source: str | None = None
    reference: str | None = None
    testset: str | None = None  # a name of sacreBLEU's, such as iwslt17
    languages: str | None = None  # such as de-en
    latency_unit: str | None = None  # of the output: word or char
    tokenize: str | None = None  # sacreBLEU tokenizer
    examples: tuple[int, ...] = ()  # lines (from 1) shown as they unfold
    example_system: str = "duplex"  # whose middle point shows them
    compare: tuple[CompareSettings, ...] = ()
    metrics: tuple[str, ...] = tuple(name for name in METRICS if name != "COMET")  # that the tables show; JSON has all
    comet_model: str = COMET_MODEL  # scored if `metrics` has COMET, in the environment of `make comet`
    threads: int = 1  # CPU threads; one is fastest for small models
    words_per_second: float = 2.5  # speaking rate of the computation-aware latency
    cluster: dict[str, Any] = field(default_factory=dict)  # options of submitit's executor, such as timeout_min

    def __post_init__(self):
        files = self.source and self.reference
        if not (files or self.testset and self.languages) or self.testset and (self.source or self.reference):
            raise ValueError("give either source and reference, or testset and languages")
        unit, tokenizer, notice = language_defaults(self.languages)
        if notice and self.tokenize is None:
            logger.warning(notice)
        object.__setattr__(self, "latency_unit", self.latency_unit or unit)
        object.__setattr__(self, "tokenize", self.tokenize or tokenizer)
        for key, valid in (("latency_unit", ("word", "char")), ("tokenize", tuple(BLEU.TOKENIZERS))):
            if getattr(self, key) not in valid:
                raise ValueError(f"{key} {getattr(self, key)!r} is not known; use one of {', '.join(valid)}")
        for name in self.metrics:
            if name not in METRICS:
                raise ValueError(f"metrics: {name!r} is not known; use some of {', '.join(METRICS)}")
        if self.threads < 1:
            raise ValueError(f"threads = {self.threads}: use at least one")
        if not self.words_per_second > 0:
            raise ValueError(f"words_per_second = {self.words_per_second}: a rate is greater than 0")
        names = [system.name for system in self.systems]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"systems: the name {name!r} is given twice")
        for name in (name for pair in self.compare for name in (pair.system, pair.baseline, *pair.join)):
            if name not in names:
                raise ValueError(f"compare: {name!r} is no system; use one of {', '.join(names)}")


@dataclass(frozen=True)
class Point:
    """One system at one setting of its swept options."""

    system: SystemSettings
    values: dict[str, Any]

    @property
    def label(self):
        """Name and swept values, as one line of text."""
        values = ",".join(f"{key}={value}" for key, value in self.values.items())
        return f"{self.system.name} {values}".strip()

    @property
    def folder_name(self):
        """The label as a file name."""
        return self.label.replace(" ", "_").replace("/", "_")

    @property
    def agent_options(self):
        """Fixed and swept options together."""
        return {**self.system.options, **self.values}

    def agent_class(self):
        """The agent's class; ValueError if it cannot be imported or is none."""
        module, _, name = self.system.agent.rpartition(".")
        where = f"system {self.system.name!r}: agent {self.system.agent!r}"
        try:
            agent = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{where} cannot be imported") from error
        if not (isinstance(agent, type) and issubclass(agent, StreamAgent) and agent.policy_class):
            raise ValueError(f"{where} is no StreamAgent with a policy, as agents.waitk_agent.WaitKAgent is")
        return agent


def points_of(settings):
    """All points, in the order of the file. Raises ValueError if there is none, or a name is used twice."""
    points = []
    for system in settings.systems:
        for name, values in system.sweep.items():
            if not values:
                raise ValueError(f"system {system.name!r}: sweep: {name} has no value")
        combinations = itertools.product(*system.sweep.values())
        points += [Point(system, dict(zip(system.sweep, values, strict=True))) for values in combinations]
    if not points:
        raise ValueError("systems: none is given, so there is nothing to run")
    folders = [point.folder_name for point in points]
    for point in points:
        if folders.count(point.folder_name) > 1:
            raise ValueError(f"the point {point.label!r} occurs twice; give the systems different names")
    return points


class PointParser(ArgumentParser):
    """An argument parser whose errors are ValueErrors that name the point."""

    def __init__(self, point):
        super().__init__(add_help=False, conflict_handler="resolve", allow_abbrev=False)
        self.point = point

    def error(self, message):
        raise ValueError(f"system {self.point.system.name!r}, point {self.point.label!r}: {message}")


def agent_options(point):
    """{option: its default} of the point's agent, for those that a configuration may set, with underscores."""
    parser = PointParser(point)
    point.agent_class().add_args(parser)
    return {name: default for name, default in vars(parser.parse_args([])).items() if name != "timing_file"}


def simuleval_arguments(point, source, reference, folder, latency_unit, start_index=0):
    """The namespace that the `simuleval` command line would give the point's agent and evaluator.

    Raises ValueError naming the point for an option that is not the agent's or a value of the wrong type.
    """
    defaults = agent_options(point)
    check_keys(point.agent_options, list(defaults), f"system {point.system.name!r}, point {point.label!r}")
    parser = PointParser(point)
    simuleval_options.general_parser(parser=parser)
    simuleval_options.add_evaluator_args(parser)
    parser.add_argument("--source")
    parser.add_argument("--target")
    point.agent_class().add_args(parser)
    arguments = [
        *("--source", str(source), "--target", str(reference), "--output", str(folder)),
        *("--eval-latency-unit", latency_unit, "--start-index", str(start_index), "--no-progress-bar"),
        *("--timing-file", str(folder / TIMING), "--no-scoring", "--continue-unfinished"),
    ]
    for key, value in point.agent_options.items():
        option = "--" + key.replace("_", "-")
        if value is None:
            parser.error(f"{key} is given without a value")
        if isinstance(value, bool) != isinstance(defaults[key], bool):
            parser.error(f"{key} = {value!r}: only a switch is true or false")
        if value is True:
            arguments.append(option)
        elif value is not False:
            arguments.append(f"{option}={value}")
    args = parser.parse_args(arguments)
    args.source_type = args.target_type = "text"
    return args
