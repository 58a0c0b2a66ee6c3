"""The kinds of zero-cost change that scale channels between the layers that write them and those that read them."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from trt_tui.core.measure import equalization, zero_cost_moves
from trt_tui.core.measure.awq import SIMULATED_CONFIG_COUNT, awq_refusal_reason, measure_awq_moves
from trt_tui.core.measure.zero_cost_kind import ConfigProposal, ProposalContext, ZeroCostKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.equalization_move import EqualizationMove, equalization_refusal_reason
from trt_tui.core.moves.inserted_mul_move import InsertedMulMove, insertion_refusal_reason
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.smoothquant_move import SmoothQuantMove, scaling_refusal_reason
from trt_tui.core.moves.zero_cost_checks import replace_file_precision, smoothquant_refusal_reason
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
        channel_maxima = context.get_measured_values("largest values of channels", (), subjects)
        moves_by_strength = {strength: zero_cost_moves.measure_smoothquant_moves(
            network, subjects, context.samples, context.backend, strength=strength, reason=context.reason,
            channel_maxima=channel_maxima, progress=context.make_progress("largest values of channels"),
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


class InsertedMulKind(ZeroCostKind):
    """A Mul with the factors of SmoothQuant behind operators that do not commute with factors, such as a Gelu."""

    title = "inserted Mul"
    move_class = InsertedMulMove
    needs_preview = True

    def is_listed_for(self, network: NetworkOutline) -> bool:
        return bool(network.zero_cost_support.inserted_scalings)

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        subject = self.find_subject(network, group)
        if subject is None:
            return insertion_refusal_reason(network, group.name)
        return missing_reader_reason(network, network.zero_cost_support.inserted_scalings[subject], config,
                                        (Precision.INT8,))

    def find_subject(self, network: NetworkOutline, group: FusionGroup) -> str | None:
        return network.zero_cost_support.find_inserted_subject(group.name, group.layers)

    def find_changed_parts(self, network: NetworkOutline, subject: str) -> tuple[Sequence[str], Sequence[str]]:
        return find_scaled_parts(network, network.zero_cost_support.inserted_scalings[subject])

    def make_proposals(self, context: ProposalContext) -> Iterator[ConfigProposal]:
        network, scalings = context.network, context.network.zero_cost_support.inserted_scalings
        subjects = []
        for name in dict.fromkeys(self.find_subject(network, group) for group in context.groups):
            if name is None or context.config.has_scaled_channels(name):
                continue
            groups = [network.get_group(changed) for changed in self.find_changed_parts(network, name)[1]]
            ready, _ = context.prepare_config(groups)
            stays_in_file = any(ready.precision_of(group) is Precision.FILE for group in groups)
            if not (stays_in_file or missing_reader_reason(network, scalings[name], ready, (Precision.INT8,))):
                subjects.append(name)
        if not subjects:
            return
        changed, suffix = context.prepare_config(
            network.get_group(name) for subject in subjects for name in self.find_changed_parts(network, subject)[1])
        channel_maxima = context.get_measured_values("largest values behind operators", (), subjects)
        for strength in SMOOTHQUANT_STRENGTHS:
            factors = zero_cost_moves.measure_smoothquant_moves(
                network, subjects, context.samples, context.backend, strength=strength, scalings=scalings,
                channel_maxima=channel_maxima, progress=context.make_progress("largest values of channels"),
                executor=context.make_executor())
            moves = {name: InsertedMulMove(strength, move.factors, move.ranges, context.reason)
                     for name, move in factors.items()}
            yield ConfigProposal(f"{self.title} {strength:g}{suffix}", context.add_moves(changed, moves),
                                 f"Mul {strength:g}", self.title)


class AwqKind(SmoothQuantKind):
    """Scaled channels between their producers and the INT4 layers that multiply them."""

    title = "AWQ"
    move_class = None  # the move is that of SmoothQuant

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        if reason := smoothquant_refusal_reason(network, group):
            return reason
        subject = self.find_subject(network, group)
        assert subject is not None  # the check above
        return awq_refusal_reason(network, subject, replace_file_precision(config, [group]))

    def make_proposals(self, context: ProposalContext) -> Iterator[ConfigProposal]:
        network, config = context.network, context.config
        subjects = [name for name in dict.fromkeys(self.find_subject(network, group) for group in context.groups)
                    if name is not None and name not in config.get_moves(SmoothQuantMove)
                    and not awq_refusal_reason(network, name, config)]
        if not subjects or not context.budget.reserve_configs(SIMULATED_CONFIG_COUNT):
            return
        moves = context.find_or_measure(
            self.title, config, dict[str, SmoothQuantMove], lambda: measure_awq_moves(
                network, config, context.ranges, subjects, context.samples, context.backend,
                progress=context.make_progress("errors of INT4 weights")), subjects=subjects)
        if moves:
            reasoned = {name: replace(move, reason=context.reason) for name, move in moves.items()}
            yield ConfigProposal(self.title, context.add_moves(config, reasoned))


class EqualizationKind(ZeroCostKind):
    """Scaled channels between the layers that write them and the quantized layers that read them."""

    title = "equalization"
    short_title: ClassVar[str] = "equalization"
    move_class: ClassVar[type[Move] | None] = EqualizationMove
    replaces_clips: ClassVar[bool] = False

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
        moves = equalization.find_best_moves(context, changed, subjects, self.replaces_clips) if subjects else {}
        if moves:
            yield ConfigProposal(f"{self.title}{suffix}", context.add_moves(changed, moves), self.short_title)

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


class ClipEqualizationKind(EqualizationKind):
    """Scaled channels as in equalization, with a Min in place of each Clip, whose bounds are then scaled too.

    The result does not depend on the values of the samples, as that of equalization does if a Clip is on the way.
    """

    title = "equalization, Min for Clip"
    short_title = "equalized, Min"
    move_class = None  # the move is that of equalization
    replaces_clips = needs_preview = True

    def is_listed_for(self, network: NetworkOutline) -> bool:
        return any(scaling.clips for scaling in network.zero_cost_support.channel_scalings.values())

    def refusal_reason(self, network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
        if reason := super().refusal_reason(network, group, config):
            return reason
        subject = self.find_subject(network, group)
        can_replace = subject is not None and network.zero_cost_support.channel_scalings[subject].can_replace_clips
        return "" if can_replace else "no Clip with constant bounds limits its channels"

    def make_proposals(self, context: ProposalContext) -> Iterator[ConfigProposal]:
        """Yields nothing if no channels of the groups have a Clip that can be replaced.

        Implements `ZeroCostKind.make_proposals`.
        """
        scalings = context.network.zero_cost_support.channel_scalings
        if any(scalings[subject].can_replace_clips for subject in self._find_open_subjects(context)):
            yield from super().make_proposals(context)
