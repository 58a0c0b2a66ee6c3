"""What is drawn at every width from 60 to 200: no number is cut, no two rows look alike, marks stay."""

import itertools
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests import local
from trt_tui.core.data.batches import SampleName
from trt_tui.core.measure.judged_outputs import FLOAT_KIND
from trt_tui.core.measure.results import Accuracy, ErrorMetrics, ExportedRun, OutputErrors, RunKind
from trt_tui.core.measure.target import Outcome, TargetOutcome
from trt_tui.core.network.layer_tree import Scope
from trt_tui.core.precision import Precision
from trt_tui.core.report.run_columns import RunRow
from trt_tui.formatting import cell_width, duration_text, metric_text, shorten_number_in_text
from trt_tui.tui import spans
from trt_tui.tui.state import summary
from trt_tui.tui.state.columns import (
    LAYER_COLUMNS_BY_ID,
    SHARE_COLUMN,
    PrecisionCell,
    RowCells,
    ShareCell,
    build_row_cells,
    fit_columns,
    layer_row_line,
)
from trt_tui.tui.state.config_list import ToggleResult, config_table
from trt_tui.tui.state.config_status import MAX_GAUGE_CELLS, MIN_GAUGE_CELLS, target_gauge_line
from trt_tui.tui.state.layer_list import LayerList, layer_list_title, view_title
from trt_tui.tui.state.marks import RAISED_MARK
from trt_tui.tui.state.rows import ColourMeasure, LayerListView, TreeModel, VisibleRow, build_row_values
from trt_tui.tui.state.status import Hint, StatusLines, status_lines

WIDTHS = range(60, 201)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?|\.\d+(?:e-?\d+)?")


@pytest.fixture
def session(tmp_path, measured_before):
    return local.measured(tmp_path)


def text(line) -> str:
    return "".join(part for part, _ in line)


def numbers(shown: str) -> list[float]:
    return [float(one) for one in NUMBER.findall(shown)]


def cut(shown: str, whole: list[float]) -> list[float]:
    """The numbers of a text that are no rounding of any of the whole ones."""
    return [one for one in numbers(shown) if not any(abs(one - other) <= abs(other) / 2 for other in whole)]


EXTREMES = [
    RowCells(
        "↯",
        "█",
        "",
        "blocks/17/attention/conv123",
        cells={
            "layer": "",
            "operator": "Convolution64",
            "engine": ("≠ FP16 +128", ""),
            "precision": PrecisionCell("FP16+", "↑epku", "chip16"),
            "share": ShareCell(value, bar_fraction=0.7),
            "cost": cost,
            "toggle": ToggleResult(figure, outcome, is_partial=outcome == "est."),
        },
    )
    for value, figure, outcome, cost in (
        ("~-12345%", "~-123456.7", "est.", "1.2e-10"),
        ("~57%", "~91.07", "", "12345"),
        ("~100%", "~99999.9", "FAIL?", "123457"),
        ("~-1.5e9", "~1.234e-12", "…", ".00123"),
        ("-123.4", "~0.99999", "PASS?", "99.9%"),
        ("~12345.6", "~-0.00012", "FAIL", "·"),
    )
]


def test_no_number_of_a_row_is_cut():
    for width in WIDTHS:
        for made in (False, True):
            fit = fit_columns(width, made)
            for row in EXTREMES:
                for depth in (0, 3, 9):
                    line = layer_row_line(row, depth, fit, True)
                    assert spans.line_width(line) <= min(width, 120), (width, text(line))
                    texts = (
                        row.name,
                        row.cells["operator"],
                        row.cells["precision"].text,
                        row.cells["engine"][0],
                        row.cells["cost"],
                        row.cells["share"].text,
                        row.cells["toggle"].value_text,
                        row.cells["toggle"].outcome_text,
                    )
                    whole = [number for one in texts for number in numbers(one)]
                    assert not cut(text(line).replace("<0", ""), whole), (width, text(line))


