"""trt_tui.cli.usage: an option that would do nothing is refused, or it is said that it is not read"""

import os

import click
import numpy as np
import onnx
import pytest
from click.shell_completion import ShellComplete

from tests.driven import save_mlp
from tests.texts import lacking
from trt_tui.cli import usage
from trt_tui.cli.main import main
from trt_tui.cli.usage import REMOVED_OPTIONS, replace_old_command_name
from trt_tui.core.calibration.cache import read_calibration_cache, write_calibration_cache
from trt_tui.core.moves.config_file import read_config
from trt_tui.core.moves.keep_rules import KEEP_RULES
from trt_tui.core.network.network import open_network

pytestmark = [pytest.mark.shares_cache, pytest.mark.usefixtures("placed")]


@pytest.fixture
def unread_model(tmp_path, monkeypatch):
    """A file m.onnx in the current folder, which is no network: nothing may read it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").write_bytes(b"")


@pytest.mark.parametrize("name", REMOVED_OPTIONS)
def test_an_option_of_an_earlier_release_names_the_way_round(run, unread_model, name):
    *command, option = name.split()
    code, _, err = run(*(command or ["compare"]), "m.onnx", f"{option}=x")
    assert code == 2 and option in err and REMOVED_OPTIONS[name] in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("compare m.onnx --force", "--force"),
        ("compare m.onnx --config c.json --other bf16", "--other"),
        ("compare m.onnx --data d.npz --seed 3", "--seed"),
        ("compare m.onnx --weak", "--weak"),
        ("compare m.onnx --config a.json --config b.json --layers errors", "--layers"),
        ("compare m.onnx --config a.json --config b.json --save-outputs o.json", "--save-outputs"),
        ("compare m.onnx --config a.json --config b.json --stage fp16", "--stage"),
        ("compare m.onnx --trtexec=--refit --judge-at min", "--judge-at and --trtexec"),
        ("compare m.onnx --compute-capability 8.9", "--compute-capability"),
        ("search m.onnx --tolerance sqnr>=20 -o o.json --precision fp16 --other bf16", "--other"),
        ("search m.onnx --tolerance sqnr>=20 -o o.json --force", "--force"),
        ("build m.onnx --precision fp16 --other bf16 -o t.onnx", "--other"),
        ("build m.onnx --precision fp16 --other bf16 -o t.engine", "--other"),
        ("build m.onnx --precision int8 --weak -o T.ONNX", "--weak"),
        ("build m.onnx --precision int8 --backend tensorrt -o t.onnx", "--backend"),
        ("build m.onnx --precision int8 --compute-capability 8.9 -o t.onnx", "--compute-capability"),
        ("build m.onnx --precision int8 --trtexec=--refit -o t.onnx", "--trtexec"),
        ("export m.onnx --precision int8 --format onnx --trtexec=--builderOptimizationLevel=3 -o o", "--trtexec"),
        ("export m.onnx --precision int8 --format markdown --calib-cache c -o o", "--calib-cache"),
        ("export m.onnx --precision int8 --format markdown --data d --samples 3 -o o", "--data and --samples"),
        ("inspect m.onnx --backend tensorrt", "--backend"),
        ("inspect m.onnx --nodes --engine e", "--nodes"),
        ("lint m.onnx --backend tensorrt", "--backend"),
        ("inspect m.onnx --precision int8", "--precision"),
        ("preview m.onnx --config c.json --precision int8", "--precision"),
        ("inspect m.onnx --json", "--json"),
        ("preflight m.onnx --force", "--force"),
        ("preflight m.onnx --config c.json --other bf16", "--other"),
        ("preflight m.onnx --data d.npz --seed 3", "--seed"),
        ("scheme m.onnx --force", "--force"),
        ("scheme m.onnx --precision fp16 --other bf16", "--other"),
        ("preview m.onnx --force", "--force"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_before_anything_is_opened(run, unread_model, command, option):
    code, out, err = run(*command.split())
    assert code == 2 and not out
    verb = "have" if " and " in option else "has"
    assert err.startswith(f"Error: {option} {verb} no effect") and not lacking(err, "\n  Why: ", "  Next: ")


def test_no_layers_may_be_requested_where_none_are_measured(run, unread_model):
    _, _, err = run("compare", "m.onnx", *"--config a.json --config b.json --layers none".split())
    assert "Error: " in err and "no effect" not in err  # the network itself is refused


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("inspect m.onnx --lint --json", "lint m.onnx --json"),
        ("inspect --preview m --scheme", "preview m --scheme"),
        ("inspect m.onnx --scheme", "scheme m.onnx"),
        ("export m --format bundle -o b", "bundle m -o b"),
        ("export --format=subgraph m --from=a", "subgraph m --from=a"),
        ("compare d.npz", "dumps d.npz"),
        ("compare m --calib-methods=all", "methods m --calib-methods all"),
    ],
)
def test_the_spelling_of_an_earlier_release_names_the_command(capsys, old, new):
    assert replace_old_command_name(old.split()) == new.split() == replace_old_command_name(new.split())
    assert f"`trt-tui {new.split()[0]}`" in capsys.readouterr().err


def test_the_old_spelling_of_a_comparison_of_methods_runs_without_its_layers(run, unread_model):
    _, _, err = run(*"compare m.onnx --calib-methods all --layers none".split())
    assert "`trt-tui methods`" in err and "No such option" not in err


@pytest.mark.parametrize(
    "command",
    [
        "build m.onnx --precision int8 -o t.onnx --judge y",
        "build m.onnx --precision int8 -o t.onnx --metric m.py:f",
        "export m.onnx --precision int8 --format onnx -o o --weak",
        "export m.onnx --precision int8 --format onnx -o o --target sqnr>=20",
        "preflight m.onnx --exact",
        "preflight m.onnx --judge-at min",
        "preflight m.onnx --builds 2",
    ],
)
def test_a_command_has_no_option_that_it_never_heeds(run, unread_model, command):
    code, _, err = run(*command.split())
    assert code == 2 and "No such option" in err


@pytest.mark.parametrize(
    "command",
    [
        "compare m.onnx --json - --markdown -",
        "compare m.onnx --json /dev/stdout --markdown -",
        "compare m.onnx --json - --markdown /proc/self/fd/1",
        "search m.onnx --tolerance sqnr>=20 -o - --markdown -",
        "search m.onnx --tolerance sqnr>=20 -o /dev/stdout --markdown -",
    ],
)
def test_two_outputs_do_not_mix_on_stdout(run, unread_model, command):
    code, out, err = run(*command.split())
    assert code == 2 and not out and not lacking(err, "two outputs", "stdout")


def test_an_export_does_not_mix_with_what_says_where_it_is(run, unread_model):
    code, out, err = run("export", "m.onnx", "--precision", "fp16", "--format", "markdown", "-o", "/dev/stdout")
    assert code == 2 and not out and "to a file" in err


def test_stdout_by_another_name_is_stdout_and_nothing_else_is(tmp_path):
    (tmp_path / "file").write_text("")
    assert usage.replace_stdout_alias("/dev/fd/1") == "-" == usage.replace_stdout_alias("-")
    for path in (str(tmp_path / "file"), str(tmp_path / "absent"), os.devnull, None, "a\0b"):
        assert usage.replace_stdout_alias(path) == path


def test_every_rule_is_about_options_that_exist():
    for rule in usage.INEFFECTIVE_OPTIONS:
        for command in rule.commands:
            known = {one.name for one in main.commands[command].params if isinstance(one, click.Option)}
            assert set(rule.options) & known, (command, rule.options)


@pytest.mark.parametrize("command", sorted(main.commands))
def test_help_shows_every_option_below_a_heading(run, command):
    code, out, _ = run(command, "--help")
    sections = out.split("\n\n")[2:]
    assert code == 0 and sections[-1].strip().splitlines()[0] == "Other options:"
    for one in main.commands[command].params:
        if isinstance(one, click.Option) and not one.hidden:
            at = [section for section in sections if f"{one.opts[-1]} " in section]
            assert at and at[0].startswith(f"{one.heading}:")


def completed(*words, at):
    """What the shell's completion is given for the word at a place of the command line."""
    shell = ShellComplete(main, {}, "trt-tui", "_X")
    return [item.value for item in shell.get_completions(list(words[:at]), words[at])]


