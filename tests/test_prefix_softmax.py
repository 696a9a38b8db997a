import pytest
import torch

from duplex_model.prefix_softmax import Stats, merge, prefix_matmul, prefix_scan, softmax_stats


def random_parts(n, scale=1.0, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    scores = (torch.randn(2, 3, n, dtype=dtype) * scale).requires_grad_()
    values = torch.randn(2, n, 5, dtype=dtype, requires_grad=True)
    init = softmax_stats(torch.randn(2, 3, 4, dtype=dtype) * scale, torch.randn(2, 4, 5, dtype=dtype))
    return scores, values, init


def empty(init):
    return Stats(torch.full_like(init.m, -torch.inf), torch.zeros_like(init.Z), torch.zeros_like(init.S))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 17])
@pytest.mark.parametrize("form", [prefix_matmul, prefix_scan])
def test_prefixes_equal_plain_softmax(form, n):
    scores, values, init = random_parts(n)
    context = form(scores, values, empty(init)).context()
    for last in range(n):
        expected = scores[..., : last + 1].softmax(-1) @ values[:, : last + 1]
        torch.testing.assert_close(context[..., last, :], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("first_masked", [False, True])
@pytest.mark.parametrize("with_init", [False, True])
def test_forms_agree_with_gradients(scale, first_masked, with_init):
    results = []
    for form in (prefix_matmul, prefix_scan):
        scores, values, init = random_parts(9, scale)
        used = scores.masked_fill(torch.arange(9) < 2, -torch.inf) if first_masked else scores
        context = form(used, values, init if with_init else empty(init)).context()
        (context * torch.linspace(-1, 1, context.numel(), dtype=context.dtype).view_as(context)).sum().backward()
        results.append((context.detach(), scores.grad, values.grad))
    for matmul, scan in zip(*results, strict=True):
        assert matmul.isfinite().all() and scan.isfinite().all()
        torch.testing.assert_close(matmul, scan, rtol=0, atol=1e-11)


def test_gradients_are_right():
    scores, values, init = random_parts(4)
    for form in (prefix_matmul, prefix_scan):
        assert torch.autograd.gradcheck(lambda s, v, f=form: f(s, v, init).context(), (scores, values))


def test_merging_an_empty_part_changes_nothing():
    _, _, init = random_parts(2)
    for merged in (merge(init, empty(init)), merge(empty(init), init)):
        for part, expected in zip(merged, init, strict=True):
            assert torch.equal(part, expected)
    nothing = merge(empty(init), empty(init))
    assert torch.equal(nothing.context(), torch.zeros_like(init.S)) and nothing.m.isneginf().all()
