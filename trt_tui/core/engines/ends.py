"""Where the results of a network's groups can be read from an engine as it was built: the ends of its kernels.

The names of what kernels hand on are TensorRT's own; the inspector says which kernel writes which, and which layers are
in it. A group's result is there if the last kernel that names its layer ends with it, or with a copy of it. Codes
are what a Quantize of the typed network makes of it, with that one's scale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.core.codes import CODES
from trt_tui.core.engines.inspector import COMPUTE, EngineLayer, EngineReport
from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.layers import Kind
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FLOATS
from trt_tui.core.runner import Handed


@dataclass(frozen=True)
class Scale:
    """How codes become floats: times ``values``, one for all or one for each slice along ``axis``."""

    values: np.ndarray
    axis: int | None = None


@dataclass(frozen=True)
class KernelEnd:
    """A result of the network that a kernel hands on.

    Attributes:
        tensor: The network's tensor: the last one of a group, or what copies alone make of it.
        name: The engine's word for it.
        scale: Of codes; None where it is a float.
        strides: In which elements lie one after the other in memory, where the inspector says so and it is not C order.
    """

    tensor: str
    name: str
    scale: Scale | None = None
    strides: tuple[int, ...] | None = None


def kernel_ends(report: EngineReport, network: Network, typed: ir.Model, text: str) -> dict[str, KernelEnd]:
    """The ends of kernels at which groups can be judged, by group name; a group whose result no kernel hands on is
    absent.

    Args:
        report: The engine's layers.
        typed: What the engine was built from.
        text: The inspector's JSON, of which ``report`` was read.
    """
    quantized, layouts = _quantized(typed, network), _layouts(text)
    written: dict[str, tuple[EngineLayer, int]] = {}
    last: dict[str, EngineLayer] = {}
    for layer in report.layers:
        if not layer.prepares:
            written.update((name, (layer, index)) for index, name in enumerate(layer.writes))
        if layer.kind == COMPUTE and not layer.prepares:
            last.update(dict.fromkeys(layer.nodes, layer))
    found: dict[str, KernelEnd] = {}
    for group in network.groups:
        maker = network.producer.get(group.tail)
        kernel = last.get(maker) if maker is not None else None
        end = _by_name(group.tail, written, quantized)
        if end is None and kernel is not None:
            end = _by_kernel(group.tail, kernel, network, quantized)
        if end is not None:
            found[group.name] = KernelEnd(*end, layouts.get(end[1]))
    return found


def _by_name(tensor: str, written: Mapping[str, tuple[EngineLayer, int]], quantized: Mapping[str, tuple[str, Scale]]
             ) -> tuple[str, str, Scale | None] | None:
    """A tensor that an engine layer writes under the name that it has in the network, or its codes."""
    known = written.get(tensor)
    if known is not None and known[0].gives[known[1]] in FLOATS:
        return tensor, tensor, None
    for name, (source, scale) in quantized.items():
        made = written.get(name)
        if source == tensor and made is not None and made[0].gives[made[1]] in CODES:
            return tensor, name, scale
    return None


def _by_kernel(tensor: str, layer: EngineLayer, network: Network, quantized: Mapping[str, tuple[str, Scale]]
               ) -> tuple[str, str, Scale | None] | None:
    """What the last kernel that names the tensor's layer hands on, if that is this tensor or a copy of it and no more.
    """
    inside = set(layer.nodes)
    end = tensor
    while (readers := network.consumers.get(end, ())) and all(reader in inside for reader in readers):
        copies = [network.layer(reader) for reader in readers]
        if len(copies) != 1 or copies[0].kind is not Kind.COPY or len(copies[0].outputs) != 1:
            return None
        end = copies[0].outputs[0]
    if any(_leaves(name, network, inside) for node in inside for name in network.layer(node).outputs if name != end):
        return None
    floats = [name for name, given in zip(layer.writes, layer.gives, strict=True) if given in FLOATS]
    codes = [name for name, given in zip(layer.writes, layer.gives, strict=True) if given in CODES]
    if len(floats) == 1:
        return end, floats[0], None
    scales = [scale for name, (source, scale) in quantized.items() if source == tensor and name in layer.added]
    if not floats and len(codes) == 1 and len(scales) == 1:
        return end, codes[0], scales[0]
    return None


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


def readings(handed: Handed, end: KernelEnd, shape: tuple[int, ...]) -> list[np.ndarray]:
    """What a kernel has handed on, float32 in the shape of the network's tensor: as it lies in memory, and as the
    inspector's strides would have it where these are others and fit. Empty where its size is another.

    TensorRT does not say in which of both a debug tensor comes; of one reading nothing but noise is left.
    """
    values = handed.values
    if values.size != int(np.prod(shape)) or (handed.precision in CODES) is (end.scale is None):
        return []
    found = [values]
    strides = end.strides
    if strides is not None and len(strides) == values.ndim and all(values.shape) and 1 + sum(
            (size - 1) * stride for size, stride in zip(values.shape, strides, strict=True)) <= values.size:
        flat = np.ascontiguousarray(values)
        found.append(np.lib.stride_tricks.as_strided(
            flat, values.shape, tuple(stride * flat.itemsize for stride in strides), writeable=False))
    return [_floats(one.reshape(shape), end.scale) for one in found]


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
