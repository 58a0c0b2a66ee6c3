"""What a picture is drawn of, and what comes out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trt_tui.core.network.layers import FusionGroup
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, wrap_text
from trt_tui.tui.state.row_values import RowValues


@dataclass(frozen=True)
class ChartFrame:
    """What a picture is drawn of.

    Attributes:
        group: The one under the cursor, None where it is none or several.
        width, height: Cells that it has.
        cursor: Which of its points the cursor is on, None where nobody has moved it.
        axis_turns: How often another axis was asked for.
    """

    session: Session
    row_values: RowValues
    group: FusionGroup | None
    width: int
    height: int
    cursor: int | None = None
    axis_turns: int = 0


@dataclass(frozen=True)
class DrawnChart:
    """A picture.

    Attributes:
        point_values: What enter takes at each of its points: a config to take up, the name of a group to go to, the
            number of a sample to judge; none where nothing can be chosen.
        cursor: Which of them the cursor is on.
        enter_label: What enter does, in a word.
        has_axes: Whether there is another axis.
    """

    lines: Sequence[Line]
    point_values: Sequence[object] = field(default_factory=tuple)
    cursor: int = 0
    enter_label: str = ""
    has_axes: bool = False


def missing_chart_notice(text: str, width: int) -> DrawnChart:
    """In place of a picture, why there is none."""
    return DrawnChart([[(part, "dim")] for part in wrap_text(text, width)])
