import contextlib
import ctypes
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state

from tests import networks
from tests.networks import Builder, floats
from tests.texts import lacking
from trt_tui.backends import onnxruntime as module
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.network.network import open_network
from trt_tui.core.runner import ExecutionMode
from trt_tui.errors import BackendUnavailableError, InputError, TrtTuiError


@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "mlp", "bert", "vit"])
@pytest.mark.parametrize("options", [{}, {"low_memory": True}])
def test_networks_run_alike_however_they_are_loaded(name, options, named_network, backend):
    network = named_network(name)
    feeds = networks.feeds(onnx.load(network.path), n=2, **({"sequence": 8} if name == "bert" else {}))
    with backend.load(network.model, optimize=False) as exact, backend.load(network.model, **options) as runner:
        for tensor, array in exact.run(feeds).items():
            np.testing.assert_allclose(
                runner.run(feeds)[tensor], array, rtol=1e-4, atol=1e-5 * float(np.abs(array).max())
            )


def test_inputs_and_outputs_in_bf16_are_exchanged_as_floats(backend):
    b, kind = Builder(), onnx.TensorProto.BFLOAT16
    b.node("Reshape", ["x", b.weight("shape", np.array([2, 1], np.int64))], output="y")
    one = ir.from_proto(
        b.model([helper.make_tensor_value_info("x", kind, [2])], [helper.make_tensor_value_info("y", kind, [2, 1])])
    )
    fed = np.array([1.5, 1 / 3], np.float32).astype(ml_dtypes.bfloat16)
    with backend.load(one) as runner:
        assert {info.dtype for info in runner.outputs} == {np.dtype(np.float32)}
        got = runner.run({"x": fed})["y"]
    assert np.array_equal(got[:, 0], fed.astype(np.float32))
    assert one.graph.inputs[0].dtype is ir.DataType.BFLOAT16


@pytest.mark.parametrize(
    ("operator", "attributes", "mean", "deviation"),
    [
        ("RandomNormalLike", {"mean": 2.0, "scale": 3.0}, 2, 3),
        ("RandomUniformLike", {"low": -1.0, "high": 3.0}, 1, 4 / 12**0.5),
        ("RandomNormal", {"shape": [40, 50], "seed": 1.0}, 0, 1),
        ("RandomUniform", {"shape": [40, 50]}, 0.5, 1 / 12**0.5),
        ("Bernoulli", {}, 0.5, 0.5),
        ("Dropout", {}, 0.5, (0.25 / 0.75) ** 0.5 / 2),
    ],
)
def test_what_is_drawn_is_the_same_in_every_run(operator, attributes, mean, deviation, tmp_path, backend):
    b, data = Builder(), {"x": np.full((40, 50), 0.5, np.float32)}
    parts = [b.weight("ratio", np.float32(0.25)), b.weight("training", np.array(True))]
    source = ["x"][: "shape" not in attributes] + parts * (operator == "Dropout")
    b.node("Cast", [b.node(operator, source, "/drawn", **attributes)], output="y", to=onnx.TensorProto.FLOAT)
    onnx.save(b.model([floats("x", "n", 50)], [floats("y", "n", 50)]), path := tmp_path / "model.onnx")
    network = open_network(path)
    with backend.load(network.model) as one, backend.load(network.model, low_memory=True) as other:
        drawn = one.run(data)["y"]
        assert all(np.array_equal(drawn, runner.run(data)["y"]) for runner in (one, other))
    assert drawn.dtype == np.float32 and drawn.shape == (40, 50)
    assert abs(drawn.mean() - mean) < 0.1 * deviation and abs(drawn.std() / deviation - 1) < 0.1
    assert any(("training mode" if operator == "Dropout" else "Random numbers") in note for note in network.notes)


