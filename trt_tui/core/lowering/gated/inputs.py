"""What a gated graph is fed beside the network's own inputs: gates, scales and weights."""

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from trt_tui.core.codes import CODES
from trt_tui.core.lowering import accumulation
from trt_tui.core.lowering.gated.emitter import Emitter
from trt_tui.core.lowering.rules import READ_AS, Offer
from trt_tui.core.network.free import Norm
from trt_tui.core.network.layers import Group, Site
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision

FORMS = dict[Precision, frozenset[Precision]]
"""What a group can run in beside FP32, by the float type of its results; see `Offer.forms`."""


@dataclass(frozen=True)
class WeightInput:
    """A weight, scale or bias that is fed.

    Attributes:
        site: The layer input it stands for; its tensor is "" where the layer has no such input.
        channels: The size of what stands there then.
    """

    group: str
    site: Site
    channels: int = 0


class GatedInputs:
    """Declares the inputs of all groups that have a choice.

    Attributes:
        forms: What each such group can run in, by group.
        gates: Bool scalars by kind, by group; see `trt_tui.core.lowering.gated.gated.Gated`.
        scales: Float32 scalars of activations, by group and tensor; groups may share one.
        weights: Float32 weights, scales and biases, by group, layer and index of the layer's input.
        stand_for: What weight an input is, by the input's name.
        sums: The groups whose products can be summed in FP16.
        splitters: Where gates are data, float32 scalars that sums are split by, by group and how often one is rounded.
        factors: What channels are divided by, float32, by the tensors that hold them.
        factors_of: The names of these inputs by the group of the normalisation.
    """

    def __init__(self, emitter: Emitter, offer: Offer, *, data: bool = False) -> None:
        network = emitter.network
        self._norms = network.free.norms if offer.operators else {}
        self.forms: Mapping[str, FORMS] = {
            group.name: forms for group in network.groups if (forms := offer.forms(group))}
        self.gates: dict[str, dict[str, ir.Value]] = {}
        self.scales: dict[tuple[str, str], ir.Value] = {}
        self.weights: dict[tuple[str, str, int], ir.Value] = {}
        self.stand_for: dict[str, WeightInput] = {}
        self._shared: dict[str, ir.Value] = {}
        self.sums: set[str] = set()
        self.splitters: dict[tuple[str, int], ir.Value] = {}
        self.factors: dict[str, ir.Value] = {}
        self.factors_of: dict[str, str] = {}
        for number, (group_name, norm) in enumerate(network.free.norms.items() if offer.constants else ()):
            if norm.scaled:
                factors = emitter.input(f"factors/{number}", ir.DataType.FLOAT, ir.Shape([norm.channels]))
                self.factors.update(dict.fromkeys(norm.scaled, factors))
                self.factors_of[group_name] = name_of(factors)
        for index, group in enumerate(network.groups):
            for number, more in enumerate(_more_constants(network, group, self.forms) if offer.constants else ()):
                self._feed(emitter, f"constant/{index}/{number}", more)
            if group.name not in self.forms:
                continue
            forms = self.forms[group.name]
            for precision in dict.fromkeys(one for precisions in forms.values() for one in sorted(precisions)):
                for site in group.ranged(precision):
                    if (group.name, site.tensor) not in self.scales:
                        self.scales[group.name, site.tensor] = self._scale(emitter, site.tensor, offer)
            for number, site in enumerate(group.weights()):
                name = f"weight/{index}/{number}"
                value = emitter.input(name, ir.DataType.FLOAT, network.value(site.tensor).shape)
                self.weights[group.name, site.layer, site.index] = value
                self.stand_for[name] = WeightInput(group.name, site)
            kinds = _data_kinds(forms) if data else _kinds(forms)
            if Precision.FP16 in forms.get(Precision.FP16, ()) and any(
                    accumulation.is_sum(network, network.layer(name)) for name in group.layers):
                self.sums.add(group.name)
                kinds += [] if data else ["sums"]
            if self.norm(group.name) is not None:
                kinds.append("operator")
            self.gates[group.name] = {
                kind: emitter.input(f"gate/{index}/{kind}", ir.DataType.BOOL) for kind in kinds}

    def _scale(self, emitter: Emitter, tensor: str, offer: Offer) -> ir.Value:
        """The scale of a tensor, that of all groups where it cannot differ between them."""
        codes = offer.codes & CODES.keys()
        shared = len(codes) == 1 and offer.others == {Precision.FP32}
        if shared and tensor in self._shared:
            return self._shared[tensor]
        value = self._shared[tensor] = emitter.input(f"scale/{len(self.scales)}", ir.DataType.FLOAT)
        return value

    def _feed(self, emitter: Emitter, name: str, what: WeightInput) -> None:
        tensor = what.site.tensor
        shape = emitter.network.value(tensor).shape if tensor else ir.Shape([what.channels])
        self.weights[what.group, what.site.layer, what.site.index] = emitter.input(name, ir.DataType.FLOAT, shape)
        self.stand_for[name] = what

    @property
    def bytes_of_weights(self) -> int:
        """What all weights that are fed take."""
        return 4 * sum(math.prod(value.shape.numpy()) for value in self.weights.values() if value.shape is not None)

    def norm(self, group: str) -> Norm | None:
        """The normalisation of a group that can be run as the operator rounds; None where there is none on offer."""
        norm = self._norms.get(group)
        return norm if norm is not None and not norm.no_rewrite else None

    def gate_names(self) -> dict[str, dict[str, str]]:
        """The names of `gates`."""
        return {group: {kind: name_of(value) for kind, value in gates.items()} for group, gates in self.gates.items()}

    def scale_names(self) -> dict[tuple[str, str], str]:
        """The names of `scales`."""
        return {key: name_of(value) for key, value in self.scales.items()}


def _more_constants(network: Network, group: Group, forms: Container[str]) -> Iterator[WeightInput]:
    """Constants of a group that a config can change, beside its weights."""
    free, own = network.free, set(group.layers)
    ports = [port for norm in free.norms.values() for port in (norm.scale, norm.bias)
             if port is not None and not norm.no_smooth]
    if group.name not in forms:  # its weights are no inputs yet
        ports += [read.port for norm in free.norms.values() for read in norm.reads]
    bias = free.biases.get(group.name) if group.name in forms else None
    if bias is not None and bias.port is not None:
        ports.append(bias.port)
    for layer, index in dict.fromkeys(port for port in ports if port[0] in own):
        inputs = network.layer(layer).inputs
        tensor = inputs[index] if index < len(inputs) else ""
        site = Site(layer, index, tensor, "constant")
        yield WeightInput(group.name, site, bias.channels if bias is not None and not tensor else 0)


def _kinds(forms: FORMS) -> list[str]:
    """The kinds of gates that a group needs."""
    kinds = ["fp32", *(around.value for around in list(forms)[:-1])]
    mixed = {one for precisions in forms.values() if len(precisions) > 1 for one in precisions}
    if mixed:
        kinds += [*(code.value for code in READ_AS if code in mixed), "clean"]
    if any(around in precisions for around, precisions in forms.items()):
        kinds.append("direct")
    return kinds


def _data_kinds(forms: FORMS) -> list[str]:
    """The kinds of gates that a group needs where they are data."""
    every = {*forms, *(one for precisions in forms.values() for one in precisions)}
    return sorted(one.value for one in every if one is not Precision.FP32)
