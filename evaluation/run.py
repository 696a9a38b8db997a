"""Run SimulEval over the tasks of a sweep.

Every finished sentence is on disk at once, and a killed run resumes after it.
"""

import json
import os
import platform
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from simuleval.data.dataloader import TextToTextDataloader
from simuleval.evaluator import SentenceLevelEvaluator
from tqdm import tqdm

from duplex_model.checkpoint import checkpoint_files, checkpoint_folder, load_checkpoint
from duplex_model.engine import Engine
from evaluation.files import read_json, sha256, write_json
from evaluation.logs import (
    CIRCUMSTANCES,
    LOG,
    TIMING,
    claim,
    joined,
    keep_lines,
    merge,
    only_run,
    whole_lines,
)
from evaluation.measurement import checkpoint_sha256, versions
from evaluation.settings import Point, agent_options, simuleval_arguments
from evaluation.workers import run_all

TERMINAL_SECONDS, FILE_SECONDS = 0.5, 30  # between updates of the progress bar


@dataclass(frozen=True)
class Task:
    """Sentences `start` to `end` (exclusive) of one point, logged in `folder`; runs in any process."""

    point: Point
    source: str
    reference: str
    latency_unit: str
    threads: int
    jobs: int | None  # tasks at a time on this machine; None on a cluster
    folder: Path
    start: int
    end: int

    @property
    def done(self):
        """Sentences that are logged already."""
        return min(whole_lines(self.folder / name) for name in (LOG, TIMING))


class FlushingEvaluator(SentenceLevelEvaluator):
    """SimulEval's evaluator, but each sentence's log line is on disk when the sentence ends."""

    def __call__(self, system):
        with open(self.output / LOG, "a", encoding="utf-8") as log:
            for instance in self.iterator:
                system.reset()
                while not instance.finish_prediction:
                    instance.receive_prediction(system.pushpop(instance.send_source(self.source_segment_size)))
                print(json.dumps(instance.summarize()), file=log, flush=True)
                os.fsync(log.fileno())


