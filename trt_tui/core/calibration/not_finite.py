"""The first value of a network in FP32 that is NaN or infinite: the constant or the layer that all others come from."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.sweep import NotFiniteError, Probe, scalar
from trt_tui.core.data.samples import Samples
from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.naming import name_of
from trt_tui.core.runner import Backend
from trt_tui.errors import TrtTuiError

_DIVIDES = {"Div": 1, "Reciprocal": 0, "Log": 0, "Pow": 0, "Sqrt": 0}
"""The input that an epsilon keeps from 0, by operator."""

_ADDS_EPSILON = frozenset(("Add", "Max", "Clip"))
_MAX_DEPTH = 6

MEND = ("Correct the network or the data. A file in half precision can have lost a value: export it again from FP32, "
        "or name the FP32 network that it was made from with --reference.")
"""The way out, as a sentence."""


@dataclass(frozen=True)
class FirstNotFinite:
    """The first constant or tensor, in network order, that is not finite.

    Attributes:
        constant: The constant that a layer reads; "" if all constants before the tensor are finite.
        held: What the constant holds: "Inf", "-Inf" or "NaN".
        reader: The layer that reads it, with its operator.
        tensor: The first computed tensor that is not finite; "" if none is.
        what: "NaN" or "an infinity".
        maker: The layer that computes it, with its operator.
        epsilon: A constant of 0 that was to keep a divisor of that layer from 0, with the layer that adds it; "" if
            there is none.
    """

    constant: str = ""
    held: str = ""
    reader: str = ""
    tensor: str = ""
    what: str = ""
    maker: str = ""
    epsilon: str = ""

    @property
    def text(self) -> str:
        """The origin, as a sentence without a full stop."""
        return f"constant {self.constant} is {self.held}, and {self.effect}" if self.constant else self.effect

    @property
    def effect(self) -> str:
        """The text without the constant that is not finite."""
        made = f"the first tensor that holds {self.what} is {self.tensor}, the result of {self.maker}" \
            if self.tensor else ""
        if self.constant:
            return "; ".join(filter(None, (f"{self.reader} reads it", made)))
        return made + (f"; {self.epsilon} is 0 and keeps no divisor from 0 (in FP16 an epsilon below 6e-8 is 0)"
                       if self.epsilon else "")


def find_first_not_finite(model: ir.Model, samples: Samples, feed: int, backend: Backend) -> FirstNotFinite | None:
    """Returns the first value of an FP32 network that is not finite in a feed; None if all are, or none can be run."""
    try:
        finite = _amax(model, samples, feed, backend)
    except TrtTuiError:
        return None
    constant: tuple[str, str, str] | None = None
    for node in model.graph:
        said = f"{node.name} ({node.op_type})"
        for value in node.inputs:
            if constant is None and value is not None and (held := _held(value)):
                constant = name_of(value), held, said
        for value in node.outputs:
            amax = finite.get(value.name or "", 0.0)
            if not np.isfinite(amax):
                epsilon = "" if constant is not None else _zero_epsilon(node)
                return FirstNotFinite(*(constant or ("", "", "")), name_of(value),
                                      "NaN" if np.isnan(amax) else "an infinity", said, epsilon)
    return FirstNotFinite(*constant) if constant is not None else None


@contextmanager
def explained(model: ir.Model, samples: Samples, backend: Backend) -> Iterator[None]:
    """Names, in place of a tensor that is not finite, the value that it comes from.

    Raises:
        NotFiniteError: a tensor that something within looks at holds NaN or an infinity.
    """
    try:
        yield
    except NotFiniteError as error:
        found = find_first_not_finite(model, samples, error.feed, backend)
        if found is None:
            raise
        title = f"Constant '{found.constant}' is {found.held}" if found.constant else \
            f"Tensor '{found.tensor}' holds {found.what} in FP32"
        cause = f"{found.effect[:1].upper()}{found.effect[1:]}. Seen while calibrating, in feed {error.feed}."
        raise NotFiniteError(error.tensor, error.what, error.feed, title, cause, MEND) from None


def _amax(model: ir.Model, samples: Samples, feed: int, backend: Backend) -> Mapping[str, float]:
    """Returns the amax of each float tensor that the main graph computes; NaN if it holds NaN."""
    probe, outputs = Probe(model), {}
    for name in [value.name for node in model.graph for value in node.outputs
                 if value.name and value.dtype is not None and value.dtype.is_floating_point()]:
        value = probe.float_value(name)
        outputs[name] = [probe.emit(scalar(probe.apply(operator, value, keepdims=0)))
                         for operator in ("ReduceMax", "ReduceMin", "ReduceL1")]  # the first two pass over NaN
    with probe.load(backend, samples) as runner:
        scalars = runner.run(samples.feed(feed))
    found = {}
    for name, emitted in outputs.items():
        largest, least, norm = (float(scalars[one]) for one in emitted)
        found[name] = float("nan") if np.isnan(norm) else max(largest, -least)
    return found


def _held(value: ir.Value) -> str:
    """Returns what a constant holds that is not finite; "" for any other value."""
    stored = constant_tensor(value)
    if stored is None or not stored.dtype.is_floating_point():
        return ""
    array = stored.numpy().astype(np.float32)
    if np.isfinite(array).all():
        return ""
    return "NaN" if np.isnan(array).any() else "-Inf" if not (array == np.inf).any() else "Inf"


def _zero_epsilon(node: ir.Node) -> str:
    """Returns the constant of 0 that is added to what a layer divides by; "" if there is none."""
    index = _DIVIDES.get(node.op_type)
    value = node.inputs[index] if index is not None and len(node.inputs) > index else None
    for above in _upstream(value.producer() if value is not None else None, _MAX_DEPTH):
        if above.op_type not in _ADDS_EPSILON:
            continue
        for read in above.inputs:
            stored = constant_tensor(read)
            if read is None or stored is None or not stored.dtype.is_floating_point():
                continue
            if not stored.numpy().any():
                return f"constant {name_of(read)}, which {above.name} ({above.op_type}) adds,"
    return ""


def _upstream(node: ir.Node | None, depth: int) -> Iterator[ir.Node]:
    """Yields a node and those that it comes from, the nearest first along each input."""
    if node is None or not depth:
        return
    yield node
    for value in node.inputs:
        yield from _upstream(value.producer() if value is not None else None, depth - 1)
