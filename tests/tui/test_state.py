"""What the screen says, without a screen: trt_tui.tui.state, spans, known, verdict and detail."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.color import Color, ColorSystem

from tests import local
from tests.measuring import verdict
from tests.texts import lacking, numbers
from trt_tui.core.calibration.calibration import DominantChannels, TensorStats
from trt_tui.core.data.batches import SampleName
from trt_tui.core.measure import causes
from trt_tui.core.measure.causes import GROUP_DETAILS, GroupDetails
from trt_tui.core.measure.error_metrics import AccuracyIntervals, ConfidenceInterval
from trt_tui.core.measure.results import (
    Accuracy,
    ErrorMetrics,
    ErrorShare,
    ExportedRun,
    GroupErrors,
    OutputErrors,
    RunKind,
)
from trt_tui.core.measure.run_sources import ReferenceInfo
from trt_tui.core.measure.target import parse_target
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.network.layer_tree import GroupRow, Scope, UngroupedRow
from trt_tui.core.precision import Precision
from trt_tui.core.report.glossary import explain_word
from trt_tui.core.report.run_columns import RunRow, list_run_columns
from trt_tui.formatting import cell_width, decibels_text, number_text, percent_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.comparison import list_toggled_configs
from trt_tui.session.comparison_report import _error_share_cells
from trt_tui.session.jobs import DONE, REPLACED, STOPPED
from trt_tui.session.loss_causes import collect_cause_facts
from trt_tui.tui import spans, themes
from trt_tui.tui.controllers.view import NavigationController
from trt_tui.tui.state import charts, config_status, detail, summary
from trt_tui.tui.state.columns import (
    LAYER_COLUMNS_BY_ID,
    build_row_cells,
    column_title_line,
    fit_columns,
    layer_row_line,
)
from trt_tui.tui.state.config_list import ToggleResult, config_table, find_toggle_result, find_toggled_config
from trt_tui.tui.state.config_status import value_margin_text
from trt_tui.tui.state.explanations import explain_cell, explain_header, explain_summary_cell
from trt_tui.tui.state.layer_list import FilterableGroup, LayerList, layer_list_title, parse_filter
from trt_tui.tui.state.marks import SAME_VALUE_MARK
from trt_tui.tui.state.rows import (
    ColourMeasure,
    LayerListView,
    RowValues,
    TreeModel,
    VisibleRow,
    build_row_values,
    find_colour_band,
    sign_legend_text,
)
from trt_tui.tui.state.status import count_rows_to_raise_for_target, find_first_group_to_raise, next_step_hint
from trt_tui.tui.state.text_plots import bar_text

VIT = local.outline()
MODEL = TreeModel(VIT)


@pytest.fixture
def session(tmp_path, measured_before):
    """A session that has measured everything; of other configs it measures no single groups."""
    return local.measured(tmp_path, sweeps=False)


def text(line) -> str:
    return "".join(part for part, _ in line)


def found(session, measure=ColourMeasure.SHARE, run="config"):
    return build_row_values(session, MODEL, measure, run)


def test_the_next_bad_row_is_found_from_every_kind_of_row(session):
    listing = LayerList(session)
    listing.open_network(local.outline("with_sequence"))
    model = listing.tree_model
    before, inside, after = (row.group.name for row in model.rows_by_group.values())
    lines = {line.key: line for line in model.list_tree_rows({scope.path for scope in model.scopes})}
    scope, ungrouped = (
        next(line for line in lines.values() if isinstance(line.row, kind)) for kind in (Scope, UngroupedRow)
    )
    rows = [lines[row.path] for row in model.rows_by_group.values()]
    node = VisibleRow(f"{rows[1].key}\0node", 2, None, node="node")
    folded = VisibleRow("\0folded", 0, None)
    for view in (LayerListView.TREE, LayerListView.WORST):
        listing.view = view
        listing._row_values = RowValues(model, session.config, group_values=dict.fromkeys((before, inside, after), 0.5))
        listing.sort_rows()
        for row, following in (
            (rows[0], inside),
            (rows[1], after),
            (node, after),
            (rows[2], before),
            (folded, before),
            (None, before),
        ):
            assert listing.find_next_bad_group(row) == following
        assert listing.find_next_bad_group(rows[1], includes_current=True) == inside
        listing._row_values = RowValues(model, session.config)
        assert listing.find_next_bad_group(rows[0]) is None
    listing.view, listing.sort_values = LayerListView.TREE, None
    listing._row_values = RowValues(model, session.config, group_values=dict.fromkeys((before, inside, after), 0.5))
    for row in (scope, ungrouped):
        assert listing.find_next_bad_group(row) == inside


@pytest.mark.parametrize(
    ("drawn", "shown"),
    [
        (spans.shorten_middle("abc", 3), "abc"),
        (spans.shorten_middle("abcdefgh", 5), "a…fgh"),
        (spans.shorten_middle("abc", 1), "…"),
        (spans.shorten_middle("abc", 0), ""),
        (spans.clip_line([("try ", ""), ("", ""), ("space: FP32", "")], 9), "try spac…"),
        (spans.clip_line([("12345678", ""), ("9", "")], 9), "123456789"),
        (spans.clip_line([("12345678", ""), ("9a", "")], 9), "12345678…"),
        (spans.justify_line([("abc", "")], 8, [("xy", "")]), "abc   xy"),
        (spans.justify_line([("abc", "")], 5, [("xyz", "")]), "abc  "),
        (spans.justify_line([("abcdef", "")], 4), "abc…"),
        (bar_text(1.0, 4), "████"),
        (bar_text(0.53, 4), "██▏ "),
        (bar_text(-1.0, 4), "    "),
        (bar_text(0.0, 4), "    "),
    ],
)
def test_texts_and_bars_are_cut_to_their_place(drawn, shown):
    assert (drawn if isinstance(drawn, str) else text(drawn)) == shown


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("enc1/residual/depthwise/conv", "enc1/…/depthwise/conv"),
        ("model/layer/10/attention/self/key", "model/…/10/…/self/key"),
        ("model/model/18/m/0/cv2/conv", "…/18/m/0/cv2/conv"),
        ("a/conv", "a/conv"),
        ("x" * 30, "xxxxxxx…" + "x" * 14),
    ],
)
def test_a_path_gives_up_names_before_numbers(path, short):
    assert spans.shorten_path(path, 22) == short


@pytest.mark.parametrize(
    ("errors", "shown"),
    [
        (None, "–"),
        (ErrorMetrics(nan=3), "NaN"),
        (ErrorMetrics(inf=1), "Inf"),
        (ErrorMetrics(exact=True), "exact"),
        (ErrorMetrics(12.34), "~12.3"),
        (ErrorMetrics(), "–"),
    ],
)
def test_decibels(errors, shown):
    assert spans.sqnr_span(errors)[0] == shown


@pytest.mark.parametrize(
    ("value", "measure", "band"),
    [
        (0.2, ColourMeasure.SHARE, 0),
        (0.19, ColourMeasure.SHARE, 1),
        (0.05, ColourMeasure.SHARE, 1),
        (0.01, ColourMeasure.SHARE, 2),
        (0.002, ColourMeasure.SHARE, 3),
        (-0.3, ColourMeasure.SHARE, 4),
        (5.0, ColourMeasure.ISOLATED, 0),
        (math.inf, ColourMeasure.ISOLATED, 4),
    ],
)
def test_bands(value, measure, band):
    assert find_colour_band(value, measure) == band


def test_every_group_has_a_row_a_title_and_its_scopes():
    assert set(MODEL.rows_by_group) == {group.name for group in VIT.groups}
    assert len(set(MODEL.titles.values())) == len(MODEL.titles)
    assert [scope.label for scope in MODEL.ancestors["node_MatMul_12"]][0] == "blocks"


def test_closed_scopes_hide_their_rows():
    shut = MODEL.list_tree_rows(set())
    assert [line.depth for line in shut] == [0] * len(shut)
    everything = MODEL.list_tree_rows({scope.path for scope in MODEL.scopes})
    assert sum(isinstance(line.row, GroupRow) for line in everything) == len(VIT.groups)
    assert len({line.key for line in everything}) == len(everything)


def test_weights_order_siblings_and_the_folded_row_stays_last():
    worst = VIT.groups[-1].name
    lines = MODEL.list_tree_rows({scope.path for scope in MODEL.scopes}, {worst: 1.0})
    first_group = next(line.row for line in lines if isinstance(line.row, GroupRow))
    assert first_group.group.name == worst
    assert lines[-1].row is MODEL.folded_row


def test_a_filter_takes_all_words_and_opens_what_matches():
    def matching(text, share=None, asked=Precision.INT8, kept=False):
        wanted = parse_filter(text)
        return {
            row.group.name
            for row in MODEL.rows_by_group.values()
            if all(
                test(FilterableGroup(row.group, MODEL.search_text(row), share, asked, kept)) for test in wanted.tests
            )
        }

    every, matches = {group.name for group in VIT.groups}, matching("QKV matmul")
    assert len(matches) == 3
    lines = MODEL.list_tree_rows(set(), None, matches)
    assert {line.row.group.name for line in lines if isinstance(line.row, GroupRow)} == matches
    assert parse_filter("   ") is None
    assert matching("!qkv") == every - matching("qkv") and matching("/qkv.*MatMul/ op:matmul") == matches
    for pattern in ("/^qkv$/", "/^blocks.0.attn.qkv$/", "/^node_MatMul_12$/"):
        assert "node_MatMul_12" in matching(pattern), pattern
    assert matching("/MatMul_12$/") == {"node_MatMul_12"}
    for text, share, found in (
        ("share>1%", 0.02, True),
        ("share>1%", 0.01, False),
        ("share>=.01", 0.01, True),
        ("share<1%", None, False),
        ("!share<1%", None, True),
        ("share<1%", -0.5, True),
    ):
        assert matching(text, share) == (every if found else set()), text
    assert matching("prec:int8") == every and not matching("prec:fp16") and matching("prec:kept", kept=True) == every


@pytest.mark.parametrize("text", ["/(/", f"/{'a' * 300}/", "prec:int9", "share>lots", "share"])
def test_what_is_wrong_with_a_filter_is_said(text):
    assert parse_filter(text).error_text and not parse_filter(text).tests


def test_first_open_shows_whole_levels():
    assert len(MODEL.list_tree_rows(MODEL.choose_opened_scopes(1000))) > len(
        MODEL.list_tree_rows(MODEL.choose_opened_scopes(12))
    )
    assert MODEL.choose_opened_scopes(1) == set()


def test_figures_of_the_rows_and_of_what_is_above_them(session):
    figures = found(session)
    lines = MODEL.list_worst_first_rows(set(), figures.worst_first_sort_values)
    values = [figures.group_values[line.row.group.name] for line in lines if isinstance(line.row, GroupRow)]
    assert (
        values
        == sorted(values, reverse=True)
        == sorted((share.fraction for share in session.get_run_results("int8").shares.values()), reverse=True)
    )
    for scope in MODEL.scopes:
        assert figures.scope_values[scope.path] == pytest.approx(
            sum(figures.group_values[name] for name in scope.groups)
        )
    top = {line.key: build_row_cells(figures, line).cells.get("cost") for line in MODEL.list_tree_rows(set())}
    share = (
        sum(MODEL.group_macs[name] or 0 for name in MODEL.rows_by_group if name in MODEL.scopes[0].groups)
        / MODEL.total_macs
    )
    assert percent_text(share) in top.values()


def test_a_scope_counts_what_makes_the_error_larger(session):
    scope = next(scope for scope in MODEL.scopes if len(scope.groups) > 2)
    shares = session.get_run_results("int8").shares
    for place, name in enumerate(scope.groups):
        shares[name] = replace(shares[name], fraction=(-9.0, 0.3, 0.1)[min(place, 2)], sqnr_if_raised_db=1.0)
    figures = found(session)
    assert figures.scope_values[scope.path] == pytest.approx(-8.7 + 0.1 * (len(scope.groups) - 2))
    weights = MODEL.combine_by_scope(figures.worst_first_sort_values)
    assert weights[scope.path] == pytest.approx(sum(figures.worst_first_sort_values[name] for name in scope.groups))
    said = [text(line) for line in detail.detail_lines(session, figures, VisibleRow(scope.path, 0, scope), 80, 20)]
    total = percent_text(figures.scope_values[scope.path])
    assert any("1 below zero" in line for line in said) and any(f"{total} in sum" in line for line in said)
    row = VisibleRow(scope.path, 0, scope)
    assert build_row_cells(figures, row).cells["share"].text == "<0", "such a sum is no part of the error"
    explanation = explain_cell(session, figures, row, LAYER_COLUMNS_BY_ID["share"])
    assert not lacking(explanation.texts[0][1], "1 below zero", f"{total} in sum")
    for name in scope.groups:
        shares[name] = replace(shares[name], fraction=0.6)
    said = detail.detail_lines(session, found(session), VisibleRow(scope.path, 0, scope), 80, 20)
    assert any(f"{60 * len(scope.groups)}% in sum" in text(line) for line in said)


def test_values_that_will_change_are_of_no_earlier_config_and_only_final_ones_name_the_worst_row(session):
    """While shares are measured, a row has no value; the worst row follows from the last values."""
    listing = LayerList(session)
    listing.open_network(VIT)
    listing.update_row_values()
    first, order = VIT.groups[0], list(listing.build_visible_rows())
    worst = find_first_group_to_raise(session, listing.share_values)
    session.child.held, session.requests_toggles = {rq.MeasureWhatIf, rq.MeasureToggles}, True
    session.toggle_fp32([VIT.group_by_name[worst]])
    listing.update_row_values()
    shares = session.results.get_or_create_results(session.config).shares
    assert not shares and not listing.row_values.group_values and listing.row_values.is_measuring_shares
    next_worst = find_first_group_to_raise(session, listing.share_values)
    assert next_worst not in (worst, None) and listing.share_values.config_name == "c0"
    shares[first.name] = replace(session.get_run_results("int8").shares[first.name], fraction=5.0, samples=1)
    listing.update_row_values()
    assert find_first_group_to_raise(session, listing.share_values) == first.name
    cell = build_row_cells(listing.row_values, VisibleRow("x", 0, MODEL.rows_by_group[first.name])).cells
    assert cell["share"].text == cell["toggle"].outcome_text == "…" and not cell["toggle"].value_text
    assert listing.build_visible_rows() == order, "the last order holds"
    shares[first.name] = replace(shares[first.name], fraction=0.0)
    assert not find_toggle_result(session, [first]).outcome_text, "a row without a share is not toggled"
    scope = MODEL.scopes[0]
    row = VisibleRow(scope.path, 0, scope)
    for is_measuring, worst_share in ((True, 0.5), (False, 0.5), (False, -0.5)):
        shown = replace(
            listing.row_values,
            is_measuring_shares=is_measuring,
            group_values=dict.fromkeys(scope.groups, worst_share),
        )
        said = [text(line) for line in detail.detail_lines(session, shown, row, 80, 20)]
        is_named = any(line.lstrip().startswith("worst") for line in said)
        assert is_named is (not is_measuring and worst_share > 0), "not while shares change, nor below zero"


def test_raising_is_said_to_harm_by_a_certain_share_only(session):
    values = build_row_values(session, MODEL, ColourMeasure.SHARE, "config")
    name = next(group.name for group in VIT.groups if values.find_toggle([group]).outcome_text != SAME_VALUE_MARK)
    share = replace(session.get_run_results("int8").shares[name], fraction=-0.5, half_width=0.1, samples=16)
    for changes, is_certain in (
        ({}, True),
        ({"half_width": 0.5}, False),
        ({"half_width": None, "samples": 4}, False),
        ({"half_width": None, "fraction": -0.005}, False),
    ):
        said = detail.share_doubt_text(replace(values, shares={name: replace(share, **changes)}), name)
        assert (detail.RAISING_HARMS_TEXT in said) is is_certain, changes


def test_rows_are_counted_by_the_codes_in_use(session):
    for precision in (Precision.INT8, Precision.FP8, Precision.INT4, Precision.FP16):
        session.set_config(PrecisionConfig.from_precision(precision))
        figures = found(session)
        assert figures.lowest_precision is precision
        assert figures.reducible_group_count == sum(precision in group.allowed_precisions for group in VIT.groups)
        for scope in MODEL.scopes:
            row = VisibleRow(scope.path, 0, scope)
            said = [text(line) for line in detail.detail_lines(session, figures, row, 80, 20)]
            refused = sum(precision not in VIT.get_group(name).allowed_precisions for name in scope.groups)
            assert any("cannot run" in line for line in said) is bool(refused)
            assert not refused or said[-1].split("fixed")[1].split() == [
                str(refused),
                "of",
                str(len(scope.groups)),
                "cannot",
                "run",
                precision.label,
            ]


def test_a_raised_row_says_so_in_place_of_its_share(session):
    session.toggle_fp32([VIT.groups[0]])
    raised = build_row_cells(found(session), VisibleRow("x", 0, MODEL.rows_by_group[VIT.groups[0].name]))
    assert (raised.glyph, raised.cells["precision"].text, raised.cells["share"].replacement) == ("↑", "FP32", "raised")
    assert raised.glyph_style == raised.cells["precision"].style == "raised"


def test_a_row_says_what_the_figure_becomes_when_it_is_flipped(session):
    worst, next_worst, *_ = found(session).group_names_worst_first
    share = session.get_run_results("config").shares[worst]
    session.set_target("sqnr>=12")

    def cell(name, group=None):
        return build_row_cells(found(session), VisibleRow("x", 0, MODEL.rows_by_group[name])).cells["toggle"]

    session.results.pop(session.config.with_toggled_fp32([VIT.group_by_name[worst]]), None)
    assert (cell(worst).value_text, cell(worst).outcome_text) == (decibels_text(share.sqnr_if_raised_db), "PASS?"), (
        "it has no interval"
    )
    session.results.get_or_create_results(session.config).shares[worst] = replace(share, samples=4)
    assert cell(worst).outcome_text == "est.", "a figure on fewer samples says so"
    for name in (worst, next_worst):
        session.toggle_fp32([VIT.group_by_name[name]])
        session.rest()
        session.undo()
    one, other, alone = cell(worst), cell(next_worst), session.config.with_toggled_fp32([VIT.group_by_name[worst]])
    assert one.value_text == decibels_text(
        session.results.get_results_or_empty(alone).accuracy.worst_output[1].errors.sqnr_db
    )
    assert one.outcome_text.rstrip("?") == "PASS" and one.margin_of_error_text.startswith("±")
    assert (other.outcome_text, other.outcome_style) == ("≈", "dim"), "it changes nothing"
    other_config = session.config.with_toggled_fp32([VIT.group_by_name[next_worst]])
    accuracy = session.results[session.config].accuracy
    session.set_target("sqnr>=5")
    for config, sqnr_db in ((session.config, 3.0), (other_config, 30.0)):
        errors = replace(accuracy.worst_output[1].errors, sqnr_db=sqnr_db)
        exported = replace(accuracy, outputs={"y": OutputErrors(errors)}, intervals=None)
        session.results[config].runs[RunKind.EXPORTED_FILE] = ExportedRun(exported, "ONNX Runtime 1 CPU", "cpu")
    assert cell(next_worst).outcome_text.rstrip("?") == "PASS", "the exported network misses the target before only"
    for config in (session.config, other_config):
        session.results[config].runs.pop(RunKind.EXPORTED_FILE)
    session.set_target("sqnr>=40")
    assert cell(worst).outcome_text == "", "the config still misses the target, as its own row says"
    session.set_target("sqnr>=12")
    session.toggle_fp32([VIT.group_by_name[worst]])
    session.rest()
    back = cell(worst)
    assert (back.outcome_text.rstrip("?"), back.outcome_style) == ("FAIL", "bad"), "flipped, the target is missed"
    session.results.get_or_create_results(session.config).shares[worst] = share
    measured = session.results.pop(session.config.with_toggled_fp32([VIT.group_by_name[worst]]))
    assert cell(worst).value_text == "", "a share is the effect of a raise, not of taking it back"
    session.results[session.config.with_toggled_fp32([VIT.group_by_name[worst]])] = measured
    scope = MODEL.ancestors[worst][0]
    changed = session.config.with_toggled_fp32(MODEL.list_groups_of_row(scope))
    assert changed in list_toggled_configs(session.config, VIT, session.get_run_results("config").shares)
    session.set_config(changed)
    session.rest()
    session.undo()
    shown = build_row_cells(found(session), VisibleRow("x", 0, scope)).cells["toggle"]
    assert shown.value_text == decibels_text(
        session.results.get_results_or_empty(changed).accuracy.worst_output[1].errors.sqnr_db
    )
    assert "score if FP32" in text(column_title_line(fit_columns(80), replace(found(session), metric_title="score")))


@pytest.mark.parametrize(("gain_db", "is_distinct"), [(0.6, False), (2.0, True)])
def test_an_estimated_raise_that_can_still_be_noise_is_neither_shown_nor_recommended(session, gain_db, is_distinct):
    session.set_target("sqnr>=60")
    results, worst = session.get_run_results("config"), VIT.groups[0].name
    sqnr_db = results.accuracy.worst_output[1].errors.sqnr_db + gain_db
    results.shares[worst] = replace(results.shares[worst], fraction=5.0, sqnr_if_raised_db=sqnr_db)
    session.results.pop(session.config.with_toggled_fp32([VIT.groups[0]]), None)
    session.child.held, session.requests_toggles = {rq.MeasureToggles}, True
    session.request_toggles()

    def toggle_cell():
        return build_row_cells(found(session), VisibleRow("x", 0, MODEL.rows_by_group[worst])).cells["toggle"]

    assert (toggle_cell().outcome_text == "…", bool(toggle_cell().value_text)) == (not is_distinct, is_distinct)
    hint = next_step_hint(session, found(session), worst)
    assert (hint.group == worst) is is_distinct and "no single raise" not in hint.text
    session.pending_requests.clear()
    assert toggle_cell().value_text == decibels_text(sqnr_db), "without a job, the estimate is final"


def test_a_changed_range_is_marked_on_its_row_and_is_the_one_that_is_told_of(session):
    for method, mark in (
        ("entropy", "e"),
        ("percentile", "p"),
        ("p99.9", "p"),
        ("mse", "m"),
        ("user", "u"),
        ("top5-mean", "u"),
    ):
        tensor = VIT.group_by_name[local.QKV].activation_qdq_sites()[0].tensor
        session.results.store_value(GROUP_DETAILS, local.QKV, GroupDetails({tensor: _stats(41.2, 0.47)}))
        session.set_config(session.config.with_range(tensor, RangeMove(4.0, method)))
        row = VisibleRow("x", 0, MODEL.rows_by_group[local.QKV])
        cell = build_row_cells(found(session), row).cells["precision"]
        assert (cell.text, cell.marks) == ("INT8", mark)
        said = " ".join(detail.loss_reason_texts(session, found(session), VIT.group_by_name[local.QKV]))
        assert not lacking(said, f"{'own' if method == 'user' else method} range 4.00 ", "amax 41.2", "clipped")


def test_a_met_target_calms_all_rows(session):
    session.set_target("sqnr>=5")
    figures = found(session)
    assert figures.is_target_met
    styles = {build_row_cells(figures, line).glyph_style for line in MODEL.list_worst_first_rows(set(), None)}
    assert styles <= {"dim", "band4", ""}


def test_nan_is_red_and_first(tmp_path, measured_before):
    session = local.measured(tmp_path, "overflowing")
    figures = found(session, ColourMeasure.ACCUMULATED, "fp16")
    assert figures.nonfinite_groups == {
        name for name, one in session.get_run_results("fp16").group_errors.items() if one.accumulated.nonfinite_count
    }
    cells = build_row_cells(figures, VisibleRow("x", 0, MODEL.rows_by_group[local.QKV]))
    assert (cells.glyph, cells.glyph_style, cells.cells["share"].text) == ("!", "bad", "NaN")
    assert (
        figures.worst_first_sort_values[local.QKV]
        == max(figures.worst_first_sort_values.values())
        > figures.worst_first_sort_values["node_cat"]
    )
    said = detail.loss_reason_texts(session, figures, VIT.group_by_name[local.QKV])
    assert "Inf" in said[0] and "65504" in said[1]


def test_no_row_is_called_good_before_all_rows_are_measured(session):
    groups = [*MODEL.rows_by_group]
    shares = dict.fromkeys(groups, ErrorShare(0.0, samples=8))
    complete = RowValues(MODEL, session.config, group_values=dict.fromkeys(groups, 0.0), shares=shares)
    reasons = []
    for values in (complete, replace(complete, group_values={groups[0]: 0.0}), replace(complete, group_values={})):
        controller = SimpleNamespace(
            session=session, layer_list=SimpleNamespace(row_values=values, share_values=values)
        )
        reasons.append(
            [NavigationController.refuse_next_bad(controller), NavigationController.refuse_first_nan(controller)]
        )
    final_reasons, partial_reasons, empty_reasons = reasons
    assert all(final_reasons) and len({*partial_reasons}) == len({*empty_reasons}) == 1
    assert numbers(partial_reasons[0]) == [1, len(groups)] and not {*partial_reasons, *empty_reasons} & {*final_reasons}


def test_the_number_of_fewer_samples_stays_beside_a_long_title(session):
    session.toggle_fp32([group for group in VIT.groups if group.is_quantizable][:2])
    session.use_range_method("percentile")
    session.rest()
    count = session.count_judging_samples(session.config)
    data = replace(session.opened_network.data, what_if_count=count + 1, judged_count=count + 1)
    session._opened_network = replace(session.opened_network, data=data)
    for width in (60, 80, 120):
        row = next(line for line in map(text, summary.summary_lines(session, width)) if line.startswith(" c2"))
        assert f" on {count} " in row
    samples = next(entry for entry in explain_header(session) if entry.title == "samples")
    assert f" {count} of {count + 1} " in samples.texts[0][1]


def test_simulated_figures_are_marked_and_built_ones_are_not(tmp_path, measured_before):
    session = local.measured(tmp_path, builder=local.H200)
    session.request_build()
    session.rest()
    for width in (80, 140):
        for line in summary.summary_lines(session, width, 24)[1:]:
            left, _, right = text(line).partition("│")
            assert "~" in left and "~" not in right
        assert number_text(session.results[session.config].engine_result.latency_ms[0]) in text(
            summary.summary_lines(session, width, 24)[-1]
        )
    _, config_line = map(text, summary.summary_lines(session, 78, 24))
    assert config_line.startswith(" c0") and len(summary.summary_lines(session, 79, 24)) == 3
    assert "FAIL" in text(summary.summary_lines(session, 60, 24)[1]).partition("│")[2], "the outcome at every width"
    before = summary.summary_lines(session, 80)[2]
    session.toggle_fp32(VIT.groups[:1])
    session.config_names[session.config] = "with a name that is longer than a column"
    line = summary.summary_lines(session, 80)[2]
    assert "c0" not in text(line) and "~" not in text(line).partition("│")[2]
    assert text(line).index("│") == text(before).index("│"), "columns keep their places"


def test_bits_of_a_uniform_distribution_are_all_eight():
    stats = _stats(amax=1.0, rms=1 / math.sqrt(3))
    assert causes.estimate_used_bits(stats) == pytest.approx(8.0)
    assert causes.estimate_used_bits(_stats(amax=2.0, rms=1 / math.sqrt(3))) == pytest.approx(7.0)
    assert causes.estimate_used_bits(_stats(amax=0.0, rms=0.0)) is None


def test_channels_that_set_the_range_are_named():
    facts = causes.CauseFacts(VIT.groups[0], Precision.INT8, Precision.FP16)
    stats = _stats(41.2, 0.47, top=DominantChannels(1, 384, (7, 8, 9)))
    assert numbers(causes.describe_range_use(facts, stats).text)[:3] == [3, 384, 41.2]
    few = _stats(41.2, 0.47, top=DominantChannels(1, 4, (0, 1, 2)))
    assert "channel" not in causes.describe_range_use(facts, few).text


def test_the_reason_names_no_change_that_is_impossible(session):
    from trt_tui.core.measure.zero_cost_kinds import find_refusal_reasons

    stats = _stats(41.2, 0.47, top=DominantChannels(1, 384, (7, 8, 9)))
    known = set()
    for group in VIT.groups:
        if session.config.precision_of(group) is not Precision.INT8:
            continue
        facts = collect_cause_facts(session, session.config, group)
        refusal = find_refusal_reasons(VIT, session.config, group)["SmoothQuant"]
        assert facts.can_smooth is not bool(refusal), (group.name, refusal)
        assert ("SmoothQuant" in causes.describe_range_use(facts, stats).remedy) is facts.can_smooth
        known.add(facts.can_smooth)
    assert known == {False, True}
    raises = ("FP16", "FP32")
    words = {"SmoothQuant", "if possible", "another range", "the file", *raises}
    without_fp16 = replace(facts.group, refusal_reasons={Precision.FP16: "no kernel"})
    for changes, expected in (
        ({"can_smooth": None}, {"SmoothQuant", "if possible", "another range", *raises}),
        ({"can_smooth": True}, {"SmoothQuant", "another range", *raises}),
        ({"can_smooth": False}, {"another range", *raises}),
        ({"can_smooth": False, "has_fixed_ranges": True}, {*raises}),
        ({"can_smooth": False, "is_in_file_precision": True}, {"the file", "another range", *raises}),
        ({"can_smooth": False, "group": without_fp16}, {"another range", "FP32"}),
    ):
        remedy = causes.describe_range_use(replace(facts, **changes), stats).remedy
        assert {word for word in words if word in remedy} == expected, remedy


def test_fp8_is_told_by_what_lies_outside_its_steps():
    spread = tuple(1000 if 20 <= i < 40 else 0 for i in range(64))  # 2^-20 to 1, the same number in each power of two
    stats = _stats(1.0, 0.1, histogram=spread)
    zeroed, clipped = causes.estimate_fp8_loss_shares(
        stats, 1.0
    )  # 1/448 is 2^-8.8: what lies below 2^-18.8 rounds to 0
    assert clipped == 0 and zeroed == pytest.approx(1.2 / 20, abs=0.005)
    assert not lacking(causes.fp8_loss_sentence(stats, 1.0), "FP8", "amax 1.00", "6%", "to 0")
    assert "50% are clipped" in causes.fp8_loss_sentence(stats, 2.0**-10)
    narrow = _stats(1.0, 0.1, histogram=(0,) * 39 + (9,) + (0,) * 24)
    assert not lacking(causes.fp8_loss_sentence(narrow, 1.0), "hardly any", "to 0")


def test_the_reason_fits_the_codes_of_the_row(session):
    for precision, said, silent in (
        (Precision.INT8, "of 8 bits", "FP8"),
        (Precision.FP8, "FP8 scale by", "bits"),
        (Precision.INT4, "", "bits"),
    ):
        group = next(
            group
            for group in MODEL.outline.groups
            if precision in group.allowed_precisions and group.activation_qdq_sites()
        )
        session.results.store_value(
            GROUP_DETAILS, group.name, GroupDetails({group.activation_qdq_sites()[0].tensor: _stats(41.2, 0.47)})
        )
        session.set_config(session.config.with_group_precision([group], precision))
        told = " ".join(detail.loss_reason_texts(session, found(session), group))
        assert said in told and silent not in told


def _stats(amax, rms, top=None, histogram=None):
    counts = histogram or tuple(1000 if 30 <= i <= 45 else 0 for i in range(64))
    return TensorStats(amax, rms, rms * 2, rms * 3, 1000, counts, {}, top)


def test_the_detail_of_every_kind_of_row(session):
    figures = found(session)
    lines = MODEL.list_tree_rows(
        {scope.path for scope in MODEL.scopes} | {row.path for row in MODEL.rows_by_group.values()}
    )
    for line in lines:
        for width, height in ((80, 3), (48, 20)):
            drawn = detail.detail_lines(session, figures, line, width, height)
            assert drawn and all(spans.line_width(one) <= width for one in drawn)
        for width in (20, 34, 200):
            title = detail.detail_title(MODEL, line, width)
            end = line.row.group.operator if isinstance(line.row, GroupRow) else ""
            assert title and end in title and (width < 34 or len(title) <= width), (width, title)
    scope = next(line for line in lines if isinstance(line.row, Scope))
    assert "INT8" in text(detail.detail_lines(session, figures, scope, 80, 3)[0])


def test_no_row_is_advised_if_fp32_itself_misses_the_target(session):
    session.set_target("sqnr>=19")
    assert next_step_hint(session, found(session), found(session).group_names_worst_first[0]).actions == ("toggle",)
    session._opened_network = replace(session.opened_network, reference=ReferenceInfo("other.onnx"))
    fp32 = session.results.get_or_create_results(PrecisionConfig.from_precision(Precision.FP32))
    fp32.store_accuracy(verdict(14.0))
    hint = next_step_hint(session, found(session))
    assert not lacking(hint.text, "FP32 itself misses", "other.onnx", "14.0 dB") and not hint.actions
    assert session.shown_warnings[0][0] in hint.text


def test_the_next_step_after_a_build(tmp_path, measured_before):
    session = local.measured(tmp_path, target="sqnr>=1", builder=local.H200)
    assert next_step_hint(session, found(session)).actions == ("build",)
    session.request_build()
    engine = session.rest().results[session.config].engine_result
    session.set_target(f"sqnr>={engine.accuracy.worst_output[1].errors.sqnr_db - 1}")
    assert next_step_hint(session, found(session)).actions == ("export",)
    name, simulated = session.get_run_results("config").accuracy.worst_output
    lower = replace(simulated, errors=replace(simulated.errors, sqnr_db=simulated.errors.sqnr_db - 0.5))
    session.results[session.config].runs[RunKind.BUILT_ENGINE] = replace(
        engine, accuracy=replace(engine.accuracy, outputs={name: lower})
    )
    session.set_target(f"sqnr>={simulated.errors.sqnr_db - 0.2}")
    hint = next_step_hint(session, found(session))
    assert "build misses" in hint.text and "export" not in hint.actions
    session.set_target(f"sqnr>={simulated.errors.sqnr_db - 1}")
    assert next_step_hint(session, found(session)).actions == ("export",)


def test_configs_newest_first(session):
    first = session.config
    session.toggle_fp32(VIT.groups[:1])
    session.set_precision(VIT.groups[3:4], Precision.FP32)
    session.rest()
    header, lines = config_table(session, 60)
    assert [session.config_names[config] for config, _ in lines] == ["c2", "c1", "c0"]
    narrow, _ = config_table(session, 30)
    assert "raised" in text(header) and "raised" not in text(narrow) and "exported" not in text(header)
    session.request_build()
    session.rest()
    header, lines = config_table(session, 60)
    assert "exported network" in text(header) and " ms" not in text(header), "an exported network has no latency"
    assert text(lines[0][1]).startswith(" >c2") and text(lines[2][1]).startswith("  c0")
    session.config_names[first] = "最初の構成"
    header, lines = config_table(session, 60)
    assert len({cell_width(line[0][0]) for _, line in lines}) == 1 and "最初の構成" in text(lines[2][1])


def test_a_config_that_lowers_nothing_is_not_called_one_that_passes(session):
    session.set_target("sqnr>=1")
    assert text(config_table(session, 60)[1][0][1]).endswith("PASS") and config_status.current_config_meets_target(
        session
    )
    session.set_precision(VIT.groups, Precision.FP32)
    session.rest()
    line = text(config_table(session, 60)[1][0][1])
    assert "PASS" not in line and "FAIL" not in line and not config_status.current_config_meets_target(session)
    assert "b builds" not in next_step_hint(session, found(session)).text
    assert any("all in FP32" in text(one) for one in summary.summary_lines(session, 120))


def test_a_config_on_some_samples_has_no_outcome_yet(session):
    session.set_target("sqnr>=1")
    results = session.get_run_results("config")
    total = results.accuracy.samples
    results.store_accuracy(replace(results.accuracy, samples=total - 1, total=total))
    line = text(config_table(session, 80)[1][0][1])
    assert line.endswith(f"on {total - 1} of {total}") and "PASS" not in line


@pytest.mark.parametrize("theme", [themes.DARK, themes.LIGHT], ids=lambda theme: theme.name)
def test_in_16_colours_only_errors_are_red(theme):
    def standard(colour: str) -> int:
        return Color.parse(colour).downgrade(ColorSystem.STANDARD).number

    reds = {standard("red"), standard("bright_red")}
    assert standard(theme.error) in reds
    assert not {standard(theme.variables[f"band{i}"]) for i in range(5)} & reds
    assert not {standard(colour) for colour in (theme.foreground, theme.accent, theme.warning, theme.success)} & reds


def judged_by() -> Accuracy:
    """A verdict of two outputs; that of the worse SQNR is the better one by its largest error."""
    return Accuracy(
        {
            "boxes": OutputErrors(ErrorMetrics(30.0, 0.9, 1e-3, 0.5, 0.01)),
            "scores": OutputErrors(ErrorMetrics(8.0, 0.99, 1e-4, 0.02, 0.001)),
        },
        judged_error=0.2,
    )


def test_the_figure_shown_is_the_one_that_the_target_bounds(session):
    for target, shown in (
        ("sqnr>=20", "~8.0 dB"),
        ("boxes:sqnr>=20", "~30.0 dB"),
        ("max_abs<=0.01", "~0.500"),
        ("scores:max_abs<=1", "~0.020"),
        ("mean_abs<=0.1", "~0.010"),
        ("mse<=0.1", "~0.001"),
        ("cosine>=0.9", "~0.90000"),
        ("metric>=0.5", "–"),
        ("agreement>=0.5", "–"),
    ):
        session.targets = (parse_target(target),)
        assert config_status.target_value_span(session, judged_by())[0] == shown


def test_no_figure_is_shown_for_what_is_not_finite(session):
    session.targets = (parse_target("max_abs<=0.01"),)
    assert config_status.target_value_span(session, Accuracy({"y": OutputErrors(ErrorMetrics(inf=3))}))[0] == "Inf"


@pytest.mark.parametrize(("target", "kept"), [("max_abs<=0.01", "low"), ("sqnr>=20", "high")])
def test_the_detail_keeps_the_range_that_is_better_by_the_target(session, target, kept):
    def option(label, sqnr, largest):
        one = ErrorMetrics(sqnr, 0.99, 1e-3, largest, largest)
        return ev.Remedy(label, session.config, key="r", accuracy=Accuracy({"y": OutputErrors(one)}))

    session.targets = (parse_target(target),)
    session.results[session.config].store_accuracy(option("now", 9.0, 0.6).accuracy)
    options = [option("low", 10.0, 0.02), option("high", 30.0, 0.5)]
    for order in (options, options[::-1]):
        assert [one.label for one in improving(session, order, has_best_only=True)] == [kept]


def improving(session, remedies, **choice):
    """The remedies of the first group that are listed if these are measured."""
    group = session.outline.groups[0]
    session.results.get_values(ev.REMEDIES)[group.name, session.config] = tuple(remedies)
    return detail.list_improving_remedies(session, group, **choice)


@pytest.mark.parametrize(
    ("values", "listed"),
    [
        ((9.0, 12.0, 4.0, 16.0, None), [16.0, 12.0]),
        ((16.0, 12.0), [16.0, 12.0]),
        ((8.0, 10.2, None), []),
        ((10.4, 10.2), [10.4]),
    ],
)
def test_only_remedies_that_improve_the_value_are_listed_the_best_first(session, values, listed):
    """A gain within noise counts only if it alone meets the target; None is a value with NaN."""
    session.targets = (parse_target("sqnr>=10.3"),)
    session.results[session.config].store_accuracy(remedy_of(session, "r", "now", 10.0).accuracy)
    remedies = [
        remedy_of(session, "r", "range", value)
        if value
        else ev.Remedy("NaN", session.config, key="r", accuracy=Accuracy({"y": OutputErrors(ErrorMetrics(nan=3))}))
        for value in values
    ]
    assert [one.accuracy.worst_errors.sqnr_db for one in improving(session, remedies)] == listed
    lines = [text(line) for line in detail.remedy_lines(session, session.outline.groups[0], 40)]
    if not listed:
        assert [numbers(line) for line in lines] == [[len(values)]]
    row = next(line for line in MODEL.list_tree_rows(set()) if isinstance(line.row, GroupRow))
    assert row.row.group.name == session.outline.groups[0].name
    (line,) = (text(one) for one in detail.detail_lines(session, found(session), row, 80, 5) if " try" in text(one))
    assert numbers(line) == ([listed[0]] if listed else [len(values), 10.0])


@pytest.mark.parametrize(
    ("outcome", "listed", "is_requested_again"),
    [
        ("", [12.0, 16.0, 14.0], False),
        (REPLACED, [12.0, 16.0, 14.0], True),
        (STOPPED, [12.0, 16.0, 14.0], True),
        (DONE, [16.0, 14.0, 12.0], False),
    ],
)
def test_remedies_keep_their_places_until_all_are_measured(session, outcome, listed, is_requested_again):
    group, requests = session.outline.groups[0], session.pending_requests
    session.targets = (parse_target("sqnr>=20"),)
    session.results[session.config].store_accuracy(remedy_of(session, "r", "now", 9.0).accuracy)
    requests.add_request(1000, rq.MeasureRemedies(group.name, session.config), "remedies")
    if outcome:
        requests.end_request(1000, outcome)
    remedies = [remedy_of(session, "r", f"{value:g} range", value) for value in (12.0, 8.0, 16.0, 14.0)]
    assert [one.accuracy.worst_errors.sqnr_db for one in improving(session, remedies)] == listed
    assert [numbers(text(line))[0] for line in detail.remedy_lines(session, group, 40)[:3]] == listed
    shown = text(detail._remedy_line(session, group, improving(session, remedies), 80))
    assert numbers(shown)[::2] == listed
    assert (detail.MEASURING_TEXT in text(detail.remedy_lines(session, group, 40)[-1])) is (not outcome)
    assert shown.endswith("…") is (not outcome), "further values are being measured"
    improving(session, remedies[1:2])
    lines = list(map(text, detail.remedy_lines(session, group, 40)))
    assert (lines == [detail.MEASURING_TEXT]) is (not outcome), "others can still improve the value"
    assert bool(lines) is (outcome in ("", DONE))
    sent = len(requests.jobs)
    session.request_group_details(group)
    is_requested = isinstance(requests.jobs[-1].request, rq.MeasureRemedies) and len(requests.jobs) > sent
    assert is_requested is is_requested_again


def remedy_of(session, key, label, sqnr_db, interval=None):
    spread = AccuracyIntervals(worst_output={"sqnr": ConfidenceInterval(*interval)}) if interval else None
    accuracy = Accuracy({"y": OutputErrors(ErrorMetrics(sqnr_db))}, intervals=spread)
    return ev.Remedy(label, session.config, key=key, accuracy=accuracy)


def test_a_margin_is_the_distance_to_the_farther_end_on_both_sides_of_the_target(session):
    """A value of 13 has the interval from 11.4 to 13.6, of which a margin of 0.6 would hide the larger part."""
    for target in ("sqnr>=14", "sqnr>=12", "sqnr>=20"):
        one = remedy_of(session, "space", "FP32", 13.0, (11.4, 13.6))
        assert value_margin_text(parse_target(target), one.accuracy) == "±1.6"
        assert value_margin_text(parse_target(target), remedy_of(session, "r", "entropy", 13.0).accuracy) == "±?"
        above = remedy_of(session, "space", "FP32", 13.0, (12.9, 15.0))
        assert value_margin_text(parse_target(target), above.accuracy) == "±2.0"
        exact = replace(one.accuracy, outputs={"y": OutputErrors(ErrorMetrics(exact=True))})
        assert value_margin_text(parse_target(target), exact) == "", "nothing can differ"


def test_remedies_within_noise_of_each_other_are_shown_as_equal(session):
    for fp16, fp32, are_equal in (
        ((13.4, None), (13.0, None), True),
        ((13.4, None), (12.4, None), False),
        ((13.4, (12.8, 14.0)), (13.0, (12.4, 13.6)), True),
        ((13.4, (13.3, 13.5)), (13.0, (12.9, 13.1)), False),
        ((13.9, (12.0, 18.0)), (13.0, (11.0, 16.0)), True),
        ((15.0, (12.0, 18.0)), (13.0, (11.0, 16.0)), False),
    ):
        session.targets = (parse_target("sqnr>=20"),)
        group = session.outline.groups[0]
        remedies = (
            remedy_of(session, "r", "entropy range", 9.0),
            remedy_of(session, "=", "FP16", *fp16),
            remedy_of(session, "space", "FP32", *fp32),
        )
        session.results.get_values(ev.REMEDIES)[group.name, session.config] = remedies
        equal, others = detail.split_off_best_remedies(session, remedies[1:])
        assert [one.label for one in equal] == (["FP16", "FP32"] if are_equal else ["FP16"])
        lines = ["".join(text for text, _ in line) for line in detail.remedy_lines(session, group, 40)]
        assert ("equal within" in lines[-1] and numbers(lines[-1])[0] == 2) is are_equal
        assert [line.split()[1] for line in lines[:2]] == ["FP16", "FP32"], "the best first"
        assert not any("entropy" in line for line in lines), "no gain"
        shown = "".join(text for text, _ in detail._remedy_line(session, group, remedies[1:], 80))
        assert (" or " in shown) is are_equal and shown.endswith(f"~{fp32[0]} dB")


@pytest.mark.parametrize(("samples", "total", "shown"), [(4, 4, "41%?"), (8, 8, "41% "), (8, 32, "…")])
def test_a_share_on_fewer_than_eight_samples_has_a_mark_and_one_that_can_change_has_none_yet(
    session, monkeypatch, samples, total, shown
):
    model = TreeModel(session.outline)
    first, second = session.outline.groups[:2]
    results = session.results.get_or_create_results(session.config)
    results.shares, results.has_all_shares = {first.name: ErrorShare(0.41, samples=samples)}, False
    shares = results.shares
    session.pending_requests.add_request(99, rq.MeasureWhatIf(session.config, with_shares=True), "shares")
    with monkeypatch.context() as patched:
        patched.setattr(session, "count_judging_samples", lambda config: total)
        row_values = build_row_values(session, model, ColourMeasure.SHARE, "config")
    lines = [
        text(
            layer_row_line(build_row_cells(row_values, VisibleRow(row.path, 0, row), True), 0, fit_columns(120), False)
        )
        for row in (model.rows_by_group[first.name], model.rows_by_group[second.name])
    ]
    assert shown in lines[0] and "…" in lines[1]
    table = (
        _error_share_cells(shares[first.name]),
        [
            text(line)
            for line in detail.detail_lines(
                session, row_values, VisibleRow("", 0, model.rows_by_group[first.name]), 60, 30
            )
        ],
    )
    assert all("41%?" in str(place) for place in table) is (samples < 8)


def test_the_metric_decides_which_remedy_is_best(session):
    """Its values differ although the errors do not, and a remedy without a value of the metric is never the best."""
    session.targets = (parse_target("f1>=0.9"),)
    values = {"mse": (13.2, {"f1": 0.588}), "entropy": (13.0, {"f1": 0.754}), "percentile": (13.1, {})}
    remedies = tuple(
        ev.Remedy(
            label,
            session.config,
            key="r",
            accuracy=Accuracy({"y": OutputErrors(ErrorMetrics(sqnr_db))}, metric, judged_error=0.1),
        )
        for label, (sqnr_db, metric) in values.items()
    )
    ordered = improving(session, remedies)
    assert ordered[0].label == "entropy"
    assert [one.label for one in detail.split_off_best_remedies(session, ordered)[0]] == ["entropy"]
    assert [one.label for one in improving(session, remedies, has_best_only=True)] == ["entropy"]


def test_the_mark_of_equal_remedies_agrees_with_the_line_below(session):
    session.targets = (parse_target("sqnr>=20"),)
    group = session.outline.groups[0]
    values = {
        "Mul": (14.24, (13.8, 14.7)),
        "FP16": (13.7, (13.6, 13.9)),
        "FP32": (14.16, (13.0, 14.2)),
        "mse": (13.84, (9.0, 14.0)),
        "entropy": (13.79, (9.0, 19.0)),
        "percentile": (13.76, None),
    }
    remedies = tuple(remedy_of(session, "r", label, *value) for label, value in values.items())
    equal, others = detail.split_off_best_remedies(session, improving(session, remedies))
    assert [one.label for one in equal] == ["Mul", "FP32", "mse", "entropy", "percentile"], "13.8 is marked everywhere"
    assert [one.label for one in others] == ["FP16"], "not all that is in a wide interval equals the best"
    lines = [text(line) for line in detail.remedy_lines(session, group, 40)]
    assert numbers(lines[-1]) == [len(equal), 0.44] and lines[-1].endswith("within 0.44 dB")
    end = text(detail.remedy_lines(session, group, 20)[-1])
    assert end.endswith("within 0.44 dB") and end.startswith(f"{len(equal)} "), "a text never loses its end"
    first = [float(value[1]) for line in lines[: len(equal)] if (value := re.search(r" ([\d.]+) dB", line))]
    assert min(first) >= 14.2 - 0.44 and len(first) == len(equal)


def test_an_exact_error_has_no_unit(session):
    line = next(line for line in MODEL.list_tree_rows(set()) if isinstance(line.row, GroupRow))
    exact, inexact = ErrorMetrics(exact=True), ErrorMetrics(30.0)
    for isolated, accumulated, expected in (
        (inexact, inexact, "isolated ~30.0 dB · accumulated ~30.0 dB"),
        (exact, exact, "isolated exact · accumulated exact"),
        (inexact, exact, "isolated ~30.0 dB · accumulated exact"),
        (exact, inexact, "isolated exact · accumulated ~30.0 dB"),
    ):
        session.get_run_results("config").group_errors[line.row.group.name] = GroupErrors(
            accumulated=accumulated, isolated=isolated, precision=Precision.INT8
        )
        shown = [text(one) for one in detail.detail_lines(session, found(session), line, 60, 30)]
        assert f" error    {expected}" in shown


def test_a_name_of_a_remedy_is_whole_before_the_values_have_a_unit(session):
    group = session.outline.groups[0]
    session.results.get_values(ev.REMEDIES)[group.name, session.config] = tuple(
        remedy_of(session, "9", label, 29.0) for label in ("bias correction", "equalization")
    )
    for width, unit in ((40, " dB"), (28, ""), (25, "")):
        lines = [text(line) for line in detail.remedy_lines(session, group, width)][:2]
        assert all(len(line) <= width for line in lines)
        assert ("bias correction" in lines[0]) is (width > 25) and f" 29.0{unit}" in lines[0]
        assert (" dB" in "".join(lines)) is bool(unit)


def test_the_line_of_remedies_keeps_its_end(session):
    for width in (44, 60, 80):
        session.targets = (parse_target("sqnr>=20"),)
        remedies = [remedy_of(session, "r", f"method{index} range", 10.0 + index) for index in reversed(range(5))]
        line = detail._remedy_line(session, session.outline.groups[0], remedies, width)
        shown = "".join(text for text, _ in line)
        assert spans.line_width(line) <= width and "…" not in shown and "method4 ~14.0" in shown
        assert shown.count("r: ") + int(shown.partition("+")[2] or 0) == 5


def test_a_doubtful_share_says_so(session):
    names = [group.name for group in session.outline.groups[:3]]
    shares = {
        names[0]: ErrorShare(0.30, samples=8, half_width=0.05),
        names[1]: ErrorShare(0.22, samples=8, half_width=0.04),
        names[2]: ErrorShare(-0.10, samples=8, half_width=0.01),
    }
    row_values = RowValues(MODEL, session.config, shares=shares)
    said = [detail.share_doubt_text(row_values, name) for name in names]
    assert said[0] == said[1] and numbers(said[0]) == [1] and "order" in said[0] and "worse" in said[2]
    same = replace(row_values, find_toggle=lambda groups: ToggleResult(outcome_text=SAME_VALUE_MARK))
    wide = replace(row_values, shares={names[2]: replace(shares[names[2]], half_width=0.2)})
    assert not any("worse" in detail.share_doubt_text(values, names[2]) for values in (same, wide))
    assert not ErrorShare(0.3, samples=8, half_width=0.01).overlaps(shares[names[1]])
    assert not ErrorShare(0.3).overlaps(ErrorShare(0.3))


def test_a_scope_and_the_list_say_that_the_order_of_their_rows_is_not_final(session):
    scope = next(scope for scope in MODEL.scopes if len(scope.groups) > 3)
    row, results = VisibleRow(scope.path, 0, scope), session.results[session.config]
    listing = LayerList(session)
    listing.open_network(VIT)

    def count_measured_rows() -> list[str]:
        values = listing._row_values = found(session)
        lines = " ".join(text(line).strip() for line in detail.detail_lines(session, values, row, 80, 20))
        return re.findall(r"(\d+) of (?:\d+) rows", f"{layer_list_title(listing, 120)[0]} {lines}")

    assert count_measured_rows() == []
    results.has_all_shares = False
    results.shares.pop(scope.groups[0])
    assert count_measured_rows() == [str(len(MODEL.rows_by_group) - 1)] * 2


def test_raising_to_nan_meets_no_target(session):
    session.targets = (parse_target("sqnr>=20"),)
    broken, fine = Accuracy({"y": OutputErrors(ErrorMetrics(nan=1))}), Accuracy({"y": OutputErrors(ErrorMetrics(25.0))})
    exact = Accuracy({"y": OutputErrors(ErrorMetrics(cosine=1.0, exact=True))})
    for raised, rows in (((broken, broken), None), ((broken, fine), 2), ((broken, exact), 2)):
        assert count_rows_to_raise_for_target(session, raised) == rows


def test_a_legend_has_whole_entries_of_the_signs_on_the_screen_at_every_width():
    signs = {"↑", "e", "p", "k", "+", "?", "█"}
    whole = sign_legend_text(signs, 200).split("  ")
    assert whole == ["↑ raised", "e p range", "k fixed", "+ other change", "? not measured"]
    for width in range(0, 200):
        legend = sign_legend_text(signs, width)
        assert len(legend) <= width and whole[: len(list(filter(None, legend.split("  "))))] == list(
            filter(None, legend.split("  "))
        ), (width, legend)
    assert not sign_legend_text({"█", "·"}, 200)


def test_the_page_of_the_metrics_parts(tmp_path, measured_before):
    (tmp_path / "parts.py").write_text(
        "import numpy as np\n"
        "def parts(outputs, labels):\n"
        "    picked = outputs['logits'].astype(np.float64)[np.arange(len(labels['labels'])), labels['labels']]\n"
        "    return {'mean': picked.mean(), **{f'class/{one}': picked[one::3].mean() for one in range(3)}}\n"
    )
    options = replace(local.options(tmp_path), metric=f"{tmp_path / 'parts.py'}:parts")
    session = local.NullSession(options, folder=tmp_path, resume=False, target="metric[class/1]>=base-1%")
    session.start()
    session.rest()
    bounded = session.results.reference_metric["class/1"]
    assert session.target.bound == pytest.approx(bounded - 0.01 * abs(bounded)) and session.guard_warnings == ()
    found = {run: session.get_run_results(run).accuracy.metric for run in ("fp16", "int8")}
    drops = {
        name: max(base - one[name] for one in found.values())
        for name, base in session.results.reference_metric.items()
        if name != "mean"
    }
    for width in (76, 40):
        lines = [
            "".join(text for text, _ in line)
            for line in charts.draw_metric_part_table(charts.ChartFrame(session, None, None, width, 20)).lines
        ]
        names = [line.split()[0] for line in lines[1:5]]
        assert names == ["mean", *sorted(drops, key=lambda name: -drops[name])]
        assert all(len(line) <= width for line in lines) and lines[0].split()[-1] == "drop"


@pytest.mark.usefixtures("quick")
def test_a_row_is_toggled_before_the_network_is_open(tmp_path):
    session = local.NullSession(local.options(tmp_path, "vit", True, False), folder=tmp_path, resume=False)
    group = VIT.groups[0]
    assert session.outline is None and find_toggled_config(session, [group]).precision_of(group) is Precision.FP32
    assert find_toggle_result(session, [group]) == ToggleResult()


def test_the_output_of_the_worst_value_is_named_beside_it(session):
    boxes, scores = OutputErrors(ErrorMetrics(32.1, 0.99)), OutputErrors(ErrorMetrics(5.8, 0.9))
    both = Accuracy({"boxes": boxes, "scores": scores}, samples=8, total=8)
    target = parse_target("sqnr>=20")
    assert not lacking(target.measured_value_text(both), "5.8 dB", "scores")
    assert target.measured_value_text(replace(both, outputs={"boxes": boxes})) == "32.1 dB"
    assert not lacking(parse_target("boxes:sqnr>=20").measured_value_text(both), "32.1 dB", "boxes")
    column = next(column for column in list_run_columns("configs") if column.title == "SQNR")
    assert column.text(RunRow(both, "~")) == "~5.8 scores"
    broken = replace(both, outputs={"boxes": OutputErrors(ErrorMetrics(nan=1)), "scores": scores})
    assert column.text(RunRow(broken)) == "NaN boxes"
    judged = session.judged_outputs[0]
    session._opened_network = replace(
        session.opened_network, judged_outputs=(replace(judged, name="boxes"), replace(judged, name="scores"))
    )
    in_files = [
        replace(
            both,
            outputs={
                "boxes": boxes,
                "scores": replace(scores, worst_sample=SampleName(index, "part17.npz"), worst_sqnr_db=-3.2),
            },
        )
        for index in (12345, 6)
    ]
    for accuracy, sample_pattern in (
        (both, ""),
        (in_files[0], r" +-3\.2( #12345)?"),
        (in_files[1], r" +-3\.2( p…17 #6)?"),
    ):
        session.results.get_or_create_results(session.config).store_accuracy(accuracy)
        for width in (120, 80, 60):
            row = next(line for line in map(text, summary.summary_lines(session, width)) if line.startswith(" c0"))
            assert re.search(rf"5\.8 .* *scores{sample_pattern} ", row), row
    long_name = "scores of a slice[..., 4:5]"
    long_named = replace(both, outputs={"boxes": boxes, long_name: scores})
    session.results.get_or_create_results(session.config).store_accuracy(long_named)
    row = next(row for row in summary.summary_rows(session, 120) if row.run == "config")
    output_column = next(column for column in summary.list_summary_columns(session, 120) if column.title == "output")
    explanation = explain_summary_cell(session, row, output_column)
    assert explanation.value == long_name and ("what", explain_word("judged output")) in explanation.texts
    session.results.get_or_create_results(session.config).store_accuracy(in_files[1])
    session.set_target("scores:sqnr>=5; boxes:sqnr>=40")
    for width in (120, 80):
        lines = [*map(text, summary.summary_lines(session, width))]
        first = next(index for index, line in enumerate(lines) if line.startswith(" c0"))
        rows = [(line.split()[0], "FAIL" in line) for line in lines[first + 1 : first + 3]]
        assert rows == [("boxes", True), ("scores", False)], "the worst is first"


def test_the_line_of_an_output_with_its_own_target_has_the_outcome_of_the_engine(tmp_path, measured_before):
    session = local.measured(tmp_path, builder=local.H200)
    session.request_build()
    session.rest()
    session.set_target("logits:sqnr>=8; logits:cosine>=0.1")  # met in the simulation, missed by the engine
    for width in (120, 80):
        row = next(line for line in map(text, summary.summary_lines(session, width)) if line.startswith("   logits"))
        assert row.partition("│")[2].split()[0].startswith("FAIL") and "~" in row.partition("│")[0]
