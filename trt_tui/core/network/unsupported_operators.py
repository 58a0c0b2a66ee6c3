"""Operators that no TensorRT parser reads, so that no engine can be built from a network that contains one.

The precisions make no difference. Sources: `OnnxParser.supports_operator` of TensorRT-RTX 1.7.1 for every operator of
ONNX up to opset 25 (a test repeats the query), and onnx-tensorrt's docs/operators.md, which also lacks them. TensorRT
implements DeformConv as a plugin. Of ONNX Runtime's own operators, that release builds `_SUPPORTED_CONTRIB_OPERATORS`,
which it recognises by name only. An operator that neither ONNX nor ONNX Runtime has is a plugin.

TensorRT-RTX 1.7.1 also refuses some forms of operators that it reads. These were found by building ONNX's own node
tests with it.
"""

import re
from collections.abc import Callable, Iterable

import onnx_ir as ir

from trt_tui.core.network.plugins import RUNTIME_DOMAINS
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text

UNSUPPORTED = frozenset(
    "AffineGrid Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress "
    "ConcatFromSequence ConvInteger CumProd DFT Det DynamicQuantizeLinear ImageDecoder MatMulInteger "
    "MaxRoiPool MaxUnpool MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement "
    "OptionalHasElement QLinearConv QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty "
    "SequenceErase SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat "
    "StringNormalizer StringSplit SwiGLU TfIdfVectorizer Unique".split())
"""The ONNX operators that no TensorRT reads."""

_SUPPORTED_CONTRIB_OPERATORS = frozenset(
    "Gelu SimplifiedLayerNormalization SkipSimplifiedLayerNormalization QuantizeLinear "
    "DequantizeLinear Trilu Pad Range GatherND GridSample".split())
"""The operators of ONNX Runtime that TensorRT-RTX 1.7 builds."""

_QUANTIZED_OPERATOR_PATTERN = re.compile(
    r"QLinear|Q(Gemm|Attention|EmbedLayerNormalization|MoE|Ordered)|(Conv|MatMul)Integer|DynamicQuantize|"
    r"MatMul(NBits|Bnb4|FpQ4)|GatherBlockQuantized")
"""The beginnings of the names of ONNX's and ONNX Runtime's operators on quantized values, except Q and DQ."""


def refuse_quantized_operators(model: ir.Model, file_name: str) -> None:
    """Refuses a network with operators on quantized values other than Q and DQ.

    Raises:
        InputError: There is such an operator; the error names the first node.
    """
    refused_nodes = [node for graph in (model.graph, *(function.graph for function in model.functions.values()))
                     for node in graph.all_nodes()
                     if node.op_identifier() not in model.functions
                     and (node.domain in ("", "ai.onnx") or node.domain in RUNTIME_DOMAINS)
                     and _QUANTIZED_OPERATOR_PATTERN.match(node.op_type)]
    if refused_nodes:
        first = refused_nodes[0]
        operators = name_list_text(list(dict.fromkeys(node.op_type for node in refused_nodes)), max_count=4)
        others = f" and {len(refused_nodes) - 1} more" if len(refused_nodes) > 1 else ""
        raise InputError(
            f"{file_name} is quantized with {operators} ({first.name or first.outputs[0].name}{others})",
            "TensorRT reads none of these operators: it reads quantized values between QuantizeLinear and "
            "DequantizeLinear only",
            "Quantize the FP32 network again in QDQ format: quantize_static or MatMulNBitsQuantizer with "
            "quant_format=QuantFormat.QDQ, or ModelOpt.")


def operator_form_refusal_reason(node: ir.Node) -> str:
    """Returns a phrase for the form of a supported operator that TensorRT-RTX 1.7 refuses; "" if it accepts the node.
    """
    operator = node.op_type
    if node.domain not in ("", "ai.onnx"):
        return ""
    if operator not in _UINT8_OPERATORS and any(value is not None and value.dtype is ir.DataType.UINT8
                                                for value in node.inputs):
        return f"{operator} of UINT8, which only a Cast may read"
    return next(
        (f"{operator} {form}" for form, is_refused in _REFUSED_FORMS.get(operator, {}).items() if is_refused(node)), "")


