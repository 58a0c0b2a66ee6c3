"""Known defects of TensorRT releases: the rows of `known_defects`, and each surface that reads them."""

import json
import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import local, networks
from tests.networks import Builder, floats
from tests.refusals import refused
from tests.schemas import mismatches
from tests.texts import lacking
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.known_defects import (
    KNOWN_DEFECTS,
    TENSORRT,
    TENSORRT_RTX,
    AffectedReleases,
    BuildTarget,
    installed_release,
    match_known_defects,
    parse_release,
)
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.tui.state import detail
from trt_tui.tui.state.rows import RowValues, TreeModel

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8


# -- networks ---------------------------------------------------------------------------------------------------------


def grid_sample(mode="linear", opset=20):
    """A Conv in front of a GridSample; its output is ``y``."""
    b = Builder(0, opset)
    grid = b.weight("grid", np.zeros((1, 4, 4, 2), np.float32))
    b.node(
        "GridSample",
        [b.conv("x", (3, 8), "/stem"), grid],
        "/grid",
        output="y",
        **({} if mode is None else {"mode": mode}),
    )
    return b.model([floats("x", 1, 3, 8, 8)], [floats("y", 1, 8, 4, 4)])


def cumulative_sums(axes=(1, -1), reverse=(0, 0)):
    b = Builder(0)
    sums = [
        b.node("CumSum", ["x", b.weight(f"axis{index}", np.array(axis, np.int64))], f"/sum{index}", reverse=back)
        for index, (axis, back) in enumerate(zip(axes, reverse, strict=True))
    ]
    b.node("Add", sums, "/add", output="y")
    return b.model([floats("x", 2, 3, 4)], [floats("y", 2, 3, 4)])


def group_norm(groups=1):
    b = Builder(0, 21)
    b.node(
        "GroupNormalization",
        [b.conv("x", (3, 8), "/stem"), b.vector("scale", 8, 1.0), b.vector("bias", 8)],
        "/norm",
        output="y",
        num_groups=groups,
    )
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


def attention():
    """One attention of 2 heads of 16 channels."""
    b = Builder(0)
    query, key, value = (b.node("MatMul", [name, b.kernel(f"{name}.w", (16, 16), 16)], f"/{name}") for name in "qkv")
    key = b.node("Transpose", [key], "/k/turn", perm=[0, 1, 3, 2])
    scores = b.node("Softmax", [b.node("MatMul", [query, key], "/scores")], "/attention", axis=-1)
    b.node("MatMul", [scores, value], "/values", output="y")
    return b.model(
        [floats(name, 2, 2, length, 16) for name, length in zip("qkv", (8, 16, 16), strict=True)],
        [floats("y", 2, 2, 8, 16)],
    )


def resized():
    b = Builder(0)
    b.node(
        "Resize",
        ["x", "", b.weight("scales", np.array([1, 1, 2, 2], np.float32))],
        "/resize",
        output="y",
        mode="nearest",
    )
    return b.model([floats("x", 1, 1, "h", 4)], [floats("y", None, None, None, None)])


PLAIN = normalised("Relu")

