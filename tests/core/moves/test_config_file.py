"""precision.json: read, written, refused, and exported without a search."""

import json
import os
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import TESTS, networks
from tests.driven import save_resnet
from tests.networks.odd import conv_net
from tests.refusals import refused
from tests.schemas import mismatches, schema
from tests.texts import lacking, numbers
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.moves.config import (
    MOVE_KINDS,
    BarrierMove,
    KeepRuleMove,
    NormRewriteMove,
    PrecisionConfig,
    PrecisionMove,
    RangeMove,
)
from trt_tui.core.moves.config_file import CONFIG_FORMAT, ConfigDoubt, config_text, read_config
from trt_tui.core.moves.constant_moves import (
    AttentionScaleMove,
    BiasCorrectionMove,
    EqualizationMove,
    RoundingMove,
    SmoothQuantMove,
    encode_vector,
)
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files import writing as files

FC1, FC2 = "/fc1/Gemm", "/fc2/MatMul"


@dataclass
class Ranges:
    method: str = "minmax"
    samples: int = 12
    data_sha256: str = "d" * 64
    ranges: dict[str, float] = field(default_factory=dict)
    ranges_by_type: dict[str, dict[str, float]] = field(default_factory=dict)


def open_saved(model, path):
    onnx.save(model, path)
    return open_network(path)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return open_saved(networks.mlp(), tmp_path_factory.mktemp("mlp") / "mlp.onnx")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "precision.json"


@pytest.fixture
def change(file, network):
    """Writes a config, changes its record, and writes it again."""

    def write(edit, config=None):
        config = config or PrecisionConfig().with_moves({FC2: PrecisionMove(Precision.FP32)})
        file.write_text(config_text(network, config, Ranges(ranges=ranges_of(network))))
        record = json.loads(file.read_text())
        edit(record)
        file.write_text(json.dumps(record))
        return file

    return write


def ranges_of(network) -> dict[str, float]:
    return {tensor: 0.1 + index / 3 for index, tensor in enumerate(network.calibrated_tensors)}


def test_a_config_survives_the_file(file, network):
    tensor = network.calibrated_tensors[1]
    config = (
        PrecisionConfig(Precision.INT8, Precision.BF16, True)
        .with_moves({FC2: PrecisionMove(Precision.FP32, "search:greedy"), FC1: PrecisionMove(Precision.INT8, "user")})
        .with_range(tensor, RangeMove(1 / 3, "percentile"))
    )
    calibration = Ranges(ranges=ranges_of(network), ranges_by_type={"fp8": {tensor: 2.5}})
    evidence = {"simulated": {"sqnr_db": 20.5}, "engine": {}}
    file.write_text(
        config_text(
            network,
            config,
            calibration,
            evidence=evidence,
            tolerance="sqnr>=20",
            made_with={"trt_tui": "0.1", "onnxruntime": "1.2"},
        )
    )
    loaded = read_config(file, network)
    assert (
        loaded.config == config
        and loaded.config.precision_moves == config.precision_moves
        and loaded.config.range_moves == config.range_moves
    )
    assert loaded.config.precision_moves[FC2].reason == "search:greedy"
    read = loaded.calibration
    assert read.ranges == calibration.ranges and read.ranges_by_type == calibration.ranges_by_type
    assert mismatches(json.loads(file.read_text())) == []
    assert (read.method, read.samples, read.data_sha256) == ("minmax", 12, "d" * 64)
    written = json.loads(file.read_text())
    assert (loaded.tolerance, written["evidence"]) == ("sqnr>=20", evidence)
    assert written["made_with"] == {"trt_tui": "0.1", "onnxruntime": "1.2"}
    assert not loaded.has_stale_ranges and loaded.warnings == ()


