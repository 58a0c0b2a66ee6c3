"""trt_tui.cli.main search: the table, the files, progress and the exit codes"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import local, networks
from tests.driven import LIMIT_S, save_resnet
from tests.measuring import verdict
from tests.schemas import mismatches
from tests.texts import lacking
from trt_tui import demo
from trt_tui.core.measure.results import EngineResult
from trt_tui.core.measure.target import parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import read_config
from trt_tui.core.moves.keep_rules import KEEP_RULES, count_groups_by_keep_rule
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.search import SEARCH_METHODS, ReductionStep
from trt_tui.formatting import number_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.events import BackendSummary, DataSummary
from trt_tui.options import Options
from trt_tui.session.comparison_report import precision_json_text
from trt_tui.session.search_report import built_config_table, search_markdown, search_text
from trt_tui.session.search_status import reduction_table
from trt_tui.session.state import SessionState

pytestmark = pytest.mark.shares_cache


@pytest.fixture
def files(tmp_path):
    """The options that open a small network with 12 samples."""
    options = save_resnet(tmp_path, samples=12)
    return [options.model, "--data", options.data, "--batch", "4"]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "precision.json"


def test_the_fix_is_found_written_and_told(run, files, out, tmp_path):
    report = tmp_path / "report.md"
    code, shown, told = run("search", *files, "--tolerance", "sqnr>=40", "-o", out, "--markdown", report)
    assert code == 0, told
    network = open_network(files[0])
    loaded = read_config(out, network)
    raised = loaded.config.find_raised_groups(network)
    assert 1 <= len(raised) <= 4 and loaded.tolerance == "sqnr>=40"
    lines = shown.splitlines()
    found = rf"sqnr>=40: {len(raised)} of 8 fused layers in FP32, equalization.* meets?"
    assert re.match(found, lines[0]) and any(
        "bias correction" in line for line in lines if " zero-cost change " in line
    )
    assert "simulated only" in shown
    for name in raised:
        row = next(line for line in lines if line.startswith(f"{name.rpartition('/')[0].lstrip('/')} "))
        assert "search:auto" in row and "without it" in row
    record = json.loads(out.read_text())
    assert not mismatches(record)
    layers = {name: move for move in record["moves"] if move["kind"] == "precision" for name in move["layers"]}
    assert all((layers[name]["precision"], layers[name]["reason"]) == ("fp32", "search:auto") for name in raised)
    evidence = record["evidence"]
    assert evidence["simulated"]["outputs"]["logits"]["sqnr_db"] >= 40 and "engine" not in evidence
    assert evidence["search"]["why"].keys() == set(raised) and evidence["search"]["met"] is True
    text = report.read_text()
    assert all(f"\n| {name.rpartition('/')[0].lstrip('/')} |" in text for name in raised)
    assert "## Evaluations" in text and "all raised" in text
    assert "best so far: " in told and f"Wrote {out}" in told


def test_what_was_found_is_what_compare_measures(run, files, out, tmp_path):
    assert run("search", *files, "--tolerance", "sqnr>=40", "-o", out)[0] == 0
    report = tmp_path / "compared.json"
    compare = ("compare", *files, "--config", out, "--target", "sqnr>=40", "--layers", "none", "--json", report)
    code, shown, _ = run(*compare)
    assert code == 0 and "PASS" in shown
    found, compared = json.loads(out.read_text())["evidence"]["simulated"], json.loads(report.read_text())["runs"]
    assert compared["config"]["outputs"] == found["outputs"] and compared["config"]["samples"] == found["samples"]


def test_stdout_takes_the_config(run, files):
    code, shown, _ = run("search", *files, "--tolerance", "sqnr>=40", "-o", "-")
    assert code == 0 and json.loads(shown)["format"] == "trt-tui/precision-config"


def test_int8_that_meets_it_has_nothing_to_do(run, files, out):
    code, shown, _ = run("search", *files, "--tolerance", "sqnr>=10", "-o", out)
    assert code == 0 and "INT8 meets it" in shown
    assert not read_config(out, open_network(files[0])).config.precision_moves


def test_what_fp32_misses_is_said_with_the_figure(run, files, out, tmp_path):
    np.savez(files[2], **np.load(files[2]), labels=np.zeros(12))
    (tmp_path / "m.py").write_text("def half(outputs, labels):\n    return 0.5\n")
    code, shown, told = run(
        "search", *files, "--metric", f"{tmp_path / 'm.py'}:half", "--tolerance", "metric>=0.9", "-o", out
    )
    assert code == 1 and "cannot be met" in told and "half ~0.5000" in told and "2 evaluations" in shown
    assert out.exists()


def test_a_budget_gives_the_best_reachable_and_says_that_it_is_short(run, files, out):
    code, shown, told = run("search", *files, "--tolerance", "sqnr>=40", "--max-fp32", "1", "--no-free", "-o", out)
    assert code == 1 and "not met with 1 of 8 " in shown and "Tolerance not met" in told
    network = open_network(files[0])
    assert len(read_config(out, network).config.find_raised_groups(network)) == 1
    assert json.loads(out.read_text())["evidence"]["search"]["met"] is False


def test_invented_names_of_sizes_are_not_shown(files):
    outline = open_network(files[0]).build_outline()
    group = outline.groups[0]
    outline = replace(outline, shapes={**outline.shapes, group.final_tensor: ("unk__1", 64, 48, 48)})
    table = reduction_table(
        [ReductionStep(group.name, "30 dB", False)],
        outline,
        rq.FindMixedPrecisionConfig(PrecisionConfig(), ("sqnr>=40",)),
    )
    assert table[1][2] == "?×64×48×48"


def test_scoped_prints_its_table(run, files, out):
    code, shown, _ = run("search", *files, "--tolerance", "sqnr>=40", "--method", "scoped", "-o", out)
    assert code == 0 and "stays higher" in shown and "search:scoped" in shown
    lowered = json.loads(out.read_text())["evidence"]["search"]["lowered"]
    assert len(lowered) == json.loads(out.read_text())["evidence"]["search"]["candidates"]
    stuck = [row for row in lowered if row["sticks"]]
    assert stuck and all("misses" in row["choose this layer because"] for row in stuck)
    assert set(read_config(out, open_network(files[0])).config.precision_moves) == {
        open_network(files[0]).find_group(row["layer"]).name for row in stuck
    }


def test_options_reach_the_search(run, files, out):
    code, shown, _ = run(
        "search",
        *files,
        *"--tolerance sqnr>=30 --tolerance cosine>=0.9999 --higher fp16 --keep /conv1/Conv --keep ends".split(),
        *f"--no-ranges --method greedy -o {out}".split(),
    )
    loaded = read_config(out, open_network(files[0]))
    assert code == 0, shown
    assert {choice.precision for choice in loaded.config.precision_moves.values()} <= {Precision.FP16}
    assert set(count_groups_by_keep_rule(loaded.config)) == {"/conv1/Conv", "ends"} and not loaded.config.range_moves
    assert loaded.tolerance == "sqnr>=30; cosine>=0.9999"
    assert "sqnr>=30 and cosine>=0.9999" in shown


def test_fp16_can_be_begun_with(run, files, out):
    code, shown, _ = run("search", *files, "--precision", "fp16", "--tolerance", "sqnr>=66", "-o", out)
    loaded = read_config(out, open_network(files[0]))
    assert code == 0 and loaded.config.quantized is Precision.FP16 and loaded.config.precision_moves, shown


def test_a_config_is_begun_with_and_kept(run, files, out, tmp_path):
    assert run("search", *files, "--tolerance", "sqnr>=36", "-o", out)[0] == 0
    network = open_network(files[0])
    first = read_config(out, network).config
    more = tmp_path / "more.json"
    assert run("search", *files, "--config", out, "--tolerance", "sqnr>=42", "-o", more)[0] == 0
    assert set(first.find_raised_groups(network)) < set(read_config(more, network).config.find_raised_groups(network))


@pytest.mark.parametrize(
    ("options", "title"),
    [
        ([], "a search needs a tolerance"),
        (["--tolerance", "snr>=2"], "snr>=2: snr is not a known value"),
        (["--tolerance", "sqnr>=40", "--keep", "/conv1/Cnv"], "no layer /conv1/Cnv"),
        (["--tolerance", "sqnr>=40", "--keep", "first"], "no layer first"),
        (["--tolerance", "metric>=0.9"], "needs a metric"),
        (["--tolerance", "sqnr>=40", "--precision", "fp16", "--higher", "fp16"], "no layer to raise to FP16"),
        (["--tolerance", "sqnr>=40", "--precision", "fp16", "--config", "x.json"], "--precision has no effect"),
        (["--tolerance", "sqnr>=40", "--rungs", "int8,nf4"], "nf4 is not a precision"),
        (["--tolerance", "sqnr>=40", "--rungs", "fp32,int8"], "two or more precisions"),
        (["--tolerance", "sqnr>=40", "--rungs", "int4,fp8"], "ends in FP8"),
        (["--tolerance", "sqnr>=40", "--rungs", "int8,fp16+"], "ends in FP16+"),
        (["--tolerance", "sqnr>=40", "--rungs", "int8,tf32"], "no layer can be in TF32 alone"),
        (
            ["--tolerance", "sqnr>=40", "--rungs", "int8,tf32,fp32", "--tf32"],
            "TF32 cannot be an intermediate precision here",
        ),
        (["--tolerance", "sqnr>=40", "--rungs", "int8,fp32", "--higher", "fp16"], "--higher has no effect here"),
    ],
)
def test_bad_input(run, files, out, options, title):
    code, shown, told = run("search", *files, *options, "-o", out)
    assert code == 2 and title in told and not shown and not out.exists()
    assert "Traceback" not in told


def test_help_names_what_there_is(run):
    code, shown, _ = run("search", "--help")
    text = "".join(shown.split())  # lines are broken at hyphens
    assert code == 0 and all(name in text for name in (*SEARCH_METHODS, *KEEP_RULES))


def test_a_check_command_passes_or_fails(run, files, out):
    assert run("search", *files, "--check", "true", "-o", out)[0] == 0
    code, shown, _ = run("search", *files, "--check", "false", "-o", out)
    assert code == 1 and "(exit code 1)" in shown


def test_interrupted_it_writes_its_best_and_goes_on_later(run, files, out, tmp_path):
    words = [
        "search",
        *files,
        *f"--tolerance sqnr>=40 -o {out} --no-free --no-ranges --check".split(),
        f"sh -c 'echo x >> {tmp_path}/checks; sleep 0.1'",
    ]
    command = [sys.executable, "-m", "trt_tui", *words]
    # A shell that runs this in the background hands SIGINT down as ignored.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    checks, deadline = tmp_path / "checks", time.monotonic() + LIMIT_S

    def count():
        return len(checks.read_text().splitlines()) if checks.exists() else 0

    while count() < 4 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for one in (signal.SIGHUP, signal.SIGHUP, signal.SIGINT):
        process.send_signal(one)
        time.sleep(0.05)
    shown, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, told
    assert "Stopped; " in told and "Traceback" not in told and not shown
    record = json.loads(out.read_text())
    assert record["moves"] and record["evidence"]["search"]["said"].endswith("has not finished")
    before = count()
    code, _, told = run(*words)
    assert code == 0, told
    evaluations = json.loads(out.read_text())["evidence"]["search"]["evaluations"]
    assert count() - before <= evaluations <= count()  # checks are asked anew, as what they read may have changed


def test_the_bundled_network_is_mended_by_at_most_three_layers(run, out):
    code, shown, told = run(
        *f"search {demo.network_path()} --data {demo.samples_path()}".split(),
        *f"--calib-data {demo.calibration_path()} --metric {demo.metric_spec()} --samples 8 --batch 8".split(),
        *f"--tolerance metric>=base-0.5 --no-ranges --no-free --no-preview -o {out}".split(),
    )
    assert code == 0, told
    network = open_network(demo.network_path())
    assert 1 <= len(read_config(out, network).config.find_raised_groups(network)) <= 3
    assert "metric>=base-0.5: " in shown and "FP32  start  found" in shown
    record = json.loads(out.read_text())["evidence"]["simulated"]
    assert len(record["metric_parts"]) > 2 and all(name in shown for name in record["metric_parts"])


def test_the_front_keeps_what_nothing_beats(files):
    session = SessionState(Options(files[0]))
    data, backend = DataSummary("x.npz", 8, 8, 8, False), BackendSummary("ONNX Runtime", "1", "CPU", False)
    session._opened_network = ev.NetworkOpened(1, open_network(files[0]).build_outline(), (), data, backend)
    session.targets = (parse_target("sqnr>=20"),)
    for count, (built, ms) in enumerate(((12, 1.0), (19, 1.2), (18, 1.4), (25, 1.6))):
        config = session.config.with_group_precision(session.outline.groups[:count], Precision.FP32)
        session.config_names.get_config_name(config)
        session.results.get_or_create_results(config).store_accuracy(verdict(built + 0.2))
        session.results.store_engine_result(
            config, EngineResult(verdict(built), "TensorRT 11.4", (ms, ms, ms), 2_000_000)
        )
    rows = built_config_table(session)
    assert [row[0] for row in rows if row[-1] == "front"] == ["c0", "c1", "c3"]
    assert rows[2][:5] == ["c1", "1", "~19.2 dB", "19.0 dB", "1.20"] and rows[3][-1] == ""


def test_engines_are_in_the_table_and_the_report(tmp_path, measured_before):
    options = replace(local.options(tmp_path, "small_resnet", metric=False), whatif_samples=0)
    session = local.NullSession(
        options,
        folder=tmp_path,
        resume=False,
        target="sqnr>=40",
        builder=replace(local.H200, worse=0.0083),
        held=[rq.CompareRuns, rq.MeasureToggles, rq.PreviewEngine],
    )
    session.start()
    session.rest()
    session.start_search(
        rq.FindMixedPrecisionConfig(session.config, ("sqnr>=40",), try_zero_cost=False, try_ranges=False)
    )
    status = session.rest().search_status
    session.set_config(status.best_config, status.find_move_reasons(status.best_config))
    result = session.results[session.config].engine_result
    for text in (search_text(session), search_markdown(session)):
        engine = "its engine (TensorRT 11.4.0.21, H200) meets"
        assert not lacking(text, engine, "margin", number_text(result.latency_ms[0]))
    record = json.loads(precision_json_text(session))["evidence"]
    assert record["engine"]["latency_ms"]["median"] == result.latency_ms[0]
    assert record["search"]["confirmed_by_engine"] is True


def test_two_results_go_to_two_files(run, files, tmp_path):
    out = tmp_path / "out.json"
    code, _, told = run("search", *files, "--tolerance", "sqnr>=40", "-o", out, "--markdown", out)
    assert code == 2 and not lacking(told, "two outputs", out) and not out.exists()
    code, _, told = run("compare", *files, "--json", files[0])
    assert code == 2 and told.startswith(f"Error: {files[0]} ")


@pytest.mark.parametrize("name", ["/layer1/conv1/Conv", "layer1/conv1"])
def test_a_layer_to_keep_is_named_by_node_or_as_it_is_shown(run, files, out, name):
    code, _, told = run("search", *files, "--keep", name, "--tolerance", "sqnr>=12", "--no-ranges", "-o", out)
    assert code == 0, told
    assert "/layer1/conv1/Conv" in read_config(out, open_network(files[0])).config.groups_fixed_by_rule


@pytest.mark.parametrize("tolerance", ["sqnr>=40", "agreement>=1"])
def test_a_value_before_an_argmax_is_no_value_of_the_exported_file(run, tmp_path, out, tolerance):
    """The file yields the class only, so that it neither meets nor misses a tolerance of the logits."""
    b = networks.Builder()
    x = b.node("MatMul", ["x", b.kernel("w", (16, 4), 16)], "/logits")
    b.node("ArgMax", [x], "/class", output="y", axis=-1, keepdims=0)
    y = helper.make_tensor_value_info("y", TensorProto.INT64, ["batch"])
    onnx.save(b.model([networks.floats("x", "batch", 16)], [y]), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).standard_normal((16, 16), dtype=np.float32))
    code, shown, told = run(
        *f"search {tmp_path}/net.onnx --data {tmp_path}/data.npz --precision fp16 --tolerance {tolerance}".split(),
        *f"--no-hold-out --max-builds 0 -o {out}".split(),
    )
    assert code == 0, told
    assert "network was not executed" in shown and "as exported" not in shown
