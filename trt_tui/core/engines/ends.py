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

from trt_tui.core.codes import CODES
from trt_tui.core.engines.inspector import COMPUTE, EngineLayer, EngineReport
from trt_tui.core.lowering.rules import EXACT
from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.layers import Kind
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FLOATS, Precision
from trt_tui.core.runner import Handed


@dataclass(frozen=True)
class Scale:
    """How codes become floats: times ``values``, one for all or one for each slice along ``axis``."""

    values: np.ndarray
    axis: int | None = None


@dataclass(frozen=True)
class Written:
    """What a kernel writes, and how it is read.

    Attributes:
        name: The engine's word for it.
        scale: Of codes; None where it is a float.
        strides: In which elements lie one after the other in memory, where the inspector says so and it is not C order.
    """

    name: str
    scale: Scale | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class KernelEnd:
    """A result of the network that a kernel hands on.

    Attributes:
        tensor: The network's tensor: the last one of a group, or what copies alone make of it.
        written: What it may be among what the kernel writes; the one where it writes only one.
    """

    tensor: str
    written: tuple[Written, ...]


def kernel_ends(report: EngineReport, network: Network, typed: ir.Model, text: str) -> dict[str, KernelEnd]:
    """The ends of kernels at which groups can be judged, by group name; a group whose result no kernel hands on is
    absent.

    Args:
        report: The engine's layers.
        typed: What the engine was built from.
        text: The inspector's JSON, of which ``report`` was read.
    """
    return _Ends(report, network, _quantized(typed, network), _layouts(text)).found()


class _Ends:
    def __init__(self, report: EngineReport, network: Network, quantized: Mapping[str, tuple[str, Scale]],
                 layouts: Mapping[str, tuple[int, ...]]) -> None:
        self.network, self.quantized, self.layouts = network, quantized, layouts
        self.types: dict[str, Precision | None] = {}
        self.last: dict[str, EngineLayer] = {}
        for layer in report.layers:
            if not layer.prepares:
                self.types.update(zip(layer.writes, layer.gives, strict=True))
                if layer.kind == COMPUTE:
                    self.last.update(dict.fromkeys(layer.nodes, layer))

    def found(self) -> dict[str, KernelEnd]:
        ends: dict[str, KernelEnd] = {}
        for group in self.network.groups:
            kernel = self.last.get(self.network.producer.get(group.tail, ""))
            end = self._by_name(group.tail) or (self._by_kernel(group.tail, kernel) if kernel is not None else None)
            if end is not None:
                ends[group.name] = end
        return ends

    def _by_name(self, tensor: str) -> KernelEnd | None:
        """A tensor that an engine layer writes under the name that it has in the network, or its codes."""
        if self.types.get(tensor) in FLOATS:
            return KernelEnd(tensor, (self._written(tensor),))
        for name, (source, scale) in self.quantized.items():
            if source == tensor and self.types.get(name) in CODES:
                return KernelEnd(tensor, (self._written(name, scale),))
        return None

    def _by_kernel(self, tensor: str, layer: EngineLayer) -> KernelEnd | None:
        """What the last kernel that names the tensor's layer writes, if this tensor or a copy of it leaves it."""
        network, inside = self.network, set(layer.nodes)
        end = tensor
        while (readers := network.consumers.get(end, ())) and all(reader in inside for reader in readers):
            copies = [network.layer(reader) for reader in readers]
            if len(copies) != 1 or copies[0].kind is not Kind.COPY or len(copies[0].outputs) != 1:
                return None
            end = copies[0].outputs[0]
        leaving = [name for node in layer.nodes for name in network.layer(node).outputs
                   if name == end or _leaves(name, network, inside)]
        offered = {name: self._offered(name, layer) for name in leaving}
        written = offered[end] if end in offered else ()
        if len(leaving) == 1:  # one result may be written as floats and as codes
            return KernelEnd(end, written[:1]) if written else None
        known = {one.name for each in offered.values() for one in each}
        return KernelEnd(end, written) if written and len(known) == len(layer.writes) == len(leaving) else None

    def _offered(self, tensor: str, layer: EngineLayer) -> tuple[Written, ...]:
        """What a result may be among what a kernel writes: a float, or codes where something quantizes it."""
        floats = [self._written(name) for name in layer.writes if self.types[name] in FLOATS]
        scale = _scale_of(tensor, layer, self.network, self.quantized)
        codes = [self._written(name, scale) for name in layer.writes if self.types[name] in CODES and scale is not None]
        return (*floats, *codes)

    def _written(self, name: str, scale: Scale | None = None) -> Written:
        return Written(name, scale, self.layouts.get(name))


