"""The table of the kinds of zero-cost change, and the functions that read it.

A new kind is a subclass of `ZeroCostKind` here, and has one entry in `ZERO_COST_KINDS`."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from trt_tui.core.measure import zero_cost_moves
from trt_tui.core.measure.weight_rounding import RoundingProposal, count_simulated_configs, measure_roundings
from trt_tui.core.measure.zero_cost_kind import (
    LEAVES_FILE_SUFFIX,
    ConfigProposal,
    ProposalContext,
    ZeroCostKind,
    ZeroCostStage,
)
from trt_tui.core.moves.config import PrecisionConfig, RangeMove, RewriteMove
from trt_tui.core.moves.constant_moves import (
    PLACEMENT_LABELS,
    SINGLE_PLACEMENTS,
    AttentionScaleMove,
    BiasCorrectionMove,
    EqualizationMove,
    RoundingMove,
    ScalePlacement,
    SmoothQuantMove,
    attention_scale_refusal_reason,
    equalization_refusal_reason,
    make_attention_scale_move,
    placement_refusal_reason,
    scaling_refusal_reason,
)
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.zero_cost_checks import (
    bias_correction_refusal_reason,
    find_qdq_repair,
    qdq_repair_refusal_reason,
    replace_file_precision,
    rewrite_refusal_reason,
    rounding_refusal_reason,
    smoothquant_refusal_reason,
)
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.network.zero_cost_support import ChannelScaling
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES

SMOOTHQUANT_STRENGTHS = (0.5, 0.25, 0.75)
"""The exponents of SmoothQuant to try, the usual exponent first."""


SEARCH_REASON = "search:"
"""The prefix of the origin of moves that a search makes."""


def find_scaled_parts(network: NetworkOutline, scaling: ChannelScaling) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the tensors and the groups whose values change if channels are scaled."""
    layers = (*(producer.port[0] for producer in scaling.producers), *scaling.reading_layers)
    groups = dict.fromkeys(group.name for layer in layers if (group := network.find_group(layer)) is not None)
    return [tensor.tensor for tensor in scaling.tensors], list(groups)


def missing_reader_reason(network: NetworkOutline, scaling: ChannelScaling, config: PrecisionConfig,
                          quantized_types: Collection[Precision]) -> str:
    """Returns the reason why scaled channels help no layer; "" if a layer of some quantized types reads them."""
    readers = [group for layer in scaling.reading_layers if (group := network.find_group(layer)) is not None]
    ready = replace_file_precision(config, readers)
    return "" if any(ready.precision_of(reader) in quantized_types for reader in readers) else (
        f"no layer in {', '.join(precision.label for precision in quantized_types)} reads its channels")


