"""The repair of constants that a 16-bit type lost: ``export --repair-constants`` and `ConstantRepair`."""

import copy
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.networks import halves, quiet_session
from trt_tui.core.exporters.constant_repair import ConstantRepair

FLOAT16, BFLOAT16, INF = TensorProto.FLOAT16, TensorProto.BFLOAT16, np.inf
DTYPES = {FLOAT16: np.float16, BFLOAT16: ml_dtypes.bfloat16}
BF16_MASK = 2.0**127


def stored(name: str, values: object, half_type: int = FLOAT16) -> onnx.TensorProto:
    array = np.asarray(values, np.float32)
    if half_type == TensorProto.FLOAT:
        return numpy_helper.from_array(array, name)
    with np.errstate(over="ignore"):
        return helper.make_tensor(name, half_type, array.shape, array.astype(DTYPES[half_type]).tobytes(), raw=True)


def network(nodes, constants=(), *, half_type: int = FLOAT16, opset: int = 17, functions=()) -> onnx.ModelProto:
    """A network from ``x`` (2, 4), and ``hidden`` (2, 4) bool, to ``y``."""
    inputs = [helper.make_tensor_value_info("x", half_type, (2, 4)),
              helper.make_tensor_value_info("hidden", TensorProto.BOOL, (2, 4))]
    graph = helper.make_graph(list(nodes), "g", inputs, [helper.make_tensor_value_info("y", half_type, None)],
                              list(constants))
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid("local", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))


def node(operator: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], name=f"/{output}", **attributes)


def repaired(model: onnx.ModelProto, folder=None) -> tuple[onnx.ModelProto, list[str], list[str]]:
    changed = copy.deepcopy(model)
    report = ConstantRepair(changed, folder).repair()
    return changed, report.repaired, report.left


def execute(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> np.ndarray:
    used = {info.name for info in model.graph.input}
    feed = {name: array for name, array in feed.items() if name in used}
    if any(info.type.tensor_type.elem_type == BFLOAT16 for info in model.graph.input):
        return np.asarray(ReferenceEvaluator(model).run(None, feed)[0], np.float32)
    return np.asarray(quiet_session(model).run(None, feed)[0], np.float32)


def feed_of(half_type: int = FLOAT16, *, is_row_hidden: bool = True) -> dict[str, np.ndarray]:
    hidden = np.array([[False, True, False, True], [True] * 4 if is_row_hidden else [False, False, True, False]])
    x = np.array([[1, 2, -3, 4], [0, -1, 0.5, 0.25]], np.float32).astype(DTYPES[half_type])
    return {"x": x, "hidden": hidden}


def softmax_of(masked: str = "masked") -> onnx.NodeProto:
    return node("Softmax", [masked], "y", axis=-1)


def where_mask(half_type: int = FLOAT16, value: float = -INF) -> onnx.ModelProto:
    return network([node("Where", ["hidden", "mask", "x"], "masked"), softmax_of()], [stored("mask", value, half_type)],
                   half_type=half_type)


def factor_mask(half_type: int = FLOAT16) -> onnx.ModelProto:
    """``x + hidden * mask``: 0 times an infinity is NaN."""
    return network([node("Cast", ["hidden"], "factor", to=half_type), node("Mul", ["factor", "mask"], "product"),
                    node("Add", ["x", "product"], "masked"), softmax_of()], [stored("mask", -INF, half_type)],
                   half_type=half_type)


def constant_node_mask() -> onnx.ModelProto:
    return network([helper.make_node("Constant", [], ["mask"], value=stored("", -INF)),
                    node("Where", ["hidden", "mask", "x"], "masked"), softmax_of()])


def filled_mask() -> onnx.ModelProto:
    return network([node("Shape", ["x"], "size"),
                    node("ConstantOfShape", ["size"], "mask", value=stored("", [-INF])),
                    node("Where", ["hidden", "mask", "x"], "masked"), softmax_of()])


def cast_mask() -> onnx.ModelProto:
    """The constant is FP32, and a Cast makes it infinite."""
    return network([node("Cast", ["wide"], "mask", to=FLOAT16), node("Where", ["hidden", "mask", "x"], "masked"),
                    softmax_of()], [stored("wide", -3.4e38, TensorProto.FLOAT)])


def branch_mask() -> onnx.ModelProto:
    """The constant is in a branch of an If, which reads outer tensors."""
    branches = [helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, FLOAT16, None)], constants)
                for name, nodes, output, constants in (
                    ("then", [helper.make_node("Where", ["hidden", "mask", "x"], ["m"], name="/m")], "m",
                     [stored("mask", -INF)]), ("else", [helper.make_node("Identity", ["x"], ["n"])], "n", []))]
    return network([node("ReduceMax", ["x"], "largest", keepdims=0),
                    node("Cast", ["largest"], "yes", to=TensorProto.BOOL),
                    helper.make_node("If", ["yes"], ["masked"], name="/if", then_branch=branches[0],
                                     else_branch=branches[1]), softmax_of()])


