"""The table of the kinds of zero-cost change, and the functions that read it.

A new kind is an entry of `ZERO_COST_KINDS` here.

The subject of a zero-cost move is the group that has it. The move of a group that reads scaled channels belongs to the
group that produces them. A group in file precision has the precisions and ranges of a quantized or FP16 file.

A kind measures its proposals in a `ProposalContext`. Factors of channels and bias corrections are computed here from
the calibration samples.

The choice of equalization factors needs the error at the judged outputs. Three of four samples choose the factors, and
the moves are proposed only if they also reduce the error of the other samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, auto
from functools import partial
from itertools import starmap
from typing import Any, Protocol, TypeVar

import numpy as np

from trt_tui.core.calibration.calibration import Histogram, choose_amax
from trt_tui.core.calibration.tensor_collection import (
    CalibrationContext,
    CollectedTensor,
    RunProgress,
    collect_tensors,
)
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.network_rewrite import EditedConstants
from trt_tui.core.measure.error_metrics import compute_noise_to_signal_ratios
from trt_tui.core.measure.weight_rounding import RoundingProposal, count_simulated_configs, measure_roundings
from trt_tui.core.moves.config import (
    NormRewriteMove,
    PrecisionConfig,
    RangeMove,
    bias_correction_refusal_reason,
    find_qdq_repair,
    qdq_repair_refusal_reason,
    replace_file_precision_of_groups,
    rewrite_refusal_reason,
    rounding_refusal_reason,
)
from trt_tui.core.moves.constant_moves import (
    CLIP_HEADROOM,
    DEFAULT_STRENGTH,
    EQUALIZATION_FORMULAS,
    PLACEMENT_LABELS,
    SINGLE_PLACEMENTS,
    AttentionScaleMove,
    BiasCorrectionMove,
    EqualizationMove,
    RoundingMove,
    ScalePlacement,
    SmoothQuantMove,
    attention_scale_refusal_reason,
    channel_scaling_refusal_reason,
    compute_equalization_factors,
    encode_vector,
    equalization_refusal_reason,
    limit_factors,
    make_attention_scale_move,
    placement_refusal_reason,
    smoothquant_factors,
)
from trt_tui.core.moves.move import Move
from trt_tui.core.network.layers import ChannelScaling, FusionGroup, NetworkOutline, QdqSite, ScaledConstant
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import PRODUCTS
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import INT8, QUANTIZED_TYPES, QuantizedType
from trt_tui.core.runner import Backend, Executor

T = TypeVar("T")

LEAVES_FILE_SUFFIX = ", no longer in file precision"
"""The suffix in the label of a proposal that replaces the file precision of groups by another precision."""


class ZeroCostStage(IntEnum):
    """A stage of a search that tries zero-cost changes. The members are in the order of the search.

    The changes of a stage are measured in the config with the accepted changes of the earlier stages. A change removes
    the moves of later stages on the groups that it changes, since they were measured without it.
    """

    FORM = auto()
    """Changes after which the network computes the same values in FP32."""
    ROUNDING = auto()
    """Other quantized values of the weights, which belong to the weights after the changes of form."""
    BIAS = auto()
    """Corrections of the mean error that all other changes leave."""


@dataclass(frozen=True)
class ConfigProposal:
    """A proposed config with zero-cost moves of one kind added.

    Attributes:
        label: The title of these moves in lists.
        short_label: The title in at most 15 characters; "" if the label is that short.
        family: The title of the change of which the proposal is a variant, such as one strength of SmoothQuant; "" if
            there are no variants. Lists show the best variant only.
    """

    label: str
    config: PrecisionConfig
    short_label: str = ""
    family: str = ""


@dataclass
class TrialBudget:
    """The number of configs that may be simulated to choose among variants of changes.

    It counts configs, not time or executions: the same configs count if their values are stored already.

    Attributes:
        limit: The maximum number of configs.
        used: Number of configs so far.
        is_exceeded: True if a config was refused.
    """

    limit: float = math.inf
    used: int = 0
    is_exceeded: bool = False

    def reserve_configs(self, count: int = 1) -> bool:
        """Reserves budget for some configs; returns False if the budget does not suffice for all of them."""
        if self.used + count > self.limit:
            self.is_exceeded = True
            return False
        self.used += count
        return True


class StoredMeasurement(Protocol):
    """The protocol of functions that measure a value of a config once and return the stored value afterwards."""

    def __call__(
        self,
        title: str,
        config: PrecisionConfig,
        result_type: type[T],
        measure: Callable[[], T],
        /,
        *,
        subjects: Sequence[str] = (),
    ) -> T:
        """Returns the value of a config that is stored under a title; if there is none, measures and stores it.

        Args:
            subjects: The groups whose moves are measured together on the calibration samples; () for a value that does
                not depend on the calibration samples.
        """


@dataclass(frozen=True)
class ProposalContext:
    """The config, the groups and the calibration samples for which a kind of zero-cost change makes its proposals.

    Attributes:
        config: The config to which moves are added.
        groups: The groups that may be changed: one row, or all groups in a search.
        samples: The calibration samples.
        ranges: Calibrated amax by tensor name, in the units of the tensor.
        range_method: The method of the ranges; "" if there are none.
        reason: The origin of the moves.
        may_replace_file_precision: True to change groups in file precision too. They get the nearest other precision.
        in_separate_pass: True to measure values for these groups in one separate pass, even if they are known.
        measured_values: The values measured so far, by the keys of `get_measured_values`.
        judged_samples: The samples that judge configs.
        judged_feeds: The feeds by whose errors kinds choose between variants.
        measure_sample_errors: A function that measures a config on some feeds. It returns the noise and the signal
            energy of each sample at each judged output, float64 ``(samples, outputs)``.
        budget: The budget of the configs that are simulated for this choice.
        find_or_measure: A function that measures a value of a config once for all searches.
        make_executor: A function that returns the executor of the calibration samples.
        make_progress: A function that returns the progress callback of a pass over the samples, by the title of the
            pass.
    """

    network: Network
    config: PrecisionConfig
    groups: Sequence[FusionGroup]
    samples: Samples
    backend: Backend
    ranges: Mapping[str, float]
    range_method: str
    reason: str
    may_replace_file_precision: bool
    in_separate_pass: bool
    measured_values: dict[object, Any]
    judged_samples: Samples
    judged_feeds: tuple[int, ...]
    measure_sample_errors: Callable[[PrecisionConfig, Sequence[int], RunProgress], tuple[np.ndarray, np.ndarray]]
    budget: TrialBudget
    find_or_measure: StoredMeasurement
    make_executor: Callable[[], Executor[CalibrationContext]]
    make_progress: Callable[[str], RunProgress]

    def prepare_config(self, changed_groups: Iterable[FusionGroup]) -> tuple[PrecisionConfig, str]:
        """Returns the config with the file precision of some groups replaced, and the suffix for the label of the
        proposal."""
        ready = self.config
        if self.may_replace_file_precision:
            ready = replace_file_precision_of_groups(self.config, changed_groups, self.reason)
        return ready, LEAVES_FILE_SUFFIX if ready != self.config else ""

    def get_measured_values(
        self, title: str, dependencies: Sequence[object], subjects: Iterable[str]
    ) -> dict[str, Any]:
        """Returns the values that were measured so far, by group or tensor. The caller adds missing values.

        Runtimes fuse layers whose tensors are not read, so values differ in the last bits between passes. With
        ``in_separate_pass``, the values therefore belong to a pass with exactly these subjects.

        Args:
            title: The name of the measured quantity.
            dependencies: Everything besides the calibration samples that the values depend on.
            subjects: The groups or tensors of the pass.
        """
        key = (title, *dependencies, *([True, *subjects] if self.in_separate_pass else [False]))
        values: dict[str, Any] = self.measured_values.setdefault(key, {})
        return values


RefusalReason = Callable[[NetworkOutline, FusionGroup, PrecisionConfig], str]
"""Returns the reason why a fusion group cannot have a change in a config of the user; "" if it can. The change may
replace the file precision of the group."""


@dataclass(frozen=True, kw_only=True)
class ZeroCostKind:
    """A kind of change that adds no run time: its texts, its conditions and the measurement of its proposals.

    `ZERO_COST_KINDS` lists all kinds. The app, the remedies, the searches and the exporters read that table.

    Attributes:
        title: The name of the kind in lists and messages.
        make_proposals: A function that yields the changes that the groups of a context can have and do not have yet,
            one config for each variant. It raises an `InputError` if a tensor contains NaN or infinity in FP32, or the
            data cannot be read.
        move_class: The kind of move that the change adds; None if it only changes precisions.
        stage: The stage in which the change is measured and tried.
        needs_quantized_file: True if the change is for a network that comes from a quantized file.
        is_for_rows: True if the change is offered for single groups.
        is_for_searches: True if a search tries the change on all groups.
        omission_text: The text of the exports that keep only exact changes, about a number of moves; "" for an exact
            change, with which the network computes the same values in FP32. Other changes belong to quantized values: a
            search removes them from a group that it raises.
        find_subject: A function that returns the subject of the move that makes the change for a group; None if there
            is none.
        find_changed_tensors_and_groups: A function that returns the tensors and the groups whose values a move changes,
            by its subject, so that earlier measurements become invalid. `add_zero_cost_moves` removes the ranges of
            these tensors, and the moves of later stages on these groups.
    """

    title: str
    refusal_reason: RefusalReason
    make_proposals: Callable[[ProposalContext], Iterator[ConfigProposal]]
    move_class: type[Move] | None = None
    stage: ZeroCostStage = ZeroCostStage.FORM
    needs_quantized_file: bool = False
    is_for_rows: bool = True
    is_for_searches: bool = True
    omission_text: str = ""
    find_subject: Callable[[NetworkOutline, FusionGroup], str | None] = lambda network, group: group.name
    find_changed_tensors_and_groups: Callable[[NetworkOutline, str], tuple[Sequence[str], Sequence[str]]] = (
        lambda network, subject: ((), ())
    )

    def is_listed_for(self, network: NetworkOutline) -> bool:
        """Returns True if lists show the kind for a network, even where it is impossible."""
        return not self.needs_quantized_file or network.qdq_findings is not None


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


def measure_channel_extrema(
    network: Network,
    tensors: Iterable[str],
    samples: Samples,
    backend: Backend,
    known_extrema: ChannelExtrema,
    *,
    progress: RunProgress | None = None,
    executor: Executor[CalibrationContext] | None = None,
) -> None:
    """Measures the extrema of the channels of tensors and adds those that are not known yet.

    Raises:
        InputError: A tensor contains NaN or an infinity, or the data cannot be read.
    """
    shapes = network.zero_cost_support.scaled_tensor_shapes
    collectors = {tensor: ChannelExtremaCollector(shapes[tensor]) for tensor in tensors if tensor not in known_extrema}
    collect_tensors(
        network.model, [*starmap(CollectedTensor, collectors.items())], samples, backend, progress, executor
    )
    known_extrema.update(collectors)


def list_limiting_tensors(network: Network, scaling: ChannelScaling) -> list[str]:
    """Returns the tensors whose extrema decide the factors and ranges of a scaling, in network order.

    Results that contain only values of an input, such as those of a Relu, are left out unless a layer multiplies them.
    """
    needed = {
        *network.calibrated_tensors,
        *(reader.activation for reader in scaling.readers),
        *(clip.tensor for clip in scaling.clips),
    }
    return [
        scaled.tensor
        for scaled in scaling.tensors
        if scaled.tensor in needed
        or not rulebook.preserves_precision_of_values(network.get_layer(network.producer[scaled.tensor]))
    ]


# -- factors -----------------------------------------------------------------------------------------------------------


def compute_factor_limits(
    scaling: ChannelScaling, extrema: ChannelExtrema, clip_extrema: Sequence[ChannelExtrema]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the minimum of each factor, and True for each channel whose factor must be 1. With these limits, no range
    grows and no Clip changes a value of the samples.

    A channel with a value near a bound of a Clip keeps its factor of 1, so that the Clip limits it as before.

    Args:
        extrema: Extrema of the channels on the calibration samples.
        clip_extrema: Extrema of the inputs of Clips, for each set of samples.
    """
    min_factors = np.full(scaling.channels, 1e-30, np.float64)
    is_fixed = np.zeros(scaling.channels, bool)
    for scaled in scaling.tensors:
        if scaled.tensor in extrema and (amax := extrema[scaled.tensor].amax).max(initial=0.0) > 0:
            shares = scaled.compute_channel_maxima(amax / amax.max(), scaling.channels)
            np.maximum(min_factors, shares, out=min_factors)
    for clip in scaling.clips:
        for bound, side in ((clip.high, "high"), (-clip.low, "low")):
            if bound == 0 or not np.isfinite(bound):
                continue
            for collected in clip_extrema:
                values = scaling.find_tensor(clip.tensor).compute_channel_maxima(
                    getattr(collected[clip.tensor], side), scaling.channels
                )
                needed = (
                    values.astype(np.float64) * CLIP_HEADROOM / bound
                    if bound > 0
                    else np.full(scaling.channels, np.inf)
                )
                is_fixed |= needed > 1
                np.maximum(min_factors, needed, out=min_factors)
    return np.where(is_fixed, 1.0, min_factors), is_fixed


