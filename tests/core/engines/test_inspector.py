"""trt_tui.core.engines.inspector: what the inspector, profiles and graphs of each release say, as layers and groups."""

import json
from collections import Counter
from dataclasses import replace

import onnx
import pytest

from tests import TESTS, networks
from tests.measuring import verdict
from tests.networks import Builder, floats
from tests.refusals import refused
from trt_tui.core.engines.group_implementations import find_group_implementations
from trt_tui.core.engines.inspector import (
    COMPUTE,
    IDLE,
    QDQ,
    REFORMAT,
    EngineLayer,
    EngineReport,
    find_first_different_kernel,
    read_engine_report,
    read_layer_profile,
    read_profile_report,
)
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import UNFUSED, EngineErrors, GroupErrors
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.report.engine_blocks import MAX_SLOWEST_LAYERS, engine_error_blocks, slowest_layer_table
from trt_tui.errors import InputError

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
REAL = TESTS / "inspector" / "8.6-h200-scenes-fp16.json"


@pytest.fixture(scope="module")
def resnet(named_network):
    return named_network("small_resnet")


@pytest.fixture(scope="module")
def abc(opened):
    """Nodes a to f: MatMul, Relu, MatMul, Add with a, Relu, Softmax."""
    b = Builder()
    weight = b.kernel("w", (8, 8), 8)
    a = b.node("MatMul", ["x", weight], name="a")
    c = b.node("MatMul", [b.node("Relu", [a], name="b"), b.kernel("v", (8, 8), 8)], name="c")
    e = b.node("Relu", [b.node("Add", [c, a], name="d")], name="e")
    b.node("Softmax", [e], name="f", output="y")
    return opened(b.model([floats("x", 4, 8)], [floats("y", 4, 8)]))


def tensors(*kinds: str, typed: bool = False) -> list[dict]:
    """Tensors of a layer: up to TensorRT 10 with one word for type and format, from 11 on with two."""
    if typed:
        return [
            {"Name": "t", "Dimensions": [1], "Datatype": kind, "Format": "(Linear) Row major linear format"}
            for kind in kinds
        ]
    return [{"Name": "t", "Location": "Device", "Dimensions": [1], "Format/Datatype": kind} for kind in kinds]


def entry(
    name: str,
    kind: str,
    metadata: str = "",
    inputs: tuple = ("Float",),
    outputs: tuple = ("Float",),
    typed: bool = False,
    **more: object,
) -> dict:
    return {
        "Name": name,
        "LayerType": kind,
        "Inputs": tensors(*inputs, typed=typed),
        "Outputs": tensors(*outputs, typed=typed),
        "TacticName": f"tactic of {name}",
        "Metadata": metadata,
        **more,
    }


def read(network, *entries: dict, **more: object) -> tuple[EngineLayer, ...]:
    return report(network, *entries, **more).layers


def report(network, *entries: dict, **more: object) -> EngineReport:
    return read_engine_report(json.dumps({"Layers": list(entries), **more}), network)


def onnx_layers(*names: str, separator: str = "\x1e") -> str:
    return separator.join(f"[ONNX Layer: {name}]" for name in names)


@pytest.fixture(scope="module")
def scenes(named_network):
    network = named_network("demo")
    return network, read_engine_report(REAL.read_text(), network)


def test_the_layers_of_a_real_engine(scenes) -> None:
    network, report = scenes
    assert Counter(layer.kind for layer in report.layers) == {COMPUTE: 34, REFORMAT: 6, IDLE: 5}
    assert Counter(layer.type for layer in report.layers) == {
        "CaskConvolution": 25,
        "CaskDeconvolutionV2": 3,
        "CaskPooling": 3,
        "PointWiseV2": 3,
        "Reformat": 6,
        "NoOp": 5,
    }
    assert {layer.precision for layer in report.layers if layer.kind == COMPUTE} == {FP16}
    assert not any(layer.is_fused_region for layer in report.layers)
    by_name = {layer.name: layer for layer in report.layers}
    assert by_name["PWN(PWN(/dec3/gate/Sigmoid), /dec3/gate/Mul)"].network_layers == (
        "/dec3/gate/Sigmoid",
        "/dec3/gate/Mul",
    )
    block = by_name["/enc2/residual/pointwise/Conv + /enc2/residual/Add + /enc2/residual/act/Relu"]
    assert block.network_layers == ("/enc2/residual/pointwise/Conv", "/enc2/residual/Add", "/enc2/residual/act/Relu")
    assert block.kernel_name.startswith("sm")
    found = {node for layer in report.layers for node in layer.network_layers}
    assert {name for group in network.groups for name in group.layers} <= found
    assert report.precision_shares() == {"FP16": (34, None), "reformat": (6, None)}
    shares = report.with_layer_times(
        {one.name: 0.5 if one.kind == REFORMAT else 1.0 for one in report.layers}
    ).precision_shares()
    assert shares["FP16"] == (34, pytest.approx(34 / 42)) and shares["reformat"] == (6, pytest.approx(3 / 42))


