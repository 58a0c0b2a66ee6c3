"""Layers kept by rule: what rules name, that nothing lowers or takes them back, files, commands and the screen."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from textual.widgets import Input

from tests.core.search.test_search import Toy, toy
from tests.refusals import refused
from tests.screen import opened, press, settle, status
from trt_tui.core.moves.config import KeepRuleMove, PrecisionConfig
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.moves.keep_rules import (
    KEEP_RULE_TEXTS,
    KEEP_RULES,
    apply_keep_rules,
    count_groups_by_keep_rule,
    find_groups_of_rule,
)
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.demo import network_path
from trt_tui.errors import InputError
from trt_tui.tui.screens.forms import RulesDialog
from trt_tui.tui.state.config_list import config_table

INT8 = PrecisionConfig.from_precision(Precision.INT8)


@pytest.fixture(scope="module")
def network():
    return open_network(network_path())


def names(groups):
    return [group.name for group in groups]


def test_rules_name_groups(network):
    assert KEEP_RULES.keys() == KEEP_RULE_TEXTS.keys()
    named = toy(5, ("Gemm", "Softmax", "Gemm", "LayerNorm", "Gemm"))
    for rule, expected in (
        ("ends", ["g0", "g4"]),
        ("softmax", ["g1"]),
        ("layernorm", ["g3"]),
        ("g2", ["g2"]),
        ("/g[24]/", ["g2", "g4"]),
    ):
        assert names(find_groups_of_rule(named, rule)) == expected, rule
    assert names(find_groups_of_rule(toy(4, names=("g0", "ends")), "ends")) == [
        "ends"
    ]  # a layer of that name comes first
    head = find_groups_of_rule(network, "head")
    assert head and head[-1].name == network.groups[-1].name and any(group.is_quantizable for group in head)
    named.groups = (*(replace(group, attention="g1") for group in named.groups[:3]), *named.groups[3:])
    assert names(find_groups_of_rule(named, "attention")) == ["g0", "g1", "g2"]


@pytest.mark.parametrize(
    ("rule", "title", "cause"),
    [
        ("g7", "no layer g7", "g"),
        ("sofmax", "no layer sofmax", "softmax"),
        ("softmax", "keeps nothing", "the network has none"),
        ("/(/", "not a regular expression", ""),
        ("/x/", "keeps nothing", ""),
        (f"/{'g' * 501}/", "too long", "501"),
    ],
)
def test_rules_that_name_nothing_are_refused(rule, title, cause):
    with refused(title, cause=cause):
        find_groups_of_rule(toy(3), rule)
    with pytest.raises(InputError, match="keeps nothing in int8"):
        apply_keep_rules(toy(3), INT8, [f"{rule}=int8"])


def test_layers_that_take_no_precision_are_refused():
    folded = Toy(
        **{
            **vars(toy(3)),
            "has_layer": lambda name: True,
            "get_layer": lambda name: SimpleNamespace(refusal_reason="shape arithmetic"),
        }
    )
    with pytest.raises(InputError, match="has no selectable precision") as refused:
        find_groups_of_rule(folded, "Shape_1")
    assert refused.value.cause == "shape arithmetic"


def test_what_is_kept_stays():
    network = toy(5, ("Gemm", "Softmax", "Gemm", "LayerNorm", "Gemm"))
    config = apply_keep_rules(
        network,
        INT8.with_group_precision(network.groups[:1], Precision.FP16, "search:auto"),
        ["layernorm,softmax=fp16", "/g[04]/"],
    )
    assert (
        count_groups_by_keep_rule(config) == {"layernorm": 1, "softmax": 1, "/g[04]/": 2} and not config.precision_moves
    )
    kept = {name: move.precision for name, move in config.get_moves(KeepRuleMove).items()}
    fp32 = Precision.FP32
    assert kept == {"g0": fp32, "g1": Precision.FP16, "g3": fp32, "g4": fp32}
    for precision in (Precision.INT8, Precision.FP16):
        lowered = config.with_group_precision(network.groups, precision)
        assert {name: lowered.precision_of(network.get_group(name)) for name in kept} == kept
        assert lowered.precision_of(network.get_group("g2")) is precision
    assert config.without_group_precision(network.groups) == config
    assert apply_keep_rules(network, config, ["g3"]) == config  # twice the same
    assert apply_keep_rules(network, INT8, ["g0"]) == apply_keep_rules(
        network, INT8, ["/g0/"]
    )  # which rule decides nothing


def test_contradictions_are_refused(network, tmp_path):
    first, *_ = network.groups
    by_hand = PrecisionConfig.from_precision(Precision.FP16).with_group_precision([first], Precision.INT8)
    with refused("contradict each other", cause="INT8"):
        apply_keep_rules(network, by_hand, [first.name])
    with pytest.raises(InputError, match="contradict each other"):
        apply_keep_rules(network, INT8, [first.name, "/./=fp16"])
    record = json.loads(config_text(network, apply_keep_rules(network, INT8, [first.name])))
    record["moves"].append({"kind": "precision", "layers": list(first.layers), "precision": "fp16"})
    path = tmp_path / "c.json"
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match="two precisions"):
        read_config(path, network)
    record["moves"][-1]["precision"] = "fp32"
    path.write_text(json.dumps(record))
    assert read_config(path, network).config == apply_keep_rules(network, INT8, [first.name])


def test_every_command_takes_rules(run, mlp, tmp_path):
    common = [mlp.model, "--keep", "/fc$|fc1/", "--data", mlp.data]
    out, config = tmp_path / "typed.onnx", tmp_path / "p.json"
    for words in (
        ["export", *common, "--precision", "int8", "--format", "onnx", "-o", out],
        ["build", *common, "--precision", "int8", "-o", out],
        ["search", *common, "--tolerance", "sqnr>=1", "-o", config],
        ["compare", *common, "--layers", "none", "--config", config],
        ["compare", *common, "--config", config, "--config", config, "--json", tmp_path / "both.json"],
    ):
        code, _, err = run(*words)
        assert code in (0, None), err
    both = json.loads((tmp_path / "both.json").read_text())
    assert len(both["configs"]) == 2 and not both["differ"]
    network = open_network(mlp.model)
    assert read_config(config, network).config.groups_fixed_by_rule == set(
        names(find_groups_of_rule(network, "/fc$|fc1/"))
    )
    code, _, err = run("compare", mlp.model, "--keep", "attention", "--layers", "none")
    assert code == 2 and "keeps nothing" in err


@pytest.mark.usefixtures("quick")
async def test_rules_in_the_app_are_one_step(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        before = main.session.config
        await press(pilot, "5")
        assert isinstance(app.screen, RulesDialog)
        app.screen.query_one("#more", Input).value = "nowhere"
        await press(pilot, "enter")
        assert "no layer nowhere" in str(app.screen.query_one("#note").render())
        app.screen.query_one("#more", Input).value = ""
        await press(pilot, "right", "enter")
        held = main.session.config.groups_fixed_by_rule
        assert app.screen is main and held and "kept by" in status(main)
        row = next(group for group in main.session.outline.groups if group.name in held)
        main.go_to_group(row.name)
        await press(pilot, "space")
        assert main.session.config.groups_fixed_by_rule == held and "5 changes the rules" in status(main)
        await press(pilot, "5")
        assert [one.index for one in app.screen.choice_fields].count(1) == 1
        await press(pilot, "escape", "z")
        assert main.session.config == before


@pytest.mark.usefixtures("quick")
async def test_the_list_of_precisions_leads_to_all_that_is_found(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        await press(pilot, "slash")
        app.screen.query_one("#filter", Input).value = "/softmax|norm|mlp|fc/"
        await press(pilot, "enter", "p", "0", "8")
        config, found = main.session.config, main.layer_list.matches
        groups = [group for group in main.session.outline.groups if group.name in found]
        lowered = [group for group in groups if config.precision_of(group) is Precision.INT8]
        assert 0 < len(lowered) < len(groups) and f"{len(groups) - len(lowered)} unchanged" in status(main)
        await press(pilot, "p", "0", "3")
        assert all(main.session.config.precision_of(group) is Precision.FP32 for group in groups)
        await press(pilot, "p", "0", "0")
        assert not main.session.config.precision_moves
        await press(pilot, "z")
        assert len(main.session.config.precision_moves) == len(groups)  # one step


@pytest.mark.usefixtures("quick")
async def test_configs_are_named(tmp_path):
    async with opened(tmp_path) as (app, main, pilot):
        first = main.session.config
        await press(pilot, "space")
        await settle(pilot)
        second, names = main.session.config, main.session.config_names
        await press(pilot, "c", "down", "n")
        for wrong, said in ((names[second], "another config"), ("", "1 to 24"), ("x" * 25, "1 to 24")):
            app.screen.query_one(Input).value = wrong
            await press(pilot, "enter")
            assert said in str(app.screen.query_one("#note").render())
        app.screen.query_one(Input).value = "ships"
        await press(pilot, "enter")
        assert names[first] == "ships" and "ships" in str(config_table(main.session, 100)[1][1][1])
