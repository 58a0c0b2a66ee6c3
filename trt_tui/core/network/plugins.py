"""Operators that a library brings: plugins of TensorRT, and custom operators of ONNX Runtime.

Only what has its library runs such a node. Without one for ONNX Runtime the simulation ends in front of the
node: what lies behind is left to engines, keeps FP32, and is judged by nothing that is simulated.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from trt_tui.words import first_few

OWN_DOMAINS = frozenset(("ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training",
                         "com.microsoft", "com.microsoft.experimental", "com.microsoft.nchwc", "com.ms.internal.nhwc"))
"""Domains beside ONNX's own whose operators ONNX Runtime has without a library."""

ORT_IN_ONNX = frozenset(("SimplifiedLayerNormalization",))
"""Operators of ONNX Runtime that stand among ONNX's own, which does not have them."""

ORT_BEFORE_ONNX = frozenset(("LayerNormalization", "MeanVarianceNormalization", "ThresholdedRelu"))
"""Operators that ONNX Runtime has in every opset, and ONNX only from a later one on."""

_STAND_IN = "trt_tui.plugin"


def is_plugin(node: ir.Node) -> bool:
    """Whether a library has to bring a node's operator, or one of an operator in its subgraphs."""
    if node.domain in ("", "ai.onnx"):
        foreign = not onnx.defs.has(node.op_type) and node.op_type not in ORT_IN_ONNX
    else:
        foreign = node.domain not in OWN_DOMAINS
    return foreign or any(is_plugin(inner) for graph in _subgraphs(node) for inner in graph)


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    return [graph for one in node.attributes.values() if not one.is_ref() for graph in (
        [one.as_graph()] if one.type == ir.AttributeType.GRAPH else
        list(one.as_graphs()) if one.type == ir.AttributeType.GRAPHS else [])]


def cutting(node: ir.Node, read: Sequence[str], behind: Mapping[str, str]) -> str:
    """The plugin that keeps the simulation from a node: itself or the first one in front of it; "" where none does.

    Args:
        read: The tensors that it reads.
        behind: The plugin in front of each tensor that cannot be simulated.
    """
    if is_plugin(node):
        return node.name or ""
    return next((behind[tensor] for tensor in read if tensor in behind), "")


def why_cut(node: ir.Node, plugin: str) -> str:
    """Why a layer at or behind a plugin is left to engines."""
    if node.name == plugin:
        of = f" of {node.domain}" if node.domain else ""
        return f"a plugin or custom operator{of}: only an engine runs it; --ort-ops LIB.so brings it to the simulation"
    return f"behind {plugin}, a plugin: kept in FP32, since only an engine runs it (--ort-ops LIB.so changes that)"


def note_of(plugins: Sequence[tuple[str, str]]) -> str:
    """The note on a network that the simulation runs in part.

    Args:
        plugins: Names and operators of the nodes that end it.
    """
    named = first_few([f"{name} ({operator})" for name, operator in plugins])
    return (f"Plugins: {named}. The simulation runs up to there; what lies behind is run by engines alone, in FP32. "
            "--plugins LIB.so loads a library into TensorRT, --ort-ops LIB.so one into ONNX Runtime.")


@contextlib.contextmanager
def out_of_the_way(model: ir.Model) -> Iterator[None]:
    """In this block the operators of a model that its opset does not have stand in a domain of their own.

    These are plugins that stand among ONNX's own operators, and `ORT_BEFORE_ONNX`. onnx's version converter leaves
    other domains alone, and refuses an operator that it does not know in the opset.
    """
    opset = model.graph.opset_imports.get("", 0)
    nodes = [node for node in model.graph.all_nodes() if node.domain == "" and (
        not onnx.defs.has(node.op_type)
        or node.op_type in ORT_BEFORE_ONNX and not onnx.defs.has(node.op_type, opset, ""))]
    for node in nodes:
        node.domain = _STAND_IN
    if nodes:
        model.graph.opset_imports[_STAND_IN] = 1
    try:
        yield
    finally:
        put_back(model)


def put_back(model: ir.Model) -> None:
    """Puts plugins back that `out_of_the_way` has moved."""
    for node in model.graph.all_nodes():
        if node.domain == _STAND_IN:
            node.domain = ""
    model.graph.opset_imports.pop(_STAND_IN, None)