def test_a_shell_completes_names(tmp_path):
    mlp = save_mlp(tmp_path)
    nodes = [layer.name for layer in open_network(mlp.model).layers]
    assert completed("comp", at=0) == ["comp", "compare"]  # a file, or a command: bash drops what stands before a file
    assert completed("search", "m.onnx", "--method", "bis", at=3) == ["bisect", "bisect-reverse"]
    assert completed("export", "m.onnx", "--format", "cal", at=3) == ["calibration-cache"]
    assert set(completed("search", str(mlp.model), "--keep", "", at=3)) == {*nodes, *KEEP_RULES}
    odd = onnx.load(mlp.model)
    odd.graph.node[0].name, odd.graph.node[1].name = "", "two\nlines"
    onnx.save(odd, tmp_path / "odd.onnx")
    offered = set(completed("search", str(tmp_path / "odd.onnx"), "--keep", "", at=3))
    assert offered == {f"node_of_{odd.graph.node[0].output[0]}", *nodes[2:], *KEEP_RULES}
    assert completed("search", str(tmp_path / "absent"), "--keep", "s", at=3) == ["softmax"]
    assert completed(str(mlp.model), "--calib-m", at=1) == ["--calib-method"]
    assert completed("--calib-method", "en", at=1) == ["entropy"]


