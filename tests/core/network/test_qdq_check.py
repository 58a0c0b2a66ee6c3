"""The check of a file's Q/DQ nodes: ``lint``, trt_tui.core.network.qdq.check and the repairs."""

import json
import os
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import quantize_static

from tests import TESTS, networks, rtx
from tests.core.network.test_quantized_files import KINDS, float_network
from tests.driven import DrivenWorker, values
from tests.local import NullSession
from tests.networks import qdq
from tests.schemas import mismatches
from tests.screen import press, settle
from tests.texts import lacking
from trt_tui.core.engines import inspector
from trt_tui.core.engines.group_implementations import find_confirmed_qdq_candidates
from trt_tui.core.engines.inspector import COMPUTE, EngineLayer, build_engine_report, read_layer_listing
from trt_tui.core.exporters.preview_report import qdq_check_lines
from trt_tui.core.lowering.typed_network import lower_from_source_model, lower_to_typed_network
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.network.qdq.check import QDQ_RULES
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.tui.app import TrtTuiApp

FILE, INT8, FP8, INT4, FP16, FP32 = (
    Precision.FILE,
    Precision.INT8,
    Precision.FP8,
    Precision.INT4,
    Precision.FP16,
    Precision.FP32,
)
(
    PAIR,
    SKIP,
    ONE_SIDED,
    PARTIAL,
    UNFOLDED,
    AXIS,
    MIXED,
    SUBNORMAL,
    PER_TENSOR,
    ZERO,
    UNSIGNED,
    BIAS,
    TYPE,
    FLOATS,
    SCALES,
) = (rule.name for rule in QDQ_RULES)

BREAKING = {
    "pair before the Add": (PAIR, qdq.residual(extra=("add",)), "/two/extra/q: between /two/Conv and /block/Add (Add)"),
    "pair before a Relu": (PAIR, qdq.residual(extra=("relu",)), "/one/extra/q: between /one/Conv and /one/Relu (Relu)"),
    "float skip": (
        SKIP,
        qdq.residual(skip=False),
        "/block/Add: image is float; /two/Conv and the reader of the sum are INT8",
    ),
    "float weight": (ONE_SIDED, qdq.product(inputs=("x",)), "/fc/MatMul: x is INT8, and /fc/weight is float"),
    "float activation": (
        ONE_SIDED,
        qdq.product(inputs=("w",)),
        "/fc/MatMul: /fc/weight/dq_output_0 is INT8, and x is float",
    ),
    "QK alone": (
        PARTIAL,
        qdq.attention(("QK",)),
        "/values/MatMul: PV of /Softmax is float, and QK (/scores/MatMul) is INT8",
    ),
    "PV alone": (
        PARTIAL,
        qdq.attention(("PV",)),
        "/scores/MatMul: QK of /Softmax is float, and PV (/values/MatMul) is INT8",
    ),
    "operator behind the weight": (UNFOLDED, qdq.conv("tanh"), "/weight/Tanh: Tanh between /weight/dq and /Conv"),
    "computed weight": (
        UNFOLDED,
        qdq.conv("computed"),
        "/weight/dq: the weight /mean/Expand_output_0 of /Conv is computed",
    ),
    "axis of the weight": (
        AXIS,
        qdq.conv("axis"),
        "/weight/dq: scales along axis 1 of the weight of /Conv, whose output channels are axis 0",
    ),
    "axis of an activation": (AXIS, qdq.conv("activation axis"), "/in/dq: 32 scales along axis 1 of the activation x"),
    "mixed scales": (
        MIXED,
        qdq.half_product(weight_in_fp32=True),
        "/fc/MatMul: FLOAT16 scale of /in/dq and FLOAT scale of /fc/weight/dq",
    ),
    "subnormal scale": (
        SUBNORMAL,
        qdq.half_product(activation_scale=3e-6),
        "/in/q: scale 2.98e-06, which FP16 rounds by up to 1%",
    ),
    "stored channel": (
        PER_TENSOR,
        qdq.conv("small channel"),
        "/weight/dq: channel 5 of 32 loses 4.0 bits (largest value 8 of 127), the median channel 0.4",
    ),
    "float channel": (
        PER_TENSOR,
        qdq.conv("pair"),
        "/weight/dq: channel 5 of 32 loses 4.0 bits (largest value 7.94 of 127), the median channel 0.4",
    ),
    "zero point": (ZERO, qdq.conv("zero point"), "/in/q: INT8 with zero point 3"),
    "unsigned": (UNSIGNED, qdq.conv("unsigned"), "/in/q: UINT8 with one scale"),
    "no zero point": (UNSIGNED, qdq.conv("no zero point"), "/in/q: UINT8 with one scale"),
    "int32 bias": (BIAS, qdq.conv("bias"), "/bias/dq: read by /Conv"),
    "clipped bias": (BIAS, qdq.conv("clipped bias"), "/bias/dq: read by /Conv; 1 of 32 values clipped to INT32"),
    "16 bits": (TYPE, qdq.conv("int16"), "/in/q: INT16 with one scale"),
}
"""A file that breaks each rule: the rule, the file, and the line that names the node."""

