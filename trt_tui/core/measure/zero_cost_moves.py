"""Zero-cost moves that are computed from the calibration samples: factors of channels and bias corrections.

The choice of equalization factors needs the error at the judged outputs. Three of four samples choose the factors, and
the moves are proposed only if they also reduce the error of the other samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.calibration.range_methods import Histogram, choose_amax
from trt_tui.core.calibration.tensor_collection import (
    CalibrationContext,
    CollectorFanout,
    DividedCollector,
    RunProgress,
    collect_tensors,
)
from trt_tui.core.data.samples import Samples
from trt_tui.core.execution import Executor
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.folded_constants import FoldedConstants
from trt_tui.core.measure.zero_cost_kind import ProposalContext
from trt_tui.core.moves import vectors
from trt_tui.core.moves.config import PrecisionConfig, RewriteMove
from trt_tui.core.moves.constant_moves import (
    CLIP_HEADROOM,
    DEFAULT_STRENGTH,
    EQUALIZATION_FORMULAS,
    BiasCorrectionMove,
    EqualizationMove,
    SmoothQuantMove,
    compute_equalization_factors,
    limit_factors,
    smoothquant_factors,
)
from trt_tui.core.moves.zero_cost_checks import rewrite_refusal_reason
from trt_tui.core.network.layers import FusionGroup, QdqSite
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import PRODUCTS
from trt_tui.core.network.zero_cost_support import ChannelScaling, Port, ScaledConstant, ScaledTensor
from trt_tui.core.quantized_types import INT8, QUANTIZED_TYPES, QuantizedType
from trt_tui.core.runner import Backend

MAX_ROUNDS = 16
"""The maximum number of rounds in which the factors of neighbouring channels are computed."""

CONVERGED_CHANGE = 0.01
"""The largest relative change of a factor in the last round."""

HELD_OUT_STEP = 4
"""Every fourth sample is held out from the choice of factors."""

MAX_CHOICE_EVALUATIONS = 16
"""The maximum number of configs that the choice of factors evaluates."""


class ChannelExtremaCollector:
    """A collector of the largest value and of the largest negative magnitude among the values that share a divisor.

    Args:
        shape: The shape of the divisors, and of both arrays.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.high, self.low = np.zeros((2, *shape), np.float32)

    def add_values(self, array: np.ndarray) -> None:
        """Adds the values of a float array.

        Raises:
            ValueError: The array contains NaN or an infinity.
        """
        axes = tuple(axis for axis, size in enumerate(self.high.shape) if size == 1)
        extremes = [values.max(axis=axes, keepdims=True, initial=0.0) for values in (array, -array)]
        if not np.isfinite(extremes).all():
            raise ValueError("NaN or an infinity")
        self._merge(*extremes)

    def merge_values(self, later_collector: ChannelExtremaCollector) -> None:
        """Adds the extrema of another collector, which has seen later feeds."""
        self._merge(later_collector.high, later_collector.low)

    def _merge(self, high: np.ndarray, low: np.ndarray) -> None:
        self.high, self.low = np.maximum(self.high, high), np.maximum(self.low, low)

    @property
    def amax(self) -> np.ndarray:
        amax: np.ndarray = np.maximum(self.high, self.low)
        return amax


ChannelExtrema = dict[str, ChannelExtremaCollector]
"""The extrema of the channels, by tensor."""


def measure_channel_extrema(network: Network, tensors: Iterable[str], samples: Samples, backend: Backend,
                            known_extrema: ChannelExtrema, *, progress: RunProgress | None = None,
                            executor: Executor[CalibrationContext] | None = None) -> None:
    """Measures the extrema of the channels of tensors and adds those that are not known yet.

    Raises:
        InputError: A tensor contains NaN or an infinity, or the data cannot be read.
    """
    shapes = network.zero_cost_support.scaled_tensor_shapes
    collectors = {tensor: ChannelExtremaCollector(shapes[tensor])
                  for tensor in tensors if tensor not in known_extrema}
    collect_tensors(network.model, collectors, samples, backend, progress, executor)
    known_extrema.update(collectors)


