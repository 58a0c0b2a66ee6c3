"""Tables and charts in files, and the footer that follows the focus: trt_tui.tui.state.view_files, screens.write_view.
"""

import csv
import html
import io
import os
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from textual.widgets import Input

from tests import local
from tests.local import H200
from tests.screen import answered, opened, press, screen_text, settle, status
from trt_tui.errors import InputError
from trt_tui.tui import keys
from trt_tui.tui.actions import Focus, footer_action_line
from trt_tui.tui.screens.charts import ChartsPage
from trt_tui.tui.screens.dialogs import ConfirmDialog, KeyHints, TextPage, fit_key_hints
from trt_tui.tui.screens.help import HelpPage
from trt_tui.tui.screens.write_view import WriteViewDialog
from trt_tui.tui.state.tree import View
from trt_tui.tui.state.view_files import VIEW_FORMATS, ViewContent, accuracy_view, config_view, format_view
from trt_tui.tui.widgets.lines import Lines

pytestmark = pytest.mark.usefixtures("quick")
TABLE = ViewContent("layers", "net.onnx: layers", table=[["layer", "share"], ["=cmd()", "~7 %"], ["a|b`<x>", "-3.5"]])
CHART = ViewContent("depth", "net.onnx: depth", [[("▁▃█ ", "band0"), ("x < y", "dim")], [], [("```", "")]])


def test_each_format_holds_what_is_shown(tmp_path):
    text, markdown, rows, svg = (format_view(TABLE, tmp_path / f"a{suffix}") for suffix in VIEW_FORMATS)
    assert text.splitlines() == ["net.onnx: layers", "", "layer    share", "=cmd()   ~7 %", "a|b`<x>  -3.5"]
    assert markdown.splitlines()[2:4] == ["| layer | share |", "| --- | --- |"] and "a\\|b\\`\\<x\\>" in markdown
    assert list(csv.reader(io.StringIO(rows))) == [["layer", "share"], ["'=cmd()", "~7 %"], ["a|b`<x>", "-3.5"]]
    assert "~7 %" in "".join(ElementTree.fromstring(svg).itertext())
    text, markdown, svg = (format_view(CHART, tmp_path / f"a{suffix}") for suffix in (".TXT", ".md", ".svg"))
    assert text.splitlines() == ["net.onnx: depth", "", "▁▃█ x < y", "", "```"]
    assert markdown.splitlines()[2] == "````text" and markdown.splitlines()[-1] == "````"
    line, _ = (part for part in ElementTree.fromstring(svg).iter() if part.get("textLength"))
    assert "".join(line.itertext()) == "▁▃█ x < y" and float(line.get("textLength")) == pytest.approx(9 * 7.8)


def test_a_line_of_keys_keeps_whole_entries_and_braces_of_a_name():
    template = "{open} opens it  {up}{down} go  --session a{x}b{}  {close} close"
    assert fit_key_hints(template, 80).plain == "enter opens it  ↑↓ go  --session a{x}b{}  esc close"
    assert fit_key_hints(template, 34).plain == "enter opens it  ↑↓ go  esc close"


@pytest.mark.parametrize(("content", "name", "cause"), [
    (CHART, "a.csv", "no columns"), (TABLE, "a.pdf", ".txt, .md, .csv, .svg"), (TABLE, "a", "no suffix")])
def test_other_formats_are_refused_with_the_reason(tmp_path, content, name, cause):
    with pytest.raises(InputError) as error:
        format_view(content, tmp_path / name)
    assert cause in f"{error.value.title} {error.value.cause} {error.value.next_step}"


def test_the_tables_have_the_cells_of_the_screen(tmp_path, measured_before):
    session = local.measured(tmp_path, "small_resnet", target="sqnr>=12", builder=H200)
    session.request_build()
    session.rest()
    header, *rows = accuracy_view(session).table
    assert header[1] == "SQNR" and header[-1] == session.target.description and len(rows) >= 3
    assert {len(row) for row in rows} == {len(header)} and any("~" in row[1] for row in rows)
    assert {row[-1].partition(" ")[0].rstrip("?") for row in rows[-3:]} & {"PASS", "FAIL"}
    header, *rows = config_view(session).table
    assert header[0] == "config" and {len(row) for row in rows} == {len(header)} and "c0" in rows[-1][0]


