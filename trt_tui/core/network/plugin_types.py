"""Types and shapes of what plugins make, as the runtime that was given their library tells them."""

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.inference import infer_shapes
from trt_tui.core.network.plugins import is_plugin
from trt_tui.core.network.unused import drop_unused
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError


def tell_types(model: ir.Model, backend: Backend) -> None:
    """Gives what plugins make the types and shapes that a backend with their libraries knows, and what lies behind.

    Raises:
        InputError: the backend does not take one of them; names it.
    """
    made = [value for node in model.graph if is_plugin(node) for value in node.outputs if value.name]
    if not made:
        return
    names = [value.name or "" for value in made]
    probe = model.clone()
    outputs = {value.name: value for node in probe.graph for value in node.outputs}
    probe.graph.outputs.clear()
    probe.graph.outputs.extend(outputs[name] for name in names)
    drop_unused(probe)
    try:
        with backend.load(probe, lean=True) as runner:
            known = {info.name: info for info in runner.outputs}
    except InputError as error:
        node = next((node for node in model.graph if is_plugin(node) and node.op_type in error.cause), None)
        named = f": node {node.name} ({node.op_type})" if node is not None else ""
        raise InputError(f"{error.title}{named}", error.cause, "Give the library that brings it with --ort-ops (it may "
                         "be repeated); without the option the simulation ends before the node.") from None
    for value in made:
        info = known[value.name or ""]
        if info.dtype != np.dtype(object):
            value.type = ir.TensorType(ir.DataType.from_numpy(info.dtype))
            value.shape = ir.Shape(info.shape) if info.shape else value.shape
    infer_shapes(model)
