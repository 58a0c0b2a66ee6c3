"""The one exception type that users see, and the exit codes of the command line."""

from __future__ import annotations

import errno
import re
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every ``trt-tui`` command."""

    DONE = 0
    TOLERANCE_NOT_MET = 1
    BAD_INPUT = 2
    BACKEND_UNAVAILABLE = 3
    CANCELLED = 130


class TrtTuiError(Exception):
    """An error a user can act on.

    Args:
        title: What went wrong, in one line, naming the thing (file, tensor, layer, option).
        cause: Why, in a sentence; may carry the message of the library that refused.
        next_step: What to do now, in a sentence.
    """

    exit_code: ExitCode = ExitCode.BAD_INPUT

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
    """A file, an option or data that the user gave cannot be used."""


class NotReadyError(InputError):
    """What is asked for can be done once something that goes on has ended; nothing is wrong."""


class BackendUnavailableError(TrtTuiError):
    """A backend that the command needs is not installed or does not work on this machine."""

    exit_code = ExitCode.BACKEND_UNAVAILABLE


class OutOfMemoryError(InputError):
    """An allocation failed; less of the same may still fit."""


class RunFailedError(TrtTuiError):
    """A network that was loaded failed while it was executed; memory was not the cause."""


class CancelledError(TrtTuiError):
    """The user stopped the job."""

    exit_code = ExitCode.CANCELLED


def exception_text(error: BaseException) -> str:
    """The text of an exception; "" if its ``__str__`` raises, as that of a user's own class may."""
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
    """The error for what the operating system has refused, if nothing more specific is known."""
    paths = ", ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    cause = error.strerror or str(error)
    return InputError(f"the system refused: {cause}", paths and f"at {paths}",
                      _REMEDIES.get(error.errno or 0, "Check that file or folder, and its permissions."))


def wrong_shape_error(tensor: str, declared_shape: str, computed_shape: str) -> InputError:
    """The error for a tensor that a file declares with another shape than a run gives it, both as texts."""
    return InputError(f"the network declares a wrong shape for {tensor}",
                      f"it declares {declared_shape}, and a run on these samples computes {computed_shape}",
                      "Correct the declared shape, or export the network again with that "
                      "dimension open.")


FAILED_ALLOCATION = re.compile(r"bad_alloc|bad allocation|failed to allocate (?:memory|\d)|cannot allocate memory|"
                               r"out of memory|is smaller than requested bytes|CUDA failure 2\b|"
                               r"cudaErrorMemoryAllocation|_ALLOC(?:ATION)?_FAILED|resource allocation failed|"
                               r"expr=cu(?:blas|blasLt|dnn)Create\(", re.I)
"""What libraries say where an allocation has failed: of a GPU that is nearly full already a library's handle cannot be
made."""


def convert_memory_error(error: object) -> OutOfMemoryError:
    """The error for an allocation that failed."""
    return OutOfMemoryError("out of memory", str(error), "Use fewer samples (--samples) or a smaller batch (--batch).")
