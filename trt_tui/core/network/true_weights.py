"""The weights that a quantized network was made from, taken from the FP32 network that it was made from.

A quantized file holds what quantizing left of its weights, so errors against these hide what quantizing lost. Layers
are matched by name; those that the quantizer renamed by their operators and shapes, in order. A weight is taken only
where it is like the file's own: quantizers also fold (a BatchNormalization into the Conv before it), and a folded
weight has no counterpart.
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import Constants, constant_tensor
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.opening import OpenedModel, codes_alone_note
from trt_tui.core.network.operators import ANCHORS
from trt_tui.core.network.steps import LOW_FLOATS
from trt_tui.core.network.true_activations import take_true_activations
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError
from trt_tui.words import first_few, plural

MOST_NOISE = 0.25
"""Two weights are alike up to this energy of their difference, as a share of the weight's: 6 dB. INT4 in blocks loses a
fiftieth of it; a folded weight is another one altogether."""

_Port = tuple[ir.Node, int]


class _Reference:
    """The FP32 network: its layers and the values of its constants."""

    def __init__(self, opened: OpenedModel, backend: Callable[[], Backend] | None) -> None:
        self.graph = LayerGraph(opened.model)
        self.values = Constants(self.graph, opened.model, backend)


def take_true_weights(opened: OpenedModel, name: str, reference: OpenedModel, path: Path,
                      backend: Callable[[], Backend] | None) -> None:
    """Replaces the weights of ``opened`` by those of the FP32 network that it was quantized from, in place.

    What runs as in the file goes on with the file's own.

    Args:
        name: The name of the quantized network's file.
        reference: The FP32 network.
        path: Its file.
        backend: Gives what runs its constant expressions.

    Raises:
        InputError: the reference is in FP32, and no quantized layer has a weight like one of its.
    """
    given = opened.as_read
    on_codes = [node.name or "" for node in opened.model.graph if node.op_type in ("ConvInteger", "MatMulInteger")]
    if given is None or reference.as_read is not None or on_codes:
        why = f"is computed on codes in {first_few(on_codes, most=2)}" if on_codes else \
            f"keeps the weights of its codes, as {path.name} is quantized, or typed in 16 bits, itself"
        opened.notes.append(f"{name} {why}: only its outputs are compared with {path.name}'s.")
        return
    exact = _Reference(reference, backend)
    partners = _partners(opened.model.graph, exact.graph)
    taken, missed = [], []
    for value, ports in _weights(opened.model.graph):
        array = _true_weight(value, ports, partners, exact)
        if array is not None:
            value.const_value = ir.tensor(array, name=value.name)
            taken.append(name_of(value))
        elif ports[0][0].op_type in ANCHORS and ports[0][1] < 2:
            missed.append(ports[0][0].name or "")
    if not any(node.op_type in ANCHORS for value, ports in _weights(opened.model.graph) for node, _ in ports
               if value.name in set(taken)):
        raise InputError(
            f"{path.name} is no reference of {name}",
            f"it has no weights like those of {first_few(missed) or 'its layers'}",
            f"Name the FP32 network that {name} was made from.")
    taken += _take_lost_constants(opened.model.graph, partners, exact, frozenset(taken))
    given.replaced = frozenset(taken)
    changed = take_true_activations(opened.model.graph, given, partners, exact.graph, exact.values)
    opened.external_files += [path, *reference.external_files]
    opened.notes.append(f"FP32 means the weights of {path.name}." if not missed else
                        f"FP32 means the weights of {path.name}, but for {plural(len(missed), 'layer')} that it "
                        f"has no like weights for, which keep those of their codes: {first_few(missed)}.")
    if changed:
        opened.notes.append(f"{plural(changed, 'activation')} restored as {path.name} has them, not as their ranges "
                            "suggest.")
    if not missed:
        opened.notes = [note for note in opened.notes if note != codes_alone_note(given)]


def _take_lost_constants(graph: ir.Graph, partners: dict[str, str], reference: _Reference,
                         taken: frozenset[str]) -> list[str]:
    """Replaces constants that 16 bits could not hold: masks that became infinite, epsilons that became 0.

    Returns their names. A constant is taken only if it rounds to the file's own.
    """
    ports: dict[ir.Value, list[_Port]] = defaultdict(list)
    for node in graph:
        for index, value in enumerate(node.inputs):
            stored = constant_tensor(value)
            if value is not None and stored is not None and stored.dtype is ir.DataType.FLOAT \
                    and name_of(value) not in taken:
                ports[value].append((node, index))
    found = []
    for value, read in ports.items():
        stored = constant_tensor(value)
        assert stored is not None  # as above
        own = stored.numpy()
        array = _counterpart(read, partners, reference) if not np.isfinite(own).all() or not own.any() else None
        if array is None or np.array_equal(array, own) or not _rounds_to(array, own):
            continue
        tensor, maker = ir.tensor(array, name=value.name), value.producer()
        if maker is None:
            value.const_value = tensor
        else:
            maker.attributes.clear()
            maker.attributes["value"] = ir.AttrTensor("value", tensor)
        found.append(name_of(value))
    return found


def _rounds_to(array: np.ndarray, own: np.ndarray) -> bool:
    """Returns True if an array is a file's own in FP16 or BF16."""
    with np.errstate(over="ignore"):
        return array.shape == own.shape and any(np.array_equal(array.astype(dtype.numpy()).astype(np.float32), own)
                                                for dtype in LOW_FLOATS)


