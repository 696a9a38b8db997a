"""Which scores a point's row shows, as aligned text, Markdown and CSV; and how JSON is written."""

import csv
import json

COLUMNS = (
    ("system", "system", "{}"),
    ("setting", "setting", "{}"),
    ("BLEU", "BLEU", "{:.2f}"),
    ("chrF", "chrF", "{:.2f}"),
    ("COMET", "COMET", "{:.4f}"),
    ("AL", "AL", "{:.3f}"),
    ("LAAL", "LAAL", "{:.3f}"),
    ("YAAL", "YAAL", "{:.3f}"),
    ("DAL", "DAL", "{:.3f}"),
    ("AP", "AP", "{:.3f}"),
    ("first_token_words", "first word (words)", "{:.2f}"),
    ("first_token_ms", "first word (ms)", "{:.1f}"),
    ("step_ms", "ms/step", "{:.2f}"),
)
CLOCK = (
    *COLUMNS[:2],
    ("first_token_ms", "first word", "{:.1f}"),
    ("first_token_ms_p95", "p95", "{:.1f}"),
    ("word_ms", "a source word", "{:.1f}"),
    ("word_ms_p95", "p95", "{:.1f}"),
    ("sentence_ms", "sentence", "{:.0f}"),
    ("sentence_ms_p95", "p95", "{:.0f}"),
    ("AL_CA_ms", "AL", "{:.0f}"),
    ("LAAL_CA_ms", "LAAL", "{:.0f}"),
)
SIGNS = (
    *COLUMNS[:2],
    ("empty", "empty", "{:.1%}"),
    ("cut_off", "cut off", "{:.1%}"),
    ("copied", "copied", "{:.1%}"),
    ("looping", "looping", "{:.1%}"),
    ("read_whole", "read whole first", "{:.1%}"),
    ("length_ratio", "length ratio", "{:.2f}"),
    ("same_as_previous", "same as the point above", "{}"),
)


def columns_of(results):
    """COLUMNS, with COMET only where a point has it (`evaluation.comet`)."""
    known = any("COMET" in result["scores"] for result in results)
    return tuple(column for column in COLUMNS if known or column[0] != "COMET")


def row(result):
    setting = ", ".join(f"{key} = {value}" for key, value in result["values"].items())
    return {"system": result["system"], "setting": setting, **result["scores"]}


def cells(result, columns=COLUMNS):
    """A point's row of a table, as texts; "-" where it has no such value."""
    values = {**row(result), **result.get("degeneracy", {})} if columns is SIGNS else row(result)
    return [form.format(values[key]) if values.get(key) is not None else "-" for key, _, form in columns]


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
    """All scores of all points, one line each; empty where a point lacks one."""
    rows = [row(result) for result in results]
    names = dict.fromkeys(name for line in rows for name in line)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_json(value, path):
    """Write a value as the results' JSON files are written."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
