"""The measurement of moves that take the scale of attentions in front of their products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trt_tui.core.calibration.non_finite import explain_non_finite_errors
from trt_tui.core.calibration.tensor_collection import DEFAULT_MEMORY_LIMIT_BYTES, collect_tensors
from trt_tui.core.lowering.network_rewrite import rewrite_network_for_config
from trt_tui.core.measure.zero_cost_kind import ProposalContext
from trt_tui.core.moves.attention_scale_move import AttentionScaleMove, ScalePlacement, find_scale_divisors
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import FP16_MIN, Precision
from trt_tui.formatting import number_text

MIN_NAMED_UNDERFLOW = 1e-4
"""The share of values of an operand that must become zero in FP16 to be named."""


def make_attention_scale_move(network: NetworkOutline, subject: str, placement: ScalePlacement,
                              reason: str = "user") -> AttentionScaleMove:
    """Returns the move of the scale of an attention to a place in front, with the changes of ranges that follow.

    The range of a tensor of which a part changes stays, or grows with that part.
    """
    scale = network.zero_cost_support.attention_scales[subject]
    factors = {tensor: float((1 / divisor).max(initial=0.0 if divisor.size == 1 else 1.0))
               for tensor, divisor in find_scale_divisors(scale, placement).items()
               if tensor in network.calibrated_tensors}
    return AttentionScaleMove(placement.value, scale.factor, factors, reason)


@dataclass
class UnderflowCollector:
    """A collector of the values of a tensor that FP16 rounds to zero only when they are multiplied by a factor."""

    factor: float
    count: int = 0
    underflow_count: int = 0

    def add_values(self, array: np.ndarray) -> None:
        """Adds the values of a float array.

        Raises:
            ValueError: the array contains NaN or an infinity.
        """
        magnitudes = np.abs(array)
        if not np.isfinite(magnitudes.max(initial=0.0)):
            raise ValueError("NaN or an infinity")
        min_magnitude = FP16_MIN / 2
        self.underflow_count += int(((magnitudes > min_magnitude) & (magnitudes * self.factor <= min_magnitude)).sum())
        self.count += array.size

    def merge_values(self, later_collector: UnderflowCollector) -> None:
        """Adds the values of another collector, which has seen later feeds."""
        self.count += later_collector.count
        self.underflow_count += later_collector.underflow_count

    @property
    def underflow_share(self) -> float:
        return self.underflow_count / max(self.count, 1)


def measure_underflow(context: ProposalContext,
                      moves: Mapping[str, AttentionScaleMove]) -> dict[str, UnderflowCollector]:
    """Returns the underflow in FP16 of the operands that moves scale, by tensor, on the calibration samples.

    Raises:
        InputError: A tensor contains NaN or infinity in FP32, or the data cannot be read.
    """
    network = context.network
    collectors: dict[str, UnderflowCollector] = {}
    for subject, move in moves.items():
        divisors = move.find_divisors(network, subject)
        for tensor in network.get_layer(network.zero_cost_support.attention_scales[subject].product).inputs:
            if tensor in divisors:
                collectors[tensor] = UnderflowCollector(float((1 / divisors[tensor]).min()))
    with explain_non_finite_errors(network.model, context.samples, context.backend):
        collect_tensors(network.model, collectors, context.samples, context.backend,
                        context.make_progress("operands of attentions"), DEFAULT_MEMORY_LIMIT_BYTES,
                        context.make_executor())
    return collectors


def measure_fp32_difference(context: ProposalContext, moves: Mapping[str, AttentionScaleMove]) -> float:
    """Returns the largest difference of an output in FP32, relative to its largest magnitude, on the first feed.

    Raises:
        InputError: The data cannot be read.
    """
    changed = rewrite_network_for_config(
        context.network, PrecisionConfig.from_precision(Precision.FP32).with_moves(moves)).network
    feed = context.samples.read_feed(0)
    outputs = []
    for network in (context.network, changed):
        with context.backend.load(network.model) as runner:
            outputs.append(runner.run(feed))
    return max((_relative_difference(array, outputs[1][name]) for name, array in outputs[0].items()
                if np.issubdtype(array.dtype, np.floating)), default=0.0)


def _relative_difference(first: np.ndarray, second: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        differences = np.abs(first - second)
    finite = np.isfinite(differences)
    return float(differences[finite].max(initial=0.0) / max(np.abs(first[np.isfinite(first)]).max(initial=0.0), 1e-30))


def scale_measurement_text(context: ProposalContext, moves: Mapping[str, AttentionScaleMove]) -> str:
    """Returns the FP32 difference of moves, and the largest underflow of an operand if it counts, for a label.

    Raises:
        InputError: A tensor contains NaN or infinity in FP32, or the data cannot be read.
    """
    key = tuple(sorted((subject, move.placement) for subject, move in moves.items()))
    values = context.get_measured_values("scales of attentions", key, moves)
    if not values:
        values["difference"] = measure_fp32_difference(context, moves)
        values["underflow"] = max(
            (collector.underflow_share for collector in measure_underflow(context, moves).values()), default=0.0)
    difference, share = values["difference"], values["underflow"]
    text = f", FP32 ±{difference:.0e}" if difference else ", FP32 equal"
    return text + (f", {number_text(100 * share, 2)} % underflow" if share > MIN_NAMED_UNDERFLOW else "")
