"""The repair of constants that a 16-bit type lost: masks and bounds that are infinite, epsilons that are 0.

A conversion from FP32 makes -3.4e38 to -Inf, and 1e-12 to 0 in FP16. The product of an infinite mask and 0, a row of
nothing but -Inf before a Softmax, and a division by 0 are NaN. The repair changes these constants in the message of the
file and nothing else; all other weights keep their bytes.

A mask gets the value that every export of trt-tui gives it: half the largest value of FP16, because the largest value
plus a score is infinite again. The Softmax of a row with other values is the same to the bit. A row of masks only has
finite weights in place of NaN. An infinity that an operator compares or divides by may be intended, and stays.
"""

import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from trt_tui.core.lowering.rulebook import MASK_LIMITS
from trt_tui.core.network.operators import COPIES, PRODUCTS
from trt_tui.core.precision import FP16_MAX, FP16_MIN, Precision
from trt_tui.errors import InputError
from trt_tui.files.writing import open_atomic_writer, write_file_atomically
from trt_tui.formatting import counted_noun_text

_MAX_PATH_LAYERS = 12
"""The maximum number of layers between a constant and the Softmax or the division that shows its use."""

_MASK_OPERATORS = frozenset("Add Sub Sum Mul Where Max Min Neg".split())
"""The operators that write a mask into other values, or combine masks."""

_MASK_READERS = frozenset(
    "Softmax LogSoftmax ReduceMax ReduceLogSumExp Exp MaxPool TopK ArgMax Attention MultiHeadAttention "
    "GroupQueryAttention".split())
"""The operators that choose or weigh values, for which a mask makes a value the least one."""

_DATA_INPUTS = {"Pad": (0, 2), "ScatterND": (0, 2), "ScatterElements": (0, 2), "Scatter": (0, 2)}
"""The inputs whose values a copy passes on, by operator; those of other copies are the first, of Concat all."""

_NORMALISATIONS_IN_INPUT_TYPE = ("BatchNormalization", "InstanceNormalization")
"""The operators with an epsilon that ONNX computes in the type of their input."""

_BOUND_ATTRIBUTES = {"Clip": ("min", "max"), "Pad": ("value",)}
"""The float attributes of old opsets that a runtime converts to the type of the input, by operator."""

_Use: TypeAlias = tuple[NodeProto, int]
"""A node and the index of the input at which it reads a value."""


@dataclass(frozen=True)
class _HalfType:
    """A 16-bit float type of a file.

    Attributes:
        max_value: The largest finite value.
        min_value: The smallest value that remains: subnormal in FP16, normal in BF16, whose subnormal values are often
            computed as 0.
        mask_value: The magnitude of a repaired mask.
    """

    name: str
    dtype: np.dtype
    max_value: float
    min_value: float
    mask_value: float

    def round(self, array: np.ndarray | float) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.asarray(array, np.float32).astype(self.dtype).astype(np.float32)


_HALF_TYPES: Mapping[int, _HalfType] = {
    TensorProto.FLOAT16: _HalfType("FP16", np.dtype(np.float16), FP16_MAX, FP16_MIN, MASK_LIMITS[Precision.FP16]),
    TensorProto.BFLOAT16: _HalfType("BF16", np.dtype(ml_dtypes.bfloat16), (2 - 2.0**-7) * 2.0**127, 2.0**-126,
                                    MASK_LIMITS[Precision.BF16])}


@dataclass
class RepairReport:
    """The constants that a repair changed, and those that it left, one sentence each."""

    repaired: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Constant:
    """A stored constant of a file.

    Attributes:
        name: The tensor that has its value.
        stored: The message with its values.
        half_type: The 16-bit type in which the network uses it.
        uses: The uses of the value in that type.
    """

    name: str
    stored: TensorProto
    half_type: _HalfType
    uses: Sequence[_Use]


