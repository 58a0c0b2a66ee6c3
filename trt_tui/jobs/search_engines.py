"""The engines of a search: their latencies with estimates between them, and the triage of an engine that deviates from
its simulation by more than rounding explains.

Such a deviation is not used as a margin. A kernel computes something else, and raising more layers avoids that kernel
only by chance. Errors inside the engine show the group at which the deviation begins. Fusion barriers around that group
then prevent the kernel from being chosen. If a marked engine agrees with the simulation, its barriers are used instead,
halved as long as one half suffices.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.measure.engine_agreement import ACCUMULATION_GAP_DB, find_engine_divergence, sqnr_gap_of_engine_db
from trt_tui.core.measure.results import MARKED, Accuracy, EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import BarrierMove, RangeMove
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.network import Network
from trt_tui.core.search import SearchSpace
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import add_decibel_unit, counted_noun_text, decibels_text, name_list_text
from trt_tui.jobs.search_evaluator import SearchEvaluator
from trt_tui.jobs.steps import Steps

TRIAGE_REASON = "search:triage"
"""The reason stored in fusion barriers that the triage of a search has added."""


# -- latencies -------------------------------------------------------------------------------------------------------


def count_macs(network: NetworkOutline, group_names: Iterable[str]) -> dict[str, float]:
    """Returns the multiply-accumulates of some groups; 0 if they are unknown."""
    return {name: float(sum(network.get_layer(layer).macs or 0 for layer in network.get_group(name).layers))
            for name in group_names}


def list_group_times(engine: EngineResult, group_names: Iterable[str]) -> dict[str, float]:
    """Returns the time in ms of each group in an engine, without groups whose layers were not timed."""
    return {name: ms for name in group_names if name in engine.implementations
            and (ms := engine.implementations[name].latency_ms) is not None}


def config_without_ranges(config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config without its ranges and measured moves, which do not affect latency."""
    return config.without_moves(RangeMove).without_measured_moves()


@dataclass
class LatencyModel:
    """The latencies of configs, estimated from the engines of a search.

    The difference between the median latencies of the start engine and the engine with all candidates raised is divided
    among the raised groups. The division follows the differences of their engine layers' times, or the
    multiply-accumulates of the groups if layers were not timed. A group in an intermediate precision gets a fraction of
    its part, by the bytes of a value (`Precision.value_bytes`). The estimate is exact for every measured config.

    Attributes:
        measured: The latencies in ms of the engines built as requested, by `config_without_ranges`.
    """

    measured: dict[PrecisionConfig, float] = field(default_factory=dict)

    def fit(self, search_space: SearchSpace, start_engine: EngineResult, raised_engine: EngineResult) -> None:
        """Fits the model to two timed engines: that of the start config, and that with all candidates raised."""
        assert start_engine.latency_ms is not None and raised_engine.latency_ms is not None, "both are timed"
        self._search_space, names = search_space, search_space.candidates
        self._end_points = {0.0: start_engine.latency_ms[0], 1.0: raised_engine.latency_ms[0]}
        start_ms, raised_ms = list_group_times(start_engine, names), list_group_times(raised_engine, names)
        self._weights = {name: max(0.0, raised_ms[name] - start_ms[name]) if name in start_ms.keys() & raised_ms.keys()
                         else 0.0 for name in names}
        if not any(self._weights.values()):
            self._weights = count_macs(search_space.network, names)

    def estimate(self, config: PrecisionConfig) -> float:
        """Returns the latency of a config in ms."""
        if (measured_ms := self.measured.get(config_without_ranges(config))) is not None:
            return measured_ms
        measured_points = {self._raised_time_fraction(other): latency for other, latency in self.measured.items()}
        points = self._end_points | {fraction: latency for fraction, latency in measured_points.items()
                                     if 0.0 < fraction < 1.0}
        positions = sorted(points)
        return float(np.interp(self._raised_time_fraction(config), positions,
                               [points[position] for position in positions]))

    def _raised_time_fraction(self, config: PrecisionConfig) -> float:
        return sum(weight * self._raised_precision_fraction(name, config)
                   for name, weight in self._weights.items()) / (sum(self._weights.values()) or 1.0)

    def _raised_precision_fraction(self, group_name: str, config: PrecisionConfig) -> float:
        """Returns the fraction of the way from a group's start precision (0) to the highest precision (1), by bytes per
        value."""
        group, highest = self._search_space.network.get_group(group_name), self._search_space.higher_precision
        current, start = config.precision_of(group), self._search_space.start_config.precision_of(group)
        start_width, highest_width, current_width = (group.resolve_file_precision(precision).value_bytes
                                                     for precision in (start, highest, current))
        if highest_width <= start_width:
            return float(current is highest)
        return min(1.0, max(0.0, (current_width - start_width) / (highest_width - start_width)))


# -- triage ----------------------------------------------------------------------------------------------------------


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
