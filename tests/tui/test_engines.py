"""What the screen says of engines, without a screen: trt_tui.tui.state.engine_texts, and what others add."""

import re
import time
from dataclasses import replace

import pytest

from tests import local
from tests.local import CORE, H200, NO_GPU, QKV
from tests.texts import lacking
from trt_tui import formatting
from trt_tui.core.engines.fallback_ladder import attempt_lines
from trt_tui.core.engines.group_implementations import (
    GroupImplementation,
    Kernel,
    Preview,
    PreviewRefusal,
)
from trt_tui.core.engines.inspector import COMPUTE
from trt_tui.core.measure.engine_agreement import UNEXPLAINED_GAP_DB, engine_sqnr_gap_db
from trt_tui.core.measure.results import FP32_ENGINE, EngineErrors, EngineResult, ErrorMetrics, GroupErrors, RunKind
from trt_tui.core.network.layer_tree import GroupRow, Scope
from trt_tui.core.precision import Precision
from trt_tui.formatting import megabytes_text, number_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.tui import spans
from trt_tui.tui.spans import line_width
from trt_tui.tui.state import detail, engine_texts, summary
from trt_tui.tui.state.columns import (
    LAYER_COLUMNS_BY_ID,
    build_row_cells,
    column_title_line,
    fit_columns,
    layer_row_line,
)
from trt_tui.tui.state.config_list import config_table
from trt_tui.tui.state.explanations import explain_cell, explain_summary_cell
from trt_tui.tui.state.marks import DIVERGENCE_MARK
from trt_tui.tui.state.rows import ColourMeasure, TreeModel, VisibleRow, build_row_values
from trt_tui.tui.state.status import Hint, StatusLines, job_table, job_texts, next_step_hint, status_lines

VIT = local.outline()
MODEL = TreeModel(VIT)
FIRST = VIT.groups[:1]
OTHERWISE = replace(H200, otherwise={QKV: Precision.FP16})
NOISY = replace(H200, worse=0.8)
WIDTHS = (80, 120)


@pytest.fixture
def start(tmp_path, measured_before):
    """Opens sessions that have measured everything, with TensorRT on a GPU to build."""

    def make(builder=H200, target="sqnr>=20", **options):
        return local.measured(tmp_path, target=target, builder=builder, **options)

    return make


@pytest.fixture
def build(start):
    """Opens a session and builds all in INT8; returns it with the engine."""

    def make(*arguments, **options):
        session = start(*arguments, **options)
        session.request_build()
        assert session.rest().results[session.config].engine_result is not None, session.error
        return session, session.results[session.config].engine_result

    return make


def text(line) -> str:
    return "".join(part for part, _ in line)


def table(session, width: int, height: int = 40) -> dict[str, str]:
    """The lines of the verdict without the gauge, by the first two words of their run's name, FP32's by that."""
    lines = [text(line) for line in summary.summary_lines(session, width, height)]
    assert all(len(line) <= width for line in lines)
    lines = [re.sub(r" [█▏▎▍▌▋▊▉░]{3,}.*", "", line) for line in lines]
    return {" ".join(line[:13].split()[:2]): line for line in lines[1:]}


def found(session, run="config"):
    return build_row_values(session, MODEL, ColourMeasure.SHARE, run)


def cells(session, group: str, run="config"):
    return build_row_cells(found(session, run), VisibleRow("x", 0, MODEL.rows_by_group[group]))


def decibels(verdict) -> str:
    return f"{verdict.worst_output[1].errors.sqnr_db:.1f}"


def edited(session) -> str:
    """Raises the first group, of whose config nothing is built; returns the verdict's line of what was built before."""
    session.toggle_fp32(FIRST)
    assert table(session, 80)["c1 ·"].partition("│")[2].split()[0] == formatting.NOT_MEASURED
    return next(text(line) for line in summary.summary_lines(session, 80) if text(line).startswith(" c0, built"))


