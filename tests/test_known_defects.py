"""Known defects of TensorRT releases: the rows of `known_defects`, and each surface that reads them."""

import json
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import local, networks
from tests.driven import DrivenWorker
from tests.networks import Builder, floats
from tests.refusals import refused
from tests.schemas import mismatches
from tests.standins.null import NullBuilder
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.known_defects import (
    KNOWN_DEFECTS,
    DefectStatus,
    find_forbidden_precisions,
    find_suspect_groups,
    match_known_defects,
)
from trt_tui.core.network.target_release import (
    TENSORRT,
    TENSORRT_RTX,
    AffectedReleases,
    BuildTarget,
    installed_release,
    parse_release,
)
from trt_tui.core.precision import Precision
from trt_tui.core.search.ranking import GroupRanking
from trt_tui.core.search.space import SearchSpace, raise_forbidden_groups
from trt_tui.core.search.strategy_protocol import StrategyContext
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.tui.state import detail
from trt_tui.tui.state.row_values import RowValues
from trt_tui.tui.state.tree import TreeModel

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8


# -- networks ---------------------------------------------------------------------------------------------------------


def grid_sample(mode="linear", opset=20):
    """A Conv in front of a GridSample; its output is ``y``."""
    b = Builder(0, opset)
    grid = b.weight("grid", np.zeros((1, 4, 4, 2), np.float32))
    b.node("GridSample", [b.conv("x", (3, 8), "/stem"), grid], "/grid", output="y", **({} if mode is None else
                                                                                      {"mode": mode}))
    return b.model([floats("x", 1, 3, 8, 8)], [floats("y", 1, 8, 4, 4)])


def cumulative_sums(axes=(1, -1), reverse=(0, 0)):
    b = Builder(0)
    sums = [b.node("CumSum", ["x", b.weight(f"axis{index}", np.array(axis, np.int64))], f"/sum{index}", reverse=back)
            for index, (axis, back) in enumerate(zip(axes, reverse, strict=True))]
    b.node("Add", sums, "/add", output="y")
    return b.model([floats("x", 2, 3, 4)], [floats("y", 2, 3, 4)])


def group_norm(groups=1):
    b = Builder(0, 21)
    b.node("GroupNormalization", [b.conv("x", (3, 8), "/stem"), b.vector("scale", 8, 1.0), b.vector("bias", 8)],
           "/norm", output="y", num_groups=groups)
    return b.model([floats("x", 1, 3, 8, 8)], [floats("y", 1, 8, 8, 8)])


def normalised(operator="InstanceNormalization"):
    b = Builder(0)
    source = b.conv("x", (3, 8), "/stem")
    if operator == "InstanceNormalization":
        b.node(operator, [source, b.vector("scale", 8, 1.0), b.vector("bias", 8)], "/norm", output="y")
    else:
        b.node("Relu", [source], "/norm", output="y")
    return b.model([floats("x", 1, 3, 8, 8)], [floats("y", 1, 8, 8, 8)])


def conv_transpose(bias=True):
    b = Builder(0)
    inputs = ["x", b.kernel("w", (8, 8, 3), 8), *([b.vector("bias", 8)] if bias else [])]
    b.node("ConvTranspose", inputs, "/up", output="y", kernel_shape=[3])
    return b.model([floats("x", 1, 8, 16)], [floats("y", 1, 8, 18)])