def _scale_of(tensor: str, layer: EngineLayer, network: Network, quantized: Mapping[str, tuple[str, Scale]]
              ) -> Scale | None:
    """The scale of a result that a kernel hands on as codes: of the Quantize behind it, or behind what hands codes on
    as they are; None where there is none, or there are several."""
    behind, waiting = {tensor}, [tensor]
    while waiting:
        for reader in map(network.layer, network.consumers.get(waiting.pop(), ())):
            if reader.kind is Kind.COPY or reader.op_type in EXACT:
                waiting += [name for name in reader.outputs if name not in behind]
                behind.update(reader.outputs)
    named = {name: scale for name, (source, scale) in quantized.items() if source in behind}
    inside = [scale for name, scale in named.items() if name in layer.added]
    scales = inside or list(named.values())
    same = bool(scales) and all(one.axis == scales[0].axis and np.array_equal(one.values, scales[0].values)
                                for one in scales)
    return scales[0] if same else None


def _leaves(tensor: str, network: Network, inside: set[str]) -> bool:
    """Whether something outside of some layers reads what one of them makes."""
    return network.is_float(tensor) and (any(info.name == tensor for info in network.outputs) or any(
        reader not in inside for reader in network.consumers.get(tensor, ())))


def _quantized(typed: ir.Model, network: Network) -> dict[str, tuple[str, Scale]]:
    """The network's tensor that each Quantize makes codes of, with the scale, by the names of the node and of the
    codes."""
    found: dict[str, tuple[str, Scale]] = {}
    for node in typed.graph:
        value = node.inputs[0] if node.op_type == "QuantizeLinear" else None
        scale = constant_tensor(node.inputs[1]) if value is not None else None
        if value is None or scale is None:
            continue
        while (maker := value.producer()) is not None and maker.op_type == "Cast" and maker.inputs[0] is not None \
                and not network.has_tensor(value.name or ""):
            value = maker.inputs[0]
        values = scale.numpy().astype(np.float32)
        axis = node.attributes.get_int("axis", 1) if values.ndim == 1 and values.size > 1 else None
        found |= dict.fromkeys((node.name or "", node.outputs[0].name or ""), (value.name or "", Scale(values, axis)))
    return found


def _layouts(text: str) -> dict[str, tuple[int, ...]]:
    """Strides in elements of what engine layers write, by name, where the inspector tells them and they are not those
    of C order."""
    found = {}
    entries: Sequence[Any] = json.loads(text, strict=False)["Layers"]
    for tensor in (one for entry in entries if isinstance(entry, dict) for one in entry.get("Outputs", ())):
        sizes, strides = tensor.get("Dimensions"), tensor.get("Strides")
        if isinstance(sizes, list) and isinstance(strides, list) and len(sizes) == len(strides):
            plain = [int(np.prod(sizes[axis + 1:])) for axis in range(len(sizes))]
            if any(size != 1 and one != other for size, one, other in zip(sizes, strides, plain, strict=True)):
                found[str(tensor.get("Name", ""))] = tuple(map(int, strides))
    return found


def readings(handed: Mapping[str, Handed], end: KernelEnd, shape: tuple[int, ...]) -> list[np.ndarray]:
    """What a kernel has handed on, float32 in the shape of the network's tensor: each of what it may be, as it lies in
    memory, and as the inspector's strides would have it where these are others and fit. What is of another size, or no
    float and without a scale, is left out.

    TensorRT does not say in which of both a debug tensor comes, nor which of a kernel's several results is which; of a
    wrong reading nothing but noise is left.
    """
    return [reading for one in end.written if one.name in handed
            for reading in _readings(handed[one.name], one, shape)]


def _readings(handed: Handed, written: Written, shape: tuple[int, ...]) -> list[np.ndarray]:
    values = handed.values
    if values.size != int(np.prod(shape)) or (handed.precision in CODES) is (written.scale is None):
        return []
    found = [values]
    strides = written.strides
    if strides is not None and len(strides) == values.ndim and all(values.shape) and 1 + sum(
            (size - 1) * stride for size, stride in zip(values.shape, strides, strict=True)) <= values.size:
        flat = np.ascontiguousarray(values)
        found.append(np.lib.stride_tricks.as_strided(
            flat, values.shape, tuple(stride * flat.itemsize for stride in strides), writeable=False))
    return [_floats(one.reshape(shape), written.scale) for one in found]


def _floats(values: np.ndarray, scale: Scale | None) -> np.ndarray:
    if scale is None:
        return values
    steps = scale.values
    if scale.axis is not None:
        sizes = [1] * values.ndim
        sizes[scale.axis] = -1
        steps = steps.reshape(sizes)
    result: np.ndarray = values * steps
    return result