ROWS = {
    "grid-sample-linear": (grid_sample("linear"), grid_sample("bilinear", 16), FP32, None),
    "grid-sample-cubic": (grid_sample("cubic"), grid_sample("bicubic", 16), FP32, None),
    "grid-sample-fp32-in-fp16": (grid_sample(None), PLAIN, FP32, FP16),
    "cumsum-axes": (cumulative_sums(), PLAIN, FP32, None),
    "cumsum-directions": (cumulative_sums((1, 1), (0, 1)), PLAIN, FP32, None),
    "group-norm-of-one-group": (group_norm(1), group_norm(2), FP32, None),
    "instance-norm-fp16": (normalised(), PLAIN, FP16, FP32),
    "conv-transpose-1d-int8-bias": (conv_transpose(), PLAIN, INT8, FP16),
    "conv-transpose-channel-scales": (conv_transpose(bias=False), PLAIN, INT8, FP16),
    "attention-fp16-mha-v2": (attention(), PLAIN, FP16, FP32),
    "attention-many-keys": (attention(), PLAIN, FP16, BF16),
    "attention-sm120": (attention(), PLAIN, BF16, FP32),
    "attention-transposed-input": (attention(), PLAIN, FP16, FP32),
    "attention-two-scalings": (attention(), PLAIN, FP32, None),
    "attention-equal-rows": (attention(), PLAIN, FP16, BF16),
    "attention-reduced-keys": (attention(), PLAIN, FP32, None),
    "consecutive-vector-products": (attention(), PLAIN, FP32, None),
    "resize-of-transposed-condition": (resized(), PLAIN, FP32, None),
}
"""For each row a network that has the defect and one that does not, a precision with it and one without it (None: the
defect does not depend on the precision)."""


def keys_of(network, target=None, precision=None):
    """Returns the keys of the defects for a target; without one, for the releases of all rows."""
    if target is None:
        return set().union(
            *(
                keys_of(network, BuildTarget(parse_release(text)), precision)
                for text in "8.0 8.2 10.0 10.7 10.11 10.14 10.16 11.1 11.2 rtx1.5 rtx1.7".split()
            )
        )
    lookup = None if precision is None else PrecisionConfig.from_precision(precision).precision_of
    return {match.key for match in match_known_defects(network, target, lookup)}


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KNOWN_DEFECTS)
def test_each_row_has_a_source_and_a_way_round(key):
    defect = KNOWN_DEFECTS[key]
    assert defect.threads and all(
        re.fullmatch(r"[\w.-]+/[\w.-]+/(issues|pull)/\d+", thread) for thread in defect.threads.split()
    )
    assert defect.workaround[0].isupper() and defect.workaround.endswith(".") and len(defect.workaround.split()) <= 25
    assert defect.symptom and not defect.symptom.endswith(".") and defect.component in ("parser", "builder")
    assert defect.status in ("reported", "confirmed by NVIDIA", "reproduced with trt-tui")
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
    ("grid-sample-linear", "10.13.2", None),
    ("grid-sample-linear", "10.13.3", True),
    ("grid-sample-linear", "10", True),
    ("grid-sample-linear", "11.1", True),
    ("grid-sample-linear", "11.2", None),
    ("grid-sample-linear", "rtx1.5", True),
    ("grid-sample-linear", "rtx1.7", False),
    ("grid-sample-cubic", "rtx1.4.0", True),
    ("grid-sample-cubic", "rtx1.3", None),
    ("group-norm-of-one-group", "10.16.1.11", True),
    ("group-norm-of-one-group", "10.15", None),
    ("instance-norm-fp16", "8.2", True),
    ("instance-norm-fp16", "rtx", False),
    ("attention-fp16-mha-v2", "9.3", False),
    ("attention-fp16-mha-v2", "10.0.0", True),
    ("attention-fp16-mha-v2", "10.0.1", False),
    ("attention-fp16-mha-v2", "10", None),
    ("conv-transpose-1d-int8-bias", "8.4", False),
    ("conv-transpose-1d-int8-bias", "8.2", None),
    ("cumsum-axes", "10.7", False),
    ("attention-two-scalings", "10.7.0.23", None),
]


@pytest.mark.parametrize(("key", "release", "expected"), VERSIONS)
def test_releases_before_inside_and_after(key, release, expected, opened):
    """True: the source names the defect for the latest patch of the release; None: it may have it, or only earlier
    patches have it, or a condition is not checked; False: the release has none."""
    target = BuildTarget(parse_release(release))
    certainty = {
        match.key: match.is_certain for match in match_known_defects(opened(ROWS[key][0]), target) if match.key == key
    }
    assert certainty == ({} if expected is False else {key: expected is True})


