"""Cells computed step by step: equal to the whole grid, each once, in linear time and little memory."""

import random

import pytest
import torch
from conftest import random_walk, tiny_grid, tiny_lm, tokens
from torch.utils.flop_counter import FlopCounterMode

from duplex_model.data import collate, make_example
from duplex_model.lm import prefix_mask
from duplex_model.states import GridState, LmState

LAM = torch.tensor([0.01, 0.1])


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("seed", range(4))
def test_streams_equal_the_grid(dtype, tolerance, seed):
    """Random reads and writes of several rows at once, three streams interleaved over one model."""
    grid = tiny_grid(seed, dtype, qkv_bias=seed % 2 == 1, input_cross_attention=seed % 3 != 2)
    rng = random.Random(seed)
    sentences = [tokens(rng.randint(2, 12), rng.randint(2, 12), B=1, seed=10 * seed + i) for i in range(3)]
    with torch.no_grad():
        walks = []
        for source, target in sentences:
            block = grid(source, target)
            whole = grid.lm_logits(block.outputs)[0], grid.emit_logits(block, LAM.to(dtype))[:, 0]
            source, target = source[0].tolist(), target[0].tolist()
            walks.append((random_walk(GridState.start(grid, source[:1], target[0]), source, target, rng), whole))
        steps = 0
        while walks:
            walk, (logits, emit) = rng.choice(walks)
            try:
                state, x, y = next(walk)
            except StopIteration:
                walks = [other for other in walks if other[0] is not walk]
                continue
            steps += 1
            torch.testing.assert_close(
                grid.lm_logits(state.cell.outputs)[0, 0, 0], logits[x - 1, y - 1], rtol=0, atol=tolerance
            )
            cell = grid.emit_logits(state.cell, LAM.to(dtype))[:, 0, 0, 0]
            torch.testing.assert_close(cell, emit[:, x - 1, y - 1], rtol=0, atol=tolerance)
    assert steps > 10


def test_long_lines_take_the_scan_and_equal_the_grid():
    grid = tiny_grid(num_hidden_layers=2, anchor=200)
    source, target = tokens(150, 80, B=1)
    with torch.no_grad():
        block = grid(source, target)
        start = GridState.start(grid, source[0, :1].tolist(), target[0, 0].item())
        state = start.read(source[0, 1:-1].tolist())
        for token in target[0, 1:].tolist():
            state = state.write(token)
        state = state.read(source[0, -1:].tolist())
    torch.testing.assert_close(state.cell.outputs[0, 0, 0], block.outputs[0, -1, -1], rtol=0, atol=1e-10)
    torch.testing.assert_close(state.cell.inputs[0, 0, 0], block.inputs[0, -1, -1], rtol=0, atol=1e-10)


def test_every_cell_is_computed_once():
    """Hooks count cells: the MLP and q_proj of each (stream, cell) run exactly once, whatever the path. Layer 0's
    states are a token's alone, so its q_proj runs once a token and block, never more often than once a cell; the last
    layer's MLP runs for the one cell of a block that decides."""
    grid, rng = tiny_grid(), random.Random(5)
    source, target = (ids[0].tolist() for ids in tokens(11, 9, B=1))
    counts = {}

    def count(name):
        def hook(module, inputs, output):
            counts[name] = counts.get(name, 0) + output.shape[:-1].numel()

        return hook

    for index, layer in enumerate(grid.model.layers):
        layer.self_attn.q_proj.register_forward_hook(count(f"q{index}"))
        layer.mlp.register_forward_hook(count(f"mlp{index}"))
    with torch.no_grad():
        *_, (state, _, _) = random_walk(GridState.start(grid, source[:1], target[0]), source, target, rng)
    cells, q_0 = 2 * 11 * 9, counts.pop("q0")
    assert counts == {**dict.fromkeys(("q1", "q2", "mlp0", "mlp1"), cells), "mlp2": 2 * state.steps}
    assert 0 < q_0 < cells


