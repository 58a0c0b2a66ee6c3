"""Pictures drawn in text, what they are drawn of, and the page that shows them."""

import itertools
import random
from dataclasses import replace

import pytest

from tests import local
from tests.screen import opened, page_text, press
from tests.texts import lacking
from trt_tui.core.calibration.calibration import MAX_CHANNEL_RUNS, DominantChannels, TensorStats
from trt_tui.core.measure.group_sweep import SAMPLE_ERRORS, SINGLE_SAMPLES
from trt_tui.core.precision import Precision
from trt_tui.core.search.search import pareto_front
from trt_tui.jobs import requests as rq
from trt_tui.tui import spans
from trt_tui.tui.state import text_plots
from trt_tui.tui.state.charts import CHARTS, ChartFrame
from trt_tui.tui.state.rows import ColourMeasure, TreeModel, build_row_values
from trt_tui.tui.state.text_plots import BarLabel
from trt_tui.tui.widgets.lines import Lines

pytestmark = pytest.mark.usefixtures("quick")
MODEL = TreeModel(local.outline())
DRAW = {picture.label: picture.draw for picture in CHARTS}


def text(lines) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def frame(session, size=(96, 30)) -> ChartFrame:
    found = build_row_values(session, MODEL, ColourMeasure.SHARE, "config")
    return ChartFrame(session, found, MODEL.outline.groups[0], *size)


def stats(amax=16.0, top=None) -> TensorStats:
    counts = tuple(1000 if 30 <= place <= 43 else 0 for place in range(64))
    return TensorStats(amax, 1.0, amax / 8, amax / 4, 14000, counts, {}, top)


def test_bars_and_strips():
    assert text(text_plots.bar_lines([0, 0.001, 0.5, 1.0], 2, 2)) == "      ██\n  ▁▁████"
    assert text_plots.channel_range_strip([8, 4, 2, 0, 0.001], 5) == "█▇▆ ▁"


@pytest.mark.parametrize(("count", "most"), [(7, 7), (7, 3), (100, 9), (3, 50)])
def test_every_value_is_in_one_bin(count, most):
    bins = text_plots.split_into_bins(count, most)
    assert len(bins) == min(count, most) and [place for run in bins for place in run] == list(range(count))


def test_marks_stand_under_their_columns_and_overlap_nothing():
    marks = [BarLabel(2, "p99 1"), BarLabel(20, "p99.99 25"), BarLabel(21, "amax 32"), BarLabel(99, "outside")]
    ticks, *rows = text(text_plots.bar_label_lines(marks, 40)).split("\n")
    assert [place for place, letter in enumerate(ticks) if letter == "╵"] == [2, 20, 21]
    assert rows == ["p99 1           p99.99 25  amax 32"]
    narrow = text(text_plots.bar_label_lines([BarLabel(18, "p99 1"), BarLabel(19, "p99.99 25")], 20)).split("\n")
    assert narrow[1] == "    p99 1  p99.99 25"
    assert text(text_plots.bar_label_lines([BarLabel(1, "p99 1"), BarLabel(2, "p99.99 25")], 12)).endswith(
        "\np99 1\np99.99 25"
    )


def test_the_front_is_what_no_other_beats():
    for seed in range(40):
        points = [
            (random.Random(seed + place).randint(0, 4), random.Random(seed * 7 + place).randint(0, 4))
            for place in range(8)
        ]
        beaten = {
            one
            for one, other in itertools.permutations(points, 2)
            if other[0] <= one[0] and other[1] >= one[1] and other != one
        }
        assert {points[place] for place in pareto_front(points)} == set(points) - beaten
        assert len(pareto_front(points)) == len(set(points) - beaten)


@pytest.mark.parametrize(
    ("amax", "said", "silent"),
    [
        (None, "amax 16.0", "range"),
        (16.0, "amax 16.0", "range"),
        (64.0, "range 64.0", "clips"),
        (2.0, "range 2.00, clips 21%", "?"),
    ],
)
@pytest.mark.parametrize("width", [40, 90])
def test_a_histogram_marks_amax_percentiles_and_what_is_clipped(width, amax, said, silent):
    lines = text_plots.histogram_lines("x", stats(), width, 3, amax)
    assert said in text(lines) and silent not in text(lines) and "p99 2.00" in text(lines)
    assert all(spans.line_width(line) <= width for line in lines)
    assert any(style == "warn" and "█" in part for line in lines for part, style in line) is ("clips" in said)
    empty = replace(stats(), log_histogram=(0,) * 64)
    assert text_plots.histogram_lines("x", empty, width) == []


