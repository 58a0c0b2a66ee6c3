"""The input and the result of a function that draws a chart of the chart page."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trt_tui.core.network.layers import FusionGroup
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line
from trt_tui.tui.state.row_values import RowValues


@dataclass(frozen=True)
class ChartFrame:
    """The input of a function that draws a chart: the data to draw, the room, and the user's choices.

    Attributes:
        group: The fusion group under the cursor; None if no group or several groups are selected. width, height: The
            room in cells.
        cursor: The index of the selected point; None until the user moves the cursor.
        axis_turns: The number of times that the user requested the alternative axis.
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
    """A drawn chart with its selectable points.

    Attributes:
        point_values: The value that enter applies at each point: a config, the name of a group, or the number of a
            sample. Empty if the chart has no selectable points.
        cursor: The index of the selected point.
        enter_label: The effect of enter in a few words.
        has_axes: True if the chart has an alternative axis.
    """

    lines: Sequence[Line]
    point_values: Sequence[object] = field(default_factory=tuple)
    cursor: int = 0
    enter_label: str = ""
    has_axes: bool = False
