"""What the screen says of engines, without a screen: trt_tui.tui.engines, and what verdict, state and detail add."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import networks
from tests.tui_fake import H200, NO_GPU, FakeSession, outline_of
from trt_tui import words
from trt_tui.core.engines.inspector import Made
from trt_tui.core.engines.rungs import NAMED, Rung
from trt_tui.core.measure.comparison import EngineResult
from trt_tui.core.network.hierarchy import GroupRow, Scope
from trt_tui.core.precision import Precision
from trt_tui.jobs import messages
from trt_tui.options import Options
from trt_tui.tui import spans
from trt_tui.tui.state import built, detail, engine_page, verdict
from trt_tui.tui.state.columns import Columns, row_line, tree_header
from trt_tui.tui.state.configs import config_table
from trt_tui.tui.state.figures import Measure, figures_of
from trt_tui.tui.state.hint import next_step
from trt_tui.tui.state.status import job_line
from trt_tui.tui.state.tree import TreeModel, VisibleRow

VIT = outline_of(networks.vit(), "vit.onnx")
MODEL = TreeModel(VIT)
QKV = next(group.name for group in VIT.groups if "attn/qkv" in MODEL.titles[group.name])
CORE = next(group.name for group in VIT.groups if group.operator == "Softmax")
INT8_AS_FP16 = {QKV: Precision.FP16}


@pytest.fixture
def start(tmp_path):
    """Opens sessions that have measured everything, with TensorRT on a GPU to build."""
    def make(target: str = "sqnr>=20", **fake: object) -> FakeSession:
        session = FakeSession(Options("vit.onnx", data="samples.npz"), lambda event: session.apply(event),
                              outline=VIT, store=tmp_path, resume=False, target=target, **{"builder": H200, **fake})
        session.start()
        return session

    return make


def text(line) -> str:
    return "".join(part for part, _ in line)


def table(session, width: int) -> dict[str, str]:
    """The lines of the verdict by the first two words of their run's name."""
    lines = [text(line) for line in verdict.verdict_lines(session, width)]
    assert all(len(line) <= width for line in lines)
    return {" ".join(line[:15].split()[:2]): line for line in lines[2:]}


def found(session, run="config"):
    return figures_of(session, MODEL, Measure.OWNS, run)


def cells(session, group: str, run="config"):
    return found(session, run).cells(VisibleRow("x", 0, MODEL.rows[group]))


# -- the top --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(("builder", "shown"), [(H200, "H200 TensorRT 11.4"),
                                                (NO_GPU, "TensorRT-RTX 1.7, builds only")])
def test_the_header_names_the_builder(start, width, builder, shown):
    line = verdict.header_line(start(builder=builder), width)
    assert shown in text(line) and spans.width_of(line) == width and "32 of 64" in text(line)


def test_an_engine_has_its_own_columns(start):
    session = start()
    session.build()
    result = session.results[session.config].engine
    row = table(session, 80)["c0 ="].partition("│")[2].split()
    assert row == ["10.5", ".6870", words.number(result.latency_ms[0]), "23.0", "FAILS"]
    share = built.int8_time(result)
    wide = table(session, 120)["c0 ="].partition("│")[2]
    assert share.endswith("%") and wide.split()[4:] == [*share.split(), "0.2", "FAILS"]
    header = text(verdict.verdict_lines(session, 120)[1])
    assert header.index("INT8 time") + 9 == table(session, 120)["c0 ="].index(share) + len(share)


@pytest.mark.parametrize(("worse", "shown", "style"), [(0.2, "0.2", "dim"), (5.2, "5.2!", "warn")])
def test_a_gap_is_marked_where_it_is_large(start, worse, shown, style):
    session = start(worse_db=worse)
    session.build()
    assert (shown, style) in [(part.strip(), one) for part, one in verdict.verdict_lines(session, 120)[5]]
    assert "gap" not in text(verdict.verdict_lines(session, 80)[1])


@pytest.mark.parametrize(("width", "metric", "shown"), [
    (80, True, "graph is sound"), (120, True, "graph is sound"), (80, False, "graph is sound")])