def test_versions_compare_as_numbers():
    releases = AffectedReleases(TENSORRT, ("10.9", "10.10"), introduced="10.9", fixed="10.11")
    assert [releases.affects(parse_release(text)) for text in ("10.8", "10.9.0", "10.10.0.31", "10.11", "10.100")] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert releases.affects(parse_release("rtx1.5")) is False
    assert re.findall(r"\d+\.\d+", releases.releases_text) == ["10.9", "10.9", "10.10", "10.11"]


@pytest.mark.parametrize("text", ["", "ten", "10.", "10.14.1.48.2", "rtx-", "10,14", "-1", "99999", "10.14 x", "v10"])
def test_a_text_that_is_no_release_is_refused(text):
    if text == "rtx-":
        assert parse_release(text).product == TENSORRT_RTX
        return
    with refused("not a TensorRT release", next_step="10.14.1.48"):
        parse_release(text)


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("8.6", "8.6"),
        ("8.6.1.6", "8.6"),
        ("10", "10"),
        ("10.14.1.48", "10"),
        ("11.4", "11"),
        ("rtx", "rtx"),
        ("RTX1.5", "rtx"),
        ("9.1", ""),
        ("8.5", ""),
        ("1", ""),
    ],
)
def test_the_release_of_a_bundle(text, family):
    assert parse_release(text).family == family


def test_the_release_of_an_installed_builder():
    assert installed_release("tensorrt", "10.7.0.post1").title == "TensorRT 10.7.0"
    assert installed_release("tensorrt-rtx", "1.7.1.35").title == "TensorRT-RTX 1.7.1.35"


def test_the_gpu_decides_too(opened):
    network, release = opened(attention()), parse_release("10.16.1")
    assert "attention-sm120" not in keys_of(network, BuildTarget(release, (9, 0)))
    (match,) = (match for match in match_known_defects(network, BuildTarget(release)) if match.key == "attention-sm120")
    assert not match.is_certain and "compute capability 12.0" in match.text and "unknown for" not in match.text
    assert next(match for match in match_known_defects(network, BuildTarget(release, (12, 0)))).is_certain


def test_an_attention_has_a_defect_only_if_all_its_parts_have_the_precision(opened):
    network, target = opened(attention()), BuildTarget(parse_release("10.0.0"))
    assert "attention-fp16-mha-v2" in keys_of(network, target, FP16)
    config = PrecisionConfig.from_precision(FP16).with_group_precision([network.get_group("/scores/MatMul")], FP32)
    for other in (config, PrecisionConfig.from_precision(INT8, FP16)):
        assert "attention-fp16-mha-v2" not in {
            match.key for match in match_known_defects(network, target, other.precision_of)
        }


def test_the_text_names_status_source_and_release(opened):
    network = opened(grid_sample("linear"))
    text, other = (
        match_known_defects(network, target)[0].warning_text(network)
        for target in (BuildTarget(), BuildTarget(parse_release("11.2")))
    )
    values = ("mode linear", "opset 20", "10.13.3 to 11.1", "TensorRT-RTX 1.5, fixed in 1.7", "from 16 to 19.")
    assert text.startswith("/grid/GridSample (GridSample): ") and not lacking(text, *values)
    assert "(reported, NVIDIA/TensorRT#4646)" in text and f"NVIDIA/TensorRT#4646; {UNKNOWN})" in other


SOURCE, FIXED = "NVIDIA, NVIDIA/TensorRT#3777", "since TensorRT 10.0.0, fixed in 10.0.1"
UNKNOWN = "unknown for this release"


def write(tmp_path, model, count=8):
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", **networks.feeds(model, n=count))
    return tmp_path / "model.onnx", tmp_path / "data.npz"


# -- inspect ----------------------------------------------------------------------------------------------------------


