"""The engines that a search builds: their number, their latencies and accuracies, and latency estimates of other
configs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from trt_tui.core.engines.fallback_ladder import unrequested_precisions_text
from trt_tui.core.measure.results import EngineResult
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.target_outcome import judge_accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import RangeMove
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.search import SearchSpace
from trt_tui.errors import InputError
from trt_tui.formatting import milliseconds_text
from trt_tui.jobs.steps import Steps


class EngineProvider(Protocol):
    """The builds of engines for a search."""

    def build_engine(self, config: PrecisionConfig) -> Steps[EngineResult]:
        """Returns the engine of a config, measured as built; from the store if it was built before."""

    def build_engines_in_parallel(self, configs: Sequence[PrecisionConfig]) -> Steps[None]:
        """Builds the engines of several configs on workers and stores them; without workers nothing is built."""


class SearchBuilds:
    """The engines that one search has requested, with their latencies.

    Args:
        get_targets: A function that returns the tolerances for engines, with their baselines once these are measured.
        before_build: A function that is called before each build, which may crash the background process.

    Attributes:
        latencies: The latencies in ms of the engines built as requested, by `config_without_ranges`.
    """

    def __init__(self, provider: EngineProvider, get_targets: Callable[[], Sequence[Target]],
                 before_build: Callable[[], None]) -> None:
        self._provider, self._get_targets, self._before_build = provider, get_targets, before_build
        self._results: dict[PrecisionConfig, EngineResult] = {}
        self._requested: set[PrecisionConfig] = set()
        self.latencies: dict[PrecisionConfig, float] = {}

    @property
    def build_count(self) -> int:
        """The number of engines that this search has requested.

        Engines from the store count too, so that the steps of a search do not depend on stored results.
        """
        return len(self._requested)

    def has_requested_engine(self, config: PrecisionConfig) -> bool:
        return config in self._requested

    def get_engine(self, config: PrecisionConfig) -> Steps[EngineResult]:
        """Returns the engine of a config, and records its latency."""
        self._requested.add(config)
        self._before_build()
        engine = yield from self._provider.build_engine(config)
        self._results[config] = engine
        if engine.latency_ms is not None and engine.is_built_as_requested:
            self.latencies[config_without_ranges(config)] = engine.latency_ms[0]
        return engine

    def make_latency_estimator(self, search_space: SearchSpace,
                               remarks: list[str]) -> Steps[Callable[[PrecisionConfig], float]]:
        """Builds the engines of the start config and of the config with all candidates raised. Returns a latency
        estimator that is fitted to both.

        Args:
            remarks: A list to which remarks on the estimates are added.

        Raises:
            InputError: The latency of an engine was not measured.
        """
        all_raised = search_space.build_config(search_space.candidates)
        yield from self._provider.build_engines_in_parallel((search_space.start_config, all_raised))
        start_engine = yield from self.get_engine(search_space.start_config)
        raised_engine = yield from self.get_engine(all_raised)
        for name, engine in (("the start", start_engine), ("all raised", raised_engine)):
            if engine.latency_ms is None:
                raise InputError("latencies cannot be estimated",
                                 f"the engine of {name} was not timed: {engine.measurement_note}",
                                 "Leave the latency budget out, or use --max-fp32.")
            if not engine.is_built_as_requested:
                remarks.append(f"latencies are estimated from an engine of {name} that is not as requested: "
                               f"{_engine_deviation_text(engine)}")
        if search_space.intermediate:
            labels = " and ".join(precision.label for precision in search_space.intermediate)
            remarks.append(f"latencies with layers in {labels} are estimates between the engines of the start and "
                           "of all raised, by the bytes of a value, until engines with such layers are built")
        return fit_latency_estimator(search_space, start_engine, raised_engine, self.latencies)

    def deviating_engine_remark(self, engine: EngineResult) -> str:
        """Returns the remark on an engine that was not built as requested, and therefore does not confirm the result.
        """
        text = (
            f"TensorRT refuses the config as requested ({engine.attempts[0].failure_reason}) and built it with "
            f"{_engine_deviation_text(engine)}"
        )
        targets = self._get_targets()
        result = judge_accuracy(targets, engine.accuracy) if engine.accuracy is not None else None
        if engine.accuracy is None or result is None:
            return f"{text}: that engine is no confirmation"
        value_texts = ", ".join(target.measured_value_text(engine.accuracy) for target in targets)
        result_text = "meets" if result.passes else "does not meet"
        values = f" ({value_texts})" if value_texts else ""
        return f"{text}: that engine, which does not have the config of the result, {result_text} it{values}"

    def engine_result_texts(self, tried_configs: Sequence[PrecisionConfig]) -> dict[int, str]:
        """Returns the results of the built engines as texts, by the index of their config in ``tried_configs``."""
        texts: dict[int, str] = {}
        for config, engine in self._results.items():
            indices = [index for index, tried_config in enumerate(tried_configs) if tried_config == config]
            accuracy, latency = engine.accuracy, engine.latency_ms
            value_texts = [target.measured_value_text(accuracy)
                           for target in self._get_targets()] if accuracy is not None else []
            value_texts += [milliseconds_text(latency[0])] if latency is not None else []
            texts |= dict.fromkeys(indices, ", ".join(value_texts) or "not judged")
        return texts


def _engine_deviation_text(engine: EngineResult) -> str:
    deviation_text = unrequested_precisions_text(engine.other_precisions)
    return f"{engine.attempts[-1].description}; in another precision: {deviation_text}"


def config_without_ranges(config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config without its ranges and measured moves, which do not affect latency."""
    return config.without_moves(RangeMove).without_measured_moves()


