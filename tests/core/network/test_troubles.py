"""Layers that are known to gain little or to lose much in codes: each rule where it applies and where it does not."""

from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from trt_tui.backends.tensorrt import TensorRTLog
from trt_tui.core.engines.fallback_ladder import list_known_warnings
from trt_tui.core.network.known_defects import known_issue_lines
from trt_tui.core.network.network import open_network
from trt_tui.demo import network_path


def network_of(tmp_path, op, weight, shape, **attributes):
    """Three of one operator in a row, so that the middle one is neither first nor last; the first and last are wide."""
    weights = [numpy_helper.from_array(np.zeros(weight, np.float32), f"w{number}") for number in range(3)]
    nodes = [
        helper.make_node(op, [f"t{number}", f"w{number}"], [f"t{number + 1}"], f"/n{number}", **attributes)
        for number in range(3)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("t0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("t3", TensorProto.FLOAT, None)],
        weights,
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "n.onnx")
    return open_network(tmp_path / "n.onnx")


@pytest.mark.parametrize(
    ("op", "weight", "shape", "attributes", "said"),
    [
        ("Conv", (12, 12, 3, 3), (1, 12, 8, 8), {"pads": [1] * 4}, "12 channels in, 12 out"),
        ("Conv", (32, 32, 3, 3), (1, 32, 8, 8), {"pads": [1] * 4}, ""),
        ("Conv", (8, 8, 3, 3), (1, 8, 8, 8), {"pads": [1] * 4}, "8 channels in, 8 out"),
        ("ConvTranspose", (32, 32, 1, 1), (1, 32, 8, 8), {}, "FP16 or FP32 even if INT8"),
        ("MatMul", (32, 32), (1, 32), {}, "one row"),
        ("MatMul", (8, 8), (4, 8), {}, "K = 8"),
        ("MatMul", (32, 32), (4, 32), {}, ""),
        ("MatMul", (32, 32), ("batch", 32), {}, ""),
    ],
)
def test_rules(tmp_path, op, weight, shape, attributes, said):
    network = network_of(tmp_path, op, weight, shape, **attributes)
    group = network.groups[1]
    told = known_issue_lines(network.build_outline().known_issues, group, True)
    assert len(told) == bool(said) and all(said in one and one.endswith(")") for one in told)
    assert not known_issue_lines(network.build_outline().known_issues, group, False)


def test_first_and_last_layers_of_the_bundled_network():
    network = open_network(network_path())
    quantizable = [group for group in network.groups if group.is_quantizable]
    told = {name: " ".join(one.issue_description for one in found) for name, found in network.known_issues.items()}
    assert "the first layer" in told[quantizable[0].name] and "the last layer" in told[quantizable[-1].name]
    assert sum("the first layer" in one or "the last layer" in one for one in told.values()) == 2


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (
            [
                "Weights [name=/n0 + PWN(PWN(Sigmoid_9), /n1).weight] had the following issues when converted to FP16:",
                " - Subnormal FP16 values detected. ",
                "If this is not the desired behavior, please modify the weights.",
            ],
            "/n0 + PWN(PWN(Sigmoid_9), /n1).weight in FP16: Subnormal FP16 values detected",
        ),
        (
            [
                "Missing scale and zero-point for tensor t2, expect fall back to non-int8 implementation "
                "for any layer consuming or producing given tensor"
            ],
            "no range for t2: its producer and consumers fall back from INT8",
        ),
        (
            [
                "No implementation of layer /n0[Conv] + /n1[Relu] obeys the requested constraints in strict mode. "
                "No conforming"
            ],
            "no implementation of /n0[Conv] + /n1[Relu] has its precision: TensorRT took the fastest",
        ),
        (
            ["ModelImporter.cpp:503: Detected layernorm nodes in FP16: /n1, /elsewhere/Sub, /n2"],
            "LayerNorm in FP16, which may overflow after an attention: /n1, /elsewhere/Sub, /n2",
        ),
        (
            [
                "/n2: IShuffleLayer with zeroIsPlaceHolder=true has reshape dimension at position 1 that might or "
                "might not be zero. TensorRT resolves it at runtime"
            ],
            "/n2 reshapes to a computed size that might be 0: resolved at run time, it may take much memory",
        ),
        (["ModelImporter.cpp:503: Make sure input t0 has Int64 binding.", "/n2: this mode is not known"], None),
    ],
)
def test_known_warnings_are_shortened(printed, said):
    """Texts as TensorRT prints them; see the sources in `trt_tui.core.engines.fallback_ladder`."""
    messages = [
        ("info", "No implementation of layer /n0 obeys the requested constraints"),
        *(("warning", text) for text in printed),
    ]
    assert list_known_warnings(messages) == (() if said is None else (said,))


def test_names_that_follow_a_warning_are_read_with_it():
    """From TensorRT 9 on the LayerNorms that a warning is about are named in the next verbose message."""
    trt = SimpleNamespace(
        __name__="trt",
        ILogger=type("ILogger", (), {"__init__": lambda self: None}),
        Logger=SimpleNamespace(VERBOSE="V"),
    )
    log = TensorRTLog()
    logger = log.get_tensorrt_logger(trt)
    with log.collect_messages(None) as said:
        logger.log(SimpleNamespace(name="WARNING"), "Detected layernorm nodes in FP16.")
        logger.log("V", "/norm/Sub, /norm/Div")
        logger.log("V", "something else")
    assert [text for _, text in said] == [
        "Detected layernorm nodes in FP16.",
        "Detected layernorm nodes in FP16: /norm/Sub, /norm/Div",
    ]
    assert list_known_warnings(said) == (
        "LayerNorm in FP16, which may overflow after an attention: /norm/Sub, /norm/Div",
    )
