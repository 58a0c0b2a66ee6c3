"""The changes that a config makes to a network besides precisions: normalisation operators, edited constants, fusion
barriers.

All lowerings for files and engines read the changed network. Its groups and their names are the same. Unchanged weights
are shared with the original network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering.edited_constants import EditedConstants, has_constant_edits, list_normalisation_rewrites
from trt_tui.core.moves.config import BarrierMove, PrecisionConfig
from trt_tui.core.network.constants import register_constant
from trt_tui.core.network.graph_editor import remove_unread_values
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.model_editing import FreshNames
from trt_tui.core.network.network import Network
from trt_tui.core.network.zero_cost_support import Normalisation, Port
from trt_tui.formatting import counted_noun_text, name_list_text

RMS_OPSET = 23
"""The first opset with RMSNormalization."""


@dataclass(frozen=True)
class RewrittenNetwork:
    """A network with the changes of a config besides precisions, ready to be lowered.

    Attributes:
        layer_changes: The replacement of each removed layer as text for users, by name.
        notes: Notes for users, one sentence each.
    """

    network: Network
    layer_changes: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def rewrite_network_for_config(
    network: Network, config: PrecisionConfig, *, keeps_neutral_layers: bool = False
) -> RewrittenNetwork:
    """Returns the network with all changes of a config except precisions; the same network if there are none.

    Args:
        keeps_neutral_layers: True to leave the layers that multiply by 1 in the network, with their tensors.

    Raises:
        InputError: the opset cannot be raised to one that defines a required operator.
    """
    norms = {name: network.zero_cost_support.norms[name] for name in list_normalisation_rewrites(config)}
    if not norms and not has_constant_edits(config) and not config.get_moves(BarrierMove):
        return RewrittenNetwork(network)
    return _NetworkRewriter(network, config, norms).rewrite_network(keeps_neutral_layers)


def fusion_barrier_output_notes(barrier_tensors: Sequence[str]) -> tuple[str, ...]:
    """Returns a note for users on network outputs that exist only as fusion barriers; () if there are none."""
    if not barrier_tensors:
        return ()
    return (
        f"{counted_noun_text(len(barrier_tensors), 'hidden output')} for fusion barriers: "
        f"{name_list_text(barrier_tensors)}. The application must bind memory for them, but need not read them.",
    )


def config_barrier_notes(network: Network, config: PrecisionConfig) -> tuple[str, ...]:
    return fusion_barrier_output_notes(BarrierMove.subject_kind.sort_subjects(network, config.get_moves(BarrierMove)))


class _NetworkRewriter:
    def __init__(self, network: Network, config: PrecisionConfig, norms: Mapping[str, Normalisation]) -> None:
        self.network, self.config, self.norms = network, config, norms
        self.equality_limits = config.list_fp32_difference_reasons(network)
        self.edited_constants, self.barrier_tensors = (
            EditedConstants(network, config),
            BarrierMove.subject_kind.sort_subjects(network, config.get_moves(BarrierMove)),
        )
        newest = any(norm.operator == "RMSNormalization" for norm in norms.values())
        self.model = network.convert_model_to_opset(max(RMS_OPSET if newest else 0, network.opset)).clone()
        self.graph = self.model.graph
        self.names = FreshNames(self.graph)
        self.nodes = {node.name: node for node in self.graph}
        self.tensors_by_port: dict[Port, str] = {}
        self.replaced_values: dict[Port, ir.Value | None] = {}
        self.layer_changes: dict[str, str] = {}
        self.renamed_tensors: dict[str, str] = {}

    def rewrite_network(self, keeps_neutral_layers: bool) -> RewrittenNetwork:
        shared: dict[tuple[object, ...], ir.Value] = {}
        for port in self.edited_constants.changed_layer_inputs:
            node = self.nodes[port[0]]
            index = port[1]
            replaced_value = node.inputs[index] if index < len(node.inputs) else None
            replaced_name = replaced_value.name if replaced_value is not None else None
            key = (replaced_name, self.edited_constants.constant_edit_key(port))
            if replaced_name is None or key not in shared:
                array = self.edited_constants.compute_constant(port)
                assert array is not None  # an edit creates the constant if there was none
                shared[key] = self._add_constant(array, f"{replaced_name or port[0] + '_bias'}__folded")
            if index >= len(node.inputs):
                node.resize_inputs(index + 1)
            node.replace_input_with(index, shared[key])
            self.tensors_by_port[port], self.replaced_values[port] = shared[key].name or "", replaced_value
        for (_, subject), move in self.config.moves.items() if not keeps_neutral_layers else ():
            for layer in move.find_neutral_layers(self.network, subject):
                self._remove_neutral_layer(layer)
        for name, norm in self.norms.items():
            self._replace_normalisation(name, norm)
        for name, value in list(self.graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del self.graph.initializers[name]
        self.graph.sort()
        notes = (
            *fusion_barrier_output_notes(self._add_fusion_barrier_outputs()),
            *(f"{text[:1].upper()}{text[1:]}." for text in self.equality_limits),
        )
        self.nodes = {node.name: node for node in self.graph}
        groups = tuple(self._rebuild_group(group) for group in self.network.groups)
        return RewrittenNetwork(self.network.copy_with_model(self.model, groups), self.layer_changes, notes)

    def _add_fusion_barrier_outputs(self) -> list[str]:
        """Makes the tensors of fusion barriers network outputs if the network still computes them; returns their names."""
        computed = {value.name: value for node in self.graph for value in node.outputs}
        names = [name for name in self.barrier_tensors if name in computed and not computed[name].is_graph_output()]
        self.graph.outputs.extend(computed[name] for name in names)
        return names

    def _replace_normalisation(self, group_name: str, normalisation: Normalisation) -> None:
        """Replaces the layers of a decomposed normalisation by the operator, which gets the name of the group."""
        nodes = [self.nodes[layer] for layer in normalisation.layers]
        by_name = {value.name: value for node in nodes for value in node.inputs if value is not None}
        result = next(value for value in nodes[-1].outputs if value.name == normalisation.result)
        inputs = [
            by_name[normalisation.source],
            self._build_normalisation_parameter(normalisation.scale, normalisation),
        ]
        if normalisation.bias is not None:
            inputs.append(self._build_normalisation_parameter(normalisation.bias, normalisation))
        operator = ir.node(
            normalisation.operator,
            inputs,
            {"axis": normalisation.axis, "epsilon": normalisation.epsilon},
            name=group_name,
        )
        self.graph.insert_after(nodes[-1], operator)
        output = operator.outputs[0]
        output.type, output.shape, output.name = result.type, result.shape, result.name
        ir.convenience.replace_all_uses_with(result, output, replace_graph_outputs=True)
        self.graph.remove(nodes, safe=True)
        for layer in normalisation.layers:
            self.layer_changes[layer] = f"part of the {normalisation.operator} {group_name}"

    def _remove_neutral_layer(self, layer_name: str) -> None:
        """Removes a layer that multiplies by 1. Its input takes over the name of its result.

        The layer stays if it is the main layer of its group, or if another layer or an output needs its input.
        """
        group, node = self.network.find_group(layer_name), self.nodes[layer_name]
        numbers = {port[1]: value for port, value in self.replaced_values.items() if port[0] == layer_name}
        source = next((value for index, value in enumerate(node.inputs) if index not in numbers), None)
        if (
            group is None
            or group.name == layer_name
            or source is None
            or source.producer() is None
            or len(source.uses()) != 1
            or source.is_graph_output()
        ):
            return
        result, source_name = node.outputs[0], source.name or ""
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
        remove_unread_values(self.graph, filter(None, numbers.values()))
        source.name, source.type, source.shape = result.name, result.type, result.shape
        self.renamed_tensors[source_name] = result.name or ""
        self.layer_changes[layer_name] = "left out: its number is in front of the attention"

    def _build_normalisation_parameter(self, layer_input: Port | None, normalisation: Normalisation) -> ir.Value:
        """Returns the scale or bias of a normalisation in the shape that the operator requires."""
        if layer_input is None:
            return self._add_constant(np.ones(normalisation.channels, np.float32), f"{normalisation.result}__scale")
        value = self.nodes[layer_input[0]].inputs[layer_input[1]]
        assert value is not None and value.name is not None  # the input is a constant of the network
        array = self.edited_constants.compute_constant(layer_input)
        assert array is not None
        rank = -normalisation.axis
        if array.ndim == rank:
            return value
        return self._add_constant(array.reshape(array.shape[-rank:]), f"{value.name}__last")

    def _rebuild_group(self, group: FusionGroup) -> FusionGroup:
        """Returns a fusion group with the layers and tensors of the changed network."""
        norm = self.norms.get(group.name)
        removed = set(norm.layers) if norm is not None else set()
        layers = [name for name in group.layers if name in self.nodes and name not in removed]
        if norm is not None:
            index = sum(name not in removed for name in group.layers[: group.layers.index(norm.layers[-1])])
            layers.insert(index, group.name)
        sites = tuple(
            replace(site, tensor=self._find_new_name(self.tensors_by_port.get((site.layer, site.index), site.tensor)))
            for site in group.sites
        )
        inner = tuple(name for name in group.shape_layers if name in self.nodes)
        inputs, outputs = (
            tuple(dict.fromkeys(map(self._find_new_name, names))) for names in (group.inputs, group.outputs)
        )
        return replace(
            group,
            layers=tuple(layers),
            sites=sites,
            shape_layers=inner,
            inputs=inputs,
            outputs=outputs,
            final_tensor=self._find_new_name(group.final_tensor),
        )

    def _find_new_name(self, tensor: str) -> str:
        """Returns the name of a tensor after the removal of neutral layers."""
        while tensor in self.renamed_tensors:
            tensor = self.renamed_tensors[tensor]
        return tensor

    def _add_constant(self, array: np.ndarray, name: str) -> ir.Value:
        return register_constant(
            self.graph, self.names.make_unique_name(name), ir.Tensor(np.asarray(array, np.float32, order="C"))
        )
