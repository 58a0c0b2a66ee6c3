"""The cells of an engine: its kernels with the network's layers in them, between which the network can be cut."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from trt_tui.core.engines.inspector import COMPUTE, REFORMAT, EngineLayer, EngineReport
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.formatting import name_list_text

KernelSignature = tuple[tuple[str, ...], str, Precision | None, tuple[str, ...], tuple[str, ...]]
"""The layers of an engine layer, its kernel, its precision, and the types that it reads and writes. Equal signatures
mean the same fused layers, types and tactic."""


@dataclass(frozen=True)
class EngineCell:
    """The smallest part of an engine that can be cut out: one kernel, or several that share layers.

    Attributes:
        name: The names of its engine layers.
        layers: The network's layers that it computes, in network order.
        signatures: The signature of each kernel, sorted.
        kernel_names: The names of its kernels, as far as the release reports them.
        precision: The precision of its first kernel; None if it is not reported.
    """

    name: str
    layers: tuple[str, ...]
    signatures: tuple[KernelSignature, ...]
    kernel_names: tuple[str, ...]
    precision: Precision | None


def list_engine_cells(engine_report: EngineReport, network: Network) -> tuple[EngineCell, ...]:
    """Lists the cells of an engine in the order of execution.

    A layer in no kernel, such as a Reshape that TensorRT removes, belongs to the cell before it. Two cells are joined
    if the inspector does not show the tensor between them.
    """
    kernels = _list_kernels(engine_report, network)
    shown_tensors = {name for layer in engine_report.layers for name in (*layer.input_tensors, *layer.output_tensors)}
    joins = _Joins(len(kernels))
    cell_by_layer: dict[str, int] = {}
    for index, kernel in enumerate(kernels):
        for name in kernel.network_layers:
            joins.join_cells(cell_by_layer.setdefault(name, index), index)
    _assign_removed_layers(network, cell_by_layer)
    for index in range(len(kernels)):
        layers = {name for name, cell in cell_by_layer.items() if joins.find_cell(cell) == joins.find_cell(index)}
        outputs = find_piece_boundary(network, layers)[1]
        for tensor in outputs if len(outputs) > 1 else ():
            if tensor not in shown_tensors:
                for reader in network.consumers.get(tensor, ()):
                    if reader in cell_by_layer:
                        joins.join_cells(index, cell_by_layer[reader])
    members: dict[int, list[int]] = {}
    for index in range(len(kernels)):
        members.setdefault(joins.find_cell(index), []).append(index)
    layers_by_cell: dict[int, list[str]] = {}
    for layer in network.layers:
        if layer.name in cell_by_layer:
            layers_by_cell.setdefault(joins.find_cell(cell_by_layer[layer.name]), []).append(layer.name)
    return tuple(_make_cell([kernels[index] for index in indices], layers_by_cell[cell])
                 for cell, indices in members.items())


def _list_kernels(engine_report: EngineReport, network: Network) -> list[EngineLayer]:
    """Lists the kernels that compute layers. A fused region has the layers between its inputs and its outputs.

    The name of a region shows only its first and its last layer, between which other kernels can be too.
    """
    kernels = [layer for layer in engine_report.layers if layer.kind == COMPUTE and not layer.is_constant]
    taken = {name for kernel in kernels if not kernel.is_fused_region for name in kernel.network_layers}
    sources = {output: layer.input_tensors[0] for layer in engine_report.layers if layer.kind == REFORMAT
               for output in layer.output_tensors if len(layer.input_tensors) == 1}
    targets = {source: output for output, source in sources.items()}
    listed = []
    for kernel in kernels:
        if kernel.is_fused_region:
            inputs = {name for tensor in kernel.input_tensors for name in (tensor, sources.get(tensor, tensor))}
            outputs = {name for tensor in kernel.output_tensors for name in (tensor, targets.get(tensor, tensor))}
            layers = _find_layers_between(network, inputs, outputs, taken)
            taken.update(layers)
            kernel = replace(kernel, network_layers=layers or tuple(
                name for name in kernel.network_layers if name not in taken))
        layers = tuple(name for name in kernel.network_layers if _computes_from_inputs(network, name))
        if layers:
            listed.append(replace(kernel, network_layers=layers))
    return listed


def _computes_from_inputs(network: Network, layer_name: str) -> bool:
    """Returns True if a result of a layer depends on the values of the inputs, and not on constants or shapes alone.

    TensorRT folds all other layers, and a piece has them as constants.
    """
    return any(tensor and tensor not in network.constant_tensors and tensor not in network.static_tensors
               for tensor in network.get_layer(layer_name).outputs)


def _find_layers_between(network: Network, inputs: Collection[str], outputs: Collection[str],
                         excluded: Collection[str]) -> tuple[str, ...]:
    """Finds the layers that compute some tensors from others, in network order; () if the network has no such tensor.
    """
    found: set[str] = set()
    waiting = [network.producer[name] for name in outputs if name in network.producer]
    while waiting:
        name = waiting.pop()
        if name in found or name in excluded or not _computes_from_inputs(network, name):
            continue
        found.add(name)
        waiting += [network.producer[tensor] for tensor in network.get_layer(name).inputs
                    if tensor and tensor not in inputs and tensor in network.producer]
    return tuple(layer.name for layer in network.layers if layer.name in found)


class _Joins:
    """A union of cells, in which the first cell stands for all that are joined to it."""

    def __init__(self, cell_count: int) -> None:
        self._first = list(range(cell_count))

    def find_cell(self, index: int) -> int:
        while self._first[index] != index:
            index = self._first[index]
        return index

    def join_cells(self, first: int, second: int) -> None:
        low, high = sorted((self.find_cell(first), self.find_cell(second)))
        self._first[high] = low


def _assign_removed_layers(network: Network, cell_by_layer: dict[str, int]) -> None:
    """Assigns each computing layer that no kernel names to the cell before it, or else to the cell behind it."""
    removed = [layer for layer in network.layers
               if layer.name not in cell_by_layer and _computes_from_inputs(network, layer.name)]
    for layer in removed:
        producers = (network.producer.get(tensor) for tensor in layer.inputs if tensor)
        cell = next((cell_by_layer[name] for name in producers if name is not None and name in cell_by_layer), None)
        if cell is not None:
            cell_by_layer[layer.name] = cell
    for layer in reversed(removed):
        readers = (reader for tensor in layer.outputs for reader in network.consumers.get(tensor, ()))
        cell = next((cell_by_layer[name] for name in readers if name in cell_by_layer), None)
        if cell is not None:
            cell_by_layer.setdefault(layer.name, cell)


def _make_cell(kernels: Sequence[EngineLayer], layers: Sequence[str]) -> EngineCell:
    return EngineCell(" | ".join(kernel.name for kernel in kernels), tuple(layers),
                      tuple(sorted(map(_kernel_signature, kernels), key=repr)),
                      tuple(kernel.kernel_name for kernel in kernels if kernel.kernel_name),
                      next((kernel.precision for kernel in kernels if kernel.precision is not None), None))


def _kernel_signature(kernel: EngineLayer) -> KernelSignature:
    inputs, outputs = (tuple(precision.value if precision is not None else "" for precision in types)
                       for types in (kernel.input_types, kernel.output_types))
    return tuple(sorted(kernel.network_layers)), kernel.kernel_name, kernel.precision, inputs, outputs


def find_piece_boundary(network: Network, layer_names: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Finds the tensors that some layers read from others, and those that they yield to others or as outputs.

    Constants, and tensors that depend on shapes alone, are left out: a piece computes them itself.
    """
    output_names = {info.name for info in network.outputs}
    inner, inputs, outputs = set(layer_names), dict[str, None](), dict[str, None]()
    for layer in network.layers:
        if layer.name not in inner:
            continue
        for tensor in layer.inputs:
            if tensor and network.producer.get(tensor) not in inner and not (tensor in network.constant_tensors
                                                                             or tensor in network.static_tensors):
                inputs[tensor] = None
        for tensor in layer.outputs:
            if tensor and tensor not in network.static_tensors and (tensor in output_names or any(
                    reader not in inner for reader in network.consumers.get(tensor, ()))):
                outputs[tensor] = None
    return tuple(inputs), tuple(outputs)