def test_what_a_real_engine_made_of_the_groups(scenes) -> None:
    network, report = scenes
    made = find_group_implementations(report, network)
    copied = {group.name for group in network.groups if group.operator == "Concat"}
    assert set(made) == {group.name for group in network.groups} - copied
    assert {one.precision for one in made.values()} == {FP16}
    assert {name: one.reformat_count for name, one in made.items() if one.reformat_count} == {
        "/enc1/widen/conv/Conv": 1,
        "/dec1/gate/Mul": 1,
        "/head/Conv": 1,
    }
    assert all(
        len(one.engine_layers) == 1 and not one.in_fused_region and one.latency_ms is None for one in made.values()
    )


@pytest.mark.parametrize(
    ("word", "precision", "typed"),
    [
        ("Row major linear FP32", FP32, False),
        ("Channel major FP16 format where channel % 8 == 0", FP16, False),
        ("Thirty-two wide channel vectorized row major Int8 format", INT8, False),
        ("Row major linear BF16", BF16, False),
        ("Row major Int8 format", INT8, False),
        ("Row major linear INT32", None, False),
        ("FP8", Precision.FP8, False),
        ("", None, False),
        ("Row major linear UINT8 format", None, False),
        ("Row major UInt8 format", None, False),
        ("kINT8", INT8, False),
        ("Float", FP32, True),
        ("Half", FP16, True),
        ("BFloat16", BF16, True),
        ("Int8", INT8, True),
        ("Int64", None, True),
        ("Float8", Precision.FP8, True),
        ("Int4", Precision.INT4, True),
        ("FP4", Precision.NVFP4, True),
        ("FP8UE8M0", Precision.MXFP8, True),
        ("UInt8", None, True),
        ("UINT8", None, True),
    ],
)
def test_types_are_within_the_format_up_to_10_and_stand_alone_from_11_on(abc, word, precision, typed) -> None:
    name = "a_myl0_3" if typed else "a"
    made = entry(name, "gemm", onnx_layers("a", separator="\x1f" if typed else "\x1e"), (word,), (word,), typed=typed)
    (layer,) = read(abc, made, **({"I/O Tensors": [{"Name": "x"}]} if typed else {"Bindings": ["x", "y"]}))
    assert layer.precision is precision and layer.network_layers == ("a",) and layer.kernel_name == f"tactic of {name}"


def test_weights_tell_int8_where_the_input_does_not(abc) -> None:
    layers = read(
        abc,
        entry("a", "CaskConvolution", onnx_layers("a"), ("Float",), ("Half",), Weights={"Type": "Int8"}),
        entry("c", "CaskConvolution", onnx_layers("c"), ("Int8",), ("Half",), Weights={"Type": "Half"}),
        entry("e", "PointWiseV2", onnx_layers("e"), ("Half", "Int8"), ("Half",)),
        entry("f", "kgen", onnx_layers("f"), ("UInt8",), ("Half",), typed=True),
    )  # an image
    assert [layer.precision for layer in layers] == [INT8, INT8, FP16, FP16]


@pytest.mark.parametrize("separator", ["\x1e", "\x1f", "", " ", "; "])
def test_metadata_names_the_nodes_whatever_stands_between(abc, separator) -> None:
    text = json.dumps({"Layers": [entry("anything", "kgen", onnx_layers("a", "b", "not one", separator=separator))]})
    for written in (text, text.replace("\\u001e", "\x1e")):  # 8.6 does not escape it
        assert read_engine_report(written, abc).layers[0].network_layers == ("a", "b")


