"""Accumulated and isolated errors at the fusion groups, measured in one graph that holds both the reference and the
config.

Only error sums leave the graph. An error table has one row for each group, with the columns `ERROR_SUM_COLUMNS`.

The gates of the graph are runtime inputs that select the precision of each group.

Coordinates and angles get a warning if a 16-bit float type is too coarse for them.

Rule: half a step (ulp) of the float type at the largest coordinate may move a sampling point by at most 1/32 pixel. For
an angle the limit is 1/32 radian, which is 3 % of the amplitude of a sine. A grid of GridSample has values between -1
and 1. With W pixels, half an FP16 step below 1 is 2^-12, which moves the point by W / 2^13 pixels. So a W above 256
exceeds the limit.

Coordinates are the grid of GridSample, the computed region or factors of Resize, the boxes of RoiAlign, and the inputs
of Sin and Cos (rotary and sinusoidal positions). The search walks back from there through copies, and through additions
and multiplications by constants, as long as the effect of a rounded value on the coordinate is known.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial, reduce

import ml_dtypes
import numpy as np

from trt_tui.core.data.adaptive_runner import OutputJoin
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.gated.assembly import build_gated_graph, freeze_inputs
from trt_tui.core.lowering.gated.error_sums import (
    ERROR_SUM_COLUMNS,
    EXTREME_COLUMNS,
    EXTREMES_OUTPUT,
    SUMS_OUTPUTS,
)
from trt_tui.core.lowering.gated.gated_graph import GatedGraph
from trt_tui.core.lowering.network_rewrite import EditedConstants
from trt_tui.core.lowering.rulebook import GatedFeatures, find_boundary_type, weight_sqnr_db
from trt_tui.core.measure.error_metrics import ErrorSums
from trt_tui.core.measure.fp16_range import (
    Fp16Overflow,
    Fp16RangeState,
    MagnitudeEvaluation,
    Magnitudes,
    apply_divisors_to_magnitudes,
    describe_fp16_values,
    find_largest_magnitude,
    uses_fp16,
)
from trt_tui.core.measure.judged_outputs import find_common_mask_name, read_mask
from trt_tui.core.measure.results import CoordinateShift, GroupErrors
from trt_tui.core.measure.run_sources import AccuracyReducer, convert_to_comparable_array
from trt_tui.core.measure.simulation import Analysis, GatedGraphLoader, PartialResult, SimulatedConfig
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Layer, Shape
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import COPIES
from trt_tui.core.precision import Precision
from trt_tui.core.runner import AnalysisContext, AnalysisProvider, Executor, LoadingTask, LocalExecutor
from trt_tui.errors import OutOfMemoryError

MAX_COORDINATE_SHIFT = 1 / 32
"""The maximum shift of a sampling point in pixels, or of an angle in radians."""

_ERROR_PRESERVING_OPERATORS = COPIES | {"Add", "Sub", "Neg", "Sum", "Min", "Max", "Clip", "Where"}
"""Operators whose output has the same absolute error as their input."""

ShapesCallback = Callable[[], Mapping[str, Shape | None]]
"""Returns the shapes of tensors for the input sizes of the samples. It is called for sizes that the file leaves open.
"""


@dataclass(frozen=True)
class _CoordinateTensor:
    """A tensor that a layer reads as a coordinate, or from which such a coordinate is computed.

    Attributes:
        reading_layer: The layer that reads the coordinate.
        shift_per_unit: Pixels or radians by which the sampling point moves if the tensor changes by 1.
        unit: ``pixels`` or ``radians``.
        max_magnitude: The magnitude beyond which a larger value does not move the point further.
        is_relative: True if ``shift_per_unit`` applies to the error relative to the tensor's magnitude.
        default_magnitude: The magnitude to assume if none was measured; None if there is no such magnitude.
    """

    tensor: str
    reading_layer: Layer
    shift_per_unit: float
    unit: str = "pixels"
    max_magnitude: float = math.inf
    is_relative: bool = False
    default_magnitude: float | None = None


def max_rounding_error(magnitude: float, precision: Precision) -> float:
    """Returns the largest rounding error of a 16-bit float type for values up to a magnitude: half a step of the type."""
    limits = ml_dtypes.finfo(rulebook.ONNX_TYPES[precision].numpy())  # type: ignore[no-untyped-call]
    exponent = math.ceil(math.log2(magnitude)) - 1 if magnitude > 0 else limits.minexp
    return float(2.0 ** (max(exponent, limits.minexp) - limits.nmant - 1))


def find_coordinate_shifts(
    network: Network, config: PrecisionConfig, magnitudes: Mapping[str, float], get_shapes: ShapesCallback
) -> dict[str, CoordinateShift]:
    """Returns the coordinates that a 16-bit type rounds too coarsely, by the name of the rounding group.

    Args:
        magnitudes: The largest magnitude of each tensor in FP32.
    """
    worst: dict[str, CoordinateShift] = {}
    for layer in network.layers:
        for coordinate in _find_coordinate_inputs(network, layer, get_shapes):
            for group_name, precision, step, shift in _estimate_coordinate_shifts(
                network, config, coordinate, magnitudes
            ):
                if shift > max(MAX_COORDINATE_SHIFT, worst[group_name].shift if group_name in worst else 0.0):
                    worst[group_name] = CoordinateShift(
                        precision, step, shift, coordinate.unit, f"{layer.op_type} {layer.name}"
                    )
    return worst


def _find_coordinate_inputs(network: Network, layer: Layer, get_shapes: ShapesCallback) -> Iterator[_CoordinateTensor]:
    """Yields the inputs that a layer reads as coordinates or angles."""
    operator, attributes = _onnx_operator(layer), network.node(layer.name).attributes
    if operator in ("Sin", "Cos"):
        yield _CoordinateTensor(layer.inputs[0], layer, 1.0, "radians")
    elif operator == "RoiAlign":
        yield _CoordinateTensor(layer.inputs[1], layer, attributes.get_float("spatial_scale", 1.0))
    elif (
        operator in ("GridSample", "Resize", "Upsample")
        and (pixels := _find_largest_spatial_size(network, layer.inputs[0], get_shapes)) is not None
    ):
        if operator == "GridSample":
            width = pixels - 1 if attributes.get_int("align_corners", 0) else pixels
            reflected = attributes.get_string("padding_mode", "zeros") == "reflection"
            yield _CoordinateTensor(
                layer.inputs[1], layer, width / 2, max_magnitude=math.inf if reflected else 1.0, default_magnitude=1.0
            )
            return
        for index, tensor in enumerate(layer.inputs):
            if tensor and network.is_fp32(tensor) and tensor not in network.static_tensors:
                if operator == "Resize" and index == 1:
                    yield _CoordinateTensor(tensor, layer, pixels - 1)
                elif index == (2 if operator == "Resize" else 1):
                    yield _CoordinateTensor(tensor, layer, pixels, is_relative=True)


def _onnx_operator(layer: Layer) -> str:
    """Returns the operator of a layer; "" if it is not one of ONNX."""
    return layer.op_type if layer.domain in ("", "ai.onnx") else ""


def _find_largest_spatial_size(network: Network, tensor: str, get_shapes: ShapesCallback) -> int | None:
    """Returns the largest size of a tensor behind the batch and channel axes; None if a size is unknown."""
    shape = network.shape(tensor)
    if shape is None or not all(isinstance(size, int) for size in shape[2:]):
        shape = get_shapes().get(tensor)
    known_sizes = [size for size in (shape or ())[2:] if isinstance(size, int)]
    return max(known_sizes) if shape is not None and known_sizes and len(known_sizes) == len(shape) - 2 else None


def _estimate_coordinate_shifts(
    network: Network, config: PrecisionConfig, coordinate: _CoordinateTensor, magnitudes: Mapping[str, float]
) -> Iterator[tuple[str, Precision, float, float]]:
    """Yields the shift of a sampling point by each group that rounds the coordinate or one of its sources.

    An item has the group's name, its float type, the magnitude of the rounded value, and the shift in the coordinate's
    unit.
    """
    waiting, visited = [coordinate], set()
    while waiting:
        traced = waiting.pop()
        if traced.tensor in visited:
            continue
        visited.add(traced.tensor)
        maker = network.producer.get(traced.tensor, "")
        magnitude = _find_coordinate_magnitude(network, traced, magnitudes)
        rounding = [
            network.find_group(maker) if maker and traced.tensor not in network.static_tensors else None,
            network.find_group(traced.reading_layer.name) if traced is coordinate else None,
        ]
        for group in rounding:
            if group is None or magnitude is None:
                continue
            precision = find_boundary_type(group, config.precision_of(group), config.other)
            if precision in rulebook.HALF_PRECISIONS:
                rounded_magnitude = min(magnitude, traced.max_magnitude)
                step = max_rounding_error(rounded_magnitude, precision)
                yield (
                    group.name,
                    precision,
                    rounded_magnitude,
                    traced.shift_per_unit * (step / rounded_magnitude if traced.is_relative else step),
                )
        if maker and traced.tensor not in network.static_tensors and not traced.is_relative:
            waiting.extend(_iterate_coordinate_sources(network, network.get_layer(maker), traced))


def _iterate_coordinate_sources(
    network: Network, layer: Layer, coordinate: _CoordinateTensor
) -> Iterator[_CoordinateTensor]:
    """Yields the input tensors of a coordinate whose errors have a known effect on the coordinate."""
    operator, gain = _onnx_operator(layer), None
    float_inputs = [tensor for tensor in layer.inputs if tensor and network.is_fp32(tensor)]
    computed = [tensor for tensor in float_inputs if tensor not in network.static_tensors]
    if operator in _ERROR_PRESERVING_OPERATORS:
        gain = 1.0
    elif operator in ("Mul", "Div") and len(computed) == 1 and (operator == "Mul" or computed[0] == layer.inputs[0]):
        constant = next((tensor for tensor in float_inputs if tensor not in computed), "")
        factors = _read_constant_magnitudes(network, constant)
        if factors is not None and factors.size and factors.all():
            # Each axis has a factor that goes with its size. The largest size is assumed, so the smallest gain is used.
            gain = float(factors.min() if operator == "Mul" else 1 / factors.max())
    yield from (
        replace(
            coordinate,
            tensor=tensor,
            shift_per_unit=coordinate.shift_per_unit * gain,
            max_magnitude=math.inf,
            default_magnitude=None,
        )
        for tensor in computed
        if gain is not None
    )


def _find_coordinate_magnitude(
    network: Network, coordinate: _CoordinateTensor, magnitudes: Mapping[str, float]
) -> float | None:
    """Returns the largest magnitude of a coordinate; None if it is unknown, not finite or 0."""
    measured = magnitudes.get(coordinate.tensor)
    if measured is None and (values := _read_constant_magnitudes(network, coordinate.tensor)) is not None:
        measured = float(values.max(initial=0.0))
    if measured is None:
        measured = coordinate.default_magnitude
    return measured if measured and math.isfinite(measured) else None


def _read_constant_magnitudes(network: Network, tensor: str) -> np.ndarray | None:
    """Returns the magnitudes of a constant; None if the tensor is not a constant or its value cannot be computed."""
    value = network.find_constant_value(tensor) if tensor in network.constant_tensors else None
    return None if value is None else np.abs(value)


def measure_weight_errors(
    network: Network, config: PrecisionConfig, ranges: Mapping[str, float]
) -> dict[str, dict[str, float | None]]:
    """Measures the SQNR of dequantized weights against FP32 in dB, by group and by the layer that reads the weight.

    This is ``compute_weight_error`` of ONNX Runtime (``onnxruntime.quantization.qdq_loss_debug``) on the exported
    network. The FP32 weights are those that the config quantizes: a SmoothQuant move scales them first. The dequantized
    weights are those of a rounding move if there is one. An exact weight
    has the value None. Groups without quantized weights are absent, and groups in file precision too, because a file
    may contain the quantized values only.

    Args:
        ranges: Calibrated amax by tensor name, in the units of the tensor.

    Raises:
        InputError: A range is missing.
    """
    folds = EditedConstants(network, config)
    errors: dict[str, dict[str, float | None]] = {}
    for name, group_lowering in rulebook.plan_lowering(network, config, ranges, edited_constants=folds).items():
        for site, scale in group_lowering.scales.items():
            port = site.layer, site.index
            weight = folds.compute_constant(port, with_rounding=False) if site.role == "weight" else None
            used_weight = folds.compute_constant(port) if weight is not None else None
            if weight is not None and used_weight is not None:
                sqnr_db = weight_sqnr_db(weight, rulebook.quantize_dequantize_weight(used_weight, scale))
                errors.setdefault(name, {})[site.layer] = sqnr_db if math.isfinite(sqnr_db) else None
    return errors


_FP16_COUNTS = ("fp16_over", "fp16_under")
_FP16_COUNT_COLUMNS = [*map(ERROR_SUM_COLUMNS.index, _FP16_COUNTS)]


def measure_group_errors(
    analysis: Analysis,
    configs: Mapping[str, PrecisionConfig],
    ranges: Mapping[str, float],
    *,
    feed_indices: Sequence[int] | None = None,
    executor: Executor[AnalysisProvider[Analysis]] | None = None,
    known_sums: ErrorSums | None = None,
    keeps_gates: bool = False,
    range_feeds: Sequence[int] | None = None,
) -> Iterator[PartialResult[dict[str, dict[str, GroupErrors]]]]:
    """Measures the errors at all groups for several configs; yields ``{run: {group: GroupErrors}}`` after each
    execution.

    One loaded graph holds the reference, the gated network and a copy of each group that reads the reference. Only
    error sums leave the graph. Nothing is yielded if no group can be simulated. If the judged
    outputs have one mask, masked elements do not count at the groups whose last tensor has the axes of the mask; see
    `trt_tui.core.measure.judged_outputs.find_mask_axes`.

    Args:
        executor: The executor of the feeds; this process by default. The same partial result is yielded again while the
            executor has no new one.
        known_sums: The sums of the accumulated errors of a single config over all of the feeds, as
            `ConfigWithGroupErrors` measures them; then only isolated errors are measured. None to measure both.
        keeps_gates: True to keep the gates for a single config too, so that all bits equal those with several configs.
        range_feeds: The feeds whose values are compared with FP16's range; by default those of the errors.
    """
    network, indices = analysis.network, analysis.resolve_feed_indices(feed_indices)
    range_feeds = indices if range_feeds is None else range_feeds
    if all(group.final_tensor in network.blocking_plugins for group in network.groups):
        return
    executor = executor if executor is not None else LocalExecutor(AnalysisContext(analysis))
    fp16 = any(_needs_fp16_range_counts(network, config) for config in configs.values())
    if fp16:
        for _ in analysis.measure_magnitudes(range_feeds, executor):
            pass  # the magnitudes are already known if the caller measured them step by step
    magnitudes = analysis.get_magnitudes(range_feeds) or Magnitudes()
    coordinates = {
        run: find_coordinate_shifts(
            network,
            config,
            magnitudes.tensor_magnitudes,
            lambda: (
                network.build_outline_for_input_sizes(
                    {name: array.shape for name, array in analysis.samples.read_full_feed(0).items()}
                ).shapes
            ),
        )
        for run, config in configs.items()
    }
    overflows = {run: analysis.find_fp16_overflows(config, magnitudes, range_feeds) for run, config in configs.items()}
    weight_errors = {run: measure_weight_errors(network, config, ranges) for run, config in configs.items()}
    features = reduce(
        GatedFeatures.__or__,
        (GatedFeatures.from_config(network, config) for config in configs.values()),
        GatedFeatures.from_precisions((), ()),
    )
    task = _GroupErrorsTask(
        partial(
            _ErrorTableSession,
            features=features,
            configs=dict(configs),
            ranges=ranges,
            counts_fp16=fp16,
            with_accumulated=known_sums is None,
            keeps_gates=keeps_gates,
        )
    )
    errors: dict[str, dict[str, GroupErrors]] = {}
    sums = {run: {kind: ErrorSums() for kind in SUMS_OUTPUTS} for run in configs}
    for pooled in sums.values():
        pooled["accumulated"].merge_sums(known_sums or {})
    results_by_feed: dict[int, _FeedTables] = {}
    waiting, done, total = list(indices), 0, len(indices) * len(configs)
    try:
        for result in executor.map(task, indices):
            if result is None:
                yield PartialResult(dict(errors), done, total)
                continue
            results_by_feed[result[0]] = result[1]
            while (
                waiting and waiting[0] in results_by_feed
            ):  # sums are added in the order of the feeds, in whichever order they arrive
                measured, tables = results_by_feed.pop(waiting.pop(0))
                for (run, config), tables_by_kind in zip(configs.items(), tables, strict=True):
                    pooled = sums[run]
                    for kind, table in tables_by_kind.items():
                        pooled[kind].merge_table(table)
                    # known sums lack the counts of the reference
                    pooled["accumulated"].update({name: pooled["isolated"][name] for name in _FP16_COUNTS})
                    done += 1
                    errors[run] = _compute_group_errors(
                        network,
                        config,
                        measured,
                        pooled,
                        magnitudes,
                        overflows[run],
                        weight_errors[run],
                        coordinates[run],
                    )
                    yield PartialResult(dict(errors), done, total)
    finally:
        task.close()


class ConfigWithGroupErrors(SimulatedConfig):
    """A simulated config whose outputs and accumulated errors at the groups come from the same executions.

    One execution of a feed computes FP32, the config and the error sums at all groups, and on a CPU the extremes that
    the check of FP16's range needs. FP32 is the reference. The other arguments are those of `SimulatedConfig`.

    Args:
        error_feeds: The feeds of the errors at the groups; () for all that are measured.
        keeps_gates: True to keep the gates of the graph, so that all bits equal those of `SimulatedConfig`.

    Attributes:
        group_errors: The accumulated errors by group, over the measured feeds.
        error_sums: Their sums, arrays in the order of the groups that can be simulated.
    """

    group_errors: dict[str, GroupErrors]
    error_sums: ErrorSums

    def __init__(
        self,
        analysis: Analysis,
        config: PrecisionConfig,
        ranges: Mapping[str, float],
        name: str,
        error_feeds: Sequence[int] = (),
        *,
        keeps_gates: bool = False,
    ) -> None:
        super().__init__(analysis, config, ranges, name)
        self.error_feeds, self._keeps_gates = error_feeds, keeps_gates

    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[None]:
        """Implements `RunSource.measure`. Values beyond FP16's range are not counted."""
        analysis, config, ranges = self._analysis, self._config, self._ranges
        network = analysis.network
        evaluation = MagnitudeEvaluation(analysis) if uses_fp16(network, config) else None
        session = _ErrorTableSession(
            analysis,
            GatedFeatures.from_config(network, config),
            {self.run.name: config},
            ranges,
            counts_fp16=False,
            with_outputs=True,
            extremes=evaluation,
            keeps_gates=self._keeps_gates,
        )
        with closing(session):
            sums = self.error_sums = ErrorSums()
            for done, index in enumerate(feed_indices, 1):
                feed = session.read_feed(index)
                tables, reference, outputs = session.execute_feed(self.run.name, feed)
                analysis.store_fp32_outputs(index, reference)
                reducer.add_feed_outputs(index, outputs)
                if evaluation is not None and session.last_extremes is not None:
                    analysis.store_magnitudes(
                        index, evaluation.compute_magnitudes(analysis.samples.read_feed(index), *session.last_extremes)
                    )
                if index in (self.error_feeds or feed_indices):
                    sums.merge_table(tables["accumulated"])
                if done < len(feed_indices):
                    yield None
        if evaluation is not None:
            evaluation.close()
        for _ in self._measure_magnitudes(feed_indices):
            pass
        magnitudes = analysis.get_magnitudes(feed_indices) or Magnitudes()
        self.group_errors = _compute_group_errors(
            network,
            config,
            session.measured_groups,
            {"accumulated": sums},
            magnitudes,
            analysis.find_fp16_overflows(config, magnitudes, feed_indices),
            measure_weight_errors(network, config, ranges),
            {},
            counts_fp16=False,
        )
        yield None