CLEAN = {
    "residual": qdq.residual(),
    "float skip before floats": qdq.residual(skip=False, tail=False),
    "product": qdq.product(),
    "attention": qdq.attention(),
    "float attention": qdq.attention(()),
    "transposed weight": qdq.product(between="Transpose"),
    "scaled weight": qdq.product(between="Mul"),
    "conv": qdq.conv(),
    "factor of channels": qdq.conv("mul"),
    "reshaped weight": qdq.conv("reshape"),
    "one scale for even channels": qdq.conv("tensor"),
    "FP16": qdq.half_product(),
    "mixed scales of two axes": qdq.half_product(weight_in_fp32=True, batch=()),
}


@pytest.mark.parametrize("case", BREAKING)
def test_a_file_that_breaks_a_rule_has_its_finding(case, opened):
    name, model, line = BREAKING[case]
    network = opened(model)
    lines, rule = qdq_check_lines(network, network.qdq_findings), next(rule for rule in QDQ_RULES if rule.name == name)
    assert {finding.rule for finding in network.qdq_findings} == {name}
    assert f"  {line}" in lines
    assert f"{rule.title} ({' and '.join(rule.effects)}): {len(network.qdq_findings)}" in lines
    assert f"  consequence: {rule.consequence}" in lines and f"  repair: {rule.repair}" in lines
    assert all(f"  source: {source}" in lines for source in rule.sources) and rule.sources


def test_each_rule_is_broken_by_a_file_and_says_all():
    assert {name for name, _, _ in BREAKING.values()} == {rule.name for rule in QDQ_RULES if not rule.needs_engine}
    assert {rule for *_, rules in CONVERTED.values() for rule in rules} == {
        rule.name for rule in QDQ_RULES if rule.needs_engine
    }
    for rule in QDQ_RULES:
        assert set(rule.effects) <= {"accuracy", "speed", "refusal"} and rule.effects
        for sentence in f"{rule.consequence} {rule.repair}".split(". "):
            assert len(sentence.split()) <= 25, sentence


@pytest.mark.parametrize("case", CLEAN)
def test_a_file_as_tensorrt_takes_it_has_no_finding(case, opened):
    network = opened(CLEAN[case])
    assert network.qdq_findings == ()
    (line,) = qdq_check_lines(network, network.qdq_findings)
    assert line.startswith("model.onnx: 0 findings")
    assert not any("Q/DQ check" in note for note in network.notes)


def test_a_pair_on_either_conv_of_a_projected_skip_is_right(opened):
    """The Add joins the Conv whose result is float, whichever comes last."""

    def build(quantized: str) -> onnx.ModelProto:
        b = qdq.QdqBuilder(0)
        x = b.pair("image", "/in")
        y, z = b.quantized_conv(x, "/one"), b.quantized_conv(x, "/two")
        y = b.pair(y, "/extra") if quantized in ("one", "both") else y
        z = b.pair(z, "/other") if quantized in ("two", "both") else z
        out = b.pair(b.node("Add", [y, z], "/block"), "/out")
        b.end_in_conv(out, "/three")
        return b.model([networks.floats("image", 1, 32, 16, 16)], [networks.floats("out", 1, 32, 16, 16)])

    found = {
        case: [finding.rule for finding in opened(build(case)).qdq_findings]
        for case in ("one", "two", "both", "neither")
    }
    assert found == {"one": [], "two": [], "both": [PAIR], "neither": [SKIP]}


