"""The harness's numbers against other people's programs on the same logs, and against arithmetic."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from tiny_sweep import write_config

from evaluation.__main__ import main
from evaluation.metrics import read_records, score_log

BIN = Path(sys.executable).parent
SCORES = ("BLEU", "AL", "LAAL", "DAL", "AP", "StartOffset")


def run(*command):
    """Standard output of a command that succeeds."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def score_only(folder, *options):
    """SimulEval's own scores of a log folder, three decimals."""
    command = (BIN / "simuleval", "--score-only", "--output", folder, "--quality-metrics", "BLEU", *options)
    header, values = run(*command, "--latency-metrics", *SCORES[1:]).splitlines()[-2:]
    return dict(zip(header.split(), map(float, values.split()[1:]), strict=True))


def test_a_sweep_s_scores(tmp_path, checkpoint):
    """Every score of a point from its log alone: `simuleval --score-only`, `omnisteval`, `sacrebleu`."""
    pytest.importorskip("omnisteval", reason="omnisteval is not installed")
    config = write_config(tmp_path, checkpoint, sentences=6)
    main([str(config), "--output", str(tmp_path / "out")])
    (result,) = (r for r in json.loads((tmp_path / "out" / "results.json").read_text()) if r["values"] == {"k": 1})
    ours, folder = result["scores"], tmp_path / "out" / "logs" / "wait-k_k=1"
    theirs = score_only(folder)
    names = {"StartOffset": "first_token_words"}
    assert {name: round(ours[names.get(name, name)], 3) for name in SCORES} == {name: theirs[name] for name in SCORES}

    hypotheses, references = tmp_path / "hypotheses", tmp_path / "reference.en"
    hypotheses.write_text("".join(r["prediction"] + "\n" for r in read_records(folder / "instances.log")))
    options = ("-i", hypotheses, "-m", "bleu", "chrf", "-w", "2", "-b", "--format", "text")
    shown = [float(score) for score in re.findall(r"[\d.]+", run(BIN / "sacrebleu", references, *options))]
    assert shown == [round(ours["BLEU"], 2), round(ours["chrF"], 2)]

    run(
        *(BIN / "omnisteval", "shortform", "--hypothesis_file", folder / "instances.log"),
        *("--ref_sentences_file", references, "--word_level"),
        *("--output_folder", tmp_path / "omnisteval"),
    )
    scores = dict(
        line.split("\t")[:2] for line in (tmp_path / "omnisteval" / "scores.tsv").read_text().splitlines()[1:]
    )
    assert {name: scores[f"{name} (CU)"] for name in ("YAAL", "LAAL")} == {
        name: f"{ours[name]:.4f}" for name in ("YAAL", "LAAL")
    }


CHINESE = [  # source words, hypothesis, reference, words read at each character
    (4, "我喜欢猫。", "我喜欢猫。", [1, 2, 2, 4, 4]),
    (5, "今天很热。", "今天很冷。", [3, 3, 3, 3, 5]),
    (4, "他在家。", "他在家。", [4, 4, 4, 4]),
    (2, "谢谢。", "谢谢你。", [1, 2, 2]),
    (3, "我们走。", "我们走吧。", [1, 1, 2, 2]),
]


def test_chinese_characters(tmp_path):
    """A five-sentence log with the unit char: AL and BLEU by hand, and by SimulEval.

    AL: (1 + 1.2 + .4 + 1.6) / 4; (3 + 2 + 1 + 0 + 1) / 5; 4; (1 + 1.5) / 2; (1 + .4 + .8 + .2) / 4. BLEU: matches of
    one to four characters 20 of 21, 12 of 16, 7 of 11, 3 of 6; 21 characters for 23.
    """
    records = [
        {
            "index": index,
            "prediction": hypothesis,
            "delays": delays,
            "elapsed": [0] * len(delays),
            "prediction_length": len(delays),
            "reference": reference + "\n",
            "source": " ".join("w" * length),
            "source_length": length,
        }
        for index, (length, hypothesis, reference, delays) in enumerate(CHINESE)
    ]
    ours = score_log(records, "char", "zh")
    assert ours["AL"] == pytest.approx((1.05 + 1.4 + 4 + 1.25 + 0.6) / 5)
    precision = 20 / 21 * 12 / 16 * 7 / 11 * 3 / 6
    assert ours["BLEU"] == pytest.approx(100 * math.exp(1 - 23 / 21) * precision**0.25)
    (tmp_path / "instances.log").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"source_type": "text", "target_type": "text"}))
    theirs = score_only(tmp_path, "--eval-latency-unit", "char", "--sacrebleu-tokenizer", "zh")
    assert (theirs["AL"], theirs["BLEU"]) == (round(ours["AL"], 3), round(ours["BLEU"], 3))
