"""Sweeps that are killed, split and run side by side: the logs of one undisturbed run."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, demo_pairs
from tiny_sweep import without_clock, write_config

from duplex_model.checkpoint import load_checkpoint
from duplex_model.engine import Engine, Limits, translate
from duplex_model.oracle import OraclePath
from duplex_model.policies import Confidence, LocalAgreement
from evaluation.__main__ import main
from evaluation.logs import LOG, TIMING, keep_lines
from evaluation.metrics import read_records


def test_a_killed_run_resumes(tmp_path, checkpoint):
    """SIGKILL in the middle of a point: no finished sentence is lost, and the end is the undisturbed run's."""
    options = {"checkpoint": str(checkpoint), "max_len_a": 0.3, "max_len_b": 3}
    system = {"name": "wait-k", "agent": "agents.waitk_agent.WaitKAgent", "options": options, "sweep": {"k": [1, 3]}}
    config = write_config(tmp_path, checkpoint, sentences=80, systems=[system], examples=[])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    main([str(config), "--output", str(whole)])
    command = [sys.executable, "-m", "evaluation", str(config), "--output", str(killed)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = killed / "logs" / "wait-k_k=1" / LOG
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (log.is_file() and log.read_bytes().count(b"\n") >= 5):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = log.read_bytes()
    assert 5 <= finished.count(b"\n") < 80, "the run was not killed in the middle of the point"
    with open(log, "ab") as file:
        file.write(b'{"index": 99, "predic')  # what a cut write leaves
    main([str(config), "--output", str(killed)])
    assert log.read_bytes().startswith(finished[: finished.rindex(b"\n") + 1])
    assert [record["index"] for record in read_records(log.with_name(TIMING))] == list(range(80))
    assert without_clock(killed) == without_clock(whole)


def test_two_jobs_equal_one(tmp_path, checkpoint):
    config = write_config(tmp_path, checkpoint)
    for jobs in ("1", "2"):
        main([str(config), "--output", str(tmp_path / jobs), "--jobs", jobs])
    assert without_clock(tmp_path / "1") == without_clock(tmp_path / "2")


def test_shards_joined_equal_one_run(tmp_path, checkpoint):
    """In two shards, as a cluster's array job, and after a shard was cut: the whole run's logs to the byte."""
    options = {"checkpoint": str(checkpoint), "max_len_a": 0.3, "max_len_b": 3}
    system = {"name": "wait-k", "agent": "agents.waitk_agent.WaitKAgent", "options": options, "sweep": {"k": [1, 3]}}
    config = write_config(tmp_path, checkpoint, sentences=5, systems=[system], examples=[])
    whole, parts, array = (tmp_path / name for name in ("whole", "parts", "array"))
    main([str(config), "--output", str(whole)])
    main([str(config), "--output", str(parts), "--shards", "2"])
    assert without_clock(parts) == without_clock(whole)
    shard = parts / "logs" / "wait-k_k=1" / "sentences-2-5"
    keep_lines(shard / LOG, 1)
    for path in parts.glob("logs/*/*.log"):
        path.unlink()
    main([str(config), "--output", str(parts), "--shards", "2", "--jobs", "2"])
    pytest.importorskip("submitit", reason="the extra 'cluster' is not installed")
    main([str(config), "--output", str(array), "--shards", "2", "--cluster", "local"])
    for path in whole.glob(f"logs/*/{LOG}"):
        for other in (parts, array):
            assert (other / path.relative_to(whole)).read_bytes() == path.read_bytes()
    timing = read_records(parts / "logs" / "wait-k_k=1" / TIMING)
    assert [record["index"] for record in timing] == list(range(5))


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="no Slurm here")
def test_a_sweep_on_slurm(tmp_path, checkpoint):
    config = write_config(tmp_path, checkpoint)
    main([str(config), "--output", str(tmp_path / "here")])
    main([str(config), "--output", str(tmp_path / "slurm"), "--cluster", "slurm", "--jobs", "2"])
    assert without_clock(tmp_path / "slurm") == without_clock(tmp_path / "here")


def test_every_baseline_runs_in_process(tmp_path, checkpoint):
    """Confidence, local agreement and the oracle path in a sweep; the log of each is the engine's output."""
    options = {"checkpoint": str(checkpoint), "max_len_a": 0.3, "max_len_b": 3}
    both = {"sweep": {"backbone": ["duplex", "lm"]}}
    systems = [
        {"name": "confidence", "agent": "agents.confidence_agent.ConfidenceAgent", "options": {**options, "tau": 0.2}},
        {"name": "agreement", "agent": "agents.agreement_agent.AgreementAgent", "options": options},
        {"name": "oracle", "agent": "agents.oracle_agent.OracleAgent", "options": options, "sweep": {"lam": [0.1, 1]}},
    ]
    systems[:2] = [{**system, **both} for system in systems[:2]]
    config, out = write_config(tmp_path, checkpoint, sentences=3, systems=systems, examples=[]), tmp_path / "out"
    main([str(config), "--output", str(out), "--limit", "2"])
    main([str(config), "--output", str(out), "--jobs", "2"])  # goes on with the third sentence
    devices = {result["device"] for result in json.loads((out / "results.json").read_text())}
    assert devices == {", then ".join(f"cpu, 1 thread(s) a point, {n} at a time, {platform.machine()}" for n in (1, 2))}
    engines = {name: Engine(*load_checkpoint(checkpoint, name), Limits(0.3, 3)) for name in ("duplex", "lm")}
    for folder, backbone, policy_of in (
        ("confidence_backbone=duplex", "duplex", lambda *_: Confidence(0.2)),
        ("confidence_backbone=lm", "lm", lambda *_: Confidence(0.2)),
        ("agreement_backbone=duplex", "duplex", lambda *_: LocalAgreement()),
        ("agreement_backbone=lm", "lm", lambda *_: LocalAgreement()),
        ("oracle_lam=0.1", "duplex", lambda *pair: OraclePath(0.1, *pair)),
        ("oracle_lam=1", "duplex", lambda *pair: OraclePath(1.0, *pair)),
    ):
        records = read_records(out / "logs" / folder / LOG)
        assert len(records) == 3
        for record, pair in zip(records, demo_pairs(), strict=False):
            assert record["delays"] == translate(engines[backbone], pair[0], policy_of(*pair))[1]
