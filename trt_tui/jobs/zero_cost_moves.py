"""The proposals of zero-cost changes for a config: for the groups of one row, or for all groups in a search."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from trt_tui.core.measure.zero_cost_kind import ConfigProposal, ProposalContext, ZeroCostKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.jobs.executors import get_executor
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

T = TypeVar("T")


@dataclass(frozen=True)
class _MoveStore:
    """The store of moves whose measurement takes long, in the result store of the background process."""

    workspace: Workspace
    store: ResultStore

    def load_moves(self, title: str, config: PrecisionConfig, subjects: Sequence[str],
                   result_type: type[T]) -> T | None:
        """Implements `MeasuredMoveStore.load_moves`."""
        return self.store.results.get(self.store.make_move_key(self.workspace, title, config, subjects), result_type)

    def save_moves(self, title: str, config: PrecisionConfig, subjects: Sequence[str], moves: object) -> None:
        """Implements `MeasuredMoveStore.save_moves`."""
        self.workspace.require_unchanged_files()
        self.store.results.put(self.store.make_move_key(self.workspace, title, config, subjects), moves)


def propose_zero_cost_moves(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                            groups: Sequence[FusionGroup], config: PrecisionConfig, kinds: Iterable[ZeroCostKind], *,
                            reason: str = "user", may_leave_file: bool = False,
                            one_pass: bool = False) -> list[ConfigProposal]:
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
        workspace.one_pass_values, _MoveStore(workspace, store), lambda: get_executor(workspace, reporter),
        lambda title: reporter.make_progress_callback(title, is_preemptible=True))
    return [proposal for kind in kinds for proposal in kind.make_proposals(context)]