@pytest.mark.parametrize(
    ("operator", "opset", "attributes"),
    [
        ("RandomNormalLike", 11, {}),
        ("Dropout", 12, {}),
        ("RandomNormal", 11, {"shape": [4, 5]}),
        ("RandomUniformLike", 10, {}),
    ],
)
def test_a_network_that_is_run_as_it_is_written_draws_in_any_opset(operator, opset, attributes, backend):
    b = Builder()
    more = [b.weight("ratio", np.float32(0.5)), b.weight("training", np.array(True))] * (operator == "Dropout")
    b.node(operator, ["x", *more][: None if "shape" not in attributes else 0], output="y", **attributes)
    model = b.model([floats("x", "n", 5)], [floats("y", "n", 5)])
    model.opset_import[0].version, model.ir_version = opset, 7
    with backend.load(ir.from_proto(model)) as runner:
        one, other = (runner.run({"x": np.ones((4, 5), np.float32)})["y"] for _ in range(2))
    assert one.std() > 0 and np.array_equal(one, other) == (opset > 10)


def test_what_draws_anew_in_each_run_is_said(opened):
    b = Builder()
    b.node("Multinomial", ["x"], "/choice", output="y")
    notes = opened(
        b.model([floats("x", "n", 4)], [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, ["n", 1])])
    ).notes
    assert any("from run to" in note for note in notes) and not any("the same" in note for note in notes)


@pytest.mark.parametrize(("seeds", "said"), [((1.0, 2.0), False), ((1.0, 1.0), True)])
def test_random_operators_that_draw_the_same_are_said(seeds, said, opened):
    b = Builder()
    one, other = (b.node("RandomNormalLike", ["x"], f"/drawn{at}", seed=seed) for at, seed in enumerate(seeds))
    b.node("Add", [one, other], "/sum", output="y")
    network = opened(b.model([floats("x", "n", 4)], [floats("y", "n", 4)]))
    assert any("different seeds" in note for note in network.notes) is said


@pytest.mark.parametrize("lean", [False, True])
def test_a_transpose_in_front_of_a_cubic_resize_stays_there(backend, lean):
    b = Builder()
    x = b.node("Transpose", ["x"], "/in", perm=[0, 3, 1, 2])
    sizes = b.weight("sizes", np.array([1, 4, 3, 3], np.int64))
    x = b.node("Resize", [x, "", "", sizes], "/resize", mode="cubic", coordinate_transformation_mode="half_pixel")
    b.node("Transpose", [x], output="y", perm=[0, 2, 3, 1])
    model = ir.from_proto(b.model([floats("x", 1, 6, 6, 4)], [floats("y", 1, 3, 3, 4)]))
    with backend.load(model, low_memory=lean) as runner:
        assert runner.run({"x": np.ones((1, 6, 6, 4), np.float32)})["y"] == pytest.approx(1)


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMax", "ReduceL1", "ReduceLogSum", "ReduceSumSquare"])
@pytest.mark.parametrize("has_axes", [False, True])
def test_a_reduction_of_nothing_computes_each_element(operator, has_axes, backend):
    b = Builder(opset=18)
    b.node(
        operator,
        ["x", *([b.weight("axes", np.array([], np.int64))] if has_axes else [])],
        "/it",
        output="y",
        noop_with_empty_axes=1,
    )
    model = ir.from_proto(b.model([floats("x", 2, 3)], [floats("y", 2, 3)]))
    values = np.linspace(-2 if operator != "ReduceLogSum" else 0.5, 3, 6, dtype=np.float32).reshape(2, 3)
    formulas = {"ReduceL1": np.abs, "ReduceLogSum": np.log, "ReduceSumSquare": np.square}
    with backend.load(model) as runner:
        np.testing.assert_allclose(runner.run({"x": values})["y"], formulas.get(operator, np.array)(values), rtol=1e-6)
    assert [node.op_type for node in model.graph] == [operator]


@pytest.mark.parametrize(
    ("opset", "float_type"), [(19, np.float16), (21, np.float16), (23, np.float16), (23, np.float32)]
)
@pytest.mark.parametrize("axis", [None, 1])
def test_values_are_rounded_to_the_nearest_quantized_value(opset, float_type, axis, backend):
    b, kind = Builder(opset=opset), helper.np_dtype_to_tensor_dtype(np.dtype(float_type))
    shape = [] if axis is None else [2]
    x = b.node(
        "QuantizeLinear",
        ["x", b.weight("scale", np.ones(shape, float_type)), b.weight("zero", np.zeros(shape, np.int8))],
        "/q",
        **({} if axis is None else {"axis": axis}),
    )
    b.node("DequantizeLinear", [x, "scale", "zero"], "/dq", output="y", **({} if axis is None else {"axis": axis}))
    model = ir.from_proto(
        b.model(
            [helper.make_tensor_value_info("x", kind, [3, 2])],
            [helper.make_tensor_value_info("y", kind, [3, 2])],
            ir_version=13,
        )
    )
    with backend.load(model) as runner:
        got = runner.run({"x": np.array([[0.75, -0.75], [1.5, 2.5], [-200, 0.25]], float_type)})["y"]
    np.testing.assert_array_equal(got, np.array([[1, -1], [2, 2], [-128, 0]], float_type))


