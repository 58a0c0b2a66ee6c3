"""Each kind of zero-cost change in each place, and the table that every reader of them follows."""

import json
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest

from tests import lowered, rtx, schemas
from tests.core.lowering.test_attention_scale import attention
from tests.core.lowering.test_rounding import convs, encoder
from tests.core.measure.test_channel_scaling import assert_outputs_stay
from tests.core.measure.test_equalization import context_of, opened_pair, sqnr_db
from tests.core.measure.test_free import CHANNELS, transformer
from tests.networks.chained import inverted_residuals
from tests.refusals import refused
from trt_tui.core.exporters.formats import omission_record
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.lowering.weak_typing import lower_to_explicit_quantization, lower_to_implicit_quantization
from trt_tui.core.measure import zero_cost_kinds
from trt_tui.core.measure.zero_cost_kinds import (
    ZERO_COST_KINDS,
    ZERO_COST_MOVE_CLASSES,
    ConfigProposal,
    ZeroCostKind,
    ZeroCostStage,
    add_zero_cost_moves,
    drop_moves_of_raised_groups,
    find_refusal_reasons,
    list_searched_stages,
    list_zero_cost_moves,
)
from trt_tui.core.moves.config import MOVE_KINDS, BarrierMove, NormRewriteMove, PrecisionConfig, RangeMove
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.moves.constant_moves import (
    AttentionScaleMove,
    BiasCorrectionMove,
    EqualizationMove,
    RoundingMove,
    SmoothQuantMove,
    encode_vector,
)
from trt_tui.core.moves.move import MOVE_TEXTS
from trt_tui.core.precision import Precision

FP32, FP16, INT8, INT4 = Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4

EXAMPLES = {
    "norm as operator": (transformer, PrecisionConfig.from_precision(FP16)),
    "QK scale": (attention, PrecisionConfig.from_precision(FP16)),
    "SmoothQuant": (transformer, PrecisionConfig(INT8, FP16)),
    "equalization": (inverted_residuals, PrecisionConfig(INT8, FP16)),
    "rounding": (convs, PrecisionConfig(INT8, FP16)),
    "bias correction": (transformer, PrecisionConfig(INT8, FP16)),
}
"""A network and a config in which each kind has a proposal."""

FILE_KINDS = ("new Q/DQ", "recalibration")
"""The kinds that only choose precisions and ranges for a quantized file; tests/core/network/test_qdq_check.py and
others have them."""

KINDS = {kind.title: kind for kind in ZERO_COST_KINDS if kind.title in EXAMPLES}


class Example:
    """A kind with a network, samples, and the config without and with its moves."""

    def __init__(self, title, opened, backend, folder):
        model, config = EXAMPLES[title]
        self.kind = KINDS[title]
        self.network, self.samples = opened_pair(model(), opened, folder, decades=1.0 * title.startswith("equal"))
        self.context = context_of(self.network, self.samples, backend, config)
        self.ranges, self.plain_config, self.backend = self.context.ranges, config, backend
        self.proposals = list(self.kind.make_proposals(self.context))
        self.config = self.proposals[0].config
        self.added = {key: move for key, move in self.config.moves.items() if key not in config.moves}
        self.feed = self.samples.read_feed(0)
        self.case = lowered.make_case(backend, self.network, config, self.feed, self.ranges)


@pytest.fixture(scope="module", params=EXAMPLES)
def example(request, opened, backend, tmp_path_factory):
    return Example(request.param, opened, backend, tmp_path_factory.mktemp("example"))


def test_every_kind_of_the_table_has_an_example():
    assert {kind.title for kind in ZERO_COST_KINDS} == {*EXAMPLES, *FILE_KINDS}


def test_the_condition_holds_where_it_is_proposed_and_is_named_elsewhere(example):
    network, kind = example.network, example.kind
    reasons = {group.name: kind.refusal_reason(network, group, example.plain_config) for group in network.groups}
    assert {subject for _, subject in example.added} & {
        kind.find_subject(network, group) for group in network.groups if not reasons[group.name]
    }
    exact = PrecisionConfig.from_precision(FP32)
    if kind.title == "QK scale":
        assert not list(kind.make_proposals(context_of(network, example.samples, example.backend, exact)))
    else:
        assert all(kind.refusal_reason(network, group, exact) for group in network.groups)


