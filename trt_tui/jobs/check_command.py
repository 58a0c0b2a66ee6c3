"""The user's command that judges configs."""

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
    """The words of a check command.

    Raises:
        InputError: it is empty, or its quotes do not match.
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
    """Runs the user's command on a config, as Polygraphy's ``debug --check`` does; returns its exit code.

    ``{model}`` in it stands for the lowered ONNX file, ``{outputs}`` for an .npz of ``outputs``; both lie in a folder
    that is removed afterwards. What it prints goes to the log. When the generator is closed, the command is killed.

    Args:
        wake: Called from a thread when the command has ended.

    Raises:
        InputError: it does not start.
    """
    with create_scratch_folder() as folder:
        model, arrays = folder / "model.onnx", folder / "outputs.npz"
        write_export("onnx", model, network, config, ranges)
        np.savez(arrays, **outputs)  # type: ignore[arg-type]  # its stub takes names for the option allow_pickle too
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
