"""The user's check command, which accepts or rejects a config."""

import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping

import numpy as np

from trt_tui.core.exporters.formats import write_export
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError
from trt_tui.files.scratch import create_scratch_folder
from trt_tui.jobs.steps import Steps, Wait


def parse_check_command(command: str) -> list[str]:
    """Returns a check command split into its arguments.

    Raises:
        InputError: The command is empty, or its quotes do not match.
    """
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise InputError(f"the check command {command!r} cannot be read", str(error), "Match its quotes.") from None
    if not arguments:
        raise InputError("the check command is empty", "", "Give a command, like 'python check.py {model} {outputs}'.")
    return arguments


def run_check_command(command: str, network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                      outputs: Mapping[str, np.ndarray], wake: Callable[[], None]) -> Steps[int]:
    """Runs the user's check command on a config and returns its exit code, as Polygraphy's ``debug --check`` does.

    In the command, ``{model}`` stands for the path of the lowered ONNX file, and ``{outputs}`` for that of an .npz file
    of ``outputs``. Both files are in a folder that is removed afterwards. The output of the command goes to the log. If
    the generator is closed, the command is killed.

    Args:
        wake: A function that another thread calls when the command has ended.

    Raises:
        InputError: The command does not start.
    """
    with create_scratch_folder() as folder:
        model, arrays = folder / "model.onnx", folder / "outputs.npz"
        write_export("onnx", model, network, config, ranges)
        np.savez(arrays, **outputs)  # type: ignore[arg-type]  # the stub takes names for ``allow_pickle`` too
        arguments = [
            word.replace("{model}", str(model)).replace("{outputs}", str(arrays))
            for word in parse_check_command(command)
        ]
        try:
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise InputError(f"the check command {arguments[0]} does not start", error.strerror or str(error),
                             "Name a program that can be run, with its path where it is not on PATH.") from None

        def wait_for_exit() -> None:
            process.wait()
            wake()

        threading.Thread(target=wait_for_exit, daemon=True).start()
        try:
            while process.poll() is None:
                yield Wait(lambda: process.poll() is not None)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return process.returncode
