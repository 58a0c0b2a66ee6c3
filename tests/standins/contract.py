"""What every backend that builds engines does, and what it tells the builder.

`tests.backends.test_tensorrt_backend` runs this file with pytest in a process of each release, since a process serves
one; the environment is that of `tests.standins.environment`, or a machine's own where STANDIN_RELEASE is not set.
CONTRACT names the backend. What the builder was told is read out of the engines of stand-ins, so those tests are skipped
elsewhere.
"""

import errno
import os
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import networks, standins
from tests.refusals import refused
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.backends.tensorrt import TensorRTBackend, printed_error_text
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.engines.group_implementations import find_group_implementations
from trt_tui.core.engines.inspector import COMPUTE, read_engine_report
from trt_tui.core.exporters.onnx import export_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BuildSettings, EngineBackend, EngineRunner
from trt_tui.errors import CancelledError, InputError, TrtTuiError
from trt_tui.jobs.engine_build import lower_for_builder

RELEASE = os.environ.get("STANDIN_RELEASE", "")
FP32, FP16, BF16, INT8 = (
    PrecisionConfig.from_precision(one) for one in (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8)
)
PROFILE = {"image": ((1, 3, 32, 32), (2, 3, 32, 32), (4, 3, 32, 32))}
SETTINGS = BuildSettings(PROFILE)

told_only = pytest.mark.skipif(not RELEASE, reason="only a stand-in tells what it was told")


@pytest.fixture(scope="module")
def backend() -> TensorRTBackend:
    return TensorRTBackend(os.environ["CONTRACT"])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    path = tmp_path_factory.mktemp("network") / "small_resnet.onnx"
    onnx.save(networks.small_resnet(), path)
    return open_network(path)


