"""Scores of a SimulEval log: corpus quality by sacreBLEU, latency in source words by the field's formulas.

g(t) is the number of source words read when output word t is written; r is the length ratio of the formula, target
over source, the target's length in the latency unit. Lines without output have no latency and are left out of its
means, as SimulEval does; they are counted.
"""

import itertools
import json
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import estimate_ci

LATENCIES = ("AL", "LAAL", "DAL", "AP", "YAAL", "first_token_words")
SAMPLES, SEED = 1000, 12345  # of the bootstrap; the seed is sacreBLEU's default
DRAWN = 1 << 21  # values that a bootstrap draws together, for speed in little memory


def mean_lag(delays, pace):
    """Mean distance of the delays behind an ideal writer, who writes a word every `pace`; all in one unit."""
    return mean(delay - t * pace for t, delay in enumerate(delays))


def words_before_end(delays, source_length):
    """Number of words written before the whole source was read."""
    return sum(1 for _ in itertools.takewhile(lambda delay: delay < source_length, delays))


def average_lagging(delays, source_length, target_length):
    """AL (Ma et al. 2019) of one sentence with output, words: delays g(1..), |x|, and the length of r = target/|x|. Its
    sum runs to the first word with the whole source."""
    if delays[0] > source_length:
        return delays[0]
    return mean_lag(delays[: words_before_end(delays, source_length) + 1], source_length / target_length)


def differentiable_average_lagging(delays, source_length):
    """DAL (Arivazhagan et al. 2019) of one sentence, words; r = |hypothesis| / |x|."""
    pace = source_length / len(delays)
    total, last = 0.0, None
    for t, delay in enumerate(delays):
        last = delay if last is None else max(delay, last + pace)
        total += last - t * pace
    return total / len(delays)


def yet_another_average_lagging(delays, source_length, target_length):
    """YAAL (Polak et al. 2025) of one sentence, words: LAAL over the words written before the source ends; None if
    there is none."""
    early = delays[: words_before_end(delays, source_length)]
    return mean_lag(early, source_length / target_length) if early else None


def sentence_latency(delays, source_length, reference_length):
    """AL, LAAL, DAL, AP, YAAL and first-token latency of one sentence with output."""
    longer = max(len(delays), reference_length)
    return {
        "AL": average_lagging(delays, source_length, reference_length),
        "LAAL": average_lagging(delays, source_length, longer),
        "DAL": differentiable_average_lagging(delays, source_length),
        "AP": sum(delays) / (source_length * reference_length),
        "YAAL": yet_another_average_lagging(delays, source_length, longer),
        "first_token_words": delays[0],
    }


def reference_length(reference, latency_unit):
    """As SimulEval counts: blanks of the raw line split words, so doubled blanks count; at least 1."""
    return max(len(reference.strip()), 1) if latency_unit == "char" else len(reference.split(" "))


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
    for name in LATENCIES:
        values = [latency[name] for latency in latencies if latency[name] is not None]
        scores[name], half_widths[name] = (mean(values), half_width(values)) if values else (None, None)
    return {
        **scores,
        **{f"{name}_half_width": width for name, width in half_widths.items()},
        "sentences": len(records),
        "empty": len(records) - len(written),
        **signatures,
    }


def half_width(values, statistic=np.mean):
    """Half of the 95% bootstrap interval of the mean of the values, or of another statistic of the values, or rows of a
    matrix, along an `axis`."""
    values, random = np.array(values), np.random.default_rng(SEED)
    together = max(1, DRAWN // len(values))
    drawn = []
    for first in range(0, SAMPLES, together):
        size = min(together, SAMPLES - first), len(values)
        drawn += statistic(values[random.integers(len(values), size=size)], axis=1).tolist()
    return float(estimate_ci(np.array(drawn))[1])


def score_timing(records):
    """Wall-clock scores of an agent's timing file, ms, as median and 95th percentile (`_p95`), with `_half_width`s.

    first_token_ms: from the first source word to the first output word, all source words being there at once. word_ms:
    computing after one source word. sentence_ms: a whole sentence. step_ms: the time of all sentences over their model
    calls, so the agent's own work is in it.
    """
    measured = {
        "first_token_ms": [r["first_token_ms"] for r in records if r["first_token_ms"] is not None],
        "word_ms": [ms for r in records for _, _, ms in r["calls"]],
        "sentence_ms": [r["total_ms"] for r in records],
    }
    scores = {}
    for name, values in measured.items():
        for key, share in ((name, 50), (f"{name}_p95", 95)):
            percentile = partial(np.percentile, q=share)
            scores[key] = float(percentile(values)) if values else None
            scores[f"{key}_half_width"] = half_width(values, percentile) if values else None
    steps = [(r["total_ms"], r["steps"]) for r in records]
    return {**scores, "step_ms": float(step_ms(steps)), "step_ms_half_width": half_width(steps, step_ms)}


def step_ms(steps, axis=0):
    """Mean of a model call, ms, from the rows (ms, calls) of sentences, which lie along `axis`."""
    total, calls = np.moveaxis(np.sum(steps, axis), -1, 0)
    return total / np.maximum(calls, 1)


def emission_times(calls, words_per_second):
    """{words read: when what is written then comes}, ms after the start of a speech whose word i is there at i / rate.

    calls: [words read, words written, ms of computing] of each policy call; computing queues behind the words and
    behind itself.
    """
    now, times = 0.0, {}
    for read, _, ms in calls:
        now = times[read] = max(now, 1000 * read / words_per_second) + ms
    return times


def score_computation_aware(log, timing, latency_unit, words_per_second):
    """AL and LAAL in ms with computing time, at this speaking rate: as for words, with each word's `emission_times` for
    the words read and 1 / rate for the pace of a source word. The sum runs to the first word with the whole source."""
    sums = {"AL_CA_ms": [], "LAAL_CA_ms": []}
    for record, timed in zip(log, timing, strict=True):
        if not record["delays"]:
            continue
        source, delays = record["source_length"], record["delays"]
        times = emission_times(timed["calls"], words_per_second)
        length = reference_length(record["reference"], latency_unit)
        counted = [times[delay] for delay in delays[: words_before_end(delays, source) + 1]]
        for name, target in (("AL_CA_ms", length), ("LAAL_CA_ms", max(length, len(delays)))):
            sums[name].append(mean_lag(counted, 1000 * source / words_per_second / target))
    scores = {name: mean(values) if values else None for name, values in sums.items()}
    return scores | {f"{name}_half_width": half_width(values) if values else None for name, values in sums.items()}
