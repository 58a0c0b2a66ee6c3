"""The measurement of the facts of a fusion group from which causes of its loss are found.

The facts do not depend on a config. They are measured in FP32 on the calibration samples and from the weights.
"""

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import starmap

import numpy as np

from trt_tui.core.calibration.tensor_collection import (
    CalibrationContext,
    CollectedTensor,
    NetworkProbe,
    RunProgress,
    collect_tensors,
)
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.rulebook import round_to_precision, scale_from_amax, weight_sqnr_db
from trt_tui.core.measure.causes import (
    ConstantFacts,
    GroupFacts,
    OffsetRounding,
    ValueRange,
    WeightScaleFacts,
)
from trt_tui.core.measure.error_metrics import MIN_LOSSLESS_SQNR_DB
from trt_tui.core.measure.group_errors import max_rounding_error
from trt_tui.core.network.graph import largest_magnitude
from trt_tui.core.network.layers import FusionGroup, Layer, QdqSite
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import PRODUCTS
from trt_tui.core.precision import FP16_MAX, FP16_MIN, Precision
from trt_tui.core.quantized_types import INT8, broadcast_scales
from trt_tui.core.runner import Backend, Executor

_SCALE_OPERATORS = ("Mul", "Div")

_ADDING_OPERATORS = ("Add", "Sub", "Sum", "Max", "Min", "Clip")
"""Operators that add a constant to values or bound them by it."""

MAX_OFFSET_FEEDS = 8
"""Maximum number of feeds on which values behind an offset are measured."""

_OFFSET_OPERATORS = ("Add", "Sub", "LayerNormalization", "InstanceNormalization", "Softmax")

_MAX_EXACT_SCORE = 64.0
"""The magnitude of the largest score of a row from which FP16 rounds it by more than 1/32, which changes a weight by
3 %."""

_MIN_MASKED_SCORE = 1000.0
"""The magnitude from which the largest score of a row is that of a mask, if it is negative."""


class ValueRangeCollector:
    """A collector of the magnitudes of a tensor that FP16 loses; NaN and infinities are left out."""

    def __init__(self) -> None:
        self._amax = 0.0
        self._sums = np.zeros(4)  # nonzero values, those that become 0, signal and noise of those that FP16 holds

    def add_values(self, array: np.ndarray) -> None:
        """Implements `TensorCollector.add_values`. A value that is not finite is no error."""
        magnitudes = np.abs(array[np.isfinite(array)])
        nonzero = magnitudes[magnitudes > 0]
        held = nonzero[nonzero <= FP16_MAX]
        self._amax = max(self._amax, float(nonzero.max(initial=0.0)))
        self._sums += (
            nonzero.size,
            np.count_nonzero(nonzero <= FP16_MIN / 2),
            np.square(held, dtype=np.float64).sum(),
            np.square(held.astype(np.float64) - round_to_precision(held, Precision.FP16)).sum(),
        )

    def merge_values(self, later_collector: "ValueRangeCollector") -> None:
        """Implements `TensorCollector.merge_values`."""
        self._amax = max(self._amax, later_collector._amax)
        self._sums += later_collector._sums

    def compute_range(self, tensor: str, layer: str) -> ValueRange:
        """Returns the magnitudes of all values added so far."""
        nonzero_count, zeroed_count, signal, noise = self._sums.tolist()
        sqnr_db = 10 * math.log10(signal / noise) if noise else math.inf
        return ValueRange(tensor, layer, self._amax, zeroed_count / max(nonzero_count, 1), sqnr_db)


