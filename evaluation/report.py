"""One table, one CSV file and one picture, from the points' JSON files alone."""

import csv
import json
from pathlib import Path

COLUMNS = (
    ("system", "system", "{}"),
    ("setting", "setting", "{}"),
    ("BLEU", "BLEU", "{:.2f}"),
    ("chrF", "chrF", "{:.2f}"),
    ("AL", "AL", "{:.3f}"),
    ("LAAL", "LAAL", "{:.3f}"),
    ("DAL", "DAL", "{:.3f}"),
    ("AP", "AP", "{:.3f}"),
    ("first_token_words", "first word (words)", "{:.2f}"),
    ("first_token_ms", "first word (ms)", "{:.1f}"),
    ("step_ms", "ms/step", "{:.2f}"),
)
STYLES = ("o-", "s--", "^:", "D-.", "v-")
LEVELS = (":", (0, (6, 6)), "-.")  # gaps wide enough that one level shows through another


def load_points(folder):
    """The points' results in the order of the run."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(folder).glob("points/*.json"))]
    return sorted(results, key=lambda result: result["number"])


def row(result):
    setting = ", ".join(f"{key} = {value}" for key, value in result["values"].items())
    return {"system": result["system"], "setting": setting, **result["scores"]}


def table(results):
    """The results as aligned text, one line a point."""
    lines = [[title for _, title, _ in COLUMNS]]
    for result in results:
        values = row(result)
        lines.append([form.format(values[key]) if values[key] is not None else "-" for key, _, form in COLUMNS])
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def comparison_text(comparison):
    """One comparison of `evaluation.statistics.compare` as lines of text."""

    def gain(tested):
        low, high = tested["interval"]
        return f"{tested['BLEU']:+.2f} BLEU [{low:+.2f}, {high:+.2f}], p = {tested['p']:.4f}"

    metric = comparison["metric"]
    lines = ["", f"{comparison['system']} against {comparison['baseline']}, {comparison['samples']} bootstrap samples:"]
    if comparison["range"] is None:
        return "\n".join([*lines, f"  no {metric} that both reach"])
    low, high = comparison["range"]
    lines.append(f"  mean over {metric} {low:.2f} to {high:.2f}: {gain(comparison['mean_gain'])}")
    for place in comparison["at"]:
        result = gain(place["gain"]) if place["gain"] else "outside the range"
        lines.append(f"  at {metric} {place['latency']:g}: {result}")
    for place in comparison["equal_quality"]:
        if place["system"] is None:
            result = "never"
        else:
            result = f"at {metric} {place['system']:.2f} ({place['system'] / place['baseline']:.0%})"
        lines.append(f"  BLEU {place['BLEU']:.2f}, the baseline's at {metric} {place['baseline']:.2f}: {result}")
    return "\n".join(lines)


def write_csv(results, path):
    """All scores of all points, one line each."""
    rows = [row(result) for result in results]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw_frontier(results, path, title):
    """BLEU against AL: a curve for each swept system, a level for each system with one point (whole sentence first)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for number, name in enumerate(dict.fromkeys(result["system"] for result in results)):
        points = [result for result in results if result["system"] == name]
        if points[0]["values"]:
            points.sort(key=lambda result: result["scores"]["AL"])
            lagging, quality = ([result["scores"][key] for result in points] for key in ("AL", "BLEU"))
            axes.plot(lagging, quality, STYLES[number % len(STYLES)], color=f"C{number}", label=name)
            for result, x, y in zip(points, lagging, quality, strict=True):
                value = ", ".join(str(value) for value in result["values"].values())
                axes.annotate(
                    value, (x, y), textcoords="offset points", xytext=(5, -11), fontsize=8, color=f"C{number}"
                )
        else:
            level, style = points[0]["scores"]["BLEU"], LEVELS[number % len(LEVELS)]
            axes.axhline(level, linestyle=style, color=f"C{number}", label=name)
    axes.set(xlabel="Average Lagging (source words)", ylabel="BLEU", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
