"""Bootstrap over test sentences: quality of two systems at matched latency, and the area between their frontiers.

A frontier is a system's points joined by straight lines in the plane of latency and BLEU. Both systems are resampled
with the same sentences (paired bootstrap); a p-value is two-sided: the share of resampled differences that lie at least
as far from their mean, on either side, as the observed difference from 0. SacreBLEU counts one side only.
"""

from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU

from evaluation.metrics import SAMPLES, SEED, record_latency


class Points(NamedTuple):
    """Points of one system over N sentences: counts [P, N, C] that add up to BLEU's, latency [P, N] in words (AP:
    shares; nan for a sentence without output)."""

    counts: np.ndarray
    latency: np.ndarray


def points_of_logs(logs, metric, latency_unit, tokenize):
    """Points of a system's SimulEval logs (lists of records of the same sentences), with the latency `metric`."""
    bleu = BLEU(tokenize=tokenize, effective_order=True)  # for its counts only

    def counts(record):
        score = bleu.sentence_score(record["prediction"], [record["reference"]])
        return [*score.counts, *score.totals, score.sys_len, score.ref_len]

    def latency(record):
        return record_latency(record, latency_unit)[metric] if record["delays"] else np.nan

    return Points(
        np.array([[counts(record) for record in log] for log in logs]),
        np.array([[latency(record) for record in log] for log in logs]),
    )


class Frontier(NamedTuple):
    """A system's points, sorted by their latency: latency [P] (words) and quality [P] (BLEU)."""

    latency: np.ndarray
    quality: np.ndarray

    @classmethod
    def of(cls, points, sentences=slice(None)):
        """The frontier over the sentences with these indices (repeated ones count as often)."""
        latency = np.nanmean(points.latency[:, sentences], axis=1)
        quality = np.array([_bleu(counts) for counts in points.counts[:, sentences].sum(1)])
        order = np.argsort(latency)
        return cls(latency[order], quality[order])

    def quality_at(self, latency):
        """BLEU at the latency (a number or an array), on the straight line between the neighbouring points; outside the
        points' range that of the nearest."""
        return np.interp(latency, self.latency, self.quality)

    def latency_at(self, quality):
        """The lowest latency at which the frontier reaches the BLEU `quality`; None if it never does. Where the first
        point is better than that already, its latency, which is a bound."""
        if self.quality[0] >= quality:
            return float(self.latency[0])
        for i in range(1, len(self.quality)):
            if self.quality[i] >= quality:
                share = (quality - self.quality[i - 1]) / (self.quality[i] - self.quality[i - 1])
                return float(self.latency[i - 1] + share * (self.latency[i] - self.latency[i - 1]))
        return None


def _bleu(counts):
    correct, total = counts[:4].tolist(), counts[4:8].tolist()
    return BLEU.compute_bleu(correct, total, int(counts[8]), int(counts[9]), smooth_method="exp").score


def mean_gain(system, baseline, low, high):
    """Mean of system - baseline (BLEU) over the latencies from `low` to `high`: the area between two Frontiers, divided
    by its width. Frontiers of one point each: the difference of the two points."""
    if len(system.latency) == len(baseline.latency) == 1:
        return float(system.quality[0] - baseline.quality[0])
    knots = np.concatenate([system.latency, baseline.latency])
    knots = np.unique(np.concatenate([[low, high], knots[(knots > low) & (knots < high)]]))
    gain = system.quality_at(knots) - baseline.quality_at(knots)
    return float(np.trapezoid(gain, knots) / (high - low))


def compare(system, baseline, at=(), samples=SAMPLES, seed=SEED):
    """System against baseline (Points of the same sentences, with the same latency metric), ready for JSON.

    Returns `range`: the latencies that both frontiers cover, or None; `mean_gain` there (BLEU) with 95% interval and
    p-value, None without such a range; of two systems with one point each the gain between these, wherever they are;
    `at`: the same for the gain at each latency in `at` (None outside the range); `equal_quality`: for each point of the
    baseline the latency at which the system has the same BLEU, or None; with `at_most` the latency of the system's
    first point, which is better.
    """
    whole = Frontier.of(system), Frontier.of(baseline)
    low = max(frontier.latency[0] for frontier in whole)
    high = min(frontier.latency[-1] for frontier in whole)
    gained = low < high or len(system.latency) == len(baseline.latency) == 1
    covered = [latency for latency in at if low <= latency <= high]

    def gains(pair):
        first = [mean_gain(*pair, low, high)] if gained else []
        return [*first, *(float(pair[0].quality_at(a) - pair[1].quality_at(a)) for a in covered)]

    random, count = np.random.default_rng(seed), system.counts.shape[1]
    draws = [random.integers(count, size=count) for _ in range(samples)]
    resampled = np.array([gains((Frontier.of(system, draw), Frontier.of(baseline, draw))) for draw in draws])
    tested = [_tested(gain, column) for gain, column in zip(gains(whole), resampled.T, strict=True)]
    at_latency = dict(zip(covered, tested[len(tested) - len(covered) :], strict=True))
    return {
        "range": [float(low), float(high)] if low < high else None,
        "mean_gain": tested[0] if gained else None,
        "at": [{"latency": latency, "gain": at_latency.get(latency)} for latency in at],
        "equal_quality": [
            {
                "BLEU": float(quality),
                "baseline": float(latency),
                "system": whole[0].latency_at(quality),
                "at_most": bool(whole[0].quality[0] > quality),
            }
            for latency, quality in zip(*whole[1], strict=True)
        ],
        "samples": samples,
        "seed": seed,
    }


def _tested(gain, resampled):
    further = np.abs(resampled - resampled.mean()) >= abs(gain)
    return {
        "BLEU": gain,
        "interval": [float(bound) for bound in np.percentile(resampled, [2.5, 97.5])],
        "p": float((further.sum() + 1) / (len(resampled) + 1)),
    }
