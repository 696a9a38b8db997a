"""Pretrained LLMs as backbones: tiny random models of each family, saved with a tokenizer and loaded by folder."""

import random

import pytest
import torch
from conftest import TINY, random_walk
from tiny_tokenizers import fast_tokenizer
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    logging,
)

from duplex_model.backbone import load_config, load_lm, load_tokenizer
from duplex_model.config import DuplexConfig
from duplex_model.engine import Engine
from duplex_model.model import DuplexModel
from duplex_model.policies import EmitHeadPolicy, Offline, WaitK
from duplex_model.states import GridState
from duplex_model.tokenizer import EOS
from evaluation.examples import example_of

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32, "rope_theta": 500.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1000.0}
FAMILIES = {
    "llama": LlamaConfig(**TINY),
    "llama with biases and llama3 RoPE": LlamaConfig(
        **TINY, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3
    ),
    "smollm2": LlamaConfig(
        **TINY, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e5}
    ),
    "mistral": MistralConfig(**TINY, sliding_window=4096),
    "mistral without window": MistralConfig(**TINY, sliding_window=None, head_dim=24),
    "qwen2": Qwen2Config(**TINY, tie_word_embeddings=True),
    "qwen2 with yarn": Qwen2Config(**TINY, rope_parameters=YARN),
    "qwen3": Qwen3Config(**TINY, head_dim=16, tie_word_embeddings=True),
    "qwen3 with biases": Qwen3Config(**TINY, head_dim=16, attention_bias=True),
}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    """A model folder as a hub has it: a random causal LM of the family, float32, and a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("backbone")
    config = FAMILIES[request.param]
    config.vocab_size = 720  # the tokenizer has 700 pieces: such tables are often padded
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(config)
    for name, parameter in lm.named_parameters():
        if name.endswith(("bias", "norm.weight")):  # they start at 0 and 1
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.5)
    lm.save_pretrained(folder)
    fast_tokenizer("qwen").save_pretrained(folder)
    return folder


def sentence_ids(tokenizer, text):
    return [*tokenizer.start_ids, *tokenizer.encode(text), tokenizer.eos_id]


def test_input_column_0_is_the_pretrained_causal_lm(folder):
    tokenizer = load_tokenizer(folder)
    grid, lm = DuplexModel.from_backbone(folder, anchor=64), AutoModelForCausalLM.from_pretrained(folder)
    source = torch.tensor([sentence_ids(tokenizer, "Ich rufe dich morgen an.")])
    target = torch.tensor([[tokenizer.seed_id, *tokenizer.encode("I will call you")]])
    with torch.no_grad():
        logits, expected = grid.lm_logits(grid(source, target).inputs[:, :, 0]), lm(source).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_a_pad_token_that_is_read_is_trained(folder):
    """Models without a pad token of their own name EOS as one, and `transformers` would not train its embedding."""
    lm = load_lm(folder, load_config(folder))
    pad = lm.config.pad_token_id
    lm.model(torch.tensor([[pad, 5, 6]])).last_hidden_state.sum().backward()  # not through a tied head
    assert lm.get_input_embeddings().weight.grad[pad].abs().max() > 0


def test_the_engine_equals_the_grid(folder):
    """Random words read and tokens written, from a prompt of several rows, against the whole grid at once."""
    tokenizer = load_tokenizer(folder, prompt="Translate into English:")
    grid = DuplexModel.from_backbone(folder, anchor=64)
    source = sentence_ids(tokenizer, "Wir fahren morgen alle nach Berlin.")
    target = [tokenizer.seed_id, *tokenizer.encode("We all go to Berlin tomorrow.")]
    start, rng = len(tokenizer.start_ids), random.Random(1)
    assert start > 3
    with torch.no_grad():
        whole = grid.lm_logits(grid(torch.tensor([source]), torch.tensor([target])).outputs)[0]
        for state, x, y in random_walk(GridState.start(grid, source[:start], target[0]), source, target, rng):
            torch.testing.assert_close(state.logits()[1], whole[x - 1, y - 1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("policy", [WaitK(2), EmitHeadPolicy(0.05), Offline()])
def test_words_are_written_whole(folder, policy):
    """Each written word is one opening piece and its continuations; after it only an opening piece or EOS may come."""
    tokenizer = load_tokenizer(folder, prompt="Translate:")
    engine = Engine(DuplexModel.from_backbone(folder, anchor=128), tokenizer)
    stream, words = engine.open(), []
    sentence = "Wir fahren morgen alle nach Berlin.".split()
    for position, word in enumerate(sentence):
        stream.read(word, finished=position == len(sentence) - 1)
        words += stream.advance(policy)
    ids = list(stream.state.target_ids[1:])
    assert words and stream.target_finished
    opened = [i for i, piece in enumerate(ids) if piece in tokenizer.opening_ids]
    assert opened[0] == 0 and len(opened) == stream.words_written
    spelled = [tokenizer.decode(ids[a:b]) for a, b in zip(opened, [*opened[1:], len(ids)], strict=True)]
    assert ["".join(text.split()) for text in spelled if text] == words
    assert not set(ids) & set(tokenizer.special_ids) and max(ids) < tokenizer.vocab_size


def test_the_wait_k_lm_of_a_backbone_writes_what_the_plain_causal_lm_writes(folder):
    """Offline: the LM reads the source, then decodes greedily; `transformers`' own model without a cache agrees."""
    tokenizer = load_tokenizer(folder)
    lm = load_lm(folder, load_config(folder, anchor=64))
    plain = AutoModelForCausalLM.from_pretrained(folder)
    stream = Engine(lm, tokenizer).open()
    stream.read("Ich rufe dich morgen an.", finished=True)
    words = list(stream.advance(Offline()))
    source = sentence_ids(tokenizer, "Ich rufe dich morgen an.")
    target, engine = [tokenizer.seed_id], Engine(lm, tokenizer)
    positions = [*range(len(source)), *range(64, 64 + 64)]
    inside, limit = False, 1.5 * (len(source)) + 20
    while len(target) - 1 < limit:
        ids = torch.tensor([source + target])
        with torch.no_grad():
            logits = plain(ids, position_ids=torch.tensor([positions[: ids.shape[1]]])).logits[0, -1]
        if (logits + engine.first_ban).argmax() == tokenizer.eos_id and not inside:
            break
        token = (logits + (engine.inner_ban if inside else engine.first_ban)).argmax().item()
        if inside and token in engine.word_enders:
            inside = False
            continue
        target.append(token)
        inside = True
    assert words and list(stream.state.target_ids) == target


