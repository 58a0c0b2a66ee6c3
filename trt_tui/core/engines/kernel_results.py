"""Where the results of a network's groups can be read from an engine as it was built: the ends of its kernels.

The names of what kernels hand on are TensorRT's own; the inspector says which kernel writes which, and which layers are
in it. A group's result is there if the last kernel that names its layer ends with it, or with a copy of it. Codes
are what a Quantize of the typed network makes of it, with that one's scale.
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
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import DebugTensor


@dataclass(frozen=True)
class DequantizeScale:
    """How codes become floats: times ``values``, one for all or one for each slice along ``axis``."""

    values: np.ndarray
    axis: int | None = None


@dataclass(frozen=True)
class KernelOutput:
    """What a kernel writes, and how it is read.

    Attributes:
        tensor: The engine's word for it.
        scale: Of codes; None where it is a float.
        strides: In which elements lie one after the other in memory, where the inspector says so and it is not C order.
    """

    tensor: str
    scale: DequantizeScale | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class KernelResult:
    """A result of the network that a kernel hands on.

    Attributes:
        tensor: The network's tensor: the last one of a group, or what copies alone make of it.
        possible_outputs: What it may be among what the kernel writes; the one where it writes only one.
    """

    tensor: str
    possible_outputs: tuple[KernelOutput, ...]


def find_kernel_results(engine_report: EngineReport, network: Network, typed_model: ir.Model,
                        inspector_json: str) -> dict[str, KernelResult]:
    """The ends of kernels at which groups can be judged, by group name; a group whose result no kernel hands on is
    absent.

    Args:
        engine_report: The engine's layers.
        typed_model: What the engine was built from.
        inspector_json: The inspector's JSON, of which ``engine_report`` was read.
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
        """A tensor that an engine layer writes under the name that it has in the network, or its codes."""
        if self.tensor_types.get(tensor_name) in FLOAT_PRECISIONS:
            return KernelResult(tensor_name, (self._build_kernel_output(tensor_name),))
        for name, (source, scale) in self.quantized_tensors.items():
            if source == tensor_name and self.tensor_types.get(name) in QUANTIZED_TYPES:
                return KernelResult(tensor_name, (self._build_kernel_output(name, scale),))
        return None

    def _find_result_by_kernel(self, tensor_name: str, engine_layer: EngineLayer) -> KernelResult | None:
        """What the last kernel that names the tensor's layer writes, if this tensor or a copy of it leaves it."""
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
        if len(leaving_tensors) == 1:  # one result may be written as floats and as codes
            return KernelResult(last_tensor, possible_outputs[:1]) if possible_outputs else None
        output_names = {output.tensor for outputs in outputs_by_tensor.values() for output in outputs}
        return KernelResult(last_tensor, possible_outputs) if possible_outputs and len(output_names) == len(
            engine_layer.output_tensors) == len(leaving_tensors) else None

    def _list_possible_outputs(self, tensor_name: str, engine_layer: EngineLayer) -> tuple[KernelOutput, ...]:
        """What a result may be among what a kernel writes: a float, or codes where something quantizes it."""
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
    """The scale of a result that a kernel hands on as codes: of the Quantize behind it, or behind what hands codes on
    as they are; None where there is none, or there are several."""
    reached, waiting = {tensor_name}, [tensor_name]
    while waiting:
        for reader in map(network.get_layer, network.consumers.get(waiting.pop(), ())):
            if reader.kind is LayerKind.COPY or reader.op_type in VALUE_PRESERVING:
                waiting += [name for name in reader.outputs if name not in reached]
                reached.update(reader.outputs)
    named_scales = {name: scale for name, (source, scale) in quantized_tensors.items() if source in reached}
    own_scales = [scale for name, scale in named_scales.items() if name in engine_layer.added_nodes]
    scales = own_scales or list(named_scales.values())
    is_unique = bool(scales) and all(
        other_scale.axis == scales[0].axis and np.array_equal(other_scale.values, scales[0].values)
        for other_scale in scales)
    return scales[0] if is_unique else None


def _is_read_outside_layers(tensor_name: str, network: Network, layer_names: set[str]) -> bool:
    """Whether something outside of some layers reads what one of them makes."""
    return network.is_float(tensor_name) and (any(info.name == tensor_name for info in network.outputs) or any(
        reader not in layer_names for reader in network.consumers.get(tensor_name, ())))


def _find_quantized_tensors(typed_model: ir.Model, network: Network) -> dict[str, tuple[str, DequantizeScale]]:
    """The network's tensor that each Quantize makes codes of, with the scale, by the names of the node and of the
    codes."""
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
        quantized_tensors |= dict.fromkeys((node.name or "", node.outputs[0].name or ""),
                                           (value.name or "", DequantizeScale(values, axis)))
    return quantized_tensors


def _read_output_strides(inspector_json: str) -> dict[str, tuple[int, ...]]:
    """Strides in elements of what engine layers write, by name, where the inspector tells them and they are not those
    of C order."""
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
    """What a kernel has handed on, float32 in the shape of the network's tensor: each of what it may be, as it lies in
    memory, and as the inspector's strides would have it where these are others and fit. What is of another size, or no
    float and without a scale, is left out.

    TensorRT does not say in which of both a debug tensor comes, nor which of a kernel's several results is which; of a
    wrong reading nothing but noise is left.
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
    scales = scale.values
    if scale.axis is not None:
        sizes = [1] * quantized_values.ndim
        sizes[scale.axis] = -1
        scales = scales.reshape(sizes)
    result: np.ndarray = quantized_values * scales
    return result