def test_a_move_that_is_there_is_not_proposed_again(example):
    context = context_of(example.network, example.samples, example.backend, example.config)
    assert all(
        not {key for key in example.added if proposal.config.moves[key] is not example.config.moves[key]}
        for proposal in example.kind.make_proposals(context)
    )


def test_it_is_undone_by_subject(example):
    config = example.config
    for (kind, subject), move in example.added.items():
        rows = [list_zero_cost_moves(example.network, config, group) for group in example.network.groups]
        assert any((type(move), subject) in row for row in rows)
        config = config.without_moves(MOVE_KINDS[kind], [subject])
    assert config == example.plain_config and example.config != example.plain_config


def test_it_has_words(example):
    for (kind, _), move in example.added.items():
        texts = [
            move.label,
            move.row_note,
            move.difference_text,
            move.action_text,
            move.difference_title("a layer"),
            MOVE_TEXTS[kind].no_move,
            move.origin_text,
        ]
        assert all(texts) and not any("{" in text for text in texts)
    assert all(proposal.label and len(proposal.short_label or proposal.label) <= 15 for proposal in example.proposals)


def test_it_goes_through_the_file_and_away_with_other_weights_if_it_was_measured(example, tmp_path):
    text = config_text(example.network, example.config, sha256="of these")
    assert schemas.mismatches(json.loads(text)) == []
    (tmp_path / "precision.json").write_text(text)
    read = read_config(tmp_path / "precision.json", example.network, sha256="of these")
    assert read.config == example.config and not read.has_stale_ranges
    for key, move in example.added.items():
        assert all(
            getattr(read.config.moves[key], field.name) == getattr(move, field.name)
            for field in fields(move)
            if field.name != "reason"
        )
    other = read_config(tmp_path / "precision.json", example.network, sha256="of others")
    stays = example.kind.title in ("norm as operator", "QK scale")
    assert other.config == (example.config if stays else example.plain_config) and bool(other.warnings) is not stays


def ones(count):
    return encode_vector(np.ones(count))


NORM = "/norm/mean/ReduceMean"


@pytest.mark.parametrize(
    ("model", "subject", "move", "why"),
    [
        (transformer, "/in/MatMul", NormRewriteMove("LayerNormalization"), "no decomposed LayerNorm or RMSNorm"),
        (transformer, NORM, NormRewriteMove("RMSNormalization"), "is LayerNormalization"),
        (transformer, NORM, SmoothQuantMove(0.5, ones(3)), "3 values for 16 channels"),
        (transformer, NORM, SmoothQuantMove(0.5, encode_vector(np.zeros(16))), "above 0"),
        (transformer, NORM, SmoothQuantMove(0.5, "?"), "not base64"),
        (transformer, NORM, SmoothQuantMove(0.5, ones(16), {"x": 1.0}), "x is not one of"),
        (transformer, "/in/MatMul", SmoothQuantMove(0.5, ones(16)), "(Pow) reads"),
        (transformer, "/in/MatMul", BiasCorrectionMove(encode_vector(np.full(16, np.nan))), "not finite"),
        (transformer, NORM, BiasCorrectionMove(ones(16)), "it cannot run in INT8"),
        (inverted_residuals, "/head/Gemm", EqualizationMove("1", ones(10)), "is an output of the network"),
        (inverted_residuals, "/stem/Conv", EqualizationMove("1", ones(3)), "3 values for 16 channels"),
        (inverted_residuals, "/stem/Conv", EqualizationMove("1", encode_vector(np.zeros(16))), "above 0"),
        (
            inverted_residuals,
            "/stem/Conv",
            EqualizationMove("1", ones(16), {"no such": 1.0}),
            "no such is not a tensor",
        ),
        (inverted_residuals, "/stem/Conv", EqualizationMove("1", ones(16), {"image": -1.0}), "from 0 to"),
        (attention, "/q/MatMul", AttentionScaleMove("query", 8**-0.5), "not the product of queries and keys"),
        (attention, "/qk/MatMul", AttentionScaleMove("query", 0.5), "its scale is 0.353"),
        (attention, "/qk/MatMul", AttentionScaleMove("scaling", 8**-0.5), "no layer in front"),
        (encoder, "/up/MatMul", RoundingMove("scales", FP16, ones(128)), "no integers"),
        (encoder, "/norm/LayerNormalization", RoundingMove("scales", INT8, ones(64)), ""),
        (encoder, "/up/MatMul", RoundingMove("scales", INT8, encode_vector(np.zeros(128))), "above 0"),
        (encoder, "/up/MatMul", RoundingMove("scales", INT8, "?"), "not base64"),
        (encoder, "/up/MatMul", RoundingMove("scales", INT8, ""), "no values"),
        (encoder, "/up/MatMul", RoundingMove("GPTQ", INT8, ones(128), "AAAA"), "not compressed"),
    ],
)
def test_a_file_is_refused_where_a_move_does_not_apply(model, subject, move, why, opened, tmp_path):
    network = opened(model())
    (tmp_path / "precision.json").write_text(config_text(network, PrecisionConfig().with_moves({subject: move})))
    with refused(cause=why):
        read_config(tmp_path / "precision.json", network)


