import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests import networks
from tests.refusals import refused
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.exporters.onnx import export_typed_network, onnxruntime_loading_note, split_off_weights
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.report.document import Section, Table, report_markdown
from trt_tui.errors import InputError


def run(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def inline(tmp_path):
    """A network with its weights in its own file."""
    folder = tmp_path / "source"
    folder.mkdir()
    onnx.save(networks.small_resnet(), folder / "model.onnx")
    return open_network(folder / "model.onnx")


@pytest.fixture
def external(tmp_path):
    """The same with its weights in model.onnx.data."""
    folder = tmp_path / "source"
    folder.mkdir()
    return open_network(networks.save_with_external_data(folder))


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    path = tmp_path_factory.mktemp("expected") / "model.onnx"
    onnx.save(networks.small_resnet(), path)
    feeds = networks.feeds(networks.small_resnet(), n=2)
    return feeds, run(path, feeds)


def assert_same(path, expected):
    feeds, outputs = expected
    for here, there in zip(run(path, feeds), outputs, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)


def test_weights_in_memory_go_into_the_file(inline, out, expected):
    exported = export_typed_network(inline.model, inline, out / "typed.onnx")
    assert exported.data_files == () and files(out) == ["typed.onnx"]
    onnx.checker.check_model(str(out / "typed.onnx"))
    assert_same(out / "typed.onnx", expected)


def test_external_weights_are_copied_beside_the_export(external, out, expected):
    for _ in range(2):  # the second export finds the copy and keeps it
        exported = export_typed_network(external.model, external, out / "typed.onnx")
        assert exported.data_files == (out / "model.onnx.data",)
        assert files(out) == ["model.onnx.data", "typed.onnx"]
    # onnx refuses data files with several hard links, of the export and of the source
    onnx.load(external.path)
    onnx.checker.check_model(str(out / "typed.onnx"))
    shutil.rmtree(external.path.parent)
    assert_same(out / "typed.onnx", expected)


def test_external_weights_are_used_where_they_are_in_the_same_folder(external, expected):
    folder = external.path.parent
    export_typed_network(external.model, external, folder / "typed.onnx")
    assert files(folder) == ["model.onnx", "model.onnx.data", "typed.onnx"]
    assert_same(folder / "typed.onnx", expected)


def test_external_weights_are_copied_where_the_kernel_does_not_help(external, out, expected, monkeypatch):
    def refuse(source, target, count):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    export_typed_network(external.model, external, out / "typed.onnx")
    assert_same(out / "typed.onnx", expected)


def test_a_link_to_the_data_is_not_taken_for_a_copy(external, out):
    data = external.path.parent / "model.onnx.data"
    (out / "model.onnx.data").symlink_to(data)
    exported = export_typed_network(external.model, external, out / "typed.onnx")
    assert exported.data_files == (out / "model.onnx_1.data",)
    onnx.load(out / "typed.onnx")


def test_another_file_in_the_way_is_left_alone(external, out, expected):
    (out / "model.onnx.data").write_bytes(b"mine")
    for _ in range(2):
        exported = export_typed_network(external.model, external, out / "typed.onnx")
        assert [path.name for path in exported.data_files] == ["model.onnx_1.data"]
    assert (out / "model.onnx.data").read_bytes() == b"mine"
    assert_same(out / "typed.onnx", expected)


def test_the_source_is_never_replaced(external, out):
    before = external.path.read_bytes()
    link = out / "link.onnx"
    link.symlink_to(external.path)
    for path in (external.path, link, external.path.parent / "model.onnx.data"):
        with pytest.raises(InputError, match="is the network itself"):
            export_typed_network(external.model, external, path)
    assert external.path.read_bytes() == before


def test_too_many_weights_go_into_a_data_file(inline, out, expected):
    before = {name: value.const_value for name, value in inline.model.graph.initializers.items()}
    for _ in range(2):
        exported = export_typed_network(inline.model, inline, out / "typed.onnx", max_inline_bytes=1000)
        assert exported.data_files == (out / "typed.onnx.data",)
        assert files(out) == ["typed.onnx", "typed.onnx.data"]
    assert (out / "typed.onnx").stat().st_size < (out / "typed.onnx.data").stat().st_size
    assert_same(out / "typed.onnx", expected)
    assert {name: value.const_value for name, value in inline.model.graph.initializers.items()} == before
    (out / "other").mkdir()
    export_typed_network(inline.model, inline, out / "other" / "typed.onnx", max_inline_bytes=1000)
    assert (out / "other" / "typed.onnx").read_bytes() == (out / "typed.onnx").read_bytes()
    assert (out / "other" / "typed.onnx.data").read_bytes() == (out / "typed.onnx.data").read_bytes()


def test_weights_apart_and_the_rest_are_the_network(inline_or_external, expected, out):
    network = inline_or_external
    rest, weights = split_off_weights(network.model)
    proto = onnx.load_from_string(rest)
    apart = [tensor for tensor in proto.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    assert {tensor.name for tensor in apart} == weights.keys() and weights
    assert not any(value.const_value is None for value in network.model.graph.initializers.values())
    for tensor in apart:
        tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name], tensor.name))
    onnx.save(proto, out / "whole.onnx")
    assert_same(out / "whole.onnx", expected)


