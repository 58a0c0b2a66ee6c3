"""The streams stdout and stderr of the commands. A write error is reported once and stops nothing else.

If the reader of stdout has gone away (``| head``), no error is reported. If stderr cannot be written, only messages are
lost. Closed descriptors are opened on the null device, so that no file and no pipe gets their numbers.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from trt_tui.errors import InputError
from trt_tui.formatting import EscapingTextStream, escape_hidden_characters

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _StandardStream(io.FileIO):
    """A standard stream that accepts and drops all data after its first write error."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.is_broken = False

    def write(self, data: ReadableBuffer, /) -> int:
        if self.is_broken:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self.is_broken = True
            self.handle_write_error(error)
            return memoryview(data).nbytes

    def handle_write_error(self, error: OSError) -> None:
        """Handles the first write error of the stream. By default, the error is ignored."""


class _StandardOutput(_StandardStream):
    def handle_write_error(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            raise InputError(
                "stdout cannot be written",
                error.strerror or str(error),
                "Free some space, or redirect stdout elsewhere; the named files are written.",
            )


_OUTCOME_PATTERN = re.compile(r"\b(PASS|FAIL)(\??)(?=(, nothing in [A-Z0-9]+)?$)", re.M)
_OUTCOME_COLOURS = {"PASS": "green", "FAIL": "red"}


def print_report(text: str) -> None:
    """Prints a report on stdout. In a terminal, PASS and FAIL in its rows have colours, unless NO_COLOR is set."""
    stream = sys.stdout
    if (
        isinstance(stream, EscapingTextStream)
        and os.isatty(1)
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    ):
        stream.write_styled(f"{text}\n", _colour_outcome_words)
    else:
        print(text)


def print_messages(*lines: str) -> None:
    """Prints lines on stderr, with hidden characters escaped."""
    for line in lines:
        click.echo(escape_hidden_characters(line), err=True)


def _colour_outcome_words(text: str) -> str:
    return _OUTCOME_PATTERN.sub(
        lambda match: click.style(match[1] + match[2], fg=_OUTCOME_COLOURS[match[1]], bold=True), text
    )


@contextlib.contextmanager
def protect_standard_streams() -> Iterator[None]:
    """Replaces stdout and stderr inside a block by streams that report a write error once.

    Streams that other code has already replaced are left unchanged.
    """
    _reopen_closed_descriptors()
    old_streams = sys.stdout, sys.stderr
    if sys.stdout in (None, sys.__stdout__):
        sys.stdout = _open_text_stream(_StandardOutput(1), sys.stdout)
    if sys.stderr in (None, sys.__stderr__):
        sys.stderr = _open_text_stream(_StandardStream(2), sys.stderr)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, InputError, ValueError):
            sys.stdout.flush()
        sys.stdout, sys.stderr = old_streams


def _open_text_stream(stream: _StandardStream, replaced_stream: io.TextIOWrapper | None) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(stream),
        getattr(replaced_stream, "encoding", "utf-8"),
        "backslashreplace",
        line_buffering=True,
    )


def _reopen_closed_descriptors() -> None:
    """Opens the descriptors 0 to 2 if they are closed. Writing to a stdout that was closed still fails."""
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            else:
                os.set_inheritable(descriptor, True)