def collect_value_ranges(
    network: Network,
    groups: Sequence[FusionGroup],
    samples: Samples,
    backend: Backend,
    *,
    progress: RunProgress | None = None,
    executor: Executor[CalibrationContext] | None = None,
) -> dict[str, list[ValueRange]]:
    """Measures the tensors that the layers of groups compute, by group name, in one pass over the samples.

    The arguments are those of `trt_tui.core.calibration.calibration.collect_tensor_stats`.
    """
    layers_by_group = {group.name: _list_examined_tensors(network, group) for group in groups}
    collectors = {tensor: ValueRangeCollector() for layers in layers_by_group.values() for tensor in layers}
    collect_tensors(
        network.model, [*starmap(CollectedTensor, collectors.items())], samples, backend, progress, executor
    )
    return {
        name: [collectors[tensor].compute_range(tensor, layer) for tensor, layer in layers.items()]
        for name, layers in layers_by_group.items()
    }


def measure_group_facts(
    network: Network, group: FusionGroup, value_ranges: Sequence[ValueRange], samples: Samples, backend: Backend
) -> GroupFacts:
    """Measures the facts of a group: those of its weights, and those of its offsets on the first feeds of the samples.

    Args:
        value_ranges: The tensors of the group from `collect_value_ranges`.
    """
    return GroupFacts(
        tuple(value_ranges),
        tuple(_examine_constants(network, group)),
        tuple(_examine_weight_scales(network, group)),
        _find_attention_scale(network, group, value_ranges),
        tuple(_measure_offset_roundings(network, group, samples, backend)),
    )


def _list_examined_tensors(network: Network, group: FusionGroup) -> dict[str, str]:
    """Returns the float tensors that a group reads and that its layers compute, with operator and name of the layer.

    Tensors into which a mask is written are left out.
    """
    layers = {tensor: f"its input {tensor}" for tensor in group.inputs}
    layers |= {
        tensor: _layer_text(network.get_layer(name))
        for name in group.layers
        for tensor in network.get_layer(name).outputs
        if tensor
    }
    return {
        tensor: layer
        for tensor, layer in layers.items()
        if network.is_fp32(tensor)
        and tensor not in network.masked_tensors
        and tensor not in network.static_tensors
        and tensor not in network.constant_tensors
        and tensor not in network.blocking_plugins
    }


def _layer_text(layer: Layer) -> str:
    return f"{layer.op_type} {layer.name}"


# -- constants ------------------------------------------------------------------------------------------------------


def _examine_constants(network: Network, group: FusionGroup) -> Iterator[ConstantFacts]:
    """Yields the float constants of a group, and the epsilons that are added to its inputs before the group."""
    producers = [network.producer[tensor] for tensor in group.inputs if tensor in network.producer]
    for name in dict.fromkeys((*group.layers, *producers)):
        layer = network.get_layer(name)
        for index, tensor in enumerate(layer.inputs):
            is_epsilon = tensor in network.epsilon_readers
            if (
                tensor not in network.constant_tensors
                or not network.is_fp32(tensor)
                or not (is_epsilon or name in group.layers)
            ):
                continue
            value = _read_file_constant(network, layer, index)
            if value is None or not value.size:
                continue
            magnitudes = np.abs(value[~np.isnan(value)].astype(np.float32))
            nonzero = magnitudes[magnitudes > 0]
            held = nonzero[nonzero <= FP16_MAX]
            over_fp16 = np.abs(value.astype(np.float32)) > FP16_MAX
            exact = network.find_constant_value(tensor)
            if exact is None or exact.shape == value.shape:
                over_fp16 &= ~np.isinf(value if exact is None else exact)  # FP16 has infinities
            is_mask = network.is_mask(tensor) or bool(np.isneginf(value).any()) and layer.op_type not in PRODUCTS
            yield ConstantFacts(
                tensor,
                _layer_text(layer),
                float(magnitudes.max(initial=0.0)),
                float(np.count_nonzero(nonzero <= FP16_MIN / 2) / max(nonzero.size, 1)),
                weight_sqnr_db(held, round_to_precision(held, Precision.FP16)) if held.size else math.inf,
                value.size,
                int(np.count_nonzero(over_fp16)),
                is_mask,
                layer.outputs[0] if is_epsilon else "",
                layer.op_type in _ADDING_OPERATORS,
            )


