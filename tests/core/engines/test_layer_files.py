"""The layers of an engine as files that scripts write and ``inspect --engine`` reads."""

import subprocess
import sys

import pytest

from tests import standins
from tests.cli.test_engine_cli import elsewhere
from tests.driven import save_resnet


@pytest.mark.parametrize("release", ["8.6.1", "rtx"])
def test_the_script_of_a_bundle_writes_what_inspect_reads(run, command, mlp, tmp_path, release):
    folder, engine = tmp_path / "bundle", tmp_path / "model.engine"
    code, _, err = run(
        *f"bundle {mlp.model} --data {mlp.data} --precision fp16 --for".split(),
        release.removesuffix(".1"),
        "-o",
        folder,
    )
    assert code == 0, err
    name = "rtx-1.7.1" if release == "rtx" else release
    backend = ("--backend", "tensorrt-rtx" if release == "rtx" else "tensorrt")
    done = command(
        name, "build", mlp.model, "--precision", "fp16", "-o", engine, "--shapes", "x:1x16:4x16:8x16", *backend
    )
    assert done.returncode == 0, done.stderr
    environment = standins.environment(name)
    written = subprocess.run(
        [sys.executable, folder / "layers.py", engine, tmp_path / "out.json"],
        text=True,
        capture_output=True,
        env={"PATH": "/usr/bin", **environment},
        timeout=60,
    )
    assert written.returncode == 0, written.stderr
    shown, read = (
        elsewhere(name, "inspect", mlp.model, "--engine", path, *backend) for path in (engine, tmp_path / "out.json")
    )
    assert shown.returncode == read.returncode == 0 and shown.stdout == read.stdout
    engine.write_bytes(b"damaged")
    written = subprocess.run(
        [sys.executable, folder / "layers.py", engine, tmp_path / "no.json"],
        text=True,
        capture_output=True,
        env={"PATH": "/usr/bin", **environment},
        timeout=60,
    )
    assert written.returncode == 1 and not (tmp_path / "no.json").exists()


def test_the_layers_that_trtexec_writes_are_read(run, tmp_path):
    options = save_resnet(tmp_path)
    model, data = options.model, options.data
    script = tmp_path / "t.sh"
    assert run("export", model, "--data", data, "--precision", "int8", "--format", "trtexec", "-o", script)[0] == 0
    tool = tmp_path / "trtexec"
    tool.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        "told = dict(word.partition('=')[::2] for word in sys.argv[1:])\n"
        "assert told['--profilingVerbosity'] == 'detailed' and told['--loadEngine' if '--loadEngine' in "
        "told else '--saveEngine'] == 't.sh.engine'\n"
        "layer = {'Name': '/conv1/Conv', 'LayerType': 'Convolution', 'Outputs': [], 'Inputs': "
        "[{'Name': 'image', 'Format/Datatype': 'Row major Int8 format'}]}\n"
        "import json\nopen(told['--exportLayerInfo'], 'w').write(json.dumps({'Layers': [layer]}))\n"
    )
    tool.chmod(0o755)
    subprocess.run(["sh", script, "10"], check=True, env={"PATH": "/usr/bin:/bin", "TRTEXEC": str(tool)}, timeout=60)
    code, out, err = run("inspect", model, "--engine", tmp_path / "t.sh.engine.graph.json")
    assert code == 0 and "INT8" in out, err
