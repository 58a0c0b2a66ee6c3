"""The user's check command, which accepts or rejects a config.

A command with operators or variables of the shell is run by ``sh``. The paths of the files reach the shell in
environment variables only, so that no path becomes a part of the text that the shell parses.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError
from trt_tui.files.reading import check_regular_file
from trt_tui.files.writing import convert_write_errors, fill_folder_atomically
from trt_tui.jobs.check_rules import CheckResult, CheckRules
from trt_tui.jobs.child_exit import kill_process_tree
from trt_tui.jobs.steps import Steps, Wait

CHECK_FILES = {"model": "model.onnx", "outputs": "outputs.npz", "config": "precision.json"}
"""The files of a check by placeholder: ``{model}`` in a command becomes the path of the first."""

OUTPUT_FILE, ERROR_OUTPUT_FILE, RECORD_FILE = "stdout.txt", "stderr.txt", "iteration.json"

_OUTPUT_WAIT_S = 1.0
"""The maximum wait for the rest of an output after the command has ended, since a process that it left behind may hold
the output open."""

MAX_OUTPUT_BYTES = 16 << 20
"""The maximum size in bytes of the end of an output that is searched for patterns."""

MAX_SHOWN_LINES, MAX_SHOWN_CHARACTERS = 20, 2000
"""The maximum size of the end of stderr that is shown, in lines and in characters."""

_QUOTES = ("'", '"')

_UNSTARTED_CODES = (126, 127)
"""The exit codes of a shell that cannot start a program."""

_UNSTARTED_PROGRAM = re.compile(
    r"^sh: (?:(?:line )?\d+: )?(.+): (?:(?:command )?not found|Permission denied|No such file or directory|"
    r"cannot execute.*|Exec format error)$", re.M)
"""The message of dash, bash and busybox about a program that they cannot start."""

_TOKEN = re.compile(rf"\{{(?:{'|'.join(CHECK_FILES)})\}}|\\.|\$[\w{{(]|&&|\|\||.", re.DOTALL)
"""A placeholder, an escaped character, the start of a variable or a substitution, an operator, or a character."""

_HIDING_OPERATORS = ("|", "||", ";")
"""The operators after which the exit code of the program before them has no effect."""

_OPERATORS = (*_HIDING_OPERATORS, "&&", "<", ">")


def variable_name(placeholder: str) -> str:
    """Returns the environment variable with the path of one of `CHECK_FILES`, such as ``TRT_TUI_MODEL``."""
    return f"TRT_TUI_{placeholder.upper()}"


def needs_shell(command: str) -> bool:
    """Returns True if a command has an unquoted operator of the shell, a variable, or a command substitution."""
    return bool(re.match(r"\s*\w+=", command)) or any(
        quotation != "'" and (token == "`" or token[0] == "$" and len(token) > 1)
        or quotation not in _QUOTES and token in _OPERATORS for token, quotation in _scan_tokens(command))


def can_hide_failure(command: str) -> bool:
    """Returns True if the exit code of the shell may not show the failure of a program, as in a pipeline."""
    return any(token in _HIDING_OPERATORS and quotation not in _QUOTES for token, quotation in _scan_tokens(command))


def shell_text(command: str) -> str:
    """Returns the text that the shell runs: the command with a quoted variable for each placeholder."""
    text = ""
    for token, quotation in _scan_tokens(command):
        if token[0] == "{" and len(token) > 1:
            variable = f"${{{variable_name(token[1:-1])}}}"
            token = variable if quotation == '"' else f"'\"{variable}\"'" if quotation == "'" else f'"{variable}"'
        text += token
    return text


def _scan_tokens(command: str) -> Iterator[tuple[str, str]]:
    """Yields the tokens of a command, each with the character that closes the quotation or substitution around it; ""
    if there is none.

    A command substitution within double quotes begins without quotation, as in ``"$(cat {model})"``.
    """
    closings = [""]
    for token in _TOKEN.findall(command):
        closing = closings[-1]
        yield token, closing
        if token == closing or closing == "'" and token == "\\'":  # a backslash has no meaning within single quotes
            closings.pop()
        elif closing != "'" and token == "$(":
            closings.append(")")
        elif closing != "'" and token == "`" or closing not in _QUOTES and token in _QUOTES:
            closings.append(token)
        elif closing not in _QUOTES and token == "(":
            closings.append(")")


def split_check_command(command: str) -> list[str]:
    """Returns the words of a check command, without quotes.

    Raises:
        InputError: The command is empty, or its quotes do not match, or the shell cannot parse it.
    """
    cause, uses_shell = "", needs_shell(command)
    if uses_shell:
        # The option -n parses the command and executes nothing.
        parsed = subprocess.run(["sh", "-n", "-c", shell_text(command)], stdin=subprocess.DEVNULL, capture_output=True,
                                text=True, errors="replace", check=False)
        cause = (parsed.stderr.strip() or "sh refuses it") if parsed.returncode else ""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=uses_shell)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = []
    try:
        words = list(lexer)
    except ValueError as error:
        cause = cause if uses_shell else str(error)
    if cause:
        raise InputError(f"the check command {command!r} cannot be read", cause,
                         "Match its quotes, and quote characters that are not operators of the shell.")
    if not words:
        raise InputError("the check command is empty", "", "Give a command, like 'python check.py {model} {outputs}'.")
    return words


def write_check_files(folder: Path, network: Network, config: PrecisionConfig, calibration: Calibration,
                      ranges: Mapping[str, float], outputs: Mapping[str, np.ndarray]) -> None:
    """Writes the files of a check: the exported network, its simulated outputs, and the config."""
    write_export("onnx", folder / CHECK_FILES["model"], network, config, ranges)
    write_export("json", folder / CHECK_FILES["config"], network, config, ranges, calibration=calibration)
    with zipfile.ZipFile(folder / CHECK_FILES["outputs"], "w") as archive:
        for name, array in outputs.items():  # `numpy.savez` fails for an output with the name "file"
            safe_name = name.encode("utf-8", "backslashreplace").decode()
            with archive.open(f"{safe_name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)


def run_check_command(command: str, rules: CheckRules, folder: Path, wake: Callable[[], None]) -> Steps[CheckResult]:
    """Runs the user's check command on the files of a folder.

    The outputs of the command are written to files in the folder, and their ends to the log. If the generator is
    closed, the command is killed with all processes that it has started.

    Args:
        folder: The folder of `write_check_files`.
        wake: A function that another thread calls when the command has ended.

    Raises:
        InputError: The command or a program in it does not start.
    """
    paths = {placeholder: str(folder / name) for placeholder, name in CHECK_FILES.items()}
    variables = {variable_name(placeholder): path for placeholder, path in paths.items()}
    uses_shell = needs_shell(command)
    arguments = ["sh", "-c", shell_text(command)] if uses_shell else [
        re.sub(rf"\{{({'|'.join(paths)})\}}", lambda match: paths[match[1]], word)
        for word in split_check_command(command)
    ]
    try:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, **variables}, bufsize=0)
    except OSError as error:
        raise _not_started_error(arguments[0], error.strerror or str(error)) from None
    writers = [threading.Thread(target=_write_stream, args=(stream, folder / name), daemon=True)
               for stream, name in ((process.stdout, OUTPUT_FILE), (process.stderr, ERROR_OUTPUT_FILE))]

    has_ended = threading.Event()

    def wait_for_exit() -> None:
        process.wait()
        for writer in writers:
            writer.join(_OUTPUT_WAIT_S)
        has_ended.set()
        wake()

    for thread in (*writers, threading.Thread(target=wait_for_exit, daemon=True)):
        thread.start()
    try:
        while not has_ended.is_set():
            yield Wait(has_ended.is_set)
    finally:
        if process.poll() is None:
            kill_process_tree(process.pid, "TRT_TUI_MODEL", paths["model"])
        has_ended.wait()
        sys.stderr.write("".join(_read_end(folder / name, 1 << 16) for name in (OUTPUT_FILE, ERROR_OUTPUT_FILE)))
    exit_code, known_codes = process.returncode, (*rules.fail_codes, *rules.ignored_fail_codes)
    output_text, error_text = (_read_end(folder / name, MAX_OUTPUT_BYTES) for name in (OUTPUT_FILE, ERROR_OUTPUT_FILE))
    unstarted = _UNSTARTED_PROGRAM.search(error_text) if uses_shell else None
    if unstarted and exit_code in _UNSTARTED_CODES and exit_code not in known_codes:
        raise _not_started_error(unstarted[1], unstarted[0])
    return rules.judge(exit_code, output_text + error_text, bool(error_text) and can_hide_failure(command))


def _write_stream(stream: IO[bytes], path: Path) -> None:
    """Writes all output of a stream to a file.

    The command writes to a pipe and not to the file: a program such as ``tee /dev/stderr`` opens the file a second time
    and overwrites the output of the others.
    """
    with stream, open(path, "wb", buffering=0) as file:
        shutil.copyfileobj(stream, file)


def _not_started_error(program: str, cause: str) -> InputError:
    return InputError(f"the check command {program} does not start", cause,
                      "Name a program that can be executed, with its path if it is not on PATH.")


def shown_error_text(folder: Path) -> str:
    """Returns the last lines that a check has written to stderr; "" if there are none."""
    lines = _read_end(folder / ERROR_OUTPUT_FILE, 1 << 16).rstrip().splitlines()[-MAX_SHOWN_LINES:]
    return "\n".join(lines)[-MAX_SHOWN_CHARACTERS:]


def _read_end(path: Path, max_bytes: int) -> str:
    check_regular_file(path)  # the command may have put a pipe in its place
    with open(path, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - max_bytes))
        return stream.read().decode("utf-8", "replace")


def keep_artifacts(artifact_folder: Path, check_folder: Path, result: CheckResult, record: Mapping[str, Any]) -> None:
    """Copies the folder of a check to a new folder below ``good`` or ``bad``, with a JSON file that describes it.

    The folders are numbered from 1 across both. Folders of earlier searches stay, and the numbers continue.

    Args:
        record: The description, to which the number and the outcome are added.

    Raises:
        InputError: The folder cannot be written, or the check has left a pipe, a device or a socket in its folder.
    """
    outcome = "good" if result.passes else "bad"
    for path in check_folder.rglob("*"):
        if not (path.is_symlink() or path.is_dir()):
            check_regular_file(path)
    with convert_write_errors(artifact_folder):
        numbers = [int(path.name) for name in ("good", "bad") for path in (artifact_folder / name).glob("*")
                   if path.name.isdecimal()]
        number = max(numbers, default=0) + 1
        destination = artifact_folder / outcome / f"{number:04}"
        destination.parent.mkdir(parents=True, exist_ok=True)
        with fill_folder_atomically(destination) as folder:
            shutil.copytree(check_folder, folder, symlinks=True, dirs_exist_ok=True)
            text = json.dumps({
                "format": "trt-tui/check-iteration", "version": 1, "iteration": number, "outcome": outcome,
                "check": result.text, "exit_code": result.exit_code, **record
            }, indent=1)
            (folder / RECORD_FILE).write_text(text + "\n", encoding="utf-8")
