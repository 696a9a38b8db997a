"""The best monotone path over a loss heatmap, for a batch at once (eq. 35-41, in row-scan form).

The path maximises R = lam * Area - sum of the heatmap over its EMIT steps. lam is the price of latency in nats per
cell: lam = 0 waits as long as that lowers the loss, lam -> infinity emits everything at once. (Departure: the paper's
prose says the opposite of its own formulas; the formulas hold, and Area never falls as lam grows.)
"""

from typing import NamedTuple

import torch


class Path(NamedTuple):
    """score [B] (float64, nats), row_exit [B, R] (height at which the path leaves each row), mask [B, R, Y] (M)."""

    score: torch.Tensor
    row_exit: torch.Tensor
    mask: torch.Tensor

    @property
    def area(self):
        """[B] cells below the path: the sum of M, and of row_exit."""
        return self.row_exit.sum(-1)


def optimal_path(heatmap, lam, row_count=None, col_count=None, wait_ok=None):
    """The best path of every grid of a batch; one vector step a row, no loop over cells.

    heatmap [B, R, Y]: nats of t_{y+1} at decision row r. lam: float or [B], at least 0. row_count, col_count [B]: real
    rows and columns of padded grids (default: all). wait_ok [B, Y+1]: heights at which a row may be left (default:
    all); 0 and col_count must be among them. The last height is reached in the last row only (EOS). Ties go to the
    greater height. Raises ValueError on a negative lam or a heatmap that is not finite in its real cells.
    """
    B, R, Y = heatmap.shape
    device = heatmap.device
    lam = torch.as_tensor(lam, dtype=torch.float64, device=device).expand(B)
    row_count = torch.full((B,), R, device=device) if row_count is None else row_count
    col_count = torch.full((B,), Y, device=device) if col_count is None else col_count
    heights = torch.arange(Y + 1, device=device)
    rows, columns = torch.arange(R, device=device) < row_count[:, None], heights[:-1] < col_count[:, None]
    spent = heatmap.new_zeros(B, R, Y + 1, dtype=torch.float64)  # C_r[y]
    spent[:, :, 1:] = heatmap
    spent[:, :, 1:].masked_fill_(~(rows[:, :, None] & columns[:, None]), 0.0)
    spent.cumsum_(-1)
    if (lam < 0).any():
        raise ValueError(f"lam = {lam.min().item()}: a price of latency is at least 0")
    if not spent[:, :, -1].isfinite().all():
        raise ValueError("the heatmap is not finite: the model's losses overflowed; in training, begin with a lower lr")
    end = col_count[:, None]
    barred = heights >= end  # the next row is never entered at the last height
    if wait_ok is not None:
        barred = barred | ~wait_ok
    price = (lam[:, None] * heights).masked_fill(barred, -torch.inf)

    best = -spent[:, 0]
    entered_at, at_end = [], [best.gather(1, end)]
    for row in range(1, R):
        running, entry = (best + price + spent[:, row]).cummax(-1)  # the last index among equals: ties go up
        best = running - spent[:, row]
        entered_at.append(entry)
        at_end.append(best.gather(1, end))
    score = torch.cat(at_end, 1).gather(1, row_count[:, None] - 1).squeeze(1) + lam * col_count
    row_exit = _backtrack(entered_at, row_count - 1, col_count, R)
    return Path(score, row_exit, heights[:-1] < row_exit[..., None])


def _backtrack(entered_at, final, col_count, R):
    """row_exit [B, R] from the heights at which each row was entered; 0 in padding rows."""
    height = torch.zeros_like(col_count)
    row_exit = []
    for row in reversed(range(R)):
        if row < R - 1:
            below = entered_at[row].gather(1, height[:, None]).squeeze(1)
            height = torch.where(row < final, below, height)
        height = torch.where(final == row, col_count, height)
        row_exit.append(height)
    return torch.stack(row_exit[::-1], 1)
