"""tests.standins.null: the figures that tests of the screen read are those that ONNX Runtime gives."""

import pytest

from tests import local, standins
from tests.driven import LocalSession
from tests.standins.null import NullBackend, NullBuilder
from trt_tui.core.runner import Backend, EngineBackend, EngineRunner


def test_the_figures_are_those_of_onnx_runtime(tmp_path, measured_before, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    null = local.measured(tmp_path)
    real = LocalSession(local.options(tmp_path), tmp_path, resume=False)
    real.start()
    real.until(lambda event: real.get_run_results("int8").accuracy is not None)
    for run, most in (("fp16", 0.2), ("int8", 0.5)):
        found, expected = (one.get_run_results(run).accuracy for one in (null, real))
        assert found.outputs["logits"].errors.sqnr_db == pytest.approx(
            expected.outputs["logits"].errors.sqnr_db, abs=most
        )
        assert found.headline_metric == pytest.approx(expected.headline_metric, abs=2e-3)
    real.close()


def test_it_is_a_backend_and_builds_engines(tmp_path, measured_before):
    assert isinstance(NullBackend(), Backend) and isinstance(NullBuilder(), EngineBackend)
    session = local.measured(tmp_path, builder=NullBuilder(worse=0.0, check=0.0))
    session.request_build()
    built = session.rest().results[session.config].engine_result
    path = next((tmp_path / "engines").glob("*/*"))
    with NullBuilder().load_engine(standins.cached_engine(path)) as engine:
        assert isinstance(engine, EngineRunner)
    assert session.results.fp32_engine.accuracy.worst_output[1].errors.max_abs < 1e-5  # what pieces hand on is in FP32
    assert built.accuracy.worst_output[1].errors.sqnr_db == pytest.approx(
        session.get_run_results("int8").accuracy.worst_output[1].errors.sqnr_db, abs=3.0
    )
