"""The short form of known warnings of a builder."""

from types import SimpleNamespace

import pytest

from trt_tui.backends.tensorrt import TensorRTLog
from trt_tui.core.engines.fallback_ladder import list_known_warnings


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
