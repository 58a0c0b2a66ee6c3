"""The check command of a search: words and shell, rules, artifacts, and the end of its processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import LIMIT_S, save_resnet
from tests.networks.odd import conv_net
from tests.schemas import mismatches
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.measure.target_outcome import Outcome, TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import read_config
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files import read_budget
from trt_tui.jobs.check_command import (
    CHECK_FILES,
    keep_artifacts,
    needs_shell,
    run_check_command,
    shown_error_text,
    split_check_command,
    variable_name,
    write_check_files,
)
from trt_tui.jobs.check_rules import CheckResult, CheckRules
from trt_tui.jobs.search_job import _combine_with_check

HOSTILE_NAMES = ("a b", "it's", 'say "x"', "$(touch pwned)", "`touch pwned`", "$HOME", "new\nline", "-n",
                 "x;touch pwned", "x&&touch pwned", "*", "{model}", "back\\slash", "#x", "\udcff", "~")

NO_RULES = CheckRules()
HIDDEN = "only the last program decides, and stderr is not empty"


def check_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in CHECK_FILES.values():
        (folder / name).write_text(f"content of {name}\n")
    return folder


def checked(command: str, folder: Path, rules: CheckRules = NO_RULES) -> CheckResult:
    """The result of a command that runs to its end."""
    steps, deadline = run_check_command(command, rules, folder, lambda: None), time.monotonic() + LIMIT_S
    try:
        while True:
            waiting = next(steps)
            while not waiting.ready():
                assert time.monotonic() < deadline
                time.sleep(0.005)
    except StopIteration as stop:
        return stop.value


def processes_of(folder: Path) -> list[int]:
    """The processes that have the model of a folder in their environment."""
    entry, found = os.fsencode(f"TRT_TUI_MODEL={folder / 'model.onnx'}"), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [int(path.parent.name)] if entry in path.read_bytes().split(b"\0") else []
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("command", "expected"), [
    ("python check.py {model} {outputs}", False), ("grep -c 'a|b' {outputs}", False), ("grep 'x;y' \"<>\"", False),
    (r"echo a\|b \> c\;", False), ("echo '$HOME' '`x`' '$(x)'", False), ("echo costs 5$ $", False),
    (r"echo \$HOME", False),
    ("python c.py --shape (1,2) {model}", False), ("grep -q ^x$ {outputs}", False), ("a=b", True),
    ("a && b", True), ("a||b", True), ("a|b", True), ("a;b", True), ("a <b", True), ("a 2>&1", True), ("a&&b", True),
    ("CUDA_VISIBLE_DEVICES=0 python c.py", True), ("cat \"$TRT_TUI_MODEL\"", True), ("cat ${TRT_TUI_MODEL}", True),
    ("test $(cat {outputs}) = x", True), ('echo "`cat {model}`"', True), ("(cd x; make)", True), ("'a'|b", True),
    (r"echo 'a\' | cat", True), ('echo "it\'s" | cat', True), (r'echo "a\"" ">" \" b', False)])
def test_a_command_with_unquoted_operators_or_variables_needs_the_shell(command, expected):
    assert needs_shell(command) is expected


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("command", [
    "cat {model}", "cat {model} | cat", 'cat "{model}" | cat', "cat '{model}' | cat", 'cat "$TRT_TUI_MODEL"',
    "cat ${TRT_TUI_MODEL:+\"$TRT_TUI_MODEL\"}", "cat < {model}", "(cat {model}; true)", 'echo "$(cat {model})"',
    'echo "$(cat "{model}")"; true', "echo `cat {model}`", 'echo "`cat {model}`" > /dev/stdout',
    'A="{model}"; cat "$A"',
    "A={model} && cat \"$A\"", "sh -c 'cat \"$TRT_TUI_MODEL\"'", "sh -c 'cat \"$1\"' sh {model}",
    "sh -c 'cat \"$1\" | cat' sh {model} | cat", r"echo \' >/dev/null; cat {model}",
    "echo \"'\" >/dev/null; cat {model}"])
def test_hostile_paths_reach_a_command_as_one_word(tmp_path, monkeypatch, name, command):
    folder = check_folder(tmp_path / name / "check")
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    assert checked(command, folder) == CheckResult(0)
    assert (folder / "stdout.txt").read_text() == "content of model.onnx\n"
    assert not (folder / "stderr.txt").read_text() and not [*Path.cwd().iterdir()]


def test_every_file_has_a_placeholder_and_a_variable(tmp_path):
    folder = check_folder(tmp_path / "check")
    for placeholder, name in CHECK_FILES.items():
        for command in (f"cat {{{placeholder}}}", f"cat ${variable_name(placeholder)}", f"cat {{{placeholder}}} | cat"):
            assert checked(command, folder).passes
            assert (folder / "stdout.txt").read_text() == f"content of {name}\n"
    assert checked("test -z '{other}{models}' || echo '{other}{models}'", folder).passes
    assert (folder / "stdout.txt").read_text() == "{other}{models}\n"


@pytest.mark.parametrize("command", ["", "  ", "echo 'a", "echo 'a | cat", "echo 'a' | \"cat", "a &&", "a | | b",
                                     "echo $(a", "a ) | b", "if a; then b"])
def test_what_cannot_be_parsed_is_refused_before_it_runs(command):
    with pytest.raises(InputError, match="cannot be read" if command.strip() else "is empty") as refused:
        split_check_command(command)
    assert refused.value.exit_code == 2 and (refused.value.cause or not command.strip())


def test_parsing_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "touch" in split_check_command("touch a; touch b && $(touch c)")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("command", "program"), [
    ("no-such-program {model}", "no-such-program"), ("no-such-program {model} && true", "no-such-program"),
    ("true && no-such-program", "no-such-program"), ("echo x | no-such-program", "no-such-program"),
    ("./plain.txt {model}", "plain.txt"), ("./plain.txt {model} | ./plain.txt", "plain.txt")])
def test_a_program_that_does_not_start_is_an_error(tmp_path, monkeypatch, command, program):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.txt").write_text("x")
    with pytest.raises(InputError, match=f"{program} does not start") as refused:
        checked(command, check_folder(tmp_path / "check"))
    assert refused.value.exit_code == 2 and refused.value.cause


@pytest.mark.parametrize(("command", "rules", "result"), [
    ("exit 127; true", NO_RULES, CheckResult(127, "exit code 127")),
    ("python3 -c 'raise SystemExit(126)' | exit 126", NO_RULES, CheckResult(126, "exit code 126")),
    ("no-such-program; true", NO_RULES, CheckResult(0, "", HIDDEN)),
    ("no-such-program | cat", NO_RULES, CheckResult(0, "", HIDDEN)),
    ("python3 -c 'import nothing_like_it' | awk '{exit 1}'", NO_RULES, CheckResult(0, "", HIDDEN)),
    ("ls /no-such-file 2>/dev/null | cat", NO_RULES, CheckResult(0)),
    ("python3 -c 'import sys; sys.stderr.write(\"a|b;\")'", NO_RULES, CheckResult(0)),
    ("echo 'a|b' >&2 && true", NO_RULES, CheckResult(0)),
    ("no-such-program || exit 3", NO_RULES, CheckResult(3, "exit code 3")),
    ("no-such-program; exit 127", CheckRules(fail_codes=(127, )), CheckResult(127, "exit code 127")),
    ("no-such-program && x", CheckRules(ignored_fail_codes=(127, )), CheckResult(127)),
    ("python3 -c 'import os; os.kill(os.getpid(), 11)'", NO_RULES, CheckResult(-11, "ended by SIGSEGV"))])
def test_only_a_clear_message_of_the_shell_is_an_error_and_hidden_failures_give_doubt(tmp_path, command, rules, result):
    assert checked(command, check_folder(tmp_path / "check"), rules) == result


RULES = [(codes, ignored, patterns) for codes in ((), (1, ), (2, 3)) for ignored in ((), (0, ), (1, 2))
         for patterns in ((), ("bad.*", ), ("no match", "^worse")) if not (codes and ignored)]


@pytest.mark.parametrize("exit_code", [0, 1, 2, 3, 139, -11])
@pytest.mark.parametrize("output", ["", "a bad thing\n", "worse", "fine\nworse"])
def test_the_rules_pass_and_fail_as_in_polygraphy(exit_code, output, monkeypatch):
    polygraphy = pytest.importorskip("polygraphy.tools.debug.subtool.iterative_debug_args")
    ended = subprocess.CompletedProcess((), exit_code, output.encode(), b"")
    monkeypatch.setattr(polygraphy.sp, "run", lambda *_, **__: ended)
    for codes, ignored, patterns in RULES:
        peer = polygraphy.CheckCmdArgs()
        peer.parse(SimpleNamespace(check=["x"], fail_codes=codes or None, ignore_fail_codes=ignored or None,
                                   fail_regex=patterns or None, show_output=False, hide_fail_output=True))
        result = CheckRules(codes, ignored, patterns).judge(exit_code, output)
        assert result.passes is peer.run_check(None), (codes, ignored, patterns)
        assert bool(result.doubt_reason) is (result.passes and exit_code not in (0, *ignored)), result


def test_an_uncertain_pass_is_never_a_plain_one():
    doubted, sure, failed = CheckResult(139, "", "exit code 139"), CheckResult(0), CheckResult(1, "exit code 1")
    passed, missed = TargetOutcome(Outcome.PASS), TargetOutcome(Outcome.UNCERTAIN_FAIL, ("few samples", ))
    assert _combine_with_check(passed, sure) is passed and _combine_with_check(missed, sure) is missed
    assert _combine_with_check(passed, doubted).text == "PASS?: the check passes (exit code 139)"
    assert _combine_with_check(missed, doubted) is missed
    assert _combine_with_check(missed, failed).text == "FAIL: the check fails (exit code 1); few samples"


def test_a_pattern_that_takes_too_long_is_an_error(monkeypatch):
    monkeypatch.setattr(read_budget, "MAX_READ_S", 0.2)
    with pytest.raises(InputError, match="the output of the check command") as refused:
        CheckRules(fail_patterns=("(a+)+$", )).judge(0, "a" * 60 + "!")
    assert "--fail-regex" in refused.value.next_step and refused.value.exit_code == 2


CHILD = "import subprocess; subprocess.run([chr(115) + 'leep', '300'])"


@pytest.mark.parametrize(("command", "count"), [
    ("sleep 300 & setsid sleep 301 & (setsid sh -c 'sleep 302 & sleep 303 & wait' &) ; "
     "while :; do sleep 304 & sleep 0.2; done | cat", 9), (f'{sys.executable} -c "{CHILD}"', 2)])
def test_a_closed_check_leaves_no_process(tmp_path, command, count):
    folder = check_folder(tmp_path / "check")
    steps = run_check_command(command, NO_RULES, folder, lambda: None)
    next(steps)
    deadline = time.monotonic() + LIMIT_S
    while len(processes_of(folder)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    steps.close()
    assert not processes_of(folder)


def test_the_shown_end_of_stderr_is_short(tmp_path):
    folder = check_folder(tmp_path / "check")
    assert not checked("i=0; while [ $i -lt 100 ]; do echo line $i >&2; i=$((i+1)); done; exit 1", folder).passes
    assert shown_error_text(folder).splitlines() == [f"line {number}" for number in range(80, 100)]
    checked("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", folder)
    assert shown_error_text(folder) == "x" * 2000
    checked(r"printf '\377\n' >&2; exit 1", folder)
    assert shown_error_text(folder) == "�"


@pytest.mark.parametrize("name", ["logits", "file", "allow_pickle", "../../up", "/root/x", "a b$(x)'\"", "x.npy",
                                  "ü\n"])
def test_outputs_of_any_name_are_written(tmp_path, name):
    onnx.save(conv_net(0), tmp_path / "net.onnx")
    network, config = open_network(tmp_path / "net.onnx"), PrecisionConfig.from_precision(Precision.FP16)
    (folder := tmp_path / "check").mkdir()
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_check_files(folder, network, config, Calibration(), {}, {name: values, "other": values + 1})
    with np.load(folder / "outputs.npz") as written:
        assert [*written] == [name, "other"]
        assert np.array_equal(written[name], values) and np.array_equal(written["other"], values + 1)
    assert sorted(path.name for path in folder.iterdir()) == sorted(CHECK_FILES.values())
    assert read_config(folder / "precision.json", network).config == config


# -- artifacts ------------------------------------------------------------------------------------------------------


def test_artifacts_are_numbered_across_both_folders_and_runs(tmp_path):
    folder, kept = check_folder(tmp_path / "check"), tmp_path / "kept"
    (kept / "good" / "notes").mkdir(parents=True)
    (kept / "bad").mkdir()
    (kept / "bad" / "0007").mkdir()
    for result in (CheckResult(0), CheckResult(1, "exit code 1"), CheckResult(3, "", "exit code 3")):
        keep_artifacts(kept, folder, result, {"command": "x"})
    assert sorted(str(path.relative_to(kept)) for path in kept.glob("*/0*")) == [
        "bad/0007", "bad/0009", "good/0008", "good/0010"]
    record = json.loads((kept / "good" / "0010" / "iteration.json").read_text())
    assert (record["iteration"], record["outcome"], record["exit_code"]) == (10, "good", 3)
    assert record["check"] == "the check passes (exit code 3)"
    assert (kept / "bad" / "0009" / "model.onnx").read_text() == "content of model.onnx\n"


def test_a_pipe_that_a_check_leaves_in_its_folder_is_named(tmp_path):
    folder = check_folder(tmp_path / "check")
    os.mkfifo(folder / "left")
    with pytest.raises(InputError, match="left cannot be read") as refused:
        keep_artifacts(tmp_path / "kept", folder, CheckResult(0), {})
    assert "regular file" in refused.value.cause and not [*(tmp_path / "kept").glob("*/*")]


def test_artifacts_that_cannot_be_written_are_an_error_and_leave_nothing(tmp_path, monkeypatch):
    folder = check_folder(tmp_path / "check")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "good").write_text("a file")
    with pytest.raises(InputError, match="cannot be written"):
        keep_artifacts(tmp_path / "kept", folder, CheckResult(0), {})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(InputError) as refused:
        keep_artifacts(tmp_path / "kept", folder, CheckResult(1, "exit code 1"), {})
    assert "No space left" in refused.value.cause and not [*(tmp_path / "kept" / "bad").iterdir()]


# -- the command `search` ---------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """The options that open a small network with 12 samples."""
    options = save_resnet(tmp_path, samples=12)
    return [options.model, "--data", options.data, "--batch", "4", "--no-free", "--no-ranges"]


def cosine_check(tmp_path, bound):
    """A script that compares the simulated outputs with those of FP32, as a user would write it."""
    script = tmp_path / "check it.py"
    script.write_text(f"""