def test_inspect_names_the_defects_of_a_release(run, tmp_path):
    (tmp_path / "plain").mkdir()
    (model, _), (plain, _) = write(tmp_path, attention()), write(tmp_path / "plain", normalised("Relu"))
    for network, arguments, titles, values in (
        (model, ("--for", "10.0.0"), [("", "TensorRT 10.0.0")], [f"confirmed by {SOURCE}", UNKNOWN]),
        (model, ("--for", "10.3", "--precision", "fp32"), [("no ", "TensorRT 10.3")], ["this config"]),
        (model, (), [("", "some releases")], ["--for RELEASE", FIXED]),
        (model, ("--for", "10.16.1", "--compute-capability", "12.0"), [("", "TensorRT 10.16.1")], []),
        (plain, (), [], []),
        (plain, ("--for", "10.14"), [("no ", "TensorRT 10.14")], ["this network"]),
    ):
        code, out, err = run("inspect", network, *arguments)
        assert code == 0 and not lacking(out, *values), (out, err)
        assert re.findall(r"^\W*(no )?known defects? of (TensorRT [\d.]+|some releases)", out, re.M) == titles, out


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
    _, out, _ = run("scheme", model, "--precision", "fp16", "--json")
    record = json.loads(out)["known_defects"]
    assert mismatches(record, "known-defects-v1") == [] and "release" not in record
    onnx.save(PLAIN, model)
    _, out, _ = run("scheme", model, "--precision", "fp32", "--json")
    assert "known_defects" not in json.loads(out)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--for", "10.x"), "10.x is not a TensorRT release"),
        (("--for", ""), "is not a TensorRT release"),
        (("--json",), "--json has no effect here"),
        (("--precision", "fp16"), "--precision has no effect here"),
        (("--for", "10.14", "--markdown"), "No such option"),
    ],
)
def test_inspect_refuses_what_it_does_not_read(run, tmp_path, more, said):
    model, _ = write(tmp_path, normalised("Relu"))
    code, _, err = run("inspect", model, *more)
    assert code == 2 and said in err


# -- export -----------------------------------------------------------------------------------------------------------


def test_an_export_warns_of_the_defects_of_its_release(run, tmp_path):
    model, _ = write(tmp_path, cumulative_sums())
    words = ("export", model, "--precision", "fp16", "--format", "onnx", "-o", tmp_path / "typed.onnx")
    code, _, err = run(*words, "--for", "10.11")
    assert code == 0 and "/sum0/CumSum, /sum1/CumSum (CumSum): " in err and err.count("along one axis") == 1, err
    code, _, err = run(*words)
    assert code == 0 and "CumSum" not in err, "a condition is not checked without a release"
    code, _, err = run(*words, "--for", "10.7")
    assert code == 0 and "along one axis" not in err, err


@pytest.mark.parametrize(
    ("release", "expected"),
    [("10.0.0", "Warning: /scores/MatMul"), ("10", "Note: Known defects"), ("10.0.1", ""), ("10.13", "")],
)
def test_a_defect_of_one_patch_release_never_forbids(run, tmp_path, release, expected):
    model, data = write(tmp_path, attention())
    code, _, err = run("bundle", model, "--precision", "fp16", "-o", tmp_path / "out", "--for", release, "--data", data)
    assert code == 0 and (tmp_path / "out").exists(), err
    assert ("#3777" in err) is bool(expected) and expected in err


def test_files_of_trt_tui_do_not_have_the_defect_of_linear_grids(run, tmp_path):
    model, _ = write(tmp_path, grid_sample("linear"))
    _, out, _ = run("inspect", model, "--for", "11.1")
    assert "known defects of TensorRT 11.1" in out and "#4646" in out
    code, _, err = run(
        "export", model, "--precision", "fp16", "--format", "onnx", "--for", "11.1", "-o", tmp_path / "typed.onnx"
    )
    assert code == 0 and "Warning: /grid" not in err, err


# -- build ------------------------------------------------------------------------------------------------------------


