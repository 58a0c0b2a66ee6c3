"""The refusal of small files whose constant expressions expand to more memory than is available."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.inference import declared_shape
from trt_tui.core.network.layers import Layer, LayerKind, Shape
from trt_tui.errors import InputError
from trt_tui.formatting import byte_size_text

MAX_GROWTH_BYTES = 2 << 30
"""The growth of the constants, in bytes, that is accepted for a file of any size."""

MAX_GROWTH_FACTOR = 16
"""The accepted growth of the constants as a multiple of the file size: 4-bit weights that are unpacked to FP32 twice.
"""

_MAX_SMALL_ELEMENTS = 64
"""The maximum number of elements of a tensor whose values are evaluated: sizes, repeats, limits."""

_SHRINKING_OPERATORS = frozenset(("Compress", "NonZero", "Unique"))
"""Operators whose results are not larger than their inputs, but have a size that onnx does not infer."""


def check_constant_growth(graph: LayerGraph, opsets: Mapping[str, int], file_name: str, file_bytes: int) -> None:
    """Refuses a network whose constants, once computed, need far more memory than the file.

    The growth of a layer is the size of its constant results minus the size of all its inputs, or 0 if negative. Sizes
    are inferred; if that fails, the small constants that determine them are computed here. Sizes that depend on the
    values of large constants are unknown and do not count.

    Args:
        opsets: Opsets by domain.
        file_name: The name of the file, for messages.
        file_bytes: Size of the file and its external data.

    Raises:
        InputError: the constants grow too much; the error names the layer with the largest growth.
    """
    layers = [layer for layer in graph.layers if layer.kind is LayerKind.CONSTANT and layer.inputs]
    sizes = _ConstantSizes(graph, opsets)
    sizes.infer_missing_shapes(layers)
    growth_bytes: dict[str, int] = {}
    for layer in layers:
        result_bytes = sum(map(sizes.count_bytes, filter(None, layer.outputs)))
        growth_bytes[layer.name] = max(
            0, result_bytes - sum(map(sizes.count_bytes, {name
                                                          for name in layer.inputs
                                                          if name})))
    if sum(growth_bytes.values()) > max(MAX_GROWTH_BYTES, MAX_GROWTH_FACTOR * file_bytes):
        name = max(growth_bytes, key=growth_bytes.__getitem__)
        layer = graph.by_name[name]
        raise InputError(f"{file_name} computes constants that do not fit in memory",
                         f"{name} ({layer.op_type}) needs {byte_size_text(growth_bytes[name])} from a file of "
                         f"{byte_size_text(file_bytes)}", "Check the sizes at its inputs, and export the network "
                                                          "again.")


class _ConstantSizes:
    """The shapes of constant tensors, and the values of small ones, as far as they can be inferred."""

    def __init__(self, graph: LayerGraph, opsets: Mapping[str, int]) -> None:
        self._graph = graph
        self._opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        self._shapes: dict[str, Shape] = {}
        self._values: dict[str, np.ndarray] = {}

    def count_bytes(self, tensor: str) -> int:
        """Returns the size of a tensor in bytes; 0 if unknown."""
        shape = self._find_shape(tensor)
        element_count = _count_elements(shape)
        dtype = self._graph.ir_value(tensor).dtype
        return 0 if element_count is None else math.ceil(element_count * (4 if dtype is None else dtype.itemsize))

    def infer_missing_shapes(self, layers: Iterable[Layer]) -> None:
        """Infers the shapes of constant layers that the shape inference of the whole network left open."""
        layers = list(layers)
        needed_tensors = {
            name
            for layer in layers
            for name in layer.outputs
            if name and _count_elements(self._find_shape(name)) is None
        }
        if not needed_tensors:
            return
        for layer in reversed(layers):
            if not needed_tensors.isdisjoint(layer.outputs):
                needed_tensors.update(layer.inputs)
        for layer in layers:
            if not needed_tensors.isdisjoint(layer.outputs):
                self._infer_layer_shapes(layer)

    def _find_shape(self, tensor: str) -> Shape | None:
        return self._shapes.get(tensor) or self._graph.shape(tensor)

    def _read_small_constant(self, tensor: str) -> np.ndarray | None:
        if tensor not in self._values:
            constant = stored_tensor(self._graph.ir_value(tensor))
            if constant is None or constant.size > _MAX_SMALL_ELEMENTS or constant.dtype == ir.DataType.STRING:
                return None
            self._values[tensor] = constant.numpy()
        return self._values[tensor]

    def _infer_layer_shapes(self, layer: Layer) -> None:
        """Infers the shapes of a layer's results from its small inputs, and computes small results."""
        input_names = [name for name in dict.fromkeys(layer.inputs) if name]
        small_inputs = {name: value for name in input_names if (value := self._read_small_constant(name)) is not None}
        try:
            model = self._build_layer_model(layer, small_inputs)
            inferred_model = onnx.shape_inference.infer_shapes(model)
            for info in inferred_model.graph.output:
                if info.type.tensor_type.HasField("shape"):
                    self._shapes[info.name] = declared_shape(info)
            counts = [_count_elements(self._find_shape(name)) for name in layer.outputs if name]
            is_small = layer.op_type in _SHRINKING_OPERATORS or all(count is not None and count <= _MAX_SMALL_ELEMENTS
                                                                    for count in counts)
            if is_small and len(small_inputs) == len(input_names):
                results = ReferenceEvaluator(model).run(None, {})
                self._values.update((info.name, np.asarray(value)) for info, value
                                    in zip(model.graph.output, results, strict=True))
        except Exception:  # shapes that onnx cannot infer or compute stay open
            return

    def _build_layer_model(self, layer: Layer, small_inputs: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        """Builds a model of a single layer: small inputs are initializers, the others are inputs of the model."""
        inputs = [onnx.helper.make_tensor_value_info(name, int(dtype), self._find_shape(name))
                  for name in dict.fromkeys(layer.inputs) if name and name not in small_inputs
                  and (dtype := self._graph.ir_value(name).dtype) is not None]
        outputs = [onnx.helper.make_tensor_value_info(name, int(self._graph.ir_value(name).dtype or 0), None)
                   for name in layer.outputs if name]
        stored_tensors = [onnx.numpy_helper.from_array(value, name) for name, value in small_inputs.items()]
        graph = onnx.helper.make_graph([ir.to_proto(self._graph.node(layer.name))], "alone", inputs, outputs,
                                       stored_tensors)
        return onnx.helper.make_model(graph, opset_imports=self._opsets)


def _count_elements(shape: Shape | None) -> int | None:
    """Returns the number of elements of a shape; None if a size is open."""
    if shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(shape) else None
