"""What-ifs in pieces on a device, and sessions of many small layers: the same values as of the whole graph."""

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from tests import networks
from tests.networks import Builder, floats
from trt_tui.backends import onnxruntime as module
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering.gated.assembly import build_gated_graph, split_graph_into_pieces
from trt_tui.core.measure import piecewise_runner, simulation
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.piecewise_runner import PiecewiseRunner
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network import small_layers
from trt_tui.core.network.graph import ConstantValues
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import ExecutionMode
from trt_tui.errors import OutOfMemoryError

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
BASE = PrecisionConfig.from_precision(INT8, FP16)
GRAPH = ExecutionMode("CUDA graph")
SPECIAL = [np.nan, np.inf, -np.inf, 3e-8, -6e-5, 1e-40, 0.0, *np.linspace(65504, 65536, 9), -65519.0, -65520.0, 3e38]


class HostDevice(OnnxRuntimeBackend):
    """A backend with a device, whose memory is the CPU's and whose CUDA graphs are plain sessions.

    Attributes:
        captured: The number of sessions that captured a graph.
        refused: The number of captured sessions from which on none more is made; None for no limit.
    """

    captured, refused = 0, None

    def _create_inference_session(self, model_bytes, options, session_arguments, *, capture_graphs=False):
        if capture_graphs:
            if self.captured == self.refused:
                raise RuntimeError("nodes on the CPU")
            self.captured += 1
        return onnxruntime.InferenceSession(
            model_bytes, options, providers=["CPUExecutionProvider"], **session_arguments
        )


@pytest.fixture
def device(monkeypatch) -> HostDevice:
    monkeypatch.setattr(module, "_cuda_failure_reason", lambda: "")
    monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(
        module,
        "copy_device_memory",
        lambda copies, stream: [ctypes.memmove(target, source, size) for source, target, size in copies],
    )
    numpy, copy = onnxruntime.OrtValue.numpy, module._copy_to_device  # neither copies the CPU's memory
    monkeypatch.setattr(onnxruntime.OrtValue, "numpy", lambda value: numpy(value).copy())
    monkeypatch.setattr(module, "_copy_to_device", lambda ort, array: copy(ort, array.copy(order="C")))
    return HostDevice("cuda", threads=2)


@pytest.fixture
def opened_case(named_network, tmp_path, backend):
    """A network, its samples in batches of 4 (the last is smaller), and its ranges."""

    def made(name: str, n: int = 10):
        network = named_network(name)
        arrays = networks.feeds(onnx.load(network.path), n=n, **({"sequence": 8} if name == "bert_block" else {}))
        np.savez(tmp_path / "samples.npz", **arrays)
        samples = load_samples(str(tmp_path / "samples.npz"), network.inputs, batch=4)
        return network, samples, calibrate(network.model, network.calibrated_tensors, samples, backend).ranges

    return made