def find_first_different_kernel(first: EngineReport, second: EngineReport) -> str:
    """Returns the first kernel in which two engines differ, with its layers; "" if all kernels are equal.

    Kernels differ if they compute other layers, in other types, or with another tactic.
    """
    signatures = {_kernel_signature(kernel) for kernel in first.layers if kernel.kind == COMPUTE}
    for kernel in second.layers:
        if kernel.kind == COMPUTE and _kernel_signature(kernel) not in signatures:
            names = set(kernel.network_layers)
            other = next((item for item in first.layers if item.kind == COMPUTE and names.intersection(
                item.network_layers)), None)
            before = other.kernel_name or other.name if other is not None else "no kernel"
            after = kernel.kernel_name or kernel.name
            return f"{', '.join(kernel.network_layers[:4]) or kernel.name}: {before} and {after}"
    return ""


def find_suspect_kernels(faulty: Iterable[Iterable[EngineCell]],
                         sound: Iterable[Iterable[EngineCell]]) -> list[KernelSignature]:
    """Finds the kernels that all faulty engines have and no sound engine has; [] if there is no engine of either kind.
    """
    faulty_sets, sound_sets = ([{signature for cell in cells for signature in cell.signatures} for cells in engines]
                               for engines in (faulty, sound))
    if not faulty_sets or not sound_sets:
        return []
    sound_signatures = {signature for signatures in sound_sets for signature in signatures}
    return sorted(faulty_sets[0].intersection(*faulty_sets) - sound_signatures, key=repr)


def kernel_text(signature: KernelSignature) -> str:
    """Returns a kernel as text with its layers."""
    kernel = signature[1] or (signature[2].label if signature[2] is not None else "a kernel")
    return f"{kernel} of {name_list_text(signature[0], 4)}"


def find_different_cell(whole: Iterable[EngineCell], piece: Iterable[EngineCell]) -> str:
    """Returns the first kernel of a piece that the whole engine does not have, with its layers; "" if it has all.

    Other kernels of the same layers mean other fused layers, types or tactics.
    """
    signatures = {signature for cell in whole for signature in cell.signatures}
    for cell in piece:
        for signature in cell.signatures:
            if signature not in signatures:
                return kernel_text(signature)
    return ""