def test_the_row_of_an_earlier_engine_explains_the_outcome_of_its_own_config(build):
    session, _ = build()
    built_outcomes = session.config_target_outcomes(session.config)
    session.toggle_fp32(FIRST)
    row = next(row for row in summary.summary_rows(session, 120) if row.kind == "engine")
    explanation = explain_summary_cell(session, row, summary.list_summary_columns(session, 120)[-1])
    assert explanation.subject == "c0" and built_outcomes[RunKind.BUILT_ENGINE].text in dict(explanation.texts)["how"]


def test_an_engine_has_its_own_columns(build):
    session, result = build()
    score, gap = (
        result.accuracy.headline_metric,
        engine_sqnr_gap_db(session.get_run_results("config").accuracy, result.accuracy),
    )
    figures = [
        decibels(result.accuracy),
        formatting.metric_text(score),
        number_text(result.latency_ms[0]),
        megabytes_text(result.engine_bytes),
    ]
    assert table(session, 80)["c0 ="].partition("│")[2].split() == [*figures, "FAIL"]
    share, wide = (
        engine_texts.quantized_time_share_text(result, Precision.INT8),
        table(session, 120)["c0 ="].partition("│")[2],
    )
    assert share.endswith("%") and wide.split() == [figures[0], f"{gap:.1f}", *figures[1:], *share.split(), "FAIL"]
    header = text(summary.summary_lines(session, 120)[0])
    assert header.index("INT8 time") + 9 == table(session, 120)["c0 ="].index(share) + len(share)
    assert "score" in header and "gap" not in text(summary.summary_lines(session, 80)[0])
    assert abs(gap) < UNEXPLAINED_GAP_DB and (f"{gap:.1f}", "dim") in [
        (part.strip(), style) for part, style in summary.summary_lines(session, 120)[3]
    ]
    assert edited(session).partition("│")[2].split()[:4] == figures


def test_a_large_gap_is_marked_and_leads_to_what_to_check(build):
    session, result = build(NOISY)
    gap = engine_sqnr_gap_db(session.get_run_results("config").accuracy, result.accuracy)
    assert gap > UNEXPLAINED_GAP_DB
    assert (f"{gap:.1f}!", "warn") in [(part.strip(), one) for part, one in summary.summary_lines(session, 120)[3]]
    hint = next_step_hint(session, found(session))
    assert not lacking(hint.text, f"{gap:.1f} dB worse", "i shows")
    session.toggle_fp32(FIRST)
    assert "i shows" not in next_step_hint(session, found(session)).text


@pytest.mark.parametrize("metric", [True, False])
def test_an_engine_that_cannot_run_here_shows_its_size(build, metric):
    session, result = build(NO_GPU, metric=metric)
    assert result.accuracy is None and session.results.fp32_engine is None and found(session).implementations == {}
    for width in WIDTHS:
        assert "cannot run here" in table(session, width)["c0 ="]
        assert table(session, width)["c0 ="].split()[-2] == megabytes_text(result.engine_bytes)
    assert f"{megabytes_text(result.engine_bytes)} MB" in text(config_table(session, 60)[1][0][1])
    session.results[session.config].store_accuracy(replace(session.get_run_results("config").accuracy, agreement=None))
    assert "cannot run here" in table(session, 80)["c0 ="]
    session.set_target("sqnr>=5")
    assert "cannot run here" in next_step_hint(session, found(session)).text
    assert "cannot run" in edited(session)


def test_the_engine_decides_where_it_and_the_simulation_differ(build):
    session, result = build(NOISY, target="sqnr>=5")
    assert (
        result.accuracy.worst_output[1].errors.sqnr_db
        < 5
        < session.get_run_results("config").accuracy.worst_output[1].errors.sqnr_db
    )
    assert table(session, 120)["c0 ="].endswith("FAIL ~PASS?") and table(session, 80)["c0 ="].endswith("FAIL")
    assert not found(session).is_target_met