def test_a_sound_graph_is_said_to_be_one(start, width, metric, shown):
    session = start(metric=metric)
    assert "FP32 engine" not in table(session, width)
    session.build()
    left, _, right = table(session, width)["FP32 engine"].partition("│")
    assert shown in left and right.split()[0] == "96.1"


@pytest.mark.parametrize(("width", "shown"), [(80, "no precision problem"),
                                              (120, "no precision problem: differs by 12.3 dB")])
def test_a_graph_that_differs_is_no_precision_problem(start, width, shown):
    session = start(check_db=12.3)
    session.build()
    line = verdict.verdict_lines(session, width)[2]
    assert shown in text(line) and "bad" not in {style for _, style in line}
    assert "warn" in {style for _, style in line}
    assert "no precision problem" in next_step(session, found(session))


def test_an_engine_of_another_config_is_stale(start):
    session = start()
    session.build()
    session.toggle(VIT.groups[:1])
    row = table(session, 80)["c1* 1"]
    assert "10.5  is c0, 1 edit behind" in row and words.number(session.results[session.built].engine.latency_ms[0]
                                                                  ) not in row


@pytest.mark.parametrize("width", [80, 120])
def test_a_preview_is_called_one_wherever_its_time_stands(start, width):
    session = start()
    session.build(quick=True)
    result = session.results[session.config].engine
    assert f"{words.number(result.latency_ms[0])} preview" in table(session, width)["c0 ="]
    assert "23.0" not in table(session, width)["c0 ="]
    _, lines = config_table(session, {}, 60)
    assert "preview" in text(lines[0].line) and words.number(result.latency_ms[0]) not in text(lines[0].line)
    assert built.result_text(result, 200).startswith("preview built in 5.1 s cold · preview ")
    assert "ms" not in text(tree_header(Columns.fit(80, True), found(session))).split()
    assert "in a preview" in built.group_sentences(built.shown_engine(session), VIT.group_by_name[QKV],
                                                     Precision.INT8)[0]
    session.set_target("sqnr>=5")
    assert "b builds c0 in full" in next_step(session, found(session))


@pytest.mark.parametrize("metric", [True, False])
@pytest.mark.parametrize("width", [80, 120])
def test_an_engine_that_cannot_run_here_shows_its_size(start, width, metric):
    session = start(builder=NO_GPU, metric=metric)
    session.build()
    assert "built, cannot run here   23.0" in table(session, width)["c0 ="]
    assert session.results.fp32_engine is None and found(session).made == {}
    assert "23.0 MB" in text(config_table(session, {}, 60)[1][0].line)
    session.set_target("sqnr>=5")
    assert "cannot run here" in next_step(session, found(session))
    session.toggle(VIT.groups[:1])
    assert "–  is c0, 1 edit behind" in table(session, width)["c1* 1"]


def test_a_verdict_without_a_metric_still_has_room_for_the_words(start):
    session = start(builder=NO_GPU, metric=False)
    for measured in session.results.values():
        measured.verdict = replace(measured.verdict, agreement=None)
    session.build()
    assert "cannot run here   23.0" in table(session, 80)["c0 ="]


def test_the_engine_decides_where_it_and_the_simulation_differ(start):
    session = start(target="sqnr>=10", worse_db=2.0)
    session.build()
    assert table(session, 120)["c0 ="].endswith("FAILS ~passes")
    assert table(session, 80)["c0 ="].endswith("FAILS")
    assert not found(session).calm
    assert "the build misses the target" in next_step(session, found(session))


# -- engines that are not as asked ------------------------------------------------------------------------------------


def built_otherwise(session, simulated_db: float = 14.0) -> None:
    """Makes of the config's engine one that TensorRT refused as asked and built with a layer raised."""
    session.build()
    result, asked = session.results[session.config].engine, session.results[session.config].verdict
    name = next(iter(result.verdict.outputs))
    outputs = {name: replace(asked.outputs[name], errors=replace(asked.outputs[name].errors, sqnr_db=simulated_db))}
    session.apply(messages.Built(0, session.config, replace(
        result, rungs=(Rung(failed="no implementation"), Rung(NAMED, {QKV: Precision.FP16})),
        otherwise={QKV: Precision.FP16}, simulated=replace(asked, outputs=outputs))))


