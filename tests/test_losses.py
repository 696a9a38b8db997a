import pytest
import torch
import torch.nn.functional as F
from conftest import demo_pairs, tiny_grid, tiny_lm

from duplex_model.data import collate, make_example
from duplex_model.layers import only_rows
from duplex_model.lm import MultipathLM, prefix_mask
from duplex_model.losses import DuplexLoss, best_masks, decision_grid
from duplex_model.path import optimal_path

LAM = torch.tensor([0.01, 0.2], dtype=torch.float64)


def demo_batch(tokenizer, count=3):
    return collate([make_example(tokenizer, *pair) for pair in demo_pairs()[:count]])


@pytest.mark.parametrize("anchor", [64, "oracle"])
def test_grid_losses_equal_a_plain_computation(anchor, tokenizer):
    """Padded, batched sums against one sentence at a time with explicit loops over the definition."""
    model = tiny_grid(vocab_size=tokenizer.vocab_size, anchor=anchor)
    loss = DuplexLoss(model, lam_lm=0.05)
    sums, counts = loss(demo_batch(tokenizer), LAM)
    expected = torch.zeros(2, 4, dtype=torch.float64)
    for source, target in demo_pairs()[:3]:
        example = make_example(tokenizer, source, target)
        place = len(example.source) if anchor == "oracle" else anchor
        block = model(torch.tensor([example.source]), torch.tensor([example.target[:-1]]), anchor=place)
        logits = model.lm_logits(block.outputs)[0]
        emit = model.emit_logits(block, LAM)[:, 0]
        rows, Y = example.decision_rows, len(example.target) - 1
        heatmap = torch.stack([
            F.cross_entropy(logits[row], torch.tensor(example.target[1:]), reduction="none") for row in rows
        ])  # fmt: skip
        wait_ok = torch.tensor([example.wait_ok])
        mask = optimal_path(heatmap.detach()[None], 0.05, wait_ok=wait_ok).mask[0]
        expected[:, 0] += torch.stack([heatmap[mask].sum(), mask.sum()])
        expected[:, 2] += torch.stack([heatmap[-1].sum(), torch.tensor(Y)])
        for lam, emit_logits in zip(LAM.tolist(), emit, strict=True):
            wanted = optimal_path(heatmap.detach()[None], lam, wait_ok=wait_ok).mask[0]
            expected[:, 3] += torch.stack([wanted.sum(), torch.tensor(len(rows) * Y)])
            for r, row in enumerate(rows[:-1]):
                for y in range(Y):
                    if example.wait_ok[y]:
                        bce = F.binary_cross_entropy_with_logits(emit_logits[row, y], wanted[r, y].double())
                        expected[:, 1] += torch.stack([bce, torch.tensor(1.0, dtype=torch.float64)])
    torch.testing.assert_close(counts.double(), expected[1], rtol=0, atol=0)
    torch.testing.assert_close(sums.double(), expected[0], rtol=1e-5, atol=1e-4)


def test_padding_gets_no_gradient(tokenizer):
    """Other sentences in the batch, and so more padding, change neither a sentence's sums nor its gradient."""
    model = tiny_grid(vocab_size=tokenizer.vocab_size)
    loss = DuplexLoss(model, lam_lm=0.05)

    def sums_and_gradient(batches):
        model.zero_grad()
        results = [loss(batch, LAM) for batch in batches]
        sum((sums[0] + sums[1]) for sums, _ in results).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        return [sum(part) for part in zip(*results, strict=True)], gradient

    (sums, counts), gradient = sums_and_gradient([demo_batch(tokenizer, 4)])
    alone, expected = sums_and_gradient([collate([make_example(tokenizer, *pair)]) for pair in demo_pairs()[:4]])
    torch.testing.assert_close(sums, alone[0], rtol=1e-5, atol=1e-4)
    assert torch.equal(counts, alone[1])
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-4)


def test_lm_targets_see_no_source_beyond_k(tokenizer):
    """Changing every source word from k + j on leaves the predictions of output words up to j as they are."""
    lm, batch = tiny_lm(vocab_size=tokenizer.vocab_size), demo_batch(tokenizer, 1)
    X = batch.source_ids.shape[1]
    positions = torch.cat([torch.arange(X), 64 + torch.arange(batch.target_word.shape[1])])

    def states(source):
        with torch.no_grad():
            return lm.model(
                input_ids=torch.cat([source, batch.target_ids[:, :-1]], 1),
                attention_mask=prefix_mask(batch, torch.tensor([2])),
                position_ids=positions[None],
            ).last_hidden_state[0, X:]

    before = states(batch.source_ids)
    for word in (2, 4):
        changed = torch.where(batch.source_word >= word, (batch.source_ids + 7) % 90 + 5, batch.source_ids)
        after = states(changed)
        same = batch.target_word[0] < word - 1
        assert torch.equal(after[same], before[same])
        assert not torch.allclose(after[~same], before[~same])


