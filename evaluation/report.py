"""`python -m evaluation.report FOLDER`: tables and pictures of a results folder, from its JSON files alone.

Reads points/*.json, comparisons.json and examples.json as `python -m evaluation` writes them; the last two may be
missing. Writes report.md, results.csv, frontier and first_word, and grid-LINE of each example, as PNG and SVG.
"""

import argparse
import re
from functools import partial
from itertools import chain
from pathlib import Path

from evaluation.files import HASH_DIGITS, read_json, replace_file
from evaluation.grid_picture import draw_grid
from evaluation.pictures import draw_quality
from evaluation.tables import CLOCK, METRICS, SIGNS, cells, columns_of, markdown_table, write_csv
from evaluation.workers import run_all

GRID_NOTE = """\
The grids below show the model's **own output**, not the reference: rows are the source words read, columns the pieces
of the output (`@@`: the word goes on, `▁`: it ends). Upper panel: -log p of the piece that is written next; in the
cells the model's most probable piece, bold where it is the one written. Lower panel: the EMIT probability, bold above
theta, hatched where nothing is decided (inside a word, and from the last word on, which is read together with the
end). Each line is a path through
the grid: the cells to its left are written when it leaves a row. The best path (`optimal_path`) is that of the printed
lam; the path taken crosses the last word's row without a stop, because that word is read together with the end."""


def load_points(folder):
    """The points' results in the order of the run. Raises FileNotFoundError if there are none."""
    results = [read_json(path) for path in sorted(Path(folder).glob("points/*.json"))]
    if not results:
        raise FileNotFoundError(f"{folder}/points/ holds no JSON file; run `python -m evaluation CONFIG.yaml` first")
    return sorted(results, key=lambda result: result["number"])


def system_of(comparison):
    """The compared system's name, and of those whose points joined its own."""
    return " with ".join([comparison["system"], *comparison.get("join", ())])


def gain_text(tested, samples):
    """A gain of `evaluation.statistics.compare` with its interval and p-value; "<=" where `samples` tell no less."""
    low, high = tested["interval"]
    sign = "<=" if tested["p"] * (samples + 1) < 1.5 else "="
    return f"{tested['BLEU']:+.2f} BLEU [{low:+.2f}, {high:+.2f}], p {sign} {tested['p']:.4f}"


def gains(comparison):
    """Lines of text: the mean gain over the common range, or between two single points; then at each latency asked."""
    metric, samples = comparison["metric"], comparison["samples"]
    if comparison["mean_gain"] is None:
        lines = [f"no range of {metric} that both cover"]
    elif comparison["range"] is None:
        lines = [f"between their only points: {gain_text(comparison['mean_gain'], samples)}"]
    else:
        low, high = comparison["range"]
        lines = [f"mean over {metric} {low:.2f} to {high:.2f}: {gain_text(comparison['mean_gain'], samples)}"]
    for place in comparison["at"]:
        result = gain_text(place["gain"], samples) if place["gain"] else "outside the range"
        lines.append(f"at {metric} {place['latency']:g}: {result}")
    return lines


def equal_latency(place):
    """(latency at which the system has the baseline's BLEU, its share of the baseline's latency), as texts.

    "<=" before a bound. "-" instead of a share that says nothing: no point of the system gets there, a bound lies above
    the baseline's latency, or one of the two is not above 0 (AL can be), which makes no percentage.
    """
    if place["system"] is None:
        return "not reached", "-"
    sign, system, baseline = "<= " if place["at_most"] else "", place["system"], place["baseline"]
    told = min(system, baseline) > 0 and not (place["at_most"] and system > baseline)
    return f"{sign}{system:.2f}", f"{sign}{system / baseline:.0%}" if told else "-"


