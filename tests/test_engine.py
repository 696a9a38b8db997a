"""Streams: reading, writing, waiting and ending, alone and interleaved."""

import pytest
import torch
from conftest import ENGINES, grid_engine, only_end

from duplex_model.engine import Limits, translate
from duplex_model.policies import EmitHeadPolicy, Offline, WaitK

SENTENCE = "Wir fahren morgen nach Berlin"


def outputs(engine, source, policy):
    """The words written after each source word."""
    stream = engine.open()
    written = [list(stream.advance(policy)) for _ in stream.feed(source)]
    assert stream.target_finished
    return written


@ENGINES
def test_a_sentence_is_translated_to_its_end_with_its_delays(make, tokenizer):
    engine = make(tokenizer)
    written = outputs(engine, SENTENCE, WaitK(2))
    words, delays = translate(engine, SENTENCE, WaitK(2))
    assert len(written) == 5 and words == sum(written, [])
    assert delays == [read for read, words in enumerate(written, 1) for _ in words]


@ENGINES
def test_wait_k_follows_its_schedule(make, tokenizer):
    engine = make(tokenizer)
    engine.limits = Limits(1.5, 200)
    engine.first_ban[tokenizer.eos_id] = -torch.inf  # a model that would end early waits instead
    output = outputs(engine, "Heute gehen wir mit den Kindern in den Park", WaitK(3))
    assert [len(words) for words in output[:-1]] == [0, 0, 1, 1, 1, 1, 1, 1]


@ENGINES
def test_an_end_predicted_while_reading_is_a_wait(make, tokenizer):
    stream = only_end(make(tokenizer)).open()
    stream.read("Wir fahren")
    assert list(stream.advance(WaitK(1))) == [] and stream.write() is None and not stream.target_finished
    stream.finish()
    assert list(stream.advance(WaitK(1))) == [] and stream.target_finished


@ENGINES
def test_reading_everything_first_does_not_depend_on_the_block_sizes(make, tokenizer):
    engine = make(tokenizer)
    at_once = engine.open()
    at_once.read(SENTENCE, finished=True)
    by_word = outputs(engine, SENTENCE, Offline())
    assert list(at_once.advance(Offline())) == by_word[-1] and not any(by_word[:-1])


def test_emit_head_emits_everything_or_nothing_at_the_ends_of_theta(tokenizer):
    engine = grid_engine(tokenizer)
    assert not any(outputs(engine, SENTENCE, EmitHeadPolicy(0.03, theta=1.0))[:-1])
    assert outputs(engine, SENTENCE, EmitHeadPolicy(0.03, theta=0.0))[0]


@ENGINES
def test_snapshots_restore(make, tokenizer):
    stream = make(tokenizer).open()
    stream.read("Wir fahren")
    stream.write()
    snapshot = stream.snapshot()
    before = stream.next_logits()
    stream.read("morgen nach Berlin", finished=True)
    first = list(stream.advance(Offline()))
    stream.restore(snapshot)
    assert torch.equal(stream.next_logits(), before) and stream.words_read == 2
    stream.read("morgen nach Berlin", finished=True)
    assert list(stream.advance(Offline())) == first


@ENGINES
def test_interleaved_streams_equal_separate_ones(make, tokenizer):
    engine = make(tokenizer)
    sentences = ["Ich sehe den Hund", "Tom kommt heute nicht mit", "Wo ist sie"]
    alone = [outputs(engine, source, WaitK(2)) for source in sentences]
    streams = [engine.open() for _ in sentences]
    feeds, together = [stream.feed(source) for stream, source in zip(streams, sentences, strict=True)], [[], [], []]
    for _ in range(5):
        for stream, feed, output in zip(streams, feeds, together, strict=True):
            if next(feed, None):
                output.append(list(stream.advance(WaitK(2))))
    assert together == alone


def test_special_tokens_never_come_and_a_model_without_eos_is_cut(tokenizer):
    engine = grid_engine(tokenizer)
    engine.first_ban[tokenizer.eos_id] = -torch.inf  # a model that never ends
    stream = engine.open()
    stream.read(SENTENCE, finished=True)
    words = list(stream.advance(Offline()))
    assert words and stream.target_finished
    assert stream.y_gen - 1 == stream.x_vis + 4
    assert not set(stream.state.target_ids[1:]) & set(tokenizer.special_ids)


def test_a_limit_reached_early_waits_for_more_source(tokenizer):
    engine = grid_engine(tokenizer)
    engine.first_ban[tokenizer.eos_id] = -torch.inf
    stream = engine.open()
    stream.read("Wir")
    list(stream.advance(EmitHeadPolicy(0.03, theta=0.0)))
    assert not stream.can_write and not stream.target_finished
    assert stream.y_gen - 1 >= stream.x_vis + 4
    assert tokenizer.word_complete(stream.state.target_ids[-1:], "word")  # no word is cut while the source is open
    stream.read("fahren und gehen dann wieder nach Hause")
    assert stream.can_write


def test_a_word_that_fails_leaves_the_stream_as_it_was(tokenizer, monkeypatch):
    stream = grid_engine(tokenizer).open()
    stream.read("Wir fahren")
    before = stream.snapshot()

    def fail(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(type(stream.state), "read", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            stream.read("heim", finished=True)
    assert stream.snapshot() == before
    stream.read("heim", finished=True)
    assert stream.source_finished and stream.words_read == 3


def test_composed_and_decomposed_letters_are_the_same_source(tokenizer):
    engine = grid_engine(tokenizer)
    composed, decomposed, broken, mark = (engine.open() for _ in range(4))
    composed.read("T\u00fcr")
    decomposed.read("Tu\u0308r")
    assert composed.state.source_ids == decomposed.state.source_ids
    broken.read("\ud83d")  # half of an emoji
    mark.read("?")
    assert broken.words_read == 1 and broken.state.source_ids == mark.state.source_ids


def test_misuse_is_refused(tokenizer):
    stream = grid_engine(tokenizer).open()
    with pytest.raises(ValueError, match="read a word first"):
        stream.write()
    stream.read("Wir", finished=True)
    with pytest.raises(ValueError, match="finished"):
        stream.read("fahren")
    with pytest.raises(ValueError, match="source length"):
        grid_engine(tokenizer, anchor="oracle").open()


def test_the_oracle_anchor_needs_the_source_length(tokenizer):
    engine = grid_engine(tokenizer, anchor="oracle")
    stream = engine.open(source_length=12)
    stream.read("Wir fahren", finished=True)
    assert stream.state.anchor == 12
    fixed = grid_engine(tokenizer, anchor=12).open()
    fixed.read("Wir fahren", finished=True)
    assert torch.equal(stream.next_logits(), fixed.next_logits())