def list_limiting_tensors(network: Network, scaling: ChannelScaling) -> list[str]:
    """Returns the tensors whose extrema decide the factors and ranges of a scaling, in network order.

    Results that contain only values of an input, such as those of a Relu, are left out unless a layer multiplies them.
    """
    needed = {*network.calibrated_tensors, *(reader.activation for reader in scaling.readers),
              *(clip.tensor for clip in scaling.clips)}
    return [scaled.tensor for scaled in scaling.tensors if scaled.tensor in needed
            or not rulebook.preserves_precision_of_values(network.get_layer(network.producer[scaled.tensor]))]


# -- factors -----------------------------------------------------------------------------------------------------------


def find_channel_limits(scaling: ChannelScaling, extrema: ChannelExtrema,
                        clip_extrema: Sequence[ChannelExtrema]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the minimum of each factor with which no range grows and no Clip changes a value of the samples, and True
    for each channel whose factor is 1.

    A channel with a value near a bound of a Clip keeps its factor of 1, so that the Clip limits it as before.

    Args:
        extrema: Extrema of the channels on the calibration samples.
        clip_extrema: Extrema of the inputs of Clips, for each set of samples.
    """
    min_factors = np.full(scaling.channels, 1e-30, np.float64)
    is_fixed = np.zeros(scaling.channels, bool)
    for scaled in scaling.tensors:
        if scaled.tensor in extrema and (amax := extrema[scaled.tensor].amax).max(initial=0.0) > 0:
            shares = channel_maxima(scaled, amax / amax.max(), scaling.channels)
            np.maximum(min_factors, shares, out=min_factors)
    for clip in scaling.clips:
        for bound, side in ((clip.high, "high"), (-clip.low, "low")):
            if bound == 0 or not np.isfinite(bound):
                continue
            for collected in clip_extrema:
                values = channel_maxima(scaling.find_tensor(clip.tensor), getattr(collected[clip.tensor], side),
                                         scaling.channels)
                needed = values.astype(np.float64) * CLIP_HEADROOM / bound if bound > 0 else np.full(
                    scaling.channels, np.inf)
                is_fixed |= needed > 1
                np.maximum(min_factors, needed, out=min_factors)
    return np.where(is_fixed, 1.0, min_factors), is_fixed


def compute_factors(network: Network, scalings: Mapping[str, ChannelScaling], formula: str,
                  extrema: ChannelExtrema, limits: Mapping[str, tuple[np.ndarray, np.ndarray]]
                  ) -> dict[str, np.ndarray]:
    """Returns the factors of each scaling by a formula, by group.

    The ranges of weights depend on the factors at their other side. The factors are therefore computed in rounds, as in
    Nagel et al., until they change little.

    Args:
        formula: One of `EQUALIZATION_FORMULAS`.
        limits: By group, the result of `find_channel_limits`.
    """
    weights = _WeightMagnitudes(network, scalings)
    factors = {group: np.ones(scaling.channels, np.float32) for group, scaling in scalings.items()}
    for _ in range(MAX_ROUNDS):
        change = 0.0
        for group, scaling in scalings.items():
            producer_amax, reader_amax = (
                weights.find_channel_amax(constants, scaling.channels, group, factors, exponent)
                for constants, exponent in ((scaling.producers, 1), (scaling.readers, -1)))
            computed = limit_factors(
                compute_equalization_factors(formula, _activation_amax(scaling, extrema), producer_amax, reader_amax),
                *limits[group])
            change = max(change, float(np.abs(np.log(computed / factors[group])).max(initial=0.0)))
            factors[group] = computed
        if change < CONVERGED_CHANGE:
            break
    return factors


def channel_maxima(scaled_tensor: ScaledTensor, magnitudes: np.ndarray, channels: int, exponent: int = 1
                    ) -> np.ndarray:
    """Returns the largest of the magnitudes of a tensor that take each factor, float32 ``(channels,)``."""
    return scaled_tensor.channel_maxima(scaled_tensor.reduce_magnitudes(magnitudes), channels, exponent)


def _activation_amax(scaling: ChannelScaling, extrema: ChannelExtrema) -> np.ndarray:
    """Returns the largest magnitude of each channel over the tensors that the readers multiply."""
    amax = np.zeros(scaling.channels, np.float32)
    read_tensors = {reader.activation for reader in scaling.readers}
    for scaled in scaling.tensors:
        if scaled.tensor in read_tensors:
            np.maximum(amax, channel_maxima(scaled, extrema[scaled.tensor].amax, scaling.channels), out=amax)
    return amax


class _WeightMagnitudes:
    """The magnitudes of the weights of some scalings, with the factors of the other scalings."""

    def __init__(self, network: Network, scalings: Mapping[str, ChannelScaling]) -> None:
        self._network = network
        self._constants_by_port: dict[Port, list[tuple[str, ScaledConstant]]] = {}
        for group, scaling in scalings.items():
            for constant in (*scaling.producers, *scaling.readers):
                self._constants_by_port.setdefault(constant.port, []).append((group, constant))

    def find_channel_amax(self, constants: Sequence[ScaledConstant], channels: int, group: str,
                          factors: Mapping[str, np.ndarray], exponent: int) -> np.ndarray:
        """Returns the largest magnitude of the weights on one side of each channel, without its own factor.

        Args:
            exponent: The exponent of the channels in these weights: 1 for producers, -1 for readers.
        """
        weights = [constant for constant in constants if constant.port[1] == 1
                   and self._network.get_layer(constant.port[0]).op_type in PRODUCTS] or constants
        result = np.zeros(channels, np.float32)
        for constant in weights:
            magnitudes = np.abs(self._network.constant_value(constant.tensor))
            for other_group, other in self._constants_by_port[constant.port]:
                if other_group != group:
                    magnitudes = other.divide(magnitudes, factors[other_group])
            np.maximum(result, channel_maxima(constant, magnitudes, channels, exponent), out=result)
        return result


# -- ranges ------------------------------------------------------------------------------------------------------------


def measure_divided_ranges(network: Network, config: PrecisionConfig, scalings: Mapping[str, ChannelScaling],
                           factor_sets: Sequence[Mapping[str, np.ndarray]], extrema: ChannelExtrema,
                           ranges: Mapping[str, float], method: str, samples: Samples, backend: Backend, *,
                           progress: RunProgress | None = None, executor: Executor[CalibrationContext] | None = None
                           ) -> list[dict[str, dict[str, float]]]:
    """Returns the amax of the divided tensors that quantized layers may read, by group and tensor, for each factor set.

    With ``minmax`` the ranges follow exactly from the extrema of the channels. Other methods depend on the distribution
    of the values, which is measured again. Ranges of unknown origin shrink like the extrema do. A tensor with channels
    of several groups keeps its range, since no range grows.

    Args:
        factor_sets: Sets of factors by group.
        ranges: The calibrated amax by tensor name, before the division.
        method: The range method; "" if the ranges come from elsewhere, such as a calibration cache.
    """
    quantized_types = _find_quantized_types(network, config)
    scaled_tensors = {tensor: (group, scaled) for tensor in network.calibrated_tensors
                      if len(found := [(group, scaled) for group, scaling in scalings.items()
                                       for scaled in scaling.tensors if scaled.tensor == tensor]) == 1
                      for group, scaled in found}
    histograms: dict[str, list[Histogram]] = {}
    if method not in ("", "minmax"):
        histograms = {tensor: [Histogram() for _ in factor_sets] for tensor in scaled_tensors}
        collect_tensors(network.model, {
            tensor: CollectorFanout(DividedCollector(scaled.divisors(factors[group]), histogram)
                                    for factors, histogram in zip(factor_sets, histograms[tensor], strict=True))
            for tensor, (group, scaled) in scaled_tensors.items()}, samples, backend, progress, executor)
    range_sets: list[dict[str, dict[str, float]]] = []
    for index, factors in enumerate(factor_sets):
        ranges_by_group: dict[str, dict[str, float]] = {group: {} for group in scalings}
        for tensor, (group, scaled) in scaled_tensors.items():
            amax = extrema[tensor].amax
            divided_amax = float((amax / scaled.divisors(factors[group])).max(initial=0.0))
            if tensor in histograms:
                divided_amax = choose_amax(histograms[tensor][index], method,
                                           quantized_types.get(tensor, INT8))
            elif not method and amax.max(initial=0.0) > 0:
                divided_amax *= ranges.get(tensor, float(amax.max())) / float(amax.max())
            ranges_by_group[group][tensor] = divided_amax
        range_sets.append(ranges_by_group)
    return range_sets


def _find_quantized_types(network: Network, config: PrecisionConfig) -> dict[str, QuantizedType]:
    """Returns the quantized type in which a config reads each tensor, by tensor."""
    return {site.tensor: QUANTIZED_TYPES[precision] for group in network.groups
            if (precision := config.precision_of(group)) in QUANTIZED_TYPES
            for site in group.calibrated_qdq_sites(precision)}


# -- choice ------------------------------------------------------------------------------------------------------------


class JudgedErrors:
    """The judged errors of configs, on the samples that choose and on those that are held out.

    If there are fewer than `HELD_OUT_STEP` feeds, the samples inside the feeds are divided. If there are fewer samples
    too, all samples serve both purposes.

    Args:
        progress: A callback after each feed of a config.
    """

    def __init__(self, context: ProposalContext, progress: RunProgress) -> None:
        measurement = context.judged_measurement
        self._measurement, self._find_or_measure, self._progress = measurement, context.find_or_measure, progress
        self._budget, self._reserved_configs = context.budget, set[PrecisionConfig]()
        self._errors: dict[tuple[PrecisionConfig, bool], float] = {}
        self._splits_feeds = len(measurement.feeds) >= HELD_OUT_STEP
        self._feeds = {
            held_out: tuple(feed for index, feed in enumerate(measurement.feeds)
                            if not self._splits_feeds or _is_held_out(index) is held_out)
            for held_out in (False, True)
        }

    def reserve_configs(self, configs: Iterable[PrecisionConfig]) -> bool:
        """Returns True and counts some configs if the budget allows all of them. Each config counts once."""
        new_configs = set(configs) - self._reserved_configs
        if not self._budget.reserve_configs(len(new_configs)):
            return False
        self._reserved_configs |= new_configs
        return True

    def find_error(self, config: PrecisionConfig, held_out: bool = False) -> float:
        """Returns the judged error of a config: Σ(test-ref)² / Σref², summed over the judged outputs."""
        if (config, held_out) not in self._errors:
            feeds = self._feeds[held_out]
            stored = self._find_or_measure(
                f"sample errors {feeds}", config, list[list[list[float]]],
                lambda: [sums.tolist()
                         for sums in self._measurement.measure_sample_errors(config, feeds, self._progress)])
            noise, signal = (np.array(sums, np.float64) for sums in stored)
            for flag in (held_out,) if self._splits_feeds else (False, True):
                rows = [index for index in range(len(noise)) if self._splits_feeds or len(noise) < HELD_OUT_STEP
                        or _is_held_out(index) is flag]
                self._errors[config, flag] = _sum_judged_errors(noise[rows].sum(0), signal[rows].sum(0))
        return self._errors[config, held_out]


def _is_held_out(index: int) -> bool:
    return index % HELD_OUT_STEP == HELD_OUT_STEP - 1


def _sum_judged_errors(noise: np.ndarray, signal: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        error = float(np.where(noise == 0, 0, noise / signal).sum())
    return error if np.isfinite(error) else np.inf


Moves = dict[str, EqualizationMove]


def choose_moves(moves_by_formula: Mapping[str, Moves], add_moves: Callable[[Moves], PrecisionConfig],
                 errors: JudgedErrors) -> Moves:
    """Returns the moves of least judged error; {} if none reduce it, or if they do not reduce it on other samples.

    First the formula that is best for all groups is chosen. Then, group by group, the move is left out or replaced by
    that of another formula if this reduces the error. The budget of configs ends the second step early. If it does not
    suffice for the first step, the result is {}.

    Args:
        moves_by_formula: The moves of all groups by formula.
        add_moves: A function that returns the config with some moves.
    """
    def find_error(moves: Moves, held_out: bool = False) -> float:
        return errors.find_error(add_moves(moves), held_out)

    if not errors.reserve_configs(add_moves(moves) for moves in ({}, *moves_by_formula.values())):
        return {}
    uniform = min(({}, *moves_by_formula.values()), key=find_error)
    chosen = dict(uniform)
    groups = list(next(iter(moves_by_formula.values()), {}))
    alternatives = [(group, formula) for formula in (None, *moves_by_formula) for group in groups
                    if formula is None or group in moves_by_formula[formula]]
    for group, formula in alternatives[:MAX_CHOICE_EVALUATIONS] if len(groups) > 1 else ():
        changed = {name: move for name, move in chosen.items() if name != group}
        if formula is not None:
            changed[group] = moves_by_formula[formula][group]
        if not errors.reserve_configs([add_moves(changed)]):
            break
        if find_error(changed) < find_error(chosen):
            chosen = changed
    unchanged_error = find_error({}, held_out=True)
    return next((dict(moves) for moves in (chosen, uniform)
                 if moves and find_error({}) > find_error(moves) and unchanged_error > find_error(moves, True)), {})


def find_best_moves(context: ProposalContext, config: PrecisionConfig, subjects: Sequence[str]) -> Moves:
    """Returns the equalization moves of least judged error for some groups; {} if none reduce it.

    Args:
        config: The config to which the moves are added.
        subjects: Groups whose channels can be scaled.

    Raises:
        InputError: A tensor contains NaN or infinity in FP32, or the data cannot be read.
    """
    network, measurement = context.network, context.judged_measurement
    scalings = {subject: network.zero_cost_support.channel_scalings[subject] for subject in subjects}
    progress, executor = context.make_progress("largest values of channels"), context.make_executor()
    tensors = list(dict.fromkeys(tensor for scaling in scalings.values()
                                 for tensor in list_limiting_tensors(network, scaling)))
    extrema: ChannelExtrema = context.get_measured_values("channel extrema", (), subjects)
    measure_channel_extrema(network, tensors, context.samples, context.backend, extrema, progress=progress,
                            executor=executor)
    clipped = {clip.tensor for scaling in scalings.values() for clip in scaling.clips}
    judged_extrema: ChannelExtrema = context.get_measured_values("judged channel extrema", (), subjects)
    measure_channel_extrema(network, [tensor for tensor in tensors if tensor in clipped], measurement.samples,
                            context.backend, judged_extrema, progress=progress)
    limits = {subject: find_channel_limits(scaling, extrema, (extrema, judged_extrema))
              for subject, scaling in scalings.items()}
    factor_sets = [compute_factors(network, scalings, formula, extrema, limits) for formula in EQUALIZATION_FORMULAS]
    range_sets = measure_divided_ranges(
        network, config, scalings, factor_sets, extrema, context.ranges, context.range_method,
        context.samples, context.backend, progress=context.make_progress("ranges of equalized channels"),
        executor=executor)
    moves_by_formula = {
        formula: {subject: EqualizationMove(formula, vectors.encode_vector(factors[subject]), ranges[subject],
                                            context.reason)
                  for subject in subjects if (factors[subject] != 1).any()}
        for formula, factors, ranges in zip(EQUALIZATION_FORMULAS, factor_sets, range_sets, strict=True)
    }
    return choose_moves(moves_by_formula, lambda moves: context.add_moves(config, moves),
                        JudgedErrors(context, context.make_progress("error of equalized channels")))


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
        strength: The exponent; see `trt_tui.core.moves.constant_moves`.
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
    """

    channel_axis: int
    scale: float
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
        collectors[group.name] = ChannelMeanCollector(1 if conv else -1, step)
    by_tensor: dict[str, CollectorFanout] = {}
    for name, collector in collectors.items():
        tensor = sites_by_group[name][0].tensor
        by_tensor.setdefault(tensor, CollectorFanout()).append(
            DividedCollector(divisors[tensor], collector) if tensor in divisors else collector)
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