@pytest.mark.parametrize(
    "config,message",
    [
        (GemmaConfig(), "'gemma' is not supported; use one of llama, mistral, qwen2, qwen3"),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), "RoPE .*dynamic"),
        (MistralConfig(sliding_window=1000), "sliding window of 1000 tokens .* 1300"),
        (Qwen2Config(use_sliding_window=True, sliding_window=512, max_window_layers=2), "sliding window of 512 tokens"),
    ],
)
def test_unsupported_backbones_are_refused_by_name(config, message, tmp_path):
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_config(tmp_path)  # before any weights are read


def test_a_window_that_holds_source_and_output_is_none():
    config = DuplexConfig.from_backbone(MistralConfig(**TINY, sliding_window=200), anchor=64)
    assert not hasattr(config.lm_config(), "sliding_window")
    with pytest.raises(ValueError, match="sliding window"):
        DuplexConfig.from_backbone(MistralConfig(**TINY, sliding_window=200), anchor="oracle")


def test_weights_that_do_not_fit_are_refused(tmp_path):
    AutoModelForCausalLM.from_config(LlamaConfig(**TINY)).save_pretrained(tmp_path)
    logging.set_verbosity_error()
    config = load_config(tmp_path)
    config.num_hidden_layers = 4
    with pytest.raises(ValueError, match="do not fit .*layers.3"):
        load_lm(tmp_path, config)


def test_a_missing_model_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the variable of this name, once imported
    with pytest.raises(FileNotFoundError, match="neither a model folder nor in the local cache.*hf download nobody/no"):
        DuplexModel.from_backbone("nobody/no-such-model")
    for name in (tmp_path / "config.json", tmp_path / "model.gguf"):
        with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
            load_config(name if name.suffix == ".gguf" else tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_16_bit_keep_their_angles(folder, dtype):
    grid = DuplexModel.from_backbone(folder, dtype=dtype, anchor=64)
    assert {p.dtype for p in grid.parameters()} == {dtype} and grid.model.rotary_emb.inv_freq.dtype == torch.float32
    engine = Engine(DuplexModel.from_backbone(folder, anchor=64), load_tokenizer(folder)).to("cpu", dtype)
    assert engine.model.model.rotary_emb.inv_freq.dtype == torch.float32
    source = torch.arange(5, 15)[None]
    with torch.no_grad():
        for one, other in zip(engine.model(source, source)[:2], grid(source, source)[:2], strict=True):
            assert torch.equal(one, other) and one.dtype == torch.float32
        assert grid.lm_logits(grid(source, source).outputs).dtype == torch.float32
        assert grid.emit_logits(grid(source, source), torch.tensor([0.05])).isfinite().all()


def test_an_example_grid_with_a_prompt_and_a_padded_table(folder):
    """Rows are the source's words, columns the output's pieces; the prompt has no decision rows."""
    engine = Engine(DuplexModel.from_backbone(folder, anchor=128), load_tokenizer(folder, prompt="Translate it now:"))
    line = "Ich rufe dich morgen an."
    example = example_of(engine, 1, line, EmitHeadPolicy(0.05))
    assert example["rows"] == [*line.split(), EOS]
    assert len(example["columns"]) == len(example["heatmap"][0]) == len(example["wait_ok"]) - 1
    ends = [not following.startswith("@@") for following in example["columns"][1:]]
    assert example["wait_ok"][1:-1] == ends


def test_more_pieces_than_embeddings_are_refused(tmp_path):
    AutoModelForCausalLM.from_config(LlamaConfig(**TINY, vocab_size=699)).save_pretrained(tmp_path)
    fast_tokenizer("qwen").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="700 pieces but the model's embeddings 699 rows"):
        Engine(DuplexModel.from_backbone(tmp_path), load_tokenizer(tmp_path))


def test_a_prompt_that_fills_the_anchor_is_refused(folder):
    tokenizer = load_tokenizer(folder, prompt="Translate it into English. " * 3)
    with pytest.raises(ValueError, match="no room below the anchor 20"):
        Engine(DuplexModel.from_backbone(folder, anchor=20), tokenizer)
