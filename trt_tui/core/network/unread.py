"""Operators that no TensorRT parser reads: no engine can be built from a network that has one, whatever its precisions.

Sources: `OnnxParser.supports_operator` of TensorRT-RTX 1.7.1, asked for every operator of ONNX up to opset 25 (a test
asks it again), and onnx-tensorrt's docs/operators.md, which has none of them either; DeformConv is TensorRT's by a
plugin. Of ONNX Runtime's own operators that release builds those of `_READ_OF_ORT`, which it knows by name alone. What
neither ONNX nor ONNX Runtime has is a plugin.

Forms that TensorRT-RTX 1.7.1 refuses of operators that it reads were found by building ONNX's own node tests with it.
"""

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from trt_tui.core.network.plugins import OWN_DOMAINS
from trt_tui.words import first_few

UNREAD = frozenset(
    "AffineGrid Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress "
    "ConcatFromSequence ConvInteger CumProd DFT Det DynamicQuantizeLinear ImageDecoder MatMulInteger "
    "MaxRoiPool MaxUnpool MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement "
    "OptionalHasElement QLinearConv QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty "
    "SequenceErase SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence StringConcat "
    "StringNormalizer StringSplit SwiGLU TfIdfVectorizer Unique".split())
"""Operators of ONNX that no TensorRT reads."""

_READ_OF_ORT = frozenset("Gelu SimplifiedLayerNormalization SkipSimplifiedLayerNormalization QuantizeLinear "
                         "DequantizeLinear Trilu Pad Range GatherND GridSample".split())
"""Operators of ONNX Runtime that TensorRT-RTX 1.7 builds."""

_SUMS = frozenset(("MatMulInteger", "ConvInteger"))
"""Operators that sum products of codes in 32 bits."""


def refused_form(node: ir.Node) -> str:
    """What TensorRT-RTX 1.7 refuses of the form of an operator that it reads, in a few words; "" where it takes it."""
    kind = node.op_type
    if node.domain not in ("", "ai.onnx"):
        return ""
    if kind not in _READ_UINT8 and any(one is not None and one.dtype is ir.DataType.UINT8 for one in node.inputs):
        return f"{kind} of UINT8, which only a Cast may read"
    return next((f"{kind} {what}" for what, refuses in _FORMS.get(kind, {}).items() if refuses(node)), "")


def _yields_more(node: ir.Node) -> bool:
    return sum(bool(value.name) for value in node.outputs) > 1


def _says(name: str, default: str, refused: Callable[[str], bool]) -> Callable[[ir.Node], bool]:
    return lambda node: refused(node.attributes.get_string(name, default) or default)


_FORMS: dict[str, dict[str, Callable[[ir.Node], bool]]] = {
    "AveragePool": {"with dilations": lambda node: set(node.attributes.get_ints("dilations", [1]) or [1]) != {1}},
    "LayerNormalization": {"with further results": _yields_more},
    "LpPool": {"of another norm than the first or second": lambda node: node.attributes.get_int("p", 2) not in (1, 2)},
    "MaxPool": {"that yields indices": _yields_more},
    "Resize": {"with antialiasing": lambda node: bool(node.attributes.get_int("antialias", 0)),
               "by tf_crop_and_resize": _says("coordinate_transformation_mode", "half_pixel",
                                              lambda word: word == "tf_crop_and_resize"),
               "that keeps the aspect ratio": _says("keep_aspect_ratio_policy", "stretch",
                                                    lambda word: word != "stretch")},
    "ScatterND": {"with a reduction": _says("reduction", "none", lambda word: word != "none")},
}
"""What of an operator is refused, and whether a node is such, by operator."""

_READ_UINT8 = frozenset("Cast QuantizeLinear DequantizeLinear QLinearConv QLinearMatMul ConvInteger "
                        "MatMulInteger".split())
"""Operators that read UINT8, or of which other words say that TensorRT does not."""


def why_unread(node: ir.Node) -> str:
    """Why TensorRT does not read a node, in a few words; "" where one does, or where it is a plugin."""
    if node.domain in ("", "ai.onnx"):
        unread = node.op_type in UNREAD
        of = ""
    else:
        unread = node.domain in OWN_DOMAINS and node.op_type not in _READ_OF_ORT
        of = f" of {node.domain}"
    return f"no TensorRT has {node.op_type}{of}: the simulation alone runs it" if unread else ""


def sums_codes(node: ir.Node | None) -> bool:
    """Whether a node makes sums of codes, in INT32."""
    return node is not None and node.op_type in _SUMS and node.domain == ""


def unread_notes(nodes: Iterable[ir.Node]) -> list[str]:
    """Why no engine can be built from a network as it is, a sentence for each domain and each form."""
    nodes = tuple(nodes)
    found: dict[str, list[ir.Node]] = {}
    for node in nodes:
        if why_unread(node):
            found.setdefault(node.domain, []).append(node)
    notes = []
    for domain, ones in found.items():
        operators = first_few(list(dict.fromkeys(node.op_type for node in ones)))
        of, more = f" of {domain}" if domain else "", f" and {len(ones) - 1} more" if len(ones) > 1 else ""
        notes.append(f"No TensorRT reads {operators}{of} ({ones[0].name}{more}), so that without a plugin of that name "
                     f"no engine can be built from this network: {_way_out(domain, ones)}.")
    forms: dict[str, list[ir.Node]] = {}
    for node in nodes:
        if what := refused_form(node):
            forms.setdefault(what, []).append(node)
    return notes + [f"TensorRT-RTX 1.7 refuses {what} ({first_few([one.name or '' for one in ones], most=2)}): the "
                    "simulation runs it, but no engine can be built from this network as it is."
                    for what, ones in forms.items()]


def _way_out(domain: str, nodes: Sequence[ir.Node]) -> str:
    if any(sums_codes(node) or node.op_type == "DynamicQuantizeLinear" for node in nodes):
        return ("quantize it with Q/DQ instead, whose ranges are known before it runs (ModelOpt, or quantize_static "
                "with QuantFormat.QDQ)")
    if any(node.op_type == "MatMulNBits" for node in nodes):
        return ("store its weights around 0 (MatMulNBitsQuantizer with is_symmetric=True), which is read as INT4 "
                "behind a DequantizeLinear")
    if domain == "com.microsoft":
        return "export it without ONNX Runtime's own operators (its graph optimizations, its quantizers)"
    return "leave those layers to another runtime"