def test_a_pair_behind_a_pool_or_before_the_heads_counts(opened):
    b = qdq.QdqBuilder(0)
    x = b.pair("image", "/in")
    pooled = b.node("MaxPool", [x], "/pool", kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    out = b.pair(b.node("Add", [b.quantized_conv(x, "/one"), pooled], "/block"), "/out")
    b.end_in_conv(out, "/two")
    network = opened(b.model([networks.floats("image", 1, 32, 8, 8)], [networks.floats("out", 1, 32, 8, 8)]))
    assert network.qdq_findings == ()


# -- files of this program and of others ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "network_name", ["small_resnet", "unet_small", "mlp", "attention_block", "odd_kernels", "decoder"]
)
def test_own_exports_have_no_finding(network_name, named_network, tmp_path):
    network = named_network(network_name)
    ranges = {tensor: 1.0 + place % 7 for place, tensor in enumerate(network.calibrated_tensors)}
    for precision, other in ((INT8, FP16), (INT8, FP32), (FP8, FP16), (INT4, FP16)):
        config = PrecisionConfig.from_precision(precision, other)
        model = lower_to_typed_network(network, config, ranges).model
        ir.save(model, tmp_path / "typed.onnx")
        assert not open_network(tmp_path / "typed.onnx").qdq_findings, (precision, other)


REPAIRED = [
    case
    for case, (name, _, _) in BREAKING.items()
    if name in (PAIR, SKIP, ONE_SIDED, PARTIAL, AXIS, MIXED, PER_TENSOR) or case == "operator behind the weight"
]


@pytest.mark.parametrize("case", REPAIRED)
def test_the_repair_writes_a_file_without_the_finding(case, opened, tmp_path):
    name, model, _ = BREAKING[case]
    network = opened(model)
    config = PrecisionConfig.from_precision(FILE)
    for finding in network.qdq_findings:
        assert finding.repair_precision is INT8
        config = config.with_group_precision([network.get_group(finding.group)], finding.repair_precision)
    ranges = dict.fromkeys(network.calibrated_tensors, 3.0) | dict(network.quantized_ranges)
    ir.save(lower_from_source_model(network, config, ranges).model, tmp_path / "repaired.onnx")
    repaired = open_network(tmp_path / "repaired.onnx")
    assert name not in {finding.rule for finding in repaired.qdq_findings}


@pytest.mark.parametrize("case", ["zero point", "unsigned", "int32 bias", "16 bits"])
def test_the_export_of_the_file_repairs_refused_types(case, opened, tmp_path):
    network = opened(BREAKING[case][1])
    assert all(finding.repair_precision is None for finding in network.qdq_findings)
    model = lower_from_source_model(network, PrecisionConfig.from_precision(FILE), network.quantized_ranges).model
    ir.save(model, tmp_path / "typed.onnx")
    rules = {finding.rule for finding in open_network(tmp_path / "typed.onnx").qdq_findings}
    assert not rules & {ZERO, UNSIGNED, BIAS, TYPE}


ORT_FINDINGS = {
    "defaults": {PAIR: 1, ZERO: 16, BIAS: 3},
    "per channel": {PAIR: 1, ZERO: 16, BIAS: 3},
    "unsigned weights": {PAIR: 1, ZERO: 12, UNSIGNED: 8, BIAS: 3},
    "symmetric": {PAIR: 3, BIAS: 3},
    "float bias": {PAIR: 1, ZERO: 16},
}


@pytest.mark.onnxruntime("1.31")
@pytest.mark.parametrize("kind", ORT_FINDINGS)
def test_findings_in_files_of_onnx_runtime(kind, tmp_path):
    """It quantizes what every operator reads, so the result of a Conv before its Add; and biases in 32 bits."""
    onnx.save(float_network(), tmp_path / "float.onnx")
    feeds = networks.Handed(networks.feeds(float_network(), seed, n=4) for seed in range(2))
    quantize_static(tmp_path / "float.onnx", tmp_path / "model.onnx", feeds, **KINDS[kind])
    findings = open_network(tmp_path / "model.onnx").qdq_findings
    assert Counter(finding.rule for finding in findings) == ORT_FINDINGS[kind]
    assert any("/skip/Add" in finding.detail for finding in findings if finding.rule == PAIR)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("modelopt/int8_fp16", {PAIR: 1}),
        ("modelopt/int8_fp32", {PAIR: 1}),
        ("modelopt/fp8_fp16", {PAIR: 1}),
        ("modelopt/int4_fp16", {}),
        ("modelopt/autocast", None),
        ("pt2e/x86_int8", {ZERO: 2, UNSIGNED: 6}),
    ],
)
def test_findings_in_files_of_modelopt_and_pytorch(name, expected):
    findings = open_network(TESTS / "files" / f"{name}.onnx").qdq_findings
    assert (None if findings is None else Counter(finding.rule for finding in findings)) == expected