def test_an_engine_that_is_not_as_asked_is_marked_and_decides_nothing_about_the_config(build):
    session, result = build(replace(NOISY, cannot=(QKV,)), target="sqnr>=5")
    assert result.other_precisions == {QKV: Precision.FP16} and not session.target.is_met_by(result.accuracy)
    for width in WIDTHS:
        row = table(session, width)["c0 ="].partition("│")[2]
        assert row.split()[0] == f"≠{decibels(result.accuracy)}" and "PASS" in row and "FAIL" not in row
    assert found(session).is_target_met and "≠" in text(config_table(session, 60)[1][0][1])
    assert not lacking(next_step_hint(session, found(session)).text, "not built as", "i shows")
    gap = engine_sqnr_gap_db(result.simulated_accuracy, result.accuracy)  # not that of what was asked
    assert (f"{gap:.1f}!", "warn") in [(part.strip(), one) for part, one in summary.summary_lines(session, 120)[3]]
    lines = [" ".join(text(line).split()) for line in engine_texts.engine_page_lines(session, 200)]
    assert {f"· {line.strip()}" for line in attempt_lines(result.attempts, result.other_precisions)} <= set(lines)
    for values in (
        ("failed: ", result.attempts[0].failure_reason),
        (f"{QKV} raised to FP16",),
        (f"{QKV} in FP16",),
        (f"c0: {gap:.1f} dB",),
        ("c0, simulated", f" ~{decibels(result.simulated_accuracy)} "),
    ):
        assert sum(not lacking(line, *values) for line in lines) == 1, values
    assert "≠" in edited(session)


def test_an_fp32_engine_that_could_not_be_built_is_not_called_sound(build):
    session, _ = build()
    session.apply_event(
        ev.ValueMeasured(0, FP32_ENGINE, None, EngineResult(None, "TensorRT 8.6.1", failure_reason="no implementation"))
    )
    for width in WIDTHS:
        line = table(session, width, 24)["FP32"]
        assert "FP32 engine OK" not in line and line.count("not built") == 2
        assert any("no implementation" in text(line) for line in engine_texts.engine_page_lines(session, width))


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (None, ""),
        (GroupImplementation(Precision.INT8, False, ("a",)), "INT8"),
        (GroupImplementation(Precision.FP16, False, ("a",)), "≠ FP16"),
        (GroupImplementation(None, True, ("a",)), "fused"),
        (GroupImplementation(None, False, ("a", "b")), "?"),
        (GroupImplementation(Precision.INT8, True, ("a",)), "INT8"),
    ],
)
def test_what_became_of_a_group_fits_its_column(made, shown):
    assert engine_texts.implementation_text(made, Precision.INT8) == shown and len(shown) <= 9


def test_the_tree_says_what_the_engine_made_and_how_long_it_takes(start):
    session = start(OTHERWISE)
    assert cells(session, QKV).cells["engine"][0] == "?"
    assert text(column_title_line(fit_columns(120, True), found(session))).rstrip().endswith("MACs")
    session.request_build()
    result = session.rest().results[session.config].engine_result
    assert (cells(session, QKV).cells["engine"][0], cells(session, QKV).cells["engine"][1]) == ("≠ FP16", "strong")
    assert cells(session, CORE).cells["engine"][0] == "fused" and cells(session, QKV, "fp16").cells["engine"][0] == "?"
    scopes = {
        line.row.path: build_row_cells(found(session), line)
        for line in MODEL.list_tree_rows({s.path for s in MODEL.scopes})
        if isinstance(line.row, Scope)
    }
    with_others = {path for path, one in scopes.items() if one.cells and one.cells["engine"][0] == "1 ≠"}
    assert with_others == {s.path for s in MODEL.ancestors[QKV]}
    header = text(column_title_line(fit_columns(120, True), found(session))).split()
    assert "engine" in header and header[-1] == "ms"
    assert (
        cells(session, QKV).cells["cost"] == number_text(result.implementations[QKV].latency_ms)
        and cells(session, CORE).cells["cost"] == ""
    )
    scope = MODEL.ancestors[CORE][-1]
    inside = {node for name in scope.groups for node in VIT.group_by_name[name].layers}
    layers = [
        one for one in result.engine_report.layers if one.kind == COMPUTE and inside.intersection(one.network_layers)
    ]
    assert any(one.is_fused_region for one in layers)
    assert found(session).scope_times[scope.path] == pytest.approx(sum(one.ms for one in layers))
    session.toggle_fp32(FIRST)
    assert {cells(session, name).cells["engine"][1] for name in (QKV, FIRST[0].name, CORE)} == {"stale"}
    assert cells(session, FIRST[0].name).cells["engine"][0] == "≠ INT8"
    assert "in c0" in text(column_title_line(fit_columns(80, True), found(session)))


