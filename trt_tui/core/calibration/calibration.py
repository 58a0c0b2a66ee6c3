"""Ranges: the largest magnitude (amax) that quantization is to represent, per tensor.

Symmetric INT8 maps ``[-amax, amax]`` to codes -127 to 127: scale = amax / 127. An amax of 0 says that the tensor was
zero throughout; whoever makes a scale of it takes 1.

Methods:

- ``minmax``: the largest ``|x|``, computed inside the graph.
- ``percentile``: the value that a given percentage of all ``|x|`` does not exceed.
- ``entropy``: the threshold with the least Kullback-Leibler divergence between the histogram of ``|x|`` and its form
  in 128 levels (S. Migacz, "8-bit Inference with TensorRT", GTC 2017; the first bin gets the second one's count, as
  NVIDIA ModelOpt does, so that zeros do not decide).
- ``mse``: the threshold with the least mean squared quantization error over the histogram.

Nothing here grows with the number of samples.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.samples import Samples
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError
from trt_tui.files.reading import read_text
from trt_tui.files.writing import write_atomic

METHODS = ("minmax", "percentile", "entropy", "mse")
DEFAULT_PERCENTILE = 99.99
MEMORY_LIMIT = 256 << 20
"""Bytes of activations that one run may hand out, by default."""

Progress = Callable[[int, int], None]
"""Called with runs done and runs in all."""

_LEVELS = 128
_BLOCK = 1 << 18


# -------------------------------------------------------------------------------------------------------- histograms


class Histogram:
    """Counts of ``|x|`` in equal bins from 0, growing with the data.

    The bins end at a power of two above the largest value seen. A larger value doubles that end, as often as needed, by
    joining neighbouring bins, so counts are exact and independent of the order and cutting of the data. At least half
    of the bins lie below the largest value.
    """

    BINS = 4096
    _LEAST_EXPONENT = -100

    def __init__(self) -> None:
        self.counts = np.zeros(self.BINS, np.int64)
        self.amax = 0.0
        self._exponent = self._LEAST_EXPONENT

    @property
    def width(self) -> float:
        """Width of a bin."""
        return math.ldexp(1.0, self._exponent) / self.BINS

    @property
    def total(self) -> int:
        """Number of values counted."""
        return int(self.counts.sum())

    @property
    def used(self) -> int:
        """Number of bins up to the largest value."""
        return int(self.amax / self.width) + 1

    def add(self, array: np.ndarray) -> None:
        """Counts the values of a float array of any shape.

        Raises:
            ValueError: it holds NaN or an infinity.
        """
        for block in _magnitudes(array):
            self.add_magnitudes(block)

    def add_magnitudes(self, block: np.ndarray) -> None:
        """Counts ``|x|``, given as a flat float32 array. Raises as `add`."""
        largest = float(block.max())
        if not math.isfinite(largest):
            raise ValueError("NaN" if math.isnan(largest) else "an infinity")
        self.amax = max(self.amax, largest)
        if largest > 0:
            self._grow(math.frexp(largest)[1])
        bins = (block * np.float32(1 / self.width)).astype(np.intp)
        self.counts += np.bincount(bins, minlength=self.BINS)

    def _grow(self, exponent: int) -> None:
        while self._exponent < exponent:
            joined = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([joined, np.zeros_like(joined)])
            self._exponent += 1

    def percentile(self, percent: float = DEFAULT_PERCENTILE) -> float:
        """The upper edge of the bin that holds the given percentile of all values, at most the largest value."""
        if not 0 < percent <= 100:
            raise ValueError(f"percentile {percent} is not in (0, 100]")
        cumulated = np.cumsum(self.counts)
        if not cumulated[-1]:
            return 0.0
        bin_ = int(np.searchsorted(cumulated, percent / 100 * cumulated[-1]))
        return min((bin_ + 1) * self.width, self.amax)

    def entropy(self) -> float:
        """The threshold of least Kullback-Leibler divergence; between 1/32 of the largest value and that value."""
        used = self.used
        if self.amax == 0 or used <= _LEVELS:
            return self.amax
        counts = self.counts[:used].astype(np.float64)
        counts[0] = counts[1]
        kept = np.arange(_LEVELS, used + 1)
        divergence = np.concatenate([_divergence(counts, part) for part in np.array_split(kept, len(kept) // 512 + 1)])
        best = len(kept) - 1 - int(np.argmin(divergence[::-1]))
        return min(int(kept[best]) * self.width, self.amax)

    def mse(self) -> float:
        """The threshold of least mean squared error; between 1/32 of the largest value and that value."""
        if self.amax == 0:
            return 0.0
        used = np.flatnonzero(self.counts)
        centers, counts = (used + 0.5) * self.width, self.counts[used].astype(np.float64)
        thresholds = np.append(np.arange(_LEVELS, self.used, 16) * self.width, self.amax)
        errors = [_squared_error(centers, counts, threshold) for threshold in thresholds]
        return float(thresholds[len(errors) - 1 - int(np.argmin(errors[::-1]))])

    def ranges(self, percentile: float = DEFAULT_PERCENTILE) -> dict[str, float]:
        """The amax of each method in `METHODS`."""
        return {method: self.range(method, percentile) for method in METHODS}

    def range(self, method: str, percentile: float = DEFAULT_PERCENTILE) -> float:
        """The amax of one of `METHODS`."""
        if method == "minmax":
            return self.amax
        if method == "percentile":
            return self.percentile(percentile)
        return {"entropy": self.entropy, "mse": self.mse}[method]()


def _magnitudes(array: np.ndarray) -> Iterator[np.ndarray]:
    """``|x|`` as flat float32 blocks that fit a processor's cache."""
    flat = np.asarray(array).reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        with np.errstate(over="ignore"):
            yield np.abs(flat[start : start + _BLOCK].astype(np.float32, copy=False))