_FeedTables = tuple[Sequence[str], list[dict[str, np.ndarray]]]
"""The names of the groups in the order of the table rows, and the error tables of each config for one feed."""


class _GroupErrorsTask(LoadingTask):
    """A task that measures the errors at all groups on one feed, for all configs.

    Args:
        load_session: A function that loads the graph for a simulation.
    """

    item_text = "the errors at the fused layers on feed {}"
    _loaded: "_ErrorTableSession | None" = None

    def __init__(self, load_session: "Callable[[Analysis], _ErrorTableSession]") -> None:
        self._load_session = load_session

    def run_item(self, context: AnalysisProvider[Analysis], feed_index: int) -> Generator[None, None, _FeedTables]:
        session = self._loaded = self._loaded or self._load_session(context.analysis)
        feed, tables = session.read_feed(feed_index), []
        counts: np.ndarray | None = None  # counts of the reference, which all configs share
        for run in session.configs:
            tables_by_kind, *_ = session.execute_feed(run, feed, counts_values_beyond_fp16=counts is None)
            for table in tables_by_kind.values():
                if counts is None:
                    counts = table[:, _FP16_COUNT_COLUMNS]
                table[:, _FP16_COUNT_COLUMNS] = counts
            tables.append(tables_by_kind)
            yield
        return tuple(session.measured_groups), tables


