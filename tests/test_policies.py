"""Confidence, local agreement and the oracle path: by hand, and against separately written plain versions."""

from itertools import combinations_with_replacement

import pytest
import torch
import torch.nn.functional as F
from conftest import ENGINES, demo_pairs, grid_engine, only_end, tiny_grid

from duplex_model.checkpoint import load_checkpoint
from duplex_model.data import make_example
from duplex_model.engine import Engine, Limits, translate
from duplex_model.oracle import OraclePath, Schedule, best_schedule
from duplex_model.policies import Confidence, EmitHeadPolicy, LocalAgreement, Offline, WaitK

SOURCE, REFERENCE = "Wir fahren morgen alle nach Berlin", "We are going to Berlin"


class Scripted:
    """In place of a Stream: its top probabilities and its hypotheses are given, whatever is written."""

    def __init__(self, probabilities=(), hypotheses=()):
        self.probabilities, self.hypotheses = list(probabilities), [text.split() for text in hypotheses]
        self.words_read = self.words_written = 0

    def top_probability(self):
        return self.probabilities.pop(0)

    def snapshot(self):
        return self.words_written

    def restore(self, snapshot):
        self.words_written = snapshot

    @property
    def can_write(self):
        return True

    def write(self):
        words = self.hypotheses[self.words_read - 1]
        if self.words_written == len(words):
            return None
        self.words_written += 1
        return words[self.words_written - 1]

    def advance(self, policy):
        self.words_read += 1
        while policy.emits(self):
            yield self.write()


def test_confidence_exceeds_its_threshold():
    stream = Scripted([0.8, 0.7, 0.6])
    assert [Confidence(0.7).emits(stream) for _ in range(3)] == [True, False, False]


@ENGINES
def test_confidence_is_that_of_the_allowed_tokens(make, tokenizer):
    """Softmax after the bans: with all but two tokens barred, those two share the whole probability."""
    engine = make(tokenizer)
    only = torch.full_like(engine.first_ban, -torch.inf)
    only[[10, 11]] = 0.0
    stream = engine.open()
    stream.read(SOURCE)
    pair = (stream.next_logits() - engine.first_ban)[[10, 11]]
    engine.first_ban = only
    top = pair.softmax(-1).max().item()
    assert stream.top_probability() == pytest.approx(top, abs=1e-6) and 0.5 <= top < 1
    assert Confidence(top - 1e-4).emits(stream) and not Confidence(top + 1e-4).emits(stream)


@ENGINES
def test_confidence_at_the_ends_of_tau(make, tokenizer):
    """tau = 1 reads everything first; tau = 0 writes to the limit after the first word."""
    engine = make(tokenizer)
    engine.first_ban[tokenizer.eos_id] = -torch.inf
    assert translate(engine, SOURCE, Confidence(1.0)) == translate(engine, SOURCE, Offline())
    stream = engine.open()
    stream.read("Wir")
    assert list(stream.advance(Confidence(0.0))) and stream.over_limit


@ENGINES
def test_a_confident_end_is_a_wait(make, tokenizer):
    stream = only_end(make(tokenizer)).open()
    stream.read("Wir fahren")
    assert stream.top_probability() == 1.0 and Confidence(0.5).emits(stream)
    assert list(stream.advance(Confidence(0.5))) == [] and not stream.target_finished


@pytest.mark.parametrize("tau", [-0.1, 1.01, float("nan")])
def test_tau_is_a_probability(tau):
    with pytest.raises(ValueError, match=f"tau = {tau}: .* use a value from 0 to 1"):
        Confidence(tau)


def test_local_agreement_by_hand():
    """Each hypothesis begins with what is written; the words in common with the one before follow."""
    hypotheses = ["", "a b c", "a x c", "a x c d", "a x c", "a x c e f", "a x c e g", "a x c e g"]
    stream, policy = Scripted(hypotheses=hypotheses), LocalAgreement()
    assert [" ".join(stream.advance(policy)) for _ in hypotheses] == ["", "", "a", "x c", "", "", "e", "g"]


@ENGINES
def test_local_agreement_after_a_restore(make, tokenizer):
    """What a later hypothesis agreed on is forgotten with the words that were read for it."""
    engine = make(tokenizer, Limits(1.0, 8))
    engine.first_ban[tokenizer.eos_id] = -torch.inf
    stream, policy = engine.open(), LocalAgreement()
    stream.read("Wir")
    list(stream.advance(policy))
    snapshot = stream.snapshot()
    for word in "fahren morgen nach".split():
        stream.read(word)
        list(stream.advance(policy))
    stream.restore(snapshot)
    stream.read("fahren")
    assert list(stream.advance(policy)) == [] and policy.agreed == stream.words_written