amaxes = st.floats(0, 3e38)
choices = st.builds(
    PrecisionMove,
    st.sampled_from([Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8]),
    st.sampled_from(["user", "search:bisect"]),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(quantized=st.sampled_from([Precision.INT8, Precision.FP16]), tf32=st.booleans(), data=st.data())
def test_any_config_survives_the_file(network, file, quantized, tf32, data):
    groups = data.draw(st.dictionaries(st.sampled_from([group.name for group in network.groups]), choices))
    overrides = data.draw(st.dictionaries(st.sampled_from(network.calibrated_tensors), st.builds(RangeMove, amaxes)))
    ranges = data.draw(st.dictionaries(st.sampled_from(network.calibrated_tensors), amaxes))
    config = PrecisionConfig(quantized, Precision.FP16, tf32).with_moves(groups).with_moves(overrides)
    file.write_text(config_text(network, config, Ranges(ranges=ranges), sha256=""))
    loaded = read_config(file, network, sha256="")
    assert loaded.config == config
    assert loaded.calibration.ranges == ranges


def test_the_same_config_gives_the_same_bytes(network):
    ranges = ranges_of(network)
    backwards = dict(reversed(ranges.items()))
    config = PrecisionConfig().with_moves({FC1: PrecisionMove(Precision.FP32), FC2: PrecisionMove(Precision.FP32)})
    other = PrecisionConfig().with_moves({FC2: PrecisionMove(Precision.FP32), FC1: PrecisionMove(Precision.FP32)})
    assert config_text(network, config, Ranges(ranges=ranges), evidence={"b": 1, "a": 2}) == config_text(
        network, other, Ranges(ranges=backwards), evidence={"a": 2, "b": 1}
    )


def test_the_file_names_every_node_of_a_group(network):
    record = json.loads(config_text(network, PrecisionConfig().with_moves({FC2: PrecisionMove(Precision.FP32)})))
    assert record["moves"] == [
        {
            "kind": "precision",
            "layers": ["/fc2/MatMul", "/fc2/Add", "/act2/Relu"],
            "precision": "fp32",
            "reason": "user",
        }
    ]
    assert record["format"] == CONFIG_FORMAT and record["version"] == 2
    assert record["model"]["nodes"] == len(network.layers)
    assert not {"calibration", "tolerance", "evidence", "made_with"} & set(record), "what was not given is absent"
    figures = {"simulated": {"mse": np.float64("nan"), "n": np.int64(3)}}
    record = json.loads(config_text(network, PrecisionConfig(), evidence=figures))
    assert record["evidence"] == {"simulated": {"mse": None, "n": 3}}


def test_the_schema_knows_what_is_written(network):
    tensor = network.calibrated_tensors[0]
    config = PrecisionConfig().with_moves({FC2: PrecisionMove(Precision.FP32)}).with_range(tensor, RangeMove(2.0))
    for move in (
        NormRewriteMove("LayerNormalization"),
        SmoothQuantMove(0.5, encode_vector(np.ones(3)), {tensor: 2.0}),
        RoundingMove("scales", Precision.INT8, encode_vector(np.ones(3))),
        BiasCorrectionMove(encode_vector(np.zeros(3))),
        AttentionScaleMove("query", 0.5, {tensor: 0.5}),
    ):
        config = config.with_moves({FC2: move})
    config = config.with_moves({FC1: EqualizationMove("weights", encode_vector(np.ones(3)), {tensor: 2.0})})
    config = config.with_moves({FC1: KeepRuleMove("layernorm")}).with_moves(
        {network.get_group(FC1).final_tensor: BarrierMove()}
    )
    record = json.loads(
        config_text(
            network,
            config,
            Calibration("minmax", 12, "d" * 64, ranges_of(network)),
            evidence={"simulated": {}},
            tolerance="sqnr>=20",
            doubt=ConfigDoubt("the engine yields 19 dB", "sqnr>=20", ["built"]),
            made_with={"trt_tui": "0"},
        )
    )
    assert mismatches(record) == []
    described = schema()
    assert set(record) == set(described["properties"])
    optional = {"in_file", "other_in_file", "weights_of"}
    assert {*record["model"], *optional} == set(described["properties"]["model"]["properties"])
    assert set(record["doubt"]) == set(described["properties"]["doubt"]["properties"])
    assert {*record["calibration"], "others"} == set(described["properties"]["calibration"]["properties"])
    for move in record["moves"]:
        definition = described["$defs"][move["kind"]]
        assert set(definition["required"]) <= set(move) <= set(definition["properties"]), "defaults are left out"
        assert mismatches({**record, "moves": [{**move, "kind": "another"}]})
    assert {move["kind"] for move in record["moves"]} == set(MOVE_KINDS)


def test_a_config_of_another_network_is_not_written(network, file):
    with pytest.raises(InputError, match="The config does not fit"):
        file.write_text(config_text(network, PrecisionConfig().with_moves({"nowhere": PrecisionMove(Precision.FP32)})))
    assert not file.exists()


@pytest.mark.parametrize(
    ("content", "title", "cause"),
    [
        (b'{"format": "trt-tui/precision-config",\n "version": 1,,}', "not valid JSON", "line 2 column 15"),
        (b"", "not valid JSON", "line 1"),
        (b"\xff\xfe\x00", "cannot be read", "UTF-8"),
        (b"[]", "not a precision config", "format"),
        (b'{"format": "other"}', "not a precision config", "format"),
        (b'{"format": "trt-tui/precision-config", "version": 3}', "version 3", "reads versions 1 and 2"),
        (b'{"format": "trt-tui/precision-config"}', "version None", "reads versions 1"),
        (b'{"format": "trt-tui/precision-config", "version": 2}', "model is missing", "required"),
        (b'{"format": 1, "version": 1, "version": 1}', "not valid JSON", "'version' twice"),
        (b'{"format": "trt-tui/precision-config", "version": NaN}', "not valid JSON", "NaN"),
        (b'{"format": 1, "version": ' + b"9" * 5000 + b"}", "not valid JSON", "5000 digits"),
        (b"[" * 100_000, "not valid JSON", "nested too deeply"),
    ],
)
def test_what_is_no_config(network, file, content, title, cause):
    file.write_bytes(content)
    with refused(title=title, cause=cause):
        read_config(file, network)


def test_a_missing_file(network, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_config(tmp_path / "none.json", network)
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path, network)


@pytest.mark.parametrize(
    ("edit", "title"),
    [
        (lambda r: r["moves"][0].update(precision="fp7"), 'moves[0].precision is "fp7"'),
        (lambda r: r["moves"].insert(0, "fp32"), 'moves[0] is "fp32"'),
        (lambda r: r["moves"][0].update(reason=3), "moves[0].reason is 3"),
        (lambda r: r["moves"][0].update(layers=FC2), f'moves[0].layers is "{FC2}"'),
        (lambda r: r["moves"][0].update(layers=[3]), "moves[0].layers[0] is 3"),
        (lambda r: r["moves"][0].pop("layers"), "moves[0].layers is missing"),
        (lambda r: r.update(moves={}), "moves is {}"),
        (lambda r: r["default"].update(quantized="tf32"), "default.quantized"),
        (lambda r: r["default"].update(other="int8"), "default.other"),
        (lambda r: r.update(tf32="yes"), "tf32 is"),
        (lambda r: r["calibration"]["ranges"].update({"x": -1}), "calibration.ranges['x'] is -1"),
        (lambda r: r["calibration"]["ranges"].update({"x": 10**400}), "calibration.ranges['x']"),
        (lambda r: r["calibration"]["ranges"].update({"x": True}), "calibration.ranges['x'] is true"),
        (lambda r: r["calibration"].update(others={"fp8": {"x": -1}}), "calibration.others.fp8['x'] is -1"),
        (lambda r: r["calibration"].update(others={"int8": {"x": 1}}), 'a name in calibration.others is "int8"'),
        (lambda r: r["calibration"]["ranges"].update({"y_y": 1}), "tensors that mlp.onnx does not have"),
        (lambda r: r["moves"].append({"kind": "range", "tensors": ["x"], "amax": "much"}), 'moves[1].amax is "much"'),
        (lambda r: r["moves"].append({"kind": "range", "tensors": ["x"], "amax": -1}), "x cannot have the range -1"),
        (lambda r: r["moves"].append({"kind": "another", "layers": [FC2]}), "moves[1] is not a possible move"),
        (lambda r: r["moves"].append({"layers": [FC2]}), "moves[1] is not a possible move"),
        (lambda r: r["model"].pop("structure_sha256"), "model.structure_sha256 is missing"),
    ],
)
def test_values_that_are_refused_are_named(network, change, edit, title):
    with refused(title=title):
        read_config(change(edit), network)


@pytest.mark.parametrize(
    ("edit", "cause"),
    [
        (lambda r: r["moves"][0].update(precision="fp7"), "fp32, "),
        (lambda r: r["moves"][0].update(reason=3), "`str`"),
        (lambda r: r["calibration"]["ranges"].update({"x": -1}), "`float` >= 0"),
        (lambda r: r["calibration"]["ranges"].update({"x": "much"}), "`float`"),
        (
            lambda r: r.update(doubt={"text": "x" * 10_001, "targets": "sqnr>=9", "missed_runs": []}),
            "length <= 10000",
        ),
    ],
)
def test_values_that_are_refused_are_followed_by_the_possible_ones(network, change, edit, cause):
    with refused(cause=cause):
        read_config(change(edit), network)


def test_unknown_layers_are_named_with_near_ones(network, change):
    def edit(record):
        record["moves"].append({"kind": "precision", "layers": ["/fc1/Gem", *"abcdef"], "precision": "fp32"})

    with pytest.raises(InputError) as raised:
        read_config(change(edit), network)
    assert raised.value.cause.startswith("/fc1/Gem, a, b, c, d ") and numbers(raised.value.cause) == [2]
    assert FC1 in raised.value.next_step


def test_any_layer_sets_its_group_and_conflicts_name_both(network, change):
    def one_member(record):
        record["moves"] = [{"kind": "precision", "layers": ["/act2/Relu"], "precision": "fp16", "reason": "user"}]

    assert read_config(change(one_member), network).config.precision_moves == {FC2: PrecisionMove(Precision.FP16)}
    with pytest.raises(InputError) as raised:
        read_config(
            change(lambda r: r["moves"].append({"kind": "precision", "layers": ["/act2/Relu"], "precision": "fp16"})),
            network,
        )
    assert FC2 in raised.value.cause and "/act2/Relu" in raised.value.cause


def test_a_precision_that_a_layer_cannot_run_in(tmp_path, file):
    network = open_saved(networks.bert(), tmp_path / "bert.onnx")
    softmax = next(group for group in network.groups if group.operator == "Softmax")
    folded = next(layer.name for layer in network.layers if network.find_group(layer.name) is None)
    file.write_text(config_text(network, PrecisionConfig()))
    record = json.loads(file.read_text())
    for name, precision, cause in (
        (softmax.name, "int8", "not Softmax"),
        (softmax.name, "tf32", "whole engine"),
        (folded, "fp16", "it has no selectable precision"),
    ):
        record["moves"] = [{"kind": "precision", "layers": [name], "precision": precision}]
        file.write_text(json.dumps(record))
        with refused(title=name, cause=cause):
            read_config(file, network)


def test_unknown_entries_are_warned_about(network, change):
    loaded = read_config(change(lambda r: (r.update(colour="red"), r["moves"][0].update(shade=3))), network)
    assert any("'colour'" in warning for warning in loaded.warnings)
    assert any(not lacking(warning, "moves[0]", "'shade'") for warning in loaded.warnings)


VERSION_1 = TESTS / "version1" / "precision.json"


def test_a_file_of_version_1_is_read_and_written_as_version_2(network):
    loaded = read_config(VERSION_1, network, sha256="")
    assert loaded.config.precision_moves == {
        FC1: PrecisionMove(Precision.FP16),
        FC2: PrecisionMove(Precision.FP32, "search:auto"),
    }
    assert loaded.config.range_moves == {"x": RangeMove(2.5), "/act1/Relu_output_0": RangeMove(1 / 3, "percentile")}
    assert (loaded.config.quantized, loaded.config.other, loaded.config.tf32) == (Precision.INT8, Precision.BF16, True)
    assert loaded.calibration.ranges == {"x": 0.5, "/act1/Relu_output_0": 1.5, "/act2/Relu_output_0": 2.5}
    assert (loaded.calibration.method, loaded.calibration.samples) == ("entropy", 12)
    assert loaded.tolerance == "sqnr>=20" and not loaded.warnings
    record = json.loads(config_text(network, loaded.config, sha256=""))
    assert mismatches(record) == [] and [move["kind"] for move in record["moves"]] == 2 * ["precision"] + 2 * ["range"]
    assert read_config(VERSION_1, network).has_stale_ranges


@pytest.mark.parametrize(
    ("edit", "title"),
    [
        (lambda r: r["layers"][FC2].update(precision="fp7"), f"layers['{FC2}'].precision is \"fp7\""),
        (lambda r: r["layers"].update({FC2: "fp32"}), f"layers['{FC2}'] is \"fp32\""),
        (lambda r: r["layers"][FC2].update(kind="range", reason=3), f"layers['{FC2}'].reason is 3"),
        (lambda r: r["overrides"].update({"x": 1}), "overrides['x'] is 1"),
        (lambda r: r["overrides"]["x"].pop("amax"), "overrides['x'].amax is missing"),
        (lambda r: r["layers"].update({"/fc1/Gem": {"precision": "fp32"}}), "layers that mlp.onnx does not have"),
        (lambda r: r["layers"]["/fc2/Add"].update(precision="fp16"), "gives one fused layer two precisions"),
    ],
)
def test_what_is_wrong_in_a_file_of_version_1_is_named_as_it_stands_there(network, file, edit, title):
    record = json.loads(VERSION_1.read_text())
    edit(record)
    file.write_text(json.dumps(record))
    with refused(title=title):
        read_config(file, network)


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ({"kind": "insert_mul", "strength": 0.5, "factors": encode_vector(np.ones(3))}, "an inserted Mul"),
        (
            {"kind": "equalize", "formula": "weights", "factors": encode_vector(np.ones(3)), "replaces_clips": True},
            "a Min or Max in place of a Clip",
        ),
    ],
)
def test_a_file_with_a_change_that_is_no_longer_made_is_refused_as_a_whole(network, change, entry, name):
    file = change(lambda r: r["moves"].append({**entry, "layers": [FC1]}))
    for force in (False, True):
        with refused(title="moves[", cause=f"it has {name} at"):
            read_config(file, network, force=force)