class SmoothQuantKind(ZeroCostKind):
    """Scaled channels between their producers and the INT8 layers that multiply them."""

    title = "SmoothQuant"
    move_class: ClassVar[type[Move] | None] = SmoothQuantMove

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        subject = self.find_subject(network, group)
        if (reason := smoothquant_refusal_reason(network, group)) or subject is None:
            return reason
        return missing_reader_reason(network, network.zero_cost_support.channel_scalings[subject], config,
                                        (Precision.INT8,))

    def find_subject(self, network: NetworkOutline, group: FusionGroup) -> str | None:
        return network.zero_cost_support.find_scaling_subject(group.name, group.layers)

    def find_changed_parts(self, network: NetworkOutline, subject: str) -> tuple[Sequence[str], Sequence[str]]:
        return find_scaled_parts(network, network.zero_cost_support.channel_scalings[subject])

    def make_proposals(self, context: ProposalContext) -> Iterator[ConfigProposal]:
        """Yields the channels behind normalisations, and then those between other layers, for each strength.

        Implements `ZeroCostKind.make_proposals`.
        """
        network, subjects = context.network, self._find_smoothable_subjects(context)
        if not subjects:
            return
        extrema = context.get_measured_values("largest values of channels", (), subjects)
        moves_by_strength = {strength: zero_cost_moves.measure_smoothquant_moves(
            network, subjects, context.samples, context.backend, strength=strength, reason=context.reason,
            extrema=extrema, progress=context.make_progress("largest values of channels"),
            executor=context.make_executor()) for strength in SMOOTHQUANT_STRENGTHS}
        norms = [name for name in subjects if name in network.zero_cost_support.norms]
        for names, place in ((norms, ""), ([name for name in subjects if name not in norms],
                                           " between weights" if norms else "")):
            changed, suffix = context.prepare_config(
                network.get_group(name) for subject in names for name in self.find_changed_parts(network, subject)[1])
            for strength, moves in moves_by_strength.items() if names else ():
                yield ConfigProposal(
                    f"{self.title} {strength:g}{place}{suffix}",
                    context.add_moves(changed, {name: moves[name] for name in names}),
                    f"smoothed {strength:g}", self.title + place)

    def _find_smoothable_subjects(self, context: ProposalContext) -> list[str]:
        """Returns the groups with channels that INT8 layers among or behind some groups multiply, and that have no
        SmoothQuant factors yet.

        A search gets the channels behind normalisations only. The ranges of scaled channels are fixed, and other ranges
        often gain more between the layers of a CNN.
        """
        network = context.network
        is_search = context.reason.startswith(SEARCH_REASON)
        smoothable = []
        for name in dict.fromkeys(self.find_subject(network, group) for group in context.groups):
            if (name is None or scaling_refusal_reason(network, name) or context.config.has_scaled_channels(name)
                    or is_search and name not in network.zero_cost_support.norms):
                continue
            scaling = network.zero_cost_support.channel_scalings[name]
            readers = [group for layer in scaling.reading_layers if (group := network.find_group(layer)) is not None]
            ready, _ = context.prepare_config(readers)
            if any(ready.precision_of(reader) is Precision.INT8 for reader in readers):
                smoothable.append(name)
        return smoothable


class EqualizationKind(ZeroCostKind):
    """Scaled channels between the layers that write them and the quantized layers that read them."""

    title = "equalization"
    move_class: ClassVar[type[Move] | None] = EqualizationMove

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        subject = self.find_subject(network, group)
        if subject is None:
            return "it neither writes nor reads channels of two layers with weights"
        return equalization_refusal_reason(network, subject) or missing_reader_reason(
            network, network.zero_cost_support.channel_scalings[subject], config, tuple(QUANTIZED_TYPES))

    def find_subject(self, network: NetworkOutline, group: FusionGroup) -> str | None:
        return network.zero_cost_support.find_scaling_subject(group.name, group.layers)

    def find_changed_parts(self, network: NetworkOutline, subject: str) -> tuple[Sequence[str], Sequence[str]]:
        return find_scaled_parts(network, network.zero_cost_support.channel_scalings[subject])

    def make_proposals(self, context: ProposalContext) -> Iterator[ConfigProposal]:
        network, subjects = context.network, self._find_open_subjects(context)
        changed, suffix = context.prepare_config(
            network.get_group(name) for subject in subjects for name in self.find_changed_parts(network, subject)[1])
        moves = zero_cost_moves.find_best_moves(context, changed, subjects) if subjects else {}
        if moves:
            yield ConfigProposal(f"{self.title}{suffix}", context.add_moves(changed, moves), self.title)

    def _find_open_subjects(self, context: ProposalContext) -> list[str]:
        """Returns the groups whose channels quantized layers read and that have no factors yet: those of the channels
        that a single group reads, or all in a search."""
        network = context.network
        subjects = dict.fromkeys(name for group in context.groups for name in (
            self.find_subject(network, group), group.name if len(context.groups) > 1 else None) if name is not None)
        open_subjects = []
        for subject in subjects:
            if equalization_refusal_reason(network, subject):
                continue
            groups = [network.get_group(name) for name in self.find_changed_parts(network, subject)[1]]
            changed, _ = context.prepare_config(groups)
            stays_in_file = any(changed.precision_of(group) is Precision.FILE for group in groups)
            if not (stays_in_file or changed.has_scaled_channels(subject)
                    or missing_reader_reason(network, network.zero_cost_support.channel_scalings[subject], changed,
                                                tuple(QUANTIZED_TYPES))):
                open_subjects.append(subject)
        return open_subjects


