"""How fast an engine is: runs that are enqueued, runs that are one CUDA graph, and both in each of several profiles."""

import statistics
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import numpy as np

from trt_tui.core.measure.comparison import ProfileTimes
from trt_tui.core.runner import EngineRunner, FixedShape
from trt_tui.errors import TrtTuiError
from trt_tui.jobs.engine_building import BuildProgress

WARM_UPS = 3
TIMED_RUNS = 50
"""Timing ends after so many runs."""

Times = tuple[float, float, float]
"""Median, minimum and maximum in milliseconds."""


@dataclass(frozen=True)
class Timing:
    """How fast an engine is.

    Attributes:
        latency_ms: Of runs that were enqueued; ``graph_ms`` as one CUDA graph each; None where that failed.
        profiles: In each profile, where there are several.
        lacking: What could not be measured, and why.
    """

    latency_ms: Times | None
    graph_ms: Times | None
    profiles: tuple[ProfileTimes, ...]
    lacking: tuple[str, ...]


def timed(runner: EngineRunner, feed: Mapping[str, np.ndarray], rows: int) -> Generator[BuildProgress, None, Timing]:
    """Yields steps; returns how fast an engine is, inputs and outputs staying on the device.

    Args:
        rows: How many samples the feed has.
    """
    latency, graph, lacking = yield from _both(runner, feed)
    profiles: list[ProfileTimes] = []
    for index, profile in enumerate(runner.profiles):
        there = at_shapes(feed, {name: usual for name, (_, usual, _) in profile.items()})
        runner.use_profile(index)
        try:
            enqueued, as_graph, missing = yield from _both(runner, there)
        finally:
            runner.use_profile(None)
        profiles.append(ProfileTimes(
            {name: shapes for name, shapes in profile.items()
             if len({shape for one in runner.profiles for shape in one[name]}) > 1},
            samples_of(feed, there, rows), enqueued, as_graph, "; ".join(missing)))
    return Timing(latency, graph, tuple(profiles), lacking)


def _both(runner: EngineRunner, feed: Mapping[str, np.ndarray]
          ) -> Generator[BuildProgress, None, tuple[Times | None, Times | None, tuple[str, ...]]]:
    try:
        latency = yield from measured_latency(lambda: runner.latency_ms(feed))
    except TrtTuiError as error:
        return None, None, (f"its latency could not be measured: {error.title}",)
    try:
        graph = yield from measured_latency(lambda: runner.graph_latency_ms(feed))
    except TrtTuiError as error:
        return latency, None, (f"not timed as a CUDA graph: {error.cause or error.title}",)
    return latency, graph, ()


def measured_latency(run_ms: Callable[[], float]) -> Generator[BuildProgress, None, Times]:
    """Yields steps; returns what some runs take."""
    for _ in range(WARM_UPS):
        run_ms()
    times: list[float] = []
    while len(times) < TIMED_RUNS:
        times.append(run_ms())
        yield BuildProgress("timing", len(times), TIMED_RUNS)
    return (statistics.median(times), min(times), max(times))


def at_shapes(feed: Mapping[str, np.ndarray], shapes: Mapping[str, FixedShape]) -> dict[str, np.ndarray]:
    """A feed in other shapes: along each axis the values that it has, cut off or repeated, so that indices stay valid.
    """
    found = dict(feed)
    for name, shape in shapes.items():
        array = feed[name]
        for axis, size in enumerate(shape):
            if array.shape[axis] != size:
                array = np.take(array, np.arange(size) % max(1, array.shape[axis]), axis=axis)
        found[name] = np.ascontiguousarray(array)
    return found


def samples_of(feed: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], rows: int) -> int:
    """How many samples a feed in other shapes has, by the first axis of an input that has the samples on it."""
    sizes = [len(other[name]) for name, array in feed.items() if array.ndim and len(array) == rows]
    return max(sizes, default=rows)
