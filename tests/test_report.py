"""Engines in the table of compare and in the Markdown report: trt_tui.cli.report, trt_tui.core.exporters.markdown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests import networks
from tests.tui_fake import H200, NO_GPU, FakeSession, outline_of
from trt_tui.cli.report import comparison_table
from trt_tui.core.exporters.markdown import comparison_markdown
from trt_tui.core.measure.comparison import Share
from trt_tui.core.measure.target import parse_target
from trt_tui.core.precision import Precision
from trt_tui.options import Options
from trt_tui.tui.state.verdict import header_line
from trt_tui.words import number, percent

VIT = outline_of(networks.vit(), "vit.onnx")
FIRST = VIT.groups[0].name


@pytest.fixture
def built(tmp_path):
    """Opens, measures and builds the all-INT8 and a mixed config."""
    def make(quick: bool = False, **fake: object) -> FakeSession:
        session = FakeSession(Options("vit.onnx", data="samples.npz"), lambda event: session.apply(event),
                              outline=VIT, store=tmp_path, resume=False, target="sqnr>=10", **fake)
        session.start()
        session.build(quick)
        session.toggle(VIT.groups[:1])
        session.build(quick)
        return session

    return make


def rows_of(table: str) -> dict[str, str]:
    """The lines of the table of runs by the run's name, blanks taken together; its titles come first."""
    lines = table.splitlines()
    top = next(index for index, line in enumerate(lines) if line.startswith("run "))
    shown = lines[top:lines.index("", top)]
    return {line.split("  ")[0]: " ".join(line.split()) for line in shown}


def test_engines_stand_beside_their_runs(built):
    session = built(builder=H200)
    table = comparison_table(session)
    rows = rows_of(table)
    assert list(rows) == ["run", "FP32 engine", "FP16 all", "INT8 all", "INT8 engine", "config", "config engine"]
    assert rows["run"].endswith("f1 ms MB") and rows["INT8 all"].endswith("~.6870 passes")
    assert rows["INT8 engine"].startswith("INT8 engine logits 10.5 ") and "~" not in rows["INT8 engine"]
    result = session.results[session.config].engine
    assert rows["config engine"].endswith(f"{number(result.latency_ms[0])} 23.0 passes")
    assert rows["FP32 engine"].endswith(".8730 3.70 88.0")
    shares = next(line for line in table.splitlines() if line.startswith("config engine  ") and "%" in line)
    assert shares.split()[2:4] == [f"{result.report.shares()['INT8'][0]},",
                                   percent(result.report.shares()['INT8'][1])]


def test_without_engines_there_are_no_columns_for_them(tmp_path):
    session = FakeSession(Options("vit.onnx", data="samples.npz"), lambda event: session.apply(event),
                          outline=VIT, store=tmp_path, resume=False, target="sqnr>=10")
    session.start()
    table = comparison_table(session)
    assert list(rows_of(table)) == ["run", "FP16 all", "INT8 all"]
    assert " ms " not in table and "engine" not in table


def test_what_to_check_is_listed(built):
    session = built(builder=H200, worse_db=5.2, otherwise={FIRST: Precision.FP16})
    table = comparison_table(session)
    assert set(session.to_check()) == {"int8", "config"}
    assert "INT8 engine: 5.2 dB worse than simulated; what to check:" in table
    assert f"  layers that run in another precision than asked: {FIRST}" in table
    assert "no precision problem" not in table
    assert built(builder=H200).to_check() == {}


def test_a_graph_that_differs_is_told(built):
    assert "no precision problem: the FP32 engine differs" in comparison_table(built(builder=H200, check_db=12.3))


def test_a_preview_is_called_one(built):
    session = built(quick=True, builder=H200)
    result = session.results[session.config].engine
    assert f"{number(result.latency_ms[0])} preview" in rows_of(comparison_table(session))["config engine"]
    assert f"{number(result.latency_ms[0])} (preview)" in comparison_markdown(session.record(), VIT, session.config)


def test_an_engine_that_cannot_run_here_has_its_size(built):
    session = built(builder=NO_GPU)
    assert rows_of(comparison_table(session))["INT8 engine"] == "INT8 engine built, cannot run here 23.0"
    report = comparison_markdown(session.record(), VIT, session.config)
    assert "it cannot run on this machine" in report and "| INT8 engine | engine |" in report


def test_the_markdown_report_tells_of_engines(built):
    session = built(builder=H200)
    record = session.record()
    report = comparison_markdown(record, VIT, session.config)
    verdict = report[report.index("## Verdict"):report.index("## Judged outputs")]
    row = next(line for line in verdict.splitlines() if line.startswith("| INT8 engine |"))
    assert "| 10.5 |" in row and "~" not in row and "| 23.0 |" in row
    section = report[report.index("## Engines"):]
    assert "| FP32 engine | TensorRT 11.4.0.21 | NVIDIA H200 | 41 s | cold | 8.4 MB |" in section
    titles = next(line for line in section.splitlines() if line.startswith("| engine | ") and "reformats" in line)
    assert {"INT8", "FP16", "FP32", "not told", "Q/DQ alone"} <= set(titles.strip("| ").split(" | "))
    assert "## What to check" not in report
    record["runs"]["int8-engine"]["to_check"] = ["the *ranges*"]
    report = comparison_markdown(record, VIT, session.config)
    assert "## What to check in the INT8 engine\n\n- the \\*ranges\\*\n" in report


def test_engines_without_a_config_of_its_own_are_told(tmp_path):
    """The config is the INT8 run then, and stands in no row of its own."""
    session = FakeSession(Options("vit.onnx", data="samples.npz"), lambda event: session.apply(event),
                          outline=VIT, store=tmp_path, resume=False, target="sqnr>=10", builder=H200, worse_db=5.2)
    session.start()
    session.build()
    assert set(session.to_check()) == {"int8", "config"}
    table = comparison_table(session)
    assert "config" not in rows_of(table) and table.count("what to check") == 1


def test_a_share_that_is_not_finite_is_said_in_words(built):
    session = built()
    session.measured("int8").shares = {FIRST: Share(-math.inf)}
    session.target = parse_target("sqnr>=50")
    table = comparison_table(session)
    assert "brings NaN/Inf in FP32" in table and "inf %" not in table
    assert percent(-math.inf) == percent(math.nan) == "–"
    report = comparison_markdown(session.record(), VIT, session.config)
    assert "inf %" not in report and "nan" not in report.lower().replace("nan/inf", "").replace("| nan |", "")


def test_where_the_ranges_are_from_is_told(built):
    session = built()
    assert ", calibrated on 128" in comparison_table(session)
    session.options = replace(session.options, calib_cache="/folder/net.cache")
    assert ", ranges of net.cache" in comparison_table(session) and "calibrated" not in comparison_table(session)
    assert "ranges of net.cache" in "".join(text for text, _ in header_line(session, 160))
