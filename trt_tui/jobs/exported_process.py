"""The process that executes an exported file. If ONNX Runtime crashes on the file, only this process ends.

The process receives an `ExportedRunRequest` and then feeds, each a mapping of arrays by input name. It answers each
message: with a `LoadedExport`, or with the outputs by name. If an error occurs, the answer is its text,
and the process ends.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from trt_tui.backends.onnxruntime_exported import ExportedFileRunner, LoadedExport
from trt_tui.errors import TrtTuiError
from trt_tui.jobs.child_exit import connect_to_parent


@dataclass(frozen=True)
class ExportedRunRequest:
    """A request to execute an exported file (`trt_tui.backends.onnxruntime_exported.ExportedFileRunner`).

    Attributes:
        names: The names of the requested outputs.
    """

    path: str
    names: tuple[str, ...]
    provider: str
    tf32: bool = False
    threads: int | None = None
    operators: tuple[str, ...] = ()


def main(argv: Sequence[str]) -> None:
    """Executes one exported file. The arguments are two file descriptors: of the pipe for messages, and of the pipe
    that ends this process with its parent."""
    with connect_to_parent(*map(int, argv)) as pipe, suppress(EOFError, BrokenPipeError):
        request = pipe.recv()
        try:
            file = ExportedFileRunner(request.path, request.provider, tf32=request.tf32, threads=request.threads,
                                      operators=request.operators)
            pipe.send(LoadedExport(file.options))
            while True:
                pipe.send(file.run(pipe.recv(), request.names))
        except TrtTuiError as error:
            pipe.send(": ".join(filter(None, (error.title, error.cause))))


if __name__ == "__main__":
    main(sys.argv[1:])