# -- the command, the notes and the repairs ---------------------------------------------------------------------------


def test_the_command_prints_findings_and_exits_with_1(run, tmp_path):
    onnx.save(qdq.residual(extra=("add",)), tmp_path / "q.onnx")
    code, out, err = run("lint", tmp_path / "q.onnx", "--json", tmp_path / "lint.json")
    assert code == 1 and "lint.json" in err
    title, empty, rule, node = out.splitlines()[:4]
    assert title.startswith("q.onnx: 1 finding ") and not empty and rule.endswith(" (accuracy and speed): 1")
    assert node.startswith("  /two/extra/q: ") and not lacking(node, "/two/Conv", "/block/Add (Add)")
    record = json.loads((tmp_path / "lint.json").read_text())
    assert not mismatches(record, "lint-v1") and record["has_qdq"]
    (finding,) = record["findings"]
    assert (finding["rule"], finding["node"], finding["group"]) == (PAIR, "/two/extra/q", "/two/Conv")
    assert finding["repair_precision"] == "int8" and finding["consequence"] and finding["sources"]
    code, out, _ = run("inspect", tmp_path / "q.onnx")
    assert code == 0 and f"Q/DQ check: {rule.split(' (')[0]}" in out


def test_the_command_says_of_files_without_findings_and_without_qdq(run, tmp_path, mlp):
    onnx.save(qdq.residual(), tmp_path / "q.onnx")
    for model, said in ((tmp_path / "q.onnx", "0 findings"), (mlp.model, "no Q/DQ nodes")):
        code, out, _ = run("lint", model)
        assert code == 0 and out.startswith(Path(model).name) and said in out and out.count("\n") == 1
    code, out, _ = run("lint", mlp.model, "--json")
    assert code == 0 and json.loads(out)["has_qdq"] is False and not mismatches(json.loads(out), "lint-v1")


def test_hidden_characters_of_a_file_do_not_reach_the_terminal(run, tmp_path):
    model = qdq.conv("zero point")
    for node in model.graph.node:
        node.name = node.name.replace("/in/q", "\x1b[31m\u202eq")
    onnx.save(model, tmp_path / "q.onnx")
    code, out, err = run("lint", tmp_path / "q.onnx")
    assert code == 1 and r"  \x1b[31m\u202eq: INT8" in out and "zero point 3" in out
    assert "\x1b" not in out + err and "\u202e" not in out + err
    code, out, _ = run("lint", tmp_path / "q.onnx", "--json")
    assert code == 1 and json.loads(out)["findings"][0]["node"] == "\x1b[31m\u202eq" and out.isascii()


@pytest.mark.parametrize(("scale", "is_refused"), [(0.0, True), (np.nan, True), (-1.0, True), (np.inf, False)])
@pytest.mark.parametrize(("form", "tensor"), [("", "/in.scale"), ("", "/weight.scale"), ("pair", "/weight.scale")])
def test_a_scale_of_zero_or_nan_is_refused_at_opening(run, tmp_path, form, tensor, scale, is_refused):
    """An infinite one is what quantizers write for masks of -inf: it is a note of the network."""
    model = qdq.conv(form)
    stored = next(one for one in model.graph.initializer if one.name == tensor)
    values = numpy_helper.to_array(stored).copy()
    values.reshape(-1)[-1:] = scale
    stored.CopyFrom(numpy_helper.from_array(values, tensor))
    onnx.save(model, tmp_path / "q.onnx")
    code, out, err = run("lint", tmp_path / "q.onnx")
    assert code == (2 if is_refused else 0), err
    if is_refused:
        assert not out and not lacking(err, "cannot be computed", f" is {scale:g}, ", "above 0")


