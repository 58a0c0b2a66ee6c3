"""Widths of the screen at random; `tests.fuzz.widths` does it for longer."""

import pytest

from tests.fuzz import widths
from trt_tui.tui.widgets import row_panes

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("seed", [11])
async def test_rows_of_names_at_random_are_told_apart(tmp_path, seed):
    result = widths.Result()
    await widths.look(seed, tmp_path, result)
    assert not result.failures and result.looks["rows"] and result.looks["lines above and below"]


async def test_rows_that_look_alike_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(row_panes, "shorten_distinctly", lambda names, width: dict.fromkeys(names, "…"))
    result = widths.Result()
    await widths.look(11, tmp_path, result)
    assert "are both" in result.failures[0][1]


@pytest.mark.parametrize(
    ("shown", "whole", "expected"),
    [
        ("conv1…", ["conv12"], ["1"]),
        ("~-1e5", [-123456.7], []),
        ("12.3 of 40", ["12.34", 40], []),
        ("-8", ["-8.6"], ["-8"]),
    ],
)
def test_a_number_is_cut_unless_it_is_a_rounding(shown, whole, expected):
    assert widths.cut(shown, whole) == expected
