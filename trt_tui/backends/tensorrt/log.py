"""The log of TensorRT and Polygraphy messages in this process."""

from __future__ import annotations

import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trt_tui.core.engines.builder_warnings import LAYERNORM_WARNING_PREFIX
from trt_tui.core.engines.inspector import LISTING_HEADING

MessageCallback = Callable[[str, str], None]
"""A function that is called with the level ("error", "warning", "info") and the text of each printed message."""

PrintedMessages = Sequence[tuple[str, str]]
"""The levels and texts of printed messages, in order."""

_MAX_DETAIL_MESSAGES = 400
"""The maximum number of verbose TensorRT messages that are kept."""

_LEVELS = {"INTERNAL_ERROR": "error", "ERROR": "error", "WARNING": "warning", "INFO": "info"}
_SUMMARY_PREFIXES = ("Invalid Engine", "Invalid Context", "Invalid network", "Could not deserialize engine")
"""The first words of Polygraphy's own error summaries, which follow the actual message of TensorRT."""


class TensorRTLog(logging.Handler):
    """The log handler that receives the messages of TensorRT and Polygraphy and passes them to the current collectors.

    The last verbose messages of TensorRT are kept. If a build fails without naming a layer, they show the layer that
    the builder was processing. So is the last list of engine layers that TensorRT-RTX has printed.
    """

    _instance: TensorRTLog | None = None

    @classmethod
    def get_process_log(cls) -> TensorRTLog:
        """Returns the log of this process, which replaces the output of Polygraphy."""
        if cls._instance is None:
            from polygraphy.logger import G_LOGGER

            cls._instance = cls()
            G_LOGGER.use_python_logging_system = True
            G_LOGGER.colors = False
            G_LOGGER.module_severity = G_LOGGER.VERBOSE
            logger = logging.getLogger("Polygraphy")
            logger.propagate = False
            logger.setLevel(1)
            logger.addHandler(cls._instance)
        return cls._instance

    def get_tensorrt_logger(self, trt: Any) -> Any:
        """Returns the logger for a TensorRT package. It is always the same object, since the library may keep a
        reference to it."""
        if trt.__name__ not in self._tensorrt_loggers:
            log = self

            class Logger(trt.ILogger):  # type: ignore[misc]
                def __init__(self) -> None:
                    trt.ILogger.__init__(self)
                    self.last = ""

                def log(self, severity: Any, message: str) -> None:
                    if severity == trt.Logger.VERBOSE:
                        (log.listings if message.startswith(LISTING_HEADING) else log.details).append(message)
                        if self.last.rstrip(".") == LAYERNORM_WARNING_PREFIX:
                            log.dispatch_message("warning", f"{LAYERNORM_WARNING_PREFIX}: {message}")
                            self.last = ""
                    else:
                        self.last = message
                        log.dispatch_message(_LEVELS.get(severity.name, "info"), message)

            self._tensorrt_loggers[trt.__name__] = Logger()
        return self._tensorrt_loggers[trt.__name__]

    def __init__(self) -> None:
        super().__init__(1)
        self.details: deque[str] = deque(maxlen=_MAX_DETAIL_MESSAGES)
        self.listings: deque[str] = deque(maxlen=1)
        self._tensorrt_loggers: dict[str, Any] = {}
        self._collectors: list[tuple[list[tuple[str, str]], MessageCallback | None]] = []

    @contextlib.contextmanager
    def collect_messages(self, on_message: MessageCallback | None) -> Iterator[list[tuple[str, str]]]:
        """Collects the level and text of each message during the ``with`` block, and calls ``on_message`` for each."""
        messages: list[tuple[str, str]] = []
        entry = (messages, on_message)
        self._collectors = [*self._collectors, entry]
        try:
            yield messages
        finally:
            self._collectors = [collector for collector in self._collectors if collector is not entry]

    def dispatch_message(self, level: str, text: str) -> None:
        for messages, on_message in self._collectors:
            messages.append((level, text))
            if on_message is not None:
                on_message(level, text)

    def emit(self, record: logging.LogRecord) -> None:
        """Passes a message of Polygraphy, without its colours and marks, to all current collectors."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage()).strip()
        level = "error" if record.levelno >= logging.ERROR else (
            "warning" if record.levelno >= logging.WARNING else "info")
        self.dispatch_message(level, re.sub(r"^\[\S\]\s*", "", text))


def printed_error_text(messages: PrintedMessages, fallback_pattern: re.Pattern[str] | None = None) -> str:
    """Returns the printed error messages, each once. Polygraphy's summary is left out if TensorRT gave a reason.

    Args:
        fallback_pattern: A pattern of errors that are used only if no other error was printed.
    """
    lines = list(dict.fromkeys(text for level, text in messages if level == "error"))
    reasons = [line for line in lines if not line.startswith(_SUMMARY_PREFIXES)]
    primary_reasons = [line for line in reasons if fallback_pattern is None or not fallback_pattern.search(line)]
    return "\n".join(primary_reasons or reasons or lines)
