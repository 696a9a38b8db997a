import pytest
import torch
from conftest import tiny_config, tiny_grid, tiny_lm, tokens
from transformers import AutoConfig, AutoModelForCausalLM

from duplex_model.config import DuplexConfig
from duplex_model.exact import exact_forward
from duplex_model.layers import last_cell, only_rows
from duplex_model.model import DuplexModel


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "family", [{}, {"attention_bias": True, "mlp_bias": True}, {"qkv_bias": True}, {"qk_norm": True}]
)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_input_column_0_is_the_causal_lm(family, tied, kv_heads):
    overrides = {"tie_word_embeddings": tied, "num_key_value_heads": kv_heads, **family}
    lm = tiny_lm(dtype=torch.float32, **overrides)
    for name, parameter in lm.named_parameters():
        if name.endswith("bias"):  # they start at zero
            torch.nn.init.normal_(parameter, std=0.5)
    grid = DuplexModel.from_causal_lm(lm, anchor=64)
    source, target = tokens(9, 4)
    with torch.no_grad():
        logits = grid.lm_logits(grid(source, target).inputs[:, :, 0])
        expected = lm(source).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_the_anchor_places_the_output():
    """An int, a tensor and the config's anchor mean the same, and another anchor another result."""
    lm = tiny_lm(num_hidden_layers=1)
    grid = DuplexModel.from_causal_lm(lm, anchor=64)
    source, target = tokens(1, 5)
    shifted = DuplexModel.from_causal_lm(lm, anchor=65)
    with torch.no_grad():
        at_64 = grid(source, target).outputs
        assert torch.equal(at_64, shifted(source, target, anchor=64).outputs)
        assert torch.equal(at_64, shifted(source, target, anchor=torch.tensor([64, 64])).outputs)
        assert not torch.allclose(at_64, shifted(source, target).outputs)