@pytest.mark.parametrize("suffix", VIEW_FORMATS)
def test_sentences_below_a_table_are_not_cut_into_its_columns(tmp_path, suffix):
    sentence = "c1 FAIL?: the 95 % interval 79.2% to 99.2% spans the target"
    text = format_view(replace(TABLE, notes=(sentence,)), tmp_path / f"a{suffix}")
    assert sentence in html.unescape(re.sub("<[^>]*>", "", text)).replace("\xa0", " ")
    assert len(text.splitlines()[2 if suffix == ".txt" else 0]) < len(sentence) or suffix in (".md", ".svg")


def test_the_reasons_of_an_outcome_are_sentences_below_the_accuracy(tmp_path):
    session = local.measured(tmp_path, "small_resnet", target="sqnr>=12")
    value = session.results[session.config].accuracy.worst_errors.sqnr_db
    session.set_target(f"sqnr>={value:.2f}")
    content = accuracy_view(session)
    reasons = [reason for outcome in session.config_target_outcomes(session.config).values()
               for reason in outcome.reasons]
    assert reasons and all(any(reason in note for note in content.notes) for reason in reasons), content.notes
    assert not any(reason in " ".join(row) for row in content.table for reason in reasons)


async def test_the_list_in_hand_is_written_as_it_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path) as (app, main, pilot):
        await answered(pilot, "slash", *"mlp", "enter", "Y")
        dialog = app.screen
        assert isinstance(dialog, WriteViewDialog) and dialog.content_field.value.label == "layers"
        path = dialog.query_one(Input)
        assert path.value == str(tmp_path / "vit-layers.txt")
        assert str(dialog.query_one(KeyHints).render()).startswith("enter writes it")
        await press(pilot, "up", "right", "right")
        assert str(dialog.query_one(KeyHints).render()).startswith("←→ change  enter goes to the path")
        assert path.value.endswith("vit-layers.csv")
        await answered(pilot, "enter", "enter")
        assert f"Wrote {tmp_path / 'vit-layers.csv'}" in str(dialog.query_one("#note").render())
        rows = list(csv.reader((tmp_path / "vit-layers.csv").open()))
        assert rows[0][:2] == ["layer", "op"] and len(rows) == len(main.presenter.layer_tree.rows) + 1
        assert all("mlp" in row[0] or not row[1] for row in rows[1:] if "norm" not in row[0]), "filtered"
        assert str(dialog.query_one(KeyHints).render()).startswith("enter closes this")
        await press(pilot, "x", "enter")
        assert path.value.endswith("vit-layers.csv") and app.screen is main and "Wrote " in status(main)


async def test_a_file_that_exists_or_cannot_be_written_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.md").write_text("mine")
    async with opened(tmp_path) as (app, main, pilot):
        async def write_to(name, *more):
            app.screen.query_one(Input).value = str(tmp_path / name)
            await answered(pilot, "enter", *more)
            return str(app.screen.query_one("#note").render()) if app.screen is dialog else ""

        await answered(pilot, "4", "Y")
        dialog = app.screen
        (tmp_path / "folder.md").mkdir()
        assert "is a folder" in await write_to("folder.md")
        with pytest.raises(InputError, match="is an input file"):
            app.session.write_view(Path(app.session.options.model), "x", True)
        assert "End the name in .txt" in await write_to("a.pdf")
        assert "does not exist" in await write_to("nowhere/a.txt")
        assert await write_to("there.md") == "" and isinstance(app.screen, ConfirmDialog)
        await answered(pilot, "n")
        assert app.screen is dialog and (tmp_path / "there.md").read_text() == "mine"
        real = os.fsync

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        assert "No space left on device" in await write_to("there.md", "y")
        assert (tmp_path / "there.md").read_text() == "mine" and not list(tmp_path.glob("*.tmp"))
        monkeypatch.setattr("os.fsync", real)
        assert "Wrote " in await write_to("there.md", "y") and "# " in (tmp_path / "there.md").read_text()
        await press(pilot, "escape", "1", "Y")
        assert app.screen.format_field.value == ".md", "the format of the last file is proposed"


