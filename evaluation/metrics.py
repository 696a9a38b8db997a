"""Scores of a SimulEval log: corpus quality by sacreBLEU, latency in words (or characters) by the field's formulas.

g(t) is the number of source words read when output word t is written; r is the length ratio of the formula. Lines
without output have no latency and are left out of its means, as SimulEval does; they are counted.
"""

import json
from pathlib import Path
from statistics import mean, median

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import estimate_ci

LATENCIES = ("AL", "LAAL", "DAL", "AP", "first_token_words")
SAMPLES, SEED = 1000, 12345  # of the bootstrap; the seed is sacreBLEU's default


def average_lagging(delays, source_length, target_length):
    """AL (Ma et al. 2019) of one sentence, words: delays g(1..), |x|, and the length that gives r = target / |x|."""
    if delays[0] > source_length:
        return delays[0]
    tau = next((t for t, delay in enumerate(delays, 1) if delay >= source_length), len(delays))
    return mean(delay - t * source_length / target_length for t, delay in enumerate(delays[:tau]))


def differentiable_average_lagging(delays, source_length):
    """DAL (Arivazhagan et al. 2019) of one sentence, words; r = |hypothesis| / |x|."""
    pace = source_length / len(delays)
    total, last = 0.0, None
    for t, delay in enumerate(delays):
        last = delay if last is None else max(delay, last + pace)
        total += last - t * pace
    return total / len(delays)


def sentence_latency(delays, source_length, reference_length):
    """AL, LAAL, DAL, AP and first-token latency of one sentence with output."""
    longer = max(len(delays), reference_length)
    return {
        "AL": average_lagging(delays, source_length, reference_length),
        "LAAL": average_lagging(delays, source_length, longer),
        "DAL": differentiable_average_lagging(delays, source_length),
        "AP": sum(delays) / (source_length * reference_length),
        "first_token_words": delays[0],
    }


def reference_length(reference, latency_unit):
    """As SimulEval counts: blanks of the raw line split words, so doubled blanks count."""
    return len(reference.strip()) if latency_unit == "char" else len(reference.split(" "))


def record_latency(record, latency_unit):
    """`sentence_latency` of one record with output of a SimulEval log."""
    length = reference_length(record["reference"], latency_unit)
    return sentence_latency(record["delays"], record["source_length"], length)


def read_records(path):
    """The JSON lines of a log."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def score_log(records, latency_unit, tokenize):
    """Quality and mean latency of SimulEval log records, with sacreBLEU's signatures.

    `NAME_half_width`: half of the 95% bootstrap interval of the score NAME over sentences. Raises ValueError if no line
    has any output, for then there is no latency to report.
    """
    written = [r for r in records if r["delays"]]
    if not written:
        raise ValueError("no line of the log has any output; there is no latency to report")
    hypotheses, references = [r["prediction"] for r in records], [[r["reference"] for r in records]]
    scores, half_widths, signatures = {}, {}, {}
    for name, metric in (("BLEU", BLEU(tokenize=tokenize)), ("chrF", CHRF())):
        score = metric.corpus_score(hypotheses, references, n_bootstrap=SAMPLES)
        scores[name], half_widths[name] = score.score, float(score._ci)
        signatures[f"{name}_signature"] = str(metric.get_signature())
    latencies = [record_latency(record, latency_unit) for record in written]
    resampled = np.random.default_rng(SEED).integers(len(latencies), size=(SAMPLES, len(latencies)))
    for name in latencies[0]:
        values = np.array([latency[name] for latency in latencies])
        scores[name] = mean(values.tolist())
        half_widths[name] = float(estimate_ci(values[resampled].mean(1))[1])
    return {
        **scores,
        **{f"{name}_half_width": width for name, width in half_widths.items()},
        "sentences": len(records),
        "empty": len(records) - len(written),
        **signatures,
    }


def score_timing(records):
    """Wall-clock scores of an agent's timing file, ms: first token (median and mean), a sentence, a model step."""
    first = [r["first_token_ms"] for r in records if r["first_token_ms"] is not None]
    return {
        "first_token_ms": median(first) if first else None,
        "first_token_ms_mean": mean(first) if first else None,
        "sentence_ms": mean(r["total_ms"] for r in records),
        "step_ms": sum(r["total_ms"] for r in records) / max(sum(r["steps"] for r in records), 1),
    }
