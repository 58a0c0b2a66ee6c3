"""What a precision config does to a network: verdicts at the judged outputs.

`Analysis` holds the loaded gated session and the FP32 reference of the judged samples; `trt_tui.core.measure.shares`
and `trt_tui.core.measure.group_errors` use it. Everything that measures is a generator that yields what is known so
far: a caller can show that, and can stop between two runs by closing the generator.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Generic, Protocol, TypeVar

import numpy as np

from trt_tui.core.data.samples import SamplePosition, mix_samples_into_batches
from trt_tui.core.execution import Waitable
from trt_tui.core.measure.accuracy_reducer import AccuracyReducer
from trt_tui.core.measure.failed_runs import FailedRunOutputs, rounding_failure_error
from trt_tui.core.measure.fp16_range import find_fp16_overflows, make_fp16_range_caveats, uses_fp16
from trt_tui.core.measure.known_gaps import find_known_gap_caveats
from trt_tui.core.measure.magnitudes import MAX_STEPS_PER_FEED
from trt_tui.core.measure.results import Accuracy, Caveat
from trt_tui.core.measure.run_sources import IndexedRunSource, IterableRunSource, RunSource
from trt_tui.core.measure.runs import Run, RunKind
from trt_tui.core.measure.sample_dependence import SampleDependence, measure_sample_dependence
from trt_tui.core.measure.simulation import Simulation
from trt_tui.core.measure.tensor_cache import FeedCache, TensorCache
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.small_layers import has_many_small_layers
from trt_tui.core.precision import Precision

T = TypeVar("T")

MAX_FEEDS_MEASURED_FIRST = 16
"""With more feeds the first values of a network of many small layers do not wait for the magnitudes of all."""


@dataclass(frozen=True)
class PartialResult(Generic[T]):
    """What is known after one more run: ``done_count`` of ``total_count`` feeds (or groups) are measured."""

    value: T
    done_count: int
    total_count: int

    @property
    def is_final_result(self) -> bool:
        """Whether all of them are measured."""
        return self.done_count >= self.total_count


class Analysis(Simulation):
    """The simulation of one network on one set of samples: see `Simulation` for what it takes and raises."""

    def measure_accuracy(self, config: PrecisionConfig, ranges: Mapping[str, float],
                         feed_indices: Sequence[int] | None = None, *,
                         with_metric_interval: bool = False) -> Iterator[PartialResult[Accuracy]]:
        """Compares a simulated config with the reference; see `compare`.

        Raises:
            InputError: an INT8 layer's input has no range, or the metric fails.
        """
        for partial in self.compare(SimulatedConfig(self, config, ranges), feed_indices,
                                    with_metric_interval=with_metric_interval):
            assert isinstance(partial, PartialResult), "the simulation waits for nobody"
            yield partial

    def compare(self, source: RunSource, feed_indices: Sequence[int] | None = None, *,
                reference: IndexedRunSource | None = None, with_metric: bool = True, with_metric_interval: bool = True,
                with_caveats: bool = True) -> Iterator[PartialResult[Accuracy] | Waitable]:
        """Compares a run with a reference at the judged outputs that both have.

        Yields an `Accuracy` after each feed, of the feeds so far, and what has to be waited for in between. The last
        accuracy holds for all feeds.

        Args:
            reference: Another run; the reference that everything is judged by if None.
            with_metric: Compute the metric if the run yields all that it is given.
            with_metric_interval: Go on with the metric on draws of the samples: the same accuracy is yielded again
                after each draw, and in the end with the interval of the metric.
            with_caveats: Add the caveats of the run and of the reference to the last accuracy.

        Raises:
            TrtTuiError: the run yields no outputs, or the metric fails.
        """
        indices = self.resolve_feed_indices(feed_indices)
        tensors = source.available_tensors & (reference or source).available_tensors
        reducer = AccuracyReducer(
            self.samples, indices, [output for output in self.judged_outputs if output.tensor in tensors],
            reference.get_outputs if reference is not None else self.get_reference_outputs,
            classifier_output=self.classifier_output,
            metric_scorer=self._metric_scorer if with_metric and tensors >= {*self.metric_tensors} else None)
        done_count = 0
        for waitable in source.measure(reducer, indices):
            if waitable is not None:
                yield waitable
                continue
            done_count += 1
            accuracy = reducer.compute_accuracy(with_metric=done_count in (1, len(indices)))
            if done_count == len(indices) and with_caveats:
                accuracy = self.add_caveats(accuracy, indices, source.find_caveats(indices))
            yield PartialResult(accuracy, done_count, len(indices))
        for refined in reducer.resample_metric_interval(accuracy) if with_metric_interval and indices else ():
            yield PartialResult(refined, len(indices), len(indices))

    def find_config_caveats(self, config: PrecisionConfig, feed_indices: Sequence[int]) -> tuple[Caveat, ...]:
        """Returns the caveats of a simulated config: FP16's range on feeds, and known gaps to engines."""
        if self.is_regrouped:
            return ()
        gaps = find_known_gap_caveats(self.network, config)
        if not uses_fp16(self.network, config):
            return gaps
        magnitudes = self.get_magnitudes(feed_indices)
        if magnitudes is None:
            return (Caveat("unchecked range", "FP16's range was not checked on all samples"), *gaps)
        return (*make_fp16_range_caveats(find_fp16_overflows(self.network, config, magnitudes)), *gaps)

    def add_caveats(self, accuracy: Accuracy, feed_indices: Sequence[int],
                    config_caveats: Sequence[Caveat] = ()) -> Accuracy:
        """Joins all caveats of an accuracy that is measured on all of some feeds, and adds how much depends on samples.

        Args:
            config_caveats: Those of its config, in addition to those of the reference.
        """
        dependence = self._get_sample_dependence(tuple(feed_indices))
        meaningless = {
            name: replace(run, outputs={
                output: output_errors
                for output, output_errors in run.outputs.items()
                if output in accuracy.outputs
            })  # an engine may lack some of them
            for name, run in dependence.meaningless_accuracies.items()
        }
        outputs = {name: replace(output_errors, variation_db=dependence.variations_db.get(name))
                   for name, output_errors in accuracy.outputs.items()}
        return replace(
            accuracy, outputs=outputs, meaningless_accuracies=meaningless,
            caveats=(*accuracy.caveats, *config_caveats, *dependence.make_steady_output_caveats(list(outputs))))

    def _get_sample_dependence(self, feed_indices: tuple[int, ...]) -> SampleDependence:
        """How much the reference depends on the sample, measured once for some feeds."""
        if feed_indices not in self._dependences:
            single = sum(self.samples.count_samples_of_feed(index) for index in feed_indices) < 2
            self._dependences[feed_indices] = SampleDependence() if single else measure_sample_dependence(
                self.samples, feed_indices, self.judged_outputs, self.get_reference_outputs, self.classifier_output,
                self._metric_scorer)
        return self._dependences[feed_indices]

    def measure_noise_by_sample(
            self, config: PrecisionConfig, ranges: Mapping[str, float],
            feed_indices: Sequence[int] | None = None) -> Iterator[PartialResult[tuple[np.ndarray, np.ndarray]]]:
        """Yields after each feed what each sample adds to the judged error so far; see
        `BootstrapSampler.noise_and_signal_by_sample`.

        Raises:
            InputError: an INT8 layer's input has no range.
        """
        indices = self.resolve_feed_indices(feed_indices)
        reducer = AccuracyReducer(self.samples, indices, self.judged_outputs, self.get_reference_outputs)
        runs = self.execute_feeds(config, ranges, indices, compares_in_graph=True)
        for done, (index, (result, sums)) in enumerate(zip(indices, runs, strict=True), 1):
            reducer.add_feed_outputs(index, result, sums)
            yield PartialResult(reducer.noise_and_signal_by_sample(), done, len(indices))

    def copy_with_batches(self, sample_batches: Sequence[Sequence[SamplePosition]]) -> Analysis:
        """The same simulation on feeds of single samples (`mix_samples_into_batches`), without a metric, with the
        session loaded here.

        Errors are taken against what each sample yields in its own feed.
        """
        regrouped = copy.copy(self)
        regrouped.samples, regrouped._original, regrouped._sample_positions = mix_samples_into_batches(
            self.samples, sample_batches), self, tuple(sample_batches)
        regrouped.metric, regrouped._metric_scorer = None, None
        regrouped.fetched_tensors = tuple(dict.fromkeys(judged_output.tensor for judged_output in self.judged_outputs))
        regrouped._reference_slices, regrouped._reference_row_sums = {}, {}
        regrouped._dependences = {}
        regrouped._feed_cache = FeedCache(regrouped.samples, self.backend.capabilities.has_device)
        regrouped._fp32_cache, regrouped._reference_cache, regrouped._magnitudes = TensorCache(), TensorCache(), {}
        return regrouped

    def execute_config(self, config: PrecisionConfig, ranges: Mapping[str, float],
                       feed_indices: Sequence[int] | None = None) -> Iterator[dict[str, np.ndarray]]:
        """Yields ``fetched_tensors`` of a config, feed by feed: what is judged, what a metric is given, what was asked
        for.

        Raises:
            InputError: an INT8 layer's input has no range, or rounding makes the run fail.
        """
        for result, _ in self.execute_feeds(config, ranges, self.resolve_feed_indices(feed_indices)):
            if isinstance(result, FailedRunOutputs):
                raise rounding_failure_error(result.caveat.text)
            yield result

    def measure_reference_metric(self, feed_indices: Sequence[int] | None = None) -> dict[str, float]:
        """The metric of the reference and its parts, the headline first; {} without one.

        It is that of the network's own FP32 where the reference lacks what the metric is given.

        Raises:
            InputError: the metric fails.
        """
        if self._metric_scorer is None:
            return {}
        indices = self.resolve_feed_indices(feed_indices)
        return self._metric_scorer.compute_metric([self._get_metric_reference(i) for i in indices], indices)