@pytest.mark.parametrize("width", [80, 120])
def test_an_engine_that_is_not_as_asked_is_marked_and_decides_nothing_about_the_config(start, width):
    session = start(target="sqnr>=10", worse_db=2.0)
    session.build()
    assert not found(session).calm and table(session, width)["c0 ="].split("│")[1].split()[-1] != "passes"
    built_otherwise(session)
    row = table(session, width)["c0 ="].partition("│")[2]
    assert row.split()[0].startswith("≠") and "passes" in row and "FAILS" not in row
    assert found(session).calm
    assert "not built as asked: i says what was made" in next_step(session, found(session))
    assert "≠" in text(config_table(session, {}, 60)[1][0].line)
    session.toggle(VIT.groups[:1])
    assert "≠" in table(session, width)["c1* 1"]


def test_an_engine_that_is_not_as_asked_is_held_against_the_simulation_of_what_was_made(start):
    session = start(worse_db=2.0)
    session.build()
    as_built = session.results[session.config].engine.verdict.worst[1].errors.sqnr_db
    built_otherwise(session, as_built + 6.3)
    assert ("6.3!", "warn") in [(part.strip(), one) for part, one in verdict.verdict_lines(session, 120)[5]]
    lines = [" ".join(text(line).split()) for line in engine_page.page_lines(session, 200)]
    assert "tried as asked: failed: no implementation" in lines
    assert f"{QKV} raised to FP16: built" in lines and f"made otherwise than asked: {QKV} in FP16" in lines
    assert any(line.startswith("What to check: it is 6.3 dB worse than simulated") for line in lines)
    assert any(line.startswith("output") and f"~{as_built + 6.3:.1f} dB simulated" in line for line in lines)


@pytest.mark.parametrize("width", [80, 120])
def test_an_fp32_engine_that_could_not_be_built_is_not_called_sound(start, width):
    session = start()
    session.build()
    session.apply(messages.Fp32EngineJudged(0, EngineResult(None, "TensorRT 8.6.1", failed="no implementation")))
    line = table(session, width)["FP32 engine"]
    assert "sound" not in line and line.count("not built") == 2
    assert any("not built: no implementation" in text(line) for line in engine_page.page_lines(session, width))


# -- the tree -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("made", "shown"), [
    (None, ""), (Made(Precision.INT8, False, ("a",)), "INT8"), (Made(Precision.FP16, False, ("a",)), "FP16≠"),
    (Made(None, True, ("a",)), "fused"), (Made(None, False, ("a", "b")), "?"),
    (Made(Precision.INT8, True, ("a",)), "INT8")])
def test_what_became_of_a_group_fits_its_column(made, shown):
    assert built.made_text(made, Precision.INT8) == shown and len(shown) <= 5


def test_the_tree_says_what_the_engine_made(start):
    session = start(otherwise=INT8_AS_FP16)
    assert cells(session, QKV).made == ""
    session.build()
    assert (cells(session, QKV).made, cells(session, QKV).made_style) == ("FP16≠", "strong")
    assert cells(session, CORE).made == "fused"
    assert cells(session, QKV, "fp16").made == ""
    scopes = {line.row.path: found(session).cells(line) for line in MODEL.visible({s.path for s in MODEL.scopes})
              if isinstance(line.row, Scope)}
    marked = {path for path, one in scopes.items() if one.made == "1≠"}
    assert marked == {scope.path for scope in MODEL.ancestors[QKV]}
    header = text(tree_header(Columns.fit(80, True), found(session))).split()
    assert "engine" in header and header[-1] == "ms"