def attention(batch=2, keys=16, transposed_inputs=False, scaled=("q",), reduced_keys=False):
    """One attention of 2 heads of 16 channels.

    Args:
        transposed_inputs: Queries, keys and values are transposed inputs of the network.
        scaled: The operands of the first product that are multiplied by a constant.
        reduced_keys: A Conv of stride 2 reduces the keys, as in SegFormer.
    """
    b = Builder(0)

    def operand(name: str, length: int) -> str:
        if transposed_inputs:
            return b.node("Transpose", [name], f"/{name}", perm=[0, 2, 1, 3])
        source = name
        if reduced_keys and name != "q":
            source = b.node("Conv", [name, b.kernel(f"{name}.reduce", (2, 2, 1, 2), 4)], f"/{name}/reduce",
                            kernel_shape=[1, 2], strides=[1, 2])
        product = b.node("MatMul", [source, b.kernel(f"{name}.w", (16 if source == name else 8, 16), 16)], f"/{name}")
        factor = b.weight(f"{name}.factor", np.array(0.5, np.float32))
        return b.node("Mul", [product, factor], f"/{name}/scale") if name in scaled else product

    query, key, value = (operand(name, length) for name, length in (("q", 8), ("k", keys), ("v", keys)))
    key = b.node("Transpose", [key], "/k/turn", perm=[0, 1, 3, 2])
    scores = b.node("Softmax", [b.node("MatMul", [query, key], "/scores")], "/attention", axis=-1)
    b.node("MatMul", [scores, value], "/values", output="y")
    sizes = {"q": 8, "k": keys, "v": keys}
    shapes = [(batch, length, 2, 16) if transposed_inputs else (batch, 2, length, 16) for length in sizes.values()]
    return b.model([floats(name, *shape) for name, shape in zip(sizes, shapes, strict=True)],
                   [floats("y", batch, 2, 8, 16)])


def vector_products(rows=1, is_chain=True):
    b = Builder(0)
    first = b.node("MatMul", ["x", b.kernel("w0", (16, 32), 16)], "/first")
    source = first if is_chain else b.node("Relu", [first], "/relu")
    b.node("MatMul", [source, b.kernel("w1", (32, 8), 32)], "/second", output="y")
    return b.model([floats("x", rows, 16)], [floats("y", rows, 8)])


def resized_condition(order="behind", height="h"):
    """A Resize of the result of an If with a Transpose behind it or before it."""
    def branch(name, amount):
        node = helper.make_node("Add", ["source", amount], [name], f"/{name}")
        return helper.make_graph([node], name, [], [floats(name, None, None, None, None)])

    b = Builder(0)
    for name, amount in (("one", 1), ("two", 2)):
        b.weight(name, np.array(amount, np.float32))
    scales = b.weight("scales", np.array([1, 1, 2, 2], np.float32))
    source = b.node("Transpose", ["x"], "/turn", perm=[0, 1, 3, 2], output="source") if order == "before" else b.node(
        "Relu", ["x"], "/relu", output="source")
    chosen = b.node("If", ["condition"], "/if", then_branch=branch("then", "one"), else_branch=branch("else", "two"))
    if order == "behind":
        chosen = b.node("Transpose", [chosen], "/turn", perm=[0, 1, 3, 2])
    assert source
    b.node("Resize", [chosen, "", scales], "/resize", output="y", mode="nearest")
    return b.model([floats("x", 1, 1, height, 4), helper.make_tensor_value_info("condition", TensorProto.BOOL, [])],
                   [floats("y", None, None, None, None)])


ROWS = {
    "grid-sample-linear": (grid_sample("linear"), grid_sample("bilinear", 16), FP32, None),
    "grid-sample-cubic": (grid_sample("cubic"), grid_sample("bicubic", 16), FP32, None),
    "grid-sample-cubic-rtx": (grid_sample("cubic"), grid_sample("nearest"), FP32, None),
    "grid-sample-fp32-in-fp16": (grid_sample(None), normalised("Relu"), None, None),
    "cumsum-axes": (cumulative_sums((1, -1)), cumulative_sums((2, -1)), FP32, None),
    "cumsum-directions": (cumulative_sums((1, 1), (0, 1)), cumulative_sums((1, 1), (1, 1)), FP32, None),
    "group-norm-of-one-group": (group_norm(1), group_norm(2), FP32, None),
    "instance-norm-fp16": (normalised(), normalised("Relu"), FP16, FP32),
    "conv-transpose-1d-int8-bias": (conv_transpose(), conv_transpose(bias=False), INT8, FP16),
    "conv-transpose-channel-scales": (conv_transpose(bias=False), normalised("Relu"), INT8, FP16),
    "attention-fp16-mha-v2": (attention(), vector_products(4), FP16, FP32),
    "attention-many-keys": (attention(keys=65536), attention(keys=65504), FP16, BF16),
    "attention-sm120": (attention(), vector_products(4), BF16, FP32),
    "attention-transposed-input": (attention(transposed_inputs=True), attention(), FP16, FP32),
    "attention-two-scalings": (attention(scaled=("q", "k")), attention(scaled=("q", )), FP32, None),
    "attention-equal-rows": (attention(batch=2), attention(batch=1), FP16, BF16),
    "attention-reduced-keys": (attention(reduced_keys=True), attention(batch=1, reduced_keys=True), FP32, None),
    "consecutive-vector-products": (vector_products(1), vector_products(4), FP32, None),
    "resize-of-transposed-condition": (resized_condition(), resized_condition("before"), FP32, None),
}
"""For each row a network that has the defect and one that does not, a precision with it and one without it (None: the
defect does not depend on the precision)."""


