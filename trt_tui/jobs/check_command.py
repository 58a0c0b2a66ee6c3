"""The user's check command, which accepts or rejects a config.

A command with an unquoted ``&&``, ``||``, ``|``, ``;``, ``<`` or ``>`` is run by ``sh``. The names of the files reach
the shell in environment variables only, so that no name becomes a part of its text.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.core.exporters.formats import write_export
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError
from trt_tui.files.writing import convert_write_errors, fill_folder_atomically
from trt_tui.jobs.check_rules import CheckResult, CheckRules
from trt_tui.jobs.child_exit import kill_process_tree
from trt_tui.jobs.steps import Steps, Wait

FILES = {"model": "model.onnx", "outputs": "outputs.npz", "config": "precision.json"}
"""The files of a check, by the placeholder in braces that names each in a command."""

ERROR_OUTPUT_FILE, OUTPUT_FILE, RECORD_FILE = "stderr.txt", "stdout.txt", "iteration.json"

MAX_OUTPUT_BYTES = 16 << 20
"""The maximum size in bytes of the end of an output that is searched for patterns."""

MAX_SHOWN_LINES, MAX_SHOWN_CHARACTERS = 20, 2000
"""The maximum number of last lines of stderr that are shown of a failed check, and of their characters."""

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
"""The exit codes of a shell that cannot start a program."""

_COMMAND_PART = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^'"\\]+""", re.DOTALL)
"""A quoted part of a command, an escaped character, or a part without quotes."""

_SHELL_OPERATOR = re.compile(r"&&|[|;<>]")
_VARIABLE_REFERENCE = re.compile(r"\$\{?TRT_TUI_")
_PLACEHOLDER = re.compile(rf"(?<!\$)\{{({'|'.join(FILES)})\}}")


def variable_name(placeholder: str) -> str:
    """Returns the environment variable that holds the path of one of `FILES`."""
    return f"TRT_TUI_{placeholder.upper()}"


