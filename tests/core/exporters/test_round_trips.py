"""Files that the program writes, given to who reads them: the program itself, Polygraphy, ONNX Runtime and its tools"""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests import networks
from tests.benchmarks.round_trips import CELLS, QUICK, every_kind, every_move, matched, say, write_all
from tests.texts import lacking
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.exporters import formats
from trt_tui.core.exporters.onnx import export_typed_network, qdq_loss_debug_note
from trt_tui.core.importers.any_config import read_any_config
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError

FP32, FP16, BF16, INT8, FP8 = (Precision(word) for word in ("fp32", "fp16", "bf16", "int8", "fp8"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("written"))


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    path = tmp_path_factory.mktemp("resnet") / "net.onnx"
    onnx.save(networks.small_resnet(), path)
    return open_network(path)


@pytest.mark.parametrize("reader", QUICK)
def test_readers_take_what_is_written(written, reader):
    cells = {row: wanted for (row, name), wanted in CELLS.items() if name == reader}
    said = {row: say(written, row, reader, QUICK) for row in cells}
    assert cells and not {row: text for row, text in said.items() if not all(part in text for part in cells[row])}


@pytest.mark.parametrize("kind", ["trtexec", "polygraphy", "modelopt"])
def test_configs_of_every_mixture_come_back(resnet, tmp_path, kind):
    """Precisions, TF32, the float type around INT8, and the ranges that INT8 layers read."""
    ranges = {tensor: 1.0 + place for place, tensor in enumerate(resnet.calibrated_tensors)}
    for trial in range(12):
        random = np.random.default_rng(trial)
        around = (FP16, FP32, BF16)[trial % 3]
        config = PrecisionConfig(INT8, around, bool(trial % 2))
        chosen = [group for group in resnet.groups if random.random() < trial / 12]
        other = FP32 if trial % 4 < 2 else FP16 if around is not BF16 else BF16
        config = config.with_group_precision([group for group in chosen if other in group.allowed_precisions], other)
        path = tmp_path / f"{kind}{trial}"
        try:
            formats.write_export(kind, path, resnet, config, ranges)
        except InputError as error:
            assert "in FP32" in error.cause
            continue
        loaded = read_any_config(path, resnet)
        told = config.precision_by_group(resnet)
        assert loaded.config.precision_by_group(resnet) == told and loaded.config.tf32 == config.tf32
        assert loaded.config.other is around or INT8 not in told.values()
        used = {site.tensor for group in resnet.groups for site in group.calibrated_qdq_sites(told[group.name])}
        assert used <= loaded.calibration.ranges.keys() or INT8 not in told.values()
        assert all(loaded.calibration.ranges[name] == pytest.approx(ranges[name], rel=1e-6) for name in used)
        assert not [line for line in loaded.warnings if "not read" in line and "no precision settings" not in line]


def test_a_format_says_what_it_casts_otherwise(resnet, tmp_path):
    config = PrecisionConfig(INT8, FP16).with_group_precision([resnet.get_group("/fc/Gemm")], BF16)
    formats.write_export("modelopt", tmp_path / "m", resnet, config, dict.fromkeys(resnet.calibrated_tensors, 1.0))
    assert any("1 row in BF16" in line for line in read_any_config(tmp_path / "m", resnet).warnings)


# -- commands and scripts by content ---------------------------------------------------------------------------------

_SCRIPT = (
    "import tensorrt as trt\n\ndef {name}(network):\n    for layer in network:\n"
    "        if layer.name == '/fc/Gemm':\n            layer.precision = trt.float32\n"
)


@pytest.mark.parametrize(
    ("command", "quantized", "tf32", "rows", "said"),
    [
        ("polygraphy convert m.onnx --fp16 --int8 -o e", INT8, False, set(), "on random inputs"),
        ("polygraphy run m.onnx --trt --tf32 --fp16", FP16, True, set(), ""),
        (
            "python3 -m polygraphy -v convert m.onnx --int8 --fp16 --data-loader-script d.py",
            INT8,
            False,
            set(),
            "on the samples of its data loader",
        ),
        (
            "polygraphy convert m.onnx --fp16 --trt-network-postprocess-script p.py",
            FP16,
            False,
            {"/fc/Gemm"},
            "only with --precision-constraints",
        ),
        (
            "polygraphy convert m.onnx --fp16 --trt-npps q.txt:raise_fc --precision-constraints obey",
            FP16,
            False,
            {"/fc/Gemm"},
            "",
        ),
        (
            "--fp16 --layer-precisions /fc/Gemm:float32 --precision-constraints prefer",
            FP16,
            False,
            {"/fc/Gemm"},
            "prefer allows TensorRT another precision",
        ),
        (
            "trtexec --fp16 --layerPrecisions=/fc/Gemm:fp32 --precisionConstraints=prefer",
            FP16,
            True,
            {"/fc/Gemm"},
            "prefer allows TensorRT another precision",
        ),
        (
            "trtexec --fp16 --layerPrecisions=/fc/Gemm:fp32 --precisionConstraints=none",
            FP16,
            True,
            {"/fc/Gemm"},
            "only with --precisionConstraints",
        ),
        ("trtexec --fp16 --layerPrecisions=/fc/Gemm:fp32 --strictTypeConstraints", FP16, True, {"/fc/Gemm"}, ""),
        ("polygraphy run m.onnx --trt --fp16 --trt-npps p.py --strict-types", FP16, False, {"/fc/Gemm"}, ""),
        (
            "trtexec --onnx=m.onnx --int8 --fp16",
            INT8,
            True,
            set(),
            "invents the INT8 ranges for --int8 without --calib",
        ),
        ("trtexec --onnx=m.onnx --best --noTF32", INT8, False, set(), "invents the INT8 ranges for --best"),
        ("trtexec --onnx=q.onnx --int8 --noTF32", INT8, False, set(), "q.onnx has its own Q/DQ nodes"),
        ("polygraphy convert m.onnx --fp16 --trt-config-postprocess-script c.py", FP16, False, set(), "is unknown"),
    ],
)
@pytest.mark.parametrize("name", ["run.sh", "notes"])
def test_a_command_has_the_defaults_of_its_tool(resnet, tmp_path, command, quantized, tf32, rows, said, name):
    (tmp_path / "p.py").write_text(_SCRIPT.format(name="postprocess"))
    (tmp_path / "q.txt").write_text(_SCRIPT.format(name="raise_fc"))
    (tmp_path / "q.onnx").write_bytes(b"...QuantizeLinear...")
    (tmp_path / name).write_text(command + "\n")
    loaded = read_any_config(tmp_path / name, resnet)
    assert (loaded.config.quantized, loaded.config.tf32) == (quantized, tf32)
    raised = {group.name for group in resnet.groups if loaded.config.precision_of(group) is FP32}
    assert raised == rows or not rows and raised <= {group.name for group in resnet.groups if not group.is_quantizable}
    tool = "Polygraphy" if "polygraphy" in command or "layer-precisions" in command else "trtexec"
    assert loaded.warnings[0].startswith(f"{name}: ") and f" {tool}: " in loaded.warnings[0]
    made_up = (
        "random inputs",
        "invents",
        "of its data loader",
        "Q/DQ nodes",
        "only with",
        "is unknown",
        "prefer allows TensorRT another precision",
        "strict",
    )
    assert [part for part in made_up if part in " ".join(loaded.warnings)] == [part for part in made_up if part in said]


def test_the_ranges_of_a_command_for_a_quantized_network_are_those_of_its_file(tmp_path):
    onnx.save(networks.quantized(), tmp_path / "q.onnx")
    (tmp_path / "run.sh").write_text("trtexec --onnx=elsewhere.onnx --int8 --fp16\n")
    warnings = " ".join(read_any_config(tmp_path / "run.sh", open_network(tmp_path / "q.onnx")).warnings)
    assert "invents" not in warnings and "open it instead" not in warnings


@pytest.mark.parametrize(
    ("command", "title", "next_step"),
    [
        (
            "polygraphy convert m.onnx --fp16 --trt-npps absent.py",
            "names the script absent.py, which is not there",
            "beside",
        ),
        ("polygraphy convert m.onnx --strongly-typed --fp16", "strongly typed", "--precision file"),
        (
            "export POLYGRAPHY_USE_TENSORRT_RTX=1\npolygraphy convert m.onnx --fp16",
            "strongly typed",
            "--precision file",
        ),
        ("TRT-8601-EntropyCalibration2\nx: 3f800000", "is a calibration cache", "--calib-cache"),
    ],
)
def test_a_file_that_holds_no_config_names_the_way_out(resnet, tmp_path, command, title, next_step):
    (tmp_path / "file").write_text(command)
    with pytest.raises(InputError) as refused:
        read_any_config(tmp_path / "file", resnet)
    assert title in refused.value.title and next_step in refused.value.next_step


def test_a_script_is_known_under_any_name(resnet, tmp_path):
    groups = {group.name: group for group in resnet.groups}
    config = PrecisionConfig.from_precision(INT8, FP16).with_group_precision([groups["/fc/Gemm"]], FP32)
    formats.write_export(
        "polygraphy",
        tmp_path / "pg.sh",
        resnet,
        replace(config, tf32=True),
        dict.fromkeys(resnet.calibrated_tensors, 2.0),
        calibration=Calibration("minmax"),
    )
    loaded = read_any_config(tmp_path / "pg.sh", resnet)
    assert "Polygraphy script" in loaded.warnings[0] and loaded.config.tf32
    assert loaded.config.precision_moves.keys() == {"/fc/Gemm"} and loaded.calibration.method == "minmax"


def test_an_edited_export_counts_as_it_was_edited(written, tmp_path):
    """What stands beside the line gives way to it."""
    text = (written.folder / "build").read_text()
    assert "# NOT_TOLD = {" in text
    path = written.folder / "edited"
    path.write_text(text.replace("/right/MatMul:fp32", "/right/MatMul:fp16").replace("--fp16 ", ""))
    loaded = read_any_config(path, written.network)
    assert loaded.config.precision_of(written.network.get_group("/right/MatMul")) is FP16


# -- ModelOpt --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "precisions", "said"),
    [
        (
            {"quantize_mode": "int8", "op_types_to_exclude_fp16": ["GlobalAveragePool"], "nodes_to_exclude": ["/fc/"]},
            {"/avgpool/GlobalAveragePool": FP32, "/fc/Gemm": FP16, "/conv1/Conv": INT8},
            "its own rules",
        ),
        (
            {"quantize_mode": "int8", "op_types_to_exclude_fp16": ["Conv"]},
            {"/conv1/Conv": INT8},
            "FP32 around /conv1/Conv",
        ),
        (
            {"quantize_mode": "int8", "op_types_to_exclude_fp16": ["Relu"]},
            {"/conv1/Conv": INT8},
            "'Relu': it is fused with other layers",
        ),
        (
            {"quantize_mode": "int8", "op_types_to_exclude_fp16": ["Gemm"], "high_precision_dtype": "fp32"},
            {"/fc/Gemm": INT8},
            "",
        ),
        (
            {"low_precision_type": "bf16", "nodes_to_exclude": ["/layer"], "nodes_to_include": ["/layer1/conv1"]},
            {"/layer1/conv1/Conv": BF16, "/layer1/conv2/Conv": FP32, "/fc/Gemm": BF16},
            "",
        ),
        ({"autocast": {"op_types_to_exclude": ["Conv"]}}, {"/conv1/Conv": FP32, "/fc/Gemm": FP16}, ""),
    ],
)
def test_what_modelopt_is_told_is_read(resnet, tmp_path, record, precisions, said):
    """As ModelOpt 0.47 made it of these arguments."""
    (tmp_path / "m.txt").write_text(json.dumps(record))
    loaded = read_any_config(tmp_path / "m.txt", resnet)
    assert {name: loaded.config.precision_of(resnet.get_group(name)) for name in precisions} == precisions
    assert said in " ".join(loaded.warnings)