def test_another_structure_is_refused_with_its_layers_unless_forced(network, change, tmp_path):
    model = networks.mlp()
    next(node for node in model.graph.node if node.name == "/act1/Relu").op_type = "Sigmoid"
    changed = open_saved(model, tmp_path / "other.onnx")
    file = change(lambda r: None)
    with pytest.raises(InputError) as raised:
        read_config(file, changed)
    assert "another structure" in raised.value.title
    assert "mlp.onnx" in raised.value.cause and raised.value.cause.endswith(": /act1/Relu")
    loaded = read_config(file, changed, force=True)
    assert loaded.config.precision_moves == {FC2: PrecisionMove(Precision.FP32)}
    assert loaded.has_stale_ranges
    assert "/act1/Relu" in loaded.warnings[0]


def test_new_weights_keep_the_config_and_make_its_ranges_stale(network, change, tmp_path):
    retrained = open_saved(networks.mlp(seed=1), tmp_path / "mlp.onnx")
    loaded = read_config(change(lambda r: None), retrained)
    assert loaded.config.precision_moves == {FC2: PrecisionMove(Precision.FP32)}
    assert loaded.calibration.ranges == ranges_of(network)
    assert loaded.has_stale_ranges and any("calibrate" in warning for warning in loaded.warnings)
    without = change(lambda record: record.pop("calibration"))
    assert not read_config(without, retrained).has_stale_ranges


