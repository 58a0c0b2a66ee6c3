"""trt_tui.core.measure.engine_agreement: whether an engine does what was simulated, and what to look at where it does
not."""

from dataclasses import replace

import pytest

from tests.texts import lacking, numbers
from trt_tui.core.engines.group_implementations import GroupImplementation
from trt_tui.core.engines.inspector import COMPUTE, QDQ, EngineLayer, EngineReport
from trt_tui.core.measure.engine_agreement import (
    ENGINE_FAULT_DB,
    MAX_FP32_MISMATCH_SHARE,
    MIN_FP32_SQNR_DB,
    UNEXPLAINED_GAP_DB,
    engine_fault_text,
    engine_sqnr_gap_db,
    engine_variation_notes,
    find_engine_divergence,
    find_unquantized_groups_caveat,
    fp32_engine_fault_text,
    has_unrequested_precision,
    suggest_engine_checks,
)
from trt_tui.core.measure.results import (
    UNFUSED,
    Accuracy,
    EngineErrors,
    EngineResult,
    ErrorMetrics,
    GroupErrors,
    OutputErrors,
)
from trt_tui.core.measure.target import Outcome, judge_accuracy, parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8


def verdict(**outputs: float | None | ErrorMetrics) -> Accuracy:
    """A verdict with these SQNRs in dB by output."""
    return Accuracy(
        {
            name: OutputErrors(one if isinstance(one, ErrorMetrics) else ErrorMetrics(sqnr_db=one, exact=one is None))
            for name, one in outputs.items()
        },
        samples=4,
        total=4,
    )


def engine(found: Accuracy | None, **about: object) -> EngineResult:
    return EngineResult(found, "TensorRT 10.16.1", **about)


@pytest.fixture(scope="module")
def unet(named_network):
    return named_network("unet_small")


def test_the_gap_is_the_largest_of_the_outputs() -> None:
    assert engine_sqnr_gap_db(verdict(y=20.0), verdict(y=15.0)) == 5.0
    assert engine_sqnr_gap_db(verdict(y=20.0), verdict(y=26.0)) == -6.0
    assert engine_sqnr_gap_db(verdict(y=20.0, z=30.0), verdict(y=19.0, z=22.0)) == 8.0
    assert engine_sqnr_gap_db(verdict(y=20.0, z=None), verdict(y=19.0, z=22.0)) == 1.0


def test_there_is_no_gap_without_figures_on_both_sides() -> None:
    assert (
        engine_sqnr_gap_db(None, verdict(y=1.0))
        is engine_sqnr_gap_db(verdict(y=1.0), None)
        is engine_sqnr_gap_db(None, None)
        is None
    )
    assert (
        engine_sqnr_gap_db(verdict(y=20.0), verdict(z=1.0))
        is engine_sqnr_gap_db(verdict(y=None), verdict(y=20.0))
        is None
    )
    assert (
        engine_sqnr_gap_db(verdict(y=20.0), verdict(y=ErrorMetrics(nan=3)))
        is engine_sqnr_gap_db(verdict(), verdict())
        is None
    )
    assert engine_sqnr_gap_db(verdict(y=ErrorMetrics(mismatch=0.1)), verdict(y=ErrorMetrics(mismatch=0.2))) is None


def test_an_fp32_engine_that_agrees_has_no_fault() -> None:
    for found in (None, engine(None), engine(verdict()), engine(verdict(y=MIN_FP32_SQNR_DB)), engine(verdict(y=None))):
        assert fp32_engine_fault_text(found) == ""


def test_an_fp32_engine_that_differs_is_said_by_how_much_and_where() -> None:
    fault = fp32_engine_fault_text(engine(verdict(y=90.0, z=MIN_FP32_SQNR_DB - 0.5)))
    assert not lacking(fault, "59.5 dB", " z", "ONNX Runtime")
    assert "7 NaN" in fp32_engine_fault_text(engine(verdict(y=ErrorMetrics(nan=3, inf=4))))
    assert fp32_engine_fault_text(engine(verdict(y=ErrorMetrics(mismatch=MAX_FP32_MISMATCH_SHARE)))) == ""
    assert "12.5% of y" in fp32_engine_fault_text(engine(verdict(y=ErrorMetrics(mismatch=0.125))))