def test_a_stale_engine_is_dimmed_and_named(start):
    session = start(otherwise=INT8_AS_FP16)
    session.build()
    session.toggle([VIT.groups[0]])
    assert {cells(session, name).made_style for name in (QKV, VIT.groups[0].name, CORE)} == {"stale"}
    assert cells(session, VIT.groups[0].name).made == "INT8≠"
    assert "in c0" in text(tree_header(Columns.fit(80, True), found(session)))


def test_milliseconds_replace_the_macs(start):
    session = start()
    assert text(tree_header(Columns.fit(80, True), found(session))).endswith("MACs")
    session.build()
    result = session.results[session.config].engine
    assert cells(session, QKV).cost == words.number(result.made[QKV].ms)
    assert cells(session, CORE).cost == ""
    inside = {name for name, made in result.made.items() if made.region}
    scope = MODEL.ancestors[CORE][-1]
    alone = sum(result.made[name].ms for name in scope.groups if name not in inside)
    assert found(session).scope_times[scope.path] == pytest.approx(alone + 0.021)


@pytest.mark.parametrize("width", [50, 60, 64, 70, 72, 76, 79, 80, 84, 100])
def test_rows_with_engines_fit_any_width(start, width):
    session = start(otherwise=INT8_AS_FP16)
    session.build()
    figures, columns = found(session), Columns.fit(width, True)
    header = tree_header(columns, figures)
    assert spans.width_of(header) <= width and columns.name >= 16
    for line in MODEL.worst_first(set(), figures.weights):
        drawn = row_line(figures.cells(line, True), line.depth, columns, False)
        assert spans.width_of(drawn) <= width
        if isinstance(line.row, GroupRow):
            start_of = text(header).index(("engine", "built")[columns.made < 6])
            made = figures.cells(line).made
            assert text(drawn)[start_of:start_of + columns.made].rstrip() == made


def test_onnx_runtime_has_no_column_for_engines(start):
    session = start(builder=None)
    session.build()
    assert not found(session).has_engines and built.shown_engine(session).result.report is None
    assert "as built, ONNX Runtime" in text(verdict.verdict_lines(session, 80)[0])
    assert "gap" not in text(verdict.verdict_lines(session, 140)[1])


# -- detail ---------------------------------------------------------------------------------------------------------


def lines_of(session, group: str, width: int, height: int) -> list[str]:
    lines = detail.detail_lines(session, found(session), VisibleRow("x", 0, MODEL.rows[group]), width, height)
    assert all(spans.width_of(line) <= width for line in lines)
    return [text(line) for line in lines]


@pytest.mark.parametrize(("width", "height"), [(80, 3), (48, 20)])
def test_the_detail_says_what_the_engine_made(start, width, height):
    session = start(otherwise=INT8_AS_FP16)
    session.build()
    shown = " ".join(" ".join(lines_of(session, QKV, width, height)).split())
    time = words.number(session.results[session.config].engine.made[QKV].ms)
    assert f"FP16, asked INT8 · {time} ms" in shown and "≠" in shown
    first = next(name for name, made in session.results[session.config].engine.made.items() if made.reformats)
    assert "1 reformat around it" in " ".join(" ".join(lines_of(session, first, width, height)).split())
    assert "inside a fused region: TensorRT tells no more" in " ".join(
        " ".join(lines_of(session, CORE, width, height)).split())
    session.toggle([VIT.group_by_name[QKV]])
    assert "c0: FP16, INT8 was asked" in " ".join(" ".join(lines_of(session, QKV, width, height)).split())
    session.toggle([VIT.groups[0]])
    assert "c0: INT8, FP32 asked since" in " ".join(
        " ".join(lines_of(session, VIT.groups[0].name, width, height)).split())


def test_a_group_that_no_engine_layer_names(start):
    session = start()
    session.build()
    result = session.results[session.config].engine
    session.results[session.config].engine = replace(
        result, made={name: made for name, made in result.made.items() if name != QKV})
    assert "no engine layer bears its name" in " ".join(lines_of(session, QKV, 80, 3))


