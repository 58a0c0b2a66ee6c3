"""The engines that a search builds: how many, what they took, what they yield, and what a config between them takes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from trt_tui.core.engines.fallback_ladder import unrequested_precisions_text
from trt_tui.core.measure.results import EngineResult
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.target_outcome import judge_accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.search import SearchSpace
from trt_tui.errors import InputError
from trt_tui.formatting import milliseconds_text
from trt_tui.jobs.steps import Steps


class EngineProvider(Protocol):
    """Builds what a search asks for."""

    def build_engine(self, config: PrecisionConfig) -> Steps[EngineResult]:
        """Returns a config's engine, judged as built, from the store where it is known."""

    def build_engines_in_parallel(self, configs: Sequence[PrecisionConfig]) -> Steps[int]:
        """Has other processes, where there are any, build configs at once whose engines are asked for next; returns how
        many that made."""


class SearchBuilds:
    """See the module's docstring.

    Args:
        get_targets: Returns the tolerances that engines are judged by, with their bases once these are measured.
        before_build: Called before each build, which may end the child process.

    Attributes:
        latencies: Latencies of those that are as asked, in ms, by `config_without_ranges`.
    """

    def __init__(self, provider: EngineProvider, get_targets: Callable[[], Sequence[Target]],
                 before_build: Callable[[], None]) -> None:
        self._provider, self._get_targets, self._before_build = provider, get_targets, before_build
        self._results: dict[PrecisionConfig, EngineResult] = {}
        self._requested: set[PrecisionConfig] = set()
        self.latencies: dict[PrecisionConfig, float] = {}

    @property
    def build_count(self) -> int:
        """How many engines this search has asked for. One that was built before counts too, so that a search takes the
        same course whatever is known."""
        return len(self._requested)

    def has_requested_engine(self, config: PrecisionConfig) -> bool:
        """Returns True if this search has asked for the engine of a config."""
        return config in self._requested

    def get_engine(self, config: PrecisionConfig) -> Steps[EngineResult]:
        """Returns a config's engine."""
        self._requested.add(config)
        self._before_build()
        engine = yield from self._provider.build_engine(config)
        self._results[config] = engine
        if engine.latency_ms is not None and engine.is_built_as_requested:
            self.latencies[config_without_ranges(config)] = engine.latency_ms[0]
        return engine

    def make_latency_estimator(self, search_space: SearchSpace,
                               remarks: list[str]) -> Steps[Callable[[PrecisionConfig], float]]:
        """Builds both ends of a space; returns `fit_latency_estimator` them.

        Args:
            remarks: What is said of the estimates is added to it.

        Raises:
            InputError: an engine was not timed.
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
        """The remark on an engine that is not of the config found, and therefore confirms nothing."""
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
        return f"{text}: that engine, which has not the config of the result, {result_text} it" + (f" ({value_texts})"
                                                                                             if value_texts else "")

    def engine_result_texts(self, tried_configs: Sequence[PrecisionConfig]) -> dict[int, str]:
        """What the engines yield that were built, by the places of their configs among those that were tried."""
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
    """A config without its ranges, which cost no time."""
    return config.without_moves(RangeMove).without_measured_moves()


def count_candidate_macs(search_space: SearchSpace, network: NetworkOutline | None = None) -> dict[str, float]:
    """The multiply-accumulates of each candidate, as the network says or a given outline; 0 where they are unknown."""
    groups = {name: search_space.network.get_group(name) for name in search_space.candidates}
    outline = search_space.network if network is None else network
    return {name: float(sum(outline.get_layer(layer).macs or 0 for layer in group.layers))
            for name, group in groups.items()}


def fit_latency_estimator(search_space: SearchSpace, start_engine: EngineResult, raised_engine: EngineResult,
                          measured_latencies: Mapping[PrecisionConfig, float]) -> Callable[[PrecisionConfig], float]:
    """An estimate of a config's latency in ms, from the engines of the start and of all raised, and from what others
    took.

    The difference of the two medians is divided among the raised groups: by the differences of their engine layers'
    times if layers were timed, else by their multiply-accumulates. A group on a rung between has as much of its part as
    the bytes of a value say (`Precision.value_bytes`). The estimate is corrected so that it is exact
    for every config of ``measured_latencies`` (without ranges), which is read at each call.

    Raises:
        ValueError: one of the two engines was not timed.
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
    """How far a group is on its way from the start (0) to the highest rung (1), by the bytes of a value."""
    group = search_space.network.get_group(group_name)
    start_width, highest_width, current_width = (group.resolve_file_precision(precision).value_bytes
                                                 for precision in (search_space.start_config.precision_of(group),
                                                                   search_space.higher_precision,
                                                                   config.precision_of(group)))
    if highest_width <= start_width:
        return float(config.precision_of(group) is search_space.higher_precision)
    return min(1.0, max(0.0, (current_width - start_width) / (highest_width - start_width)))
