"""The search for the first NaN or infinite value of a network in FP32: the constant or layer that causes all others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.network_probe import AMAX_OPERATORS, NetworkProbe, read_amax
from trt_tui.core.data.samples import Samples
from trt_tui.core.network.constants import stored_tensor
from trt_tui.core.network.naming import value_name
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError, TrtTuiError

_DIVIDING_OPERATORS = {"Div": 1, "Reciprocal": 0, "Log": 0, "Pow": 0, "Sqrt": 0}
"""Index of the input that an epsilon keeps from 0, by operator."""

_EPSILON_OPERATORS = frozenset(("Add", "Max", "Clip"))
_MAX_UPSTREAM_DEPTH = 6

REMEDY = ("Correct the network or the data. A file in half precision can have lost a value: export it again from FP32, "
          "or name the FP32 network that it was made from with --reference.")
"""The next step after a value that is not finite, as a sentence."""


@dataclass(frozen=True)
class FirstNonFiniteValue:
    """The first constant or tensor, in network order, that is not finite.

    Attributes:
        constant: The constant that is not finite; "" if all constants before the tensor are finite.
        constant_value: The value in the constant: "Inf", "-Inf" or "NaN".
        reader: The layer that reads the constant, with its operator.
        tensor: The first computed tensor that is not finite; "" if all are finite.
        value_kind: "NaN" or "an infinity".
        producer: The layer that computes the tensor, with its operator.
        epsilon: A constant of 0 that should keep a divisor of the producer from 0, with the layer that adds it; "" if
            there is none.
    """

    constant: str = ""
    constant_value: str = ""
    reader: str = ""
    tensor: str = ""
    value_kind: str = ""
    producer: str = ""
    epsilon: str = ""

    @property
    def origin_text(self) -> str:
        """The origin of the NaN or infinity as a sentence without a full stop."""
        return (f"constant {self.constant} is {self.constant_value}, and {self.effect_text}"
                if self.constant else self.effect_text)

    @property
    def effect_text(self) -> str:
        """The effect of the NaN or infinity as text: the layer that reads the constant, and the first tensor that is
        not finite."""
        tensor_text = f"the first tensor with {self.value_kind} is {self.tensor}, the result of {self.producer}" \
            if self.tensor else ""
        if self.constant:
            return "; ".join(filter(None, (f"{self.reader} reads it", tensor_text)))
        return tensor_text + (f"; {self.epsilon} is 0 and does not protect a divisor from 0 (in FP16 an epsilon below "
                              "6e-8 is 0)"
                              if self.epsilon else "")


def find_first_non_finite_value(model: ir.Model, samples: Samples, feed_index: int,
                                backend: Backend) -> FirstNonFiniteValue | None:
    """Finds the first value of an FP32 network that is NaN or infinite in one feed.

    None if all values are finite or the network cannot be executed.
    """
    try:
        amax_by_tensor = _measure_tensor_amaxes(model, samples, feed_index, backend)
    except TrtTuiError:
        return None
    constant: tuple[str, str, str] | None = None
    for node in model.graph:
        node_title = f"{node.name} ({node.op_type})"
        for value in node.inputs:
            if constant is None and value is not None and (constant_value := _non_finite_constant_text(value)):
                constant = value_name(value), constant_value, node_title
        for value in node.outputs:
            amax = amax_by_tensor.get(value.name or "", 0.0)
            if not np.isfinite(amax):
                epsilon = "" if constant is not None else _find_zero_epsilon(node)
                return FirstNonFiniteValue(*(constant or ("", "", "")), value_name(value),
                                           "NaN" if np.isnan(amax) else "an infinity", node_title, epsilon)
    return FirstNonFiniteValue(*constant) if constant is not None else None


class NonFiniteTensorError(InputError):
    """The error for a tensor that contains NaN or an infinity in FP32 on the calibration samples."""

    tensor: str


def make_non_finite_error(model: ir.Model, samples: Samples, backend: Backend, tensor: str, value_kind: str,
                          feed_index: int) -> NonFiniteTensorError:
    """Returns the error for a tensor with NaN or an infinity, which names the constant or layer that causes it.

    Args:
        value_kind: "NaN" or "an infinity".
        feed_index: The feed in which the value was seen.
    """
    origin = find_first_non_finite_value(model, samples, feed_index, backend)
    title = f"Tensor '{tensor}' holds {value_kind} in FP32"
    next_step = "Correct the network or the data: it has no usable range."
    cause = f"Seen while calibrating, in the batch of sample {samples.sample_name(feed_index)}."
    if origin is not None:
        title = f"Constant '{origin.constant}' is {origin.constant_value}" if origin.constant else \
            f"Tensor '{origin.tensor}' holds {origin.value_kind} in FP32"
        cause, next_step = f"{origin.effect_text[:1].upper()}{origin.effect_text[1:]}. {cause}", REMEDY
    error = NonFiniteTensorError(title, cause, next_step)
    error.tensor = tensor
    return error


def _measure_tensor_amaxes(model: ir.Model, samples: Samples, feed_index: int, backend: Backend) -> Mapping[str, float]:
    """Measures the amax of each float tensor that the main graph computes; NaN for a tensor that contains NaN."""
    probe = NetworkProbe(model)
    outputs = {name: probe.add_reductions(probe.get_fp32_value(name), *AMAX_OPERATORS)
               for name in [value.name for node in model.graph for value in node.outputs
                            if value.name and value.dtype is not None and value.dtype.is_floating_point()]}
    with probe.load_probe_runner(backend, samples) as runner:
        scalars = runner.run(samples.read_feed(feed_index))
    return {name: read_amax(scalars, names) for name, names in outputs.items()}


def _non_finite_constant_text(value: ir.Value) -> str:
    """Returns "NaN", "Inf" or "-Inf" if a constant contains such a value; "" for any other value."""
    stored = stored_tensor(value)
    if stored is None or not stored.dtype.is_floating_point():
        return ""
    array = stored.numpy().astype(np.float32)
    if np.isfinite(array).all():
        return ""
    return "NaN" if np.isnan(array).any() else "-Inf" if not (array == np.inf).any() else "Inf"


def _find_zero_epsilon(node: ir.Node) -> str:
    """Finds an epsilon of 0 that a layer adds to the divisor of another layer, and describes it; "" if there is none.
    """
    index = _DIVIDING_OPERATORS.get(node.op_type)
    value = node.inputs[index] if index is not None and len(node.inputs) > index else None
    for upstream_node in _iterate_upstream_nodes(value.producer() if value is not None else None, _MAX_UPSTREAM_DEPTH):
        if upstream_node.op_type not in _EPSILON_OPERATORS:
            continue
        for input_value in upstream_node.inputs:
            stored = stored_tensor(input_value)
            if input_value is None or stored is None or not stored.dtype.is_floating_point():
                continue
            if not stored.numpy().any():
                return f"constant {value_name(input_value)}, which {upstream_node.name} ({upstream_node.op_type}) adds,"
    return ""


def _iterate_upstream_nodes(node: ir.Node | None, max_depth: int) -> Iterator[ir.Node]:
    """Yields a node and its producers up to a depth, depth first along each input."""
    if node is None or not max_depth:
        return
    yield node
    for value in node.inputs:
        yield from _iterate_upstream_nodes(value.producer() if value is not None else None, max_depth - 1)
