"""The input and the result of a function that draws a chart of the chart page."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trt_tui.core.data.batches import SampleName
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
    """

    session: Session
    row_values: RowValues
    group: FusionGroup | None
    width: int
    height: int
    cursor: int | None = None


@dataclass(frozen=True)
class DrawnChart:
    """A drawn chart with its selectable samples.

    Attributes:
        samples: The names of the samples that the user can select; empty if the chart has none.
        cursor: The index of the selected sample in ``samples``.
    """

    lines: Sequence[Line]
    samples: Sequence[SampleName] = field(default_factory=tuple)
    cursor: int = 0