@pytest.mark.parametrize("kind,rows", [("emit", []), ("wait", [7]), ("wait", [7, 8, 9])])
def test_a_step_s_matmul_flops_are_linear(kind, rows):
    grid = tiny_grid(dtype=torch.float32, num_hidden_layers=2, anchor=600)
    lengths, flops = [64, 96, 128, 200, 256, 384, 512], []
    with torch.no_grad():
        for n in lengths:
            x, y = (n, 5) if kind == "emit" else (5, n)
            source, target = (ids[0].tolist() for ids in tokens(x, y, B=1))
            block = grid(torch.tensor([source]), torch.tensor([target]))
            state = GridState(grid, 600, tuple(source), tuple(target), block.cache)
            with FlopCounterMode(display=False) as counter:
                state.write(7) if kind == "emit" else state.read(rows)
            flops.append(counter.get_total_flops())
    a, b = (
        torch.linalg.lstsq(torch.tensor([[1.0, n] for n in lengths]).double(), torch.tensor(flops).double()[:, None])
        .solution.flatten()
        .tolist()
    )
    assert b > 0
    for n, count in zip(lengths, flops, strict=True):
        assert abs(a + b * n - count) <= 0.01 * count


def test_cache_size_at_the_paper_s_shape():
    """K and V in 16 bit, statistics in float32: at most 26.2 MB in total (eq. 42). On the meta device: only sizes."""
    grid = tiny_grid(
        dtype=torch.bfloat16, num_hidden_layers=24, hidden_size=14 * 64, num_attention_heads=14, num_key_value_heads=2,
        intermediate_size=8, qkv_bias=True, anchor=512,
    )  # fmt: skip
    with torch.no_grad(), torch.device("meta"):
        cache = grid.to("meta")(*(torch.zeros(1, 128, dtype=torch.long) for _ in range(2))).cache
    size, kinds = 0, {}
    for layer in cache:
        for stream in layer:
            for name, tensor in [("k", stream.k), ("v", stream.v), *stream.stats._asdict().items()]:
                size += tensor.numel() * tensor.element_size()
                kinds.setdefault(name, set()).add(tensor.dtype)
    assert kinds == {**{n: {torch.bfloat16} for n in "kv"}, **{n: {torch.float32} for n in "mZS"}}
    assert size == 24 * 256 * (2 * 2 * 64 * 2 + 14 * (2 + 64) * 4)
    assert size <= 26.2e6


def test_lm_stream_equals_one_forward_pass(tokenizer):
    """Incremental keys, prefix masks and anchored positions equal the training forward under the same schedule."""
    lm = tiny_lm(vocab_size=tokenizer.vocab_size)
    example = make_example(tokenizer, "Wir fahren morgen nach Berlin", "We are going to Berlin tomorrow")
    batch = collate([example])
    X, Y = len(example.source), len(example.target) - 1
    positions = torch.cat([torch.arange(X), 64 + torch.arange(Y)])
    for k in (1, 2, 4):
        with torch.no_grad():
            hidden = lm.model(
                input_ids=torch.cat([batch.source_ids, batch.target_ids[:, :-1]], 1),
                attention_mask=prefix_mask(batch, torch.tensor([k])),
                position_ids=positions[None],
            ).last_hidden_state
            expected = lm.lm_head(hidden)[0, X:]
            state, read = LmState.start(lm, example.source[:1], example.target[0]), 0
            for column in range(Y):
                visible = [i for i, word in enumerate(example.source_word) if word < k + example.target_word[column]]
                if len(visible) - 1 > read:
                    state = state.read([example.source[i] for i in visible[1 + read :]])
                    read = len(visible) - 1
                state, logits = state.logits()
                torch.testing.assert_close(logits.double(), expected[column], rtol=0, atol=1e-5)
                if column + 1 < Y:
                    state = state.write(example.target[column + 1])
