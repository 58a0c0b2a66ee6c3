"""Small files whose constants grow without bound when computed: they are refused, with the name of the layer."""

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Kind, Layer, Shape
from trt_tui.errors import InputError
from trt_tui.words import byte_size

MOST_BYTES = 2 << 30
"""What constants may grow by whatever the file's size."""

MOST_TIMES = 16
"""What they may grow by in terms of the file's size: weights of 4 bits that a file unpacks to FP32 twice."""

_LARGEST = 64
"""Elements of a tensor whose values are looked at: sizes, repeats, limits."""

_SHRINK = frozenset(("Compress", "NonZero", "Unique"))
"""Operators whose results have a size that onnx does not infer, and that is not larger than their input's."""


def refuse_growth(graph: LayerGraph, opsets: Mapping[str, int], file: str, stored: int) -> None:
    """Refuses a network whose constants, once computed, take far more memory than the file.

    What a layer computes from constants counts as far as it is larger than all that the layer reads. Sizes are
    inferred; where they are not, the small constants that decide them are computed here. Sizes that the values of large
    constants decide are not known and do not count.

    Args:
        opsets: By domain.
        file: Its name, for messages.
        stored: Bytes of the file and its external data.

    Raises:
        InputError: with the name of the layer that grows most.
    """
    layers = [layer for layer in graph.layers if layer.kind is Kind.CONSTANT and layer.inputs]
    sizes = _Sizes(graph, opsets)
    sizes.find(layers)
    grown: dict[str, int] = {}
    for layer in layers:
        made = sum(map(sizes.bytes_of, filter(None, layer.outputs)))
        grown[layer.name] = max(0, made - sum(map(sizes.bytes_of, {name for name in layer.inputs if name})))
    if sum(grown.values()) > max(MOST_BYTES, MOST_TIMES * stored):
        name = max(grown, key=grown.__getitem__)
        layer = graph.by_name[name]
        raise InputError(f"{file} computes constants that do not fit in memory",
                         f"{name} ({layer.op_type}) makes {byte_size(grown[name])} out of a file of "
                         f"{byte_size(stored)}", "Check the sizes it is given, and export the network again.")


class _Sizes:
    """Shapes of constant tensors, and the values of small ones."""

    def __init__(self, graph: LayerGraph, opsets: Mapping[str, int]) -> None:
        self._graph = graph
        self._opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        self._shapes: dict[str, Shape] = {}
        self._values: dict[str, np.ndarray] = {}

    def bytes_of(self, tensor: str) -> int:
        """0 where the size is not known."""
        shape = self._shape(tensor)
        known = _count(shape)
        dtype = self._graph.value(tensor).dtype
        return 0 if known is None else math.ceil(known * (4 if dtype is None else dtype.itemsize))

    def find(self, layers: Iterable[Layer]) -> None:
        """Looks for the shapes that inference left open."""
        layers = list(layers)
        needed = {name for layer in layers for name in layer.outputs if name and _count(self._shape(name)) is None}
        if not needed:
            return
        for layer in reversed(layers):
            if not needed.isdisjoint(layer.outputs):
                needed.update(layer.inputs)
        for layer in layers:
            if not needed.isdisjoint(layer.outputs):
                self._look_at(layer)

    def _shape(self, tensor: str) -> Shape | None:
        return self._shapes.get(tensor) or self._graph.shape(tensor)

    def _small(self, tensor: str) -> np.ndarray | None:
        if tensor not in self._values:
            stored = constant_tensor(self._graph.value(tensor))
            if stored is None or stored.size > _LARGEST or stored.dtype == ir.DataType.STRING:
                return None
            self._values[tensor] = stored.numpy()
        return self._values[tensor]

    def _look_at(self, layer: Layer) -> None:
        """Infers the shapes of one layer's results, its small inputs given, and computes small results."""
        named = [name for name in dict.fromkeys(layer.inputs) if name]
        small = {name: value for name in named if (value := self._small(name)) is not None}
        try:
            model = self._alone(layer, small)
            inferred = onnx.shape_inference.infer_shapes(model)
            for info in inferred.graph.output:
                if info.type.tensor_type.HasField("shape"):
                    self._shapes[info.name] = tuple(_dimensions(info))
            counts = [_count(self._shape(name)) for name in layer.outputs if name]
            bounded = layer.op_type in _SHRINK or all(count is not None and count <= _LARGEST for count in counts)
            if bounded and len(small) == len(named):
                results = ReferenceEvaluator(model).run(None, {})
                self._values.update((info.name, np.asarray(value)) for info, value
                                    in zip(model.graph.output, results, strict=True))
        except Exception:  # what onnx cannot infer or compute stays open
            return

    def _alone(self, layer: Layer, small: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        """The layer as a network of its own: small inputs stored, the others given."""
        inputs = [onnx.helper.make_tensor_value_info(name, int(dtype), self._shape(name))
                  for name in dict.fromkeys(layer.inputs) if name and name not in small
                  and (dtype := self._graph.value(name).dtype) is not None]
        outputs = [onnx.helper.make_tensor_value_info(name, int(self._graph.value(name).dtype or 0), None)
                   for name in layer.outputs if name]
        stored = [onnx.numpy_helper.from_array(value, name) for name, value in small.items()]
        graph = onnx.helper.make_graph([ir.to_proto(self._graph.node(layer.name))], "alone", inputs, outputs, stored)
        return onnx.helper.make_model(graph, opset_imports=self._opsets)


def _dimensions(info: onnx.ValueInfoProto) -> Iterator[int | None]:
    for size in info.type.tensor_type.shape.dim:
        yield size.dim_value if size.HasField("dim_value") else None


def _count(shape: Shape | None) -> int | None:
    """Elements of a tensor; None where a size is open."""
    if shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(shape) else None
