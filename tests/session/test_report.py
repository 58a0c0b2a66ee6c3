"""Engines in the table of compare and in the Markdown report: trt_tui.session.comparison_report."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests import local
from tests.local import H200, NO_GPU, QKV
from tests.schemas import mismatches
from tests.texts import lacking
from trt_tui.core.measure.engine_agreement import engine_sqnr_gap_db
from trt_tui.core.measure.error_metrics import ErrorSums
from trt_tui.core.measure.group_sweep import (
    error_share_from_sweep,
)
from trt_tui.core.measure.judged_outputs import JudgedOutput
from trt_tui.core.measure.results import Accuracy, ErrorShare, OutputErrors
from trt_tui.core.measure.target import parse_target
from trt_tui.core.precision import Precision
from trt_tui.core.runner import ExecutionMode
from trt_tui.formatting import duration_text, megabytes_text, number_text, percent_text
from trt_tui.jobs import events as ev
from trt_tui.session.comparison_report import (
    comparison_markdown,
    comparison_record,
    comparison_text,
    quiet_part_text,
)
from trt_tui.tui.state.columns import build_row_cells
from trt_tui.tui.state.detail import detail_lines
from trt_tui.tui.state.explanations import explain_header
from trt_tui.tui.state.rows import ColourMeasure, TreeModel, VisibleRow, build_row_values

VIT = local.outline()


@pytest.fixture
def built(tmp_path, measured_before):
    """Opens, measures and builds the all-INT8 config and, unless told otherwise, one with the loudest group raised."""

    def make(builder=None, mixed: bool = True) -> local.NullSession:
        session = local.measured(tmp_path, target="sqnr>=10", builder=builder)
        session.request_build()
        if mixed:
            session.rest().toggle_fp32([VIT.group_by_name[QKV]])
            session.rest().request_build()
        return session.rest()

    return make


BUILT_BY = " (TensorRT 11.4.0.21, H200)"
"""Behind the name of each engine."""


def rows_of(table: str) -> dict[str, str]:
    """The lines of the table of runs by the run's name, blanks taken together; its titles come first."""
    lines = table.splitlines()
    top = next(index for index, line in enumerate(lines) if line.startswith("run "))
    shown = lines[top : lines.index("", top)]
    return {line.split("  ")[0].removesuffix(BUILT_BY): " ".join(line.split()) for line in shown}


@pytest.mark.parametrize(("scale", "is_quiet"), [(1e-3, True), (0.5, False), (0.0, False)])
def test_a_quiet_part_of_a_concat_is_named_with_its_rms(scale, is_quiet):
    reference = np.random.default_rng(0).normal(size=1000)
    judged, outputs = [], {}
    for name, part in (("y[:, 0:8]", reference), ("y[:, 8:16]", scale * reference)):
        judged.append(JudgedOutput(name, "y", note=f"from {name}"))
        sums = ErrorSums()
        sums.add_tensor_pair(part, part * (1.1 if part is reference else 1.2) + 1e-6)
        outputs[name] = OutputErrors(sums.compute_error_metrics())
    text = quiet_part_text(SimpleNamespace(judged_outputs=judged), Accuracy(outputs))
    rms = float(np.sqrt(np.mean(reference**2)))
    expected = ["y[:, 8:16] is", "(from y[:, 8:16])", number_text(scale * rms), number_text(rms)]
    assert not lacking(text, *expected) if is_quiet else text == ""
    assert quiet_part_text(SimpleNamespace(judged_outputs=judged[1:]), Accuracy(outputs)) == ""


NO_PRECISION_PROBLEM = "not a precision problem"


def decibels(verdict) -> str:
    return f"{verdict.worst_output[1].errors.sqnr_db:.1f}"