@pytest.mark.parametrize("other", [FP32, FP16])
def test_simulation_and_typed_network_agree(example, other):
    config = example.config
    if config.quantized in (INT8, INT4):
        config = PrecisionConfig(config.quantized, other, moves=config.moves)
    assert lowered.compare(replace(example.case, config=config), example.backend, as_data=True) is None


def test_in_fp16_simulation_and_typed_network_agree(example):
    config = PrecisionConfig(FP16, FP16, moves=example.config.moves)
    assert lowered.compare(replace(example.case, config=config), example.backend) is None


def test_exact_changes_leave_fp32_as_it_is(example):
    config = example.config.with_group_precision(example.network.groups, FP32)
    changed = lowered.run(
        example.backend, lower_to_typed_network(example.network, config, example.ranges).model, example.feed
    )
    if not example.kind.omission_text:
        assert_outputs_stay(example.network, example.case.plain, changed)
    else:  # the moves belong to quantized values
        outputs = [info.name for info in example.network.outputs]
        assert all(np.isfinite(changed[name]).all() for name in outputs)


def test_the_exported_network_is_the_simulated_one(example):
    exported = lowered.run(
        example.backend, lower_to_typed_network(example.network, example.config, example.ranges).model, example.feed
    )
    simulated = lowered.gated_values(example.backend, example.network, example.config, example.ranges, example.feed)
    for info in example.network.outputs:
        values = [lowered.sqnr(example.case.plain[info.name], outputs[info.name]) for outputs in (exported, simulated)]
        assert values[0] > values[1] - 1.5
        if example.config.quantized is not FP16:  # the CPU sums and rounds FP16 better than a GPU
            assert values[0] < values[1] + 1.5


def test_builds_without_strong_types_get_it_or_say_that_they_do_not(example):
    if example.config.quantized is INT4:
        return  # TensorRT 8.6 has no INT4
    weak = lower_to_implicit_quantization(example.network, example.config, example.ranges)
    plain = lower_to_implicit_quantization(example.network, example.plain_config, example.ranges)
    if example.kind.title == "rounding":
        assert any("rounding" in note for note in weak.notes) and same_constants(weak.model, plain.model)
    else:
        assert not same_constants(weak.model, plain.model) or len(weak.model.graph) != len(plain.model.graph)
    for (_, subject), move in example.added.items():
        for tensor, amax in move.fixed_ranges.items():
            assert weak.ranges[tensor] == pytest.approx(amax, rel=1e-6), subject
    if example.config.quantized is INT8:
        explicit, _ = lower_to_explicit_quantization(example.network, example.config, example.ranges)
        outputs = lowered.run(example.backend, explicit.model, example.feed)
        assert all(
            lowered.sqnr(example.case.plain[info.name], outputs[info.name]) > 10 for info in example.network.outputs
        )


