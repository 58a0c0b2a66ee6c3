"""The user's check command of a search, which accepts or rejects a config. The shell ``sh`` runs it.

The paths of the files reach the shell in environment variables only, so that no path becomes a part of the text that
the shell parses.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.measure.target import Outcome, TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError
from trt_tui.files.reading import check_regular_file
from trt_tui.jobs.child_exit import kill_process_tree
from trt_tui.jobs.scheduler import Steps, WaitStep, start_thread

CHECK_FILES = {"TRT_TUI_MODEL": "model.onnx", "TRT_TUI_OUTPUTS": "outputs.npz", "TRT_TUI_CONFIG": "precision.json"}
"""The files of a check by the environment variable with the path of each."""

OUTPUT_FILE, ERROR_OUTPUT_FILE = "stdout.txt", "stderr.txt"

_OUTPUT_WAIT_S = 1.0
"""The maximum wait for the rest of an output after the command has ended, since a process that it left behind may hold
the output open."""

MAX_SHOWN_LINES, MAX_SHOWN_CHARACTERS = 20, 2000
"""The maximum size of the end of stderr that is shown, in lines and in characters."""

_UNSTARTED_CODES = (126, 127)
"""The exit codes of a shell that cannot start a program."""

_HIDING_OPERATORS = re.compile(r"[|;\n!`]|\$\(|(?<![&>])&(?!&)")
"""The operators that hide the exit code of a program, quoted or not."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of the user's check command for one config.

    Attributes:
        failure_reason: The reason why the check fails; "" if it passes.
        doubt_reason: The reason why a pass is uncertain; "" if there is none.
    """

    failure_reason: str = ""
    doubt_reason: str = ""

    @property
    def passes(self) -> bool:
        return not self.failure_reason

    @property
    def text(self) -> str:
        reason = self.failure_reason or self.doubt_reason
        return f"the check {'passes' if self.passes else 'fails'}{f' ({reason})' if reason else ''}"


def validate_check_command(command: str) -> None:
    """Checks a command before it runs.

    Raises:
        InputError: The command is empty, contains a placeholder of an earlier release, is no text of the shell, or
            leaves its last program in the background.
    """
    if not command.strip():
        raise InputError(
            "the check command is empty", "", """Give a command, like 'python check.py "$TRT_TUI_OUTPUTS"'."""
        )
    for variable in CHECK_FILES:
        if (placeholder := f"{{{variable.removeprefix('TRT_TUI_').lower()}}}") in command:
            raise InputError(
                f"the check command contains {placeholder}",
                "environment variables have the paths",
                f'Write "${variable}".',
            )
    # The option -n parses the command and executes nothing.
    parsed = subprocess.run(
        ["sh", "-n", "-c", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if parsed.returncode:
        raise InputError(
            f"the check command {command!r} cannot be read",
            parsed.stderr.strip() or "sh refuses it",
            "Match its quotes, and quote characters that are not operators of the shell.",
        )
    if command.rstrip().endswith("&"):
        raise InputError(
            "the check command ends with &", "nothing waits for the exit code of its last program", "Leave the & out."
        )


def write_check_files(
    folder: Path,
    network: Network,
    config: PrecisionConfig,
    calibration: Calibration,
    ranges: Mapping[str, float],
    outputs: Mapping[str, np.ndarray],
) -> None:
    """Writes the files of a check: the exported network, its simulated outputs, and the config."""
    write_export("onnx", folder / CHECK_FILES["TRT_TUI_MODEL"], network, config, ranges)
    write_export("json", folder / CHECK_FILES["TRT_TUI_CONFIG"], network, config, ranges, calibration=calibration)
    with zipfile.ZipFile(folder / CHECK_FILES["TRT_TUI_OUTPUTS"], "w") as archive:
        for name, array in outputs.items():  # `numpy.savez` fails for an output with the name "file"
            safe_name = name.encode("utf-8", "backslashreplace").decode()
            with archive.open(f"{safe_name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)


def run_check_command(command: str, folder: Path, wake: Callable[[], None]) -> Steps[CheckResult]:
    """Runs the user's check command on the files of a folder. Exit code 0 accepts the config.

    A pass is uncertain if a program before the last one may have failed, since the command wrote to stderr. The outputs
    of the command are written to files in the folder, and their ends to the log. If the generator is closed, the
    command is killed with all processes that it has started.

    Args:
        folder: The folder of `write_check_files`.
        wake: A function that another thread calls when the command has ended.

    Raises:
        InputError: A program does not start.
    """
    paths = {variable: str(folder / name) for variable, name in CHECK_FILES.items()}
    process = subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **paths},
        bufsize=0,
    )
    writers = [
        threading.Thread(target=_write_stream, args=(stream, folder / name), daemon=True)
        for stream, name in ((process.stdout, OUTPUT_FILE), (process.stderr, ERROR_OUTPUT_FILE))
    ]

    def wait_for_exit() -> None:
        process.wait()
        for writer in writers:
            writer.join(_OUTPUT_WAIT_S)

    for writer in writers:
        writer.start()
    exit_future = start_thread(wait_for_exit, wake)
    try:
        while not exit_future.done():
            yield WaitStep(exit_future.done)
    finally:
        if process.poll() is None:
            kill_process_tree(process.pid, "TRT_TUI_MODEL", paths["TRT_TUI_MODEL"])
        wait([exit_future])
        sys.stderr.write("".join(_read_file_end(folder / name, 1 << 16) for name in (OUTPUT_FILE, ERROR_OUTPUT_FILE)))
    exit_code, error_text = process.returncode, shown_error_text(folder)
    if exit_code in _UNSTARTED_CODES:
        raise InputError(
            f"the check command does not start (exit code {exit_code})",
            error_text,
            "Name programs that can be executed, with their paths if they are not on PATH.",
        )
    if exit_code:
        return CheckResult(_exit_code_text(exit_code))
    is_doubtful = error_text and _HIDING_OPERATORS.search(command)
    return CheckResult(doubt_reason="only the last program decides, and stderr is not empty" if is_doubtful else "")


def _exit_code_text(exit_code: int) -> str:
    """Returns an exit code as a text, with the name of the signal if a signal ended the command."""
    if exit_code < 0 and -exit_code in list(signal.Signals):
        return f"ended by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"


def _write_stream(stream: IO[bytes], path: Path) -> None:
    """Writes all output of a stream to a file.

    The command writes to a pipe and not to the file: a program such as ``tee /dev/stderr`` opens the file a second time
    and overwrites the output of the others.
    """
    with stream, open(path, "wb", buffering=0) as file:
        shutil.copyfileobj(stream, file)


def shown_error_text(folder: Path) -> str:
    """Returns the last lines that a check has written to stderr; "" if there are none."""
    lines = _read_file_end(folder / ERROR_OUTPUT_FILE, 1 << 16).rstrip().splitlines()[-MAX_SHOWN_LINES:]
    return "\n".join(lines)[-MAX_SHOWN_CHARACTERS:]


def _read_file_end(path: Path, max_bytes: int) -> str:
    check_regular_file(path)  # the command may have put a pipe in its place
    with open(path, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - max_bytes))
        return stream.read().decode("utf-8", "replace")


def combine_with_check(outcome: TargetOutcome, check_result: CheckResult) -> TargetOutcome:
    """Returns the outcome of the tolerances combined with the outcome of the user's check command."""
    if not check_result.passes:
        return TargetOutcome(Outcome.FAIL, (check_result.text, *outcome.reasons))
    if check_result.doubt_reason and outcome.passes:
        return TargetOutcome(Outcome.UNCERTAIN_PASS, (check_result.text, *outcome.reasons))
    return outcome