def test_the_app_offers_new_qdq_nodes_for_a_layer_with_a_finding(tmp_path):
    onnx.save(qdq.residual(extra=("add",)), tmp_path / "q.onnx")
    np.savez(tmp_path / "x.npz", image=np.random.default_rng(1).standard_normal((8, 32, 16, 16)).astype("f4"))
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(Options(str(tmp_path / "q.onnx"), str(tmp_path / "x.npz"), whatif_samples=0)))
    config = PrecisionConfig.from_precision(FILE)
    for group, offered in (("/two/Conv", True), ("/one/Conv", False)):
        measured = values(worker.answer(rq.MeasureRemedies(group, config)), ev.REMEDIES)[-1]
        remedies = [remedy for remedy in measured if "new Q/DQ" in remedy.label]
        assert bool(remedies) is offered
        for remedy in remedies:
            assert remedy.key == ev.ZERO_COST_KEY and not lacking(remedy.label, "INT8 with", "no longer in file")
            changed = [
                item.name
                for item in worker.network.groups
                if remedy.config.precision_of(item) is not config.precision_of(item)
            ]
            assert changed == [group] and remedy.config.precision_of(worker.network.get_group(group)) is INT8


async def test_the_list_of_zero_cost_changes_applies_new_qdq_nodes(quick, tmp_path):
    onnx.save(qdq.residual(skip=False), tmp_path / "q.onnx")
    np.savez(tmp_path / "x.npz", image=np.random.default_rng(1).standard_normal((8, 32, 16, 16)).astype("f4"))
    app = TrtTuiApp(
        Options(str(tmp_path / "q.onnx"), str(tmp_path / "x.npz")),
        partial(NullSession, folder=tmp_path),
        target="sqnr>=20",
        resume=False,
    )
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert any(note.startswith("Q/DQ check: skip") for note in app.session.outline.notes)
        presenter = app.main_screen
        while presenter.current_group is None or presenter.current_group.name != "/two/Conv":
            await press(pilot, "down")
        assert presenter.disabled_reason("free") == ""
        await settle(pilot)
        await press(pilot, "9")
        await settle(pilot)
        item = next(item for item in app.screen.items if "new Q/DQ" in "".join(item.cells))
        assert item.cells[0].startswith("INT8 with ") and item.cells[-1] == "none, leaves file"
        await press(pilot, item.key)
        ((subject, move),) = app.session.config.moves.items()
        assert subject == ("precision", "/two/Conv") and move.precision is INT8
        await settle(pilot)
        await press(pilot, "9")
        refused = next(item for item in app.screen.items if item.text == "new Q/DQ, this layer:")
        assert "no Q/DQ nodes" in refused.refusal


# -- conversions in an engine -----------------------------------------------------------------------------------------

CONVERTED = {
    "between-pool": (qdq.between("AveragePool"), (FLOATS,), (FLOATS,)),
    "between-conv": (qdq.between("Conv"), (FLOATS,), (FLOATS,)),
    "between-resize": (qdq.between("Resize"), (FLOATS,), ()),
    "branches-relu": (qdq.branches(), (SCALES,), ()),
    "branches-equal": (qdq.branches(0.05), (), ()),
    "branches-pool": (qdq.branches(operator="AveragePool"), (FLOATS, FLOATS, SCALES), (FLOATS, FLOATS, SCALES)),
    "branches-chained": (qdq.branches(operator="AveragePool", chained=True), (FLOATS, SCALES), (FLOATS, SCALES)),
}
"""Files with forms that builders may convert: the file, the rules of its candidates, and the rules of the findings in
the engine layers of TensorRT-RTX, which are recorded in ``listings/qdq-NAME.txt``."""


@pytest.mark.parametrize("name", CONVERTED)
def test_a_form_is_a_finding_only_if_the_engine_converts_the_values(name, opened):
    model, candidates, findings = CONVERTED[name]
    network = opened(model)
    report = read_layer_listing((TESTS / "listings" / f"qdq-{name}.txt").read_text("utf-8"), network)
    assert network.qdq_findings == () and tuple(item.rule for item in network.qdq_candidates) == candidates
    found = list(find_confirmed_qdq_candidates(network, report))
    assert tuple(item.rule for item in found) == findings
    for item in found:
        assert " __myl_MulMinMaxRounCast" in item.detail and item.conversions
        assert all(
            any(layer.name == kernel and not layer.network_layers for layer in report.layers)
            for kernel, _ in item.conversions
        )


