"""The picture of one example of `evaluation.examples`: its loss heatmap and its EMIT probabilities, with both paths."""

import unicodedata
from functools import cache
from itertools import pairwise

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from evaluation.pictures import COLOURS, save

CELL = 0.6, 0.27  # inches, width and height of a cell whose text can be read
PANEL = (
    (4.5, 1.2),
    (16.0, 7.5),
)  # inches, least and greatest width and height; above, cells are smaller and without text
WORST = 8.0  # nats; the heatmap is not darker above
CHARACTERS = 12  # of a word or piece; the rest is cut
FONTS = (  # a character is drawn in the first of them that is there and has it
    *("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Noto Sans KR"),
    *("Source Han Sans", "WenQuanYi Micro Hei", "Hiragino Sans", "PingFang SC", "Yu Gothic", "Malgun Gothic"),
)
TITLE = {"fontsize": 10, "loc": "left"}
PATHS = (
    ("optimal_exit", "best path for lam", {"color": "black", "linestyle": (0, (4, 2)), "linewidth": 1.6}),
    ("taken_exit", "path taken", {"color": COLOURS[1], "linestyle": "-", "linewidth": 4.0}),
)


def draw_grid(example, path):
    """Write the picture of the example to `path`.png and `path`.svg; returns their names.

    Rows are source words read, columns the pieces of the model's own output. A path leaves a row where its line does:
    the cells to the left of the line are written by then.
    """
    with matplotlib.rc_context({"font.family": list(installed_fonts())}):
        return save(_figure(example), path)


def _figure(example):
    R, Y = len(example["rows"]), len(example["columns"])
    width, height = np.clip((Y * CELL[0], R * CELL[1]), *PANEL)
    readable = bool(width >= Y * CELL[0] and height >= R * CELL[1])
    figure = Figure(figsize=(width + 2.2, 2 * height + 3.0), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
    _draw_heatmap(figure, upper, example, readable)
    _draw_decisions(figure, lower, example, readable)
    for axes in (upper, lower):
        _draw_paths(axes, example)
    _label_axes(upper, lower, example, 72 * height / R, 72 * width / Y)
    figure.suptitle(f"line {example['line']}, lam = {example['lam']:g}, theta = {example['theta']:g}", fontsize=11)
    figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_heatmap(figure, axes, example, readable):
    """Nats of the next output piece, and the most probable piece, bold where it is the one written."""
    losses, top = np.array(example["heatmap"]), np.array(example["top"])
    worst = min(losses.max(), WORST)
    colours = axes.pcolormesh(losses, cmap="Blues", vmin=0, vmax=worst)
    figure.colorbar(colours, ax=axes, label="nats", extend="max" if losses.max() > worst else "neither", pad=0.01)
    note = "; in the cells the most probable one" if readable else ""
    axes.set_title(f"$-$log p of the piece that is written next{note}", **TITLE)
    if readable:
        _write_cells(axes, np.vectorize(_short)(top), losses / worst, top == np.array(example["columns"]))


def _draw_decisions(figure, axes, example, readable):
    """EMIT probabilities, bold above theta; hatched where nothing is decided: inside a word, and in the last two rows,
    which are read together."""
    probabilities = np.array(example["emit"])
    asked = np.zeros(probabilities.shape, bool)
    asked[:-2, example["wait_ok"][:-1]] = True
    colours = axes.pcolormesh(np.ma.array(probabilities, mask=~asked), cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(colours, ax=axes, label="probability", pad=0.01)
    axes.set_title("EMIT probability; hatched where nothing is decided", **TITLE)
    R, Y = asked.shape
    inside = [((column, 0), 1, R - 2) for column in range(Y) if not example["wait_ok"][column]]
    for area in [((0, R - 2), Y, 2), *inside]:
        axes.add_patch(Rectangle(*area, facecolor="none", edgecolor="lightgrey", hatch="////", lw=0))
    if readable:
        texts = np.where(asked, np.char.mod("%.2f", probabilities), "")
        _write_cells(axes, texts, np.where(asked, probabilities, 0), probabilities > example["theta"])


def _write_cells(axes, texts, darkness, bold):
    """Write `texts` [R, Y] into the cells, in white on the darker half of `darkness` (0 to 1)."""
    for (row, column), text in np.ndenumerate(texts):
        axes.text(
            column + 0.5, row + 0.5, text, ha="center", va="center", parse_math=False,
            fontsize=6.5 if len(text) < 9 else 5.5,
            color="white" if darkness[row, column] > 0.55 else "black",
            weight="bold" if bold[row, column] else "normal",
        )  # fmt: skip


def _draw_paths(axes, example):
    """The best path over the path taken, each along the edges of the cells that it leaves to its left."""
    for key, label, style in reversed(PATHS):
        exits = [0, *example[key]]
        corners = [(exits[0], 0)]
        for row, (_, end) in enumerate(pairwise(exits)):
            corners += [(end, row), (end, row + 1)]
        axes.plot(
            *np.transpose(corners), label=label, clip_on=False, zorder=3, solid_joinstyle="miter",
            path_effects=[withStroke(linewidth=style["linewidth"] + 1.2, foreground="white")], **style,
        )  # fmt: skip


def _label_axes(upper, lower, example, height, width):
    """Words along the rows, pieces above the upper and below the lower panel; height, width of a cell in points."""
    R, Y = len(example["rows"]), len(example["columns"])
    rows = {"fontsize": min(8, 0.8 * height), "parse_math": False}
    columns = {"fontsize": min(8, 0.6 * width), "parse_math": False, "rotation": 40, "rotation_mode": "anchor"}
    pieces = [_short(piece) for piece in example["columns"]]
    for axes in (upper, lower):
        axes.set_ylabel("source word read")
        axes.set_yticks(np.arange(R) + 0.5, map(_short, example["rows"]), **rows)
        axes.set_xticks(np.arange(Y) + 0.5, pieces, ha="right", **columns)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    upper.tick_params(labeltop=True, labelbottom=False)
    for tick in upper.xaxis.get_major_ticks():
        tick.label2.set(ha="left", **columns)
    lower.set_xlabel("output piece that is written next")
    upper.set(xlim=(0, Y), ylim=(R, 0))


def installed_fonts():
    """Those of FONTS that are there; matplotlib would complain of each other one."""
    names = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in FONTS if name in names)


@cache
def code_points(fonts):
    """The code points that some of the fonts can show, both normal and bold."""

    def of(weight):
        faces = [font_manager.findfont(font_manager.FontProperties(family=name, weight=weight)) for name in fonts]
        return {code for face in faces for code in font_manager.get_font(face).get_charmap()}

    return of("normal") & of("bold")


def shown(text):
    """The text with a code point (U+0007) in place of each control character and each one that no font here has."""
    known = code_points(installed_fonts())
    return "".join(c if ord(c) in known and unicodedata.category(c) != "Cc" else f"U+{ord(c):04X}" for c in text)


def _short(text):
    text = shown(text)
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