def test_names_with_brackets_are_read_from_metadata(opened) -> None:
    b = Builder()
    b.node("Relu", [b.node("Exp", ["x"], name="m[0]/exp")], name="m[1] + x", output="y")
    network = opened(b.model([floats("x", 4)], [floats("y", 4)]))
    (layer,) = read(network, entry("k", "kgen", onnx_layers(*(layer.name for layer in network.layers))))
    assert layer.network_layers == tuple(layer.name for layer in network.layers)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("a + b", "ab"),
        ("PWN(e)", "e"),
        ("PWN(PWN(b), d)", "bd"),
        ("a || c", "ac"),
        ("PWN(d + e)", "de"),
        ("w + w__q + a + b", "ab"),
        ("a_clone_1", "a"),
        ("a_myl0_3", "a"),
        ("f:0", "f"),
        ("nothing here", ""),
        ("c + d + e", "cde"),
        ("a_copy_output", "a"),
    ],
)
def test_fused_names_tell_the_nodes_where_metadata_does_not(abc, name, nodes) -> None:
    (layer,) = read(abc, entry(name, "CaskConvolution"))
    assert layer.network_layers == tuple(nodes)


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (entry("a", "CaskGemmMatrixMultiply"), COMPUTE),
        (entry("Reformatting CopyNode for Input Tensor 0 to a", "Reformat", Origin="REFORMAT"), REFORMAT),
        (entry("Reformatting CopyNode for Input Tensor 0 to a", "NoOp"), IDLE),
        (entry("t copy", "Reformat", onnx_layers("d"), Origin="CONCAT"), REFORMAT),
        (entry("x__q", "Reformat", onnx_layers("x__q"), ("Float",), ("Int8",), Origin="QDQ"), QDQ),
        (entry("x__q", "Quantize", typed=True), QDQ),
        (entry("x__dq", "Dequantize", typed=True), QDQ),
        (entry("x__q", "Scale", onnx_layers("x__q")), QDQ),
        (entry("__myl_Quan_myl0_0", "kgen", onnx_layers("x__fp16", "x__fp16__q", separator="\x1f"), typed=True), QDQ),
        (entry("__myl_Cast_myl0_0", "kgen", onnx_layers("x__fp16", separator="\x1f"), typed=True), REFORMAT),
        (entry("y__output", "Cast", onnx_layers("y__output")), REFORMAT),
        (entry("__myl_ReluQuan_myl0_1", "kgen", onnx_layers("b", "t__q", separator="\x1f"), typed=True), COMPUTE),
        (entry("w + w__q + conv of another network", "CaskConvolution"), COMPUTE),
        (entry("k", "Constant"), IDLE),
        (entry("shape", "ShapeHostToDevice", inputs=("Int32",), outputs=("Int32",)), IDLE),
    ],
)
def test_kinds(abc, made, kind) -> None:
    (layer,) = read(abc, made)
    assert layer.kind == kind
    if made["Name"].startswith("Reformatting"):
        assert layer.network_layers == ()


def test_shares_name_what_does_not_compute_apart(abc) -> None:
    found = report(
        abc,
        entry("x__q", "Quantize"),
        entry("a", "gemm", onnx_layers("a"), ("Int8",)),
        entry("b", "kgen", onnx_layers("b"), ("Half",)),
        entry("c", "gemm", onnx_layers("c"), ("Half",)),
        entry("Reformatting CopyNode for Output Tensor 0 to c", "Reformat"),
        entry("f", "NoOp"),
        entry("{ForeignNode[d...e]}", "Myelin"),
    )
    assert found.precision_shares() == {
        "INT8": (1, None),
        "FP16": (2, None),
        "?": (1, None),
        "reformat": (1, None),
        "qdq": (1, None),
    }
    assert [found.count_layers(kind) for kind in (COMPUTE, REFORMAT, QDQ, IDLE)] == [4, 1, 1, 1]
    timed = found.with_layer_times({"a": 3.0, "b": 1.0, "x__q": 1.0})
    assert timed.precision_shares() == {
        "INT8": (1, 0.6),
        "FP16": (2, 0.2),
        "?": (1, 0.0),
        "reformat": (1, 0.0),
        "qdq": (1, 0.2),
    }
    assert [layer.ms for layer in timed.layers[:4]] == [1.0, 3.0, 1.0, None]


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("{ForeignNode[b...e]}", "bcde"),
        ("{ForeignNode[e...b]}", "bcde"),
        ("{ForeignNode[d]}", "d"),
        ("{ForeignNode[a_output_0__q...c_output_0__fp16__dq_1]}", "abc"),
        ("{ForeignNode[unknown...c]}", "abc"),
        ("{ForeignNode[c...unknown]}", "cdef"),
        ("{ForeignNode[y__output]}", "f"),
        ("{ForeignNode[w...b]}", "ab"),
    ],
)
def test_a_region_holds_what_lies_between_its_ends(abc, name, nodes) -> None:
    (layer,) = read(abc, entry(name, "Myelin"))
    assert (
        layer.network_layers == tuple(nodes)
        and layer.is_fused_region
        and layer.precision is None
        and layer.kind == COMPUTE
    )


