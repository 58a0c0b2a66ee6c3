"""A clone of a network in which tensors are read and reduced, and to which operators are added."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.adaptive_runner import load_adaptive_runner
from trt_tui.core.data.samples import Samples
from trt_tui.core.network.model_outputs import drop_unused_nodes
from trt_tui.core.network.naming import value_name
from trt_tui.core.network.small_layers import collect_garbage_and_trim_memory, has_many_small_layers
from trt_tui.core.runner import Backend, Runner
from trt_tui.errors import InputError, OutOfMemoryError

AMAX_OPERATORS = "ReduceMax", "ReduceMin", "ReduceL1"
"""The reductions from which `read_amax` computes. The first two ignore NaN; the sum of magnitudes does not."""


class NetworkProbe:
    """A clone of a network with chosen outputs and added operators. Weights are shared with the original."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model.clone()
        graph = self.model.graph
        self._values: dict[str, ir.Value] = {value_name(value): value for value in graph.inputs}
        self._values.update((value.name, value) for node in graph for value in node.outputs if value.name)
        graph.outputs.clear()
        self._added_count = 0
        self._extra_inputs: list[str] = []

    def get_fp32_value(self, tensor_name: str) -> ir.Value:
        """Returns a tensor of the cloned network as an FP32 value, with a Cast if its type is another float type.

        Raises:
            InputError: The tensor does not exist, or its elements are not floating-point numbers.
        """
        value = self._values.get(tensor_name)
        if value is None:
            raise InputError(
                f"The network has no tensor '{tensor_name}'", "Only inputs and outputs of its layers can have ranges."
            )
        if value.dtype is not None and not value.dtype.is_floating_point():
            raise InputError(f"Tensor '{tensor_name}' is {value.dtype.name}",
                             "Only floating-point tensors have a range.")
        return value if value.dtype == ir.DataType.FLOAT else self.append_operator("Cast", value, to=int(
            ir.DataType.FLOAT))

    def add_input(self, name: str, dtype: ir.DataType, rank: int) -> ir.Value:
        """Adds an input of any sizes to the cloned network. It is divided into samples like the other inputs, unless
        its rank is 0."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([None] * rank))
        self.model.graph.inputs.append(value)
        if rank:
            self._extra_inputs.append(name)
        return value

    def add_constant(self, array: np.ndarray | np.generic) -> ir.Value:
        """Adds an array to the cloned network as a new initializer."""
        self._added_count += 1
        name = f"trt_tui_constant_{self._added_count}"
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
                         shape=ir.Shape(array.shape), const_value=ir.tensor(np.asarray(array), name=name))
        self.model.graph.register_initializer(value)
        return value

    def append_operator(self, operator: str, *values: ir.Value, dtype: ir.DataType = ir.DataType.FLOAT,
                        **attributes: int | float) -> ir.Value:
        """Adds an operator to the cloned network and returns its output.

        The operator follows the producer of its first computed input, or the whole graph if no input is computed.
        """
        self._added_count += 1
        node = ir.node(operator, list(values), attributes, name=f"trt_tui_probe_{self._added_count}")
        producer = next(filter(None, (value.producer() for value in values)), None)
        if producer is None:
            self.model.graph.append(node)
        else:
            self.model.graph.insert_after(producer, node)
        result = node.outputs[0]
        result.name, result.type = node.name, ir.TensorType(dtype)
        return result

    def load_probe_runner(self, backend: Backend, samples: Samples) -> Runner:
        """Loads the part of the cloned network that its outputs need.

        Other layers are dropped, because a network can contain plugins after the outputs whose library was not loaded.
        """
        drop_unused_nodes(self.model)
        has_small_layers = has_many_small_layers(self.model.graph)
        if has_small_layers:
            collect_garbage_and_trim_memory()
        try:
            return load_adaptive_runner(backend, self.model, samples, extra_inputs=self._extra_inputs, low_memory=True,
                                        optimize=not has_small_layers, frees_tensors_early=True)
        except OutOfMemoryError:
            raise
        except InputError:  # If two Convs are added, the fusions of ONNX Runtime can lose one that is also an output.
            return load_adaptive_runner(backend, self.model, samples, extra_inputs=self._extra_inputs, low_memory=True,
                                        optimize=False, frees_tensors_early=True)

    def add_output(self, value: ir.Value) -> str:
        """Makes a value an output of the cloned network and returns the name of that output."""
        if value.is_graph_input():
            value = self.append_operator("Identity", value)
        self.model.graph.outputs.append(value)
        return value_name(value)

    def add_reductions(self, value: ir.Value, *operators: str) -> list[str]:
        """Adds reductions of a value to a single number, and returns the names of these outputs."""
        return [self._add_scalar_output(self.append_operator(operator, value, keepdims=0)) for operator in operators]

    def add_size(self, value: ir.Value) -> str:
        """Adds the number of elements of a value, and returns the name of this output."""
        return self._add_scalar_output(self.append_operator("Size", value, dtype=ir.DataType.INT64))

    def _add_scalar_output(self, value: ir.Value) -> str:
        value.shape = ir.Shape([])
        return self.add_output(value)


def read_amax(scalars: Mapping[str, np.ndarray], names: Sequence[str]) -> float:
    """Returns the amax of a tensor from the outputs of its `AMAX_OPERATORS`: NaN or infinite if it holds such a value.
    """
    largest, smallest, norm = (float(scalars[name]) for name in names)
    return math.nan if math.isnan(norm) else max(largest, -smallest)
