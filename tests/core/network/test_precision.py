import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trt_tui.core.moves.config import (
    ConfigDifference,
    PrecisionConfig,
    PrecisionMove,
    RangeMove,
    find_next_precision,
    list_config_differences,
)
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.session.history import ChangeHistory

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
FP8, INT4 = Precision.FP8, Precision.INT4


@pytest.fixture
def network(named_network):
    return named_network("small_resnet")


def group(**refusals):
    return FusionGroup(
        "g",
        "Conv",
        ("g",),
        ("x",),
        ("y",),
        "y",
        refusal_reasons={Precision(name): why for name, why in refusals.items()},
    )


CONV, POOL, WHOLE = group(), group(int8="no"), group(fp16="no", bf16="no", int8="no")


@pytest.mark.parametrize(
    ("config", "conv", "pool", "whole"),
    [
        (PrecisionConfig(), INT8, FP16, FP32),
        (PrecisionConfig(INT8, FP32), INT8, FP32, FP32),
        (PrecisionConfig.from_precision(FP16), FP16, FP16, FP32),
        (PrecisionConfig.from_precision(INT8, BF16), INT8, BF16, FP32),
        (PrecisionConfig.from_precision(FP32), FP32, FP32, FP32),
    ],
)
def test_a_default_is_what_a_group_can_have(config, conv, pool, whole):
    assert [config.default_precision_of(one) for one in (CONV, POOL, WHOLE)] == [conv, pool, whole]


def test_what_a_group_cannot_have_is_skipped(network):
    config = PrecisionConfig().with_group_precision(network.groups, INT8)
    assert config == PrecisionConfig()
    config = PrecisionConfig(FP16, FP16).with_group_precision(network.groups, INT8)
    assert set(config.precision_moves) == {g.name for g in network.groups if g.is_quantizable}


def test_choosing_the_default_takes_the_choice_back(network):
    one = network.groups[0]
    raised = PrecisionConfig().with_group_precision([one], FP32, "search:greedy")
    assert raised.precision_moves == {one.name: PrecisionMove(FP32, "search:greedy")}
    assert raised.with_group_precision([one], INT8) == PrecisionConfig() == raised.without_group_precision([one])


def test_a_config_never_changes(network):
    config = PrecisionConfig()
    other = config.with_group_precision(network.groups[:1], FP32).with_range("x", RangeMove(1.0))
    assert not config.precision_moves and not config.range_moves and other != config
    with pytest.raises(TypeError):
        other.precision_moves["more"] = PrecisionMove(FP32)
    with pytest.raises(AttributeError):
        other.other = FP32
    assert other.with_range("x", None).range_moves == {}


def test_configs_travel_and_compare_by_what_they_lower_to(network):
    config = PrecisionConfig().with_group_precision(network.groups[:2], FP32).with_range("x", RangeMove(1.0, "mse"))
    again = pickle.loads(pickle.dumps(config))
    assert again == config == copy.copy(config) and hash(again) == hash(config)
    first, second = (one.name for one in network.groups[:2])
    assert config.comparison_key == (
        "int8",
        "fp16",
        False,
        tuple(sorted([(first, "fp32"), (second, "fp32")])),
        (("x", 1.0),),
    )
    renamed = (
        PrecisionConfig().with_group_precision(network.groups[:2], FP32, "search:x").with_range("x", RangeMove(1.0))
    )
    assert renamed == config and hash(renamed) == hash(config) and {renamed: 1}[config] == 1
    other = config.with_range("x", RangeMove(2.0))
    assert other.comparison_key != config.comparison_key and other != config and config != "a config"


def test_other_reasons_for_the_same_are_no_step_to_undo(network):
    config = PrecisionConfig().with_group_precision(network.groups[:1], FP32)
    history = ChangeHistory(PrecisionConfig())
    assert history.push_config(config) and not history.push_config(
        config.with_group_precision(network.groups[:1], FP32, "search:x")
    )
    assert history.state.config.precision_moves[network.groups[0].name].reason == "search:x"
    assert history.undo() and history.state.config == PrecisionConfig() and not history.can_undo


