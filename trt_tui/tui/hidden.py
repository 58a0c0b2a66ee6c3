"""The net under every widget: no character that steers a terminal leaves the app."""

from rich.cells import get_character_cell_size
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from trt_tui.formatting import is_hidden_character


class ControlCharacterFilter(LineFilter):
    """Puts � for hidden characters, cell by cell; names come here as `trt_tui.formatting.escape_hidden_characters`
    already."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """A line of the screen without hidden characters."""
        return [
            segment if segment.control or segment.text.isprintable() else Segment(
                "".join(map(_replace_hidden_character, segment.text)), segment.style) for segment in segments
        ]


def _replace_hidden_character(character: str) -> str:
    return "�" * get_character_cell_size(character) if is_hidden_character(character) else character
