"""Tables and pictures from JSON files alone, and the numbers of the examples' grids against the engine."""

import csv
import json
import re
from xml.etree import ElementTree

import pytest
import torch
from conftest import demo_pairs
from matplotlib.figure import Figure
from matplotlib.image import imread
from tiny_results import RESULTS, result, write_folder

from duplex_model.checkpoint import PACKAGED, load_checkpoint
from duplex_model.engine import Engine, Limits
from duplex_model.policies import EmitHeadPolicy
from evaluation.examples import example_of, write_examples
from evaluation.pictures import _draw_legend, draw_quality
from evaluation.report import comparison_section, comparison_text, load_points, main, write_report
from evaluation.tables import table

EXAMPLE = {
    "line": 7,
    "source": "Das kostet $5 | $6.",
    "lam": 0.03,
    "theta": 0.5,
    "unfolding": ["  Das  WAIT 0.10"],
    "output": "It costs",
    "ended": True,
    "rows": ["Das", "kostet", "$5", "|", "$6.", "</s>"],
    "columns": ["It", "co@@", "sts", "</s>"],
    "heatmap": [[2.0, 12.0, 1.0, 0.5]] * 6,
    "emit": [[0.1, 0.2, 0.3, 0.4]] * 6,
    "top": [["$It$", "co@@", "a very long piece", "</s>"]] * 6,
    "wait_ok": [True, True, False, True, True],
    "optimal_exit": [0, 1, 1, 3, 3, 4],
    "taken_exit": [0, 0, 1, 1, 1, 4],
}


GAIN = {"BLEU": 1.234, "interval": [0.5, 2.0], "p": 0.012}
COMPARISON = {
    **{"system": "grid | x", "baseline": "wait-k", "metric": "AL", "samples": 1000, "seed": 12345},
    **{"range": [1.5, 3.25], "mean_gain": GAIN, "at": [{"latency": 2, "gain": GAIN}, {"latency": 9, "gain": None}]},
    "equal_quality": [
        {"BLEU": 24.0, "baseline": 3.5, "system": 2.8, "at_most": False},
        {"BLEU": 26.0, "baseline": 3.6, "system": None, "at_most": False},
        {"BLEU": 20.0, "baseline": 1.2, "system": 1.5, "at_most": True},
        {"BLEU": 20.0, "baseline": 3.0, "system": 1.5, "at_most": True},
    ],
}


