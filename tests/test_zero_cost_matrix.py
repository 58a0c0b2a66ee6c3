"""Each kind of zero-cost change in each place: condition, undo, words, file, every lowering, and its value."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from tests import lowered, schemas
from tests.networks.chained import inverted_residuals
from tests.test_attention_scale import attention
from tests.test_channel_scaling import assert_outputs_stay
from tests.test_equalization import context_of, opened_pair, sqnr_db
from tests.test_free import transformer
from tests.test_rounding import convs
from trt_tui.core.exporters.formats import omission_record
from trt_tui.core.lowering.explicit_quantization import lower_to_explicit_quantization
from trt_tui.core.lowering.implicit_quantization import lower_to_implicit_quantization
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.measure.zero_cost_kinds import ZERO_COST_KINDS, list_zero_cost_moves
from trt_tui.core.moves.config import MOVE_KINDS, PrecisionConfig
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.moves.move import MOVE_TEXTS
from trt_tui.core.precision import Precision

FP32, FP16, INT8, INT4 = Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4

EXAMPLES = {
    "operator": (transformer, PrecisionConfig.from_precision(FP16)),
    "QK scale": (attention, PrecisionConfig.from_precision(FP16)),
    "SmoothQuant": (transformer, PrecisionConfig(INT8, FP16)),
    "equalization": (inverted_residuals, PrecisionConfig(INT8, FP16)),
    "rounding": (convs, PrecisionConfig(INT8, FP16)),
    "bias correction": (transformer, PrecisionConfig(INT8, FP16)),
}
"""A network and a config in which each kind has a proposal."""

FILE_KINDS = ("new Q/DQ", "recalibration")
"""The kinds that only choose precisions and ranges for a quantized file; tests/test_qdq_check.py and others have
them."""

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
        kind.find_subject(network, group) for group in network.groups if not reasons[group.name]}
    exact = PrecisionConfig.from_precision(FP32)
    if kind.title == "QK scale":
        assert not list(kind.make_proposals(context_of(network, example.samples, example.backend, exact)))
    else:
        assert all(kind.refusal_reason(network, group, exact) for group in network.groups)


def test_a_move_that_is_there_is_not_proposed_again(example):
    context = context_of(example.network, example.samples, example.backend, example.config)
    assert all(not {key for key in example.added if proposal.config.moves[key] is not example.config.moves[key]}
               for proposal in example.kind.make_proposals(context))


def test_it_is_undone_by_subject(example):
    config = example.config
    for (kind, subject), move in example.added.items():
        rows = [list_zero_cost_moves(example.network, config, group) for group in example.network.groups]
        assert any((type(move), subject) in row for row in rows)
        config = config.without_moves(MOVE_KINDS[kind], [subject])
    assert config == example.plain_config and example.config != example.plain_config


def test_it_has_words(example):
    for (kind, _), move in example.added.items():
        texts = [move.label, move.row_note, move.difference_text, move.action_text, move.difference_title("a layer"),
                 MOVE_TEXTS[kind].no_move, move.origin_text]
        assert all(texts) and not any("{" in text for text in texts)
    assert all(proposal.label and len(proposal.short_label or proposal.label) <= 15 for proposal in example.proposals)


def test_it_goes_through_the_file(example, tmp_path):
    text = config_text(example.network, example.config, sha256="of these")
    assert schemas.mismatches(json.loads(text)) == []
    (tmp_path / "precision.json").write_text(text)
    read = read_config(tmp_path / "precision.json", example.network, sha256="of these").config
    assert read == example.config
    for key, move in example.added.items():
        assert all(getattr(read.moves[key], field.name) == getattr(move, field.name)
                   for field in fields(move) if field.name != "reason")


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
    changed = lowered.run(example.backend, lower_to_typed_network(example.network, config, example.ranges).model,
                          example.feed)
    if example.kind.is_exact:
        assert_outputs_stay(example.network, example.case.plain, changed)
    else:  # the moves belong to quantized values
        outputs = [info.name for info in example.network.outputs]
        assert all(np.isfinite(changed[name]).all() for name in outputs)


def test_the_exported_network_is_the_simulated_one(example):
    exported = lowered.run(example.backend, lower_to_typed_network(example.network, example.config, example.ranges
                                                                   ).model, example.feed)
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
        assert any("rounding" in note for note in weak.notes)
    else:
        assert not same_constants(weak.model, plain.model) or len(weak.model.graph) != len(plain.model.graph)
    for (_, subject), move in example.added.items():
        for tensor, amax in move.fixed_ranges.items():
            assert weak.ranges[tensor] == pytest.approx(amax, rel=1e-6), subject
    if example.config.quantized is INT8:
        explicit, _ = lower_to_explicit_quantization(example.network, example.config, example.ranges)
        outputs = lowered.run(example.backend, explicit.model, example.feed)
        assert all(lowered.sqnr(example.case.plain[info.name], outputs[info.name]) > 10
                   for info in example.network.outputs)


def same_constants(first, second):
    arrays = [{name: value.const_value.numpy() for name, value in model.graph.initializers.items()}
              for model in (first, second)]
    return arrays[0].keys() == arrays[1].keys() and all(
        np.array_equal(array, arrays[1][name]) for name, array in arrays[0].items())


def test_a_tool_that_cannot_express_it_says_so(example):
    record = omission_record(example.network, example.config, "model.onnx", ())
    assert len(record["moves"]) >= 1


def test_its_value_is_known_before_it_is_made(example):
    values = [sqnr_db(example.context, proposal.config) for proposal in example.proposals]
    assert np.isfinite(values).all() and np.isfinite(sqnr_db(example.context, example.plain_config))
