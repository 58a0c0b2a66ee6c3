"""trt_tui.jobs.engine: what stands where a part of judging an engine fails."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from tests.driven import run_to_end
from tests.networks import Builder as Builders
from tests.networks import floats
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.results import EngineResult
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.model_editing import extract_subgraph_of_outputs
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BackendCapabilities
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.jobs.engine_build import EngineBuilder, build_and_measure_engine, measure_engine_accuracy
from trt_tui.jobs.scheduler import Reporter
from trt_tui.workspace import BuildPlan

FP16 = PrecisionConfig.from_precision(Precision.FP16)


class Runner:
    """Runs the network itself; fails at what is named: feeds of 8 samples, timing, layers."""

    device_memory = 1
    profiles = ()

    def __init__(self, runner, fails: str) -> None:
        self.runner, self.fails, self.inputs, self.outputs = runner, fails, runner.inputs, runner.outputs

    def run(self, feeds, fetch=None):
        if self.fails == "max" and len(feeds["x"]) == 8:
            raise TrtTuiError("the engine ran out of device memory")
        return self.runner.run(feeds, fetch)

    def latency_ms(self, feeds) -> float:
        if self.fails == "latency":
            raise TrtTuiError("the engine could not run")
        return 1.0

    def graph_latency_ms(self, feeds) -> float:
        raise TrtTuiError("the engine could not run", "cudaStreamBeginCapture: CUDA error 900")

    def layer_times_ms(self, feeds, runs):
        return {}

    def inspect(self) -> str:
        return "no json" if self.fails == "layers" else '{"Layers": []}'

    def __enter__(self):
        return self

    def __exit__(self, *exc: object) -> None:
        self.runner.close()


class Builder:
    """A backend whose engines are the network, run by ONNX Runtime."""

    name, version, device = "tensorrt", "8.6.1", "it"
    cache_identity = ("stand-in", "0", "it")
    capabilities = BackendCapabilities(can_execute=True, computes_in_fp16=True)

    def __init__(self, backend, network, fails: str) -> None:
        self.backend, self.network, self.fails = backend, network, fails

    def build(self, model_path, settings, constraints=None, *, on_step, on_message) -> bytes:
        return b"engine"

    def load_engine(self, data: bytes) -> Runner:
        return Runner(self.backend.load(self.network.model), self.fails)


@pytest.mark.parametrize(
    ("fails", "note"),
    [
        ("", ""),
        ("max", "not measured at the max shape: the engine ran out"),
        ("latency", "its latency could not be measured: the engine could not"),
        ("layers", "its layers are unknown"),
    ],
)
def test_what_was_judged_stands_where_a_further_part_fails(backend, named_network, tmp_path, fails, note) -> None:
    network = named_network("mlp")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32))
    usual, most = (
        Analysis(
            network,
            backend,
            load_samples(str(tmp_path / "x.npz"), network.inputs, batch=batch),
            select_judged_outputs(network, ()),
        )
        for batch in (4, 8)
    )
    workspace = SimpleNamespace(network=network, analysis=usual, builder=Builder(backend, network, fails), ranges={})
    made = run_to_end(
        build_and_measure_engine(
            EngineBuilder(workspace, None, Reporter()), FP16, [0, 1], BuildPlan(other_shapes={"max": most})
        )
    )
    assert isinstance(made, EngineResult) and made.accuracy.samples == 8 and note in made.measurement_note
    assert set(made.shape_accuracies) == (set() if fails == "max" else {"max"})
    assert (made.latency_ms is None) == (fails == "latency")
    usual.close()
    most.close()


def test_an_engine_that_lacks_an_output_is_not_judged_by_the_others(backend, tmp_path) -> None:
    b = Builders()
    b.node("Relu", ["x"], "/first", output="y")
    b.node("Neg", ["x"], "/second", output="z")
    onnx.save(b.model([floats("x", "n", 4)], [floats("y", "n", 4), floats("z", "n", 4)]), tmp_path / "two.onnx")
    network = open_network(tmp_path / "two.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((4, 4), np.float32))
    with (
        Analysis(
            network,
            backend,
            load_samples(str(tmp_path / "x.npz"), network.inputs, batch=4),
            select_judged_outputs(network, ()),
        ) as analysis,
        backend.load(extract_subgraph_of_outputs(network.model, ["y"])) as engine,
        pytest.raises(InputError, match="lacks outputs of two.*: z"),
    ):
        list(measure_engine_accuracy(analysis, engine, [0]))