def extreme(session):
    """Gives the runs of a session figures of many digits."""
    name, one = session.get_run_results("config").accuracy.worst_output
    for config in session.list_run_configs().values():
        known = session.results.get_or_create_results(config)
        errors = ErrorMetrics(-123456.7, 0.123456)
        output = OutputErrors(errors, worst_sample=SampleName(123456), worst_sqnr_db=-98765.4)
        known.store_accuracy(
            replace(
                known.accuracy, outputs={name: output}, metric={"accuracy": -1.23456e-7}, samples=12345, total=67890
            )
        )


def test_no_number_of_the_header_is_cut(session):
    whole = []
    for prepare in (lambda _: None, extreme):
        prepare(session)
        whole += [-123456.7, 98765.4, 123456, 1.235e-7, 1.23456e-7, 12345, 67890]
        wide = [
            summary.header_line(session, 400),
            *summary.summary_lines(session, 400, 40),
            *(line for _, line in config_table(session, 400)[1]),
        ]
        whole += [number for line in wide for number in numbers(text(line))]
        whole = [abs(one) for one in whole]
        for width in WIDTHS:
            for line in (
                summary.header_line(session, width),
                *summary.summary_lines(session, width, 40),
                *(line for _, line in config_table(session, width)[1]),
            ):
                assert spans.line_width(line) <= width
                assert not cut(text(line), whole), (width, text(line))


def test_no_number_of_a_hint_or_message_is_cut(session):
    took = [
        number for one in session.pending_requests.jobs for number in numbers(duration_text(one.duration_s))
    ]  # drawn beside it
    said = "2 rows to FP32 meet the target: w, space raises blocks/1234/conv5678 → SQNR ~123456.7"
    for width in WIDTHS:
        for status, hint in (
            (StatusLines((said, "")), Hint()),
            (StatusLines(), Hint((said, "next: w, space raises it"))),
        ):
            shown = "".join(map(text, status_lines(session, status, hint, width, width >= 120)))
            assert not cut(shown, [*numbers(said), *took, 0.0]), shown


@pytest.mark.parametrize(
    ("shown", "width", "expected"),
    [
        ("~12.3", 5, "~12.3"),
        ("~-123.4", 6, "~-123"),
        ("~-123456.7", 6, "~-1e5"),
        ("~-8.1 #12345", 10, "~-8 #12345"),
        ("abc", 2, "…"),
        ("~1.234e-12", 8, "~1.2e-12"),
        (".12345", 4, "0.12"),
        ("0.12345", 5, "0.123"),
        ("12345.6", 5, "12346"),
    ],
)
def test_a_number_that_has_no_room_is_rounded(shown, width, expected):
    assert shorten_number_in_text(shown, width) == expected


@pytest.mark.parametrize(
    ("said", "width", "expected"),
    [
        ("on 16 of 32", 4, "on …"),
        ("on 16 of 32", 5, "on …"),
        ("on 16 of 32", 6, "on 16…"),
        ("~12.34 dB", 5, "…"),
        ("F1 ~12.34", 6, "F1 …"),
        ("share ~-12% left", 10, "share …"),
    ],
)
def test_a_line_is_cut_before_a_number(said, width, expected):
    assert text(spans.clip_line([(said, "")], width)) == expected


def names(rng):
    """Paths of layers as networks have them, many of which are alike but for a part."""
    parts = (
        "model encoder decoder block residual depthwise_separable attention conv norm1 projection 漢字 layer.12".split()
    )
    return list(
        {
            "/".join(
                f"{rng.choice(parts)}{rng.choice(('', '.0', '.1', '.11', '_a', '2'))}" for _ in range(rng.randint(1, 7))
            )
            for _ in range(60)
        }
    )


@pytest.mark.parametrize("seed", range(8))
def test_no_two_names_are_shortened_to_the_same_text(seed):
    every = names(random.Random(seed))
    for width in (8, 11, 16, 18, 24, 33, 47):
        shown = spans.shorten_distinctly(every, width)
        assert shown.keys() == set(every) and len(set(shown.values())) == len(every), width
        assert all(cell_width(short) <= width for short in shown.values())
        for name, short in shown.items():
            assert short == name if cell_width(name) <= width else short != name