def made(precision: Precision | None, **about: object) -> GroupImplementation:
    return GroupImplementation(precision, about.pop("region", False), ("layer",), **about)


def test_a_group_differs_where_the_engine_computes_in_something_else(unet) -> None:
    config = PrecisionConfig()
    conv, pool = unet.get_group("/encoder.0/conv/Conv"), unet.get_group("/pool.0/MaxPool")
    assert config.precision_of(conv) is INT8 and config.precision_of(pool) is FP16
    assert has_unrequested_precision(conv, config, {conv.name: made(FP16)})
    assert not has_unrequested_precision(conv, config, {conv.name: made(INT8)})
    assert not has_unrequested_precision(conv, config, {conv.name: made(None)}) and not has_unrequested_precision(
        conv, config, {}
    )
    assert not has_unrequested_precision(pool, config, {pool.name: made(INT8)})


def test_a_weak_engine_that_leaves_quantized_groups_in_floating_point_is_doubted(unet) -> None:
    config = PrecisionConfig()
    quantized = [group for group in unet.groups if config.precision_of(group) is INT8]
    as_requested = {group.name: made(config.precision_of(group)) for group in unet.groups}
    first, second = (group.name for group in quantized[:2])
    assert len(quantized) > 2 and find_unquantized_groups_caveat(unet, config, as_requested) == ()
    for implementation in (made(FP16), made(None, region=True)):  # no types are reported inside a fused region
        (caveat,) = find_unquantized_groups_caveat(
            unet, config, as_requested | {first: implementation, second: implementation}
        )
        assert f"2 of {len(quantized)} quantized layers" in caveat.text and not caveat.fails_run
        assert ("unknown" in caveat.text) is (implementation.precision is None)
        judged = judge_accuracy([parse_target("sqnr>=20")], replace(verdict(y=30.0), caveats=(caveat,)))
        assert judged is not None and judged.outcome is Outcome.UNCERTAIN_PASS
    (caveat,) = find_unquantized_groups_caveat(unet, config, {})
    assert f"{len(quantized)} of {len(quantized)} quantized layers" in caveat.text


def test_nothing_is_to_check_where_the_engine_is_as_simulated(unet) -> None:
    config = PrecisionConfig()
    bad = {group.name: made(FP32) for group in unet.groups}
    for simulated, built in ((20.0, 20.0 - UNEXPLAINED_GAP_DB), (20.0, 40.0), (20.0, None)):
        assert (
            suggest_engine_checks(
                unet, config, verdict(scores=simulated), engine(verdict(scores=built), implementations=bad)
            )
            == []
        )
    assert suggest_engine_checks(unet, config, None, engine(verdict(scores=1.0))) == []
    assert suggest_engine_checks(unet, config, verdict(scores=20.0), engine(None)) == []
    nan = verdict(scores=ErrorMetrics(nan=1))
    assert suggest_engine_checks(unet, config, nan, engine(nan)) == []


def test_everything_that_may_be_the_reason_is_listed(unet) -> None:
    config = replace(PrecisionConfig(), tf32=True)
    quantizable = [group.name for group in unet.groups if group.is_quantizable]
    built = {name: made(FP16) for name in quantizable[:5]} | {
        name: made(None, region=True) for name in quantizable[5:7]
    }
    layers = (EngineLayer("q", "Quantize", QDQ, None), EngineLayer("c", "Conv", COMPUTE, FP16))
    result = engine(verdict(scores=10.0), implementations=built, engine_report=EngineReport(layers))
    lines = "\n".join(suggest_engine_checks(unet, config, verdict(scores=20.0), result))
    for part in (
        "build the all-FP32 config",
        f"{', '.join(quantizable[:3])} and 2 more",
        "2 fused layers in fused",
        "1 unfused Q/DQ layers",
        "TF32 is on",
        "the ranges",
    ):
        assert part in lines


def test_a_faulty_fp32_engine_comes_first(unet) -> None:
    arguments = unet, PrecisionConfig(), verdict(scores=20.0), engine(verdict(scores=10.0))
    first = suggest_engine_checks(*arguments, engine(verdict(scores=12.0)))[0]
    assert not lacking(first, "ONNX Runtime's FP32", "12.0 dB", "not the cause")
    lines = suggest_engine_checks(*arguments, engine(verdict(scores=100.0)))
    assert len(lines) == 1 and "the ranges" in lines[0]


