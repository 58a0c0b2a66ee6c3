"""Layers that are known to gain little speed or to lose much accuracy in quantized types, each with the source.

These issues are independent of the release. `trt_tui.core.network.known_defects` has the defects of single releases.
"""

from collections.abc import Iterable, Mapping

from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import FusionGroup, KnownIssue, Layer
from trt_tui.formatting import counted_noun_text

MIN_CHANNELS = 16
"""The size below which ModelOpt does not quantize a layer: the channels of a Conv, K and N of a MatMul or Gemm."""

MODELOPT = "ModelOpt 0.47"
RTX = "TensorRT-RTX 1.7"
FQ_VIT = "Lin et al., FQ-ViT, 2022"
DOREFA = "Zhou et al., DoReFa-Net, 2016"


def find_convs_excluded_by_modelopt(graph: LayerGraph, layers: Iterable[Layer]) -> dict[str, str]:
    """Returns the Convs that ModelOpt never quantizes under any options, each with the reason.

    The rules are those of ModelOpt 0.47, ``find_nodes_from_convs_to_exclude`` in
    ``modelopt/onnx/quantization/graph_utils.py``.
    """
    inputs = {info.name for info in graph.inputs}
    reasons = {}
    for layer in layers:
        if layer.op_type != "Conv":
            continue
        weight = graph.shape(layer.inputs[1])
        if layer.inputs[1] not in graph.constant_tensors or weight is None or not all(
                isinstance(dimension, int) for dimension in weight):
            reasons[layer.name] = "its weight is computed"
            continue
        output_channels, input_channels, *kernel = (int(size) for size in weight if isinstance(size, int))
        shape = graph.shape(layer.inputs[0])
        channels = shape[1] if shape is not None and len(shape) > 1 else None
        is_grouped = isinstance(channels, int) and channels != input_channels
        is_wide = output_channels >= MIN_CHANNELS or input_channels >= MIN_CHANNELS
        if min(output_channels, input_channels) >= MIN_CHANNELS:
            continue
        if is_grouped:
            is_quantized = output_channels % 8 == 0 and all(size >= 3 for size in kernel)
        else:
            is_first = not inputs.isdisjoint(layer.inputs)
            is_quantized = (output_channels % 8 == 0 or input_channels % 8 == 0) and (is_first or is_wide) and len(
                set(kernel)) == 1
        if not is_quantized:
            reasons[layer.name] = f"{counted_noun_text(input_channels, 'channel')} in, {output_channels} out"
    return reasons


def find_known_issues(graph: LayerGraph, layers: Mapping[str, Layer], groups: Iterable[FusionGroup]
                      ) -> dict[str, tuple[KnownIssue, ...]]:
    """Returns the known issues of each quantizable fusion group, by group name; groups without issues are omitted."""
    quantizable = [group for group in groups if group.is_quantizable]
    issues_by_group: dict[str, tuple[KnownIssue, ...]] = {}
    for group in quantizable:
        issues = list(_iterate_layer_issues(graph, group, layers))
        for index, position in ((0, "first"), (-1, "last")):
            if len(quantizable) > 2 and group is quantizable[index]:
                issues.append(
                    KnownIssue(f"the {position} layer that can be quantized: often left in a float type", DOREFA))
        if issues:
            issues_by_group[group.name] = tuple(dict.fromkeys(issues))
    return issues_by_group


def _iterate_layer_issues(graph: LayerGraph, group: FusionGroup, layers: Mapping[str, Layer]) -> Iterable[KnownIssue]:
    for layer in (layers[name] for name in sorted(group.main_layers)):
        for reason in find_convs_excluded_by_modelopt(graph, [layer]).values():
            yield KnownIssue(f"a Conv with {reason}: ModelOpt leaves it out, as quantization saves no time there",
                             MODELOPT)
        if layer.op_type == "ConvTranspose":
            yield KnownIssue("a ConvTranspose: TensorRT runs it in FP16 or FP32 even if INT8 is requested, so "
                             "INT8 adds error without speed", RTX)
        if layer.op_type in ("MatMul", "Gemm") and (reason := _small_product_reason(graph, layer)):
            yield KnownIssue(f"{reason}: ModelOpt leaves it out, as quantization saves no time there", MODELOPT)
        if group.attention_role == "PV":
            yield KnownIssue("it reads a Softmax: most values are near 0, where a scale for values up to 1 leaves few "
                             "quantized values",
                             FQ_VIT)


def _small_product_reason(graph: LayerGraph, layer: Layer) -> str:
    """Returns the reason why a MatMul or Gemm is too small for quantization; "" if it is not, or if sizes are open.

    The rules are those of ``find_nodes_from_matmul_to_exclude`` in ``modelopt/onnx/quantization/graph_utils.py``: M or
    N of 1 (GEMV), K or N below 16.
    """
    output_shape, input_shape = graph.shape(layer.outputs[0]), graph.shape(layer.inputs[0])
    if output_shape is None or input_shape is None or len(output_shape) < 2 or len(input_shape) < 2:
        return ""
    rows, columns, inner_size = output_shape[-2], output_shape[-1], input_shape[-1]
    if rows == 1 or columns == 1:
        return f"a product of {'one row' if rows == 1 else 'one column'}"
    for size, dimension in ((inner_size, "K"), (columns, "N")):
        if isinstance(size, int) and size < MIN_CHANNELS:
            return f"a product with {dimension} = {size}"
    return ""


def known_issue_lines(known_issues: Mapping[str, tuple[KnownIssue, ...]], group: FusionGroup,
                      is_quantized: bool) -> list[str]:
    return [issue.issue_description for issue in known_issues.get(group.name, ())] if is_quantized else []
