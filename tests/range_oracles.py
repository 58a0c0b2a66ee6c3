"""Oracles of FP16's range: onnx's reference evaluator for tensors, a chunked FP16 sum in numpy for partial sums."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np

from tests import lowered
from tests.networks import Builder, floats
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering.rulebook import CHUNK_PRODUCTS, GatedFeatures, find_boundary_type
from trt_tui.core.measure.fp16_range import Fp16RangeState, find_worst_overflows, list_fp16_overflows
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import FP16_MAX, FP16_OVERFLOW, Precision

SCALES = (1.0, 2.0**-26, 2.0**-20, 2.0**-12, 2.0**7, 2.0**11, 2.0**15)
"""Factors of data of about 1: results lie on both sides of 2^-24 and of 65504."""

NEAR = 0.02
"""Results so near to 65504 may round to either side: an FP16 network differs from FP32 by that much before."""


def _magnitudes(network, backend, feeds, folder: Path):
    np.savez(folder / "data.npz", **feeds)
    samples = load_samples(folder / "data.npz", network.inputs, batch=len(next(iter(feeds.values()))))
    with Analysis(network, backend, samples, select_judged_outputs(network)) as analysis:
        for _ in analysis.measure_magnitudes():
            pass
        return analysis.get_magnitudes()


def compare_typed(case: lowered.Case, backend) -> list[str]:
    """Groups at which the typed and the gated network differ.

    Networks with Celu or Elu are left out if their values are small: the runtimes subtract 1 from an exponential, and
    differ in FP32 already.
    """
    inexact = any(layer.op_type in ("Celu", "Elu") for layer in case.network.layers)
    if inexact and max(float(np.abs(array).max(initial=0)) for array in case.feeds.values()) < 1:
        return []
    different = lowered.compare(case, backend)
    return [] if different is None else [f"{different.group}: {different.said}"]


def compare_forms(case: lowered.Case, backend) -> list[str]:
    """Groups at which the two forms of gates differ, sums in FP16 included."""
    offer = GatedFeatures.from_config(case.network, case.config)
    forms = [
        lowered.gated_values(
            backend, case.network, case.config, case.ranges, case.feeds, offer, data=data, fp16_sums=True
        )
        for data in (False, True)
    ]
    different = lowered.difference(case.network, case.plain, *forms)
    return [] if different is None else [f"{different.group}: {different.said}"]


def check_states(case: lowered.Case, backend, folder: Path) -> list[str]:
    """Groups that the exported network overflows first and that are called safe, and the reverse.

    A group is looked at as long as everything before it is finite.
    """
    network, config = case.network, PrecisionConfig.from_precision(Precision.FP16)
    magnitudes = _magnitudes(network, backend, case.feeds, folder)
    found = find_worst_overflows(list_fp16_overflows(network, config, magnitudes))
    typed = lowered.typed_values(backend, network, config, case.ranges, case.feeds)
    wrong, broken = [], set()
    for group in network.groups:
        tail, plain = typed.get(group.final_tensor), case.plain.get(group.final_tensor)
        if any(tensor in broken for tensor in group.inputs) or tail is None or plain is None:
            broken.update(group.outputs)
            continue
        state = found[group.name].state if group.name in found else Fp16RangeState.SAFE
        finite = bool(np.isfinite(tail).all())
        amax = float(np.abs(plain).max(initial=0))
        if not finite:
            broken.update((*group.outputs, group.final_tensor))
        if find_boundary_type(group, config.precision_of(group), config.other) is not Precision.FP16:
            continue
        inside = [
            float(np.abs(case.plain[tensor]).max(initial=0))
            for name in group.layers
            for tensor in network.get_layer(name).outputs
            if tensor in case.plain
        ]
        near = any(
            abs(one / FP16_OVERFLOW - 1) < NEAR
            for one in (
                *inside,
                *(float(np.abs(case.plain[tensor]).max(initial=0)) for tensor in group.inputs if tensor in case.plain),
            )
        )
        if not finite and state is Fp16RangeState.SAFE and not near:
            wrong.append(f"{group.name} is called safe and yields infinities ({amax:.4g} in FP32)")
        if state is Fp16RangeState.OVERFLOWS and finite and not near and amax > FP16_MAX * (1 + NEAR):
            wrong.append(f"{group.name} is said to overflow and does not")
    return wrong


def check_effect(case: lowered.Case, backend, folder: Path) -> list[str]:
    """Outputs that the exported network makes infinite although each overflow is called harmless."""
    network, config = case.network, PrecisionConfig.from_precision(Precision.FP16)
    np.savez(folder / "data.npz", **case.feeds)
    samples = load_samples(folder / "data.npz", network.inputs, batch=len(next(iter(case.feeds.values()))))
    with Analysis(network, backend, samples, select_judged_outputs(network)) as analysis:
        for _ in analysis.measure_magnitudes():
            pass
        found = analysis.find_fp16_overflows(config, analysis.get_magnitudes(), [0])
        judged = {output.tensor for output in analysis.judged_outputs}
    if not found or any(value.state is not Fp16RangeState.HARMLESS for value in found.values()):
        return []
    amaxes = [float(np.abs(array).max(initial=0)) for array in case.plain.values() if array.dtype.kind == "f"]
    if any(abs(amax / FP16_OVERFLOW - 1) < NEAR for amax in amaxes):
        return []
    typed = lowered.typed_values(backend, network, config, case.ranges, case.feeds)
    return [
        f"{name} is infinite: {[value.overflow_text for value in found.values()]}"
        for name in judged
        if name in typed and np.isfinite(case.plain[name]).all() and not np.isfinite(typed[name]).all()
    ]


def chunked_sum(products: np.ndarray) -> np.ndarray:
    """Returns the sum over the last axis with an FP16 accumulator that takes `CHUNK_PRODUCTS` products at a time."""
    count = products.shape[-1]
    total = np.zeros(products.shape[:-1], np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, count, CHUNK_PRODUCTS):
            chunk = products[..., start : start + CHUNK_PRODUCTS].astype(np.float64).sum(-1)
            total = (total.astype(np.float64) + chunk).astype(np.float16)
    return total


def check_partial_sums(random: Random, backend, opened, folder: Path) -> list[str]:
    """One product whose terms cancel in a random order: what a chunked sum overflows is never called safe, and what
    may overflow does so with the largest input at each weight."""
    rng = np.random.default_rng(random.randrange(1 << 32))
    depth, columns = random.choice((8, 16, 32, 48, 100, 256)), 6
    size = random.choice((200, 800, 1500, 3000, 20000)) / np.sqrt(depth)
    weight = np.abs(rng.standard_normal((depth, columns))) * size
    pattern = random.choice(("halves", "neighbours", "random", "none"))
    sign = np.ones(depth)
    if pattern == "halves":
        sign[depth // 2 :] = -1
    elif pattern == "neighbours":
        sign[1::2] = -1
    elif pattern == "random":
        sign = rng.choice([-1, 1], depth)
    weight = (weight * sign[:, None]).astype(np.float16).astype(np.float32)
    x = np.abs(rng.standard_normal((4, depth))).astype(np.float16).astype(np.float32)
    operator, b = random.choice(("MatMul", "Gemm", "Conv", "pair")), Builder(0)
    feeds = {"x": x}
    if operator == "Conv":
        feeds["x"] = x[:, :, None, None]
        inputs = ["x", b.weight("w", np.ascontiguousarray(weight.T)[:, :, None, None])]
        b.node("Conv", inputs, "/product", output="y", kernel_shape=[1, 1])
        model = b.model([floats("x", 4, depth, 1, 1)], [floats("y", 4, columns, 1, 1)])
    elif operator == "pair":
        feeds["z"] = np.broadcast_to(weight, (4, depth, columns)).copy()
        feeds["x"] = x[:, None, :]
        b.node("MatMul", ["x", "z"], "/product", output="y")
        model = b.model([floats("x", 4, 1, depth), floats("z", 4, depth, columns)], [floats("y", 4, 1, columns)])
    else:
        inputs = ["x", b.weight("w", weight)] + ([b.vector("bias", columns)] if operator == "Gemm" else [])
        b.node(operator, inputs, "/product", output="y")
        model = b.model([floats("x", 4, depth)], [floats("y", 4, columns)])
    network = opened(model)
    config = PrecisionConfig.from_precision(Precision.FP16)
    found = find_worst_overflows(list_fp16_overflows(network, config, _magnitudes(network, backend, feeds, folder)))
    state = next((value.state for value in found.values()), Fp16RangeState.SAFE)
    products = (x[:, :, None] * weight[None]).transpose(0, 2, 1).astype(np.float64)
    ordered = -np.sort(-products, -1)
    orders = (products, ordered, ordered[..., ::-1])
    said = f"{operator} of {depth} products, signs {pattern}, size {size:.0f}: {state.value}"
    if state is Fp16RangeState.SAFE and any(not np.isfinite(chunked_sum(order)).all() for order in orders):
        return [f"{said}, and a chunked sum is infinite"]
    weights = np.full(depth, np.abs(weight).max()) if operator == "pair" else np.abs(weight).sum(0).max()
    bound = float(x.max() * np.sum(weights))
    if state is Fp16RangeState.MAY_OVERFLOW and bound < FP16_OVERFLOW * (1 - NEAR):
        return [f"{said}, and no partial sum exceeds {bound:.4g}"]
    exceeds = float(np.abs(products.sum(-1)).max()) > FP16_OVERFLOW * (1 + NEAR)
    if exceeds and state is not Fp16RangeState.OVERFLOWS:
        return [f"{said}, and its result overflows"]
    return []
