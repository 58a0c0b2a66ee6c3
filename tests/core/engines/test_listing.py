"""trt_tui.core.engines.inspector, made and preview: what builders list of engines, and what that says of each
group.

The listings in ``tests/listings`` are TensorRT-RTX 1.7.1's for SM89, of networks of `tests.networks.kernels`; where
that is installed it must list the same today. ``tensorrt-10-conv`` is written as TensorRT 10 writes.
"""

import json
import re
from collections import Counter

import numpy as np
import onnx
import pytest

from tests import TESTS, networks, rtx
from tests.networks import Builder, floats
from tests.schemas import mismatches
from tests.texts import lacking
from trt_tui.backends.tensorrt import build_and_list_engine_layers, import_preview_builder
from trt_tui.core.engines.group_implementations import (
    STANDALONE_QDQ,
    Kernel,
    build_preview,
    choose_compute_capability,
    find_added_kernels,
    find_group_implementations,
    find_groups_splitting_mha,
    find_possibly_ineffective_groups,
    find_split_attention_groups,
    has_unrequested_precision,
    is_same_engine,
)
from trt_tui.core.engines.inspector import COMPUTE, QDQ, REFORMAT, build_engine_report, read_layer_listing
from trt_tui.core.exporters.onnx import split_off_weights
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import config_text
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.session.session import Session

FP32, FP16, INT8, FP16_PLUS = Precision.FP32, Precision.FP16, Precision.INT8, Precision.FP16_ACC_FP32
FOLDER = TESTS / "listings"
Q, K, V, QK, SOFTMAX, PV, OUT, NORM = (
    "/q/MatMul",
    "/k/MatMul",
    "/v/MatMul",
    "/scores/MatMul",
    "/Softmax",
    "/values/MatMul",
    "/o/MatMul",
    "/norm/LayerNormalization",
)
RECORDED = {
    "attention-fp16": ("attention_block", FP16, ()),
    "attention-int8": ("attention_block", INT8, ()),
    "attention-fp16-softmax-fp32": ("attention_block", FP16, (SOFTMAX,)),
    "attention-fp16-scores-fp32": ("attention_block", FP16, (QK,)),
    "odd-fp16": ("odd_kernels", FP16, ()),
    "odd-int8": ("odd_kernels", INT8, ()),
}
"""Network, precision, and the groups in FP32 of each."""


def ranges_of(network) -> dict[str, float]:
    """No two alike: equal scales are fused where others are not."""
    return {tensor: 1.0 + place / 8 for place, tensor in enumerate(network.calibrated_tensors)}


@pytest.fixture
def recorded(named_network):
    """A network with its config and its recorded preview, by name of the listing."""

    def read(name: str, change=lambda text: text):
        network_name, precision, raised = RECORDED[name]
        network = named_network(network_name)
        config = PrecisionConfig.from_precision(precision).with_group_precision(map(network.get_group, raised), FP32)
        text = change((FOLDER / f"{name}.txt").read_text("utf-8"))
        return network, config, build_preview(read_layer_listing(text, network), network, "1.7.1.116", (8, 9), 0.5)

    return read


def older(text: str) -> str:
    """A listing in the spelling of TensorRT 10: one word for type and format, weights among the inputs."""
    text = re.sub(
        r"Strides: \[[^\]]*\], StrideOrder: \[[^\]]*\], Datatype: (\w+), Format: [^}]*? \}",
        r"Format/Datatype: \1 }",
        text,
    )
    return re.sub(r"Constants: \[.*?\], (?=Outputs: )", "", text)


@pytest.mark.parametrize("name", RECORDED)
def test_both_spellings_say_the_same(recorded, name) -> None:
    _, _, new = recorded(name)
    _, _, old = recorded(name, older)
    assert new.implementations == old.implementations and new.kernels == old.kernels and len(new.kernels) >= 8
    fused = name.startswith("attention") and not name.endswith("scores-fp32")
    assert old.attention_kernel_count == new.attention_kernel_count == fused


