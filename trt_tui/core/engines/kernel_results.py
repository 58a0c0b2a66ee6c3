"""The kernel outputs of a built engine from which the results of fusion groups can be read.

TensorRT chooses the names of tensors between kernels. The inspector lists the outputs of each kernel and the layers in
it. The result of a group can be read if the last kernel with its layer writes this result or a copy of it. Quantized
values are those of a Quantize in the typed network, with the scale of that Quantize.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.core.engines.inspector import COMPUTE, EngineLayer, EngineReport
from trt_tui.core.lowering.rulebook import VALUE_PRESERVING
from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.layers import LayerKind
from trt_tui.core.network.model_editing import iterate_reachable
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import DebugTensor


@dataclass(frozen=True)
class DequantizeScale:
    """The scale that converts quantized values to floats: a single value, or one for each slice along ``axis``."""

    values: np.ndarray
    axis: int | None = None
    precision: Precision = Precision.INT8

    def is_equal(self, other: "DequantizeScale") -> bool:
        return (self.axis, self.precision) == (other.axis, other.precision) and np.array_equal(self.values,
                                                                                                 other.values)


@dataclass(frozen=True)
class KernelOutput:
    """One output tensor of a kernel, with the information to read its values.

    Attributes:
        tensor: The name in the engine.
        scale: The scale of quantized values; None for a float tensor.
        strides: Distances in memory, in elements. None if the inspector reports none or C order.
    """

    tensor: str
    scale: DequantizeScale | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class KernelResult:
    """A result of the network that can be read from the output of a kernel.

    Attributes:
        tensor: The network's tensor: the last one of a group, or a copy of it.
        possible_outputs: The outputs of the kernel that can hold the result; exactly one if the kernel writes only one.
    """

    tensor: str
    possible_outputs: tuple[KernelOutput, ...]


def find_kernel_results(engine_report: EngineReport, network: Network, typed_model: ir.Model,
                        inspector_json: str) -> dict[str, KernelResult]:
    """Finds the kernel outputs from which the results of groups can be read, by group name.

    A group whose result no kernel writes is absent.

    Args:
        engine_report: The layers of the engine.
        typed_model: The model from which the engine was built.
        inspector_json: The inspector's JSON from which ``engine_report`` was read.
    """
    return _KernelResultFinder(engine_report, network, _find_quantized_tensors(typed_model, network),
                               _read_output_strides(inspector_json)).find_all_results()


class _KernelResultFinder:
    def __init__(self, engine_report: EngineReport, network: Network,
                 quantized_tensors: Mapping[str, tuple[str, DequantizeScale]],
                 strides_by_output: Mapping[str, tuple[int, ...]]) -> None:
        self.network, self.quantized_tensors, self.strides_by_output = network, quantized_tensors, strides_by_output
        self.tensor_types: dict[str, Precision | None] = {}
        self.last_kernels: dict[str, EngineLayer] = {}
        for layer in engine_report.layers:
            if not layer.is_constant:
                self.tensor_types.update(zip(layer.output_tensors, layer.output_types, strict=True))
                if layer.kind == COMPUTE:
                    self.last_kernels.update(dict.fromkeys(layer.network_layers, layer))

    def find_all_results(self) -> dict[str, KernelResult]:
        results: dict[str, KernelResult] = {}
        for group in self.network.groups:
            kernel = self.last_kernels.get(self.network.producer.get(group.final_tensor, ""))
            result = self._find_result_by_name(group.final_tensor) or (self._find_result_by_kernel(
                group.final_tensor, kernel) if kernel is not None else None)
            if result is not None:
                results[group.name] = result
        return results

    def _find_result_by_name(self, tensor_name: str) -> KernelResult | None:
        """Finds a result by name: an engine tensor with the name of the network's tensor or of its quantized values."""
        if self.tensor_types.get(tensor_name) in FLOAT_PRECISIONS:
            return KernelResult(tensor_name, (self._build_kernel_output(tensor_name),))
        for name, (source, scale) in self.quantized_tensors.items():
            if source == tensor_name and self.tensor_types.get(name) in QUANTIZED_TYPES:
                return KernelResult(tensor_name, (self._build_kernel_output(name, scale),))
        return None

    def _find_result_by_kernel(self, tensor_name: str, engine_layer: EngineLayer) -> KernelResult | None:
        """Finds the kernel output that holds a tensor or a copy of it; None if neither leaves the kernel or outputs are
        ambiguous."""
        network, kernel_layers = self.network, set(engine_layer.network_layers)
        last_tensor = tensor_name
        while (readers := network.consumers.get(last_tensor,
                                                ())) and all(reader in kernel_layers for reader in readers):
            copies = [network.get_layer(reader) for reader in readers]
            if len(copies) != 1 or copies[0].kind is not LayerKind.COPY or len(copies[0].outputs) != 1:
                return None
            last_tensor = copies[0].outputs[0]
        leaving_tensors = [name for node in engine_layer.network_layers for name in network.get_layer(node).outputs
                           if name == last_tensor or _is_read_outside_layers(name, network, kernel_layers)]
        outputs_by_tensor = {name: self._list_possible_outputs(name, engine_layer) for name in leaving_tensors}
        possible_outputs = outputs_by_tensor[last_tensor] if last_tensor in outputs_by_tensor else ()
        if len(leaving_tensors) == 1:  # one result can be written both as floats and as quantized values
            return KernelResult(last_tensor, possible_outputs[:1]) if possible_outputs else None
        output_names = {output.tensor for outputs in outputs_by_tensor.values() for output in outputs}
        return KernelResult(last_tensor, possible_outputs) if possible_outputs and len(output_names) == len(
            engine_layer.output_tensors) == len(leaving_tensors) else None

    def _list_possible_outputs(self, tensor_name: str, engine_layer: EngineLayer) -> tuple[KernelOutput, ...]:
        """Lists the outputs of a kernel that can hold a result: floats, and quantized values if a Quantize reads the
        result."""
        float_outputs = [
            self._build_kernel_output(name)
            for name in engine_layer.output_tensors
            if self.tensor_types[name] in FLOAT_PRECISIONS
        ]
        scale = _find_dequantize_scale(tensor_name, engine_layer, self.network, self.quantized_tensors)
        quantized_outputs = [
            self._build_kernel_output(name, scale)
            for name in engine_layer.output_tensors
            if self.tensor_types[name] in QUANTIZED_TYPES and scale is not None
        ]
        return (*float_outputs, *quantized_outputs)

    def _build_kernel_output(self, output_name: str, scale: DequantizeScale | None = None) -> KernelOutput:
        return KernelOutput(output_name, scale, self.strides_by_output.get(output_name))