def comparison_text(comparison):
    """One comparison of `evaluation.statistics.compare` as lines of text."""
    metric = comparison["metric"]
    names = f"{system_of(comparison)} against {comparison['baseline']}"
    lines = ["", f"{names}, {comparison['samples']} bootstrap samples:"]
    lines += [f"  {line}" for line in gains(comparison)]
    for place in comparison["equal_quality"]:
        latency, share = equal_latency(place)
        result = latency + (f" ({share})" if share != "-" else "")
        lines.append(f"  BLEU {place['BLEU']:.2f}, the baseline's at {metric} {place['baseline']:.2f}: {result}")
    return "\n".join(lines)


def example_text(example):
    """An example of `evaluation.examples` as it unfolds, as lines of text."""
    title = f"line {example['line']}, lam = {example['lam']}: {example['source']}"
    return "\n".join(["", title, *example["unfolding"]])


def results_table(results, columns):
    """One row a point as a Markdown table."""
    rows = [cells(result, columns, intervals=True) for result in results]
    return markdown_table([title for _, title, _ in columns], rows, left=2)


def points_section(results):
    """All points as a Markdown table; scores with half of their 95% interval, where the results have it."""
    columns = columns_of(results)
    known = any("BLEU_half_width" in result["scores"] for result in results)
    note = "±: half of the 95% bootstrap interval over sentences. " if known else ""
    return [
        *results_table(results, columns),
        "",
        f"{note}Length ratio: output over reference. AL, LAAL, YAAL, DAL and first word are means in source words; "
        "YAAL is LAAL over the words written before the source ends, - if there is none. AP is a share of the source, "
        "above 1 where the output is longer than the reference. First word (ms) is a median.",
    ]


def clock_section(results):
    """Wall-clock latencies as Markdown; nothing for results without them, or whose tables show no milliseconds."""
    if not {"first_token_ms", "step_ms"} & set(results[0].get("metrics", METRICS)):
        return []
    rates = {result["scores"].get("words_per_second") for result in results}
    if None in rates:
        return []
    return [
        *("", "### By the clock, ms", ""),
        *results_table(results, CLOCK),
        "",
        "Median and 95th percentile (p95) of the time to the first word, of the computing after one source word and of "
        "a sentence, all source words being there at once. AL and LAAL with computing: source words come at "
        f"{', '.join(f'{rate:g}' for rate in sorted(rates))} a second. The intervals are over sentences of one "
        "run: what else the machine did meanwhile is not in them.",
    ]


def signs_section(results):
    """Signs of degeneracy as Markdown; nothing for results without them."""
    if not all("degeneracy" in result for result in results):
        return []
    return [
        *("", "### Signs of degeneracy", ""),
        *results_table(results, SIGNS),
        "",
        "Shares of the sentences, as `evaluation/degeneracy.py` defines them.",
    ]


def comparison_section(comparison):
    """One comparison as Markdown: gains, then the latencies of equal quality."""
    metric = comparison["metric"]
    rows = []
    for place in comparison["equal_quality"]:
        rows.append([f"{place['BLEU']:.2f}", f"{place['baseline']:.2f}", *equal_latency(place)])
    titles = ["BLEU", f"{metric} of {comparison['baseline']}", f"{metric} of {system_of(comparison)}", "share"]
    heading = f"{metric} at which both have the same BLEU (<=: already the system's first point is better):"
    return [
        "",
        f"### {system_of(comparison)} against {comparison['baseline']}, by {metric}",
        "",
        *(f"- {line}" for line in gains(comparison)),
        f"- paired bootstrap over sentences, {comparison['samples']} samples, seed {comparison['seed']}; p-values are "
        "two-sided and not corrected for the number of tests",
        *(["", heading, "", *markdown_table(titles, rows, left=0)] if rows else ()),
    ]


def example_section(example):
    """One example as Markdown: its picture and how it unfolds."""
    name = f"grid-{example['line']}"
    cut = "" if example["ended"] else " (cut at the output limit)"
    return [
        "",
        f"### Line {example['line']}",
        "",
        *("```", *example_text(example).splitlines()[1:], "```", ""),
        f"Output: {example['output']}{cut}",
        "",
        f"![Loss heatmap and EMIT probabilities, line {example['line']}]({name}.png)",
    ]


