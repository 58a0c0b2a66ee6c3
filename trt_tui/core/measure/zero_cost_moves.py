"""Zero-cost moves that are computed from the calibration samples: SmoothQuant factors and bias corrections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.calibration.tensor_collection import (
    CalibrationContext,
    CollectorFanout,
    RunProgress,
    collect_tensors,
)
from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import Executor
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.folded_constants import FoldedConstants
from trt_tui.core.measure.equalization import ChannelExtrema, channel_maxima, measure_channel_extrema
from trt_tui.core.moves import vectors
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.constant_moves import BiasCorrectionMove
from trt_tui.core.moves.layer_moves import RewriteMove
from trt_tui.core.moves.scaling_moves import DEFAULT_STRENGTH, SmoothQuantMove, smoothquant_factors
from trt_tui.core.moves.zero_cost_checks import rewrite_refusal_reason
from trt_tui.core.network.layers import FusionGroup, QdqSite
from trt_tui.core.network.network import Network
from trt_tui.core.network.zero_cost_support import ChannelScaling, ScaledTensor
from trt_tui.core.runner import Backend


def propose_normalisation_rewrites(network: Network, groups: Iterable[FusionGroup],
                                   reason: str = "user") -> dict[str, RewriteMove]:
    """Returns moves that replace decomposed normalisations by one operator, for the groups where this is possible."""
    return {
        group.name: RewriteMove(network.zero_cost_support.norms[group.name].operator, reason)  # type: ignore[arg-type]
        for group in groups
        if not rewrite_refusal_reason(network, group)
    }


# -- SmoothQuant --------------------------------------------------------------------------------------------------


def measure_smoothquant_moves(network: Network, subjects: Iterable[str], samples: Samples, backend: Backend, *,
                              strength: float = DEFAULT_STRENGTH, reason: str = "user",
                              extrema: ChannelExtrema | None = None,
                              progress: RunProgress | None = None,
                              executor: Executor[CalibrationContext] | None = None) -> dict[str, SmoothQuantMove]:
    """Returns SmoothQuant moves from the magnitudes of channels, by the group that produces the channels.

    Args:
        subjects: Groups whose channels can be scaled.
        strength: The exponent; see `trt_tui.core.moves.scaling_moves`.
        extrema: Known extrema of channels. Newly measured ones are added.
        executor: The executor of the samples; this process by default.

    Raises:
        InputError: a tensor contains NaN or an infinity, or the data cannot be read.
    """
    extrema = {} if extrema is None else extrema
    scalings = {name: network.zero_cost_support.channel_scalings[name] for name in subjects}
    multiplied_names = {name: _find_multiplied_tensors(network, scaling) for name, scaling in scalings.items()}
    measured_tensors = {name: [tensor for tensor in scaling.tensors if tensor.tensor in multiplied_names[name]
                               or tensor.tensor in network.calibrated_tensors] for name, scaling in scalings.items()}
    measure_channel_extrema(network, dict.fromkeys(tensor.tensor for tensors in measured_tensors.values()
                                                   for tensor in tensors),
                            samples, backend, extrema, progress=progress, executor=executor)
    moves = {}
    for name, scaling in scalings.items():
        activation, weight = np.zeros((2, scaling.channels), np.float32)
        for tensor in measured_tensors[name]:
            magnitudes = extrema[tensor.tensor].amax
            for exponent, maxima in ((1, activation), (-1, weight)) if tensor.tensor in multiplied_names[name] else ():
                np.maximum(maxima, channel_maxima(tensor, magnitudes, scaling.channels, exponent), out=maxima)
        for reader in scaling.readers:
            magnitudes = _weight_magnitudes(network, reader)
            for exponent, maxima in ((-1, weight), (1, activation)):
                np.maximum(maxima, reader.channel_maxima(magnitudes, scaling.channels, exponent), out=maxima)
        factors = smoothquant_factors(activation, weight, strength)
        ranges = {tensor.tensor: float((extrema[tensor.tensor].amax / tensor.divisors(factors)).max())
                  for tensor in measured_tensors[name] if tensor.tensor in network.calibrated_tensors}
        moves[name] = SmoothQuantMove(strength, vectors.encode_vector(factors), ranges, reason)
    return moves


def _weight_magnitudes(network: Network, reader: ScaledTensor) -> np.ndarray:
    """Returns the largest magnitudes of a weight, in the shape of its divisors."""
    if reader.axis is not None:
        return network.constant_amax(reader.tensor, reader.axis).reshape(reader.shape)
    return reader.reduce_magnitudes(network.constant_value(reader.tensor))


def _find_multiplied_tensors(network: Network, scaling: ChannelScaling) -> set[str]:
    """Returns the tensors that the readers and products of a set multiply."""
    return {reader.activation for reader in scaling.readers}.union(
        *(network.get_layer(layer).inputs for layer in scaling.products))


# -- bias correction -------------------------------------------------------------------------------------------------


@dataclass
class ChannelMeanCollector:
    """A collector of the mean of each channel, both exact and rounded to INT8.

    Attributes:
        channel_axis: The axis of the channels.
        scale: The scale of INT8.
        divisors: The divisors of the tensor, by which it is divided first; None for no division.
    """

    channel_axis: int
    scale: float
    divisors: np.ndarray | None = None
    exact_sums: np.ndarray = field(default_factory=lambda: np.zeros(()))
    rounded_sums: np.ndarray = field(default_factory=lambda: np.zeros(()))
    count: int = 0

    def add_values(self, array: np.ndarray) -> None:
        """Adds the values of a float array to the means of its channels.

        Raises:
            ValueError: the array contains NaN or an infinity.
        """
        axis = self.channel_axis % array.ndim
        other_axes = tuple(index for index in range(array.ndim) if index != axis)
        if self.divisors is not None:
            array = array / self.divisors
        quantized_values = np.rint(array / np.float32(self.scale))
        np.clip(quantized_values, -128, 127, out=quantized_values)
        self.exact_sums = self.exact_sums + array.sum(axis=other_axes, dtype=np.float64)
        self.rounded_sums = self.rounded_sums + quantized_values.sum(axis=other_axes, dtype=np.float64) * self.scale
        if not np.isfinite(self.exact_sums).all():
            raise ValueError("NaN or an infinity")
        self.count += array.size // max(array.shape[axis], 1)

    def merge_values(self, later_collector: ChannelMeanCollector) -> None:
        """Adds the channel sums of another collector, which has seen later feeds."""
        self.exact_sums = self.exact_sums + later_collector.exact_sums
        self.rounded_sums = self.rounded_sums + later_collector.rounded_sums
        self.count += later_collector.count


def measure_bias_corrections(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                             groups: Sequence[FusionGroup], samples: Samples, backend: Backend, *,
                             progress: RunProgress | None = None,
                             executor: Executor[CalibrationContext] | None = None) -> dict[str, BiasCorrectionMove]:
    """Returns bias corrections by group, which remove the mean error of INT8 layers: ``W·E[x] - W'·E[x']`` for each
    channel.

    Means are those of the FP32 network. If a Conv pads its input, the edges, which see fewer values, count like all
    others.

    Args:
        ranges: Calibrated amax by tensor name, in the units of the tensor.
        groups: Groups whose bias can be corrected; see
            `trt_tui.core.moves.zero_cost_checks.bias_correction_refusal_reason`.
        executor: The executor of the samples; this process by default.

    Raises:
        InputError: a range is missing, a tensor contains NaN or an infinity, or the data cannot be read.
    """
    folds = FoldedConstants(network, config)
    group_lowerings = rulebook.plan_lowering(network, config, ranges, folded_constants=folds)
    divisors = config.find_divisors(network)
    moves: dict[str, BiasCorrectionMove] = {}
    sites_by_group: dict[str, tuple[QdqSite, QdqSite]] = {}
    collectors: dict[str, ChannelMeanCollector] = {}
    for group in groups:
        bias = network.zero_cost_support.biases[group.name]
        sites = [site for site in group.sites if site.layer == bias.layer]
        inputs, weights = ([site for site in sites if site.role == role] for role in ("input", "weight"))
        if len(inputs) != 1 or len(weights) != 1 or not group_lowerings[group.name].scales:
            continue
        sites_by_group[group.name] = inputs[0], weights[0]
        conv = network.get_layer(bias.layer).op_type == "Conv"
        step = float(group_lowerings[group.name].scales[inputs[0]].values)
        collectors[group.name] = ChannelMeanCollector(1 if conv else -1, step, divisors.get(inputs[0].tensor))
    by_tensor: dict[str, CollectorFanout] = {}
    for name, collector in collectors.items():
        by_tensor.setdefault(sites_by_group[name][0].tensor, CollectorFanout()).append(collector)
    collect_tensors(network.model, by_tensor, samples, backend, progress, executor)
    for name, (_, site) in sites_by_group.items():
        means = collectors[name]
        weight = folds.compute_constant((site.layer, site.index), with_rounding=False)
        used_weight = folds.compute_constant((site.layer, site.index))
        if weight is None or used_weight is None or not means.count:
            continue
        rounded = rulebook.quantize_dequantize_weight(used_weight, group_lowerings[name].scales[site])
        layer = network.get_layer(site.layer)
        groups_of = network.node(layer.name).attributes.get_int("group", 1)
        shift = _compute_output_means(weight, means.exact_sums / means.count, site, groups_of) \
            - _compute_output_means(rounded, means.rounded_sums / means.count, site, groups_of)
        moves[name] = BiasCorrectionMove(vectors.encode_vector(shift.astype(np.float32)), "user")
    return moves


def _compute_output_means(weight: np.ndarray, input_means: np.ndarray, site: QdqSite,
                          conv_group_count: int) -> np.ndarray:
    """Returns the mean of each output channel that a weight computes from the mean of each input channel."""
    if weight.ndim == 2:
        return np.asarray((weight if site.axis == 0 else weight.T) @ input_means)
    taps = weight.sum(axis=tuple(range(2, weight.ndim)), dtype=np.float64)  # (outputs, inputs of a group)
    per_group = input_means.reshape(conv_group_count, -1)
    outputs = len(taps) // conv_group_count
    return np.concatenate(
        [taps[group * outputs:(group + 1) * outputs] @ per_group[group] for group in range(conv_group_count)])

