"""trt_tui.core.engines.rungs: what a builder's message names, and what is tried next."""

import pytest

from trt_tui.core.engines.made import Made
from trt_tui.core.engines.rungs import (
    ASKED,
    EASED,
    FREE,
    NAMED,
    NAMED_TRIES,
    ONE_BY_ONE,
    PREFER,
    Ladder,
    Rung,
    named_groups,
    rung_lines,
)
from trt_tui.core.measure.agreement import made_otherwise
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision

INT8 = PrecisionConfig.uniform(Precision.INT8)
FP16 = PrecisionConfig.uniform(Precision.FP16)
BF16 = PrecisionConfig.uniform(Precision.INT8, Precision.BF16)


@pytest.fixture
def resnet(named_network):
    return named_network("small_resnet")


@pytest.fixture
def encoder(named_network):
    return named_network("bert")


def names(groups) -> list[str]:
    return [group.name for group in groups]


def ladder(network, config, told=True, loosens=True, eases=False) -> Ladder:
    return Ladder(network, config, told, loosens, eases)


@pytest.mark.parametrize(("text", "alone"), [
    ("Error Code 10: Internal Error (Could not find any implementation for node /conv1/Conv + /relu/Relu.)",
     ["/conv1/Conv"]),
    ("No supported formats for conv1.weight__q + /conv1/Conv", ["/conv1/Conv"]),
    ("Could not find any implementation for node /relu/Relu_output_0__q + /layer1/conv1/Conv.", ["/layer1/conv1/Conv"]),
    ("Could not find any implementation for node conv1.weight__q.", ["/conv1/Conv"]),
    ("costs for /layer1/conv2/Conv_myl0_3 and\n/fc/Gemm", ["/layer1/conv2/Conv", "/fc/Gemm"]),
    ("/conv1/Conv was fused; no implementation for node /fc/Gemm.", ["/fc/Gemm"]),
    ("Assertion engine failed.", []), ("/layer2/conv1/Conv2, a/conv1/Conv, /fc/Gemm/x", [])])
def test_layers_that_a_message_names_on_their_own(resnet, text, alone) -> None:
    assert [names(groups) for groups in named_groups(text, resnet)] == [alone, []]


def test_a_fused_region_names_all_from_its_first_to_its_last_layer(resnet) -> None:
    order = [group.name for group in resnet.groups]
    found, within = named_groups("no implementation for node {ForeignNode[/layer1/conv1/Conv.../fc/Gemm]}.", resnet)
    assert found == [] and names(within) == order[order.index("/layer1/conv1/Conv"):order.index("/fc/Gemm") + 1]
    assert names(named_groups("{ForeignNode[(Unnamed Layer* 3)...nowhere]}", resnet)[1]) == []


def test_told_releases_let_go_prefer_and_tell_nothing(resnet) -> None:
    going = ladder(resnet, FP16)
    named = going.below(Rung(), "Could not find any implementation for node /conv1/Conv.")
    assert named == Rung(NAMED, {}, ("/conv1/Conv",))
    assert going.below(named, "Could not find any implementation for node /conv1/Conv.") == Rung(PREFER)
    assert going.below(Rung(PREFER), "/fc/Gemm") == Rung(FREE) and going.below(Rung(FREE), "/fc/Gemm") is None


def test_an_int8_layer_that_is_named_goes_one_step_up_and_then_goes_free(resnet) -> None:
    going = ladder(resnet, INT8)
    first = going.below(Rung(), "No supported formats for conv1.weight__q + /conv1/Conv")
    assert first == Rung(NAMED, {"/conv1/Conv": Precision.FP16})
    assert first.config(resnet, INT8).precision_of(resnet.group("/conv1/Conv")) is Precision.FP16
    again = going.below(first, "No supported formats for /conv1/Conv")
    assert again == Rung(NAMED, {"/conv1/Conv": Precision.FP16}, ("/conv1/Conv",))
    assert ladder(resnet, BF16).below(Rung(), "/conv1/Conv").raised == {"/conv1/Conv": Precision.BF16}