def toggles(network, count: int = 4) -> list[PrecisionConfig]:
    """A config, those with one group of it raised, evenly spread, the first group first, and two others."""
    groups = [group for group in network.groups if group.is_quantizable]
    raised = [groups[index * len(groups) // count] for index in range(min(count, len(groups)))]
    return [
        BASE,
        *(BASE.with_group_precision([group], FP32) for group in raised),
        *map(PrecisionConfig.from_precision, (FP16, FP32)),
    ]


def special_rows(array: np.ndarray, seed: int) -> np.ndarray:
    """The array with values that FP16 cannot hold, or only just."""
    rng = np.random.default_rng(seed)
    changed = array.copy()
    if array.dtype == np.float32:
        for row in changed[1:]:
            row.flat[rng.integers(0, row.size, 3)] = rng.choice(SPECIAL, 3)
    return changed


def assert_pieces_equal_whole(device, network, samples, ranges) -> PiecewiseRunner:
    """Runs toggles over all feeds and over values that FP16 cannot hold; returns the closed runner of the pieces."""
    gated = build_gated_graph(network, float_types=(FP16,), boundary_types=(FP16,), gates_as_data=True)
    outputs = list(gated.test_outputs.values())
    feeds = [samples.read_feed(index) for index in range(len(samples))]
    feeds += [{key: special_rows(array, seed) for key, array in feeds[0].items()} for seed in range(2)]
    told: list[ExecutionMode] = []
    with (
        PiecewiseRunner.load_in_pieces(device, gated, on_mode_change=told.append) as pieces,
        device.load(gated.model, low_memory=True, on_mode_change=lambda mode: None) as whole,
    ):
        assert isinstance(pieces, PiecewiseRunner)
        count, configs = len(pieces._runners), toggles(network)
        assert count > 1
        for config in configs:
            gates = gated.make_feed(config, ranges)
            for feed in feeds:
                found, expected = (runner.run({**feed, **gates}, outputs) for runner in (pieces, whole))
                for output in outputs:
                    np.testing.assert_array_equal(found[output], expected[output])
        assert told == [GRAPH] * count
        assert pieces.computed_pieces < count * len(configs) * len(feeds)
        copies = pieces._runners[0].io_binding_runner.device_copies
        assert {runner.io_binding_runner.device_copies for runner in pieces._runners} == {copies}
        assert copies.result_bytes >= pieces._cached_bytes > 0
    assert copies.result_bytes == 0
    return pieces


@pytest.mark.parametrize("name", ["unet_small", "bert_block", "decoder"])
def test_pieces_give_the_bits_of_the_whole_graph(name, opened_case, device):
    pieces = assert_pieces_equal_whole(device, *opened_case(name))
    assert device.captured == len(pieces._runners) + 1


def last(partials):
    *_, partial = partials
    return partial.value


def test_what_ifs_in_pieces_are_those_of_the_whole_graph_and_share_what_comes_first(opened_case, device, monkeypatch):
    network, samples, ranges = opened_case("vit_block")
    verdicts, counts = [], []
    for pieces in (1, 4):
        monkeypatch.setattr(piecewise_runner, "DEVICE_PIECES", pieces)
        with Analysis(network, device, samples, select_judged_outputs(network, ())) as analysis:
            for _ in range(2):  # in the second all graphs are captured
                verdicts.append([last(analysis.measure_accuracy(config, ranges)) for config in toggles(network)[:-1]])
            assert analysis.execution_mode == GRAPH
            if pieces > 1:
                runner = analysis._loaded_graph[1]._runner
                counts = []
                for config in toggles(network)[:-2]:
                    before = runner.computed_pieces
                    last(analysis.measure_accuracy(config, ranges))
                    counts.append((runner.computed_pieces - before) / len(samples) / len(runner._runners))
    for found in verdicts[1:]:
        assert found == verdicts[0]
    assert np.mean(counts) < 0.8 and min(counts) <= 0.5


def test_a_piece_without_a_graph_is_said(opened_case, device):
    network, samples, ranges = opened_case("vit_block")
    expected = []
    for device.refused in (None, 2):
        device.captured = 0
        with Analysis(network, device, samples, select_judged_outputs(network, ())) as analysis:
            found = [last(analysis.measure_accuracy(config, ranges)) for config in toggles(network)[:-1]]
            mode = analysis.execution_mode
        errors = [verdict.worst_output[1].errors.sqnr_db for verdict in found]
        expected = expected or errors
        assert errors == pytest.approx(expected, abs=1)  # a graph has no fused Gemm
    assert mode.name.startswith("bound") and "no CUDA graph" in mode.reason


@pytest.fixture
def pieces_of(opened_case, device):
    """The pieces of a network, the feeds of some configs, and the names of the outputs."""

    def made(name: str = "vit_block"):
        network, samples, ranges = opened_case(name)
        gated = build_gated_graph(network, float_types=(FP16,), boundary_types=(FP16,), gates_as_data=True)
        runner = PiecewiseRunner.load_in_pieces(device, gated, on_mode_change=lambda mode: None)
        feeds = [{**samples.read_feed(0), **gated.make_feed(config, ranges)} for config in toggles(network)]
        return runner, feeds, list(gated.test_outputs.values())

    return made


def test_results_on_the_device_take_no_more_than_their_limit(pieces_of, monkeypatch):
    runner, feeds, outputs = pieces_of()
    with runner:
        exact = [runner.run(feed, outputs) for feed in feeds * 2][len(feeds) :]
        copies, used = runner._runners[0].io_binding_runner.device_copies, runner._cached_bytes
        assert copies.result_bytes == used > 0
        for limit in (used // 2, 0):
            runner._max_cached_bytes, runner._has_outdated_results = limit, True
            for feed, expected in zip(feeds * 2, exact * 2, strict=True):
                found = runner.run(feed, outputs)
                assert all(np.array_equal(found[name], expected[name]) for name in outputs)
                assert copies.result_bytes == runner._cached_bytes <= limit
        runner._max_cached_bytes = used
        copies.max_idle_bytes = copies.total_bytes + used // 2  # results count there too
        for feed in feeds:
            runner.run(feed, outputs)
            assert copies.total_bytes + copies.result_bytes <= copies.max_idle_bytes


def test_where_a_device_has_no_memory_left_kept_results_are_freed_first(pieces_of, monkeypatch):
    runner, feeds, outputs = pieces_of()
    with runner:
        for _ in range(2):
            expected = runner.run(feeds[0], outputs)
        failing, run = runner._runners[-1], runner._runners[-1].run
        copies = failing.io_binding_runner.device_copies

        def short(feed, names):
            if runner._max_cached_bytes:
                refuse()
            assert not runner._cached_bytes
            return run(feed, names)

        monkeypatch.setattr(failing, "run", short)
        found = runner.run(feeds[0], outputs)
        assert all(np.array_equal(found[name], expected[name]) for name in outputs) and not copies.result_bytes
        monkeypatch.setattr(
            failing,
            "run",
            lambda feed, names: pytest.fail("it is tried again") if failures else (failures.append(1) or refuse()),
        )
        failures: list[int] = []
        with pytest.raises(OutOfMemoryError):
            runner.run(feeds[0], outputs)


def refuse():
    raise OutOfMemoryError("out of memory", "", "")


def test_sizes_of_tensors_cross_no_cut_on_a_device(opened):
    """A CUDA graph needs them as constants: a network that hands them on is one piece."""
    for handed_on, is_one_piece in (("", False), ("sizes", True), ("indices", False)):
        b, x = Builder(), "x"
        size = b.node("Shape", ["x"], "/size")
        indices = b.node("ArgMax", ["x"], "/indices", axis=1)
        for index in range(9):
            x = b.node("MatMul", [x, b.kernel(f"w{index}", (4, 4), 4)], f"/product{index}")
            if handed_on == "indices":  # a matrix of integers is no size
                x = b.node("Add", [x, b.node("Cast", [indices], f"/cast{index}", to=1)], f"/sum{index}")
                continue
            own = b.node("Shape", [x], f"/size{index}")
            x = b.node("Reshape", [x, size if handed_on else own], f"/reshaped{index}")
        b.node("Relu", [x], "/last", output="y")
        network = opened(b.model([floats("x", "n", 4)], [floats("y", "n", 4)]))
        gated = build_gated_graph(network, float_types=(FP16,), boundary_types=(FP16,), gates_as_data=True)
        pieces = list(split_graph_into_pieces(gated, 3, for_device=True))
        assert (len(pieces) == 1) is is_one_piece
        inner = {value.name for piece in pieces[:-1] for value in piece.graph.outputs}
        assert handed_on == "indices" or not [
            value
            for piece in pieces[1:]
            for value in piece.graph.inputs
            if value.name in inner and value.dtype is not ir.DataType.FLOAT
        ]


def test_one_thread_at_a_time_uses_the_device(pieces_of, monkeypatch):
    """A CUDA graph that one thread captures fails if another one calls CUDA."""
    runner, feeds, outputs = pieces_of()
    active, overlaps, run = [], [], onnxruntime.InferenceSession.run_with_iobinding

    def watched(session, *rest):
        active.append(session)
        overlaps.append(len(active) > 1)
        run(session, *rest)
        active.pop()

    monkeypatch.setattr(onnxruntime.InferenceSession, "run_with_iobinding", watched)
    failures = []

    def work(piece, feed):
        try:
            for _ in range(6):
                piece.run_keeping_results(feed)
        except Exception as error:
            failures.append(error)

    first = runner._runners[0]
    feed = {info.name: feeds[0][info.name] for info in first.inputs}
    threads = [threading.Thread(target=work, args=(first, feed)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runner.close()
    assert not failures and len(overlaps) >= 18 and not any(overlaps)


CONFIGS = [PrecisionConfig.from_precision(Precision.FP16), PrecisionConfig.from_precision(Precision.INT8)]


def test_gates_of_many_small_layers_are_data_with_the_same_results(tmp_path, monkeypatch):
    model = networks.small_resnet(size=8)
    path, data = tmp_path / "network.onnx", tmp_path / "samples.npz"
    onnx.save(model, path)
    np.savez(data, **networks.feeds(model, n=6))
    graphs, lower = [], simulation.build_gated_graph

    def lowered(network, **options):
        gated = lower(network, **options)
        graphs.append({node.op_type for node in gated.model.graph.all_nodes()})
        return gated

    monkeypatch.setattr(simulation, "build_gated_graph", lowered)
    found = []
    for least in (small_layers.MIN_LAYERS, 1):
        monkeypatch.setattr(small_layers, "MIN_LAYERS", least)
        monkeypatch.setattr(small_layers, "MAX_MEAN_ELEMENTS", 1 << 20)
        network = open_network(path)
        samples = load_samples(str(data), network.inputs, batch=2)
        ranges = dict.fromkeys(network.calibrated_tensors, 4.0)
        with Analysis(
            network, OnnxRuntimeBackend(threads=2), samples, select_judged_outputs(network, (), ())
        ) as analysis:
            verdicts = [[*analysis.measure_accuracy(config, ranges)][-1].value for config in CONFIGS]
            groups = [*measure_group_errors(analysis, {"fp16": CONFIGS[0]}, ranges)][-1].value["fp16"]
        found.append((verdicts, groups))
    assert "If" in graphs[0] and "If" not in graphs[-1]
    (flow, flow_groups), (as_data, data_groups) = found
    for expected, verdict in zip(flow, as_data, strict=True):
        assert verdict.caveats == expected.caveats and verdict.samples == expected.samples
        for output, accuracy in expected.outputs.items():
            assert verdict.outputs[output].errors.sqnr_db == pytest.approx(accuracy.errors.sqnr_db, abs=0.02)
    for group, errors in flow_groups.items():
        assert data_groups[group].ref_max == pytest.approx(errors.ref_max, rel=1e-5)


def test_large_results_and_few_layers_keep_the_form_that_computes_less(monkeypatch, named_network):
    graph = named_network("mlp").model.graph
    assert not small_layers.has_many_small_layers(graph)
    monkeypatch.setattr(small_layers, "MIN_LAYERS", 1)
    assert small_layers.has_many_small_layers(graph)
    monkeypatch.setattr(small_layers, "MAX_MEAN_ELEMENTS", 1)
    assert not small_layers.has_many_small_layers(graph)


def test_a_piece_is_copied_only_when_it_is_asked_for(named_network):
    pieces = split_graph_into_pieces(build_gated_graph(named_network("small_resnet"), gates_as_data=True))
    assert next(pieces) is not None and pieces.gi_frame is not None


def test_the_readers_of_a_constant_within_fp16_are_not_listed():
    """Listed for each of its readers again, the time would grow with the square of the layers."""
    graph = SimpleNamespace(is_fp32=lambda tensor: True)
    constants = object.__new__(ConstantValues)
    constants._graph, constants.constant_amax = graph, lambda tensor: np.float32(0.7)
    assert not constants.is_mask("factor")
