"""The triage of an engine whose deviation from its simulation is larger than rounding explains.

Such a deviation is not used as a margin for a search. A kernel computes something else, and raising more layers avoids
that kernel only by chance. Errors inside the engine show the group at which the deviation begins. Fusion barriers
around that group then prevent the kernel from being chosen. If a marked engine agrees with the simulation, its barriers
are used instead, halved as long as one half suffices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trt_tui.core.measure.engine_agreement import ACCUMULATION_GAP_DB, find_engine_divergence, sqnr_gap_of_engine_db
from trt_tui.core.measure.results import MARKED, Accuracy, EngineErrors, EngineResult, GroupErrors
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import BarrierMove
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.errors import CancelledError, TrtTuiError
from trt_tui.formatting import add_decibel_unit, counted_noun_text, decibels_text, name_list_text
from trt_tui.jobs.steps import Steps

TRIAGE_REASON = "search:triage"
"""The reason stored in fusion barriers that the triage of a search has added."""


class EngineErrorProvider(Protocol):
    """The measurements of errors inside an engine and inside its simulation."""

    def measure_engine_errors(self, config: PrecisionConfig) -> Steps[EngineErrors | None]:
        """Returns the errors inside the engine of a config; None if there is no engine.

        A marked engine is measured if the release has no debug tensors.
        """

    def measure_group_errors(self, config: PrecisionConfig) -> Steps[Mapping[str, GroupErrors]]:
        """Returns the simulated errors at the groups of a config, by group name."""


@dataclass(frozen=True)
class TriageResult:
    """The result of a triage: remarks for the user, and the fusion barriers that remove the deviation.

    Attributes:
        remarks: The findings, for the user.
        barriers: The fusion barriers, by tensor, with which the engine agrees with the simulation; empty if none were
            found.
    """

    remarks: tuple[str, ...]
    barriers: Mapping[str, BarrierMove] = field(default_factory=dict)


def is_unexplained_gap(simulated_accuracy: Accuracy | None, engine_accuracy: Accuracy | None) -> bool:
    """Returns True if an engine is worse than its simulation by more than rounding and FP16 accumulators explain."""
    if simulated_accuracy is None or engine_accuracy is None or simulated_accuracy.nonfinite_count:
        return False
    gap = sqnr_gap_of_engine_db(simulated_accuracy, engine_accuracy)
    return bool(engine_accuracy.nonfinite_count) or gap is not None and gap > ACCUMULATION_GAP_DB


class EngineTriage:
    """The triage of one engine: the search for the group at which the engine deviates from its simulation.

    Args:
        config: The config of the engine.
        simulated_accuracy: The accuracy of the simulation of that config.
        build_engine: A function that returns the engine of a config, built and measured.
        count_left: A function that returns the number of builds left.
    """

    def __init__(self, network: Network, config: PrecisionConfig, simulated_accuracy: Accuracy,
                 probe: EngineErrorProvider, build_engine: Callable[[PrecisionConfig], Steps[EngineResult]],
                 count_left: Callable[[], int]) -> None:
        self._network, self._config, self._simulated_accuracy = network, config, simulated_accuracy
        self._probe, self._build, self._count_left = probe, build_engine, count_left
        self._spent_builds, self._ran_out = 0, False

    def _count_remaining_builds(self) -> int:
        """Returns the number of builds left. The build of a marked engine is subtracted."""
        return self._count_left() - self._spent_builds

    def run_triage(self) -> Steps[TriageResult]:
        if self._count_remaining_builds() <= 0:
            return TriageResult(("--max-builds leaves no build to find the place",))
        engine_errors = yield from self._probe.measure_engine_errors(self._config)
        if engine_errors is None or engine_errors.missing_reason:
            return TriageResult((f"the place is unknown: {engine_errors.missing_reason}"
                                 if engine_errors is not None else "the place is unknown", ))
        simulated = yield from self._probe.measure_group_errors(self._config)
        parting_point = find_engine_divergence(self._network, simulated, engine_errors)
        remarks = [f"the difference begins at {parting_point.group_name}: {parting_point.divergence_description}"
                   ] if parting_point is not None else []
        if engine_errors.source == MARKED:
            if is_unexplained_gap(self._simulated_accuracy, engine_errors.accuracy):
                return TriageResult(
                    (*remarks, "with every group's result as an output too: no fusion is to blame, and no "
                     "barrier helps; another tactic source or optimization level may"))
            remarks = ["with every group's result as an output it agrees with the simulation: a fusion computes "
                       "something else"]
            self._spent_builds = 1
            tensors = self._list_results_usable_as_outputs(self._network.groups)
            barrier_tensors = yield from self._find_smaller_barrier_set(tensors)
        else:
            tensors = self._list_results_around_group(parting_point.group_name) if parting_point is not None else []
            barrier_tensors = tensors if tensors and (yield from self._is_fixed_by_barriers(tensors)) else []
        if self._ran_out:
            return TriageResult((*remarks, "--max-builds leaves too few builds to find the fusion"))
        if not barrier_tensors:
            reason = ("no fusion barrier was found that mends it"
                      if tensors else "the group at which the difference begins is unknown")
            return TriageResult((*remarks, reason))
        return (TriageResult((
            *remarks,
            f"{counted_noun_text(len(barrier_tensors), 'fusion barrier')} at "
            f"{name_list_text(barrier_tensors)}: the engine agrees with "
            "the simulation"), {tensor: BarrierMove(TRIAGE_REASON)
                               for tensor in barrier_tensors}))

    def _list_results_usable_as_outputs(self, groups: Sequence[FusionGroup]) -> list[str]:
        """Returns the result tensors of groups that can become outputs, in network order."""
        excluded = {*self._config.get_moves(BarrierMove), *self._network.blocking_plugins}
        return [tail for tail in dict.fromkeys(group.final_tensor for group in groups)
                if tail not in excluded and not BarrierMove().refusal_reason(self._network, tail)]

    def _list_results_around_group(self, group_name: str) -> list[str]:
        """Returns the result tensors that a group reads, and the result tensor of the group."""
        group = self._network.get_group(group_name)
        before = [
            producer_group for tensor in group.inputs
            if (producer := self._network.producer.get(tensor)) is not None and (
                producer_group := self._network.find_group(producer)) is not None
        ]
        return self._list_results_usable_as_outputs([*before, group])

    def _is_fixed_by_barriers(self, tensors: Sequence[str]) -> Steps[bool]:
        """Returns True if the engine agrees with the simulation after fusion barriers are added at some tensors."""
        if self._count_remaining_builds() <= 0:
            self._ran_out = True
            return False
        try:
            result = yield from self._build(
                self._config.with_moves({tensor: BarrierMove(TRIAGE_REASON)
                                         for tensor in tensors}))
        except CancelledError:
            raise
        except TrtTuiError:  # a failed build fixes nothing
            return False
        return result.is_built_as_requested and result.accuracy is not None and not is_unexplained_gap(
            self._simulated_accuracy, result.accuracy)

    def _find_smaller_barrier_set(self, tensors: list[str]) -> Steps[list[str]]:
        """Returns a smaller set of fusion barriers that suffices, as long as builds are left. All given barriers
        together suffice."""
        while len(tensors) > 1:
            half = len(tensors) // 2
            for part in (tensors[:half], tensors[half:]):
                if (yield from self._is_fixed_by_barriers(part)):
                    tensors = part
                    break
            else:
                return tensors
        return tensors


def engine_gap_text(simulated_accuracy: Accuracy, engine_accuracy: Accuracy) -> str:
    """Returns the deviation of an engine from its simulation as text."""
    if engine_accuracy.nonfinite_count:
        return f"{engine_accuracy.nonfinite_count} NaN or Inf, which the simulation does not have"
    gap = sqnr_gap_of_engine_db(simulated_accuracy, engine_accuracy)
    return f"{add_decibel_unit(decibels_text(gap, mark=''))} worse than simulated, which rounding does not explain"
