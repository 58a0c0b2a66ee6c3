"""trt_tui.core.measure.simulation_limits: what no value of a run covers is a reason for doubt."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import networks
from tests.driven import DrivenWorker, of
from tests.networks import Builder, floats
from trt_tui.core.lowering.weak_typing import lower_to_explicit_quantization, lower_to_implicit_quantization
from trt_tui.core.measure.simulation_limits import find_unsimulated_layer_caveats, refuse_undeclared_output_sizes
from trt_tui.core.measure.target import Outcome, judge_accuracy, parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options

FP32, FP16, BF16, INT8 = (
    PrecisionConfig.from_precision(one) for one in (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8)
)


def branches(*operators: str, inner: bool = False) -> onnx.ModelProto:
    """A Gemm, and an If with one operator in each branch; with ``inner``, each branch is an If with both of them."""
    b = Builder(0)
    value, flag = b.gemm("x", (8, 8), "/before"), b.node("Identity", ["flag"], "/flag")

    def graph(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [floats(name, "batch", 8)])

    def branch(name: str, operator: str) -> onnx.GraphProto:
        return graph(name, [helper.make_node(operator, [value], [name], name=f"/{name}/{operator}")])

    def both(scope: str) -> dict[str, onnx.GraphProto]:
        return {
            f"{name}_branch": branch(f"{scope}{name}", operator)
            for name, operator in zip(("then", "else"), operators, strict=True)
        }

    inside = (
        both("")
        if not inner
        else {
            f"{name}_branch": graph(
                name, [helper.make_node("If", [flag], [name], name=f"/{name}/If", **both(f"{name}_"))]
            )
            for name in ("then", "else")
        }
    )
    b.node("If", [flag], "/choice", output="y", **inside)
    inputs = [floats("x", "batch", 8), helper.make_tensor_value_info("flag", TensorProto.BOOL, [])]
    return b.model(inputs, [floats("y", "batch", 8)])


def scan() -> onnx.ModelProto:
    """A Gemm, and a Scan that adds up its rows."""
    b = Builder(0)
    rows = b.gemm("x", (8, 8), "/before")
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum_in", "row"], ["sum_out"]),
            helper.make_node("Identity", ["sum_out"], ["partial"]),
        ],
        "body",
        [floats("sum_in", 8), floats("row", 8)],
        [floats("sum_out", 8), floats("partial", 8)],
    )
    b.nodes.append(
        helper.make_node(
            "Scan",
            [b.weight("zero", np.zeros(8, np.float32)), rows],
            ["last", "y"],
            name="/scan",
            num_scan_inputs=1,
            body=body,
        )
    )
    return b.model([floats("x", "batch", 8)], [floats("y", "batch", 8)])


def gains(operator: str) -> onnx.ModelProto:
    """A Gemm, and an If whose branches multiply by constants; each constant is computed inside its branch."""
    model = branches("Identity", "Identity")
    for attribute in model.graph.node[-1].attribute:
        node, name = attribute.g.node[0], attribute.name
        constant = helper.make_node("Constant", [], [f"{name}_half"], value_float=0.5)
        gain = helper.make_node(operator, [f"{name}_half"], [f"{name}_gain"])
        node.CopyFrom(helper.make_node("Mul", [node.input[0], f"{name}_gain"], [node.output[0]]))
        attribute.g.node.insert(0, gain)
        attribute.g.node.insert(0, constant)
    return model


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (networks.with_if(), 2),
        (networks.with_loop(), 2),
        (scan(), 1),
        (branches("Relu", "Tanh"), 2),
        (branches("Relu", "Identity", inner=True), 2),
        (gains("Exp"), 2),
        (branches("Identity", "Dropout"), 0),
    ],
)
def test_float_layers_inside_control_flow_are_counted(opened, model, count):
    """Copies and constants do not count, and layers at any depth do."""
    network = opened(model)
    for config in (FP16, BF16, INT8):
        caveats = find_unsimulated_layer_caveats(network, config)
        assert [int(caveat.text.split()[0]) for caveat in caveats] == [count] * bool(count)
    assert not find_unsimulated_layer_caveats(network, FP32)


def test_a_pass_is_uncertain_if_float_layers_stand_inside_control_flow(tmp_path):
    onnx.save(networks.with_loop(), tmp_path / "loop.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((32, 8), np.float32))
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(Options(str(tmp_path / "loop.onnx"), str(tmp_path / "x.npz"), whatif_samples=0)))
    events = worker.answer(rq.CompareRuns({"fp16": FP16, "int8": INT8}, False, "int8"))
    outcomes = {
        event.run: judge_accuracy([parse_target("sqnr>=20")], event.accuracy)
        for event in of(events, ev.AccuracyMeasured)
        if event.final
    }
    assert {run: outcome.outcome for run, outcome in outcomes.items()} == dict.fromkeys(
        ("fp16", "int8"), Outcome.UNCERTAIN_PASS
    )
    assert all("2 float layers inside /loop/Loop" in outcome.text for outcome in outcomes.values())


def test_exports_for_weak_typing_name_the_layers_that_take_no_precision(opened):
    network = opened(networks.with_if())
    for lowered in (
        lower_to_implicit_quantization(network, FP16, {}),
        lower_to_explicit_quantization(network, FP16, {})[0],
    ):
        assert any("FP16 for 2 float layers inside /switch/If" in note for note in lowered.notes)
    assert not lower_to_implicit_quantization(network, FP32, {}).notes
    assert not lower_to_implicit_quantization(opened(networks.mlp()), FP16, {}).notes


@pytest.mark.parametrize(
    ("declared", "size", "is_refused"),
    [(("n", 4), (2, 4), False), (("n", 4), (2, 5), True), (("n", 4), (2, 4, 1), True), (None, (2, 5), False)],
)
def test_outputs_of_other_sizes_than_declared_are_refused(declared, size, is_refused):
    network = SimpleNamespace(outputs=[SimpleNamespace(name=name, shape=declared) for name in ("y", "not measured")])
    outputs = {"y": np.zeros(size, np.float32)}
    if is_refused:
        with pytest.raises(InputError):
            refuse_undeclared_output_sizes(network, outputs)
    else:
        refuse_undeclared_output_sizes(network, outputs)