@pytest.mark.rtx("1.7")
@pytest.mark.parametrize("name", RECORDED)
def test_the_builder_lists_what_was_recorded(recorded, name) -> None:
    network, config, preview = recorded(name)
    model = lower_from_source_model(network, config, ranges_of(network)).model
    listed = [
        rtx.layers(model),
        build_and_list_engine_layers(
            import_preview_builder(), *split_off_weights(model), network.path, {}, False, (8, 9), lambda: True
        )[0],
    ]
    for text in listed:  # from one file, and with the weights where they lie
        now = build_preview(read_layer_listing(text, network), network, "", (8, 9), 0)
        assert not find_added_kernels(now, preview) and not find_added_kernels(preview, now)


@pytest.mark.rtx("1.7")
def test_an_attention_that_has_no_kernel_of_its_type_is_built_of_several(opened) -> None:
    """ONNX's, with a mask: RTX 1.7 has no kernel of it in FP32, and refuses it if it may not be taken apart."""
    b = Builder(opset=23)
    inputs = [b.node("MatMul", ["x", b.weight(name, np.eye(64, dtype=np.float32))], f"/{name}") for name in "qkv"]
    inputs.append(b.weight("mask", np.zeros((16, 16), np.float32)))
    b.node("Attention", inputs, "/a", output="y", q_num_heads=2, kv_num_heads=2)
    network = opened(b.model([floats("x", 1, 16, 64)], [floats("y", 1, 16, 64)], ir_version=11))
    model = lower_from_source_model(network, PrecisionConfig.from_precision(FP32), {}).model
    text = build_and_list_engine_layers(
        import_preview_builder(), *split_off_weights(model), network.path, {}, False, (8, 9), lambda: True
    )[0]
    assert len(read_layer_listing(text, network).layers) > 1


@pytest.mark.rtx("1.7")
@pytest.mark.parametrize("name", ["attention_block", "odd_kernels", "mlp", "unet_small"])
def test_products_summed_in_fp32_take_the_kernels_of_fp16(named_network, name) -> None:
    network = named_network(name)
    made = {}
    for precision in (FP16, Precision.FP16_ACC_FP32):
        config = PrecisionConfig.from_precision(precision)
        text = rtx.layers(lower_from_source_model(network, config, ranges_of(network)).model)
        made[precision] = build_preview(read_layer_listing(text, network), network, "", (8, 9), 0)
        assert not made[precision].find_groups_in_unrequested_precision(network, config)
    assert {config.precision_of(group) for group in network.groups} >= {Precision.FP16_ACC_FP32}
    assert not find_added_kernels(*made.values()) and not find_added_kernels(*reversed(made.values()))


