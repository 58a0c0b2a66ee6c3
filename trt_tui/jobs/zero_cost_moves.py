"""The proposals of zero-cost changes for a config: for the groups of one row, or for all groups in a search."""

from collections.abc import Iterable, Sequence

from trt_tui.core.measure.zero_cost_kind import ConfigProposal, ProposalContext, ZeroCostKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.jobs.executors import get_executor
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.workspace import Workspace


def propose_zero_cost_moves(workspace: Workspace, reporter: JobReporter, groups: Sequence[FusionGroup],
                            config: PrecisionConfig, kinds: Iterable[ZeroCostKind], *, reason: str = "user",
                            may_leave_file: bool = False, one_pass: bool = False) -> list[ConfigProposal]:
    """Returns the zero-cost changes of some kinds that groups can have and do not have yet, one config for each.

    Args:
        may_leave_file: True to change groups in file precision too, which then get the precision nearest to it.
        one_pass: True to measure values for these groups in one separate pass, even if they are known
            (`Workspace.one_pass_values`).

    Raises:
        InputError: A tensor contains NaN or infinity in FP32, or the data cannot be read.
    """
    context = ProposalContext(
        workspace.network, config, groups, workspace.calibration_samples, workspace.backend, workspace.ranges,
        workspace.calibration.method if workspace.calibration is not None else "", reason, may_leave_file, one_pass,
        workspace.one_pass_values, lambda: get_executor(workspace, reporter),
        lambda title: reporter.make_progress_callback(title, is_preemptible=True))
    return [proposal for kind in kinds for proposal in kind.make_proposals(context)]