def function_mask() -> onnx.ModelProto:
    body = [helper.make_node("Constant", [], ["mask"], value=stored("", -INF)),
            helper.make_node("Where", ["h", "mask", "v"], ["m"]), helper.make_node("Softmax", ["m"], ["r"], axis=-1)]
    function = helper.make_function("local", "Masked", ["v", "h"], ["r"], body, [helper.make_opsetid("", 17)])
    return network([helper.make_node("Masked", ["x", "hidden"], ["y"], domain="local")], functions=[function])


MASKS = {"Where": (where_mask(), FLOAT16), "product": (factor_mask(), FLOAT16),
         "Constant": (constant_node_mask(), FLOAT16), "ConstantOfShape": (filled_mask(), FLOAT16),
         "Cast": (cast_mask(), FLOAT16), "If": (branch_mask(), FLOAT16), "function": (function_mask(), FLOAT16),
         "Where in BF16": (where_mask(BFLOAT16, -INF), BFLOAT16), "product in BF16": (factor_mask(BFLOAT16), BFLOAT16)}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_becomes_finite(name):
    model, half_type = MASKS[name]
    changed, lines, left = repaired(model)
    value = 32752 if half_type == FLOAT16 else BF16_MASK
    assert len(lines) == 1 and not left and lines[0].endswith(f": 1 value -Inf to -{value:.6g}")
    assert np.isnan(execute(model, feed_of(half_type))).any(), "the original has NaN"
    result = execute(changed, feed_of(half_type))
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result.sum(-1), 1, atol=1e-2)
    assert (result[0, [1, 3]] == 0).all() and (result[0, [0, 2]] > 0).all()
    assert repaired(changed)[1:] == ([], []), "nothing is left to repair"


def test_rows_with_other_values_keep_their_results():
    for name in ("Where", "Constant", "If"):
        model, feed = MASKS[name][0], feed_of(is_row_hidden=False)
        np.testing.assert_array_equal(execute(model, feed), execute(repaired(model)[0], feed))


@pytest.mark.parametrize("operator", ["Equal", "IsInf", "Div"])
def test_an_infinity_that_may_be_intended_stays(operator):
    """The row that is masked completely is found by a comparison, and gets zeros."""
    reader = {"Equal": node("Equal", ["masked", "mask"], "empty"), "Div": node("Div", ["x", "mask"], "zeros")}.get(
        operator, node("IsInf", ["single"], "empty"))
    more = [node("Cast", ["masked"], "single", to=TensorProto.FLOAT)] if operator == "IsInf" else []
    model = network([node("Where", ["hidden", "mask", "x"], "masked"), softmax_of(), *more, reader],
                    [stored("mask", -INF)])
    changed, lines, left = repaired(model)
    assert lines == [] and changed == model
    assert left == [f"mask has -Inf: {operator} /{'zeros' if operator == 'Div' else 'empty'} reads it, so it may be "
                    "intended"]


def test_a_lost_weight_stays():
    changed, lines, left = repaired(halves.infinite_weight_half())
    assert lines == [] and changed == halves.infinite_weight_half()
    assert left == ["head.weight has Inf: MatMul /head/MatMul multiplies with it, and the weight is lost"]


def epsilon_network(form: str, value: float = 0.0, half_type: int = FLOAT16) -> onnx.ModelProto:
    nodes = [node("ReduceSumSquare", ["x"], "sum", axes=[-1])]
    if form == "Clip":
        nodes += [node("Sqrt", ["sum"], "norm"), node("Clip", ["norm", "epsilon"], "divisor")]
    elif form == "Sqrt":
        nodes += [node("Add", ["sum", "epsilon"], "guarded"), node("Sqrt", ["guarded"], "divisor")]
    elif form == "Max":
        nodes += [node("Max", ["sum", "epsilon"], "divisor")]
    else:
        nodes += [node("Add", ["sum", "epsilon"], "divisor")]
    nodes.append(node("Log", ["divisor"], "y") if form == "Log" else node("Div", ["x", "divisor"], "y"))
    return network(nodes, [stored("epsilon", value, half_type)], half_type=half_type)