def split_check_command(command: str) -> list[str]:
    """Returns the words of a check command, without quotes.

    Raises:
        InputError: The command is empty, its quotes do not match, or the shell cannot read it.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"the check command {command!r} cannot be read", str(error), "Match its quotes.") from None
    if not words:
        raise InputError("the check command is empty", "", "Give a command, like 'python check.py {model} {outputs}'.")
    if needs_shell(command):
        test = subprocess.run(["sh", "-n", "-c", shell_text(command)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", check=False)
        if test.returncode:
            raise InputError(f"the check command {command!r} cannot be read", test.stderr.strip(),
                             "Correct the shell command, or quote characters that are no operators.")
    return words


def needs_shell(command: str) -> bool:
    """Returns True if a command has an unquoted operator of the shell, or refers to a variable of `variable_name`."""
    parts = _COMMAND_PART.findall(command)
    return any(
        part[0] not in "'\\" and (_VARIABLE_REFERENCE.search(part) or part[0] != '"' and _SHELL_OPERATOR.search(part))
        for part in parts)


def shell_text(command: str) -> str:
    """Returns the text that the shell runs: the command with a quoted reference to a variable for each placeholder."""
    def replace_placeholders(part: str) -> str:
        def reference(match: re.Match[str]) -> str:
            variable = f"${{{variable_name(match[1])}}}"
            return variable if part[0] == '"' else f"'\"{variable}\"'" if part[0] == "'" else f'"{variable}"'

        return _PLACEHOLDER.sub(reference, part)

    return "".join(map(replace_placeholders, _COMMAND_PART.findall(command)))


def write_check_files(folder: Path, network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                      outputs: Mapping[str, np.ndarray], config_text: str) -> None:
    """Writes the files of a check: the exported network, its simulated outputs, and the config."""
    write_export("onnx", folder / FILES["model"], network, config, ranges)
    with zipfile.ZipFile(folder / FILES["outputs"], "w") as archive:  # numpy.savez has arguments that are names too
        for name, array in outputs.items():
            safe_name = name.encode("utf-8", "backslashreplace").decode()
            with archive.open(f"{safe_name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)
    (folder / FILES["config"]).write_text(config_text, encoding="utf-8", errors="backslashreplace")


def run_check_command(command: str, rules: CheckRules, folder: Path, wake: Callable[[], None]) -> Steps[CheckResult]:
    """Runs the user's check command on the files of a folder.

    The outputs of the command are written to files in the folder, and their ends to the log. If the generator is
    closed, the command and its child processes are killed.

    Args:
        folder: The folder of `write_check_files`.
        wake: A function that another thread calls when the command has ended.

    Raises:
        InputError: The command or a program in it does not start.
    """
    paths = {placeholder: str(folder / name) for placeholder, name in FILES.items()}
    uses_shell = needs_shell(command)
    arguments = ["sh", "-c", shell_text(command)] if uses_shell else [
        _PLACEHOLDER.sub(lambda match: paths[match[1]], word) for word in split_check_command(command)]
    variables = {variable_name(placeholder): path for placeholder, path in paths.items()}
    with open(folder / OUTPUT_FILE, "wb") as output, open(folder / ERROR_OUTPUT_FILE, "wb") as error_output:
        try:
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=error_output,
                                       env={**os.environ, **variables})
        except OSError as error:
            raise _not_started_error(arguments[0], error.strerror or str(error)) from None

    def wait_for_exit() -> None:
        process.wait()
        wake()

    threading.Thread(target=wait_for_exit, daemon=True).start()
    try:
        while process.poll() is None:
            yield Wait(lambda: process.poll() is not None)
    finally:
        if process.poll() is None:
            kill_process_tree(process.pid)
            process.wait()
        sys.stderr.write("".join(_read_end(folder / name, 1 << 16) for name in (OUTPUT_FILE, ERROR_OUTPUT_FILE)))
    exit_code = process.returncode
    if uses_shell and exit_code in (_NOT_FOUND, _NOT_EXECUTABLE) and exit_code not in (*rules.fail_codes,
                                                                                      *rules.ignored_fail_codes):
        raise _not_started_error(command, shown_error_text(folder).strip() or f"its exit code is {exit_code}")
    return CheckResult(exit_code, rules.failure_reason(exit_code, "".join(
        _read_end(folder / name, MAX_OUTPUT_BYTES) for name in (OUTPUT_FILE, ERROR_OUTPUT_FILE))))


def _not_started_error(program: str, cause: str) -> InputError:
    return InputError(f"the check command {program} does not start", cause,
                      "Name a program that can be run, with its path where it is not on PATH.")


def shown_error_text(folder: Path) -> str:
    """Returns the last lines that a check has written to stderr; "" if there are none."""
    lines = _read_end(folder / ERROR_OUTPUT_FILE, 1 << 16).rstrip().splitlines()[-MAX_SHOWN_LINES:]
    return "".join(f"{line}\n" for line in lines)[-MAX_SHOWN_CHARACTERS:]


def _read_end(path: Path, max_bytes: int) -> str:
    with open(path, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - max_bytes))
        return stream.read().decode("utf-8", "replace")


# -- artifacts ------------------------------------------------------------------------------------------------------


def keep_artifacts(artifact_folder: Path, check_folder: Path, result: CheckResult, record: Mapping[str, Any]) -> Path:
    """Copies the folder of a check to a new folder below ``good`` or ``bad``, with a JSON file that describes it.

    The folders are numbered from 1 across both. Folders of earlier searches stay, and the numbers continue.

    Args:
        record: The description, to which the number and the outcome are added.

    Raises:
        InputError: The folder cannot be written.
    """
    outcome = "good" if result.passes else "bad"
    with convert_write_errors(artifact_folder):
        numbers = [int(path.name) for name in ("good", "bad") for path in (artifact_folder / name).glob("*")
                   if path.name.isdecimal()]
        number = max(numbers, default=0) + 1
        destination = artifact_folder / outcome / f"{number:04}"
        destination.parent.mkdir(parents=True, exist_ok=True)
        with fill_folder_atomically(destination) as folder:
            shutil.copytree(check_folder, folder, symlinks=True, dirs_exist_ok=True)
            text = json.dumps({
                "iteration": number, "outcome": outcome, "check": result.text, "exit_code": result.exit_code, **record
            }, indent=1)
            (folder / RECORD_FILE).write_text(text + "\n", encoding="utf-8")
    return destination