def keys_of(network, target=None, precision=None):
    lookup = None if precision is None else PrecisionConfig.from_precision(precision).precision_of
    return {match.key for match in match_known_defects(network, target or BuildTarget(), lookup)}


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KNOWN_DEFECTS)
def test_each_row_has_a_source_and_a_way_round(key):
    defect = KNOWN_DEFECTS[key]
    assert defect.sources and all(re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", source)
                                  for source in defect.sources)
    assert re.fullmatch(r"[\w./-]+#\d+", defect.source_label)
    assert defect.workaround[0].isupper() and defect.workaround.endswith(".") and len(defect.workaround.split()) <= 25
    assert defect.symptom and not defect.symptom.endswith(".") and defect.component in ("parser", "builder")
    assert defect.releases and all(TENSORRT in releases.releases_text for releases in defect.releases)
    assert key in ROWS, "each row has its two networks"


@pytest.mark.parametrize("key", ROWS)
def test_each_row_matches_its_network_in_its_precision_alone(key, opened):
    with_defect, without_defect, precision, other_precision = ROWS[key]
    network = opened(with_defect)
    assert key in keys_of(network) and key not in keys_of(opened(without_defect))
    if precision is not None:
        assert key in keys_of(network, precision=precision)
    if other_precision is not None:
        assert key not in keys_of(network, precision=other_precision)


VERSIONS = [
    ("grid-sample-linear", "10.13.2", None), ("grid-sample-linear", "10.13.3", True),
    ("grid-sample-linear", "10.14", True), ("grid-sample-linear", "11.1", True), ("grid-sample-linear", "11.2", None),
    ("grid-sample-linear", "rtx1.5", True), ("grid-sample-linear", "rtx1.7", False),
    ("grid-sample-cubic-rtx", "rtx1.4.0", True), ("grid-sample-cubic-rtx", "rtx1.3", None),
    ("grid-sample-cubic-rtx", "10.14", False), ("grid-sample-cubic", "rtx1.4", False),
    ("grid-sample-fp32-in-fp16", "10.13.3.9", False), ("grid-sample-fp32-in-fp16", "10.14.1.47", False),
    ("grid-sample-fp32-in-fp16", "10.14.1.48", True), ("grid-sample-fp32-in-fp16", "10.14", True),
    ("grid-sample-fp32-in-fp16", "10.15", None),
    ("cumsum-axes", "10.7", False), ("cumsum-axes", "10.8", True), ("cumsum-axes", "10.11.0.33", True),
    ("cumsum-axes", "10.12", None), ("cumsum-directions", "10.11", None), ("cumsum-directions", "rtx", False),
    ("group-norm-of-one-group", "10.16.1.11", True), ("group-norm-of-one-group", "10.15", None),
    ("conv-transpose-1d-int8-bias", "8.2", True), ("conv-transpose-1d-int8-bias", "8.3", True),
    ("conv-transpose-1d-int8-bias", "8.4", False), ("conv-transpose-1d-int8-bias", "8.6", False),
    ("attention-fp16-mha-v2", "9.3", False), ("attention-fp16-mha-v2", "10.0.0", True),
    ("attention-fp16-mha-v2", "10.0.1", False), ("attention-fp16-mha-v2", "10", True),
    ("attention-two-scalings", "10.7.0.23", True), ("attention-two-scalings", "10.6", None),
    ("consecutive-vector-products", "8.6.3", False), ("consecutive-vector-products", "10.1", True),
    ("consecutive-vector-products", "10.2", None), ("attention-many-keys", "10.14", None),
    ("resize-of-transposed-condition", "11.2.1.2", True), ("resize-of-transposed-condition", "11.3", None),
]