def test_rows_with_engines_fit_any_width(build):
    session, _ = build(OTHERWISE)
    figures = found(session)
    for width in (50, 60, 64, 70, 72, 76, 79, 80, 84, 100):
        columns = fit_columns(width, True)
        header = column_title_line(columns, figures)
        assert spans.line_width(header) <= width and columns["layer"] >= 16
        for line in MODEL.list_worst_first_rows(set(), figures.worst_first_sort_values):
            drawn = layer_row_line(build_row_cells(figures, line, True), line.depth, columns, False)
            assert spans.line_width(drawn) <= width
            if isinstance(line.row, GroupRow):
                start_of = text(header).index("engine") if "engine" in columns else 0
                shown, whole = (
                    text(drawn)[start_of : start_of + columns.get("engine", 0)],
                    build_row_cells(figures, line),
                )
                assert shown.rstrip() == whole.cells["engine"][0] * ("engine" in columns)


def test_the_detail_says_what_the_engine_made(build):
    session, result = build(OTHERWISE)

    def said(group: str, width: int, height: int) -> str:
        lines = detail.detail_lines(
            session, found(session), VisibleRow("x", 0, MODEL.rows_by_group[group]), width, height
        )
        assert all(spans.line_width(line) <= width for line in lines)
        return " ".join(" ".join(map(text, lines)).split())

    around = next(name for name, made in result.implementations.items() if made.reformat_count)
    sizes = ((80, 3), (48, 20))
    for size in sizes:
        assert not lacking(
            said(QKV, *size), "≠", "FP16, requested INT8", f"{number_text(result.implementations[QKV].latency_ms)} ms"
        )
        assert "1 reformat around" in said(around, *size) and "fused region" in said(CORE, *size)
    assert not lacking(said(CORE, *sizes[1]), "TensorRT 11.4", "not reported")
    scope = MODEL.ancestors[QKV][-1]
    line = text(detail.detail_lines(session, found(session), VisibleRow(scope.path, 0, scope), 80, 3)[1])
    assert "fused" in line and "1 with ≠" in line and " ms" in line
    session.toggle_fp32([VIT.group_by_name[QKV], *FIRST])
    for size in sizes:
        assert "c0: FP16, INT8" in said(QKV, *size) and "c0: INT8, FP32" in said(FIRST[0].name, *size)
    session.undo()
    session.results[session.config].runs[RunKind.BUILT_ENGINE] = replace(
        result, implementations={CORE: result.implementations[CORE]}
    )
    assert "no engine layer" in said(QKV, 80, 3)


@pytest.mark.parametrize(
    ("origin", "seconds", "shown"),
    [
        ("cold", 103.0, "built in 1 min 43 s cold"),
        ("timing cache", 26.0, "built in 26 s with a timing cache"),
        ("engine cache", 0.0, "built, from the engine cache"),
    ],
)
def test_where_a_build_started_from_is_told(origin, seconds, shown):
    assert (
        engine_texts.build_origin_text(EngineResult(None, "TensorRT 10", build_s=seconds, build_origin=origin)) == shown
    )