def plain_local_agreement(engine, sentence):
    """[words written after each source word], states and tokens only: no Stream, no policy."""
    tokenizer, limits = engine.tokenizer, engine.limits
    state, written, before = engine.open().state, [], None
    output = []

    def decode(state, closed):
        """[(word, state after it)] to the end."""
        result = []
        while True:
            full = len(state.target_ids) - 1 >= limits.max_len_a * len(state.source_ids) + limits.max_len_b
            state, logits = state.logits()
            if full or (logits + engine.first_ban).argmax() == tokenizer.eos_id:
                return result
            pieces = []
            while not pieces or not tokenizer.word_complete(pieces, "word"):
                full = len(state.target_ids) - 1 >= limits.max_len_a * len(state.source_ids) + limits.max_len_b
                if pieces and (len(pieces) == 64 or (closed and full)):
                    break
                state, logits = state.logits()
                pieces.append(int((logits + engine.inner_ban).argmax()))
                state = state.write(pieces[-1])
            result.append(("".join(tokenizer.decode(pieces).split()), state))

    for position, word in enumerate(sentence):
        closed = position == len(sentence) - 1
        state = state.read([*tokenizer.encode_word(word), *([tokenizer.eos_id] if closed else [])])
        tail = decode(state, closed)
        hypothesis = written + [text for text, _ in tail]
        if closed:
            agreed = len(hypothesis)
        else:
            agreed = len(written)
            while before and agreed < min(len(before), len(hypothesis)) and before[agreed] == hypothesis[agreed]:
                agreed += 1
        if agreed > len(written):
            state = tail[agreed - len(written) - 1][1]
        output.append(hypothesis[len(written) : agreed])
        written, before = hypothesis[:agreed], hypothesis
    return output


@ENGINES
@pytest.mark.parametrize("strength", [0.0, 12.0])
@torch.inference_mode()
def test_local_agreement_equals_a_plain_loop(make, tokenizer, strength):
    """strength: of a fixed preference for some pieces, which makes consecutive hypotheses of random weights agree."""
    engine = make(tokenizer, Limits(0.7, 6))
    taste = strength * torch.randn(len(engine.first_ban), generator=torch.Generator().manual_seed(3))
    engine.first_ban, engine.inner_ban = engine.first_ban + taste, engine.inner_ban + taste
    early = 0
    for source, _ in demo_pairs()[:3]:
        expected = plain_local_agreement(engine, source.split())
        words, delays = translate(engine, source, LocalAgreement())
        assert words == [word for part in expected for word in part if word]
        assert delays == [read for read, part in enumerate(expected, 1) for word in part if word]
        early += sum(map(len, expected[:-1]))
    assert early or not strength


@ENGINES
def test_every_model_call_counts(make, tokenizer):
    """Calls of the embedding, which each model call makes once, against `steps`: hypotheses are not free."""
    engine, calls = make(tokenizer), []
    for policy in (WaitK(2), LocalAgreement(), Confidence(0.3)):
        stream = engine.open()
        hook = engine.model.get_input_embeddings().register_forward_hook(lambda *_: calls.append(1))
        calls.clear()
        for position, word in enumerate(SOURCE.split()):
            stream.read(word, finished=position == 5)
            list(stream.advance(policy))
        hook.remove()
        calls_of_grid = 2 if make is grid_engine else 1  # rows and columns
        assert stream.steps * calls_of_grid == len(calls)


@ENGINES
def test_restoring_takes_no_step_back(make, tokenizer):
    stream = make(tokenizer).open()
    stream.read("Wir fahren")
    start, before = stream.snapshot(), stream.steps
    stream.write()
    further, after = stream.snapshot(), stream.steps
    assert after > before
    stream.restore(start)
    assert stream.steps == after and stream.words_written == 0
    stream.restore(further)  # kept, so nothing is computed again
    assert stream.steps == after and stream.words_written == 1


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


def test_policies_refuse_values_out_of_range():
    for make in (
        lambda: EmitHeadPolicy(0.0),
        lambda: EmitHeadPolicy(-1e-3),
        lambda: EmitHeadPolicy(0.1, 1.5),
        lambda: WaitK(0),
    ):
        with pytest.raises(ValueError):
            make()
