"""The texts for users about moves, one entry for each kind. All lists, comparisons, messages and reports use them.

In a text, ``{move}`` is the move, whose fields and other texts can be used, and ``{subject}`` is the title of its group
or tensor.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class MoveTexts:
    """The texts for users about one kind of move.

    Attributes:
        column: The property that the move decides, in one word: the header of a table column.
        label: The decision of a move, short, for tables.
        action: The verb phrase behind "cannot".
        row_note: The note in the row of a fusion group.
        difference_title: The title of a line in a comparison of two configs.
        difference: The text for a move in a comparison of two configs; ``no_move`` is the text if there is no move.
        origin: The origin of a move: "user", "search:<method>", or the method of a range.
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
    "qk_scale": MoveTexts("scale", "in {move.placement_text}", "have its scale in {move.placement_text}",
                          "scale {move.factor:.4g} in {move.placement_text}", "scale of {subject}",
                          no_move="as in the network"),
    "smooth": MoveTexts("smoothing", "{move.method} {move.strength:g}", "have its channels scaled",
                        "smoothed ({move.strength:g})", "smoothing of {subject}", no_move="none"),
    "equalize": MoveTexts("equalization", "equalized ({move.formula})", "have its channels equalized",
                          "channels equalized ({move.formula})", "equalization of {subject}",
                          no_move="none"),
    "range": MoveTexts("range", "{move.amax:.5g}", "have the range {move.label}", "range by {move.method}",
                       "range of {subject}", "amax {move.label} ({move.method})", "calibrated", "{move.method}"),
    "rounding": MoveTexts("rounding", "{move.method} {move.precision.label}", "have its weight rounded by the error",
                          "weight rounded by {move.method}", "rounding of {subject}", no_move="nearest"),
    "bias": MoveTexts("bias", "corrected", "have its bias corrected", "bias corrected", "bias of {subject}",
                      no_move="as it is"),
    "barrier": MoveTexts("barrier", "fusion barrier", "become a network output",
                         "fusion barrier: its output becomes a network output", "barrier at {subject}"),
}
"""The texts by the word for the kind of move in files."""
