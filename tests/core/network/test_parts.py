"""Parts of detectors: each head of each stride is judged by itself, whatever shapes its result on the way."""

import numpy as np
import onnx
import pytest

from tests.networks import Builder, floats
from trt_tui import demo
from trt_tui.core.measure.judged_outputs import JudgedOutput, select_judged_outputs, take_judged_slice
from trt_tui.core.network.network import open_network

SIZES = (4, 2)  # of the feature maps, by stride
X = {size: floats(f"x{size}", 1, 3, size, size) for size in SIZES}


def _ints(b: Builder, *numbers: int) -> str:
    return b.weight(f"ints{len(b.weights)}", np.array(numbers, np.int64))


def _head(b: Builder, name: str, size: int, channels: int) -> str:
    """A convolution whose bias is ``<name>.bias``."""
    bias = b.weight(f"{name}.bias", np.linspace(-1, 1, channels, dtype=np.float32))
    kernel = b.kernel(f"{name}.weight", (channels, 3, 1, 1), 3)
    return b.node("Conv", [f"x{size}", kernel, bias], name=f"{name}/Conv", output=name)


def _pieces(b: Builder, joined: str, name: str, axis: int, sizes: tuple[int, ...], cut: str) -> list[str]:
    names = [f"{name}{i}" for i in range(len(sizes))]
    if cut == "Split":
        b.nodes.append(onnx.helper.make_node("Split", [joined, _ints(b, *sizes)], names, name=name, axis=axis))
        return names
    ends = np.cumsum((0, *sizes))
    for piece, low, high in zip(names, ends, ends[1:], strict=False):
        b.node("Slice", [joined, _ints(b, low), _ints(b, high), _ints(b, axis)], name=piece, output=piece)
    return names


def _halved(b: Builder, tensor: str, name: str) -> str:
    """The first half of a tensor's channels, by shape arithmetic that nobody folded."""
    channels = b.node("Gather", [b.node("Shape", [tensor], name), _ints(b, 1)], name, axis=0)
    half = b.node("Div", [b.node("Add", [channels, _ints(b, 1)], name), _ints(b, 2)], name)
    return b.node("Slice", [tensor, _ints(b, 0), half, _ints(b, 1)], name)


def unfolded() -> Builder:
    """Sizes that onnx cannot infer: each head reads what two cuts to half of the channels leave."""
    b = Builder()
    heads = []
    for kind, channels in (("box", 4), ("score", 6)):
        flat = []
        for size in SIZES:
            x = _halved(b, _halved(b, f"x{size}", f"/{kind}{size}/a"), f"/{kind}{size}/b")
            bias = b.weight(f"{kind}{size}.bias", np.linspace(-1, 1, channels, dtype=np.float32))
            kernel = b.kernel(f"{kind}{size}.weight", (channels, 1, 1, 1), 1)
            head = b.node("Conv", [x, kernel, bias], name=f"{kind}{size}/Conv", output=f"{kind}{size}")
            flat.append(b.node("Reshape", [head, _ints(b, 1, channels, -1)], f"/{kind}{size}"))
        heads.append(b.node("Concat", flat, f"/{kind}", axis=2))
    b.node("Concat", [heads[0], b.node("Sigmoid", [heads[1]], "/sigmoid")], "/all", axis=1, output="out")
    return b


def scores_behind_a_split(cut: str = "Split") -> Builder:
    """Boxes and scores of one convolution per stride, joined along the boxes, split, and joined again."""
    b = Builder()
    flat = [b.node("Reshape", [_head(b, f"head{size}", size, 10), _ints(b, 1, 10, -1)], f"/{size}") for size in SIZES]
    joined = b.node("Concat", flat, "/strides", axis=2)
    box, score = _pieces(b, joined, "/split", 1, (4, 6), cut)
    box = b.node("Mul", [box, b.weight("scale", np.linspace(8, 16, 20, dtype=np.float32).reshape(1, 1, 20))], "/box")
    b.node("Concat", [box, b.node("Sigmoid", [score], "/score")], "/all", axis=1, output="out")
    return b


def scores_behind_a_sigmoid() -> Builder:
    """A head for boxes and one for scores in each stride; all scores pass one Sigmoid."""
    b = Builder()
    kinds = []
    for kind, channels in (("box", 4), ("score", 6)):
        flat = [
            b.node("Reshape", [_head(b, f"{kind}{size}", size, channels), _ints(b, 1, channels, -1)], f"/{kind}{size}")
            for size in SIZES
        ]
        kinds.append(b.node("Concat", flat, f"/{kind}", axis=2))
    b.node("Concat", [kinds[0], b.node("Sigmoid", [kinds[1]], "/sigmoid")], "/all", axis=1, output="turned")
    b.node("Transpose", ["turned"], "/turn", perm=[0, 2, 1], output="out")
    return b


def anchors_in_the_channels() -> Builder:
    """Two anchors of 5 numbers in each cell, decoded apart: places, sizes and scores."""
    b = Builder()
    strides = []
    for size in SIZES:
        grid = b.node("Reshape", [_head(b, f"head{size}", size, 10), _ints(b, 1, 2, 5, size, size)], f"/grid{size}")
        grid = b.node("Sigmoid", [b.node("Transpose", [grid], f"/turn{size}", perm=[0, 1, 3, 4, 2])], f"/{size}")
        place, extent, score = _pieces(b, grid, f"/split{size}", 4, (2, 2, 1), "Split")
        place = b.node("Mul", [place, b.weight(f"stride{size}", np.float32(8))], f"/place{size}")
        extent = b.node("Pow", [extent, b.weight(f"two{size}", np.float32(2))], f"/extent{size}")
        joined = b.node("Concat", [place, extent, score], f"/cell{size}", axis=4)
        strides.append(b.node("Reshape", [joined, _ints(b, 1, 2 * size * size, 5)], f"/flat{size}"))
    b.node("Concat", strides, "/all", axis=1, output="out")
    return b


