"""Made-up results of a sweep, and a folder that holds them."""

import json


def result(number, system, values, quality, lagging, weights="a"):
    latencies = {"AL": lagging, "LAAL": lagging, "DAL": lagging, "AP": 0.5, "first_token_words": lagging / 2}
    latencies["YAAL"] = None if lagging > 10 else lagging  # all is read first
    return {
        "number": number,
        "system": system,
        "values": values,
        "scores": {
            **{"BLEU": quality, "chrF": quality + 20, **latencies},
            **{f"{name}_half_width": 0.25 for name in ("BLEU", "chrF", *latencies)},
            **{"sentences": 9, "empty": 1, "BLEU_signature": "nrefs:1|tok:13a", "chrF_signature": "nrefs:1|nc:6"},
            **{"first_token_ms": None, "first_token_ms_p95": None, "word_ms": 7.0, "word_ms_p95": 8.0},
            **{"sentence_ms": 99.0, "sentence_ms_p95": 120.0, "step_ms": 4.5, "words_per_second": 2.5},
            **{"AL_CA_ms": 400 * lagging + 50, "LAAL_CA_ms": 400 * lagging + 60},
        },
        "degeneracy": {
            **{"empty": 0.125, "cut_off": 0.0, "copied": 0.25, "looping": 0.5, "read_whole": 1.0, "length_ratio": 0.9},
            **({"same_as_previous": True} if number == 1 else {}),
        },
        "point": {
            "latency_unit": "word",
            **{"source_sha256": "5" * 64, "reference_sha256": "6" * 64},
            "checkpoint_sha256": {"model.safetensors": weights * 64},
        },
        "versions": {"torch": "2.13.0", "sacrebleu": "2.6.0"},
        "device": "cpu, 1 thread(s) a point, x86_64",
    }


RESULTS = [
    result(0, "grid | x", {"lam": 0.1}, 20.125, 1.5),
    result(1, "grid | x", {"lam": 0.01}, 25.0, 3.25),
    result(2, "wait-k", {"k": 1}, 18.0, 1.0, "b"),
    result(3, "wait-k", {"k": 3}, 24.0, 3.5, "b"),
    result(4, "whole sentence", {}, 27.0, 11.0, "b"),
]


def write_folder(folder, results=RESULTS, **others):
    (folder / "points").mkdir(parents=True)
    for point in results:
        (folder / "points" / f"{10 - point['number']}.json").write_text(json.dumps(point))
    for name, value in others.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder
