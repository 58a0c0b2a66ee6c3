"""The prediction of the latency of configs from profiles of one or two engines (`search --costs`).

The time of a fusion group is known in the precision of each profiled engine. Between two measured precisions the time
is interpolated by the bytes of a value (`Precision.value_bytes`). Beyond them it is proportional to these bytes, as
memory traffic and the time of tensor cores are. A group that takes less time in a higher precision counts as equally
fast in both, so no raise is predicted to save time. All other time, such as that of reformats, is that of the first
profile.
"""

from collections.abc import Sequence

import numpy as np

from trt_tui.core.engines.group_implementations import is_unrequested_precision
from trt_tui.core.engines.group_times import GroupTimes
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.search.space import SearchSpace


class LatencyPrediction:
    """A prediction of the latencies of configs of one network.

    Args:
        group_times: The times in the engine of the start config; then, if known, in that with all groups raised.
        start_config: The config of the first engine.
        higher_precision: The precision in the second engine of all groups that a search can raise to it. A graph beside
            a profile corrects the precisions of both engines.
    """

    def __init__(self, network: NetworkOutline, group_times: Sequence[GroupTimes], start_config: PrecisionConfig,
                 higher_precision: Precision) -> None:
        self.group_times = tuple(group_times)
        self._start_config, self._higher_precision = start_config, higher_precision
        self._network = network
        self._points = {group.name: self._measured_points(group) for group in network.groups}

    def _engine_precision(self, group: FusionGroup, engine_index: int) -> Precision:
        """Returns the precision of a group in a profiled engine: that of its config, unless the graph shows another."""
        precision = self._start_config.precision_of(group)
        if engine_index > 0 and self._higher_precision in group.allowed_precisions and group.precision_rank(
                precision) < group.precision_rank(self._higher_precision):
            precision = self._higher_precision
        implementation = self.group_times[engine_index].implementations.get(group.name)
        if implementation is None or not is_unrequested_precision(group, precision, implementation):
            return precision
        return implementation.implemented_precision(precision) or precision

    def _measured_points(self, group: FusionGroup) -> list[tuple[float, float]]:
        """Returns pairs of bytes per value and milliseconds of a group, both increasing."""
        ms_by_bytes: dict[float, float] = {}
        for engine_index, times in enumerate(self.group_times):
            value_bytes = _value_bytes(group, self._engine_precision(group, engine_index))
            ms_by_bytes.setdefault(value_bytes, times.ms_by_group[group.name])
        points, longest_ms = [], 0.0
        for value_bytes in sorted(ms_by_bytes):
            longest_ms = max(longest_ms, ms_by_bytes[value_bytes])
            points.append((value_bytes, longest_ms))
        return points

    def _predict_group_ms(self, group: FusionGroup, precision: Precision) -> float:
        points, value_bytes = self._points[group.name], _value_bytes(group, precision)
        if value_bytes <= points[0][0]:
            return points[0][1] * value_bytes / points[0][0]
        if value_bytes >= points[-1][0]:
            return points[-1][1] * value_bytes / points[-1][0]
        return float(np.interp(value_bytes, [point[0] for point in points], [point[1] for point in points]))

    def predict_ms(self, config: PrecisionConfig) -> float:
        """Returns the predicted latency of a config in ms."""
        first = self.group_times[0]
        return first.total_ms + sum(
            self._predict_group_ms(group, config.precision_of(group)) - first.ms_by_group[group.name]
            for group in self._network.groups)

    def predict_raise_costs(self, search_space: SearchSpace) -> dict[str, float]:
        """Returns the predicted milliseconds that each candidate of a search costs if it is raised."""
        groups = {name: self._network.get_group(name) for name in search_space.candidates}
        return {
            name: self._predict_group_ms(group, search_space.higher_precision)
            - self._predict_group_ms(group, search_space.start_config.precision_of(group))
            for name, group in groups.items()
        }

    def basis_texts(self) -> list[str]:
        """Returns the sources of the prediction as texts for users, one for each profile."""
        titles = ("the start", f"all layers in {self._higher_precision.label}")
        texts = [f"{times.match_text}; taken as the engine of {title}"
                 + (f", except where {times.graph_name} shows another precision" if times.graph_name else "")
                 for times, title in zip(self.group_times, titles, strict=False)]
        first, last = self.group_times[0], self.group_times[-1]
        if last.total_ms < first.total_ms:
            texts.append(f"{last.profile_name} takes less time than {first.profile_name}: check their order; the "
                         "profile of the start comes first")
        return texts


def _value_bytes(group: FusionGroup, precision: Precision) -> float:
    return group.resolve_file_precision(precision).value_bytes