def boxes_by_name(judged: list[JudgedOutput] | tuple[JudgedOutput, ...]) -> dict[str, str]:
    """The layer of each judged part of a Concat; "" for an output that is judged as one."""
    return {one.name: one.note.removeprefix("from ").partition(f", one of {len(judged)} parts")[0] for one in judged}


DETECTORS = {
    "split": (scores_behind_a_split, (1, 10, 20)),
    "slice": (lambda: scores_behind_a_split("Slice"), (1, 10, 20)),
    "sigmoid": (scores_behind_a_sigmoid, (1, 20, 10)),
    "anchors": (anchors_in_the_channels, (1, 40, 5)),
    "unfolded": (unfolded, (1, 10, 20)),
}


def model_of(name: str) -> onnx.ModelProto:
    build, shape = DETECTORS[name]
    return build().model(list(X.values()), [floats("out", *shape)])


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "split",
            {
                "out[:, 0:4, 0:16]": "head4",
                "out[:, 0:4, 16:20]": "head2",
                "out[:, 4:10, 0:16]": "head4",
                "out[:, 4:10, 16:20]": "head2",
            },
        ),
        (
            "slice",
            {
                "out[:, 0:4, 0:16]": "head4",
                "out[:, 0:4, 16:20]": "head2",
                "out[:, 4:10, 0:16]": "head4",
                "out[:, 4:10, 16:20]": "head2",
            },
        ),
        (
            "sigmoid",
            {
                "out[:, 0:16, 0:4]": "box4",
                "out[:, 16:20, 0:4]": "box2",
                "out[:, 0:16, 4:10]": "score4",
                "out[:, 16:20, 4:10]": "score2",
            },
        ),
        (
            "unfolded",
            {
                "out[:, 0:4, 0:16]": "box4",
                "out[:, 0:4, 16:20]": "box2",
                "out[:, 4:10, 0:16]": "score4",
                "out[:, 4:10, 16:20]": "score2",
            },
        ),
        (
            "anchors",
            {
                "out[:, 0:32, 0:2]": "/split40",
                "out[:, 0:32, 2:4]": "/split41",
                "out[:, 0:32, 4:5]": "/split42",
                "out[:, 32:40, 0:2]": "/split20",
                "out[:, 32:40, 2:4]": "/split21",
                "out[:, 32:40, 4:5]": "/split22",
            },
        ),
    ],
)
def test_every_stride_is_a_part(name, parts, opened):
    assert boxes_by_name(select_judged_outputs(opened(model_of(name)))) == parts


@pytest.mark.parametrize("name", DETECTORS)
def test_a_part_is_what_its_head_computes_and_nothing_else(name, opened, backend):
    """Another bias in the heads of one stride changes the parts of that stride, and only them."""
    model = model_of(name)
    judged = select_judged_outputs(opened(model))
    rng = np.random.default_rng(1)
    feeds = {info.name: rng.normal(size=info.shape).astype(np.float32) for info in opened(model).inputs}

    def run(changed: onnx.ModelProto) -> np.ndarray:
        with backend.load(opened(changed).model) as runner:
            return runner.run(feeds)["out"]

    before, moved = run(model), []
    for size in SIZES:
        other = onnx.ModelProto()
        other.CopyFrom(model)
        for weight in other.graph.initializer:
            if weight.name.endswith(f"{size}.bias"):
                array = onnx.numpy_helper.to_array(weight) + np.float32(0.5)
                weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
        changed = run(other) != before
        covered = np.zeros(before.shape, int)
        for one in judged:
            part = take_judged_slice(changed, one)
            assert part.all() or not part.any()
            moved += [one.name] * int(part.all())
            take_judged_slice(covered, one)[...] += 1
        assert (covered == 1).all()
    assert sorted(moved) == sorted(one.name for one in judged)


def test_what_broadcasts_or_reads_two_tensors_ends_the_search(opened):
    b = Builder()
    halves = [b.node("Conv", ["x4", b.kernel(f"w{n}", (n, 3, 1, 1), 3)], f"/{n}") for n in (1, 2)]
    joined = b.node("Concat", halves, "/all", axis=1)
    wide = b.node("Mul", [joined, b.weight("ones", np.ones((2, 1, 1, 1), np.float32))], "/wide")
    b.node("Add", [b.node("Relu", [joined], "/a"), b.node("Neg", [joined], "/b")], "/sum", output="sum")
    b.node("Relu", [wide], "/relu", output="out")
    model = b.model([X[4]], [floats("out", 2, 3, 4, 4), floats("sum", 1, 3, 4, 4)])
    assert [one.name for one in select_judged_outputs(opened(model))] == ["out", "sum"]


def test_a_concat_of_too_many_pieces_stays_whole_and_the_others_do_not(opened):
    b = Builder()
    many = b.node("Concat", [b.node("Relu", ["x4"], f"/{n}") for n in range(16)], "/many", axis=1)
    b.node(
        "Concat", [b.node("Sigmoid", [many], "/sigmoid"), b.node("Tanh", ["x4"], "/tanh")], "/all", axis=1, output="out"
    )
    judged = select_judged_outputs(opened(b.model([X[4]], [floats("out", 1, 51, 4, 4)])))
    assert [one.name for one in judged] == ["out[:, 0:48]", "out[:, 48:51]"]


def test_the_bundled_network_is_judged_as_a_whole():
    assert [(one.name, one.note) for one in select_judged_outputs(open_network(demo.network_path()))] == [
        ("logits", "")
    ]