class Fp32Run(IndexedRunSource):
    """The network in FP32, whatever errors are taken against."""

    def __init__(self, analysis: Analysis) -> None:
        run = Run("FP32", RunKind.SIMULATED_CONFIG, config=PrecisionConfig.from_precision(Precision.FP32))
        super().__init__(run, analysis.fetched_tensors)
        self._analysis = analysis

    def get_outputs(self, feed_index: int) -> Mapping[str, np.ndarray]:
        return self._analysis.get_fp32_outputs(feed_index)


class SimulatedConfig(IterableRunSource):
    """A config in the simulation.

    Args:
        name: The name of its row.

    Raises:
        InputError: an INT8 layer's input has no range.
    """

    def __init__(self, analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float],
                 name: str = "simulation") -> None:
        super().__init__(Run(name, RunKind.SIMULATED_CONFIG, config=config), analysis.fetched_tensors)
        self._analysis, self._config, self._ranges = analysis, config, ranges

    def iterate_outputs(self, feed_indices: Sequence[int]) -> Iterator[Mapping[str, np.ndarray]]:
        return self._analysis.execute_config(self._config, self._ranges, feed_indices)

    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[None]:
        """Adds sums that the graph computes where it can, and measures between two feeds what caveats need."""
        analysis = self._analysis
        executions = analysis.execute_feeds(self._config, self._ranges, feed_indices, compares_in_graph=True)
        with closing(self._measure_magnitudes(feed_indices)) as magnitude_steps:
            if len(feed_indices) <= MAX_FEEDS_MEASURED_FIRST and has_many_small_layers(analysis.network.model.graph):
                for _ in magnitude_steps:  # its session is freed before that of the runs is made
                    pass
            for done, (index, (outputs, sums)) in enumerate(zip(feed_indices, executions, strict=True), 1):
                reducer.add_feed_outputs(index, outputs, sums)
                if done == len(feed_indices):
                    for _ in magnitude_steps:
                        pass
                elif done > 1 and not analysis.samples.memory_fallbacks.has_freed_sessions:
                    for _ in islice(magnitude_steps, MAX_STEPS_PER_FEED):  # the first values do not wait
                        pass
                yield None

    def _measure_magnitudes(self, feed_indices: Sequence[int]) -> Generator[None, None, None]:
        """Measures the magnitudes that the caveats of the config need; yields after each execution.

        Regrouped samples serve shares, which are not judged: they need none.
        """
        if not self._analysis.is_regrouped and uses_fp16(self._analysis.network, self._config):
            yield from self._analysis.measure_magnitudes(feed_indices)

    def find_caveats(self, feed_indices: Sequence[int]) -> Sequence[Caveat]:
        return self._analysis.find_config_caveats(self._config, feed_indices)


class AnalysisProvider(Protocol):
    """What errands of the simulation need of a subject (`trt_tui.core.execution.Task`)."""

    @property
    def analysis(self) -> Analysis:
        """The simulation on the judged samples."""