def _find_dequantize_scale(tensor_name: str, engine_layer: EngineLayer, network: Network,
                           quantized_tensors: Mapping[str, tuple[str, DequantizeScale]]) -> DequantizeScale | None:
    """Finds the scale of a result that a kernel writes as quantized values.

    It is the scale of the Quantize after the result, or after operators that only copy the values. None if there is no
    such Quantize, or if several have different scales.
    """
    reached = set(iterate_reachable([tensor_name], lambda tensor: [
        name for reader in map(network.get_layer, network.consumers.get(tensor, ())) for name in reader.outputs
        if reader.kind is LayerKind.COPY or reader.op_type in VALUE_PRESERVING]))
    named_scales = {name: scale for name, (source, scale) in quantized_tensors.items() if source in reached}
    own_scales = [scale for name, scale in named_scales.items() if name in engine_layer.added_nodes]
    scales = own_scales or list(named_scales.values())
    is_unique = bool(scales) and all(other_scale.is_equal(scales[0]) for other_scale in scales)
    return scales[0] if is_unique else None


def _is_read_outside_layers(tensor_name: str, network: Network, layer_names: set[str]) -> bool:
    """Returns True if a tensor is a network output or is read by a layer outside a set of layers."""
    return network.is_float(tensor_name) and (any(info.name == tensor_name for info in network.outputs) or any(
        reader not in layer_names for reader in network.consumers.get(tensor_name, ())))