def test_a_built_engine_comes_with_the_defects_of_the_installed_release(command, tmp_path):
    model, _ = write(tmp_path, group_norm())
    done = command("10.16.1", "build", model, "--precision", "fp16", "-o", tmp_path / "model.engine")
    assert done.returncode == 0, done.stderr
    assert not lacking(done.stderr, "GroupNormalization", "(reported, NVIDIA/TensorRT#4756)")
    assert (tmp_path / "model.engine").exists()
    done = command("8.6.1", "build", model, "--precision", "fp16", "-o", tmp_path / "older.engine")
    assert done.returncode == 0 and "#4756" not in done.stderr, done.stderr


def test_a_typed_network_is_written_for_a_release(run, tmp_path):
    model, _ = write(tmp_path, attention())
    words = ("build", model, "--precision", "fp16", "-o", tmp_path / "typed.onnx", "--for")
    code, _, err = run(*words, "10.0.0")
    assert code == 0 and "Warning: /scores/MatMul" in err and "#3777" in err and (tmp_path / "typed.onnx").exists()
    code, _, err = run("build", model, "--precision", "fp16", "-o", tmp_path / "model.engine", "--for", "10.0.0")
    assert code == 2 and err.startswith("Error: --for ") and "installed release" in err


# -- the app ----------------------------------------------------------------------------------------------------------


def test_the_detail_pane_names_the_defects_of_the_row(tmp_path, measured_before):
    session = local.measured(tmp_path)
    group = next(group for group in session.outline.groups if group.attention_role == "QK")

    def lines(precision, release):
        session.options = type(session.options)(**{**vars(session.options), "tensorrt_release": release})
        session.history.push_config(PrecisionConfig.from_precision(precision))
        values = RowValues(TreeModel(session.outline), session.config)
        return [line for line in detail.loss_reason_texts(session, values, group) if "NVIDIA/TensorRT#" in line]

    assert f"confirmed by {SOURCE}" in " ".join(lines(FP16, "10.0.0"))
    assert lines(FP32, "10.0.0") == [] and lines(FP16, "10.0.1") == []
    assert FIXED in " ".join(lines(FP16, None)), "the release is unknown"


@pytest.mark.parametrize(
    ("op", "weight", "shape", "attributes", "said"),
    [
        ("Conv", (12, 12, 3, 3), (1, 12, 8, 8), {"pads": [1] * 4}, "12 channels in, 12 out"),
        ("Conv", (32, 32, 3, 3), (1, 32, 8, 8), {"pads": [1] * 4}, ""),
        ("Conv", (8, 8, 3, 3), (1, 8, 8, 8), {"pads": [1] * 4}, "8 channels in, 8 out"),
        ("ConvTranspose", (32, 32, 1, 1), (1, 32, 8, 8), {}, "FP16 or FP32"),
        ("MatMul", (32, 32), (1, 32), {}, "one row"),
        ("MatMul", (8, 8), (4, 8), {}, "K = 8"),
        ("MatMul", (32, 32), (4, 32), {}, ""),
        ("MatMul", (32, 32), ("batch", 32), {}, ""),
    ],
)
def test_layers_that_gain_nothing_in_quantized_types(op, weight, shape, attributes, said, tmp_path):
    """Three of one operator in a row: the middle one is neither first nor last."""
    weights = [numpy_helper.from_array(np.zeros(weight, np.float32), f"w{number}") for number in range(3)]
    nodes = [
        helper.make_node(op, [f"t{number}", f"w{number}"], [f"t{number + 1}"], f"/n{number}", **attributes)
        for number in range(3)
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("t0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("t3", TensorProto.FLOAT, None)],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "n.onnx")
    network = open_network(tmp_path / "n.onnx")
    issues = network.build_outline().known_issues.get(network.groups[1].name, ())
    assert len(issues) == bool(said) and said in "".join(issues)
