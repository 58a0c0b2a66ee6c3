"""What the app says of its values, columns, marks and words: the tables, the help page, a key and clicks."""

import re
from dataclasses import replace
from html import unescape

import pytest
from textual.widgets import Input

from tests import TESTS, local
from tests.local import H200
from tests.screen import answered, opened, page_text, press, settle, taken_in
from tests.texts import lacking
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.core.measure.error_metrics import ERROR_METRICS, ErrorMetrics
from trt_tui.core.measure.results import ExportedRun, OutputErrors, RunKind
from trt_tui.core.moves.move import MOVE_TEXTS
from trt_tui.core.report.glossary import find_term, list_marks, list_words
from trt_tui.formatting import percent_text
from trt_tui.jobs import requests as rq
from trt_tui.session.results import outcome_texts
from trt_tui.tui import keys
from trt_tui.tui.screens.pages import ExplanationDialog, HelpPage
from trt_tui.tui.state import marks
from trt_tui.tui.state.columns import LAYER_COLUMNS, LAYER_COLUMNS_BY_ID, fit_columns
from trt_tui.tui.state.config_list import config_table
from trt_tui.tui.state.explanations import explain_cell, explain_summary_cell, find_term_at, list_explained_terms
from trt_tui.tui.state.rows import ColourMeasure, TreeModel, VisibleRow, build_row_values
from trt_tui.tui.state.summary import list_summary_columns, summary_rows
from trt_tui.tui.widgets.lines import Lines, TitleRule

pytestmark = pytest.mark.usefixtures("quick")
MAX_SENTENCE_WORDS = 25


def explained(app) -> str:
    assert isinstance(app.screen, ExplanationDialog), app.screen
    return page_text(app.screen)


def all_texts() -> list[str]:
    return [term.explanation for terms in list_explained_terms().values() for term in terms]


# -- the tables -----------------------------------------------------------------------------------------------------


def test_explanations_are_short_sentences():
    for text in all_texts():
        assert text[0].isupper() or text[0].isdigit(), text
        assert text.endswith("."), text
        for sentence in re.split(r"(?<=[.:;]) ", text):
            assert len(sentence.split()) <= MAX_SENTENCE_WORDS, sentence


def test_no_word_has_two_explanations():
    names = [name.lower() for term in list_words() for name in (term.name, *term.other_names)]
    assert len(names) == len(set(names)), {name for name in names if names.count(name) > 1}
    listed = [(mark.name, mark.place) for mark in list_marks()]
    assert len(listed) == len(set(listed))


def test_every_constant_of_a_mark_is_explained():
    characters = {
        character
        for name, value in vars(marks).items()
        if name.endswith(("_MARK", "GLYPH", "GLYPHS"))
        for character in value
    } | {*marks.RANGE_MARKS.values()}
    assert characters <= {mark.name for mark in list_marks()}


def test_the_marks_of_bands_name_their_limits():
    texts = {mark.name: mark.explanation for mark in list_marks() if mark.place == "before a name"}
    for glyph, share, decibels in zip(marks.BAND_GLYPHS, marks.SHARE_BAND_LIMITS, marks.BAND_LIMITS_DB, strict=False):
        assert f"{percent_text(share)} or more" in texts[glyph] and f"below {decibels:.0f} dB" in texts[glyph]


_PLAIN_WORDS = set(
    """accurate almost apply applying arise attn auto begins best beyond building cache cell cheaper cold commands commas
    comparing confirm constant corrected cpu cuda depends device different download esc even evaluations everywhere exceed
    exchanges excluded executing exporting halves hashing held home html identical inspecting judging like loading logits
    machine markdown measuring mlp nearest normalisations note once opened opening overflowing pgdn pgup position
    postprocess problem proj pv qkv random reading real regions scaled scroll searches seen settings simulating slowest
    smoothing space spans start starts still taller timing took tried tries trt trt-tui unknown unsafe web writing
    yields""".split()
)
"""Words on the screen that mean what a dictionary says, names of keys, and names of networks and their scopes."""

_PHASE = re.compile(r'(?:[Pp]rogress|run_to_last_value)\((?:[^"()]|\([^()]*\))*"([^"]+)"')