def test_data_that_are_not_read_are_named(run, tmp_path):
    mlp = save_mlp(tmp_path)
    build = ("build", mlp.model, "-o", "t.onnx", "--data", mlp.data)
    code, _, err = run(*build, "--precision", "fp16", "--calib-method", "mse")
    assert code == 0 and "Warning: --data, --calib-method: not read" in err
    assert "not read" not in run(*build, "--precision", "int8")[2]
    run(
        "export", mlp.model, "--precision", "int8", "--data", mlp.data, "--format", "calibration-cache", "-o", "c.cache"
    )
    assert "not read" not in run(*build, "--precision", "int8", "--calib-cache", "c.cache")[2]  # they are looked at


def test_a_cache_that_fits_in_part_is_warned_of_and_filled_from_the_data_everywhere(run, tmp_path):
    mlp = save_mlp(tmp_path)
    tensors = list(open_network(mlp.model).calibrated_tensors)
    write_calibration_cache(tmp_path / "net.cache", {tensors[0]: 7.5, "stranger": 1.0})
    shared = (mlp.model, "--data", mlp.data, "--calib-cache", "net.cache")
    code, out, err = run("compare", *shared, "--layers", "none")
    assert code == 0 and "of net.cache and others" in out and "calibrated on" not in out
    assert err.count(": stranger") == err.count("No range in") == 1
    code, _, err = run("export", *shared, "--precision", "int8", "--format", "calibration-cache", "-o", "out.cache")
    assert code == 0 and "stranger" in err
    built = read_calibration_cache(tmp_path / "out.cache")
    code, _, err = run("search", *shared, "--tolerance", "sqnr>=0", "-o", "found.json", "--no-ranges")
    assert code == 0, err
    assert err.count(": stranger") == 1
    found = read_config(tmp_path / "found.json", open_network(mlp.model)).calibration.ranges
    assert found[tensors[0]] == built[tensors[0]] == pytest.approx(7.5)
    assert {name: np.float32(amax) for name, amax in found.items()} == pytest.approx(built, rel=1e-4)


def test_a_cache_goes_before_the_ranges_of_a_config_which_fill_it(run, tmp_path):
    mlp = save_mlp(tmp_path)
    tensors = list(open_network(mlp.model).calibrated_tensors)
    shared = (mlp.model, "--data", mlp.data)
    run("search", *shared, "--tolerance", "sqnr>=0", "-o", "first.json", "--no-ranges", "--calib-method", "percentile")
    first = read_config(tmp_path / "first.json", open_network(mlp.model)).calibration.ranges
    write_calibration_cache(tmp_path / "net.cache", {tensors[0]: 7.5})
    code, out, err = run(
        "search",
        *shared,
        *"--tolerance sqnr>=0 -o second.json --no-ranges --config first.json --calib-cache net.cache".split(),
    )
    assert code == 0, err
    second = read_config(tmp_path / "second.json", open_network(mlp.model)).calibration.ranges
    assert second == pytest.approx({**first, tensors[0]: 7.5}) and first[tensors[0]] < 7
    _, out, err = run("compare", *shared, "--config", "first.json", "--layers", "none", "--calib-method", "mse")
    assert "ranges of first.json" in out and "--calib-method" in err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(("compare", option) for option in ("--samples", "--batch", "--seed", "--builds")),
        ("app", "--whatif-samples"),
        ("search", "--max-builds"),
        ("search", "--max-fp32"),
    ],
)
def test_every_number_has_a_bound(run, mlp, command, option):
    code, out, err = run(*([command] if command != "app" else []), mlp.model, option, 10**30)
    assert code == 2 and not out and not lacking(err, "in the range", option)
