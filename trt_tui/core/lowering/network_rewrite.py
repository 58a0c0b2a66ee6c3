"""What precedes the lowering of a config: checks of its precisions against releases and GPUs, and its changes of the
network besides precisions, which are edited constants, normalisation operators and fusion barriers.

Examples of edited constants are scaled channels and corrected biases. All lowerings for files and engines read the
changed network. Its groups and their names are the same. Unchanged weights are shared with the original network.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from trt_tui.core.moves.config import (
    MOVE_KINDS,
    BarrierMove,
    MoveKey,
    PrecisionConfig,
    RangeMove,
    replace_file_precision_of_groups,
)
from trt_tui.core.moves.constant_moves import RoundingMove, digest_weight_edits
from trt_tui.core.moves.move import MOVE_TEXTS, ConstantEdit
from trt_tui.core.network.graph import largest_magnitude, register_constant
from trt_tui.core.network.graph_editor import remove_unread_values
from trt_tui.core.network.layers import FusionGroup, NetworkOutline, Normalisation, Port, QdqSite
from trt_tui.core.network.model_editing import FreshNames, collect_by_key
from trt_tui.core.network.network import Network
from trt_tui.core.network.opset_conversion import CUBIC_GRID_NEXT_STEP, CUBIC_GRID_NOTE, find_cubic_grid_samples
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.core.quantized_types import BLOCK_PRECISIONS, QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, name_list_text

_KeyedEdit = tuple[tuple[str, str, Hashable], ConstantEdit]
"""An edit of a constant, with the kind, the subject and the effect of its move, which are equal for equal edits."""


class EditedConstants:
    """The constants of a network after the edits by the moves of a config. Each constant is computed on request.

    Args:
        config: The config; None for the constants of the network without edits.
        amax_cache: A cache of the largest magnitudes, by constant and edits, which several configs share.

    Attributes:
        edits_by_port: The edits of each layer input whose constant is edited, with their keys.
    """

    def __init__(
        self,
        network: Network,
        config: PrecisionConfig | None = None,
        amax_cache: MutableMapping[Hashable, np.ndarray] | None = None,
    ) -> None:
        self.network = network
        self._amax_cache = {} if amax_cache is None else amax_cache
        self.edits_by_port = {} if config is None else _collect_constant_edits(network, config)
        if stale := _list_groups_with_stale_roundings(self.edits_by_port):
            raise InputError(
                f"the rounding of {name_list_text(stale)} belongs to another weight",
                "another change of the config has edited the weight since it was measured",
                "Undo the rounding, or measure it again.",
            )

    def constant_edit_key(self, layer_input: Port) -> Hashable:
        """Returns a cache key for the edits of the constant at a layer input; None if it is not edited."""
        return tuple(key for key, _ in self.edits_by_port[layer_input]) if layer_input in self.edits_by_port else None

    def compute_constant(self, layer_input: Port, *, with_rounding: bool = True) -> np.ndarray | None:
        """Returns the constant at a layer input with all edits, float32; None if the layer has no such input.

        Args:
            with_rounding: False to leave out the edits that only round a weight.
        """
        layer, index = layer_input
        input_names = self.network.get_layer(layer).inputs
        array = (
            self.network.constant_value(input_names[index]) if index < len(input_names) and input_names[index] else None
        )
        for _, change in self.edits_by_port.get(layer_input, ()):
            if with_rounding or change.weight_edits is None:
                array = change.edit_constant(array)
        return array

    def weight_amax(self, qdq_site: QdqSite, axis: int | None, block_size: int | None) -> np.ndarray:
        """Returns the largest magnitude of a weight with all edits, float32: per tensor, channel or block.

        The arguments are those of `trt_tui.core.network.graph.ConstantValues.constant_amax`.
        """
        port = qdq_site.layer, qdq_site.index
        if port not in self.edits_by_port:
            return self.network.constant_amax(qdq_site.tensor, axis, block_size)
        key = (port, axis, block_size, self.constant_edit_key(port))
        if key not in self._amax_cache:
            array = self.compute_constant(port)
            assert array is not None  # the input is a weight
            self._amax_cache[key] = largest_magnitude(array, axis, block_size)
        return self._amax_cache[key]


def _collect_constant_edits(network: NetworkOutline, config: PrecisionConfig) -> dict[Port, list[_KeyedEdit]]:
    """Returns the edits of each constant, in the order of their application."""
    return collect_by_key(
        (port, ((kind, subject, move.equivalence_key), change))
        for kind, move_class in MOVE_KINDS.items()
        if move_class.edits_constants
        for subject, move in config.get_moves(move_class).items()
        for port, change in move.find_constant_edits(network, subject, config).items()
    )


def _list_groups_with_stale_roundings(edits: Mapping[Port, Sequence[_KeyedEdit]]) -> list[str]:
    """Returns the groups with stale roundings. A rounding is stale if other moves edited the weight after its
    measurement."""
    return [
        subject
        for edits_of_port in edits.values()
        for index, ((_, subject, _), change) in enumerate(edits_of_port)
        if change.weight_edits not in (None, digest_weight_edits(tuple(key for key, _ in edits_of_port[:index])))
    ]


def without_stale_roundings(network: NetworkOutline, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config without roundings of weights that other moves have edited since; the same config if there are
    none.

    A rounding for another precision than the present one of its group is kept, because it has no effect.
    """
    if not config.get_moves(RoundingMove):
        return config
    stale = _list_groups_with_stale_roundings(_collect_constant_edits(network, config))
    return config.without_moves(RoundingMove, stale) if stale else config