def check_pictures(folder, names):
    for name in names:
        height, width, _ = imread(folder / f"{name}.png").shape
        assert min(height, width) > 300
        assert ElementTree.parse(folder / f"{name}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_report_comes_from_json_alone(tmp_path, capsys):
    folder = write_folder(tmp_path / "trial", comparisons=[COMPARISON], examples=[EXAMPLE])
    (folder / "grid-99.png").write_text("of an earlier run")
    main([str(folder)])
    assert f"written: {folder}" in capsys.readouterr().out
    text = (folder / "report.md").read_text()
    assert text.startswith("# trial\n")
    for line in (
        "| wait-k | k = 1 | 18.00 ± 0.25 | 38.00 ± 0.25 | 0.90 | 1.000 ± 0.250 | 1.000 ± 0.250 | 1.000 ± 0.250 "
        "| 1.000 ± 0.250 | 0.500 ± 0.250 | 0.50 ± 0.25 | - | 4.50 |",
        "| whole sentence |  | 27.00 ± 0.25 | 47.00 ± 0.25 | 0.90 | 11.000 ± 0.250 | 11.000 ± 0.250 | - "
        "| 11.000 ± 0.250 | 0.500 ± 0.250 | 5.50 ± 0.25 | - | 4.50 |",
        "| wait-k | k = 1 | - | - | 7.0 | 8.0 | 99 | 120 | 450 | 460 |",
        r"| grid \| x | lam = 0.01 | 12.5% | 0.0% | 25.0% | 50.0% | 100.0% | yes |",
        "- mean over AL 1.50 to 3.25: +1.23 BLEU [+0.50, +2.00], p = 0.0120",
        "- at AL 2: +1.23 BLEU [+0.50, +2.00], p = 0.0120",
        "- at AL 9: outside the range",
        r"| BLEU | AL of wait-k | AL of grid \| x | share |",
        "| 24.00 | 3.50 | 2.80 | 80% |",
        "| 26.00 | 3.60 | not reached | - |",
        "| 20.00 | 1.20 | <= 1.50 | - |",
        "| 20.00 | 3.00 | <= 1.50 | <= 50% |",
        "- sentences: 9, 1 of them without output",
        "- BLEU: `nrefs:1|tok:13a`",
        "- versions: torch 2.13.0, sacrebleu 2.6.0",
        "- device: cpu, 1 thread(s) a point, x86_64",
        f"- checkpoint (SHA-256) (wait-k; whole sentence): model.safetensors `{'b' * 12}`",
        "  Das  WAIT 0.10",
        "Output: It costs",
    ):
        assert line in text.splitlines(), line
    check_pictures(folder, ("frontier", "first_word", "grid-7"))
    linked = set(re.findall(r"\]\(([^()]+)\)", text))
    drawn = {path.name for path in folder.iterdir() if path.suffix in (".png", ".svg")}
    assert linked == drawn - {"grid-7.svg"}  # the vector form of a grid is large and not for the repository
    rows = (folder / "results.csv").read_text().splitlines()
    assert len(rows) == 6 and rows[1].startswith("grid | x,lam = 0.1,20.125,40.125,1.5,")
    assert rows[0].endswith(",length_ratio") and rows[1].endswith(",0.9")


def test_without_a_common_range_what_was_measured_is_told():
    """One system of a single point: no mean, but a gain there, and the baseline's levels of quality."""
    single = {**COMPARISON, "range": None, "mean_gain": None}
    text = "\n".join(comparison_section(single))
    assert "- no range of AL that both cover" in text and "- at AL 2: +1.23 BLEU" in text and "| 80% |" in text
    assert "(80%)" in comparison_text(single)
    assert "  between their only points: +1.23 BLEU [" in comparison_text({**COMPARISON, "range": None})


def test_the_same_json_gives_the_same_files(tmp_path):
    first, again = (write_folder(tmp_path / name / "trial", examples=[EXAMPLE]) for name in "ab")
    assert write_report(first) == write_report(again)
    for path in first.glob("*.*"):
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def test_results_without_intervals_comparisons_or_examples(tmp_path):
    old = json.loads(json.dumps(RESULTS))
    for point in old:
        newer = ("half_width", "YAAL", "_p95", "word_ms", "_CA_ms", "words_per_second")
        point["scores"] = {
            key: value for key, value in point["scores"].items() if not any(part in key for part in newer)
        }
        del point["degeneracy"]
    folder = write_folder(tmp_path / "old", old)
    assert not any(name.startswith("grid") for name in write_report(folder))
    text = (folder / "report.md").read_text()
    assert r"| grid \| x | lam = 0.1 | 20.12 | 40.12 | - | 1.500 |" in text
    assert "By the clock" not in text and "degeneracy" not in text
    assert "±" not in text and "## Comparisons" not in text and "## Examples" not in text
    check_pictures(folder, ("frontier", "first_word"))


@pytest.mark.parametrize(
    "system,baseline,cell", [(1.0, -0.5, "1.00 | -"), (1.0, 0.0, "1.00 | -"), (-1.0, 2.0, "-1.00 | -")]
)
def test_a_latency_of_zero_or_less_makes_no_percentage(system, baseline, cell):
    place = {"BLEU": 24.0, "baseline": baseline, "system": system, "at_most": False}
    comparison = {**COMPARISON, "equal_quality": [place]}
    assert f"| 24.00 | {baseline:.2f} | {system:.2f} | - |" in comparison_section(comparison)
    assert comparison_text(comparison).endswith(f"at AL {baseline:.2f}: {system:.2f}")


def test_a_folder_without_points_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="points/ holds no JSON file; run `python -m evaluation"):
        write_report(tmp_path)


