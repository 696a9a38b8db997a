import warnings

from conftest import ROOT

from evaluation import grid_picture
from evaluation.grid_picture import draw_grid, shown
from evaluation.report import read_optional


def test_control_characters_and_those_of_no_font_are_shown_as_code_points(monkeypatch):
    monkeypatch.setattr(grid_picture, "FONTS", ("DejaVu Sans", "no such font"))
    assert shown("für\x07\x1b") == "fürU+0007U+001B"
    assert shown("東京") == "U+6771U+4EAC"
    assert shown("Größe ▁ · … ñ Ж") == "Größe ▁ · … ñ Ж"


def test_no_text_draws_a_warning(tmp_path):
    """Whatever fonts are there: matplotlib finds a glyph for everything, and every font that it is told of."""
    example = read_optional(ROOT / "results" / "demo" / "examples.json")[0]
    example["rows"][:3] = ["明日東京に", "서울", "a\x07b\U000e0001"]
    example["top"][0][0] = example["columns"][0] = "的"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw_grid(example, tmp_path / "grid") == ["grid.png", "grid.svg"]