@pytest.mark.parametrize(
    ("options", "masked", "excluded"),
    [
        ("--disable_mha_qdq", False, True),
        ("", False, False),
        ("--disable_mha_qdq", True, False),  # ModelOpt does not look behind a Where
        ("--disable_mha_qdq --target_dla", False, False),
    ],
)
def test_attention_without_qdq_runs_in_the_other_precision(tmp_path, options, masked, excluded):
    model = networks.attention_block()
    if masked:
        scores = next(node for node in model.graph.node if node.op_type == "Div")
        softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
        position = list(model.graph.node).index(softmax)
        model.graph.node.insert(position, onnx.helper.make_node("Where", ["seen", scores.output[0], "low"], ["masked"]))
        softmax.input[0] = "masked"
        for name, value in (("seen", np.array(True)), ("low", np.float32(-1e4))):
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    onnx.save(model, tmp_path / "net.onnx")
    network = open_network(tmp_path / "net.onnx")
    (tmp_path / "mo.sh").write_text(
        f"OPTIONS='--quantize_m int8 {options}'\npython -m modelopt.onnx.quantization "
        "$OPTIONS --high_precision_dtype bf16 && trtexec --fp16 --onnx=q.onnx\n"
    )
    config = read_any_config(tmp_path / "mo.sh", network).config
    precisions = {group.name: config.precision_of(group) for group in network.groups if group.is_quantizable}
    assert {name for name, precision in precisions.items() if precision is BF16} == (
        {"/scores/MatMul", "/values/MatMul"} if excluded else set()
    )
    assert set(precisions.values()) <= {INT8, BF16}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "python -m modelopt.onnx.quantization --autotune=quick --autotune_verbose --direct_io_types",
            {"autotune: ModelOpt keeps Q/DQ only where", "direct_io_types: inputs and outputs keep"},
        ),
        (
            "python -m modelopt.onnx.quantization --target_dla --frobnicate=1",
            {"target_dla: ModelOpt quantizes all tensors", "frobnicate: not an option of ModelOpt 0.47"},
        ),
        (
            "python -m modelopt.onnx.quantization --quantize_mode int4 --op_types_to_exclude Gemm",
            {"op_types_to_exclude: ModelOpt ignores this in mode int4", "INT4 scales by awq_clip"},
        ),
        (
            "modelopt.onnx.quantization.quantize('a.onnx', quantize_mode='int4', block_size=32)\n",
            {"block_size: INT4 weights have blocks of 128"},
        ),
        ("modelopt.onnx.quantization.quantize('a.onnx', quantize_mode='int4', block_size=128)\n", set()),
        ("quantize_mode: int4\nblock_size: -1\n", {"block_size: INT4 weights have blocks of 128"}),
        (
            "python -m modelopt.onnx.autocast -t fp16 --data_max 100 --init_max=5 --max_depth_of_reduction 64",
            {
                "data_max: nodes with larger inputs or outputs",
                "init_max: nodes with larger constants",
                "max_depth_of_reduction: nodes with longer sums",
            },
        ),
        ("python -m modelopt.onnx.autocast --onnx_path a.onnx", {"above 512, the default of data_max"}),
        ("python -m modelopt.onnx.autocast --data_max=inf", set()),
    ],
)
def test_each_option_of_modelopt_is_applied_or_named(resnet, tmp_path, text, said):
    (tmp_path / "told").write_text(text)
    warnings = " ".join(read_any_config(tmp_path / "told", resnet).warnings)
    assert not [part for part in said if part not in warnings]
    assert said or "block_size" not in warnings and "data_max" not in warnings


