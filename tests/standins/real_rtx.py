"""What the backend does with the real TensorRT-RTX, which builds without a GPU.

`tests.backends.test_rtx_backend` runs this file with pytest in a process of its own: Polygraphy serves one TensorRT a
process.
"""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import networks
from tests.refusals import refused
from trt_tui.backends import cuda
from trt_tui.backends.tensorrt import TensorRTBackend
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.exporters.onnx import export_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BuildSettings
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError
from trt_tui.jobs.engine_build import lower_for_builder

ADA = BuildSettings(
    {"image": ((1, 3, 32, 32), (2, 3, 32, 32), (4, 3, 32, 32))},
    compute_capability=(8, 9),
    builder_options=BuilderOptions(optimization_level=0),
)


@pytest.fixture(scope="module")
def rtx():
    return TensorRTBackend("tensorrt-rtx")


@pytest.fixture(scope="module")
def resnet(named_network):
    return named_network("small_resnet")


@pytest.fixture
def lowered(rtx, resnet, tmp_path):
    def lower(config: PrecisionConfig):
        made = lower_for_builder(resnet, config, dict.fromkeys(resnet.calibrated_tensors, 4.0), rtx.capabilities, "RTX")
        return export_typed_network(made.model, resnet, tmp_path / "network.onnx").path

    return lower


def test_it_is_strongly_typed_and_builds_for_named_gpus(rtx) -> None:
    has = rtx.capabilities
    assert has.strongly_typed and not has.weakly_typed and has.supports_bf16
    assert (8, 9) in has.target_compute_capabilities and all(len(one) == 2 for one in has.target_compute_capabilities)
    assert rtx.version.startswith("1.")


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_what_kernels_hand_on_is_marked_in_the_plan_and_changes_no_kernel(rtx, lowered, precision) -> None:
    """The plan has a flag for it, and is the same otherwise but for some bytes that differ from build to build."""
    path = lowered(PrecisionConfig.from_precision(precision))
    plain, marked = (np.frombuffer(rtx.build(path, replace(ADA, debug_tensors=one)), np.uint8) for one in (False, True))
    assert rtx.capabilities.debug_tensors and len(plain) == len(marked)
    assert 0 < np.count_nonzero(plain != marked) < len(plain) / 5000


def test_several_profiles_are_built(rtx, lowered) -> None:
    path = lowered(PrecisionConfig.from_precision(Precision.FP16))
    more = replace(ADA, more_profiles=({"image": ((8, 3, 32, 32), (16, 3, 32, 32), (32, 3, 32, 32))},))
    assert len(rtx.build(path, more)) > 1.2 * len(rtx.build(path, ADA))


def test_attention_in_fp32_is_built_in_several_layers(rtx, tmp_path) -> None:
    shape = (1, 2, 16, 16)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkvy"]
    graph = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v"], ["y"], "attention")], "g", values[:3], values[3:]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11),
        path := tmp_path / "attention.onnx",
    )
    assert len(rtx.build(path, replace(ADA, profile={}))) > 10_000


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8])
def test_every_precision_builds(rtx, lowered, precision) -> None:
    said: list[tuple[str, str]] = []
    steps: list[tuple[str, int, int]] = []
    data = rtx.build(
        lowered(PrecisionConfig.from_precision(precision)),
        ADA,
        on_step=lambda *step: bool(steps.append(step)) or True,
        on_message=lambda *line: said.append(line),
    )
    assert len(data) > 10_000
    assert steps and all(0 <= done <= total for _, done, total in steps)
    assert said and not [text for level, text in said if level == "error"]


def test_a_stop_ends_the_build(rtx, lowered) -> None:
    path = lowered(PrecisionConfig.from_precision(Precision.FP16))
    seen: list[str] = []

    def step(phase: str, done: int, total: int) -> bool:
        seen.append(phase)
        return len(seen) < 3

    with pytest.raises(CancelledError):
        rtx.build(path, ADA, on_step=step)
    assert len(rtx.build(path, ADA)) > 10_000


def test_which_gpu_to_build_for_has_to_be_said_and_served(rtx, lowered) -> None:
    path = lowered(PrecisionConfig.from_precision(Precision.FP32))
    with refused(r"capability 3\.5", cause="8.9"):
        rtx.build(path, replace(ADA, compute_capability=(3, 5)))
    if not rtx.capabilities.can_execute:
        with refused("no GPU to build for", next_step="--compute-capability"):
            rtx.build(path, replace(ADA, compute_capability=None))


def test_an_engine_is_not_loaded_without_a_gpu(rtx, lowered) -> None:
    if rtx.capabilities.can_execute:
        pytest.skip(f"it runs on {rtx.device}")
    data = rtx.build(lowered(PrecisionConfig.from_precision(Precision.FP32)), ADA)
    with pytest.raises(BackendUnavailableError, match="cannot run on this machine") as raised:
        rtx.load_engine(data)
    try:
        cuda.find_first_device()
    except BackendUnavailableError:
        assert "no GPU" in raised.value.cause


def test_what_it_refuses_is_named(rtx, lowered, tmp_path) -> None:
    with pytest.raises(InputError, match="input image has dynamic dimensions"):
        rtx.build(lowered(PrecisionConfig.from_precision(Precision.FP32)), replace(ADA, profile={}))
    model = networks.with_custom_operator()
    node = next(node for node in model.graph.node if node.domain)
    onnx.save(model, tmp_path / "custom.onnx")
    with pytest.raises(InputError, match="refuses this network") as raised:
        rtx.build(tmp_path / "custom.onnx", replace(ADA, profile={}))
    assert node.name in raised.value.title and node.op_type in raised.value.title


@pytest.mark.parametrize("place", ["timing.cache", "missing/timing.cache"])
def test_a_timing_cache_is_kept_where_it_can_be(rtx, lowered, tmp_path, place) -> None:
    path, cache = lowered(PrecisionConfig.from_precision(Precision.FP32)), tmp_path / place
    said: list[str] = []
    for _ in range(2):
        settings = replace(ADA, builder_options=BuilderOptions(optimization_level=0, timing_cache=str(cache)))
        data = rtx.build(path, settings, on_message=lambda *line: said.append(line[1]))
        assert len(data) > 10_000
    assert cache.is_file() == (place == "timing.cache")
    assert any("cannot be written" in text for text in said) == (place != "timing.cache")


@pytest.mark.parametrize(("operator", "shape"), [("Expand", [2]), ("Reshape", [2]), ("TopK", [1]), ("Mul", [])])
def test_inputs_whose_values_are_shapes_are_named_and_scalars_build(rtx, tmp_path, operator, shape) -> None:
    value, results = helper.make_tensor_value_info, ["y", "index"][: 1 + (operator == "TopK")]
    kind = TensorProto.INT64 if shape else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "other"], results, f"/{operator}")],
        "g",
        [value("x", TensorProto.FLOAT, [1, 8]), value("other", kind, shape)],
        [value("y", TensorProto.FLOAT, [None, None])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "x.onnx")
    if not shape:
        assert len(rtx.build(tmp_path / "x.onnx", replace(ADA, profile={}))) > 1000
        return
    with pytest.raises(InputError, match="values of input other are shapes"):
        rtx.build(tmp_path / "x.onnx", replace(ADA, profile={}))