def listing_entries(name: str) -> list[dict[str, object]]:
    """The rows of a recorded listing in the form of the inspector's JSON."""
    rows = (TESTS / "listings" / f"qdq-{name}.txt").read_text("utf-8").split("\n")
    return [dict(inspector._parse_row(row)) for row in rows if row.startswith("Name: ")]


def test_the_command_reads_layer_information_and_profiles(run, tmp_path):
    onnx.save(qdq.between("AveragePool"), tmp_path / "q.onnx")
    entries = listing_entries("between-pool")
    graph, profile = tmp_path / "e.graph.json", tmp_path / "e.profile.json"
    graph.write_text(json.dumps({"Layers": entries}))
    profile.write_text(
        json.dumps(
            [
                {"count": 10},
                *({"name": entry["Name"], "averageMs": 0.01 * (index + 1)} for index, entry in enumerate(entries)),
            ]
        )
    )
    words = ("lint", tmp_path / "q.onnx")
    assert run(*words)[0] == 0, "the file alone has no finding"
    line = (
        "  /next/q: /mid/AveragePool (AveragePool) is in floats between /one/Conv and /two/Conv; the engine "
        "converts in __myl_MulMinMaxRounCast_myl0_4"
    )
    code, out, _ = run(*words, "--engine", graph)
    assert code == 1 and line in out.splitlines()
    code, out, _ = run(*words, "--engine", profile, "--json")
    record = json.loads(out)
    assert code == 1 and not mismatches(record, "lint-v1")
    (finding,) = record["findings"]
    assert (finding["rule"], finding["group"]) == (FLOATS, "/mid/AveragePool")
    assert finding["conversions"] == [{"engine_layer": "__myl_MulMinMaxRounCast_myl0_4", "ms": pytest.approx(0.05)}]
    code, out, _ = run("inspect", tmp_path / "q.onnx", "--engine", profile)
    assert code == 0 and "AveragePool" in out
    onnx.save(qdq.between("Resize"), tmp_path / "q.onnx")
    code, out, _ = run(*words, "--engine", graph)
    assert code in (0, 1) and line not in out
    graph.write_text(json.dumps({"Layers": [{**entry, "Name": "k", "Metadata": ""} for entry in entries]}))
    code, _, err = run(*words, "--engine", graph)
    assert code == 2 and "of q.onnx" in err


@pytest.mark.parametrize("form", ["named", "reformat", "fused"])
def test_conversions_as_tensorrt_8_and_10_list_them(form, opened):
    """A layer of origin QDQ that has the name of the Q node, and a reformat beside the float layer."""
    network = opened(qdq.between("AveragePool"))

    def entry(name: str, source: str, source_type: str, result: str, result_type: str, **more: str):
        return {
            "Name": name,
            "LayerType": "CaskConvolution",
            **more,
            "Inputs": [{"Name": source, "Format/Datatype": source_type}],
            "Outputs": [{"Name": result, "Format/Datatype": result_type}],
        }

    entries = [
        entry("/one/Conv", "x", "Int8", "a", "Int8" if form == "reformat" else "Float"),
        entry("/mid/AveragePool", "a", "Float", "b", "Float"),
        entry("/two/Conv", "c", "Int8", "y", "Float"),
    ]
    if form == "named":
        entries.insert(
            2, entry("/next/q_quantize_scale_node", "b", "Float", "c", "Int8", LayerType="Reformat", Origin="QDQ")
        )
    elif form == "reformat":
        entries[1] = entry("/mid/AveragePool", "r", "Float", "b", "Float")
        entries.insert(
            1,
            entry(
                "Reformatting CopyNode for Input Tensor 0 to /mid/AveragePool",
                "a",
                "Int8",
                "r",
                "Float",
                LayerType="Reformat",
                Origin="REFORMAT",
            ),
        )
    found = list(find_confirmed_qdq_candidates(network, build_engine_report(entries, network)))
    assert [item.rule for item in found] == ([] if form == "fused" else [FLOATS])


# -- builds with TensorRT-RTX -----------------------------------------------------------------------------------------