class ConstantRepair:
    """The repair of the constants of one file.

    Args:
        model: The message of the file, which is changed.
        folder: The folder of its external data.
    """

    def __init__(self, model: ModelProto, folder: Path) -> None:
        self._model, self._folder = model, folder
        self.report = RepairReport()
        self._direct_uses: dict[str, list[_Use]] = {}
        self._aliases: dict[str, set[str]] = {}
        functions = {(function.domain, function.name): function for function in model.functions}
        for node in _iterate_nodes(model):
            for index, name in enumerate(node.input):
                if name:
                    self._direct_uses.setdefault(name, []).append((node, index))
            pairs = [pair for graph in _subgraphs(node) for pair in _pair_values_of_body(node, graph)]
            if (function := functions.get((node.domain, node.op_type))) is not None:
                pairs += [*zip(node.input, function.input, strict=False), *zip(function.output, node.output,
                                                                               strict=False)]
            for name, alias in pairs:
                self._aliases.setdefault(name, set()).add(alias)

    def repair(self) -> RepairReport:
        """Repairs all constants in place, and returns what was changed and what was left."""
        for constant in list(self._iterate_constants()):
            values = self._read_values(constant.stored)
            rounded = constant.half_type.round(values)
            if np.isinf(rounded).any():
                self._repair_infinities(constant, values, rounded)
            elif rounded.size == 1 and not rounded.any():
                self._repair_epsilon(constant, values)
            elif np.isnan(rounded).any():
                self.report.left.append(f"{constant.name} has NaN, and no value to put in its place")
        nodes = [node for node in _iterate_nodes(self._model) if node.domain in ("", "ai.onnx") and node.input
                 and any(attribute.name in (*_BOUND_ATTRIBUTES.get(node.op_type, ()), "epsilon")
                         and attribute.type == AttributeProto.FLOAT for attribute in node.attribute)]
        types = _find_element_types(self._model) if nodes else {}
        for node in nodes:
            if (half_type := _HALF_TYPES.get(types.get(node.input[0], 0))) is not None:
                self._repair_attributes(node, half_type)
        return self.report

    def _find_uses(self, name: str) -> list[_Use]:
        """Returns the uses of a value, also in and behind graphs and functions that it enters or leaves."""
        uses, pending, visited = list[_Use](), [name], {name}
        while pending:
            name = pending.pop()
            uses += self._direct_uses.get(name, [])
            new = self._aliases.get(name, set()) - visited
            visited |= new
            pending += sorted(new)
        return uses

    # -- constants --------------------------------------------------------------------------------------------------

    def _iterate_constants(self) -> Iterator[_Constant]:
        """Yields the constants that the network uses in a 16-bit type, also behind a Cast from FP32."""
        for graph in _iterate_graphs(self._model):
            for tensor in graph.initializer:
                yield from self._make_constant(tensor.name, tensor)
        for node in _iterate_nodes(self._model):
            if node.op_type in ("Constant", "ConstantOfShape") and node.output:
                for attribute in node.attribute:
                    if attribute.name == "value" and attribute.type == AttributeProto.TENSOR:
                        yield from self._make_constant(node.output[0], attribute.t)

    def _make_constant(self, name: str, stored: TensorProto) -> Iterator[_Constant]:
        uses = self._find_uses(name)
        if (half_type := _HALF_TYPES.get(stored.data_type)) is not None:
            yield _Constant(name, stored, half_type, uses)
        elif stored.data_type == TensorProto.FLOAT and uses and all(node.op_type == "Cast" for node, _ in uses):
            targets = {attribute.i for node, _ in uses for attribute in node.attribute if attribute.name == "to"}
            if len(targets) == 1 and (half_type := _HALF_TYPES.get(targets.pop())) is not None:
                yield _Constant(name, stored, half_type, [use for node, _ in uses for output in node.output
                                                          for use in self._find_uses(output)])

    def _read_values(self, stored: TensorProto) -> np.ndarray:
        try:
            values = ir.serde.deserialize_tensor(stored, self._folder).numpy()
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"the tensor {stored.name} cannot be read", str(error),
                             "Export the network again.") from None
        return np.asarray(values, np.float32)

    def _repair_infinities(self, constant: _Constant, values: np.ndarray, rounded: np.ndarray) -> None:
        is_infinite, half_type = np.isinf(rounded), constant.half_type
        limits, reasons = set[float](), list[str]()
        for use in constant.uses:
            limit, reason = self._find_infinity_use(use, half_type)
            limits.add(limit)
            reasons += [reason] if reason else []
        if not constant.uses:
            return
        signs = np.sign(rounded[is_infinite])
        before = "Inf" if (signs > 0).all() else "-Inf" if (signs < 0).all() else "±Inf"
        if reasons:
            self.report.left.append(f"{constant.name} has {before}: {reasons[0]}")
            return
        limit = min(limits)
        repaired = np.where(is_infinite, np.copysign(np.float32(limit), rounded), values)
        self._store(constant, repaired)
        after = f"{'' if before == 'Inf' else before[0]}{limit:.6g}"
        self._add_line(constant, f"{counted_noun_text(int(is_infinite.sum()), 'value')} {before} to {after}")

    def _find_infinity_use(self, use: _Use, half_type: _HalfType) -> tuple[float, str]:
        """Returns the value for an infinity at a use, or the reason why it stays."""
        node, index = use
        if node.op_type == "Clip" and index > 0 or node.op_type in ("Max", "Min") and self._is_bound(node):
            return half_type.max_value, ""
        if node.op_type in PRODUCTS:
            return half_type.max_value, f"{_node_text(node)} multiplies with it, and the weight is lost"
        return half_type.mask_value, self._find_mask_refusal(use)

    def _is_bound(self, node: NodeProto) -> bool:
        """Returns True if a Max or Min limits values that no mask reader weighs."""
        return bool(self._find_mask_refusal((node, 0)))

    def _find_mask_refusal(self, use: _Use) -> str:
        """Returns the reason why a use of an infinity is not that of a mask; "" if it is.

        A mask reaches an operator that weighs or chooses values, through operators that combine masks or move values.
        """
        pending, visited, reaches_reader = [(use, 0)], set[tuple[int, int]](), False
        while pending:
            (node, index), distance = pending.pop(0)
            if (id(node), index) in visited:
                continue
            visited.add((id(node), index))
            if node.op_type in _MASK_READERS:
                reaches_reader = True
                continue
            passes = (node.op_type in _MASK_OPERATORS and not (node.op_type == "Where" and index == 0)
                      or node.op_type in ("Cast", "ConstantOfShape", "Clip", "Concat")
                      or node.op_type in COPIES | _DATA_INPUTS.keys()
                      and index in _DATA_INPUTS.get(node.op_type, (0,)))
            if not passes:
                if distance == 0 or node.op_type in ("Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less",
                                                     "LessOrEqual", "Div", "Reciprocal"):
                    return f"{_node_text(node)} reads it, so it may be intended"
                continue
            if distance < _MAX_PATH_LAYERS:
                pending += [(reader, distance + 1) for output in node.output for reader in self._find_uses(output)]
        return "" if reaches_reader else "no Softmax or similar layer reads it as a mask"

    def _repair_epsilon(self, constant: _Constant, values: np.ndarray) -> None:
        guards = [node for node, index in constant.uses if node.op_type in ("Add", "Max", "Clip")
                  and (node.op_type != "Clip" or index == 1) and any(
                      self._is_divisor(output) for output in node.output)]
        if not guards:
            return
        if len(guards) < len(constant.uses):
            self.report.left.append(f"{constant.name} is 0, and a divisor depends on it: other layers read it too")
            return
        self._store(constant, np.full_like(values, constant.half_type.min_value))
        self._add_line(constant, f"0 to {constant.half_type.min_value:.2g}" if not values.any() else
                       f"{float(values.reshape(-1)[0]):.2g}, which is 0 in {constant.half_type.name}, to "
                       f"{constant.half_type.min_value:.2g}")

    def _is_divisor(self, name: str, distance: int = 4) -> bool:
        """Returns True if a node divides by a tensor, by its root or by a copy of it, or takes its logarithm."""
        for node, index in (self._find_uses(name) if distance else ()):
            if node.op_type in ("Reciprocal", "Log") or node.op_type == "Div" and index == 1 or (
                    node.op_type == "Pow" and index == 0 and self._is_negative_constant(node.input[1])):
                return True
            if index == 0 and node.op_type in COPIES | {"Cast", "Pow", "Sqrt"} and any(
                    self._is_divisor(output, distance - 1) for output in node.output):
                return True
        return False

    def _is_negative_constant(self, name: str) -> bool:
        for graph in _iterate_graphs(self._model):
            for tensor in graph.initializer:
                if tensor.name == name:
                    return bool((self._read_values(tensor) < 0).all())
        return any(bool((self._read_values(attribute.t) < 0).all()) for node in _iterate_nodes(self._model)
                   if node.op_type == "Constant" and node.output[:1] == [name] for attribute in node.attribute
                   if attribute.type == AttributeProto.TENSOR)

    def _store(self, constant: _Constant, values: np.ndarray) -> None:
        """Replaces the values of a constant in the message; external data become part of the message."""
        stored = constant.stored
        dtype = np.dtype(np.float32) if stored.data_type == TensorProto.FLOAT else constant.half_type.dtype
        for name in ("float_data", "int32_data", "external_data", "data_location"):
            stored.ClearField(name)
        stored.raw_data = np.ascontiguousarray(values.astype(dtype)).astype(dtype.newbyteorder("<")).tobytes()

    def _add_line(self, constant: _Constant, change: str) -> None:
        readers = [_node_text(node) for node, _ in constant.uses]
        more = f" and {len(readers) - 1} more" if len(readers) > 1 else ""
        self.report.repaired.append(f"{constant.name}, read by {readers[0]}{more}: {change}")

    # -- attributes -------------------------------------------------------------------------------------------------

    def _repair_attributes(self, node: NodeProto, half_type: _HalfType) -> None:
        """Repairs float attributes of a node that computes in a 16-bit type."""
        for attribute in node.attribute:
            if attribute.type != AttributeProto.FLOAT or attribute.ref_attr_name:
                continue
            value, repaired = attribute.f, None
            if attribute.name in _BOUND_ATTRIBUTES.get(node.op_type, ()):
                if np.isinf(half_type.round(value)):
                    repaired = float(np.copysign(half_type.max_value, value))
                elif attribute.name == "min" and 0 < value and not half_type.round(value).any() and any(
                        self._is_divisor(output) for output in node.output):
                    repaired = half_type.min_value
            elif attribute.name == "epsilon" and _computes_in_input_type(node) and not half_type.round(
                    value).any():
                repaired = half_type.min_value
            if repaired is not None:
                attribute.f = repaired
                self.report.repaired.append(f"{attribute.name} of {_node_text(node)}: {value:.6g} to {repaired:.6g}")