@pytest.mark.parametrize(("key", "release", "expected"), VERSIONS)
def test_releases_before_inside_and_after(key, release, expected, opened):
    """True: the source names the defect for the release; None: it says nothing about it; False: the release has none.
    """
    target = BuildTarget(parse_release(release))
    assert KNOWN_DEFECTS[key].affects_release(target.release) is expected
    certainty = {match.key: match.is_certain
                 for match in match_known_defects(opened(ROWS[key][0]), target) if match.key == key}
    assert certainty == ({} if expected is False else {key: expected is True})


def test_versions_compare_as_numbers():
    releases = AffectedReleases(TENSORRT, ("10.9", "10.10"), introduced="10.9", fixed="10.11")
    assert [releases.affects(parse_release(text)) for text in ("10.8", "10.9.0", "10.10.0.31", "10.11", "10.100")] == [
        False, True, True, False, False]
    assert releases.affects(parse_release("rtx1.5")) is False
    assert releases.releases_text == "since TensorRT 10.9, seen in 10.9 to 10.10, fixed in 10.11"


@pytest.mark.parametrize("text", ["", "ten", "10.", "10.14.1.48.2", "rtx-", "10,14", "-1", "99999", "10.14 x", "v10"])
def test_a_text_that_is_no_release_is_refused(text):
    if text == "rtx-":
        assert parse_release(text).product == TENSORRT_RTX
        return
    with refused("not a TensorRT release", next_step="10.14.1.48"):
        parse_release(text)


@pytest.mark.parametrize(("text", "family"), [("8.6", "8.6"), ("8.6.1.6", "8.6"), ("10", "10"), ("10.14.1.48", "10"),
                                              ("11.4", "11"), ("rtx", "rtx"), ("RTX1.5", "rtx"), ("9.1", ""),
                                              ("8.5", ""), ("1", "")])
def test_the_release_of_a_bundle(text, family):
    assert parse_release(text).family == family


def test_the_release_of_an_installed_builder():
    assert installed_release("tensorrt", "10.7.0.post1").title == "TensorRT 10.7.0"
    assert installed_release("tensorrt-rtx", "1.7.1.35").title == "TensorRT-RTX 1.7.1.35"


def test_the_typing_and_the_gpu_decide_too(opened):
    network, release = opened(attention()), parse_release("10.16.1")
    assert "attention-sm120" not in keys_of(network, BuildTarget(release, (9, 0)))
    match, = (match for match in match_known_defects(network, BuildTarget(release)) if match.key == "attention-sm120")
    assert not match.is_certain and "compute capability 12.0" in match.text and "unknown for" not in match.text
    assert next(match for match in match_known_defects(network, BuildTarget(release, (12, 0)))).is_certain
    grid = opened(grid_sample(None))
    key, release = "grid-sample-fp32-in-fp16", parse_release("10.14.1.48")
    assert key in keys_of(grid, BuildTarget(release)) and key not in keys_of(grid, BuildTarget(release, None, True))
    assert key not in keys_of(grid, BuildTarget(parse_release("8.6")))