def test_an_opset_that_the_release_does_not_read_has_its_own_next_step(backend):
    b = Builder(opset=onnx.defs.onnx_opset_version() + 1)
    b.node("Relu", ["x"], "/it", output="y")
    with pytest.raises(InputError) as error:
        backend.load(ir.from_proto(b.model([floats("x", 2)], [floats("y", 2)])))
    assert "older opset" in error.value.next_step


def test_a_graph_on_which_an_optimizer_fails_is_run_without_it(backend, named_network, monkeypatch):
    levels, create = [], OnnxRuntimeBackend._create_inference_session

    def fail_once(self, proto, options, arguments):
        levels.append(options.graph_optimization_level)
        if len(levels) == 1:
            raise onnxruntime_pybind11_state.RuntimeException("Exception during initialization")
        return create(self, proto, options, arguments)

    monkeypatch.setattr(OnnxRuntimeBackend, "_create_inference_session", fail_once)
    network = named_network("mlp")
    with backend.load(network.model) as runner:
        assert runner.run(networks.feeds(onnx.load(network.path), n=2))
    assert levels == [
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ]


def test_loading_leaves_the_model_as_it_is(named_network, backend):
    model = named_network("small_resnet").model
    before = ir.to_proto(model).SerializeToString()
    for options in ({}, {"low_memory": True}, {"optimize": False}):
        backend.load(model, **options).close()
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("lean", [False, True])
def test_weights_are_not_serialized(lean, opened, monkeypatch):
    network = opened(networks.many_layers(100))
    weights = sum(value.const_value.nbytes for value in network.model.graph.initializers.values())
    backend, sizes = OnnxRuntimeBackend("cpu", threads=2), []
    make = backend._ort.InferenceSession
    monkeypatch.setattr(
        backend._ort,
        "InferenceSession",
        lambda proto, *rest, **named: sizes.append(len(proto)) or make(proto, *rest, **named),
    )
    with backend.load(network.model, low_memory=lean) as runner:
        runner.run(networks.feeds(onnx.load(network.path)))
    assert len(sizes) == 1
    assert sizes[0] < weights / 20


def test_threads_do_not_spin_while_something_else_runs(named_network, monkeypatch):
    backend, made = OnnxRuntimeBackend("cpu"), []
    make = backend._ort.InferenceSession
    monkeypatch.setattr(
        backend._ort,
        "InferenceSession",
        lambda proto, options, **named: made.append(options) or make(proto, options, **named),
    )
    backend.load(named_network("mlp").model).close()
    assert made[0].get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_fetch_names_what_is_returned(named_network, backend):
    network = named_network("unet_small")
    with backend.load(network.model) as runner:
        assert list(runner.run(networks.feeds(onnx.load(network.path)), ["scores"])) == ["scores"]


def test_what_the_library_refuses_is_said_in_its_words(named_network, backend):
    network = named_network("mlp")
    with backend.load(network.model) as runner, pytest.raises(TrtTuiError, match="could not run") as caught:
        runner.run({"x": np.zeros((2, 3), np.float32)})
    assert "x" in str(caught.value)
    with pytest.raises(InputError, match="refuses this network"):
        backend.load(ir.from_proto(networks.with_custom_operator()))
    b, kind = Builder(), onnx.TensorProto.BFLOAT16
    b.node("Mul", ["x", "x"], output="y")
    ends = [helper.make_tensor_value_info(name, kind, [2]) for name in "xy"]
    with pytest.raises(InputError) as lacking:
        backend.load(ir.from_proto(b.model(ends[:1], ends[1:])))
    assert "BF16" in lacking.value.next_step and "Mul" in lacking.value.cause


