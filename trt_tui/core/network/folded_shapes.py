"""The sizes of tensors that a file leaves open, from its shape arithmetic and from the sizes of inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from trt_tui.core.network.graph import count_macs
from trt_tui.core.network.layers import NetworkOutline, Shape
from trt_tui.core.network.network import Network
from trt_tui.core.network.opset_conversion import detach_big_weights
from trt_tui.core.network.shape_arithmetic import SmallTensorValues, infer_folded_shapes

_MAX_LAYERS = 5_000
"""The maximum number of layers of a network whose shapes are folded, which takes about a second."""


class FoldedShapes:
    """The shapes of a network's tensors. If inference leaves a size open, the shape arithmetic is folded to find it.

    The arithmetic is folded at the first request for a tensor with an open size. All sizes of the network inputs except
    the batch must be fixed. In other networks the open sizes depend on the data.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._has_fixed_inputs = all(
            isinstance(size, int) for info in network.inputs for size in (info.shape or (None,) * 2)[1:]
        )
        self._values = SmallTensorValues(network.graph)

    def find_shape(self, tensor: str) -> Shape | None:
        """Returns the shape of a tensor; None if its rank is unknown."""
        shape = self._network.shape(tensor)
        if not self._has_fixed_inputs or shape is not None and all(isinstance(size, int) for size in shape[1:]):
            return shape
        folded_shape = self._shape_by_tensor.get(tensor)
        return shape if folded_shape is None or shape is not None and len(folded_shape) != len(shape) else folded_shape

    def find_integer_values(self, tensor: str) -> list[int] | None:
        """Returns the values of an integer tensor that the file computes from fixed sizes; None for any other tensor."""
        return self._values.find_integers(tensor) if self._has_fixed_inputs and self._shape_by_tensor else None

    @cached_property
    def _shape_by_tensor(self) -> Mapping[str, Shape]:
        return infer_folded_shapes(self._network.graph, detach_big_weights(self._network.model)[0], self._values)


def build_outline_for_input_sizes(network: Network, input_sizes: Mapping[str, Sequence[int]]) -> NetworkOutline:
    """Returns the network outline with the shapes and multiply-accumulates that follow from the given input sizes.

    Shapes and counts that the file already determines are kept.

    Args:
        input_sizes: Sizes by input name. If all inputs with an open first axis share its size, that size is a batch and
            counts as 1.
    """
    outline = network.build_outline()
    if len(outline.layers) > _MAX_LAYERS or all(layer.macs is not None for layer in outline.layers):
        return outline
    open_batch_inputs = [info.name for info in network.inputs if info.shape and not isinstance(info.shape[0], int)]
    is_batched = len({tuple(input_sizes[name][:1]) for name in open_batch_inputs if name in input_sizes}) == 1
    model, _ = detach_big_weights(network.model)
    for info in model.graph.input:
        for axis, (dim, size) in enumerate(
            zip(info.type.tensor_type.shape.dim, input_sizes.get(info.name, ()), strict=False)
        ):
            if not dim.HasField("dim_value"):
                dim.dim_value = 1 if is_batched and not axis else size
    shape_by_tensor = infer_folded_shapes(network.graph, model, SmallTensorValues(network.graph))
    layers = tuple(
        layer
        if layer.macs is not None
        else replace(
            layer, macs=count_macs(network.node(layer.name), lambda value: shape_by_tensor.get(value.name or ""))
        )
        for layer in outline.layers
    )
    shapes = {
        name: shape_by_tensor.get(name, shape)
        if shape is None or None in shape[1:] or any(isinstance(size, str) for size in shape[1:])
        else shape
        for name, shape in outline.shapes.items()
    }
    return replace(outline, layers=layers, shapes=shapes)