def test_an_fp32_grid_sample_counts_only_beside_fp16(opened):
    network, target = opened(grid_sample(None)), BuildTarget(parse_release("10.14"))
    assert keys_of(network, target, FP32) == set() and keys_of(network, target, FP16) == set()
    mixed = PrecisionConfig.from_precision(FP16).with_group_precision([network.get_group("/grid/GridSample")], FP32)
    matches = match_known_defects(network, target, mixed.precision_of)
    assert [(match.key, match.groups, match.is_certain) for match in matches] == [
        ("grid-sample-fp32-in-fp16", ("/grid/GridSample",), True)]


def test_layers_that_left_the_precision_are_not_named(opened):
    network = opened(attention())
    config = PrecisionConfig.from_precision(FP16).with_group_precision([network.get_group("/scores/MatMul")], FP32)
    target = BuildTarget(parse_release("10.0.0"))
    match = match_known_defects(network, target, config.precision_of)[0]
    assert match.layers == match.groups == ("/attention/Softmax", "/values/MatMul")


def test_an_attention_with_int8_products_is_not_one_in_fp16(opened):
    network, target = opened(attention()), BuildTarget(parse_release("10.0.0"))
    config = PrecisionConfig.from_precision(INT8, FP16)
    assert config.precision_of(network.get_group("/attention/Softmax")) is FP16
    assert match_known_defects(network, target, config.precision_of) == []
    assert find_forbidden_precisions(network, target, config.precision_of) == {} != find_forbidden_precisions(
        network, target)


def test_the_text_names_status_source_and_release(opened):
    network = opened(grid_sample("linear"))
    text, other = (match_known_defects(network, target)[0].warning_text(network)
                   for target in (BuildTarget(), BuildTarget(parse_release("11.2"))))
    assert text == ("/grid/GridSample (GridSample): the parser reads mode linear of opset 20 and later as nearest in "
                    "TensorRT 10.13.3 to 11.1 and in TensorRT-RTX 1.5, fixed in 1.7 (reported, NVIDIA/TensorRT#4646). "
                    "Build from a file that trt-tui writes, which leaves the mode out, or export with an opset from 16 "
                    "to 19.")
    assert "(reported, NVIDIA/TensorRT#4646; unknown for TensorRT 11.2)" in other


# -- search -----------------------------------------------------------------------------------------------------------


def test_only_confirmed_or_reproduced_rows_of_a_release_forbid(opened):
    network = opened(attention())
    forbidden = find_forbidden_precisions(network, BuildTarget(parse_release("10.0.0")))
    assert forbidden.keys() == {"/scores/MatMul", "/attention/Softmax", "/values/MatMul"}
    assert {frozenset(reasons) for reasons in forbidden.values()} == {frozenset((FP16, Precision.FP16_ACC_FP32))}
    assert "NVIDIA/TensorRT#3777" in forbidden["/scores/MatMul"][FP16]
    for target in (BuildTarget(), BuildTarget(parse_release("10.0.1")), BuildTarget(parse_release("10.16.1"), (12, 0))):
        assert find_forbidden_precisions(network, target) == {}, "unknown, fixed, or only reported"
    assert all(find_forbidden_precisions(opened(model), BuildTarget(parse_release(release))) == {}
               for model, release in ((vector_products(), "10.1.0"), (cumulative_sums(), "10.11")))


def test_a_search_space_leaves_forbidden_precisions_out(opened):
    network = opened(attention())
    forbidden = find_forbidden_precisions(network, BuildTarget(parse_release("10.0.0")))
    start, raised = raise_forbidden_groups(network, PrecisionConfig.from_precision(FP16), FP32, forbidden)
    assert raised == ("/scores/MatMul", "/attention/Softmax", "/values/MatMul")
    assert all(start.precision_of(network.get_group(name)) is FP32 for name in raised)
    assert set(SearchSpace(network, start, forbidden_precisions=forbidden).candidates).isdisjoint(raised)
    int8 = PrecisionConfig.from_precision(INT8)
    free = SearchSpace(network, int8, FP16)
    bound = SearchSpace(network, int8, FP16, forbidden_precisions=forbidden)
    assert set(free.candidates) - set(bound.candidates) == {"/scores/MatMul", "/values/MatMul"}
    rungs = SearchSpace(network, int8, intermediate=(FP16, ), forbidden_precisions=forbidden)
    assert rungs.intermediate_precisions("/scores/MatMul") == () != rungs.intermediate_precisions("/q/MatMul")
    kept = start.with_group_precision([network.get_group(raised[0])], FP32)
    assert raise_forbidden_groups(network, kept, FP32, forbidden) == (kept, ())


