"""The evaluation of a network in FP64 with the reference operators of onnx.

It decides whether the result of a kernel is wrong: it shares no code with TensorRT or ONNX Runtime, and its rounding
errors are 1e-9 of those of FP32. Convolutions, pools and Resize have an equal computation in numpy here, because the
reference operators of onnx iterate over single elements in Python.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper
from onnx.reference import ReferenceEvaluator

from trt_tui.errors import TrtTuiError

_FLOAT_TYPES = tuple(map(np.dtype, (np.float16, np.float32, ml_dtypes.bfloat16)))
_FP32_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)

Arrays = tuple[np.ndarray, ...]
Operator = Callable[..., Arrays]


class UnsupportedOperatorError(TrtTuiError):
    """The reference operators of onnx cannot compute a node.

    Attributes:
        operator: The operator of the node.
    """

    def __init__(self, node: ir.Node, cause: str) -> None:
        self.operator = node.op_type
        super().__init__(f"{node.op_type} of {node.name} has no reference in FP64", cause,
                         "Judge a part of the network without this operator.")


class ReferenceMismatchError(UnsupportedOperatorError):
    """ONNX Runtime and the reference operator of onnx compute something else for a node.

    Args:
        ratio: The difference of both, relative to the reference.
    """

    def __init__(self, node: ir.Node, ratio: float) -> None:
        super().__init__(node, "one of them does not implement this node as specified, so no error can be judged by it")
        self.title = (f"{node.op_type} of {node.name} differs by {ratio:.2g} of its result between its FP64 reference "
                      "and ONNX Runtime")


class Fp64Evaluator:
    """The evaluation of one model in FP64.

    Args:
        model: A model whose float tensors are FP32. Casts to FP16 or BF16 round; everything else is FP64.

    Raises:
        UnsupportedOperatorError: A node has no reference operator.
    """

    def __init__(self, model: ir.Model) -> None:
        opsets = {domain: version for domain, version in model.graph.opset_imports.items() if version}
        self._constants = {
            name: widen_to_fp64(value.const_value.numpy())
            for name, value in model.graph.initializers.items()
            if value.const_value is not None
        }
        self._steps = [(_make_operator(node, opsets), node) for node in model.graph]
        self._outputs = [value.name or "" for value in model.graph.outputs]

    def evaluate(self, feed: Mapping[str, np.ndarray], tensor_names: Sequence[str] | None = None, *,
                 relative_errors: Mapping[str, float] | None = None,
                 has_time: Callable[[], bool] = lambda: True) -> dict[str, np.ndarray]:
        """Evaluates the model for one feed. Returns the named tensors, the outputs by default; floats are FP64.

        Args:
            relative_errors: The largest relative error of a random error at the results of some operators, by operator.
            has_time: A function that returns False once the evaluation must end.

        Raises:
            TrtTuiError: There is no more time.
            UnsupportedOperatorError: A reference operator refuses its inputs, or computes them in FP32.
        """
        generator = np.random.default_rng(0)
        values = {**self._constants, **{name: widen_to_fp64(array) for name, array in feed.items()}}
        wanted = self._outputs if tensor_names is None else list(tensor_names)
        for operator, node in self._steps:
            if not has_time():
                raise TrtTuiError("the computation in FP64 has not ended", "the limit of time is reached",
                                  "Raise --max-seconds, or use a smaller batch.")
            inputs = [values[value.name or ""] if value is not None and value.name else None for value in node.inputs]
            try:
                with np.errstate(all="ignore"):
                    results = operator(*inputs)
            except Exception as error:  # the reference operators raise errors of any type
                raise UnsupportedOperatorError(node, f"{type(error).__name__}: {error}") from None
            for value, result in zip(node.outputs, results, strict=False):
                array = np.asarray(result)
                if array.dtype == np.float32 and any(item is not None and item.dtype == np.float64 for item in inputs):
                    raise UnsupportedOperatorError(node, "its reference operator computes in FP32")
                array = widen_to_fp64(array)
                largest = (relative_errors or {}).get(node.op_type)
                if largest is not None and array.dtype == np.float64:
                    array = array * (1 + generator.uniform(-largest, largest, array.shape))
                values[value.name or ""] = array
        return {name: values[name] for name in wanted}


    def find_mismatch(self, fp32_values: Mapping[str, np.ndarray], tolerance: float) -> ReferenceMismatchError | None:
        """Finds the first node that FP32 and FP64 compute differently from the same inputs.

        Returns None if they agree everywhere. A node whose reference operator raises an error is left out.

        Args:
            fp32_values: The inputs of the model, and the results of its nodes in FP32. Other results are computed.
            tolerance: The largest difference relative to the reference.
        """
        values = {**self._constants, **{name: widen_to_fp64(array) for name, array in fp32_values.items()}}
        for operator, node in self._steps:
            names = [value.name or "" if value is not None else "" for value in node.inputs]
            if not all(name in values for name in names if name):
                continue
            try:
                with np.errstate(all="ignore"):
                    results = operator(*(values[name] if name else None for name in names))
            except Exception:  # the reference operators raise errors of any type
                continue
            for value, result in zip(node.outputs, results, strict=False):
                name, array = value.name or "", widen_to_fp64(np.asarray(result))
                ratio = measure_relative_difference(values.get(name), array)
                if ratio > tolerance:
                    return ReferenceMismatchError(node, ratio)
                values.setdefault(name, array)
        return None


def measure_relative_difference(array: np.ndarray | None, reference: np.ndarray) -> float:
    """Returns the RMS of a difference relative to that of the reference, over all finite elements.

    Infinite for other shapes; 0 without an array, and for types other than floats.
    """
    if array is None or reference.dtype.kind != "f":
        return 0.0
    if array.shape != reference.shape:
        return math.inf
    finite = np.isfinite(array) & np.isfinite(reference)
    difference, expected = np.asarray(array, np.float64)[finite] - reference[finite], reference[finite]
    size, scale = (float(np.sqrt(np.mean(np.square(item)))) if item.size else 0.0 for item in (difference, expected))
    return size / scale if scale > 0 else math.inf if size > np.finfo(np.float32).tiny else 0.0


def widen_to_fp64(array: np.ndarray) -> np.ndarray:
    """Returns a float array in FP64, and any other array unchanged."""
    return array.astype(np.float64) if array.dtype in _FLOAT_TYPES else array


def _make_operator(node: ir.Node, opsets: Mapping[str, int]) -> Operator:
    """Returns the function that computes the outputs of a node from its inputs."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()
                  if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)}
    if len(attributes) < len(node.attributes):
        raise UnsupportedOperatorError(node, "it contains a graph")
    if node.op_type == "Cast" and not node.domain:
        return partial(_cast, to=ir.DataType(attributes["to"]))
    fast_operator = _FAST_OPERATORS.get(node.op_type) if not node.domain else None
    if fast_operator is not None and attributes.keys() <= fast_operator[1] and len(list(filter(
            None, (value.name for value in node.outputs)))) == 1:
        return partial(fast_operator[0], **attributes)
    reference = _make_reference_operator(node, opsets)
    if node.op_type == "Resize" and attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch" and not (
            {"axes"} & attributes.keys()) and attributes.get("coordinate_transformation_mode") != "tf_crop_and_resize":
        return partial(_resize, reference=reference)
    return reference


