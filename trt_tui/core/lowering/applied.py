"""A network with what a config changes of it beside precisions: operators for decomposed normalisations, constants,
hidden outputs.

What is written or told is lowered from there, with the same groups under the same names. Weights that are not changed
stay the base network's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.folds import Folds, folds_anything, rewritten
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.free import Norm, Port
from trt_tui.core.network.layers import Group
from trt_tui.core.network.naming import FreshNames
from trt_tui.core.network.network import Network
from trt_tui.words import first_few, plural

RMS_OPSET = 23
"""The first opset with RMSNormalization."""


@dataclass(frozen=True)
class Applied:
    """The network to lower.

    Attributes:
        became: What the layers became that are gone, by name.
        notes: What to know of it, one sentence each.
    """

    network: Network
    became: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def applied(network: Network, config: PrecisionConfig) -> Applied:
    """The network as a config changes it; the same one where it changes nothing.

    Raises:
        InputError: the opset cannot be raised to one that has the operator.
    """
    norms = {name: network.free.norms[name] for name in rewritten(config)}
    if not norms and not folds_anything(config) and not config.of(Barrier):
        return Applied(network)
    return _Applying(network, config, norms).apply()


def hidden_note(names: Sequence[str]) -> tuple[str, ...]:
    """What to know of outputs that are there for fusion barriers alone; () where there are none."""
    if not names:
        return ()
    return (f"{plural(len(names), 'hidden output')} for fusion barriers: {first_few(names)}. Whatever runs the engine "
            "has to bind memory for them, but need not read them.",)


class _Applying:
    def __init__(self, network: Network, config: PrecisionConfig, norms: Mapping[str, Norm]) -> None:
        self.network, self.norms = network, norms
        self.folds, self.hidden = Folds(network, config), Barrier.subject.ordered(network, config.of(Barrier))
        newest = any(norm.operator == "RMSNormalization" for norm in norms.values())
        self.model = network.model_at(max(RMS_OPSET if newest else 0, network.opset)).clone()
        self.graph = self.model.graph
        self.names = FreshNames(self.graph)
        self.nodes = {node.name: node for node in self.graph}
        self.tensors: dict[Port, str] = {}
        self.became: dict[str, str] = {}

    def apply(self) -> Applied:
        shared: dict[tuple[object, ...], ir.Value] = {}
        for port in self.folds.ports:
            node = self.nodes[port[0]]
            index = port[1]
            read = node.inputs[index] if index < len(node.inputs) else None
            before = read.name if read is not None else None
            key = (before, self.folds.key(port))
            if before is None or key not in shared:
                array = self.folds.constant(port)
                assert array is not None  # a change makes a constant where there was none
                shared[key] = self._initializer(array, f"{before or port[0] + '_bias'}__folded")
            if index >= len(node.inputs):
                node.resize_inputs(index + 1)
            node.replace_input_with(index, shared[key])
            self.tensors[port] = shared[key].name or ""
        for name, norm in self.norms.items():
            self._write_operator(name, norm)
        for name, value in list(self.graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del self.graph.initializers[name]
        self.graph.sort()
        told = hidden_note(self._mark_outputs())
        groups = tuple(self._group(group) for group in self.network.groups)
        return Applied(self.network.changed(self.model, groups), self.became, told)

    def _mark_outputs(self) -> list[str]:
        """Makes outputs of the tensors that are kept, as far as they are still computed; returns their names."""
        made = {value.name: value for node in self.graph for value in node.outputs}
        found = [name for name in self.hidden if name in made and not made[name].is_graph_output()]
        self.graph.outputs.extend(made[name] for name in found)
        return found

    def _write_operator(self, name: str, norm: Norm) -> None:
        """Puts the operator in the place of a normalisation's layers, under the name of its group."""
        nodes = [self.nodes[layer] for layer in norm.layers]
        by_name = {value.name: value for node in nodes for value in node.inputs if value is not None}
        result = next(value for value in nodes[-1].outputs if value.name == norm.result)
        inputs = [by_name[norm.source], self._affine(norm.scale, norm)]
        if norm.bias is not None:
            inputs.append(self._affine(norm.bias, norm))
        operator = ir.node(norm.operator, inputs, {"axis": norm.axis, "epsilon": norm.epsilon}, name=name)
        self.graph.insert_after(nodes[-1], operator)
        output = operator.outputs[0]
        output.type, output.shape, output.name = result.type, result.shape, result.name
        ir.convenience.replace_all_uses_with(result, output, replace_graph_outputs=True)
        self.graph.remove(nodes, safe=True)
        for layer in norm.layers:
            self.became[layer] = f"part of the {norm.operator} {name}"

    def _affine(self, port: Port | None, norm: Norm) -> ir.Value:
        """The scale or bias as the operator takes it: the shape of the axes that are normalised."""
        if port is None:
            return self._initializer(np.ones(norm.channels, np.float32), f"{norm.result}__scale")
        value = self.nodes[port[0]].inputs[port[1]]
        assert value is not None and value.name is not None  # a constant of the network
        array = self.folds.constant(port)
        assert array is not None
        rank = -norm.axis
        if array.ndim == rank:
            return value
        return self._initializer(array.reshape(array.shape[-rank:]), f"{value.name}__last")

    def _group(self, group: Group) -> Group:
        """A group with the layers and tensors that it has now."""
        norm = self.norms.get(group.name)
        gone = set(norm.layers) if norm is not None else set()
        kept = [name for name in group.layers if name in self.nodes and name not in gone]
        if norm is not None:
            place = sum(name not in gone for name in group.layers[:group.layers.index(norm.layers[-1])])
            kept.insert(place, group.name)
        sites = tuple(replace(site, tensor=self.tensors.get((site.layer, site.index), site.tensor))
                      for site in group.sites)
        inner = tuple(name for name in group.inner if name in self.nodes)
        return replace(group, layers=tuple(kept), sites=sites, inner=inner)

    def _initializer(self, array: np.ndarray, name: str) -> ir.Value:
        value = ir.Value(name=self.names.new(name), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape))
        value.const_value = ir.Tensor(np.ascontiguousarray(array, np.float32), name=value.name)
        self.graph.register_initializer(value)
        return value