class _ErrorTableSession:
    """The loaded graph that computes error sums at every group, so that no tensor must leave the graph.

    On a device gates are data. With a single config on a CPU, the graph has no gates. These forms cannot tell apart
    sums that are not finite. From the first such sum on, gates are control flow.

    Args:
        counts_fp16: True to count values that FP16 cannot represent.
        configs: The configs by the name of their run.
        with_accumulated: False to measure isolated errors only, without outputs of the config.
        with_outputs: True to fetch the judged tensors in place of isolated errors.
        keeps_gates: True to keep the gates of a single config on a CPU.
        extremes: The tensors whose FP32 extremes and shapes are measured where gates are control flow; None for none.

    Attributes:
        last_extremes: The extremes and shapes of the last feed, as `MagnitudeEvaluation.compute_magnitudes` reads them.
            None if they were not measured.
    """

    last_extremes: tuple[dict[str, list[float]], dict[str, tuple[int, ...]]] | None = None

    def __init__(
        self,
        analysis: Analysis,
        features: GatedFeatures,
        configs: Mapping[str, PrecisionConfig],
        ranges: Mapping[str, float],
        counts_fp16: bool,
        with_outputs: bool = False,
        extremes: MagnitudeEvaluation | None = None,
        with_accumulated: bool = True,
        keeps_gates: bool = False,
    ) -> None:
        self._analysis, self._features, self.configs, self._ranges = analysis, features, configs, ranges
        self._evaluation, self._accumulated, self._keeps_gates = extremes, with_accumulated, keeps_gates
        self._counts_fp16, self._with_outputs = counts_fp16, with_outputs
        self._mask = np.zeros(0, bool)
        self._fetched_tensors = analysis.fetched_tensors if with_outputs else ()
        self._graph_loader = GatedGraphLoader(
            analysis.backend, analysis.samples, "errors at the fused layers", analysis.network
        )
        self._has_finite_sums = True
        self._load_error_graph()

    def _load_error_graph(self) -> None:
        self._gated_graph, self._runner = self._graph_loader.load_graph(
            self._build_error_graph,
            allow_data_gates=self._has_finite_sums,
            output_joins=_OUTPUT_JOINS,
            few_executions=True,
        )

    def _build_error_graph(self) -> GatedGraph:
        analysis, features = self._analysis, self._features
        names = [
            group.name
            for group in analysis.network.groups
            if group.final_tensor not in analysis.network.blocking_plugins
        ]
        evaluation = self._evaluation if not self._uses_gates_as_data else None
        by_group = evaluation.assign_tensors_to_groups(names) if evaluation is not None else None
        self._extreme_tensors = [tensor for tensors in (by_group or {}).values() for tensor in tensors]
        shape_tensors = evaluation.shape_tensors if evaluation is not None and self._extreme_tensors else ()
        self._shape_outputs = {tensor: f"shape/{tensor}" for tensor in shape_tensors}
        mask_axes = evaluation.mask_axes if evaluation is not None and by_group else {}
        gated_graph = build_gated_graph(
            analysis.network,
            float_types=features.float_types,
            boundary_types=features.boundary_types,
            quantized_types=features.quantized_types,
            editable_constants=features.editable_constants,
            norm_operators=features.norm_operators,
            outputs=self._fetched_tensors or analysis.fetched_tensors[:1],
            with_reference=True,
            with_isolated=not self._with_outputs,
            with_accumulated=self._accumulated,
            mask_axes={**mask_axes, **analysis.mask_axes_by_tensor},
            gates_as_data=self._uses_gates_as_data,
            expects_finite_sums=self._has_single_config_graph,
            measured_groups=names,
            extreme_tensors=by_group if self._extreme_tensors else None,
            shape_tensors=shape_tensors,
        )
        self._config_feeds = {run: gated_graph.make_feed(config, self._ranges) for run, config in self.configs.items()}
        if self._has_single_config_graph:
            (feed,) = self._config_feeds.values()
            if gated_graph.counting_gate is not None:
                feed = {**feed, gated_graph.counting_gate: np.array(self._counts_fp16)}
            freeze_inputs(gated_graph.model, feed)
            self._config_feeds = {run: {} for run in self.configs}
        analysis.session_count += 1
        return gated_graph

    @property
    def _uses_gates_as_data(self) -> bool:
        return self._graph_loader.uses_gates_as_data and self._has_finite_sums

    @property
    def _has_single_config_graph(self) -> bool:
        """True if the graph computes a single config without gates, and its sums in float32."""
        return (
            len(self.configs) == 1 and not self._keeps_gates and self._has_finite_sums and not self._uses_gates_as_data
        )

    @property
    def measured_groups(self) -> Sequence[str]:
        """The names of the groups in the order of the rows of an error table."""
        return self._gated_graph.measured_groups

    def read_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """Reads a feed, and its mask for the following executions."""
        samples, mask_name = self._analysis.samples, find_common_mask_name(self._analysis.judged_outputs)
        self._mask = read_mask(mask_name, samples, feed_index) if mask_name else np.zeros(0, bool)
        return samples.read_feed(feed_index)

    def execute_feed(
        self, run_name: str, feed: Mapping[str, np.ndarray], *, counts_values_beyond_fp16: bool = True
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Executes a config on the last read feed. Returns the error tables, and the judged tensors of FP32 and of the
        config.

        There is a table of accumulated errors and one of isolated errors, which is absent if it was not requested. The
        tensors are absent too if they were not requested.

        Args:
            counts_values_beyond_fp16: False if the counts of this feed are known from another config.
        """
        gated_graph, extra_inputs = self._gated_graph, {}
        if gated_graph.counting_gate is not None and not self._has_single_config_graph:
            extra_inputs[gated_graph.counting_gate] = np.array(self._counts_fp16 and counts_values_beyond_fp16)
        try:
            output_names = [
                {tensor: outputs[tensor] for tensor in self._fetched_tensors}
                for outputs in (gated_graph.reference_outputs, gated_graph.test_outputs)
            ]
            mask_feed = gated_graph.make_mask_feed(self._mask)  # another form of the graph reads other mask inputs
            result = self._runner.run(
                {**feed, **mask_feed, **self._config_feeds[run_name], **extra_inputs},
                [
                    *gated_graph.sums_outputs.values(),
                    *(name for outputs in output_names for name in outputs.values()),
                    *([EXTREMES_OUTPUT, *self._shape_outputs.values()] if self._extreme_tensors else ()),
                ],
            )
            tables = {kind: result[name] for kind, name in gated_graph.sums_outputs.items()}
            if self._are_sums_valid(tables.values()):
                self.last_extremes = (
                    None
                    if not self._extreme_tensors
                    else (
                        dict(zip(self._extreme_tensors, result[EXTREMES_OUTPUT].tolist(), strict=True)),
                        {tensor: tuple(map(int, result[name])) for tensor, name in self._shape_outputs.items()},
                    )
                )
                reference, outputs = (
                    {tensor: convert_to_comparable_array(result[name]) for tensor, name in outputs.items()}
                    for outputs in output_names
                )
                return tables, reference, outputs
        except OutOfMemoryError as error:
            self._runner.close()
            self._graph_loader.switch_to_next_graph_form(error)
        else:
            self._runner.close()
            self._has_finite_sums = False
        self._load_error_graph()
        return self.execute_feed(run_name, feed, counts_values_beyond_fp16=counts_values_beyond_fp16)

    def _are_sums_valid(self, tables: Iterable[np.ndarray]) -> bool:
        """Returns False if the form of the graph cannot compute some sums of the tables."""
        is_exact = not self._has_single_config_graph and not self._uses_gates_as_data
        return is_exact or all(np.isfinite(table).all() for table in tables)

    def close(self) -> None:
        self._runner.close()


def _merge_error_tables(tables_by_portion: Sequence[np.ndarray]) -> np.ndarray:
    """Merges the error tables of the portions of a feed into one table.

    The columns `ERROR_SUM_COLUMNS` are added; of largest magnitudes the maximum is taken.
    """
    sums = ErrorSums()
    for table in tables_by_portion:
        sums.merge_table(table)
    return np.stack([*sums.values()], axis=1)


def _merge_extremes(tables_by_portion: Sequence[np.ndarray]) -> np.ndarray:
    """Merges the extremes of the portions of a feed: the largest maxima and the smallest minima."""
    return np.stack(
        [
            (np.max if name.endswith("max") else np.min)([table[:, index] for table in tables_by_portion], 0)
            for index, name in enumerate(EXTREME_COLUMNS)
        ],
        axis=1,
    )


_OUTPUT_JOINS: Mapping[str, OutputJoin] = {
    **dict.fromkeys(SUMS_OUTPUTS.values(), _merge_error_tables),
    EXTREMES_OUTPUT: _merge_extremes,
}
"""The functions that join the tables of the portions of a feed, by the name of the graph output."""


def _compute_group_errors(
    network: Network,
    config: PrecisionConfig,
    group_names: Sequence[str],
    error_sums_by_kind: Mapping[str, ErrorSums],
    magnitudes: Magnitudes,
    large_values: Mapping[str, Fp16Overflow],
    weight_errors: Mapping[str, Mapping[str, float | None]],
    coordinate_shifts: Mapping[str, CoordinateShift],
    counts_fp16: bool = True,
) -> dict[str, GroupErrors]:
    result, fp16 = {}, _needs_fp16_range_counts(network, config)
    magnitudes = apply_divisors_to_magnitudes(network, config, magnitudes)
    errors_by_kind = {kind: sums.compute_metrics_of_each_tensor() for kind, sums in error_sums_by_kind.items()}
    table = np.stack([*error_sums_by_kind["accumulated"].values()], axis=1).tolist()
    for position, name in enumerate(group_names):
        group, accumulated = network.get_group(name), dict(zip(ERROR_SUM_COLUMNS, table[position], strict=True))
        precision = config.precision_of(group)
        isolated = (
            errors_by_kind["isolated"][position] if "isolated" in errors_by_kind and accumulated["count"] else None
        )
        largest = find_largest_magnitude(network, config, group, magnitudes) if fp16 else None
        large = large_values.get(name)
        result[name] = GroupErrors(
            precision,
            errors_by_kind["accumulated"][position],
            isolated,
            accumulated["ref_max"] or None,
            describe_fp16_values(network, config, group, large, largest, accumulated, isolated),
            int(accumulated["fp16_over"]) if fp16 and counts_fp16 else None,
            int(accumulated["fp16_under"]) if fp16 and counts_fp16 else None,
            largest.magnitude if largest is not None else None,
            largest.layer if largest is not None else "",
            large.state.value if large is not None else Fp16RangeState.SAFE.value if fp16 else "",
            weight_errors.get(name, {}),
            coordinate_shifts.get(name),
        )
    return result


def _needs_fp16_range_counts(network: Network, config: PrecisionConfig) -> bool:
    """Returns True if values outside the range of FP16 are counted. A config with BF16 in place of FP16 needs no
    counts."""
    requested_precisions = {*(move.value_type for move in config.precision_by_group(network).values()), config.other}
    return Precision.FP16 in requested_precisions or Precision.BF16 not in requested_precisions