def compute_weight_edits_digest(network: NetworkOutline, config: PrecisionConfig, port: Port) -> str:
    """Returns the digest of the edits of a weight other than its rounding; "" if there are none."""
    edits = _collect_constant_edits(network, config).get(port, ())
    return digest_weight_edits(tuple(key for key, change in edits if change.weight_edits is None))


def _list_edited_layers(network: NetworkOutline, config: PrecisionConfig) -> Iterator[tuple[MoveKey, str]]:
    """Yields each layer that a move edits, with the key of the move."""
    for (kind, subject), move in config.moves.items():
        if move.is_normalisation_rewrite:
            yield (kind, subject), subject
        elif move.edits_constants:
            for layer, _ in move.find_constant_edits(network, subject, config):
                yield (kind, subject), layer


def refuse_edits_under_file_precision(network: Network, config: PrecisionConfig) -> None:
    """Refuses a config with moves that edit layers in file precision.

    Raises:
        InputError: a move edits such a layer; the error names both.
    """
    for (kind, subject), layer in _list_edited_layers(network, config):
        group = network.find_group(layer)
        if group is not None and config.precision_of(group) is Precision.FILE and group.file_precision is not None:
            nearest = group.file_precision.nearest_precision.label
            raise InputError(
                f"{group.name} has file precision, and {MOVE_TEXTS[kind].column} on {subject} changes it",
                "layers in file precision are written back unchanged",
                f"Give it {nearest}, the precision nearest to the file, or undo that change.",
            )


def replace_edited_file_precisions(
    network: NetworkOutline, config: PrecisionConfig, groups: Iterable[FusionGroup]
) -> PrecisionConfig:
    """Returns a config in which edited groups have the nearest precision instead of their file precision.

    Only the given groups change. `refuse_edits_under_file_precision` would refuse edits in file precision.
    """
    groups = [group for group in groups if config.precision_of(group) is Precision.FILE]
    if not groups or not (has_constant_edits(config) or list_normalisation_rewrites(config)):
        return config
    edited_layers = {layer for _, layer in _list_edited_layers(network, config)}
    return replace_file_precision_of_groups(
        config, (group for group in groups if not edited_layers.isdisjoint(group.layers))
    )


def toggle_fp32(network: NetworkOutline, config: PrecisionConfig, groups: Iterable[FusionGroup]) -> PrecisionConfig:
    """Returns a config that can be lowered, with some groups toggled between FP32 and their default precisions.

    Groups whose default is the file precision get the nearest precision if moves edit them.
    """
    groups = list(groups)
    return replace_edited_file_precisions(network, config.with_toggled_fp32(groups), groups)


def has_constant_edits(config: PrecisionConfig) -> bool:
    return any(move.edits_constants for move in config.moves.values())


def list_normalisation_rewrites(config: PrecisionConfig) -> frozenset[str]:
    return frozenset(subject for (_, subject), move in config.moves.items() if move.is_normalisation_rewrite)


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
        for port in self.edited_constants.edits_by_port:
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
        remove_unread_values(self.graph, [*self.graph.initializers.values()])
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
        self.layer_changes.update(
            dict.fromkeys(normalisation.layers, f"part of the {normalisation.operator} {group_name}")
        )

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


WEAK_PRECISIONS = frozenset((Precision.INT8,))
"""The precisions of `groups_by_release_dependent_precision` that a weakly typed TensorRT supports."""