def shown_texts() -> list[str]:
    """The texts of the pictures, of moves, and of all jobs with their phases, which no picture can have together."""
    texts = []
    for path in (TESTS / "__snapshots__").iterdir():
        shown = path.read_text()
        texts.append(" ".join(re.findall("<text[^>]*>([^<]*)", shown)) if path.suffix == ".svg" else shown)
    for path in (TESTS.parent / "trt_tui").rglob("*.py"):
        texts += _PHASE.findall(path.read_text())
    for request in rq.Request.__subclasses__():
        texts += [request.job_kind.title, request.job_kind.phase]
    texts += [text for entry in MOVE_TEXTS.values() for text in vars(entry).values() if text]
    return [re.sub("{[^}]*}", "", text) for text in texts]


def test_the_help_page_finds_every_word_of_the_screen():
    """Names of layers, files and hosts are left out."""
    entries = HelpPage(str, list_explained_terms()).entries
    names = [f"{layer.name} {layer.op_type}" for layer in local.outline().layers]
    found = " ".join([*(entry.search_text for entry in entries), *names]).lower()
    words = {
        word.lower()
        for text in shown_texts()
        for word in re.findall(r"(?<!\w)[A-Za-z][A-Za-z'-]*[A-Za-z](?!\w)", unescape(text).replace("\xa0", " "))
    }
    assert {"toggles", "equalized", "per-layer"} <= words
    missing = {word for word in words - _PLAIN_WORDS if word.removesuffix("s") not in found}
    assert not missing


@pytest.mark.parametrize("typed", ["toggles", "Per-layer errors", "equalized", "revert"])
async def test_help_finds_plurals(tmp_path, typed):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "f1")
        app.screen.query_one(Input).value = typed
        app.screen.update_action_list()
        entries = app.screen.listed_entries
        assert entries and len(entries) < len(app.screen.entries) // 2


@pytest.mark.parametrize(
    ("typed", "name"),
    [(text, "config") for text in ("reset", "start over", "default")]
    + [(text, text) for text in ("exact", "GPTQ", "bias correction", "attention core")]
    + [("folded", "folded nodes")],
)
def test_help_finds_a_word_by_what_a_user_types(typed, name):
    entries = HelpPage(str, list_explained_terms()).entries
    assert any(name in entry.names and typed.lower() in entry.search_text for entry in entries)


@pytest.mark.parametrize("column", LAYER_COLUMNS, ids=lambda column: column.id)
def test_steps_of_a_column_name_keys_that_exist(column):
    assert column.next_steps.keys() <= keys.DEFAULT_KEYS.keys()


def test_every_title_of_a_table_is_explained(tmp_path, measured_before):
    session = local.measured(tmp_path, builder=H200)
    titles = {column.title for width in (60, 80, 120) for column in list_summary_columns(session, width)}
    header, _ = config_table(session, 120)
    titles |= {text.strip(" ~") for text, _ in header if text.strip()}
    titles |= {metric.title for metric in ERROR_METRICS.values()} | {"rms", "part", "known gap"}
    own = {session.metric_name.rpartition(":")[2]} | {title for title in titles if title.startswith("TRT")}
    assert {title for title in titles - own if find_term(title) is None} == set()


def test_the_typed_network_has_one_name():
    assert "typed network" in EXPORT_FORMATS["onnx"].description
    for text in (*all_texts(), *(one.description for one in EXPORT_FORMATS.values())):
        assert "typed ONNX" not in text


# -- the text of a value --------------------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path, measured_before):
    session = local.measured(tmp_path)
    group = max(session.get_run_results("config").shares.items(), key=lambda item: item[1].fraction)[0]
    return session, session.outline.get_group(group)


SIMULATED = "SQNR, simulated"


def explanation_of(session, group, column: str):
    row_values = build_row_values(session, TreeModel(session.outline), ColourMeasure.SHARE, "config")
    row = row_values.model.rows_by_group[group.name]
    return explain_cell(session, row_values, VisibleRow(row.path, 0, row), LAYER_COLUMNS_BY_ID[column])


