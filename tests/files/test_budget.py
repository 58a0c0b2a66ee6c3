"""Files that would keep a reader busy without end: each is read or refused, within its budget of time and memory."""

import json
import re
import threading
import time

import onnx
import pytest

from tests import networks
from tests.fuzz import repeats
from tests.refusals import refused
from tests.screen import opened, press, settle, status
from trt_tui.core.engines.inspector import read_engine_report, read_layer_listing
from trt_tui.core.importers.any_config import read_any_config
from trt_tui.core.importers.commands import _compile_wildcard, split_shell_words
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import config_text
from trt_tui.core.moves.keep_rules import find_groups_of_rule
from trt_tui.core.network.network import open_network
from trt_tui.errors import InputError
from trt_tui.files import reading
from trt_tui.files.limited_yaml import read_yaml
from trt_tui.files.reading import limit_reading_resources
from trt_tui.jobs import requests as rq
from trt_tui.tui.controllers import presenter

SPENT = "takes too much time or memory"


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """A budget that is spent soon."""
    monkeypatch.setattr(reading, "MAX_READ_S", 0.6)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    model = networks.mlp()
    model.graph.node[0].name = "a" * 40 + "b"
    path = tmp_path_factory.mktemp("networks") / "net.onnx"
    onnx.save(model, path)
    return open_network(path)


def script(*lines: str) -> str:
    return "import tensorrt as trt\ndef postprocess(network):\n" + "".join(f"    {line}\n" for line in lines)


SETS = ("for layer in network:", "    layer.precision = trt.float32")


@pytest.mark.parametrize(
    ("name", "text"),
    ids=["nested", "many"],
    argvalues=[
        ("lists.json", json.dumps({"quantize_mode": "int8", "nodes_to_exclude": ["(a+)+$"]})),
        ("lists.json", json.dumps({"quantize_mode": "int8", "nodes_to_exclude": [".*" * 19 + "x$"] * 9})),
    ],
)
def test_what_would_take_years_ends_with_the_budget(network, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    since = time.thread_time()
    with refused(title=f"{name} {SPENT}", cause="of computing", next_step="Check"):
        read_any_config(tmp_path / name, network)
    assert time.thread_time() - since < 2


@pytest.mark.parametrize(
    ("name", "text"),
    ids=["stars", "layers", "regions", "copies", "defaults", "lines", "names", "doubling", "branches"],
    argvalues=[
        ("stars.sh", "trtexec --fp16 --layerPrecisions=" + "a*" * 19 + "c:fp32"),
        ("layers.sh", "trtexec --fp16 --layerPrecisions=" + "[ONNX Layer: " * 6000 + ":fp32"),
        ("regions.sh", "trtexec --fp16 --layerPrecisions=" + "{ForeignNode[" * 6000 + ":fp32"),
        ("copies.sh", "trtexec --fp16 --layerPrecisions=x" + ":1" * 20_000 + "x:fp32"),
        ("defaults.sh", "trtexec --fp16 " + "${a:-" * 6000),
        ("lines.sh", "trtexec --fp16 \\\n" * 10_000),
        ("names.sh", "trtexec --fp16 --layerPrecisions=" + ",".join(f"layer{index}:fp16" for index in range(20_000))),
        (
            "inputs.py",
            script("x = [1]", *["x = [x, x]"] * 60, "y = [1]", *["y = [y, y]"] * 60, "if x == y:", "    z = 1", *SETS),
        ),
        (
            "branches.py",
            script(
                SETS[0],
                "    if layer.name in ['a']:",
                "    " + SETS[1],
                *["    elif layer.name in ['b']:\n            x = 1"] * 500,
            ),
        ),
    ],
)
def test_what_repeats_is_read_in_linear_time(network, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    try:
        read_any_config(tmp_path / name, network)
    except InputError as error:
        assert SPENT not in error.title, error.cause


@pytest.mark.parametrize("token", ["[ONNX Layer: ", "{ForeignNode[", ":1", "__q", "] ", ", Inputs: [ { "])
def test_listings_of_engines_are_read_in_linear_time(network, token):
    layer = {
        "Name": token * 6000,
        "LayerType": "gemm",
        "Inputs": [{"Name": token * 6000}],
        "Outputs": [],
        "Metadata": token * 6000,
    }
    assert len(read_engine_report(json.dumps({"Layers": [layer]}), network).layers) == 1
    row = (
        "Layers:\nName: a, LayerType: gemm, Inputs: [], Outputs: [ { Name: y, Location: Device, Datatype: Half } ]"
        ", TacticName: {0}, Metadata: {0}\n{0}\n"
    ).replace("{0}", token * 6000)
    try:
        read_layer_listing(row, network)
    except InputError as error:
        assert SPENT not in error.title, error


def test_names_in_metadata_are_as_before(network):
    name = network.layers[0].name
    layer = {
        "Name": "x",
        "LayerType": "gemm",
        "Inputs": [],
        "Outputs": [],
        "Metadata": f"[ONNX Layer: {name}]\x1e[ONNX Layer: a]b[0]] [ONNX Layer: {network.layers[1].name}]",
    }
    (read,) = read_engine_report(json.dumps({"Layers": [layer]}), network).layers
    assert read.network_layers == (name, network.layers[1].name)


def test_yaml_counts_what_aliases_stand_for():
    assert read_yaml("a: &x [1, 2]\nb: *x\nc: {<<: &m {d: 1}, e: 1:30}\n", "f") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"d": 1, "e": 90},
    }
    nested = "".join(f"a{depth}: &a{depth} [{', '.join([f'*a{depth - 1}'] * 9)}]\n" for depth in range(1, 10))
    merged = "".join(f"a{depth}: &a{depth}\n  <<: [{', '.join([f'*a{depth - 1}'] * 9)}]\n" for depth in range(1, 10))
    for text in ("a0: &a0 [x]\n" + nested, "a0: &a0 {x: 1}\n" + merged):
        with refused(cause="values with its aliases"):
            read_yaml(text, "f.yaml")
    for number in (":".join(["1"] * 50_000), ":".join(["1"] * 50_000) + ".5"):
        with refused(cause="is not a readable number"):
            read_yaml(f"x: {number}", "f.yaml")
    with refused(cause="refers to an object that contains it"):
        read_yaml("x: &a [*a]", "f.yaml")


