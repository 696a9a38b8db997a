"""A small test configuration over random weights, and what of its results does not change from run to run."""

import json

import yaml
from conftest import demo_pairs, write_files

from evaluation.logs import LOG
from evaluation.metrics import read_records


def write_config(folder, checkpoint, sentences=4, **changes):
    write_files(folder, *zip(*demo_pairs()[:sentences], strict=True))
    shared = {"checkpoint": str(checkpoint), "max_len_a": 0.3, "max_len_b": 3}  # random weights never write EOS
    compare = [] if "systems" in changes else [{"system": "duplex", "baseline": "wait-k", "at": [2]}]
    config = {
        "name": "tiny",
        "source": "source.de",
        "reference": "reference.en",
        "examples": [2],
        "compare": compare,
        "systems": [
            {
                "name": "duplex",
                "agent": "agents.duplex_agent.DuplexAgent",
                "options": shared,
                "sweep": {"lam": [0.01, 0.1]},
            },
            {"name": "wait-k", "agent": "agents.waitk_agent.WaitKAgent", "options": shared, "sweep": {"k": [1, 3]}},
            {"name": "offline", "agent": "agents.offline_agent.OfflineAgent", "options": shared},
        ],
        **changes,
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def without_clock(folder):
    logs = {path.parent.name: read_records(path) for path in folder.glob(f"logs/*/{LOG}")}
    results = json.loads((folder / "results.json").read_text())
    for result in results:
        result["scores"] = {key: value for key, value in result["scores"].items() if "_ms" not in key}
        del result["device"]  # says how many ran at a time
    return logs, results
