"""The oracle path: its schedule against a search through all of them, and the stream that follows it."""

from itertools import combinations_with_replacement

import pytest
import torch
import torch.nn.functional as F
from conftest import grid_engine, tiny_grid

from duplex_model.checkpoint import load_checkpoint
from duplex_model.data import make_example
from duplex_model.engine import Engine, Limits, translate
from duplex_model.oracle import OraclePath, Schedule, best_schedule

SOURCE, REFERENCE = "Wir fahren morgen alle nach Berlin", "We are going to Berlin"


def test_schedule_by_hand():
    """Words of 2, 1 and 3 pieces after BOS: decision rows 2, 3, 6 and EOS's 7."""
    schedule = Schedule((2, 3, 6, 7), (0, 2, 2, 5))
    assert [schedule.words_at(x_vis) for x_vis in range(1, 10)] == [0, 0, 0, 2, 2, 2, 2, 5, 5]


def brute_schedule(model, tokenizer, source, reference, lam):
    """Words written at each decision row, by trying all of them: loop over the definition of score and Area."""
    example = make_example(tokenizer, source, reference)
    block = model(torch.tensor([example.source]), torch.tensor([example.target[:-1]]))
    losses = [
        F.cross_entropy(model.lm_logits(block.outputs)[0, row], torch.tensor(example.target[1:]), reduction="none")
        for row in example.decision_rows
    ]
    ends = [0]  # columns after 0, 1, ... words
    for word in reference.split():
        ends.append(ends[-1] + len(tokenizer.encode_word(word)))
    best = None
    for counts in combinations_with_replacement(range(len(ends)), len(losses) - 1):
        exits = [*(ends[count] for count in counts), ends[-1] + 1]  # EOS in the last row
        spent = sum(row[a:b].sum().item() for row, a, b in zip(losses, [0, *exits], exits, strict=False))
        score = lam * sum(exits) - spent
        if best is None or score > best[0]:
            best = score, counts
    return [*best[1], len(ends) - 1]


@torch.inference_mode()
def test_the_oracle_schedule_is_the_best_of_all(tokenizer):
    """Against every non-decreasing word count per source word, at prices from waiting to writing at once."""
    model = tiny_grid(vocab_size=tokenizer.vocab_size)
    schedules = []
    for lam in (1e-6, 0.1, 0.5, 1.0, 100.0):
        schedule = best_schedule(model, tokenizer, SOURCE, REFERENCE, lam)
        assert list(schedule.words) == brute_schedule(model, tokenizer, SOURCE, REFERENCE, lam)
        schedules.append(schedule.words)
    assert len(set(schedules)) >= 3 and schedules[-1] == (5,) * 7
    areas = [sum(words) for words in schedules]
    assert areas == sorted(areas)


def test_the_oracle_path_follows_its_schedule(tokenizer):
    """Its word counts after each source word, over the model's own words; the rest with the last word and EOS."""
    engine = grid_engine(tokenizer, Limits(1.5, 200))
    engine.first_ban[tokenizer.eos_id] = -torch.inf  # an end that comes early would be a wait
    for lam in (0.1, 0.5, 1.0):
        schedule = best_schedule(engine.model, tokenizer, SOURCE, REFERENCE, lam)
        policy, stream, counts = OraclePath(lam, SOURCE, REFERENCE), engine.open(), []
        for word in SOURCE.split()[:-1]:
            stream.read(word)
            list(stream.advance(policy))
            counts.append(stream.words_written)
        assert counts == list(schedule.words[: len(counts)]) and (counts[-1] or lam == 0.1)
        stream.read(SOURCE.split()[-1], finished=True)
        list(stream.advance(policy))
        assert stream.target_finished


def test_the_oracle_path_on_odd_lines(tokenizer):
    """A byte-order mark, line ends, an empty reference, an empty source, a source beyond the anchor."""
    engine = grid_engine(tokenizer)
    plain = translate(engine, SOURCE, OraclePath(0.5, SOURCE, REFERENCE))
    assert translate(engine, "\ufeff" + SOURCE, OraclePath(0.5, f"\ufeff{SOURCE}\r\n", f"\ufeff{REFERENCE}\n")) == plain
    _, delays = translate(engine, SOURCE, OraclePath(0.5, SOURCE, "\n"))
    assert set(delays) <= {6}  # a path of no words writes nothing before the end
    stream = engine.open()
    stream.finish()
    assert list(stream.advance(OraclePath(0.5))) == []
    long = "Haus " * 100
    schedule = best_schedule(engine.model, tokenizer, long, REFERENCE, 0.5)
    stream = engine.open()
    stream.read(long)
    assert stream.truncated and schedule.rows[-1] == 63 == stream.x_vis - 1


@pytest.mark.parametrize("lam", [0.0, -1.0, float("inf"), float("nan")])
def test_the_oracle_s_price_is_positive(lam):
    with pytest.raises(ValueError, match=f"lam = {lam}: the price of latency must be greater than 0"):
        OraclePath(lam)


def test_char_units_have_more_decision_rows_than_words(checkpoint):
    """Under the source unit `char` the schedule is looked up by pieces, whatever SimulEval calls a word."""
    model, tokenizer = load_checkpoint(checkpoint)
    tokenizer.source_unit = "char"
    schedule = best_schedule(model, tokenizer, SOURCE, REFERENCE, 0.5)
    assert len(schedule.rows) > len(SOURCE.split()) + 1
    words, _ = translate(Engine(model, tokenizer, Limits(1.0, 4)), SOURCE, OraclePath(0.5, SOURCE, REFERENCE))
    assert words
