"""Signs that a system does not do what its scores suggest, from its log and timing file alone."""

from evaluation.metrics import reference_length

LOOP = 3  # repetitions in a row


def loops(words, longest=4):
    """Whether some sequence of one to `longest` words stands three times in a row."""
    for n in range(1, longest + 1):
        run = 0  # positions in a row at which a word equals the one n before it
        for i in range(n, len(words)):
            run = run + 1 if words[i] == words[i - n] else 0
            if run >= (LOOP - 1) * n:
                return True
    return False


def copies(words, source):
    """Whether a run of source words, three or more and at least half of the output, stands in the output unchanged."""
    best, ending = 0, {}  # length of the run that ends at source word j and at this word
    for word in words:
        ending = {j: ending.get(j - 1, 0) + 1 for j, other in enumerate(source) if other == word}
        best = max([best, *ending.values()])
    return best >= 3 and 2 * best >= len(words)


def degeneracy(log, timing, latency_unit):
    """Shares of a point's sentences that are suspicious, and its length ratio.

    empty: a source without output; cut_off: the output reached its limit; copied (None for the unit char), looping:
    see above; read_whole: the first word came after the whole source (all of them for a system that reads first);
    length_ratio: output over reference, in latency units.
    """
    asked = [(r, t) for r, t in zip(log, timing, strict=True) if r["source_length"]]
    written = [(r, t) for r, t in asked if r["delays"]]

    characters = latency_unit == "char"

    def looping(text):
        return loops(list("".join(text.split())), longest=8) if characters else loops(text.split())

    def share(true, of):
        return sum(map(bool, true)) / max(len(of), 1)

    return {
        "empty": share((not r["delays"] for r, _ in asked), asked),
        "cut_off": share((t["cut"] for _, t in asked), asked),
        "copied": None
        if characters
        else share((copies(r["prediction"].split(), r["source"].split()) for r, _ in written), written),
        "looping": share((looping(r["prediction"]) for r, _ in written), written),
        "read_whole": share((r["delays"][0] >= r["source_length"] for r, _ in written), written),
        "length_ratio": sum(len(r["delays"]) for r in log)
        / max(sum(reference_length(r["reference"], latency_unit) for r in log), 1),
    }


def same_output(log, other):
    """Whether two points gave the same words at the same times."""
    pairs = zip(log, other, strict=True)
    return all((a["prediction"], a["delays"]) == (b["prediction"], b["delays"]) for a, b in pairs)
