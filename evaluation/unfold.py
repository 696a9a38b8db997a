"""Show a sentence as it unfolds: each source word, the decisions at its states, the words written."""

from dataclasses import dataclass, field

from duplex_model.policies import EmitHeadPolicy


@dataclass
class Watched:
    """An EMIT-head policy that notes the EMIT probability at each state that it was asked at."""

    policy: EmitHeadPolicy
    seen: list = field(default_factory=list)

    def emits(self, stream):
        self.seen.append(stream.emit_probability(self.policy.lam))
        return self.seen[-1] > self.policy.theta


def unfold(engine, line, policy):
    """Text lines that show how `policy` (an EmitHeadPolicy) translates the source `line`."""
    stream, words = engine.open(), line.split()
    width = max(len(word) for word in words)
    lines = []
    for position, word in enumerate(words):
        stream.read(word, finished=position == len(words) - 1)
        watched = Watched(policy)
        written = list(stream.advance(watched))
        decisions = []
        for index, text in enumerate(written):
            decisions.append(f"EMIT {watched.seen[index]:.2f} {text}" if index < len(watched.seen) else f"EMIT {text}")
        if stream.source_finished:
            decisions.append("end of sentence")
        elif len(watched.seen) > len(written):
            waits = watched.seen[len(written)]
            decisions.append(f"WAIT {waits:.2f}" if waits <= policy.theta else f"WAIT (would end, {waits:.2f})")
        else:
            decisions.append("WAIT (output limit)")
        lines.append(f"  {word:<{width}}  " + " | ".join(decisions))
    return lines
