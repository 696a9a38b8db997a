"""Pictures of quality against latency with 95% intervals; how every picture is written.

Colours are Okabe and Ito's, safe for colour-blind readers; curves differ in marker and line style, too, for black-and-
white print. Each picture is written as PNG and as SVG.
"""

from itertools import cycle, pairwise

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # taken in turn with six colours, 42 curves differ
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 3)))
LEVELS = (("black", (0, (8, 6))), ("dimgrey", (0, (2, 2))), ("black", (0, (1, 4))), ("dimgrey", (0, (8, 2, 2, 2))))
AXES = {"AL": "Average Lagging (source words)", "first_token_words": "First output word after (source words)"}
REGIMES = {"AL": (3, 6, 15)}  # the published low, medium and high latency
LEGEND_LINE = 0.2  # inches
DIRECTIONS = np.linspace(0, 2 * np.pi, 16, endpoint=False)


def save(figure, path):
    """Write `path`.png and `path`.svg, the same bytes for the same picture; returns the two file names."""
    figure.draw_without_rendering()
    figure.set_layout_engine(None)  # settled for both: to lay a grid out again takes longer than to draw it
    figure.savefig(path.with_name(path.name + ".png"), dpi=150)
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path.with_name(path.name + ".svg"), metadata={"Date": None})
    return [path.name + ".png", path.name + ".svg"]


def draw_quality(results, latency, title, path):
    """BLEU against the score `latency`: a curve for each system, with its knob's values; a level for one that writes
    nothing before the whole sentence is read; bars are 95% intervals, where the results have them."""
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    axes = figure.add_subplot()
    looks, levels = zip(*map(cycle, (COLOURS, MARKERS, DASHES)), strict=True), cycle(LEVELS)
    labels = []
    systems = {}
    for result in results:
        systems.setdefault(result["system"], []).append(result)
    for name, points in sorted(systems.items(), key=lambda item: _reads_all_first(item[1])):  # curves come first
        if not _reads_all_first(points):
            points.sort(key=lambda result: result["scores"][latency])
            colour, marker, dash = next(looks)
            labels += _draw_curve(axes, points, latency, colour, marker, dash)
        else:
            colour, dash = next(levels)
            axes.axhline(points[0]["scores"]["BLEU"], color=colour, linestyle=dash, linewidth=1.2, label=_plain(name))
    if any("BLEU_half_width" in result["scores"] for result in results):
        title += "; bars: 95% bootstrap intervals"
    axes.set(xlabel=AXES[latency], ylabel="BLEU")
    axes.set_title(_plain(title), fontsize=11)
    axes.grid(alpha=0.25)
    _draw_regimes(axes, REGIMES.get(latency, ()), latency)
    _draw_legend(figure)
    place_labels(axes, labels)
    return save(figure, path)


def _draw_legend(figure):
    """The legend below the axes, in two columns if they fit, else in one, for which the figure grows."""
    look = {"loc": "outside lower center", "frameon": False, "fontsize": 9, "handlelength": 4}
    legend = figure.legend(ncols=2, **look)
    figure.draw_without_rendering()
    if legend.get_window_extent().width > figure.bbox.width:
        legend.remove()
        figure.set_figheight(figure.get_figheight() + LEGEND_LINE * (len(legend.get_texts()) // 2))
        figure.legend(ncols=1, **look)


def _reads_all_first(points):
    """Whether the system has one point, which has no lag before the source ends."""
    return not points[0]["values"] and points[0]["scores"].get("YAAL") is None


def _draw_curve(axes, points, latency, colour, marker, dash):
    """Draw a system's points and their intervals; returns the points' labels (text, x, y, colour)."""
    keys = (latency, "BLEU", f"{latency}_half_width", "BLEU_half_width")
    x, y, x_half, y_half = ([point["scores"].get(key, np.nan) for point in points] for key in keys)
    axes.errorbar(x, y, y_half, x_half, fmt="none", ecolor=colour, elinewidth=0.8, capsize=2, alpha=0.55)
    knobs = ", ".join(points[0]["values"])
    label = _plain(points[0]["system"] + (f" (labelled by {knobs})" if knobs else ""))
    axes.plot(x, y, color=colour, marker=marker, linestyle=dash, linewidth=1.6, label=label)
    texts = [
        ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in point["values"].values())
        for point in points
    ]
    return [(text, *place, colour) for text, *place in zip(texts, x, y, strict=True)]


def _draw_regimes(axes, regimes, name):
    """Thin labelled vertical lines at the latencies in `regimes` that the picture shows."""
    low, high = axes.get_xlim()
    for regime in (regime for regime in regimes if low < regime < high):
        axes.axvline(regime, color="grey", linewidth=0.7, zorder=0)
        axes.annotate(
            f"{name} {regime}", (regime, 1), (3, -9), xycoords=("data", "axes fraction"), textcoords="offset points",
            fontsize=7, color="dimgrey",
        )  # fmt: skip
    axes.set_xlim(low, high)


def _plain(text):
    """Text in which no dollar sign starts a formula."""
    return text.replace("$", r"\$")


def place_labels(axes, labels):
    """Write each label (text, x, y, colour) near its point, where it hides least of curves, bars and other labels."""
    figure = axes.figure
    figure.draw_without_rendering()  # settles the layout
    taken = _drawn(axes, labels)
    for text, *point, colour in labels:
        note = axes.annotate(
            _plain(text), point, (0, 0), textcoords="offset points", fontsize=8, color=colour, ha="center", va="center",
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )  # fmt: skip
        note.set_in_layout(False)
        half = np.array(note.get_window_extent().size) / 2 + 1
        centre = axes.transData.transform(point)
        offsets = [
            np.array([np.cos(angle), np.sin(angle)]) * (half + gap) for gap in (6, 10, 15, 22) for angle in DIRECTIONS
        ]
        best = min(offsets, key=lambda offset: _hidden(centre + offset, half, taken, axes.bbox) + np.hypot(*offset) / 4)
        note.set_position(best * 72 / figure.dpi)
        spread = np.stack(np.meshgrid(*np.linspace(-half, half, 7).T), -1).reshape(-1, 2)
        taken.append((3.0, centre + best + spread))


def _drawn(axes, labels):
    """[(weight, pixels [N, 2])] of what labels should not hide: lines, interval bars, the labelled points' markers."""
    lines = [line for line in axes.lines if line.get_linestyle() != "None"]  # the others are the bars' ends
    drawn = [(1.0, _pixels(line.get_transform().transform(line.get_xydata()))) for line in lines]
    bars = [bar for collection in axes.collections for bar in collection.get_segments() if np.isfinite(bar).all()]
    drawn += [(0.6, _pixels(axes.transData.transform(bar))) for bar in bars if len(bar)]
    circle = 5 * np.stack([np.cos(DIRECTIONS), np.sin(DIRECTIONS)], -1)
    return drawn + [(2.0, axes.transData.transform(point) + circle) for _, *point, _ in labels]


def _hidden(centre, half, taken, frame):
    """What a box at `centre` (pixels) with the half size `half` covers of `taken` [(weight, pixels [N, 2])]."""
    outside = not (frame.contains(*(centre - half)) and frame.contains(*(centre + half)))
    return 1000 * outside + sum(weight * (np.abs(pixels - centre) < half).all(1).sum() for weight, pixels in taken)


def _pixels(corners):
    """Pixels [N, 2] along a polyline with these corners, about two apart."""
    parts = [np.linspace(a, b, max(int(np.hypot(*(b - a)) / 2), 2)) for a, b in pairwise(corners)]
    return np.concatenate([corners, *parts])
