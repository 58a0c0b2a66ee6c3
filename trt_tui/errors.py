"""The base class of all errors that users see, its subclasses, and the exit codes of the command line."""

from __future__ import annotations

import errno
import re
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every ``trt-tui`` command."""

    DONE = 0
    TOLERANCE_NOT_MET = 1
    BAD_INPUT = 2
    BACKEND_UNAVAILABLE = 3
    CANCELLED = 130


class TrtTuiError(Exception):
    """An error that the user can correct.

    Args:
        title: The fault in one line. The title names the file, tensor, layer or option.
        cause: The reason in a sentence, or the message of a library; "" if the title says everything.
        next_step: The next step of the user in a sentence; "" if there is none.

    Attributes:
        raw_message: The message of a library whose short form is the cause; "" if the cause is complete.
    """

    exit_code: ExitCode = ExitCode.BAD_INPUT
    raw_message: str = ""

    def __init__(self, title: str, cause: str = "", next_step: str = "") -> None:
        super().__init__(title)
        self.title = title
        self.cause = cause
        self.next_step = next_step

    def __str__(self) -> str:
        return "\n".join(part for part in (self.title, self.cause, self.next_step) if part)

    def __reduce__(self) -> tuple[type[TrtTuiError], tuple[str, str, str], dict[str, object]]:
        return (type(self), (self.title, self.cause, self.next_step), self.__dict__)


class InputError(TrtTuiError):
    """An error in a file, an option or data from the user."""


class NotReadyError(InputError):
    """A request that is possible only after a running job has ended. Nothing is wrong with the input."""


class FileReplacedError(InputError):
    """An input file was replaced after it was read.

    Attributes:
        files: The names of the replaced files, without their folders.
    """

    files: tuple[str, ...] = ()


class BackendUnavailableError(TrtTuiError):
    """A backend that the command needs is not installed or does not work on this machine."""

    exit_code = ExitCode.BACKEND_UNAVAILABLE

    def __init__(self, title: str, cause: str = "", next_step: str = "", *, raw_message: str = "") -> None:
        super().__init__(title, cause, next_step)
        self.raw_message = raw_message


class OutOfMemoryError(InputError):
    """A failed memory allocation. The same work with fewer samples or a smaller batch may still fit."""


class RunFailedError(TrtTuiError):
    """A network failed during execution, after it was loaded. The cause was not a lack of memory."""


class CancelledError(TrtTuiError):
    """The user stopped the job."""

    exit_code = ExitCode.CANCELLED


def exception_text(error: BaseException) -> str:
    """Returns the text of an exception; "" if its own ``__str__`` raises an exception."""
    try:
        return str(error)
    except Exception:
        return ""


_REMEDIES = {
    errno.ENOSPC: "Free some space there; temporary files go to TMPDIR.",
    errno.EDQUOT: "Free some space there; temporary files go to TMPDIR.",
    errno.EFBIG: "Files may not grow further here (ulimit -f); temporary files go to TMPDIR.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ENOMEM: "Use fewer samples or a smaller batch (--batch).",
    errno.EAGAIN: "Raise the limit of processes (ulimit -u).",
}


def convert_os_error(error: OSError) -> InputError:
    """Returns the `InputError` for an error of the operating system for which the program has no more specific error."""
    paths = ", ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    cause = error.strerror or str(error)
    return InputError(
        f"the system refused: {cause}",
        paths and f"at {paths}",
        _REMEDIES.get(error.errno or 0, "Check that file or folder, and its permissions."),
    )


def wrong_shape_error(tensor: str, declared_shape: str, computed_shape: str) -> InputError:
    """Returns the error for a tensor whose declared shape in the file differs from its shape during execution."""
    return InputError(
        f"the network declares a wrong shape for {tensor}",
        f"it declares {declared_shape or 'a single value'}, and a run on these samples computes "
        f"{computed_shape or 'a single value'}",
        "Give --batch 1, correct the declared shape, or export the network again with that dimension open.",
    )


FAILED_ALLOCATION = re.compile(
    r"bad_alloc|bad allocation|failed to allocate (?:memory|\d)|cannot allocate memory|"
    r"out of memory|is smaller than requested bytes|CUDA failure 2\b|"
    r"cudaErrorMemoryAllocation|_ALLOC(?:ATION)?_FAILED|resource allocation failed|"
    r"expr=cu(?:blas|blasLt|dnn)Create\(",
    re.I,
)
"""The pattern of library messages after a failed allocation.

If a GPU is nearly full, already the creation of a library handle fails (cuBLAS, cuDNN).
"""


def convert_memory_error(error: object) -> OutOfMemoryError:
    """Returns the `OutOfMemoryError` for a failed allocation.

    Args:
        error: The message of the library, or its exception.
    """
    return OutOfMemoryError("out of memory", str(error), "Use fewer samples (--samples) or a smaller batch (--batch).")