@pytest.mark.parametrize(
    ("name", "group", "precision", "shares", "mha"),
    [
        ("attention-fp16", Q, FP16, {K, V}, False),
        ("attention-fp16", SOFTMAX, FP16, {QK, PV}, True),
        ("attention-fp16", NORM, FP16, set(), False),
        ("attention-fp16", OUT, FP16, set(), False),
        ("attention-int8", Q, INT8, {K, V}, False),
        ("attention-int8", QK, INT8, {SOFTMAX, PV}, True),
        ("attention-int8", PV, INT8, {QK, SOFTMAX}, True),
        ("attention-int8", SOFTMAX, None, {QK, PV}, True),
        ("attention-int8", OUT, INT8, set(), False),  # its bias is added by a generated kernel, a row of its own
        ("attention-fp16-softmax-fp32", SOFTMAX, None, {QK, PV}, True),
        ("attention-fp16-scores-fp32", QK, FP32, set(), False),
        ("attention-fp16-scores-fp32", PV, FP16, set(), False),
        ("odd-int8", "/stem/Conv", INT8, set(), False),
        ("odd-int8", "/block/two/Conv", INT8, set(), False),
        ("odd-int8", "/depthwise/Conv", INT8, set(), False),
        ("odd-int8", "/up/ConvTranspose", FP16, set(), False),
        ("odd-int8", "/celu/ConvTranspose", FP32, set(), False),
        ("odd-fp16", "/block/two/Conv", FP16, set(), False),
        ("odd-fp16", "/up/ConvTranspose", FP16, set(), False),
        ("odd-fp16", "/celu/ConvTranspose", FP32, set(), False),
    ],
)
def test_what_a_group_computes_in_and_with_whom(recorded, name, group, precision, shares, mha) -> None:
    network, config, preview = recorded(name)
    made = preview.implementations[group]
    asked = config.precision_of(network.get_group(group))
    assert (made.implemented_precision(asked), set(made.sharing_groups), made.in_mha) == (precision, shares, mha)


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("attention-fp16", {}),
        ("attention-int8", {}),
        ("attention-fp16-softmax-fp32", {}),
        ("attention-fp16-scores-fp32", {}),
        ("odd-fp16", {}),
        ("odd-int8", {"/up/ConvTranspose": ("≠ FP16",), "/celu/ConvTranspose": ("≠ FP32", STANDALONE_QDQ)}),
    ],
)
def test_marks(recorded, name, marks) -> None:
    network, config, preview = recorded(name)
    found = {group.name: preview.list_group_remarks(group, config) for group in network.groups}
    assert {group: one for group, one in found.items() if one} == marks
    assert preview.find_groups_in_unrequested_precision(network, config) == tuple(
        name for name, one in marks.items() if "≠" in one[0]
    )


def test_layers_of_a_kernel_in_the_scope_of_its_first_stand_without_it() -> None:
    for nodes, said in (
        (("/a/b/Add", "/a/b/Mul", "/a/c/Mul"), "/a/b/Add, Mul, /a/c/Mul"),
        (("Add", "Mul"), "Add, Mul"),
        (("/Add", "/a/Mul"), "/Add, /a/Mul"),
    ):
        assert Kernel("kgen", ("FP16",), ("FP16",), nodes).kernel_text == f"kgen FP16 > FP16: {said}"


def test_a_softmax_inside_an_attention_leaves_its_kernels_and_its_scores_take_it_apart(recorded) -> None:
    network, _, plain = recorded("attention-fp16")
    _, softmax, same = recorded("attention-fp16-softmax-fp32")
    _, scores, apart = recorded("attention-fp16-scores-fp32")
    assert is_same_engine(plain, plain) and not is_same_engine(plain, same)  # other code, as its name says
    assert find_possibly_ineffective_groups(network, softmax, same) == []  # its kernel does not show what it sums in
    assert (
        find_possibly_ineffective_groups(network, scores, apart)
        == []
        == find_split_attention_groups(network, softmax, same)
    )
    chosen = find_split_attention_groups(network, scores, apart)
    assert [group.name for group in chosen] == [QK]
    assert (
        find_groups_splitting_mha(network, chosen, plain) == (QK,)
        and find_groups_splitting_mha(network, chosen, apart) == ()
    )
    assert find_added_kernels(plain, same) == [] != find_added_kernels(plain, apart)
    assert [kernel.layer_type for kernel in find_added_kernels(apart, plain)][-1] == "mha"
    assert Kernel("gemm", ("FP32", "FP32"), ("FP32",), (QK,)) in find_added_kernels(plain, apart)


def test_reformats_and_casts_are_counted_where_they_stand(recorded) -> None:
    _, _, apart = recorded("attention-fp16-scores-fp32")
    assert (apart.implementations[PV].reformat_count, apart.implementations[PV].cast_count) == (
        1,
        0,
    )  # a Transpose of its own behind it
    _, _, plain = recorded("attention-fp16")
    assert {name for name, made in plain.implementations.items() if made.cast_count} == {Q, K, V, NORM}  # of the input
    _, _, odd = recorded("odd-int8")
    assert odd.qdq_count == 1


TEN = (FOLDER / "tensorrt-10-conv.txt").read_text("utf-8")