RECORDED = {
    "residual": CLEAN["residual"],
    "residual-pair": BREAKING["pair before the Add"][1],
    "residual-float-skip": BREAKING["float skip"][1],
    "product": CLEAN["product"],
    "product-float-weight": BREAKING["float weight"][1],
    "product-float-activation": BREAKING["float activation"][1],
    "attention": CLEAN["attention"],
    "attention-qk": BREAKING["QK alone"][1],
    "conv-mul": CLEAN["factor of channels"],
    "conv-tanh": BREAKING["operator behind the weight"][1],
    "conv-axis": BREAKING["axis of the weight"][1],
    "conv-activation-axis": BREAKING["axis of an activation"][1],
    "conv-unsigned": BREAKING["unsigned"][1],
    **{name: model for name, (model, _, _) in CONVERTED.items()},
}
"""The files whose engine layers are recorded in ``listings/qdq-NAME.txt``."""


@pytest.fixture
def engine_layers(opened):
    def read(name: str) -> tuple[EngineLayer, ...]:
        text = (TESTS / "listings" / f"qdq-{name}.txt").read_text("utf-8")
        return read_layer_listing(text, opened(RECORDED[name])).layers

    return read


def _find_layer(layers: tuple[EngineLayer, ...], name: str) -> EngineLayer:
    """The first kernel that computes a layer."""
    return next(layer for layer in layers if layer.kind == COMPUTE and name in layer.network_layers)


def test_builder_fuses_a_pair_before_the_add_and_reads_a_float_skip_as_floats(engine_layers):
    good, pair, skip = map(engine_layers, ("residual", "residual-pair", "residual-float-skip"))
    assert len(good) == len(pair) == len(skip)
    assert all(_find_layer(layers, "/two/Conv").precision is INT8 for layers in (good, pair, skip))
    added = [next(layer for layer in layers if "/block/Add" in layer.network_layers) for layers in (good, pair, skip)]
    assert [layer.name.count("MinMaxRounCast") for layer in added] == [1, 2, 1]  # the pair rounds in the same kernel
    assert [set(layer.input_types) for layer in added] == [{INT8, FP32}, {INT8, FP32}, {FP32}]


def test_builder_multiplies_floats_if_one_operand_is_float(engine_layers):
    """Its kernel casts and scales the quantized operand before the product."""
    assert _find_layer(engine_layers("product"), "/fc/MatMul").type == "gemm"
    for name, kernel in (("product-float-weight", "CastMulFc"), ("product-float-activation", "CastMulCastFc")):
        layer = _find_layer(engine_layers(name), "/fc/MatMul")
        assert layer.type == "runtime_fusion" and kernel in layer.name


def test_builder_fuses_only_an_attention_whose_products_are_both_quantized(engine_layers):
    assert any(layer.is_mha for layer in engine_layers("attention"))
    assert not any(layer.is_mha for layer in engine_layers("attention-qk"))
    assert len(engine_layers("attention-qk")) > len(engine_layers("attention"))


def test_builder_computes_in_floats_behind_operators_and_other_axes(engine_layers):
    assert _find_layer(engine_layers("conv-mul"), "/Conv").precision is INT8
    for name in ("conv-tanh", "conv-axis", "conv-activation-axis"):
        assert _find_layer(engine_layers(name), "/Conv").precision is FP32


def test_builder_reads_unsigned_activations_as_int8(engine_layers):
    layers = engine_layers("conv-unsigned")
    assert _find_layer(layers, "/Conv").precision is INT8


@pytest.mark.rtx("1.7")
@pytest.mark.parametrize("name", RECORDED)
def test_tensorrt_rtx_builds_what_is_recorded(name, engine_layers, opened):
    model = RECORDED[name]
    text = rtx.layers(ir.from_proto(model))
    path = TESTS / "listings" / f"qdq-{name}.txt"
    if os.environ.get("TRT_TUI_GOLDEN") == "write":
        path.write_text(text, "utf-8")
    now = read_layer_listing(text, opened(model)).layers
    assert [(layer.kind, layer.precision, layer.network_layers) for layer in now] == [
        (layer.kind, layer.precision, layer.network_layers) for layer in engine_layers(name)
    ]


@pytest.mark.rtx("1.7")
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("zero point", "Non-zero zero point is not supported"),
        ("int32 bias", "input has type Int32"),
        ("mixed scales", "type mismatch between matmul operand scales"),
    ],
)
def test_tensorrt_rtx_refuses_what_is_said_to_be_refused(case, said):
    with pytest.raises(AssertionError, match=said):
        rtx.build(ir.from_proto(BREAKING[case][1]))