def count_candidate_macs(search_space: SearchSpace, network: NetworkOutline | None = None) -> dict[str, float]:
    """Returns the multiply-accumulates of each candidate; 0 if they are unknown.

    Args:
        network: The outline with the sizes of the layers; None for the network of the search space.
    """
    groups = {name: search_space.network.get_group(name) for name in search_space.candidates}
    outline = search_space.network if network is None else network
    return {name: float(sum(outline.get_layer(layer).macs or 0 for layer in group.layers))
            for name, group in groups.items()}


def fit_latency_estimator(search_space: SearchSpace, start_engine: EngineResult, raised_engine: EngineResult,
                          measured_latencies: Mapping[PrecisionConfig, float]) -> Callable[[PrecisionConfig], float]:
    """Returns a function that estimates the latency of a config in ms from the engines of a search.

    The difference between the median latencies of the start engine and the engine with all candidates raised is divided
    among the raised groups. The division follows the differences of their engine layers' times, or the
    multiply-accumulates of the groups if layers were not timed. A group in an intermediate precision gets a fraction of
    its part, by the bytes of a value (`Precision.value_bytes`). The estimate is corrected so that it is exact for every
    config of ``measured_latencies`` (without ranges), which is read at each call.

    Raises:
        ValueError: The latency of one of the two engines was not measured.
    """
    if start_engine.latency_ms is None or raised_engine.latency_ms is None:
        raise ValueError("both engines must be timed")
    start_ms, raised_ms = start_engine.latency_ms[0], raised_engine.latency_ms[0]

    def measure_raise_cost_ms(group_name: str) -> float:
        start_ms_of_group, raised_ms_of_group = (engine.implementations[group_name].latency_ms
                                                 if group_name in engine.implementations else None
                                                 for engine in (start_engine, raised_engine))
        return max(0.0, raised_ms_of_group
                   - start_ms_of_group) if start_ms_of_group is not None and raised_ms_of_group is not None else 0.0

    weights = {name: measure_raise_cost_ms(name) for name in search_space.candidates}
    if not any(weights.values()):
        weights = count_candidate_macs(search_space)
    total = sum(weights.values()) or 1.0

    def raised_time_fraction(config: PrecisionConfig) -> float:
        return sum(value * _raised_precision_fraction(search_space, name, config)
                   for name, value in weights.items()) / total

    def estimate_latency(config: PrecisionConfig) -> float:
        if (measured_ms := measured_latencies.get(config_without_ranges(config))) is not None:
            return measured_ms
        points = {0.0: start_ms, 1.0: raised_ms}
        points |= {
            raised_time_fraction(other_config): latency
            for other_config, latency in measured_latencies.items()
            if 0.0 < raised_time_fraction(other_config) < 1.0
        }
        positions = sorted(points)
        return float(np.interp(raised_time_fraction(config), positions, [points[position] for position in positions]))

    return estimate_latency


def _raised_precision_fraction(search_space: SearchSpace, group_name: str, config: PrecisionConfig) -> float:
    """Returns the fraction of the way from a group's start precision (0) to the highest precision (1), by bytes per
    value."""
    group = search_space.network.get_group(group_name)
    start_width, highest_width, current_width = (group.resolve_file_precision(precision).value_bytes
                                                 for precision in (search_space.start_config.precision_of(group),
                                                                   search_space.higher_precision,
                                                                   config.precision_of(group)))
    if highest_width <= start_width:
        return float(config.precision_of(group) is search_space.higher_precision)
    return min(1.0, max(0.0, (current_width - start_width) / (highest_width - start_width)))
