"""Tests of tests.networks: each network is valid, runs, and its outputs depend on its inputs."""

import numpy as np
import onnx
import pytest

from tests import networks

BUILT = {
    build.__name__: build
    for build in (
        networks.bert,
        networks.bert_block,
        networks.half,
        networks.mlp,
        networks.opset7,
        networks.quantized,
        networks.small_resnet,
        networks.unet_small,
        networks.vit,
        networks.vit_block,
        networks.with_if,
        networks.with_local_function,
        networks.with_loop,
        networks.with_sequence,
    )
}
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