def _pair_values_of_body(node: NodeProto, body: GraphProto) -> Iterator[tuple[str, str]]:
    """Yields the pairs of values that are the same inside and outside the body of a control flow node."""
    inputs = [value.name for value in body.input]
    outputs = [value.name for value in body.output]
    yield from zip(node.input, inputs, strict=False) if inputs else ()
    yield from zip(outputs[1:] if node.op_type == "Loop" else outputs, node.output, strict=False)


def _computes_in_input_type(node: NodeProto) -> bool:
    """Returns True if ONNX computes a normalisation in the type of its input, and not in FP32."""
    stash = next((attribute.i for attribute in node.attribute if attribute.name == "stash_type"), TensorProto.FLOAT)
    return node.op_type in _NORMALISATIONS_IN_INPUT_TYPE or stash in _HALF_TYPES


def _node_text(node: NodeProto) -> str:
    return f"{node.op_type} {node.name or node.output[0]}"


def _iterate_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """Yields the main graph and all graphs nested in it and in local functions."""
    yield model.graph
    for node in _iterate_nodes(model):
        yield from _subgraphs(node)


def _iterate_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yields the nodes of the main graph, of local functions, and of all graphs nested in them."""
    pending = deque(model.graph.node)
    pending.extend(node for function in model.functions for node in function.node)
    while pending:
        node = pending.popleft()
        yield node
        pending.extendleft(reversed([inner for graph in _subgraphs(node) for inner in graph.node]))


def _subgraphs(node: NodeProto) -> list[GraphProto]:
    return [graph for attribute in node.attribute
            for graph in ([attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs)]


def _find_element_types(model: ModelProto) -> dict[str, int]:
    """Returns the element type of each tensor whose type is stored or inferred, by name."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, ValueError):  # without its type an attribute stays as it is
        inferred = model
    return {value.name: value.type.tensor_type.elem_type for graph in _iterate_graphs(inferred)
            for value in (*graph.input, *graph.value_info, *graph.output)} | {
        tensor.name: tensor.data_type for graph in _iterate_graphs(inferred) for tensor in graph.initializer}