TYPED_ONLY_TEXT = "TensorRT 10 or later, typed"
"""The releases that support an FP32 accumulator for FP16 products, which Casts around the product request."""


def reduces_precision(network: NetworkOutline, config: PrecisionConfig) -> bool:
    """Returns True if any fusion group of a config runs below FP32 or multiplies in TF32."""
    return any(
        _is_below_fp32(group, config.precision_of(group)) or config.tf32 and group.qdq_sites_of_multiplied_inputs()
        for group in network.groups
    )


def _is_below_fp32(group: FusionGroup, precision: Precision) -> bool:
    if precision is Precision.FILE and group.file_precision is not None:
        return not group.file_precision.is_plain_fp32
    return precision is not Precision.FP32


def quantizes_activations(network: NetworkOutline, config: PrecisionConfig) -> bool:
    """Returns True if any fusion group of a config quantizes activations with calibrated scales."""
    return any(group.calibrated_qdq_sites(config.precision_of(group)) for group in network.groups)


def leaves_quantized_precision_unused(network: NetworkOutline, config: PrecisionConfig) -> bool:
    """Returns True if the default precision of a config is a quantized type in which no fusion group can run."""
    return config.quantized in QUANTIZED_TYPES and all(
        config.precision_of(group) is not config.quantized for group in network.groups
    )