def test_changes_with_a_reported_defect_are_tried_last(opened):
    network, target = opened(grid_sample(None)), BuildTarget(parse_release("10.14"))
    lookup = PrecisionConfig.from_precision(FP16).precision_of
    assert find_suspect_groups(network, target, lookup, FP32) == {"/grid/GridSample"}
    assert find_suspect_groups(network, target, lookup, BF16) == frozenset()
    assert find_suspect_groups(network, BuildTarget(parse_release("10.13")), lookup, FP32) == frozenset()
    assert find_suspect_groups(network, BuildTarget(), lookup, FP32) == frozenset(), "the release is unknown"
    context = StrategyContext(("a", "b", "c"), GroupRanking(("b", "a", "c")), lambda names: True,
                              postponed_groups=frozenset("b"))
    assert context.order_candidates_by_suspicion() == ["a", "c", "b"]
    assert context.order_candidates_by_suspicion(["c"]) == ["a", "b"]


def test_remedies_with_a_reported_defect_come_last(tmp_path):
    model, data = write(tmp_path, attention())
    keys = {}
    for release in (None, "10.16.1"):
        worker = DrivenWorker(tmp_path)
        worker.answer(rq.OpenNetwork(Options(str(model), str(data), batch=2, whatif_samples=0,
                                             tensorrt_release=release, compute_capability=(12, 0))))
        scores, *others = [group for group in worker.network.groups if group.attention]
        config = PrecisionConfig.from_precision(INT8).with_group_precision(others, FP16)
        events = worker.answer(rq.MeasureRemedies(scores.name, config))
        keys[release] = [remedy.key for remedy in [
            event for event in events if isinstance(event, ev.RemediesMeasured)][-1].options]
    assert "=" in keys[None] and keys[None][-1] != "=" and keys["10.16.1"][-1] == "="
    assert sorted(keys[None]) == sorted(keys["10.16.1"])


def write(tmp_path, model, count=8):
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", **networks.feeds(model, n=count))
    return tmp_path / "model.onnx", tmp_path / "data.npz"


def test_a_search_raises_what_the_release_computes_wrongly(run, tmp_path):
    model, data = write(tmp_path, attention())
    words = ("search", model, "--data", data, "--precision", "fp16", "--tolerance", "sqnr>=10", "-o")
    code, _, err = run(*words, tmp_path / "free.json")
    assert code == 0, err
    code, out, err = run(*words, tmp_path / "bound.json", "--for", "10.0.0")
    assert code == 0 and "raised before the search: /scores/MatMul, /attention/Softmax, /values/MatMul: the" in out, err
    free, bound = ({layer for move in json.loads((tmp_path / f"{name}.json").read_text())["moves"]
                    if move.get("precision") == "fp32" for layer in move["layers"]} for name in ("free", "bound"))
    assert {"/scores/MatMul", "/attention/Softmax", "/values/MatMul"} <= bound - free


# -- inspect ----------------------------------------------------------------------------------------------------------


def test_inspect_names_the_defects_of_a_release(run, tmp_path):
    model, _ = write(tmp_path, attention())
    code, out, err = run("inspect", model, "--for", "10.0.0")
    assert code == 0 and "known defects of TensorRT 10.0.0 that concern this network:" in out, err
    assert "confirmed by NVIDIA, NVIDIA/TensorRT#3777" in out and "unknown for TensorRT 10.0.0" in out
    _, out, _ = run("inspect", model, "--for", "10.0.0", "--precision", "fp32")
    assert "no known defect of TensorRT 10.0.0 concerns this config" in out
    _, out, _ = run("inspect", model)
    assert "known defects of some releases that concern this network (--for RELEASE" in out
    assert "since TensorRT 10.0.0, fixed in 10.0.1" in out
    _, out, _ = run("inspect", model, "--for", "10.16.1", "--compute-capability", "12.0")
    assert "known defects of TensorRT 10.16.1 that concern this network:" in out
    (tmp_path / "plain").mkdir()
    plain, _ = write(tmp_path / "plain", normalised("Relu"))
    assert "known defect" not in run("inspect", plain)[1]
    assert "no known defect of TensorRT 10.14 concerns this network" in run("inspect", plain, "--for", "10.14")[1]