def test_engines_stand_beside_their_runs_and_in_the_markdown_report(built):
    session = built(H200)
    rows, check = rows_of(table := comparison_text(session)), session.results.fp32_engine
    assert list(rows) == ["run", "FP32 engine", "FP16", "INT8", "INT8 engine", "config", "config engine"]
    as_int8, result = session.get_run_results("int8").engine_result, session.results[session.config].engine_result
    assert rows["run"].endswith(" ms MB") and rows["INT8"].endswith("FAIL?")
    assert rows["INT8 engine"].startswith(f"INT8 engine{BUILT_BY} logits {decibels(as_int8.accuracy)} ")
    assert "~" not in rows["INT8 engine"]
    assert rows["config engine"].endswith(
        f"{number_text(result.latency_ms[0])} {megabytes_text(result.engine_bytes)} PASS"
    )
    assert rows["FP32 engine"].endswith(f"{number_text(check.latency_ms[0])} {megabytes_text(check.engine_bytes)}")
    count, time = result.engine_report.precision_shares()["INT8"]
    shares = next(line for line in table.splitlines() if line.startswith(f"config engine{BUILT_BY}  ") and "%" in line)
    assert shares.split()[5:7] == [f"{count},", percent_text(time)]
    assert session.list_engine_checks() == {} and NO_PRECISION_PROBLEM not in table

    report = comparison_markdown(session)
    verdict = report[report.index("## Accuracy") : report.index("## Judged outputs")]
    row = next(line for line in verdict.splitlines() if line.startswith(f"| INT8 engine{BUILT_BY} | logits |"))
    assert (
        f"| {decibels(as_int8.accuracy)} |" in row
        and "~" not in row
        and f"| {megabytes_text(as_int8.engine_bytes)} |" in row
    )
    section = report[report.index("## Builds") :]
    memory = megabytes_text(check.device_memory_bytes)
    row = next(line for line in section.splitlines() if line.startswith(f"| FP32 engine{BUILT_BY} |"))
    cells = ["TensorRT 11.4.0.21", "NVIDIA H200", duration_text(check.build_s), "cold", f"{memory} MB"]
    assert row.strip("| ").split(" | ")[1:6] == cells
    titles = next(line for line in report.splitlines() if line.startswith("| engine layers") and "reformats" in line)
    assert {"INT8", "FP16", "FP32", "unknown", "unfused Q/DQ"} <= set(titles.strip("| ").split(" | "))
    assert "what to check" not in report


def test_text_markdown_and_json_have_the_same_values(built):
    session = built(H200)
    report, runs = comparison_markdown(session), comparison_record(session)["runs"]
    printed, written = rows_of(comparison_text(session)), report[report.index("## Accuracy") :].split("\n\n")[1]
    cells = [
        [cell.strip().replace("\\", "") for cell in line.strip("| ").split(" | ")] for line in written.splitlines()
    ]
    assert [" ".join(filter(None, row)).replace(BUILT_BY, "") for row in (cells[0], *cells[2:])] == [
        line.replace(BUILT_BY, "") for line in printed.values()
    ]
    for key, title in {
        "fp16": "FP16",
        "int8": "INT8",
        "config": "config",
        "int8-engine": "INT8 engine",
        "config-engine": "config engine",
        "fp32-engine": "FP32 engine",
    }.items():
        shown, run = printed[title].replace("~", "").split(), runs[key]
        assert f"{run['outputs']['logits']['sqnr_db']:.1f}" in shown
        if "engine" in key:
            assert {number_text(run["latency_ms"]["median"]), megabytes_text(run["engine_bytes"])} <= set(shown)
        assert "result" not in run or run["result"]["outcome"] == shown[-1]


def header_explanations(session) -> str:
    """What `f3` says of the top line."""
    return " ".join(f"{one.value} {' '.join(text for _, text in one.texts)}" for one in explain_header(session))


def test_a_report_of_partial_shares_says_so(tmp_path, measured_before):
    session = local.measured(tmp_path)
    whole, results = comparison_text(session), session.results[session.config]
    results.has_all_shares = False
    (added,) = {*comparison_text(session).splitlines()} - {*whole.splitlines()}
    assert not re.findall(r"\d+", added), "each share has some of its samples"
    results.shares.pop(next(iter(results.shares)))
    (added,) = {*comparison_text(session).splitlines()} - {*whole.splitlines()}
    assert [str(len(results.shares)), str(len(session.outline.groups))] == re.findall(r"\d+", added)


def test_without_engines_there_are_no_columns_for_them(tmp_path, measured_before):
    session = local.measured(tmp_path, target="sqnr>=10")
    table = comparison_text(session)
    assert list(rows_of(table)) == ["run", "FP16", "INT8"]
    assert " ms " not in table and "engine" not in table
    assert "calibrated on 32\n" in table, "of data that judge nothing"
    session.options = replace(session.options, calib_cache="/folder/net.cache")
    assert "ranges of net.cache" in comparison_text(session) and "calibrated" not in comparison_text(session)
    assert "anges of net.cache" in header_explanations(session)