def test_short_options_of_autocast_are_read(resnet, tmp_path):
    (tmp_path / "told").write_text(
        "python -m modelopt.onnx.autocast -t bf16 -ne /conv1 '/layer1/.*' -opi Gemm -ope Gemm"
    )
    config = read_any_config(tmp_path / "told", resnet).config
    assert {name for name, precision in config.precision_by_group(resnet).items() if precision is FP32} == {
        "/conv1/Conv",
        "/layer1/conv1/Conv",
        "/layer1/conv2/Conv",
    }
    assert config.other is BF16


# -- qdq_loss_debug --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("quantized", "other"), [(INT8, FP16), (INT8, FP32), (FP8, FP16)])
def test_the_loss_debugger_matches_activations_and_weights(tmp_path, quantized, other):
    onnx.save(every_kind(), tmp_path / "exact.onnx")
    network = open_network(tmp_path / "exact.onnx")
    ranges = dict.fromkeys(network.calibrated_tensors, 3.0)
    config = replace(every_move(network, free=False), quantized=quantized, other=other)
    model = lower_from_source_model(network, config, ranges).model
    export_typed_network(model, network, tmp_path / "typed.onnx")
    feed = {"x": np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)}
    activations, weights = matched(tmp_path / "exact.onnx", tmp_path / "typed.onnx", feed, tmp_path)
    reads = [site for group in network.groups for site in group.sites if config.precision_of(group) is quantized]
    assert activations == {site.tensor for site in reads if site.role != "weight"}
    assert weights == {site.tensor for site in reads if site.role == "weight"}
    assert "optimized_model_filepath" in qdq_loss_debug_note(model)
    assert not qdq_loss_debug_note(lower_from_source_model(network, PrecisionConfig.from_precision(FP16), {}).model)


