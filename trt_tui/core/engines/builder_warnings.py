"""Warnings of TensorRT's parser and builder in a short form.

The warnings are recognised by their texts in TensorRT 8.5 to 10 (NVIDIA/TensorRT issues 2462, 3692, 3748;
Linaom1214/TensorRT-For-YOLO-Series issue 56) and in TensorRT-RTX 1.7. All others stay in the log.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from trt_tui.formatting import counted_noun_text

LAYERNORM_WARNING_PREFIX = "Detected layernorm nodes in FP16"
"""Beginning of the warning about LayerNorms in FP16. TensorRT 8 names them in the warning, 9 and later in the next
verbose message."""

_KNOWN_WARNINGS = (
    (re.compile(r"Weights \[name=(?P<named>.*)\] had the following issues when converted to (?P<type>\w+):[\s-]*"
                r"(?P<what>.*?)\.?$", re.S), "{named} in {type}: {what}"),
    (re.compile(r"Missing scale and zero-point for tensor (?P<named>.*), expect fall back"),
     "no range for {named}: its producer and consumers fall back from INT8"),
    (re.compile(r"No implementation of layer (?P<named>.*) obeys the requested constraints"),
     "no implementation of {named} has its precision: TensorRT took the fastest"),
    (re.compile(LAYERNORM_WARNING_PREFIX + r"[.:]\s*(?P<named>.+)", re.S),
     "LayerNorm in FP16, which may overflow after an attention: {named}"),
    (re.compile(r"^(?P<named>.+): IShuffleLayer with zeroIsPlaceHolder=true has reshape dimension"),
     "{named} reshapes to a computed size that might be 0: resolved at run time, it may take much memory"),
)
_SOURCE_LOCATION_PATTERN = re.compile(r"^\w+\.(?:cpp|h|cu):\d+:\s*")

MAX_LISTED_WARNINGS = 5
"""The maximum number of listed warnings of the parser and the builder in one run."""

_MAX_NAME_CHARACTERS = 120
"""The maximum number of characters of the names in a warning."""


def list_known_warnings(messages: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the short forms of the recognised warnings among messages, each once.

    Args:
        messages: Levels and texts of the messages, in order.
    """
    warnings: dict[str, None] = {}
    for text in _join_continued_warnings(messages):
        for pattern, template in _KNOWN_WARNINGS:
            if (match := pattern.search(text)) is not None:
                parts = match.groupdict()
                if len(parts["named"]) > _MAX_NAME_CHARACTERS:
                    parts["named"] = f"{parts['named'][:_MAX_NAME_CHARACTERS - 1]}…"
                warnings[template.format_map(parts)] = None
                break
    return tuple(warnings)


def limited_list_lines(texts: Sequence[str], noun: str = "warning") -> list[str]:
    """Returns the first of several texts as indented lines, and the number of the others.

    Args:
        noun: The word for one of the texts.
    """
    more_count = len(texts) - MAX_LISTED_WARNINGS
    return [*(f"  {text}" for text in texts[:MAX_LISTED_WARNINGS]),
            *([f"  and {counted_noun_text(more_count, f'more {noun}')}"] if more_count > 0 else [])]


def short_message_lines(messages: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the short form of the messages of one build: the recognised warnings, and the number of all errors and
    warnings.

    Args:
        messages: Levels and texts of the messages, in order.
    """
    warnings = limited_list_lines(list_known_warnings(messages))
    counts = [(len({text for severity, text in messages if severity == level}), level)
              for level in ("error", "warning")]
    printed_text = " and ".join(counted_noun_text(count, level) for count, level in counts if count)
    return [*(["warnings of parser and builder:", *warnings] if warnings else []),
            *([f"TensorRT printed {printed_text} during the build; --verbose shows them."] if printed_text else [])]


def _join_continued_warnings(messages: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields the texts of warnings. A warning that continues in the next message is joined with it."""
    pending_text = ""
    for severity, text in messages:
        text = _SOURCE_LOCATION_PATTERN.sub("", text.strip())
        if severity == "warning" and pending_text and text.startswith("-"):
            pending_text = f"{pending_text} {text}"
            continue
        if pending_text:
            yield pending_text
        pending_text = text if severity == "warning" else ""
    if pending_text:
        yield pending_text
