"""Which scores a point's row shows, as aligned text, Markdown and CSV."""

import csv


def _columns(form, **titles):
    """Columns (key, title, form) of scores that are shown in the same form."""
    return [(key, title, form) for key, title in titles.items()]


NAMES = _columns("{}", system="system", setting="setting")
COLUMNS = [
    *NAMES,
    *_columns("{:.2f}", BLEU="BLEU", chrF="chrF"),
    *_columns("{:.4f}", COMET="COMET"),
    *_columns("{:.2f}", length_ratio="length ratio"),
    *_columns("{:.3f}", AL="AL", LAAL="LAAL", YAAL="YAAL", DAL="DAL", AP="AP"),
    *_columns("{:.2f}", first_token_words="first word (words)"),
    *_columns("{:.1f}", first_token_ms="first word (ms)"),
    *_columns("{:.2f}", step_ms="ms/step"),
]
METRICS = tuple(key for key, _, _ in COLUMNS[len(NAMES) :])
CLOCK = [
    *NAMES,
    *_columns(
        "{:.1f}", first_token_ms="first word", first_token_ms_p95="p95", word_ms="a source word", word_ms_p95="p95"
    ),
    *_columns("{:.0f}", sentence_ms="sentence", sentence_ms_p95="p95", AL_CA_ms="AL", LAAL_CA_ms="LAAL"),
]
SIGNS = [
    *NAMES,
    *_columns("{:.1%}", empty="empty", cut_off="cut off", copied="copied", looping="looping"),
    *_columns("{:.1%}", read_whole="read whole first"),
    *_columns("{}", same_as_previous="same as the point above"),
]


def columns_of(results):
    """The COLUMNS that the test configuration asked for, and COMET if a point has it (`evaluation.comet`)."""
    shown = {key for key, _, _ in NAMES} | set(results[0].get("metrics", METRICS)) - {"COMET"}
    if any("COMET" in result["scores"] for result in results):
        shown.add("COMET")
    return [column for column in COLUMNS if column[0] in shown]


def row(result):
    """The values of a point by column."""
    setting = ", ".join(f"{key} = {value}" for key, value in result["values"].items())
    length_ratio = result.get("degeneracy", {}).get("length_ratio")
    return {"system": result["system"], "setting": setting, **result["scores"], "length_ratio": length_ratio}


def cells(result, columns, intervals=False):
    """A point's row of a table, as texts; "-" where it has no such value. intervals: with half of their 95% interval,
    where the point has it."""
    values = {**row(result), **result.get("degeneracy", {})}

    def cell(key, form):
        if values.get(key) is None:
            return "-"
        if isinstance(values[key], bool):
            return "yes" if values[key] else "no"
        half = values.get(f"{key}_half_width") if intervals else None
        return form.format(values[key]) + ("" if half is None else f" ± {form.format(half)}")

    return [cell(key, form) for key, _, form in columns]


def table(results):
    """The results as aligned text, one line a point."""
    columns = columns_of(results)
    lines = [[title for _, title, _ in columns], *(cells(result, columns) for result in results)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def markdown_table(titles, rows, left):
    """Lines of a Markdown table whose first `left` columns are aligned to the left, the others to the right."""
    lines = [titles, ["---" if i < left else "---:" for i in range(len(titles))], *rows]
    return ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines]


def write_csv(results, path):
    """All scores and the length ratio of all points, one line each; empty where a point lacks one."""
    rows = [row(result) for result in results]
    names = dict.fromkeys(name for line in rows for name in line)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