import sys
import numpy as np
outputs, reference = np.load(sys.argv[1]), np.load(sys.argv[2])
first, second = outputs["logits"].ravel(), reference["logits"].ravel()
cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
print("cosine", cosine, "PASS" if cosine >= {bound} else "MISS")
if cosine < {bound}:
    print("too far away", file=sys.stderr)
""")
    return script


def fp32_outputs(tmp_path, files):
    session = pytest.importorskip("onnxruntime").InferenceSession(files[0])
    with np.load(files[2]) as data:
        feed = {session.get_inputs()[0].name: data[session.get_inputs()[0].name]}
    np.savez(tmp_path / "fp32.npz", logits=session.run(["logits"], feed)[0])
    return tmp_path / "fp32.npz"


def test_a_pipeline_decides_a_search_and_its_artifacts_reproduce_it(run, files, tmp_path):
    script, reference = cosine_check(tmp_path, 0.99995), fp32_outputs(tmp_path, files)
    out, kept = tmp_path / "out.json", tmp_path / "kept files"
    command = f"{sys.executable} '{script}' {{outputs}} {reference} | tee /dev/stderr | grep -q PASS"
    words = ["search", *files, "--calib-data", files[2], "--no-hold-out", "--tolerance", "sqnr>=10",
             "--check", command, "--artifacts", kept, "-o", out]
    code, shown, told = run(*words)
    assert code == 0, told
    assert "the check passes" in shown and "MISS" in told and "too far away" in told
    network, iterations = open_network(files[0]), {}
    for path in kept.glob("*/*"):
        record = json.loads((path / "iteration.json").read_text())
        assert not mismatches(record, "check-iteration-v1")
        assert record["outcome"] == path.parent.name and record["iteration"] == int(path.name)
        assert record["command"] == command and record["meets_tolerances"] is True
        loaded = read_config(path / "precision.json", network)
        assert [*loaded.config.find_raised_groups(network)] == record["raised"]
        with np.load(path / "outputs.npz") as arrays, np.load(reference) as exact:
            error = arrays["logits"].astype(np.float64) - exact["logits"]
            sqnr = 10 * np.log10(np.square(exact["logits"], dtype=np.float64).sum() / np.square(error).sum())
        simulated = record["simulated"]["outputs"]["logits"]["sqnr_db"]  # null: exact, with all layers in FP32
        assert sqnr > 100 if simulated is None else sqnr == pytest.approx(simulated, abs=1e-3)
        assert ("PASS" in (path / "stderr.txt").read_text()) is (record["outcome"] == "good")
        iterations[record["iteration"]] = record
    assert sorted(iterations) == [*range(1, len(iterations) + 1)]
    assert {record["outcome"] for record in iterations.values()} == {"good", "bad"}
    best = [*read_config(out, network).config.find_raised_groups(network)]
    assert best in [record["raised"] for record in iterations.values() if record["outcome"] == "good"]
    assert run(*words)[0] == 0
    numbers = sorted(int(path.name) for path in kept.glob("*/*"))
    assert numbers == [*range(1, 2 * len(iterations) + 1)]


def test_stderr_of_a_failed_check_is_shown_with_its_control_characters_escaped(run, files, tmp_path):
    code, _, told = run("search", *files, "--max-fp32", "1", "--check",
                        r"printf 'first \033[31mred\nError: none\n' >&2; exit 4", "-o", tmp_path / "out.json")
    assert code == 1
    lines = told.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("Note: With "))
    assert lines[first] == "Note: With 0 raised layers the check fails (exit code 4):"
    assert lines[first + 1 : first + 3] == [r"      first \x1b[31mred", "      Error: none"]
    assert sum("red" in line for line in lines) == 1  # the same text is shown once


@pytest.mark.parametrize(("options", "code", "text"), [
    (["--check", "exit 3; x", "--fail-code", "1", "--fail-code", "2"], 0, "PASS?: the check passes (exit code 3)"),
    (["--check", "exit 2; x", "--fail-code", "1", "--fail-code", "2"], 1, "the check fails (exit code 2)"),
    (["--check", "exit 2; x", "--ignore-fail-code", "2"], 0, "the check passes"),
    (["--check", "echo all bad | cat", "--fail-regex", "b.d"], 1,
        "the check fails (exit code 0, output matches b.d)"),
    (["--check", "no-such-program | cat"], 0, f"PASS?: the check passes ({HIDDEN})")])
def test_the_rules_reach_the_search(run, files, tmp_path, options, code, text):
    ended, shown, told = run("search", *files, *options, "--max-fp32", "0", "-o", tmp_path / "out.json")
    assert ended == code and text in shown, shown + told
    record = json.loads((tmp_path / "out.json").read_text())
    assert not mismatches(record)
    evidence = record["evidence"]["search"]
    assert evidence["check"] == options[1]
    assert ("check_rules" in evidence) is (len(options) > 2)


@pytest.mark.parametrize(("options", "title"), [
    (["--check", "true", "--fail-code", "1", "--ignore-fail-code", "2"], "--fail-code and --ignore-fail-code"),
    (["--tolerance", "sqnr>=9", "--fail-code", "1"], "--fail-code has no effect here"),
    (["--tolerance", "sqnr>=9", "--artifacts", "new"], "--artifacts has no effect here"),
    (["--check", "true", "--fail-regex", "(a"], "--fail-regex (a is not a regular expression"),
    (["--check", "true", "--fail-code", "x"], "'x' is not a valid integer"),
    (["--check", "true", "--artifacts", "none/new"], "folder none does not exist"),
    (["--check", "true", "--artifacts", "file"], "file is not a folder"),
    (["--check", "true", "--artifacts", "file/new"], "file is not a folder"),
    (["--check", "true", "--artifacts", "taken"], "taken cannot be written"),
    (["--check", "true &&"], "cannot be read"), (["--check", "'"], "cannot be read"), (["--check", ""], "is empty"),
    (["--check", "no-such-program {model} && true"], "no-such-program does not start")])
def test_bad_input(run, files, tmp_path, monkeypatch, options, title):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "taken").mkdir()
    for name in ("good", "bad"):
        (tmp_path / "taken" / name).write_text("x")
    code, shown, told = run("search", *files, *options, "-o", "out.json")
    assert code == 2 and title in told.replace(f"{tmp_path}/", "") and not shown, told
    assert "Traceback" not in told and not (tmp_path / "out.json").exists()


def test_an_interrupted_search_kills_its_check(files, tmp_path):
    marks = tmp_path / "marks"
    check = (f"echo $TRT_TUI_MODEL >> {marks}; if [ $(wc -l < {marks}) -gt 2 ]; then setsid sleep 300 & sleep 301; fi; "
             "false | cat")
    process = subprocess.Popen(
        [sys.executable, "-m", "trt_tui", "search", *files, "--check", check, "--tolerance", "sqnr>=200", "-o",
         str(tmp_path / "out.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    deadline = time.monotonic() + LIMIT_S
    while not marks.exists() or len(models := marks.read_text().splitlines()) < 3 or len(
            processes_of(Path(models[-1]).parent)) < 3:
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and "Stopped; " in told, told
    assert not processes_of(Path(models[-1]).parent) and not Path(models[-1]).parent.exists()


@pytest.mark.parametrize("name", ["vit", "unet_small"])
def test_other_networks_are_checked_with_all_their_outputs(run, tmp_path, name):
    model, kept = tmp_path / f"{name}.onnx", tmp_path / "kept"
    onnx.save(getattr(networks, name)(), model)
    code, _, told = run("search", model, "--check", 'test -s {model} && test -s "{outputs}"', "--max-fp32", "0",
                        "--artifacts", kept, "-o", tmp_path / "out.json")
    assert code == 0, told
    with np.load(kept / "good" / "0001" / "outputs.npz") as outputs:
        assert {*outputs} == {output.name for output in open_network(model).outputs}
    assert json.loads((kept / "good" / "0001" / "iteration.json").read_text())["raised"] == []
