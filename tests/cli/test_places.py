"""Nothing that is read is written over, and no two exports share a file."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import DrivenWorker
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.data.input_files import list_input_files, refuse_overwriting_inputs
from trt_tui.core.exporters import formats
from trt_tui.core.exporters.onnx import export_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options


def save(path: Path) -> Path:
    onnx.save(networks.mlp(), path)
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return open_network(save(tmp_path_factory.mktemp("network") / "net.onnx"))


def ranges(network, amax=1.0):
    return dict.fromkeys(network.calibrated_tensors, amax)


def test_exports_whose_names_share_a_beginning_share_no_file(network, tmp_path):
    configs = {"model.fp16.sh": Precision.FP16, "model.fp32.sh": Precision.FP32}
    for name, precision in configs.items():
        formats.write_export("trtexec", tmp_path / name, network, PrecisionConfig.from_precision(precision), {})
    types = {}
    for name in configs:
        script = (tmp_path / name).read_text()
        typed = tmp_path / script.partition("--onnx=")[2].split()[0]
        types[name] = {
            attribute.i
            for node in onnx.load(typed).graph.node
            if node.op_type == "Cast"
            for attribute in node.attribute
            if attribute.name == "to"
        }
        assert f"#   sh {name} " in script and f"--saveEngine={name}." in script
    assert onnx.TensorProto.FLOAT16 in types["model.fp16.sh"]
    assert onnx.TensorProto.FLOAT16 not in types["model.fp32.sh"]


def test_exports_of_all_formats_with_one_stem_keep_their_content(network, tmp_path):
    int8, written = PrecisionConfig.from_precision(Precision.INT8), {}
    for amax, (kind, name) in enumerate(
        {
            "trtexec": "net.sh",
            "polygraphy": "net.py",
            "calibration-cache": "net.cache",
            "onnx": "net.typed.onnx",
        }.items(),
        1,
    ):
        for path in formats.write_export(kind, tmp_path / name, network, int8, ranges(network, amax)).paths:
            assert path not in written
            written[path] = path.read_bytes()
    assert {path: path.read_bytes() for path in written} == written
    assert len({content for path, content in written.items() if path.suffix == ".cache"}) == 3


@pytest.mark.parametrize("kind", ["trtexec", "polygraphy"])
def test_what_a_format_writes_beside_is_never_written_over_the_network(network, tmp_path, kind):
    beside = formats.find_companion_files(kind, tmp_path / "net")["base"]
    save(beside)
    before = beside.read_bytes()
    own = open_network(beside)
    with pytest.raises(InputError, match="is an input file|is the network itself"):
        formats.write_export(kind, tmp_path / "net", own, PrecisionConfig.from_precision(Precision.FP16), {})
    assert [path.name for path in tmp_path.iterdir()] == [beside.name] and beside.read_bytes() == before


def test_what_is_read_is_known_by_any_name(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("net.onnx", "data/a.npz", "script.py", "net.cache"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "link").symlink_to(folder / "a.npz")
    os.link(tmp_path / "script.py", tmp_path / "hard")
    read = list_input_files(
        str(tmp_path / "net.onnx"), str(folder), f"{tmp_path}/script.py:load", None, f"{tmp_path}/net.cache"
    )
    for name in ("net.onnx", "data/a.npz", "link", "hard", "script.py", "data/../net.cache"):
        with pytest.raises(InputError, match="is an input file"):
            refuse_overwriting_inputs([tmp_path / name], read)
    refuse_overwriting_inputs([tmp_path / "new", folder / "b.npz"], read)


def test_weights_beside_the_network_are_read_too(network, tmp_path):
    exported = export_typed_network(network.model, network, tmp_path / "net.onnx", max_inline_bytes=100)
    (weights,) = exported.data_files
    worker, before = DrivenWorker(tmp_path), weights.read_bytes()
    failed = worker.answer(
        rq.OpenNetwork(Options(str(exported.path), written_paths=(str(weights),)), network_only=True)
    )[-1]
    assert (
        isinstance(failed, ev.JobFailed)
        and failed.error.title.startswith(f"{weights} ")
        and "input" in failed.error.title
    )
    worker.answer(rq.OpenNetwork(Options(str(exported.path)), network_only=True))
    for path in (weights, exported.path):
        assert "an input file" in worker.answer(rq.WriteTextFile(str(path), "text"))[-1].error.title
    assert weights.read_bytes() == before


def test_a_config_that_is_read_is_written_again_by_a_search_alone(tmp_path, monkeypatch, capsys):
    from trt_tui.cli.main import main
    from trt_tui.cli.output_files import check_command_files

    monkeypatch.chdir(tmp_path)
    for name in ("net.onnx", "c.json"):
        Path(name).write_bytes(b"read")
    read = {"model": "net.onnx", "config_path": "c.json"}
    check_command_files("search", {**read, "output": "c.json", "markdown_path": "report.md"})
    for command, others in (
        ("search", {"output": "new.json", "markdown_path": "c.json"}),
        ("build", {"output": "c.json"}),
        ("compare", {"engine_files": ("c.json",), "json_path": "c.json"}),
        ("search", {"output": "new.json", "production": BuilderOptions(timing_cache="c.json")}),
    ):
        with pytest.raises(InputError, match="c.json is an input file"):
            check_command_files(command, read | others)
    with pytest.raises(SystemExit):
        main(["export", "net.onnx", "--precision", "fp16", "--format", "trtexec", "-o", "-"])
    assert "to a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "options"),
    [
        ("net.sh", ["--calib-cache", "net.sh.cache", "--precision", "int8", "--format", "trtexec"]),
        ("net.py", ["--calib-cache", "net.py.cache", "--precision", "int8", "--format", "polygraphy"]),
        ("typed.onnx", ["--data", "typed.onnx.data", "--precision", "fp16", "--format", "onnx"]),
        ("typed", ["--data", "typed.base.onnx", "--precision", "fp16", "--format", "polygraphy"]),
        ("a.npz", ["--data", ".", "--precision", "fp16", "--format", "onnx"]),
        ("precision.json", ["--config", "precision.json", "--format", "trtexec"]),
    ],
)
def test_the_command_refuses_before_it_reads(output, options, tmp_path, monkeypatch, capsys):
    from trt_tui.cli.main import main

    monkeypatch.chdir(tmp_path)
    save(tmp_path / "net.onnx")
    np.savez("a.npz", x=np.zeros((1, 1), np.float32))
    for name in ("net.sh.cache", "net.py.cache", "typed.base.onnx", "precision.json", "typed.onnx.data"):
        Path(name).write_bytes(b"read")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as stop:
        main(["export", "net.onnx", *options, "-o", output])
    assert stop.value.code == 2 and "an input file" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
