"""The layers of an engine and their times, as files for ``inspect --engine`` and NVIDIA's TREx"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import standins
from tests.driven import save_resnet
from tests.test_engine_cli import elsewhere
from trt_tui.core.engines.trex import engine_graph_text, layer_profile_text
from trt_tui.errors import InputError

RECORDED = Path(__file__).parent / "inspector" / "8.6-h200-scenes-fp16.json"


def read_as_trex(graph: str, profile: str = "") -> tuple[list[str], dict[str, float]]:
    """What trex/parser.py and trex/activations.py take from the files: names of layers, and milliseconds by name."""
    read = json.loads(graph)
    assert read["Bindings"] and all(isinstance(name, str) for name in read["Bindings"])
    for layer in read["Layers"]:
        assert layer["LayerType"]
        for tensor in (*layer["Inputs"], *layer["Outputs"]):
            assert isinstance(tensor["Format/Datatype"], str) and tensor["Name"] and "Dimensions" in tensor
    entries = [entry for entry in json.loads(profile or "[]") if len(entry) in (4, 5)]
    return [layer["Name"] for layer in read["Layers"]], {entry["name"]: entry["averageMs"] for entry in entries}


def test_a_recorded_engine_of_8_6_keeps_its_layers():
    recorded = json.loads(RECORDED.read_text(), strict=False)
    names, _ = read_as_trex(engine_graph_text(RECORDED.read_text()))
    assert names == [layer["Name"] for layer in recorded["Layers"]]
    assert json.loads(engine_graph_text(RECORDED.read_text())) == recorded


def test_times_are_those_of_trtexec():
    read = json.loads(layer_profile_text({"a": 3.0, "b": 1.0}, 10))
    assert read == [{"count": 10}, {"name": "a", "timeMs": 30.0, "averageMs": 3.0, "percentage": 75.0},
                    {"name": "b", "timeMs": 10.0, "averageMs": 1.0, "percentage": 25.0}]
    assert json.loads(layer_profile_text({}, 10)) == [{"count": 10}]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"Layers": [{"Inputs": [1]}]}', '{"Layers": 1}', "[" * 100_000])
def test_what_is_no_layer_information_is_refused(text):
    with pytest.raises(InputError, match="not the layer information"):
        engine_graph_text(text)


@pytest.mark.parametrize("release", ["8.6.1", "10.16.1", "11.4.0"])
def test_build_leaves_the_layers_and_their_times(mlp, tmp_path, release):
    engine = tmp_path / "model.engine"
    graph, profile = (tmp_path / f"model.engine.{name}.json" for name in ("graph", "profile"))
    build = ("build", mlp.model, "--precision", "fp16", "-o", engine, "--backend", "tensorrt")
    done = elsewhere(release, *build, "--shapes", "x:1x16:4x16:8x16")
    assert done.returncode == 0 and "model.engine.profile.json is not written: the layers are timed on --data" in (
        done.stderr), done.stderr
    names, _ = read_as_trex(graph.read_text())
    assert names and not profile.exists()
    done = elsewhere(release, *build, "--data", mlp.data)
    assert done.returncode == 0 and "model.engine.profile.json: the times of its layers" in done.stderr, done.stderr
    names, times = read_as_trex(graph.read_text(), profile.read_text())
    assert times and times.keys() <= set(names)
    shown, read = (elsewhere(release, "inspect", mlp.model, "--engine", path) for path in (engine, graph))
    assert shown.returncode == read.returncode == 0 and shown.stdout == read.stdout, read.stderr
    done = elsewhere(release, *build[:2], *build[4:], "--config", graph)
    assert done.returncode == 2 and "graph.json" in done.stderr and "Next: " in done.stderr
    graph.unlink()
    graph.mkdir()
    engine.unlink()
    done = elsewhere(release, *build)
    assert done.returncode == 2 and "graph.json" in done.stderr and not engine.exists()


@pytest.mark.parametrize("release", ["8.6.1", "rtx"])
def test_the_script_of_a_bundle_writes_what_inspect_reads(run, mlp, tmp_path, release):
    folder, engine = tmp_path / "bundle", tmp_path / "model.engine"
    code, _, err = run("export", mlp.model, "--data", mlp.data, "--precision", "fp16", "--format", "bundle", "--for",
                       release.removesuffix(".1"), "-o", folder)
    assert code == 0, err
    name = "rtx-1.7.1" if release == "rtx" else release
    backend = ("--backend", "tensorrt-rtx" if release == "rtx" else "tensorrt")
    done = elsewhere(name, "build", mlp.model, "--precision", "fp16", "-o", engine, "--shapes", "x:1x16:4x16:8x16",
                     *backend)
    assert done.returncode == 0, done.stderr
    environment = standins.environment(name)
    written = subprocess.run([sys.executable, folder / "layers.py", engine, tmp_path / "out.json"], text=True,
                             capture_output=True, env={"PATH": "/usr/bin", **environment}, timeout=60)
    assert written.returncode == 0, written.stderr
    shown, read = (elsewhere(name, "inspect", mlp.model, "--engine", path, *backend)
                   for path in (engine, tmp_path / "out.json"))
    assert shown.returncode == read.returncode == 0 and shown.stdout == read.stdout
    engine.write_bytes(b"damaged")
    written = subprocess.run([sys.executable, folder / "layers.py", engine, tmp_path / "no.json"], text=True,
                             capture_output=True, env={"PATH": "/usr/bin", **environment}, timeout=60)
    assert written.returncode == 1 and not (tmp_path / "no.json").exists()


def test_the_layers_that_trtexec_writes_are_read(run, tmp_path):
    options = save_resnet(tmp_path)
    model, data = options.model, options.data
    script = tmp_path / "t.sh"
    assert run("export", model, "--data", data, "--precision", "int8", "--format", "trtexec", "-o", script)[0] == 0
    tool = tmp_path / "trtexec"
    tool.write_text(f"#!{sys.executable}\nimport shutil, sys\n"
                    "told = dict(word.partition('=')[::2] for word in sys.argv[1:])\n"
                    "assert told['--profilingVerbosity'] == 'detailed' and told['--loadEngine' if '--loadEngine' in "
                    "told else '--saveEngine'] == 't.sh.engine'\n"
                    "layer = {'Name': '/conv1/Conv', 'LayerType': 'Convolution', 'Outputs': [], 'Inputs': "
                    "[{'Name': 'image', 'Format/Datatype': 'Row major Int8 format'}]}\n"
                    "import json\nopen(told['--exportLayerInfo'], 'w').write(json.dumps({'Layers': [layer]}))\n")
    tool.chmod(0o755)
    subprocess.run(["sh", script, "10"], check=True, env={"PATH": "/usr/bin:/bin", "TRTEXEC": str(tool)}, timeout=60)
    code, out, err = run("inspect", model, "--engine", tmp_path / "t.sh.engine.graph.json")
    assert code == 0 and "INT8" in out, err
