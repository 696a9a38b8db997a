import itertools
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from duplex_model.path import optimal_path


def brute_force(heatmap, lam, wait_ok):
    """The best score over every admissible path, and the row exits of those that reach it."""
    R, Y = len(heatmap), len(heatmap[0])
    heights = [y for y in range(Y + 1) if wait_ok[y] and y < Y]
    best, exits = -float("inf"), []
    for inner in itertools.combinations_with_replacement(heights, R - 1):
        row_exit = [*inner, Y]
        losses = sum(sum(heatmap[r][row_exit[r - 1] if r else 0 : row_exit[r]]) for r in range(R))
        score = lam * sum(row_exit) - losses
        if score > best + 1e-9:
            best, exits = score, []
        if score > best - 1e-9:
            exits.append(row_exit)
    return best, exits


@st.composite
def grids(draw):
    R, Y = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    value = st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.5]) if draw(st.booleans()) else st.floats(0, 20)  # the first ties
    heatmap = [[draw(value) for _ in range(Y)] for _ in range(R)]
    wait_ok = [True, *(draw(st.booleans()) for _ in range(Y - 1)), True]
    return heatmap, draw(st.sampled_from([0.0, 0.003, 0.1, 1.0, 1e6])), wait_ok


def pad(grids):
    R, Y = max(len(h) for h, _, _ in grids), max(len(h[0]) for h, _, _ in grids)
    heatmap, wait_ok = torch.full((len(grids), R, Y), 99.0), torch.ones(len(grids), Y + 1, dtype=torch.bool)
    for i, (rows, _, ok) in enumerate(grids):
        heatmap[i, : len(rows), : len(rows[0])] = torch.tensor(rows)
        wait_ok[i, : len(ok)] = torch.tensor(ok)
    counts = (torch.tensor([len(h) for h, _, _ in grids]), torch.tensor([len(h[0]) for h, _, _ in grids]))
    return heatmap, torch.tensor([lam for _, lam, _ in grids], dtype=torch.float64), *counts, wait_ok


@settings(max_examples=200, deadline=None)
@given(st.lists(grids(), min_size=1, max_size=4))
def test_equals_brute_force(batch):
    heatmap, lam, rows, columns, wait_ok = pad(batch)
    path = optimal_path(heatmap, lam, rows, columns, wait_ok)
    for i, (_, price, ok) in enumerate(batch):
        R, Y = int(rows[i]), int(columns[i])
        real = heatmap[i, :R, :Y].tolist()
        best, exits = brute_force(real, price, ok)
        assert path.score[i].item() == pytest.approx(best, rel=1e-9, abs=1e-6)
        row_exit = path.row_exit[i].tolist()
        assert row_exit[R:] == [0] * (len(row_exit) - R)
        taken = sum(sum(real[r][row_exit[r - 1] if r else 0 : row_exit[r]]) for r in range(R))
        assert price * sum(row_exit) - taken == pytest.approx(best, rel=1e-9, abs=1e-6)
        if len(exits) == 1:
            assert row_exit[:R] == exits[0]
        assert row_exit[:R] == sorted(row_exit[:R]) and row_exit[R - 1] == Y
        assert all(ok[y] and y < Y for y in row_exit[: R - 1])


@settings(max_examples=50, deadline=None)
@given(st.lists(grids(), min_size=1, max_size=4))
def test_mask_is_the_area_below_the_path(batch):
    path = optimal_path(*pad(batch))
    assert torch.equal(path.mask.sum((1, 2)), path.area)


@settings(max_examples=100, deadline=None)
@given(grids(), st.lists(st.floats(0, 3), min_size=2, max_size=6))
def test_area_never_falls_as_lam_grows(grid, prices):
    heatmap, _, wait_ok = grid
    n, prices = len(prices), torch.tensor(sorted(prices), dtype=torch.float64)
    path = optimal_path(torch.tensor(heatmap).repeat(n, 1, 1), prices, wait_ok=torch.tensor(wait_ok).repeat(n, 1))
    assert (path.area.diff() >= 0).all()


def test_the_ends_of_lam():
    heatmap = torch.tensor([[[3.0, 3.0, 3.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]]])
    assert optimal_path(heatmap, 0.0).row_exit.tolist() == [[0, 0, 3]]
    assert optimal_path(heatmap, 100.0).row_exit.tolist() == [[2, 2, 3]]  # EOS only in the last row


def test_ties_go_to_the_greater_height():
    assert optimal_path(torch.ones(1, 3, 2), 0.0).row_exit.tolist() == [[1, 1, 2]]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="a price of latency is at least 0"):
        optimal_path(torch.ones(1, 2, 2), -0.1)
    with pytest.raises(ValueError, match="finite"):
        optimal_path(torch.full((1, 2, 2), torch.nan), 0.1)


def loop_path(heatmap, lam):
    """The recurrence over Python lists, cell by cell."""
    R, Y = len(heatmap), len(heatmap[0])
    best = [0.0] * (Y + 1)
    parents = []
    for x in range(R):
        parent = [False] * (Y + 1)
        if x:
            best = [value + lam * y for y, value in enumerate(best)]
        else:
            best = [0.0] + [-float("inf")] * Y
        for y in range(1, Y + 1):
            emit = best[y - 1] - heatmap[x][y - 1]
            if emit > best[y]:
                best[y], parent[y] = emit, True
        parents.append(parent)
        if x < R - 1:
            best[Y] = -float("inf")
    score, row_exit, y = best[Y] + lam * Y, [0] * R, Y
    for x in reversed(range(R)):
        row_exit[x] = y
        while parents[x][y]:
            y -= 1
    return score, row_exit


def fastest(function, repeats):
    """(the least CPU seconds of the repeats, a result): other processes' work does not count."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        result = function()
        times.append(time.process_time() - began)
    return min(times), result


def test_is_at_least_8_times_faster_than_a_loop():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        heatmap = torch.rand(256, 64, 64) * 5
        lists = heatmap.tolist()
        batched, path = fastest(lambda: optimal_path(heatmap, 0.1), 5)
        loop, looped = fastest(lambda: [loop_path(grid, 0.1) for grid in lists], 1)
    finally:
        torch.set_num_threads(threads)
    scores = torch.tensor([score for score, _ in looped], dtype=torch.float64)
    torch.testing.assert_close(path.score, scores, rtol=1e-9, atol=1e-6)
    assert path.row_exit.tolist() == [row_exit for _, row_exit in looped]
    print(f"loop {loop:.3f} s, batched {batched:.3f} s: {loop / batched:.1f} times faster")
    assert loop >= 8 * batched
