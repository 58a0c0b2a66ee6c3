"""The comparison of precision configs and other runs with the reference, at the judged outputs.

`Analysis` holds the loaded gated graph and the FP32 reference of the judged samples. `trt_tui.core.measure.group_sweep`
and `trt_tui.core.measure.group_errors` use it. Every measuring function is a generator that yields partial results. A
caller can show each partial result, and can stop between two executions by closing the generator.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from trt_tui.core.data.batches import is_float
from trt_tui.core.data.samples import JudgedFeeds, SamplePosition, mix_samples_into_batches
from trt_tui.core.measure.accuracy_reducer import AccuracyReducer
from trt_tui.core.measure.fp16_range import (
    Fp16Overflow,
    Magnitudes,
    OverflowEffectMeasurement,
    find_worst_overflows,
    list_fp16_overflows,
    make_fp16_range_caveats,
    uses_fp16,
)
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.measure.results import (
    PARTLY_JUDGED_OUTPUT,
    RANDOM_INPUTS_CAVEAT,
    Accuracy,
    Caveat,
    Run,
    RunKind,
)
from trt_tui.core.measure.run_sources import IndexedRunSource, IterableRunSource, RunSource
from trt_tui.core.measure.simulation import SampleDependence, Simulation, measure_sample_dependence
from trt_tui.core.measure.simulation_limits import (
    FailedRunOutputs,
    find_known_gap_caveats,
    find_unsimulated_layer_caveats,
    make_unjudged_output_caveats,
    rounding_failure_error,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.small_layers import has_many_small_layers
from trt_tui.core.precision import Precision
from trt_tui.core.runner import Waitable

T = TypeVar("T")

MAX_FEEDS_MEASURED_FIRST = 16
"""The maximum number of feeds whose magnitudes are measured before a network of many small layers is executed. With
more feeds the magnitudes are measured between feeds, so that the first values do not wait for them."""


@dataclass(frozen=True)
class PartialResult(Generic[T]):
    """An intermediate result after ``done_count`` of ``total_count`` feeds (or groups) were measured."""

    value: T
    done_count: int
    total_count: int

    @property
    def is_final_result(self) -> bool:
        return self.done_count >= self.total_count


class Analysis(Simulation):
    """The simulation of one network on one set of samples, with comparisons against the reference.

    Arguments and errors are those of `Simulation`.
    """

    def measure_accuracy(
        self,
        config: PrecisionConfig,
        ranges: Mapping[str, float],
        feed_indices: Sequence[int] | None = None,
        *,
        with_metric_interval: bool = False,
    ) -> Iterator[PartialResult[Accuracy]]:
        """Yields the accuracy of a simulated config against the reference after each feed, as `compare` does.

        Raises:
            InputError: an input of an INT8 layer has no range, or the metric fails.
        """
        for partial in self.compare(
            SimulatedConfig(self, config, ranges), feed_indices, with_metric_interval=with_metric_interval
        ):
            assert isinstance(partial, PartialResult), "the simulation waits for nobody"
            yield partial

    def compare(
        self,
        source: RunSource,
        feed_indices: Sequence[int] | None = None,
        *,
        reference: IndexedRunSource | None = None,
        with_metric: bool = True,
        with_metric_interval: bool = True,
        with_caveats: bool = True,
    ) -> Iterator[PartialResult[Accuracy] | Waitable]:
        """Compares a run with a reference at the judged outputs that both have.

        Yields an `Accuracy` of the feeds so far after each feed, and in between each `Waitable` that the run waits for.
        The last accuracy covers all feeds.

        Feeds that are only searched for NaN and Inf (`JudgedFeeds.searched_feeds`) come before the last judged feed.

        Args:
            reference: Another run as the reference. None for the reference of the simulation.
            with_metric: Compute the metric if the run yields all tensors that the metric needs.
            with_metric_interval: Continue with the metric on bootstrap draws of the samples. The same accuracy is
                yielded again after each draw, and at the end with the interval of the metric.
            with_caveats: Add the caveats of the run and of the reference to the last accuracy.

        Raises:
            TrtTuiError: the run yields no outputs, or the metric fails.
        """
        indices = self.resolve_feed_indices(feed_indices)
        feeds = feed_indices if isinstance(feed_indices, JudgedFeeds) else JudgedFeeds(indices)
        executed = [*indices[:-1], *feeds.searched_feeds, *indices[-1:]]
        tensors = source.available_tensors & (reference or source).available_tensors
        reducer = AccuracyReducer(
            self.samples,
            indices,
            [output for output in self.judged_outputs if output.tensor in tensors],
            reference.get_outputs if reference is not None else self.get_reference_outputs,
            compared_feeds=feeds.compared_feeds,
            classifier_output=self.classifier_output,
            metric_scorer=self._metric_scorer if with_metric and tensors >= {*self.metric_tensors} else None,
        )
        done_count = 0
        for waitable in source.measure(reducer, executed):
            if waitable is not None:
                yield waitable
                continue
            done_count += 1
            accuracy = reducer.compute_accuracy(with_metric=done_count in (1, len(executed)))
            if done_count == len(executed) and with_caveats:
                lacking = {
                    output.tensor: f"{source.run.name} lacks it"
                    for output in self.judged_outputs
                    if output.tensor not in tensors and output.tensor in list_tensor_outputs(self.network)
                }
                accuracy = self.add_caveats(
                    accuracy,
                    indices,
                    (
                        *make_unjudged_output_caveats(self.unjudged_outputs | lacking),
                        *make_unjudged_output_caveats(self.partly_judged_outputs, PARTLY_JUDGED_OUTPUT),
                        *source.find_caveats(executed),
                    ),
                )
            yield PartialResult(accuracy, done_count, len(executed))
        for refined in reducer.resample_metric_interval(accuracy) if with_metric_interval and indices else ():
            yield PartialResult(refined, len(executed), len(executed))

    def find_config_caveats(self, config: PrecisionConfig, feed_indices: Sequence[int]) -> tuple[Caveat, ...]:
        """Returns the caveats of a simulated config: moves whose equality in FP32 has limits, FP16 overflows on some
        feeds, layers that are not simulated, and known gaps between simulation and engine."""
        if self.has_regrouped_batches:
            return ()
        gaps = (
            *(Caveat("data dependent", text) for text in config.list_fp32_difference_reasons(self.network)),
            *find_unsimulated_layer_caveats(self.network, config),
            *find_known_gap_caveats(self.network, config),
        )
        if not uses_fp16(self.network, config):
            return gaps
        magnitudes = self.get_magnitudes(feed_indices)
        if magnitudes is None:
            return (Caveat("unchecked range", "FP16's range was not checked on all samples"), *gaps)
        return (*make_fp16_range_caveats(self.find_fp16_overflows(config, magnitudes, feed_indices)), *gaps)

    def find_fp16_overflows(
        self, config: PrecisionConfig, magnitudes: Magnitudes, feed_indices: Sequence[int]
    ) -> dict[str, Fp16Overflow]:
        """Returns the worst value of each group that FP16 rounds to infinity on some feeds, by group name.

        If there are such values, the network is executed once more for each feed, to find out whether they change a
        judged output.
        """
        overflows = list_fp16_overflows(self.network, config, magnitudes)
        return find_worst_overflows(self._overflow_effect.mark_harmless_overflows(overflows, feed_indices))

    @cached_property
    def _overflow_effect(self) -> OverflowEffectMeasurement:
        return OverflowEffectMeasurement(self)

    def close(self) -> None:
        """Frees the inference sessions and the reference."""
        super().close()
        self._overflow_effect.unload_session()

    def add_caveats(
        self, accuracy: Accuracy, feed_indices: Sequence[int], config_caveats: Sequence[Caveat] = ()
    ) -> Accuracy:
        """Returns an accuracy with all its caveats, and with the dependence of the reference on the sample.

        The accuracy must cover all of the feeds.

        Args:
            config_caveats: The caveats of the config, in addition to the caveats of the reference.
        """
        dependence = self._get_sample_dependence(tuple(feed_indices))
        meaningless = {
            name: replace(
                run,
                outputs={
                    output: output_errors for output, output_errors in run.outputs.items() if output in accuracy.outputs
                },
            )  # an engine may lack some of the outputs
            for name, run in dependence.meaningless_accuracies.items()
        }
        outputs = {
            name: replace(output_errors, variation_db=dependence.variations_db.get(name))
            for name, output_errors in accuracy.outputs.items()
        }
        data_caveats = (RANDOM_INPUTS_CAVEAT,) if self.samples.is_random else ()
        return replace(
            accuracy,
            outputs=outputs,
            meaningless_accuracies=meaningless,
            caveats=(
                *accuracy.caveats,
                *config_caveats,
                *data_caveats,
                *dependence.make_output_caveats(accuracy),
            ),
        )

    def _get_sample_dependence(self, feed_indices: tuple[int, ...]) -> SampleDependence:
        """Returns the dependence of the reference on the sample over some feeds, which is measured only once."""
        if feed_indices not in self._dependences:
            single = sum(self.samples.count_samples_of_feed(index) for index in feed_indices) < 2
            self._dependences[feed_indices] = (
                SampleDependence()
                if single
                else measure_sample_dependence(
                    self.samples,
                    feed_indices,
                    self.judged_outputs,
                    self.get_reference_outputs,
                    self.classifier_output,
                    self._metric_scorer,
                )
            )
        return self._dependences[feed_indices]

    def measure_noise_by_sample(
        self, config: PrecisionConfig, ranges: Mapping[str, float], feed_indices: Sequence[int] | None = None
    ) -> Iterator[PartialResult[tuple[np.ndarray, np.ndarray]]]:
        """Yields the noise (squared error) and the signal energy of each sample at the judged outputs, after each feed.

        The arrays are those of `BootstrapSampler.noise_and_signal_by_sample`, over the feeds so far.

        Raises:
            InputError: an input of an INT8 layer has no range.
        """
        indices = self.resolve_feed_indices(feed_indices)
        reducer = AccuracyReducer(self.samples, indices, self.judged_outputs, self.get_reference_outputs)
        runs = self.execute_feeds(config, ranges, indices, compares_in_graph=True)
        for done, (index, (result, sums)) in enumerate(zip(indices, runs, strict=True), 1):
            reducer.add_feed_outputs(index, result, sums)
            yield PartialResult(reducer.bootstrap_sampler.noise_and_signal_by_sample(), done, len(indices))

    def copy_with_batches(self, sample_batches: Sequence[Sequence[SamplePosition]]) -> Analysis:
        """Returns a copy of this simulation in which the samples are grouped into other batches.

        The copy shares the loaded inference session and has no metric. Its errors are computed against the outputs of
        each sample in its original feed.

        Args:
            sample_batches: The samples of each new feed, see `mix_samples_into_batches`.
        """
        regrouped = copy.copy(self)
        regrouped.samples, regrouped._original, regrouped._sample_positions = (
            mix_samples_into_batches(self.samples, sample_batches),
            self,
            tuple(sample_batches),
        )
        regrouped.metric, regrouped._metric_scorer = None, None
        regrouped.fetched_tensors = tuple(dict.fromkeys(judged_output.tensor for judged_output in self.judged_outputs))
        regrouped.__dict__.pop("_overflow_effect", None)
        regrouped._clear_caches_of_feeds()
        return regrouped

    def execute_config(
        self, config: PrecisionConfig, ranges: Mapping[str, float], feed_indices: Sequence[int] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the outputs (``fetched_tensors``) of a simulated config, feed by feed.

        The fetched tensors are the judged tensors, the tensors that the metric needs, and the requested extra tensors.

        Raises:
            InputError: an input of an INT8 layer has no range, or rounding makes the execution fail.
        """
        for result, _ in self.execute_feeds(config, ranges, self.resolve_feed_indices(feed_indices)):
            if isinstance(result, FailedRunOutputs):
                raise rounding_failure_error(result.caveat.text)
            yield result

    def make_fp32_run(self) -> IndexedRunSource:
        """Returns the run of the network in FP32, also if the reference is something else."""
        run = Run("FP32", RunKind.SIMULATED_CONFIG, config=PrecisionConfig.from_precision(Precision.FP32))
        return IndexedRunSource(run, self.fetched_tensors, self.get_fp32_outputs)

    def make_rounded_reference(self) -> IndexedRunSource:
        """Returns the reference, rounded to the 16-bit types in which the network declares outputs."""
        half_types = {
            info.name: info.dtype for info in self.network.outputs if is_float(info.dtype) and info.dtype.itemsize < 4
        }

        def round_outputs(feed_index: int) -> Mapping[str, np.ndarray]:
            with np.errstate(over="ignore"):
                return {
                    name: array.astype(half_types[name]).astype(array.dtype) if name in half_types else array
                    for name, array in self.get_reference_outputs(feed_index).items()
                }

        return IndexedRunSource(Run("reference", RunKind.NETWORK_FILE), self.fetched_tensors, round_outputs)

    def measure_reference_metric(self, feed_indices: Sequence[int] | None = None) -> dict[str, float]:
        """Returns the metric of the reference and its parts, headline first; {} without a metric.

        If the reference lacks a tensor that the metric needs, the metric is that of the network in FP32.

        Raises:
            InputError: the metric fails.
        """
        if self._metric_scorer is None:
            return {}
        indices = self.resolve_feed_indices(feed_indices)
        return self._metric_scorer.compute_reference_metric(indices)