def test_how_a_device_runs_the_simulation_is_said_with_its_reason(tmp_path, measured_before):
    session = local.measured(tmp_path, target="sqnr>=10")
    for level in (
        ExecutionMode("CUDA graph"),
        bound := ExecutionMode("bound inputs", "no CUDA graph: a node is on the CPU"),
    ):
        session.apply_event(ev.ExecutionModeChanged(1, level))
        session.apply_event(ev.ExecutionModeChanged(2, level))
        assert f", {level.name}; ~ marks" in comparison_text(session)
        assert level.name in header_explanations(session)
    assert comparison_text(session).splitlines()[2] == bound.reason
    assert comparison_record(session)["simulation"] == {"level": bound.name, "reason": bound.reason}
    session.apply_event(ev.ExecutionModeChanged(3, ExecutionMode("on the CPU", "too large")))
    assert not lacking(session.warnings[-1], "on the CPU", "too large")
    assert [line for line in session.log if bound.reason in line] == [f"Simulated with {bound.name}: {bound.reason}"]


def test_what_to_check_is_listed_once(built):
    noisy = replace(H200, worse=0.8, otherwise={QKV: Precision.FP16})
    session = built(noisy)
    table = comparison_text(session)
    gap = engine_sqnr_gap_db(
        session.get_run_results("int8").accuracy, session.get_run_results("int8").engine_result.accuracy
    )
    assert set(session.list_engine_checks()) == {"int8", "config"}
    lines = table.splitlines()
    index = next(index for index, line in enumerate(lines) if line.startswith(f"INT8 engine: {gap:.1f} dB"))
    check = lines[index + 1].strip()
    assert check.endswith(f": {QKV}") and f"\n  - {check}" in comparison_markdown(session).replace("\\", "")
    assert NO_PRECISION_PROBLEM not in table
    alone = built(noisy, mixed=False)  # the config is the INT8 run then, and stands in no row of its own
    assert set(alone.list_engine_checks()) == {"int8", "config"}
    table = comparison_text(alone)
    assert "config" not in rows_of(table) and table.count("what to check") == 1
    differing = built(replace(H200, check=0.3), mixed=False)
    assert NO_PRECISION_PROBLEM in comparison_text(differing)


def test_engines_that_cannot_run_are_called_so(built):
    session = built(NO_GPU, mixed=False)
    size = megabytes_text(session.get_run_results("int8").engine_result.engine_bytes)
    title = "INT8 engine (TensorRT-RTX 1.7.1.35)"
    row = rows_of(comparison_text(session))[title]
    assert row.startswith(f"{title} built") and row.endswith(f" {size}") and "cannot run" in row
    report = comparison_markdown(session)
    assert f"| {row.removeprefix(f'{title} ').removesuffix(f' {size}')} |" in report


def test_a_share_that_is_not_finite_is_said_in_words(built):
    session = built(mixed=False)
    session.get_run_results("int8").shares = {QKV: ErrorShare(-math.inf)}
    session.targets = (parse_target("sqnr>=50"),)
    table = comparison_text(session)
    assert "NaN/Inf in FP32" in table and "inf %" not in table
    assert percent_text(-math.inf) == percent_text(math.nan) == "–"
    report = comparison_markdown(session)
    assert "inf %" not in report and "nan" not in report.lower().replace("nan/inf", "").replace("| nan |", "")


def test_a_share_whose_interval_is_wider_than_the_error_is_unknown(built):
    def swept(half):
        known = ErrorShare(-6319.74, 12.0, 8, half)
        return SimpleNamespace(sample_count=64, judged_error=1.0, estimate_error_share=lambda name: known)

    wide, near = error_share_from_sweep(swept(2137.23), QKV), error_share_from_sweep(swept(0.99), QKV)
    assert math.isnan(wide.fraction) and wide.half_width is None
    assert not lacking(wide.unknown_reason, "8 samples", "±213,723 points")
    assert near.fraction == -6319.74 and near.half_width == 0.99 and not near.unknown_reason
    session = built(mixed=False)
    other = VIT.groups[0].name
    session.get_run_results("int8").shares = {other: ErrorShare(0.5, samples=64), QKV: wide}
    session.targets = (parse_target("sqnr>=50"),)
    table = comparison_text(session)
    assert "unknown" in table and "±213,723 points" in table and "631974" not in table
    record = comparison_record(session)
    group = record["runs"]["int8"]["groups"][QKV]
    assert group["owns"] is None and "213,723" in group["owns_unknown"]
    assert not mismatches(record, "comparison-v1")
    report = comparison_markdown(session)
    assert "| unknown |" in report and "631974" not in report
    shown = build_row_values(session, TreeModel(VIT), ColourMeasure.SHARE, "int8")
    line = VisibleRow("x", 0, shown.model.rows_by_group[QKV])
    assert QKV not in shown.group_values and build_row_cells(shown, line).cells["share"].text == "?"
    assert "unknown: its interval" in "".join(
        span[0] for one in detail_lines(session, shown, line, 120, 40) for span in one
    )
