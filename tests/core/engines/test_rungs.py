"""trt_tui.core.engines.fallback_ladder: what a builder's message names, and what is tried next."""

import pytest

from trt_tui.core.engines.fallback_ladder import (
    AS_REQUESTED,
    LOWEST_EFFORT,
    MAX_NAMED_ATTEMPTS,
    MIN_ATTEMPTS_BEFORE_SIMILAR,
    NAMED_GROUPS_CHANGED,
    NO_PRECISIONS,
    PREFERRED_PRECISIONS,
    BuildAttempt,
    FallbackLadder,
    attempt_lines,
    find_groups_in_message,
)
from trt_tui.core.engines.group_implementations import GroupImplementation
from trt_tui.core.measure.engine_agreement import find_groups_in_other_precision
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision

INT8 = PrecisionConfig.from_precision(Precision.INT8)
FP16 = PrecisionConfig.from_precision(Precision.FP16)
BF16 = PrecisionConfig.from_precision(Precision.INT8, Precision.BF16)


@pytest.fixture
def resnet(named_network):
    return named_network("small_resnet")


@pytest.fixture
def encoder(named_network):
    return named_network("bert")


def names(groups) -> list[str]:
    return [group.name for group in groups]


def ladder(network, config, told=True, loosens=True, eases=False) -> FallbackLadder:
    return FallbackLadder(network, config, told, loosens, eases)


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        (
            "Error Code 10: Internal Error (Could not find any implementation for node /conv1/Conv + /relu/Relu.)",
            ["/conv1/Conv"],
        ),
        ("No supported formats for conv1.weight__q + /conv1/Conv", ["/conv1/Conv"]),
        (
            "Could not find any implementation for node /relu/Relu_output_0__q + /layer1/conv1/Conv.",
            ["/layer1/conv1/Conv"],
        ),
        ("Could not find any implementation for node conv1.weight__q.", ["/conv1/Conv"]),
        ("costs for /layer1/conv2/Conv_myl0_3 and\n/fc/Gemm", ["/layer1/conv2/Conv", "/fc/Gemm"]),
        ("/conv1/Conv was fused; no implementation for node /fc/Gemm.", ["/fc/Gemm"]),
        ("Assertion engine failed.", []),
        ("/layer2/conv1/Conv2, a/conv1/Conv, /fc/Gemm/x", []),
    ],
)
def test_layers_that_a_message_names_on_their_own(resnet, text, alone) -> None:
    assert [names(groups) for groups in find_groups_in_message(text, resnet)] == [alone, []]


def test_a_fused_region_names_all_from_its_first_to_its_last_layer(resnet) -> None:
    order = [group.name for group in resnet.groups]
    found, within = find_groups_in_message(
        "no implementation for node {ForeignNode[/layer1/conv1/Conv.../fc/Gemm]}.", resnet
    )
    assert found == [] and names(within) == order[order.index("/layer1/conv1/Conv") : order.index("/fc/Gemm") + 1]
    assert names(find_groups_in_message("{ForeignNode[(Unnamed Layer* 3)...nowhere]}", resnet)[1]) == []


def test_told_releases_let_go_prefer_and_tell_nothing(resnet) -> None:
    going = ladder(resnet, FP16)
    named = going.choose_next_attempt(BuildAttempt(), "Could not find any implementation for node /conv1/Conv.")
    assert named == BuildAttempt(NAMED_GROUPS_CHANGED, {}, ("/conv1/Conv",))
    assert going.choose_next_attempt(named, "Could not find any implementation for node /conv1/Conv.") == BuildAttempt(
        PREFERRED_PRECISIONS
    )
    assert (
        going.choose_next_attempt(BuildAttempt(PREFERRED_PRECISIONS), "/fc/Gemm") == BuildAttempt(NO_PRECISIONS)
        and going.choose_next_attempt(BuildAttempt(NO_PRECISIONS), "/fc/Gemm") is None
    )


def test_an_int8_layer_that_is_named_goes_one_step_up_and_then_goes_free(resnet) -> None:
    going = ladder(resnet, INT8)
    first = going.choose_next_attempt(BuildAttempt(), "No supported formats for conv1.weight__q + /conv1/Conv")
    assert first == BuildAttempt(NAMED_GROUPS_CHANGED, {"/conv1/Conv": Precision.FP16})
    assert first.derive_attempt_config(resnet, INT8).precision_of(resnet.get_group("/conv1/Conv")) is Precision.FP16
    again = going.choose_next_attempt(first, "No supported formats for /conv1/Conv")
    assert again == BuildAttempt(NAMED_GROUPS_CHANGED, {"/conv1/Conv": Precision.FP16}, ("/conv1/Conv",))
    assert ladder(resnet, BF16).choose_next_attempt(BuildAttempt(), "/conv1/Conv").raised_groups == {
        "/conv1/Conv": Precision.BF16
    }