def test_the_page_tells_all(build):
    session, result = build(replace(OTHERWISE, worse=0.8))
    gap = f"{engine_sqnr_gap_db(session.get_run_results('config').accuracy, result.accuracy):.1f} dB worse"
    for width in (60, 90):
        lines = engine_texts.engine_page_lines(session, width)
        assert all(spans.line_width(line) <= width for line in lines)
        assert gap in "\n".join(map(text, lines))
    session.toggle_fp32(FIRST)
    assert not lacking(engine_texts.engine_page_title(session), "engine of c0", "built before c1")
    assert gap in "\n".join(map(text, engine_texts.engine_page_lines(session, width)))
    page = "\n".join(map(text, engine_texts.engine_page_lines(build()[0], 80)))
    assert "dB worse" not in page and "run as requested" in page


def test_while_a_build_goes_on(start):
    session = start(target="sqnr>=5", held=(rq.BuildEngine,))
    assert "b builds c0" in next_step_hint(session, found(session)).text
    session.request_build()
    assert not next_step_hint(session, found(session)).text
    number = max(session.pending_requests)
    job = session.pending_requests.get(number)
    session.apply_event(ev.JobProgress(number, "building", 0, 0))
    for seconds, shown in ((0.4, "build of c0"), (5.4, "build of c0, 5 s"), (34.2, "build of c0, 34 s")):
        job.begin_time = time.monotonic() - seconds
        assert job_texts(session, job)[0] == shown
    session.apply_event(ev.JobProgress(number, "building: Timing tactics", 12, 98, 61.0))
    forms = job_texts(session, job, "x")
    parts = ("x stops", "Timing tactics", "61 s left", "12/98", "build of c0", "build")
    assert [[part in form for part in parts] for form in forms] == [
        [index >= first for index in range(len(parts))] for first in range(len(parts))
    ], "each form leaves out one part more"
    job.progress_time -= 62
    assert job_texts(session, job)[0] == forms[1].split(",")[0], "the estimate was wrong"
    session.apply_event(ev.JobProgress(number, "building: Timing tactics", 98, 98))
    assert job_texts(session, job)[0].endswith("tactics, 34 s"), "a phase that is over is not far, but old"


@pytest.mark.parametrize("said", [None, "Resumed: c3, 2 changes.", "r range: " + "its ranges are being measured; " * 4])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_neither_jobs_nor_words_hide_the_other(start, said, width):
    session = start(held=(rq.BuildEngine, rq.MeasureWhatIf))
    session.request_build()
    session.toggle_fp32(FIRST)
    number = min(session.pending_requests)
    status = StatusLines((said, "") if said is not None else None)
    waiting = "".join(map(text, status_lines(session, status, Hint(("next: do",)), width, width >= 120)))
    assert "build" in waiting and (said or "next: do")[:8] in waiting
    session.apply_event(ev.JobProgress(number, "building: Timing tactics", 34, 98, 61.0))
    lines = status_lines(session, status, Hint(("next: do",)), width, width >= 120)
    shown = "".join(map(text, lines))
    assert "build" in shown and (said or "next: do")[:8] in shown
    assert max(map(line_width, lines)) <= width
    assert all(part in shown for part in (("██░", "what-if c1") if width >= 120 else ("+1",)))
    if said is not None and width < 120:  # a text that fits beside the mark of the job is shown whole
        for length in range(8, width - len(" ⟳ ") - 2):
            message = ("PASS? " + "x" * length)[:length]
            shown = "".join(map(text, status_lines(session, StatusLines((message, "")), Hint(), width, False)))
            assert message in shown
    session.apply_event(ev.JobDone(number))
    assert "34/98" not in "".join(map(text, status_lines(session, status, Hint(), width, width >= 120)))
    header, jobs = job_table(session, width)
    rows, start = [text(line) for _, line in jobs], text(header).index("what")
    titles = [row[start:].split("  ")[0] for row in rows]
    assert titles == ["what-if c1", "build of c0", "comparison", "opening vit.onnx"]
    assert rows[0].endswith("waits") and rows[1].endswith("done") and max(map(len, rows)) <= width