@pytest.fixture
def asked_anew(monkeypatch):
    """What was found out about the CUDA provider is forgotten before and after."""
    module._cuda_failure_reason.cache_clear()
    yield
    module._cuda_failure_reason.cache_clear()


def test_a_missing_provider_is_said(monkeypatch, asked_anew):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(BackendUnavailableError, match="no CUDA provider") as caught:
        OnnxRuntimeBackend("cuda")
    assert caught.value.cause == "it offers CPUExecutionProvider"


@pytest.mark.parametrize("gpu", [False, True])
def test_a_provider_that_cannot_start_is_not_taken(monkeypatch, asked_anew, gpu):
    """The package for GPUs on a machine without one, or without CUDA's libraries."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(module.PROVIDERS.values()))

    def device():
        if not gpu:
            raise BackendUnavailableError("no GPU is visible", "the NVIDIA driver finds none", "")

    monkeypatch.setattr(module, "find_first_device", device)
    chosen = OnnxRuntimeBackend()
    assert chosen.provider == "cpu" and not chosen.capabilities.computes_in_fp16
    with pytest.raises(BackendUnavailableError) as caught:
        OnnxRuntimeBackend("cuda")
    assert (".so" if gpu else "no GPU") in caught.value.cause


@pytest.fixture
def on_cuda(monkeypatch):
    """A backend that takes its CUDA provider to work, where no session gets one."""
    monkeypatch.setattr(module, "_cuda_failure_reason", lambda: "")
    module.truncates_fp16_quantization()  # its session is kept out of those that the tests refuse
    return OnnxRuntimeBackend("cuda", threads=2)


def test_a_session_that_loses_its_provider_is_an_error_and_nothing_is_printed(
    on_cuda, named_network, monkeypatch, capfd
):
    monkeypatch.setattr(onnxruntime.InferenceSession, "_create_inference_session", refused)
    with pytest.raises(InputError, match="refuses this network") as caught:
        on_cuda.load(named_network("mlp").model)
    assert caught.value.cause == "CUDA failure 100" and capfd.readouterr().out == ""


def test_a_session_that_goes_on_with_the_cpu_is_an_error(on_cuda, named_network, monkeypatch):
    """As releases do that heed no ``enable_fallback``."""
    make = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda proto, options, **named: make(proto, options, providers=["CPUExecutionProvider"]),
    )
    with pytest.raises(InputError, match="refuses this network") as caught:
        on_cuda.load(named_network("mlp").model)
    assert "CUDA provider" in caught.value.cause


def test_a_run_that_fails_is_not_tried_again_elsewhere(backend, named_network, monkeypatch, capfd):
    network = named_network("mlp")
    with backend.load(network.model) as runner:
        failing = Mock()
        failing.run.side_effect = onnxruntime_pybind11_state.EPFail("CUDA failure 700")
        failing.is_webgpu_graph_capture_enabled.return_value = False
        monkeypatch.setattr(runner._session, "_sess", failing)
        monkeypatch.setattr(runner._session, "set_providers", lambda *given: pytest.fail("another provider is taken"))
        with pytest.raises(TrtTuiError, match="could not run") as caught:
            runner.run(networks.feeds(onnx.load(network.path)))
    assert caught.value.cause == "CUDA failure 700" and capfd.readouterr().out == ""


def refused(session, providers, *rest, **named):
    if "CPUExecutionProvider" == providers[0]:
        pytest.fail("it goes on with the CPU")
    session._fallback_providers = ["CPUExecutionProvider"]
    raise RuntimeError("CUDA failure 100")


@pytest.fixture
def bound(monkeypatch):
    """Bound runs of ``relu(x @ w)``, by the CPU's memory; what is captured, and what told, is noted."""
    monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(
        module,
        "copy_device_memory",
        lambda copies, stream: [ctypes.memmove(target, source, size) for source, target, size in copies],
    )
    b = Builder()
    b.node("Relu", [b.node("MatMul", ["x", "w"])], output="y")
    model = b.model([floats("x", "batch", 4), floats("w", 4, 3)], [floats("y", "batch", 3)]).SerializeToString()

    def session(shapes=None):
        return onnxruntime.InferenceSession(
            module._set_static_input_shapes(model, shapes) if shapes else model, providers=["CPUExecutionProvider"]
        )

    def made(refusal: str = ""):
        def captured(shapes):
            tried.append(shapes)
            if refusal:
                raise RuntimeError(refusal)
            return session(shapes)

        tried, told = [], []
        return module.IoBindingRunner(onnxruntime, session(), captured, told.append), tried, told

    return made


