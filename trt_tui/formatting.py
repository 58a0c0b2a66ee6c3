"""The text forms of names, values with units, and tables on the screen, on stdout and in Markdown.

Hidden characters in text from files are written as escapes before the text is shown. ``~`` before a value marks the
value as simulated. Values measured on an engine have no mark.
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
"""The Unicode categories of characters that are invisible or can control how a terminal shows other characters.

They are C0, C1 and DEL; bidi, zero-width and other format characters; lone surrogates; line and paragraph separators.
"""


def escape_hidden_characters(text: object, keep_line_breaks: bool = False) -> str:
    r"""Returns the text with each hidden character written as an escape, such as ``\x1b`` or ``\u202e``.

    A hidden character is invisible or can control the terminal. The result can be shown on any terminal and encoded as
    UTF-8. A second call does not change the result. Names are compared and looked up without escapes, and only shown
    with them.

    Args:
        text: A text from a network, data, a config, a script, a session, a library or the command line.
        keep_line_breaks: True for a text of several lines: line breaks stay, and tabs become blanks. A name has one
            line.
    """
    text = str(text)
    if text.isprintable():
        return text
    if keep_line_breaks:
        text = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if is_hidden_character(character) and not (keep_line_breaks and character == "\n")
        else character
        for character in text
    )


def escape_hidden_in_json(text: str) -> str:
    """Returns equivalent JSON with each hidden character of its strings as a JSON escape. Line breaks stay."""
    if text.isascii():
        return text
    return "".join(
        json.dumps(character)[1:-1] if character != "\n" and is_hidden_character(character) else character
        for character in text
    )


def cell_width(text: str) -> int:
    """Returns the number of terminal cells of a visible text: two for each of 漢字, none for a combining accent."""
    return cell_len(text)


def pad_right(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))


def take_first_cells(text: str, width: int) -> str:
    """Returns the longest beginning of a visible text that fits into a width in terminal cells."""
    if text.isascii():
        return text[: max(0, width)]
    kept_count, used = 0, 0
    for character in text[: max(0, width) * 8]:  # a name has fewer combining marks
        used += cell_len(character)
        if used > width:
            break
        kept_count += 1
    return text[:kept_count]


def take_last_cells(text: str, width: int) -> str:
    """Returns the longest end of a visible text that fits into a width in terminal cells."""
    return take_first_cells(text[::-1], width)[::-1]


def is_hidden_character(character: str) -> bool:
    return category(character) in _HIDDEN_CATEGORIES


MIN_LIKENESS, MIN_LIKENESS_SHORT = 0.65, 0.5
"""The similarity (0 to 1) from which two names count as similar. The second value applies to names of up to 3 letters.
"""


# -- names ------------------------------------------------------------------------------------------------------------

FP32_TITLE = "FP32"
"""The title of FP32 if it is one run among others."""

RUN_TITLES = {
    **{run: run.upper() for run in ("tf32", "bf16", "fp16+", "fp16", "mxfp8", "fp8", "int8", "int4", "nvfp4")},
    "config": "config",
}
"""The titles of all runs that a comparison can have, by run key: the precisions below FP32, and the config."""

_BACKENDS = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX", "onnxruntime": "ONNX Runtime"}


EXPORTED = "exported"
"""The run key of a file's network as exported, if the export cannot be equal to the file."""


EXPORTED_NETWORK = "exported network"
"""The title of a run that executes the exported file of a config."""

_EXECUTED_SUFFIX = "-exported-network"
"""The suffix of a run key that stands for the execution of the exported file of that run."""


def executed_run_key(run: str) -> str:
    """Returns the run key for the execution of a run's exported file: ``config-exported-network``."""
    return f"{run}{_EXECUTED_SUFFIX}"


def run_title(run: str, is_file_precision: bool = False) -> str:
    """Returns the title of a run in a table, such as ``INT8``, or ``as in the file`` for a config in file precision.

    Args:
        is_file_precision: True if the config is the file precision of a quantized or typed file.
    """
    if run == EXPORTED:
        return "as exported"
    if run.endswith(_EXECUTED_SUFFIX):
        return f"{run_name_in_sentence(run.removesuffix(_EXECUTED_SUFFIX), is_file_precision)}, {EXPORTED_NETWORK}"
    return "file precision" if run == "config" and is_file_precision else RUN_TITLES.get(run, run)


