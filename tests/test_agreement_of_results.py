"""One config has one result: in every table, file, screen and exit code."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.schemas import mismatches
from tests.texts import lacking
from trt_tui.core.engines.fallback_ladder import BuildAttempt
from trt_tui.core.measure.error_metrics import ConfidenceInterval
from trt_tui.core.measure.results import Caveat, EngineResult, RunKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import config_text
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.session.comparison_report import comparison_record
from trt_tui.tui.state import config_status
from trt_tui.tui.state.config_list import config_table, find_toggle_result
from trt_tui.tui.state.summary import summary_lines

pytestmark = pytest.mark.shares_cache

INT8 = PrecisionConfig.from_precision(Precision.INT8)
OUTCOME = re.compile(r"(PASS|FAIL)\??")


def save_config(path, model, tolerance, raised=0):
    network = open_network(model)
    config = INT8.with_group_precision(network.groups[:raised], Precision.FP32)
    path.write_text(config_text(network, config, tolerance=tolerance))
    return path


def outcomes(text, *names):
    """The outcome at the end of the first row of each name."""
    rows = [next(line for line in text.splitlines() if line.startswith(name + "  ")) for name in names]
    return [row.split()[-1] for row in rows]


@pytest.fixture
def sqnr(run, mlp, tmp_path):
    """The SQNR of INT8 in dB, and its interval."""
    assert (
        run(*f"compare {mlp.model} --data {mlp.data} --batch 4 --layers none --json {tmp_path}/first.json".split())[0]
        == 0
    )
    record = json.loads((tmp_path / "first.json").read_text())["runs"]["int8"]
    return record["outputs"]["y"]["sqnr_db"], record["intervals"]["worst"]["sqnr"]


CASES = {
    "PASS": lambda figure, low, high: low - 0.5,
    "PASS?": lambda figure, low, high: (low + figure) / 2,
    "FAIL?": lambda figure, low, high: (high + figure) / 2,
    "FAIL": lambda figure, low, high: high + 0.5,
}


@pytest.mark.parametrize("outcome", CASES)
@pytest.mark.parametrize("own", [True, False], ids=["own tolerance", "--target"])
def test_every_report_and_exit_code_agrees(run, mlp, tmp_path, sqnr, outcome, own):
    figure, (low, high) = sqnr
    text = f"sqnr>={CASES[outcome](figure, low, high):.6f}"
    config = save_config(tmp_path / "p.json", mlp.model, text if own else "")
    other = save_config(tmp_path / "q.json", mlp.model, "sqnr>=-100" if own else "", raised=1)
    code = 0 if outcome.startswith("PASS") else 1
    command = ("compare", mlp.model, "--data", mlp.data, "--batch", 4, *([] if own else ["--target", text]))

    got, out, err = run(
        *command, "--config", config, "--layers", "none", "--json", tmp_path / "o.json", "--markdown", tmp_path / "o.md"
    )
    assert got == code, err
    assert outcomes(out, "INT8") == [outcome] and (f"INT8: {outcome}: " in out) is outcome.endswith("?")
    assert ("Target not met" in err) is (code == 1)
    record = json.loads((tmp_path / "o.json").read_text())
    assert mismatches(record, "comparison-v1") == [] and record["target"] == text
    assert record["runs"]["config"]["result"]["outcome"] == outcome == record["runs"]["int8"]["result"]["outcome"]
    markdown = (tmp_path / "o.md").read_text()
    assert f"| {outcome} |" in next(line for line in markdown.splitlines() if line.startswith("| INT8 |"))
    assert ("spans the target" in markdown) is outcome.endswith("?") is ("spans the target" in out)

    got, out, err = run(
        *command, *f"--config {config} --config {other} --json {tmp_path}/two.json --markdown {tmp_path}/two.md".split()
    )
    both = outcomes(out, "p.json", "q.json")
    assert both[0] == outcome, "beside another config it is what it is alone"
    assert got == (1 if any(one.startswith("FAIL") for one in both) else 0), err
    assert (f"p.json: {outcome}: " in out) is outcome.endswith("?")
    first, second = json.loads((tmp_path / "two.json").read_text())["configs"]
    assert first["met"] is outcome.startswith("PASS") and first["results"]["simulated"]["outcome"] == outcome
    assert f"| {outcome} |" in (tmp_path / "two.md").read_text()

    got, out, err = run("methods", *command[1:], "--config", config, "--calib-methods", "minmax")
    assert got == code, err
    assert OUTCOME.search(next(line for line in out.splitlines() if line.startswith("minmax")))[0] == outcome


def test_the_default_target_is_stated_by_nobody_and_sets_no_exit_code(run, mlp, tmp_path):
    np.savez(mlp.data, x=1e6 * np.load(mlp.data)["x"])  # FP16 overflows
    config = save_config(tmp_path / "p.json", mlp.model, "")
    code, out, _ = run("compare", mlp.model, "--data", mlp.data, "--batch", 4, "--config", config, "--layers", "none")
    assert code == 0 and "FAIL" in out
    assert "FP16: FAIL: " in out and "NaN or Inf" in out


def test_all_tolerances_of_a_config_are_judged(run, mlp, tmp_path):
    config = save_config(tmp_path / "p.json", mlp.model, "sqnr>=1; cosine>=0.999")
    code, out, err = run("compare", mlp.model, "--data", mlp.data, "--batch", 4, "--config", config, "--layers", "none")
    assert code == 1 and not lacking(out, "≥ 1 dB", "cosine ≥ 0.999"), err
    assert not lacking(err, "Target not met", "by config: ", "≥ 1 dB", "cosine")


def test_nothing_lowered_is_no_result_in_either_form(run, mlp, tmp_path):
    groups = len(open_network(mlp.model).groups)
    plain = save_config(tmp_path / "plain.json", mlp.model, "sqnr>=1", raised=groups)
    config = save_config(tmp_path / "p.json", mlp.model, "sqnr>=1")
    command = ("compare", mlp.model, "--data", mlp.data, "--batch", 4)
    code, out, _ = run(*command, "--config", plain, "--layers", "none")
    assert code == 0 and outcomes(out, "config") == ["FP32"]
    code, out, _ = run(*command, "--config", plain, "--config", config, "--target", "sqnr>=1")
    assert code == 0 and outcomes(out, "plain.json")[0] == "FP32" and outcomes(out, "p.json")[0].startswith("PASS")
    for configs in ([plain], [plain, plain]):
        code, _, err = run(*command, *(one for path in configs for one in ("--config", path)), "--target", "sqnr>=1")
        assert code == 2 and not lacking(err, "only because", "FP32")


def test_a_stage_from_a_file_that_misses_the_target_is_exit_code_1(run, mlp, tmp_path):
    outputs = tmp_path / "given.npz"
    assert (
        run(
            *f"compare {mlp.model} --data {mlp.data} --batch 4 --layers none --target sqnr>=1".split(),
            *f"--save-outputs {tmp_path}/all.json".split(),
        )[0]
        == 0
    )
    y = np.random.default_rng(0).normal(size=(16, open_network(mlp.model).shape("y")[-1])).astype(np.float32)
    np.savez(outputs, y=y)
    command = (*f"compare {mlp.model} --data {mlp.data} --batch 4 --layers none --stage given={outputs}".split(),)
    code, out, err = run(*command, "--target", "sqnr>=1")
    assert code == 1 and "stage given: " in err and outcomes(out, "given") == ["FAIL"]
    assert run(*command)[0] == 0, "nobody has stated the default target"


def outcome_words(line: str) -> list[str]:
    return [word for word in line.split() if word.strip("~?") in ("PASS", "FAIL")]


@pytest.mark.parametrize("outcome", CASES)
def test_the_screen_agrees_with_the_commands(session, mlp, sqnr, outcome):
    figure, (low, high) = sqnr
    driven = session(mlp).settled()
    driven.set_target(f"sqnr>={CASES[outcome](figure, low, high):.6f}")
    lines = ["".join(text for text, _ in line) for line in summary_lines(driven, 120, 40)]
    row = [line for line in lines if outcome_words(line)][-1]  # an exported network that ran before has a line behind
    line = "".join(text for text, _ in config_table(driven, 80)[1][0][1])
    assert outcome_words(row) == outcome_words(line) == [outcome], (row, line)
    assert (
        config_status.config_meets_target_simulated(driven, driven.config)
        is config_status.current_config_meets_target(driven)
        is outcome.startswith("PASS")
    )
    assert ("spans the target" in lines[-1]) is outcome.endswith("?")


def test_a_run_that_overflows_fails_everywhere_whatever_its_values_are(session, mlp):
    driven = session(mlp).settled()
    driven.set_target("sqnr>=5")
    verdict = driven.get_run_results("config").accuracy
    assert driven.target_outcome(verdict).outcome.value == "PASS"
    broken = replace(verdict, caveats=(Caveat("overflow", "fc1 overflows", fails_run=True),))
    driven.results.get_or_create_results(driven.config).store_accuracy(broken)
    assert driven.target_outcome(broken).outcome.value == "FAIL"
    assert not config_status.current_config_meets_target(driven)
    (why,) = driven.missed_target_reasons(driven.config).values()
    assert why.endswith("(FAIL: fc1 overflows)")
    group = driven.outline.groups[0]
    changed = driven.config.with_toggled_fp32([group])
    driven.results.get_or_create_results(changed).store_accuracy(broken)
    assert find_toggle_result(driven, [group]).outcome_text == "FAIL"
    assert not config_status.is_within_noise(driven, verdict, broken), "the same values, but one of them overflows"
    assert config_status.is_within_noise(driven, verdict, verdict)
    assert comparison_record(driven)["runs"]["config"]["result"] == {"outcome": "FAIL", "reasons": ["fc1 overflows"]}


@pytest.mark.parametrize("missing", [True, False], ids=["the engine misses it", "only the simulation misses it"])
def test_an_engine_is_judged_by_its_own_values_and_counts_too(session, mlp, missing):
    """Where simulation and engine differ both are shown, and one that misses is enough for exit code 1."""
    driven = session(mlp).settled()
    driven.set_target("sqnr>=5")
    good = driven.get_run_results("config").accuracy
    bad = replace(
        good,
        outputs={name: replace(one, errors=replace(one.errors, sqnr_db=1.0)) for name, one in good.outputs.items()},
        intervals=replace(good.intervals, worst_output={"sqnr": ConfidenceInterval(0.5, 1.5)}),
    )
    measured = driven.results.get_or_create_results(driven.config)
    simulated, built = (good, bad) if missing else (bad, good)
    measured.store_accuracy(simulated)
    measured.runs = {RunKind.SIMULATED_CONFIG: measured.runs[RunKind.SIMULATED_CONFIG]}  # without stored results
    measured.runs[RunKind.BUILT_ENGINE] = EngineResult(built, "TensorRT")
    assert comparison_record(driven)["runs"]["config-engine"]["result"]["outcome"] == ("FAIL" if missing else "PASS")
    shown = ["FAIL", "~PASS?"] if missing else ["PASS", "~FAIL"]
    assert "".join(text for text, _ in config_table(driven, 80)[1][0][1]).split()[-2:] == shown
    row = next(line for line in summary_lines(driven, 140, 24) if line[0][0].startswith(" c0"))
    assert outcome_words("".join(text for text, _ in row)) == shown
    assert not config_status.current_config_meets_target(driven)
    assert driven.missed_target_reasons(driven.config).keys() == {
        RunKind.BUILT_ENGINE if missing else RunKind.SIMULATED_CONFIG
    }
    measured.runs[RunKind.BUILT_ENGINE] = replace(
        measured.engine_result, attempts=(BuildAttempt("named", {driven.outline.groups[0].name: Precision.FP16}),)
    )
    assert driven.missed_target_reasons(driven.config).keys() == (set() if missing else {RunKind.SIMULATED_CONFIG}), (
        "it is of another config"
    )
