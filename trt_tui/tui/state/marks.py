"""The table of marks: single characters with a meaning, before names and values in the app."""

from collections.abc import Iterable
from dataclasses import dataclass

from trt_tui.core.report.glossary import Term
from trt_tui.formatting import NOT_MEASURED, SIMULATED_MARK, number_text

BAND_GLYPHS = "█▓▒░·"
BAD_GLYPH = "!"
UNKNOWN_GLYPH = "?"
RAISED_MARK = BEST_SET_MARK = "↑"
TRIED_MARK = "»"
"""The mark of the group that a search tries next. `BEST_SET_MARK` marks the groups of the best result so far; the same
character marks raised rows."""

REDUCED_MARK = "↓"
DIVERGENCE_MARK = "↯"
"""The mark of the first row at which the engine is worse than its simulation by more than `UNEXPLAINED_GAP_DB`."""

RANGE_MARKS = {"entropy": "e", "percentile": "p", "mse": "m", "minmax": "x"}
"""The letter after a row's precision for a range method other than that of the calibration."""
USER_RANGE_MARK, KEPT_MARK, OTHER_CHANGE_MARK = "u", "k", "+"
"""The letters after a row's precision for a range set by hand, for a keep rule, and for any other change."""
BARRIER_MARK = "┤"
"""The mark of a row with a fusion barrier behind its result."""
SAME_VALUE_MARK, MARGIN_MARK = "≈", "±"
OTHER_PRECISION_MARK = "≠"
OPENED_MARK, CLOSED_MARK, CURSOR_MARK = "▾", "▸", ">"
RUNNING_MARK, DONE_MARK = "⋯", "✓"
CHOSEN_MARK = "●"
"""The mark of the current entry in a list of choices."""

SHARE_BAND_LIMITS = (0.20, 0.05, 0.01, 0.002)
BAND_LIMITS_DB = (10.0, 20.0, 30.0, 40.0)


@dataclass(frozen=True)
class Mark(Term):
    """A mark, whose name is its character.

    Attributes:
        place: Where the mark has this meaning: "row" before a name, "precision" or "engine" in that column, "value" at
            a number, "configs", "jobs" or "choices".
    """

    place: str = "value"

    @property
    def place_text(self) -> str:
        """The place of the mark in words."""
        return _PLACE_TEXTS[self.place]


_PLACE_TEXTS = {"value": "at a value", "row": "before a name", "precision": "behind a precision",
                "engine": "in the engine column", "configs": "in the list of configs", "jobs": "in the list of jobs",
                "choices": "in a list of choices"}


def _list_band_marks() -> list[Mark]:
    """Returns the marks of the colour bands. `UNKNOWN_GLYPH` and `BAD_GLYPH` stand in the same place."""
    marks = []
    for index, glyph in enumerate(BAND_GLYPHS):
        if index < len(SHARE_BAND_LIMITS):
            text = (f"An error share of {number_text(100 * SHARE_BAND_LIMITS[index], 1)}% or more; by error, an SQNR "
                    f"below {BAND_LIMITS_DB[index]:.0f} dB.")
        else:
            text = (f"An error share below {number_text(100 * SHARE_BAND_LIMITS[-1], 1)}%; by error, an SQNR of "
                    f"{BAND_LIMITS_DB[-1]:.0f} dB or more.")
        marks.append(Mark(glyph, text, place="row"))
    return marks


MARKS = (
    Mark(SIMULATED_MARK, "Simulated. A value of a built engine has no mark."),
    Mark(NOT_MEASURED, "Not measured."),
    Mark("·", "Less than 0.2%."),
    Mark(SAME_VALUE_MARK, "Equal within noise: the values on both sides, or this value and that of the current "
         "config."),
    Mark(MARGIN_MARK, "From the value to the farther end of its 95% confidence interval, in the unit "
         "of the value; of a share half the interval in points. ±?: the interval is not measured."),
    Mark("?", "Not measured, or not reported by the builder. Behind PASS or FAIL: not certain. Behind a share: there "
         "are fewer than 8 samples."),
    Mark("!", "Behind a gap: the engine is worse than simulation explains. Before a text: a warning."),
    Mark("…", "Not all of it: a value is being measured, values of a sum are missing, or a text has too little room."),
    Mark("#", "The index of a sample."),
    Mark("<0", "Below zero: raising this layer alone makes the error larger."),
    Mark(OTHER_PRECISION_MARK, "The engine was not built as requested."),
    *_list_band_marks(),
    Mark(BAD_GLYPH, "The values of this row contain NaN or Inf.", place="row"),
    Mark(UNKNOWN_GLYPH, "The value of this row is not measured.", place="row"),
    Mark(RAISED_MARK, "This row is raised above its default precision; during a search, in the best config so far.",
         place="row"),
    Mark(TRIED_MARK, "A search tries this row next.", place="row"),
    Mark(DIVERGENCE_MARK, "From this row on the engine is worse than simulation explains.", place="row"),
    Mark(BARRIER_MARK, "A fusion barrier is behind this row.", place="row"),
    Mark(OPENED_MARK, "An open row.", place="row"),
    Mark(CLOSED_MARK, "A closed row.", place="row"),
    Mark(CURSOR_MARK, "The cursor; in the list of configs, the current config.", place="row"),
    Mark(RAISED_MARK, "Raised above the default precision. In a scope: the number of raised fused layers.",
         place="precision"),
    Mark(REDUCED_MARK, "Below the default precision.", place="precision"),
    *(Mark(letter, f"A range by {method}, other than the method of the calibration.", place="precision")
      for method, letter in RANGE_MARKS.items()),
    Mark(USER_RANGE_MARK, "A range set by hand.", place="precision"),
    Mark(KEPT_MARK, "Kept in its precision by a rule.", place="precision"),
    Mark(OTHER_CHANGE_MARK, "Another change, such as SmoothQuant.", place="precision"),
    Mark("f", "The precision is that of the network file.", place="precision"),
    Mark(OTHER_PRECISION_MARK, "The builder chose another precision than requested.", place="engine"),
    Mark(UNKNOWN_GLYPH, "No engine or preview reports this row.", place="engine"),
    Mark("+", "The number of other fused layers in the same kernel.", place="engine"),
    Mark(RUNNING_MARK, "A running job.", place="jobs"),
    Mark(DONE_MARK, "A finished job.", place="jobs"),
    Mark(CHOSEN_MARK, "The current choice.", place="choices"),
)
"""All marks. A character can have several meanings, in different places."""


def find_marks(text: str, place: str, symbols: Iterable[str] = ()) -> list[Mark]:
    """Returns the marks of a place that a text contains; of some symbols alone if any are given."""
    allowed = tuple(symbols)
    return [mark for mark in MARKS
            if mark.place == place and mark.name in text and (not allowed or mark.name in allowed)]
