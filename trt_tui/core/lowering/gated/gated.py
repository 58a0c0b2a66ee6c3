"""The record of a gated graph, and what makes it run in a config."""

import weakref
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rules
from trt_tui.core.lowering.accumulation import splitter
from trt_tui.core.lowering.folds import Folds, refuse_on_given, rewritten
from trt_tui.core.lowering.gated.inputs import WeightInput
from trt_tui.core.lowering.rules import Offer, Ruling, Scale
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group, Site
from trt_tui.core.network.network import Network
from trt_tui.core.network.steps import FLOATS
from trt_tui.core.precision import Precision

_Rounded = tuple[object, ...]
"""A weight as it is fed: tensor, precision, what a config makes of it, for codes what decides them (`Scale.key`)."""


_GATES = {gate: np.array(gate) for gate in (False, True)}
"""Gates that are open and shut: the same arrays in every feed, so that a device need not be given them again."""


_ONE = np.ones((), np.float32)

_SCALED = 8
"""For each group the scales of as many ranges and precisions are kept."""


@dataclass(frozen=True)
class Gated:
    """A gated graph and the names of what it is fed and what it yields.

    All gates are 0-d bools, scales 0-d float32, weights float32 of the weight's own shape.

    Attributes:
        offer: What it can be asked for.
        gates: Input names (bool scalars) by kind, by group: "fp32" (run in FP32), "fp16", "bf16" (results have that
            type), "int8", "fp8" (activations are read as such codes), "clean" (every float input already has values of
            the results' type), "direct" (that, and none is read as codes), "operator" (a normalisation is rounded as
            its operator is), "sums" (products are summed in FP16; where gates are data ``splitters`` say it); those
            that the group needs.
        scale_inputs: Input names (float32 scalars) of activation scales, by group and tensor.
        results: Tensors that have the type of a group's results, by group.
        weight_inputs: What weight each further input is, by its name.
        factor_inputs: Input names of what the channels behind a normalisation are divided by, by its group; results
            are multiplied by them where they are yielded or measured.
        edges: Where gates are data, input names (bool scalars) of what a group reads rounded, with the group that
            computed it and the one that reads it: true where one of them has results below FP32.
        splitters: Where gates are data, input names (float32 scalars) of what sums are split by, with the group and how
            often a sum is rounded.
        compared: Output names of what is compared in the graph, by its name.
        references: Input names of what it is compared with, float32, by its name: of its shape, or of one element
            where the sums are of no interest.
        outputs: Output names of the test branch by tensor of the network.
        reference: The same of the reference branch, where there is one.
        accumulated: Output name of the sums of the test branch, float64 shaped ``(len(measured), len(SUMS))``.
        isolated: The same of the isolated branch.
        measured: Groups in the order of the rows of the sums.
        counting: Input name (bool scalar) of the gate for counting what FP16 cannot hold, where there are sums.
        present: Input names (bool) of the mask by which sums count, by which axes of a tensor it has.
        remembers: The weights of so many feeds are kept. With two, where one group after another is changed and put
            back, what is put back is known.
    """

    model: ir.Model
    network: Network
    offer: Offer
    gates: Mapping[str, Mapping[str, str]]
    scale_inputs: Mapping[tuple[str, str], str]
    weight_inputs: Mapping[str, WeightInput]
    factor_inputs: Mapping[str, str]
    edges: Mapping[str, tuple[str, str]]
    splitters: Mapping[str, tuple[str, int]]
    compared: Mapping[str, str]
    references: Mapping[str, str]
    results: Mapping[str, frozenset[str]]
    outputs: Mapping[str, str]
    reference: Mapping[str, str]
    accumulated: str | None
    isolated: str | None
    measured: tuple[str, ...]
    counting: str | None = None
    present: Mapping[tuple[bool, ...], str] = field(default_factory=dict)
    remembers: int = 1
    _alive: weakref.WeakValueDictionary[_Rounded, np.ndarray] = field(
       default_factory=weakref.WeakValueDictionary, repr=False, compare=False)
    _amax: dict[Hashable, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    _scaled: rules.Scaled = field(default_factory=dict, repr=False, compare=False)
    _scalars: dict[float, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    _switched: dict[str, tuple[tuple[object, ...], Mapping[Site, Scale], Mapping[str, np.ndarray]]] = field(
        default_factory=dict, repr=False, compare=False)
    _last: deque[list[np.ndarray]] = field(default_factory=deque, repr=False, compare=False)

    def feeds(self, config: PrecisionConfig, ranges: Mapping[str, float]) -> dict[str, np.ndarray]:
        """Gates, scales and weights that make the test branch run in a config.

        Weights are the same arrays as in earlier feeds that are still in use, or among the last that are remembered.

        The graph must offer what the config needs (`Offer.needed`).

        Raises:
            InputError: an input of a layer that reads codes has no range.
        """
        network = self.network
        refuse_on_given(network, config)
        fed: dict[str, np.ndarray] = {}
        has: dict[str, Precision] = {}  # of tensors that have a lower precision's values
        folds = Folds(network, config, self._amax)
        if len(self._scaled) > _SCALED * len(network.groups):
            self._scaled.clear()
        rulings = rules.rule(network, config, ranges, constants=folds, known=self._scaled)
        operators = rewritten(config)
        fed.update(dict.fromkeys(self.scale_inputs.values(), self._scalar(_ONE)))
        data = bool(self.edges or self.splitters)
        for group in network.groups:
            gates = self.gates.get(group.name)
            if gates is None:
                continue
            ruling = rulings[group.name]
            clean = not data and all(has.get(tensor) is ruling.around for tensor in group.inputs)
            fed.update(self._switches(group, gates, ruling, clean, group.name in operators))
            if data:
                continue
            given = network.given if ruling.precision is Precision.FILE else None
            has.update((tensor, has_now) for tensor in self.results[group.name] if (
                has_now := ruling.around if given is None else FLOATS.get(given.dtype(tensor), Precision.FP32)
            ) is not Precision.FP32)
        weights = {name: self._weight(weight, rulings[weight.group], folds) for name, weight in
                   self.weight_inputs.items()}
        while len(self._last) > self.remembers - 1:
            self._last.popleft()
        self._last.append(list(weights.values()))
        fed.update((self.factor_inputs[name], np.ones(network.free.norms[name].channels, np.float32))
                   for name in self.factor_inputs)
        fed.update((self.factor_inputs[target], factors) for (_, target), move in config.moves.items()
                   if target in self.factor_inputs and (factors := move.divides) is not None)
        low = {name for name, ruling in rulings.items() if ruling.around is not Precision.FP32}
        fed.update((name, _GATES[made_by in low or read_by in low]) for name, (made_by, read_by) in self.edges.items())
        fed.update((name, self._scalar(np.array(splitter(count) if _sums_in_fp16(rulings[group]) else 1, np.float32)))
                   for name, (group, count) in self.splitters.items())
        if self.counting is not None:
            fed[self.counting] = _GATES[False]
        return fed | weights

    def _switches(self, group: Group, gates: Mapping[str, str], ruling: Ruling, clean: bool, operator: bool
                  ) -> Mapping[str, np.ndarray]:
        """The gates and scales of a group: what they were last where nothing has changed that they depend on."""
        key = (ruling.precision, ruling.around, clean, operator)
        known = self._switched.get(group.name)
        if known is not None and known[0] == key and known[1] is ruling.scales:
            return known[2]
        form = Precision.FILE if ruling.precision is Precision.FILE else ruling.around
        reads = ruling.read_as
        values = {"fp32": _plain(group) if form is Precision.FILE else form is Precision.FP32 and reads is None,
                  "clean": clean, "direct": clean and reads is None, "operator": operator,
                  "sums": _sums_in_fp16(ruling)}
        values |= {one.value: reads is one for one in rules.READ_AS}
        fed = {name: _GATES[values[kind] if kind in values else kind == form.value] for kind, name in gates.items()}
        fed.update((self.scale_inputs[group.name, site.tensor], self._scalar(scale.values))
                   for site, scale in ruling.scales.items() if site.role != "weight")
        self._switched[group.name] = key, ruling.scales, fed
        return fed

    def counted(self, mask: np.ndarray) -> dict[str, np.ndarray]:
        """What a feed is run with so that sums count what a mask (bool) has."""
        return {name: with_axes(mask, axes) for axes, name in self.present.items()}

    def _scalar(self, value: np.ndarray) -> np.ndarray:
        """The scale of a tensor, the same array again for the same value."""
        return self._scalars.setdefault(float(value), np.asarray(value))

    def _weight(self, weight: WeightInput, ruling: Ruling, folds: Folds) -> np.ndarray:
        site = weight.site
        port, scale = (site.layer, site.index), ruling.scales.get(site)
        changed = folds.key(port)
        if not site.tensor and changed is None:
            return np.zeros(weight.channels, np.float32)
        tf32 = ruling.precision is Precision.TF32 and site.role == "weight"
        key = (site.tensor or site.layer, ruling.around if scale is None and not tf32 else ruling.precision, changed,
               port if ruling.precision is Precision.FILE else (), *(scale.key if scale is not None else ()))
        array = self._alive.get(key)
        if array is None:
            constant = folds.constant(port)
            assert constant is not None  # the network's own, or what a change makes of it
            if scale is not None:
                array = rules.quantized_weight(constant, scale)
            elif ruling.precision is Precision.FILE:
                given = self._as_given(site)
                array = constant if given is None else given
            elif tf32:
                array = rules.round_to(constant, Precision.TF32)
            elif ruling.around is Precision.FP32:
                array = constant
            elif changed is None:
                array = rules.rounded_constant(self.network, site.tensor, ruling.around)
            else:
                array = rules.round_to(constant, ruling.around)
            self._alive[key] = array
        return array

    def _as_given(self, site: Site) -> np.ndarray | None:
        """A weight as the file has it where that is not the FP32 network's."""
        given = self.network.given
        return given.constant(self.network.layer(site.layer), site.index) if given is not None else None


def _sums_in_fp16(ruling: Ruling) -> bool:
    return ruling.precision is not Precision.FILE and ruling.sums is Precision.FP16


def _plain(group: Group) -> bool:
    """Whether a group is FP32 in the file."""
    return group.given is None or group.given.plain


def with_axes(mask: np.ndarray, axes: Sequence[bool]) -> np.ndarray:
    """A mask in a shape that goes with a tensor: its sizes where the tensor has its axes, 1 at the others."""
    sizes = iter(mask.shape)
    return mask.reshape([next(sizes) if has else 1 for has in axes])
