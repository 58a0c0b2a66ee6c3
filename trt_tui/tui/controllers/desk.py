"""What controllers work on: the session, what is listed of it, what the status line tells, how the panes show it."""

from collections.abc import Callable

from textual.screen import Screen
from textual.timer import Timer

from trt_tui.errors import NotYetError, TrtTuiError
from trt_tui.session.session import Session
from trt_tui.tui.actions import BoundAction, footer_line
from trt_tui.tui.controllers.panes import Panes
from trt_tui.tui.keys import key, worded
from trt_tui.tui.screens.dialogs import Answered, Dialog, ErrorDialog
from trt_tui.tui.spans import Span
from trt_tui.tui.state import detail, verdict
from trt_tui.tui.state.columns import Columns, tree_header, tree_title
from trt_tui.tui.state.configs import Marks
from trt_tui.tui.state.hint import next_step
from trt_tui.tui.state.listing import Listing
from trt_tui.tui.state.status import Status, first_warning, status_lines
from trt_tui.tui.state.tree import View
from trt_tui.tui.walk import Walk

REST_S = 0.15
"""The detail follows once the cursor has rested this long."""


class Desk(Panes):
    """See the module's docstring.

    Attributes:
        offers: All actions by their ids, in the order of help.
        marks: The configs marked as A and B.
        walk: The walk that the hint takes a newcomer on, if any.
        stale_figures: Whether what the rows say has changed since it was drawn.

    Args:
        screen: The one that the panes stand in.
        leave: Ends the application.
    """

    def __init__(self, session: Session, screen: Screen[None], leave: Callable[[], None],
                 walk: Walk | None = None) -> None:
        super().__init__(screen, Listing(session))
        self.session, self.leave, self.walk = session, leave, walk
        self.status = Status()
        self.marks = Marks()
        self.offers: dict[str, BoundAction] = {}
        self.stale_figures = False
        self._looked: object = None
        self._behind = False
        self._rest: Timer | None = None

    # -- actions ------------------------------------------------------------------------------------------------

    def perform(self, action_id: str) -> None:
        """Does an action, or says why it cannot be done now."""
        offer = self.offers[action_id]
        had_message, self.status.message = self.status.message is not None, None
        if reason := offer.reason():
            self.say(f"{offer.action.key} {offer.action.label}: {reason}")
            return
        try:
            offer.do()
        except NotYetError as error:
            self.say(f"{offer.action.key} {offer.action.label}: {error.title}. {error.next_step}")
        except TrtTuiError as error:
            self.show_error(error)
        if had_message and self.status.message is None:
            self.draw_status()

    def touched(self) -> None:
        """The user has taken the list over: its order no longer follows the figures, the cursor is where it was put."""
        self.listing.following, self.listing.placed = False, True

    def changed(self) -> None:
        """The config is another one."""
        self.touched()
        self.draw()

    def say(self, text: str, style: str = "warn") -> Span:
        """Shows a message beside the jobs until the next key; returns it."""
        message = self.status.message = (text, style)
        self.draw_status()
        return message

    def unsay(self, message: Span) -> None:
        """Takes a message back, if it is still shown."""
        if self.status.message is message:
            self.status.message = None
            self.draw_status()

    def show_error(self, error: TrtTuiError) -> None:
        """Shows an error."""
        self.show_failure(error.title, error.cause, error.next_step)

    def show_failure(self, title: str, cause: str, next_step: str) -> None:
        """Shows what went wrong, why, and what to do now; from there the log can be asked for."""
        def closed(log: bool | None) -> None:
            if log:
                self.perform("log")

        self.app.push_screen(ErrorDialog(title, cause, next_step), closed)

    def set_view(self, view: View) -> None:
        """Lists something else; whoever calls it draws."""
        self.listing.view = view
        self.screen.set_class(view is View.BLOCKS, "-blocks")

    def show_blocks(self, group: str = "") -> None:
        """Fills the heat map and gives it the keys, with the cursor on the cell of a group."""
        self.block_map.show(self.listing.model.blocks, self.listing.figures)
        self.block_map.point_at(group)
        self.block_map.focus()

    def zoom(self, pane: str) -> None:
        """Gives one pane all of the room that there is for panes, "list", "detail" or "configs"; "" none of them."""
        for one in ("list", "detail", "configs"):
            self.screen.set_class(one == pane, f"-zoom-{one}")
        self.draw_soon()

    @property
    def zoomed(self) -> str:
        """Which pane has all the room, "" where none has."""
        return next((one for one in ("list", "detail", "configs") if self.screen.has_class(f"-zoom-{one}")), "")

    def go_to(self, group: str) -> None:
        """Puts the cursor of the tree on a group, wherever it hides, and gives it the keys."""
        self.touched()
        if self.listing.matches is not None and group not in self.listing.matches:
            self.clear_filter()
        if self.zoomed == "configs":
            self.zoom("")
        if self.listing.view is View.BLOCKS:
            self.set_view(View.TREE)
        self.tree.focus()
        self.listing.reveal(group)
        self.draw_tree(self.listing.model.rows[group].path)
        self.moved()

    def clear_filter(self) -> None:
        """Lists all rows again; whoever calls it draws."""
        self.screen.remove_class("-filtering")
        self.listing.filter_by(None)
        self.filter.value = ""

    # -- following the cursor -----------------------------------------------------------------------------------

    @property
    def resting(self) -> bool:
        """Whether the cursor has been where it is for long enough to be followed."""
        return self._rest is None

    def moved(self) -> None:
        """The cursor is on another row: the detail follows once it rests there."""
        self.touched()
        self.lines("detail").top = 0
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.screen.set_timer(REST_S, self._rested)
        self.draw_status()

    def _rested(self) -> None:
        self._rest = None
        self.draw_detail()
        group = self.current_group
        if group is not None and self.session.data is not None:
            self._looked = (group.name, self.session.config)
            self.session.look_at(group)

    def _look_where_it_is(self) -> None:
        """Asks for the detail of a row that the cursor is on without having been moved there by a key.

        As long as nobody has moved it and shares come in, nothing is asked for that would hold them up.
        """
        group = self.current_group
        if group is None or not self.resting or self._looked == (group.name, self.session.config):
            return
        if self.listing.placed or (self.session.measured("config").shares and not self.session.busy):
            self._rest = self.screen.set_timer(REST_S, self._rested)

    @property
    def covered(self) -> bool:
        """Whether a whole page lies over all panes: what is drawn beneath would have it painted again."""
        top = self.app.screen_stack[-1:]
        covered = bool(top) and isinstance(top[0], Answered) and not isinstance(top[0], Dialog)
        self._behind |= covered
        return covered

    def uncovered(self) -> None:
        """Nothing lies over the panes any more: draws what was not drawn meanwhile."""
        if self._behind:
            self._behind = False
            self.draw()

    # -- drawing ------------------------------------------------------------------------------------------------

    def draw(self, figures: bool = True) -> None:
        """Draws everything; only what differs is written to the terminal."""
        if not self.screen.is_mounted:
            return
        if self.covered and self.listing.is_measured:
            self.listing.take_figures()
            return
        session, width = self.session, self.width
        outline = session.outline or session.preview
        if outline is not None and self.listing.open(outline):
            self._looked = None
            self.screen.set_class(self.listing.model.blocks is not None, "-repeats")
        size = self.screen.size
        self.lines("small").lines = [[], [(f" trt-tui needs 60×15, this is {size.width}×{size.height}", "")]]
        figures = figures or not self.listing.is_measured  # of a network that was opened just now
        if self.listing.is_open and figures:
            self.stale_figures = False
            self.listing.take_figures()
        self.lines("header").lines = [verdict.header_line(session, width, self.status.failure is not None)]
        panel = self.lines("verdict")
        panel.lines = verdict.verdict_lines(session, width, self.screen.size.height)
        panel.styles.height = len(panel.lines)
        if figures:
            self.draw_tree()
        self.draw_configs()
        self.draw_detail()
        self.draw_status()

    def draw_soon(self) -> None:
        """Draws everything once the layout has settled."""
        self.screen.call_after_refresh(self.draw)

    def draw_configs(self) -> None:
        """Draws the list of configs."""
        self.configs.show(self.session, self.marks.configs, self.lines("configs-header"))

    def draw_tree(self, cursor_key: str | None = None) -> None:
        """Draws the tree, its title, and the heat map; the cursor goes to the row of ``cursor_key`` where given."""
        tree, rule, listing = self.tree, self.rule("tree"), self.listing
        if not listing.is_open:
            tree.show_empty(self.status.instead_of_rows(self.session.options.model))
            rule.set(worded("{pane_tree} Tree"))
            return
        rule.set(*tree_title(listing, rule.size.width or self.width))
        self.draw_tree_header()
        rows = listing.rows()
        if not listing.placed and cursor_key is None:
            cursor_key = listing.first_answer
            listing.placed = cursor_key is not None
            cursor_key = cursor_key or (rows[0].key if rows else None)
        tree.show(rows, listing.figures, listing.view is View.WORST, cursor_key)
        self._look_where_it_is()
        if not rows:
            tree.show_empty([[], [(f"   nothing matches; {key('close')} clears the filter", "dim")]])
        if self.block_map.display:
            self.block_map.show(listing.model.blocks, listing.figures)

    def draw_tree_header(self) -> None:
        """Draws the titles of the tree's columns."""
        if self.listing.is_measured:
            found = self.listing.figures
            columns = Columns.fit(self.tree.row_width or self.width, found.has_engines)
            self.lines("tree-header").lines = [tree_header(columns, found, self.listing.by)]

    def draw_detail(self) -> None:
        """Draws the detail pane for the row under the cursor."""
        if self.covered:
            return
        pane, rule = self.lines("detail"), self.rule("detail")
        width, height = pane.size.width or self.width, pane.size.height or 3
        if not self.listing.is_measured:
            pane.lines = []
            rule.set(worded("{pane_detail} Detail"))
            return
        line = self.current_line
        pane.lines = detail.pane_lines(self.session, self.listing.figures, line, self.current_group, width, height)
        more = worded("{pane_detail}: less" if self.zoomed == "detail" else "{pane_detail}: more")
        rule.set(f"{key('pane_detail')} {detail.detail_title(self.listing.model, line)}", "" if self.wide else more)

    def draw_status(self) -> None:
        """Draws job, next step and footer."""
        if self.covered:
            return
        session, group = self.session, self.current_group
        found = self.listing.figures if self.listing.is_measured else None
        focused = self.screen.focused
        typing = focused is self.filter
        here = group.name if group is not None and focused is self.rows else ""
        step = next_step(session, found, here, typing)
        if self.walk is not None and not typing and (hint := self.walk.hint(session)):
            step = hint
        warning = first_warning(session.warned) if session.outline is not None else ""
        self.lines("status").lines = status_lines(session, self.status, step, self.width, self.wide)
        self.rule("job").set(f"! {warning}" if warning else "Jobs" if self.wide else "")
        self.lines("footer").lines = [footer_line(self.width, self.offers.values())]