def fed(rows: int = 8, seed: int = 0):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((rows, 4), dtype=np.float32), "w": rng.standard_normal((4, 3), dtype=np.float32)}


def right(runs, feeds) -> None:
    (found,) = runs.run(feeds, ["y"])
    np.testing.assert_allclose(found, np.maximum(feeds["x"] @ feeds["w"], 0), rtol=1e-5, atol=1e-6)


def test_bound_runs_are_those_of_arrays_whatever_changes_between_them(bound):
    """What is fed again is copied once, and a run of the shapes that came twice first goes by slots of its own."""
    runs, tried, told = bound()
    weights = [fed(seed=seed)["w"] for seed in range(2)]
    inputs = [fed(rows, seed)["x"] for seed, rows in enumerate((8, 8, 5))]
    for x, w in [(x, w) for _ in range(2) for w in weights for x in inputs]:
        right(runs, {"x": x, "w": w})
    assert tried == [{"x": (8, 4), "w": (4, 3)}] and told == [ExecutionMode("CUDA graph")] == [runs.mode]
    assert len(runs.device_copies) == 5


def test_where_no_graph_is_captured_runs_stay_bound_and_it_is_said_why(bound):
    runs, tried, told = bound("[ONNXRuntimeError] : 1 : FAIL : nodes\n on the CPU")
    for seed in range(4):
        right(runs, fed(seed=seed))
    assert len(tried) == 1
    (mode,) = told
    assert mode.name.startswith("bound") and not lacking(mode.reason, "no CUDA graph", "nodes on the CPU")


@pytest.mark.parametrize("failures", [1, 2])
def test_where_a_device_has_no_memory_left_what_it_holds_is_freed_and_the_run_made_again(bound, monkeypatch, failures):
    runs, _, told = bound()
    one = fed()
    for _ in range(3):
        right(runs, one)
    held, left = [], [failures]

    def copied(ort, array):
        held.append((len(runs.device_copies), runs._captured_graph))
        if left[0]:
            left[0] -= 1
            raise RuntimeError("Available memory of 512 is smaller than requested bytes of 1024")
        return real(ort, array)

    real = module._copy_to_device
    monkeypatch.setattr(module, "_copy_to_device", copied)
    for seed in range(1, 4):
        with pytest.raises(RuntimeError, match="smaller") if failures == 2 and seed == 1 else contextlib.nullcontext():
            right(runs, fed(seed=seed))
    assert held[0][0] and held[0][1] is not None and held[1] == (0, None)
    graph, *bound_modes = told
    assert graph == ExecutionMode("CUDA graph") and len(bound_modes) == 2 - failures
    assert all(mode.name.startswith("bound") and "GPU memory" in mode.reason for mode in bound_modes)


def test_copies_of_what_no_run_needs_are_kept_up_to_a_limit(bound, monkeypatch):
    monkeypatch.setattr(module, "MAX_IDLE_COPY_BYTES", 3 * 128)
    runs, _, told = bound()
    inputs, w = [fed(8, seed)["x"] for seed in range(6)], fed()["w"]
    for x in inputs * 2:
        right(runs, {"x": x, "w": w})
    assert (
        told == [ExecutionMode("CUDA graph")]
        and len(runs.device_copies) == 3
        and runs.device_copies.total_bytes == 3 * 128
    )


def test_another_failure_of_a_bound_run_is_no_reason_to_go_on(bound):
    runs, _, told = bound()
    with pytest.raises(Exception, match="(?i)dimension|shape"):
        runs.run({"x": np.zeros((2, 5), np.float32), "w": np.zeros((4, 3), np.float32)}, ["y"])
    assert told == []