def cell_text(session, group, column: str) -> str:
    explanation = explanation_of(session, group, column)
    return "\n".join([explanation.value, *(text for _, text in explanation.texts)])


def test_a_value_says_config_samples_interval_and_outcome(measured):
    session, group = measured
    results, total = session.get_run_results("config"), session.data_summary.what_if_count
    share = results.shares[group.name]
    percent = f"{100 * share.fraction:.0f}%"
    text = cell_text(session, group, "share")
    value, origin = text.splitlines()[:2]
    assert value == percent and not lacking(origin, "Of c0, simulated", f" on {total} of ") and "interval" not in text
    part = replace(share, samples=total - 1, half_width=0.04)
    session.results[session.config] = replace(results, shares={**results.shares, group.name: part})
    text = cell_text(session, group, "share")
    assert not lacking(text, f" {total - 1} of {session.data_summary.judged_count} ", "95%", "±4.0 points")
    session.toggle_fp32([group])
    toggled = session.rest().get_run_results("config").accuracy
    session.toggle_fp32([group])
    low, high = toggled.intervals.worst_output["sqnr"].low, toggled.intervals.worst_output["sqnr"].high
    toggled = cell_text(session, group, "toggle")
    assert not lacking(toggled, f"{total} of ", f"95% confidence interval {low:.1f} to {high:.1f} dB")
    assert not lacking(toggled, "c0 with this row", "in FP32") and re.search(r"(PASS|FAIL)", toggled)


