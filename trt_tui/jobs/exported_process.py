"""The process that executes an exported file: ONNX Runtime may crash on one, and takes this process alone with it.

It is sent an `ExportedRunRequest`, then feeds, each a mapping of arrays by input name. It answers each message: with
None once the file is loaded, with the outputs by name, or with the reason why there are none, a text, after which it
ends.
"""

import faulthandler
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from trt_tui.backends.onnxruntime_exported import ExportedFileRunner
from trt_tui.errors import TrtTuiError
from trt_tui.jobs.child_exit import tie_process_to_parent


@dataclass(frozen=True)
class ExportedRunRequest:
    """A request to execute a file; see `trt_tui.backends.onnxruntime_exported.ExportedFileRunner`.

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
    tie_process_to_parent(lifeline)
    faulthandler.enable(sys.stderr, all_threads=False)
    with Connection(descriptor) as pipe, suppress(EOFError, BrokenPipeError):
        request = pipe.recv()
        try:
            file = ExportedFileRunner(request.path, request.provider, tf32=request.tf32, threads=request.threads,
                                      operators=request.operators)
            pipe.send(None)
            while True:
                pipe.send(file.run(pipe.recv(), request.names))
        except TrtTuiError as error:
            pipe.send(": ".join(filter(None, (error.title, error.cause))))


if __name__ == "__main__":
    main(sys.argv[1:])