def _has_several_outputs(node: ir.Node) -> bool:
    return sum(bool(value.name) for value in node.outputs) > 1


def _build_attribute_check(attribute: str, default: str, is_refused: Callable[[str],
                                                                              bool]) -> Callable[[ir.Node], bool]:
    return lambda node: is_refused(node.attributes.get_string(attribute, default) or default)


_REFUSED_FORMS: dict[str, dict[str, Callable[[ir.Node], bool]]] = {
    "AveragePool": {"with dilations": lambda node: set(node.attributes.get_ints("dilations", [1]) or [1]) != {1}},
    "LayerNormalization": {"with further results": _has_several_outputs},
    "LpPool": {"of another norm than the first or second": lambda node: node.attributes.get_int("p", 2) not in (1, 2)},
    "MaxPool": {"that yields indices": _has_several_outputs},
    "Resize": {"with antialiasing": lambda node: bool(node.attributes.get_int("antialias", 0)),
               "by tf_crop_and_resize": _build_attribute_check("coordinate_transformation_mode", "half_pixel",
                                                               lambda word: word == "tf_crop_and_resize"),
               "that keeps the aspect ratio": _build_attribute_check("keep_aspect_ratio_policy", "stretch",
                                                                     lambda word: word != "stretch")},
    "ScatterND": {"with a reduction": _build_attribute_check("reduction", "none", lambda word: word != "none")},
}
"""The refused forms of each operator, with a function that returns True if a node has the form."""

_UINT8_OPERATORS = frozenset("Cast QuantizeLinear DequantizeLinear".split())
"""Operators that can read UINT8, or for which another note says that TensorRT does not support them."""


def unsupported_operator_reason(node: ir.Node) -> str:
    """Returns the reason why no TensorRT reads a node; "" if one does, or if the node is a plugin."""
    if node.domain in ("", "ai.onnx"):
        is_unsupported = node.op_type in UNSUPPORTED
        domain_text = ""
    else:
        is_unsupported = node.domain in RUNTIME_DOMAINS and node.op_type not in _SUPPORTED_CONTRIB_OPERATORS
        domain_text = f" of {node.domain}"
    return f"no TensorRT has {node.op_type}{domain_text}: only the simulation runs it" if is_unsupported else ""


def unsupported_operator_notes(nodes: Iterable[ir.Node]) -> list[str]:
    """Returns the notes for users on why no engine can be built from a network, a sentence for each domain and each
    form."""
    nodes = tuple(nodes)
    nodes_by_domain: dict[str, list[ir.Node]] = {}
    for node in nodes:
        if unsupported_operator_reason(node):
            nodes_by_domain.setdefault(node.domain, []).append(node)
    notes = []
    for domain, affected_nodes in nodes_by_domain.items():
        operators = name_list_text(list(dict.fromkeys(node.op_type for node in affected_nodes)))
        domain_text, others_text = f" of {domain}" if domain else "", f" and {len(affected_nodes) - 1} more" if len(
            affected_nodes) > 1 else ""
        notes.append(
            f"No TensorRT reads "
            f"{operators}{domain_text} ({affected_nodes[0].name}{others_text}), so that without a plugin of that name "
            f"no engine can be built from this network: {_workaround_text(domain)}.")
    nodes_by_form: dict[str, list[ir.Node]] = {}
    for node in nodes:
        if form := operator_form_refusal_reason(node):
            nodes_by_form.setdefault(form, []).append(node)
    return (notes + [
        f"TensorRT-RTX 1.7 refuses "
        f"{form} ({name_list_text([refused_node.name or '' for refused_node in affected_nodes], max_count=2)}): the "
        "simulation runs it, but no engine can be built from this network."
        for form, affected_nodes in nodes_by_form.items()
    ])


def _workaround_text(domain: str) -> str:
    if domain == "com.microsoft":
        return "export it without operators specific to ONNX Runtime (its graph optimizations, its quantizers)"
    return "leave those layers to another runtime"
