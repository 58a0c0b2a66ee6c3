"""Operators that need a library: TensorRT plugins, and custom operators of ONNX Runtime.

A runtime executes such a node only if it has loaded the library. Without a library for ONNX Runtime, the simulation
ends before the node. Layers behind the node run in engines only, keep FP32, and have no simulated accuracy.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from trt_tui.core.network.subgraphs import list_subgraphs
from trt_tui.formatting import name_list_text

RUNTIME_DOMAINS = frozenset(
    ("ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft",
     "com.microsoft.experimental", "com.microsoft.nchwc", "com.ms.internal.nhwc"))
"""Operator domains, besides that of ONNX, whose operators ONNX Runtime executes without a library."""

RUNTIME_ONLY_OPERATORS = frozenset(("SimplifiedLayerNormalization",))
"""Operators of ONNX Runtime that use the domain of ONNX but are not part of the ONNX standard."""

EARLY_RUNTIME_OPERATORS = frozenset(("LayerNormalization", "MeanVarianceNormalization", "ThresholdedRelu"))
"""Operators that ONNX Runtime supports in every opset, but ONNX defines only from a later opset on."""

_PLUGIN_DOMAIN = "trt_tui.plugin"


def is_plugin(node: ir.Node) -> bool:
    """Returns True if a node, or a node in its subgraphs, has an operator that must come from a library."""
    if node.domain in ("", "ai.onnx"):
        is_foreign = not onnx.defs.has(node.op_type) and node.op_type not in RUNTIME_ONLY_OPERATORS
    else:
        is_foreign = node.domain not in RUNTIME_DOMAINS
    return is_foreign or any(is_plugin(inner_node) for graph in list_subgraphs(node) for inner_node in graph)


def find_blocking_plugin(node: ir.Node, input_names: Sequence[str], blocking_plugins: Mapping[str, str]) -> str:
    """Returns the name of the plugin that prevents the simulation of a node; "" if there is none.

    The plugin is the node itself or the first plugin before the node.

    Args:
        input_names: The tensors that the node reads.
        blocking_plugins: The plugin before each tensor that cannot be simulated, by tensor name.
    """
    if is_plugin(node):
        return node.name or ""
    return next((blocking_plugins[tensor] for tensor in input_names if tensor in blocking_plugins), "")


def blocking_plugin_reason(node: ir.Node, plugin_name: str) -> str:
    """Returns the reason why a layer at or behind a plugin runs in engines only."""
    if node.name == plugin_name:
        domain_text = f" of {node.domain}" if node.domain else ""
        return (
            f"a plugin or custom "
            f"operator{domain_text}: only an engine runs it; --ort-ops LIB.so adds it to the simulation"
        )
    return (f"after the plugin {plugin_name}: kept in FP32, since only an engine runs it (unless --ort-ops LIB.so "
            "provides it)")


def plugin_note(plugins: Sequence[tuple[str, str]]) -> str:
    """Returns the note for the user on a network whose simulation ends at plugins.

    Args:
        plugins: Names and operators of the nodes that end the simulation.
    """
    plugins_text = name_list_text([f"{name} ({operator})" for name, operator in plugins])
    return (
        f"Plugins: {plugins_text}. The simulation ends there; layers after them run in engines only, in FP32. "
        "--plugins LIB.so loads a library into TensorRT, --ort-ops LIB.so one into ONNX Runtime.")


@contextlib.contextmanager
def move_plugins_to_own_domain(model: ir.Model) -> Iterator[None]:
    """Moves operators that the model's opset lacks into a separate domain for the duration of a with block.

    The moved nodes are plugins in the domain of ONNX, and `EARLY_RUNTIME_OPERATORS`. onnx's version converter ignores
    other domains, but refuses an operator that the opset does not define.
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
    """Moves plugins back to the domain of ONNX, from which `move_plugins_to_own_domain` had moved them."""
    for node in model.graph.all_nodes():
        if node.domain == _PLUGIN_DOMAIN:
            node.domain = ""
    model.graph.opset_imports.pop(_PLUGIN_DOMAIN, None)
