"""The process that executes an exported file. If ONNX Runtime crashes on the file, only this process ends.

The process receives a function that loads the file, with the names of the requested outputs, and then feeds, each a
mapping of arrays by input name. It answers the first message with `ExportedFileRunner.options`, and each feed with the
outputs by name. If an error occurs, the answer is the `TrtTuiError`, and the process ends.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress

from trt_tui.errors import TrtTuiError
from trt_tui.jobs.child_exit import connect_to_parent


def main(argv: Sequence[str]) -> None:
    """Executes one exported file. The arguments are two file descriptors: of the pipe for messages, and of the pipe
    that ends this process with its parent."""
    with connect_to_parent(*map(int, argv)) as pipe, suppress(EOFError, BrokenPipeError):
        load_file, names = pipe.recv()
        try:
            file = load_file()
            pipe.send(file.options)
            while True:
                pipe.send(file.run(pipe.recv(), names))
        except TrtTuiError as error:
            pipe.send(error)


if __name__ == "__main__":
    main(sys.argv[1:])