@pytest.fixture(scope="module")
def lowered(backend: EngineBackend, network: Network, tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """Writes what a config becomes for the backend; returns the file and what is told beside it."""

    def lower(config: PrecisionConfig, weak: bool = False) -> tuple:
        made = lower_for_builder(
            network, config, dict.fromkeys(network.calibrated_tensors, 4.0), backend.capabilities, "it", weak
        )
        folder = tmp_path_factory.mktemp("lowered")
        return export_typed_network(made.model, network, folder / "network.onnx").path, made.constraints

    return lower


@pytest.fixture(scope="module")
def built(backend: EngineBackend, lowered: Callable) -> Callable[..., bytes]:
    def build(config: PrecisionConfig, settings: BuildSettings = SETTINGS, weak: bool = False) -> bytes:
        path, told = lowered(config, weak)
        return backend.build(path, settings, told)

    return build


@pytest.fixture(scope="module")
def fp32(built: Callable[..., bytes]) -> bytes:
    return built(FP32)


@pytest.fixture
def runner(backend: EngineBackend, fp32: bytes) -> EngineRunner:
    with backend.load_engine(fp32) as loaded:
        yield loaded


def images(count: int = 2) -> dict[str, np.ndarray]:
    return {"image": networks.random_images(np.random.default_rng(count), (count, 3, 32, 32))}


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def told_of(backend: EngineBackend) -> object:
    """What an FP32 network is built with where no precision is told."""
    if backend.capabilities.strongly_typed:
        return None
    from trt_tui.core.runner import LayerConstraints

    return LayerConstraints({}, {}, {}, frozenset())


def test_an_fp32_engine_computes_what_onnx_runtime_does(runner: EngineRunner, network: Network) -> None:
    with OnnxRuntimeBackend("cpu", threads=2).load(network.model) as reference:
        for count in (1, 2, 4):
            wanted, found = (one.run(images(count))["logits"] for one in (reference, runner))
            assert found.shape == (count, 10) and found.dtype == np.float32
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_inputs_and_outputs_are_the_networks(runner: EngineRunner) -> None:
    assert [(info.name, info.dtype, info.shape) for info in (*runner.inputs, *runner.outputs)] == [
        ("image", np.float32, (None, 3, 32, 32)),
        ("logits", np.float32, (None, 10)),
    ]
    assert runner.device_memory >= 0


def test_latency_is_of_the_feeds_that_it_is_asked_for(runner: EngineRunner) -> None:
    small, large = images(1), images(4)
    assert runner.latency_ms(small) > 0
    runner.run(large)
    assert runner.latency_ms(small) > 0
    assert tuple(runner._runner.context.get_tensor_shape("image")) == (1, 3, 32, 32)


def test_the_profiler_and_the_inspector_name_the_same_layers(runner: EngineRunner, network: Network) -> None:
    report = read_engine_report(runner.inspect(), network)
    times = runner.layer_times_ms(images(), 3)
    assert set(times) == {layer.name for layer in report.layers} and min(times.values()) >= 0
    assert sum(share for _, share in report.with_layer_times(times).precision_shares().values()) == pytest.approx(
        1, abs=0.2
    )
    made = find_group_implementations(report, network)
    assert {group.name for group in network.groups if group.is_quantizable} <= set(made)
    assert {made[group.name].precision for group in network.groups if group.is_quantizable} == {Precision.FP32}
    assert {one.precision for one in made.values()} <= {Precision.FP32, None}, "8.6 names no type of a pooling kernel"


def test_an_int8_engine_is_told_apart(backend: EngineBackend, built: Callable, network: Network) -> None:
    config = INT8.with_group_precision([network.get_group("/layer1/conv2/Conv")], Precision.FP32)
    with backend.load_engine(built(config)) as runner:
        report = read_engine_report(runner.inspect(), network)
        made = find_group_implementations(report, network)
        assert np.isfinite(runner.run(images())["logits"]).all()
    assert all(layer.network_layers for layer in report.layers if layer.kind == COMPUTE), (
        "those of the lowering do not count"
    )
    for name in ("/conv1/Conv", "/layer2/conv2/Conv", "/fc/Gemm"):
        assert made[name].precision is Precision.INT8, name
    assert made["/layer1/conv2/Conv"].precision is Precision.FP32


def test_a_build_tells_how_far_it_is_and_heeds_a_stop(backend: EngineBackend, lowered: Callable) -> None:
    path, told = lowered(FP32)
    steps: list[tuple[str, int, int]] = []
    data = backend.build(path, SETTINGS, told, on_step=lambda *step: bool(steps.append(step)) or True)
    assert data
    assert bool(steps) == backend.capabilities.reports_progress
    if steps:
        assert all(0 <= done <= total for _, done, total in steps)
        with pytest.raises(CancelledError):
            backend.build(path, SETTINGS, told, on_step=lambda phase, done, total: False)
        assert backend.build(path, SETTINGS, told), "it builds again after a stop"


def test_what_the_builder_prints_is_passed_on(backend: EngineBackend, lowered: Callable, capfd) -> None:
    path, told = lowered(FP32)
    said: list[tuple[str, str]] = []
    backend.build(path, SETTINGS, told, on_message=lambda level, text: said.append((level, text)))
    assert {level for level, _ in said} <= {"info", "warning", "error"} and "info" in {level for level, _ in said}
    assert not any("\x1b" in text or re.match(r"\[([VIWEX]|TRT)\]", text) for _, text in said), (
        "the level is not repeated in the text; [MemUsageChange] is TensorRT's own"
    )
    shown = capfd.readouterr()
    assert shown.out == "" and "[TRT]" not in shown.err
    if not backend.capabilities.strongly_typed:
        with pytest.raises(ValueError, match="layer by layer"):
            backend.build(path, SETTINGS)


def test_a_dynamic_input_without_a_profile_is_named(backend: EngineBackend, lowered: Callable) -> None:
    path, told = lowered(FP32)
    with refused("input image has dynamic dimensions", cause="?x3x32x32", next_step="--shapes image:"):
        backend.build(path, BuildSettings(), told)


def test_feeds_outside_the_profile_are_an_error_that_says_so(runner: EngineRunner) -> None:
    with refused("could not run", cause="image", next_step="--shapes", kind=TrtTuiError):
        runner.run(images(5))
    assert runner.run(images())["logits"].shape == (2, 10)


@told_only
def test_a_run_takes_the_first_profile_that_has_its_shapes(built, backend: EngineBackend) -> None:
    more = {"image": ((5, 3, 32, 32), (6, 3, 32, 32), (8, 3, 32, 32))}
    with backend.load_engine(built(FP32, replace(SETTINGS, more_profiles=(more,)))) as runner:
        assert runner.profiles == (PROFILE, more)
        for count in (2, 8, 4, 6):
            assert runner.run(images(count))["logits"].shape == (count, 10)
            assert runner.latency_ms(images(count)) > 0 and runner.graph_latency_ms(images(count)) > 0
        assert runner.layer_times_ms(images(8), 2) and runner.inspect()
        runner.select_profile(0)
        with pytest.raises(TrtTuiError, match="could not run"):
            runner.run(images(8))


def test_an_operator_that_it_does_not_know_is_named_with_its_node(backend: EngineBackend, tmp_path: Path) -> None:
    model = networks.with_custom_operator()
    node = next(node for node in model.graph.node if node.domain)
    with pytest.raises(InputError, match="refuses this network") as raised:
        backend.build(saved(model, tmp_path), BuildSettings(), told_of(backend))
    assert node.name in raised.value.title and node.op_type in str(raised.value)


def test_a_foreign_engine_or_network_is_refused(backend: EngineBackend, fp32: bytes, tmp_path: Path) -> None:
    for data in (b"nonsense" * 40, fp32[5:]):
        with pytest.raises(InputError, match="cannot load this engine") as raised:
            backend.load_engine(data)
        assert raised.value.cause and "See log" not in raised.value.cause
    (tmp_path / "broken.onnx").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"broken\.onnx|this network"):
        backend.build(tmp_path / "broken.onnx", BuildSettings(), told_of(backend))