def test_channels_are_kept_by_runs_where_there_are_many():
    import numpy as np

    many = np.arange(3 * MAX_CHANNEL_RUNS + 5, dtype=np.float64)
    top = DominantChannels.from_channel_amaxes(1, many)
    assert top.channel_count == many.size and len(top.amaxes) == MAX_CHANNEL_RUNS and max(top.amaxes) == many[-1]
    assert DominantChannels.from_channel_amaxes(1, np.zeros(4)) is None
    assert text_plots.channel_range_lines("x", DominantChannels(1, 1, (0,), (3.0,)), 60) == []
    top = DominantChannels.from_channel_amaxes(1, np.array([4.0, 1.0, 8.0, 2.0]))
    drawn = text(text_plots.channel_range_lines("x", top, 60))
    assert not lacking(drawn, "4 channels", "max 8.00 #2", "median 4.00")


def test_each_sample_has_its_error_and_one_is_judged_alone(tmp_path):
    session = local.measured(tmp_path)
    assert "being measured" in text(DRAW["samples"](frame(session)).lines)
    session.request_sample_errors()
    session.rest()
    errors, worst = (
        session.results.get_values(SAMPLE_ERRORS)[session.config],
        session.get_run_results("config").accuracy.worst_output[1],
    )
    name = errors.names[errors.worst_position]
    assert name == worst.worst_sample and errors.values[errors.worst_position] == pytest.approx(worst.worst_sqnr_db)
    drawn = DRAW["samples"](frame(session))
    assert drawn.samples[drawn.cursor] == name
    session.request_single_sample(name)
    session.rest()
    one = session.results.get_values(SINGLE_SAMPLES)[session.config, name]
    assert one.is_complete and one.values_by_run["config"] == pytest.approx(worst.worst_sqnr_db)
    name, share = max(one.shares_by_group.items(), key=lambda item: item[1])
    before = 10 ** (-errors.values[errors.worst_position] / 10)
    raised = session.config.with_group_precision([MODEL.outline.get_group(name)], Precision.FP32)
    session.send_request(rq.MeasureSampleErrors(raised))
    session.rest()
    left = 10 ** (-session.results.get_values(SAMPLE_ERRORS)[raised].values[errors.worst_position] / 10)
    assert share == pytest.approx((before - left) / before, abs=1e-6)


@pytest.mark.parametrize("size", [(74, 18), (94, 32)])
def test_every_picture_fits_and_says_why_there_is_none(tmp_path, size):
    for held in ((), (rq.CompareRuns, rq.MeasureTensorStats, rq.MeasureSampleErrors)):
        session = local.measured(tmp_path, held=held)
        session.send_request(rq.MeasureTensorStats(MODEL.outline.groups[0].name))
        session.request_sample_errors()
        session.rest()
        for label, draw in DRAW.items():
            drawn = draw(frame(session, size))
            assert drawn.lines and all(spans.line_width(line) <= size[0] for line in drawn.lines), label
        values = text(DRAW["values"](frame(session, size)).lines)
        assert all((word in values) is not bool(held) for word in ("ranges by channel", "|x| of"))


async def test_charts_without_data_are_grey_and_say_why(tmp_path):
    async with opened(tmp_path, network="tiny_resnet", metric=False) as (app, main, pilot):
        await press(pilot, "8")
        page = app.screen
        grey = set()
        for place, chart in enumerate(CHARTS):
            title_style = dict(page.query_one("#page", Lines).lines[0]).get(f" {chart.label}")
            if title_style == "dim":
                grey.add(chart.label)
                await press(pilot, str(place + 1))
                assert page_text(page).strip().endswith("."), chart.label
                await press(pilot, "1")
        assert grey == {"classes"}