def shards_of(point, folder, sentences, shards, common):
    """The tasks of a point over its first `sentences`: one in `folder`, or `shards` in its subfolders."""
    if shards == 1:
        return [Task(point, folder=folder, start=0, end=sentences, **common)]
    bounds = [sentences * i // shards for i in range(shards + 1)]
    return [
        Task(point, folder=folder / f"sentences-{start}-{end}", start=start, end=end, **common)
        for start, end in zip(bounds, bounds[1:], strict=False)
        if start < end
    ]


def identity(task):
    """What a task's log depends on, but for its range and the code; a folder holds the log of one identity only."""
    point = task.point
    options = {**agent_options(point), **point.agent_options}
    backbone = options.get("backbone", point.agent_class().default_backbone)
    return {
        "agent": point.system.agent,
        "options": options,
        "latency_unit": task.latency_unit,
        "source_sha256": sha256(task.source),
        "reference_sha256": sha256(task.reference),
        "checkpoint_sha256": checkpoint_sha256(options["checkpoint"], backbone),
    }


def run_task(task):
    """Evaluate the task's sentences; what an earlier run finished is kept.

    Raises ValueError if the folder holds another point or test set, or if another run is writing into it.
    """
    task.folder.mkdir(parents=True, exist_ok=True)
    with only_run(task.folder):
        claim(task.folder, identity(task))
        done = task.done
        for name in (LOG, TIMING):
            keep_lines(task.folder / name, done)
        how = task.folder / CIRCUMSTANCES
        if done and not how.is_file():
            raise ValueError(f"{task.folder} is of an earlier version; use --fresh (make: FRESH=1) to start over")
        if done >= task.end - task.start:
            return
        at_a_time = f", {task.jobs} at a time" if task.jobs else ""
        device = f"cpu, {task.threads} thread(s) a point{at_a_time}, {platform.machine()}"
        now = {"versions": versions(), "device": device}
        write_json(joined(read_json(how), now) if done else now, how)
        torch.set_num_threads(task.threads)
        args = simuleval_arguments(
            task.point, task.source, task.reference, task.folder, task.latency_unit, task.start + done
        )
        args.end_index = task.end
        agent = task.point.agent_class()
        dataloader = TextToTextDataloader.from_files(task.source, task.reference)
        evaluator = FlushingEvaluator(dataloader, {}, {}, args)
        evaluator(agent(args, engine=engine_for(agent, args)))


def engine_for(agent, args):
    """The engine of the agent's options; points that share a checkpoint share its model."""
    _, limits = agent.check(args)
    folder = checkpoint_folder(args.checkpoint, agent.backbone_of(args))
    return Engine(
        *_load(folder, agent.backbone_of(args), max(path.stat().st_mtime_ns for path in checkpoint_files(folder))),
        limits,
    )


@lru_cache(maxsize=2)
def _load(folder, backbone, changed):
    return load_checkpoint(folder, backbone)


def sweep(points, folders, sentences, shards, common, **how):
    """Run all points over the first `sentences` lines, each logged in its folder, in `shards` tasks a point.

    common: the fields that all tasks share; how: options of `run_tasks`.
    """
    split = []
    for point, folder in zip(points, folders, strict=True):
        (whole,) = shards_of(point, folder, sentences, 1, common)
        folder.mkdir(parents=True, exist_ok=True)
        claim(folder, identity(whole))
        split.append([whole] if whole.done >= sentences else shards_of(point, folder, sentences, shards, common))
    run_tasks([task for tasks in split for task in tasks], **how)
    for folder, tasks in zip(folders, split, strict=True):
        merge(folder, tasks)


def run_tasks(tasks, pool=None, cluster=None, cluster_options=None, scratch=None):
    """Run all tasks in the processes of `pool`, in this one if there is none, or as an array job of `submitit`'s
    `cluster` ("slurm"; "local" to try it, all at once), with `cluster_options` and its files in the folder `scratch`.
    """
    with progress(tasks):
        if cluster and tasks:
            _submit(tasks, cluster, cluster_options or {}, scratch)
        else:
            run_all(run_task, tasks, pool)


def _submit(tasks, cluster, options, scratch):
    try:
        import submitit
    except ImportError as error:
        raise ValueError("--cluster needs submitit: pip install -e '.[cluster]'") from error
    executor = submitit.AutoExecutor(folder=scratch, cluster=cluster)
    defaults = {"name": "simulmt-sweep", "cpus_per_task": tasks[0].threads, "timeout_min": 24 * 60}
    executor.update_parameters(**{**defaults, **options})
    submitted = executor.map_array(run_task, tasks)
    try:
        for job in submitted:
            job.result()
    except BaseException:
        for job in submitted:
            job.cancel()
        raise


@contextmanager
def progress(tasks):
    """A progress bar over all sentences of all tasks, counted in their timing files, wherever they run. Redirected to a
    file it is written more seldom."""
    counts, finished = [LineCount(task.folder / TIMING) for task in tasks], threading.Event()
    bar = tqdm(total=sum(task.end - task.start for task in tasks), unit="sentence", smoothing=0.1)
    bar.update(sum(count() for count in counts))
    bar.initial = bar.n  # what was there before tells nothing of the time left

    def show():
        done = [count() for count in counts]
        full = sum(n >= task.end - task.start for n, task in zip(done, tasks, strict=True))
        bar.set_description(f"{full} of {len(tasks)} done", refresh=False)
        bar.update(sum(done) - bar.n)

    seconds = TERMINAL_SECONDS if sys.stderr.isatty() else FILE_SECONDS

    def watch():
        while not finished.wait(seconds):
            show()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        show()
        bar.close()


class LineCount:
    """Counts the lines of a growing file; each call reads only what is new."""

    def __init__(self, path):
        self.path, self.place, self.lines = path, 0, 0

    def __call__(self):
        if self.path.is_file():
            with open(self.path, "rb") as file:
                file.seek(self.place)
                new = file.read()
            self.place += len(new)
            self.lines += new.count(b"\n")
        return self.lines