def test_a_listing_of_a_build_on_a_gpu(named_network) -> None:
    network = named_network("odd_kernels")
    report = read_layer_listing(TEN, network)
    assert Counter(layer.kind for layer in report.layers) == {REFORMAT: 1, COMPUTE: 1}
    conv = report.layers[1]
    assert (conv.network_layers, conv.precision, conv.kernel_name) == (("/stem/Conv", "/stem/Relu"), FP16, "sm80_xmma")
    made = find_group_implementations(report, network)
    assert list(made) == ["/stem/Conv"] and (made["/stem/Conv"].reformat_count, made["/stem/Conv"].cast_count) == (1, 1)
    assert has_unrequested_precision(network.get_group("/stem/Conv"), PrecisionConfig.from_precision(INT8), made)


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (
            (
                "__myl_Corr_myl0_1",
                "/stem/Conv_myl0_2",
                "__mye5_myl1_0",
                "__myl_Corr_myl1_1",
                "/stem/Conv [profile 1]_myl1_2",
            ),
            2,
        ),
        (("/stem/Conv", "Reformatting CopyNode for Output", "/stem/Conv [profile 1]", "x [profile 2]"), 2),
        (("__myl_Corr_myl0_1", "__myl_Corr_myl1_1"), 2),
    ],
)
def test_layers_are_those_for_the_first_profile(named_network, names, kept) -> None:
    """Names as TensorRT-RTX 1.7 lists them for two profiles, and as TensorRT 8.6 does."""
    report = build_engine_report([{"Name": name, "LayerType": "gemm"} for name in names], named_network("odd_kernels"))
    assert [layer.name for layer in report.layers] == list(names[:kept])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Layers:",
        "Layers:\n\nBindings:\nx",
        "nothing of the kind",
        "Layers:\nName: a, LayerType: gemm",
        "Layers:\nName: a, LayerType: gemm, Inputs: [ { Name: x }], Outputs: [], Metadata:",
        TEN.replace("Format/Datatype", "Type"),
    ],
)
def test_what_is_no_listing_is_refused(named_network, text) -> None:
    with pytest.raises(InputError, match="the builder's list of layers cannot be read"):
        read_layer_listing(text, named_network("odd_kernels"))


def test_a_name_of_two_lines_ends_no_row(named_network) -> None:
    report = read_layer_listing(
        TEN.replace("Name: /stem/Conv +", "Name: a\nb /stem/Conv +"), named_network("odd_kernels")
    )
    assert len(report.layers) == 2 and report.layers[1].name.startswith("a\nb ")


@pytest.mark.parametrize(
    ("gpu", "asked", "target"),
    [
        (None, None, (8, 9)),
        ((9, 0), None, (8, 9)),
        ((8, 6), None, (8, 6)),
        ((8, 7), None, (8, 6)),
        ((10, 0), None, (8, 9)),
        ((12, 0), None, (12, 0)),
        ((7, 0), None, (7, 5)),
        ((9, 0), (7, 5), (7, 5)),
    ],
)
def test_the_gpu_that_is_previewed_for(gpu, asked, target) -> None:
    known = ((7, 5), (8, 0), (8, 6), (8, 9), (12, 0), (12, 1))
    assert choose_compute_capability(known, gpu, asked) == target


def test_unfused_q_and_dq_are_of_their_own_kind(recorded) -> None:
    network, _, _ = recorded("odd-int8")
    report = read_layer_listing((FOLDER / "odd-int8.txt").read_text("utf-8"), network)
    assert [layer.is_constant for layer in report.layers if layer.kind == QDQ] == [True, False, True]


