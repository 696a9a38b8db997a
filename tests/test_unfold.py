from conftest import demo_pairs

from duplex_model.checkpoint import load_checkpoint
from duplex_model.engine import Engine, Limits
from duplex_model.policies import EmitHeadPolicy
from evaluation.unfold import unfold


class Noting:
    """The policy, and what it was told: the EMIT probability at each of its states, in order."""

    def __init__(self, policy):
        self.policy, self.told = policy, []

    def emits(self, stream):
        self.told.append(stream.emit_probability(self.policy.lam))
        return self.policy.emits(stream)


def test_unfolding_shows_every_decision_with_its_probability(checkpoint):
    """Each source word's line against another run of the same sentence."""
    engine, policy = Engine(*load_checkpoint(checkpoint), Limits(0.5, 5)), EmitHeadPolicy(0.05)
    source, _ = demo_pairs()[0]
    lines, stream = unfold(engine, source, policy).lines, engine.open()
    emitted = waited = 0
    for line, word in zip(lines, stream.feed(source), strict=True):
        noting = Noting(policy)
        words = list(stream.advance(noting))
        if stream.source_finished:
            expected = [f"EMIT {text}" for text in words] + ["end of sentence"]
        else:
            expected = [f"EMIT {p:.2f} {text}" for p, text in zip(noting.told, words, strict=False)]
            emitted += len(words)
            if len(noting.told) > len(words):
                assert noting.told[-1] <= 0.5
                expected.append(f"WAIT {noting.told[-1]:.2f}")
                waited += 1
            else:
                expected.append("WAIT (output limit)")
        assert line.split() == [word, *" | ".join(expected).split()]
    assert emitted and waited