@pytest.mark.parametrize("anchor", [64, "oracle"])
def test_lm_losses_equal_the_causal_lm_s_own(anchor, tokenizer):
    """With the whole source visible, one sentence at a time through `transformers`' plain causal forward pass."""
    lm = tiny_lm(vocab_size=tokenizer.vocab_size, anchor=anchor)
    sums, counts = MultipathLM(lm)(demo_batch(tokenizer), torch.full((3,), 1000))
    expected = torch.zeros(2, dtype=torch.float64)
    for pair in demo_pairs()[:3]:
        example = make_example(tokenizer, *pair)
        X, Y = len(example.source), len(example.target) - 1
        ids = torch.tensor([example.source + example.target[:-1]])
        positions = torch.cat([torch.arange(X), (X if anchor == "oracle" else anchor) + torch.arange(Y)])[None]
        logits = lm(ids, attention_mask=torch.ones_like(ids), position_ids=positions).logits[0]
        for i, part, labels in ((0, logits[X:], example.target), (1, logits[: X - 1], example.source)):
            expected[i] += F.cross_entropy(part, torch.tensor(labels[1:]), reduction="sum")
    torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-4)
    assert counts.tolist() == [
        sum(len(make_example(tokenizer, *pair).target) - 1 for pair in demo_pairs()[:3]),
        sum(len(make_example(tokenizer, *pair).source) - 1 for pair in demo_pairs()[:3]),
    ]


def test_lm_loss_counts_and_padding(tokenizer):
    lm = tiny_lm(vocab_size=tokenizer.vocab_size)
    loss = MultipathLM(lm)
    words = [1, 3, 2]
    alone = [
        loss(collate([make_example(tokenizer, *pair)]), torch.tensor([k]))
        for pair, k in zip(demo_pairs()[:3], words, strict=True)
    ]
    together = loss(demo_batch(tokenizer), torch.tensor(words))
    for part in (0, 1):
        torch.testing.assert_close(together[part], sum(one[part] for one in alone), rtol=1e-5, atol=1e-4)


def test_label_smoothing_and_distillation_change_the_training_loss_alone(tokenizer):
    model, batch = tiny_grid(vocab_size=tokenizer.vocab_size), demo_batch(tokenizer)
    plain, mixed = DuplexLoss(model, 0.05), DuplexLoss(model, 0.05, label_smoothing=0.2, distill=0.5)
    assert torch.equal(plain.eval()(batch, LAM)[0], mixed.eval()(batch, LAM)[0])
    assert (plain.train()(batch, LAM)[0][0] - mixed.train()(batch, LAM)[0][0]).abs() > 1


@pytest.mark.parametrize("name", ["lm", "duplex"])
def test_label_smoothing_by_its_definition(name, tokenizer):
    """(1 - e) times the label's loss, e times the mean over the vocabulary."""
    batch = demo_batch(tokenizer, 1)
    if name == "lm":
        model, draws = tiny_lm(vocab_size=tokenizer.vocab_size), (torch.tensor([1000]),)
        plain, smooth = MultipathLM(model), MultipathLM(model, label_smoothing=0.2)
        X = batch.source_ids.shape[1]
        ids = torch.cat([batch.source_ids, batch.target_ids[:, :-1]], 1)
        positions = torch.cat([torch.arange(X), 64 + torch.arange(ids.shape[1] - X)])[None]
        logits = model(ids, attention_mask=torch.ones_like(ids), position_ids=positions).logits[0, X:]
    else:
        model, draws = tiny_grid(vocab_size=tokenizer.vocab_size), (LAM,)
        plain, smooth = DuplexLoss(model, 0.05), DuplexLoss(model, 0.05, label_smoothing=0.2)
        block, heatmap, real = decision_grid(model, batch)
        logits = model.lm_logits(block.outputs)[best_masks(heatmap, batch, torch.tensor([0.05]))[0] & real]
    uniform = -logits.log_softmax(-1).mean(-1).sum()
    expected = 0.8 * plain.eval()(batch, *draws)[0][0] + 0.2 * uniform
    torch.testing.assert_close(smooth.train()(batch, *draws)[0][0].double(), expected.double(), rtol=1e-5, atol=1e-4)


def test_distilled_labels_follow_the_last_row(tokenizer):
    model, batch = tiny_grid(vocab_size=tokenizer.vocab_size), demo_batch(tokenizer, 2)
    loss = DuplexLoss(model, 0.05, distill=0.25)
    block = model(batch.source_ids, batch.target_ids[:, :-1], keep=only_rows(batch.decision_rows))
    last = batch.row_count - 1
    mask = torch.zeros(block.outputs.shape[:3], dtype=torch.bool)
    mask[1, 2, 3] = mask[1, last[1], 3] = True
    wanted = batch.target_ids[1, 4]
    above, at_end = loss.soft_labels(block, wanted.repeat(2), mask, last)
    final = model.lm_logits(block.outputs[1, last[1], 3]).float().softmax(-1)
    one_hot = F.one_hot(wanted, len(final))
    torch.testing.assert_close(at_end, one_hot.float())
    torch.testing.assert_close(above, 0.25 * final + 0.75 * one_hot)
