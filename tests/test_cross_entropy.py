import pytest
import torch
import torch.nn.functional as F

from duplex_model import cross_entropy
from duplex_model.cross_entropy import token_losses


def tensors(dtype, N=37, D=16, V=50):
    generator = torch.Generator().manual_seed(0)
    states, weight = (torch.randn(n, D, generator=generator, dtype=dtype).requires_grad_() for n in (N, V))
    return states, weight, torch.randint(V, (N,), generator=generator)


def values_and_gradients(function, weights, dtype=torch.float64):
    states, weight, labels = tensors(dtype)
    losses = function(states, weight, labels)
    (losses * weights).sum().backward()
    return losses, states.grad, weight.grad


def plain(states, weight, labels):
    return F.cross_entropy(F.linear(states, weight).float(), labels, reduction="none")


@pytest.mark.parametrize("rows_a_chunk", [1, 5, 1000])
def test_equals_cross_entropy(rows_a_chunk, monkeypatch):
    monkeypatch.setitem(cross_entropy.CHUNK_BYTES, "cpu", rows_a_chunk * 4 * 50)
    weights = torch.randn(37, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights[::3] = 0.0  # losses that nobody uses

    def wanted(states, weight, labels):
        return F.cross_entropy(F.linear(states, weight), labels, reduction="none")

    for ours, theirs in zip(
        values_and_gradients(token_losses, weights), values_and_gradients(wanted, weights), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_no_rows_and_no_gradient():
    states, weight, labels = tensors(torch.float32)
    losses = token_losses(states[:0], weight, labels[:0])
    losses.sum().backward()
    assert losses.shape == (0,) and not weight.grad.any()


def test_autocast_gives_float32_losses_near_the_plain_ones():
    weights = torch.ones(37)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (values_and_gradients(f, weights, torch.float32) for f in (token_losses, plain))
    assert [part.dtype for part in ours] == [torch.float32] * 3
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-5)
    for part, expected in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(part, expected, rtol=0.05, atol=0.05)


def test_large_logits_do_not_overflow():
    states, weight = torch.full((1, 1), 100.0), torch.tensor([[30.0], [-30.0]])
    assert token_losses(states, weight, torch.tensor([1])).tolist() == [6000.0]