def _read_file_constant(network: Network, layer: Layer, input_index: int) -> np.ndarray | None:
    """Returns a constant as the file has it, or as the FP32 network has it; None if it cannot be computed."""
    value = network.source_model.constant_value(layer, input_index) if network.source_model is not None else None
    return value if value is not None else network.find_constant_value(layer.inputs[input_index])


# -- weight scales --------------------------------------------------------------------------------------------------


def _examine_weight_scales(network: Network, group: FusionGroup) -> Iterator[WeightScaleFacts]:
    for site in group.weight_qdq_sites():
        layer = network.get_layer(site.layer)
        value = network.find_constant_value(site.tensor)
        if value is None or value.ndim < 2 or not np.isfinite(weight := value.astype(np.float32)).all():
            continue
        channel_axis = site.axis if site.axis is not None else weight.ndim - (2 if site.index == 0 else 1)
        amaxes = largest_magnitude(weight, channel_axis).reshape(-1)
        scale_axis, quantized = _read_scales_in_use(network, layer, site, weight)
        largest = int(np.argmax(amaxes))
        yield WeightScaleFacts(
            _layer_text(layer),
            scale_axis,
            channel_axis,
            weight_sqnr_db(weight, quantized),
            _median_channel_sqnr_db(weight, quantized, channel_axis),
            _median_channel_sqnr_db(weight, _quantize_weight(weight, channel_axis), channel_axis),
            largest,
            float(amaxes[largest]),
            float(np.median(amaxes)),
            amaxes.size,
        )


def _read_scales_in_use(
    network: Network, layer: Layer, site: QdqSite, weight: np.ndarray
) -> tuple[int | None, np.ndarray]:
    """Returns the axis of the scales of a weight, and the dequantized weight: as in the file, if it has scales."""
    source = network.source_model
    if source is None:
        return site.axis, _quantize_weight(weight, site.axis)
    steps = [step for step in source.find_conversion_steps(layer, site.index) or () if step.scale is not None]
    step = steps[-1] if steps else source.find_dequantize_step(site.tensor)
    value = _read_file_constant(network, layer, site.index)
    if step is None or step.scale is None or step.block_size or value is None or value.shape != weight.shape:
        return site.axis, weight
    return None if step.scale.size == 1 else step.axis % weight.ndim, value.astype(np.float32)


def _quantize_weight(weight: np.ndarray, axis: int | None) -> np.ndarray:
    """Returns a weight after INT8 quantization with one scale for each index of an axis, or with a single scale."""
    step = broadcast_scales(scale_from_amax(largest_magnitude(weight, axis), INT8), weight.shape, axis)
    quantized: np.ndarray = INT8.quantize(weight / step) * step
    return quantized


def _median_channel_sqnr_db(weight: np.ndarray, quantized: np.ndarray, channel_axis: int) -> float:
    """Returns the median over output channels of the SQNR of a quantized weight. Channels of zeros do not count."""
    axes = tuple(axis for axis in range(weight.ndim) if axis != channel_axis)
    signal = np.square(weight, dtype=np.float64).sum(axis=axes)
    noise = np.square(weight.astype(np.float64) - quantized).sum(axis=axes)
    ratios = np.divide(signal, noise, out=np.full_like(signal, np.inf), where=noise > 0)[signal > 0]
    return 10 * math.log10(float(np.median(ratios))) if ratios.size and np.isfinite(np.median(ratios)) else math.inf


# -- attention ------------------------------------------------------------------------------------------------------


def _find_attention_scale(
    network: Network, group: FusionGroup, value_ranges: Sequence[ValueRange]
) -> tuple[ValueRange, ValueRange] | None:
    """Returns the product of Q and K before and after a constant scale; None if there is no such scale."""
    if group.attention_role != "QK":
        return None
    ranges = {values.tensor: values for values in value_ranges}
    product = next(
        (network.get_layer(name) for name in group.layers if network.get_layer(name).op_type == "MatMul"), None
    )
    if product is None:
        return None
    for name in network.consumers.get(product.outputs[0], ()):
        layer = network.get_layer(name)
        if (
            name in group.layers
            and layer.op_type in _SCALE_OPERATORS
            and ranges.keys() >= {product.outputs[0], layer.outputs[0]}
            and any(tensor in network.constant_tensors for tensor in layer.inputs)
        ):
            return ranges[product.outputs[0]], ranges[layer.outputs[0]]
    return None