def test_an_engine_that_computes_something_else_is_called_that(unet) -> None:
    fp16 = PrecisionConfig.from_precision(FP16)
    made_of = {group.name: made(None, region=True) for group in unet.groups[:7]}
    sound, wrong = engine(verdict(scores=126.3)), verdict(scores=1.7, boxes=50.0)
    first, *rest = suggest_engine_checks(
        unet, fp16, verdict(scores=60.6, boxes=70.0), engine(wrong, implementations=made_of), sound
    )
    assert first == engine_fault_text(verdict(scores=60.6, boxes=70.0), wrong, sound)
    assert not lacking(first, "1.7 dB at scores", "~60.6", "FP32 engine matches") and numbers(*rest) == [7]
    assert "matches ONNX Runtime" not in engine_fault_text(verdict(scores=60.6), wrong)
    assert engine_fault_text(verdict(scores=60.6), verdict(scores=60.6 - ENGINE_FAULT_DB + 1), sound) == ""
    assert engine_fault_text(verdict(scores=60.6), wrong, engine(verdict(scores=12.0))) == ""  # that is the fault
    assert engine_fault_text(verdict(scores=None), wrong, sound) == engine_fault_text(None, wrong, sound) == ""


def test_what_is_finite_in_the_simulation_alone_is_to_check(unet) -> None:
    broken = verdict(scores=ErrorMetrics(nan=2))
    assert suggest_engine_checks(unet, PrecisionConfig(), verdict(scores=20.0), engine(broken))
    assert suggest_engine_checks(unet, PrecisionConfig(), verdict(scores=None), engine(broken))


EXACT, NAN, INFINITE = ErrorMetrics(exact=True), ErrorMetrics(nan=3), ErrorMetrics(inf=2)


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ((ErrorMetrics(sqnr_db=14.7), EXACT, EXACT), "built 3 times: 14.7 dB to exact; "),
        ((ErrorMetrics(sqnr_db=14.7), ErrorMetrics(sqnr_db=20.0)), "built 2 times: 14.7 to 20.0 dB; "),
        ((EXACT, EXACT), "built 2 times: exact; "),
        ((EXACT, NAN, INFINITE), "built 3 times: exact, 2 with NaN or Inf; "),
        ((ErrorMetrics(sqnr_db=14.7), NAN, EXACT, None), "14.7 dB to exact, 1 with NaN or Inf, 1 without an SQNR; "),
        ((ErrorMetrics(mismatch=0.1), ErrorMetrics(max_abs=1.0)), "built 2 times: 2 without an SQNR; "),
    ],
)
def test_exact_builds_and_broken_builds_are_not_counted_together(errors, text) -> None:
    notes = engine_variation_notes(
        engine(None, repeated_builds=tuple(engine(verdict(scores=one) if one is not None else None) for one in errors))
    )
    assert text in notes[0] and len(notes) == 1


def test_an_output_that_builds_differ_at_is_named() -> None:
    builds = tuple(map(engine, (None, verdict(y=None, z=30.0, w=20.0), verdict(y=14.7, z=30.0, w=25.5))))
    notes = engine_variation_notes(engine(None, repeated_builds=builds))
    assert [(note[:2], numbers(note)) for note in notes[1:]] == [("y:", [1, 2]), ("w:", [5.5])]


def test_a_group_that_is_exact_in_the_simulation_and_wrong_in_the_engine_comes_first(unet) -> None:
    first, second = unet.groups[0].name, unet.groups[1].name
    simulated = {first: GroupErrors(FP32, EXACT), second: GroupErrors(FP16, ErrorMetrics(sqnr_db=60.0))}

    def found(db: float):
        return find_engine_divergence(
            unet, simulated, EngineErrors(UNFUSED, {first: ErrorMetrics(sqnr_db=db), second: ErrorMetrics(sqnr_db=3.0)})
        )

    assert found(3.0).group_name == first and "3.0 dB for exact" in found(3.0).divergence_description
    assert found(90.0).group_name == second, "two backends in FP32 agree to 90 dB"


def test_an_output_without_signal_hides_no_faulty_output_of_the_fp32_engine() -> None:
    zero = ErrorMetrics(max_abs=1e-9, mean_abs=1e-9)
    assert not lacking(fp32_engine_fault_text(engine(verdict(y=zero, z=3.0))), "3.0 dB", " z")
