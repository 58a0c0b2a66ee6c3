"""The measurement of a network's dynamic ranges: the amax of each tensor that quantization must represent.

Symmetric INT8 maps ``[-amax, amax]`` to quantized values -127 to 127, so the scale is amax / 127. FP8 maps it to -448
to 448. An amax of 0 means that the tensor was zero everywhere; code that computes a scale from it uses 1.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from trt_tui.core.calibration.range_methods import RANGE_METHODS, TYPES_WITH_OWN_RANGES, Histogram, choose_amax
from trt_tui.core.calibration.tensor_collection import (
    AMAX_OPERATORS,
    CalibrationContext,
    CalibrationInputs,
    NetworkProbe,
    RunProgress,
    collect_tensors,
    make_non_finite_error,
    read_amax,
    run_items_in_order,
)
from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import Executor, LoadingTask, LocalExecutor
from trt_tui.core.quantized_types import QuantizedType
from trt_tui.core.runner import Backend, Runner
from trt_tui.errors import InputError


class RangeTable(dict[str, float]):
    """The calibrated amax by tensor name, in the tensors' own units.

    The entries are for INT8 and for every quantized type without ranges of its own.

    Attributes:
        by_type: The amax by tensor name for each quantized type with ranges of its own, keyed by the precision.
    """

    def __init__(self, ranges: Mapping[str, float], ranges_by_type: Mapping[str, Mapping[str, float]]) -> None:
        super().__init__(ranges)
        self.by_type = {precision: dict(type_ranges) for precision, type_ranges in ranges_by_type.items()}


def select_ranges_for_type(ranges: Mapping[str, float], quantized_type: QuantizedType) -> Mapping[str, float]:
    """Returns the amax by tensor name that a quantized type uses.

    Ranges that were chosen for this type replace the general ones.
    """
    type_ranges = ranges.by_type.get(quantized_type.precision.value) if isinstance(ranges, RangeTable) else None
    return {**ranges, **type_ranges} if type_ranges else ranges


def override_ranges(ranges: Mapping[str, float], overrides: Mapping[str, float]) -> Mapping[str, float]:
    """Returns a copy of the ranges in which the overrides replace the amax of their tensors for every quantized type.
    """
    merged = {**ranges, **overrides}
    if not isinstance(ranges, RangeTable):
        return merged
    return RangeTable(
        merged, {
            precision: {tensor: amax
                        for tensor, amax in type_ranges.items()
                        if tensor not in overrides}
            for precision, type_ranges in ranges.by_type.items()
        })


def ranges_comparison_key(ranges: Mapping[str, float]) -> tuple[object, ...]:
    """Returns a key that is equal for two range tables exactly if all their ranges are equal."""
    ranges_by_type = ranges.by_type if isinstance(ranges, RangeTable) else {}
    return (*sorted(ranges.items()), *((precision, *sorted(type_ranges.items()))
                                       for precision, type_ranges in sorted(ranges_by_type.items())))


@dataclass(frozen=True)
class Calibration:
    """The measured ranges of a network, with the range method and the samples they come from.

    Attributes:
        method: One of `RANGE_METHODS`; "" if it is unknown.
        samples: Number of samples.
        data_sha256: Hash of the samples from `Samples.hash_inputs`.
        ranges: The amax by tensor name, for INT8 and every quantized type without ranges of its own.
        ranges_by_type: The amax by tensor name for each quantized type with ranges of its own, keyed by the precision.
        given_tensors: The tensors whose range is given, and not measured on the calibration samples in use.
    """

    method: str = ""
    samples: int = 0
    data_sha256: str = ""
    ranges: dict[str, float] = field(default_factory=dict)
    ranges_by_type: dict[str, dict[str, float]] = field(default_factory=dict)
    given_tensors: tuple[str, ...] = field(default=(), compare=False)

    @property
    def range_table(self) -> Mapping[str, float]:
        """The ranges in the form that the lowerings read: a `RangeTable` if any quantized type has ranges of its own.
        """
        return RangeTable(self.ranges, self.ranges_by_type) if self.ranges_by_type else self.ranges

    def with_ranges(self, overrides: Mapping[str, float]) -> Calibration:
        """Returns a copy in which given ranges replace the amax of their tensors for every quantized type."""
        return replace(self, ranges={**self.ranges, **overrides}, ranges_by_type={
            precision: {tensor: amax for tensor, amax in type_ranges.items() if tensor not in overrides}
            for precision, type_ranges in self.ranges_by_type.items()
        }, given_tensors=(*self.given_tensors, *overrides))


def calibrate(
    network_model: ir.Model,
    tensors: Sequence[str],
    samples: Samples,
    backend: Backend,
    *,
    method: str = "minmax",
    progress: RunProgress | None = None,
    executor: Executor[CalibrationContext] | None = None,
) -> Calibration:
    """Measures the values of each tensor over all samples and chooses the tensor's range by a range method.

    ``minmax`` reduces inside the graph, in one pass over the samples, and only scalars leave the inference session. The
    other methods read the tensors as outputs. One pass over the samples reads as many tensors as the memory limit
    allows, but at least one. The size of a tensor is that in the first feed.

    Args:
        network_model: The FP32 network. The model is not changed, and its weights are shared, not copied.
        tensors: Names of float tensors of the main graph.
        samples: The calibration samples.
        backend: The backend that executes the network.
        method: One of `RANGE_METHODS`.
        progress: A callback after each execution. An exception from the callback ends the calibration.
        executor: The executor of the feeds; this process by default.

    Raises:
        InputError: The method or a tensor is unknown, a tensor contains NaN or an infinity, or the data cannot be read.
        TrtTuiError: The backend refuses the network or the feeds.
    """
    if method not in RANGE_METHODS:
        raise InputError(f"Unknown calibration method: {method}",
                         next_step=f"Choose one of {', '.join(RANGE_METHODS)}.")
    if method == "minmax":
        ranges = _measure_minmax_ranges(network_model, tensors, samples, backend, executor, progress)
        return Calibration(method, samples.count, samples.hash_inputs(), ranges)
    histograms = {tensor: Histogram() for tensor in tensors}
    collect_tensors(network_model, histograms, samples, backend, progress, executor)
    ranges = {tensor: choose_amax(histogram, method) for tensor, histogram in histograms.items()}
    ranges_by_type = {
        quantized_type.precision.value: {
            tensor: choose_amax(tensor_histogram, method, quantized_type)
            for tensor, tensor_histogram in histograms.items()
        }
        for quantized_type in TYPES_WITH_OWN_RANGES
        if method != "percentile"
    }
    return Calibration(method, samples.count, samples.hash_inputs(), ranges, ranges_by_type)


class MinMaxTask(LoadingTask):
    """A task that computes the amax of each tensor in one feed by reductions inside the graph.

    The amax of a tensor with NaN or an infinity is NaN or infinite.
    """

    def __init__(self, tensors: Sequence[str]) -> None:
        self._tensors = tuple(tensors)
        self._loaded: Runner | None = None

    def describe_item(self, item: int) -> str:
        return f"the ranges of feed {item}"

    def run_item(self, context: CalibrationContext, item: int) -> Generator[None, None, dict[str, float]]:
        if self._loaded is None:
            probe = NetworkProbe(context.fp32_model)
            self._reductions = {tensor: probe.add_reductions(probe.get_fp32_value(tensor), *AMAX_OPERATORS)
                                for tensor in self._tensors}
            self._loaded = probe.load_probe_runner(context.backend, context.calibration_samples)
        scalars = self._loaded.run(context.calibration_samples.read_feed(item))
        yield
        return {tensor: read_amax(scalars, names) for tensor, names in self._reductions.items()}


def _measure_minmax_ranges(model: ir.Model, tensors: Sequence[str], samples: Samples, backend: Backend,
                           executor: Executor[CalibrationContext] | None, progress: RunProgress | None
                           ) -> dict[str, float]:
    ranges = dict.fromkeys(tensors, 0.0)
    if not ranges:
        return ranges
    task = MinMaxTask(tensors)
    try:
        for feed_index, amaxes in run_items_in_order(
                executor or LocalExecutor(CalibrationInputs(model, samples, backend)), task, range(len(samples)),
                lambda item: 1, progress):
            for tensor, amax in amaxes.items():
                if not math.isfinite(amax):
                    raise make_non_finite_error(model, samples, backend, tensor,
                                                "NaN" if math.isnan(amax) else "an infinity", feed_index)
                ranges[tensor] = max(ranges[tensor], amax)
    finally:
        task.close()
    return ranges