def run_name_in_sentence(run: str, is_file_precision: bool = False) -> str:
    """Returns the name of a run within a sentence, such as ``INT8``, or ``the file`` for a config in file precision."""
    return "the file" if run == "config" and is_file_precision else run_title(run)


def engine_title(run: str, is_file_precision: bool = False) -> str:
    """Returns the title of the engine of a run, such as ``INT8 engine``."""
    if run == "config" and is_file_precision:
        return "file engine"
    return f"{RUN_TITLES.get(run, run.upper())} engine"


def builder_title(builder_name: str, version: str) -> str:
    """Returns the title of a backend that builds engines, with its version: ``TensorRT 8.6.1``."""
    return f"{_BACKENDS.get(builder_name, builder_name)} {version}"


def builder_device_text(builder: str, device: str) -> str:
    """Returns the builder of an engine and its GPU as text: ``TensorRT 8.6.1, H200``.

    Args:
        builder: The builder as text, as `builder_title` returns it.
        device: The name of the GPU, "" if there is none.
    """
    return ", ".join(filter(None, (builder, device.removeprefix("NVIDIA ").removeprefix("GeForce "))))


# -- values -----------------------------------------------------------------------------------------------------------

SIMULATED_MARK = "~"
NOT_MEASURED = "–"
"""The text in place of a value that was not measured."""


def number_text(value: float | None, digits: int = 3) -> str:
    """Returns a number as text with ``digits`` significant digits. A number below 1 has ``digits`` decimals.

    None gives `NOT_MEASURED`.
    """
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    integer_digits = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, digits - integer_digits)}f}"


def shorten_number_in_text(text: str, width: int) -> str:
    """Returns a text with fewer digits of its number if it does not fit into a width; an ellipsis if no form fits."""
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
    return "…"[: max(0, width)]


def decibels_text(
    sqnr_db: float | None, *, exact: bool = False, nan: int = 0, inf: int = 0, mark: str = SIMULATED_MARK
) -> str:
    """Returns an SQNR in dB as text: ``~12.3`` if simulated, ``12.3`` if measured on an engine.

    The text is ``exact`` for a zero error, ``NaN`` or ``Inf`` for such elements, and `NOT_MEASURED` for None.

    Args:
        exact: True if the error is zero.
        nan, inf: Numbers of elements that are NaN or infinite where the reference is not.
        mark: The text before the number.
    """
    if nan or inf:
        return "NaN" if nan else "Inf"
    if exact:
        return "exact"
    return NOT_MEASURED if sqnr_db is None else f"{mark}{sqnr_db:.1f}"


def mark_figures_as_simulated(figures_text: str) -> str:
    """Returns a list of values as text with the simulation mark before each number: ``cosine ~0.99903, ~26.3 dB``.
    Words and the brackets of a part of a tensor stay unchanged."""
    return re.sub(r"(^|, )((?:\S+ )?)(?=-?\.?\d)(?![^\[]*\])", rf"\1\2{SIMULATED_MARK}", figures_text)


def add_decibel_unit(decibel_text: str) -> str:
    """Returns a text of decibels with the unit dB. Words such as ``exact`` get no unit."""
    return f"{decibel_text} dB" if decibel_text[-1:].isdigit() else decibel_text


def value_range_text(first: str, last: str) -> str:
    """Returns two values as one text, such as ``19.2 to 20.6``; only one of them if both have the same digits."""
    return first if first == last else f"{first} to {last}"


def worst_sample_text(sample_name: object, sqnr_db: float | None, mark: str = SIMULATED_MARK) -> str:
    """Returns the lowest SQNR over the judged samples and the name of that sample as text: ``~8.1 #17``."""
    return f"{decibels_text(sqnr_db, nan=sqnr_db is None, mark=mark)} {sample_name}"