def _make_reference_operator(node: ir.Node, opsets: Mapping[str, int]) -> Operator:
    """Returns the reference operator of onnx for a node, whose tensors are named by position."""
    proto = ir.to_proto(node)
    plain = onnx.NodeProto()
    plain.CopyFrom(proto)
    plain.ClearField("name")
    names = {name: f"t{index}" for index, name in enumerate(dict.fromkeys((*plain.input, *plain.output))) if name}
    plain.input[:], plain.output[:] = ([names.get(name, "") for name in side] for side in (proto.input, proto.output))
    inputs, outputs = ([helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(filter(None, side))]
                       for side in (plain.input, plain.output))
    versions = dict(opsets)
    if plain.op_type in ("QuantizeLinear", "DequantizeLinear"):
        versions[""] = max(versions.get("", 1), 19)  # the oldest version that the reference has includes earlier ones
    try:
        evaluator = ReferenceEvaluator(helper.make_graph([plain], "node", inputs, outputs), opsets=versions)
        run: Operator = evaluator.rt_nodes_[0].run
    except Exception as error:  # the constructor raises errors of any type for an operator that it lacks
        raise UnsupportedOperatorError(node, f"{type(error).__name__}: {str(error)[:200]}") from None
    return run


def _cast(array: np.ndarray, to: ir.DataType) -> Arrays:
    """Casts an array. Inside an FP64 evaluation, FP32 means FP64."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (array.astype(np.float64 if to in _FP32_TYPES else to.numpy()),)


# -- windows over spatial axes -------------------------------------------------------------------------------------


def _padding_of_axes(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
                     pads: Sequence[int] | None, auto_pad: str) -> list[tuple[int, int]]:
    """Returns the padding before and after each spatial axis of a convolution or pool."""
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
                  for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True)]
        return [(total // 2, total - total // 2) if auto_pad == "SAME_UPPER" else (total - total // 2, total // 2)
                for total in totals]
    count = len(sizes)
    return list(zip(pads[:count], pads[count:], strict=True)) if pads else [(0, 0)] * count


def _iterate_windows(array: np.ndarray, kernel: Sequence[int], strides: Sequence[int],
                     dilations: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields the elements of a padded array that the windows have at each position in the kernel, in C order."""
    counts = [(size - (width - 1) * dilation - 1) // stride + 1
              for size, width, stride, dilation in zip(array.shape[2:], kernel, strides, dilations, strict=True)]
    for position in product(*map(range, kernel)):
        slices = tuple(slice(index * dilation, index * dilation + (count - 1) * stride + 1, stride)
                       for index, dilation, count, stride in zip(position, dilations, counts, strides, strict=True))
        yield array[(slice(None), slice(None), *slices)]