def test_with_one_layer_both_streams_are_the_causal_lm():
    """Column y of row x of the output stream is s_0..s_x, then t_0..t_y at the anchor's positions; of the input stream,
    whose cross attention leaves the seed out, t_1..t_y, then s_0..s_x."""
    lm = tiny_lm(dtype=torch.float32, num_hidden_layers=1)
    grid = DuplexModel.from_causal_lm(lm, anchor=64)
    source, target = tokens(6, 5)
    rows, columns = torch.arange(6), 64 + torch.arange(5)

    def plain(ids, positions):
        return lm(ids, attention_mask=torch.ones_like(ids), position_ids=positions.expand_as(ids)).logits

    with torch.no_grad():
        block = grid(source, target)
        for x in range(6):
            expected = plain(torch.cat([source[:, : x + 1], target], 1), torch.cat([rows[: x + 1], columns]))
            found = grid.lm_logits(block.outputs[:, x])
            torch.testing.assert_close(found, expected[:, x + 1 :], rtol=0, atol=1e-5)
        for y in range(5):
            expected = plain(torch.cat([target[:, 1 : y + 1], source], 1), torch.cat([columns[1 : y + 1], rows]))
            torch.testing.assert_close(grid.lm_logits(block.inputs[:, :, y]), expected[:, y:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers,X,Y", [(1, 6, 5), (1, 1, 7), (1, 7, 1), (3, 1, 1)])
def test_equals_the_exact_form(layers, X, Y):
    grid = tiny_grid(num_hidden_layers=layers)
    with torch.no_grad():
        block, exact = grid(*tokens(X, Y)), exact_forward(grid, *tokens(X, Y))
    torch.testing.assert_close(block.inputs, exact[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(block.outputs, exact[1], rtol=0, atol=1e-10)


def test_without_input_cross_attention_the_input_stream_is_the_causal_lm_in_every_column():
    grid = tiny_grid(input_cross_attention=False)
    source, target = tokens(6, 5)
    with torch.no_grad():
        block, alone, exact = grid(source, target), grid(source, target[:, :1]), exact_forward(grid, source, target)
    torch.testing.assert_close(block.inputs, alone.inputs.expand_as(block.inputs), rtol=0, atol=1e-10)
    torch.testing.assert_close(exact[0], block.inputs, rtol=0, atol=1e-10)
    assert (tiny_grid()(source, target).inputs - block.inputs)[:, :, 1:].abs().max() > 1e-3


def test_the_emit_head_may_read_the_output_stream_alone():
    grid = tiny_grid(emit_reads_input=False)
    with torch.no_grad():
        block, lam = grid(*tokens(4, 3)), torch.tensor([0.05], dtype=torch.float64)
        logits = grid.emit_logits(block, lam)
        assert torch.equal(grid.emit_logits(block._replace(inputs=block.inputs + 1), lam), logits)


def test_two_layers_differ_from_the_exact_form_but_not_in_input_column_0():
    grid = tiny_grid(num_hidden_layers=2)
    with torch.no_grad():
        block, exact = grid(*tokens(6, 5)), exact_forward(grid, *tokens(6, 5))
    torch.testing.assert_close(block.inputs[:, :, 0], exact[0][:, :, 0], rtol=0, atol=1e-10)
    assert (block.inputs - exact[0])[:, 1:, 1:].abs().max() > 1e-3
    assert (block.outputs - exact[1])[:, 1:, 1:].abs().max() > 1e-3


def test_causality_bit_for_bit():
    grid = tiny_grid()
    source, target = tokens(6, 5)
    with torch.no_grad():
        before = grid(source, target)
        for x in range(5):
            changed = source.clone()
            changed[:, x + 1 :] = changed[:, x + 1 :].roll(1) + 1
            after = grid(changed, target)
            assert torch.equal(after.outputs[:, : x + 1], before.outputs[:, : x + 1])
            assert torch.equal(after.inputs[:, : x + 1], before.inputs[:, : x + 1])
            assert not torch.allclose(after.outputs[:, x + 1], before.outputs[:, x + 1])
        for y in range(4):
            changed = target.clone()
            changed[:, y + 1 :] = changed[:, y + 1 :].roll(1) + 1
            after = grid(source, changed)
            assert torch.equal(after.outputs[:, :, : y + 1], before.outputs[:, :, : y + 1])
            assert torch.equal(after.inputs[:, :, : y + 1], before.inputs[:, :, : y + 1])
            assert not torch.allclose(after.inputs[:, :, y + 1], before.inputs[:, :, y + 1])


def test_kept_cells_are_the_grid_s_cells():
    grid = tiny_grid()
    source, target = tokens(6, 5)
    rows = torch.tensor([[0, 2, 5], [1, 2, 3]])
    with torch.no_grad():
        whole, kept = grid(source, target), grid(source, target, keep=only_rows(rows))
        last = grid(source, target, keep=last_cell)
    for all_cells, some, one in zip(whole[:2], kept[:2], last[:2], strict=True):
        for sentence in range(2):
            torch.testing.assert_close(some[sentence], all_cells[sentence, rows[sentence]], rtol=0, atol=1e-12)
        torch.testing.assert_close(one, all_cells[:, -1:, -1:], rtol=0, atol=1e-12)


def test_no_nan_at_extreme_scores():
    grid = tiny_grid(dtype=torch.float32, num_hidden_layers=2)
    with torch.no_grad():
        for layer in grid.model.layers:
            layer.self_attn.q_proj.weight *= 300
            layer.self_attn.k_proj.weight *= 300
    block = grid(*tokens(6, 5))
    grid.emit_logits(block, torch.tensor([0.03])).sum().backward()
    assert block.outputs.isfinite().all() and block.inputs.isfinite().all()
    assert all(p.grad.isfinite().all() for p in grid.parameters() if p.grad is not None)


def test_saves_and_loads_like_a_transformers_model(tmp_path):
    grid = tiny_grid(dtype=torch.float32, qkv_bias=True, tie_word_embeddings=True)
    grid.save_pretrained(tmp_path)
    loaded = DuplexModel.from_pretrained(tmp_path)
    place = {"dtype": None, "_name_or_path": None}
    assert loaded.config.to_dict() | place == grid.config.to_dict() | place
    with torch.no_grad():
        assert torch.equal(loaded(*tokens(4, 3)).outputs, grid(*tokens(4, 3)).outputs)


def test_emit_head_takes_any_number_of_prices():
    grid = tiny_grid()
    with torch.no_grad():
        block = grid(*tokens(4, 3))
        together = grid.emit_logits(block, torch.tensor([0.01, 0.1], dtype=torch.float64))
        alone = [grid.emit_logits(block, torch.tensor([lam], dtype=torch.float64))[0] for lam in (0.01, 0.1)]
    assert together.shape == (2, 2, 4, 3) and not torch.allclose(*alone)
    torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=1e-12)


def test_a_head_trained_at_one_price_is_smooth_around_it():
    grid = tiny_grid(lam_min=0.1, lam_max=0.1)
    with torch.no_grad():
        logits = grid.emit_logits(grid(*tokens(4, 3)), torch.tensor([0.1, 0.1001, 0.03], dtype=torch.float64))
    assert (logits[0] - logits[1]).abs().max() < 0.01 and (logits[0] - logits[2]).abs().max() < 10


def test_lm_config_round_trip():
    for overrides in ({}, {"qkv_bias": True}, {"qk_norm": True}):
        config = tiny_config(**overrides)
        lm = AutoModelForCausalLM.from_config(config.lm_config())
        back = DuplexConfig.from_backbone(AutoConfig.for_model(**lm.config.to_dict()), anchor=config.anchor)
        assert back.to_dict() == config.to_dict()
