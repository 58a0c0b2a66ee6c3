"""Whether the typed and the gated network of a config do the same arithmetic, and what an engine of it runs in."""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops._op_list import load_op

from tests import networks
from tests.networks.drawn import drawn_config, drawn_network
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.lowering.rulebook import HALF_PRECISIONS, ONNX_TYPES, GatedFeatures
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network

CLOSE_DB = 1.5
"""How far the losses of the two may lie apart. Sums of few values in another order have been 1.2 dB apart."""

FAITHFUL_DB = 6.0
"""Or by how much the two must be closer to each other than to FP32."""

EXACT_DB = 100.0
"""Where the loss is smaller than that, it is the order of additions."""

_LOW = [ONNX_TYPES[precision].numpy() for precision in HALF_PRECISIONS]
FLIPPED = 0.02
"""The share of values that may be apart by more: where a code or a bound flips, since sums differ by an ulp."""

_BLOCKS = ("TRT_MXFP8DynamicQuantize", "TRT_FP4DynamicQuantize", "TRT_MXFP8DequantizeLinear")
_BETWEEN = ("Cast", "QuantizeLinear", "DequantizeLinear", *_BLOCKS)


@dataclass(frozen=True)
class Case:
    """A network drawn from a seed, with a config, data, what it computes in FP32, and ranges taken on that."""

    network: Network
    config: PrecisionConfig
    feeds: Mapping[str, np.ndarray]
    plain: Mapping[str, np.ndarray]
    ranges: Mapping[str, float]


def make_case(
    backend, network: Network, config: PrecisionConfig, feeds: Mapping[str, np.ndarray], ranges: Mapping[str, float]
) -> Case:
    """A case of a network, with what it computes in FP32."""
    return Case(network, config, feeds, inner_values(backend, network, feeds), ranges)


def draw(
    random: Random, backend, opened: Callable[[onnx.ModelProto], Network], *, scales: Sequence[float] = (1.0,)
) -> Case:
    """A random small network in a random config.

    Args:
        scales: Factors of the data, of which one is drawn: they move values across FP16's limits.
    """
    model = drawn_network(random)
    network = opened(model)
    feeds = networks.feeds(model, random.randrange(1 << 16))
    scale = random.choice(scales) if len(scales) > 1 else scales[0]
    feeds = {name: array * np.float32(scale) if array.dtype == np.float32 else array for name, array in feeds.items()}
    plain = inner_values(backend, network, feeds)
    ranges = {tensor: float(np.abs(plain[tensor]).max(initial=0)) for tensor in network.calibrated_tensors}
    return Case(network, drawn_config(random, network), feeds, plain, ranges)


def compare(case: Case, backend, offer: GatedFeatures | None = None, *, as_data: bool = False) -> Difference | None:
    """Where the typed and the gated network of a case differ first, in the units of the plain network.

    Args:
        as_data: Where they do not, the gated network is compared with the one whose gates are data.
    """
    gated = gated_values(backend, case.network, case.config, case.ranges, case.feeds, offer)
    found = difference(case.network, case.plain, typed_in_plain_units(case, backend), gated)
    if found is None and as_data:
        found = difference(
            case.network,
            case.plain,
            gated,
            gated_values(backend, case.network, case.config, case.ranges, case.feeds, offer, data=True),
        )
    return found


def typed_in_plain_units(case: Case, backend) -> dict[str, np.ndarray]:
    """The values of the typed network, times what moves have divided them by: the simulation undoes that."""
    divisors = case.config.find_divisors(case.network)
    return {
        tensor: array * divisors.get(tensor, np.float32(1))
        for tensor, array in typed_values(backend, case.network, case.config, case.ranges, case.feeds).items()
    }


@dataclass(frozen=True)
class Difference:
    """A group whose result differs: its loss (dB against FP32) typed and gated, or what else is apart."""

    group: str
    said: str