def test_in_a_region_what_was_told_goes_before_int8(encoder) -> None:
    first, last = encoder.layers[0].name, encoder.layers[-1].name
    message = f"Could not find any implementation for node {{ForeignNode[{first}...{last}]}}."
    going = ladder(encoder, INT8)
    floats = {group.name for group in encoder.groups if INT8.precision_of(group) is not Precision.INT8}
    quantized = {group.name for group in encoder.groups} - floats
    assert floats and quantized
    one = going.choose_next_attempt(BuildAttempt(), message)
    assert (set(one.unconstrained), one.raised_groups) == (floats, {})
    two = going.choose_next_attempt(one, message)
    assert set(two.raised_groups) == quantized and set(two.unconstrained) == floats | quantized
    assert going.choose_next_attempt(two, message) == BuildAttempt(PREFERRED_PRECISIONS)


def test_a_message_that_names_nothing_and_too_many_tries_lead_to_the_next_rung(resnet) -> None:
    assert ladder(resnet, INT8).choose_next_attempt(BuildAttempt(), "Assertion engine failed.") == BuildAttempt(
        PREFERRED_PRECISIONS
    )
    assert ladder(resnet, INT8, loosens=False).choose_next_attempt(BuildAttempt(), "Assertion engine failed.") is None
    eased = ladder(resnet, INT8, eases=True).choose_next_attempt(BuildAttempt(), "Assertion engine failed.")
    assert (
        eased == BuildAttempt(LOWEST_EFFORT)
        and eased.has_requested_precisions
        and attempt_lines([eased], {}) == [f"{eased.changes_text}: built"]
    )
    assert ladder(resnet, INT8, eases=True).choose_next_attempt(eased, "Assertion engine failed.") == BuildAttempt(
        PREFERRED_PRECISIONS
    )
    assert ladder(resnet, INT8, loosens=False, eases=True).choose_next_attempt(eased, "the same") is None
    going, rung = ladder(resnet, INT8), BuildAttempt()
    names = [group.name for group in resnet.groups]
    assert len(names) > MAX_NAMED_ATTEMPTS
    for name in names[:MAX_NAMED_ATTEMPTS]:
        rung = going.choose_next_attempt(rung, f"for node {name}.")
        assert rung.name == NAMED_GROUPS_CHANGED
    assert going.choose_next_attempt(rung, f"for node {names[MAX_NAMED_ATTEMPTS]}.") == BuildAttempt(
        PREFERRED_PRECISIONS
    )


def test_what_is_like_a_named_layer_is_changed_with_it_after_some_tries(resnet) -> None:
    going, rung = ladder(resnet, INT8), BuildAttempt()
    alone = ["/fc/Gemm", "/layer1/conv2/Conv", "/layer2/conv2/Conv"]
    assert len(alone) == MIN_ATTEMPTS_BEFORE_SIMILAR
    for name in alone:
        rung = going.choose_next_attempt(rung, f"no implementation for node {name}.")
    assert list(rung.raised_groups) == alone, "its like, /layer2/downsample.0/Conv, is left as it is"
    rung = going.choose_next_attempt(rung, "no implementation for node /conv1/Conv.")
    assert set(rung.raised_groups) == {*alone, "/conv1/Conv", "/layer1/conv1/Conv", "/layer2/conv1/Conv"}


def test_strongly_typed_releases_raise_what_is_named_step_by_step_and_nothing_else(resnet) -> None:
    going = ladder(resnet, INT8, told=False, loosens=False)
    one = going.choose_next_attempt(BuildAttempt(), "/conv1/Conv")
    two = going.choose_next_attempt(one, "/conv1/Conv")
    assert [one.raised_groups, two.raised_groups] == [{"/conv1/Conv": Precision.FP16}, {"/conv1/Conv": Precision.FP32}]
    assert two.unconstrained == () and going.choose_next_attempt(two, "/conv1/Conv") is None
    assert ladder(resnet, INT8, False, False).choose_next_attempt(BuildAttempt(), "no name") is None


def test_rungs_in_words() -> None:
    raised = {"a": Precision.FP16, "b": Precision.FP16}
    tried = [
        BuildAttempt(failure_reason="no"),
        BuildAttempt(NAMED_GROUPS_CHANGED, raised, tuple("cdefg"), "no"),
        BuildAttempt(NO_PRECISIONS),
    ]
    assert attempt_lines(tried, {"a": Precision.FP32}) == [
        "as requested: failed: no",
        "a, b raised to FP16; c, d, e, f and 1 more left to the builder: failed: no",
        "no precision set: built",
        "built in another precision than requested: a in FP32",
    ]
    assert attempt_lines([BuildAttempt()], {}) == ["as requested: built"]


def test_what_was_made_is_what_the_engine_tells_and_else_what_the_rung_asked(resnet) -> None:
    one, two = resnet.groups[0], resnet.groups[1]
    made = {two.name: GroupImplementation(Precision.FP32, False, ("x",))}
    raised = BuildAttempt(NAMED_GROUPS_CHANGED, {one.name: Precision.FP16})
    assert find_groups_in_other_precision(resnet, INT8, raised, made) == {
        one.name: Precision.FP16,
        two.name: Precision.FP32,
    }
    assert find_groups_in_other_precision(resnet, INT8, raised, {}) == {one.name: Precision.FP16}
    assert (
        find_groups_in_other_precision(
            resnet, INT8, BuildAttempt(PREFERRED_PRECISIONS), {two.name: GroupImplementation(None, True, ("x",))}
        )
        == {}
    )
    assert find_groups_in_other_precision(resnet, INT8, BuildAttempt(AS_REQUESTED), made) == {}