# -- as a user does it -----------------------------------------------------------------------------------------------


def test_ranges_that_only_raised_layers_read_are_measured(run, mlp, tmp_path):
    """The INT8 run reads them, and the file of another tool does not hold them."""
    network = open_network(mlp.model)
    config = PrecisionConfig.from_precision(INT8, FP16).with_group_precision([network.groups[0]], FP32)
    formats.write_export("trtexec", tmp_path / "build", network, config, dict.fromkeys(network.calibrated_tensors, 3.0))
    code, out, err = run(
        "compare", mlp.model, "--data", mlp.data, "--config", tmp_path / "build", "--layers", "none", "--no-preview"
    )
    assert code in (0, 1) and "\nINT8 " in out and "\nconfig " in out, err
    assert not lacking(err, "build has ranges", "(minmax)") and "of build and others" in out


def test_a_config_of_a_reference_asks_for_it_again(run, mlp, tmp_path):
    quantized, config = tmp_path / "q.onnx", tmp_path / "c.json"
    exact = open_network(mlp.model)
    ranges = dict.fromkeys(exact.calibrated_tensors, 3.0)
    formats.write_export("onnx", quantized, exact, PrecisionConfig.from_precision(INT8, FP16), ranges)
    code, _, err = run(
        *f"search {quantized} --reference {mlp.model} --data {mlp.data} --tolerance sqnr>=45 --no-hold-out".split(),
        *f"--no-preview -o {config}".split(),
    )
    assert code in (0, 1) and config.exists(), err
    assert json.loads(config.read_text())["model"]["weights_of"] == "mlp.onnx"
    found = open_network(quantized)
    with pytest.raises(InputError, match="FP32 weights of mlp.onnx") as refused:
        read_any_config(config, found)
    assert "Add --reference mlp.onnx" in refused.value.next_step
    assert "weights of q.onnx" in " ".join(read_any_config(config, found, force=True).warnings)
    code, _, err = run(
        *f"export {quantized} --config {config} --reference {mlp.model} --format trtexec".split(),
        *f"-o {tmp_path}/t.sh".split(),
    )
    assert code == 0, err
    assert {"x"} <= found.quantized_ranges.keys(), "its Q stands behind a Cast"