def _find_quantized_tensors(typed_model: ir.Model, network: Network) -> dict[str, tuple[str, DequantizeScale]]:
    """Finds the network's tensor that each Quantize reads, with the scale.

    The keys are the name of the Quantize node and the name of its output.
    """
    quantized_tensors: dict[str, tuple[str, DequantizeScale]] = {}
    for node in typed_model.graph:
        value = node.inputs[0] if node.op_type == "QuantizeLinear" else None
        scale = stored_tensor(node.inputs[1]) if value is not None else None
        if value is None or scale is None:
            continue
        while ((producer := value.producer()) is not None and producer.op_type == "Cast"
               and producer.inputs[0] is not None and not network.has_tensor(value.name or "")):
            value = producer.inputs[0]
        values = scale.numpy().astype(np.float32)
        axis = node.attributes.get_int("axis", 1) if values.ndim == 1 and values.size > 1 else None
        precision = next((item for item, quantized_type in QUANTIZED_TYPES.items()
                          if quantized_type.onnx_type == node.outputs[0].dtype), Precision.INT8)
        quantized_tensors |= dict.fromkeys((node.name or "", node.outputs[0].name or ""),
                                           (value.name or "", DequantizeScale(values, axis, precision)))
    return quantized_tensors


def _read_output_strides(inspector_json: str) -> dict[str, tuple[int, ...]]:
    """Reads the strides in elements of engine layer outputs that are not in C order, by tensor name.

    Outputs without reported strides are absent.
    """
    strides_by_output = {}
    entries: Sequence[Any] = json.loads(inspector_json, strict=False)["Layers"]
    for tensor in (output for entry in entries if isinstance(entry, dict) for output in entry.get("Outputs", ())):
        sizes, strides = tensor.get("Dimensions"), tensor.get("Strides")
        if isinstance(sizes, list) and isinstance(strides, list) and len(sizes) == len(strides):
            plain = [int(np.prod(sizes[axis + 1:])) for axis in range(len(sizes))]
            if any(size != 1 and output != expected
                   for size, output, expected in zip(sizes, strides, plain, strict=True)):
                strides_by_output[str(tensor.get("Name", ""))] = tuple(map(int, strides))
    return strides_by_output


def decode_kernel_result(debug_tensors: Mapping[str, DebugTensor], kernel_result: KernelResult,
                         shape: tuple[int, ...]) -> list[np.ndarray]:
    """Decodes the result of a kernel into float32 arrays in the shape of the network's tensor. Several arrays are
    returned if the memory order or the output is ambiguous.

    Each possible output is read in memory order. If the inspector reports other strides that fit, it is also read with
    these. An output of another size, or of quantized values without a scale, is left out.

    TensorRT does not report in which of the two orders it returns a debug tensor, or which output of a kernel is which
    result. A wrong reading differs from the reference like noise.
    """
    return [reading for output in kernel_result.possible_outputs if output.tensor in debug_tensors
            for reading in _read_debug_tensor(debug_tensors[output.tensor], output, shape)]


def _read_debug_tensor(debug_tensor: DebugTensor, kernel_output: KernelOutput, shape: tuple[int,
                                                                                            ...]) -> list[np.ndarray]:
    values = debug_tensor.values
    if values.size != int(np.prod(shape)) or (debug_tensor.precision in QUANTIZED_TYPES) is (kernel_output.scale
                                                                                             is None):
        return []
    arrays = [values]
    strides = kernel_output.strides
    if strides is not None and len(strides) == values.ndim and all(values.shape) and 1 + sum(
            (size - 1) * stride for size, stride in zip(values.shape, strides, strict=True)) <= values.size:
        flat = np.ascontiguousarray(values)
        arrays.append(np.lib.stride_tricks.as_strided(
            flat, values.shape, tuple(stride * flat.itemsize for stride in strides), writeable=False))
    return [_dequantize(array.reshape(shape), kernel_output.scale) for array in arrays]


def _dequantize(quantized_values: np.ndarray, scale: DequantizeScale | None) -> np.ndarray:
    if scale is None:
        return quantized_values
    factors = scale.values if scale.axis is None else scale.values.reshape(
        [-1 if axis == scale.axis else 1 for axis in range(quantized_values.ndim)])
    result: np.ndarray = quantized_values * factors
    return result