def test_rows_are_coloured_by_errors_inside_the_engine_and_the_first_that_parts_is_marked(build) -> None:
    session, _ = build()
    known = session.results.get_results_or_empty(session.config)
    known.group_errors = {name: GroupErrors(Precision.INT8, ErrorMetrics(sqnr_db=40.0)) for name in (SCORES, QKV)}
    known.has_all_group_errors = True
    session.apply_event(
        ev.EngineBuilt(
            0,
            session.config,
            replace(
                known.engine_result,
                engine_errors=EngineErrors(
                    "unfused", {SCORES: ErrorMetrics(sqnr_db=12.0), QKV: ErrorMetrics(sqnr_db=39.0)}, (WEIGHTS,), 4
                ),
            ),
        )
    )
    shown = build_row_values(session, MODEL, ColourMeasure.ENGINE, "config")
    rows = {
        name: build_row_cells(shown, VisibleRow("x", 0, MODEL.rows_by_group[name])) for name in (SCORES, QKV, WEIGHTS)
    }
    assert {name: (row.mark, row.cells["share"].text) for name, row in rows.items()} == {
        SCORES: (DIVERGENCE_MARK, "12.0"),
        QKV: (" ", "39.0"),
        WEIGHTS: (" ", ""),
    }
    lines = detail.detail_lines(session, found(session), VisibleRow("x", 0, MODEL.rows_by_group[SCORES]), 100, 30)
    said = " ".join("\n".join(map(text, lines)).split())
    (error,) = re.findall("⚡[^⚡]*?: (12.0 dB for ~40.0 dB) ", said)
    assert said.count(error) == 1 and "accumulated 12.0 dB" in said


SCORES, WEIGHTS, PRODUCT = (group.name for group in VIT.groups if group.attention == CORE)
PREVIEW = Preview(
    "1.7.1",
    (8, 9),
    implementations={
        QKV: GroupImplementation(Precision.FP16, False, ("a",), cast_count=1, reformat_count=3),
        SCORES: GroupImplementation(Precision.INT8, False, ("b",), sharing_groups=(WEIGHTS, PRODUCT), in_mha=True),
        WEIGHTS: GroupImplementation(None, False, ("b",), sharing_groups=(SCORES, PRODUCT), in_mha=True),
        FIRST[0].name: GroupImplementation(Precision.INT8, False, ("c",), sharing_groups=(QKV,), qdq_count=1),
    },
    kernels=(Kernel("gemm", ("INT8",), ("FP16",), (QKV,)), Kernel("mha", ("INT8",), ("INT8",), (SCORES,))),
    ineffective_groups=(),
    mha_breakers=(),
)


def previewed(session, preview: Preview, config=None) -> None:
    session.apply_event(ev.EnginePreviewed(0, config or session.config, preview))


@pytest.mark.parametrize(
    ("group", "about", "differs"),
    [
        (QKV, {}, True),
        (QKV, {"ineffective_groups": (QKV,)}, True),
        (SCORES, {}, False),
        (WEIGHTS, {}, False),
        (SCORES, {"mha_breakers": (SCORES,)}, True),
        (FIRST[0].name, {}, True),
        (PRODUCT, {}, False),
        (QKV, {"refusal": PreviewRefusal("no", layer=QKV)}, True),
        (SCORES, {"refusal": PreviewRefusal("no", layer=QKV)}, False),
    ],
)
def test_a_mark_names_the_rows_of_which_the_builder_would_make_something_else(start, group, about, differs) -> None:
    session = start(builder=None)
    assert not cells(session, group).cells["precision"].preview_mark
    previewed(session, replace(PREVIEW, **about))
    assert bool(cells(session, group).cells["precision"].preview_mark) is differs
    for width in (60, 70, 80, 120):
        line = text(layer_row_line(cells(session, group), 0, fit_columns(width), True))
        assert formatting.cell_width(line) <= width and ("≠" in line) is differs
    scopes = {scope.path for scope in MODEL.ancestors[group]}
    assert not differs or scopes <= found(session).scope_other_counts.keys()