def test_a_value_from_part_of_the_samples_is_an_estimate_for_all_of_them(measured):
    session, group = measured
    session.set_target("sqnr>=12")
    results, total = session.get_run_results("config"), session.data_summary.what_if_count
    session.results.pop(session.config.with_toggled_fp32([group]), None)
    for samples in (total, total // 2):
        part = replace(results.shares[group.name], samples=samples)
        session.results[session.config] = replace(results, shares={**results.shares, group.name: part})
        text = cell_text(session, group, "toggle")
        assert ("estimated" in text) is ("est." in text) is (samples < total) is ("measured on" not in text)
        assert f"{samples} of " in text


def next_text(session, group, column: str) -> str:
    return dict(explanation_of(session, group, column).texts).get("next", "")


def test_the_next_step_fits_the_precision_of_the_row_and_the_sign_of_its_share(measured):
    session, group = measured
    for column in ("share", "precision", "toggle"):
        assert not lacking(next_text(session, group, column), "space raises", "FP32")
    results = session.get_run_results("config")
    harmful = replace(results.shares[group.name], fraction=-0.1)
    session.results[session.config] = replace(results, shares={**results.shares, group.name: harmful})
    for column in ("share", "precision", "toggle"):
        assert "space" not in next_text(session, group, column), column
    session.toggle_fp32([group])
    for column in ("share", "precision", "toggle"):
        assert not lacking(next_text(session, group, column), "space returns", "INT8")


def test_a_build_that_was_done_is_no_next_step(tmp_path, measured_before):
    session = local.measured(tmp_path, builder=H200)
    group = session.outline.groups[0]
    assert not lacking(next_text(session, group, "engine"), "b builds", "c0")
    session.request_build()
    session.rest()
    assert "b builds" not in next_text(session, group, "engine")


async def test_next_step_and_footer_follow_what_the_row_can_do(tmp_path):
    async with opened(tmp_path, size=(160, 40)) as (app, main, pilot):

        def possible_actions():
            """The actions of the footer that are not dim."""
            return {
                style.split("'")[1]
                for _, style in main.query_one("#footer", Lines).lines[0]
                if style.startswith("key@do")
            }

        async def explained_columns(*columns):
            texts = []
            for column in columns:
                main.layer_tree.post_message(main.layer_tree.ExplanationRequested(column))
                await taken_in(pilot)
                texts.append(explained(app))
                await press(pilot, "escape")
            return " ".join(" ".join(texts).split())

        for name, possible, impossible in (
            (local.QKV, {"range", "higher", "toggle"}, {"lower"}),
            (local.CORE, {"toggle"}, {"range"}),
        ):
            main.go_to_group(name)
            await settle(pilot)
            assert possible <= possible_actions() and not impossible & possible_actions(), name
            text = await explained_columns("share", "precision")
            for action, key_text in (("range", "r tries"), ("higher", "= goes"), ("lower", "- goes")):
                assert (key_text in text) is (action in possible_actions()), (name, action)


@pytest.mark.parametrize(
    ("text", "x", "name"),
    [
        (" share    ~20% on 8 of 64 samples", 3, "error share"),
        (" asked 3 INT8", 9, "INT8"),
        ("accumulated ~12 dB", 3, "accumulated error"),
        ("12 reformats around it", 5, "reformat"),
        ("enc1/conv", 2, None),
    ],
)
def test_a_word_is_found_under_the_mouse(text, x, name):
    term = find_term_at(text, x)
    assert (term.name if term is not None else None) == name


# -- the help page --------------------------------------------------------------------------------------------------


async def test_help_finds_and_explains_every_word_column_and_mark(tmp_path):
    async with opened(tmp_path, size=(100, 30)) as (app, main, pilot):
        await press(pilot, "f1", "e")
        page, listed = app.screen, list_explained_terms()
        assert isinstance(page, HelpPage)
        assert page_text(page).splitlines()[0] not in listed, "a key still finds its action first"
        for term in [term for terms in listed.values() for term in terms]:
            page.query_one(Input).value = term.name
            page.update_action_list()
            assert any(entry.value == term for entry in page.listed_entries), term.name
            first_words = " ".join(term.explanation.split()[:3])
            assert first_words in " ".join(page_text(page).split()), term.name
        for name in ("SQNR", "if FP32", "typed network", "↯"):
            page.query_one(Input).value = name
            await taken_in(pilot)
            await press(pilot, "enter")
            term = find_term(name) or next(mark for mark in list_marks() if mark.name == name)
            shown = " ".join(explained(app).split())
            assert name in shown and term.explanation.split(".")[0] in shown
            await press(pilot, "escape", "f1")
            page = app.screen


@pytest.mark.parametrize("page_key", ["o", "f9", "8", "f3", "e", "4", "p", "g"])
async def test_help_explains_words_over_every_page_and_returns_to_it(tmp_path, page_key):
    async with opened(tmp_path) as (app, main, pilot):
        await answered(pilot, page_key)
        page, config = app.screen, main.session.config
        await press(pilot, "f1", "f1")
        assert app.screen is page is not main
        await press(pilot, "f1", *"SQNR", "enter")
        assert find_term("SQNR").explanation.split(":")[0] in explained(app)
        await press(pilot, "escape", "f1", *"toggle FP32", "enter")
        assert app.screen is page and main.session.config == config, "only the main screen performs actions"


# -- the key --------------------------------------------------------------------------------------------------------


async def test_keys_reach_every_column_and_row(tmp_path):
    async with opened(tmp_path, builder=H200) as (app, main, pilot):
        await answered(pilot, "w", "space", "f3")
        assert not lacking(explained(app), "Of c1, raised", "FP32")
        await press(pilot, "escape")
        await answered(pilot, "b", "f3", "left")
        assert not lacking(" ".join(explained(app).split()), "from the engine", "TensorRT 11.4")
        await press(pilot, "escape")
        await answered(pilot, "z", "b", "home", "down")
        group = main.layer_tree.current_row
        await press(pilot, "f3")
        headings = []
        for _ in LAYER_COLUMNS:
            headings.append(explained(app).splitlines()[0])
            await press(pilot, "right")
        assert len(set(headings)) == len(LAYER_COLUMNS) and explained(app).splitlines()[0] == headings[0]
        await press(pilot, "left")
        assert explained(app).splitlines()[0] == headings[-1]
        await press(pilot, "down")
        assert main.layer_tree.current_row is not group
        await press(pilot, "up", "up", "up")
        assert main.layer_tree.cursor_index == 0 and "· c0" in explained(app)
        seen = set()
        for _ in range(12):
            seen.add(explained(app).splitlines()[0])
            await press(pilot, "right")
        assert {"run · c0", "outcome · c0", f"{SIMULATED} · c0", "ms, built · c0"} <= seen
        await press(pilot, "up", "up", "up", "up")
        seen = set()
        for _ in range(6):
            seen.add(explained(app).splitlines()[0])
            await press(pilot, "right")
        assert {"network", "target", "samples", "builder", "simulation", "config"} == seen
        await press(pilot, "f3")
        assert app.screen is main


async def test_the_key_explains_what_the_focused_pane_shows(tmp_path):
    async with opened(tmp_path, size=(120, 40)) as (app, main, pilot):
        await answered(pilot, "w", "space", "2", "f3")
        labels = {line[:9].strip() for line in main.query_one("#detail", Lines).text.splitlines()} - {""}
        explained_labels = {line[:6].strip() for line in explained(app).splitlines()} - {""}
        assert {"why", "set"} <= labels & explained_labels
        await press(pilot, "escape", "2", "4", "down", "f3")
        config = main.config_list.selected_value
        accuracy = app.session.results[config].accuracy
        interval = app.session.target.confidence_interval_text(accuracy)
        assert config != app.session.config and not lacking(" ".join(explained(app).split()), "c0", "FAIL", interval)
        await press(pilot, "escape")
        await pilot.click("#tree", offset=(column_x(main, "share"), 4), button=3)
        await taken_in(pilot)
        assert "error share" in explained(app).splitlines()[0], "a click explains what is under it"


@pytest.mark.parametrize("target", ["sqnr>=8", "sqnr>=40", "sqnr>=8; cosine>=0.5"])
def test_each_outcome_has_the_interval_of_each_value(measured, target):
    session, _ = measured
    session.set_target(target)
    column = list_summary_columns(session, 120)[-1]
    row = next(row for row in summary_rows(session, 120) if row.run == "config")
    (origin,) = (text for label, text in explain_summary_cell(session, row, column).texts if label == "how")
    accuracy = session.get_run_results("config").accuracy
    intervals = [one.confidence_interval_text(accuracy) for one in session.targets]
    assert all(intervals) and not lacking(origin, *intervals)


@pytest.mark.parametrize("missed_run", [RunKind.EXPORTED_FILE, RunKind.SIMULATED_CONFIG])
def test_of_several_outcomes_f3_names_the_one_that_counts(measured, missed_run):
    session, _ = measured
    accuracy, results = session.get_run_results("config").accuracy, session.results[session.config]
    session.set_target("sqnr>=8")
    poor, good = (
        replace(accuracy, outputs={"": OutputErrors(ErrorMetrics(value))}, intervals=None) for value in (1.0, 30.0)
    )
    accuracies = {
        kind: poor if kind is missed_run else good for kind in (RunKind.SIMULATED_CONFIG, RunKind.EXPORTED_FILE)
    }
    results.store_accuracy(accuracies[RunKind.SIMULATED_CONFIG])
    exported_run = ExportedRun(accuracies[RunKind.EXPORTED_FILE], "ONNX Runtime 1 CPU", "cpu")
    results.runs = {**results.runs, RunKind.EXPORTED_FILE: exported_run}
    shown = outcome_texts(session.config_target_outcomes(session.config))
    row = next(row for row in summary_rows(session, 120) if row.run == "config")
    explanation = explain_summary_cell(session, row, list_summary_columns(session, 120)[-1])
    name = {RunKind.EXPORTED_FILE: "exported network", RunKind.SIMULATED_CONFIG: "simulation"}[missed_run]
    assert len(shown) == 2 and not lacking(dict(explanation.texts)["how"], f"{shown[0]} counts", f"the {name};")


def test_the_separator_in_the_name_of_a_run_is_no_mark(measured):
    session, _ = measured
    session.toggle_fp32([next(group for group in session.outline.groups if group.is_quantizable)])
    row = next(row for row in summary_rows(session, 120) if row.run == "config")
    explanation = explain_summary_cell(session, row, list_summary_columns(session, 120)[0])
    assert " · " in explanation.value and "·" not in dict(explanation.texts)


@pytest.mark.parametrize("size", [(60, 15), (120, 40)])
async def test_explanations_fit_the_screen(tmp_path, size):
    async with opened(tmp_path, size=size, builder=H200) as (app, main, pilot):
        await answered(pilot, "w", "b", "f3")
        for _ in range(len(LAYER_COLUMNS)):
            box, hint, pane = (app.screen.query_one(one) for one in (".box", ".hint", Lines))
            assert box.region in app.screen.region and hint.region.height == 1 and not hint.region.overlaps(box.region)
            for line in pane.lines:
                assert sum(len(text) for text, _ in line) <= pane.size.width
            assert "…" not in page_text(app.screen).split("\n", 1)[1]
            await press(pilot, "right")
        for _ in range(8):
            await press(pilot, "pagedown")
        scroll = pane.parent
        assert scroll.scroll_offset.y == scroll.max_scroll_y


# -- clicks ---------------------------------------------------------------------------------------------------------


def column_x(main, column_id: str) -> int:
    """A cell of a column of the layer list."""
    end = 5
    for name, width in fit_columns(main.layer_tree.row_width, main.layer_list.row_values.has_engines).items():
        if name == column_id:
            return end + 1
        end += width + 1
    raise AssertionError(column_id)


async def test_clicks_explain_values_and_words_and_take_nothing_away(tmp_path):
    async with opened(tmp_path, size=(120, 40), builder=H200) as (app, main, pilot):
        await pilot.click("#tree", offset=(10, 3))
        await settle(pilot)
        assert app.screen is main and main.layer_tree.cursor_index == 3
        for column in ("share", "precision", "layer"):
            await pilot.click("#tree", offset=(column_x(main, column), 4), button=3)
            await taken_in(pilot)
            title = LAYER_COLUMNS_BY_ID[column].title_text(main.layer_list.row_values, 24).strip()
            assert explained(app).startswith(title) and main.layer_tree.cursor_index == 4
            await press(pilot, "escape")
        await pilot.click("#tree-header", offset=(column_x(main, "precision"), 0), button=3)
        await taken_in(pilot)
        assert explained(app).startswith("prec\n") and main.layer_list.sort_column.id != "precision"
        await press(pilot, "escape")
        await pilot.click("#tree-header", offset=(column_x(main, "precision"), 0))
        await settle(pilot)
        assert app.screen is main and main.layer_list.sort_column.id == "precision"
        column = next(one for one in list_summary_columns(app.session, 120) if one.title == "SQNR")
        await pilot.click("#verdict", offset=(column.start + 2, 3))
        await taken_in(pilot)
        assert explained(app).startswith(f"{SIMULATED} · c0")
        await press(pilot, "escape")
        await pilot.click("#header", offset=(main.query_one("#header", Lines).text.index("samples") + 1, 0))
        await taken_in(pilot)
        assert explained(app).startswith("sample\n")
        await press(pilot, "escape")
        app.session.toggle_fp32(app.session.outline.groups[:1])
        app.session.undo()
        main.draw_all()
        await settle(pilot)
        rule = main.query_one("#configs-rule", TitleRule)
        await pilot.click(rule, offset=(rule.render_line(0).text.index("Configs") + 1, 0))
        await taken_in(pilot)
        assert explained(app).startswith("config\n")
        await press(pilot, "escape")
        await answered(pilot, "w")
        lines = main.query_one("#detail", Lines).text.splitlines()
        y = next(index for index, line in enumerate(lines) if "amax" in line)
        await pilot.click("#detail", offset=(lines[y].index("amax") + 1, y))
        await taken_in(pilot)
        assert explained(app).startswith("range\n")
        await press(pilot, "escape")
        y = next(index for index, line in enumerate(lines) if line.startswith(" why"))
        await pilot.click("#detail", offset=(2, y))
        await taken_in(pilot)
        assert explained(app).startswith("why")
        await press(pilot, "escape")
        await answered(pilot, "b", "i")
        page = app.screen
        lines = page_text(page).splitlines()
        pane = page.query_one(Lines)
        word_y, word = next(
            (index, word) for index, line in enumerate(lines) for word in ("simulated", "built") if word in line
        )
        await pilot.click(pane, offset=(lines[word_y].index(word) + 1, word_y))
        await taken_in(pilot)
        assert explained(app).splitlines()[0] in ("simulation", "as built")
        await press(pilot, "escape")
        assert app.screen is page