def test_a_data_file_of_that_name_that_is_somebody_elses_is_left_alone(inline, out, expected):
    (out / "typed.onnx.data").write_bytes(b"mine")
    exported = export_typed_network(inline.model, inline, out / "typed.onnx", max_inline_bytes=1000)
    assert exported.data_files == (out / "typed.onnx_1.data",)
    assert (out / "typed.onnx.data").read_bytes() == b"mine"
    assert_same(out / "typed.onnx", expected)


@pytest.mark.parametrize("limit", [1 << 30, 1000])
def test_a_full_disk_leaves_nothing_behind(inline_or_external, out, monkeypatch, limit):
    network = inline_or_external

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with refused(next_step="space"):
        export_typed_network(network.model, network, out / "typed.onnx", max_inline_bytes=limit)
    assert files(out) == []


@pytest.fixture(params=["inline", "external"])
def inline_or_external(request, tmp_path, external):
    if request.param == "external":
        return external
    onnx.save(networks.small_resnet(), tmp_path / "inline.onnx")
    return open_network(tmp_path / "inline.onnx")


def test_names_cannot_break_the_tables():
    report = report_markdown("a*b|c", [Section("", [Table([["output", "dB"], ["a|b`c\nd", "1"]]), ["  # x"]])])
    header, rule, row = (line for line in report.splitlines() if line.startswith("|"))
    assert header.count("|") == rule.count("|") == row.replace("\\|", "").count("|")
    assert "a\\|b\\`c\\\\nd" in row and report.startswith("# a\\*b\\|c\n") and "\n  - # x\n" in report


@pytest.mark.parametrize(
    ("perm", "warned"), [([1, 0, 2], True), ([1, 2, 0, 3], True), ([2, 0, 1], False), ([0, 2, 1], False)]
)
def test_a_transpose_in_fp16_before_a_matmul_loads_as_the_note_of_its_export_says(perm, warned, opened, tmp_path):
    """A process of its own loads the file, since a runtime that fuses the two may crash. Without a note it loads by
    default; with one it loads by the option that the note names. Whether it loads without that is the release's."""
    b = networks.Builder()
    shape = [32, 6, 32, 32][: len(perm)]
    x = b.node("Reshape", ["x", b.weight("to", np.int64(shape))], "/apart")
    x = b.node("Transpose", [x], "/turn", perm=perm)
    b.node("MatMul", [x, b.kernel("w", (shape[perm[-1]], 16), 8)], "/fc", output="y")
    ends = [*(shape[axis] for axis in perm[:-1]), 16]
    network = opened(b.model([networks.floats("x", 3, 64, *shape[2:])], [networks.floats("y", *ends)]))
    path = tmp_path / "typed.onnx"
    _, lines = write_export("onnx", path, network, PrecisionConfig.from_precision(Precision.FP16), {})
    assert any("ORT_ENABLE_EXTENDED" in line for line in lines) is warned
    load = (
        "import onnxruntime as o; s = o.SessionOptions(); "
        f"{'s.graph_optimization_level = o.GraphOptimizationLevel.ORT_ENABLE_EXTENDED; ' if warned else ''}"
        f"o.InferenceSession({str(path)!r}, s, providers=['CPUExecutionProvider'])"
    )
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("opset", "other", "stored"),
    [
        (17, Precision.FP16, True),
        (17, Precision.FP32, True),
        (21, Precision.FP16, True),
        (21, Precision.FP16, False),
        *(pytest.param(23, Precision.FP32, stored, marks=pytest.mark.onnxruntime("1.31")) for stored in (True, False)),
    ],
)
def test_typed_matmuls_load_in_onnx_runtime_with_a_bias_that_is_stored_or_computed(
    opset, other, stored, opened, tmp_path
):
    b = networks.Builder(opset=opset)
    x = b.node("MatMul", ["x", b.kernel("w", (8, 16), 8)], "/fc")
    bias = b.vector("bias", 16) if stored else b.node("Relu", ["given"], "/bias")
    b.node("Add", [x, bias], "/fc/bias", output="y")
    inputs = [networks.floats("x", 2, 4, 8), *([] if stored else [networks.floats("given", 16)])]
    network = opened(b.model(inputs, [networks.floats("y", 2, 4, 16)], ir_version=10))
    path = tmp_path / "typed.onnx"
    config = PrecisionConfig.from_precision(Precision.INT8, other_precision=other)
    _, lines = write_export("onnx", path, network, config, {"x": 3.0})
    assert not any("session.disable_quant_qdq" in line for line in lines)
    feeds = {info.name: np.ones(info.shape, np.float32) for info in network.inputs}
    assert run(path, feeds)[0].shape == (2, 4, 16)


@pytest.mark.parametrize(
    ("precision", "other", "warned"),
    [
        (Precision.FP8, Precision.FP32, True),
        (Precision.FP8, Precision.FP16, False),
        (Precision.INT8, Precision.FP32, False),
    ],
)
def test_a_relu_that_onnx_runtime_drops_before_fp8_is_said(precision, other, warned, opened):
    b = networks.Builder()
    y = b.node("Relu", [b.gemm("x", (16, 16), "/first")], "/relu")
    b.gemm(y, (16, 16), "/second", output="y")
    network = opened(b.model([networks.floats("x", 4, 16)], [networks.floats("y", 4, 16)]))
    ranges = dict.fromkeys(network.calibrated_tensors, 1.0)
    note = onnxruntime_loading_note(
        lower_to_typed_network(network, PrecisionConfig.from_precision(precision, other), ranges).model
    )
    assert ("drops a Relu" in note) is warned