def test_the_detail_of_a_scope_counts_what_became_of_it(start):
    session = start(otherwise=INT8_AS_FP16)
    session.build()
    scope = MODEL.ancestors[QKV][-1]
    lines = detail.detail_lines(session, found(session), VisibleRow(scope.path, 0, scope), 80, 3)
    assert "fused" in text(lines[1]) and "1 ≠ asked" in text(lines[1]) and " ms" in text(lines[1])


# -- the result of a build ------------------------------------------------------------------------------------------


def test_the_result_says_as_much_as_fits(start):
    session = start()
    session.build()
    result = session.results[session.config].engine
    whole = built.result_text(result, 400)
    for part in ("built in 26 s with a timing cache", f"{words.number(result.latency_ms[0])} ms (", "INT8 14 layers ",
                 "FP16 12 layers ", "1 reformat", "1 Q/DQ alone", "12.6 MB of device memory", "23.0 MB"):
        assert part in whole
    for width in range(20, 200, 7):
        assert len(built.result_text(result, width)) <= width
    assert "% of time" in built.result_text(result, 118)


@pytest.mark.parametrize(("origin", "seconds", "shown"), [
    ("cold", 103.0, "built in 1 min 43 s cold"), ("timing cache", 26.0, "built in 26 s with a timing cache"),
    ("engine cache", 0.0, "built, from the engine cache")])
def test_where_a_build_started_from_is_told(origin, seconds, shown):
    assert built.built_text(EngineResult(None, "TensorRT 10", build_s=seconds, origin=origin)) == shown


@pytest.mark.parametrize("width", [60, 90])
def test_the_page_tells_all(start, width):
    session = start(otherwise=INT8_AS_FP16, worse_db=5.2)
    session.build()
    lines = engine_page.page_lines(session, width)
    assert all(spans.width_of(line) <= width for line in lines)
    page = "\n".join(text(line) for line in lines)
    for part in ("TensorRT 11.4.0.21 on NVIDIA H200", "graph is sound", "5.2 dB worse than simulated", "Computed in",
                 "reformats ", "Q/DQ alone", "Asked ≠ made: 1 group", "INT8 → FP16", "Slowest layers",
                 "layers that run in another precision"):
        assert part in page, part
    assert engine_page.page_title(session) == "The engine of c0"
    session.toggle(VIT.groups[:1])
    assert engine_page.page_title(session) == "The engine of c0, 1 edit behind c1"
    assert "5.2 dB worse" in "\n".join(text(line) for line in engine_page.page_lines(session, width))


def test_the_page_of_a_sound_engine_has_nothing_to_check(start):
    session = start()
    session.build()
    page = "\n".join(text(line) for line in engine_page.page_lines(session, 80))
    assert "What to check" not in page and "runs as asked" in page


# -- what to do next ------------------------------------------------------------------------------------------------


def test_the_next_step_names_the_key_for_what_to_check(start):
    session = start(worse_db=5.2)
    session.build()
    assert "5.2 dB worse than simulated: i says what to check" in next_step(session, found(session))
    session.toggle(VIT.groups[:1])
    assert "i says" not in next_step(session, found(session))


def test_the_next_step_after_a_good_build_is_the_export(start):
    session = start(target="sqnr>=10")
    assert "b builds c0" in next_step(session, found(session))
    session.build()
    assert "e exports" in next_step(session, found(session))


def test_while_a_build_goes_on(start):
    session = start(answers=("Open", "Compare", "WhatIf"), target="sqnr>=10")
    session.build()
    assert next_step(session, found(session)) == "x stops the build"
    job = max(session.asked)
    session.apply(messages.Progress(job, "building", 0, 0))
    assert text(job_line(session, elapsed=0.4)) == " ⋯ building"
    assert text(job_line(session, elapsed=5.4)) == " ⋯ building, 5 s"
    assert text(job_line(session, elapsed=34.2)) == " ⋯ building, 34 s"
    session.apply(messages.Progress(job, "building: Timing tactics", 12, 98, 61.0))
    assert text(job_line(session, elapsed=34.2)) == " ⋯ building: Timing tactics 12/98, 61 s left"
