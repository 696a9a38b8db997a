import re

from conftest import demo_pairs

from duplex_model.checkpoint import load_checkpoint
from duplex_model.engine import Engine, Limits, translate
from duplex_model.policies import EmitHeadPolicy
from evaluation.unfold import unfold


def test_unfolding_shows_every_word_with_its_probability(checkpoint):
    engine, policy = Engine(*load_checkpoint(checkpoint), Limits(0.5, 5)), EmitHeadPolicy(0.05)
    source, _ = demo_pairs()[0]
    words, _ = translate(engine, source, policy)
    lines = unfold(engine, source, policy)
    assert [line.split()[0] for line in lines] == source.split()
    shown = [part.split()[-1] for line in lines for part in line.split(" | ") if "EMIT" in part]
    assert shown == words
    for probability in re.findall(r"EMIT (0\.\d\d)", "".join(lines)):
        assert float(probability) >= 0.5
    for probability in re.findall(r"WAIT (0\.\d\d)", "".join(lines)):
        assert float(probability) <= 0.5
