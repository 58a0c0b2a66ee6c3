"""Tests of tests.networks: each network is valid, runs, and its outputs depend on its inputs."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tests import networks

BUILT = {build.__name__: build for build in (
    networks.bert, networks.bert_block, networks.half, networks.mlp, networks.opset7, networks.quantized,
    networks.small_resnet, networks.unet_small, networks.vit, networks.vit_block, networks.with_if,
    networks.with_local_function, networks.with_loop, networks.with_sequence)}
MANY = {
    "synthetic_tree": lambda: networks.synthetic_tree(300),
    "many_layers": lambda: networks.many_layers(60),
    "quantized_asymmetric": lambda: networks.quantized(symmetric=False),
    "light_weights_as_inputs": lambda: networks.light("shufflenet", weights_as_inputs=True),
}


def outputs_of(model: onnx.ModelProto, seed: int) -> list[np.ndarray]:
    return networks.quiet_session(model).run(None, networks.feeds(model, seed, n=2, sequence=12))


@pytest.mark.parametrize("name", [*BUILT, *MANY])
def test_is_valid_and_depends_on_its_input(name: str) -> None:
    model = {**BUILT, **MANY}[name]()
    onnx.checker.check_model(model, full_check=True)
    for first, second in zip(outputs_of(model, 1), outputs_of(model, 2), strict=True):
        assert np.isfinite(first).all()
        assert np.abs(first - second).max() > 1e-2 * np.abs(first).max()


@pytest.mark.parametrize("name", ["resnet50", "densenet121", "squeezenet", "shufflenet", "inception_v1",
                                  "inception_v2"])
def test_light_network_is_alive_in_every_layer(name: str) -> None:
    model = networks.light(name)
    onnx.checker.check_model(model)
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    (image,) = model.graph.input
    carried = {image.name}
    probed = []
    for node in model.graph.node:
        if carried & set(node.input):
            carried.add(node.output[0])
            if node.op_type != "Softmax":
                probed.append(node.output[0])
    (output,) = model.graph.output
    extra = [tensor for tensor in probed if tensor != output.name]
    model.graph.output.extend(helper.make_tensor_value_info(tensor, onnx.TensorProto.FLOAT, None) for tensor in extra)
    session = networks.quiet_session(model)
    first = session.run([output.name, *extra], networks.feeds(model, 1))
    second = session.run([output.name], networks.feeds(model, 2))
    for tensor, values in zip(extra, first[1:], strict=True):
        assert 1e-2 < values.std() < 1e2, tensor
    assert np.isfinite(first[0]).all()
    assert np.abs(first[0] - second[0]).max() > 1e-2 * np.abs(first[0]).max()
    if model.graph.node[-1].op_type == "Softmax":
        assert first[0].max() < 0.9


def test_bert_ignores_what_its_mask_hides() -> None:
    model = networks.bert()
    fed = networks.feeds(model, 0, n=1, sequence=9)
    fed["attention_mask"][0, 6:] = 0
    other = {**fed, "input_ids": fed["input_ids"].copy()}
    other["input_ids"][0, 6:] += 1
    session = networks.quiet_session(model)
    np.testing.assert_array_equal(session.run(["logits"], fed)[0], session.run(["logits"], other)[0])
    other["input_ids"][0, 5] += 1
    assert not np.array_equal(session.run(["logits"], fed)[0], session.run(["logits"], other)[0])


def test_badly_named_network_runs_once_its_names_are_gone() -> None:
    model = networks.badly_named()
    onnx.checker.check_model(model)
    for node in model.graph.node:
        node.name = ""
    good = networks.small_resnet()
    np.testing.assert_array_equal(outputs_of(model, 0)[0], outputs_of(good, 0)[0])