@pytest.mark.parametrize("form", ["Add", "Clip", "Sqrt", "Max", "Log"])
def test_an_epsilon_survives(form):
    model = epsilon_network(form)
    changed, lines, left = repaired(model)
    assert len(lines) == 1 and lines[0].startswith("epsilon, read by ") and lines[0].endswith(": 0 to 6e-08")
    assert not left
    feed = {"x": np.zeros((2, 4), np.float16)}
    assert not np.isfinite(execute(model, {**feed, "hidden": feed["x"] > 0})).all()
    assert np.isfinite(execute(changed, {**feed, "hidden": feed["x"] > 0})).all()
    assert repaired(epsilon_network(form, 1e-5))[1:] == ([], [])


def test_a_divisor_behind_the_branches_of_a_condition_counts():
    branches = [helper.make_graph([helper.make_node("Add", ["sum", "epsilon"], [name], name="/add")], name, [],
                                  [helper.make_tensor_value_info(name, FLOAT16, None)]) for name in ("then", "else")]
    model = network([node("ReduceSumSquare", ["x"], "sum", axes=[-1]), node("ReduceMax", ["x"], "large", keepdims=0),
                     node("Cast", ["large"], "yes", to=TensorProto.BOOL),
                     helper.make_node("If", ["yes"], ["divisor"], then_branch=branches[0], else_branch=branches[1]),
                     node("Div", ["x", "divisor"], "y")], [stored("epsilon", 0.0)])
    assert repaired(model)[1] == ["epsilon, read by Add /add and 1 more: 0 to 6e-08"]


def test_an_epsilon_survives_in_bf16():
    changed, lines, _ = repaired(epsilon_network("Add", 0.0, BFLOAT16))
    assert lines == ["epsilon, read by Add /divisor: 0 to 1.2e-38"]
    assert repaired(epsilon_network("Add", 1e-12, BFLOAT16))[1] == [], "1e-12 is a normal value of BF16"
    (tensor,) = changed.graph.initializer
    assert np.frombuffer(tensor.raw_data, ml_dtypes.bfloat16).astype(np.float32) == np.float32(2.0**-126)


def test_a_zero_that_guards_no_divisor_stays():
    model = network([node("Add", ["x", "zero"], "sum"), node("Max", ["sum", "zero"], "y")], [stored("zero", 0.0)])
    assert repaired(model) == (model, [], [])


@pytest.mark.parametrize(("operator", "attributes", "expected"), [
    ("Clip", {"min": -3.4e38, "max": 6.0}, ["min of Clip /y: -3.4e+38 to -65504"]),
    ("Clip", {"min": -1.0, "max": 6.0}, [])])
def test_bounds_in_attributes(operator, attributes, expected):
    model = network([node(operator, ["x"], "y", **attributes)], opset=10)
    changed, lines, _ = repaired(model)
    assert lines == expected and (changed == model) is (not expected)


def test_an_infinite_bound_of_a_clip():
    model = network([node("Clip", ["x", "low", "high"], "y")], [stored("low", 0.0), stored("high", INF)])
    changed, lines, _ = repaired(model)
    assert lines == ["high, read by Clip /y: 1 value Inf to 65504"]
    feed = feed_of()
    np.testing.assert_array_equal(execute(model, feed), execute(changed, feed))


@pytest.mark.parametrize(("operator", "attributes", "is_repaired"), [
    ("LayerNormalization", {"stash_type": 1}, False), ("LayerNormalization", {"stash_type": FLOAT16}, True),
    ("LayerNormalization", {"stash_type": FLOAT16, "epsilon": 1e-5}, False)])
