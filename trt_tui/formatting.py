"""What a person reads, on the screen, on stdout and in Markdown alike.

Text from files made safe to show, what things are called, figures with their units, tables of text.

``~`` before a figure says that it is simulated; figures of engines carry no mark.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO
from unicodedata import category

from rich.cells import cell_len

_HIDDEN_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Unicode's categories of what is not drawn and may steer what is: C0, C1 and DEL; bidi, zero-width and other format
characters; lone surrogates; line and paragraph separators."""


def escape_hidden_characters(text: object, keep_line_breaks: bool = False) -> str:
    r"""The text with every character that would steer a terminal or hide in it written out, as ``\x1b`` or ``\u202e``.

    What this gives can be shown anywhere, encoded as UTF-8, and given to this again, which changes nothing more. Names
    are compared and looked up as they are, and shown as this.

    Args:
        text: From a network, data, a config, a script, a session, a library or the command line.
        keep_line_breaks: Keep line breaks, and write tabs as blanks: for texts of several lines. A name has one line.
    """
    text = str(text)
    if text.isprintable():
        return text
    if keep_line_breaks:
        text = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(_escape_character(character, keep_line_breaks) for character in text)


def escape_hidden_in_json(text: str) -> str:
    """JSON that means the same, every hidden character of its strings as JSON's own escape; it has lines."""
    if text.isascii():
        return text
    return "".join(
        json.dumps(character)[1:-1] if character != "\n" and is_hidden_character(character) else character
        for character in text)


def cell_width(text: str) -> int:
    """How many cells of a terminal a visible text takes: two for each of 漢字, none for a combining accent."""
    return cell_len(text)


def pad_right(text: str, width: int) -> str:
    """The text with blanks after it up to a width in cells."""
    return text + " " * (width - cell_width(text))


def pad_left(text: str, width: int) -> str:
    """The text with blanks before it up to a width in cells."""
    return " " * (width - cell_width(text)) + text


def take_first_cells(text: str, width: int) -> str:
    """As much of a visible text as fits into a width in cells, from its beginning."""
    if text.isascii():
        return text[:max(0, width)]
    kept_count, used = 0, 0
    for character in text[:max(0, width) * 8]:  # more than combining marks make of a name
        used += cell_len(character)
        if used > width:
            break
        kept_count += 1
    return text[:kept_count]


def take_last_cells(text: str, width: int) -> str:
    """As much of a visible text as fits into a width in cells, up to its end."""
    if text.isascii():
        return text[max(0, len(text) - max(0, width)):]
    kept_count, used = 0, 0
    for character in reversed(text[-max(1, width) * 8:]):
        used += cell_len(character)
        if used > width:
            break
        kept_count += 1
    return text[len(text) - kept_count:]


def is_hidden_character(character: str) -> bool:
    """Whether `escape_hidden_characters` writes a character out."""
    return category(character) in _HIDDEN_CATEGORIES


def _escape_character(character: str, keep_line_breaks: bool) -> str:
    if not is_hidden_character(character) or keep_line_breaks and character == "\n":
        return character
    return character.encode("unicode_escape").decode("ascii")


MIN_LIKENESS, MIN_LIKENESS_SHORT = 0.65, 0.5
"""The similarities (0 to 1) from which two names count as spelled alike; the second is of names of up to 3 letters."""


# -- what things are called -------------------------------------------------------------------------------------------

FP32_TITLE = "FP32"
"""The network in FP32, where that is no more than a run."""

RUN_TITLES = {"fp16": "FP16", "int8": "INT8", "config": "config"}
"""The runs of a comparison, by their keys."""

_BACKENDS = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX", "onnxruntime": "ONNX Runtime"}


EXPORTED = "exported"
"""The key of the run of a file's own network as it is exported, where that cannot be as the file is."""


EXPORTED_NETWORK = "exported network"
"""The title of a run that executes the exported file of a config."""

_EXECUTED_SUFFIX = "-exported-network"
"""Behind the key of a run: the execution of its exported file."""


