"""Confidence and local agreement: by hand, and against separately written plain versions."""

import pytest
import torch
from conftest import ENGINES, demo_pairs, grid_engine, only_end

from duplex_model.engine import Limits, translate
from duplex_model.policies import Confidence, EmitHeadPolicy, LocalAgreement, Offline, WaitK

SOURCE = "Wir fahren morgen alle nach Berlin"


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


def test_policies_refuse_values_out_of_range():
    for make in (
        lambda: EmitHeadPolicy(0.0),
        lambda: EmitHeadPolicy(-1e-3),
        lambda: EmitHeadPolicy(0.1, 1.5),
        lambda: WaitK(0),
    ):
        with pytest.raises(ValueError):
            make()