def circumstances_section(results):
    """What the scores depend on; systems that differ in it are listed one by one."""

    def each(title, value_of):
        systems = {}
        for result in results:
            names = systems.setdefault(value_of(result), [])
            if result["system"] not in names:
                names.append(result["system"])
        if len(systems) == 1:
            return [f"- {title}: {next(iter(systems))}"]
        return [f"- {title} ({'; '.join(names)}): {value}" for value, names in systems.items()]

    def short(hashes):
        return ", ".join(f"{name} `{digest[:HASH_DIGITS]}`" for name, digest in hashes.items())

    comet = any("COMET" in result["scores"] for result in results)
    return [
        *each("sentences", lambda r: f"{r['scores']['sentences']}, {r['scores']['empty']} of them without output"),
        *each("BLEU", lambda r: f"`{r['scores']['BLEU_signature']}`"),
        *each("chrF", lambda r: f"`{r['scores']['chrF_signature']}`"),
        *(each("COMET", lambda r: f"`{r['scores'].get('COMET_signature', 'not scored')}`") if comet else ()),
        *each("latency unit of the output", lambda r: r["point"]["latency_unit"]),
        *each("versions", lambda r: ", ".join(f"{name} {version}" for name, version in r["versions"].items())),
        *each("device", lambda r: r["device"]),
        *each("test set (SHA-256)", lambda r: short({s: r["point"][f"{s}_sha256"] for s in ("source", "reference")})),
        *each("checkpoint (SHA-256)", lambda r: short(r["point"]["checkpoint_sha256"])),
    ]


def report_text(name, results, comparisons, examples):
    """report.md as one string."""
    lines = [f"# {name}", "", "Made by `python -m evaluation.report` from the JSON files in this folder.", ""]
    lines += ["## Points", "", *points_section(results), *clock_section(results), *signs_section(results), ""]
    for picture, text in (("frontier", "Average Lagging"), ("first_word", "the latency of the first word")):
        lines += [f"![BLEU against {text}]({picture}.png) ([SVG]({picture}.svg))", ""]
    if comparisons:
        lines += [
            "## Comparisons",
            *(line for comparison in comparisons for line in comparison_section(comparison)),
            "",
        ]
    lines += ["## Circumstances", "", *circumstances_section(results), ""]
    if examples:
        lines += [
            "## Examples",
            "",
            GRID_NOTE,
            *(line for example in examples for line in example_section(example)),
            "",
        ]
    return "\n".join(lines)


def read_optional(path):
    """The JSON value of the file, or an empty list if there is none."""
    return read_json(path) if path.is_file() else []


def write_report(folder, pool=None):
    """Write the tables and pictures of a results folder; returns their names. FileNotFoundError if it has no points.

    pool: of `evaluation.workers`, for the pictures.
    """
    folder = Path(folder)
    results = load_points(folder)
    comparisons, examples = (read_optional(folder / f"{name}.json") for name in ("comparisons", "examples"))
    name = folder.resolve().name
    for old in folder.iterdir():
        if re.fullmatch(r"grid-\d+\.(png|svg)", old.name):
            old.unlink()
    write_csv(results, folder / "results.csv")
    replace_file(folder / "report.md", report_text(name, results, comparisons, examples).encode())
    title = f"{name}: {results[0]['scores']['sentences']} sentences"
    pictures = [
        partial(draw_quality, results, "AL", title, folder / "frontier"),
        partial(draw_quality, results, "first_token_words", title, folder / "first_word"),
        *(partial(draw_grid, example, folder / f"grid-{example['line']}") for example in examples),
    ]
    return ["report.md", "results.csv", *chain(*run_all(_call, pictures, pool))]


def _call(function):
    return function()


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m evaluation.report", description=__doc__)
    parser.add_argument("folder", type=Path, help="results folder of `python -m evaluation`")
    folder = parser.parse_args(arguments).folder
    print(f"written: {folder}/{{{','.join(write_report(folder))}}}")


if __name__ == "__main__":
    main()
