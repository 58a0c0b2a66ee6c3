"""trt_tui.jobs.judging: what stands where a part of judging an engine fails."""

import numpy as np
import pytest

from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.comparison import EngineResult
from trt_tui.core.measure.judge import judged_outputs
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.runner import Capabilities
from trt_tui.errors import TrtTuiError
from trt_tui.jobs.judging import build_and_judge
from trt_tui.workspace import Plan

FP16 = PrecisionConfig.uniform(Precision.FP16)


class Runner:
    """Runs the network itself; fails at what is named: feeds of 8 samples, timing, layers."""

    device_memory = 1
    profiles = ()

    def __init__(self, runner, fails: str) -> None:
        self.runner, self.fails = runner, fails

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
    stamp = ("stand-in", "0", "it")
    capabilities = Capabilities(runs=True, builds=True, real_fp16=True)

    def __init__(self, backend, network, fails: str) -> None:
        self.backend, self.network, self.fails = backend, network, fails

    def build(self, model, settings, told=None, *, step, message) -> bytes:
        return b"engine"

    def load_engine(self, data: bytes) -> Runner:
        return Runner(self.backend.load(self.network.model), self.fails)


@pytest.mark.parametrize(("fails", "note"), [("", ""), ("max", "not judged at the max shape: the engine ran out"),
                                             ("latency", "its latency could not be measured: the engine could not"),
                                             ("layers", "its layers are unknown")])
def test_what_was_judged_stands_where_a_further_part_fails(backend, named_network, tmp_path, fails, note) -> None:
    network = named_network("mlp")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32))
    usual, most = (Analysis(network, backend, load_samples(str(tmp_path / "x.npz"), network.inputs, batch=batch),
                            judged_outputs(network, ())) for batch in (4, 8))
    made = list(build_and_judge(usual, Builder(backend, network, fails), FP16, {}, [0, 1], Plan(others={"max": most}),
                                quick=False, cache=None, wake=lambda: None))[-1]
    assert isinstance(made, EngineResult) and made.verdict.samples == 8 and note in made.note
    assert set(made.shapes) == (set() if fails == "max" else {"max"})
    assert (made.latency_ms is None) == (fails == "latency")
    usual.close()
    most.close()