async def test_pages_and_charts_are_written_with_the_same_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with opened(tmp_path, size=(120, 40), network="small_resnet") as (app, main, pilot):
        await answered(pilot, "8", "2", "Y")
        assert isinstance(app.screen, WriteViewDialog)
        app.screen.query_one(Input).value = "depth.svg"
        await answered(pilot, "enter", "enter")
        assert isinstance(app.screen, ChartsPage)
        drawn = "".join(ElementTree.parse(tmp_path / "depth.svg").getroot().itertext())
        assert any(line.strip() and line.strip() in drawn for line in app.screen.text.splitlines())
        await answered(pilot, "escape", "space", "Z")
        for opens, label in (((), "history"), (("escape", "c"), "configs"), (("escape", "d"), "differences"),
                             (("escape", "f9"), "jobs"), (("escape", "o"), "log")):
            await answered(pilot, *opens, "Y")
            assert app.screen.content_field.value.label == label
            await answered(pilot, "enter", "enter")
            assert app.screen is not main and len((tmp_path / f"small_resnet-{label}.svg").read_text()) > 300
        await press(pilot, "escape", "f1", *"svg", "enter")
        assert isinstance(app.screen, WriteViewDialog), "the list of commands has it"


async def test_the_users_key_writes_too(tmp_path):
    keys.user_keys_path().parent.mkdir(parents=True)
    keys.user_keys_path().write_text('{"write_view": "f4", "history": "f10"}')
    async with opened(tmp_path) as (app, main, pilot):
        await answered(pilot, "space", "f10")
        assert "f4 to a file" in str(app.screen.query_one(KeyHints).render())
        await press(pilot, "Y")
        assert not isinstance(app.screen, WriteViewDialog)
        await press(pilot, "f4")
        assert isinstance(app.screen, WriteViewDialog)
    keys.use_key_table(keys.DEFAULT_KEYS)


@pytest.mark.parametrize("size", [(60, 15), (80, 24), (120, 40), (200, 60)])
async def test_the_footer_follows_the_focus(tmp_path, size):
    async with opened(tmp_path, size=size) as (app, main, pilot):
        def footer():
            return screen_text(app).splitlines()[-1] if app.screen is not main else main.query_one("#footer",
                                                                                                  Lines).text

        assert footer().startswith(" space FP32  = up") and footer().rstrip().endswith("f1 keys")
        for opens, shown, closes in (
                (("slash",), "enter keep  esc clear", ("escape",)), (("3",), "enter go to row", ("t", "t")),
                (("2",), "2 less", ("2",)), (("p",), "its key selects  esc close", ("escape",)),
                (("g",), "enter selects", ("escape",)), (("f9",), "x stops this one", ("escape",)),
                (("f1",), "type to find", ("escape",)), (("o",), "↑↓ scroll  Y to a file", ("escape",))):
            await answered(pilot, *opens)
            assert shown in footer() and "space FP32" not in footer()[:20], opens
            await answered(pilot, *closes)
        if size[1] >= 34:
            await press(pilot, "4")
            assert footer().startswith(" enter select  m mark A/B  d diff")
        assert main.presenter.layer_list.view in View


async def test_the_footer_is_not_drawn_again_by_keys_that_leave_the_focus(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        drawn = []
        footer = main.query_one("#footer", Lines)
        footer.refresh = lambda *regions, **options: drawn.append(regions)
        await answered(pilot, "down", "down", "n", "N", "end", "home", "left", "right")
        line = footer_action_line(main.presenter.screen_width, main.presenter.actions, Focus.LIST,
                                  main.presenter._list_current_labels())
        assert [text for text, _ in footer.lines[0]] == [text for text, _ in line]
        assert len(drawn) <= 4, "only where an action becomes possible or impossible"


async def test_the_footer_says_what_space_does_on_a_raised_row(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):

        def footer() -> str:
            return "".join(part for part, _ in main.query_one("#footer", Lines).lines[0])

        await answered(pilot, "w")
        label = main.presenter.current_group.precision_label(main.session.config.precision_of(
            main.presenter.current_group))
        assert footer().startswith(" space FP32  = up")
        await answered(pilot, "space")
        assert footer().startswith(f" space {label}  = up") and label != "FP32"
        await answered(pilot, "space")
        assert footer().startswith(" space FP32  = up")


async def test_no_dialog_covers_its_keys(tmp_path):
    async with opened(tmp_path, size=(60, 15)) as (app, main, pilot):
        for key in ("p", "g", "c", "e", "5", "a", "f1", "f9", "o", "Y", "f3"):
            await answered(pilot, key)
            box, hints = app.screen.query_one(".box").region, app.screen.query_one(KeyHints).region
            assert hints.y == 14 and hints.height == 1 and not box.overlaps(hints), key
            assert isinstance(app.screen, (TextPage, HelpPage)) or box.height <= 14
            await answered(pilot, "escape")
            await settle(pilot)
        assert app.screen is main


def test_a_table_without_rows_is_one_line():
    assert format_view(replace(TABLE, table=[["layer"]]), Path("a.md")).endswith("Nothing was measured.\n")
