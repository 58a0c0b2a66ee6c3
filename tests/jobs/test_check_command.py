"""The check command of a search: the shell, its exit code, and the end of its processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import LIMIT_S, save_resnet
from tests.networks.odd import conv_net
from tests.schemas import mismatches
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.measure.target import Outcome, TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import read_config
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.jobs.check_command import (
    CHECK_FILES,
    CheckResult,
    combine_with_check,
    run_check_command,
    shown_error_text,
    validate_check_command,
    write_check_files,
)

pytestmark = pytest.mark.shares_cache

HOSTILE_NAMES = (
    "a b",
    "it's",
    'say "x"',
    "$(touch pwned)",
    "`touch pwned`",
    "$HOME",
    "new\nline",
    "-n",
    "x;touch pwned",
    "x&&touch pwned",
    "*",
    "{model}",
    "back\\slash",
    "#x",
    "\udcff",
    "~",
)

HIDDEN = "only the last program decides, and stderr is not empty"


def check_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in CHECK_FILES.values():
        (folder / name).write_text(f"content of {name}\n")
    return folder


def checked(command: str, folder: Path) -> CheckResult:
    """The result of a command that runs to its end."""
    steps, deadline = run_check_command(command, folder, lambda: None), time.monotonic() + LIMIT_S
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


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_paths_reach_a_command_as_one_word(tmp_path, monkeypatch, name):
    folder = check_folder(tmp_path / name / "check")
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    for command in ('cat "$TRT_TUI_MODEL"', 'cat < "$TRT_TUI_MODEL" | cat', "sh -c 'cat \"$TRT_TUI_MODEL\"'"):
        assert checked(command, folder) == CheckResult()
        assert (folder / "stdout.txt").read_text() == "content of model.onnx\n"
        assert not (folder / "stderr.txt").read_text() and not [*Path.cwd().iterdir()]


def test_every_file_has_a_variable(tmp_path):
    folder = check_folder(tmp_path / "check")
    for variable, name in CHECK_FILES.items():
        assert checked(f'cat "${variable}"', folder).passes
        assert (folder / "stdout.txt").read_text() == f"content of {name}\n"


@pytest.mark.parametrize(
    "command", ["", "  ", "echo 'a", "echo 'a | cat", "a &&", "a | | b", "echo $(a", "a ) | b", "if a; then b"]
)
def test_what_cannot_be_parsed_is_refused_before_it_runs(command):
    with pytest.raises(InputError, match="cannot be read" if command.strip() else "is empty") as refused:
        validate_check_command(command)
    assert refused.value.exit_code == 2 and (refused.value.cause or not command.strip())


def test_a_check_whose_exit_code_nothing_waits_for_is_refused():
    with pytest.raises(InputError, match="ends with &"):
        validate_check_command("python check.py &\n")


def test_a_placeholder_of_an_earlier_release_names_its_variable():
    with pytest.raises(InputError, match="contains {outputs}") as refused:
        validate_check_command("python check.py {outputs}")
    assert '"$TRT_TUI_OUTPUTS"' in refused.value.next_step


def test_parsing_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    validate_check_command("touch a; touch b && $(touch c)")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "command", ["no-such-program", "no-such-program && true", "echo x | no-such-program", "./plain.txt", "exit 127"]
)
def test_a_program_that_does_not_start_is_an_error(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.txt").write_text("x")
    with pytest.raises(InputError, match="does not start") as refused:
        checked(command, check_folder(tmp_path / "check"))
    assert refused.value.exit_code == 2 and (refused.value.cause or command == "exit 127")


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("true", CheckResult()),
        ("exit 3", CheckResult("exit code 3")),
        ("no-such-program || exit 3", CheckResult("exit code 3")),
        ("no-such-program; true", CheckResult("", HIDDEN)),
        ("no-such-program | cat", CheckResult("", HIDDEN)),
        ("no-such-program\ntrue", CheckResult("", HIDDEN)),
        ("! no-such-program", CheckResult("", HIDDEN)),
        ('test -z "$(no-such-program)"', CheckResult("", HIDDEN)),
        ("no-such-program & wait", CheckResult("", HIDDEN)),
        ("echo noise >&2 && true 2>&1", CheckResult()),
        ("ls /no-such-file 2>/dev/null | cat", CheckResult()),
        ("echo noise >&2 && true", CheckResult()),
        ("exec python3 -c 'import os; os.kill(os.getpid(), 11)'", CheckResult("ended by SIGSEGV")),
    ],
)
def test_exit_code_0_accepts_and_hidden_failures_give_doubt(tmp_path, command, result):
    assert checked(command, check_folder(tmp_path / "check")) == result


def test_an_uncertain_pass_is_never_a_plain_one():
    doubted, sure, failed = CheckResult("", HIDDEN), CheckResult(), CheckResult("exit code 1")
    passed, missed = TargetOutcome(Outcome.PASS), TargetOutcome(Outcome.UNCERTAIN_FAIL, ("few samples",))
    assert combine_with_check(passed, sure) is passed and combine_with_check(missed, sure) is missed
    assert combine_with_check(passed, doubted).text == f"PASS?: the check passes ({HIDDEN})"
    assert combine_with_check(missed, doubted) is missed
    assert combine_with_check(missed, failed).text == "FAIL: the check fails (exit code 1); few samples"


CHILD = "import subprocess; subprocess.run([chr(115) + 'leep', '300'])"


@pytest.mark.parametrize(
    ("command", "count"),
    [
        (
            "sleep 300 & setsid sleep 301 & (setsid sh -c 'sleep 302 & sleep 303 & wait' &) ; "
            "while :; do sleep 304 & sleep 0.2; done | cat",
            9,
        ),
        (f'{sys.executable} -c "{CHILD}"', 2),
    ],
)
def test_a_closed_check_leaves_no_process(tmp_path, command, count):
    folder = check_folder(tmp_path / "check")
    steps = run_check_command(command, folder, lambda: None)
    next(steps)
    deadline = time.monotonic() + LIMIT_S
    while len(processes_of(folder)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    steps.close()
    assert not processes_of(folder)


@pytest.mark.parametrize("name", ["stdout.txt", "stderr.txt"])
def test_a_pipe_in_place_of_an_output_is_not_read(tmp_path, name):
    folder = check_folder(tmp_path / "check")
    with pytest.raises(InputError, match="pipe"):
        checked(f'echo x && sleep 0.2 && cd "${{TRT_TUI_MODEL%/*}}" && rm {name} && mkfifo {name}', folder)


def test_a_reader_of_a_pipe_that_is_left_behind_does_not_block(tmp_path):
    folder = check_folder(tmp_path / "check")
    assert checked('cd "${TRT_TUI_MODEL%/*}" && mkfifo pipe && { cat pipe & }', folder) == CheckResult()
    with open(folder / "pipe", "w"):  # the end of its input ends the reader
        pass


def test_the_shown_end_of_stderr_is_short(tmp_path):
    folder = check_folder(tmp_path / "check")
    assert not checked("i=0; while [ $i -lt 100 ]; do echo line $i >&2; i=$((i+1)); done; exit 1", folder).passes
    assert shown_error_text(folder).splitlines() == [f"line {number}" for number in range(80, 100)]
    checked("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", folder)
    assert shown_error_text(folder) == "x" * 2000
    checked(r"printf '\377\n' >&2; exit 1", folder)
    assert shown_error_text(folder) == "�"


@pytest.mark.parametrize(
    "name", ["logits", "file", "allow_pickle", "../../up", "/root/x", "a b$(x)'\"", "x.npy", "ü\n"]
)
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


def test_a_pipeline_decides_a_search_by_the_simulated_outputs(run, files, tmp_path):
    script, reference, out = cosine_check(tmp_path, 0.99995), fp32_outputs(tmp_path, files), tmp_path / "out.json"
    (kept := tmp_path / "kept files").mkdir()
    command = (
        f"n=$(ls '{kept}' | wc -l); cp \"$TRT_TUI_OUTPUTS\" '{kept}'/$n.npz; "
        f"{sys.executable} '{script}' \"$TRT_TUI_OUTPUTS\" {reference} | tee /dev/stderr | grep -q PASS"
    )
    code, shown, told = run(
        "search",
        *files,
        "--calib-data",
        files[2],
        *"--no-hold-out --tolerance sqnr>=10 --check".split(),
        command,
        "-o",
        out,
    )
    assert code == 0, told
    assert "the check passes" in shown and "MISS" in told and "too far away" in told
    evidence = json.loads(out.read_text())["evidence"]["search"]
    assert evidence["check"] == command and not mismatches(json.loads(out.read_text()))
    with np.load(kept / "0.npz") as arrays, np.load(reference) as exact:
        assert [*arrays] == ["logits"] and arrays["logits"].shape == exact["logits"].shape


def test_stderr_of_a_failed_check_is_shown_with_its_control_characters_escaped(run, files, tmp_path):
    code, _, told = run(
        "search",
        *files,
        "--max-fp32",
        "1",
        "--check",
        r"printf 'first \033[31mred\nError: none\n' >&2; exit 4",
        "-o",
        tmp_path / "out.json",
    )
    assert code == 1
    lines = told.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("Note: With "))
    assert lines[first] == "Note: With 0 raised layers the check fails (exit code 4):"
    assert lines[first + 1 : first + 3] == [r"      first \x1b[31mred", "      Error: none"]
    assert sum("red" in line for line in lines) == 1  # the same text is shown once


@pytest.mark.parametrize(
    ("options", "title"),
    [
        (["--check", "true &&"], "cannot be read"),
        (["--check", ""], "is empty"),
        (["--check", "no-such-program && true"], "the check command does not start"),
        (["--check", "python check.py {outputs}"], "contains {outputs}"),
    ],
)
def test_bad_input(run, files, tmp_path, monkeypatch, options, title):
    monkeypatch.chdir(tmp_path)
    code, shown, told = run("search", *files, *options, "-o", "out.json")
    assert code == 2 and title in told and not shown, told
    assert "Traceback" not in told and not (tmp_path / "out.json").exists()


def test_an_interrupted_search_kills_its_check(files, tmp_path):
    marks = tmp_path / "marks"
    check = (
        f"echo $TRT_TUI_MODEL >> {marks}; if [ $(wc -l < {marks}) -gt 2 ]; then setsid sleep 300 & sleep 301; fi; "
        "false | cat"
    )
    process = subprocess.Popen(
        [
            *f"{sys.executable} -m trt_tui search".split(),
            *files,
            "--check",
            check,
            *f"--tolerance sqnr>=200 -o {tmp_path}/out.json".split(),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + LIMIT_S
    while (
        not marks.exists()
        or len(models := marks.read_text().splitlines()) < 3
        or len(processes_of(Path(models[-1]).parent)) < 3
    ):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and "Stopped; " in told, told
    assert not processes_of(Path(models[-1]).parent) and not Path(models[-1]).parent.exists()


@pytest.mark.parametrize("name", ["vit", "unet_small"])
def test_other_networks_are_checked_with_all_their_outputs(run, tmp_path, name):
    model, kept = tmp_path / f"{name}.onnx", tmp_path / "kept.npz"
    onnx.save(getattr(networks, name)(), model)
    code, _, told = run(
        "search",
        model,
        "--check",
        f'test -s "$TRT_TUI_MODEL" && cp "$TRT_TUI_OUTPUTS" {kept}',
        *f"--max-fp32 0 -o {tmp_path}/out.json".split(),
    )
    assert code == 0, told
    with np.load(kept) as outputs:
        assert {*outputs} == {output.name for output in open_network(model).outputs}