def executed_run_key(run: str) -> str:
    """Returns the key of the execution of a run's exported file: ``config-exported-network``."""
    return f"{run}{_EXECUTED_SUFFIX}"


def run_title(run: str, is_file_precision: bool = False) -> str:
    """What a run is called in a table: ``INT8``, and for a config that is a file's own ``as in the file``."""
    if run == EXPORTED:
        return "as exported"
    if run.endswith(_EXECUTED_SUFFIX):
        return f"{run_name_in_sentence(run.removesuffix(_EXECUTED_SUFFIX), is_file_precision)}, {EXPORTED_NETWORK}"
    return "as in the file" if run == "config" and is_file_precision else RUN_TITLES.get(run, run)


def run_name_in_sentence(run: str, is_file_precision: bool = False) -> str:
    """The same within a sentence: ``the file``."""
    return "the file" if run == "config" and is_file_precision else run_title(run)


def engine_title(run: str, is_file_precision: bool = False) -> str:
    """What the engine of a run is called: ``INT8 engine``."""
    if run == "config" and is_file_precision:
        return "file engine"
    return f"{RUN_TITLES.get(run, run.upper())} engine"


def builder_title(builder_name: str, version: str) -> str:
    """What a backend that builds is called: ``TensorRT 8.6.1``."""
    return f"{_BACKENDS.get(builder_name, builder_name)} {version}"


def builder_device_text(builder: str, device: str) -> str:
    """Returns the builder of an engine with its GPU: ``TensorRT 8.6.1, H200``.

    Args:
        builder: As `builder_title` writes it.
        device: The GPU's name, "" if there is none.
    """
    return ", ".join(filter(None, (builder, device.removeprefix("NVIDIA ").removeprefix("GeForce "))))


# -- figures ----------------------------------------------------------------------------------------------------------

SIMULATED_MARK = "~"
NOT_MEASURED = "–"
"""Stands where nothing was measured."""


def number_text(value: float | None, digits: int = 3) -> str:
    """A figure with so many digits, without a leading zero where it is below 1."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e5:
        text = f"{value:.2g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    else:
        integer_digits = len(str(int(abs(value))))
        text = f"{value:.{max(0, digits - (integer_digits if abs(value) >= 1 else 0))}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 and text.lstrip("-").startswith("0.") else text


def shorten_number_in_text(text: str, width: int) -> str:
    """Returns a text with a number that fits into a width, with fewer digits if needed; an ellipsis if none fits."""
    if cell_width(text) <= width:
        return text
    match = re.fullmatch(r"([^\d.]*?)(-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?)(.*)", text)
    if match is not None:
        mark, value, suffix = match[1], float(match[2]), match[3]
        for digits in (4, 3, 2, 1):
            whole = f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else ""
            power = re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.{digits - 1}e}")
            for short in filter(None, (whole, number_text(value, digits), power)):
                if cell_width(mark + short + suffix) <= width:
                    return mark + short + suffix
    return "…"[:max(0, width)]


def decibels_text(sqnr_db: float | None, *, exact: bool = False, nan: int = 0, inf: int = 0,
                  mark: str = SIMULATED_MARK) -> str:
    """An SQNR in dB: ``~12.3`` simulated, ``12.3`` as built, or ``exact``, ``NaN``, ``Inf``, a dash for none.

    Args:
        exact: The error is zero.
        nan, inf: Elements that are NaN or infinite where the reference is not.
        mark: Stands before the figure.
    """
    if nan or inf:
        return "NaN" if nan else "Inf"
    if exact:
        return "exact"
    return NOT_MEASURED if sqnr_db is None else f"{mark}{sqnr_db:.1f}"


def mark_figures_as_simulated(figures_text: str) -> str:
    """Figures in words, each marked as simulated: ``cosine ~0.99903, ~26.3 dB``; other words stay as they are."""
    return re.sub(r"(^|, )((?:\S+ )?)(?=-?\.?\d)", rf"\1\2{SIMULATED_MARK}", figures_text)


def add_decibel_unit(decibel_text: str) -> str:
    """Decibels as text with their unit; words such as ``exact`` have none."""
    return f"{decibel_text} dB" if decibel_text[-1:].isdigit() else decibel_text


def worst_sample_text(sample_index: int, sqnr_db: float | None, mark: str = SIMULATED_MARK) -> str:
    """The judged sample of lowest SQNR and that SQNR: ``~8.1 #17``."""
    return f"{decibels_text(sqnr_db, nan=sqnr_db is None, mark=mark)} #{sample_index}"