def test_points_come_in_the_order_of_the_run(tmp_path):
    assert load_points(write_folder(tmp_path / "trial")) == RESULTS


def test_only_regimes_within_the_plotted_range_are_marked(tmp_path):
    def text_of(results, latency):
        draw_quality(results, latency, "t", tmp_path / "picture")
        return (tmp_path / "picture.svg").read_text()

    def marked(text):
        return {regime for regime in ("AL 3", "AL 6", "AL 15") if f"<!-- {regime} -->" in text}

    assert marked(text_of(RESULTS, "AL")) == {"AL 3"}
    assert marked(text_of([*RESULTS, result(5, "wait-k", {"k": 9}, 26.0, 16.0)], "AL")) == {"AL 3", "AL 6", "AL 15"}
    assert marked(text_of(RESULTS, "first_token_words")) == set()


def test_a_system_with_one_point_before_the_end_is_a_point(tmp_path):
    """Only what reads the whole sentence first is a level; another system has its own place, swept or not."""

    def markers(results):
        draw_quality(results, "AL", "t", tmp_path / "picture")
        return (tmp_path / "picture.svg").read_text().count("<use xlink:href")

    whole = markers([*RESULTS, result(5, "another whole", {}, 26.0, 11.0)])
    assert markers([*RESULTS, result(5, "one point", {}, 26.0, 2.0)]) > whole


@pytest.mark.parametrize("name,columns", [("short", 2), ("a name that is as long as names of systems come to be", 1)])
def test_the_legend_stays_within_the_picture(name, columns):
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    axes = figure.add_subplot()
    for number in range(3):
        axes.plot([0, 1], label=f"{name} {number}")
    _draw_legend(figure)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    (left, bottom), (right, _) = legend.get_window_extent().get_points()
    assert legend._ncols == columns and min(left, bottom) >= 0 and right <= figure.bbox.width


def test_only_the_metrics_asked_for_are_shown(tmp_path):
    chosen = [{**point, "metrics": ["BLEU", "DAL"]} for point in RESULTS]
    write_report(write_folder(tmp_path / "trial", chosen))
    assert "| system | setting | BLEU | DAL |" in (tmp_path / "trial" / "report.md").read_text()
    assert table(chosen).splitlines()[0].split() == ["system", "setting", "BLEU", "DAL"]


class Watching:
    """An EMIT-head policy that notes the probability of each cell where it is asked."""

    def __init__(self, policy):
        self.policy, self.lam, self.theta, self.seen = policy, policy.lam, policy.theta, {}

    def emits(self, stream):
        self.seen[stream.x_vis - 1, stream.y_gen - 1] = stream.emit_probability(self.lam)
        return self.policy.emits(stream)


