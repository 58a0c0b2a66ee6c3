"""The application itself: keys, palette, log, theme, closing what is open, leaving."""

from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.screens.help import HelpPage
from trt_tui.tui.screens.log import LogPage
from trt_tui.tui.state.tree import View


class Application(Controller):
    """See the module's docstring."""

    @action(label="log", help="Show why a job failed, then the log", group="Files")
    def log(self) -> None:
        """Shows the failure that nobody has looked at yet, else what was logged."""
        if (unread := self.status.unread) is not None:
            self.status.unread = None
            self.desk.draw_status()
            self.desk.show_failure(unread.title, unread.cause, unread.next_step)
            return
        self.desk.app.push_screen(LogPage(self.session))

    @action(label="keys", help="All keys and actions: type to find one, enter does it", group="Application", footer=0)
    def help(self) -> None:
        """Shows all actions with their keys, and does the one that is chosen."""
        def chosen(action_id: str | None) -> None:
            if action_id is not None:
                self.desk.perform(action_id)

        self.desk.app.push_screen(HelpPage(self.desk.offers.values()), chosen)

    @action(label="theme", help="Light or dark", group="Application")
    def theme(self) -> None:
        """The other theme."""
        app = self.desk.app
        app.theme = "trt-light" if app.theme == "trt-dark" else "trt-dark"

    @action(label="close", help="Close the topmost thing, and nothing else", group="Application")
    def close(self) -> None:
        """Closes the filter, else the pane that is alone, else goes back to the tree."""
        desk, screen, listing = self.desk, self.desk.screen, self.listing
        if self.status.unread is not None:
            self.status.unread = None
            desk.draw_status()
        elif listing.matches is not None or screen.has_class("-filtering"):
            desk.clear_filter()
            desk.tree.focus()
            line = desk.tree.current
            group = desk.current_group
            if group is not None:
                listing.reveal(group.name)
            desk.draw_tree(line.key if line is not None else None)
        elif desk.zoomed:
            desk.zoom("")
        elif self.status.message is None and screen.focused is not desk.tree and listing.view is not View.BLOCKS:
            desk.tree.focus()

    @action(label="quit", help="Save and quit", group="Application", footer=70)
    def quit(self) -> None:
        """Saves and leaves."""
        self.desk.leave()
