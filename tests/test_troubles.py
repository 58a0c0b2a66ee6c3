"""Layers that are known to gain little or to lose much in codes: each rule where it applies and where it does not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from trt_tui.core.network.network import open_network
from trt_tui.core.network.troubles import troubles_in
from trt_tui.demo import network_path


def network_of(tmp_path, op, weight, shape, **attributes):
    """Three of one operator in a row, so that the middle one is neither first nor last; the first and last are wide."""
    weights = [numpy_helper.from_array(np.zeros(weight, np.float32), f"w{number}") for number in range(3)]
    nodes = [helper.make_node(op, [f"t{number}", f"w{number}"], [f"t{number + 1}"], f"/n{number}", **attributes)
             for number in range(3)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("t0", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info("t3", TensorProto.FLOAT, None)], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "n.onnx")
    return open_network(tmp_path / "n.onnx")


@pytest.mark.parametrize(("op", "weight", "shape", "attributes", "said"), [
    ("Conv", (12, 12, 3, 3), (1, 12, 8, 8), {"pads": [1] * 4}, "12 channels in, 12 out"),
    ("Conv", (32, 32, 3, 3), (1, 32, 8, 8), {"pads": [1] * 4}, ""),
    ("ConvTranspose", (32, 32, 1, 1), (1, 32, 8, 8), {}, "made Half or Float"),
    ("MatMul", (32, 32), (1, 32), {}, "one row"),
    ("MatMul", (8, 8), (4, 8), {}, "K = 8"),
    ("MatMul", (32, 32), (4, 32), {}, ""),
    ("MatMul", (32, 32), ("batch", 32), {}, ""),
])
def test_rules(tmp_path, op, weight, shape, attributes, said):
    network = network_of(tmp_path, op, weight, shape, **attributes)
    group = network.groups[1]
    told = troubles_in(network.outline().troubles, group, True)
    assert len(told) == bool(said) and all(said in one and one.endswith(")") for one in told)
    assert not troubles_in(network.outline().troubles, group, False)


def test_first_and_last_layers_of_the_bundled_network():
    network = open_network(network_path())
    quantizable = [group for group in network.groups if group.quantizable]
    told = {name: " ".join(one.said for one in found) for name, found in network.troubles.items()}
    assert "the first layer" in told[quantizable[0].name] and "the last layer" in told[quantizable[-1].name]
    assert sum("the first layer" in one or "the last layer" in one for one in told.values()) == 2
