"""Tests of trt_tui.core.network.model_file: external data wherever a tensor may stand."""

import os
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.networks import Builder, floats
from tests.refusals import refused
from trt_tui.core.network.network import open_network
from trt_tui.core.network.opening import open_model
from trt_tui.errors import InputError

VALUES = np.arange(300, dtype=np.float32)


def outside(name: str, location: str, /, **entries: object) -> onnx.TensorProto:
    """A float tensor of 300 values that lie in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[300], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": 0, "length": 1200, **entries}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def in_initializer(tensor):
    b = Builder()
    b.weights.append(tensor)
    b.node("Add", ["x", tensor.name], name="add", output="y")
    return b.model([floats("x", 300)], [floats("y", 300)])


def in_attribute(tensor):
    b = Builder()
    constant = b.node("Constant", [], name="constant", value=tensor)
    b.node("Add", ["x", constant], name="add", output="y")
    return b.model([floats("x", 300)], [floats("y", 300)])


def in_function(tensor):
    opsets = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Add", ["a", "c"], ["b"])]
    b = Builder()
    b.node("Plus", ["x"], name="call", domain="local", output="y")
    return b.model(
        [floats("x", 300)],
        [floats("y", 300)],
        domains=["local"],
        functions=[helper.make_function("local", "Plus", ["a"], ["b"], body, opsets)],
    )


def _branches(tensor, *, constant: bool):
    made = []
    for name in ("then", "else"):
        nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor)] if constant else []
        nodes.append(helper.make_node("Add", ["x", tensor.name], [name]))
        made.append(helper.make_graph(nodes, name, [], [floats(name, 300)], [] if constant else [tensor]))
    return made


def in_subgraph(tensor, constant=False):
    then, other = _branches(tensor, constant=constant)
    b = Builder()
    b.node("If", ["go"], name="if", output="y", then_branch=then, else_branch=other)
    return b.model([floats("x", 300), helper.make_tensor_value_info("go", TensorProto.BOOL, [])], [floats("y", 300)])


def in_subgraph_attribute(tensor):
    return in_subgraph(tensor, constant=True)


def in_subgraph_of_a_function(tensor):
    then, other = _branches(tensor, constant=False)
    for graph in (then, other):
        graph.node[-1].input[0] = "a"
    body = [helper.make_node("If", ["go"], ["b"], then_branch=then, else_branch=other)]
    b = Builder()
    b.node("Choose", ["x", "go"], name="call", domain="local", output="y")
    function = helper.make_function("local", "Choose", ["a", "go"], ["b"], body, [helper.make_opsetid("", 17)])
    return b.model(
        [floats("x", 300), helper.make_tensor_value_info("go", TensorProto.BOOL, [])],
        [floats("y", 300)],
        domains=["local"],
        functions=[function],
    )


PLACES = [in_initializer, in_attribute, in_function, in_subgraph, in_subgraph_attribute, in_subgraph_of_a_function]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for networks; the current directory is another, with a data file of other values."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (elsewhere / "data").write_bytes((VALUES + 1000).tobytes())
    monkeypatch.chdir(elsewhere)
    return here


def save(model, folder):
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("lean", [False, True])
def test_external_data_are_those_beside_the_network(place, lean, folder, backend):
    (folder / "data").write_bytes(VALUES.tobytes())
    network = open_network(save(place(outside("w", "data")), folder))
    assert network.external_files == (folder / "data",)
    feeds = {"x": np.zeros(300, np.float32), "go": np.array(True)}
    with backend.load(network.model, low_memory=lean, optimize=False) as runner:
        got = runner.run({name: feeds[name] for name in (info.name for info in network.inputs)})
    np.testing.assert_array_equal(got["y"], VALUES)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("where", ["absolute", "above", "link", "linked folder", "hard link", "missing", "short"])
def test_external_data_that_are_not_are_refused_wherever_they_stand(place, where, folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(VALUES.tobytes())
    location = {"absolute": str(secret), "above": "../secret", "linked folder": "inner/secret"}.get(where, "data")
    data = folder / "data"
    match where:
        case "link":
            data.symlink_to(secret)
        case "linked folder":
            (folder / "inner").symlink_to(tmp_path, target_is_directory=True)
        case "hard link":
            os.link(secret, data)
        case "short":
            data.write_bytes(bytes(100))
    with refused("external data of model.onnx", cause=location, next_step="opy" if "link" in where else ""):
        open_model(save(place(outside("w", location)), folder))


@pytest.mark.parametrize(
    "entries",
    [{"offset": -4}, {"offset": "x"}, {"length": "9" * 30}, {"length": 4}, {"location": None}, {"location": "a\0b"}],
)
@pytest.mark.parametrize("place", [in_initializer, in_function, in_subgraph])
def test_an_external_tensor_that_points_nowhere_is_damaged(place, entries, folder):
    (folder / "data").write_bytes(VALUES.tobytes())
    with pytest.raises(InputError, match="model.onnx is damaged"):
        open_model(save(place(outside("w", "data", **entries)), folder))


def test_data_of_a_type_that_numpy_lacks_are_read_beside_the_network(folder, backend):
    values = numpy_helper.to_array(helper.make_tensor("w", TensorProto.BFLOAT16, [600], np.arange(600.0)))
    for where, factor in ((folder, 1), (folder.parent / "elsewhere", 2)):
        (where / "data").write_bytes((values.astype(np.float32) * factor).astype(values.dtype).tobytes())
    tensor = outside("w", "data")
    tensor.data_type, tensor.dims[0] = TensorProto.BFLOAT16, 600
    b = Builder()
    b.weights.append(tensor)
    cast = b.node("Sparkle", ["w"], name="sparkle", domain="acme")
    b.node("Add", ["x", cast], name="add", output="y")
    model = b.model([floats("x", 600)], [floats("y", 600)], domains=["acme"])
    opened = open_model(save(model, folder))
    weight = opened.model.graph.initializers["w"].const_value
    np.testing.assert_array_equal(weight.numpy().astype(np.float32), values.astype(np.float32))


def test_a_copied_network_finds_its_data_in_its_new_place(folder, tmp_path):
    (folder / "data").write_bytes(VALUES.tobytes())
    save(in_subgraph(outside("w", "data")), folder)
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    assert open_model(moved / "model.onnx").external_files == [moved / "data"]