class GroupMoveKind(ZeroCostKind):
    """A kind whose move is made on each group that can have it."""

    move_class: ClassVar[type[Move]]

    def make_proposals(self, context: ProposalContext) -> Iterator[ConfigProposal]:
        ready, _ = context.prepare_config(context.groups)
        groups = [group for group in context.groups if ready.precision_of(group) is not Precision.FILE
                  and not self.refusal_reason(context.network, group, ready)
                  and group.name not in context.config.get_moves(self.move_class)]
        if groups:
            yield from self.propose_moves(context, groups, *context.prepare_config(groups))

    @abstractmethod
    def propose_moves(self, context: ProposalContext, groups: Sequence[FusionGroup], config: PrecisionConfig,
                      suffix: str) -> Iterator[ConfigProposal]:
        """Yields proposals for groups that can have the move.

        Args:
            config: The config of the context, prepared for these groups. ``suffix`` belongs to its labels.
        """


ROUNDING_TITLES = {"scales": "weight scales by error", "GPTQ": "GPTQ"}
ROUNDING_SHORT_TITLES = {"scales": "weight scales", "GPTQ": "GPTQ"}
"""The titles of proposals by the method of the rounding moves."""


class QdqRepairKind(ZeroCostKind):
    """New Q/DQ nodes for a group of a quantized file, if the check of the file has a finding that they repair."""

    title = "new Q/DQ"
    is_for_searches = False

    def is_listed_for(self, network: NetworkOutline) -> bool:
        return network.qdq_findings is not None

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        return qdq_repair_refusal_reason(network, group, config)

    def make_proposals(self, context: ProposalContext) -> Iterator[ConfigProposal]:
        for group in context.groups:
            precision = find_qdq_repair(context.network, context.config, group)
            if precision is not None:
                yield ConfigProposal(f"{precision.label} with new Q/DQ{LEAVES_FILE_SUFFIX}",
                                     context.config.with_group_precision([group], precision, context.reason),
                                     f"{precision.label}, new Q/DQ")


class RecalibrationKind(ZeroCostKind):
    """The ranges of the calibration samples in place of those of a quantized file, for a search.

    Without it, the effect of other ranges would count as a gain of the following changes.
    """

    title = "recalibration"
    is_for_rows = False

    def is_listed_for(self, network: NetworkOutline) -> bool:
        return network.qdq_findings is not None

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        return "" if config.precision_of(group) is Precision.FILE else "it is not in file precision"

    def make_proposals(self, context: ProposalContext) -> Iterator[ConfigProposal]:
        ready, _ = context.prepare_config(context.groups)
        changed, suffix = context.prepare_config(
            group for group in context.groups if context.config.precision_of(group) is Precision.FILE
            and group.calibrated_qdq_sites(ready.precision_of(group)))
        if suffix:
            yield ConfigProposal(f"{self.title}{suffix}", changed)


class RewriteKind(GroupMoveKind):
    """One ONNX operator in place of a decomposed LayerNorm or RMSNorm, for groups in FP16 or BF16."""

    title = "operator"
    move_class = RewriteMove

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        precision = replace_file_precision(config, [group]).precision_of(group)
        return rewrite_refusal_reason(network, group) or (
            "" if precision.value_type in (Precision.FP16, Precision.BF16) else "it runs in neither FP16 nor BF16")

    def propose_moves(self, context: ProposalContext, groups: Sequence[FusionGroup], config: PrecisionConfig,
                      suffix: str) -> Iterator[ConfigProposal]:
        rewrites = zero_cost_moves.propose_normalisation_rewrites(context.network, groups, context.reason)
        operator_names = dict.fromkeys(move.operator.replace("alization", "") for move in rewrites.values())
        yield ConfigProposal(f"{' and '.join(operator_names)} operator{suffix}", config.with_moves(rewrites),
                             f"as {min(operator_names)}")