def simulation_engine_gap_text(gap_db: float | None) -> str:
    """Returns the difference in dB between an engine and its simulation as text.

    Args:
        gap_db: None if the engine has NaN or Inf where the simulation is finite.
    """
    if gap_db is None:
        return "NaN or Inf that the simulation does not have"
    return f"{gap_db:.1f} dB worse than simulated"


MIN_SHOWN_SHARE = 0.002
"""The fraction from which a percentage is shown as a number; smaller ones are shown as a dot."""


def percent_text(share: float, mark: str = "") -> str:
    """Returns a fraction as a percentage, such as ``52%``, ``5%`` or ``0.4%``.

    A fraction below `MIN_SHOWN_SHARE` gives ``·``; NaN and infinity give `NOT_MEASURED`.
    """
    if not math.isfinite(share):
        return NOT_MEASURED
    if abs(share) < MIN_SHOWN_SHARE:
        return "·"
    if abs(share) < 0.0095:
        return f"{mark}{100 * share:.1f}%"
    return f"{mark}{100 * share:.0f}%"


FEW_SAMPLES_MARK = "?"
"""The mark behind a value that is measured on too few samples for a confidence interval."""


def percent_with_margin_text(share: float, margin: float | None, mark: str = "", has_few_samples: bool = False) -> str:
    """Returns a fraction as a percentage with its margin of error in percentage points, such as ``~52% ±3``.

    Without a margin the text equals that of `percent_text`, or has `FEW_SAMPLES_MARK` behind it.
    """
    figure = percent_text(share, mark)
    if has_few_samples and figure.endswith("%"):
        return figure + FEW_SAMPLES_MARK
    if margin is None or not math.isfinite(share):
        return figure
    points = 100 * margin
    return f"{figure} ±{points:.0f}" if points >= 0.95 else f"{figure} ±{max(0.1, points):.1f}"


def agreement_text(share: float, mark: str = "") -> str:
    """Returns the fraction of samples with the same top-1 class as a percentage: ``97.5%``."""
    return f"{mark}{100 * share:.1f}%"


def mismatch_text(share: float, mark: str = "") -> str:
    """Returns the fraction of differing elements of an integer output as a percentage: ``0.12%``."""
    return f"{mark}{100 * share:.3g}%"


def cosine_text(value: float | None, mark: str = "") -> str:
    return NOT_MEASURED if value is None else f"{mark}{value:.5f}"


def metric_text(value: float | None, mark: str = "") -> str:
    return NOT_MEASURED if value is None else f"{mark}{number_text(value, 4)}"


def layer_share_text(layer_count: int, time_share: float | None) -> str:
    """Returns a number of layers with their share of the run time: ``12, 30%``.

    Args:
        time_share: None if the time was not measured.
    """
    return str(layer_count) if time_share is None else f"{layer_count}, {percent_text(time_share)}"


def milliseconds_text(ms: float) -> str:
    return f"{number_text(ms)} ms"


def output_variation_text(variation_db: float) -> str:
    """Returns the variation of an output between samples relative to its energy: ``-155 dB of its energy``, or
    ``none``."""
    return f"{variation_db:.0f} dB of its energy" if math.isfinite(variation_db) else "none"


def megabytes_text(byte_count: float) -> str:
    """Returns a number of bytes in MB (10^6) as text without the unit: ``28.4``."""
    return f"{byte_count / 1e6:.1f}"


def byte_size_text(byte_count: float) -> str:
    """Returns a number of bytes with its unit: ``28.4 MB``; from 1 GB (10^9) ``2.1 GB``."""
    return f"{megabytes_text(byte_count)} MB" if byte_count < 1e9 else f"{byte_count / 1e9:.1f} GB"