def _conv(array: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, *,
          kernel_shape: Sequence[int] | None = None, pads: Sequence[int] | None = None,
          strides: Sequence[int] | None = None, dilations: Sequence[int] | None = None, group: int = 1,
          auto_pad: str = "NOTSET") -> Arrays:
    kernel = weight.shape[2:]
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    padding = _padding_of_axes(array.shape[2:], kernel, strides, dilations, pads, auto_pad)
    padded = np.pad(array, [(0, 0), (0, 0), *padding])
    weights = weight.reshape(group, len(weight) // group, weight.shape[1], -1)
    result: Any = 0.0
    for index, window in enumerate(_iterate_windows(padded, kernel, strides, dilations)):
        columns = window.reshape(len(array), group, window.shape[1] // group, -1)
        factors = weights[..., index]
        result = result + (factors * columns if columns.shape[2] == 1 else factors @ columns)
        shape = window.shape[2:]
    result = result.reshape(len(array), len(weight), *shape)
    return (result if bias is None else result + bias.reshape(-1, *[1] * len(kernel)),)


def _conv_transpose(array: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, *,
                    kernel_shape: Sequence[int] | None = None, pads: Sequence[int] | None = None,
                    strides: Sequence[int] | None = None, dilations: Sequence[int] | None = None, group: int = 1,
                    output_padding: Sequence[int] | None = None) -> Arrays:
    kernel, sizes = weight.shape[2:], array.shape[2:]
    axes = range(len(kernel))
    strides, dilations = strides or [1] * len(kernel), dilations or [1] * len(kernel)
    output_padding, pads = output_padding or [0] * len(kernel), pads or [0] * 2 * len(kernel)
    full = [(sizes[axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1 + output_padding[axis]
            for axis in axes]
    channels = weight.shape[1] * group
    result = np.zeros((len(array), channels, *full))
    columns = array.reshape(len(array), group, array.shape[1] // group, -1)
    weights = weight.reshape(group, len(weight) // group, weight.shape[1], -1)
    for index, position in enumerate(product(*map(range, kernel))):
        factors = weights[..., index].swapaxes(1, 2)
        slices = tuple(slice(position[axis] * dilations[axis],
                             position[axis] * dilations[axis] + (sizes[axis] - 1) * strides[axis] + 1, strides[axis])
                       for axis in axes)
        result[(slice(None), slice(None), *slices)] += (factors @ columns).reshape(len(array), channels, *sizes)
    inner = tuple(slice(pads[axis], full[axis] - pads[len(kernel) + axis]) for axis in axes)
    result = result[(slice(None), slice(None), *inner)]
    return (result if bias is None else result + bias.reshape(-1, *[1] * len(kernel)),)


def _max_pool(array: np.ndarray, *, kernel_shape: Sequence[int], pads: Sequence[int] | None = None,
              strides: Sequence[int] | None = None, dilations: Sequence[int] | None = None,
              auto_pad: str = "NOTSET") -> Arrays:
    strides, dilations = strides or [1] * len(kernel_shape), dilations or [1] * len(kernel_shape)
    padding = _padding_of_axes(array.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    padded = np.pad(array, [(0, 0), (0, 0), *padding], constant_values=-np.inf)
    windows = _iterate_windows(padded, kernel_shape, strides, dilations)
    result = next(windows).copy()
    for window in windows:
        result = np.maximum(result, window)
    return (result,)


def _average_pool(array: np.ndarray, *, kernel_shape: Sequence[int], pads: Sequence[int] | None = None,
                  strides: Sequence[int] | None = None, count_include_pad: int = 0,
                  auto_pad: str = "NOTSET") -> Arrays:
    strides, dilations = strides or [1] * len(kernel_shape), [1] * len(kernel_shape)
    padding = [(0, 0), (0, 0), *_padding_of_axes(array.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)]
    total, count = (sum(_iterate_windows(padded, kernel_shape, strides, dilations))
                    for padded in (np.pad(array, padding),
                                   np.pad(np.ones_like(array), padding, constant_values=float(count_include_pad))))
    return (np.asarray(total / count),)


def _resize(array: np.ndarray, roi: np.ndarray | None = None, scales: np.ndarray | None = None,
            sizes: np.ndarray | None = None, *, reference: Operator) -> Arrays:
    """Resizes one axis after the other with the weights that the reference operator has on a unit matrix."""
    uses_sizes = sizes is not None and sizes.size
    for axis in range(array.ndim):
        if uses_sizes:
            assert sizes is not None
            change: list[np.ndarray | None] = [None, None, np.array([array.shape[axis], sizes[axis]])]
            is_same = sizes[axis] == array.shape[axis]
        else:
            assert scales is not None, "a Resize has scales or sizes"
            change = [None, np.array([1.0, scales[axis]]), None]
            is_same = scales[axis] == 1
        if not is_same:
            (weights,) = reference(np.eye(array.shape[axis]), *change)
            array = np.moveaxis(np.tensordot(array, weights, (axis, 0)), -1, axis)
    return (array,)


_FAST_OPERATORS: Mapping[str, tuple[Operator, frozenset[str]]] = {
    "Conv": (_conv, frozenset(("kernel_shape", "pads", "strides", "dilations", "group", "auto_pad"))),
    "ConvTranspose": (_conv_transpose, frozenset(("kernel_shape", "pads", "strides", "dilations", "group",
                                                  "output_padding"))),
    "MaxPool": (_max_pool, frozenset(("kernel_shape", "pads", "strides", "dilations", "auto_pad"))),
    "AveragePool": (_average_pool, frozenset(("kernel_shape", "pads", "strides", "count_include_pad", "auto_pad"))),
}
"""The operators with a computation in numpy, each with the attributes that it takes. Other forms use the reference."""