def write_repaired_network(source: Path, external_files: Sequence[Path], destination: Path) -> RepairReport:
    """Writes a network whose lost constants are repaired, and copies its external data beside it.

    Args:
        external_files: The files of its external data. A network in the folder of the source shares them.

    Raises:
        InputError: No constant can be repaired, or a file beside the destination would be replaced.
    """
    model = onnx.load(source, load_external_data=False)
    folder = source.absolute().parent
    report = ConstantRepair(model, folder).repair()
    if not report.repaired:
        raise InputError(
            f"{source.name} has no constants to repair",
            f"left as they are: {'; '.join(report.left)}" if report.left else
            "its 16-bit constants are finite, and no divisor depends on a constant of 0",
            "Convert the FP32 network again." if report.left else "Use the file as it is.")
    new_folder = destination.absolute().parent
    if new_folder.resolve() != folder.resolve():
        for path in external_files:
            copy = new_folder / path.relative_to(folder)
            if copy.exists():
                raise InputError(f"{copy} exists already", f"the weights of {source.name} are copied there",
                                 "Name a file in another folder.")
        for path in external_files:
            with open_atomic_writer(new_folder / path.relative_to(folder)) as stream, path.open("rb") as data:
                shutil.copyfileobj(data, stream)
    write_file_atomically(destination, model.SerializeToString())
    return report
