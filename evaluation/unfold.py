"""Show a sentence as it unfolds: each source word, the decisions at its states, the words written."""

from dataclasses import dataclass, field
from typing import NamedTuple

from duplex_model.engine import Stream
from duplex_model.policies import EmitHeadPolicy


@dataclass
class Watched:
    """An EMIT-head policy that notes the EMIT probability at each state, by the number of words written there."""

    policy: EmitHeadPolicy
    seen: dict = field(default_factory=dict)

    def emits(self, stream):
        probability = self.seen[stream.words_written] = stream.emit_probability(self.policy.lam)
        return probability > self.policy.theta


class Unfolded(NamedTuple):
    """A translated sentence: text lines that show it, the finished stream, and {source position: output pieces written
    when the words read so far end there}."""

    lines: list[str]
    stream: Stream
    written: dict[int, int]


def unfold(engine, line, policy):
    """How `policy` (an EmitHeadPolicy) translates the source `line`, as `Unfolded`."""
    stream, lines, written = engine.open(), [], {}
    width = max(map(len, line.split()))
    for word in stream.feed(line):
        watched, decisions = Watched(policy), []
        for text in stream.advance(watched):
            probability = watched.seen.get(stream.words_written - 1)  # none once the source is finished
            decisions.append(f"EMIT {text}" if probability is None else f"EMIT {probability:.2f} {text}")
        written[stream.x_vis - 1] = stream.y_gen - 1
        if stream.source_finished:
            decisions.append("end of sentence")
        elif stream.words_written in watched.seen:
            waits = watched.seen[stream.words_written]
            decisions.append(f"WAIT {waits:.2f}" if waits <= policy.theta else f"WAIT (would end, {waits:.2f})")
        else:
            decisions.append("WAIT (output limit)")
        lines.append(f"  {word:<{width}}  " + " | ".join(decisions))
    return Unfolded(lines, stream, written)
