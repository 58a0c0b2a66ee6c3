"""Files that declare sizes which their operators, or a run, contradict."""

import numpy as np
import onnx
import pytest

from tests import networks
from trt_tui.core.network.network import open_network
from trt_tui.errors import InputError


def _declaring(inner=None, output=("N", 8), read=("N", 16)):
    """Two products with a shape declared between them, or at an end."""
    b = networks.Builder()
    hidden = b.node("Relu", [b.node("MatMul", ["x", b.kernel("w1", (16, 32), 16)], "/first")], "/act")
    b.node("MatMul", [hidden, b.kernel("w2", (32, 8), 32)], "/second", output="y")
    model = b.model([networks.floats("x", *read)], [networks.floats("y", *output)])
    if inner is not None:
        model.graph.value_info.append(networks.floats("/first/MatMul_output_0", *inner))
    return model


@pytest.mark.parametrize(("more", "words"), [
    ({"inner": ("N", 31)}, ("/first/MatMul_output_0", "31", "32", "MatMul /first")),
    ({"output": ("N", 7)}, ("y is declared", "dimension 1 of 7", "dimension 1 of 8")),
    ({"output": ("N", 8, 1)}, ("3 axes", "2 axes")), ({"read": ("N", 15)}, ("MatMul /first", "do not fit")),
    ({"read": (4, 16), "output": (1, 8)}, ("dimension 0 of 1", "dimension 0 of 4"))])
def test_a_file_that_declares_a_wrong_size_is_refused_with_both(more, words, tmp_path):
    onnx.save(_declaring(**more), tmp_path / "wrong.onnx")
    with pytest.raises(InputError, match=r"wrong.onnx declares a wrong size") as error:
        open_network(tmp_path / "wrong.onnx")
    assert error.value.next_step and all(word in error.value.cause for word in words), error.value.cause


@pytest.mark.parametrize("more", [{}, {"inner": ("N", 32)}, {"inner": ("M", "K")}, {"output": ("M", "K")},
                                  {"output": (1, 8)}])
def test_a_declared_size_that_may_be_right_is_none(more, tmp_path):
    onnx.save(_declaring(**more), tmp_path / "right.onnx")
    assert len(open_network(tmp_path / "right.onnx").groups) == 2


def test_an_output_of_another_size_than_declared_is_refused_as_that_once_it_is_run(run, tmp_path):
    onnx.save(_declaring(output=(1, 8)), tmp_path / "batch.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((32, 16), np.float32))
    code, _, err = run("compare", tmp_path / "batch.onnx", "--data", tmp_path / "x.npz", "--layers", "none")
    names = "wrong shape for y", "wrong shape for the result of /second/MatMul"  # as ONNX Runtime names either
    assert code == 2 and any(name in err for name in names) and "1×8" in err and "8×8" in err and "the data" not in err