def _counterpart(ports: list[_Port], partners: dict[str, str], reference: _Reference) -> np.ndarray | None:
    """Returns the reference's constant at some inputs, float32; None if there is not exactly one."""
    names = set()
    for node, index in ports:
        layer = partners.get(node.name or "")
        inputs = reference.graph.by_name[layer].inputs if layer is not None else ()
        names.add(inputs[index] if index < len(inputs) else "")
    tensor = names.pop()
    if names or tensor not in reference.graph.constants or not reference.graph.is_float(tensor):
        return None
    return np.asarray(reference.values.value(tensor), np.float32)


def _weights(graph: ir.Graph) -> list[tuple[ir.Value, list[_Port]]]:
    """Float initializers of more than one element, with the inputs of nodes that read them."""
    found: dict[ir.Value, list[_Port]] = defaultdict(list)
    for node in graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.producer() is None and value.dtype == ir.DataType.FLOAT \
                    and value.const_value is not None and value.const_value.size > 1:
                found[value].append((node, index))
    return list(found.items())


def _true_weight(value: ir.Value, ports: list[_Port], partners: dict[str, str], reference: _Reference
                 ) -> np.ndarray | None:
    """The reference's weight in place of one; None where there is not exactly one, or it is unlike."""
    array = _counterpart(ports, partners, reference)
    assert value.const_value is not None  # as `_weights` found it
    own = np.asarray(value.const_value.numpy(), np.float64)
    if array is None or array.shape != own.shape:
        return None
    if _rounds_to(array, own):  # also where the file's own is infinite
        return array
    energy = float(np.sum(np.square(array, dtype=np.float64)))
    return array if float(np.sum(np.square(own - array))) <= MOST_NOISE * energy else None


def _partners(graph: ir.Graph, reference: LayerGraph) -> dict[str, str]:
    """The reference's layer for each node, by name; those with other names are matched in order, where both
    networks have as many of a kind."""
    partners: dict[str, str] = {}
    rest: dict[object, list[str]] = defaultdict(list)
    for node in graph:
        name = node.name or ""
        layer = reference.by_name.get(name)
        if layer is not None and layer.op_type == node.op_type:
            partners[name] = name
        else:
            rest[node.op_type, tuple(tuple(stored.shape.numpy()) if (stored := constant_tensor(value)) is not None else
                                     None for value in node.inputs)].append(name)
    known = set(partners.values())
    others: dict[object, list[str]] = defaultdict(list)
    for layer in reference.layers:
        if layer.name not in known:
            sizes = tuple(reference.shape(tensor) if tensor in reference.constants else None
                          for tensor in layer.inputs)
            others[layer.op_type, sizes].append(layer.name)
    for kind, names in rest.items():
        if len(others[kind]) == len(names):
            partners.update(zip(names, others[kind], strict=True))
    return partners
