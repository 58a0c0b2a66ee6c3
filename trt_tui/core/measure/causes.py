"""The table of known causes of an accuracy loss at a fusion group.

Each cause has a condition over measured facts of the group, a sentence, the evidence with its numbers, and the next
step. The app, the commands, Markdown and JSON all read `find_causes`, so that they use the same words.

A cause is found only if its condition holds on measured values, and only if the loss of the group reaches a judged
output. The reason is that a value inside a group may overflow without any effect: the cube inside a GELU overflows, and
the Tanh behind it saturates at the correct value. Such an overflow is a note (`fp16_range_note`).
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.calibration.calibration import DominantChannels, TensorStats
from trt_tui.core.measure.error_metrics import MIN_LOSSLESS_SQNR_DB, ErrorMetrics
from trt_tui.core.measure.results import Cause, ConfigResults, ErrorShare, GroupErrors, ResultKind
from trt_tui.core.network.layers import FusionGroup, Normalisation
from trt_tui.core.precision import FP16_MAX, FP16_MIN, FP16_MIN_NORMAL, FP16_OVERFLOW, Precision
from trt_tui.core.quantized_types import FP8, QUANTIZED_TYPES
from trt_tui.formatting import counted_noun_text, number_text, percent_text

MAX_EXPLAINED_GROUPS = 5
"""The maximum number of fusion groups per run whose causes are printed."""

NO_CAUSE_TEXT = "none of the known causes was found"

MIN_EXPLAINED_SHARE = 0.01
"""The minimum error share of a group whose loss is explained."""

MIN_CONCLUSIVE_SHARE_SUM = 0.5
"""The minimum sum of the error shares of all groups, below which several groups cause the same error."""

MIN_FP16_HEADROOM = 4.0
"""The headroom in FP16 below which a warning is given: a sample that was not measured may overflow."""

MAX_WEAK_RANGE_BITS = 5.0
"""The number of bits that a range leaves, up to which the range is a cause. Normally distributed values whose amax is
five standard deviations use 6.5 bits. Five bits are left if the amax is 14 standard deviations."""

MIN_CHANNEL_LOST_BITS = 4.0
"""The minimum number of bits that a median channel, or a part of a Concat, loses to a range that others set. With 4
lost bits it uses 8 of 127 quantized values."""

MIN_MENTIONED_SHARE = 0.002
"""The minimum share of values for which a loss is reported."""

MIN_CLIPPED_SHARE = 0.01
"""The minimum share of clipped or zeroed values that is a cause."""

MIN_CLIPPING_RATIO = 2.0
"""The minimum ratio of judged values to their range that is a cause. Such a value loses half of its magnitude."""

MIN_VANISHED_SHARE = 0.01
"""The minimum share of nonzero values that FP16 rounds to 0 and that explains NaN or Inf behind a Div or a Log."""

MAX_WEAK_WEIGHT_SQNR_DB = 30.0
"""The SQNR of quantized weights below which their scales are examined. Normally distributed weights with one scale per
channel have 35 to 45 dB in INT8."""

MAX_WEIGHT_ERROR_DISTANCE_DB = 10.0
"""The distance in dB of a weight's SQNR above that of the group's isolated error, up to which the weight contributes
to that error: a tenth of it."""

MIN_LAYOUT_GAIN_DB = 6.0
"""The minimum gain in SQNR by other scales or by a shorter sum of roundings that is a cause: one bit."""

_HARMLESS_STATES = ("", "safe", "overflows without effect")
"""The values of `trt_tui.core.measure.fp16_range.Fp16RangeState` for a group whose values fit FP16, or do no harm."""

OVERFLOW_CAUSES = ("mask", "weight overflow", "attention scale", "overflow")
"""The kinds of causes that name a value beyond FP16."""

_FP8_MAX_ZEROED_SCALES = 2.0**-10
"""The magnitude below which FP8 rounds to 0, in multiples of the scale. This is half of E4M3's smallest magnitude above
0 (2^-9, subnormal)."""


@dataclass(frozen=True)
class ValueRange:
    """The magnitudes of a tensor that a fusion group reads or computes, as far as FP16 is concerned.

    Attributes:
        layer: The operator and the name of the layer that computes the tensor, ``MatMul /qk``, or ``its input x``.
        amax: The largest finite magnitude.
        zeroed_share: The share of the nonzero values that FP16 rounds to 0.
        fp16_sqnr_db: SQNR of the tensor after rounding to FP16, without values beyond FP16; infinite if it is exact.
    """

    tensor: str
    layer: str
    amax: float
    zeroed_share: float
    fp16_sqnr_db: float


@dataclass(frozen=True)
class ConstantFacts(ValueRange):
    """A constant that a fusion group reads, rounded to FP16; its largest magnitude may be infinite.

    Attributes:
        count: Number of values; ``over_fp16`` of them are beyond FP16.
        is_mask: True if the constant masks values. The exported network clamps such a constant if the file has it in
            FP32.
        protected_tensor: The tensor that the constant keeps from being 0, if FP16 rounds the constant to 0. A Div or
            Log reads it. The exported network raises the constant of a divisor if the file has it in FP32. "" for
            other constants.
        is_added: True if the layer only adds the constant to values or bounds them by it.
    """

    count: int
    over_fp16: int
    is_mask: bool = False
    protected_tensor: str = ""
    is_added: bool = False


@dataclass(frozen=True)
class WeightScaleFacts:
    """The INT8 scales of a weight, compared with one scale for each output channel.

    Attributes:
        layer: The operator and the name of the layer that reads the weight.
        scale_axis: The axis along which the scales in use differ; None for a single scale.
        channel_axis: The axis of the output channels.
        sqnr_db: SQNR of the weight with the scales in use; infinite if the FP32 weight is unknown.
        median_sqnr_db: The median over output channels of the SQNR with the scales in use. A single scale erases small
            channels, which hardly changes the SQNR of the whole weight.
        channel_median_sqnr_db: The same with one INT8 scale for each output channel.
        largest_channel: The output channel with the largest weights.
        largest_channel_amax: The largest magnitude in that channel.
        median_channel_amax: The median of the largest magnitudes of all output channels.
        channel_count: Number of output channels.
    """

    layer: str
    scale_axis: int | None
    channel_axis: int
    sqnr_db: float
    median_sqnr_db: float
    channel_median_sqnr_db: float
    largest_channel: int
    largest_channel_amax: float
    median_channel_amax: float
    channel_count: int


@dataclass(frozen=True)
class OffsetRounding:
    """The rounding of values with a common large offset. FP16 rounds each sum of offset and value, so small values
    vanish.

    A difference, a normalisation and a Softmax subtract the offset: the other operand, the mean or the largest score.

    Attributes:
        layer: The operator and the name of the layer.
        is_softmax: True for a Softmax.
        magnitude: The largest magnitude of the values before the offset is subtracted; for a Softmax the median over
            ``lost_share`` of the largest score's magnitude.
        step: FP16's step at this magnitude.
        spread: RMS of the values behind the offset.
        sqnr_db: SQNR of the values behind the offset if the values before it are rounded to FP16. Of the variances
            E[x²] - E[x]², the mean over values.
        lost_share: The share of the values, or of the rows of a Softmax, that the rounding changes too much: a value by
            more than half, a row by more than 1/32 in a score.
        masked_share: The share of the rows of a Softmax in which every score is masked.
    """

    layer: str
    is_softmax: bool
    magnitude: float
    step: float
    spread: float
    sqnr_db: float
    lost_share: float
    masked_share: float = 0.0


@dataclass(frozen=True)
class GroupFacts:
    """Facts of a fusion group that do not depend on a config; the background process measures them.

    Attributes:
        value_ranges: The tensors that the group reads and that its layers compute, in network order. Tensors into which
            a mask is written are left out.
        constants: The float constants that the layers read.
        weight_scales: The quantized weights of the group, in the file's scales if the group has a file precision.
        attention_scale: The product of Q and K before and behind a constant scale; None if there is no such scale.
        offsets: One entry for each layer of the group that subtracts an offset.
    """

    value_ranges: tuple[ValueRange, ...] = ()
    constants: tuple[ConstantFacts, ...] = ()
    weight_scales: tuple[WeightScaleFacts, ...] = ()
    attention_scale: tuple[ValueRange, ValueRange] | None = None
    offsets: tuple[OffsetRounding, ...] = ()


@dataclass(frozen=True)
class GroupDetails:
    """The values measured in FP32 at a fusion group: statistics of its tensors and weights, and facts for causes.

    Attributes:
        tensors: The statistics of the inputs and the result, by tensor.
        weights: The ranges of the channels of the weights, by tensor.
    """

    tensors: Mapping[str, TensorStats] = field(default_factory=dict)
    weights: Mapping[str, DominantChannels] = field(default_factory=dict)
    facts: GroupFacts = field(default_factory=GroupFacts)


GROUP_DETAILS = ResultKind[str, GroupDetails]("group details")
"""The details of fusion groups, by group name."""


@dataclass(frozen=True)
class CauseFacts:
    """All facts of a fusion group in one config from which causes are found.

    Attributes:
        precision: The precision of the group in the config, or for a file precision the nearest precision.
        boundary_type: The float type of the group's inputs and outputs.
        is_in_file_precision: True if the group has the precision and the constants of the file.
        errors: The errors of the group in the config; None if they were not measured.
        share: The error share of the group; None if it was not measured.
        has_nonfinite_outputs: True if a judged output of the config contains NaN or Inf.
        has_conclusive_shares: True if the error shares of the config explain most of its error.
        tensor_stats: Statistics of the group's inputs and result, by tensor.
        amax_by_tensor: The ranges in use, by quantized tensor. ``range_sources`` are their origins.
        normalisation: The decomposed normalisation of the group; None if there is none, or the config replaces it.
        can_smooth: True if SmoothQuant can scale channels at the group, and has not done so yet. None if it is unknown.
        has_fixed_ranges: True if the range of an input belongs to the factors of scaled channels.
        judged_amax: The largest magnitude of the judged samples, by quantized tensor, where it is known.
    """

    group: FusionGroup
    precision: Precision
    boundary_type: Precision
    is_in_file_precision: bool = False
    errors: GroupErrors | None = None
    share: ErrorShare | None = None
    has_nonfinite_outputs: bool = False
    has_conclusive_shares: bool = True
    tensor_stats: Mapping[str, TensorStats] = field(default_factory=dict)
    amax_by_tensor: Mapping[str, float] = field(default_factory=dict)
    range_sources: Mapping[str, str] = field(default_factory=dict)
    group_facts: GroupFacts = field(default_factory=GroupFacts)
    normalisation: Normalisation | None = None
    can_smooth: bool | None = None
    has_fixed_ranges: bool = False
    judged_amax: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_quantized(self) -> bool:
        """True if the group has a quantized type, or the file quantizes its values."""
        file_precision = self.group.file_precision if self.is_in_file_precision else None
        return (
            self.precision in QUANTIZED_TYPES
            or file_precision is not None
            and any(file_precision.label.startswith(precision.label) for precision in QUANTIZED_TYPES)
        )

    @property
    def isolated(self) -> ErrorMetrics | None:
        """The isolated error of the group; None if it was not measured."""
        return self.errors.isolated if self.errors is not None else None

    @property
    def reaches_output(self) -> bool:
        """True if the measured loss of the group reaches a judged output."""
        return has_loss_at_outputs(self.errors, self.share, self.has_nonfinite_outputs, self.has_conclusive_shares)

    @property
    def has_nonfinite_result(self) -> bool:
        """True if NaN or Inf arise in the group, and a judged output has NaN or Inf, or the group a relevant share."""
        return self.isolated is not None and self.isolated.nonfinite_count > 0 and self.reaches_output

    @property
    def is_lossy_in_fp16(self) -> bool:
        """True if FP16 alone costs the group more than roundings explain, and the loss reaches a judged output."""
        isolated = self.isolated
        return (
            isolated is not None
            and self.boundary_type is Precision.FP16
            and self.reaches_output
            and isolated.is_lossy
            and (isolated.nonfinite_count > 0 or self.precision not in QUANTIZED_TYPES)
        )

    @property
    def fp16_remedy_text(self) -> str:
        """The next step for values that do not fit in FP16."""
        return (
            "run the layer in BF16, which has the range of FP32, or in FP32"
            if Precision.BF16 in self.group.allowed_precisions
            else "run the layer in FP32"
        )

    @property
    def quantized_remedy_text(self) -> str:
        """The next step for values that a quantized type represents badly."""
        return (
            "raise the layer to FP16 or FP32"
            if Precision.FP16 in self.group.allowed_precisions
            else "raise the layer to FP32"
        )

    def range_remedy_text(self, has_dominant_channels: bool = False, example: str = "") -> str:
        """Returns the next step for a bad range, without changes that are known to be impossible.

        Args:
            has_dominant_channels: True if SmoothQuant may help too.
            example: A text behind "another range".
        """
        range_text = f"another range{example}"
        tries = (
            ["SmoothQuant" if self.can_smooth else "SmoothQuant (if possible)"]
            if has_dominant_channels and self.can_smooth is not False
            else []
        )
        tries += [] if self.is_in_file_precision or self.has_fixed_ranges else [range_text]
        steps = [f"try {' or '.join(tries)}"] if tries else []
        steps += [f"quantize the file with {range_text}"] if self.is_in_file_precision else []
        return "".join(f"{step}, " for step in steps) + ("or " if steps else "") + self.quantized_remedy_text


def has_loss_at_outputs(
    errors: GroupErrors | None,
    share: ErrorShare | None,
    has_nonfinite_outputs: bool,
    has_conclusive_shares: bool = True,
) -> bool:
    """Returns True if the measured loss of a group reaches a judged output.

    The error share decides if it is known. If a judged output has NaN or Inf, groups in which they arise count too,
    because raising one of several such groups does not help. Two groups that round the same values have no shares for
    the same reason; if the shares are not conclusive, groups with a large isolated error count too. Without a share,
    the isolated error decides; NaN and Inf that arise in the group count only if a judged output has some, or if the
    overflow is known to change a judged output, which quantized layers behind it can make finite again.
    """
    isolated = errors.isolated if errors is not None else None
    fraction = share.fraction if share is not None and math.isfinite(share.fraction) else None
    has_share = fraction is not None and fraction >= MIN_EXPLAINED_SHARE
    if isolated is not None and isolated.nonfinite_count:
        return has_nonfinite_outputs or has_share or errors is not None and errors.fp16_state == "overflows"
    return has_share or (
        isolated is not None
        and not isolated.exact
        and (fraction is None or not has_conclusive_shares and isolated.is_lossy)
    )


def are_shares_conclusive(shares: Mapping[str, ErrorShare]) -> bool:
    """Returns True if the error shares add up to at least half of the error."""
    return (
        sum(max(share.fraction, 0.0) for share in shares.values() if math.isfinite(share.fraction))
        >= MIN_CONCLUSIVE_SHARE_SUM
    )


def list_groups_to_explain(results: ConfigResults, groups: Collection[str] | None = None) -> list[str]:
    """Returns the groups whose causes are printed: those with the largest losses, the worst first.

    Groups in which NaN or Inf arise come first if a judged output has NaN or Inf. Then follow the largest error shares
    or, without shares, the largest isolated errors.

    Args:
        groups: The groups to choose from; None for all.
    """
    has_nonfinite_outputs = results.accuracy is not None and results.accuracy.nonfinite_count > 0
    is_conclusive = are_shares_conclusive(results.shares)

    def sort_key(name: str) -> tuple[bool, float, float]:
        errors, share = results.group_errors.get(name), results.shares.get(name)
        isolated = errors.isolated if errors is not None else None
        arises = isolated is not None and isolated.nonfinite_count > 0 and has_nonfinite_outputs
        fraction = share.fraction if share is not None and math.isfinite(share.fraction) else 0.0
        sqnr_db = isolated.sqnr_db if isolated is not None and isolated.sqnr_db is not None else math.inf
        return not arises, -fraction, sqnr_db

    names = [
        name
        for name in dict.fromkeys((*results.shares, *results.group_errors))
        if (groups is None or name in groups)
        and (not results.shares or name in results.shares)
        and has_loss_at_outputs(
            results.group_errors.get(name), results.shares.get(name), has_nonfinite_outputs, is_conclusive
        )
    ]
    return sorted(names, key=sort_key)[:MAX_EXPLAINED_GROUPS]


def find_causes(facts: CauseFacts) -> tuple[Cause, ...]:
    """Returns the known causes of the loss of a group, in the order of the table; () if no condition holds.

    A general cause is left out if a more specific one explains the same effect. NaN and Inf are the effect of an
    overflow or of values that vanish. In a quantized group they come last if none reaches a judged output, because
    quantized values then decide the loss.
    """
    causes: list[Cause] = []
    quantized_causes: list[Cause] = []
    reaches_output = facts.has_nonfinite_outputs or facts.errors is None or facts.errors.fp16_state == "overflows"
    explained: set[str] = set()
    for effect, required_loss, iterate_causes in CAUSES:
        is_explained = (
            effect in explained or effect == "not finite" and not explained.isdisjoint(("overflow", "underflow"))
        )
        cause = next(iterate_causes(facts), None) if not is_explained and getattr(facts, required_loss) else None
        if cause is not None:
            is_decisive = facts.is_quantized and not reaches_output and required_loss == "reaches_output"
            (quantized_causes if is_decisive else causes).append(cause)
            explained.add(effect)
    return (*quantized_causes, *causes)


def cause_lines(causes_by_title: Mapping[str, Sequence[Cause]]) -> list[str]:
    """Returns causes as lines of a report, with the next step below each. Groups without a known cause come last.

    Args:
        causes_by_title: The causes by the name of the group for users.
    """
    lines = [
        line
        for title, causes in causes_by_title.items()
        for cause in causes
        for line in (f"{title}: {cause.text}", f"  next step: {cause.remedy}")
    ]
    unexplained = [title for title, causes in causes_by_title.items() if not causes]
    return lines + ([f"{', '.join(unexplained)}: {NO_CAUSE_TEXT}"] if unexplained else [])


def fp16_range_note(errors: GroupErrors, causes: Sequence[Cause] = ()) -> str:
    """Returns a note about a value of a group that FP16 makes infinite, or that hardly fits; "" if all fit.

    It is no cause, because nothing is lost on the samples.

    Args:
        causes: The causes of the loss of the group. An overflow that one of them names is left out.
    """
    if errors.has_overflow:
        return "" if any(cause.kind in OVERFLOW_CAUSES for cause in causes) else errors.fp16_finding
    largest = errors.fp16_largest or 0.0
    return errors.fp16_finding if FP16_MAX / MIN_FP16_HEADROOM < largest <= FP16_MAX and not errors.fp16_over else ""


# -- ranges of quantized tensors ------------------------------------------------------------------------------------


def estimate_used_bits(tensor_stats: TensorStats, amax: float | None = None) -> float | None:
    """Returns the number of the 8 bits that the values of a tensor use under a range: 8 − log2(amax / (√3·rms)).

    A uniform distribution between -amax and amax has an rms of amax/√3 and uses all 8 bits. None if amax or rms is 0.

    Args:
        amax: The range; the largest magnitude of the tensor by default.
    """
    amax = tensor_stats.amax if amax is None else amax
    if amax <= 0 or tensor_stats.rms <= 0:
        return None
    return max(0.0, min(8.0, 8.0 - math.log2(amax / (math.sqrt(3) * tensor_stats.rms))))


def estimate_fp8_loss_shares(tensor_stats: TensorStats, amax: float) -> tuple[float, float]:
    """Returns the approximate shares of a tensor's nonzero values that FP8 rounds to 0 and clips, with one scale of
    amax/448."""
    scale = amax / FP8.max_value
    return tensor_stats.estimate_value_share_below(
        scale * _FP8_MAX_ZEROED_SCALES
    ), 1 - tensor_stats.estimate_value_share_below(amax) if amax < tensor_stats.amax else 0.0


def find_worst_input(
    group: FusionGroup,
    stats_by_tensor: Mapping[str, TensorStats],
    is_fp8: bool = False,
    get_range: Callable[[str, TensorStats], float] = lambda tensor, tensor_stats: tensor_stats.amax,
) -> tuple[str, TensorStats] | None:
    """Returns the quantized input of a group whose range leaves the fewest bits; for FP8, the one with the most lost
    values.

    If no input is quantized, the result is the first input or output with known statistics; None if there is none.

    Args:
        get_range: Returns the range (amax) of a tensor.
    """
    candidates = []
    for tensor in dict.fromkeys(site.tensor for site in group.activation_qdq_sites()):
        if tensor in stats_by_tensor and (bits := estimate_used_bits(stats_by_tensor[tensor])) is not None:
            amax = get_range(tensor, stats_by_tensor[tensor])
            bits = estimate_used_bits(stats_by_tensor[tensor], amax) or 0.0
            candidates.append(
                (-sum(estimate_fp8_loss_shares(stats_by_tensor[tensor], amax)) if is_fp8 else bits, tensor)
            )
    if candidates:
        tensor = min(candidates)[1]
        return tensor, stats_by_tensor[tensor]
    return next(
        (
            (tensor, stats_by_tensor[tensor])
            for tensor in (*group.inputs, group.final_tensor)
            if tensor in stats_by_tensor
        ),
        None,
    )


def describe_range_use(
    facts: CauseFacts, tensor_stats: TensorStats, amax: float | None = None, source: str = ""
) -> Cause:
    """Describes the range of a tensor: the channels that determine it, and the bits that remain for INT8.

    The description is a cause only if few bits remain (`find_causes`).

    Args:
        facts: The facts of the group that reads the tensor.
        amax: The range in use, if it differs from the largest magnitude.
        source: The origin of ``amax``: a method, "user" or "file".
    """
    bits = estimate_used_bits(tensor_stats, amax)
    if amax is not None and not math.isclose(amax, tensor_stats.amax, rel_tol=0.01):
        bits_text = f": {bits:.1f} of 8 bits" if bits is not None else ""
        clipped = percent_text(1 - tensor_stats.estimate_value_share_below(amax)) if amax < tensor_stats.amax else "·"
        clipped_text = f"; {clipped} of values clipped" if clipped != "·" else ""
        source_text = f"{source} " if source else ""
        relation = "of" if amax < tensor_stats.amax else "above"
        return Cause(
            "range",
            f"{source_text}range {number_text(amax)} {relation} amax {number_text(tensor_stats.amax)}",
            f"rms {number_text(tensor_stats.rms)}{bits_text}{clipped_text}",
            facts.range_remedy_text(),
        )
    values_text = f"amax {number_text(tensor_stats.amax)}, rms {number_text(tensor_stats.rms)}"
    range_text = f"{values_text}: {bits:.1f} of 8 bits" if bits is not None else values_text
    if channels_text := _dominant_channels_text(tensor_stats):
        return Cause("range", channels_text, range_text, facts.range_remedy_text(has_dominant_channels=True))
    if tensor_stats.p9999 > 0 and tensor_stats.amax > 4 * tensor_stats.p9999:
        return Cause(
            "range",
            f"outliers set the range (99.99% are below {number_text(tensor_stats.p9999)})",
            range_text,
            facts.range_remedy_text(example=", such as a percentile"),
        )
    return Cause("range", "range", range_text, facts.range_remedy_text())


def _dominant_channels_text(tensor_stats: TensorStats) -> str:
    """Returns a sentence about the channels that set the range of a tensor; "" if they are more than a quarter."""
    top_channels = tensor_stats.dominant_channels
    if top_channels is None or not 0 < len(top_channels.indices) <= top_channels.channel_count // 4:
        return ""
    sets = "sets" if len(top_channels.indices) == 1 else "set"
    return f"{len(top_channels.indices)} of {top_channels.channel_count} input channels {sets} the range"


def _lost_bits_text(amax: float, smaller_amax: float) -> str:
    """Returns the bits that values up to a smaller amax lose to a range, as text."""
    return f"{min(8.0, math.log2(amax / smaller_amax)):.1f} of 8 bits"


def fp8_loss_sentence(tensor_stats: TensorStats, amax: float) -> str:
    """Returns a sentence about the values that FP8 loses in a tensor with one scale.

    FP8 has the same relative resolution at every magnitude, so only values outside its range are lost.
    """
    zeroed, clipped = estimate_fp8_loss_shares(tensor_stats, amax)
    losses = [
        f"about {percent_text(zeroed)} of values round to 0" if zeroed >= MIN_MENTIONED_SHARE else "",
        f"{percent_text(clipped)} are clipped" if clipped >= MIN_MENTIONED_SHARE else "",
    ]
    losses_text = " and ".join(filter(None, losses)) or "none clipped, hardly any round to 0"
    return f"FP8 scale by amax {number_text(amax)}: {losses_text}"


def find_worst_range(facts: CauseFacts) -> tuple[str, TensorStats, float] | None:
    """Returns the quantized input with the worst range: its name, its statistics and the range in use.

    None if the group is not quantized, or if its blocks have scales of their own.
    """

    def look_up_range(tensor: str, tensor_stats: TensorStats) -> float:
        return facts.amax_by_tensor.get(tensor, tensor_stats.amax)

    quantized_type = QUANTIZED_TYPES.get(facts.precision)
    if quantized_type is None or not quantized_type.needs_ranges or quantized_type.block_scale_type:
        return None
    worst = find_worst_input(facts.group, facts.tensor_stats, facts.precision is Precision.FP8, look_up_range)
    if worst is None or worst[0] not in {site.tensor for site in facts.group.activation_qdq_sites()}:
        return None
    return (*worst, look_up_range(*worst))


def range_use_text(facts: CauseFacts) -> str:
    """Returns a sentence about the worst range of a quantized group, whether it is a cause or not; "" if it has none."""
    worst = find_worst_range(facts)
    if worst is None:
        return ""
    tensor, tensor_stats, amax = worst
    if facts.precision is Precision.FP8:
        return fp8_loss_sentence(tensor_stats, amax)
    cause = describe_range_use(facts, tensor_stats, amax, facts.range_sources.get(tensor, ""))
    return _name_tensor(facts, tensor, cause).text


def _name_tensor(facts: CauseFacts, tensor: str, cause: Cause) -> Cause:
    """Returns the cause in a tensor with its name, if the group quantizes several tensors."""
    if all(site.tensor == tensor for site in facts.group.activation_qdq_sites()):
        return cause
    name_text = f" of {tensor}" if cause.sentence.endswith("range") else f" ({tensor})"
    return replace(cause, sentence=cause.sentence + name_text)


def _find_clipping_causes(facts: CauseFacts) -> Iterator[Cause]:
    """Finds judged values that exceed both the range and the values on which it was calibrated."""
    for tensor, amax in facts.amax_by_tensor.items():
        largest = facts.judged_amax.get(tensor, 0.0)
        if largest >= MIN_CLIPPING_RATIO * max(amax, facts.tensor_stats[tensor].amax):
            yield Cause(
                "clipping",
                "judged values are outside the range and clipped",
                f"{tensor} reaches {number_text(largest)}, its range is {number_text(amax)}",
                f"calibrate on samples like the judged samples, or {facts.quantized_remedy_text}",
            )


def _find_range_causes(facts: CauseFacts) -> Iterator[Cause]:
    if (worst := find_worst_range(facts)) is not None:
        yield from (_name_tensor(facts, worst[0], cause) for cause in _find_causes_in_range(facts, *worst))


def _find_causes_in_range(facts: CauseFacts, tensor: str, tensor_stats: TensorStats, amax: float) -> Iterator[Cause]:
    """Finds the causes in the range in use of one quantized tensor."""
    if facts.precision is Precision.FP8:
        if sum(estimate_fp8_loss_shares(tensor_stats, amax)) >= MIN_CLIPPED_SHARE:
            sentence, _, evidence = fp8_loss_sentence(tensor_stats, amax).partition(": ")
            yield Cause("range", sentence, evidence, facts.range_remedy_text())
        return
    bits = estimate_used_bits(tensor_stats, amax)
    clipped_share = 1 - tensor_stats.estimate_value_share_below(amax) if amax < 0.99 * tensor_stats.amax else 0.0
    if (bits is None or bits > MAX_WEAK_RANGE_BITS) and clipped_share < MIN_CLIPPED_SHARE:
        yield from _find_dominant_channel_causes(facts, tensor_stats, amax)
        return
    cause = describe_range_use(facts, tensor_stats, amax, facts.range_sources.get(tensor, ""))
    yield replace(cause, sentence="a few large values set the range") if cause.sentence == "range" else cause


def _find_dominant_channel_causes(facts: CauseFacts, tensor_stats: TensorStats, amax: float) -> Iterator[Cause]:
    """Finds dominant channels that also set most of the rms, so that the used bits of the whole tensor hide the
    loss."""
    sentence, top_channels, isolated = (
        _dominant_channels_text(tensor_stats),
        tensor_stats.dominant_channels,
        facts.isolated,
    )
    median = statistics.median(top_channels.amaxes) if top_channels is not None and top_channels.amaxes else 0.0
    if (
        sentence
        and median > 0
        and amax >= median * 2**MIN_CHANNEL_LOST_BITS
        and isolated is not None
        and (isolated.sqnr_db is None or isolated.sqnr_db < MAX_WEAK_WEIGHT_SQNR_DB)
    ):
        yield Cause(
            "range",
            sentence,
            f"the range is {number_text(amax)}, the median channel reaches {number_text(median)} and loses "
            f"{_lost_bits_text(amax, median)}",
            facts.range_remedy_text(has_dominant_channels=True),
        )


def _find_shared_scale_causes(facts: CauseFacts) -> Iterator[Cause]:
    """Finds a Concat with one scale for parts of very different ranges."""
    parts = [
        values
        for values in facts.group_facts.value_ranges
        if values.tensor in facts.group.inputs and 0 < values.amax < math.inf
    ]
    if facts.group.operator != "Concat" or len(parts) < 2 or not facts.is_quantized:
        return
    smallest, largest = (pick(parts, key=lambda values: values.amax) for pick in (min, max))
    if largest.amax >= smallest.amax * 2**MIN_CHANNEL_LOST_BITS:
        yield Cause(
            "shared scale",
            f"the parts of Concat {facts.group.name} share a scale",
            f"{largest.tensor} reaches {number_text(largest.amax)} and {smallest.tensor} "
            f"{number_text(smallest.amax)}, which loses {_lost_bits_text(largest.amax, smallest.amax)}",
            "quantize each part before the Concat, or keep the Concat in FP16 or FP32",
        )


# -- weights and constants ------------------------------------------------------------------------------------------


def _find_weight_scale_causes(facts: CauseFacts) -> Iterator[Cause]:
    """Finds INT8 weights with lossy scales that one scale per output channel would improve.

    The weights contribute if their error is at least a tenth of the isolated error of the group. A layer behind may
    scale small channels up; if the group loses much, the error of the median channel counts too.
    """
    isolated = facts.isolated
    for weight in facts.group_facts.weight_scales:
        if (
            isolated is None
            or facts.precision is not Precision.INT8
            or weight.scale_axis == weight.channel_axis
            or weight.median_sqnr_db >= MAX_WEAK_WEIGHT_SQNR_DB
            or weight.channel_median_sqnr_db - weight.median_sqnr_db < MIN_LAYOUT_GAIN_DB
            or isolated.sqnr_db is not None
            and (weight.median_sqnr_db if isolated.sqnr_db < MAX_WEAK_WEIGHT_SQNR_DB else weight.sqnr_db)
            > isolated.sqnr_db + MAX_WEIGHT_ERROR_DISTANCE_DB
        ):
            continue
        if weight.scale_axis is None:
            yield Cause(
                "weight channel",
                f"one channel of {weight.layer} has much larger weights than the others",
                f"channel {weight.largest_channel} reaches {number_text(weight.largest_channel_amax)}, the median of "
                f"{counted_noun_text(weight.channel_count, 'channel')} is {number_text(weight.median_channel_amax)}; "
                f"the single scale leaves {_sqnr_text(weight.median_sqnr_db)} in the median channel, one scale per "
                f"channel {_sqnr_text(weight.channel_median_sqnr_db)}",
                f"use one weight scale per output channel, or {facts.quantized_remedy_text}",
            )
        else:
            yield Cause(
                "weight axis",
                f"the weight scales of {weight.layer} are along the wrong axis",
                f"along axis {weight.scale_axis} they leave {_sqnr_text(weight.median_sqnr_db)} in the median output "
                f"channel, along axis {weight.channel_axis} {_sqnr_text(weight.channel_median_sqnr_db)}",
                f"quantize the weight with axis {weight.channel_axis}, or {facts.quantized_remedy_text}",
            )


def _find_mask_causes(facts: CauseFacts) -> Iterator[Cause]:
    """Finds masks of the file beyond FP16. A mask of an FP32 network is clamped where the program writes FP16."""
    for mask in facts.group_facts.constants if facts.is_in_file_precision else ():
        if mask.is_mask and mask.amax >= FP16_OVERFLOW:
            yield Cause(
                "mask",
                f"the mask {mask.tensor} is beyond FP16's range",
                f"its value {'is infinite' if math.isinf(mask.amax) else f'reaches {number_text(mask.amax, 2)}'}, "
                f"beyond FP16's {FP16_MAX:.0f}; {_loss_text(facts)}",
                f"export it again from FP32 with a mask value such as -{FP16_MAX / 2:.0f}, or run the layer in FP32",
            )


def _find_weight_overflow_causes(facts: CauseFacts) -> Iterator[Cause]:
    for constant in facts.group_facts.constants:
        if constant.over_fp16 and not constant.is_mask:
            yield Cause(
                "weight overflow",
                f"weights of {constant.layer} are beyond FP16's range",
                f"{constant.over_fp16:,} of {counted_noun_text(constant.count, 'value')} of {constant.tensor} "
                f"exceed {FP16_MAX:.0f}, up to {number_text(constant.amax, 2)}; {_loss_text(facts)}",
                facts.fp16_remedy_text,
            )


def _find_weight_underflow_causes(facts: CauseFacts) -> Iterator[Cause]:
    for worst in sorted(
        (
            constant
            for constant in facts.group_facts.constants
            if not (constant.is_mask or constant.protected_tensor or constant.is_added)
            and constant.fp16_sqnr_db < MIN_LOSSLESS_SQNR_DB
        ),
        key=lambda constant: constant.fp16_sqnr_db,
    ):
        zeroed_text = (
            f"{percent_text(worst.zeroed_share)} of {worst.tensor} become 0"
            if worst.zeroed_share >= MIN_MENTIONED_SHARE
            else f"{worst.tensor} is subnormal"
        )
        yield Cause(
            "weight underflow",
            f"weights of {worst.layer} are below FP16's smallest value",
            f"{zeroed_text} (the largest is {number_text(worst.amax, 2)}, the smallest FP16 value "
            f"{number_text(FP16_MIN, 2)}); FP16 leaves {_sqnr_text(worst.fp16_sqnr_db)} of them",
            f"scale the weights up and the result down, or {facts.fp16_remedy_text}",
        )


# -- values in FP16 -------------------------------------------------------------------------------------------------


def _find_attention_scale_causes(facts: CauseFacts) -> Iterator[Cause]:
    """Finds a scale behind QK, without which the product overflows.

    Source: NVIDIA, TensorRT documentation, "Fused Attention"
    (https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/transformers-fused-attention.html): Q or K
    has to be multiplied with the attention scale, or both with its square root, before the first product, for numeric
    stability and performance.
    """
    product, scaled = facts.group_facts.attention_scale or (None, None)
    if product is not None and scaled is not None and product.amax >= FP16_OVERFLOW > scaled.amax:
        yield Cause(
            "attention scale",
            f"the attention is scaled behind the product of Q and K, by {scaled.layer}",
            f"{product.layer} reaches {number_text(product.amax, 2)}, beyond FP16's {FP16_MAX:.0f}, and the "
            f"scaled product {number_text(scaled.amax, 2)}; {_loss_text(facts)}",
            "scale Q or K before the product, as TensorRT requires for its fused attention, or run the layer in FP32",
        )


def _find_overflow_causes(facts: CauseFacts) -> Iterator[Cause]:
    errors, norm = facts.errors, facts.normalisation
    if errors is None or errors.fp16_state in _HARMLESS_STATES:
        return
    largest, largest_layer = errors.fp16_largest or 0.0, errors.fp16_largest_layer
    candidates = [  # the ranges are those of the calibration samples, and the judged samples can go beyond
        (max(values.amax, largest) if values.layer.endswith(f" {largest_layer}") else values.amax, values.layer)
        for values in facts.group_facts.value_ranges
    ]
    candidates += [(largest, largest_layer), (errors.ref_max or 0.0, "its result")]
    for amax, place in candidates:
        if FP16_OVERFLOW <= amax < math.inf:
            yield Cause(
                "overflow",
                "values exceed FP16's range",
                f"{place} reaches {number_text(amax, 2)}, beyond FP16's {FP16_MAX:.0f}; {_loss_text(facts)}",
                _normalisation_remedy_text(norm, facts.fp16_remedy_text)
                if norm is not None
                else facts.fp16_remedy_text,
            )


def _find_clamped_constant_causes(facts: CauseFacts) -> Iterator[Cause]:
    """Finds constants that the exported network clamps like a mask, although their values affect the result."""
    for constant in facts.group_facts.constants:
        if (
            constant.is_mask
            and constant.over_fp16
            and not constant.is_added
            and not facts.is_in_file_precision
            and not facts.has_nonfinite_result
        ):
            yield Cause(
                "clamped constant",
                f"the constant {constant.tensor} of {constant.layer} is clamped for FP16",
                f"it reaches {number_text(constant.amax, 2)}, beyond FP16's {FP16_MAX:.0f}, and is clamped to "
                f"{FP16_MAX / 2:.0f} as a mask; {_loss_text(facts)}",
                f"write it as two factors within FP16's range, or {facts.fp16_remedy_text}",
            )


def _find_offset_causes(facts: CauseFacts) -> Iterator[Cause]:
    """Finds values that vary little around a large offset, so that FP16 rounds them away with the offset."""
    for worst in sorted(
        (
            offset
            for offset in facts.group_facts.offsets
            if not offset.is_softmax
            and (offset.sqnr_db < MIN_LOSSLESS_SQNR_DB or offset.lost_share > MIN_VANISHED_SHARE)
        ),
        key=lambda offset: offset.sqnr_db,
    ):
        lost_text = (
            f", and {percent_text(worst.lost_share)} of them change by more than half"
            if worst.lost_share >= MIN_MENTIONED_SHARE
            else ""
        )
        yield Cause(
            "offset",
            f"values of {worst.layer} are small beside the offset that it subtracts",
            f"FP16's step at {number_text(worst.magnitude, 2)} is {number_text(worst.step, 2)}, the values behind the "
            f"offset have an rms of {number_text(worst.spread, 2)}: FP16 leaves {_sqnr_text(worst.sqnr_db)}{lost_text};"
            f" {_loss_text(facts)}",
            "subtract the offset in FP32 before the layer, or run the layer and the one that computes its input in "
            "FP32",
        )


def _find_softmax_causes(facts: CauseFacts) -> Iterator[Cause]:
    """Finds Softmax scores far from 0, where the step of FP16 exceeds the differences between scores."""
    for offset in facts.group_facts.offsets:
        if not offset.is_softmax or offset.lost_share < MIN_MENTIONED_SHARE:
            continue
        step_text = (
            f"FP16's step at {number_text(offset.magnitude, 2)} is {number_text(offset.step, 2)}; {_loss_text(facts)}"
        )
        if offset.masked_share >= offset.lost_share / 2:
            yield Cause(
                "masked rows",
                f"rows of {offset.layer} are masked completely",
                f"{percent_text(offset.masked_share)} of the rows keep only masked scores, whose differences "
                f"FP16 rounds away: {step_text}",
                "judge the rows with valid keys only (--judge OUTPUT@MASK), or run the Softmax and the layer "
                "before it in FP32",
            )
        else:
            yield Cause(
                "large scores",
                f"the scores of {offset.layer} are too large for FP16's step",
                f"the largest score of {percent_text(offset.lost_share)} of the rows is beyond 64: {step_text}",
                "run the Softmax and the layer before it in FP32",
            )


def _find_nonfinite_causes(facts: CauseFacts) -> Iterator[Cause]:
    yield Cause("not finite", "NaN or Inf arise from inputs without any", _loss_text(facts), "run the layer in FP32")


def _find_epsilon_causes(facts: CauseFacts) -> Iterator[Cause]:
    norm = facts.normalisation
    if norm is not None and 0 < norm.epsilon <= FP16_MIN / 2:
        yield Cause(
            "epsilon",
            f"the epsilon of the decomposed {norm.operator} is 0 in FP16",
            f"it is {norm.epsilon:.0e}, FP16's smallest value is {number_text(FP16_MIN)}, and variances as "
            f"small become 0; {_loss_text(facts)}",
            _normalisation_remedy_text(norm, facts.fp16_remedy_text),
        )


def _find_lost_epsilon_causes(facts: CauseFacts) -> Iterator[Cause]:
    """Finds epsilons that are 0 in the file, or in FP16 where a divisor or the argument of a logarithm is as small."""
    zeroed_shares = {values.tensor: values.zeroed_share for values in facts.group_facts.value_ranges}
    for constant in facts.group_facts.constants:
        zeroed_share = zeroed_shares.get(constant.protected_tensor, 0.0)
        has_small_results = zeroed_share >= MIN_MENTIONED_SHARE or zeroed_share > 0 and facts.has_nonfinite_result
        if constant.protected_tensor and (not constant.amax if facts.is_in_file_precision else has_small_results):
            share_text = percent_text(zeroed_share) if zeroed_share >= MIN_MENTIONED_SHARE else "some"
            smaller_text = f", and {share_text} of the results of {constant.layer} are smaller"
            yield Cause(
                "epsilon",
                f"the epsilon {constant.tensor} of {constant.layer} is 0 in "
                f"{'the file' if facts.is_in_file_precision else 'FP16'}",
                f"FP16's smallest value is {number_text(FP16_MIN)}{smaller_text * has_small_results}; "
                f"{_loss_text(facts)}",
                f"write an epsilon of {number_text(FP16_MIN_NORMAL)} or more, or run the layer in FP32",
            )


def _normalisation_remedy_text(norm: Normalisation, fp16_remedy_text: str) -> str:
    return (
        f"{fp16_remedy_text}; {norm.rewrite_text}"
        if norm.no_rewrite_reason
        else f"{norm.rewrite_text}, or {fp16_remedy_text}"
    )


def _find_underflow_causes(facts: CauseFacts) -> Iterator[Cause]:
    values = find_worst_underflow(facts)
    if values is None:
        return
    left_text = (
        f"FP16 leaves {_sqnr_text(values.fp16_sqnr_db)}"
        if values.fp16_sqnr_db < MIN_LOSSLESS_SQNR_DB
        else _loss_text(facts)
    )
    if values.zeroed_share >= MIN_VANISHED_SHARE:
        sentence = f"values vanish in FP16 at {values.layer}"
        evidence = (
            f"{percent_text(values.zeroed_share)} of them are below FP16's smallest value "
            f"{number_text(FP16_MIN)} and become 0, the largest is {number_text(values.amax, 2)}"
        )
    else:
        sentence = f"values are subnormal in FP16 at {values.layer}"
        evidence = (
            f"the largest is {number_text(values.amax, 2)}, FP16 has 11 bits from {number_text(FP16_MIN_NORMAL)} on"
        )
    is_log_of_softmax = values.layer.startswith("Softmax ") and any(
        other.layer.startswith("Log ") for other in facts.group_facts.value_ranges
    )
    yield Cause(
        "underflow",
        sentence,
        f"{evidence}; {left_text}",
        f"{'write Softmax and Log as LogSoftmax' if is_log_of_softmax else 'scale the values up'}, or "
        f"{facts.fp16_remedy_text}",
    )


def find_worst_underflow(facts: CauseFacts) -> ValueRange | None:
    """Returns the tensor of a group with the largest loss by underflow in FP16; None if underflow is not a cause.

    A tensor of which FP16 leaves little counts. If NaN or Inf arise without an overflow, a tensor of which some values
    become 0 counts too, because a Div or a Log may read it.
    """
    if facts.errors is None or not facts.is_lossy_in_fp16:
        return None
    ranges = facts.group_facts.value_ranges
    worst = min(ranges, key=lambda values: values.fp16_sqnr_db, default=None)
    if worst is not None and worst.fp16_sqnr_db < MIN_LOSSLESS_SQNR_DB:
        return worst
    zeroed = max(ranges, key=lambda values: values.zeroed_share, default=None)
    return (
        zeroed
        if (
            zeroed is not None
            and zeroed.zeroed_share >= MIN_VANISHED_SHARE
            and facts.has_nonfinite_result
            and facts.errors.fp16_state in _HARMLESS_STATES
        )
        else None
    )


def _find_coordinate_causes(facts: CauseFacts) -> Iterator[Cause]:
    shift = facts.errors.coordinate_shift if facts.errors is not None else None
    if shift is not None:
        yield Cause(
            "coordinates",
            f"the step of {shift.precision.label} is too large for the {shift.points_title}",
            f"half a step at {number_text(shift.magnitude)} moves them by up to {shift.shift_text}",
            "run the layer in FP32",
        )


def _loss_text(facts: CauseFacts) -> str:
    """Returns the isolated error of a group as a clause: the NaN and Inf that arise, or the SQNR that is left."""
    isolated = facts.isolated
    if isolated is None:
        return ""
    counts = [f"{count:,} {word}" for count, word in ((isolated.nan, "NaN"), (isolated.inf, "Inf")) if count]
    return f"{' and '.join(counts)} arise here" if counts else f"{_sqnr_text(isolated.sqnr_db or 0.0)} are left here"


def _sqnr_text(sqnr_db: float) -> str:
    return "no error" if math.isinf(sqnr_db) and sqnr_db > 0 else f"{sqnr_db:.1f} dB"


CAUSES: tuple[tuple[str, str, Callable[[CauseFacts], Iterator[Cause]]], ...] = (
    ("overflow", "is_lossy_in_fp16", _find_mask_causes),
    ("overflow", "is_lossy_in_fp16", _find_weight_overflow_causes),
    ("overflow", "is_lossy_in_fp16", _find_attention_scale_causes),
    ("overflow", "is_lossy_in_fp16", _find_overflow_causes),
    ("overflow", "is_lossy_in_fp16", _find_clamped_constant_causes),
    ("overflow", "is_lossy_in_fp16", _find_softmax_causes),
    ("overflow", "is_lossy_in_fp16", _find_offset_causes),
    ("underflow", "is_lossy_in_fp16", _find_weight_underflow_causes),
    ("underflow", "is_lossy_in_fp16", _find_epsilon_causes),
    ("underflow", "is_lossy_in_fp16", _find_lost_epsilon_causes),
    ("underflow", "is_lossy_in_fp16", _find_underflow_causes),
    ("not finite", "has_nonfinite_result", _find_nonfinite_causes),
    ("coordinates", "reaches_output", _find_coordinate_causes),
    ("weight scales", "reaches_output", _find_weight_scale_causes),
    ("clipping", "reaches_output", _find_clipping_causes),
    ("range", "reaches_output", _find_shared_scale_causes),
    ("range", "reaches_output", _find_range_causes),
)
"""The known causes: the effect that each explains, the property of `CauseFacts` without which there is no such loss,
and the function that yields the causes whose condition holds, the worst first. Of several causes that explain the same
effect the first one is named."""
