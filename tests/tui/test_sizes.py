"""The main screen at four sizes: what stays blank, what keeps its end, and what is shown where there is room."""

import pytest
from textual.geometry import Region

from tests.local import H200
from tests.screen import answered, opened, press, screen_text, settle, verdict
from trt_tui.core.precision import Precision
from trt_tui.tui.keys import shown_key
from trt_tui.tui.screens.dialogs import ChoiceField, KeyHints
from trt_tui.tui.widgets.lines import TitleRule

pytestmark = pytest.mark.usefixtures("quick")
SIZES = [(60, 15), (80, 24), (120, 40), (200, 60)]


def rule_text(main, name: str) -> str:
    """A rule as it is drawn; "" if it is not."""
    rule = main.query_one(f"#{name}-rule", TitleRule)
    return "".join(text for text, _ in rule.get_drawn_line(0)) if rule.region else ""


PAGES = ("p", "g", "c", "e", "5", "a", "f1", "f3", "f9", "o", "S", "8 2")
"""The keys that open pages and dialogs of each width."""


@pytest.mark.parametrize("size", SIZES)
async def test_the_last_column_is_blank_ends_stay_and_pages_cover_no_keys(tmp_path, size):
    async with opened(tmp_path, size=size, builder=H200) as (app, main, pilot):
        lines = verdict(main)
        row = next(line for line in lines if line.startswith(" c0"))
        assert "±" in lines[0] and "±" in row and "FAIL" in row and "░" in row
        assert size[0] == 60 or row.endswith("dB missing")
        assert not any("–" in line for line in lines), "nothing is missing before a build"
        assert main.layer_tree.size.height >= 5 and main.text_pane("detail").region.height >= 1
        for keys in ("", "w", "b", "j j", "t", "t t", "2", "2", "1", "slash 0 escape", "space"):
            await answered(pilot, *keys.split())
            shown = screen_text(app).splitlines()
            assert len(shown) == size[1] and max(map(len, shown)) < size[0], (keys, shown)
            for name in ("tree", "configs", "job"):
                drawn, whole = rule_text(main, name), main.query_one(f"#{name}-rule", TitleRule).lines[0][0][0]
                assert not drawn or whole[-12:] in drawn, (keys, drawn)
            if (row := main.current_group) and (drawn := rule_text(main, "detail")):
                assert f"─ {row.operator}" in drawn, (keys, drawn)
        assert main.layer_tree.size.height >= 5
        for keys in PAGES if size[0] <= 80 else ():
            await answered(pilot, *keys.split())
            assert app.screen is not main, keys
            shown = screen_text(app).splitlines()
            assert len(shown) <= size[1] and max(map(len, shown)) < size[0], (keys, shown)
            assert shown[-1].endswith(f"{shown_key('close')} close"), (keys, shown[-1])
            for field in app.screen.query(ChoiceField):
                assert field.render().cell_length <= field.content_size.width, (keys, field.render().plain)
            for hints in app.screen.query(KeyHints):
                assert hints.region.y == size[1] - 1 and hints.region.height == 1, keys
                assert not any(box.region.overlaps(hints.region) for box in app.screen.query(".box")), keys
            await press(pilot, "escape", "escape")
            assert app.screen is main, keys


@pytest.mark.parametrize("size", SIZES)
async def test_precisions_stand_on_tints_and_an_exact_value_has_no_interval(tmp_path, size):
    async with opened(tmp_path, size=size, sweeps=True) as (app, main, pilot):
        await answered(pilot, "w", "space", "t")
        region = main.layer_tree.region
        tints = {}
        for strip in app.screen._compositor.render_strips()[region.y : region.bottom]:
            for segment in strip.crop(*Region(*region).column_span):
                if segment.text.strip() in ("FP32", "INT8", "FP16"):
                    tints.setdefault(segment.text.strip(), set()).add(segment.style.bgcolor)
        assert tints.keys() >= {Precision.FP32.label, Precision.INT8.label}
        assert all(len(colours) == 1 for colours in tints.values()), "the cursor does not hide a tint"
        assert len(set.union(*tints.values())) == len(tints)
        await answered(pilot, *"n space n space".split())
        row = next(line for line in verdict(main) if line.startswith(" c3"))
        assert "PASS" in row and "░" not in row and (size[0] == 60 or row.endswith("dB margin"))
        main.session.toggle_fp32(
            [group for group in main.session.outline.groups if group.name not in main.session.config.precision_moves]
        )
        await settle(pilot)
        row = next(line for line in verdict(main) if "exact" in line)
        assert "±" not in row, "an exact value has no interval"
