"""trt_tui.core.measure.target"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from trt_tui.core.measure.comparison import Errors, OutputErrors, Verdict
from trt_tui.core.measure.judge import AxisSlice, Judged
from trt_tui.core.measure.target import Target, default_target, parse_target
from trt_tui.errors import InputError


def verdict(sqnr=25.0, cosine=0.999, metric=None, agreement=None, **errors):
    output = OutputErrors(Errors(sqnr, cosine, **errors))
    return Verdict({"y": output}, {"f1": metric} if metric is not None else {}, agreement, 8, 8)


@pytest.mark.parametrize(("text", "bound"), [
    ("sqnr>=20", 20), (" sqnr >= 2e1 ", 20), ("cosine>=0.999", 0.999), ("agreement>=.99", 0.99),
    ("metric>=0.8", 0.8), ("metric>=base-0.01", 0.89), ("metric >= base - 1%", 0.891), ("metric>=base+0.05", 0.95),
])
def test_targets_are_read(text, bound):
    target = parse_target(text).with_base(0.9)
    assert target.bound == pytest.approx(bound) and target.text == text.strip()
    assert parse_target(Target(target.kind, target.value, target.relative, target.percent).text).bound is not None or (
        target.relative)


@pytest.mark.parametrize("text", [
    "", "sqnr", "sqnr>20", "sqnr<=20", "psnr>=20", "sqnr>=base-1", "metric>=", "metric>=base", "sqnr>=1.2.3",
    "sqnr>=--3", "metric>=base-1%%", "sqnr>=nan"])
def test_what_is_no_target_is_refused_with_examples(text):
    with pytest.raises(InputError) as refused:
        parse_target(text)
    assert ">=" in refused.value.next_step


@pytest.mark.parametrize(("text", "judged", "reached"), [
    ("sqnr>=20", verdict(20.0), True),
    ("sqnr>=20", verdict(19.9), False),
    ("sqnr>=20", verdict(None, 1.0, exact=True), True),
    ("cosine>=0.999", verdict(None, 1.0, exact=True), True),
    ("sqnr>=20", verdict(None, None, nan=1), False),
    ("metric>=0.5", verdict(metric=0.6), True),
    ("metric>=0.5", verdict(metric=0.6, nan=1), False),
    ("metric>=0.5", verdict(), None),
    ("agreement>=0.9", verdict(agreement=0.95), True),
    ("agreement>=0.9", verdict(), None),
    ("sqnr>=20", verdict(None, None), False),
    ("sqnr>=20", Verdict({}), None),
    ("metric>=base-0.1", verdict(metric=0.6), None),
])
def test_whether_a_target_is_reached(text, judged, reached):
    assert parse_target(text).reached(judged) is reached


def test_the_worst_output_counts():
    both = Verdict({"a": OutputErrors(Errors(40.0, 0.9999)), "b": OutputErrors(Errors(8.0, 0.9)),
                    "n": OutputErrors(Errors(mismatch=0.9))})
    assert parse_target("sqnr>=20").figure(both) == 8.0
    assert math.isinf(parse_target("sqnr>=20").figure(verdict(None, 1.0, exact=True)))


def outline(shape, operator="Gemm"):
    layer = SimpleNamespace(name="head", outputs=("y",))
    return SimpleNamespace(shape=lambda tensor: shape if tensor == "y" else None, layers=(layer,),
                           group_of=lambda name: SimpleNamespace(operator=operator))


DEFAULTS = [
    ("f1", True, (Judged("y", "y"),), ("n", 1000), "metric"),
    ("f1", False, (Judged("y", "y"),), ("n", 1000), "agreement"),
    (None, True, (Judged("y", "y"),), ("n", 1000), "agreement"),
    (None, False, (Judged("y", "y"),), ("n", 4), "sqnr"),
    (None, False, (Judged("y", "y"),), ("n", 3, 8, 8), "sqnr"),
    (None, False, (Judged("y[:, 4:]", "y", (AxisSlice(1, 4),)),), ("n", 1000), "sqnr"),
    (None, False, (Judged("y", "y"), Judged("z", "z")), ("n", 1000), "sqnr"),
    (None, False, (Judged("y", "y"),), None, "sqnr"),
]


def test_what_divides_by_its_norm_is_no_classifier():
    assert default_target(None, (Judged("y", "y"),), outline(("n", 384), "Div"), False).kind == "sqnr"
    assert default_target(None, (Judged("y", "y"),), outline(("n", 1000, 1, 1)), False).kind == "agreement"


@pytest.mark.parametrize(("metric", "labels", "judged", "shape", "kind"), DEFAULTS)
def test_the_default_target(metric, labels, judged, shape, kind):
    target = default_target(metric, judged, outline(shape), labels)
    assert target.kind == kind and target.shown
    if kind == "metric":
        assert target.bound is None and target.with_base(93.0).bound == pytest.approx(92.07)