def inner_values(backend, network: Network, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All float tensors of the FP32 network."""
    probe = network.model.clone()
    present = {value.name for value in probe.graph.outputs}
    probe.graph.outputs.extend(
        value
        for node in probe.graph
        for value in node.outputs
        if network.is_fp32(value.name) and value.name not in present
    )
    with backend.load(probe) as runner:
        return {**feeds, **runner.run(feeds)}


_NOT_THERE = (
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.INT4,
    ir.DataType.FLOAT4E2M1,
)
"""Types that ONNX Runtime's CPU provider lacks, or does not compute in."""


def typed_values(
    backend, network: Network, config: PrecisionConfig, ranges: Mapping[str, float], feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Results of the groups, and the outputs, of the typed network, float32.

    It runs in onnx's reference evaluator, in ONNX Runtime where all is FP32 or INT8 (onnx has no DQ of that opset).
    """
    model = lower_to_typed_network(network, config, ranges).model
    values = {value.name: value for node in model.graph for value in node.outputs}
    tails = dict.fromkeys(group.final_tensor for group in network.groups)
    present = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(values[tail] for tail in tails if tail in values and tail not in present)
    names = [value.name for value in model.graph.outputs]
    every = (*model.graph.initializers.values(), *values.values())
    if not any(value.dtype in _NOT_THERE for value in every):
        with backend.load(model, optimize=False) as runner:
            return runner.run(feeds)
    _as_kernels(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = ReferenceEvaluator(ir.to_proto(model), new_ops=_kernels(model)).run(None, dict(feeds))
    return {name: np.asarray(array).astype(np.float32) for name, array in zip(names, results, strict=True)}


def _as_kernels(model: ir.Model) -> None:
    """Lets layers behind DQ read its FP32 values and round their results once, as TensorRT's INT8 kernels do.

    It lists them so: ``gemm: Int8 > Int8 > Float > Float`` of DQ, Cast, MatMul. A bias that is added behind a product
    that sums in FP32 is added before that is rounded, as simulated; see `TypedLowering._accumulate_in_fp32`.
    """
    graph = model.graph
    for node in list(graph):
        sources = [_dequantized(value) for value in node.inputs]
        low, product = node.outputs[0].dtype, _product(node)
        if node.op_type in _BETWEEN or not any(sources) and product is None or low == ir.DataType.FLOAT:
            continue
        if product is not None:
            node.replace_input_with(0, product)
        for index, (value, source) in enumerate(zip(node.inputs, sources, strict=True)):
            if source is not None and source.domain:
                wide = ir.node(
                    source.op_type,
                    source.inputs,
                    {**{key: one.value for key, one in source.attributes.items()}, "output_dtype": 1},
                    domain=source.domain,
                )
                graph.insert_before(node, wide)
            elif source is not None:
                scale = ir.node("Cast", [source.inputs[1]], {"to": int(ir.DataType.FLOAT)})
                wide = ir.node(
                    "DequantizeLinear",
                    [source.inputs[0], scale.outputs[0], *source.inputs[2:]],
                    {key: one.value for key, one in source.attributes.items()},
                )
                graph.insert_before(node, [scale, wide])
            elif value is not None and node.inputs[index].dtype == low:
                wide = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)})
                graph.insert_before(node, wide)
            else:
                continue
            node.replace_input_with(index, wide.outputs[0])
        result = node.outputs[0]
        rounded = ir.node("Cast", [result], {"to": int(low)})
        rounded.outputs[0].type, rounded.outputs[0].shape = result.type, result.shape
        ir.convenience.replace_all_uses_with(result, rounded.outputs[0], replace_graph_outputs=True)
        rounded.replace_input_with(0, result)
        name, result.name, result.type = result.name, f"{result.name}__sum", ir.TensorType(ir.DataType.FLOAT)
        rounded.outputs[0].name = name
        graph.insert_after(node, rounded)


def _product(node: ir.Node) -> ir.Value | None:
    """What an Add adds a Gemm's bias to, before it is rounded."""
    rounded = node.inputs[0].producer() if node.op_type == "Add" else None
    value = rounded.inputs[0] if rounded is not None and rounded.op_type == "Cast" else None
    made_by = value.producer() if value is not None else None
    return value if made_by is not None and made_by.op_type == "Gemm" and value.dtype == ir.DataType.FLOAT else None


def _dequantized(value: ir.Value | None) -> ir.Node | None:
    """The DQ that a value comes from, maybe through a Cast; not of INT4, whose codes no kernel multiplies."""
    source = value.producer() if value is not None else None
    if source is not None and source.op_type == "Cast":
        source = source.inputs[0].producer()
    if (
        source is None
        or source.op_type not in ("DequantizeLinear", _BLOCKS[-1])
        or source.inputs[0].dtype == ir.DataType.INT4
    ):
        return None
    return source


def _kernels(model: ir.Model) -> list[type]:
    """Operators as a kernel computes them, in FP32 and rounded once: onnx's evaluator rounds many times inside."""
    opset, names = model.graph.opset_imports[""], {node.op_type for node in model.graph}
    return [
        QuantizeLinear,
        DequantizeLinear,
        TRT_MXFP8DynamicQuantize,
        TRT_FP4DynamicQuantize,
        TRT_MXFP8DequantizeLinear,
        *(_kernel(name, opset) for name in sorted(names - set(_BETWEEN))),
    ]


_LARGEST = {"int8": 127, "float8_e4m3fn": 448, "int4": 7}


class QuantizeLinear(OpRun):
    """Rounds half to even and saturates; onnx's turns what is beyond INT32 into -128."""

    op_domain = ""

    def _run(self, x, scale, zero, axis=1, block_size=0, **_):
        largest = _LARGEST[zero.dtype.name]
        codes = x.astype(np.float32) / _spread(scale, x, axis, block_size)
        if largest == 448:
            return (np.clip(codes, -largest, largest).astype(zero.dtype),)
        return (np.nan_to_num(np.clip(np.rint(codes), -largest - 1, largest)).astype(zero.dtype),)


class DequantizeLinear(OpRun):
    """Multiplies in FP32 and rounds once."""

    op_domain = ""

    def _run(self, x, scale, zero=None, axis=1, block_size=0, **_):
        return ((x.astype(np.float32) * _spread(scale, x, axis, block_size)).astype(scale.dtype),)


class TRT_MXFP8DynamicQuantize(OpRun):  # noqa: N801
    """FP8 values, and the exponents of their blocks, rounded up, as bytes."""

    op_domain = "trt"

    def _run(self, x, axis=-1, block_size=32, **_):
        with np.errstate(all="ignore"):
            amax = np.maximum(_largest(x, axis, block_size) / np.float32(448), np.float32(2.0**-126))
            scale = ((amax.view(np.uint32) + 0x7FFFFF) >> 23).astype(np.uint8)
            scale = np.where(np.isfinite(amax), scale, 255).astype(np.uint8)
            step = np.repeat(scale.view(ml_dtypes.float8_e8m0fnu).astype(np.float32), block_size, axis)
            return np.clip(x.astype(np.float32) / step, -448, 448).astype(ml_dtypes.float8_e4m3fn), scale


class TRT_FP4DynamicQuantize(OpRun):  # noqa: N801
    """FP4 values, and the scales of their blocks in FP8, beside the scale of the tensor."""

    op_domain = "trt"

    def _run(self, x, tensor_scale, axis=-1, block_size=16, **_):
        with np.errstate(all="ignore"):
            amax = _largest(x, axis, block_size) / (np.float32(6) * tensor_scale)
            scale = np.where(np.isfinite(amax), np.minimum(amax, 448), np.nan).astype(ml_dtypes.float8_e4m3fn)
            step = np.repeat(scale.astype(np.float32) * tensor_scale, block_size, axis)
            codes = np.nan_to_num(np.clip(x.astype(np.float32) / np.where(step == 0, 1, step), -6, 6))
            return codes.astype(ml_dtypes.float4_e2m1fn), scale


class TRT_MXFP8DequantizeLinear(OpRun):  # noqa: N801
    """Multiplies by powers of two."""

    op_domain = "trt"

    def _run(self, x, scale, axis=-1, block_size=32, output_dtype=1, **_):
        step = np.repeat(scale.view(ml_dtypes.float8_e8m0fnu).astype(np.float32), block_size, axis)
        with np.errstate(all="ignore"):
            return ((x.astype(np.float32) * step).astype(ir.DataType(output_dtype).numpy()),)


def _largest(x, axis, block):
    """The largest magnitude of each block; NaN where something is not finite."""
    axis %= x.ndim
    blocks = np.abs(x.astype(np.float32)).reshape(*x.shape[:axis], -1, block, *x.shape[axis + 1 :])
    return np.where(np.isfinite(blocks), blocks, np.nan).max(axis + 1)


def _spread(scale, x, axis, block):
    """Scales in a shape that goes with the tensor, float32."""
    step = scale.astype(np.float32)
    if block:
        return np.repeat(step, block, axis)
    return step.reshape([-1 if index == axis else 1 for index in range(x.ndim)]) if step.ndim else step


@functools.cache
def _kernel(name: str, opset: int) -> type:
    base = load_op("", name, opset)
    known = inspect.signature(base._run).parameters

    def run(self, *inputs, **attributes):
        low = next((one.dtype for one in inputs if one is not None and one.dtype in _LOW), None)
        wide = [one if one is None or one.dtype not in _LOW else one.astype(np.float32) for one in inputs]
        if name == "MaxPool":  # onnx's fails where a window holds nothing but NaN
            wide[0] = np.where(np.isnan(wide[0]), -np.inf, wide[0]).astype(np.float32)
        results = base._run(self, *wide, **{key: value for key, value in attributes.items() if key in known})
        return tuple(one if low is None or one.dtype != np.float32 else one.astype(low) for one in results)

    return type(name, (base,), {"_run": run, "op_domain": ""})


@functools.lru_cache(maxsize=2)
def _load_gated(backend, network: Network, offer: GatedFeatures, data: bool):
    """The gated graph of a network, for all configs that it offers, and its runner."""
    gated = build_gated_graph(
        network,
        float_types=offer.float_types,
        boundary_types=offer.boundary_types,
        quantized_types=offer.quantized_types,
        editable_constants=offer.editable_constants,
        norm_operators=offer.norm_operators,
        gates_as_data=data,
        outputs=list(dict.fromkeys(group.final_tensor for group in network.groups)),
    )
    return gated, backend.load(gated.model, low_memory=True)


def gated_values(
    backend,
    network: Network,
    config: PrecisionConfig,
    ranges: Mapping[str, float],
    feeds: Mapping[str, np.ndarray],
    offer: GatedFeatures | None = None,
    data: bool = False,
    fp16_sums: bool = False,
) -> dict[str, np.ndarray]:
    """The same of the gated network, which offers what the config needs and maybe more; ``data``: gates as data.

    Products are summed in FP32, as what runs typed networks here does; with ``fp16_sums`` in FP16, as kernels do.
    """
    offer = GatedFeatures.from_config(network, config) | (offer or GatedFeatures.from_precisions((), ()))
    gated, runner = _load_gated(backend, network, offer, data)
    in_fp32 = {gates["sums"]: np.array(False) for gates in gated.gates.values() if "sums" in gates}
    in_fp32 |= {name: np.array(1, np.float32) for name in gated.split_inputs}
    in_fp32 = {} if fp16_sums else in_fp32
    result = runner.run({**feeds, **gated.make_feed(config, ranges), **in_fp32})
    found = {tensor: result[name] for tensor, name in gated.test_outputs.items()}
    for tensor in found:
        if (maker := network.producer.get(tensor)) and network.get_layer(maker).op_type == "MaxPool":
            least = np.finfo(np.float32).min  # what ONNX Runtime makes of -Inf alone
            found[tensor] = np.where(found[tensor] == least, -np.inf, found[tensor])
    return found


def sqnr(reference: np.ndarray, test: np.ndarray) -> float:
    reference, test = reference.astype(np.float64), test.astype(np.float64)
    noise, signal = np.sum((reference - test) ** 2), np.sum(reference**2)
    return math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf


def difference(
    network: Network, plain: Mapping[str, np.ndarray], typed: Mapping[str, np.ndarray], gated: Mapping[str, np.ndarray]
) -> Difference | None:
    """The first group at which the two differ.

    What follows NaN, or a tensor of which most values overflow in both, is not looked at: the kernels of ONNX Runtime
    differ in the maximum of windows of -Inf."""
    for group in network.groups:
        expected, one, two = (values.get(group.final_tensor) for values in (plain, typed, gated))
        if expected is None or one is None or two is None or not expected.size:
            continue
        finite = np.isfinite(one) & np.isfinite(two) & np.isfinite(expected)
        if max(np.isfinite(one).mean(), np.isfinite(two).mean()) < 0.5 < np.isfinite(expected).mean():
            return None
        apart = np.mean(np.isfinite(one) != np.isfinite(two))
        if apart > FLIPPED:
            return Difference(group.name, f"{apart:.0%} are finite in one alone")
        if np.isnan(one).any() or np.isnan(two).any():
            return None
        size = np.abs(np.where(finite, one, 0) - np.where(finite, two, 0))
        finite &= size <= np.quantile(size, 1 - FLIPPED)
        losses = [sqnr(expected[finite], values[finite]) for values in (one, two)]
        if abs(losses[0] - losses[1]) <= CLOSE_DB or min(losses) > EXACT_DB:
            continue
        if sqnr(one[finite], two[finite]) >= min(losses) + FAITHFUL_DB:
            continue
        return Difference(group.name, f"typed {losses[0]:.1f} dB, gated {losses[1]:.1f} dB")
    return None


def scale_types(model: ir.Model) -> dict[str, set[ir.DataType]]:
    """The types of the scales of each layer's operands, by layer."""
    found: dict[str, set[ir.DataType]] = {}
    for node in model.graph:
        if node.op_type in _BETWEEN:
            continue
        for value in node.inputs:
            while value is not None and (source := value.producer()) is not None and source.op_type in _BETWEEN:
                if source.op_type == "DequantizeLinear":
                    found.setdefault(node.name, set()).add(source.inputs[1].dtype)
                    break
                value = source.inputs[0]
    return found


def run(backend, model: ir.Model, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the backend computes from a model as it is written."""
    with backend.load(model, optimize=False) as runner:
        return runner.run(feeds)


def fake_quantized(array: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Codes of INT8 times their scale."""
    return (np.clip(np.rint(array / scale), -128, 127) * scale).astype(np.float32)
