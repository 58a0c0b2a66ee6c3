"""A rotary embedding that an exporter took apart: x·cos + rotated(x)·sin.

Source: Su et al., "RoFormer"; halves are swapped (Llama) or neighbours (GPT-J), the sine's part negated.
"""

from collections.abc import Sequence

from trt_tui.core.network.fusion.grouping import MAX_REGION_LAYERS, FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.layers import Layer, LayerKind

_FIRST_OPERATORS = frozenset(("Mul", "Neg"))
_MAX_DISTANCE = 8  # layers from the first to the Add


def match_rotary_embedding(grouping: FusionGroupingState, layer: Layer) -> FusionRuleMatch:
    """Takes the rotation in, from its first product or negation to the Add: a match without ``layer``."""
    if layer.op_type not in _FIRST_OPERATORS or layer.kind is not LayerKind.COMPUTE:
        return FusionRuleMatch(reason=f"no rotation starts with {layer.op_type}")
    add = _find_final_add(grouping, layer)
    if add is None:
        return FusionRuleMatch(reason="no Add follows that only it leads to")
    products = [grouping.graph.by_name.get(grouping.graph.producer.get(name, "")) for name in add.inputs]
    for direct_product, rotated_product in (products, products[::-1]):
        if direct_product is None or rotated_product is None or {direct_product.op_type, rotated_product.op_type
                                                                 } != {"Mul"}:
            continue
        region = _find_rotation_layers(grouping, direct_product, rotated_product, add)
        if layer in region and grouping.find_region_output(region) == add.outputs[0]:
            return FusionRuleMatch(tuple(member for member in region if member is not layer), add.outputs[0],
                                   operator_name="RotaryEmbedding")
    return FusionRuleMatch(reason="the Add does not join a tensor's product with that of its halves turned")


def _find_final_add(grouping: FusionGroupingState, layer: Layer) -> Layer | None:
    """The Add of two tensors to which layers lead one behind the other."""
    for _ in range(_MAX_DISTANCE):
        next_layer = grouping.find_sole_reader(layer.outputs[0])
        if next_layer is None or next_layer.kind is LayerKind.OPAQUE:
            return None
        if next_layer.op_type == "Add":
            return next_layer if len(next_layer.inputs) == 2 else None
        layer = next_layer
    return None


def _find_rotation_layers(grouping: FusionGroupingState, direct_product: Layer, rotated_product: Layer,
                          add: Layer) -> list[Layer]:
    """The layers of a rotation that are in no group, in network order; [] where it is none."""
    for factor in rotated_product.inputs:
        rotated_concat = _match_rotated_concat(grouping, factor)
        if rotated_concat is None:
            continue
        source_tensor, passed_layers = rotated_concat
        if source_tensor in (_find_copy_source_tensor(grouping, name) for name in direct_product.inputs):
            layers = {
                member.name: member
                for member in (*passed_layers, direct_product, rotated_product, add)
                if member.name not in grouping.draft_by_layer
            }
            return sorted(layers.values(), key=lambda item: item.index)
    return []


def _match_rotated_concat(grouping: FusionGroupingState, tensor: str) -> tuple[str, Sequence[Layer]] | None:
    """What a tensor is a Concat of pieces of, some negated and some not, and the layers that make it of them."""
    passed_layers: dict[str, Layer] = {}
    source_tensors: set[str] = set()
    stack = [tensor]
    while stack and len(passed_layers) < MAX_REGION_LAYERS:
        name = stack.pop()
        layer = grouping.graph.by_name.get(grouping.graph.producer.get(name, ""))
        if layer is not None and (layer.op_type in ("Concat", "Neg")
                                  or _is_copy_with_sole_reader(grouping, layer, name)):
            passed_layers[layer.name] = layer
            stack.extend(grouping.list_dynamic_inputs(layer))
        else:
            source_tensors.add(_find_copy_source_tensor(grouping, name))
    operators = [member.op_type for member in passed_layers.values()]
    return (source_tensors.pop(),
            list(passed_layers.values())) if len(source_tensors) == 1 and {"Concat", "Neg"} <= set(operators) else None


def _is_copy_with_sole_reader(grouping: FusionGroupingState, layer: Layer, tensor: str) -> bool:
    """Whether a layer in no group moves values, in one output that one layer reads."""
    return (layer.name not in grouping.draft_by_layer and grouping.is_fused_copy(layer) and len(layer.outputs) == 1
            and len(grouping.list_dynamic_inputs(layer)) == 1 and grouping.find_sole_reader(tensor) is not None)


def _find_copy_source_tensor(grouping: FusionGroupingState, tensor: str) -> str:
    """The tensor that copies, one behind the other, took a tensor's values from."""
    for _ in range(_MAX_DISTANCE):
        layer = grouping.graph.by_name.get(grouping.graph.producer.get(tensor, ""))
        if layer is None or not grouping.is_fused_copy(layer):
            break
        moved_tensors = [name for name in grouping.list_dynamic_inputs(layer) if grouping.graph.is_float(name)]
        if len(moved_tensors) != 1:
            break
        tensor = moved_tensors[0]
    return tensor
