"""The words for moves: one entry a kind, which every list, comparison, message and report reads.

In a text, ``{move}`` is the move, whose fields and other texts it may name, and ``{subject}`` the title of its subject.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class MoveTexts:
    """The words for the moves of a kind.

    Attributes:
        column: What they decide, in a word: the header of a table.
        label: What a move decides, short, as a table shows it.
        action: What its subject is to do, as words after "cannot".
        row_note: What the row of a group says of it.
        difference_title: What a line of a comparison is about.
        difference: What a comparison shows for a move, and ``no_move`` where there is none.
        origin: Who or what decided it: "user", "search:<method>", the method of a range.
    """

    column: str
    label: str
    action: str
    row_note: str
    difference_title: str
    difference: str = "{move.label}"
    no_move: str = "–"
    origin: str = "{move.reason}"


MOVE_TEXTS = {
    "keep": MoveTexts("kept", "{move.precision.label}", "be kept in {move.label}",
                      "kept in {move.label} by {move.origin_text}", "kept: {subject}", origin="rule {move.rule}"),
    "precision": MoveTexts("precision", "{move.precision.label}", "run in {move.label}",
                           "precision {move.label} by {move.origin_text}", "{subject}"),
    "rewrite": MoveTexts("form", "{move.operator}", "be written as {move.label}", "written as {move.label}",
                         "form of {subject}", no_move="decomposed"),
    "smooth": MoveTexts("smoothing", "SmoothQuant {move.strength:g}", "have its channels scaled",
                        "smoothed ({move.strength:g})", "smoothing of {subject}", no_move="none"),
    "range": MoveTexts("range", "{move.amax:.5g}", "have the range {move.label}", "range by {move.method}",
                       "range of {subject}", "{move.method} {move.label}", "calibrated", "{move.method}"),
    "bias": MoveTexts("bias", "corrected", "have its bias corrected", "bias corrected", "bias of {subject}",
                      no_move="as it is"),
    "barrier": MoveTexts("barrier", "fusion barrier", "become a network output",
                         "fusion barrier: its output becomes a network output", "barrier at {subject}"),
}
"""By the word for the kind in files."""