def test_a_kept_pattern_has_a_budget(network):
    with refused(title="the pattern /(a+)+$/", next_step="simpler pattern"):
        find_groups_of_rule(network, "/(a+)+$/")


def test_an_error_of_the_budget_is_taken_for_no_other_and_the_next_file_has_a_whole_one():
    for _ in range(2):
        with refused(title=SPENT), limit_reading_resources("a file"):
            while True:
                try:
                    re.match("(a+)+$", "a" * 60 + "b")
                except Exception:
                    continue
    with limit_reading_resources("a file"):
        assert sum(range(1000))


def test_memory_and_nesting_have_bounds(monkeypatch):
    monkeypatch.setattr(reading, "MAX_MEMORY_BYTES", 50 << 20)
    with refused(title=SPENT, cause="GB of memory"), limit_reading_resources("a file", max_seconds=5):
        held = []
        while True:
            held.append(bytearray(b"x" * (1 << 20)))

    def deep(depth=0):
        return deep(depth + 1)

    with refused(title="a file cannot be read", cause="nested too deep"), limit_reading_resources("a file"):
        deep()


def test_readers_in_other_threads_read_without_a_budget():
    done = []

    def read():
        with limit_reading_resources("a file"):
            done.append(True)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert done == [True]


def test_words_and_wildcards_are_those_of_the_tools():
    assert split_shell_words(r"""a 'b c' "d \"e" f\ g h#i # j""", "x") == ["a", "b c", 'd "e', "f g", "h#i"]
    assert split_shell_words("a ''", "x") == ["a", ""]
    for text in ("'a", '"a', "a\\"):
        with refused(title="no command line"):
            split_shell_words(text, "x")
    for name, pattern in (
        ("abcb", "a*b"),
        ("abcb", "*"),
        ("ab", "a*b*"),
        ("aba", "a*a"),
        ("a", "a*a"),
        ("ab", "*b*a"),
        ("xaybz", "*a*b*"),
        ("", "*"),
        ("aab", "a*ab"),
    ):
        found = re.fullmatch(pattern.replace("*", ".*"), name)
        assert bool(_compile_wildcard(pattern).fullmatch(name)) is bool(found), (name, pattern)


def test_generated_repeats_are_read_or_refused(tmp_path):
    cases = 14
    counts, wrong = repeats.run(cases, 3, tmp_path)
    assert not wrong, "\n".join(wrong)
    assert sum(counts.values()) == cases


@pytest.mark.parametrize("depth", [100, 900, 5000])
def test_evidence_that_is_nested_deep_is_refused(network, tmp_path, depth):
    text = config_text(network, PrecisionConfig(), evidence={"x": "HERE"}, sha256="")
    (tmp_path / "precision.json").write_text(text.replace('"HERE"', "[" * depth + "]" * depth))
    with refused(title="precision.json", cause="nested too deep"):
        read_any_config(tmp_path / "precision.json", network)
    (tmp_path / "precision.json").write_text(text.replace('"HERE"', "[" * 40 + "]" * 40))
    assert not read_any_config(tmp_path / "precision.json", network).warnings


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000,
        "[" * 5000,
        "x = " + "-" * 5000 + "1",
        "x = a" + ".a" * 5000,
        script("for layer in network:", "    layer.precision = " + "f(" * 180 + ")" * 180),
    ],
)
def test_a_script_that_is_nested_deep_is_refused(network, tmp_path, text):
    (tmp_path / "s.py").write_text(text)
    with refused(title="s.py"):
        read_any_config(tmp_path / "s.py", network)


async def test_a_filter_that_takes_too_long_is_told(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(presenter, "MAX_FILTER_S", 0.2)
    async with opened(tmp_path, held=(rq.CompareRuns,)) as (_, main, pilot):
        monkeypatch.setattr(main.layer_list.tree_model, "search_text", lambda row: "a" * 40 + "b")
        await press(pilot, "slash")
        main.filter_input.value = "/(a+)+$/"
        await settle(pilot)
        assert "too much time" in status(main) and "simpler pattern" in main.status.message[0]
        assert main.layer_list.matches is None
