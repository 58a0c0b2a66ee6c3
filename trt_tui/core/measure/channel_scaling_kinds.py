"""The kinds of zero-cost change that scale channels between the layers that write them and those that read them."""

from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

from trt_tui.core.measure import equalization, zero_cost_moves
from trt_tui.core.measure.zero_cost_kind import ConfigProposal, ProposalContext, ZeroCostKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.scaling_moves import (
    EqualizationMove,
    SmoothQuantMove,
    equalization_refusal_reason,
    scaling_refusal_reason,
)
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
        moves = equalization.find_best_moves(context, changed, subjects) if subjects else {}
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
