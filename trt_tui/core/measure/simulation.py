"""The simulation of a network: the loaded gated graph, the feeds, and the reference of the judged samples.

A gated graph has several forms, from the fastest one to the one that takes the least memory.

A gate is the runtime input that selects the precision of a group. If memory runs out, the next form is used. On a CPU
gates are control flow, which computes only the selected branch. A network of very many small layers has gates as data
on a CPU too, because such a session takes a quarter of the memory.

The simulation also measures how much the reference depends on the sample, and the accuracy of meaningless outputs.

A pass proves little if outputs that have nothing to do with their inputs pass as well. Two values show this. Both
depend only on the network and the data, so they are measured once for all configs:
- The variation of an output is the energy of its deviations from their mean over the samples, relative to its whole
  energy. An SQNR far above the variation is mostly the SQNR of a constant.
- The shuffled run gives each sample the reference's outputs of another sample. A metric is also computed on the
  reference's values in random order. A reference on wrong inputs may score no better than that.

`Analysis` compares precision configs and other runs with the reference at the judged outputs.
`trt_tui.core.measure.group_sweep` and `trt_tui.core.measure.group_errors` use it. Every measuring function is a
generator that yields partial results. A caller can show each partial result, and can stop between two executions by
closing the generator.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Generic, TypeVar

import numpy as np

from trt_tui.core.calibration.tensor_collection import REMEDY, find_first_non_finite_value
from trt_tui.core.data.adaptive_runner import AdaptiveRunner, OutputJoin
from trt_tui.core.data.batches import is_float
from trt_tui.core.data.memory_fallbacks import HOST_MODE
from trt_tui.core.data.samples import JudgedFeeds, SamplePosition, Samples, mix_samples_into_batches
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.lowering.gated.error_sums import ComparedTensor
from trt_tui.core.lowering.gated.gated_graph import GatedGraph
from trt_tui.core.lowering.rulebook import HALF_PRECISIONS, GatedFeatures
from trt_tui.core.measure.error_metrics import (
    ERROR_METRICS,
    MIN_SAMPLES,
    flatten_each_sample,
    pair_each_sample_with_another,
)
from trt_tui.core.measure.fp16_range import (
    Fp16Overflow,
    JudgedNetwork,
    Magnitudes,
    MagnitudeTask,
    OverflowEffectMeasurement,
    find_worst_overflows,
    list_fp16_overflows,
    make_fp16_range_caveats,
    uses_fp16,
)
from trt_tui.core.measure.judged_outputs import (
    FLOAT_KIND,
    INTEGER_KIND,
    JudgedOutput,
    find_class_score_output,
    find_common_mask_name,
    find_judged_inner_tensors,
    find_mask_axes,
    find_unjudged_output_reasons,
    find_unmasked_elements,
    list_tensor_outputs,
    refuse_nan_in_judged_tensors,
    take_judged_slice,
)
from trt_tui.core.measure.piecewise_runner import PiecewiseRunner
from trt_tui.core.measure.results import (
    DECISIVE_SAMPLES,
    PARTLY_JUDGED_OUTPUT,
    RANDOM_INPUTS_CAVEAT,
    STEADY_OUTPUT,
    Accuracy,
    Caveat,
    Run,
    RunKind,
)
from trt_tui.core.measure.run_sources import (
    FEED_CACHE_BYTES,
    AccuracyReducer,
    IndexedRunSource,
    IterableRunSource,
    RunSource,
    TensorCache,
    convert_to_comparable_array,
)
from trt_tui.core.measure.simulation_limits import (
    FailedRunOutputs,
    find_known_gap_caveats,
    find_unsimulated_layer_caveats,
    is_entirely_fp32,
    make_unjudged_output_caveats,
    refuse_undeclared_output_sizes,
    rounding_failure_error,
    run_failure_caveat,
)
from trt_tui.core.measure.user_metric import SHUFFLED, Metric, MetricScorer
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.network.small_layers import collect_garbage_and_trim_memory, has_many_small_layers
from trt_tui.core.precision import Precision
from trt_tui.core.runner import (
    AnalysisContext,
    AnalysisProvider,
    Backend,
    ClosingContext,
    ExecutionMode,
    Executor,
    LocalExecutor,
    Runner,
    Waitable,
)
from trt_tui.errors import InputError, OutOfMemoryError, RunFailedError
from trt_tui.formatting import escape_hidden_characters, output_variation_text

MAX_ELEMENTS = 1 << 18
"""The maximum number of elements a sample. Of a larger sample, elements are drawn at random: all values are means over
elements."""

MAX_REPEAT_ERROR_DB = -66.0
"""The variation below which an output is called steady. Its samples differ by less than half a step of FP16, 2^-11 of a
value, so FP16 could not distinguish them. Boxes on a grid and other outputs with a large constant part vary by -40 dB
or more."""

DECISIVE_ENERGY_SHARE = 0.99
"""The share of the energy of an output that decides its SQNR. The samples with the other 1 % can lose all of their values
and leave 20 dB."""

MIN_DEPENDENCE_DB = -20.0
"""The variation below which reports name an output: a hundredth of its energy."""


@dataclass
class _SampleVariation:
    """The sums from which the variation of one output between samples is computed.

    Differences from the first sample are summed, which keeps all digits if samples are similar.
    """

    first_sample: np.ndarray
    count: int = 0
    energy: float = 0.0
    squared_differences: float = 0.0
    difference_sums: np.ndarray | float = 0.0

    def add_samples(self, samples: np.ndarray) -> None:
        """Adds samples to the variation sums, float64 ``(samples, elements)``."""
        differences = samples - self.first_sample
        self.count += len(samples)
        self.energy += float(np.einsum("ij,ij->", samples, samples))
        self.squared_differences += float(np.einsum("ij,ij->", differences, differences))
        self.difference_sums = self.difference_sums + differences.sum(0)

    @property
    def variation_db(self) -> float | None:
        """The unbiased variation in dB; minus infinity if all samples are equal, None with a single sample."""
        if self.count < 2:
            return None
        deviations = self.squared_differences - float(np.square(self.difference_sums).sum()) / self.count
        share = deviations / self.energy * self.count / (self.count - 1) if self.energy > 0 else 0.0
        return 10 * math.log10(share) if share > 0 else -math.inf


@dataclass(frozen=True)
class SampleDependence:
    """The dependence of the reference outputs on the sample, and the accuracy that meaningless outputs reach.

    Attributes:
        variations_db: The variation in dB by judged float output. An output whose samples differ in shape is absent.
        meaningless_accuracies: The accuracy of meaningless outputs, by `trt_tui.core.measure.user_metric.SHUFFLED`
            and `SCRAMBLED`. The shuffled accuracy lacks outputs that cannot be exchanged between samples. The scrambled
            one has only the metric, since any other value is worse than when shuffled.
        decisive_counts: The number of samples with the largest energies that hold `DECISIVE_ENERGY_SHARE` of the energy
            of a judged float output, by output.
    """

    variations_db: Mapping[str, float] = field(default_factory=dict)
    meaningless_accuracies: Mapping[str, Accuracy] = field(default_factory=dict)
    decisive_counts: Mapping[str, int] = field(default_factory=dict)

    def make_output_caveats(self, accuracy: Accuracy) -> Iterator[Caveat]:
        """Yields one caveat for each judged output that varies little between samples, and for each whose SQNR a few
        samples decide.

        The former counts if what varies misses the target, and the latter if the worst sample alone misses it.
        """
        for name, output in accuracy.outputs.items():
            output_text = escape_hidden_characters(name)
            if (level_db := self.variations_db.get(name, 0.0)) < MAX_REPEAT_ERROR_DB:
                variation_text = output_variation_text(level_db)
                yield Caveat(
                    STEADY_OUTPUT, f"{output_text} hardly varies between samples (variation: {variation_text})"
                )
            decisive_count = self.decisive_counts.get(name, accuracy.total)
            lowest_db, worst_db = accuracy.find_worst_value(ERROR_METRICS["sqnr"]), output.worst_sqnr_db
            is_varying_little = MAX_REPEAT_ERROR_DB <= level_db < MIN_DEPENDENCE_DB
            if lowest_db is not None and output.errors.sqnr_db is not None and is_varying_little:
                varying_db = output.errors.sqnr_db + level_db
                yield Caveat(
                    STEADY_OUTPUT,
                    f"{output_text} varies little between samples, and the SQNR of what varies is {varying_db:.1f} dB",
                    lowest_db - varying_db,
                )
            if lowest_db is not None and worst_db is not None and decisive_count < min(MIN_SAMPLES, accuracy.total / 2):
                yield Caveat(
                    DECISIVE_SAMPLES,
                    f"{decisive_count} of {accuracy.total} samples hold 99 % of the energy of {output_text} and decide "
                    f"its SQNR; {output.worst_sample} alone has {worst_db:.1f} dB",
                    lowest_db - worst_db,
                )


def measure_sample_dependence(
    samples: Samples,
    feed_indices: Sequence[int],
    judged_outputs: Sequence[JudgedOutput],
    get_reference: Callable[[int], Mapping[str, np.ndarray]],
    classifier_output: JudgedOutput | None,
    metric_scorer: MetricScorer | None,
) -> SampleDependence:
    """Measures how much the reference depends on the sample.

    Masked elements and those that are not finite are not exchanged between samples.

    Arguments are those of `trt_tui.core.measure.run_sources.AccuracyReducer`.
    """
    variations: dict[str, _SampleVariation | None] = {}
    fixed: set[str] = set()
    reducer = AccuracyReducer(samples, feed_indices, judged_outputs, get_reference, classifier_output=classifier_output)
    donors = pair_each_sample_with_another(len(feed_indices))
    for position, index in enumerate(feed_indices):
        rows, tensors = samples.count_samples_of_feed(index), get_reference(index)
        other_tensors, places = tensors, pair_each_sample_with_another(rows)
        if len(feed_indices) > 1:
            other_tensors = get_reference(feed_indices[donors[position]])
            places = np.arange(rows) % samples.count_samples_of_feed(feed_indices[donors[position]])
        exchanged = dict(tensors)
        for judged_output in judged_outputs:
            own, other = tensors[judged_output.tensor], other_tensors[judged_output.tensor]
            has_rows = own.ndim > 0 and len(own) == rows
            if has_rows and other.ndim and len(other) > places.max(initial=0):
                other = other[places]
            if own.shape != other.shape or len(feed_indices) == 1 and not (has_rows and rows > 1):
                fixed.add(judged_output.name)
            elif judged_output.kind == INTEGER_KIND:
                exchanged[judged_output.tensor] = other
            else:
                is_exchanged = (
                    np.isfinite(own) & np.isfinite(other) & (np.abs(own) < (judged_output.mask_threshold or math.inf))
                )
                exchanged[judged_output.tensor] = np.where(is_exchanged, other, own)
            if judged_output.kind == INTEGER_KIND:
                continue
            is_counted = find_unmasked_elements(judged_output, samples, index, own)
            elements = _flatten_unmasked_elements(take_judged_slice(own, judged_output), is_counted, rows)
            variation_sums = variations.setdefault(judged_output.name, _SampleVariation(elements[0].copy()))
            if variation_sums is not None and variation_sums.first_sample.size == elements.shape[1]:
                variation_sums.add_samples(elements)
            else:
                variations[judged_output.name] = None
        reducer.add_feed_outputs(index, exchanged)
    shuffled = reducer.compute_accuracy()
    energies = np.sort(reducer.bootstrap_sampler.noise_and_signal_by_sample()[1], 0)[::-1]
    decisive_counts = 1 + (energies.cumsum(0) < DECISIVE_ENERGY_SHARE * energies.sum(0)).sum(0)
    levels = {name: variation.variation_db for name, variation in variations.items() if variation is not None}
    metrics = metric_scorer.score_meaningless_outputs(feed_indices) if metric_scorer is not None else {}
    runs = {
        SHUFFLED: replace(
            shuffled,
            outputs={name: errors for name, errors in shuffled.outputs.items() if name not in fixed},
            metric=metrics.get(SHUFFLED, {}),
            agreement=None if fixed else shuffled.agreement,
        )
    }
    runs |= {
        name: Accuracy({}, metric, None, shuffled.total, shuffled.total)
        for name, metric in metrics.items()
        if name not in runs
    }
    return SampleDependence(
        {name: level_db for name, level_db in levels.items() if level_db is not None},
        runs,
        dict(zip(reducer.error_sums, decisive_counts.tolist(), strict=False))  # integer outputs have no energy
        if len(energies) == shuffled.total
        else {},
    )


def _flatten_unmasked_elements(array: np.ndarray, is_unmasked: np.ndarray | None, sample_count: int) -> np.ndarray:
    """Returns the elements of each sample as one row, float64 ``(samples, elements)``, with 0 for masked elements.

    At most `MAX_ELEMENTS` elements are drawn at random.
    """
    flat = flatten_each_sample(array if is_unmasked is None else np.where(is_unmasked, array, 0), sample_count)
    if flat.shape[1] > MAX_ELEMENTS:
        flat = flat[:, np.random.default_rng(0).integers(0, flat.shape[1], MAX_ELEMENTS)]
    flat = flat.astype(np.float64)
    return np.where(np.isfinite(flat), flat, 0.0)


CONTROL_FLOW_MODE = "gates as control flow"
"""The name of the execution mode with gates as control flow on a device."""


class GatedGraphLoader:
    """The loader of a gated graph, which chooses the fastest form that fits into memory.

    Args:
        samples: The samples, whose memory fallbacks record the form that earlier executions needed.
        description: The kind of execution in a few words.
        network: The network whose gated graphs are loaded.
    """

    def __init__(self, backend: Backend, samples: Samples, description: str, network: Network) -> None:
        self._backend, self._samples, self._description, self._network = backend, samples, description, network
        self._memory_fallbacks = samples.memory_fallbacks.get_fallback_state(description)

    @cached_property
    def _graph_forms(self) -> list[tuple[str, Backend, bool]]:
        """The forms in which the gated graph can be executed, the fastest first: name, backend, and whether
        Where nodes rather than If nodes select precisions."""
        backend = self._backend
        forms = [("", backend, False)]
        if backend.capabilities.has_device or self._has_many_small_layers_on_cpu:
            forms = [("", backend, True), (CONTROL_FLOW_MODE, backend, False)]
        if (host := backend.get_host_backend()) is not None:
            forms.append((HOST_MODE, host, False))
        return forms

    @cached_property
    def _has_many_small_layers_on_cpu(self) -> bool:
        """True on a CPU for a network of many small layers, whose sessions take longer to load than to execute."""
        return not self._backend.capabilities.has_device and has_many_small_layers(self._network.model.graph)

    @property
    def uses_gates_as_data(self) -> bool:
        return self._graph_forms[self._memory_fallbacks.form_index][2]

    def switch_to_next_graph_form(self, error: OutOfMemoryError) -> None:
        """Switches to the next form of the gated graph, which needs less memory, after memory ran out.

        Raises:
            OutOfMemoryError: There is no other form; the error is ``error``.
        """
        fallbacks = self._memory_fallbacks
        if fallbacks.form_index + 1 == len(self._graph_forms):
            raise error
        fallbacks.form_index, fallbacks.strategy, fallbacks.max_rows = fallbacks.form_index + 1, 0, None

    def load_graph(
        self,
        build_graph: Callable[[], GatedGraph],
        on_mode_change: Callable[[ExecutionMode], None] | None = None,
        *,
        allow_data_gates: bool = True,
        output_joins: Mapping[str, OutputJoin] | None = None,
        few_executions: bool = False,
    ) -> tuple[GatedGraph, AdaptiveRunner]:
        """Builds and loads a gated graph in the first form that fits into memory: gates as data or as control flow, on
        a device or on the host.

        Args:
            build_graph: A function that builds the graph in the current form.
            on_mode_change: Callback of `AdaptiveRunner`.
            allow_data_gates: False for a graph whose gates are control flow in every form.
            output_joins: The joins of `AdaptiveRunner`.
            few_executions: True if the graph will be executed only a few times.

        Raises:
            OutOfMemoryError: Memory suffices for none of the forms.
        """
        while True:
            graph, current_form = build_graph(), self._memory_fallbacks.form_index
            form = current_form + (self.uses_gates_as_data and not allow_data_gates)
            name, backend, has_data_gates = self._graph_forms[form]
            has_small_layers = self._has_many_small_layers_on_cpu
            optimize = not (has_data_gates and has_small_layers)  # for small layers it takes longer than it saves
            if has_small_layers:
                collect_garbage_and_trim_memory()
            try:
                runner = AdaptiveRunner(
                    backend,
                    graph.model,
                    self._samples,
                    self._description,
                    keep_on_device=has_data_gates and not has_small_layers,
                    on_mode_change=on_mode_change,
                    extra_inputs=[*graph.reference_inputs.values(), *graph.mask_inputs.values()],
                    joins=output_joins,
                    allow_host=False,
                    mode_name=name if form == current_form else "",
                    load_network=None
                    if few_executions
                    else partial(PiecewiseRunner.load_in_pieces, backend, graph, optimize=optimize),
                    low_memory=True,
                    few_executions=few_executions,
                    optimize=optimize,
                )
            except OutOfMemoryError as error:
                self.switch_to_next_graph_form(error)
                continue
            if has_small_layers:
                collect_garbage_and_trim_memory()  # frees the copies from which the pieces were loaded
            return graph, runner


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


MIN_COMPARED_ELEMENTS = 4096
"""The minimum number of elements a sample for a comparison in the graph. Smaller judged outputs are compared on the
host."""

WHAT_IFS_TEXT = "what-ifs"
"""The description of this kind of execution for users."""


class Analysis(ClosingContext):
    """The simulation of one network on one set of samples, with comparisons against its reference. It is a context
    manager.

    Args:
        samples: The judged samples. Every value is measured on all of them unless a method receives feeds.
        judged_outputs: The outputs at which errors are computed; see
            `trt_tui.core.measure.judged_outputs.select_judged_outputs`.
        metric: The user's metric; used if the samples have labels.
        boundary_type: The float type at inputs and outputs of INT8 layers in the first configs. If a config needs
            another type, the graph is loaded again with that type added.
        extra_tensors: Tensors that executions yield in addition to the judged ones.
        reference_source: The run that is the reference, which has all judged tensors; None for FP32 of the network
            itself.
        unjudged_outputs: The reason why a network output is not judged, by name; by default those of
            `trt_tui.core.measure.judged_outputs.find_unjudged_output_reasons`.
        partly_judged_outputs: The result of `trt_tui.core.measure.judged_outputs.find_partly_judged_output_reasons`, unless
            the user chose the judged outputs.

    Attributes:
        metric_tensors: Tensors that the metric receives; empty without a metric.
        extra_outputs: See `trt_tui.core.measure.judged_outputs.find_judged_inner_tensors`.
        execution_mode: The way in which the simulation is executed on a device. None before the first execution there,
            and on a CPU.

    Raises:
        InputError: a judged tensor is inside a fused group.
    """

    def __init__(
        self,
        network: Network,
        backend: Backend,
        samples: Samples,
        judged_outputs: Sequence[JudgedOutput],
        *,
        metric: Metric | None = None,
        boundary_type: Precision = Precision.FP16,
        reference_source: IndexedRunSource | None = None,
        extra_tensors: Sequence[str] = (),
        unjudged_outputs: Mapping[str, str] | None = None,
        partly_judged_outputs: Mapping[str, str] | None = None,
    ) -> None:
        self.network = network
        self.partly_judged_outputs = partly_judged_outputs or {}
        self.unjudged_outputs = dict(
            find_unjudged_output_reasons(network) if unjudged_outputs is None else unjudged_outputs
        )
        self.backend = backend
        self.samples = samples
        self.judged_outputs = tuple(judged_outputs)
        self.metric = metric if samples.label_names else None
        self.extra_outputs = find_judged_inner_tensors(network, self.judged_outputs)
        metric_tensors = (*list_tensor_outputs(network), *self.extra_outputs)
        self.metric_tensors = metric_tensors if self.metric is not None else ()
        self.reference_source = reference_source
        reference_has_metric_outputs = (
            reference_source is None or set(metric_tensors) <= reference_source.available_tensors
        )
        self._get_metric_reference = (
            self.get_reference_outputs if reference_has_metric_outputs else self.get_fp32_outputs
        )
        self._metric_scorer = (
            MetricScorer(self.metric, samples, metric_tensors, self._get_metric_reference)
            if self.metric is not None
            else None
        )
        low_float_types = {boundary_type} & set(HALF_PRECISIONS)
        if not backend.capabilities.has_device:  # on a CPU, roundings that are not requested cost nothing
            low_float_types = low_float_types or {Precision.FP16}
        self.features = GatedFeatures.from_precisions(low_float_types, {boundary_type})
        self.classifier_output = find_class_score_output(network, self.judged_outputs)
        self.session_count = 0
        self.execution_mode: ExecutionMode | None = None
        self._graph_loader = GatedGraphLoader(backend, samples, WHAT_IFS_TEXT, network)
        samples.memory_fallbacks.register_session_release(WHAT_IFS_TEXT, self.unload_session)
        self._loaded_graph: tuple[GatedGraph, Runner] | None = None
        self._compared_outputs: tuple[ComparedTensor, ...] = ()
        self._compared_shapes: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._blank_references: dict[tuple[int, ...], np.ndarray] = {}
        self._clear_caches_of_feeds()
        names = [*(judged_output.tensor for judged_output in self.judged_outputs), *extra_tensors]
        if self.metric is not None:
            names += metric_tensors
        self.fetched_tensors = tuple(dict.fromkeys(names))
        _refuse_tensors_without_sample_rows(network, samples, self.fetched_tensors)
        self._original: Analysis | None = None
        self._sample_positions: tuple[Sequence[SamplePosition], ...] = ()

    def _clear_caches_of_feeds(self) -> None:
        self._magnitudes: dict[int, Magnitudes] = {}
        self._magnitude_task, self._magnitude_user_count = MagnitudeTask(), 0
        self._reference_slices: dict[tuple[int, str], np.ndarray] = {}
        self._reference_row_sums: dict[tuple[int, str], np.ndarray] = {}
        self._dependences: dict[tuple[int, ...], SampleDependence] = {}
        self._feed_cache = TensorCache(FEED_CACHE_BYTES if self.backend.capabilities.has_device else 0, uses_file=False)
        self._fp32_cache, self._reference_cache = TensorCache(), TensorCache()

    def close(self) -> None:
        """Frees the inference sessions and the reference."""
        self.unload_session()
        self._overflow_effect.unload_session()
        self._fp32_cache.clear()
        self._reference_cache.clear()
        if self.reference_source is not None:
            self.reference_source.close()

    def unload_session(self) -> bool:
        """Frees the inference session with its weights, and returns True if there was one. It is loaded again before
        its next use."""
        if self._loaded_graph is None:
            return False
        self._loaded_graph[1].close()
        self._loaded_graph = None
        return True

    @cached_property
    def mask_axes_by_tensor(self) -> dict[str, tuple[bool, ...]]:
        """The axes that the last tensors of groups share with the mask of the judged outputs; see `find_mask_axes`."""
        mask = find_common_mask_name(self.judged_outputs)
        tails = [
            group.final_tensor
            for group in self.network.groups
            if group.final_tensor not in self.network.blocking_plugins
        ]
        return find_mask_axes(self.network, self.backend, self.samples, mask, tails) if mask else {}

    # -- the gated session --------------------------------------------------------------------------------------

    def _load_session(self, config: PrecisionConfig) -> tuple[GatedGraph, Runner]:
        """Returns a loaded gated graph that can execute a config and all configs before it."""
        if self._original is not None:
            loaded = self._original._load_session(config)
            self._compared_outputs = self._original._compared_outputs
            return loaded
        needed = GatedFeatures.from_config(self.network, config)
        if not self.features.includes_features(needed):
            self.unload_session()
        if self._loaded_graph is None:
            features = self.features | needed
            self._loaded_graph = self._graph_loader.load_graph(
                partial(self._build_gated_graph, features), partial(setattr, self, "execution_mode")
            )
            self.features = features
            self.session_count += 1
        return self._loaded_graph

    def _build_gated_graph(self, features: GatedFeatures) -> GatedGraph:
        uses_data_gates = self._graph_loader.uses_gates_as_data
        self._compared_outputs = self._select_outputs_compared_in_graph() if uses_data_gates else ()
        return build_gated_graph(
            self.network,
            float_types=features.float_types,
            boundary_types=features.boundary_types,
            quantized_types=features.quantized_types,
            editable_constants=features.editable_constants,
            norm_operators=features.norm_operators,
            outputs=self.fetched_tensors,
            gates_as_data=uses_data_gates,
            compared_tensors=self._compared_outputs,
        )

    @property
    def has_regrouped_batches(self) -> bool:
        """True if the batches of samples differ from those of the data. Only measurements of error shares use such
        batches."""
        return self._original is not None

    def make_config_feed(self, config: PrecisionConfig, ranges: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Returns the graph inputs that switch the loaded gated graph to a config (`GatedGraph.make_feed`).

        Callers reuse the arrays, because they contain rounded weights.
        """
        return self._load_session(config)[0].make_feed(config, ranges)

    def measure_magnitudes(
        self,
        feed_indices: Sequence[int] | None = None,
        executor: Executor[AnalysisProvider[JudgedNetwork]] | None = None,
    ) -> Iterator[None]:
        """Measures the largest magnitudes of the feeds that were not measured before; yields after each execution.

        Several runs that are measured in turn share one inference session, and each feed is measured once.

        Args:
            executor: The executor of the feeds; this process by default.

        Raises:
            InputError: the data cannot be read.
        """
        unknown = (index for index in self.resolve_feed_indices(feed_indices) if index not in self._magnitudes)
        self._magnitude_user_count += 1
        try:
            for done in (executor or LocalExecutor(AnalysisContext(self))).map(self._magnitude_task, unknown):
                if done is not None:
                    self._magnitudes[done[0]] = done[1]
                yield
        finally:
            self._magnitude_user_count -= 1
            if not self._magnitude_user_count:
                self._magnitude_task.close()

    def store_magnitudes(self, feed_index: int, magnitudes: Magnitudes) -> None:
        """Stores the largest magnitudes of a feed that another execution of the network measured."""
        self._magnitudes[feed_index] = magnitudes

    def get_magnitudes(self, feed_indices: Sequence[int] | None = None) -> Magnitudes | None:
        """Returns the largest FP32 magnitudes over feeds; None if one of the feeds was not measured."""
        indices = self.resolve_feed_indices(feed_indices)
        if not all(index in self._magnitudes for index in indices):
            return None
        return Magnitudes.from_feeds(self._magnitudes[index] for index in indices)

    def resolve_feed_indices(self, feed_indices: Sequence[int] | None) -> list[int]:
        """Returns the indices of the requested feeds; all feeds for None."""
        return list(range(len(self.samples)) if feed_indices is None else feed_indices)

    def _select_outputs_compared_in_graph(self) -> tuple[ComparedTensor, ...]:
        """Returns the judged outputs whose error sums the graph computes itself, to avoid copying large tensors to the
        host.

        They are float outputs with the first axis of an input and with at least `MIN_COMPARED_ELEMENTS` elements a
        sample.
        """
        compared_outputs = []
        leads = {info.shape[0] for info in self.network.inputs if info.shape}
        for judged_output in self.judged_outputs:
            shape = self.network.shape(judged_output.tensor) or ()
            known_sizes = [size for size in shape[1:] if isinstance(size, int)]
            is_small = len(known_sizes) == len(shape) - 1 and math.prod(known_sizes) < MIN_COMPARED_ELEMENTS
            is_large = judged_output.kind == FLOAT_KIND and shape and shape[0] in leads and not is_small
            is_unmasked = not (
                judged_output.mask
                or judged_output.mask_threshold
                or judged_output.tensor in self.network.value_sized_tensors
            )
            if is_large and is_unmasked and judged_output is not self.classifier_output:
                compared_outputs.append(
                    ComparedTensor(
                        judged_output.name,
                        judged_output.tensor,
                        tuple(
                            (axis_slice.axis, axis_slice.start, axis_slice.stop) for axis_slice in judged_output.slices
                        ),
                    )
                )
        return tuple(compared_outputs)

    def execute_feeds(
        self,
        config: PrecisionConfig,
        ranges: Mapping[str, float],
        feed_indices: Sequence[int],
        *,
        compares_in_graph: bool = False,
    ) -> Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """Executes a config feed by feed; yields its judged tensors, and the error sums that the graph computed itself.

        Args:
            compares_in_graph: Compute error sums in the graph. Tensors whose sums are finite are not fetched then.
        """
        session: tuple[GatedGraph, Runner] | None = None
        config_feed: dict[str, np.ndarray] = {}
        for index in feed_indices:
            if compares_in_graph:
                self.get_reference_outputs(index)  # comes first, since it may need an execution of this graph itself
            result = None
            while result is None:
                if session is None or session is not self._loaded_graph:  # another config may have loaded it again
                    session = self._load_session(config)
                    config_feed = session[0].make_feed(config, ranges)
                try:
                    result = self._execute_feed(*session, index, config_feed, compares_in_graph)
                except OutOfMemoryError as error:
                    (self._original or self).unload_session()
                    session = None
                    self._graph_loader.switch_to_next_graph_form(error)
                except RunFailedError as error:
                    if is_entirely_fp32(self.network, config):
                        raise
                    result = (
                        FailedRunOutputs(self.get_fp32_outputs(index), run_failure_caveat(self.network, config, error)),
                        {},
                    )
            yield result

    def _execute_feed(
        self,
        gated_graph: GatedGraph,
        runner: Runner,
        feed_index: int,
        config_feed: Mapping[str, np.ndarray],
        compares_in_graph: bool,
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Executes one feed, and returns one item of `execute_feeds`."""
        feed, tensors = {**self._read_feed(feed_index), **config_feed}, self.fetched_tensors
        compared_outputs = gated_graph.compared_outputs if compares_in_graph else {}
        if compared_outputs:
            feed.update(
                (fed_as, self._get_reference_output(feed_index, name))
                for name, fed_as in gated_graph.reference_inputs.items()
            )
            metric_names = self._metric_scorer.output_names if self._metric_scorer is not None else ()
            within = {entry.tensor for entry in self._compared_outputs} - set(metric_names)
            within -= {entry.tensor for entry in self.judged_outputs if entry.name not in compared_outputs}
            tensors = tuple(tensor for tensor in self.fetched_tensors if tensor not in within)
        else:
            feed.update(
                (gated_graph.reference_inputs[entry.name], self._make_zero_filled_reference(entry, feed))
                for entry in self._compared_outputs
            )
        outputs = {tensor: gated_graph.test_outputs[tensor] for tensor in tensors}
        fetched = runner.run(feed, [*outputs.values(), *compared_outputs.values()])
        sums = {name: fetched[output] for name, output in compared_outputs.items()}
        if not all(np.isfinite(entry).all() for entry in sums.values()):
            return self._execute_feed(gated_graph, runner, feed_index, config_feed, False)
        return {tensor: convert_to_comparable_array(fetched[output]) for tensor, output in outputs.items()}, {
            name: np.concatenate([entry, self._compute_reference_row_energy(feed_index, name)], 1)
            for name, entry in sums.items()
        }

    def _read_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """Reads a feed; a device receives the same arrays each time."""
        return self._feed_cache.get_or_load(feed_index, self.samples.read_feed)

    def _make_zero_filled_reference(
        self, compared_output: ComparedTensor, feed: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Returns zeros as the reference input of a graph whose error sums are not needed in this execution.

        The shape is that of the part in executions with sums, if it is known, so that both executions have the same
        shapes.
        """
        known_shape = self._compared_shapes.get(
            (compared_output.name, *(feed[info.name].shape for info in self.network.inputs))
        )
        shape = known_shape or (1,) * len(self.network.shape(compared_output.tensor) or ())
        return self._blank_references.setdefault(shape, np.zeros(shape, np.float32))

    def _store_shapes_of_compared_outputs(
        self, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> None:
        """Stores the shapes of the outputs that the graph compares, if the input shapes determine them."""
        input_shapes = [shape for info in self.network.inputs if (shape := info.shape) is not None]
        sizes = {size for shape in input_shapes for size in shape if isinstance(size, str)}
        for compared_output in self._compared_outputs:
            own = self.network.shape(compared_output.tensor) or ()
            if all(isinstance(size, int) or size in sizes for size in own):
                judged_output = next(
                    judged_output for judged_output in self.judged_outputs if judged_output.name == compared_output.name
                )
                key = compared_output.name, *(feed[info.name].shape for info in self.network.inputs)
                self._compared_shapes[key] = take_judged_slice(outputs[compared_output.tensor], judged_output).shape

    def get_reference_outputs(self, feed_index: int) -> dict[str, np.ndarray]:
        """Returns the judged tensors of the reference for one feed, measured only once.

        Raises:
            InputError: the tensors contain NaN, or the network cannot be executed on these data.
        """
        if self._original is None and self.reference_source is None:
            return self.get_fp32_outputs(feed_index)
        load = self._read_reference_outputs if self._original is None else self._regroup_reference_outputs
        return self._reference_cache.get_or_load(feed_index, load)

    def _regroup_reference_outputs(self, feed_index: int) -> dict[str, np.ndarray]:
        assert self._original is not None, "only the samples of a copy are regrouped"
        positions = self._sample_positions[feed_index]
        original_outputs = {
            feed: self._original.get_reference_outputs(feed) for feed in {feed for feed, _ in positions}
        }
        return {
            tensor: np.stack([original_outputs[feed][tensor][row] for feed, row in positions])
            for tensor in self.fetched_tensors
        }

    def _read_reference_outputs(self, feed_index: int) -> dict[str, np.ndarray]:
        assert self.reference_source is not None, "else FP32 is the reference"
        outputs = self.reference_source.get_outputs(feed_index)
        arrays = {tensor: outputs[tensor] for tensor in self.fetched_tensors if tensor in outputs}
        refuse_nan_in_judged_tensors(
            self.judged_outputs, self.samples, feed_index, arrays, self.reference_source.run.name
        )
        return arrays if len(arrays) == len(self.fetched_tensors) else self.get_fp32_outputs(feed_index) | arrays

    def get_fp32_outputs(self, feed_index: int) -> dict[str, np.ndarray]:
        """Returns the judged tensors of the network in FP32 for one feed, measured only once.

        Raises:
            InputError: as `get_reference_outputs`; or an output has another size than the file declares.
        """
        if feed_index not in self._fp32_cache:
            result, _ = next(self.execute_feeds(PrecisionConfig.from_precision(Precision.FP32), {}, [feed_index]))
            self.store_fp32_outputs(feed_index, result)
        return self._fp32_cache.get_tensors(feed_index)

    def store_fp32_outputs(self, feed_index: int, outputs: Mapping[str, np.ndarray]) -> None:
        """Checks and stores the judged FP32 tensors of the network for one feed. Tensors that were stored earlier
        remain.

        Raises:
            InputError: as `get_fp32_outputs`.
        """
        if feed_index in self._fp32_cache:
            return
        refuse_undeclared_output_sizes(
            self.network, {name: self.samples.pad_rows(array, feed_index) for name, array in outputs.items()}
        )
        if self.reference_source is None:
            self._refuse_nan_in_fp32_outputs(feed_index, outputs)
        self._store_shapes_of_compared_outputs(self._read_feed(feed_index), outputs)
        self._fp32_cache.put_tensors(feed_index, outputs)

    def _refuse_nan_in_fp32_outputs(self, feed_index: int, fp32_outputs: Mapping[str, np.ndarray]) -> None:
        """Raises an error if the FP32 outputs of the network contain NaN outside masked elements, and names its origin.

        Raises:
            InputError: a NaN counts.
        """
        try:
            refuse_nan_in_judged_tensors(
                self.judged_outputs, self.samples, feed_index, fp32_outputs, "the FP32 network"
            )
        except InputError as error:
            broken = {name for name, array in fp32_outputs.items() if array.dtype.kind == "f" and np.isnan(array).any()}
            first_non_finite = find_first_non_finite_value(
                self.network.model, self.samples, feed_index, self.backend, broken
            )
            if first_non_finite is None:
                raise
            raise InputError(error.title, f"{error.cause}: {first_non_finite.origin_text}", REMEDY) from None

    def explain_missing_shares(self, feed_indices: Sequence[int] | None = None) -> str:
        """Returns the reason why error shares cannot be measured, as a sentence; "" if they can.

        The FP32 network then yields NaN, which is only possible with another reference: without one it is refused.
        """
        for index in self.resolve_feed_indices(feed_indices) if self.reference_source is not None else ():
            try:
                self._refuse_nan_in_fp32_outputs(index, self.get_fp32_outputs(index))
            except InputError as error:
                return f"{error.title[:1].upper()}{error.title[1:]}: {error.cause}"
        return ""

    def _get_reference_output(self, feed_index: int, output_name: str) -> np.ndarray:
        """Returns the part of the reference at one judged output for one feed. The same array is returned each time."""
        judged_output = next(output for output in self.judged_outputs if output.name == output_name)
        array = self.get_reference_outputs(feed_index)[judged_output.tensor]
        if not judged_output.slices:
            return array
        if (feed_index, output_name) not in self._reference_slices:
            self._reference_slices[feed_index, output_name] = np.ascontiguousarray(
                take_judged_slice(array, judged_output)
            )
        return self._reference_slices[feed_index, output_name]

    def _compute_reference_row_energy(self, feed_index: int, output_name: str) -> np.ndarray:
        """Returns Σref² and the largest |ref| of each row of a judged output for one feed, float64 ``(rows, 2)``."""
        if (feed_index, output_name) not in self._reference_row_sums:
            array = self._get_reference_output(feed_index, output_name)
            rows = array.reshape(len(array), -1).astype(np.float64)
            self._reference_row_sums[feed_index, output_name] = np.stack(
                [np.einsum("ij,ij->i", rows, rows), np.abs(rows).max(axis=1)], 1
            )
        return self._reference_row_sums[feed_index, output_name]

    # -- comparisons ----------------------------------------------------------------------------------------------

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
        for result in self.compare(
            SimulatedConfig(self, config, ranges), feed_indices, with_metric_interval=with_metric_interval
        ):
            assert isinstance(result, PartialResult), "the simulation waits for nobody"
            yield result

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
                        *(
                            Caveat(PARTLY_JUDGED_OUTPUT, output.doubt)
                            for output in self.judged_outputs
                            if output.doubt
                            and output.tensor not in {part.tensor for part in self.judged_outputs if part.slices}
                        ),
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


def _refuse_tensors_without_sample_rows(network: Network, samples: Samples, tensors: Sequence[str]) -> None:
    """Refuses tensors without a row per sample if a batch is padded, because the padding would count.

    Raises:
        InputError: Names the tensor.
    """
    if samples.padding is None:
        return
    batch_size = samples.padding.batch_size
    for tensor in tensors:
        if (network.shape(tensor) or (None,))[0] != batch_size:
            raise InputError(
                f"{tensor} has no row for each sample of the batch",
                f"the number of samples, {samples.total_sample_count}, is not a multiple of the network's fixed batch of "
                f"{batch_size}, and copies of a sample would count at this tensor",
                f"Give a multiple of {batch_size} samples (--samples), or judge another tensor.",
            )


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
