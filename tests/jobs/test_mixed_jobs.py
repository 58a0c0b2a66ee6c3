"""trt_tui.jobs: one config may ask for any mix of precisions, whatever is asked about it."""

from dataclasses import replace

import pytest

from tests.driven import DrivenWorker, of, save_mlp
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8


@pytest.fixture
def opened(tmp_path):
    def open_it(other: Precision = FP16) -> DrivenWorker:
        worker = DrivenWorker(tmp_path)
        assert isinstance(worker.answer(rq.OpenNetwork(replace(save_mlp(tmp_path), other=other)))[-1], ev.JobDone)
        return worker

    return open_it


def mixed(worker: DrivenWorker, other: Precision) -> PrecisionConfig:
    """A group in each of FP16, BF16 and FP32, the others in INT8 or ``other``."""
    config = PrecisionConfig(INT8, other)
    for group, precision in zip(worker.network.groups, (BF16, FP16, FP32), strict=False):
        config = config.with_group_precision([group], precision)
    return config


@pytest.mark.parametrize("other", [FP32, FP16, BF16])
def test_any_mix_is_compared_tried_and_searched(opened, other):
    worker = opened(other)
    config, names = mixed(worker, other), {group.name for group in worker.network.groups}
    runs = {
        "fp16": PrecisionConfig.from_precision(FP16),
        "int8": PrecisionConfig.from_precision(INT8, other),
        "config": config,
    }
    requests = [
        rq.MeasureWhatIf(config, with_shares=True),
        rq.CompareRuns(runs, with_group_errors=True, shares_run="config"),
        *(rq.MeasureRemedies(name, config) for name in sorted(names)),
        *(rq.FindMixedPrecisionConfig(runs["int8"], ("sqnr>=60",), higher_precision=higher) for higher in (BF16, FP16)),
    ]
    for request in requests:
        events = worker.answer(request)
        assert isinstance(events[-1], ev.JobDone), events[-1]
        if isinstance(request, rq.CompareRuns):
            assert {event.run for event in of(events, ev.AccuracyMeasured) if event.final} == set(runs)
            layers = [event for event in of(events, ev.GroupErrorsMeasured) if event.final]
            assert {event.run for event in layers} == set(runs) and all(set(e.groups) == names for e in layers)
        if isinstance(request, rq.FindMixedPrecisionConfig):
            assert of(events, ev.SearchEnded)


def test_a_what_if_in_another_type_leaves_a_comparison_right(opened):
    """The simulation is loaded anew while verdicts are half measured."""
    worker = opened()
    config = mixed(worker, BF16)
    runs = {"int8": PrecisionConfig.from_precision(INT8), "fp32": PrecisionConfig(INT8, FP32)}
    worker.ask(rq.CompareRuns(runs, with_group_errors=False, shares_run=None))
    while not of(worker.wire.events, ev.AccuracyMeasured):
        assert worker.step()
    worker.ask(rq.MeasureWhatIf(config))
    worker.finish()
    events = worker.wire.events
    assert not of(events, ev.JobFailed)
    final = {event.run: event.accuracy for event in of(events, ev.AccuracyMeasured) if event.final}
    for run, asked in {**runs, "config": config}.items():
        feeds = worker.workspace.find_judged_feeds(asked)
        alone = list(worker.workspace.analysis.measure_accuracy(asked, worker.workspace.ranges, feeds))[-1].value
        assert final[run] == alone
