"""The table of zero-cost changes: every reader follows it, so that a new kind is one module and one entry."""

from dataclasses import dataclass

from tests.test_free import CHANNELS, transformer
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
from trt_tui.core.moves.config import MOVE_KINDS, BarrierMove, PrecisionConfig, RangeMove, RewriteMove
from trt_tui.core.moves.constant_moves import BiasCorrectionMove, SmoothQuantMove, encode_vector

NORM, READER = "/norm/mean/ReduceMean", "/matmul/MatMul"


def test_every_move_of_the_table_is_known_in_files_and_has_one_kind():
    assert set(ZERO_COST_MOVE_CLASSES) <= set(MOVE_KINDS.values())
    assert len({kind.title for kind in ZERO_COST_KINDS}) == len(ZERO_COST_KINDS)
    assert all(kind.is_exact or kind.omission_text.format(count=2) for kind in ZERO_COST_KINDS)


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


class OtherKind(ZeroCostKind):
    title = "another change"
    move_class = OtherMove
    stage = ZeroCostStage.BIAS

    def refusal_reason(self, network, group, config):
        return "" if group.name == READER else "it is another layer"

    def make_proposals(self, context):
        for group in context.groups:
            yield ConfigProposal(f"{self.title} of {group.name}", context.config)


def test_a_new_entry_reaches_lists_searches_and_exports(opened, monkeypatch, request):
    network, other, classes = opened(transformer()), OtherKind(), dict(ZERO_COST_MOVE_CLASSES)
    request.addfinalizer(lambda: (ZERO_COST_MOVE_CLASSES.clear(), ZERO_COST_MOVE_CLASSES.update(classes)))
    monkeypatch.setattr(zero_cost_kinds, "ZERO_COST_KINDS", (*ZERO_COST_KINDS, other))
    ZERO_COST_MOVE_CLASSES[OtherMove] = other
    del ZERO_COST_MOVE_CLASSES[RewriteMove]
    assert list_searched_stages()[-1][-1] is other
    reasons = [find_refusal_reasons(network, PrecisionConfig(), network.get_group(name))["another change"]
               for name in (READER, NORM)]
    assert reasons == ["", "it is another layer"]
    config = PrecisionConfig().with_moves({READER: OtherMove()})
    assert (OtherMove, READER) in list_zero_cost_moves(network, config, network.get_group(READER))
