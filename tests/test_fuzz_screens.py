"""Widths and mistyped words at random; `tests.fuzz.widths` and `mistyped` do it for longer."""

import pytest

from tests.fuzz import mistyped, widths
from trt_tui.tui.widgets import layer_tree

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("seed", [11])
async def test_rows_of_names_at_random_are_told_apart(tmp_path, seed):
    result = widths.Result()
    await widths.look(seed, tmp_path, result)
    assert not result.failures and result.looks["rows"] and result.looks["lines above and below"]


async def test_rows_that_look_alike_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(layer_tree, "shorten_distinctly", lambda names, width: dict.fromkeys(names, "…"))
    result = widths.Result()
    await widths.look(11, tmp_path, result)
    assert "are both" in result.failures[0][1]


@pytest.mark.parametrize(("shown", "whole", "expected"), [
    ("conv1…", ["conv12"], ["1"]), ("~-1e5", [-123456.7], []), ("12.3 of 40", ["12.34", 40], []),
    ("-8", ["-8.6"], ["-8"])])
def test_a_number_is_cut_unless_it_is_a_rounding(shown, whole, expected):
    assert widths.cut(shown, whole) == expected


def test_mistyped_command_lines_are_refused_with_what_is_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = mistyped.Result()
    mistyped.run(16, 1, tmp_path, result)
    assert not result.failures and result.looks.keys() == mistyped.KINDS.keys()


def test_a_suggestion_that_does_not_exist_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trt_tui.cli.main.find_similar_names", lambda *_: ["compose"])
    result = mistyped.Result()
    mistyped.run(1, 1, tmp_path, result)
    assert "suggests ['compose'" in result.failures[0]


@pytest.mark.parametrize(("one", "other", "expected"), [
    ("compare", "comapre", True), ("compare", "comparr", True), ("compare", "compar", True),
    ("compare", "compaer", True), ("compare", "xcompare", True), ("compare", "cmopaer", False),
    ("compare", "comp", False)])
def test_a_slip_is_one_letter(one, other, expected):
    assert mistyped.slip_apart(one, other) is mistyped.slip_apart(other, one) is expected