def same_constants(first, second):
    arrays = [
        {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
        for model in (first, second)
    ]
    return arrays[0].keys() == arrays[1].keys() and all(
        np.array_equal(array, arrays[1][name]) for name, array in arrays[0].items()
    )


def test_a_tool_that_cannot_express_it_says_so(example):
    record = omission_record(example.network, example.config, "model.onnx", ())
    assert record["moves"] and all("model.onnx" in text for text in record["moves"])


def test_its_value_is_known_before_it_is_made(example):
    values = [sqnr_db(example.context, proposal.config) for proposal in example.proposals]
    assert np.isfinite(values).all() and np.isfinite(sqnr_db(example.context, example.plain_config))


@pytest.mark.rtx
def test_the_engine_has_no_more_kernels(example):
    counts = [
        rtx.layers(lower_to_typed_network(example.network, config, example.ranges).model).count("\nName:")
        for config in (example.plain_config, example.config)
    ]
    assert 0 < counts[1] <= counts[0]


READER = "/matmul/MatMul"


def test_every_move_of_the_table_is_known_in_files_and_has_one_kind():
    assert set(ZERO_COST_MOVE_CLASSES) <= set(MOVE_KINDS.values())
    assert len({kind.title for kind in ZERO_COST_KINDS}) == len(ZERO_COST_KINDS)
    inexact = {kind.move_class for kind in ZERO_COST_KINDS if kind.omission_text.format(count=2)}
    assert inexact == {RoundingMove, BiasCorrectionMove}


def test_a_search_tries_each_kind_once_and_biases_last():
    stages = list_searched_stages()
    kinds = [kind for stage in stages for kind in stage]
    assert sorted(map(id, kinds)) == sorted(id(kind) for kind in ZERO_COST_KINDS if kind.is_for_searches)
    assert [kind.move_class for kind in stages[-1]] == [BiasCorrectionMove]


def test_a_move_removes_what_was_measured_without_it(opened):
    network = opened(transformer())
    tensor = network.zero_cost_support.channel_scalings[NORM].readers[0].activation
    shift, factors = encode_vector([0.0] * CHANNELS), encode_vector([1.0] * CHANNELS)
    config = PrecisionConfig().with_moves({READER: BiasCorrectionMove(shift), "/in/MatMul": BiasCorrectionMove(shift)})
    config = config.with_moves({tensor: RangeMove(2.0, "mse"), "x": RangeMove(3.0, "mse")})
    smoothed = add_zero_cost_moves(config, network, {NORM: SmoothQuantMove(0.5, factors, {tensor: 1.0})})
    assert set(smoothed.get_moves(BiasCorrectionMove)) == {"/in/MatMul"} and set(smoothed.range_moves) == {"x"}
    assert smoothed.fixed_range_tensors == {tensor} and not smoothed.without_fixed_ranges().get_moves(SmoothQuantMove)
    corrected = add_zero_cost_moves(smoothed, network, {READER: BiasCorrectionMove(shift)})
    assert corrected.get_moves(SmoothQuantMove) and set(corrected.range_moves) == {"x"}
    raised = drop_moves_of_raised_groups(corrected, [READER, NORM])
    assert set(raised.get_moves(BiasCorrectionMove)) == {"/in/MatMul"} and raised.get_moves(SmoothQuantMove)


@dataclass(frozen=True)
class OtherMove(BarrierMove):
    """A move of a kind that no module of the program knows."""

    kind = "rewrite"  # a word with texts


OTHER_KIND = ZeroCostKind(
    title="another change",
    move_class=OtherMove,
    stage=ZeroCostStage.BIAS,
    refusal_reason=lambda network, group, config: "" if group.name == READER else "it is another layer",
    make_proposals=lambda context: (ConfigProposal(f"of {group.name}", context.config) for group in context.groups),
)


def test_a_new_entry_reaches_lists_searches_and_exports(opened, monkeypatch, request):
    network, other, classes = opened(transformer()), OTHER_KIND, dict(ZERO_COST_MOVE_CLASSES)
    request.addfinalizer(lambda: (ZERO_COST_MOVE_CLASSES.clear(), ZERO_COST_MOVE_CLASSES.update(classes)))
    monkeypatch.setattr(zero_cost_kinds, "ZERO_COST_KINDS", (*ZERO_COST_KINDS, other))
    ZERO_COST_MOVE_CLASSES[OtherMove] = other
    del ZERO_COST_MOVE_CLASSES[NormRewriteMove]
    assert list_searched_stages()[-1][-1] is other
    reasons = [
        find_refusal_reasons(network, PrecisionConfig(), network.get_group(name))["another change"]
        for name in (READER, NORM)
    ]
    assert reasons == ["", "it is another layer"]
    config = PrecisionConfig().with_moves({READER: OtherMove()})
    assert (OtherMove, READER) in list_zero_cost_moves(network, config, network.get_group(READER))