# -- offsets ----------------------------------------------------------------------------------------------------------


def _measure_offset_roundings(
    network: Network, group: FusionGroup, samples: Samples, backend: Backend
) -> Iterator[OffsetRounding]:
    """Yields the rounding of the values that the differences, normalisations and Softmaxes of a group read."""
    layers = [
        layer
        for name in group.layers
        if not (layer := network.get_layer(name)).domain
        and layer.op_type in _OFFSET_OPERATORS
        and network.is_fp32(layer.outputs[0])
        and layer.outputs[0] not in network.static_tensors
    ]
    sums = {
        layer.name: _SoftmaxOffsets(network, layer)
        if layer.op_type == "Softmax"
        else _DifferenceOffsets(network, layer)
        for layer in layers
    }
    computed = [
        tensor for offsets in sums.values() for tensor in offsets.tensors if tensor not in network.constant_tensors
    ]
    if not computed:
        return
    for feed in _read_feeds(network, computed, samples, backend, MAX_OFFSET_FEEDS):
        for offsets in sums.values():
            offsets.add_values(
                [feed[tensor] if tensor in feed else network.constant_value(tensor) for tensor in offsets.tensors]
            )
    yield from (rounding for offsets in sums.values() if (rounding := offsets.compute_rounding()) is not None)


