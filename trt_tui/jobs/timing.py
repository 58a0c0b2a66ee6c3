"""The latency of an engine: enqueued executions, executions as one CUDA graph, and both in each optimization profile.
"""

import statistics
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import numpy as np

from trt_tui.core.measure.results import ProfileLatency
from trt_tui.core.runner import EngineRunner, FixedShape
from trt_tui.errors import TrtTuiError
from trt_tui.jobs.engine_build import BuildProgress

WARM_UP_RUNS = 3
TIMED_RUNS = 50
"""The number of timed executions."""

LatencyTimes = tuple[float, float, float]
"""The median, minimum and maximum latency in milliseconds."""


@dataclass(frozen=True)
class EngineTiming:
    """The latencies of an engine.

    Attributes:
        latency_ms: The latency of enqueued executions; None if it could not be measured.
        graph_ms: The latency of executions as one CUDA graph; None if it could not be measured.
        profiles: The latencies in each optimization profile, if there are several.
        missing_parts: The measurements that failed, each with its reason.
    """

    latency_ms: LatencyTimes | None
    graph_ms: LatencyTimes | None
    profiles: tuple[ProfileLatency, ...]
    missing_parts: tuple[str, ...]


def time_engine(runner: EngineRunner, feed: Mapping[str, np.ndarray],
                sample_count: int) -> Generator[BuildProgress, None, EngineTiming]:
    """Measures the latencies of an engine, with inputs and outputs on the device. Yields the progress.

    Args:
        sample_count: The number of samples in the feed.
    """
    latency, graph, missing_parts = yield from _time_enqueue_and_cuda_graph(runner, feed)
    profiles: list[ProfileLatency] = []
    for index, profile in enumerate(runner.profiles):
        profile_feed = reshape_feed(feed, {name: opt_shape for name, (_, opt_shape, _) in profile.items()})
        runner.select_profile(index)
        try:
            enqueued, graph_times, missing = yield from _time_enqueue_and_cuda_graph(runner, profile_feed)
        finally:
            runner.select_profile(None)
        profiles.append(
            ProfileLatency(
                {
                    name: shapes
                    for name, shapes in profile.items()
                    if len({shape
                            for other_profile in runner.profiles
                            for shape in other_profile[name]}) > 1
                }, count_samples_of_reshaped_feed(feed, profile_feed, sample_count), enqueued, graph_times,
                "; ".join(missing)))
    return EngineTiming(latency, graph, tuple(profiles), missing_parts)


def _time_enqueue_and_cuda_graph(
    runner: EngineRunner, feed: Mapping[str, np.ndarray]
) -> Generator[BuildProgress, None, tuple[LatencyTimes | None, LatencyTimes | None, tuple[str, ...]]]:
    try:
        latency = yield from measure_latency(lambda: runner.latency_ms(feed))
    except TrtTuiError as error:
        return None, None, (f"its latency could not be measured: {error.title}",)
    try:
        graph = yield from measure_latency(lambda: runner.graph_latency_ms(feed))
    except TrtTuiError as error:
        return latency, None, (f"not timed as a CUDA graph: {error.cause or error.title}",)
    return latency, graph, ()


def measure_latency(time_run_ms: Callable[[], float]) -> Generator[BuildProgress, None, LatencyTimes]:
    """Measures the latency over `TIMED_RUNS` executions, after `WARM_UP_RUNS`. Yields the progress."""
    for _ in range(WARM_UP_RUNS):
        time_run_ms()
    times: list[float] = []
    while len(times) < TIMED_RUNS:
        times.append(time_run_ms())
        yield BuildProgress("timing", len(times), TIMED_RUNS)
    return (statistics.median(times), min(times), max(times))


def reshape_feed(feed: Mapping[str, np.ndarray], shapes: Mapping[str, FixedShape]) -> dict[str, np.ndarray]:
    """Returns a feed in other shapes. Along each axis the values are cut off or repeated, so that indices stay valid.
    """
    reshaped = dict(feed)
    for name, shape in shapes.items():
        array = feed[name]
        for axis, size in enumerate(shape):
            if array.shape[axis] != size:
                array = np.take(array, np.arange(size) % max(1, array.shape[axis]), axis=axis)
        reshaped[name] = np.ascontiguousarray(array)
    return reshaped


def count_samples_of_reshaped_feed(feed: Mapping[str, np.ndarray], reshaped_feed: Mapping[str, np.ndarray],
                                   sample_count: int) -> int:
    """Returns the number of samples in a reshaped feed, from the first axis of an input whose first axis counts the
    samples."""
    sizes = [len(reshaped_feed[name]) for name, array in feed.items() if array.ndim and len(array) == sample_count]
    return max(sizes, default=sample_count)
