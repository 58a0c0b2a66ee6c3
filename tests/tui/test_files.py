"""Exports to files, and the footer that follows the focus: trt_tui.tui.screens.forms, tui.keys."""

import os

import pytest
from textual.widgets import Input

from tests.screen import answered, opened, press, screen_text, status
from trt_tui.tui.screens.dialogs import ConfirmDialog, fit_key_hints
from trt_tui.tui.state.status import Focus, footer_action_line
from trt_tui.tui.widgets.inputs import KeyedOptionList
from trt_tui.tui.widgets.lines import Lines

pytestmark = pytest.mark.usefixtures("quick")


def test_a_line_of_keys_keeps_whole_entries_and_braces_of_a_name():
    template = "{open} opens it  {up}{down} go  --session a{x}b{}  {close} close"
    assert fit_key_hints(template, 80).plain == "enter opens it  ↑↓ go  --session a{x}b{}  esc close"
    assert fit_key_hints(template, 34).plain == "enter opens it  ↑↓ go  esc close"


async def test_a_file_that_exists_or_cannot_be_written_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.md").write_text("mine")
    async with opened(tmp_path, size=(60, 15)) as (app, main, pilot):

        async def write_to(name, *more):
            app.screen.query_one(Input).value = str(tmp_path / name)
            await answered(pilot, "enter", *more)
            return str(app.screen.query_one("#note").render()) if app.screen is dialog else ""

        await answered(pilot, "e", "enter")
        dialog = app.screen
        dialog.export_format = "markdown"
        (tmp_path / "folder.md").mkdir()
        assert "is a folder" in await write_to("folder.md")
        assert "does not exist" in await write_to("nowhere/a.txt")
        assert await write_to("there.md") == "" and isinstance(app.screen, ConfirmDialog)
        await answered(pilot, "n")
        assert app.screen is dialog and (tmp_path / "there.md").read_text() == "mine"
        box = dialog.query_one(".box").region
        assert all(box.contains_region(dialog.query_one(part).region) for part in (Input, "#note", KeyedOptionList))
        assert dialog.query_one(KeyedOptionList).size.height >= 2
        real = os.fsync

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        assert "No space left" in await write_to("there.md", "y")
        assert (tmp_path / "there.md").read_text() == "mine" and not list(tmp_path.glob("*.tmp"))
        monkeypatch.setattr("os.fsync", real)
        assert await write_to("there.md", "y") == "" and "# " in (tmp_path / "there.md").read_text()
        assert "Wrote " in status(main)


@pytest.mark.parametrize("size", [(60, 15), (120, 40)])
async def test_the_footer_follows_the_focus(tmp_path, size):
    async with opened(tmp_path, size=size) as (app, main, pilot):

        def footer():
            return (
                screen_text(app).splitlines()[-1] if app.screen is not main else main.query_one("#footer", Lines).text
            )

        assert footer().startswith(" space FP32  = up") and footer().rstrip().endswith("f1 keys")
        for opens, shown, closes in (
            (("slash",), "enter keep  esc clear", ("escape",)),
            (("t", "t"), "enter go to row", ("t",)),
            (("2",), "2 less", ("2",)),
            (("p",), "its key selects  esc close", ("escape",)),
            (("g",), "enter selects", ("escape",)),
            (("f9",), "x stops this one", ("escape",)),
            (("f1",), "type to find", ("escape",)),
            (("o",), "↑↓ scroll  esc close", ("escape",)),
        ):
            await answered(pilot, *opens)
            assert shown in footer() and "space FP32" not in footer()[:20], opens
            await answered(pilot, *closes)
        if size[1] >= 34:
            await press(pilot, "4")
            assert footer().startswith(" enter selects it  n name")


def test_the_footer_names_no_key_that_stops_without_a_job():
    def footer(reasons):
        return "".join(text for text, _ in footer_action_line(200, lambda action: reasons.get(action, "")))

    assert "x stop" in footer({}) and "x stop" not in footer({"stop": "no job"})


async def test_the_footer_is_not_drawn_again_by_keys_that_leave_the_focus(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        drawn = []
        footer = main.query_one("#footer", Lines)
        footer.refresh = lambda *regions, **options: drawn.append(regions)
        await answered(pilot, "down", "down", "n", "w", "end", "home", "left", "right")
        line = footer_action_line(
            main.screen_width, main.disabled_reason, Focus.LIST, main._list_replaced_action_labels()
        )
        assert [text for text, _ in footer.lines[0]] == [text for text, _ in line]
        assert len(drawn) <= 4, "only where an action becomes possible or impossible"
