"""`python -m evaluation.teacher_forced`: wait-k, EMIT head and best path on one model's loss heatmap, at equal Area.

The reference is forced, so nothing but the policy differs: each policy's path through the heatmap costs the nats of
its EMIT steps and covers an Area (eq. 35-41). The best path is a bound that needs the reference. `reached` is the share
of the way from wait-k's nats to the best path's that the head goes at its own Area, along straight lines between the
points.
"""

import itertools

import numpy as np
import torch

from duplex_model.data import collate, load_examples, make_batches
from duplex_model.losses import best_masks, decision_grid
from duplex_model.policies import EmitHeadPolicy
from evaluation.files import write_json
from evaluation.measurement import circumstances, load_measured, measurement_parser, most_tokens

K = (*range(1, 13), 16, 24, 1000)  # the last: the whole source first
LAM = (1e-4, 3e-4, 1e-3, 2e-3, 4e-3, 8e-3, 0.016, 0.03, 0.06, 0.12, 0.25, 0.5)
BUDGET = 8192  # cells a batch


def parse_arguments(arguments=None):
    parser = measurement_parser("evaluation.teacher_forced", __doc__)
    parser.add_argument("--lam", type=float, nargs="+", help="prices of the head (default: its trained range)")
    parser.add_argument("--theta", type=float, nargs="+", default=[0.5], help="EMIT thresholds of the head")
    parser.add_argument("--max-tokens", type=int, default=128, help="longer sentences (pieces a side) are left out")
    args = parser.parse_args(arguments)
    for lam, theta in itertools.product(args.lam or [LAM[0]], args.theta):
        EmitHeadPolicy(lam, theta)  # raises for values out of range
    return args


def wait_k_exits(k, rows, heights):
    """row_exit of wait-k: after r + 1 words (row r), words are written while read >= k + written; all in the last row.

    heights: the columns after 0, 1, ... output words, then Y. EOS comes in the last row only.
    """
    words = len(heights) - 2
    return [*(heights[min(max(row + 2 - k, 0), words)] for row in range(rows - 1)), heights[-1]]


def head_exits(emits, heights):
    """row_exit of a policy that decides at word ends: emits [R, Y] bools, the last row not asked."""
    written, exits = 0, []
    for row in emits[:-1]:
        while written < len(heights) - 2 and row[heights[written]]:
            written += 1
        exits.append(heights[written])
    return [*exits, heights[-1]]


def path_cost(heatmap, exits):
    """(nats, Area) of one path: the heatmap [R, Y] summed over its EMIT steps, and the cells below it."""
    begins = [0, *exits[:-1]]
    nats = sum(float(row[begin:end].sum()) for row, begin, end in zip(heatmap, begins, exits, strict=True))
    return np.array([nats, sum(exits)])


def batches_of(examples):
    """The examples as batches of BUDGET cells."""
    for indices in make_batches(examples, BUDGET, lambda X, Y: X * Y, np.random.default_rng(0)):
        yield collate([examples[i] for i in indices])


def trained_prices(config, count=8):
    """Prices that span the range that the head was trained on."""
    prices = np.geomspace(config.lam_min, config.lam_max, count)
    return sorted({float(f"{price:.3g}") for price in prices})


@torch.inference_mode()
def measure(model, batches, prices, thetas=(0.5,)):
    """{policy: {value: [nats a target token, Area as a share of all cells]}} over the batches.

    The head is asked for every price (its values) and every theta ("price, theta", unless there is only one theta).
    """
    prices, thetas = list(dict.fromkeys(prices)), tuple(dict.fromkeys(thetas))
    sums, size = {}, np.zeros(2)
    best_prices = torch.tensor(LAM)
    bounds = torch.tensor(thetas).logit()[:, None, None, None, None]
    labels = [lam if len(thetas) == 1 else f"{lam}, {theta}" for theta in thetas for lam in prices]

    def add(policy, value, cost):
        sums[policy, value] = sums.get((policy, value), 0) + cost

    for batch in batches:
        block, heatmap, _ = decision_grid(model, batch)
        emits = (model.emit_logits(block, torch.tensor(prices)) > bounds).flatten(0, 1)
        best = best_masks(heatmap, batch, best_prices)
        for i, (R, Y) in enumerate(zip(batch.row_count.tolist(), batch.target_len.tolist(), strict=True)):
            grid = heatmap[i, :R, :Y].double().numpy()
            heights = batch.wait_ok[i, : Y + 1].nonzero().flatten().tolist()
            size += [Y, R * Y]
            for k in K:
                add("wait-k", k, path_cost(grid, wait_k_exits(k, R, heights)))
            for lam, asked in zip(labels, emits[:, i, :R, :Y].tolist(), strict=True):
                add("head", lam, path_cost(grid, head_exits(asked, heights)))
            for lam, mask in zip(LAM, best[:, i, :R].sum(-1).tolist(), strict=True):
                add("best path", lam, path_cost(grid, mask))
    curves = {}
    for (policy, value), cost in sums.items():
        curves.setdefault(policy, {})[value] = (cost / size).tolist()
    return curves


def nats_at(curve, area):
    """Nats a target token of a policy's points at this Area, on straight lines between them; None outside."""
    points = np.array(sorted(curve.values(), key=lambda point: point[1]))
    inside = points[0, 1] <= area <= points[-1, 1]
    return float(np.interp(area, points[:, 1], points[:, 0])) if inside else None


def reached_at(curves, area, nats):
    """The share of the way from wait-k to the best path at this Area at which `nats` (None: nowhere) lies, or None."""
    wait_k, best = nats_at(curves["wait-k"], area), nats_at(curves["best path"], area)
    defined = None not in (wait_k, best, nats) and wait_k - best > 1e-3  # nats; below, the share is noise
    return (wait_k - nats) / (wait_k - best) if defined else None


def reached(curves):
    """{lam: share of the way from wait-k to the best path that the head goes at its Area}; None outside their range."""
    return {lam: reached_at(curves, area, nats) for lam, (nats, area) in curves["head"].items()}


def main(arguments=None):
    args = parse_arguments(arguments)
    model, tokenizer, pairs = load_measured(args)
    examples = load_examples(tokenizer, pairs, min(args.max_tokens, most_tokens(model.config, tokenizer)))
    curves = measure(model, batches_of(examples), args.lam or trained_prices(model.config), args.theta)
    shares = reached(curves)
    print(f"{'policy':12}{'value':>10}{'nats/token':>12}{'area':>8}{'reached':>9}")
    for policy, points in curves.items():
        for value, (nats, area) in points.items():
            share = shares.get(value) if policy == "head" else None
            print(f"{policy:12}{value:>10}{nats:>12.4f}{area:>8.4f}{'' if share is None else f'{share:.1%}':>9}")
    if args.output:
        result = {"sentences": len(examples), "max_tokens": args.max_tokens, "curves": curves, "reached": shares}
        write_json({**result, **circumstances(args, pairs)}, args.output)


if __name__ == "__main__":
    main()