def compute_channel_factors(
    network: Network,
    scalings: Mapping[str, ChannelScaling],
    formula: str,
    extrema: ChannelExtrema,
    limits: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Returns the factors of each scaling by a formula, by group.

    The ranges of weights depend on the factors at their other side. The factors are therefore computed in rounds, as in
    Nagel et al., until they change little.

    Args:
        formula: One of `EQUALIZATION_FORMULAS`.
        limits: By group, the result of `compute_factor_limits`.
    """
    constants_by_port = collect_by_key(
        (constant.port, (group, constant))
        for group, scaling in scalings.items()
        for constant in (*scaling.producers, *scaling.readers)
    )

    def compute_channel_weight_amax(group: str, constants: Sequence[ScaledConstant], exponent: int) -> np.ndarray:
        """Returns the largest magnitude of the weights that produce or read each channel, after other scalings.

        Args:
            exponent: The exponent of the channels in these weights: 1 for producers, -1 for readers.
        """
        weights = [
            constant
            for constant in constants
            if constant.port[1] == 1 and network.get_layer(constant.port[0]).op_type in PRODUCTS
        ] or constants
        result = np.zeros(scalings[group].channels, np.float32)
        for constant in weights:
            magnitudes = np.abs(network.constant_value(constant.tensor))
            for other_group, other in constants_by_port[constant.port]:
                if other_group != group:
                    magnitudes = other.divide_channels(magnitudes, factors[other_group])
            np.maximum(result, constant.compute_channel_maxima(magnitudes, len(result), exponent), out=result)
        return result

    factors = {group: np.ones(scaling.channels, np.float32) for group, scaling in scalings.items()}
    for _ in range(MAX_ROUNDS):
        change = 0.0
        for group, scaling in scalings.items():
            computed = limit_factors(
                compute_equalization_factors(
                    formula,
                    _compute_channel_activation_amax(scaling, extrema),
                    compute_channel_weight_amax(group, scaling.producers, 1),
                    compute_channel_weight_amax(group, scaling.readers, -1),
                ),
                *limits[group],
            )
            change = max(change, float(np.abs(np.log(computed / factors[group])).max(initial=0.0)))
            factors[group] = computed
        if change < CONVERGED_CHANGE:
            break
    return factors


def _compute_channel_activation_amax(scaling: ChannelScaling, extrema: ChannelExtrema) -> np.ndarray:
    """Returns the largest magnitude of each channel over the tensors that the readers multiply."""
    amax = np.zeros(scaling.channels, np.float32)
    read_tensors = {reader.activation for reader in scaling.readers}
    for scaled in scaling.tensors:
        if scaled.tensor in read_tensors:
            np.maximum(amax, scaled.compute_channel_maxima(extrema[scaled.tensor].amax, scaling.channels), out=amax)
    return amax


# -- ranges ------------------------------------------------------------------------------------------------------------


def measure_divided_ranges(
    network: Network,
    config: PrecisionConfig,
    scalings: Mapping[str, ChannelScaling],
    factor_sets: Sequence[Mapping[str, np.ndarray]],
    extrema: ChannelExtrema,
    ranges: Mapping[str, float],
    method: str,
    samples: Samples,
    backend: Backend,
    *,
    progress: RunProgress | None = None,
    executor: Executor[CalibrationContext] | None = None,
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
    scaled_tensors = {
        tensor: (group, scaled)
        for tensor in network.calibrated_tensors
        if len(
            found := [
                (group, scaled)
                for group, scaling in scalings.items()
                for scaled in scaling.tensors
                if scaled.tensor == tensor
            ]
        )
        == 1
        for group, scaled in found
    }
    histograms: dict[str, list[Histogram]] = {}
    if method not in ("", "minmax"):
        histograms = {tensor: [Histogram() for _ in factor_sets] for tensor in scaled_tensors}
        collect_tensors(
            network.model,
            [
                CollectedTensor(tensor, histogram, scaled.compute_divisors(factors[group]))
                for tensor, (group, scaled) in scaled_tensors.items()
                for factors, histogram in zip(factor_sets, histograms[tensor], strict=True)
            ],
            samples,
            backend,
            progress,
            executor,
        )
    range_sets: list[dict[str, dict[str, float]]] = []
    for index, factors in enumerate(factor_sets):
        ranges_by_group: dict[str, dict[str, float]] = {group: {} for group in scalings}
        for tensor, (group, scaled) in scaled_tensors.items():
            amax = extrema[tensor].amax
            divided_amax = float((amax / scaled.compute_divisors(factors[group])).max(initial=0.0))
            if tensor in histograms:
                divided_amax = choose_amax(histograms[tensor][index], method, quantized_types.get(tensor, INT8))
            elif not method and amax.max(initial=0.0) > 0:
                divided_amax *= ranges.get(tensor, float(amax.max())) / float(amax.max())
            ranges_by_group[group][tensor] = divided_amax
        range_sets.append(ranges_by_group)
    return range_sets


def _find_quantized_types(network: Network, config: PrecisionConfig) -> dict[str, QuantizedType]:
    """Returns the quantized type in which a config reads each tensor, by tensor."""
    return {
        site.tensor: QUANTIZED_TYPES[precision]
        for group in network.groups
        if (precision := config.precision_of(group)) in QUANTIZED_TYPES
        for site in group.calibrated_qdq_sites(precision)
    }


# -- choice ------------------------------------------------------------------------------------------------------------


class JudgedErrors:
    """The judged errors of configs, on the samples that choose and on those that are held out.

    If there are fewer than `HELD_OUT_STEP` samples, all samples serve both purposes.

    Args:
        progress: A callback after each feed of a config.
    """

    def __init__(self, context: ProposalContext, progress: RunProgress) -> None:
        self._context, self._progress = context, progress
        self._reserved_configs = set[PrecisionConfig]()
        self._errors: dict[PrecisionConfig, tuple[float, ...]] = {}

    def reserve_configs(self, configs: Iterable[PrecisionConfig]) -> bool:
        """Reserves budget for some configs; returns False if it does not suffice. Each config counts once."""
        new_configs = set(configs) - self._reserved_configs
        if not self._context.budget.reserve_configs(len(new_configs)):
            return False
        self._reserved_configs |= new_configs
        return True

    def measure_judged_error(self, config: PrecisionConfig, held_out: bool = False) -> float:
        """Returns the judged error of a config: Σ(test-ref)² / Σref², summed over the judged outputs."""
        if config not in self._errors:
            context = self._context
            stored = context.find_or_measure(
                f"sample errors {context.judged_feeds}",
                config,
                list[list[list[float]]],
                lambda: [
                    sums.tolist()
                    for sums in context.measure_sample_errors(config, context.judged_feeds, self._progress)
                ],
            )
            noise, signal = (np.array(sums, np.float64) for sums in stored)
            is_held_out = np.arange(len(noise)) % HELD_OUT_STEP == HELD_OUT_STEP - 1
            parts = (~is_held_out, is_held_out) if is_held_out.any() else (~is_held_out, ~is_held_out)
            self._errors[config] = tuple(
                float(compute_noise_to_signal_ratios(noise[rows].sum(0), signal[rows].sum(0)).sum()) for rows in parts
            )
        return self._errors[config][held_out]


Moves = dict[str, EqualizationMove]


def choose_moves(
    moves_by_formula: Mapping[str, Moves], add_moves: Callable[[Moves], PrecisionConfig], errors: JudgedErrors
) -> Moves:
    """Returns the moves with the lowest judged error; {} if they do not reduce it on both parts of the samples.

    First the formula that is best for all groups is chosen. Then, group by group, the move is left out or replaced by
    that of another formula if this reduces the error. The budget of configs ends the second step early. If it does not
    suffice for the first step, the result is {}.

    Args:
        moves_by_formula: The moves of all groups by formula.
        add_moves: A function that returns the config with some moves.
    """

    def measure_judged_error(moves: Moves, held_out: bool = False) -> float:
        return errors.measure_judged_error(add_moves(moves), held_out)

    if not errors.reserve_configs(add_moves(moves) for moves in ({}, *moves_by_formula.values())):
        return {}
    uniform = min(({}, *moves_by_formula.values()), key=measure_judged_error)
    chosen = dict(uniform)
    groups = list(next(iter(moves_by_formula.values()), {}))
    alternatives = [
        (group, formula)
        for formula in (None, *moves_by_formula)
        for group in groups
        if formula is None or group in moves_by_formula[formula]
    ]
    for group, formula in alternatives[:MAX_CHOICE_EVALUATIONS] if len(groups) > 1 else ():
        changed = {name: move for name, move in chosen.items() if name != group}
        if formula is not None:
            changed[group] = moves_by_formula[formula][group]
        if not errors.reserve_configs([add_moves(changed)]):
            break
        if measure_judged_error(changed) < measure_judged_error(chosen):
            chosen = changed
    unchanged_error = measure_judged_error({}, held_out=True)
    return next(
        (
            dict(moves)
            for moves in (chosen, uniform)
            if moves
            and measure_judged_error({}) > measure_judged_error(moves)
            and unchanged_error > measure_judged_error(moves, True)
        ),
        {},
    )


def choose_equalization_moves(context: ProposalContext, config: PrecisionConfig, subjects: Sequence[str]) -> Moves:
    """Returns the equalization moves of least judged error for some groups; {} if none reduce it.

    Args:
        config: The config to which the moves are added.
        subjects: Groups whose channels can be scaled.

    Raises:
        InputError: A tensor contains NaN or infinity in FP32, or the data cannot be read.
    """
    network = context.network
    scalings = {subject: network.zero_cost_support.channel_scalings[subject] for subject in subjects}
    progress, executor = context.make_progress("largest values of channels"), context.make_executor()
    tensors = list(
        dict.fromkeys(tensor for scaling in scalings.values() for tensor in list_limiting_tensors(network, scaling))
    )
    extrema: ChannelExtrema = context.get_measured_values("channel extrema", (), subjects)
    measure_channel_extrema(
        network, tensors, context.samples, context.backend, extrema, progress=progress, executor=executor
    )
    clipped = {clip.tensor for scaling in scalings.values() for clip in scaling.clips}
    judged_extrema: ChannelExtrema = context.get_measured_values("judged channel extrema", (), subjects)
    measure_channel_extrema(
        network,
        [tensor for tensor in tensors if tensor in clipped],
        context.judged_samples,
        context.backend,
        judged_extrema,
        progress=progress,
    )
    limits = {
        subject: compute_factor_limits(scaling, extrema, (extrema, judged_extrema))
        for subject, scaling in scalings.items()
    }
    factor_sets = [
        compute_channel_factors(network, scalings, formula, extrema, limits) for formula in EQUALIZATION_FORMULAS
    ]
    range_sets = measure_divided_ranges(
        network,
        config,
        scalings,
        factor_sets,
        extrema,
        context.ranges,
        context.range_method,
        context.samples,
        context.backend,
        progress=context.make_progress("ranges of equalized channels"),
        executor=executor,
    )
    moves_by_formula = {
        formula: {
            subject: EqualizationMove(formula, encode_vector(factors[subject]), ranges[subject], context.reason)
            for subject in subjects
            if (factors[subject] != 1).any()
        }
        for formula, factors, ranges in zip(EQUALIZATION_FORMULAS, factor_sets, range_sets, strict=True)
    }
    return choose_moves(
        moves_by_formula,
        lambda moves: add_zero_cost_moves(config, context.network, moves),
        JudgedErrors(context, context.make_progress("error of equalized channels")),
    )


def propose_normalisation_rewrites(
    network: Network, groups: Iterable[FusionGroup], reason: str = "user"
) -> dict[str, NormRewriteMove]:
    """Returns moves that replace decomposed normalisations by their operators, for the groups that allow it."""
    return {
        group.name: NormRewriteMove(network.zero_cost_support.norms[group.name].operator, reason)  # type: ignore[arg-type]
        for group in groups
        if not rewrite_refusal_reason(network, group.name)
    }


# -- SmoothQuant --------------------------------------------------------------------------------------------------


def measure_smoothquant_moves(
    network: Network,
    subjects: Iterable[str],
    samples: Samples,
    backend: Backend,
    *,
    strength: float = DEFAULT_STRENGTH,
    reason: str = "user",
    extrema: ChannelExtrema | None = None,
    progress: RunProgress | None = None,
    executor: Executor[CalibrationContext] | None = None,
) -> dict[str, SmoothQuantMove]:
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
    measured_tensors = {
        name: [
            tensor
            for tensor in scaling.tensors
            if tensor.tensor in multiplied_names[name] or tensor.tensor in network.calibrated_tensors
        ]
        for name, scaling in scalings.items()
    }
    measure_channel_extrema(
        network,
        dict.fromkeys(tensor.tensor for tensors in measured_tensors.values() for tensor in tensors),
        samples,
        backend,
        extrema,
        progress=progress,
        executor=executor,
    )
    moves = {}
    for name, scaling in scalings.items():
        activation, weight = np.zeros((2, scaling.channels), np.float32)
        for tensor in measured_tensors[name]:
            magnitudes = extrema[tensor.tensor].amax
            for exponent, maxima in ((1, activation), (-1, weight)) if tensor.tensor in multiplied_names[name] else ():
                np.maximum(maxima, tensor.compute_channel_maxima(magnitudes, scaling.channels, exponent), out=maxima)
        for reader in scaling.readers:
            magnitudes = network.constant_value(reader.tensor)
            for exponent, maxima in ((-1, weight), (1, activation)):
                np.maximum(maxima, reader.compute_channel_maxima(magnitudes, scaling.channels, exponent), out=maxima)
        factors = smoothquant_factors(activation, weight, strength)
        ranges = {
            tensor.tensor: float((extrema[tensor.tensor].amax / tensor.compute_divisors(factors)).max())
            for tensor in measured_tensors[name]
            if tensor.tensor in network.calibrated_tensors
        }
        moves[name] = SmoothQuantMove(strength, encode_vector(factors), ranges, reason)
    return moves


def _find_multiplied_tensors(network: Network, scaling: ChannelScaling) -> set[str]:
    """Returns the tensors that the readers and products of a set multiply."""
    return {reader.activation for reader in scaling.readers}.union(
        *(network.get_layer(layer).inputs for layer in scaling.products)
    )


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
        """Updates the mean of each channel with the values of a float array.

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


def measure_bias_corrections(
    network: Network,
    config: PrecisionConfig,
    ranges: Mapping[str, float],
    groups: Sequence[FusionGroup],
    samples: Samples,
    backend: Backend,
    *,
    progress: RunProgress | None = None,
    executor: Executor[CalibrationContext] | None = None,
) -> dict[str, BiasCorrectionMove]:
    """Returns bias corrections by group, which remove the mean error of INT8 layers: ``W·E[x] - W'·E[x']`` for each
    channel.

    Means are those of the FP32 network. If a Conv pads its input, the edges, which see fewer values, count like all
    others.

    Args:
        ranges: Calibrated amax by tensor name, in the units of the tensor.
        groups: Groups whose bias can be corrected; see
            `trt_tui.core.moves.config.bias_correction_refusal_reason`.
        executor: The executor of the samples; this process by default.

    Raises:
        InputError: a range is missing, a tensor contains NaN or an infinity, or the data cannot be read.
    """
    folds = EditedConstants(network, config)
    group_lowerings = rulebook.plan_lowering(network, config, ranges, edited_constants=folds)
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
    tensors = {name: site.tensor for name, (site, _) in sites_by_group.items()}
    collect_tensors(
        network.model,
        [
            CollectedTensor(tensors[name], collector, divisors.get(tensors[name]))
            for name, collector in collectors.items()
        ],
        samples,
        backend,
        progress,
        executor,
    )
    for name, (_, site) in sites_by_group.items():
        means = collectors[name]
        weight = folds.compute_constant((site.layer, site.index), with_rounding=False)
        used_weight = folds.compute_constant((site.layer, site.index))
        if weight is None or used_weight is None or not means.count:
            continue
        rounded = rulebook.quantize_dequantize_weight(used_weight, group_lowerings[name].scales[site])
        layer = network.get_layer(site.layer)
        groups_of = network.node(layer.name).attributes.get_int("group", 1)
        shift = _compute_output_means(weight, means.exact_sums / means.count, site, groups_of) - _compute_output_means(
            rounded, means.rounded_sums / means.count, site, groups_of
        )
        moves[name] = BiasCorrectionMove(encode_vector(shift.astype(np.float32)), "user")
    return moves


def _compute_output_means(
    weight: np.ndarray, input_means: np.ndarray, site: QdqSite, conv_group_count: int
) -> np.ndarray:
    """Returns the mean of each output channel that a weight computes from the mean of each input channel."""
    if weight.ndim == 2:
        return np.asarray((weight if site.axis == 0 else weight.T) @ input_means)
    taps = weight.sum(axis=tuple(range(2, weight.ndim)), dtype=np.float64)  # (outputs, inputs of a group)
    per_group = input_means.reshape(conv_group_count, -1)
    outputs = len(taps) // conv_group_count
    return np.concatenate(
        [taps[group * outputs : (group + 1) * outputs] @ per_group[group] for group in range(conv_group_count)]
    )


SMOOTHQUANT_STRENGTHS = (0.5, 0.25, 0.75)
"""The exponents of SmoothQuant to try, the usual exponent first."""


SEARCH_REASON = "search:"
"""The prefix of the origin of moves that a search makes."""


# -- scaled channels ---------------------------------------------------------------------------------------------------

ChannelRefusalReason = Callable[[NetworkOutline, str, PrecisionConfig], str]
"""Returns the reason why the channels that a group writes cannot be scaled in a config; "" if they can."""


def _smoothquant_refusal_reason(network: NetworkOutline, subject: str, config: PrecisionConfig) -> str:
    return channel_scaling_refusal_reason(network, subject) or _missing_reader_reason(
        network, subject, config, (Precision.INT8,)
    )


def _equalization_refusal_reason(network: NetworkOutline, subject: str, config: PrecisionConfig) -> str:
    return equalization_refusal_reason(network, subject) or _missing_reader_reason(
        network, subject, config, tuple(QUANTIZED_TYPES)
    )


def _missing_reader_reason(
    network: NetworkOutline, subject: str, config: PrecisionConfig, precisions: Sequence[Precision]
) -> str:
    """Returns the reason why scaled channels help nothing: no layer in one of some precisions reads them; "" if one
    does."""
    layers = network.zero_cost_support.channel_scalings[subject].reading_layers
    readers = [group for layer in layers if (group := network.find_group(layer)) is not None]
    ready = replace_file_precision_of_groups(config, readers)
    if any(ready.precision_of(reader) in precisions for reader in readers):
        return ""
    return f"no layer in {', '.join(precision.label for precision in precisions)} reads its channels"


def _group_channels_refusal_reason(
    refusal_reason: ChannelRefusalReason,
    no_channels_text: str,
    network: NetworkOutline,
    group: FusionGroup,
    config: PrecisionConfig,
) -> str:
    """Returns the reason why the channels that a group writes or reads cannot be scaled.

    Args:
        no_channels_text: The reason against a group without channels that could be scaled.
    """
    subject = _find_scaled_group(network, group)
    return no_channels_text if subject is None else refusal_reason(network, subject, config)


def _find_scaled_group(network: NetworkOutline, group: FusionGroup) -> str | None:
    return network.zero_cost_support.find_channel_scaling_key(group.name, group.layers)


def _find_scaled_tensors_and_groups(network: NetworkOutline, subject: str) -> tuple[Sequence[str], Sequence[str]]:
    scaling = network.zero_cost_support.channel_scalings[subject]
    layers = (*(producer.port[0] for producer in scaling.producers), *scaling.reading_layers)
    groups = dict.fromkeys(group.name for layer in layers if (group := network.find_group(layer)) is not None)
    return [tensor.tensor for tensor in scaling.tensors], list(groups)


def _find_groups_of_scaled_channels(network: NetworkOutline, subjects: Iterable[str]) -> list[FusionGroup]:
    names = (name for subject in subjects for name in _find_scaled_tensors_and_groups(network, subject)[1])
    return [*map(network.get_group, names)]


def _find_subjects_without_factors(
    context: ProposalContext, refusal_reason: ChannelRefusalReason, subjects: Iterable[str | None]
) -> list[str]:
    """Returns the subjects without channel factors whose channels quantized layers read, each once."""
    open_subjects = []
    for subject in dict.fromkeys(filter(None, subjects)):
        if not refusal_reason(context.network, subject, context.config):
            groups = _find_groups_of_scaled_channels(context.network, [subject])
            changed, _ = context.prepare_config(groups)
            stays_in_file = any(changed.precision_of(group) is Precision.FILE for group in groups)
            if not (stays_in_file or changed.has_scaled_channels(subject)):
                open_subjects.append(subject)
    return open_subjects


def _propose_smoothquant(context: ProposalContext) -> Iterator[ConfigProposal]:
    """Yields the channels behind normalisations, and then those between other layers, for each strength.

    A search gets the channels behind normalisations only. The ranges of scaled channels are fixed, and other ranges
    often gain more between the layers of a CNN.
    """
    network, all_norms = context.network, context.network.zero_cost_support.norms
    subjects = _find_subjects_without_factors(
        context,
        _smoothquant_refusal_reason,
        (
            subject
            for group in context.groups
            if (subject := _find_scaled_group(network, group)) in all_norms
            or not context.reason.startswith(SEARCH_REASON)
        ),
    )
    if not subjects:
        return
    extrema = context.get_measured_values("largest values of channels", (), subjects)
    moves_by_strength = {
        strength: measure_smoothquant_moves(
            network,
            subjects,
            context.samples,
            context.backend,
            strength=strength,
            reason=context.reason,
            extrema=extrema,
            progress=context.make_progress("largest values of channels"),
            executor=context.make_executor(),
        )
        for strength in SMOOTHQUANT_STRENGTHS
    }
    norms = [name for name in subjects if name in all_norms]
    for names, place in (
        (norms, ""),
        ([name for name in subjects if name not in norms], " between weights" if norms else ""),
    ):
        changed, suffix = context.prepare_config(_find_groups_of_scaled_channels(network, names))
        for strength, moves in moves_by_strength.items() if names else ():
            yield ConfigProposal(
                f"SmoothQuant {strength:g}{place}{suffix}",
                add_zero_cost_moves(changed, context.network, {name: moves[name] for name in names}),
                f"SmoothQ α {strength:g}",
                f"SmoothQuant{place}",
            )


def _propose_equalization(context: ProposalContext) -> Iterator[ConfigProposal]:
    """Yields the equalization of the channels that a single group reads, and in a search of all channels."""
    network = context.network
    subjects = _find_subjects_without_factors(
        context,
        _equalization_refusal_reason,
        (
            name
            for group in context.groups
            for name in (_find_scaled_group(network, group), group.name if len(context.groups) > 1 else None)
        ),
    )
    changed, suffix = context.prepare_config(_find_groups_of_scaled_channels(network, subjects))
    moves = choose_equalization_moves(context, changed, subjects) if subjects else {}
    if moves:
        yield ConfigProposal(
            f"equalization{suffix}", add_zero_cost_moves(changed, context.network, moves), "equalization"
        )


# -- other kinds -------------------------------------------------------------------------------------------------------


def _propose_qdq_repairs(context: ProposalContext) -> Iterator[ConfigProposal]:
    for group in context.groups:
        precision = find_qdq_repair(context.network, context.config, group)
        if precision is not None:
            yield ConfigProposal(
                f"{precision.label} with new Q/DQ{LEAVES_FILE_SUFFIX}",
                context.config.with_group_precision([group], precision, context.reason),
                f"{precision.label}, new Q/DQ",
            )


def _propose_recalibration(context: ProposalContext) -> Iterator[ConfigProposal]:
    """Yields the ranges of the calibration samples in place of those of a quantized file.

    Without them, the effect of other ranges would count as a gain of the following changes.
    """
    ready, _ = context.prepare_config(context.groups)
    changed, suffix = context.prepare_config(
        group
        for group in context.groups
        if context.config.precision_of(group) is Precision.FILE
        and group.calibrated_qdq_sites(ready.precision_of(group))
    )
    if suffix:
        yield ConfigProposal(f"recalibration{suffix}", changed)


ProposeGroupMoves = Callable[[ProposalContext, Sequence[FusionGroup], PrecisionConfig, str], Iterator[ConfigProposal]]
"""Yields proposals for groups that can have a move, in a config that is prepared for them. The last argument is the
suffix of the labels for this config."""


def _make_group_kind(
    *, move_class: type[Move], refusal_reason: RefusalReason, propose_moves: ProposeGroupMoves, **fields: Any
) -> ZeroCostKind:
    """Returns a kind whose move is made on each group that can have it."""

    def make_proposals(context: ProposalContext) -> Iterator[ConfigProposal]:
        ready, _ = context.prepare_config(context.groups)
        groups = [
            group
            for group in context.groups
            if ready.precision_of(group) is not Precision.FILE
            and not refusal_reason(context.network, group, ready)
            and group.name not in context.config.get_moves(move_class)
        ]
        if groups:
            yield from propose_moves(context, groups, *context.prepare_config(groups))

    return ZeroCostKind(move_class=move_class, refusal_reason=refusal_reason, make_proposals=make_proposals, **fields)


def _norm_rewrite_refusal_reason(network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
    precision = replace_file_precision_of_groups(config, [group]).precision_of(group)
    return rewrite_refusal_reason(network, group.name) or (
        "" if precision.value_type in (Precision.FP16, Precision.BF16) else "it runs in neither FP16 nor BF16"
    )


def _propose_norm_rewrites(
    context: ProposalContext, groups: Sequence[FusionGroup], config: PrecisionConfig, suffix: str
) -> Iterator[ConfigProposal]:
    rewrites = propose_normalisation_rewrites(context.network, groups, context.reason)
    operator_names = dict.fromkeys(move.operator.replace("alization", "") for move in rewrites.values())
    yield ConfigProposal(
        f"{' and '.join(operator_names)} operator{suffix}", config.with_moves(rewrites), f"as {min(operator_names)}"
    )


ROUNDING_TITLES = {"scales": "weight scales by error", "GPTQ": "GPTQ"}
ROUNDING_SHORT_TITLES = {"scales": "weight scales", "GPTQ": "GPTQ"}
"""The titles of proposals by the method of the rounding moves."""


def _propose_roundings(
    context: ProposalContext, groups: Sequence[FusionGroup], config: PrecisionConfig, suffix: str
) -> Iterator[ConfigProposal]:
    if not context.budget.reserve_configs(count_simulated_configs(context.network, config, groups)):
        return
    names = [group.name for group in groups]
    proposals = context.find_or_measure(
        "rounding",
        config,
        tuple[RoundingProposal, ...],
        lambda: measure_roundings(
            context.network,
            config,
            context.ranges,
            groups,
            context.samples,
            context.backend,
            progress=context.make_progress("errors of rounded weights"),
        ),
        subjects=names,
    )
    for proposal in proposals:
        moves = {name: replace(move, reason=context.reason) for name, move in proposal.moves.items()}
        short_title = ROUNDING_SHORT_TITLES[proposal.method]
        title = (
            f"{short_title} ({len(moves)} of {len(names)} layers)"
            if len(names) > 1
            else ROUNDING_TITLES[proposal.method]
        )
        yield ConfigProposal(f"{title}{suffix}", add_zero_cost_moves(config, context.network, moves), short_title)


def _find_groups_before_attention(network: NetworkOutline, subject: str) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the groups that produce the operands of an attention. Ranges are scaled with their tensors, and stay."""
    scale = network.zero_cost_support.attention_scales[subject]
    layers = [producer.port[0] for operand in (scale.query, scale.key) for producer in operand.producers]
    groups = (network.find_group(layer) for layer in layers)
    return (), list(dict.fromkeys(group.name for group in groups if group is not None))


def _propose_attention_scales(context: ProposalContext) -> Iterator[ConfigProposal]:
    """Yields the scale of the scores at one operand, and its square root at both."""
    network = context.network
    subjects = [
        group.name
        for group in context.groups
        if not attention_scale_refusal_reason(network, group.name)
        and group.name not in context.config.get_moves(AttentionScaleMove)
        and context.prepare_config([group])[0].precision_of(group) is not Precision.FP32
    ]
    scales = network.zero_cost_support.attention_scales
    for placements in (SINGLE_PLACEMENTS, (ScalePlacement.BOTH,)):
        possible = {
            subject: [placement for placement in placements if not placement_refusal_reason(scales[subject], placement)]
            for subject in subjects
        }
        moves = {
            subject: make_attention_scale_move(network, subject, allowed[0], context.reason)
            for subject, allowed in possible.items()
            if allowed
        }
        if not moves:
            continue
        names = dict.fromkeys(
            name for subject in moves for name in (subject, *_find_groups_before_attention(network, subject)[1])
        )
        changed, suffix = context.prepare_config(map(network.get_group, names))
        places = dict.fromkeys(PLACEMENT_LABELS[ScalePlacement(move.placement)] for move in moves.values())
        yield ConfigProposal(
            f"QK scale {' or '.join(places)}{suffix}",
            add_zero_cost_moves(changed, context.network, moves),
            f"QK {next(iter(places))}",
        )


def _propose_bias_corrections(
    context: ProposalContext, groups: Sequence[FusionGroup], config: PrecisionConfig, suffix: str
) -> Iterator[ConfigProposal]:
    corrections = context.get_measured_values(
        "bias corrections", (config, context.range_method), [group.name for group in groups]
    )
    missing = [group for group in groups if group.name not in corrections]
    if missing:
        corrections |= measure_bias_corrections(
            context.network,
            config,
            context.ranges,
            missing,
            context.samples,
            context.backend,
            progress=context.make_progress("means of channels"),
            executor=context.make_executor(),
        )
    moves = {
        group.name: replace(corrections[group.name], reason=context.reason)
        for group in groups
        if group.name in corrections
    }
    if moves:
        yield ConfigProposal(
            f"bias correction{suffix}", add_zero_cost_moves(config, context.network, moves), "bias correction"
        )


ZERO_COST_KINDS: tuple[ZeroCostKind, ...] = (
    ZeroCostKind(  # new Q/DQ nodes for a group of a quantized file with a finding that they repair
        title="new Q/DQ",
        refusal_reason=qdq_repair_refusal_reason,
        make_proposals=_propose_qdq_repairs,
        needs_quantized_file=True,
        is_for_searches=False,
    ),
    ZeroCostKind(
        title="recalibration",
        refusal_reason=lambda network, group, config: (
            "" if config.precision_of(group) is Precision.FILE else "it is not in file precision"
        ),
        make_proposals=_propose_recalibration,
        needs_quantized_file=True,
        is_for_rows=False,
    ),
    _make_group_kind(  # one ONNX operator in place of a decomposed LayerNorm or RMSNorm
        title="norm as operator",
        move_class=NormRewriteMove,
        refusal_reason=_norm_rewrite_refusal_reason,
        propose_moves=_propose_norm_rewrites,
    ),
    ZeroCostKind(  # the scale of the scores of an attention, in front of the product of queries and keys
        title="QK scale",
        move_class=AttentionScaleMove,
        refusal_reason=lambda network, group, config: attention_scale_refusal_reason(network, group.name),
        find_changed_tensors_and_groups=_find_groups_before_attention,
        make_proposals=_propose_attention_scales,
    ),
    ZeroCostKind(
        title="SmoothQuant",
        move_class=SmoothQuantMove,
        refusal_reason=partial(
            _group_channels_refusal_reason,
            _smoothquant_refusal_reason,
            "its input does not come from layers alone whose channels can be divided",
        ),
        find_subject=_find_scaled_group,
        find_changed_tensors_and_groups=_find_scaled_tensors_and_groups,
        make_proposals=_propose_smoothquant,
    ),
    ZeroCostKind(
        title="equalization",
        move_class=EqualizationMove,
        refusal_reason=partial(
            _group_channels_refusal_reason,
            _equalization_refusal_reason,
            "it neither writes nor reads channels of two layers with weights",
        ),
        find_subject=_find_scaled_group,
        find_changed_tensors_and_groups=_find_scaled_tensors_and_groups,
        make_proposals=_propose_equalization,
    ),
    _make_group_kind(  # scales and quantized values of weights, chosen by the error of the layer's output
        title="rounding",
        move_class=RoundingMove,
        stage=ZeroCostStage.ROUNDING,
        omission_text="Roundings of weights are left out ({count}): the typed network contains them.",
        refusal_reason=lambda network, group, config: rounding_refusal_reason(
            network, group, replace_file_precision_of_groups(config, [group])
        ),
        find_changed_tensors_and_groups=lambda network, subject: ((), [subject]),
        propose_moves=_propose_roundings,
    ),
    _make_group_kind(
        title="bias correction",
        move_class=BiasCorrectionMove,
        stage=ZeroCostStage.BIAS,
        omission_text="Bias corrections are left out ({count}): they belong to the quantized values of the typed "
        "network, which contains them.",
        refusal_reason=lambda network, group, config: bias_correction_refusal_reason(
            network, group, replace_file_precision_of_groups(config, [group])
        ),
        propose_moves=_propose_bias_corrections,
    ),
)
"""All kinds of zero-cost change, in the order of lists. A search tries the kinds of one stage in this order."""

ZERO_COST_MOVE_CLASSES: dict[type[Move], ZeroCostKind] = {
    kind.move_class: kind for kind in ZERO_COST_KINDS if kind.move_class is not None
}
"""The kinds of zero-cost change by their kind of move."""


def list_searched_stages() -> list[tuple[ZeroCostKind, ...]]:
    """Returns the kinds that a search tries, one tuple for each stage, the first stage first."""
    kinds = [kind for kind in ZERO_COST_KINDS if kind.is_for_searches]
    return [tuple(kind for kind in kinds if kind.stage is stage) for stage in sorted({kind.stage for kind in kinds})]


def find_refusal_reasons(network: NetworkOutline, config: PrecisionConfig, group: FusionGroup) -> dict[str, str]:
    """Returns the reason why a fusion group cannot have each kind of change, by the title of the kind; "" if it
    can."""
    return {
        kind.title: kind.refusal_reason(network, group, config)
        for kind in ZERO_COST_KINDS
        if kind.is_for_rows and kind.is_listed_for(network)
    }


def find_network_refusal_reasons(network: NetworkOutline, config: PrecisionConfig) -> dict[str, str]:
    """Returns the reason why no fusion group can have each kind of change, by the title of the kind; "" if one can.

    Of several reasons, the one of most groups is returned.
    """
    return {
        kind.title: "" if "" in counts or not counts else counts.most_common(1)[0][0]
        for kind in ZERO_COST_KINDS
        if kind.is_for_searches and kind.is_listed_for(network)
        for counts in [Counter(kind.refusal_reason(network, group, config) for group in network.groups)]
    }


def list_zero_cost_moves(
    network: NetworkOutline, config: PrecisionConfig, group: FusionGroup
) -> list[tuple[type[Move], str]]:
    """Returns the zero-cost moves of a config on a fusion group, or on the group that has the move for it.

    Each move is given by its kind and by the group that it changes.
    """
    candidates = (
        (move_class, kind.find_subject(network, group)) for move_class, kind in ZERO_COST_MOVE_CLASSES.items()
    )
    return [
        (move_class, subject)
        for move_class, subject in candidates
        if subject is not None and (move_class.kind, subject) in config.moves
    ]


def add_zero_cost_moves(config: PrecisionConfig, network: NetworkOutline, moves: Mapping[str, Move]) -> PrecisionConfig:
    """Returns a config with zero-cost moves of one kind added.

    Ranges of the tensors that they change, and moves of later stages on the groups that they change, are removed,
    since they were measured without these moves.
    """
    for move_class in {type(move) for move in moves.values()}:
        kind = ZERO_COST_MOVE_CLASSES[move_class]
        changed_parts = [kind.find_changed_tensors_and_groups(network, subject) for subject in moves]
        config = config.without_moves(RangeMove, [tensor for tensors, _ in changed_parts for tensor in tensors])
        for later_class, later_kind in ZERO_COST_MOVE_CLASSES.items():
            if later_kind.stage > kind.stage:
                config = config.without_moves(later_class, [name for _, groups in changed_parts for name in groups])
    return config.with_moves(moves)


def drop_moves_of_raised_groups(config: PrecisionConfig, group_names: Sequence[str]) -> PrecisionConfig:
    """Returns a config without the zero-cost moves of raised groups that are not exact (`ZeroCostKind.omission_text`)."""
    for move_class, kind in ZERO_COST_MOVE_CLASSES.items():
        if kind.omission_text:
            config = config.without_moves(move_class, group_names)
    return config
