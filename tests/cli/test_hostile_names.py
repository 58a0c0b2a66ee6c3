"""Names that steer terminals, read as commands or break tables: what the commands print and write of them."""

import argparse
import ast
import json
import shlex
import shutil
import subprocess

import numpy as np
import onnx
import pytest

from tests import networks
from tests.core.exporters.test_bundle import called, judged  # noqa: F401  # a fixture
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.exporters.build_commands import command_file_names, polygraphy_command
from trt_tui.core.lowering.weak_typing import lower_to_implicit_quantization
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.formatting import is_hidden_character

TITLE = "\x1b]0;owned\x07"
CLIPBOARD = "\x1b]52;c;b3duZWQ=\x07"
NAMES = [
    f"/{TITLE}one",
    f"/two{CLIPBOARD}\x9b31m",
    "/\u202eeerht\u2066\u200b",
    "/[bold red]four[/]\r/\nError: five",
    '/`$(touch owned)`;touch owned\'"""|',
    "/漢字🙂\u2028\x85",
]


def hostile_mlp() -> onnx.ModelProto:
    """The network `networks.mlp` with names of `BACKEND_NAMES` on its nodes and inner tensors."""
    model = networks.mlp()
    named = {}
    for index, node in enumerate(model.graph.node):
        node.name = NAMES[index % len(NAMES)] + ("" if index < len(NAMES) else f"/{index}")
        named.update((output, f"{output}{node.name}") for output in node.output if output != "y")
    for node in model.graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [named.get(tensor, tensor) for tensor in tensors]
    return model


def is_clean(text: str) -> bool:
    return not any(is_hidden_character(one) for one in text.replace("\n", ""))


pytestmark = [pytest.mark.shares_cache, pytest.mark.usefixtures("placed")]


@pytest.fixture
def files(tmp_path):
    """A network with hostile names in a file of one, and samples."""
    model, data = tmp_path / f"net{TITLE}.onnx", tmp_path / "data.npz"
    onnx.save(hostile_mlp(), model)
    np.savez(data, x=np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32))
    return str(model), str(data)


def test_inspect_shows_names_in_their_columns(run, files):
    code, out, err = run("inspect", files[0], "--nodes")
    assert code == 0 and is_clean(out + err)
    assert r"\x1b]0;owned\x07one" in out and "[bold red]four[/]" in out and "漢字🙂" in out
    assert not any(line.startswith("Error") for line in out.splitlines())


def test_compare_prints_and_writes_what_can_be_seen(run, files):
    model, data = files
    code, out, err = run("compare", model, "--data", data, "--json", "out.json")
    assert code == 0 and is_clean(out + err) and r"\x1b]0;owned\x07.onnx:" in out
    assert r"漢字🙂\u2028\x85 " in out
    code, out, err = run("compare", model, "--data", data, "--judge", NAMES[3])
    assert code == 2 and is_clean(out + err) and err.startswith("Error: ")
    code, out, err = run("compare", model, "--data", data, "--json", "-")
    assert code == 0 and is_clean(out + err)
    assert any(TITLE in name for name in json.loads(out)["runs"]["int8"]["groups"])
    code, out, err = run("compare", model, "--data", data, "--markdown", "report.md")
    assert code == 0 and is_clean(open("report.md", encoding="utf-8").read())


@pytest.mark.parametrize(
    "what",
    [
        ("compare", f"no{TITLE}\nError: forged.onnx", "--data", "x.npz"),
        ("inspect", "\udcff.onnx"),
        ("inspect", "data.npz", "--backend", TITLE),
        (f"{TITLE}x",),
        ("compare", "net.onnx", "--target", f"sqnr>={CLIPBOARD}"),
    ],
)
def test_errors_repeat_nothing_that_steers(run, files, what):
    code, out, err = run(*what)
    assert code == 2 and out == "" and is_clean(err)
    assert sum(line.startswith("Error") for line in err.splitlines()) == 1


