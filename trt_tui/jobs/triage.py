"""The triage of an engine whose deviation from its simulation is larger than rounding explains.

Such a deviation is not used as a margin for a search. A kernel computes something else, and raising more layers avoids
that kernel only by chance. Errors inside the engine show the group at which the deviation begins. Fusion barriers
around that group then prevent the kernel from being chosen. If a marked engine agrees with the simulation, its barriers
are used instead, halved as long as one half suffices.
"""

from collections.abc import Callable, Sequence

from trt_tui.core.measure.engine_agreement import ACCUMULATION_GAP_DB, find_engine_divergence, sqnr_gap_of_engine_db
from trt_tui.core.measure.results import MARKED, Accuracy, EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import BarrierMove
from trt_tui.core.network.network import Network
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import add_decibel_unit, counted_noun_text, decibels_text, name_list_text
from trt_tui.jobs.search_evaluator import SearchEvaluator
from trt_tui.jobs.steps import Steps

TRIAGE_REASON = "search:triage"
"""The reason stored in fusion barriers that the triage of a search has added."""

def is_unexplained_gap(simulated_accuracy: Accuracy, engine_accuracy: Accuracy) -> bool:
    """Returns True if an engine is worse than its simulation by more than rounding and FP16 accumulators explain."""
    if simulated_accuracy.nonfinite_count:
        return False
    gap = sqnr_gap_of_engine_db(simulated_accuracy, engine_accuracy)
    return bool(engine_accuracy.nonfinite_count) or gap is not None and gap > ACCUMULATION_GAP_DB


def engine_gap_text(simulated_accuracy: Accuracy, engine_accuracy: Accuracy) -> str:
    """Returns the deviation of an engine from its simulation as text."""
    if engine_accuracy.nonfinite_count:
        return f"{engine_accuracy.nonfinite_count} NaN or Inf, which the simulation does not have"
    gap = sqnr_gap_of_engine_db(simulated_accuracy, engine_accuracy)
    return f"{add_decibel_unit(decibels_text(gap, mark=''))} worse than simulated, which rounding does not explain"


def triage_engine(evaluator: SearchEvaluator, config: PrecisionConfig, simulated_accuracy: Accuracy,
                  build_engine: Callable[[PrecisionConfig], Steps[EngineResult | TrtTuiError]],
                  count_left: Callable[[], int]) -> Steps[tuple[list[str], list[str]]]:
    """Searches for the group at which an engine deviates from its simulation, and for barriers that mend it.

    Args:
        config: The config of the engine.
        simulated_accuracy: The accuracy of the simulation of that config.
        build_engine: A function that returns the engine of a config, built and measured, or the error of its build.
        count_left: A function that returns the number of builds left.

    Returns:
        The findings for the user, and the tensors whose fusion barriers make the engine agree with the simulation.
    """
    network = evaluator.workspace.network
    if count_left() <= 0:
        return ["--max-builds leaves no build to find the place"], []
    engine_errors = yield from evaluator.measure_engine_errors(config)
    if engine_errors is None or engine_errors.missing_reason:
        reason = f": {engine_errors.missing_reason}" if engine_errors is not None else ""
        return [f"the place is unknown{reason}"], []
    simulated_errors = yield from evaluator.measure_group_errors(config)
    divergence = find_engine_divergence(network, simulated_errors, engine_errors)
    remarks = [f"the difference begins at {divergence.group_name}: {divergence.divergence_description}"
               ] if divergence is not None else []
    is_marked = engine_errors.source == MARKED  # the build of the marked engine counts too
    if is_marked:
        if engine_errors.accuracy is not None and is_unexplained_gap(simulated_accuracy, engine_errors.accuracy):
            return [*remarks, "with every group's result as an output too: no fusion is to blame, and no barrier "
                              "helps; another tactic source or optimization level may"], []
        remarks = ["with every group's result as an output it agrees with the simulation: a fusion computes something "
                   "else"]
        tensors = _list_results_usable_as_outputs(network, config, [group.name for group in network.groups])
    else:
        tensors = _list_results_usable_as_outputs(network, config, _list_groups_at(network, divergence.group_name)
                                                  if divergence is not None else [])
    barriers = tensors if is_marked else []
    open_parts = _halve(tensors) if is_marked else [tensors] * bool(tensors)
    while open_parts:
        part = open_parts.pop(0)
        if count_left() - is_marked <= 0:
            return [*remarks, "--max-builds leaves too few builds to find the fusion"], []
        engine = yield from build_engine(add_barriers(config, part))
        if not isinstance(engine, TrtTuiError) and engine.is_built_as_requested and engine.accuracy is not None \
                and not is_unexplained_gap(simulated_accuracy, engine.accuracy):
            barriers, open_parts = part, _halve(part) if is_marked else []
    if barriers:
        remarks.append(f"{counted_noun_text(len(barriers), 'fusion barrier')} at {name_list_text(barriers)}: the "
                       "engine agrees with the simulation")
    else:
        remarks.append("no fusion barrier was found that mends it" if tensors else
                       "the group at which the difference begins is unknown")
    return remarks, barriers


def add_barriers(config: PrecisionConfig, tensors: Sequence[str]) -> PrecisionConfig:
    """Returns a config with fusion barriers at some tensors."""
    return config.with_moves({tensor: BarrierMove(TRIAGE_REASON) for tensor in tensors})


def _halve(tensors: list[str]) -> list[list[str]]:
    """Returns the two halves of a set of tensors; [] for a single one."""
    half = len(tensors) // 2
    return [tensors[:half], tensors[half:]] if half else []


def _list_groups_at(network: Network, group_name: str) -> list[str]:
    """Returns the groups whose results a group reads, and the group."""
    producers = [network.producer.get(tensor) for tensor in network.get_group(group_name).inputs]
    groups = [network.find_group(producer) for producer in producers if producer is not None]
    return [*(group.name for group in groups if group is not None), group_name]


def _list_results_usable_as_outputs(network: Network, config: PrecisionConfig, group_names: Sequence[str]) -> list[str]:
    """Returns the result tensors of groups that can become outputs, in the order of the groups."""
    excluded = {*config.get_moves(BarrierMove), *network.blocking_plugins}
    return [tail for tail in dict.fromkeys(network.get_group(name).final_tensor for name in group_names)
            if tail not in excluded and not BarrierMove().refusal_reason(network, tail)]