class SimulatedConfig(IterableRunSource):
    """The source of the outputs of a precision config in the simulation.

    Args:
        name: The name in tables, where the config has one row.

    Raises:
        InputError: an input of an INT8 layer has no range.
    """

    def __init__(
        self, analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float], name: str = "simulation"
    ) -> None:
        super().__init__(Run(name, RunKind.SIMULATED_CONFIG, config=config), analysis.fetched_tensors)
        self._analysis, self._config, self._ranges = analysis, config, ranges

    def iterate_outputs(self, feed_indices: Sequence[int]) -> Iterator[Mapping[str, np.ndarray]]:
        return self._analysis.execute_config(self._config, self._ranges, feed_indices)

    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[None]:
        """Implements `RunSource.measure` with error sums that the graph computes itself if it can.

        Between two feeds, the magnitudes are measured that the caveats of the config need.
        """
        analysis = self._analysis
        executions = analysis.execute_feeds(self._config, self._ranges, feed_indices, compares_in_graph=True)
        with closing(self._measure_magnitudes(feed_indices)) as magnitude_steps:
            if len(feed_indices) <= MAX_FEEDS_MEASURED_FIRST and has_many_small_layers(analysis.network.model.graph):
                for _ in magnitude_steps:  # frees its inference session before that of the simulation is loaded
                    pass
            for done, (index, (outputs, sums)) in enumerate(zip(feed_indices, executions, strict=True), 1):
                reducer.add_feed_outputs(index, outputs, sums)
                if done == len(feed_indices):
                    for _ in magnitude_steps:
                        pass
                elif done > 1 and not analysis.samples.memory_fallbacks.has_freed_sessions:
                    next(magnitude_steps, None)  # the first values do not wait
                yield None

    def _measure_magnitudes(self, feed_indices: Sequence[int]) -> Generator[None, None, None]:
        """Measures the FP32 magnitudes from which FP16 overflow is predicted; yields after each execution.

        Nothing is measured on regrouped samples: these serve error shares, which have no caveats.
        """
        if not self._analysis.has_regrouped_batches and uses_fp16(self._analysis.network, self._config):
            yield from self._analysis.measure_magnitudes(feed_indices)

    def find_caveats(self, feed_indices: Sequence[int]) -> Sequence[Caveat]:
        return self._analysis.find_config_caveats(self._config, feed_indices)
