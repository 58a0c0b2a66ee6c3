"""What a picture is drawn of, and what comes out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trt_tui.core.network.layers import Group
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, wrap
from trt_tui.tui.state.figures import Figures


@dataclass(frozen=True)
class Frame:
    """What a picture is drawn of.

    Attributes:
        group: The one under the cursor, None where it is none or several.
        width, height: Cells that it has.
        place: Which of its points the cursor is on, None where nobody has moved it.
        turn: How often another axis was asked for.
    """

    session: Session
    found: Figures
    group: Group | None
    width: int
    height: int
    place: int | None = None
    turn: int = 0


@dataclass(frozen=True)
class Drawn:
    """A picture.

    Attributes:
        values: What enter takes at each of its points: a config to take up, the name of a group to go to, the number
            of a sample to judge; none where nothing can be chosen.
        place: Which of them the cursor is on.
        enter: What enter does, in a word.
        axes: Whether there is another axis.
    """

    lines: Sequence[Line]
    values: Sequence[object] = field(default_factory=tuple)
    place: int = 0
    enter: str = ""
    axes: bool = False


def missing(text: str, width: int) -> Drawn:
    """In place of a picture, why there is none."""
    return Drawn([[(part, "dim")] for part in wrap(text, width)])