@pytest.mark.parametrize("packaged", [False, True])
def test_an_example_s_numbers_are_the_engine_s(checkpoint, packaged):
    """Every cell again by the engine's incremental steps, and the EMIT probabilities while it unfolds."""
    engine = Engine(*load_checkpoint(PACKAGED if packaged else checkpoint), None if packaged else Limits(0.5, 5))
    line, policy, tokenizer = demo_pairs()[32][0], EmitHeadPolicy(0.03), engine.tokenizer
    example = example_of(engine, 33, line, policy)
    stream, watching, words = engine.open(), Watching(policy), line.split()
    row_of, heights = {}, []  # source position -> row; pieces written when the row is left
    for row, _ in enumerate(stream.feed(line)):
        row_of[stream.x_vis - 1] = row
        list(stream.advance(watching))
        heights.append(stream.y_gen - 1)
    assert example["ended"] == packaged == (not stream.over_limit)
    assert example["rows"] == [*words, "</s>"]
    target = [*stream.state.target_ids, tokenizer.eos_id]
    Y = len(target) - 1
    # The last word is read with the end, so its own row is only crossed.
    assert example["taken_exit"] == [*heights[:-1], heights[-2], Y if packaged else Y - 1]
    assert example["wait_ok"] == [True, *tokenizer.word_ends(target[1:-1], "word"), True]
    pieces = "".join(piece.removesuffix("@@") for piece in example["columns"][:-1] if piece.strip("·▁@"))
    assert pieces == example["output"].replace(" ", "")
    for (position, column), probability in watching.seen.items():
        assert example["emit"][row_of[position]][column] == pytest.approx(probability, abs=2e-5)
    assert len(watching.seen) > 5

    state, step = engine.open().state, 0
    ends = [i for i, end in enumerate(tokenizer.word_ends(tokenizer.encode(line), "word"), 1) if end]
    for row, position in enumerate([*ends, len(stream.state.source_ids) - 1]):
        with torch.inference_mode():
            state = cell = state.read(stream.state.source_ids[step + 1 : position + 1])
            step = position
            for column, following in enumerate(target[1:]):
                nats = -cell.logits()[1].log_softmax(-1)
                assert example["heatmap"][row][column] == pytest.approx(nats[following].item(), abs=2e-4)
                text = tokenizer.decode([nats.argmin().item()])
                assert example["top"][row][column].removesuffix("@@") == text or not text
                emit = torch.tensor(cell.emit_logit(policy.lam)).sigmoid().item()
                assert example["emit"][row][column] == pytest.approx(emit, abs=2e-5)
                cell = cell.write(following)


def test_the_best_path_of_an_example_scores_no_less_than_the_path_taken():
    engine = Engine(*load_checkpoint())

    def score(example, exits):
        begins = [0, *exits[:-1]]
        steps = zip(example["heatmap"], begins, exits, strict=True)
        return example["lam"] * sum(exits) - sum(sum(row[begin:end]) for row, begin, end in steps)

    for lam in (0.003, 0.12):
        example = example_of(engine, 36, demo_pairs()[35][0], EmitHeadPolicy(lam))
        best, taken = example["optimal_exit"], example["taken_exit"]
        assert best[-1] == taken[-1] == len(example["columns"]) and score(example, best) >= score(example, taken) - 1e-3
        assert all(example["wait_ok"][height] for height in best)


def test_a_long_example_and_a_short_one_are_drawn(tmp_path):
    engine, policy = Engine(*load_checkpoint()), EmitHeadPolicy(0.12)
    lines = [" ".join(source for source, _ in demo_pairs()[:4]), "Ja."]
    folder = write_folder(tmp_path / "trial")
    examples = [example_of(engine, number, line, policy) for number, line in enumerate(lines, 1)]
    write_examples(examples, folder / "examples.json")
    assert json.loads((folder / "examples.json").read_text()) == examples
    write_report(folder)
    check_pictures(folder, ("grid-1", "grid-2"))


def test_comet_is_shown_where_a_point_has_it(tmp_path):
    scored = json.loads(json.dumps(RESULTS))
    scored[2]["scores"] |= {"COMET": 0.81234, "COMET_half_width": 0.0123, "COMET_signature": "model:m|version:2"}
    folder = write_folder(tmp_path / "trial", scored)
    write_report(folder)
    lines = (folder / "report.md").read_text().splitlines()
    for start in (
        "k = 1 | 18.00 ± 0.25 | 38.00 ± 0.25 | 0.8123 ± 0.0123 |",
        "k = 3 | 24.00 ± 0.25 | 44.00 ± 0.25 | - |",
    ):
        assert any(line.startswith(f"| wait-k | {start}") for line in lines), start
    assert "- COMET (wait-k): `model:m|version:2`" in lines
    assert "0.8123" in table(scored) and "COMET" not in table(RESULTS)
    assert "0.8123" in table([{**point, "metrics": ["BLEU"]} for point in scored])  # scored after the sweep
    head, *rows = csv.reader((folder / "results.csv").read_text().splitlines())
    assert [row[head.index("COMET")] for row in rows] == ["", "", "0.81234", "", ""]