def test_a_region_leaves_out_what_other_layers_name(abc) -> None:
    layers = read(
        abc,
        entry("{ForeignNode[a...f]}", "Myelin"),
        entry("c", "CaskGemmMatrixMultiply", onnx_layers("c")),
        entry("Reformatting CopyNode for Input Tensor 0 to {ForeignNode[a...f]}", "Reformat"),
    )
    assert layers[0].network_layers == tuple("abdef")
    assert [layer.is_fused_region for layer in layers] == [True, False, False]
    made = find_group_implementations(
        report(
            abc,
            entry("{ForeignNode[a...f]}", "Myelin"),
            entry("Reformatting CopyNode for Input Tensor 0 to {ForeignNode[a...f]}", "Reformat"),
        ),
        abc,
    )
    assert {one.in_fused_region for one in made.values()} == {True} and {one.precision for one in made.values()} == {
        None
    }
    assert {one.reformat_count for one in made.values()} == {1}


def test_times_are_given_where_they_are_a_groups_own(abc) -> None:
    groups = {group.name: group.layers for group in abc.groups}
    assert {"a", "c", "f"} <= set(groups)
    found = report(
        abc,
        entry("one", "gemm", onnx_layers("a")),
        entry("two", "gemm", onnx_layers("a")),
        entry("both", "gemm", onnx_layers("c", "f")),
    )
    made = find_group_implementations(found.with_layer_times({"one": 1.0, "two": 0.5, "both": 4.0}), abc)
    assert made["a"].latency_ms == 1.5 and made["a"].engine_layers == ("one", "two")
    assert (
        made["c"].latency_ms is None
        and made["f"].latency_ms is None
        and made["c"].engine_layers == made["f"].engine_layers == ("both",)
    )
    assert find_group_implementations(found.with_layer_times({"one": 1.0}), abc)["a"].latency_ms is None
    assert find_group_implementations(found, abc)["a"].latency_ms is None


def test_a_group_of_several_precisions_has_none(abc) -> None:
    made = find_group_implementations(
        report(
            abc,
            entry("one", "gemm", onnx_layers("a"), ("Int8",)),
            entry("two", "gemm", onnx_layers("a"), ("Half",)),
            entry("c", "gemm", onnx_layers("c"), ("Half",)),
        ),
        abc,
    )
    assert made["a"].precision is None and made["c"].precision is FP16
    assert "f" not in made


def test_a_kernel_that_adds_the_bias_does_not_hide_the_products_precision(abc) -> None:
    product = entry("a_myl0_1", "gemm", onnx_layers("x__q", "a", separator="\x1f"), ("Int8",), ("Half",))
    made = find_group_implementations(
        report(abc, product, entry("__myl_Add_myl0_2", "kgen", onnx_layers("a"), ("Half",), ("Half",))), abc
    )
    assert made["a"].precision is INT8 and len(made["a"].engine_layers) == 2


def test_a_kernel_that_adds_a_tensor_of_another_type_runs_as_requested_in_either(abc) -> None:
    kernel = entry("a_myl0_1", "runtime_fusion", onnx_layers("a"), ("Float", "Half"), ("Float",))
    made = find_group_implementations(report(abc, kernel), abc)["a"]
    assert [made.implemented_precision(precision) for precision in (FP16, FP32)] == [FP16, FP32]
    assert made.implemented_precision(INT8) is not INT8


