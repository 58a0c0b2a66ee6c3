"""The latencies of configs in a search: those of built engines, and estimates between them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.measure.results import EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import RangeMove
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.search import SearchSpace


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
