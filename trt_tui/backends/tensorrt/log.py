"""What TensorRT and Polygraphy print."""

from __future__ import annotations

import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trt_tui.core.engines.remarks import LAYERNORMS

Message = Callable[[str, str], None]
"""Called with the level ("error", "warning", "info") and the text of what is printed."""

Printed = Sequence[tuple[str, str]]
"""Levels and texts of what was printed, in order."""

_DETAILS = 400
"""How many of the verbose messages are kept."""

_LEVELS = {"INTERNAL_ERROR": "error", "ERROR": "error", "WARNING": "warning", "INFO": "info"}
_CONCLUSIONS = ("Invalid Engine", "Invalid Context", "Invalid network", "Could not deserialize engine")
"""How Polygraphy's own summaries begin, after TensorRT has said what is wrong."""


class Log(logging.Handler):
    """Takes what TensorRT and Polygraphy print, and passes it to those who collect it at the moment.

    Of TensorRT's many verbose messages the last ones are kept: if a build fails without naming a layer, they tell which
    layer was worked on.
    """

    _one: Log | None = None

    @classmethod
    def installed(cls) -> Log:
        """The log of this process; it replaces Polygraphy's printing."""
        if cls._one is None:
            from polygraphy.logger import G_LOGGER

            cls._one = cls()
            G_LOGGER.use_python_logging_system = True
            G_LOGGER.colors = False
            G_LOGGER.module_severity = G_LOGGER.VERBOSE
            logger = logging.getLogger("Polygraphy")
            logger.propagate = False
            logger.setLevel(1)
            logger.addHandler(cls._one)
        return cls._one

    def for_tensorrt(self, trt: Any) -> Any:
        """The logger that a TensorRT package is given; always the same one, since the library may hold on to it."""
        if trt.__name__ not in self._native:
            log = self

            class Logger(trt.ILogger):  # type: ignore[misc]
                def __init__(self) -> None:
                    trt.ILogger.__init__(self)
                    self.last = ""

                def log(self, severity: Any, message: str) -> None:
                    if severity == trt.Logger.VERBOSE:
                        log.details.append(message)
                        if self.last.rstrip(".") == LAYERNORMS:
                            log.take("warning", f"{LAYERNORMS}: {message}")
                            self.last = ""
                    else:
                        self.last = message
                        log.take(_LEVELS.get(severity.name, "info"), message)

            self._native[trt.__name__] = Logger()
        return self._native[trt.__name__]

    def __init__(self) -> None:
        super().__init__(1)
        self.details: deque[str] = deque(maxlen=_DETAILS)
        self._native: dict[str, Any] = {}
        self._collectors: list[tuple[list[tuple[str, str]], Message | None]] = []

    @contextlib.contextmanager
    def collecting(self, message: Message | None) -> Iterator[list[tuple[str, str]]]:
        """Collects (level, text) while the block runs, and passes each on."""
        said: list[tuple[str, str]] = []
        entry = (said, message)
        self._collectors = [*self._collectors, entry]
        try:
            yield said
        finally:
            self._collectors = [one for one in self._collectors if one is not entry]

    def take(self, level: str, text: str) -> None:
        """Hands a message to all who collect."""
        for said, message in self._collectors:
            said.append((level, text))
            if message is not None:
                message(level, text)

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a message of Polygraphy, without its colours and marks."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage()).strip()
        level = "error" if record.levelno >= logging.ERROR else (
            "warning" if record.levelno >= logging.WARNING else "info")
        self.take(level, re.sub(r"^\[\S\]\s*", "", text))


def printed_errors(log: Printed, aside: re.Pattern[str] | None = None) -> str:
    """The errors that were printed, each once, without Polygraphy's own summary if TensorRT gave a reason.

    Args:
        aside: What counts only where nothing else was printed.
    """
    lines = list(dict.fromkeys(text for level, text in log if level == "error"))
    told = [line for line in lines if not line.startswith(_CONCLUSIONS)]
    first = [line for line in told if aside is None or not aside.search(line)]
    return "\n".join(first or told or lines)