class RoundingKind(GroupMoveKind):
    """Scales and quantized values of weights that are chosen by the error of the layer's output."""

    title = "rounding"
    move_class = RoundingMove
    stage = ZeroCostStage.ROUNDING
    is_exact = False
    is_dropped_when_raised = True
    omission_text = "{count} roundings of weights are left out: the typed network contains them."

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        return rounding_refusal_reason(network, group, replace_file_precision(config, [group]))

    def find_changed_parts(self, network: NetworkOutline, subject: str) -> tuple[Sequence[str], Sequence[str]]:
        return (), [subject]

    def propose_moves(self, context: ProposalContext, groups: Sequence[FusionGroup], config: PrecisionConfig,
                      suffix: str) -> Iterator[ConfigProposal]:
        if not context.budget.reserve_configs(count_simulated_configs(context.network, config, groups)):
            return
        names = [group.name for group in groups]
        proposals = context.find_or_measure(
            self.title, config, tuple[RoundingProposal, ...], lambda: measure_roundings(
                context.network, config, context.ranges, groups, context.samples, context.backend,
                progress=context.make_progress("errors of rounded weights")), subjects=names)
        for proposal in proposals:
            moves = {name: replace(move, reason=context.reason) for name, move in proposal.moves.items()}
            short_title = ROUNDING_SHORT_TITLES[proposal.method]
            title = (f"{short_title} ({len(moves)} of {len(names)} layers)" if len(names) > 1 else
                     ROUNDING_TITLES[proposal.method])
            yield ConfigProposal(f"{title}{suffix}", context.add_moves(config, moves), short_title)