class _DifferenceOffsets:
    """The values of a sum or difference of two operands, or the deviations from the mean of a normalisation.

    The roots of the variances E[x²] - E[x]² divide the rows. Each of these values therefore counts relative to itself.

    Attributes:
        tensors: The tensors that are read.
    """

    def __init__(self, network: Network, layer: Layer) -> None:
        self._layer = layer
        self._axes = _find_normalised_axes(network, layer)
        self.tensors = layer.inputs[: 2 if self._axes is None else 1]
        operators = [
            network.get_layer(network.producer[name]).op_type for name in layer.inputs if name in network.producer
        ]
        self._is_variance = layer.op_type == "Sub" and operators in (["ReduceMean", "Mul"], ["ReduceMean", "Pow"])
        self._magnitude = 0.0
        self._operand_sums = np.zeros((len(self.tensors), 2))  # signal and noise
        # Signal, noise, values, nonzero values, those that change by more than half, and relative noise.
        self._sums = np.zeros(6)

    def add_values(self, arrays: Sequence[np.ndarray]) -> None:
        """Adds the arrays of the tensors in one feed. Values that are not finite in FP16 do not count.

        Only errors of results below an operand count: the sum of two values with the same sign has no offset.
        """
        arrays = [array.astype(np.float64) for array in arrays]
        with np.errstate(invalid="ignore", over="ignore"):
            exact = self._subtract_offset(arrays)
            coarse = self._subtract_offset([round_to_precision(array, Precision.FP16) for array in arrays])
            is_small = np.abs(exact) < reduce(np.maximum, map(np.abs, arrays))
        is_held = np.isfinite(exact) & np.isfinite(coarse)
        values, errors = exact[is_held], np.where(is_small, coarse - exact, 0.0)[is_held]
        for array, sums in zip(arrays, self._operand_sums, strict=True):
            held = array[np.abs(array) <= FP16_MAX]
            self._magnitude = max(self._magnitude, float(np.abs(held).max(initial=0.0)))
            sums += (np.square(held).sum(), np.square(round_to_precision(held, Precision.FP16) - held).sum())
        self._sums += (
            np.square(values).sum(),
            np.square(errors).sum(),
            values.size,
            np.count_nonzero(values),
            np.count_nonzero((np.abs(errors) > np.abs(values) / 2) & (values != 0)),
            np.square(np.minimum(np.abs(errors[values != 0] / values[values != 0]), 1)).sum(),
        )

    def _subtract_offset(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        difference: np.ndarray
        if self._axes is not None:
            difference = arrays[0] - arrays[0].mean(axis=self._axes, keepdims=True)
        else:
            difference = arrays[0] - arrays[1] if self._layer.op_type == "Sub" else arrays[0] + arrays[1]
        return difference

    def compute_rounding(self) -> OffsetRounding | None:
        """Returns the rounding of all values added so far; None if FP16 changes none of them.

        The result is also None if FP16 loses the operands themselves, so that no offset is needed to lose the values.
        """
        is_operand_lost = any(
            noise * 10 ** (MIN_LOSSLESS_SQNR_DB / 10) > signal for signal, noise in self._operand_sums
        )
        signal, noise, count, nonzero_count, lost_count, relative_noise = self._sums.tolist()
        if not signal or not noise or is_operand_lost:
            return None
        return OffsetRounding(
            _layer_text(self._layer),
            False,
            self._magnitude,
            2 * max_rounding_error(self._magnitude, Precision.FP16),
            math.sqrt(signal / count),
            10 * math.log10(nonzero_count / relative_noise if self._is_variance else signal / noise),
            lost_count / nonzero_count,
        )


def _find_normalised_axes(network: Network, layer: Layer) -> tuple[int, ...] | None:
    """Returns the axes over which a normalisation takes the mean; None for a sum or difference."""
    rank = len(network.shape(layer.inputs[0]) or ())
    if layer.op_type == "InstanceNormalization":
        return tuple(range(2, rank)) or (-1,)
    if layer.op_type == "LayerNormalization":
        axis = network.node(layer.name).attributes.get_int("axis", -1)
        return tuple(range(axis % rank, rank)) if rank else (axis,)
    return None


class _SoftmaxOffsets:
    """The largest score of each row of a Softmax, which it subtracts.

    Attributes:
        tensors: The tensor that is read.
    """

    def __init__(self, network: Network, layer: Layer) -> None:
        self._layer = layer
        self._axis = network.node(layer.name).attributes.get_int("axis", -1)
        self.tensors = layer.inputs[:1]
        self._row_count = 0
        self._lost: list[float] = []

    def add_values(self, arrays: Sequence[np.ndarray]) -> None:
        """Adds the scores of one feed. Rows whose largest score is not finite do not count."""
        largest = arrays[0].max(axis=self._axis).reshape(-1)
        self._row_count += largest.size
        self._lost += [float(score) for score in largest[np.abs(largest) > _MAX_EXACT_SCORE] if math.isfinite(score)]

    def compute_rounding(self) -> OffsetRounding | None:
        """Returns the rounding of all rows added so far; None if FP16 holds the scores of all of them."""
        if not self._lost:
            return None
        magnitude = min(float(np.median(np.abs(self._lost))), FP16_MAX)
        masked_count = sum(score <= -_MIN_MASKED_SCORE for score in self._lost)
        return OffsetRounding(
            _layer_text(self._layer),
            True,
            magnitude,
            2 * max_rounding_error(magnitude, Precision.FP16),
            0.0,
            math.inf,
            len(self._lost) / self._row_count,
            masked_count / self._row_count,
        )


def _read_feeds(
    network: Network, tensors: Sequence[str], samples: Samples, backend: Backend, count: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields float tensors of the network in the first feeds of the samples."""
    probe = NetworkProbe(network.model)
    outputs = {tensor: probe.add_output(probe.find_or_add_fp32_value(tensor)) for tensor in dict.fromkeys(tensors)}
    with probe.load_output_runner(backend, samples) as runner:
        for index in range(min(count, len(samples))):
            arrays = runner.run(samples.read_feed(index))
            yield {tensor: arrays[output] for tensor, output in outputs.items()}