def test_a_block_that_raises_leaves_nothing(tmp_path):
    with pytest.raises(ValueError), files.open_atomic_writer(tmp_path / "out") as stream:
        stream.write(b"half")
        raise ValueError
    assert os.listdir(tmp_path) == []


def test_places_that_cannot_be_written(tmp_path):
    with refused("cannot be written", cause="does not exist"):
        files.write_file_atomically(tmp_path / "none" / "out", "")
    with pytest.raises(InputError) as raised:
        files.write_file_atomically(tmp_path, "")
    assert "a folder" in raised.value.cause
    protected = tmp_path / "protected"
    protected.write_text("old")
    protected.chmod(0o444)
    with pytest.raises(InputError) as raised:
        files.write_file_atomically(protected, "new")
    assert "read-only" in raised.value.cause and protected.read_text() == "old"
    assert os.listdir(tmp_path) == ["protected"]


def test_links_and_permissions_stay(tmp_path):
    real = tmp_path / "real"
    real.write_text("old")
    real.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(real)
    files.write_file_atomically(link, "new")
    assert link.is_symlink() and real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_layer_that_takes_its_group_with_it_is_said(tmp_path):
    path = tmp_path / "mlp.onnx"
    onnx.save(networks.mlp(), path)
    network = open_network(path)
    group = next(one for one in network.groups if len(one.layers) > 1)
    record = json.loads(
        config_text(network, PrecisionConfig().with_group_precision([group], Precision.FP32), sha256="")
    )
    saved = tmp_path / "precision.json"
    saved.write_text(json.dumps(record))
    assert not any("whole fused layer" in text for text in read_config(saved, network, sha256="").warnings)
    kept, *others = group.layers
    record["moves"][0]["layers"] = [kept]
    saved.write_text(json.dumps(record))
    loaded = read_config(saved, network, sha256="")
    assert loaded.config.precision_of(group) is Precision.FP32
    said = next(text for text in loaded.warnings if "whole fused layer" in text)
    assert f"{kept} includes {', '.join(others)}" in said