@pytest.mark.parametrize("width", range(6, 20))
def test_a_name_that_is_told_apart_by_a_number_keeps_its_own_whole(width):
    every = [f"{start}0/attention/漢漢漢{end}/x/1725" for start in "abc" for end in "12"]
    for short in spans.shorten_distinctly(every, width).values():
        assert set(NUMBER.findall(short.partition("#")[0])) <= {"0", "1", "2", "1725"}, short


def test_names_that_differ_in_the_middle_show_where():
    shown = spans.shorten_distinctly(["model/encoder/left/conv/weights", "model/encoder/right/conv/weights"], 20)
    assert "left" in shown["model/encoder/left/conv/weights"] and "right" in shown["model/encoder/right/conv/weights"]


def test_a_raised_row_keeps_its_mark_in_every_colouring(session):
    model = TreeModel(session.outline)
    first, second, other = session.outline.groups[0], session.outline.groups[3], session.outline.groups[5]
    session.set_precision([first], Precision.FP32)
    session.set_precision([second], Precision.FP16)
    session.rest()
    for measure, run, bad in itertools.product(ColourMeasure, ("config", "int8", "fp16"), (False, True)):
        found = build_row_values(session, model, measure, run)
        if bad:
            found = replace(found, nonfinite_groups=frozenset({first.name, second.name, other.name}))
        for group, marked in ((first, True), (second, Precision.INT8 in second.allowed_precisions), (other, False)):
            row = model.rows_by_group[group.name]
            line = build_row_cells(found, VisibleRow(row.path, 0, row))
            shown_marks = f"{line.mark}{line.glyph}{line.cells['precision'].marks}"
            assert (RAISED_MARK in shown_marks) is marked, (measure, run, line)
            assert not bad or line.glyph == "!", "what is not finite is never hidden"


def test_the_rows_are_called_worst_first_only_while_they_are(session):
    listing = LayerList(session)
    listing.open_network(session.outline)
    listing.update_row_values()
    listing.view = LayerListView.WORST
    listing.sort_rows(SHARE_COLUMN)
    assert view_title(listing) == "Worst first"
    shares = session.results.get_or_create_results(session.config).shares
    best = min(shares, key=lambda name: shares[name].fraction)
    left = {name: share for name, share in shares.items() if name != best}
    session.results.get_or_create_results(session.config).shares = left
    listing.update_row_values()
    assert view_title(listing) == "All layers", "a share is missing"
    session.results.get_or_create_results(session.config).shares = {**left, best: replace(shares[best], fraction=9.0)}
    listing.update_row_values()
    assert view_title(listing) == "Worst first"
    listing.sort_rows(LAYER_COLUMNS_BY_ID["operator"])
    assert view_title(listing) == "All layers" and "by operator" in layer_list_title(listing, 120)[0]
    listing.view = LayerListView.TREE
    assert view_title(listing) == "Tree"


def test_a_row_that_is_no_longer_raised_is_not_sorted_first(session):
    listing, shares = LayerList(session), session.results.get_or_create_results(session.config).shares
    best = min(shares, key=lambda name: shares[name].fraction)
    session.set_precision([session.outline.get_group(best)], Precision.FP32)
    results = session.results.get_or_create_results(session.config)
    results.shares, results.has_all_shares = shares, True
    listing.open_network(session.outline)
    listing.view = LayerListView.WORST
    listing.update_row_values()
    shares[best] = replace(shares[best], fraction=0.01)
    listing.update_row_values()
    assert listing.build_visible_rows()[0].row.group.name == best and view_title(listing) == "Worst first"
    session.undo()
    listing.update_row_values()
    assert listing.build_visible_rows()[0].row.group.name != best and view_title(listing) == "Worst first"


