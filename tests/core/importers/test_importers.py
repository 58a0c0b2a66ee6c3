"""trt_tui.core.importers: what other tools were told, as a config"""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import isolate
from trt_tui.core.calibration.cache import write_calibration_cache
from trt_tui.core.exporters import formats
from trt_tui.core.importers import any_config
from trt_tui.core.importers.any_config import read_any_config
from trt_tui.core.importers.imported_settings import ImportedSettings, apply_precision_flags, build_config
from trt_tui.core.importers.modelopt import (
    ModelOptCall,
    find_modelopt_calls,
    find_modelopt_commands,
    is_modelopt_record,
    read_modelopt_calls,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import config_text
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError

FP32, FP16, BF16, INT8, FP8 = (Precision(word) for word in ("fp32", "fp16", "bf16", "int8", "fp8"))
CONVS = (
    "/conv1/Conv",
    "/layer1/conv1/Conv",
    "/layer1/conv2/Conv",
    "/layer2/conv1/Conv",
    "/layer2/conv2/Conv",
    "/layer2/downsample.0/Conv",
)
FC, POOL = "/fc/Gemm", "/avgpool/GlobalAveragePool"


@pytest.mark.parametrize("is_bundle", [True, False])
def test_only_a_folder_with_a_config_is_told_where_its_config_is(network, tmp_path, is_bundle):
    (tmp_path / "bundle").mkdir()
    if is_bundle:
        (tmp_path / "bundle/precision.json").write_text("{}")
    with pytest.raises(InputError) as error:
        read_any_config(tmp_path / "bundle", network)
    assert (str(tmp_path / "bundle/precision.json") in error.value.next_step) is is_bundle


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("importers") / "net.onnx"
    onnx.save(networks.small_resnet(), path)
    return open_network(path)


def read(network, folder, name, text, **more):
    (folder / name).write_text(text if isinstance(text, str) else json.dumps(text))
    return read_any_config(folder / name, network, **more)


def script(body):
    lines = "\n".join("        " + line for line in body.strip().splitlines())
    return (
        f"import re\nimport tensorrt as trt\nKEEP = ['/conv1/Conv', '/fc/Gemm']\n\ndef postprocess(network):\n    "
        f"for layer in network:\n{lines}\n"
    )


# name of the file, its text, defaults, the rows that differ, what is said of what was not read
CASES = [
    (
        "line",
        "trtexec --onnx=a.onnx --fp16 --int8 --precisionConstraints=obey --layerPrecisions=/conv1/Conv:fp32,"
        "/fc/Gemm:fp16 --noTF32",
        (INT8, FP16, False),
        {CONVS[0]: FP32, FC: FP16},
        "",
    ),
    ("best.txt", "--best --layerPrecisions='/fc/Gemm:fp32'", (INT8, FP16, True), {FC: FP32}, ""),
    (
        "fp16",
        "trtexec --fp16 --layerPrecisions=*:fp32,*conv1*:fp16 --precisionConstraints=obey --noTF32 --verbose",
        (FP16, FP16, False),
        dict.fromkeys({*CONVS, FC, POOL} - {CONVS[0], CONVS[1], CONVS[3]}, FP32),
        "--verbose",
    ),
    (
        "many.sh",
        '#!/bin/sh\nT=trtexec\nKEEP=/fc/Gemm:fp32\n# trtexec --fp8\n"$T" --help\ntrtexec --fp16\n'
        "trtexec --int8 \\\n  --layerPrecisions=${KEEP} \\\n  --calib=absent.cache\n",
        (INT8, FP32, True),
        {FC: FP32},
        "absent.cache",
    ),
    (
        "made.txt",
        "trtexec --int8 --layerPrecisions='(Unnamed Layer* 3) [Shuffle]':fp32,/fc/Gemm:int32,x --noTF32",
        (INT8, FP32, False),
        {},
        "TensorRT adds",
    ),
    (
        "conv.sh",
        "polygraphy convert a.onnx --fp16 --int8 --layer-precisions /conv1/Conv:float32 /fc/Gemm:float16 -o e",
        (INT8, FP16, False),
        {CONVS[0]: FP32, FC: FP16},
        "",
    ),
    (
        "a.py",
        script("if layer.name in ('/conv1/Conv', '/fc/Gemm'):\n    layer.precision = trt.float32"),
        (FP16, FP16, False),
        {CONVS[0]: FP32, FC: FP32},
        "",
    ),
    (
        "b.py",
        script(
            "if layer.name in KEEP or layer.name == '/avgpool/GlobalAveragePool':\n"
            "    layer.precision = trt.DataType.FLOAT\n    for index in range(layer.num_outputs):\n"
            "        layer.set_output_type(index, trt.float32)"
        ),
        (FP16, FP16, False),
        {CONVS[0]: FP32, FC: FP32, POOL: FP32},
        "",
    ),
    (
        "missing.py",
        script("if layer.name in ['/conv1/Con', '/fc/Gemm', 'zzz']:\n    layer.precision = trt.float32"),
        (FP16, FP16, False),
        {FC: FP32},
        "/conv1/Con: net.onnx has no such layer; did you mean /conv1/Conv?",
    ),
    (
        "helper.py",
        "import tensorrt as trt\n\ndef raise_layers(net):\n    names = ('/fc/Gemm',)\n    for i in "
        "range(net.num_layers):\n        if net.get_layer(i).name in names:\n"
        "            net.get_layer(i).precision = trt.bfloat16\n\ndef postprocess(network):\n    raise_layers(network)\n"
        "\ndef other(network):\n    network[0].precision = trt.int8\n",
        (BF16, BF16, False),
        {},
        "",
    ),
    (
        "m.json",
        {
            "quantize_mode": "int8",
            "nodes_to_exclude": ["/conv1/Conv$"],
            "op_types_to_exclude": ["Gemm", "LSTM"],
            "verbose": True,
        },
        (INT8, FP16, False),
        {CONVS[0]: FP16, FC: FP16},
        "LSTM",
    ),
    (
        "m.yaml",
        "quantize_mode: fp8\nop_types_to_quantize: [Conv]\nhigh_precision_dtype: fp32\n",
        (FP8, FP32, False),
        {FC: FP32},
        "",
    ),
    (
        "both.json",
        {"quantize": {"nodes_to_quantize": ["/layer1/"]}, "autocast": {"nodes_to_exclude": ["/conv1/"]}},
        (INT8, FP16, False),
        {**dict.fromkeys((*CONVS[3:], FC), FP16), CONVS[0]: FP32},
        "",
    ),
    (
        "mo.sh",
        "python -m modelopt.onnx.quantization --onnx_path=a.onnx --quantize_mode=int8 \\\n --nodes_to_exclude "
        "'/conv1/.*' '/fc' --op_types_to_exclude GlobalAveragePool --high_precision_dtype bf16\n",
        (INT8, BF16, False),
        {CONVS[0]: BF16, FC: BF16},
        "onnx_path",
    ),
    (
        "call.py",
        "from modelopt.onnx.quantization import quantize\nNAMES = ('/conv1/Conv$', '/fc')\n"
        "quantize('a.onnx', 'int8', calibration_data=load(), nodes_to_exclude=NAMES, calibration_method='entropy')\n",
        (INT8, FP16, False),
        {CONVS[0]: FP16, FC: FP16},
        "calibration_data",
    ),
    (
        "call_in_function",
        "import modelopt.onnx.quantization as moq\n\ndef main(path):\n    types = ['Gemm']\n"
        "    moq.quantize(onnx_path=path, quantize_mode='fp8', op_types_to_exclude=types, high_precision_dtype='fp32')\n",
        (FP8, FP32, False),
        {FC: FP32},
        "onnx_path",
    ),
    (
        "a_part.txt",
        "modelopt.onnx.quantization.quantize(\n    'a.onnx', **{'nodes_to_quantize': ['/layer1/']})\n",
        (INT8, FP16, False),
        dict.fromkeys((CONVS[0], *CONVS[3:], FC), FP16),
        "onnx_path",
    ),
    ("without_import", "quantize(quantize_mode='int8', nodes_to_exclude=['/fc'])", (INT8, FP16, False), {FC: FP16}, ""),
    (
        "cast.py",
        "from modelopt.onnx.autocast import convert_to_mixed_precision\nconvert_to_mixed_precision('a.onnx', "
        "'bf16', ['/conv1/Conv'])",
        (BF16, BF16, False),
        {CONVS[0]: FP32},
        "onnx_path",
    ),
    (
        "build.py",
        "import json\nimport tensorrt as trt\nHEAD = json.loads('[\"/conv1/Conv\"]')\n"
        "builder = trt.Builder(LOGGER)\nnet = builder.create_network(0)\nif not parse(net):\n    raise SystemExit\n"
        "config = builder.create_builder_config()\nif builder.platform_has_fast_fp16:\n"
        "    config.set_flag(trt.BuilderFlag.FP16)\nconfig.flags |= 1 << int(trt.BuilderFlag.INT8)\n"
        "config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)\nconfig.clear_flag(trt.BuilderFlag.TF32)\n"
        "for i in range(len(net)):\n    print(net[i])\n    if net[i].name in HEAD:\n"
        "        net[i].precision = trt.float32\n",
        (INT8, FP16, False),
        {CONVS[0]: FP32},
        "",
    ),
    (
        "flags.py",
        "config = builder.create_builder_config()\nconfig.set_flag(trt.BuilderFlag.FP16)\n",
        (FP16, FP16, True),
        {},
        "",
    ),
]


@pytest.mark.parametrize(("name", "text", "defaults", "rows", "unread"), CASES, ids=[case[0] for case in CASES])
def test_what_another_tool_was_told(network, tmp_path, name, text, defaults, rows, unread):
    loaded = read(network, tmp_path, name, text)
    config = loaded.config
    assert (config.quantized, config.other, config.tf32) == defaults
    assert {
        group.name: precision
        for group in network.groups
        if (precision := config.precision_of(group)) is not config.default_precision_of(group)
    } == {
        name: precision
        for name, precision in rows.items()
        if precision is not config.default_precision_of(network.get_group(name))
    }
    assert loaded.warnings[0].startswith(f"{name}: read as ")
    listed = [line for line in loaded.warnings if ": not read: " in line]
    assert (
        any(unread in line for line in listed)
        if unread
        else not [line for line in listed if "no precision settings" not in line]
    )


@pytest.mark.parametrize(
    ("name", "text", "title", "said"),
    [
        ("a.txt", "trtexec --int8 --layerPrecisions=/conv1/Con:fp32", "does not have", "Did you mean /conv1/Conv"),
        ("b.sh", "trtexec --onnx=a.onnx", "sets no precisions", ""),
        ("c.sh", "trtexec --int8 --layerPrecisions='a:fp32", "no command line", "quotes"),
        ("d.sh", "trtexec --stronglyTyped --fp16 --onnx=a.onnx", "strongly typed", "--precision file"),
        ("e.py", "def postprocess(network:\n", "not readable Python", "line 1"),
        ("f.py", "import os\nos.system('touch ran')\n", "sets no precisions", ""),
        ("g.json", {"nodes_to_exclude": ["("]}, "not a pattern", "re.match"),
        ("h.json", {"nodes_to_exclude": [1]}, "nodes_to_exclude[0] is 1", "`str`"),
        ("i.json", {"quantize_mode": "int3"}, "'int3'", "int8"),
        ("j.json", '{"nodes_to_exclude": [', "not valid JSON", "line 1"),
        ("k.yaml", "just: a\nmapping: b\n", "not a file that --config can read", "trtexec"),
        (
            "typed.py",
            "net = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))\n"
            "config.set_flag(trt.BuilderFlag.TF32)\nlayer.precision = x",
            "strongly typed",
            "--precision file",
        ),
        (
            "modelopt.py",
            "from modelopt.onnx.quantization import quantize\nquantize('a.onnx', nodes_to_exclude=[1])\n",
            "nodes_to_exclude",
            "`str`",
        ),
        (
            "computed.py",
            "from modelopt.onnx import quantization\nnames = []\nnames.append('/fc')\n"
            "quantization.quantize(nodes_to_exclude=names, op_types_to_exclude=['Gemm'])\n",
            "quantize is not a literal",
            "line 4: nodes_to_exclude: names",
        ),
        (
            "stars.py",
            "from modelopt.onnx.quantization import quantize\nquantize('a.onnx', **load())\n",
            "not a literal",
            "line 2: **: load()",
        ),
        ("build.cpp", "// trtexec --fp16\nint main() {}\n", "build.cpp is C++, which is not read", "trtexec line"),
        ("build", "#include <NvInfer.h>\n// trtexec --fp16\n", "build is C++, which is not read", "trtexec line"),
        (
            "elsewhere.py",
            script("if layer.name in ['absent']:\n    layer.precision = trt.float32"),
            "does not have",
            "absent",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(network, tmp_path, monkeypatch, name, text, title, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        read(network, tmp_path, name, text)
    assert title in refused.value.title and said in str(refused.value) and not (tmp_path / "ran").exists()


LISTED = "if layer.name in KEEP:\n    layer.precision = trt.float32\n"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("layer.precision = os.system('touch ran')", 7),
        ("layer.precision = trt.float32", 7),
        ("if 'conv' in layer.name:\n    layer.precision = trt.float32", 8),
        ("if any(word in layer.name for word in KEEP):\n    layer.precision = trt.float32", 8),
        ("if layer.name in KEEP and kind(layer):\n    layer.precision = trt.float32", 8),
        ("if layer.get_output(0).name in KEEP:\n    layer.precision = trt.float32", 8),
        ("if layer.name not in KEEP:\n    continue\nlayer.precision = trt.float32", 8),
        (LISTED + "else:\n    layer.precision = trt.float32", 10),
        (LISTED + "    break", 9),
        (LISTED + "if layer.name in ['/conv2/Conv']:\n    layer.precision = trt.float16", 10),
        (
            LISTED + "for index in range(count):\n    if layer.name in KEEP[index:]:\n"
            "        layer.precision = trt.float32",
            11,
        ),
        (LISTED + "    layer.get_input(0).dynamic_range = (-2.5, 2)", 9),
        (LISTED + "fix(layer)", 9),
        (LISTED + "setattr(layer, 'precision', trt.float32)", 9),
        (LISTED + "KEEP.append('/x')", 8),
        (LISTED + "if fast:\n    config.set_flag(trt.BuilderFlag.INT8)", 10),
        (LISTED + "flags = [trt.BuilderFlag.INT8]", 9),
        (LISTED + "config.flags |= (1 << int(trt.BuilderFlag.INT8)) if fast else 0", 9),
    ],
)
def test_a_script_of_another_form_is_refused_with_its_line(network, tmp_path, monkeypatch, body, line):
    """A setting that is left out would change the verdict."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        read(network, tmp_path, "s.py", script(body))
    assert f"line {line}: " in refused.value.cause and not (tmp_path / "ran").exists()


def test_a_command_and_a_call_of_modelopt_have_the_same_arguments(network):
    """The call with the most names in its lists is used."""
    arguments = {"onnx_path": "a.onnx", "quantize_mode": "int8", "nodes_to_exclude": ["/conv1/Conv", "/fc"]}
    path = Path("a.py")
    command = "# modelopt.onnx.quantization -ne /none\npython -m modelopt.onnx.quantization --onnx_path a.onnx \\\n"
    command += " --quantize_mode=int8 -ne /conv1/Conv /fc\n"
    call = "from modelopt.onnx.quantization import quantize\nquantize('a.onnx', 'int8', nodes_to_exclude=NAMES)\n"
    call += "NAMES = ('/conv1/Conv', '/fc')\nquantize('b.onnx', 'fp8')\n"
    other = ModelOptCall("quantize", 4, {"onnx_path": "b.onnx", "quantize_mode": "fp8"})
    calls = find_modelopt_calls(call, path)
    assert calls == [ModelOptCall("quantize", 2, arguments), other]
    assert find_modelopt_commands(command, path) == calls[:1] and find_modelopt_calls(command, path) == []
    assert is_modelopt_record({"quantize": arguments}) and not is_modelopt_record({"onnx_path": "a.onnx"})
    settings = read_modelopt_calls(calls[::-1], network, path)
    assert (settings.quantized, settings.other) == (INT8, FP16)
    unquantized = {CONVS[0], FC, *(group.name for group in network.groups if not group.is_quantizable)}
    assert settings.layer_precisions == dict.fromkeys(unquantized, FP16)


def test_settings_become_the_config_of_a_network(network):
    tensor = network.calibrated_tensors[0]
    settings = ImportedSettings("a tool", layer_precisions={CONVS[0]: FP32, FC: FP16, POOL: INT8})
    settings.ranges, settings.unread_lines = {tensor: 2.0, "/absent": 1.0}, ["--last"]
    apply_precision_flags(settings, ["fp16"], ["int8", "fp8"])
    loaded = build_config(settings, network, "a.txt")
    assert (loaded.config.quantized, loaded.config.other) == (INT8, FP16)
    precisions = loaded.config.precision_by_group(network)
    assert {name: precisions[name] for name in (*CONVS[:2], FC, POOL)} == dict(
        zip((*CONVS[:2], FC, POOL), (FP32, INT8, FP16, FP16), strict=True)
    )
    assert loaded.calibration.ranges == {tensor: 2.0}
    unread = [line for line in loaded.warnings if line.startswith("a.txt: not read: ")]
    assert len(unread) == 3 and all(any(name in line for line in unread) for name in ("--last", "--fp8", POOL))
    settings.layer_precisions["/absent"] = FP32
    with pytest.raises(InputError, match="absent"):
        build_config(settings, network, "a.txt")


@pytest.mark.parametrize("name", ["a.sh", "a.yaml", "a.txt", "a.py", "a"])
def test_a_config_is_known_by_its_content(network, tmp_path, name):
    config = PrecisionConfig.from_precision(INT8).with_group_precision([network.groups[0]], FP16)
    assert read(network, tmp_path, name, config_text(network, config)).config == config


def test_names_that_are_not_there_are_left_out_by_force(network, tmp_path):
    loaded = read(network, tmp_path, "a.txt", CASES[0][1] + ",/absent:fp32", force=True)
    assert loaded.config.precision_moves.keys() == {CONVS[0], FC} and any("/absent" in line for line in loaded.warnings)


def test_a_cache_beside_a_line_is_taken(network, tmp_path):
    write_calibration_cache(tmp_path / "x.cache", dict.fromkeys(network.calibrated_tensors, 2.0), "MinMaxCalibration")
    loaded = read(network, tmp_path, "line", "trtexec --int8 --calib=x.cache")
    assert set(loaded.calibration.ranges) == set(network.calibrated_tensors) and loaded.calibration.method == "minmax"


@pytest.mark.parametrize("kind", ["trtexec", "polygraphy", "modelopt"])
def test_what_is_exported_is_read_back(network, tmp_path, kind):
    """Ranges too, as far as the format has them."""
    groups = {group.name: group for group in network.groups}
    config = PrecisionConfig.from_precision(INT8).with_group_precision([groups[CONVS[0]], groups[FC]], FP16)
    config = config.with_group_precision([groups[CONVS[2]]], FP32)
    ranges = dict.fromkeys(network.calibrated_tensors, 3.0)
    path = tmp_path / {"trtexec": "t.sh", "polygraphy": "p.py", "modelopt": "m.json"}[kind]
    formats.write_export(kind, path, network, config, ranges)
    loaded = read_any_config(path, network)
    assert loaded.config.precision_by_group(network) == config.precision_by_group(network)
    if kind != "modelopt":
        found = list(loaded.calibration.ranges.values())
        assert found and found == pytest.approx([3.0] * len(found))
    assert not [line for line in loaded.warnings if "not read" in line and "settings" not in line], loaded.warnings


def test_commands_start_from_it_and_list_what_was_not_read(network, run, monkeypatch, tmp_path, tmp_path_factory):
    isolate(monkeypatch, tmp_path, cache=tmp_path_factory.getbasetemp() / "cache")
    np.savez(tmp_path / "d.npz", image=networks.random_images(np.random.default_rng(0), (8, 3, 32, 32)))
    (tmp_path / "l.sh").write_text(CASES[0][1] + " --saveEngine=e")
    code, out, err = run(
        "compare", network.path, "--data", tmp_path / "d.npz", "--config", tmp_path / "l.sh", "--layers", "none"
    )
    assert code == 0 and "\nconfig " in out, err
    assert "Warning: l.sh: read as a command of trtexec" in err and "not read: --saveEngine" in err
    (tmp_path / "l.bin").write_bytes(b"\xff\xfe\x00\x01")
    code, _, err = run(
        "export", network.path, "--config", tmp_path / "l.bin", "--format", "markdown", "-o", tmp_path / "o.md"
    )
    assert code == 2 and "l.bin" in err and not (tmp_path / "o.md").exists()


def test_only_a_python_file_has_the_size_limit_of_scripts(network, tmp_path, monkeypatch):
    monkeypatch.setattr(any_config, "MAX_SCRIPT_BYTES", 40)
    command = "trtexec --onnx=a.onnx --fp16 --precisionConstraints=obey"
    assert read(network, tmp_path, "command.txt", command).config.quantized is FP16
    with pytest.raises(InputError, match="too large"):
        read(network, tmp_path, "command.py", command)