def test_in_a_region_what_was_told_goes_before_int8(encoder) -> None:
    first, last = encoder.layers[0].name, encoder.layers[-1].name
    message = f"Could not find any implementation for node {{ForeignNode[{first}...{last}]}}."
    going = ladder(encoder, INT8)
    floats = {group.name for group in encoder.groups if INT8.precision_of(group) is not Precision.INT8}
    quantized = {group.name for group in encoder.groups} - floats
    assert floats and quantized
    one = going.below(Rung(), message)
    assert (set(one.let_go), one.raised) == (floats, {})
    two = going.below(one, message)
    assert set(two.raised) == quantized and set(two.let_go) == floats | quantized
    assert going.below(two, message) == Rung(PREFER)


def test_a_message_that_names_nothing_and_too_many_tries_lead_to_the_next_rung(resnet) -> None:
    assert ladder(resnet, INT8).below(Rung(), "Assertion engine failed.") == Rung(PREFER)
    assert ladder(resnet, INT8, loosens=False).below(Rung(), "Assertion engine failed.") is None
    eased = ladder(resnet, INT8, eases=True).below(Rung(), "Assertion engine failed.")
    assert eased == Rung(EASED) and eased.as_asked and rung_lines([eased], {}) == [f"{eased.said}: built"]
    assert ladder(resnet, INT8, eases=True).below(eased, "Assertion engine failed.") == Rung(PREFER)
    assert ladder(resnet, INT8, loosens=False, eases=True).below(eased, "the same") is None
    going, rung = ladder(resnet, INT8), Rung()
    names = [group.name for group in resnet.groups]
    assert len(names) > NAMED_TRIES
    for name in names[:NAMED_TRIES]:
        rung = going.below(rung, f"for node {name}.")
        assert rung.name == NAMED
    assert going.below(rung, f"for node {names[NAMED_TRIES]}.") == Rung(PREFER)


def test_what_is_like_a_named_layer_is_changed_with_it_after_some_tries(resnet) -> None:
    going, rung = ladder(resnet, INT8), Rung()
    alone = ["/fc/Gemm", "/layer1/conv2/Conv", "/layer2/conv2/Conv"]
    assert len(alone) == ONE_BY_ONE
    for name in alone:
        rung = going.below(rung, f"no implementation for node {name}.")
    assert list(rung.raised) == alone, "its like, /layer2/downsample.0/Conv, is left as it is"
    rung = going.below(rung, "no implementation for node /conv1/Conv.")
    assert set(rung.raised) == {*alone, "/conv1/Conv", "/layer1/conv1/Conv", "/layer2/conv1/Conv"}


def test_strongly_typed_releases_raise_what_is_named_step_by_step_and_nothing_else(resnet) -> None:
    going = ladder(resnet, INT8, told=False, loosens=False)
    one = going.below(Rung(), "/conv1/Conv")
    two = going.below(one, "/conv1/Conv")
    assert [one.raised, two.raised] == [{"/conv1/Conv": Precision.FP16}, {"/conv1/Conv": Precision.FP32}]
    assert two.let_go == () and going.below(two, "/conv1/Conv") is None
    assert ladder(resnet, INT8, False, False).below(Rung(), "no name") is None


def test_rungs_in_words() -> None:
    raised = {"a": Precision.FP16, "b": Precision.FP16}
    tried = [Rung(failed="no"), Rung(NAMED, raised, tuple("cdefg"), "no"), Rung(FREE)]
    assert rung_lines(tried, {"a": Precision.FP32}) == [
        "as asked: failed: no", "a, b raised to FP16; c, d, e, f and 1 more let go: failed: no",
        "no precision told: built", "built in another precision than asked: a in FP32"]
    assert rung_lines([Rung()], {}) == ["as asked: built"]


def test_what_was_made_is_what_the_engine_tells_and_else_what_the_rung_asked(resnet) -> None:
    one, two = resnet.groups[0], resnet.groups[1]
    made = {two.name: Made(Precision.FP32, False, ("x",))}
    raised = Rung(NAMED, {one.name: Precision.FP16})
    assert made_otherwise(resnet, INT8, raised, made) == {one.name: Precision.FP16, two.name: Precision.FP32}
    assert made_otherwise(resnet, INT8, raised, {}) == {one.name: Precision.FP16}
    assert made_otherwise(resnet, INT8, Rung(PREFER), {two.name: Made(None, True, ("x",))}) == {}
    assert made_otherwise(resnet, INT8, Rung(ASKED), made) == {}