def test_scopes_are_sorted_by_the_value_that_they_show(session):
    listing = LayerList(session)
    listing.open_network(session.outline)
    parent = next(
        scope for scope in listing.tree_model.scopes if sum(isinstance(child, Scope) for child in scope.children) > 2
    )
    first = next(child for child in parent.children if isinstance(child, Scope))
    shares = session.results.get_or_create_results(session.config).shares
    shares.update(
        (name, replace(share, fraction=0.5 if name in first.groups else 0.1)) for name, share in shares.items()
    )
    shares[first.groups[0]] = replace(shares[first.groups[0]], fraction=-9.0)
    for measure in (ColourMeasure.SHARE, ColourMeasure.ISOLATED, ColourMeasure.ACCUMULATED):
        listing.measure = measure
        listing.update_row_values()
        listing.sort_rows(SHARE_COLUMN)
        listing.opened_paths = {scope.path for scope in listing.tree_model.scopes}
        scopes = [line.row for line in listing.build_visible_rows() if isinstance(line.row, Scope)]
        values = listing.row_values.scope_values
        families = [
            [values[scope.path] for scope in scopes if scope in parent.children and scope.path in values]
            for parent in listing.tree_model.scopes
        ]
        assert max(map(len, families)) > 2
        for shown in families:
            assert shown == sorted(shown, reverse=measure is ColourMeasure.SHARE), measure


def test_a_row_of_the_header_has_values_of_one_config(tmp_path, measured_before):
    session = local.measured(tmp_path, builder=local.H200)
    session.request_build()
    session.rest()
    built = session.results[session.config].engine_result
    figure = f"{built.accuracy.worst_output[1].errors.sqnr_db:.1f}"
    session.toggle_fp32(session.outline.groups[:1])
    session.rest()
    for height in (24, 40):
        lines = [text(line) for line in summary.summary_lines(session, 120, height)]
        row = next(line for line in lines if line.startswith(" c1"))
        assert not numbers(row.partition("│")[2].replace("%", "")), row
        before = [line for line in lines if line.startswith(" c0, built")]
        assert bool(before) is (height == 40) and all(figure in line for line in before)


def test_a_reason_of_an_outcome_is_whole_or_left_out(session, monkeypatch):
    outcome = TargetOutcome(Outcome.UNCERTAIN_PASS, ("the first reason", "a second one of many words", "a third one"))
    session.config_target_outcomes = lambda config: {RunKind.SIMULATED_CONFIG: outcome}
    whole = summary.outcome_reason_lines(session)[-1].replace("INT8 ", "c0 ")
    assert len(summary.outcome_reason_lines(session)) == 2, "one for each run"
    for width in range(110, 201):
        shown = next(text(line) for line in summary.summary_lines(session, width, 40) if "first reason" in text(line))
        assert shown.strip() == whole
    for width, height in ((60, 15), (80, 24), (120, 24)):
        lines = list(map(text, summary.summary_lines(session, width, height)))
        assert any("first reason" in line for line in lines) is (height > 15), "an outcome with a doubt names it"
    ((heading, reasons),) = summary._list_outcome_reasons(session)
    for width in range(40, len(whole)):
        (line,) = summary._outcome_reason_rows(heading, reasons, width, 1)
        shown = text(line).strip()
        assert len(text(line)) <= width and shown.endswith("; … (o)")
        assert {*shown.removesuffix("; … (o)").split("; ")} <= {*whole.split("; ")}
    monkeypatch.setattr(summary, "has_unfinished_accuracy", lambda *_: True)
    assert not any("first reason" in text(line) for line in summary.summary_lines(session, 120, 40)), "it can change"


def test_the_worst_output_is_told_from_all_others(session, monkeypatch):
    outputs = [SimpleNamespace(name=f"transpose_{index}.tmp_0", kind=FLOAT_KIND) for index in range(8)]
    monkeypatch.setattr(type(session), "judged_outputs", property(lambda session: outputs))
    (column,) = [column for column in summary.fit_summary_table(session, 120).columns if column.title == "output"]
    accuracies = [Accuracy({output.name: OutputErrors(ErrorMetrics(9.0))}) for output in outputs]
    assert len({column.run_column.text(RunRow(accuracy)) for accuracy in accuracies}) == len(outputs)


def test_the_outcome_that_counts_has_the_first_reason(session):
    results = session.results[session.config]
    poor = replace(
        results.accuracy,
        intervals=None,
        outputs={
            name: replace(values, errors=replace(values.errors, sqnr_db=-20.0))
            for name, values in results.accuracy.outputs.items()
        },
    )
    results.runs = {**results.runs, RunKind.EXPORTED_FILE: ExportedRun(poor, "ONNX Runtime 1 CPU", "cpu")}
    doubt, failure = TargetOutcome(Outcome.UNCERTAIN_PASS, ("a doubt",)), TargetOutcome(Outcome.FAIL)
    session.config_target_outcomes = lambda config: {RunKind.SIMULATED_CONFIG: doubt, RunKind.EXPORTED_FILE: failure}
    (first, missed), (second, doubts) = summary._list_outcome_reasons(session)
    assert first.endswith(" FAIL") and missed == (session.missed_target_text(failure, poor),) and "-20.0" in missed[0]
    assert second.endswith(" ~PASS?") and doubts == ("a doubt",)