def test_integer_inputs_are_given_in_the_engines_type(backend: EngineBackend, tmp_path: Path) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "index"], ["row"], "/gather"),
            helper.make_node("Relu", ["row"], ["y"], "/relu"),
        ],
        "lookup",
        [helper.make_tensor_value_info("index", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [onnx.numpy_helper.from_array(table, "table")],
    )
    path = saved(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path)
    with backend.load_engine(backend.build(path, BuildSettings(), told_of(backend))) as runner:
        found = runner.run({"index": np.array([3, 1])})["y"]
        np.testing.assert_array_equal(found, table[[3, 1]])
        if runner.inputs[0].dtype == np.int32:
            with pytest.raises(InputError, match="input index does not fit"):
                runner.run({"index": np.array([1 << 40, 1])})


def test_scalar_inputs_stay_scalars(backend: EngineBackend, tmp_path: Path) -> None:
    path = saved(of_two([4, 8], TensorProto.FLOAT, [], "Mul"), tmp_path)
    feeds = {"x": np.ones((4, 8), np.float32), "other": np.array(3, np.float32)}
    with backend.load_engine(backend.build(path, BuildSettings(), told_of(backend))) as runner:
        assert [info.shape for info in runner.inputs] == [(4, 8), ()]
        np.testing.assert_array_equal(runner.run(feeds)["y"], np.full((4, 8), 3, np.float32))
        assert runner.latency_ms(feeds) > 0 and runner.graph_latency_ms(feeds) > 0


@told_only
def test_a_run_is_one_cuda_graph_while_its_inputs_stay(backend: EngineBackend, tmp_path: Path, monkeypatch) -> None:
    path = saved(of_two([4, 8], TensorProto.FLOAT, [8], "Mul"), tmp_path)
    first, other = ({"x": np.ones((4, 8), np.float32), "other": np.full(8, 3, np.float32)} for _ in range(2))
    runtime = sys.modules["polygraphy.cuda.cuda"].G_CUDA.handle
    with backend.load_engine(backend.build(path, BuildSettings(), told_of(backend))) as runner:
        before = runtime.launches
        assert all(runner.graph_latency_ms(first) > 0 for _ in range(3)) and runtime.graphs == 1
        assert runner.graph_latency_ms(other) > 0 and runtime.launches == before + 4 and runtime.graphs == 1
        runner.run(first)
        assert runtime.graphs == 0, "it reads what lay at addresses that are free now"
        monkeypatch.setenv("STANDIN_FAULT", "no graph")
        with pytest.raises(TrtTuiError, match="could not run") as refused:
            runner.graph_latency_ms(first)
        assert "cudaStreamBeginCapture: CUDA error 900" in refused.value.cause and runner.latency_ms(first) > 0


@pytest.mark.parametrize(("operator", "shape"), [("Expand", [2]), ("Reshape", [2]), ("Tile", [2])])
def test_an_input_whose_values_are_shapes_is_named(backend: EngineBackend, tmp_path: Path, operator, shape) -> None:
    path = saved(of_two([1, 8], TensorProto.INT64, shape, operator), tmp_path)
    with refused("values of input other are shapes", cause="profile", next_step="constant"):
        backend.build(path, BuildSettings(), told_of(backend))


def of_two(x: list[int], kind: int, other: list[int], operator: str) -> onnx.ModelProto:
    """An operator of two inputs: ``x`` and ``other``."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "other"], ["y"], f"/{operator}")],
        "g",
        [value("x", TensorProto.FLOAT, x), value("other", kind, other)],
        [value("y", TensorProto.FLOAT, [None] * 2)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_a_run_was_given_is_kept_while_it_is_timed(backend: EngineBackend, tmp_path: Path, monkeypatch) -> None:
    """An input that is read on the host is read where it lies, in the engine's type."""
    path = saved(of_two([4, 3], TensorProto.INT64, [2], "Gather"), tmp_path)
    feeds = {"x": np.ones((4, 3), np.float32), "other": np.array([3, 1])}
    with backend.load_engine(backend.build(path, BuildSettings(), told_of(backend))) as runner:
        infer, given = runner._runner.infer, []

        def followed(fitted: dict, **options: object) -> dict:
            given.extend(weakref.ref(array) for array in fitted.values())
            return infer(fitted, **options)

        monkeypatch.setattr(runner._runner, "infer", followed)
        runner.latency_ms(feeds)
        assert len(given) == 2 and all(array() is not None for array in given)


@told_only
def test_a_layer_without_an_implementation_is_in_the_error(backend, lowered, monkeypatch) -> None:
    monkeypatch.setenv("STANDIN_FAULT", "fail: /layer2/conv1/Conv")
    path, told = lowered(FP32)
    with pytest.raises(TrtTuiError, match="could not build") as raised:
        backend.build(path, SETTINGS, told)
    assert "/layer2/conv1/Conv" in raised.value.cause and "Invalid Engine" not in raised.value.cause
    assert "/layer2/conv1/Conv" in raised.value.details[-1]
    monkeypatch.delenv("STANDIN_FAULT")
    assert backend.build(path, SETTINGS, told)


@told_only
@pytest.mark.parametrize("level", ["build", "run", "profile"])
def test_too_little_memory_is_said(backend, lowered, fp32, monkeypatch, level) -> None:
    path, told = lowered(FP32)
    runner = backend.load_engine(fp32) if level == "profile" else None
    monkeypatch.setenv("STANDIN_FAULT", "out of memory" if level == "build" else "out of memory at run")
    with pytest.raises(TrtTuiError, match="device memory") as raised:
        {
            "build": lambda: backend.build(path, SETTINGS, told),
            "run": lambda: backend.load_engine(fp32),
            "profile": lambda: runner.layer_times_ms(images(), 3),
        }[level]()
    assert "17179869184" in raised.value.cause and "Invalid" not in raised.value.cause


@told_only
def test_an_engine_of_another_gpu_is_refused(backend, fp32, monkeypatch) -> None:
    if backend.capabilities.target_compute_capabilities:
        pytest.skip("its GPU decides earlier whether it can run engines")
    monkeypatch.setenv("STANDIN_DEVICE", "7.5")
    with pytest.raises(InputError, match="cannot load this engine") as raised:
        backend.load_engine(fp32)
    assert "7.5" in raised.value.cause and raised.value.next_step == "Build it again here."


@told_only
def test_a_builder_and_a_runtime_that_do_not_start_say_why(backend, lowered, fp32, monkeypatch) -> None:
    path, told = lowered(FP32)
    monkeypatch.setenv("STANDIN_FAULT", "wrong driver")
    starts = [lambda: backend.load_engine(fp32)]
    if not backend.capabilities.target_compute_capabilities:  # such a builder needs no driver
        starts.append(lambda: backend.build(path, SETTINGS, told))
    for start in starts:
        with pytest.raises(TrtTuiError, match="does not start") as raised:
            start()
        assert raised.value.exit_code == 3 and "driver" in raised.value.cause
        assert "error: 35" in raised.value.raw_message and "driver" in raised.value.next_step


@told_only
def test_nothing_stays_allocated_on_the_device(backend, fp32) -> None:
    allocations = sys.modules["polygraphy.cuda.cuda"].G_CUDA.allocations
    before = set(allocations)
    with backend.load_engine(fp32) as runner:
        runner.run(images())
        runner.layer_times_ms(images(), 2)
        assert set(allocations) == before
        runner.latency_ms(images())
        assert set(allocations) != before
    assert set(allocations) == before


@told_only
@pytest.mark.parametrize("fails", [False, True])
def test_there_is_one_execution_context_at_a_time(backend, fp32, monkeypatch, fails) -> None:
    """Each holds the memory of the activations."""
    alive, others = weakref.WeakSet(), []
    create = backend.trt.ICudaEngine.create_execution_context

    def counted(engine: object, *strategy: object) -> object:
        others.append(len(alive))
        made = create(engine, *strategy)
        alive.add(made)
        return made

    monkeypatch.setattr(backend.trt.ICudaEngine, "create_execution_context", counted)
    with backend.load_engine(fp32) as runner:
        if fails:
            with pytest.raises(TrtTuiError, match="could not run"):
                runner.layer_times_ms(images(5), 2)
        else:
            runner.layer_times_ms(images(), 2)
        assert runner.run(images())["logits"].shape == (2, 10)
    assert others == [0, 0, 0]


def test_polygraphys_conclusions_are_left_out_where_tensorrt_said_something() -> None:
    said = [
        ("error", "Invalid Engine. Please ensure"),
        ("info", "x"),
        ("error", "Error Code 10"),
        ("error", "x"),
        ("error", "Error Code 10"),
    ]
    assert printed_error_text(said) == "Error Code 10\nx"
    assert printed_error_text(said[:2]) == "Invalid Engine. Please ensure"
    assert printed_error_text([("error", "Could not find any implementation for node a"), said[0]]).endswith(
        "for node a"
    )


def told(engine: bytes) -> dict:
    return standins.header(engine)["config"]


def float_flags(engine: bytes) -> set[str]:
    return set(told(engine)["flags"]) - {"TF32"}


@told_only
def test_fp32_is_told_nothing_but_tf32(built) -> None:
    plain, with_tf32 = told(built(FP32)), told(built(FP32, replace(SETTINGS, tf32=True)))
    assert plain["flags"] == [] and with_tf32["flags"] == ["TF32"]
    for one in (plain, with_tf32):
        assert one["layer_precisions"] == one["output_types"] == one["dynamic_ranges"] == {}
        assert one["profiling_verbosity"] == "DETAILED" and not one["calibrator"]
        assert one["network_flags"] == (["EXPLICIT_BATCH"] if RELEASE == "8.6.1" else ["STRONGLY_TYPED"])


@told_only
def test_typed_networks_take_no_flags_and_q_dq_without_types_take_fp16_and_int8(built) -> None:
    for config, flags in (
        (FP16, {"FP16"}),
        (INT8, {"FP16", "INT8"}),
        (PrecisionConfig.from_precision(Precision.INT8, Precision.FP32), {"INT8"}),
    ):
        engine = built(config)
        assert float_flags(engine) == ({*flags, "OBEY_PRECISION_CONSTRAINTS"} if RELEASE == "8.6.1" else set())
        assert told(engine)["dynamic_ranges"] == {}


@told_only
def test_a_release_without_typed_graphs_is_told_float_precisions_by_layer(built, network) -> None:
    raised = network.get_group("/layer1/conv1/Conv")
    config = told(built(INT8.with_group_precision([raised], Precision.FP32)))
    if RELEASE != "8.6.1":
        assert config["layer_precisions"] == config["output_types"] == {}
        return
    assert {config["layer_precisions"][name] for name in raised.layers} == {"FLOAT"}
    assert {config["output_types"][f"{name}:0"] for name in raised.layers} == {"FLOAT"}
    assert config["layer_precisions"]["/avgpool/GlobalAveragePool"] == "HALF"
    assert not {"/conv1/Conv", "/layer2/conv1/Conv", "/fc/Gemm"} & set(config["layer_precisions"])


@told_only
def test_weak_builds_are_told_ranges(backend, built, network, lowered) -> None:
    if not backend.capabilities.weakly_typed:
        with pytest.raises(InputError, match="--weak"):
            lowered(INT8, weak=True)
        return
    engine = built(INT8.with_group_precision([network.get_group("/layer1/conv1/Conv")], Precision.FP32), weak=True)
    config = told(engine)
    assert float_flags(engine) == {"FP16", "INT8", "OBEY_PRECISION_CONSTRAINTS"}
    assert config["network_flags"] == (["EXPLICIT_BATCH"] if RELEASE == "8.6.1" else [])
    assert config["dynamic_ranges"]["image"] == [-4, 4] and not config["calibrator"]
    assert config["layer_precisions"]["/layer1/conv1/Conv"] == "FLOAT"
    with backend.load_engine(engine) as runner:
        made = find_group_implementations(read_engine_report(runner.inspect(), network), network)
    assert made["/conv1/Conv"].precision is Precision.INT8
    assert made["/layer1/conv1/Conv"].precision is Precision.FP32


@told_only
def test_bf16_is_refused_where_there_is_none(backend, built, lowered) -> None:
    if RELEASE == "8.6.1":
        with pytest.raises(InputError, match="contains BF16"):
            lowered(BF16)
        with pytest.raises(InputError, match="contains BF16"):
            lowered(BF16, weak=True)
    else:
        assert float_flags(built(BF16)) == set()
        if backend.capabilities.weakly_typed:
            assert float_flags(built(BF16, weak=True)) == {"BF16", "OBEY_PRECISION_CONSTRAINTS"}


ONLY_JIT = (
    *(("-cublas", "-CUBLAS_LT", "-CUDNN") if RELEASE.startswith(("8.", "10.")) else ()),
    "-EDGE_MASK_CONVOLUTIONS",
    "+JIT_CONVOLUTIONS",
)


@told_only
def test_settings_reach_the_builder(built) -> None:
    asked = BuilderOptions(optimization_level=1, tactic_sources=ONLY_JIT, refit=True, workspace=512, sparsity=True)
    engine = built(FP32, replace(SETTINGS, builder_options=asked))
    assert told(engine)["builder_optimization_level"] == 1
    assert told(engine)["tactic_sources"] == ["JIT_CONVOLUTIONS"]
    assert standins.header(engine)["profiles"] == [{"image": [list(shape) for shape in PROFILE["image"]]}]
    assert told(built(FP32))["builder_optimization_level"] == 3
    assert set(told(engine)["flags"]) == {"REFIT", "SPARSE_WEIGHTS"}
    assert told(engine)["pools"] == {"WORKSPACE": 512 << 20}
    with refused("unknown tactic source magic", cause="JIT_CONVOLUTIONS"):
        built(FP32, replace(SETTINGS, builder_options=BuilderOptions(tactic_sources=("+magic",))))


@told_only
@pytest.mark.parametrize(
    ("asked", "flag", "hardware", "lacking"),
    [
        (BuilderOptions(strip_plan=True), "STRIP_PLAN", "NONE", ("8.6.1",)),
        (BuilderOptions(version_compatible=True), "VERSION_COMPATIBLE", "NONE", ("rtx-1.7.1",)),
        (BuilderOptions(hardware_compatibility="ampere+"), "", "AMPERE_PLUS", ("rtx-1.7.1",)),
        (
            BuilderOptions(hardware_compatibility="sameComputeCapability"),
            "",
            "SAME_COMPUTE_CAPABILITY",
            ("8.6.1", "rtx-1.7.1"),
        ),
    ],
)
def test_what_production_asks_for_is_told_or_refused_by_name(built, asked, flag, hardware, lacking) -> None:
    settings = replace(SETTINGS, builder_options=asked)
    if RELEASE in lacking:
        with refused(
            f"has no ({flag or hardware}|{asked.requested_option_texts[0]})",
            next_step=next(iter(asked.requested_options))[1].option,
        ):
            built(FP32, settings)
        return
    config = told(built(FP32, settings))
    assert config["flags"] == ([flag] if flag else []) and config["hardware"] == hardware


def timed(path: Path) -> BuildSettings:
    return replace(SETTINGS, builder_options=BuilderOptions(timing_cache=str(path)))


@told_only
def test_the_timing_cache_is_read_and_written(built, tmp_path) -> None:
    settings = timed(tmp_path / "timing.cache")
    first = told(built(FP32, settings))["timing_cache"]
    assert first["missed"] > 0
    assert (tmp_path / "timing.cache").stat().st_size > 0 and first["found"] == 0
    second = told(built(FP32, settings))["timing_cache"]
    assert second["found"] == (0 if RELEASE.startswith("rtx") else first["missed"])
    (tmp_path / "timing.cache").write_bytes(b"nonsense")
    assert told(built(FP32, settings))["timing_cache"]["found"] == 0
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["timing.cache"]


@told_only
@pytest.mark.parametrize(
    "place", ["missing/timing.cache", "file/timing.cache", "folder", "unreadable", "full", "data.npz"]
)
def test_a_timing_cache_that_cannot_be_used_costs_no_build(backend, lowered, tmp_path, monkeypatch, place) -> None:
    cache = tmp_path / place
    (tmp_path / "folder").mkdir()
    held = {"file": b"as it was", "unreadable": b"as it was", "full": b"", "data.npz": b"PK something else"}
    for name, content in held.items():
        (tmp_path / name).write_bytes(content)
    read, open_ = Path.read_bytes, os.open

    def refused(path: Path, *arguments: object) -> int:
        if os.fspath(path).endswith("unreadable"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_(path, *arguments)

    def full(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path, beside = lowered(FP32)
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(os, "open", refused)
    if place == "full":
        monkeypatch.setattr(os, "replace", full)
    data = backend.build(path, timed(cache), beside, on_message=lambda *line: said.append(line))
    assert told(data)["timing_cache"]["found"] == 0
    warnings = "\n".join(text for level, text in said if level == "warning")
    said = "is not a timing cache: it is left unchanged" if place == "data.npz" else "cannot be written: "
    assert f"{cache} {said}" in warnings
    assert (f"the timing cache {cache} cannot be read: Permission denied" in warnings) == (place == "unreadable")
    assert sorted(one.name for one in tmp_path.iterdir() if one.name != "cache") == sorted([*held, "folder"])
    assert {name: read(tmp_path / name) for name in held} == held


@told_only
def test_what_another_build_wrote_meanwhile_stays_in_the_timing_cache(backend, lowered, tmp_path) -> None:
    if RELEASE.startswith("rtx"):
        pytest.skip("it measures no tactics")
    ours, theirs = (timed(tmp_path / name) for name in ("ours", "theirs"))
    path, beside = lowered(FP32)
    first = told(backend.build(path, theirs, beside))["timing_cache"]

    def meanwhile(level: str, text: str) -> None:
        if "timing cache in use" in text:
            (tmp_path / "ours").write_bytes((tmp_path / "theirs").read_bytes())

    other, beside_other = lowered(FP16)
    backend.build(other, ours, beside_other, on_message=meanwhile)
    assert told(backend.build(path, ours, beside))["timing_cache"]["found"] == first["missed"]
    assert told(backend.build(other, ours, beside_other))["timing_cache"]["missed"] == 0


@told_only
def test_a_compute_capability_is_for_rtx(backend, built) -> None:
    wanted = replace(SETTINGS, compute_capability=(8, 6))
    if not backend.capabilities.target_compute_capabilities:
        with pytest.raises(InputError, match="builds for the GPU it runs on"):
            built(FP32, wanted)
        return
    assert told(built(FP32))["compute_capabilities"] == ["CURRENT"]
    assert told(built(FP32, wanted))["compute_capabilities"] == ["SM86"]
    with refused(r"capability 9\.0", cause="8.9"):
        built(FP32, replace(SETTINGS, compute_capability=(9, 0)))


@told_only
def test_capabilities_are_those_of_the_release(backend) -> None:
    has = backend.capabilities
    assert (has.strongly_typed, has.weakly_typed, has.supports_bf16, has.reports_progress) == {
        "8.6.1": (False, True, False, False),
        "10.16.1": (True, True, True, True),
        "11.4.0": (True, False, True, True),
        "rtx-1.7.1": (True, False, True, True),
    }[RELEASE]
    assert has.can_execute
    assert bool(has.target_compute_capabilities) == RELEASE.startswith("rtx")
    assert (
        backend.device == "Stand-in GPU"
        and backend.device in backend.cache_identity
        and backend.version in backend.cache_identity
    )
