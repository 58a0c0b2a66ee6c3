"""The network as the rest of the program sees it: its outline, its tensors and weights, and what each can run in."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.core.network import forms, identity, plugins
from trt_tui.core.network.constants import Constants
from trt_tui.core.network.conversion import convert_opset
from trt_tui.core.network.fusion.groups import find_groups
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.growth import refuse_growth
from trt_tui.core.network.index_paths import find_index_groups
from trt_tui.core.network.layers import Group, Outline, Shape
from trt_tui.core.network.norms import find_free
from trt_tui.core.network.opening import OpenedModel, open_model
from trt_tui.core.network.plugin_types import tell_types
from trt_tui.core.network.troubles import troubles_of
from trt_tui.core.network.true_weights import take_true_weights
from trt_tui.core.precision import FP16_MAX
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError

FP16_MASK = FP16_MAX / 2
"""What a constant beyond FP16 is clamped to: such constants are masks (-3.4e38 in front of a Softmax), and half of the
range leaves room for the scores that are added to them."""


class Network(Outline):
    """An opened network: an outline, and its tensors and weights. Immutable; nobody may change its model.

    Args:
        opened: What `trt_tui.core.network.opening.open_model` returned.
        path: The file, for names and hashes.
        backend: Gives what runs the network, and so its constant expressions; asked when the first one is met.
        groups: Its fusion groups; found by the rules of fusion by default.
        operators: What runs it was given a library of operators.

    Attributes:
        model: At `opset`.
        graph: Its layers and tensors. `producer`, `consumers`, `constants`, `static`, `node`, `reads`, `value` and
            `is_float` are the graph's.
        external_files: The data files that the weights lie in.
        given: What the file has of precisions of its own; None where it is FP32.
        behind: The plugin in front of each tensor that cannot be simulated, by tensor name.
        selected: Tensors whose sizes values decide, see `trt_tui.core.network.graph.LayerGraph`.

    Raises:
        InputError: the network computes constants that do not fit in memory.
    """

    def __init__(self, opened: OpenedModel, path: Path, backend: Callable[[], Backend] | None = None,
                 groups: Sequence[Group] | None = None, *, operators: bool = False) -> None:
        self.model = opened.model
        self.external_files = tuple(opened.external_files)
        self.graph = graph = LayerGraph(self.model, operators)
        self.producer, self.consumers = graph.producer, graph.consumers
        self.constants, self.static, self.behind = graph.constants, graph.static, graph.behind
        self.selected = graph.selected
        self.node, self.reads, self.value, self.is_float = graph.node, graph.reads, graph.value, graph.is_float
        cut = [(name, graph.by_name[name].op_type) for name in dict.fromkeys(self.behind.values())]
        notes = (*opened.notes, *([plugins.note_of(cut)] if cut else []))
        refuse_growth(graph, self.model.graph.opset_imports, path.name,
                      sum(file.stat().st_size for file in (path, *self.external_files)))
        self.given = opened.as_read
        groups = find_groups(graph) if groups is None else tuple(groups)
        if self.given is not None:
            groups = tuple(replace(group, given=self.given.group(group, graph.by_name)) for group in groups)
        tails = {group.tail for group in groups} | {name for layer in graph.layers for name in layer.outputs[:1]}
        hashes = identity.layer_hashes(graph)
        super().__init__(
            path.name, path, graph.layers, groups, graph.inputs, graph.outputs,
            {tensor: graph.shape(tensor) for tensor in tails},
            identity.structure_sha256(graph, {**opened.unused_weights, **self.model.graph.initializers}, hashes),
            graph.opset, {name: digest[:3] for name, digest in hashes.items()}, notes,
            {tensor: amax for tensor, amax in opened.quantized_ranges.items() if graph.has_tensor(tensor)},
            find_free(graph, groups), troubles_of(graph, graph.by_name, groups), find_index_groups(graph, groups))
        self._values = Constants(graph, self.model, backend)
        self._models: dict[int, ir.Model] = {self.opset: self.model}
        self._backend, self._operators = backend, operators

    def changed(self, model: ir.Model, groups: Sequence[Group]) -> Network:
        """The same file with another model, and that model's groups."""
        return Network(OpenedModel(model, list(self.external_files)), self.path, self._backend, groups,
                       operators=self._operators)

    def outline(self) -> Outline:
        """The network without its tensors and weights."""
        return Outline(**{field.name: getattr(self, field.name) for field in fields(Outline)})

    # -- tensors ------------------------------------------------------------------------------------------------

    def has_tensor(self, name: str) -> bool:
        """Whether a tensor of this name is made, stored or given."""
        return self.graph.has_tensor(name)

    def shape(self, tensor: str) -> Shape | None:
        """Sizes of any tensor; None where not even the rank is known."""
        return self.graph.shape(tensor)

    @cached_property
    def range_sets(self) -> dict[str, tuple[str, ...]]:
        """Tensors that must share one scale with others (inputs and output of a Concat), by tensor name."""
        return forms.shared_ranges(self.graph)

    # -- weights ------------------------------------------------------------------------------------------------

    def constant(self, tensor: str) -> np.ndarray:
        """The value of a constant tensor; raises as `trt_tui.core.network.constants.Constants.value`."""
        return self._values.value(tensor)

    def constant_amax(self, tensor: str, axis: int | None = None, block: int | None = None) -> np.ndarray:
        """Largest finite absolute value of a constant; see `trt_tui.core.network.constants.Constants.amax`."""
        return self._values.amax(tensor, axis, block)

    def is_mask(self, constant: str) -> bool:
        """Whether a constant beyond FP16 is a mask; see `trt_tui.core.network.constants.Constants.is_mask`."""
        return self._values.is_mask(constant)

    @property
    def epsilons(self) -> frozenset[str]:
        """Constants that keep a divisor from being zero and that FP16 rounds to zero."""
        return self._values.epsilons

    @property
    def masked(self) -> frozenset[str]:
        """Tensors that a mask constant was added to, selected into or scaled into, up to the Softmax behind."""
        return self._values.masked

    def hidden_from(self, tensor: str) -> float:
        """The magnitude from which values of a tensor are masks that a Where put there, 0.0 where it has none."""
        return self._values.hidden_from(tensor)

    def model_at(self, opset: int) -> ir.Model:
        """The model at ``opset`` or, where it is newer already, as it is. Node names are the same.

        Raises:
            InputError: onnx's version converter cannot convert the network.
        """
        if opset <= self.opset:
            return self.model
        if opset not in self._models:
            try:
                self._models[opset] = convert_opset(self.model, opset)
            except Exception as error:
                raise InputError(f"{self.name} cannot be converted from opset {self.opset} to {opset}", str(error),
                                 getattr(error, "next_step", "") or f"Export the network again with opset {opset}."
                                 ) from None
        return self._models[opset]

    def sha256(self) -> str:
        """Hash of the file and its external data, read in pieces."""
        return identity.sha256((self.path, *self.external_files))


def open_network(path: Path | str, backend: Callable[[], Backend] | None = None, *, operators: bool = False,
                 reference: Path | str | None = None) -> Network:
    """Opens an ONNX file.

    Args:
        backend: Gives what runs the network's constant expressions (weights that the file computes from others), such
            as `trt_tui.backends.registry.get_backend`. Without it the network opens as well, and `Network.constant`
            raises for those.
        operators: The backend was given libraries of operators, and runs plugins too.
        reference: The FP32 network that a quantized one was made from; it means nothing to one in FP32. See
            `trt_tui.core.network.true_weights`.

    Raises:
        InputError: see `trt_tui.core.network.opening.open_model`, `Network` and
            `trt_tui.core.network.plugin_types.tell_types`.
    """
    path = Path(path)
    with _without_garbage_collection():
        opened = open_model(path)
        if operators and backend is not None:
            tell_types(opened.model, backend())
        if reference is not None and opened.as_read is not None:
            take_true_weights(opened, path.name, open_model(Path(reference)), Path(reference), backend)
        return Network(opened, path, backend, operators=operators)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """What opening makes lives as long as the network; searching it for garbage meanwhile takes 40 % of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