def test_what_was_built_speaks_in_the_place_of_a_preview(build) -> None:
    session, result = build()
    before = cells(session, QKV).cells["engine"][0]
    previewed(session, PREVIEW)
    assert cells(session, QKV).cells["engine"][0] == before and found(session).preview is None
    session.toggle_fp32([VIT.group_by_name[QKV]])  # of the new config there is a preview, and no engine
    previewed(session, PREVIEW)
    assert cells(session, QKV).cells["precision"].preview_mark and not found(session).has_engines


def test_the_detail_names_kernel_surroundings_and_marks(start) -> None:
    session = start(builder=None)
    previewed(session, replace(PREVIEW, mha_breakers=(SCORES,)))

    def lines(group, height):
        return "\n".join(
            map(
                text,
                detail.detail_lines(
                    session, found(session), VisibleRow("x", 0, MODEL.rows_by_group[group]), 90, height
                ),
            )
        )

    said = " ".join(lines(QKV, 30).split())
    assert not lacking(said, "RTX 1.7, SM89: ≠ FP16", "requested INT8", "1 cast, 2 reformats")
    assert not lacking(lines(SCORES, 30), "in MHA", "splits MHA")
    assert lines(SCORES, 5).splitlines()[-1].startswith(" made  splits MHA")
    scope = MODEL.ancestors[QKV][-1]
    shown = "\n".join(map(text, detail.detail_lines(session, found(session), VisibleRow("x", 0, scope), 90, 30)))
    assert not lacking(shown, "RTX 1.7, SM89", "2 with ≠")


def test_why_there_is_no_preview_is_said_once_and_nothing_else_changes(start) -> None:
    session = start(builder=None)
    row = VisibleRow("x", 0, MODEL.rows_by_group[QKV])
    before = (cells(session, QKV), text(column_title_line(fit_columns(80), found(session))), len(session.warnings))
    for _ in range(2):
        previewed(
            session,
            Preview(
                refusal=PreviewRefusal(
                    "TensorRT-RTX is not installed", "", "pip install 'trt-tui[rtx]'", is_rtx_missing=True
                )
            ),
        )
    assert (
        cells(session, QKV),
        text(column_title_line(fit_columns(80), found(session))),
        len(session.warnings),
    ) == before
    explanation = explain_cell(session, found(session), row, LAYER_COLUMNS_BY_ID["precision"])
    assert sum("pip install 'trt-tui[rtx]'" in part for _, part in explanation.texts) == 1
    session.requests_previews = True
    session.request_preview()
    assert not session.pending_requests.has_request(rq.PreviewEngine)


def test_a_refused_config_has_one_line_in_the_pane_and_the_message_in_its_explanation(start) -> None:
    session, row = start(builder=None), VisibleRow("x", 0, MODEL.rows_by_group[QKV])
    before = detail.detail_lines(session, found(session), row, 38, 30)
    previewed(session, Preview(refusal=PreviewRefusal("the builder fails", "assertion " * 30)))
    lines = detail.detail_lines(session, found(session), row, 38, 30)
    assert len(lines) == len(before) + 1 and "assertion" not in "\n".join(map(text, lines))
    explanation = explain_cell(session, found(session), row, LAYER_COLUMNS_BY_ID["precision"])
    assert sum("assertion" in part for _, part in explanation.texts) == 1