def test_raised_and_diff_name_groups_in_network_order(network):
    names = [g.name for g in network.groups]
    config = PrecisionConfig().with_group_precision([network.get_group(names[3]), network.get_group(names[1])], FP32)
    config = config.with_group_precision([network.get_group(names[2])], FP16)
    assert config.find_raised_groups(network) == (names[1], names[2], names[3])
    assert list_config_differences(config, PrecisionConfig(), network) == [
        ConfigDifference(PrecisionMove, names[1], "FP32", "INT8"),
        ConfigDifference(PrecisionMove, names[2], "FP16", "INT8"),
        ConfigDifference(PrecisionMove, names[3], "FP32", "INT8"),
    ]
    lowered = PrecisionConfig(FP32, FP32).with_group_precision([network.get_group(names[1])], INT8)
    assert (
        lowered.find_raised_groups(network) == ()
        and list(lowered.precision_by_group(network).values()).count(INT8) == 1
    )


@pytest.mark.parametrize(
    ("one", "precision", "up", "expected"),
    [
        (CONV, INT8, True, FP16),
        (CONV, FP16, True, FP32),
        (CONV, FP32, True, FP32),
        (CONV, FP32, False, FP16),
        (CONV, FP16, False, INT8),
        (CONV, INT8, False, INT8),
        (POOL, FP16, False, FP16),
        (POOL, FP32, False, FP16),
        (WHOLE, FP32, False, FP32),
        (CONV, BF16, True, FP32),
        (CONV, BF16, False, FP16),
        (group(fp16="no"), INT8, True, FP32),
    ],
)
def test_a_step_goes_to_the_next_precision_that_is_possible(one, precision, up, expected):
    assert find_next_precision(one, precision, up) is expected


@pytest.mark.parametrize(
    ("config", "ladder"),
    [
        (PrecisionConfig(), (INT8, FP16, FP32)),
        (PrecisionConfig.from_precision(FP32), (INT8, FP16, FP32)),
        (PrecisionConfig.from_precision(FP8, BF16), (FP8, BF16, FP32)),
        (PrecisionConfig().with_moves({"g": PrecisionMove(FP8)}), (INT8, FP8, FP16, FP32)),
        (PrecisionConfig(INT4, FP16), (INT4, FP16, FP32)),
    ],
)
def test_steps_go_through_what_the_config_uses(config, ladder):
    assert config.precision_steps == ladder
    assert (
        find_next_precision(CONV, ladder[0], True, ladder) is ladder[1]
        and find_next_precision(CONV, ladder[1], False, ladder) is ladder[0]
    )


def test_ranks_go_from_coarse_to_fine():
    assert (
        precision_rank(INT4)
        < precision_rank(INT8)
        < precision_rank(FP8)
        < precision_rank(FP16)
        < precision_rank(Precision.FP16_ACC_FP32)
        < precision_rank(BF16)
        < precision_rank(Precision.TF32)
        < precision_rank(FP32)
    )


MOVES = st.tuples(
    st.dictionaries(
        st.sampled_from("abc"), st.builds(PrecisionMove, st.sampled_from([FP32, FP16]), st.sampled_from("us"))
    ),
    st.dictionaries(st.sampled_from("abc"), st.builds(RangeMove, st.sampled_from([1.0, 2.0]))),
)


@given(MOVES, MOVES)
def test_moves_are_made_counted_and_taken_back(one, other):
    one, other = (PrecisionConfig().with_moves(moves[0]).with_moves(moves[1]) for moves in (one, other))
    there = one.with_moves(other.get_moves(PrecisionMove)).with_moves(other.get_moves(RangeMove))
    assert {key for key in there.moves if there.moves[key] != other.moves.get(key)} == {*one.moves} - {*other.moves}
    history = ChangeHistory(one)
    history.push_config(there)
    history.undo()
    assert history.state.config == one


CONFIGS = st.integers(0, 4).map(lambda n: PrecisionConfig().with_moves({"x": RangeMove(float(n))}))


@settings(deadline=None)
@given(st.lists(st.one_of(CONFIGS, st.sampled_from(["undo", "redo"])), max_size=30))
def test_undo_takes_back_what_was_done(actions):
    first = PrecisionConfig()
    history, past, future = ChangeHistory(first), [first], []
    for action in actions:
        if action == "undo":
            assert history.can_undo == history.undo() == (len(past) > 1)
            if len(past) > 1:
                future.append(past.pop())
        elif action == "redo":
            assert history.can_redo == history.redo() == bool(future)
            if future:
                past.append(future.pop())
        else:
            assert history.push_config(action) == (action != past[-1])
            if action != past[-1]:
                past.append(action)
                future = []
        assert history.state.config == past[-1]
        again = ChangeHistory.from_snapshot(*history.snapshot())
        assert again.snapshot() == history.snapshot()
    while history.undo():
        pass
    assert history.state.config == first