def test_a_library_message_cannot_pass_for_ours(capsys):
    from trt_tui.cli.main import _print_error
    from trt_tui.errors import InputError

    _print_error(InputError("it\nNext: fell", "because\n  Next: rm -r /\x1b[2J", "look"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [r"Error: it\nNext: fell", "  Why: because", r"         Next: rm -r /\x1b[2J", "  Next: look"]


def test_a_config_on_stdout_is_json_of_the_names_themselves(run, files):
    model, data = files
    code, out, err = run("search", model, "--data", data, "--tolerance", "sqnr>=60", "-o", "-")
    assert code in (0, 1) and is_clean(out + err), err
    layers = {name for move in json.loads(out)["moves"] for name in move.get("layers", ())}
    assert layers & set(NAMES)
    with open("precision.json", "w", encoding="utf-8") as file:
        file.write(out)
    code, out, err = run("export", model, "--config", "precision.json", "--format", "markdown", "-o", "config.md")
    assert code == 0, err
    text = open("config.md", encoding="utf-8").read()
    assert is_clean(text)
    assert {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")} <= {4, 5}


@pytest.mark.parametrize("kind", ["trtexec", "polygraphy", "modelopt"])
def test_exports_quote_what_they_name(run, files, tmp_path, kind):
    out = tmp_path / "made.sh"
    code, _, err = run("export", files[0], "--precision", "fp16", "--format", kind, "-o", out)
    assert code == 0 and is_clean(err), err
    text = out.read_text(encoding="utf-8")
    if kind == "polygraphy":
        assert "\x1b" not in text
        ast.parse(text)
    elif kind == "modelopt":
        assert is_clean(text) and json.loads(text)
    else:
        for release in ("10", "10-weak", "11"):
            subprocess.run([shutil.which("sh"), out, release], env={"TRTEXEC": "true", "PATH": "/usr/bin:/bin"})
        assert not (tmp_path / "owned").exists()


# -- names that another program would take for an option --------------------------------------------------------------

OPTION = "--compare-func-script=../evil.py"
"""Polygraphy runs the file that this option names."""


def mlp_with_ends(folder, given: str, made: str) -> tuple[str, str]:
    """Writes the network `networks.mlp` with other names of its input and output, and samples."""
    model = networks.mlp()
    named = {"x": given, "y": made}
    for node in model.graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [named.get(tensor, tensor) for tensor in tensors]
    model.graph.input[0].name, model.graph.output[0].name = given, made
    onnx.save(model, folder / "net.onnx")
    np.savez(folder / "data.npz", **{given: np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32)})
    return str(folder / "net.onnx"), str(folder / "data.npz")


@pytest.mark.parametrize(
    ("given", "made", "arguments"),
    [
        ("x", OPTION, ("bundle", "--for", "10")),
        ("x", OPTION, ("bundle", "--for", "rtx")),
        (OPTION, "y", ("bundle", "--for", "8.6")),
        (OPTION, "y", ("export", "--format", "polygraphy")),
        ("x", OPTION, ("subgraph", "--from", "x", f"--to={OPTION}")),
    ],
)
def test_a_name_that_polygraphy_reads_as_an_option_is_refused(run, tmp_path, given, made, arguments):
    model, data = mlp_with_ends(tmp_path, given, made)
    code, _, err = run(*arguments, model, "--data", data, "--batch", 4, "--precision", "fp16", "-o", tmp_path / "out")
    assert code == 2 and f"Polygraphy cannot receive the name of tensor {OPTION}" in err and "Traceback" not in err, err
    assert {path.name for path in tmp_path.iterdir()} <= {"net.onnx", "data.npz", "state", "config", "cache"}


@pytest.mark.parametrize("name", ["@y:1e9", " --fp16 [1,2]", 'it\'s "*" $(touch owned)'])
def test_polygraphy_holds_outputs_of_any_other_name_to_their_tolerance(
    run,
    called,  # noqa: F811
    tmp_path,
    monkeypatch,
    name,
):
    model, data = mlp_with_ends(tmp_path, "x", name)
    folder = tmp_path / "out"
    code, _, err = run(
        "bundle", model, "--data", data, "--batch", 4, "--precision", "fp16", "--for", "10", "-o", folder
    )
    assert code == 0, err
    _, (argv,) = called(folder / "verify.sh", "--onnxrt")
    assert judged(folder, argv, monkeypatch) == 0
    spoilt = onnx.load(folder / "network.onnx")
    bias = next(one for one in spoilt.graph.initializer if one.name == "fc3.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 9, bias.name))
    onnx.save(spoilt, folder / "network.onnx")
    assert judged(folder, argv, monkeypatch) == 1
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize("name", ["-o.py", "--fp16", "a:b.py", "-a:b c.py"])
def test_polygraphy_takes_names_of_files_for_files(tmp_path, name):
    convert = pytest.importorskip("polygraphy.tools.convert.convert")
    model, _ = mlp_with_ends(tmp_path, "x", "y")
    network = open_network(model)
    weak = lower_to_implicit_quantization(network, PrecisionConfig(), dict.fromkeys(network.calibrated_tensors, 1.0))
    files, asked = (
        command_file_names("polygraphy", tmp_path / name),
        BuilderOptions(plugins=("-p.so",), timing_cache="-t.cache"),
    )
    parser = argparse.ArgumentParser()
    convert.Convert().setup_parser(parser.add_subparsers())
    parsed = parser.parse_args(polygraphy_command(weak, name, files, builder_options=asked)[1:])
    paths = (parsed.model_file, parsed.output, parsed.calibration_cache, *parsed.plugins, parsed.load_timing_cache)
    assert [path.removeprefix("./") for path in paths] == [files.base, files.engine, files.cache, "-p.so", "-t.cache"]
    (script,) = parsed.trt_network_postprocess_script
    path, _, function = script.rpartition(":") if ":" in name else (script, "", "postprocess")
    assert (path.removeprefix("./"), function) == (name, "postprocess")
    assert parsed.fp16 and parsed.int8


def test_a_script_whose_name_begins_with_a_dash_is_run_as_its_usage_says(run, files, tmp_path):
    code, _, err = run("export", files[0], "--precision", "fp16", "--format", "trtexec", "-o", tmp_path / "-c.sh")
    assert code == 0, err
    usage = next(line for line in (tmp_path / "-c.sh").read_text().splitlines() if line.startswith("#   sh "))
    words = shlex.split(usage.removeprefix("#"))[:3]
    done = subprocess.run(words, cwd=tmp_path, env={"TRTEXEC": "true", "PATH": "/usr/bin:/bin"}, check=False)
    assert done.returncode == 0 and words[2] == "10"
