"""trt_tui.core.measure.agreement: whether an engine does what was simulated, and what to look at where it does not."""

from dataclasses import replace

import pytest

from trt_tui.core.engines.inspector import COMPUTE, QDQ, EngineLayer, EngineReport
from trt_tui.core.engines.made import Made
from trt_tui.core.measure.agreement import (
    CHECK_DB,
    CHECK_SHARE,
    FAULT_DB,
    GAP_DB,
    differs,
    engine_fault,
    fp32_fault,
    gap_db,
    what_to_check,
)
from trt_tui.core.measure.comparison import EngineResult, Errors, OutputErrors, Verdict
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8


def verdict(**outputs: float | None | Errors) -> Verdict:
    """A verdict with these SQNRs in dB by output."""
    return Verdict({name: OutputErrors(one if isinstance(one, Errors) else Errors(sqnr_db=one, exact=one is None))
                    for name, one in outputs.items()}, samples=4, total=4)


def engine(found: Verdict | None, **about: object) -> EngineResult:
    return EngineResult(found, "TensorRT 10.16.1", **about)


@pytest.fixture(scope="module")
def unet(named_network):
    return named_network("unet_small")


def test_the_gap_is_the_largest_of_the_outputs() -> None:
    assert gap_db(verdict(y=20.0), verdict(y=15.0)) == 5.0
    assert gap_db(verdict(y=20.0), verdict(y=26.0)) == -6.0
    assert gap_db(verdict(y=20.0, z=30.0), verdict(y=19.0, z=22.0)) == 8.0
    assert gap_db(verdict(y=20.0, z=None), verdict(y=19.0, z=22.0)) == 1.0


def test_there_is_no_gap_without_figures_on_both_sides() -> None:
    assert gap_db(None, verdict(y=1.0)) is gap_db(verdict(y=1.0), None) is gap_db(None, None) is None
    assert gap_db(verdict(y=20.0), verdict(z=1.0)) is gap_db(verdict(y=None), verdict(y=20.0)) is None
    assert gap_db(verdict(y=20.0), verdict(y=Errors(nan=3))) is gap_db(verdict(), verdict()) is None
    assert gap_db(verdict(y=Errors(mismatch=0.1)), verdict(y=Errors(mismatch=0.2))) is None


def test_an_fp32_engine_that_agrees_has_no_fault() -> None:
    for found in (None, engine(None), engine(verdict()), engine(verdict(y=CHECK_DB)), engine(verdict(y=None))):
        assert fp32_fault(found) == ""


def test_an_fp32_engine_that_differs_is_said_by_how_much_and_where() -> None:
    fault = fp32_fault(engine(verdict(y=90.0, z=CHECK_DB - 0.5)))
    assert "59.5 dB at z" in fault and "ONNX Runtime" in fault
    assert "7 NaN or Inf" in fp32_fault(engine(verdict(y=Errors(nan=3, inf=4))))
    assert fp32_fault(engine(verdict(y=Errors(mismatch=CHECK_SHARE)))) == ""
    assert "12.5% of y differ" in fp32_fault(engine(verdict(y=Errors(mismatch=0.125))))


def made(precision: Precision | None, **about: object) -> Made:
    return Made(precision, about.pop("region", False), ("layer",), **about)


def test_a_group_differs_where_the_engine_computes_in_something_else(unet) -> None:
    config = PrecisionConfig()
    conv, pool = unet.group("/encoder.0/conv/Conv"), unet.group("/pool.0/MaxPool")
    assert config.precision_of(conv) is INT8 and config.precision_of(pool) is FP16
    assert differs(conv, config, {conv.name: made(FP16)})
    assert not differs(conv, config, {conv.name: made(INT8)})
    assert not differs(conv, config, {conv.name: made(None)}) and not differs(conv, config, {})
    assert not differs(pool, config, {pool.name: made(INT8)})


def test_nothing_is_to_check_where_the_engine_is_as_simulated(unet) -> None:
    config = PrecisionConfig()
    bad = {group.name: made(FP32) for group in unet.groups}
    for simulated, built in ((20.0, 20.0 - GAP_DB), (20.0, 40.0), (20.0, None)):
        assert what_to_check(unet, config, verdict(scores=simulated), engine(verdict(scores=built), made=bad)) == []
    assert what_to_check(unet, config, None, engine(verdict(scores=1.0))) == []
    assert what_to_check(unet, config, verdict(scores=20.0), engine(None)) == []
    nan = verdict(scores=Errors(nan=1))
    assert what_to_check(unet, config, nan, engine(nan)) == []


def test_everything_that_may_be_the_reason_is_listed(unet) -> None:
    config = replace(PrecisionConfig(), tf32=True)
    quantizable = [group.name for group in unet.groups if group.quantizable]
    built = {name: made(FP16) for name in quantizable[:5]} | {
        name: made(None, region=True) for name in quantizable[5:7]}
    layers = (EngineLayer("q", "Quantize", QDQ, None), EngineLayer("c", "Conv", COMPUTE, FP16))
    result = engine(verdict(scores=10.0), made=built, report=EngineReport(layers), quick=True)
    lines = "\n".join(what_to_check(unet, config, verdict(scores=20.0), result))
    for part in ("build the all-FP32 config", f"{', '.join(quantizable[:3])} and 2 more", "2 groups in fused",
                 "1 Q/DQ layers stand", "quick build", "TF32 is on", "the ranges"):
        assert part in lines


def test_a_faulty_fp32_engine_comes_first(unet) -> None:
    arguments = unet, PrecisionConfig(), verdict(scores=20.0), engine(verdict(scores=10.0))
    first = what_to_check(*arguments, engine(verdict(scores=12.0)))[0]
    assert "differs from ONNX Runtime's FP32 by 12.0 dB" in first and "precision is not the cause" in first
    lines = what_to_check(*arguments, engine(verdict(scores=100.0)))
    assert len(lines) == 1 and "the ranges" in lines[0]


def test_an_engine_that_computes_something_else_is_called_that(unet) -> None:
    fp16 = PrecisionConfig.uniform(FP16)
    made_of = {group.name: made(None, region=True) for group in unet.groups[:7]}
    sound, wrong = engine(verdict(scores=126.3)), verdict(scores=1.7, boxes=50.0)
    first, *rest = what_to_check(unet, fp16, verdict(scores=60.6, boxes=70.0), engine(wrong, made=made_of), sound)
    assert first == engine_fault(verdict(scores=60.6, boxes=70.0), wrong, sound)
    assert "does not do what was simulated: 1.7 dB at scores for ~60.6" in first and "the FP32 engine is sound" in first
    assert rest == ["7 groups in fused regions, which may not round where the simulation does"]
    assert "is sound" not in engine_fault(verdict(scores=60.6), wrong)
    assert engine_fault(verdict(scores=60.6), verdict(scores=60.6 - FAULT_DB + 1), sound) == ""
    assert engine_fault(verdict(scores=60.6), wrong, engine(verdict(scores=12.0))) == ""  # that is the fault
    assert engine_fault(verdict(scores=None), wrong, sound) == engine_fault(None, wrong, sound) == ""


def test_what_is_finite_in_the_simulation_alone_is_to_check(unet) -> None:
    broken = verdict(scores=Errors(nan=2))
    assert what_to_check(unet, PrecisionConfig(), verdict(scores=20.0), engine(broken))
    assert what_to_check(unet, PrecisionConfig(), verdict(scores=None), engine(broken))
