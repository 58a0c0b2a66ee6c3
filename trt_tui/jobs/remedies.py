"""The job that measures the remedies for a group: zero-cost moves first, then the next precision, FP32, and other
ranges."""

from typing import TypeAlias

from trt_tui.core.calibration.range_methods import list_range_methods
from trt_tui.core.measure.zero_cost_kind import ConfigProposal
from trt_tui.core.measure.zero_cost_kinds import ZERO_COST_KINDS
from trt_tui.core.moves.config import PrecisionConfig, find_next_precision
from trt_tui.core.moves.layer_moves import RangeMove
from trt_tui.core.moves.zero_cost_checks import replace_file_precision
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.accuracy import measure_accuracy
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.ranges import measure_ranges_by_method
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.jobs.zero_cost_moves import MeasuredProposal, list_distinct_proposals, propose_zero_cost_moves
from trt_tui.workspace import Workspace


def run_remedy_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                   request: rq.MeasureRemedies) -> Steps[None]:
    """Measures the remedies for a group. After each remedy, all remedies measured so far are sent."""
    group, config = workspace.network.get_group(request.group), request.config
    ensure_ranges(workspace, store, reporter, [config, replace_file_precision(config, workspace.network.groups)])
    remedies = _list_remedies(workspace, store, reporter, group, config)
    ensure_ranges(workspace, store, reporter, [proposal.config for _, proposal in remedies])
    measured: list[tuple[str, MeasuredProposal]] = []
    for key, proposal in remedies:
        for accuracy in measure_accuracy(workspace, store, reporter, proposal.config, f"trying {proposal.label}"):
            if accuracy.samples >= accuracy.total:
                measured.append((key, (proposal, accuracy)))
            yield Urgency.REMEDIES
        distinct = list_distinct_proposals(config, [entry for _, entry in measured])
        reporter.send(ev.RemediesMeasured(reporter.job, group.name, config, tuple(
            ev.Remedy(key, proposal.label, proposal.config, accuracy, proposal.short_label)
            for key, (proposal, accuracy) in measured if accuracy is not None
            and any(proposal is distinct_proposal for distinct_proposal, _ in distinct))))
    if not remedies:
        reporter.send(ev.RemediesMeasured(reporter.job, group.name, config, ()))


_Remedies: TypeAlias = list[tuple[str, ConfigProposal]]
"""The remedies for a group: the key that selects each, and its label with the resulting config."""


def _list_remedies(workspace: Workspace, store: ResultStore, reporter: JobReporter, group: FusionGroup,
                   config: PrecisionConfig) -> _Remedies:
    remedies: _Remedies = []
    current = config.precision_of(group)
    remedies += [(ev.ZERO_COST_KEY, proposal) for proposal in
                 propose_zero_cost_moves(
                     workspace, store, reporter, [group], config,
                     [kind for kind in ZERO_COST_KINDS if kind.is_for_rows],
                     may_replace_file_precision=True)]
    higher = find_next_precision(group, current, True, config.precision_steps)
    if higher is not current and higher is not Precision.FP32:
        remedies.append(("=", ConfigProposal(higher.label, config.with_group_precision([group], higher))))
    if current is not Precision.FP32:
        remedies.append(("space", ConfigProposal(Precision.FP32.label,
                                                 config.with_group_precision([group], Precision.FP32))))
    if group.calibrated_qdq_sites(current):
        ranges = measure_ranges_by_method(workspace, reporter, [group], config)
        current_method = workspace.calibration.method if workspace.calibration is not None else ""
        methods = list_range_methods(QUANTIZED_TYPES[current]) if config.fixed_range_tensors.isdisjoint(ranges) else (
        )  # the ranges are measured without the factors of these channels
        for method in methods:
            if method == current_method:
                continue
            remedy_config = config
            for tensor, by_method in ranges.items():
                remedy_config = remedy_config.with_range(tensor, RangeMove(by_method[method], method))
            remedies.append(("r", ConfigProposal(f"{method} range", remedy_config)))
    return remedies