def test_reformats_count_in_front_and_behind_but_not_of_other_layers(abc) -> None:
    made = find_group_implementations(
        report(
            abc,
            entry("a + b", "gemm"),
            entry("Reformatting CopyNode for Input Tensor 0 to a + b", "Reformat"),
            entry("Reformatting CopyNode for Output Tensor 0 to a + b", "Reformat"),
            entry("b2", "gemm"),
            entry("Reformatting CopyNode for Input Tensor 1 to c + a + b2", "Reformat"),
        ),
        abc,
    )
    assert made["a"].reformat_count == 2


def test_an_outline_serves_as_well_as_the_network(resnet) -> None:
    text = json.dumps({"Layers": [entry("/conv1/Conv + /relu/Relu", "CaskConvolution")]})
    whole, outline = (
        find_group_implementations(read_engine_report(text, one), one) for one in (resnet, resnet.build_outline())
    )
    assert whole == outline and set(whole) == {"/conv1/Conv"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        "null",
        "3",
        '{"Layers": 3}',
        '{"Layers": null}',
        '{"Layers": [{"Name": 3}]}',
        '{"Layers": [{"Inputs": [3]}]}',
        '{"Bindings": []}',
        '{"Layers": [{"Name": "a"}, "b"]}',
    ],
)
def test_other_text_is_refused(abc, text) -> None:
    with pytest.raises(InputError, match="not the layer information"):
        read_engine_report(text, abc)


def test_names_alone_are_refused_with_the_way_out(abc) -> None:
    with refused("names of its layers only", next_step="--profilingVerbosity=detailed"):
        read_engine_report('{"Layers": ["a", "b"], "Bindings": []}', abc)


def test_the_first_kernel_that_differs_names_both_tactics(abc) -> None:
    """By its layers, its types and its tactic."""
    first = report(abc, entry("a", "gemm"), entry("c", "gemm"))
    assert find_first_different_kernel(first, first) == ""
    assert (
        find_first_different_kernel(first, report(abc, entry("a", "gemm"), entry("c", "gemm", TacticName="k9")))
        == "c: tactic of c and k9"
    )
    assert find_first_different_kernel(first, report(abc, entry("a", "gemm", outputs=("Half",)), entry("c", "gemm")))


def as_trtexec(ms_by_layer, has_median=True):
    """The text that `Profiler::exportJSONProfile` of trtexec writes, in release 10 and 8.6 or before."""
    total = sum(ms_by_layer.values())
    text = '[\n  { "count" : 10 }\n'
    for name, ms in ms_by_layer.items():
        median = f', "medianMs" : {ms:g}' if has_median else ""
        text += (
            f', {{ "name" : "{name}", "timeMs" : {ms * 10:g}, "averageMs" : {ms:g}{median}, '
            f'"percentage" : {100 * ms / total:g} }}\n'
        )
    return text + "]\n"


@pytest.mark.parametrize(
    "text",
    [as_trtexec({"a + b": 0.625, "c\x1e": 0.375}), as_trtexec({"a + b": 0.625, "c\x1e": 0.375}, has_median=False)],
)
def test_profiles_of_every_release_are_read(tmp_path, text):
    path = tmp_path / "p.json"
    path.write_text(text)
    assert read_layer_profile(path) == {"a + b": 0.625, "c\x1e": 0.375}


def test_times_of_one_name_are_added(tmp_path):
    path = tmp_path / "p.json"
    path.write_text('[{"count": 1}, {"name": "a", "averageMs": 1}, {"name": "a", "averageMs": 2.5}]')
    assert read_layer_profile(path) == {"a": 3.5}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "Expecting value"),
        ("{}", "not a list"),
        ('{"Layers": []}', "not a list"),
        ("[1]", "not an object"),
        ("[" * 5000 + "]" * 5000, "too deep"),
        ("[]", "no engine layer takes any time"),
        ('[{"count": 3}]', "no engine layer takes any time"),
        ('[{"averageMs": 1}]', "entry 0 has no name"),
        ('[{"count": 3}, {"count": 3}]', "entry 1 has no name"),
        ('[{"name": 1, "averageMs": 1}]', "has no name"),
        ('[{"name": "a", "averageMs": 0}]', "no engine layer takes any time"),
        *(
            (f'[{{"name": "a", "averageMs": {value}}}]', "not a time in milliseconds")
            for value in ("NaN", "Infinity", "-0.1", "1e300", "true", '"1"', "null", "[]", "1" + "0" * 400)
        ),
        ('[{"name": "a"}]', "not a time in milliseconds"),
        ("1" * 5000, "Exceeds the limit"),
        ("\xff", ""),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, text, cause):
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(InputError) as error:
        read_layer_profile(path)
    assert cause in error.value.cause and "p.json" in error.value.title and error.value.next_step