def test_inspect_writes_the_defects_as_json(run, tmp_path):
    model, _ = write(tmp_path, attention())
    code, out, err = run("inspect", model, "--for", "10.0.0", "--precision", "fp16", "--json")
    assert code == 0, err
    record = json.loads(out)["known_defects"]
    assert mismatches(record, "known-defects-v1") == [] and record["release"] == "TensorRT 10.0.0"
    first = record["defects"][0]
    assert (first["defect"], first["status"], first["affects_target"]) == ("attention-fp16-mha-v2", "confirmed", "yes")
    assert first["sources"] == ["https://github.com/NVIDIA/TensorRT/issues/3777"]
    assert {entry["affects_target"] for entry in record["defects"][1:]} == {"unknown"}
    assert mismatches({"defects": [{**first, "sources": []}]}, "known-defects-v1"), "a defect has a source"
    _, out, _ = run("inspect", model, "--precision", "fp16", "--scheme", "--json")
    record = json.loads(out)["known_defects"]
    assert mismatches(record, "known-defects-v1") == [] and "release" not in record
    _, out, _ = run("inspect", model, "--precision", "fp32", "--scheme", "--json")
    assert "known_defects" not in json.loads(out)


@pytest.mark.parametrize(("more", "said"), [
    (("--for", "10.x"), "10.x is not a TensorRT release"), (("--for", ""), "is not a TensorRT release"),
    (("--json",), "--json has no effect here"), (("--precision", "fp16"), "--precision has no effect here"),
    (("--for", "10.14", "--markdown"), "--markdown has no effect here")])
def test_inspect_refuses_what_it_does_not_read(run, tmp_path, more, said):
    model, _ = write(tmp_path, normalised("Relu"))
    code, _, err = run("inspect", model, *more)
    assert code == 2 and said in err


# -- export -----------------------------------------------------------------------------------------------------------


def test_an_export_warns_of_the_defects_of_its_release(run, tmp_path):
    model, _ = write(tmp_path, cumulative_sums())
    words = ("export", model, "--precision", "fp16", "--format", "onnx", "-o", tmp_path / "typed.onnx")
    code, _, err = run(*words, "--for", "10.11")
    assert code == 0 and err.count("Warning: /sum0/CumSum, /sum1/CumSum (CumSum): CumSums of different axes") == 1, err
    code, _, err = run(*words)
    assert code == 0 and err.count("Note: Known defects of some releases or GPUs concern this config") == 1, err
    assert "since TensorRT 10.8, seen in 10.11.0.33 (NVIDIA/TensorRT#4551)" in err
    code, _, err = run(*words, "--for", "10.7")
    assert code == 0 and "CumSum" not in err, err


def test_an_export_refuses_a_precision_that_its_release_computes_wrongly(run, tmp_path):
    model, data = write(tmp_path, attention())
    words = ("export", model, "--precision", "fp16", "-o", tmp_path / "out", "--format")
    code, _, err = run(*words, "trtexec", "--for", "10.0.0")
    assert code == 2 and "TensorRT 10.0.0 computes /scores/MatMul wrongly in FP16" in err and "#3777" in err
    code, _, err = run(*words, "bundle", "--for", "10.0.0", "--data", data)
    assert code == 2 and "TensorRT 10.0.0 computes" in err and not (tmp_path / "out").exists()
    code, _, err = run(*words, "trtexec", "--for", "10.0.1")
    assert code == 0 and "computes" not in err, err


