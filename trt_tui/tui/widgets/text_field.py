"""A line to type on."""

from textual.widgets import Input


class TextField(Input):
    """A line to type on whose cursor does not blink: where nothing changes, nothing is written to the terminal."""

    def on_mount(self) -> None:
        """Keeps the cursor lit."""
        self.cursor_blink = False