def test_the_graph_beside_a_profile_tells_the_nodes(tmp_path):
    onnx.save(networks.small_resnet(), tmp_path / "resnet.onnx")
    network, profile = open_network(tmp_path / "resnet.onnx").build_outline(), tmp_path / "e.profile.json"
    profile.write_text(as_trtexec({"__myl_a_myl0_0": 1.0, "/layer1/conv1/Conv": 3.0}))

    def read_layers():
        return {layer.name: layer for layer in read_profile_report(profile, network).layers}

    assert {name: layer.ms for name, layer in read_layers().items()} == {
        "__myl_a_myl0_0": 1.0,
        "/layer1/conv1/Conv": 3.0,
    }
    assert [layer.network_layers for layer in read_layers().values()] == [(), ("/layer1/conv1/Conv",)]
    tensor = {"Name": "image", "Format/Datatype": "Row major linear FP32"}
    (tmp_path / "e.graph.json").write_text(
        json.dumps(
            {
                "Layers": [
                    {
                        "Name": "__myl_a_myl0_0",
                        "LayerType": "CaskConvolution",
                        "Inputs": [tensor],
                        "Outputs": [tensor],
                        "Metadata": "[ONNX Layer: /conv1/Conv]",
                    }
                ]
            }
        )
    )
    shown = read_layers()["__myl_a_myl0_0"]
    assert (shown.ms, shown.network_layers, shown.precision) == (1.0, ("/conv1/Conv",), Precision.FP32)
    (tmp_path / "e.graph.json").write_text("[]")
    with pytest.raises(InputError, match="not the layer information"):
        read_layers()


def test_the_slowest_layers_come_first_and_the_others_are_one_row():
    times = [3.0, 30.0, *range(40, 40 + 10 * (MAX_SLOWEST_LAYERS - 1), 10), 7.0]
    layers = [EngineLayer(f"layer {ms:g}", "Conv", COMPUTE, FP16, ms=float(ms)) for ms in times]
    _, *rows = slowest_layer_table(EngineReport((*layers, EngineLayer("none", "Conv", COMPUTE, FP16)))).rows
    assert [row[0] for row in rows[:-1]] == [f"layer {ms:g}" for ms in sorted(times[1:-1], reverse=True)]
    assert rows[0][1:] == ["FP16", "100", f"{100 * 100 / sum(times):.0f}%"]
    assert rows[-1][0].startswith("2 ") and rows[-1][2:] == ["10.0", f"{100 * 10 / sum(times):.0f}%"]


def test_the_groups_that_lose_most_in_an_engine_come_first(resnet):
    built = dict(zip((group.name for group in resnet.groups), (30.0, 20.0, 45.0, None), strict=False))
    metrics = {name: ErrorMetrics(sqnr, nan=3 * (sqnr is None)) for name, sqnr in built.items()}
    errors = EngineErrors(UNFUSED, metrics, samples=4)
    simulated = {name: GroupErrors(FP16, accumulated=ErrorMetrics(40.0)) for name in built}
    _, table = engine_error_blocks(resnet, "int8", errors, simulated, None)
    assert [row[-1] for row in table.rows[1:]] == ["", "+20.0", "+10.0", "-5.0"]
    assert [row[2] for row in table.rows[1:]] == ["NaN", "20.0", "30.0", "45.0"]
    lines, _ = engine_error_blocks(resnet, "int8", replace(errors, accuracy=verdict(12.5)), simulated, None)
    assert "12.5 dB at y" in lines[-1]
    assert engine_error_blocks(resnet, "int8", None, simulated, None) == []
