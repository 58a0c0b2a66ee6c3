"""Operators that a library brings: plugins of TensorRT, and custom operators of ONNX Runtime.

Only what has its library runs such a node. Without one for ONNX Runtime the simulation ends in front of the
node: what lies behind is left to engines, keeps FP32, and is judged by nothing that is simulated.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from trt_tui.formatting import name_list_text

RUNTIME_DOMAINS = frozenset(
    ("ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft",
     "com.microsoft.experimental", "com.microsoft.nchwc", "com.ms.internal.nhwc"))
"""Domains beside ONNX's own whose operators ONNX Runtime has without a library."""

RUNTIME_ONLY_OPERATORS = frozenset(("SimplifiedLayerNormalization",))
"""Operators of ONNX Runtime that stand among ONNX's own, which does not have them."""

EARLY_RUNTIME_OPERATORS = frozenset(("LayerNormalization", "MeanVarianceNormalization", "ThresholdedRelu"))
"""Operators that ONNX Runtime has in every opset, and ONNX only from a later one on."""

_PLUGIN_DOMAIN = "trt_tui.plugin"


def is_plugin(node: ir.Node) -> bool:
    """Whether a library has to bring a node's operator, or one of an operator in its subgraphs."""
    if node.domain in ("", "ai.onnx"):
        is_foreign = not onnx.defs.has(node.op_type) and node.op_type not in RUNTIME_ONLY_OPERATORS
    else:
        is_foreign = node.domain not in RUNTIME_DOMAINS
    return is_foreign or any(is_plugin(inner_node) for graph in _list_subgraphs(node) for inner_node in graph)


def _list_subgraphs(node: ir.Node) -> list[ir.Graph]:
    return [graph for attribute in node.attributes.values() if not attribute.is_ref() for graph in (
        [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else
        list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else [])]


def find_blocking_plugin(node: ir.Node, input_names: Sequence[str], blocking_plugins: Mapping[str, str]) -> str:
    """The plugin that keeps the simulation from a node: itself or the first one in front of it; "" where none does.

    Args:
        input_names: The tensors that it reads.
        blocking_plugins: The plugin in front of each tensor that cannot be simulated.
    """
    if is_plugin(node):
        return node.name or ""
    return next((blocking_plugins[tensor] for tensor in input_names if tensor in blocking_plugins), "")


def blocking_plugin_reason(node: ir.Node, plugin_name: str) -> str:
    """Why a layer at or behind a plugin is left to engines."""
    if node.name == plugin_name:
        domain_text = f" of {node.domain}" if node.domain else ""
        return (
            f"a plugin or custom "
            f"operator{domain_text}: only an engine runs it; --ort-ops LIB.so adds it to the simulation"
        )
    return (f"after the plugin {plugin_name}: kept in FP32, since only an engine runs it (unless --ort-ops LIB.so "
            "provides it)")


def plugin_note(plugins: Sequence[tuple[str, str]]) -> str:
    """The note on a network that the simulation runs in part.

    Args:
        plugins: Names and operators of the nodes that end it.
    """
    plugins_text = name_list_text([f"{name} ({operator})" for name, operator in plugins])
    return (
        f"Plugins: {plugins_text}. The simulation ends there; layers after them run in engines only, in FP32. "
        "--plugins LIB.so loads a library into TensorRT, --ort-ops LIB.so one into ONNX Runtime.")


@contextlib.contextmanager
def move_plugins_to_own_domain(model: ir.Model) -> Iterator[None]:
    """In this block the operators of a model that its opset does not have stand in a domain of their own.

    These are plugins that stand among ONNX's own operators, and `EARLY_RUNTIME_OPERATORS`. onnx's version converter
    leaves other domains alone, and refuses an operator that it does not know in the opset.
    """
    opset = model.graph.opset_imports.get("", 0)
    nodes = [node for node in model.graph.all_nodes() if node.domain == "" and (
        not onnx.defs.has(node.op_type)
        or node.op_type in EARLY_RUNTIME_OPERATORS and not onnx.defs.has(node.op_type, opset, ""))]
    for node in nodes:
        node.domain = _PLUGIN_DOMAIN
    if nodes:
        model.graph.opset_imports[_PLUGIN_DOMAIN] = 1
    try:
        yield
    finally:
        restore_plugin_domains(model)


def restore_plugin_domains(model: ir.Model) -> None:
    """Puts plugins back that `move_plugins_to_own_domain` has moved."""
    for node in model.graph.all_nodes():
        if node.domain == _PLUGIN_DOMAIN:
            node.domain = ""
    model.graph.opset_imports.pop(_PLUGIN_DOMAIN, None)
