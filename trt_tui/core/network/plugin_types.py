"""Types and shapes of what plugins make, as the runtime that was given their library tells them."""

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.inference import infer_shapes
from trt_tui.core.network.plugins import is_plugin
from trt_tui.core.network.unused import drop_unused_nodes
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError


def infer_plugin_types(model: ir.Model, backend: Backend) -> None:
    """Gives what plugins make the types and shapes that a backend with their libraries knows, and what lies behind.

    Raises:
        InputError: the backend does not take one of them; names it.
    """
    plugin_values = [value for node in model.graph if is_plugin(node) for value in node.outputs if value.name]
    if not plugin_values:
        return
    names = [value.name or "" for value in plugin_values]
    probe = model.clone()
    outputs = {value.name: value for node in probe.graph for value in node.outputs}
    probe.graph.outputs.clear()
    probe.graph.outputs.extend(outputs[name] for name in names)
    drop_unused_nodes(probe)
    try:
        with backend.load(probe, low_memory=True) as runner:
            info_by_name = {info.name: info for info in runner.outputs}
    except InputError as error:
        node = next((node for node in model.graph if is_plugin(node) and node.op_type in error.cause), None)
        node_text = f": node {node.name} ({node.op_type})" if node is not None else ""
        raise InputError(
            f"{error.title}{node_text}", error.cause, "Give the library that brings it with --ort-ops (it may "
            "be repeated); without the option the simulation ends before the node.") from None
    for value in plugin_values:
        info = info_by_name[value.name or ""]
        if info.dtype != np.dtype(object):
            value.type = ir.TensorType(ir.DataType.from_numpy(info.dtype))
            value.shape = ir.Shape(info.shape) if info.shape else value.shape
    infer_shapes(model)