def _divergence(counts: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """KL(P || Q) for each number of bins kept.

    P is the histogram cut at that number, with all that lies above added to its last bin. Q is the cut histogram
    without that, in 128 levels, each level's count spread evenly over its bins that are not empty. Written with running
    sums, so that a candidate costs 128 terms. Infinite where values were clipped into an empty bin.
    """
    cumulated = np.concatenate([[0.0], np.cumsum(counts)])
    filled = np.concatenate([[0.0], np.cumsum(counts > 0)])
    logs = np.concatenate([[0.0], np.cumsum(_times_log(counts))])
    total, inside, last = cumulated[-1], cumulated[kept], counts[kept - 1]
    clipped = total - inside
    edges = kept[:, None] * np.arange(_LEVELS + 1) // _LEVELS
    level_sums, level_bins = np.diff(cumulated[edges], axis=1), np.diff(filled[edges], axis=1)
    level_logs = np.log(np.divide(level_sums, level_bins, where=level_bins > 0, out=np.ones_like(level_sums)))
    p_log_p = logs[kept - 1] + _times_log(last + clipped)
    p_log_q = (level_sums * level_logs).sum(axis=1) + clipped * level_logs[:, -1]
    with np.errstate(divide="ignore"):
        divergence = (p_log_p - p_log_q) / total - math.log(total) + np.log(inside)
    return np.where((clipped > 0) & (last == 0), np.inf, divergence)


def _times_log(values: np.ndarray) -> np.ndarray:
    return values * np.log(np.where(values > 0, values, 1))


def _squared_error(values: np.ndarray, counts: np.ndarray, amax: float) -> float:
    scale = amax / 127
    return float(counts @ np.square(values - np.minimum(np.rint(values / scale), 127) * scale))


# -------------------------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class TopChannels:
    """The channels that set a tensor's range: those without which its amax would be at most half.

    Attributes:
        axis: The channel axis.
        channels: Size of that axis.
        indices: These channels, largest first.
        others_amax: The amax of all other channels; 0 if there are none.
    """

    axis: int
    channels: int
    indices: tuple[int, ...]
    others_amax: float


@dataclass(frozen=True)
class TensorStats:
    """What a tensor holds over all samples.

    Attributes:
        amax: Largest ``|x|``.
        rms: Root mean square.
        p99: The 99th percentile of ``|x|``.
        p9999: The 99.99th percentile of ``|x|``.
        count: Number of values.
        zeros: Number of values that are exactly zero.
        log_histogram: Counts of nonzero ``|x|``: bin i for [2^(i - 40), 2^(i - 39)), i from 0 to 63; the first and the
            last bin hold what lies beyond too.
        share_below_fp16_subnormal: Share of the nonzero values below 2^-24, FP16's least magnitude.
        share_subnormal: Share of the nonzero values below 2^-14, FP16's least normal magnitude.
        over_fp16: Number of values above 65504, FP16's largest.
        ranges: The amax of each of `METHODS`.
        top_channels: None where the tensor has no channel axis of constant size.
    """

    amax: float
    rms: float
    p99: float
    p9999: float
    count: int
    zeros: int
    log_histogram: tuple[int, ...]
    share_below_fp16_subnormal: float
    share_subnormal: float
    over_fp16: int
    ranges: dict[str, float]
    top_channels: TopChannels | None


class _Accumulator:
    """Sums up a tensor's arrays for `TensorStats`."""

    _BIAS = 127  # of a float32's exponent

    def __init__(self, channel_axis: int | None) -> None:
        self.histogram = Histogram()
        self._exponents = np.zeros(256, np.int64)
        self._zeros = 0
        self._squares = 0.0
        self._over_fp16 = 0
        self._axis = channel_axis
        self._channels: np.ndarray | None = None
        self._has_channels = True

    def add(self, array: np.ndarray) -> None:
        for block in _magnitudes(array):
            self.histogram.add_magnitudes(block)
            self._exponents += np.bincount(block.view(np.uint32) >> 23, minlength=256)
            self._zeros += block.size - int(np.count_nonzero(block))
            self._squares += float(np.square(block, dtype=np.float64).sum())
            self._over_fp16 += int(np.count_nonzero(block > 65504))
        self._add_channels(array)

    def _add_channels(self, array: np.ndarray) -> None:
        if self._axis is None:
            self._axis = {0: None, 1: None, 2: 1, 3: 2}.get(array.ndim, 1)
        axis = self._axis
        if axis is None or axis >= array.ndim or not array.size:
            self._has_channels = axis is not None and axis < array.ndim and self._has_channels
            return
        others = tuple(other for other in range(array.ndim) if other != axis)
        amax = np.maximum(array.max(axis=others), -array.min(axis=others)).astype(np.float64)
        if self._channels is None:
            self._channels = amax
        elif self._channels.shape == amax.shape:
            np.maximum(self._channels, amax, out=self._channels)
        else:
            self._has_channels = False

    def result(self, percentile: float) -> TensorStats:
        histogram = self.histogram
        count = histogram.total
        exponents = self._exponents.copy()
        exponents[0] -= self._zeros
        nonzero = max(count - self._zeros, 1)
        bins = np.clip(np.arange(256) - self._BIAS + 40, 0, 63)
        return TensorStats(
            amax=histogram.amax,
            rms=math.sqrt(self._squares / max(count, 1)),
            p99=histogram.percentile(99),
            p9999=histogram.percentile(99.99),
            count=count,
            zeros=self._zeros,
            log_histogram=tuple(np.bincount(bins, exponents, minlength=64).astype(int).tolist()),
            share_below_fp16_subnormal=float(exponents[: self._BIAS - 24].sum() / nonzero),
            share_subnormal=float(exponents[: self._BIAS - 14].sum() / nonzero),
            over_fp16=self._over_fp16,
            ranges=histogram.ranges(percentile),
            top_channels=self._top_channels(),
        )

    def _top_channels(self) -> TopChannels | None:
        channels = self._channels
        if channels is None or not self._has_channels or not channels.max():
            return None
        order = np.argsort(-channels, kind="stable")
        top = int(np.count_nonzero(channels > channels.max() / 2))
        others = channels[order[top:]]
        return TopChannels(
            self._axis, channels.size, tuple(order[:top].tolist()), float(others.max()) if others.size else 0.0
        )


# ------------------------------------------------------------------------------------------------------- calibration


@dataclass(frozen=True)
class Calibration:
    """Ranges of tensors and what they were measured on.

    Attributes:
        method: One of `METHODS`.
        samples: Number of samples.
        data_sha256: Hash of the samples, see `Samples.sha256`.
        ranges: The amax by tensor name.
    """

    method: str
    samples: int
    data_sha256: str
    ranges: dict[str, float]

    def with_override(self, tensor: str, amax: float) -> Calibration:
        """The same with another range for one tensor.

        Raises:
            InputError: the tensor has no range here, or the amax is negative or not finite.
        """
        if tensor not in self.ranges:
            raise InputError(
                f"Tensor '{tensor}' has no range", "It was not calibrated.", "Name a tensor that feeds an INT8 layer."
            )
        if not (math.isfinite(amax) and amax >= 0):
            raise InputError(f"{amax} is no range for '{tensor}'", "A range is a finite number from 0 up.")
        return replace(self, ranges={**self.ranges, tensor: float(amax)})


def calibrate(
    network_model: ir.Model,
    tensors: Sequence[str],
    samples: Samples,
    backend: Backend,
    *,
    method: str = "minmax",
    percentile: float = DEFAULT_PERCENTILE,
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Calibration:
    """Measures the range of each tensor over all samples.

    ``minmax`` reduces inside the graph, in one pass over the samples, and only scalars leave the session. The other
    methods take the tensors out, as many at a time as ``memory_limit`` allows (by their sizes in the first feed; at
    least one), with one pass over the samples each time.

    Args:
        network_model: The FP32 network; it is left as it is, and its weights are shared, not copied.
        tensors: Names of float tensors of the main graph.
        samples: The calibrating samples.
        backend: Runs the network.
        method: One of `METHODS`.
        percentile: In (0, 100], for the method of that name.
        progress: Called after each run; what it raises ends the calibration.
        memory_limit: Bytes of tensors that one run may hand out.

    Raises:
        InputError: an unknown method or tensor, a tensor that holds NaN or an infinity, or data that cannot be read.
        TrtTuiError: the backend refuses the network or the feeds.
    """
    _check_method(method, percentile)
    if method == "minmax":
        ranges = _minmax(network_model, tensors, samples, backend, progress)
        return Calibration(method, samples.count, samples.sha256(), ranges)
    calibrations = calibrate_all(
        network_model, tensors, samples, backend, methods=(method,), percentile=percentile, progress=progress,
        memory_limit=memory_limit,
    )  # fmt: skip
    return calibrations[method]


def calibrate_all(
    network_model: ir.Model,
    tensors: Sequence[str],
    samples: Samples,
    backend: Backend,
    *,
    methods: Sequence[str] = METHODS,
    percentile: float = DEFAULT_PERCENTILE,
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> dict[str, Calibration]:
    """Measures the ranges of several methods in one sweep. Arguments and errors as `calibrate`."""
    for method in methods:
        _check_method(method, percentile)
    histograms = {tensor: Histogram() for tensor in tensors}
    _sweep(network_model, histograms, samples, backend, progress, memory_limit)
    digest = samples.sha256()
    return {
        method: Calibration(
            method,
            samples.count,
            digest,
            {tensor: histogram.range(method, percentile) for tensor, histogram in histograms.items()},
        )
        for method in methods
    }


def collect_stats(
    network_model: ir.Model,
    tensors: Sequence[str],
    samples: Samples,
    backend: Backend,
    *,
    channel_axes: Mapping[str, int] | None = None,
    percentile: float = DEFAULT_PERCENTILE,
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> dict[str, TensorStats]:
    """Statistics of each tensor, the ranges of all methods included. Arguments and errors as `calibrate`.

    Args:
        channel_axes: The channel axis by tensor name; by default axis 1 of tensors with two, four or more dimensions,
            axis 2 of those with three.
    """
    _check_method("percentile", percentile)
    axes = channel_axes or {}
    accumulators = {tensor: _Accumulator(axes.get(tensor)) for tensor in tensors}
    _sweep(network_model, accumulators, samples, backend, progress, memory_limit)
    return {tensor: accumulator.result(percentile) for tensor, accumulator in accumulators.items()}


def _check_method(method: str, percentile: float) -> None:
    if method not in METHODS:
        raise InputError(
            f"Unknown calibration method: {method}", next_step=f"Choose one of {', '.join(METHODS)}."
        )
    if not 0 < percentile <= 100:
        raise InputError(f"Percentile {percentile} is not in (0, 100]", next_step="For example: 99.99")


def _not_finite(tensor: str, what: str, feed: int) -> InputError:
    return InputError(
        f"Tensor '{tensor}' holds {what} in FP32",
        f"Seen while calibrating, in feed {feed}.",
        "Correct the network or the data: a range cannot be taken from it.",
    )


class _Probe:
    """A clone of a network with outputs of its own choice; tensors are shared with the original."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model.clone()
        graph = self.model.graph
        self._values: dict[str, ir.Value] = {value.name: value for value in graph.inputs}
        self._values.update((value.name, value) for node in graph for value in node.outputs if value.name)
        graph.outputs.clear()
        self._number = 0

    def float_value(self, tensor: str) -> ir.Value:
        """The tensor as an FP32 value.

        Raises:
            InputError: no such tensor, or its elements are not floating-point numbers.
        """
        value = self._values.get(tensor)
        if value is None:
            raise InputError(
                f"The network has no tensor '{tensor}'", "Ranges can be taken of the outputs of its layers only."
            )
        if value.dtype is not None and not value.dtype.is_floating_point():
            raise InputError(f"Tensor '{tensor}' is {value.dtype.name}", "Only floating-point tensors have a range.")
        return value if value.dtype == ir.DataType.FLOAT else self.apply("Cast", value, to=int(ir.DataType.FLOAT))

    def apply(self, operator: str, value: ir.Value, dtype: ir.DataType = ir.DataType.FLOAT, **attributes) -> ir.Value:
        """Adds an operator with one input right behind its producer and returns its output."""
        self._number += 1
        node = ir.node(operator, [value], attributes, name=f"trt_tui_probe_{self._number}")
        producer = value.producer()
        if producer is None:
            self.model.graph.append(node)
        else:
            self.model.graph.insert_after(producer, node)
        result = node.outputs[0]
        result.name, result.type = node.name, ir.TensorType(dtype)
        return result

    def emit(self, value: ir.Value) -> str:
        """Makes a value an output and returns the output's name."""
        if value.is_graph_input():
            value = self.apply("Identity", value)
        self.model.graph.outputs.append(value)
        return value.name


def _minmax(
    model: ir.Model, tensors: Sequence[str], samples: Samples, backend: Backend, progress: Progress | None
) -> dict[str, float]:
    ranges = dict.fromkeys(tensors, 0.0)
    if not ranges:
        return ranges
    probe = _Probe(model)
    # ReduceMax and ReduceMin pass over NaN; the sum of magnitudes does not.
    reductions = {}
    for tensor in ranges:
        value = probe.float_value(tensor)
        reductions[tensor] = [
            probe.emit(_scalar(probe.apply(operator, value, keepdims=0)))
            for operator in ("ReduceMax", "ReduceMin", "ReduceL1")
        ]
    with backend.load(probe.model, lean=True) as runner:
        for index, feed in enumerate(samples.feeds()):
            scalars = runner.run(feed)
            for tensor, names in reductions.items():
                largest, least, norm = (float(scalars[name]) for name in names)
                amax = max(largest, -least)
                if math.isnan(norm) or math.isinf(amax):
                    raise _not_finite(tensor, "NaN" if math.isnan(norm) else "an infinity", index)
                ranges[tensor] = max(ranges[tensor], amax)
            if progress:
                progress(index + 1, len(samples))
    return ranges


def _scalar(value: ir.Value) -> ir.Value:
    value.shape = ir.Shape([])
    return value


def _sweep(
    model: ir.Model,
    collectors: Mapping[str, Histogram | _Accumulator],
    samples: Samples,
    backend: Backend,
    progress: Progress | None,
    memory_limit: int,
) -> None:
    """Hands each tensor of each feed to its collector, at most ``memory_limit`` bytes of tensors in a pass."""
    if not collectors:
        return
    chunks = list(_chunks(_tensor_bytes(model, collectors, samples, backend), memory_limit))
    for number, chunk in enumerate(chunks):
        probe = _Probe(model)
        outputs = {tensor: probe.emit(probe.float_value(tensor)) for tensor in chunk}
        with backend.load(probe.model, lean=True) as runner:
            for index, feed in enumerate(samples.feeds()):
                arrays = runner.run(feed)
                for tensor, output in outputs.items():
                    try:
                        collectors[tensor].add(arrays.pop(output))
                    except ValueError as error:
                        raise _not_finite(tensor, str(error), index) from None
                if progress:
                    progress(number * len(samples) + index + 1, len(chunks) * len(samples))


def _tensor_bytes(model: ir.Model, tensors: Iterable[str], samples: Samples, backend: Backend) -> dict[str, int]:
    """Bytes of each tensor as FP32 in the first feed."""
    probe = _Probe(model)
    outputs = {
        tensor: probe.emit(_scalar(probe.apply("Size", probe.float_value(tensor), ir.DataType.INT64)))
        for tensor in tensors
    }
    with backend.load(probe.model, lean=True) as runner:
        sizes = runner.run(samples.feed(0))
    return {tensor: 4 * int(sizes[output]) for tensor, output in outputs.items()}


def _chunks(sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    chunk: list[str] = []
    total = 0
    for tensor, size in sizes.items():
        if chunk and total + size > limit:
            yield chunk
            chunk, total = [], 0
        chunk.append(tensor)
        total += size
    yield chunk


# ---------------------------------------------------------------------------------------- TensorRT calibration caches

CACHE_ALGORITHMS = ("EntropyCalibration2", "MinMaxCalibration", "EntropyCalibration", "LegacyCalibration")
_CACHE_HEADER = re.compile(r"TRT-\d+-\w+")
_CACHE_LINE = re.compile(r"(?P<tensor>.+): *(?P<scale>[0-9a-fA-F]{1,8})")


def read_cache(path: str | Path) -> dict[str, float]:
    """Reads a TensorRT calibration cache.

    Its first line is ``TRT-<version>-<algorithm>``; each other line is ``<tensor>: <scale>``, the scale (amax / 127) as
    the big-endian hexadecimal bits of a float32.

    Returns:
        The amax by tensor name.

    Raises:
        InputError: the file cannot be read or has another form; names the line.
    """
    path = Path(path)
    lines = read_text(path).splitlines()
    if not lines or not _CACHE_HEADER.fullmatch(lines[0].strip()):
        raise InputError(
            f"{path}, line 1: no TensorRT calibration cache",
            "The first line is to be like TRT-8601-EntropyCalibration2.",
            "Give a cache that TensorRT wrote.",
        )
    ranges: dict[str, float] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        match = _CACHE_LINE.fullmatch(line.strip())
        scale = struct.unpack(">f", bytes.fromhex(match["scale"].zfill(8)))[0] if match else math.nan
        if not (math.isfinite(scale) and scale >= 0):
            raise InputError(
                f"{path}, line {number}: no scale of a tensor",
                f"The line is {line.strip()[:80]!r}; expected: tensor name, colon, 8 hexadecimal digits.",
                "Give a cache that TensorRT wrote.",
            )
        ranges[match["tensor"]] = scale * 127
    return ranges


def write_cache(
    path: str | Path, ranges: Mapping[str, float], algorithm: str = "EntropyCalibration2", *, version: int = 8601
) -> None:
    """Writes a TensorRT calibration cache, see `read_cache`; the file appears whole or not at all.

    An amax of 0 is written as scale 1.

    Args:
        path: The file; an existing one is replaced.
        ranges: The amax by tensor name.
        algorithm: One of `CACHE_ALGORITHMS`; TensorRT takes a cache only with the calibrator that it names.
        version: TensorRT's version in one number, 8601 for 8.6.1.

    Raises:
        InputError: the file cannot be written, or a range or name cannot stand in such a file.
    """
    if algorithm not in CACHE_ALGORITHMS:
        raise InputError(f"Unknown calibration algorithm: {algorithm}", f"One of {', '.join(CACHE_ALGORITHMS)}.")
    lines = [f"TRT-{version}-{algorithm}"]
    for tensor, amax in ranges.items():
        if not tensor or "\n" in tensor or "\r" in tensor:
            raise InputError(f"Tensor name {tensor!r} cannot stand in a calibration cache")
        scale = amax / 127 if amax else 1.0
        if not (math.isfinite(scale) and 0 < scale < 2.0**127):
            raise InputError(f"{amax} is no range for '{tensor}'", "A range is a finite number from 0 up.")
        lines.append(f"{tensor}: {struct.pack('>f', scale).hex()}")
    write_atomic(path, "\n".join(lines) + "\n")


def match_cache(
    ranges: Mapping[str, float], known_tensors: Iterable[str]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """The ranges of a cache that fit a network.

    Args:
        ranges: The amax by tensor name, from `read_cache`.
        known_tensors: The tensors of the network that need a range.

    Returns:
        The ranges of known tensors, and warnings: which ranges name no such tensor, which tensors have none.
    """
    known = dict.fromkeys(known_tensors)
    fitting = {tensor: amax for tensor, amax in ranges.items() if tensor in known}
    unknown = [tensor for tensor in ranges if tensor not in known]
    missing = [tensor for tensor in known if tensor not in ranges]
    warnings = []
    if unknown:
        warnings.append(f"{len(unknown)} of {len(ranges)} ranges in the cache fit no tensor here: {_some(unknown)}")
    if missing:
        warnings.append(f"{len(missing)} of {len(known)} tensors have no range in the cache: {_some(missing)}")
    return fitting, tuple(warnings)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