def engine_gap_text(gap_db: float | None) -> str:
    """By how much an engine is worse than its simulation; None: it is not finite where that is."""
    return f"{gap_db:.1f} dB worse than simulated" if gap_db is not None else "NaN or Inf that were not simulated"


def percent_text(share: float, mark: str = "") -> str:
    """A share of a whole such as ``52%``, ``5%``, ``.4%``; ``·`` for one that is next to nothing, a dash for none."""
    if not math.isfinite(share):
        return NOT_MEASURED
    if abs(share) < 0.002:
        return "·"
    if abs(share) < 0.0095:
        return f"{mark}{'-' if share < 0 else ''}.{round(abs(share) * 1000)}%"
    return f"{mark}{100 * share:.0f}%"


def percent_with_margin_text(share: float, margin: float | None, mark: str = "") -> str:
    """A share of a whole with how far it may be off, such as ``~52% ±3``; without a margin as `percent_text`."""
    figure = percent_text(share, mark)
    if margin is None or not math.isfinite(share):
        return figure
    points = 100 * margin
    return f"{figure} ±{points:.0f}" if points >= 0.95 else f"{figure} ±.{max(1, round(10 * points))}"


def agreement_text(share: float, mark: str = "") -> str:
    """How many of the samples agree: ``97.5%``."""
    return f"{mark}{100 * share:.1f}%"


def mismatch_text(share: float, mark: str = "") -> str:
    """How many of an integer output's elements differ: ``0.12%``."""
    return f"{mark}{100 * share:.3g}%"


def cosine_text(value: float | None, mark: str = "") -> str:
    """A cosine similarity: ``0.99987``."""
    return NOT_MEASURED if value is None else f"{mark}{value:.5f}"


def metric_text(value: float | None, mark: str = "") -> str:
    """A figure of a user's metric, four digits of it."""
    return NOT_MEASURED if value is None else f"{mark}{number_text(value, 4)}"


def layer_share_text(layer_count: int, time_share: float | None) -> str:
    """How many layers, and their share of the time where it was measured: ``12, 30%``."""
    return str(layer_count) if time_share is None else f"{layer_count}, {percent_text(time_share)}"


def milliseconds_text(ms: float) -> str:
    """A latency with its unit: ``3.70 ms``."""
    return f"{number_text(ms)} ms"


def output_variation_text(variation_db: float) -> str:
    """How much an output varies between samples: ``-155 dB of its energy``, or ``none``."""
    return f"{variation_db:.0f} dB of its energy" if math.isfinite(variation_db) else "none"


def megabytes_text(byte_count: float) -> str:
    """Bytes in MB (10^6), without the unit: ``28.4``."""
    return f"{byte_count / 1e6:.1f}"


def byte_size_text(byte_count: float) -> str:
    """Bytes with their unit: ``28.4 MB``, and ``2.1 GB`` (10^9) from there on."""
    return f"{megabytes_text(byte_count)} MB" if byte_count < 1e9 else f"{byte_count / 1e9:.1f} GB"