def replace_all_file_precisions(network: NetworkOutline, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config in which each file precision is replaced by the nearest other precision.

    The ranges of the file's Q/DQ pairs are added to the config. Lowerings that cannot express file precision need this.
    """
    file_groups = [group for group in network.groups if config.precision_of(group) is Precision.FILE]
    if not file_groups:
        return config
    float_types = {group.file_precision.float_type for group in file_groups if group.file_precision is not None}
    other_precision = (
        config.other
        if config.other is not Precision.FILE
        else max(float_types, default=Precision.FP32, key=precision_rank)
    )
    replaced = replace(
        config,
        quantized=Precision.INT8 if config.quantized is Precision.FILE else config.quantized,
        other=other_precision,
    )
    for group in network.groups:
        replaced = replaced.with_group_precision(
            [group], group.resolve_file_precision(config.precision_of(group)), "file"
        )
    quantized_tensors = {
        site.tensor
        for group in file_groups
        if group.file_precision is not None and group.file_precision.nearest_precision is Precision.INT8
        for site in group.activation_qdq_sites()
    }
    for tensor, amax in network.quantized_ranges.items():
        if tensor in quantized_tensors and tensor not in config.range_moves:
            replaced = replaced.with_range(tensor, RangeMove(amax, "file"))
    return replaced


def no_lower_precision_reason(network: NetworkOutline) -> str:
    """Returns the reason why no layer can run below FP32, or none can be quantized; "" if one can."""
    if not any(group.allowed_precisions - {Precision.FP32} for group in network.groups):
        refusals = [reason for group in network.groups for reason in group.refusal_reasons.values()]
        notes = [layer.refusal_reason for layer in network.layers if layer.refusal_reason]
        first_reason = next(iter(refusals or notes), "it has no layer in FP32")
        return (
            f"No layer of this network can run in lower precision ({first_reason}): every run is FP32 and "
            "therefore exact"
            + (
                f". A weakly typed engine is not: {layers_text} may run in lower precisions there"
                if (layers_text := subgraph_layers_text(network))
                else ""
            )
        )
    if not any(Precision.INT8 in group.allowed_precisions for group in network.groups):
        return "No layer of this network can run in INT8: the error of the INT8 run comes from the other layers"
    return ""


def subgraph_layers_text(network: NetworkOutline) -> str:
    """Returns a text that counts the float layers inside control flow and the nodes around them; "" if there are none."""
    layers = [layer for layer in network.layers if layer.body_layers]
    count = sum(layer.body_layers for layer in layers)
    names = name_list_text([layer.name for layer in layers], max_count=3)
    return f"{counted_noun_text(count, 'float layer')} inside {escape_hidden_characters(names)}" if layers else ""


def has_half_subgraph_results(network: NetworkOutline, group: FusionGroup) -> bool:
    """Returns True if control flow in a group returns FP16 or BF16 in the file."""
    return (
        group.file_precision is not None
        and group.file_precision.result_type is not Precision.FP32
        and any(network.get_layer(name).body_layers for name in group.layers)
    )


def weak_typing_notes(network: NetworkOutline, precision_flags: Collection[Precision]) -> tuple[str, ...]:
    """Returns a note on layers whose precision a weakly typed build chooses itself; () if there are none."""
    layers_text = subgraph_layers_text(network)
    flags_text = " and ".join(sorted(flag.label for flag in precision_flags))
    return (
        (f"Not judged: TensorRT chooses {flags_text} for {layers_text}, because control flow takes no precision.",)
        if layers_text and precision_flags
        else ()
    )


def precision_requirements_text(precision: Precision) -> str:
    """Returns a text for users that names the releases and GPUs that support a precision; "" if all do."""
    return (
        TYPED_ONLY_TEXT
        if precision is Precision.FP16_ACC_FP32
        else QUANTIZED_TYPES[precision].requirements_text
        if precision in QUANTIZED_TYPES
        else ""
    )


def find_min_compute_capability(config: PrecisionConfig) -> tuple[int, int] | None:
    """Returns the lowest compute capability that supports all quantized types of a config; None if it has no such type."""
    precisions = {config.quantized, *(move.precision for move in config.precision_moves.values())}
    return max(
        (
            quantized_type.min_compute_capability
            for precision in precisions
            if (quantized_type := QUANTIZED_TYPES.get(precision)) is not None
            and quantized_type.min_compute_capability is not None
        ),
        default=None,
    )


def tensorrt_operators_text(network: NetworkOutline, config: PrecisionConfig) -> str:
    """Returns a text that names the precisions of a config that need TensorRT's own operators, and the releases with
    these operators; "" if there are none.
    """
    precisions = BLOCK_PRECISIONS.intersection(config.precision_of(group) for group in network.groups)
    return " and ".join(
        f"{precision.label} ({QUANTIZED_TYPES[precision].requirements_text}, or TensorRT-RTX)"
        for precision in sorted(precisions)
    )


def groups_by_release_dependent_precision(
    network: NetworkOutline, config: PrecisionConfig
) -> dict[Precision, list[str]]:
    """Returns the fusion groups in precisions that only some releases support, by precision.

    Such precisions are the quantized types, and FP16 with an FP32 accumulator.
    """
    return collect_by_key(
        (precision, group.name)
        for group in network.groups
        if (precision := config.precision_of(group)) in QUANTIZED_TYPES or precision is Precision.FP16_ACC_FP32
    )


def refuse_cubic_grid_samples(network: Network, release_name: str) -> None:
    """Refuses a network with a GridSample whose mode TensorRT's parser may interpret differently from ONNX.

    Args:
        release_name: The release, for messages.

    Raises:
        InputError: a GridSample of opset 20 or later has mode cubic.
    """
    if node_names := find_cubic_grid_samples(network.model):
        raise InputError(
            f"{release_name} may read {node_names[0]} with another meaning",
            CUBIC_GRID_NOTE.format(name_list_text(node_names, max_count=2)),
            CUBIC_GRID_NEXT_STEP,
        )


def refuse_unsupported_precisions(
    network: NetworkOutline,
    config: PrecisionConfig,
    supported_precisions: Collection[Precision],
    release_name: str,
    compute_capability: tuple[int, int] | None = None,
) -> None:
    """Refuses a config with a precision that a release or a GPU does not support.

    Args:
        supported_precisions: The precisions of `groups_by_release_dependent_precision` that the release supports.
        release_name: The release, for messages.
        compute_capability: The compute capability of the target GPU; None if unknown.

    Raises:
        InputError: a precision is not supported; the error names the precision and a layer.
    """
    for precision, groups in groups_by_release_dependent_precision(network, config).items():
        quantized_type = QUANTIZED_TYPES.get(precision)
        min_capability = quantized_type.min_compute_capability if quantized_type is not None else None
        if precision not in supported_precisions:
            reason, next_step = (
                f"{release_name} has no {precision.label}",
                "or build with a release that supports it: " + precision_requirements_text(precision),
            )
        elif compute_capability is not None and min_capability is not None and compute_capability < min_capability:
            reason = (
                f"a GPU of compute capability {compute_capability[0]}.{compute_capability[1]} has no {precision.label}"
            )
            next_step = f"or build for {min_capability[0]}.{min_capability[1]} or later"
        else:
            continue
        layer_text = f", {groups[0]} among them" if len(groups) > 1 else f", {groups[0]}"
        raise InputError(
            reason,
            f"this config has {counted_noun_text(len(groups), 'layer')} in {precision.label}{layer_text}",
            f"Put them in FP16 or INT8, {next_step}.",
        )
