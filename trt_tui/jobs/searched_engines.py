"""The engines that a search builds: how many, what they took, what they yield, and what a config between them takes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from trt_tui.core.engines.rungs import made_words
from trt_tui.core.measure.comparison import EngineResult
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.target_result import judge_accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import WIDTHS
from trt_tui.core.search import Space
from trt_tui.errors import InputError
from trt_tui.jobs.steps import Steps
from trt_tui.words import milliseconds


class Workshop(Protocol):
    """Builds what a search asks for."""

    def build(self, config: PrecisionConfig) -> Steps[EngineResult]:
        """Returns a config's engine, judged as built, from the store where it is known."""

    def ahead(self, configs: Sequence[PrecisionConfig]) -> Steps[int]:
        """Has other processes, where there are any, build configs at once whose engines are asked for next; returns how
        many that made."""


class Engines:
    """See the module's docstring.

    Args:
        targets: Returns the tolerances that engines are judged by, with their bases once these are measured.
        beforehand: Called before each build, which may end the child process.

    Attributes:
        times: Latencies of those that are as asked, in ms, by `timed_as`.
    """

    def __init__(self, workshop: Workshop, targets: Callable[[], Sequence[Target]], beforehand: Callable[[], None]
                 ) -> None:
        self._workshop, self._targets, self._beforehand = workshop, targets, beforehand
        self._results: dict[PrecisionConfig, EngineResult] = {}
        self._asked: set[PrecisionConfig] = set()
        self.times: dict[PrecisionConfig, float] = {}

    @property
    def builds(self) -> int:
        """How many engines this search has asked for. One that was built before counts too, so that a search takes the
        same course whatever is known."""
        return len(self._asked)

    def has(self, config: PrecisionConfig) -> bool:
        """Returns True if this search has asked for the engine of a config."""
        return config in self._asked

    def of(self, config: PrecisionConfig) -> Steps[EngineResult]:
        """Returns a config's engine."""
        self._asked.add(config)
        self._beforehand()
        engine = yield from self._workshop.build(config)
        self._results[config] = engine
        if engine.latency_ms is not None and engine.as_asked:
            self.times[timed_as(config)] = engine.latency_ms[0]
        return engine

    def estimate(self, space: Space, remarks: list[str]) -> Steps[Callable[[PrecisionConfig], float]]:
        """Builds both ends of a space; returns `latency_between` them.

        Args:
            remarks: What is said of the estimates is added to it.

        Raises:
            InputError: an engine was not timed.
        """
        every = space.config(space.candidates)
        yield from self._workshop.ahead((space.start, every))
        low = yield from self.of(space.start)
        high = yield from self.of(every)
        for name, end in (("the start", low), ("all raised", high)):
            if end.latency_ms is None:
                raise InputError("latencies cannot be estimated", f"the engine of {name} was not timed: {end.note}",
                                 "Leave the latency budget out, or use --max-fp32.")
            if not end.as_asked:
                remarks.append(f"latencies are estimated from an engine of {name} that is not as asked: "
                               f"{_otherwise(end)}")
        if space.between:
            labels = " and ".join(rung.label for rung in space.between)
            remarks.append(f"latencies with layers in {labels} are estimates between the engines of the start and "
                           "of all raised, by the bytes of a value, until engines with such layers are built")
        return latency_between(space, low, high, self.times)

    def unlike_asked(self, engine: EngineResult) -> str:
        """The remark on an engine that is not of the config found, and therefore confirms nothing."""
        said = f"TensorRT refuses the config as asked ({engine.rungs[0].failed}) and built it with {_otherwise(engine)}"
        targets = self._targets()
        result = judge_accuracy(targets, engine.verdict) if engine.verdict is not None else None
        if engine.verdict is None or result is None:
            return f"{said}: that engine confirms nothing"
        figures = ", ".join(target.measured(engine.verdict) for target in targets)
        met = "meets" if result.passes else "does not meet"
        return f"{said}: that engine, which is not of the config found, {met} it" + (f" ({figures})" if figures else "")

    def yielded(self, tried: Sequence[PrecisionConfig]) -> dict[int, str]:
        """What the engines yield that were built, by the places of their configs among those that were tried."""
        told: dict[int, str] = {}
        for config, engine in self._results.items():
            places = [place for place, one in enumerate(tried) if one == config]
            verdict, latency = engine.verdict, engine.latency_ms
            figures = [target.measured(verdict) for target in self._targets()] if verdict is not None else []
            figures += [milliseconds(latency[0])] if latency is not None else []
            told |= dict.fromkeys(places, ", ".join(figures) or "not judged")
        return told


def _otherwise(engine: EngineResult) -> str:
    return f"{engine.rungs[-1].said}; made otherwise: {made_words(engine.otherwise)}"


def timed_as(config: PrecisionConfig) -> PrecisionConfig:
    """A config without its ranges, which cost no time."""
    return config.without(RangeChoice).without_measured()


def macs_of(space: Space, network: Outline | None = None) -> dict[str, float]:
    """The multiply-accumulates of each candidate, as the network says or a given outline; 0 where they are unknown."""
    groups = {name: space.network.group(name) for name in space.candidates}
    outline = space.network if network is None else network
    return {name: float(sum(outline.layer(layer).macs or 0 for layer in group.layers))
            for name, group in groups.items()}


def latency_between(space: Space, low: EngineResult, high: EngineResult, measured: Mapping[PrecisionConfig, float]
                    ) -> Callable[[PrecisionConfig], float]:
    """An estimate of a config's latency in ms, from the engines of the start and of all raised, and from what others
    took.

    The difference of the two medians is divided among the raised groups: by the differences of their engine layers'
    times if layers were timed, else by their multiply-accumulates. A group on a rung between has as much of its part as
    the bytes of a value say (`trt_tui.core.precision.WIDTHS`). The estimate is corrected so that it is exact for
    every config of ``measured`` (without ranges), which is read at each call.

    Raises:
        ValueError: one of the two engines was not timed.
    """
    if low.latency_ms is None or high.latency_ms is None:
        raise ValueError("both engines have to be timed")
    least, most = low.latency_ms[0], high.latency_ms[0]

    def weight(name: str) -> float:
        before, after = (engine.made[name].ms if name in engine.made else None for engine in (low, high))
        return max(0.0, after - before) if before is not None and after is not None else 0.0

    weights = {name: weight(name) for name in space.candidates}
    if not any(weights.values()):
        weights = macs_of(space)
    total = sum(weights.values()) or 1.0

    def part(config: PrecisionConfig) -> float:
        return sum(value * _way(space, name, config) for name, value in weights.items()) / total

    def estimate(config: PrecisionConfig) -> float:
        if (known := measured.get(timed_as(config))) is not None:
            return known
        points = {0.0: least, 1.0: most}
        points |= {part(one): latency for one, latency in measured.items() if 0.0 < part(one) < 1.0}
        places = sorted(points)
        return float(np.interp(part(config), places, [points[place] for place in places]))

    return estimate


def _way(space: Space, name: str, config: PrecisionConfig) -> float:
    """How far a group is on its way from the start (0) to the highest rung (1), by the bytes of a value."""
    group = space.network.group(name)
    low, high, now = (WIDTHS[group.stands_for(precision)] for precision in (
        space.start.precision_of(group), space.higher, config.precision_of(group)))
    if high <= low:
        return float(config.precision_of(group) is space.higher)
    return min(1.0, max(0.0, (now - low) / (high - low)))