class AttentionScaleKind(ZeroCostKind):
    """The scale of the scores of an attention, in front of the product of queries and keys."""

    title = "QK scale"
    move_class = AttentionScaleMove

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        return attention_scale_refusal_reason(network, group.name)

    def find_changed_parts(self, network: NetworkOutline, subject: str) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the groups that produce the operands. Ranges are scaled with their tensors, and stay.

        Implements `ZeroCostKind.find_changed_parts`.
        """
        scale = network.zero_cost_support.attention_scales[subject]
        layers = [producer.port[0] for operand in (scale.query, scale.key) for producer in operand.producers]
        groups = (network.find_group(layer) for layer in layers)
        return (), list(dict.fromkeys(group.name for group in groups if group is not None))

    def make_proposals(self, context: ProposalContext) -> Iterator[ConfigProposal]:
        """Yields the scale at one operand, and its square root at both.

        Implements `ZeroCostKind.make_proposals`.
        """
        network = context.network
        subjects = [group.name for group in context.groups
                    if not attention_scale_refusal_reason(network, group.name)
                    and group.name not in context.config.get_moves(AttentionScaleMove)
                    and context.prepare_config([group])[0].precision_of(group) is not Precision.FP32]
        scales = network.zero_cost_support.attention_scales
        for placements in (SINGLE_PLACEMENTS, (ScalePlacement.BOTH,)):
            moves = {}
            for subject in subjects:
                possible = [placement for placement in placements
                            if not placement_refusal_reason(scales[subject], placement)]
                if possible:
                    moves[subject] = make_attention_scale_move(network, subject, possible[0], context.reason)
            if not moves:
                continue
            names = dict.fromkeys(name for subject in moves
                                  for name in (subject, *self.find_changed_parts(network, subject)[1]))
            changed, suffix = context.prepare_config(map(network.get_group, names))
            places = dict.fromkeys(PLACEMENT_LABELS[ScalePlacement(move.placement)] for move in moves.values())
            yield ConfigProposal(
                f"{self.title} {' or '.join(places)}{suffix}", context.add_moves(changed, moves),
                f"QK {next(iter(places))}")


class BiasCorrectionKind(GroupMoveKind):
    """Corrected biases of INT8 layers."""

    title = "bias correction"
    move_class = BiasCorrectionMove
    stage = ZeroCostStage.BIAS
    is_exact = False
    is_dropped_when_raised = True
    omission_text = ("{count} bias corrections are left out: they belong to the quantized values of the typed network, "
                     "which contains them.")

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        return bias_correction_refusal_reason(network, group, replace_file_precision(config, [group]))

    def propose_moves(self, context: ProposalContext, groups: Sequence[FusionGroup], config: PrecisionConfig,
                      suffix: str) -> Iterator[ConfigProposal]:
        corrections = context.get_measured_values("bias corrections", (config, context.range_method),
                                                  [group.name for group in groups])
        missing = [group for group in groups if group.name not in corrections]
        if missing:
            corrections |= zero_cost_moves.measure_bias_corrections(
                context.network, config, context.ranges, missing, context.samples, context.backend,
                progress=context.make_progress("means of channels"), executor=context.make_executor())
        moves = {group.name: replace(corrections[group.name], reason=context.reason)
                 for group in groups if group.name in corrections}
        if moves:
            yield ConfigProposal(f"{self.title}{suffix}", context.add_moves(config, moves), self.title)


ZERO_COST_KINDS: tuple[ZeroCostKind, ...] = (QdqRepairKind(), RecalibrationKind(), RewriteKind(), AttentionScaleKind(),
                                             SmoothQuantKind(), EqualizationKind(), RoundingKind(),
                                             BiasCorrectionKind())
"""All kinds of zero-cost change, in the order of lists. A search tries the kinds of one stage in this order."""

ZERO_COST_MOVE_CLASSES: dict[type[Move], ZeroCostKind] = {
    kind.move_class: kind for kind in ZERO_COST_KINDS if kind.move_class is not None}
"""The kinds of zero-cost change by their kind of move."""


def list_searched_stages() -> list[tuple[ZeroCostKind, ...]]:
    """Returns the kinds that a search tries, one tuple for each stage, the first stage first."""
    kinds = [kind for kind in ZERO_COST_KINDS if kind.is_for_searches]
    return [tuple(kind for kind in kinds if kind.stage is stage) for stage in sorted({kind.stage for kind in kinds})]


def find_refusal_reasons(network: NetworkOutline, config: PrecisionConfig, group: FusionGroup) -> dict[str, str]:
    """Returns the reason why a fusion group cannot have each kind of change, by the title of the kind; "" if it
    can."""
    return {kind.title: kind.refusal_reason(network, group, config)
            for kind in ZERO_COST_KINDS if kind.is_for_rows and kind.is_listed_for(network)}


def find_network_refusal_reasons(network: NetworkOutline, config: PrecisionConfig) -> dict[str, str]:
    """Returns the reason why no fusion group can have each kind of change, by the title of the kind; "" if one can.

    Of several reasons, the one of most groups is returned.
    """
    reasons: dict[str, str] = {}
    for kind in ZERO_COST_KINDS:
        if kind.is_for_searches and kind.is_listed_for(network):
            counts = Counter(kind.refusal_reason(network, group, config) for group in network.groups)
            reasons[kind.title] = "" if "" in counts or not counts else counts.most_common(1)[0][0]
    return reasons


def list_zero_cost_moves(network: NetworkOutline, config: PrecisionConfig,
                         group: FusionGroup) -> list[tuple[type[Move], str]]:
    """Returns the zero-cost moves of a config on a fusion group, or on the group that has the move for it.

    Each move is given by its kind and by the group that it changes.
    """
    candidates = ((move_class, kind.find_subject(network, group))
                  for move_class, kind in ZERO_COST_MOVE_CLASSES.items())
    return [(move_class, subject) for move_class, subject in candidates
            if subject is not None and (move_class.kind, subject) in config.moves]


def add_zero_cost_moves(config: PrecisionConfig, network: NetworkOutline,
                        moves: Mapping[str, Move]) -> PrecisionConfig:
    """Returns a config with zero-cost moves of one kind added.

    Ranges of the tensors that they change, and moves of later stages on the groups that they change, are removed,
    since they were measured without these moves.
    """
    for move_class in {type(move) for move in moves.values()}:
        kind = ZERO_COST_MOVE_CLASSES[move_class]
        changed_parts = [kind.find_changed_parts(network, subject) for subject in moves]
        config = config.without_moves(RangeMove, [tensor for tensors, _ in changed_parts for tensor in tensors])
        for later_class, later_kind in ZERO_COST_MOVE_CLASSES.items():
            if later_kind.stage > kind.stage:
                config = config.without_moves(later_class, [name for _, groups in changed_parts for name in groups])
    return config.with_moves(moves)


def drop_moves_of_raised_groups(config: PrecisionConfig, group_names: Sequence[str]) -> PrecisionConfig:
    """Returns a config without the zero-cost moves that raised groups lose (`is_dropped_when_raised`)."""
    for move_class, kind in ZERO_COST_MOVE_CLASSES.items():
        if kind.is_dropped_when_raised:
            config = config.without_moves(move_class, group_names)
    return config
