"""What a gated graph is fed beside the network's own inputs: gates, scales and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from trt_tui.core.codes import CODES
from trt_tui.core.lowering.gated.emitter import Emitter
from trt_tui.core.lowering.rules import Offer
from trt_tui.core.network.layers import Site
from trt_tui.core.network.naming import name_of
from trt_tui.core.precision import Precision

FORMS = dict[Precision, frozenset[Precision]]
"""What a group can run in beside FP32, by the float type of its results; see `Offer.forms`."""


@dataclass(frozen=True)
class WeightInput:
    """A weight that is fed: the layer input it stands for."""

    group: str
    site: Site


class GatedInputs:
    """Declares the inputs of all groups that have a choice.

    Attributes:
        forms: What each such group can run in, by group.
        gates: Bool scalars by kind, by group; see `trt_tui.core.lowering.gated.gated.Gated`.
        scales: Float32 scalars of activations, by group and tensor.
        weights: Float32 weights, by group, layer and index of the layer's input.
        stand_for: What weight an input is, by the input's name.
    """

    def __init__(self, emitter: Emitter, offer: Offer) -> None:
        network = emitter.network
        self.forms: Mapping[str, FORMS] = {
            group.name: forms for group in network.groups if (forms := offer.forms(group))}
        self.gates: dict[str, dict[str, ir.Value]] = {}
        self.scales: dict[tuple[str, str], ir.Value] = {}
        self.weights: dict[tuple[str, str, int], ir.Value] = {}
        self.stand_for: dict[str, WeightInput] = {}
        for index, group in enumerate(network.groups):
            if group.name not in self.forms:
                continue
            forms = self.forms[group.name]
            for precision in dict.fromkeys(one for precisions in forms.values() for one in sorted(precisions)):
                for site in group.ranged(precision):
                    if (group.name, site.tensor) not in self.scales:
                        name = f"scale/{len(self.scales)}"
                        self.scales[group.name, site.tensor] = emitter.input(name, ir.DataType.FLOAT)
            for number, site in enumerate(group.weights()):
                name = f"weight/{index}/{number}"
                value = emitter.input(name, ir.DataType.FLOAT, network.value(site.tensor).shape)
                self.weights[group.name, site.layer, site.index] = value
                self.stand_for[name] = WeightInput(group.name, site)
            self.gates[group.name] = {
                kind: emitter.input(f"gate/{index}/{kind}", ir.DataType.BOOL) for kind in _kinds(forms)}

    def gate_names(self) -> dict[str, dict[str, str]]:
        """The names of `gates`."""
        return {group: {kind: name_of(value) for kind, value in gates.items()} for group, gates in self.gates.items()}

    def scale_names(self) -> dict[tuple[str, str], str]:
        """The names of `scales`."""
        return {key: name_of(value) for key, value in self.scales.items()}


def _kinds(forms: FORMS) -> list[str]:
    """The kinds of gates that a group needs."""
    kinds = ["fp32", *(around.value for around in list(forms)[:-1])]
    mixed = {one for precisions in forms.values() if len(precisions) > 1 for one in precisions}
    if mixed:
        kinds += [*(code.value for code in CODES if code in mixed), "clean"]
    if any(around in precisions for around, precisions in forms.items()):
        kinds.append("direct")
    return kinds