def duration_text(seconds: float) -> str:
    """Returns a duration as text: ``4.2 s``, ``37 s``, ``3 min 05 s`` or ``1 h 20 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def elapsed_text(seconds: float) -> str:
    """Returns the elapsed time of a running job as text, without tenths, which would flicker: ``4 s``, ``3 min 05 s``."""
    return f"{seconds:.0f} s" if seconds < 10 else duration_text(seconds)


def name_list_text(names: Sequence[str], max_count: int = 5) -> str:
    """Returns the first ``max_count`` names as text, with the number of further names: "conv1, conv2 and 3 more"."""
    more_count = len(names) - max_count
    return ", ".join(names[:max_count]) + (f" and {more_count} more" if more_count > 0 else "")


def find_similar_names(typed_name: str, names: Iterable[str], max_count: int = 3) -> list[str]:
    """Returns the names that are most similar to a mistyped name, the most similar first; [] if none is similar.

    Names that contain the mistyped name come first, the shortest before the others. Names with a similar spelling
    follow; the spelling is compared for the whole name and for each part between slashes.
    """
    folded_name = typed_name.casefold().strip("/")
    unique_names = list(dict.fromkeys(names))
    containing = sorted(
        (name for name in unique_names if len(folded_name) > 1 and folded_name in name.casefold()), key=len
    )
    if len(containing) >= max_count:
        return containing[:max_count]
    names_by_part: dict[str, list[str]] = {}
    for name in unique_names:
        folded = name.casefold().strip("/")
        for part in dict.fromkeys((folded, *folded.split("/"))):
            names_by_part.setdefault(part, []).append(name)
    likeness = MIN_LIKENESS if len(folded_name) > 3 else MIN_LIKENESS_SHORT
    similar_parts = difflib.get_close_matches(folded_name, names_by_part, max_count, likeness)
    return list(dict.fromkeys([*containing, *(name for part in similar_parts for name in names_by_part[part])]))[
        :max_count
    ]


def suggestion_question(suggestions: Sequence[str]) -> str:
    return f"Did you mean {' or '.join(suggestions)}?" if suggestions else ""


def counted_noun_text(count: int, noun: str) -> str:
    """Returns a count with its noun in the singular or plural: ``1 group``, ``2 groups``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# -- tables -----------------------------------------------------------------------------------------------------------


def table_lines(rows: Sequence[Sequence[str]], left_aligned_columns: int = 1) -> list[str]:
    """Returns the lines of a table. Each column is padded to its widest cell.

    The first ``left_aligned_columns`` columns are left-aligned, all others right-aligned. A row may have fewer cells
    than the table. A row of a single cell is a heading and does not widen its column.
    """
    rows = [[escape_hidden_characters(cell) for cell in row] for row in rows]
    columns = max(map(len, rows), default=0)
    widths = [max((cell_width(row[i]) for row in rows if len(row) > max(i, 1)), default=0) for i in range(columns)]

    def format_line(row: Sequence[str]) -> str:
        numbered_cells = enumerate(zip(row, widths, strict=False))
        return "  ".join(
            pad_right(cell, width) if i < left_aligned_columns else " " * (width - cell_width(cell)) + cell
            for i, (cell, width) in numbered_cells
        ).rstrip()

    return [format_line(row) for row in rows]


def drop_empty_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns a table with its header, without the columns that are empty below the header."""
    filled_columns = [
        column for column in range(len(rows[0])) if any(any(row[column : column + 1]) for row in rows[1:])
    ]
    return [[row[column] for column in filled_columns if column < len(row)] for row in rows]


# -- streams ----------------------------------------------------------------------------------------------------------


class EscapingTextStream:
    """A text stream that escapes hidden characters, and characters that the encoding of the wrapped stream lacks.

    Control sequences do not pass, so `isatty` returns False.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes a text with its hidden characters escaped. Returns the length of the original text."""
        if not isinstance(text, str):
            raise TypeError(f"a text is written here, not {type(text).__name__}")
        self.write_styled(text, lambda shown: shown)
        return len(text)

    def write_styled(self, text: str, style: Callable[[str], str]) -> None:
        """Writes a text with its hidden characters escaped, and with the control sequences that ``style`` adds to the
        result."""
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(
            style(escape_hidden_characters(text, keep_line_breaks=True))
            .encode(encoding, "backslashreplace")
            .decode(encoding)
        )

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