def exported(run, out, *arguments, command="export"):
    """The record that a command writes, and what it prints on stderr."""
    formats = ("--format", "json") if command == "export" else ()
    code, stdout, err = run(command, *arguments, *formats, "-o", out)
    assert code == 0, err
    assert stdout == f"{out}\n"
    record = json.loads(out.read_text())
    assert not mismatches(record)
    return record, err


@pytest.mark.parametrize("command", ["export", "build"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "fp8"])
def test_a_uniform_config_is_written_and_read_back(run, mlp, tmp_path, command, precision):
    out = tmp_path / "precision.json"
    record, err = exported(run, out, mlp.model, "--precision", precision, command=command)
    assert "calibration" not in record and not record["moves"]
    count = 3 if precision in ("int8", "fp8") else 0
    assert ("no range for 3" in err) is bool(count), err
    assert read_config(out, open_network(mlp.model)).config == PrecisionConfig.from_precision(Precision(precision))


def test_it_has_the_ranges_of_the_data_and_gives_the_same_network(run, tmp_path):
    options = save_resnet(tmp_path, size=8)
    data = ("--data", options.data, "--batch", "4", "--calib-method", "entropy")
    record, err = exported(run, tmp_path / "c.json", options.model, "--precision", "int8", *data)
    assert "no range" not in err and record["model"]["sha256"]
    assert record["calibration"]["method"] == "entropy" and record["calibration"]["samples"] == 4
    tensors = open_network(options.model).calibrated_tensors
    assert [*record["calibration"]["ranges"]] == [tensor for tensor in tensors]
    assert set(record["calibration"]["others"]["fp8"]) == set(tensors)
    for source, name in ((("--config", tmp_path / "c.json"), "a.onnx"), (("--precision", "int8", *data), "b.onnx")):
        code, _, err = run("build", options.model, *source, "-o", tmp_path / name)
        assert code == 0, err
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_moves_of_the_command_line_are_in_it(run, mlp, tmp_path):
    network = open_network(mlp.model)
    tensor, group = network.calibrated_tensors[1], network.groups[0].name
    record, err = exported(
        run, tmp_path / "c.json", *f"{mlp.model} --precision int8 --range {tensor}=2.5 --keep {group}=fp16".split()
    )
    kinds = {entry["kind"]: entry for entry in record["moves"]}
    assert set(kinds) == {"range", "keep"} and kinds["range"]["tensors"] == [tensor]
    assert "calibration" not in record and "no range for 1" in err
    read = read_config(tmp_path / "c.json", network).config
    assert read.range_moves[tensor].amax == 2.5 and read.precision_of(network.groups[0]) is Precision.FP16