def test_a_failure_names_the_quiet_part_that_decides_it(session, monkeypatch):
    monkeypatch.setattr(summary, "quiet_part_text", lambda _, accuracy: f"quiet at {accuracy.samples} samples")
    for target, is_named in (("sqnr>=90", True), ("sqnr>=1", False), ("metric>=0.9999", False)):
        session.set_target(target)
        lines = [line for line in summary.outcome_reason_lines(session) if "quiet at" in line]
        assert bool(lines) is is_named and all("FAIL" in line for line in lines)


def test_the_narrow_table_keeps_the_value_of_the_target_of_an_export(session):
    session.request_build()
    executed = session.rest().results[session.config].exported_run.accuracy
    for target, shown in (
        ("metric>=0.1", metric_text(executed.headline_metric)),
        ("sqnr>=1", f"{executed.worst_output[1].errors.sqnr_db:.1f}"),
    ):
        session.set_target(target)
        row = next(text(line) for line in summary.summary_lines(session, 60) if text(line).startswith(" c0"))
        assert row.partition("│")[2].split()[0] == shown


def test_the_text_of_a_gauge_is_whole_or_left_out_and_the_bar_is_shortened_first(session):
    for target in ("sqnr>=20", "metric>=0.99", "sqnr>=1", "sqnr>=1; cosine>=0.9999999"):
        session.set_target(target)
        words = text(target_gauge_line(session, 60)).lstrip(" ░█▏▎▍▌▋▊▉")
        assert words.endswith(("missing", "margin"))
        is_second = "cosine" in target
        assert words.endswith(" cosine missing") is is_second, "the value of another target than the first is named"
        titles = text(summary.summary_lines(session, 160)[0])
        assert ("and 1 more" in titles) is is_second and session.target_descriptions[0] in titles
        for width in range(60):
            line = text(target_gauge_line(session, width))
            assert cell_width(line) <= width
            assert line.endswith(f" {words}") is (width > len(words)), "the text is left out last"
            bar = line.removesuffix(f" {words}").strip()
            assert len(bar) in (0, *range(MIN_GAUGE_CELLS, MAX_GAUGE_CELLS + 1)) and not bar.strip("░█▏▎▍▌▋▊▉")
            assert len(bar) > 0 or width < len(words) + 2 + MIN_GAUGE_CELLS


@pytest.mark.parametrize("width", [60, 120, 200])
@pytest.mark.parametrize("max_lines", [1, 2, 3])
def test_a_cut_reason_names_the_key_of_the_page_that_has_it_whole(width, max_lines):
    reason = f"a reason (of one network; {'many words ' * 80}end)"
    rows = summary._outcome_reason_rows("c0 PASS?", (reason, "a second one"), width, max_lines)
    assert len(rows) == max_lines and all(len(text(row)) <= width for row in rows)
    assert text(rows[-1]).endswith("… (o)") and all(style == "dim@do('log')" for row in rows for _, style in row)
    assert len(text(rows[-1])) > width - 20, "the width is used"
    whole = summary._outcome_reason_rows("c0 PASS?", (reason, "a second one"), width, 99)
    whole_text = " ".join(text(row).strip() for row in whole)
    assert whole_text.endswith("; a second one") and "…" not in whole_text


def test_no_operator_with_a_norm_is_cut_beside_an_engine_column():
    for width in range(78, 201):
        for operator in ("LayerNormalization", "BatchNormalization", "GroupNormalization"):
            row = replace(EXTREMES[0], cells={**EXTREMES[0].cells, "operator": operator})
            assert operator.replace("alization", "") in text(layer_row_line(row, 0, fit_columns(width, True), False))
