"""A LayerNorm, RMSNorm, GroupNorm or Softmax that an exporter took apart.

Source: "Reduce" fusions and Normalization of TensorRT's catalog; TensorRT-RTX 1.7 lists them as one engine layer.
"""

from collections.abc import Mapping, Sequence

from trt_tui.core.network.fusion.grouping import MAX_REGION_LAYERS, FusionGroupingState, FusionRuleMatch
from trt_tui.core.network.layers import Layer, LayerKind
from trt_tui.core.network.operators import POINTWISE, REDUCTIONS

_START_OPERATORS = REDUCTIONS | {"Pow", "Mul", "Exp"}
_REGION_OPERATORS = POINTWISE | REDUCTIONS
_NONLINEAR_OPERATORS = frozenset(("Sqrt", "Exp", "Pow", "ReduceL2"))
_SCALING_OPERATORS = frozenset(("Div", "Mul"))
_SQUARE_OPERATORS = frozenset(("Pow", "Mul"))


def match_normalisation(grouping: FusionGroupingState, layer: Layer) -> FusionRuleMatch:
    """Takes the region in that starts at ``layer``: a match without it, whose tail is the region's.

    It is a region of reductions, pointwise operators and copies over one tensor, with a square root or an exponential
    in it, that ends where values that are not reduced are scaled by reduced ones. The tensor it starts from may be
    used elsewhere too (a residual).
    """
    if layer.op_type not in _START_OPERATORS or layer.kind is not LayerKind.COMPUTE:
        return FusionRuleMatch(reason=f"no normalisation starts with {layer.op_type}")
    source_tensors = set(grouping.list_dynamic_inputs(layer))
    if len(source_tensors) != 1:
        return FusionRuleMatch(reason="it reads several tensors")
    (start_tensor,) = source_tensors
    region = [layer]
    # Which tensors are there, and whether they are reduced.
    reduced_by_tensor = {start_tensor: False, layer.outputs[0]: layer.op_type in REDUCTIONS}
    while len(region) < MAX_REGION_LAYERS:
        nearest_layer = min(_find_region_candidates(grouping, start_tensor, reduced_by_tensor, region),
                            key=lambda item: item.index, default=None)
        if nearest_layer is None:
            return FusionRuleMatch(reason="what is computed from it leaves before it is scaled")
        region.append(nearest_layer)
        region.sort(key=lambda item: item.index)
        reduced_flags = {
            reduced_by_tensor[name]
            for name in grouping.list_dynamic_inputs(nearest_layer)
            if name in reduced_by_tensor
        }
        reduced_by_tensor[nearest_layer.outputs[0]] = nearest_layer.op_type in REDUCTIONS or reduced_flags == {True}
        operators = {member.op_type for member in region}
        if nearest_layer.op_type in _SCALING_OPERATORS and len(
                reduced_flags) == 2 and operators & REDUCTIONS and operators & _NONLINEAR_OPERATORS:
            output_tensor = grouping.find_region_output(region)
            if output_tensor is not None:
                return FusionRuleMatch(tuple(member for member in region if member is not layer), output_tensor,
                                       operator_name=_normalisation_name(region))
    return FusionRuleMatch(reason=f"it is made of more than {MAX_REGION_LAYERS} layers")


def _find_region_candidates(grouping: FusionGroupingState, start_tensor: str, reduced_by_tensor: Mapping[str, bool],
                            region: Sequence[Layer]) -> list[Layer]:
    """Layers in no group that compute from what the region has alone, or move what it has reduced."""
    layer_names = {member.name for member in region}
    candidates = []
    for tensor, is_reduced in reduced_by_tensor.items():
        for user in grouping.list_readers_if_few(tensor):
            if user.name in layer_names or user.name in grouping.draft_by_layer:
                continue
            if grouping.is_float_operator(user, _REGION_OPERATORS):
                input_names = grouping.list_dynamic_inputs(user)
                can_join = all(name in reduced_by_tensor
                               for name in input_names) and (tensor != start_tensor or user.op_type in REDUCTIONS
                                                             or any(name != start_tensor for name in input_names)
                                                             or _is_square_before_reduction(grouping, user))
            else:
                can_join = is_reduced and grouping.is_fused_copy(user) and len(
                    user.outputs) == 1 and user.inputs[0] == tensor
            if can_join:
                candidates.append(user)
    return candidates


def _is_square_before_reduction(grouping: FusionGroupingState, layer: Layer) -> bool:
    """Whether a layer squares for a reduction alone: a variance as the mean of squares less the square of the mean."""
    next_layer = grouping.find_sole_reader(layer.outputs[0])
    return layer.op_type in _SQUARE_OPERATORS and next_layer is not None and next_layer.op_type in REDUCTIONS


def _normalisation_name(region: Sequence[Layer]) -> str:
    """What such a region is called: LayerNorm, RMSNorm, L2Norm or Softmax; "" for one that has no name."""
    operators = [layer.op_type for layer in region]
    if "ReduceL2" in operators:
        return "L2Norm"
    if not {"Sqrt", "Pow", "Reciprocal"}.isdisjoint(operators):
        mean_count = operators.count("ReduceMean")
        return ("L2Norm", "RMSNorm", "LayerNorm")[min(mean_count, 2)]
    return "Softmax" if "Exp" in operators else ""