def test_it_converts_configs_of_other_tools_and_takes_the_ranges_of_a_cache(run, mlp, tmp_path):
    network = open_network(mlp.model)
    cache = tmp_path / "net.cache"
    code, _, err = run(
        "export", mlp.model, "--precision", "int8", "--data", mlp.data, "--format", "calibration-cache", "-o", cache
    )
    assert code == 0, err
    name = network.groups[0].name
    (tmp_path / "line.sh").write_text(f"trtexec --onnx=mlp.onnx --int8 --fp16 --layerPrecisions={name}:fp16\n")
    record, err = exported(
        run, tmp_path / "c.json", mlp.model, "--config", tmp_path / "line.sh", "--calib-cache", cache
    )
    assert record["calibration"]["method"] == "minmax"
    assert set(record["calibration"]["ranges"]) == set(network.calibrated_tensors)
    first, second = tmp_path / "c.json", tmp_path / "d.json"
    record, err = exported(run, second, mlp.model, "--config", first, "--data", mlp.data)
    assert "--data: not read" in err
    assert record["calibration"]["ranges"] == json.loads(first.read_text())["calibration"]["ranges"]


def test_a_quantized_network_keeps_its_own_precisions(run, tmp_path):
    for name, model in (("fp32.onnx", conv_net(0)), ("quantized.onnx", networks.quantized())):
        onnx.save(model, tmp_path / name)
    record, err = exported(
        run,
        tmp_path / "c.json",
        *f"{tmp_path}/quantized.onnx --precision file --reference {tmp_path}/fp32.onnx".split(),
    )
    assert record["default"] == {"quantized": "file", "other": "file"}
    assert record["model"]["weights_of"] == "fp32.onnx" and "no range" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "--precision", "int8", "--format", "json", "-o", "mlp.onnx"), "is an input file"),
        (("export", "--config", "c.json", "--format", "json", "-o", "c.json"), "is an input file"),
        (("export", "--precision", "int8", "--format", "json", "-o", "-"), "an export goes to a file"),
        (("export", "--format", "json", "-o", "new.json"), "needs a config or a precision"),
        (("build", "--precision", "int8", "--trtexec=--refit", "-o", "new.json"), "--trtexec has no effect here"),
        (("build", "--precision", "int8", "-o", "new.txt"), "new.txt is not an engine, a network or a config"),
        (("export", "--precision", "int8", "--format", "json", "-o", "none/new.json"), "none/new.json"),
        (("export", "--precision", "fp16", "--other", "fp32", "--format", "json", "-o", "new.json"), "--other"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_changes(run, mlp, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    command, *others = arguments
    code, out, err = run(command, mlp.model, *others)
    assert code == 2 and message in err and not out, err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_fp16_reads_no_data(run, mlp, tmp_path):
    np.savez(tmp_path / "none.npz")  # is not opened
    record, err = exported(run, tmp_path / "c.json", mlp.model, "--precision", "fp16", "--data", tmp_path / "none.npz")
    assert "--data: not read" in err and "calibration" not in record


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_ranges_that_a_config_has_are_exported_and_only_the_others_are_measured(run, tmp_path, precision):
    options = save_resnet(tmp_path, size=8)
    data = ("--data", options.data, "--calib-data", options.data, "--batch", "4")
    record, _ = exported(run, tmp_path / "all.json", options.model, "--precision", precision, *data)
    measured = dict(record["calibration"]["ranges"])
    kept, left_out = [*measured][0], [*measured][-1]
    record["calibration"]["ranges"] = {tensor: 3 * amax for tensor, amax in measured.items() if tensor != left_out}
    record["calibration"].pop("others", None)
    (tmp_path / "part.json").write_text(json.dumps(record))
    part, _ = exported(run, tmp_path / "again.json", options.model, "--config", tmp_path / "part.json", *data)
    ranges = part["calibration"]["ranges"]
    assert ranges[kept] == 3 * measured[kept] and ranges[left_out] == measured[left_out]
    assert kept not in part["calibration"].get("others", {}).get("fp8", {}), "one range for every type"

    compared = {}
    for name in ("part.json", "again.json"):
        code, _, err = run(
            "compare",
            options.model,
            *data,
            *f"--config {tmp_path}/{name} --layers none --json {tmp_path}/o.json".split(),
        )
        assert code == 0, err
        compared[name] = json.loads((tmp_path / "o.json").read_text())["runs"]["config"]["outputs"]
    assert compared["part.json"] == compared["again.json"], "what was judged is what is exported"
