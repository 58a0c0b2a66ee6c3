"""The process that executes an exported file: ONNX Runtime may crash on one, and takes this process alone with it.

It is sent an `Execution`, then feeds, each a mapping of arrays by input name. It answers each message: with None once
the file is loaded, with the outputs by name, or with the reason why there are none, a text, after which it ends.
"""

import faulthandler
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from trt_tui.backends.onnxruntime_exported import ExportedFile
from trt_tui.errors import TrtTuiError
from trt_tui.jobs.lifeline import tie


@dataclass(frozen=True)
class Execution:
    """A request to execute a file; see `trt_tui.backends.onnxruntime_exported.ExportedFile`.

    Attributes:
        names: The outputs that are wanted.
    """

    path: str
    names: tuple[str, ...]
    provider: str
    tf32: bool = False
    threads: int | None = None
    operators: tuple[str, ...] = ()


def main(argv: Sequence[str]) -> None:
    """Serves one execution on the file descriptor of a pipe, tied to that of a lifeline."""
    descriptor, lifeline = (int(text) for text in argv)
    tie(lifeline)
    faulthandler.enable(sys.stderr, all_threads=False)
    with Connection(descriptor) as pipe, suppress(EOFError, BrokenPipeError):
        asked = pipe.recv()
        try:
            file = ExportedFile(asked.path, asked.provider, tf32=asked.tf32, threads=asked.threads,
                                operators=asked.operators)
            pipe.send(None)
            while True:
                pipe.send(file.run(pipe.recv(), asked.names))
        except TrtTuiError as error:
            pipe.send(": ".join(filter(None, (error.title, error.cause))))


if __name__ == "__main__":
    main(sys.argv[1:])
