"""What is judged of a network: its outputs, their parts, what decided them, and outputs that are no float tensors."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import networks
from tests.networks import Builder, floats
from tests.refusals import refused
from tests.texts import lacking
from trt_tui.core.data.batches import SampleName
from trt_tui.core.lowering.network_rewrite import no_lower_precision_reason, quantizes_activations, reduces_precision
from trt_tui.core.measure.judged_outputs import (
    INTEGER_KIND,
    AxisSlice,
    JudgedOutput,
    find_partly_judged_output_reasons,
    find_unmasked_elements,
    list_tensor_outputs,
    select_judged_outputs,
    take_judged_slice,
    unjudged_output_notes,
)
from trt_tui.core.measure.run_sources import AccuracyReducer
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError


def integers(name, *shape):
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def yolo(names: tuple[str, str] = ("/box/Conv", "/score/Conv")) -> Builder:
    """Boxes of 4 channels beside scores of 6, joined; the joined tensor is ``out``."""
    b = Builder()
    parts = [
        b.node("Conv", ["x", b.kernel(f"w{n}", (n, 3, 1, 1), 3)], name=name, output=name.strip("/"))
        for n, name in zip((4, 6), names, strict=True)
    ]
    b.node("Concat", parts, "/cat", axis=-3, output="out")
    return b


X = floats("x", "batch", 3, 8, 8)


def names(judged):
    return [one.name for one in judged]


def test_float_outputs_are_judged_whole(opened):
    judged = select_judged_outputs(opened(networks.bert()))
    assert judged == (JudgedOutput("last_hidden_state", "last_hidden_state"), JudgedOutput("logits", "logits"))


def test_a_terminal_concat_is_judged_in_parts(opened):
    judged = select_judged_outputs(opened(yolo().model([X], [floats("out", "batch", 10, 8, 8)])))
    assert names(judged) == ["out[:, 0:4]", "out[:, 4:10]"]
    assert judged[1].slices == (AxisSlice(1, 4, 10),) and judged[1].note.startswith("from score/Conv, one of 2 parts")
    array = np.arange(2 * 10 * 3).reshape(2, 10, 3)
    part = take_judged_slice(array, judged[1])
    assert part.base is array or part.base is array.base
    np.testing.assert_array_equal(part, array[:, 4:10])
    flat = yolo()
    flat.node("Reshape", ["out", flat.weight("sizes", np.array([-1, 10, 64], np.int64))], "/flat", output="flat")
    judged = select_judged_outputs(opened(flat.model([X], [floats("flat", "rows", 10, 64)])))
    assert names(judged) == ["flat[:, 0:4]", "flat[:, 4:10]"], "the batch has another name behind a Reshape"


def test_concats_in_concats_are_parts_too(opened):
    b = Builder()
    for scale in "ab":
        conv = [
            b.node("Conv", [f"x{scale}", b.kernel(f"w{scale}{n}", (n, 3, 1, 1), 3)], f"/{scale}{n}") for n in (4, 6)
        ]
        joined = b.node("Concat", conv, f"/cat_{scale}", axis=1)
        b.node("Identity", [joined], f"/same_{scale}", output=f"part_{scale}")
    b.node("Concat", ["part_a", "part_b"], "/cat", axis=2, output="out")
    model = b.model([floats("xa", 1, 3, 4, 5), floats("xb", 1, 3, 2, 5)], [floats("out", 1, 10, 6, 5)])
    judged = select_judged_outputs(opened(model))
    assert names(judged) == ["out[:, 0:4, 0:4]", "out[:, 4:10, 0:4]", "out[:, 0:4, 4:6]", "out[:, 4:10, 4:6]"]
    covered = np.zeros((1, 10, 6, 5), int)
    for one in judged:
        take_judged_slice(covered, one)[...] += 1
    assert (covered == 1).all()


def test_a_concat_with_open_sizes_or_along_the_batch_is_whole(opened):
    b = Builder()
    b.node("Concat", [b.node("Relu", ["x"], "/a"), b.node("Tanh", ["x"], "/b")], "/cat", axis=1, output="out")
    assert names(select_judged_outputs(opened(b.model([floats("x", 1, "n")], [floats("out", 1, "m")])))) == ["out"]
    b = Builder()
    b.node("Concat", [b.node("Relu", ["x"], "/a"), b.node("Tanh", ["x"], "/b")], "/cat", axis=0, output="out")
    assert names(select_judged_outputs(opened(b.model([floats("x", 2, 3)], [floats("out", 4, 3)])))) == ["out"]


def test_a_concat_that_is_used_further_is_no_end(opened):
    b = yolo()
    b.node("Softmax", ["out"], "/softmax", output="y", axis=1)
    judged = select_judged_outputs(opened(b.model([X], [floats("y", "batch", 10, 8, 8)])))
    assert names(judged) == ["y"]


def test_argmax_is_judged_by_its_logits_and_by_what_differs(opened):
    b = Builder()
    b.gemm("x", (8, 4), "/head", output="logits")
    b.node("ArgMax", ["logits"], "/argmax", axis=1, output="label")
    judged = select_judged_outputs(opened(b.model([floats("x", "batch", 8)], [integers("label", "batch", 1)])))
    assert [(one.name, one.kind) for one in judged] == [("label", INTEGER_KIND), ("logits", "float")]
    assert "ArgMax" in judged[1].note


def test_a_comparison_is_judged_by_the_tensor_compared(opened):
    b = Builder()
    p = b.node("Sigmoid", [b.gemm("x", (8, 4), "/head")], "/p", output="p")
    over = b.node("Greater", [p, b.weight("half", np.float32(0.5))], "/over")
    b.node("Cast", [over], "/cast", output="mask", to=TensorProto.INT64)
    judged = select_judged_outputs(opened(b.model([floats("x", "batch", 8)], [integers("mask", "batch", 4)])))
    assert names(judged) == ["mask", "p"]
    assert judged[1].note.startswith("mask holds integers")


def test_values_picked_by_topk_are_judged_before_it(opened):
    b = Builder()
    b.gemm("x", (8, 4), "/head", output="scores")
    k = b.weight("k", np.array([2], np.int64))
    b.nodes.append(helper.make_node("TopK", ["scores", k], ["best", "which"], name="/top"))
    outputs = [floats("best", "batch", 2), integers("which", "batch", 2)]
    judged = select_judged_outputs(opened(b.model([floats("x", "batch", 8)], outputs)))
    assert names(judged) == ["scores", "which"]
    assert "selected by TopK" in judged[0].note


def test_boxes_behind_nms_are_judged_before_it_part_by_part(opened):
    b = Builder()
    boxes = b.node("MatMul", ["x", b.kernel("wb", (8, 4), 8)], "/boxes", output="boxes")
    scores = b.node("MatMul", ["x", b.kernel("ws", (8, 2), 8)], "/scores", output="scores")
    turned = b.node("Transpose", [scores], "/turn", perm=[0, 2, 1], output="turned")
    most = b.weight("most", np.array([5], np.int64))
    picked = b.node("NonMaxSuppression", [boxes, turned, most], "/nms")
    b.node("GatherND", [boxes, picked], "/gather", output="kept")
    model = b.model([floats("x", 1, 6, 8)], [floats("kept", "n")])
    judged = select_judged_outputs(opened(model))
    assert names(judged) == ["boxes", "turned"]
    assert all("selected by NonMaxSuppression" in one.note for one in judged)


@pytest.mark.parametrize("select", ["gather", "compute", "multiply", "look_up"])
def test_what_a_selection_takes_values_from_is_judged_too(opened, select):
    """Keypoints at the places of the best scores: neither their own head nor layers behind are left unjudged."""
    b = Builder()
    scores = b.node("MatMul", ["x", b.kernel("ws", (8, 1), 8)], "/scores", output="scores")
    points = b.node("MatMul", ["x", b.kernel("wp", (8, 1), 8)], "/points", output="points")
    b.nodes.append(
        helper.make_node("TopK", [scores, b.weight("k", np.array([2]))], ["best", "which"], name="/top", axis=1)
    )
    kept = b.node("GatherElements", [points, "which"], "/gather", axis=1, output="kept")
    if select == "compute":
        b.node("Exp", [kept], "/exp", output="y")
    elif select == "multiply":
        b.node("Einsum", [kept, b.kernel("we", (1, 1), 1)], "/einsum", equation="bki,ij->bkj", output="y")
    elif select == "look_up":
        b.node("Gather", [b.vector("table", 6), "which"], "/look_up", output="y")
    else:
        b.node("Identity", [kept], "/same", output="y")
    network = opened(b.model([floats("x", 1, 6, 8)], [floats("y", 1, 2, 1)]))
    judged = {"multiply": ["y"], "look_up": ["scores"]}.get(select, ["points", "scores"])
    assert sorted(names(select_judged_outputs(network))) == judged
    reasons = find_partly_judged_output_reasons(network)
    assert list(reasons) == ([] if select == "multiply" else ["y"])
    doubtful = {"compute": "(/exp/Exp)", "look_up": "(/look_up/Gather)"}.get(select, "")
    assert select == "multiply" or (doubtful in reasons["y"] and bool(reasons["y"]) is bool(doubtful))


def test_an_overflow_of_selected_values_fails_the_run(run, tmp_path):
    """The values are computed in FP32, which is judged, and then copied in FP16."""
    b = Builder()
    scores = b.node("MatMul", ["x", b.kernel("ws", (8, 16), 8)], "scores")
    large = b.node("MatMul", ["x", b.weight("wl", np.full((8, 16), 1e5, np.float32))], "large")
    b.nodes.append(helper.make_node("TopK", [scores, b.weight("k", np.array([4]))], ["best", "which"], name="/top"))
    b.node("Identity", [b.node("GatherElements", [large, "which"], "/pick", axis=1)], "/same", output="y")
    onnx.save(b.model([floats("x", "batch", 8)], [floats("y", "batch", 4)]), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).random((16, 8), np.float32))
    files = (tmp_path / "net.onnx", "--data", tmp_path / "data.npz")
    command = ("compare", *files, "--runs", "fp16", "--layers", "none", "--target", "sqnr>=20")
    code, out, _ = run(*command, "--keep", "scores", "--keep", "large")
    assert code == 1 and "overflow" in out


def test_values_at_the_places_of_a_mask_of_the_inputs_are_judged_themselves(opened):
    b = Builder()
    places = b.node("Transpose", [b.node("NonZero", ["mask"], "/places")], "/turn", perm=[1, 0])
    b.node("GatherND", [b.gemm("x", (8, 4), "/head"), places], "/kept", output="y")
    network = opened(b.model([floats("x", 6, 8), integers("mask", 6)], [floats("y", "n", 4)]))
    assert names(select_judged_outputs(network)) == ["y"] and not find_partly_judged_output_reasons(network)


def test_a_class_as_a_row_of_floats_has_no_layer_behind_its_selection(opened):
    b = Builder()
    b.node("ArgMax", [b.gemm("x", (8, 4), "/head", output="logits")], "/argmax", axis=1, keepdims=0, output="label")
    rows = b.node("OneHot", ["label", b.weight("depth", np.array(4)), b.weight("ends", np.float32([0, 1]))], "/row")
    b.node("Where", [b.node("Cast", [rows], "/bool", to=TensorProto.BOOL), "logits", "ends_0"], "/kept", output="y")
    b.weight("ends_0", np.float32(0))
    network = opened(b.model([floats("x", "batch", 8)], [floats("y", "batch", 4)]))
    assert names(select_judged_outputs(network)) == ["logits"]
    assert not any(find_partly_judged_output_reasons(network).values())


def test_an_output_without_values_is_not_judged(opened):
    b = Builder()
    b.gemm("x", (8, 4), "/head", output="y")
    b.node(
        "Slice", ["y", b.weight("zero", np.array([0])), "zero", b.weight("axis", np.array([1]))], "/cut", output="none"
    )
    network = opened(b.model([floats("x", "batch", 8)], [floats("y", "batch", 4), floats("none", "batch", 0)]))
    assert names(select_judged_outputs(network)) == ["y"]


def test_a_selection_deep_inside_the_network_changes_nothing(opened):
    b = Builder()
    gate = b.node("ArgMax", [b.gemm("x", (8, 4), "/gate")], "/pick", axis=1)
    row = b.node(
        "Squeeze",
        [b.node("Gather", [b.kernel("table", (4, 8), 8), gate], "/table"), b.weight("one", np.array([1], np.int64))],
        "/squeeze",
    )
    b.gemm(row, (8, 3), "/head", output="y")
    assert names(select_judged_outputs(opened(b.model([floats("x", "batch", 8)], [floats("y", "batch", 3)])))) == ["y"]


def test_a_network_that_computes_nothing_cannot_be_judged(opened):
    b = Builder()
    b.node("Shape", ["x"], "/shape", output="y")
    with pytest.raises(InputError, match="no output that can be judged"):
        select_judged_outputs(opened(b.model([floats("x", "batch", 8)], [integers("y", 2)])))


@pytest.fixture
def detector(opened):
    return opened(yolo().model([X], [floats("out", "batch", 10, 8, 8)]))


@pytest.mark.parametrize(
    ("text", "name", "index"),
    [
        ("out", "out", np.s_[...]),
        ("out[:, 4:]", "out[:, 4:]", np.s_[:, 4:]),
        ("out[:,:4]", "out[:, 0:4]", np.s_[:, :4]),
        ("out[..., 2]", "out[:, :, :, 2:3]", np.s_[..., 2:3]),
        ("out[0, 1:3]", "out[0:1, 1:3]", np.s_[0:1, 1:3]),
        ("out[:, -2:]", "out[:, 8:]", np.s_[:, -2:]),
        ("out[:, -1]", "out[:, 9:]", np.s_[:, -1:]),
        ("out[-1]", "out[-1:]", np.s_[-1:]),
        (" out [ : , 1 : 99 ] ", "out[:, 1:]", np.s_[:, 1:99]),
        ("out[:]", "out", np.s_[...]),
        ("box/Conv[:, 1]", "box/Conv[:, 1:2]", np.s_[:, 1:2]),
    ],
)
def test_slices_are_read_as_numpy_reads_them(detector, text, name, index):
    (judged,) = select_judged_outputs(detector, [text])
    assert judged.name == name
    array = np.arange(3 * 10 * 8 * 8).reshape(3, 10, 8, 8)
    if judged.tensor != "out":
        array = array[:, :4]
    np.testing.assert_array_equal(take_judged_slice(array, judged), array[index])


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("out[:, ::2]", "steps"),
        ("out[:, a]", "'a' is neither"),
        ("out[]", "'' is neither"),
        ("out[:, 10]", "axis 1 has 10 entries"),
        ("out[:, 4:4]", "selects none"),
        ("out[3:1]", "selects nothing"),
        ("out[:, :, :, :, 0]", "5 axes, the tensor has 4"),
        ("out[..., ...]", "once"),
    ],
)
def test_slices_that_are_refused(detector, text, cause):
    with refused(cause=cause, next_step="[:, 4:]"):
        select_judged_outputs(detector, [text])


def test_tensors_that_are_refused(opened, detector):
    with refused(cause="score/Conv"):
        select_judged_outputs(detector, ["score/Cnv"])
    with pytest.raises(InputError, match="an input or a constant"):
        select_judged_outputs(detector, ["x"])
    b = Builder()
    b.node("ArgMax", ["x"], "/argmax", axis=1, output="label")
    with pytest.raises(InputError, match="not a float tensor"):
        select_judged_outputs(opened(b.model([floats("x", "batch", 8)], [integers("label", "batch", 1)])), ["label"])


@pytest.mark.parametrize(
    ("judge", "outcome"),
    [
        ((), "FAIL"),
        (("out",), "PASS?"),
        (("out[:]",), "PASS?"),
        (("out[:, :4]",), "PASS"),
        (("out", "out[:, :4]"), "PASS"),
        (("out[:, 4:]",), "FAIL"),
    ],
)
def test_a_joined_tensor_that_is_judged_as_a_whole_is_no_certain_pass(run, tmp_path, judge, outcome):
    """Its large boxes hide that the small scores are lost."""
    b = Builder(0)
    weights = b.rng.standard_normal((2, 4, 3, 1, 1)).astype(np.float32)
    weights[1, :, 0] = 0  # scores do not read the large channel, which sets the range
    parts = [b.node("Conv", ["x", b.weight(f"w{n}", weights[n])], f"/{n}/Conv") for n in range(2)]
    b.node("Concat", parts, "/cat", axis=1, output="out")
    onnx.save(b.model([X], [floats("out", "batch", 8, 8, 8)]), tmp_path / "net.onnx")
    x = b.rng.standard_normal((32, 3, 8, 8)) * np.reshape([1000, 1, 1], (3, 1, 1))
    np.savez(tmp_path / "data.npz", x=x.astype(np.float32))
    command = ("compare", tmp_path / "net.onnx", "--data", tmp_path / "data.npz", "--runs", "int8", "--layers", "none")
    options = [word for text in judge for word in ("--judge", text)]
    run(*command, "--target", "sqnr>=20", *options, "--json", tmp_path / "out.json")
    result = json.loads((tmp_path / "out.json").read_text())["runs"]["int8"]["result"]
    assert result["outcome"] == outcome and ("whole" in "".join(result["reasons"])) is (outcome == "PASS?")


def test_what_is_named_twice_is_judged_once(detector):
    assert names(select_judged_outputs(detector, ["out[:, 4:]", "out", "out[:, 4:10]"])) == ["out[:, 4:]", "out"]


def test_names_with_brackets_are_names_first(opened):
    b = yolo(names=("/a[0]", "/b"))
    network = opened(b.model([X], [floats("out", "batch", 10, 8, 8)]))
    assert select_judged_outputs(network, ["a[0]"])[0].tensor == "a[0]"
    assert select_judged_outputs(network, ["a[0][:, 1:]"])[0].slices == (AxisSlice(1, 1),)


class Padded:
    """Two feeds of samples with a mask among the inputs, and one among the labels."""

    masks = [np.array([[1, 1, 1, 0], [1, 0, 0, 0]]), np.array([[1, 1, 0, 0], [1, 1, 1, 1]])]

    def count_samples_of_feed(self, index):
        return 2

    def sample_name(self, feed_index, row):
        return SampleName(2 * feed_index + row)

    def read_feed(self, index):
        return {"attention_mask": self.masks[index], "wide": np.ones((2, 7))}

    def read_labels(self, index):
        return {"tokens": self.masks[index].astype(bool)}


@pytest.mark.parametrize(("mask", "slices"), [("attention_mask", ()), ("tokens", (AxisSlice(2, 1, 3),))])
def test_what_a_mask_leaves_out_counts_in_no_figure(mask, slices):
    rng = np.random.default_rng(0)
    expected, noise = rng.standard_normal((2, 2, 2, 4, 6)).astype(np.float32)
    judged = JudgedOutput("t", "t", slices, mask=mask)
    verdicts = []
    for padding in (0.0, 1e6, np.nan):
        tally = AccuracyReducer(Padded(), [0, 1], [judged], lambda index: {"t": expected[index]})
        for index, counts in enumerate(Padded.masks):
            kept = counts[..., None].astype(bool)
            tally.add_feed_outputs(index, {"t": expected[index] + np.where(kept, noise[index] / 100, padding)})
        verdicts.append(tally.compute_accuracy().outputs["t"])
    part = take_judged_slice(np.ones((2, 4, 6), bool), judged).shape
    chosen = [
        (take_judged_slice(expected[i], judged)[keep], take_judged_slice(noise[i], judged)[keep] / 100)
        for i, keep in enumerate(np.broadcast_to(one[..., None].astype(bool), part) for one in Padded.masks)
    ]
    signal, error = (np.concatenate(one) for one in zip(*chosen, strict=True))
    assert verdicts[0] == verdicts[1] == verdicts[2]
    found = verdicts[0].errors
    assert found.sqnr_db == pytest.approx(10 * np.log10((signal**2).sum() / (error**2).sum()), abs=1e-3)
    assert found.mse == pytest.approx((error**2).mean(), rel=1e-3) and found.nan == 0
    assert found.mean_abs == pytest.approx(np.abs(error).mean(), rel=1e-3)


@pytest.mark.parametrize(
    ("mask", "shape", "what"),
    [
        ("wide", (2, 4, 6), "the tensor's 2x4x6"),
        ("attention_mask", (2,), "the tensor's 2"),
        ("absent", (2, 4), "they have tokens"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask, shape, what):
    with refused(title=f"t@{mask}", cause=what):
        find_unmasked_elements(JudgedOutput(f"t@{mask}", "t", mask=mask), Padded(), 0, np.empty(shape))


@pytest.mark.parametrize(
    ("constant", "operator", "hidden"),
    [(-3.4e38, "Where", True), (-1e9, "Where", True), (-1e5, "Where", False), (-1e9, "Add", False)],
)
def test_what_the_network_masks_itself_is_not_judged(opened, constant, operator, hidden):
    b = Builder()
    scores = b.gemm("x", (8, 6), "/fc")
    b.weight("least", np.float32(constant))
    masked = b.node(operator, ["keep", scores, "least"] if operator == "Where" else [scores, "least"], "/mask")
    b.node("Reshape", [masked, b.weight("shape", np.array([-1, 2, 3], np.int64))], output="y")
    keep = helper.make_tensor_value_info("keep", TensorProto.BOOL, [4, 6])
    (one,) = select_judged_outputs(opened(b.model([floats("x", 4, 8), keep], [floats("y", 4, 2, 3)])))
    assert one.mask_threshold == (pytest.approx(-constant / 2) if hidden else 0) and ("masked" in one.note) == hidden
    fp32 = np.array([[1, constant], [2, 3]], np.float32)
    tally = AccuracyReducer(Padded(), [0], [replace(one, tensor="t")], lambda index: {"t": fp32})
    tally.add_feed_outputs(0, {"t": np.array([[1.5, -65504], [2, 3]], np.float32)})
    assert (tally.compute_accuracy().outputs["y"].errors.max_abs == 0.5) == hidden
    for one_fp32, run in ((np.nan, -65504), (constant, np.nan), (constant, 0.7), (constant, 65504)):
        fp32 = np.array([[1, one_fp32], [2, 3]], np.float32)
        found = np.array([[1.5, run], [2, 3]], np.float32)
        kept = find_unmasked_elements(replace(one, tensor="t"), Padded(), 0, fp32, found)
        assert kept is None or kept.all(), "NaN, and what a run masks no more, counts"


def test_a_mask_is_named_behind_the_tensor(opened):
    network = opened(networks.bert())
    mask = network.inputs[-1].name
    (one,) = select_judged_outputs(network, [f"last_hidden_state[:, 1:]@{mask}"])
    assert (one.name, one.mask) == (f"last_hidden_state[:, 1:]@{mask}", mask) and mask in one.note
    assert select_judged_outputs(network, ["logits@tokens"], ["tokens"])[0].mask == "tokens"
    for wrong, named in (("tokens", [info.name for info in network.inputs]), (mask[:-1], [mask])):
        with refused(title=f"there is no {wrong}", cause=": " + ", ".join(named)):
            select_judged_outputs(network, [f"logits@{wrong}"])


Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])
SEQUENCE = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
OPTIONAL = helper.make_value_info(
    "o", helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 8]))
)
TEXTS = helper.make_tensor_value_info("t", TensorProto.STRING, ["n"])
TEXT = helper.make_tensor_value_info("t", TensorProto.STRING, [])

pytestmark = [pytest.mark.shares_cache, pytest.mark.usefixtures("placed")]


def save(path, nodes, outputs, dtype=TensorProto.FLOAT):
    weight = np.random.default_rng(0).standard_normal((16, 8)).astype(helper.tensor_dtype_to_np_dtype(dtype))
    stored = [
        numpy_helper.from_array(weight, "W"),
        numpy_helper.from_array(np.array(0), "zero"),
        helper.make_tensor("words", TensorProto.STRING, [8], [b"a" * (i + 1) for i in range(8)]),
    ]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, ["n", 16])],
        outputs,
        [one for one in stored if one.name in used],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(
        path.with_suffix(".npz"),
        x=np.random.default_rng(1).standard_normal((8, 16)).astype(weight.dtype),
        label=np.zeros(8),
    )
    return ("compare", path, "--data", path.with_suffix(".npz"), "--batch", "4", "--layers", "none")


MATMUL = helper.make_node("MatMul", ["x", "W"], ["y"], name="mm")
CASES = {
    "sequence": (
        [helper.make_node("SplitToSequence", ["y"], ["s"], axis=1)],
        [Y, SEQUENCE],
        "s: a sequence of tensors",
    ),
    "optional": ([helper.make_node("Optional", ["y"], ["o"])], [Y, OPTIONAL], "o: an optional value"),
    "texts": (
        [
            helper.make_node("ArgMax", ["y"], ["a"], axis=1, keepdims=0),
            helper.make_node("Gather", ["words", "a"], ["t"]),
        ],
        [Y, TEXTS],
        "t: text: judged by the fraction",
    ),
    "text": (
        [
            helper.make_node("ArgMax", ["y"], ["a"], axis=1, keepdims=0),
            helper.make_node("Gather", ["a", "zero"], ["b"]),
            helper.make_node("Gather", ["words", "b"], ["t"]),
        ],
        [Y, TEXT],
        "t: text: judged by the fraction",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_that_are_no_float_tensors_are_judged_by_what_differs_or_left_out(run, tmp_path, case):
    nodes, outputs, said = CASES[case]
    command = save(tmp_path / "net.onnx", [MATMUL, *nodes], outputs)
    (tmp_path / "metric.py").write_text("def count(outputs, labels):\n    return float(len(outputs))\n")
    code, out, err = run(*command, "--json", "-", "--metric", f"{tmp_path / 'metric.py'}:count")
    assert code == 0, err
    assert f"Warning: {said}" in err
    record = json.loads(out)
    judged = {"y", "t"} if "text" in case else {"y"}
    assert set(record["runs"]["int8"]["outputs"]) == judged
    assert record["reference"]["metric"] == len(judged), "the metric gets what is a tensor"


def test_a_network_of_sequences_alone_is_refused_with_the_reason(run, tmp_path):
    command = save(tmp_path / "net.onnx", [MATMUL, *CASES["sequence"][0]], [SEQUENCE])
    code, _, err = run(*command)
    assert code == 2 and not lacking(err, "no output that", "s: a sequence")
    network = open_network(tmp_path / "net.onnx")
    assert list_tensor_outputs(network) == () and len(unjudged_output_notes(network)) == 1


DOUBLE = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["n", 8])


def test_a_run_in_which_nothing_is_lowered_does_not_pass(run, tmp_path):
    command = save(tmp_path / "net.onnx", [MATMUL], [DOUBLE], TensorProto.DOUBLE)
    code, out, err = run(*command)
    assert code == 0 and "PASS" not in out and out.count("all in FP32") == 2
    assert not lacking(err, "No layer of", "lower precision", "FP64")
    code, _, err = run(*command, "--target", "sqnr>=20")
    assert code == 2 and not lacking(err, "only because", "FP32")
    code, _, err = run("search", *command[1:-2], "--tolerance", "sqnr>=20", "-o", "c.json")
    assert code == 2 and "nothing to do" in err and not (tmp_path / "c.json").exists()


def test_a_run_without_int8_is_not_called_one_that_passes_in_it(run, tmp_path):
    command = save(
        tmp_path / "net.onnx",
        [helper.make_node("Relu", ["x"], ["y"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
    )
    code, out, err = run(*command)
    assert code == 0 and not lacking(err, "No layer of", "in INT8")
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert rows["INT8"].split("  ")[-1].startswith("PASS, nothing") and rows["FP16"].endswith("  PASS")


def test_what_a_config_lowers(tmp_path):
    save(tmp_path / "net.onnx", [MATMUL], [Y])
    network = open_network(tmp_path / "net.onnx")
    int8, fp32 = PrecisionConfig.from_precision(Precision.INT8), PrecisionConfig.from_precision(Precision.FP32)
    raised = int8.with_group_precision(network.groups, Precision.FP32)
    assert (
        reduces_precision(network, int8)
        and quantizes_activations(network, int8)
        and no_lower_precision_reason(network) == ""
    )
    assert (
        not reduces_precision(network, fp32)
        and not reduces_precision(network, raised)
        and not quantizes_activations(network, raised)
    )
