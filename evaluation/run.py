"""Run SimulEval for one point: every finished sentence is on disk at once, and a killed run resumes after it."""

import hashlib
import json
import os
from pathlib import Path

from simuleval.data.dataloader import TextToTextDataloader
from simuleval.evaluator import SentenceLevelEvaluator
from tqdm import tqdm

from duplex_model.checkpoint import FILES, checkpoint_folder
from evaluation.settings import simuleval_arguments

LOG, TIMING, IDENTITY = "instances.log", "timing.jsonl", "point.json"


class FlushingEvaluator(SentenceLevelEvaluator):
    """SimulEval's evaluator with its own loop, but each sentence's log line is written and flushed when it ends."""

    def __call__(self, system):
        system.reset()
        with open(self.output / LOG, "a", encoding="utf-8") as log:
            for instance in self.iterator:
                while not self.is_finished(instance):
                    segment = system.pushpop(instance.send_source(self.source_segment_size))
                    instance.receive_prediction(segment)
                    if instance.finish_prediction:
                        system.reset()
                log.write(json.dumps(instance.summarize()) + "\n")
                log.flush()
                os.fsync(log.fileno())


def run_point(point, source, reference, folder, latency_unit, limit=None):
    """Evaluate the point in `folder` up to `limit` sentences; what an earlier run finished is kept.

    Raises ValueError if the folder holds another point or test set.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    claim(folder, identity(point, source, reference, latency_unit))
    done = min(keep_whole_lines(folder / name) for name in (LOG, TIMING))
    for name in (LOG, TIMING):
        keep_whole_lines(folder / name, done)
    dataloader = TextToTextDataloader.from_files(source, reference)
    end = len(dataloader) if limit is None else min(limit, len(dataloader))
    if done >= end:
        return
    args = simuleval_arguments(point, source, reference, folder, latency_unit, start_index=done)
    args.end_index = end
    agent = point.agent_class().from_args(args)
    evaluator = FlushingEvaluator(dataloader, {}, {}, args)
    evaluator.iterator = tqdm(evaluator.instances.values(), initial=done, total=end, desc=point.label, leave=False)
    evaluator(agent)


def keep_whole_lines(path, count=None):
    """Cut `path` after its last complete JSON line, or after `count` of them; returns how many lines are left."""
    if not path.is_file():
        return 0
    kept = []
    for line in path.read_bytes().splitlines(keepends=True):
        if len(kept) == count or not line.endswith(b"\n") or not _is_json(line):
            break
        kept.append(line)
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(b"".join(kept))
    os.replace(scratch, path)
    return len(kept)


def _is_json(line):
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def identity(point, source, reference, latency_unit):
    """What a point's log depends on; a folder holds the log of one identity only."""
    options = point.agent_options
    model = checkpoint_folder(options.get("checkpoint"), options.get("backbone", point.agent_class().default_backbone))
    return {
        "agent": point.system.agent,
        "options": options,
        "latency_unit": latency_unit,
        "source_sha256": sha256(source),
        "reference_sha256": sha256(reference),
        "checkpoint_sha256": {name: sha256(model / name) for name in FILES},
    }


def sha256(path):
    """The SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def claim(folder, wanted):
    """Mark `folder` as holding the run of the identity `wanted`; ValueError if it holds another's."""
    path = folder / IDENTITY
    wanted = json.loads(json.dumps(wanted))
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        differing = sorted(key for key in wanted if found.get(key) != wanted[key])
        if differing:
            raise ValueError(
                f"{folder} holds a run with another {', '.join(differing)}; use --fresh (make: FRESH=1) to start over"
            )
    path.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