@pytest.mark.rtx("1.7")
def test_the_command_tells_what_would_not_run_as_asked(run, tmp_path) -> None:
    model, config, out = tmp_path / "model.onnx", tmp_path / "precision.json", tmp_path / "report.md"
    onnx.save(networks.attention_block(), model)
    network = open_network(model)
    for start, group, expected, marks in (
        (FP16_PLUS, PV, 1, {PV: ["≠ FP16"]}),
        (FP16, SOFTMAX, 0, {}),
        (FP16, QK, 0, {QK: ["splits MHA"]}),
    ):
        chosen = PrecisionConfig.from_precision(start).with_group_precision([network.get_group(group)], FP32)
        config.write_text(config_text(network, chosen, None))
        code, text, _ = run("preview", model, "--config", config, "--scheme", "--json", "--markdown", out)
        record = json.loads(text)
        assert code == expected and record["not_as_asked"] == [PV] * expected
        assert {name: one["marks"] for name, one in record["groups"].items() if "marks" in one} == marks
        assert record["gpu"] == "SM89" or record["gpu_here"]
        assert sum(record["scheme"]["operators"]["MatMul"].values()) == 6
        assert all(", ".join(one) in out.read_text("utf-8") for one in marks.values())


def test_a_scheme_needs_no_builder(run, tmp_path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(networks.attention_block(), model)
    code, text, _ = run("scheme", model)
    assert code == 0 and not lacking(text, "100%", "0.5898 million")
    assert re.findall(r"not INT8: 1 .*\((\S+)\): ", text) == ["/Softmax", "/norm/LayerNormalization"]
    code, _, said = run("scheme", model, "--compute-capability", "8.9")
    assert code == 2 and said.startswith("Error: --compute-capability ")


@pytest.mark.rtx("1.7")
def test_a_comparison_counts_what_would_not_run_as_asked(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Session, "requests_previews", True)
    model, data, out = tmp_path / "model.onnx", tmp_path / "data.npz", tmp_path / "out.md"
    onnx.save(networks.odd_kernels(), model)
    np.savez(data, image=networks.random_images(np.random.default_rng(0), (4, 3, 16, 16)))
    code, text, _ = run("compare", model, "--data", data, "--layers", "none", "--json", "-", "--markdown", out)
    record = json.loads(text)
    others = ["/up/ConvTranspose", "/celu/ConvTranspose"]
    assert code == 0 and not mismatches(record, "comparison-v1")
    assert {name: one["preview"]["not_as_asked"] for name, one in record["runs"].items()} == {
        "fp16": [],
        "int8": others,
        "config": others,
    }
    assert re.search("2 of 7 fused layers .*: /up/ConvTranspose", out.read_text("utf-8"))


def test_the_scheme_of_a_partly_quantized_file_lists_the_rest_with_its_share(run, tmp_path):
    b = networks.Builder()

    def pair(name, tensor, shape):
        scale, zero = b.weight(f"{name}.scale", np.float32(0.05)), b.weight(f"{name}.zero", np.int8(0))
        codes = b.node("QuantizeLinear", [tensor, scale, zero], f"/{name}/q")
        return b.node("DequantizeLinear", [codes, scale, zero], f"/{name}/dq")

    first = b.node("MatMul", [pair("x", "x", 2), pair("w1", b.kernel("w1", (16, 48), 16), 2)], "/first")
    b.node("MatMul", [b.node("Relu", [first], "/act"), b.kernel("w2", (48, 16), 48)], "/second", output="y")
    model = tmp_path / "partly.onnx"
    onnx.save(b.model([networks.floats("x", 4, 16)], [networks.floats("y", 4, 16)]), model)
    code, text, err = run("scheme", model)
    assert code == 0, err
    assert not lacking(text, "50% of 0.006144", skipped := "50% of the MACs: FP32 in the file"), text
    assert re.search(r"not INT8: 1 .*\(/second/MatMul\)", text)
    code, _, _ = run("scheme", model, "--json", tmp_path / "s.json", "--markdown", tmp_path / "s.md")
    scheme = json.loads((tmp_path / "s.json").read_text())["scheme"]
    assert scheme["macs"] == {"all": 6144, "asked": 3072} and scheme["skipped"][0]["macs"] == 3072
    assert skipped in (tmp_path / "s.md").read_text()
