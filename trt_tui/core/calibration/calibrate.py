"""Ranges: the largest magnitude (amax) that quantization is to represent, per tensor.

Symmetric INT8 maps ``[-amax, amax]`` to codes -127 to 127: scale = amax / 127, FP8 to -448 to 448. An amax of 0 says
that the tensor was zero throughout; whoever makes a scale of it takes 1.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from trt_tui.core.calibration.histogram import Histogram
from trt_tui.core.calibration.methods import OTHER_CODES, RANGE_METHODS, chosen
from trt_tui.core.calibration.not_finite import explained
from trt_tui.core.calibration.ranges import Ranges
from trt_tui.core.calibration.sweep import (
    MEMORY_LIMIT,
    Calibrating,
    Given,
    NotFiniteError,
    OnRun,
    Probe,
    in_order,
    scalar,
    sweep,
)
from trt_tui.core.data.samples import Samples
from trt_tui.core.hands import Hands, Here
from trt_tui.core.runner import Backend, Runner
from trt_tui.errors import InputError


@dataclass(frozen=True)
class Calibration:
    """Ranges of tensors and what they were measured on.

    Attributes:
        method: One of `RANGE_METHODS`.
        samples: Number of samples.
        data_sha256: Hash of the samples, see `Samples.sha256`.
        ranges: The amax by tensor name, for INT8 and every code type without its own.
        others: The amax by tensor name, by the precision that the method chooses others for.
    """

    method: str
    samples: int
    data_sha256: str
    ranges: dict[str, float]
    others: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def by_codes(self) -> Mapping[str, float]:
        """The ranges as lowerings read them."""
        return Ranges(self.ranges, self.others) if self.others else self.ranges


def calibrate(
    network_model: ir.Model,
    tensors: Sequence[str],
    samples: Samples,
    backend: Backend,
    *,
    method: str = "minmax",
    progress: OnRun | None = None,
    memory_limit: int = MEMORY_LIMIT,
    hands: Hands[Calibrating] | None = None,
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
        method: One of `RANGE_METHODS`.
        progress: Called after each run; what it raises ends the calibration.
        memory_limit: Bytes of tensors that one run may hand out.
        hands: Who runs the feeds; this process by default.

    Raises:
        InputError: an unknown method or tensor, a tensor that holds NaN or an infinity, or data that cannot be read.
        TrtTuiError: the backend refuses the network or the feeds.
    """
    if method not in RANGE_METHODS:
        raise InputError(f"Unknown calibration method: {method}",
                         next_step=f"Choose one of {', '.join(RANGE_METHODS)}.")
    histograms = {tensor: Histogram() for tensor in tensors}
    with explained(network_model, samples, backend):
        if method == "minmax":
            here = Here(Given(network_model, samples, backend))
            ranges = _minmax(tensors, len(samples), hands if hands is not None else here, progress)
            return Calibration(method, samples.count, samples.sha256(), ranges)
        sweep(network_model, histograms, samples, backend, progress, memory_limit, hands)
    ranges = {tensor: chosen(histogram, method) for tensor, histogram in histograms.items()}
    others = {code.precision.value: {tensor: chosen(one, method, code) for tensor, one in histograms.items()}
              for code in OTHER_CODES if method != "percentile"}
    return Calibration(method, samples.count, samples.sha256(), ranges, others)


class MinMaxOfFeed:
    """An errand: the amax of each tensor in a feed, reduced inside the graph; not finite where the tensor is not."""

    def __init__(self, tensors: Sequence[str]) -> None:
        self._tensors = tuple(tensors)
        self._loaded: tuple[Runner, dict[str, list[str]]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_tensors": self._tensors, "_loaded": None}

    def words(self, item: int) -> str:
        """See `trt_tui.core.hands.Errand`."""
        return f"the ranges of feed {item}"

    def do(self, subject: Calibrating, item: int) -> Generator[None, None, dict[str, float]]:
        """See `trt_tui.core.hands.Errand`."""
        if self._loaded is None:
            self._loaded = self._reduced(subject)
        runner, reductions = self._loaded
        scalars, found = runner.run(subject.calibrating.feed(item)), {}
        yield
        for tensor, names in reductions.items():
            largest, least, norm = (float(scalars[name]) for name in names)
            found[tensor] = math.nan if math.isnan(norm) else max(largest, -least)
        return found

    def _reduced(self, subject: Calibrating) -> tuple[Runner, dict[str, list[str]]]:
        probe = Probe(subject.fp32)
        # ReduceMax and ReduceMin pass over NaN; the sum of magnitudes does not.
        reductions = {}
        for tensor in self._tensors:
            value = probe.float_value(tensor)
            reductions[tensor] = [
                probe.emit(scalar(probe.apply(operator, value, keepdims=0)))
                for operator in ("ReduceMax", "ReduceMin", "ReduceL1")
            ]
        return probe.load(subject.backend, subject.calibrating), reductions

    def close(self) -> None:
        """Frees the session."""
        if self._loaded is not None:
            self._loaded[0].close()
            self._loaded = None


def _minmax(tensors: Sequence[str], feeds: int, hands: Hands[Calibrating], progress: OnRun | None) -> dict[str, float]:
    ranges = dict.fromkeys(tensors, 0.0)
    if not ranges:
        return ranges
    errand = MinMaxOfFeed(tensors)
    try:
        for feed, amaxes in in_order(hands, errand, range(feeds), lambda one: 1, progress):
            for tensor, amax in amaxes.items():
                if not math.isfinite(amax):
                    raise NotFiniteError(tensor, "NaN" if math.isnan(amax) else "an infinity", feed)
                ranges[tensor] = max(ranges[tensor], amax)
    finally:
        errand.close()
    return ranges