def duration_text(seconds: float) -> str:
    """A time as a person says it: ``4.2 s``, ``37 s``, ``3 min 05 s``, ``1 h 20 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def elapsed_text(seconds: float) -> str:
    """A time that goes on, without tenths that would flicker: ``4 s``, ``3 min 05 s``."""
    return f"{seconds:.0f} s" if seconds < 10 else duration_text(seconds)


def name_list_text(names: Sequence[str], max_count: int = 5) -> str:
    """The first ``max_count`` names, and how many more there are: "conv1, conv2 and 3 more"."""
    more_count = len(names) - max_count
    return ", ".join(names[:max_count]) + (f" and {more_count} more" if more_count > 0 else "")


def find_similar_names(typed_name: str, names: Iterable[str], max_count: int = 3) -> list[str]:
    """Returns the names that a mistyped one most likely means, the likeliest first; [] if none is near.

    Those that contain it come first, the shortest before the others; then those that are spelled alike, as a whole or
    in a part between slashes.
    """
    folded_name = typed_name.casefold().strip("/")
    unique_names = list(dict.fromkeys(names))
    containing = sorted((name for name in unique_names if len(folded_name) > 1 and folded_name in name.casefold()),
                        key=len)
    if len(containing) >= max_count:
        return containing[:max_count]
    names_by_part: dict[str, list[str]] = {}
    for name in unique_names:
        folded = name.casefold().strip("/")
        for part in dict.fromkeys((folded, *folded.split("/"))):
            names_by_part.setdefault(part, []).append(name)
    likeness = MIN_LIKENESS if len(folded_name) > 3 else MIN_LIKENESS_SHORT
    similar_parts = difflib.get_close_matches(folded_name, names_by_part, max_count, likeness)
    return list(dict.fromkeys([*containing,
                               *(name for part in similar_parts for name in names_by_part[part])]))[:max_count]


def suggestion_question(suggestions: Sequence[str]) -> str:
    """Returns the question that suggests names; "" if there is none."""
    return f"Did you mean {' or '.join(suggestions)}?" if suggestions else ""


def counted_noun_text(count: int, noun: str) -> str:
    """A count of things: ``1 group``, ``2 groups``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# -- tables -----------------------------------------------------------------------------------------------------------


def table_lines(rows: Sequence[Sequence[str]], left_aligned_columns: int = 1) -> list[str]:
    """Lines of columns padded to their widest cell; the first ``left_aligned_columns`` are flush left, the rest right.

    A row may end early; where it has one cell alone, that is a heading, which makes its column no wider.
    """
    rows = [[escape_hidden_characters(cell) for cell in row] for row in rows]
    columns = max(map(len, rows), default=0)
    widths = [max((cell_width(row[i]) for row in rows if len(row) > max(i, 1)), default=0) for i in range(columns)]

    def format_line(row: Sequence[str]) -> str:
        numbered_cells = enumerate(zip(row, widths, strict=False))
        return "  ".join(
            pad_right(cell, width) if i < left_aligned_columns else pad_left(cell, width)
            for i, (cell, width) in numbered_cells).rstrip()

    return [format_line(row) for row in rows]


def drop_empty_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns a table, a header and its rows, without the columns whose cells below the header are all empty."""
    filled_columns = [column for column in range(len(rows[0])) if any(any(row[column:column + 1]) for row in rows[1:])]
    return [[row[column] for column in filled_columns if column < len(row)] for row in rows]


# -- streams ----------------------------------------------------------------------------------------------------------


class EscapingTextStream:
    """Stands before a text stream and passes on only what can be seen and what its encoding holds.

    No control sequence gets through, so it says that it is no terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes what can be seen of a text; returns the length of the whole text."""
        if not isinstance(text, str):
            raise TypeError(f"a text is written here, not {type(text).__name__}")
        self.write_styled(text, lambda shown: shown)
        return len(text)

    def write_styled(self, text: str, style: Callable[[str], str]) -> None:
        """Writes what can be seen of a text with control sequences that ``style`` puts around parts of it."""
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(
            style(escape_hidden_characters(text, keep_line_breaks=True)).encode(encoding,
                                                                                "backslashreplace").decode(encoding))

    def isatty(self) -> bool:
        """False: no control sequence gets through."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