def test_the_epsilon_of_a_normalisation_in_16_bits(operator, attributes, is_repaired):
    """With the default stash_type, ONNX computes mean and variance in FP32, where 1e-12 survives."""
    model = network([node(operator, ["x", "scale"], "y", **{"epsilon": 1e-12, **attributes})],
                    [stored("scale", np.ones(4))])
    changed, lines, _ = repaired(model)
    assert lines == ([f"epsilon of {operator} /y: 1e-12 to 5.96046e-08"] if is_repaired else [])
    assert (changed == model) is not is_repaired


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_file_that_is_finite(run, tmp_path):
    onnx.save(halves.masked_half(), tmp_path / "half.onnx")
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((4, 6, 8)).astype(np.float16), "kept": np.ones((4, 6), np.float16)}
    feed["kept"][:, 4:] = 0
    code, out, err = run("export", tmp_path / "half.onnx", "--repair-constants", "-o", tmp_path / "repaired.onnx")
    assert code == 0 and out == f"{tmp_path / 'repaired.onnx'}\n"
    assert "mask_value, read by Mul /mask/Mul: 1 value -Inf to -32752" in err
    original, changed = onnx.load(tmp_path / "half.onnx"), onnx.load(tmp_path / "repaired.onnx")
    assert np.isnan(execute(original, feed)).any()
    exact = halves.as_half(halves.masked_half(mask=-1e4))
    np.testing.assert_array_equal(execute(changed, feed), execute(exact, feed))
    for model in (original, changed):
        (mask,) = [tensor for tensor in model.graph.initializer if tensor.name == "mask_value"]
        mask.Clear()
    assert original == changed, "all else is the same"
    np.savez(tmp_path / "data.npz", **feed)
    code, out, err = run("compare", tmp_path / "repaired.onnx", "--data", tmp_path / "data.npz", "--layers", "none")
    assert code == 0 and "NaN" not in err


@pytest.mark.parametrize("is_same_folder", [True, False])
def test_external_data_keep_their_bytes(run, tmp_path, is_same_folder):
    model = halves.masked_half()
    for tensor in model.graph.initializer:  # the mask is external too
        if not tensor.raw_data:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    folder = tmp_path / "source"
    folder.mkdir()
    onnx.save(model, folder / "half.onnx", save_as_external_data=True, location="half.data", size_threshold=0)
    before = (folder / "half.data").read_bytes()
    target = (folder if is_same_folder else tmp_path) / "repaired.onnx"
    code, _, err = run("export", folder / "half.onnx", "--repair-constants", "-o", target)
    assert code == 0, err
    assert (target.parent / "half.data").read_bytes() == before
    for name in ("half.onnx", "repaired.onnx"):
        loaded = onnx.load((folder if name == "half.onnx" else target.parent) / name, load_external_data=False)
        external = {tensor.name for tensor in loaded.graph.initializer if tensor.data_location == TensorProto.EXTERNAL}
        assert ("mask_value" in external) is (name == "half.onnx") and "head.weight" in external
    feed = {"x": np.ones((1, 6, 8), np.float16), "kept": np.array([[1, 1, 1, 1, 0, 0]], np.float16)}
    assert np.isfinite(quiet_session(onnx.load(target)).run(None, feed)[0]).all()
    if not is_same_folder:
        code, _, err = run("export", folder / "half.onnx", "--repair-constants", "-o", target)
        assert code == 2 and "half.data exists already" in err


def test_the_command_refuses_a_file_without_lost_constants(run, tmp_path, mlp):
    code, _, err = run("export", mlp.model, "--repair-constants", "-o", tmp_path / "out.onnx")
    assert code == 2 and "has no constants to repair" in err and not (tmp_path / "out.onnx").exists()
    onnx.save(halves.infinite_weight_half(), tmp_path / "half.onnx")
    code, _, err = run("export", tmp_path / "half.onnx", "--repair-constants", "-o", tmp_path / "out.onnx")
    assert code == 2 and "the weight is lost" in err and "Convert the FP32 network again." in err
    onnx.save(halves.masked_half(), tmp_path / "half.onnx")
    for more, message in ((("--precision", "fp16"), "--precision has no effect here"),
                          (("--format", "json"), "--format has no effect here"),
                          (("--data", "d.npz"), "--data has no effect here")):
        code, _, err = run("export", tmp_path / "half.onnx", "--repair-constants", "-o", tmp_path / "out.onnx", *more)
        assert code == 2 and message in err, err
    code, _, err = run("export", tmp_path / "half.onnx", "--repair-constants", "-o", tmp_path / "half.onnx")
    assert code == 2 and not np.isfinite(numpy_helper.to_array(
        [tensor for tensor in onnx.load(tmp_path / "half.onnx").graph.initializer if tensor.name == "mask_value"][0]))
    code, _, err = run("export", tmp_path / "half.onnx", "-o", tmp_path / "out.onnx")
    assert code == 2 and "Missing option '--format'" in err