def test_files_of_trt_tui_do_not_have_the_defect_of_linear_grids(run, tmp_path):
    model, _ = write(tmp_path, grid_sample("linear"))
    _, out, _ = run("inspect", model, "--for", "11.1")
    assert "known defects of TensorRT 11.1 that concern this network:" in out and "#4646" in out
    code, _, err = run("export", model, "--precision", "fp16", "--format", "onnx", "--for", "11.1", "-o",
                       tmp_path / "typed.onnx")
    assert code == 0 and "Warning: /grid" not in err, err


# -- build ------------------------------------------------------------------------------------------------------------


def test_a_built_engine_comes_with_the_defects_of_the_installed_release(command, tmp_path):
    model, _ = write(tmp_path, group_norm())
    done = command("10.16.1", "build", model, "--precision", "fp16", "-o", tmp_path / "model.engine")
    assert done.returncode == 0, done.stderr
    assert "a GroupNormalization of one group is computed for each channel alone" in done.stderr
    assert "(reported, NVIDIA/TensorRT#4756)" in done.stderr and (tmp_path / "model.engine").exists()
    done = command("8.6.1", "build", model, "--precision", "fp16", "-o", tmp_path / "older.engine")
    assert done.returncode == 0 and "#4756" not in done.stderr, done.stderr


def test_a_typed_network_is_written_for_a_release(run, tmp_path):
    model, _ = write(tmp_path, attention())
    words = ("build", model, "--precision", "fp16", "-o", tmp_path / "typed.onnx", "--for")
    code, _, err = run(*words, "10.0.0")
    assert code == 2 and "TensorRT 10.0.0 computes /scores/MatMul wrongly in FP16" in err and "#3777" in err
    assert not (tmp_path / "typed.onnx").exists()
    code, _, err = run(*words, "11.2")
    assert code == 0 and "computes" not in err and (tmp_path / "typed.onnx").exists(), err
    code, _, err = run("build", model, "--precision", "fp16", "-o", tmp_path / "model.engine", "--for", "10.0.0")
    assert code == 2 and "--for has no effect here" in err and "the installed release builds the engine" in err


def test_an_engine_is_refused_if_the_installed_release_computes_it_wrongly(tmp_path):
    model, data = write(tmp_path, attention())
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(Options(str(model), str(data), batch=2, whatif_samples=0)))
    worker.workspace.builder = NullBuilder(version="10.0.0")
    for config, is_refused in ((FP16, True), (FP32, False)):
        path = tmp_path / f"{config.value}.engine"
        events = worker.answer(rq.WriteEngine(PrecisionConfig.from_precision(config), str(path)))
        failures = [event.title for event in events if isinstance(event, ev.JobFailed)]
        assert path.exists() is not is_refused, failures
        assert failures == (["TensorRT 10.0.0 computes /scores/MatMul wrongly in FP16"] if is_refused else [])


# -- the app ----------------------------------------------------------------------------------------------------------


def test_the_detail_pane_names_the_defects_of_the_row(tmp_path, measured_before):
    session = local.measured(tmp_path)
    group = next(group for group in session.outline.groups if group.attention_role == "QK")

    def lines(precision, release):
        session.options = type(session.options)(**{**vars(session.options), "tensorrt_release": release})
        session.history.push_config(PrecisionConfig.from_precision(precision))
        values = RowValues(TreeModel(session.outline), session.config)
        return [line for line in detail.loss_reason_texts(session, values, group) if "NVIDIA/TensorRT#" in line]

    assert "confirmed by NVIDIA, NVIDIA/TensorRT#3777" in " ".join(lines(FP16, "10.0.0"))
    assert lines(FP32, "10.0.0") == [] and lines(FP16, "10.0.1") == []
    assert "since TensorRT 10.0.0, fixed in 10.0.1" in " ".join(lines(FP16, None)), "the release is unknown"


def test_statuses_are_written_as_records_name_them():
    assert [status.name.lower() for status in DefectStatus] == ["reported", "confirmed", "reproduced"]
