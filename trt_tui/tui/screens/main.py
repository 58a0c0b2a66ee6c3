"""The main screen: verdict, tree, detail, blocks and configs of one session, and what every action does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input

from trt_tui.core.measure.comparison import EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.hierarchy import GroupRow, LayerRow, Scope
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import OFFERED, Precision
from trt_tui.core.search import Outcome
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import messages
from trt_tui.session.finding import Finding, found_so_far
from trt_tui.tui import actions, known, spans
from trt_tui.tui.screens.configs import ConfigList, ConfigsPage
from trt_tui.tui.screens.dialogs import ErrorDialog, Item, Page, Picker, Prompt, Question
from trt_tui.tui.screens.export import ExportDialog
from trt_tui.tui.screens.find import FindDialog
from trt_tui.tui.screens.help import HelpPage
from trt_tui.tui.screens.log import LogPage
from trt_tui.tui.screens.palette import Palette
from trt_tui.tui.state import built, detail, engine_page, verdict
from trt_tui.tui.state.columns import Columns, tree_header, tree_title
from trt_tui.tui.state.configs import diff_lines
from trt_tui.tui.state.figures import Figures, Measure, figures_of, is_met, search_marks
from trt_tui.tui.state.hint import next_step
from trt_tui.tui.state.job_line import job_line
from trt_tui.tui.state.tree import TreeModel, View, VisibleRow
from trt_tui.tui.widgets.blocks import BlockMap
from trt_tui.tui.widgets.layer_tree import LayerTree
from trt_tui.tui.widgets.lines import Lines, Rule
from trt_tui.words import visible

if TYPE_CHECKING:
    from trt_tui.session.session import Session

UPDATE_S = 0.1
"""Events of a job are drawn at most this often."""

REST_S = 0.15
"""The detail follows once the cursor has rested this long."""

ASK_AFTER_S = 10.0
"""A job older than this is stopped only after a question."""

TICK_S = 1.0
"""The seconds of a phase of unknown length are counted this often."""

FOLLOW_S = 1.0
"""While figures stream in and nobody has touched the tree, it is ordered anew at most this often."""

MOST_REVEALED = 12
"""Rows that the tree opens by itself for."""

_DRAWS_FIGURES = (messages.Opened, messages.VerdictMeasured, messages.LayersMeasured, messages.SharesMeasured,
                  messages.RaisedMeasured, messages.Built, messages.Checked, messages.BuilderReady,
                  messages.ReferenceMeasured)

_PRECISION_KEYS = {Precision.FP32: "3", Precision.BF16: "b", Precision.FP16: "6", Precision.INT8: "8"}


class MainScreen(Screen):
    """See the module's docstring.

    Args:
        session: What is shown and driven.
    """

    BINDINGS = actions.bindings()
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall")]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.model: TreeModel | None = None
        self.figures: Figures | None = None
        self.view = View.TREE
        self.measure = Measure.OWNS
        self.run = "config"
        self.opened: set[str] = set()
        self.order: Mapping[str, float] | None = None
        self.matches: set[str] | None = None
        self.marks: dict[str, PrecisionConfig] = {}
        self.message: spans.Span | None = None
        self.last_word = ""
        self.failure: messages.Failed | messages.Died | None = None
        self.following = True
        self._last_shares: dict[str, float] = {}
        self._phase = ""
        self._phase_since = 0.0
        self._noticed = False
        self._rows: list[VisibleRow] | None = None
        self._made_of: tuple = ()
        self._followed = 0.0
        self._looked: tuple[str, PrecisionConfig] | None = None
        self._marks: Mapping[str, str] = {}
        self._told_of: Finding | None = None
        self._stale_figures = False
        self._update: Timer | None = None
        self._rest: Timer | None = None

    # -- what is in it ------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Lines(id="header")
        yield Rule(id="verdict-rule")
        yield Lines(id="verdict")
        with Container(id="body"):
            with Vertical(id="left"):
                yield Rule(id="tree-rule")
                yield Input(placeholder="words to find in names, paths, operators", id="filter", compact=True)
                yield Lines(id="tree-header")
                yield LayerTree(id="tree")
                yield Rule(id="blocks-rule")
                yield BlockMap(id="blocks")
            with Vertical(id="right"):
                yield Rule(id="detail-rule")
                yield Lines(id="detail")
                yield Rule("4 Configs", "m marks A/B, d diff", id="configs-rule")
                yield Lines(id="configs-header")
                yield ConfigList(id="configs")
        yield Rule(id="job-rule")
        yield Lines(id="status")
        yield Lines(id="footer")

    def on_mount(self) -> None:
        self.tree.focus()
        self.draw()
        self.set_interval(TICK_S, self._tick)

    @property
    def tree(self) -> LayerTree:
        return self.query_one("#tree", LayerTree)

    @property
    def block_map(self) -> BlockMap:
        return self.query_one("#blocks", BlockMap)

    @property
    def in_blocks(self) -> bool:
        """Whether keys act on the heat map."""
        return self.focused is self.block_map

    @property
    def current_line(self) -> VisibleRow | None:
        """The row that the detail is about; in the heat map, of a cell's group or of a role's first."""
        if self.in_blocks and self.model is not None:
            names = self.block_map.names
            if not names:
                return None
            row = self.model.rows[names[0]]
            return VisibleRow(row.path, 0, row)
        return self.tree.current

    def chosen_groups(self) -> tuple[Group, ...]:
        """The groups that a change acts on."""
        if self.model is None:
            return ()
        if self.in_blocks:
            return tuple(self.model.outline.group_by_name[name] for name in self.block_map.names)
        line = self.tree.current
        if line is None:
            return ()
        if line.row is None:
            group = self.model.outline.group_by_layer.get(line.node)
            return (group,) if group is not None else ()
        return self.model.groups_of(line.row)

    @property
    def current_group(self) -> Group | None:
        groups = self.chosen_groups()
        return groups[0] if len(groups) == 1 else None

    # -- events of the session ----------------------------------------------------------------------------------

    def take(self, event: messages.Event) -> None:
        """Draws, soon, what an event changed. The session has taken it in already."""
        if isinstance(event, _DRAWS_FIGURES):
            self._stale_figures = True
        if isinstance(event, messages.Done):
            self.last_word = f"✓ {self._phase}" if self._phase else "✓ done"
            self._stale_figures |= self.following
        elif isinstance(event, messages.Cancelled):
            self.last_word = "stopped; the last results stay"
            self._search_ended()
        elif isinstance(event, messages.Built):
            self._phase = f"built {known.config_name(self.session, event.config)}"
            self.last_word = f"✓ {self._phase}"
            self.say(self._told(event.result), "")
        elif isinstance(event, messages.Replaced):
            self.last_word = event.title
            self._stale_figures = True
        elif isinstance(event, messages.Failed):
            self._fail(event, event.title, event.cause, event.next_step)
        elif isinstance(event, messages.Died):
            self._fail(event, "The worker process ended", f"{event.why} {event.log}".strip(),
                       "Nothing is lost: press f5 to measure again; o shows the log.")
        elif isinstance(event, messages.SearchProgress) and self.session.searching:
            self._phase = "search"
            if (marks := search_marks(self.session)) != self._marks:
                self._marks, self._stale_figures = marks, True
        elif isinstance(event, messages.SearchEnded):
            self._stale_figures = True
            self._search_ended()
        elif isinstance(event, messages.Progress):
            if event.phase != self._phase:
                self._phase, self._phase_since = event.phase, time.monotonic()
        elif isinstance(event, messages.StatsMeasured | messages.OptionsMeasured) and self._rest is None:
            self.draw_detail()
        if self.session.notice and not self._noticed:
            self._noticed = True
            self.say(self.session.notice, "")
        if self._update is None:
            self._update = self.set_timer(UPDATE_S, self._updated)

    def _told(self, result: EngineResult) -> str:
        """What to say of a build that has ended."""
        if self.session.builder is None:
            return f"built: {result.note}" if result.note else "built"
        room = self.size.width - 2
        alert = built.alert(self.session) if not self.has_class("-wide") else ""
        return f"built: {alert}" if alert else built.result_text(result, room)

    def _updated(self) -> None:
        self._update = None
        self.draw(figures=self._stale_figures)
        if isinstance(self.app.screen, LogPage) and self.app.screen.is_mounted:
            self.app.screen.follow()

    def _tick(self) -> None:
        job = self.session.job
        if job is not None and not job.total and self.message is None:
            self.draw_status()

    def _fail(self, event: messages.Failed | messages.Died, title: str, cause: str, next_step: str) -> None:
        self.last_word = f"failed: {title}"
        self._stale_figures = True
        if self.session.outline is None:
            self.failure = event
        self.app.push_screen(ErrorDialog(title, cause, next_step))

    # -- drawing ------------------------------------------------------------------------------------------------

    def draw(self, figures: bool = True) -> None:
        """Draws everything; only what differs is written to the terminal."""
        if not self.is_mounted:
            return
        session, width = self.session, self.size.width
        self._open_model()
        figures = figures or self.figures is None  # of a network that was opened just now
        if self.model is not None and figures:
            self._stale_figures = False
            self._measure()
        self.query_one("#header", Lines).lines = [verdict.header_line(session, width)]
        self.query_one("#verdict-rule", Rule).set(*verdict.verdict_title(session))
        self.query_one("#verdict", Lines).lines = verdict.verdict_lines(session, width)
        self.set_class(session.results.check is not None, "-checked")
        if figures:
            self.draw_tree()
        self.query_one("#configs", ConfigList).show(self, self.query_one("#configs-header", Lines))
        self.draw_detail()
        self.draw_status()

    def _open_model(self) -> None:
        outline = self.session.outline or self.session.preview
        if outline is None or self.model is not None and self.model.outline is outline:
            return
        self.model, self._looked = TreeModel(outline), None
        self.figures = self._rows = self.matches = None
        self.opened = self.model.first_open()
        self.set_class(self.model.blocks is not None, "-repeats")

    def _measure(self) -> None:
        """Takes the figures from the session; while nobody has touched the tree, it follows them."""
        measure = self.measure
        found = figures_of(self.session, self.model, measure, self.run, self._last_shares)
        if measure is Measure.OWNS and not found.values:
            suspects = figures_of(self.session, self.model, Measure.ISOLATED, self.run)
            if suspects.values or suspects.bad:
                found = suspects
        elif measure is Measure.OWNS and self.run == "config":
            self._last_shares = dict(found.values)
        self.figures = found
        now = time.monotonic()
        if (self.following and (found.values or found.bad)
                and (self.order is None or now - self._followed > FOLLOW_S or not self.session.busy)):
            self._followed = now
            self.order = found.weights
            worst = [name for name in found.worst_first[:MOST_REVEALED] if name in found.loud]
            for name in worst:
                self._reveal(name)

    def _reveal(self, group: str) -> None:
        paths = {scope.path for scope in self.model.ancestors[group]}
        if not paths <= self.opened:
            self.opened = self.opened | paths

    def visible_rows(self) -> list[VisibleRow]:
        """The lines of the tree; the same list as long as nothing that makes them has changed."""
        made_of = (self.view, self.opened, self.order, self.matches)
        if self._rows is None or any(one is not other for one, other in zip(made_of, self._made_of, strict=True)):
            make = self.model.worst_first if self.view is View.WORST else self.model.visible
            self._made_of, self._rows = made_of, make(self.opened, self.order, self.matches)
        return self._rows

    def draw_tree(self, cursor_key: str | None = None) -> None:
        """Draws the tree, its title, and the heat map."""
        tree, rule = self.tree, self.query_one("#tree-rule", Rule)
        if self.model is None:
            tree.show_empty(self._nothing_yet())
            rule.set("1 Tree")
            return
        shown = len(self.matches) if self.matches is not None else None
        rule.set(*tree_title(self.model, self.view, self.session, shown, self.figures.measure, self.figures.run))
        self.draw_tree_header()
        rows = self.visible_rows()
        if self.following and cursor_key is None and self.order:
            worst = max(self.order, key=self.order.get)
            cursor_key = self.model.rows[worst].path if worst in self.figures.loud else None
        tree.show(rows, self.figures, self.view is View.WORST, cursor_key)
        self._look_where_it_is()
        if not rows:
            tree.show_empty([[], [("   nothing matches; esc clears the filter", "dim")]])
        self.query_one("#blocks-rule", Rule).set("3 Blocks", "space on a row label = the role everywhere")
        if self.block_map.display:
            self.block_map.show(self.model.blocks, self.figures)

    @on(LayerTree.Resized)
    def draw_tree_header(self) -> None:
        """Draws the titles of the tree's columns."""
        if self.figures is not None:
            columns = Columns.fit(self.tree.size.width or self.size.width, self.figures.has_engines)
            self.query_one("#tree-header", Lines).lines = [tree_header(columns, self.figures)]

    def _nothing_yet(self) -> list[spans.Line]:
        if isinstance(self.failure, messages.Failed):
            lines: list[spans.Line] = [[], [("   " + self.failure.title, "strong")]]
            lines += [[("   " + text, "dim")] for text in (self.failure.cause, self.failure.next_step) if text]
            return [*lines, [("   q quits", "dim")]]
        if self.failure is not None:
            return [[], [("   The worker process ended while the network was being opened.", "strong")],
                    [("   o shows the log, q quits", "dim")]]
        return [[], [(f"   opening {self.session.options.model} …", "dim")]]

    def draw_detail(self) -> None:
        """Draws the detail pane for the row under the cursor."""
        pane, rule = self.query_one("#detail", Lines), self.query_one("#detail-rule", Rule)
        width, height = pane.size.width or self.size.width, pane.size.height or 3
        line = self.current_line
        if self.model is None or self.figures is None:
            pane.lines = []
            rule.set("2 Detail")
            return
        lines = detail.detail_lines(self.session, self.figures, line, width, height)
        group = self.current_group
        if group is not None and height >= 8:
            worst = detail.worst_input(group, self.session.results.statistics.get(group.name, {}))
            if worst is not None:
                plot = detail.histogram_lines(*worst, width, rows=4 if height >= len(lines) + 7 else 2)
                if len(lines) + len(plot) + 1 <= height:
                    lines = [*lines, [], *plot]
        pane.lines = lines
        more = "2: less" if self.has_class("-large-detail") else "2: more"
        rule.set(detail.detail_title(self.model, line), "" if self.has_class("-wide") else more)

    def draw_status(self) -> None:
        """Draws job, next step and footer."""
        pane, width = self.query_one("#status", Lines), self.size.width
        job = job_line(self.session, self.last_word, time.monotonic() - self._phase_since)
        group = self.current_group
        step = next_step(self.session, self.figures, group.name if group is not None else "")
        warning = next(iter(self.session.warnings), "") if self.session.outline is not None else ""
        if self.message is not None:
            first: spans.Line = spans.padded([(" ", ""), self.message], width)
        else:
            first = job
        if self.has_class("-wide"):
            right: spans.Line = [(f"{warning} ", "warn")] if warning else []
            pane.lines = [spans.padded(first, width, right), [(" " + step, "strong" if step else "")]]
        elif self.message is not None:
            pane.lines = [first]
        else:
            if spans.width_of(first) + len(step) + 2 > width and not self.session.busy:
                first = []
            pane.lines = [spans.padded(first, width, [(f"{step} ", "strong")] if step else [])]
        self.query_one("#job-rule", Rule).set("" if self.has_class("-wide") or not warning else f"! {warning}")
        self.query_one("#footer", Lines).lines = [actions.footer_line(width, self)]

    def say(self, text: str, style: str = "warn") -> None:
        """Shows a message in the status line until the next key."""
        self.message = (text, style)
        self.draw_status()

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_do(self, action_id: str) -> None:
        self.perform(action_id)

    def perform(self, action_id: str) -> None:
        """Does an action, or says why it cannot be done now."""
        action = actions.BY_ID[action_id]
        had_message, self.message = self.message is not None, None
        reason = action.enabled(self)
        if reason:
            self.say(f"{action.key} {action.label}: {reason}")
            return
        try:
            getattr(self, f"do_{action_id}")()
        except TrtTuiError as error:
            self.app.push_screen(ErrorDialog(error.title, error.cause, error.next_step))
        if had_message and self.message is None:
            self.draw_status()

    def _touched(self) -> None:
        self.following = False

    def _move(self, steps: int) -> None:
        self._touched()
        if self.in_blocks:
            self.block_map.move(down=steps)
        else:
            self.tree.move(steps)

    def do_up(self) -> None:
        self._move(-1)

    def do_down(self) -> None:
        self._move(1)

    def do_page_up(self) -> None:
        self._move(-self.tree.page)

    def do_page_down(self) -> None:
        self._move(self.tree.page)

    def do_first(self) -> None:
        self._move(-len(self.tree.rows))

    def do_last(self) -> None:
        self._move(len(self.tree.rows))

    def do_left(self) -> None:
        if self.in_blocks:
            self.block_map.move(right=-1)
            return
        line = self.tree.current
        if line is None:
            return
        if line.opened and self.matches is None and line.row is not None:
            self._open(line, False)
            return
        above = next((index for index in range(self.tree.cursor - 1, -1, -1)
                      if self.tree.rows[index].depth < line.depth), None)
        if above is not None:
            self._touched()
            self.tree.move_to(above)

    def do_right(self) -> None:
        if self.in_blocks:
            self.block_map.move(right=1)
            return
        line = self.tree.current
        if line is None or line.row is None:
            return
        if not line.opened:
            self._open(line, True)
        else:
            self._move(1)

    def do_open(self) -> None:
        if self.in_blocks:
            self._go_to(self.block_map.names[0]) if self.block_map.names else None
            return
        line = self.tree.current
        if line.row is not None:
            self._open(line, not line.opened)

    def _open(self, line: VisibleRow, opened: bool) -> None:
        self._touched()
        self.opened = self.opened | {line.row.path} if opened else self.opened - {line.row.path}
        self.draw_tree(line.key)

    def _go_to(self, group: str) -> None:
        """Puts the cursor of the tree on a group, wherever it hides."""
        self._touched()
        if self.view is View.BLOCKS:
            self._set_view(View.TREE)
        self.tree.focus()
        self._reveal(group)
        self.draw_tree(self.model.rows[group].path)
        self._moved()

    def _step_bad(self, forward: bool) -> None:
        loud = self.figures.loud
        if self.view is View.WORST:
            order = [line.row.group.name for line in self.model.worst_first(set(), self.order, self.matches)
                     if isinstance(line.row, GroupRow)]
        else:
            everything = {scope.path for scope in self.model.scopes}
            order = [line.row.group.name for line in self.model.visible(everything, self.order, self.matches)
                     if isinstance(line.row, GroupRow)]
        bad = [index for index, name in enumerate(order) if name in loud]
        if not bad:
            self.say("no bad row matches the filter")
            return
        groups = self.chosen_groups()
        here = order.index(groups[0].name) if groups and groups[0].name in order else -1
        on_group = len(groups) == 1
        if forward:
            after = [index for index in bad if index > here or (index == here and not on_group)]
            target = after[0] if after else bad[0]
        else:
            before = [index for index in bad if index < here]
            target = before[-1] if before else bad[-1]
        self._go_to(order[target])

    def do_next_bad(self) -> None:
        self._step_bad(True)

    def do_previous_bad(self) -> None:
        self._step_bad(False)

    def do_first_nan(self) -> None:
        first = next(group.name for group in self.model.outline.groups if group.name in self.figures.bad)
        self._go_to(first)

    def do_filter(self) -> None:
        self.add_class("-filtering")
        if self.view is View.BLOCKS:
            self._set_view(View.TREE)
        self.query_one("#filter", Input).focus()

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        if self.model is None:
            return
        self._touched()
        self.matches = self.model.matching(event.value)
        self.draw_tree()
        self._moved()

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        if self.matches is None:
            self.remove_class("-filtering")
        self.tree.focus()

    def do_close(self) -> None:
        if self.matches is not None or self.has_class("-filtering"):
            self.remove_class("-filtering")
            self.query_one("#filter", Input).value = ""
            self.matches = None
            self.tree.focus()
            line = self.tree.current
            group = self.current_group
            if group is not None:
                self._reveal(group.name)
            self.draw_tree(line.key if line is not None else None)
        elif self.has_class("-large-detail"):
            self.remove_class("-large-detail")
            self.call_after_refresh(self.draw)
        elif self.message is None and self.focused is not self.tree and self.view is not View.BLOCKS:
            self.tree.focus()

    # -- changing the config ------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._touched()
        self.draw()

    def do_toggle(self) -> None:
        self.session.toggle(self.chosen_groups())
        self._changed()

    def do_higher(self) -> None:
        self._step_precision(True)

    def do_lower(self) -> None:
        self._step_precision(False)

    def _step_precision(self, up: bool) -> None:
        before = self.session.config
        self.session.step(self.chosen_groups(), up)
        self._changed()
        if self.session.config == before:
            self.say("that is the highest precision" if up else self._why_not_lower())

    def _why_not_lower(self) -> str:
        group = self.current_group
        if group is not None and Precision.INT8 in group.refusals:
            return f"no lower: {group.refusals[Precision.INT8]}"
        return "that is the lowest precision"

    def do_precision(self) -> None:
        groups = self.chosen_groups()
        current = {self.session.config.precision_of(group) for group in groups}
        items = []
        for precision in OFFERED:
            able = [group for group in groups if precision in group.allowed]
            refused = "" if able else groups[0].refusals.get(precision, "not possible here")
            some = f"  {len(able)} of {len(groups)} groups can" if able and len(able) < len(groups) else ""
            items.append(Item(_PRECISION_KEYS[precision], precision.label + some, precision, refused))
        title = groups[0].name if len(groups) == 1 else spans.plural(len(groups), "group")

        def chosen(precision: Precision | None) -> None:
            if precision is not None:
                self.session.set_precision(groups, precision)
                self._changed()

        self.app.push_screen(Picker(f"Precision of {title}", items,
                                    next(iter(current)) if len(current) == 1 else None), chosen)

    def do_range(self) -> None:
        method = self.session.next_range(self.current_group)
        self._changed()
        self.say(f"input range: {method}", "")

    def do_undo(self) -> None:
        self.session.undo()
        self._changed()

    def do_redo(self) -> None:
        self.session.redo()
        self._changed()

    # -- looking ------------------------------------------------------------------------------------------------

    def _set_view(self, view: View) -> None:
        self.view = view
        self.set_class(view is View.BLOCKS, "-blocks")

    def do_view(self) -> None:
        self._touched()
        views = [view for view in View if view is not View.BLOCKS or self.model.blocks is not None]
        line = self.current_line
        self._set_view(views[(views.index(self.view) + 1) % len(views)])
        if self.view is View.WORST and self.figures.values:
            self.order = self.figures.weights
        if self.view is View.BLOCKS:
            self.block_map.show(self.model.blocks, self.figures)
            self.block_map.focus()
        else:
            self.tree.focus()
        group = line.row.group.name if line is not None and isinstance(line.row, GroupRow) else None
        if group is not None and self.view is View.TREE:
            self._reveal(group)
        self.draw_tree(line.key if line is not None else None)
        self.call_after_refresh(self.draw)

    def do_colour(self) -> None:
        runs = {"config": "config", "int8": "INT8 all", "fp16": "FP16 all"}
        measures = {Measure.OWNS: ("what each owns of the error", "o"), Measure.ISOLATED: ("isolated error", "i"),
                    Measure.ACCUMULATED: ("accumulated error", "a")}
        items = []
        for run, run_title in runs.items():
            for measure, (title, key) in measures.items():
                found = figures_of(self.session, self.model, measure, run)
                empty = "" if found.values or found.bad else "not measured"
                shown_key = key if run == "config" else {"int8": "123", "fp16": "456"}[run]["oia".index(key)]
                items.append(Item(shown_key, f"{run_title:<9} {title}", (measure, run), empty))

        def chosen(value: tuple[Measure, str] | None) -> None:
            if value is not None:
                self.measure, self.run = value
                self.draw()

        self.app.push_screen(Picker("Colour by", items, (self.measure, self.run)), chosen)

    def do_engine(self) -> None:
        width = min(90, self.size.width * 96 // 100 - 5)
        self.app.push_screen(Page(engine_page.page_title(self.session), engine_page.page_lines(self.session, width),
                                  "↑↓ scroll  esc close"))

    def do_sort(self) -> None:
        self._touched()
        newest = self.figures.weights
        if not newest:
            self.say("nothing was measured to sort by")
            return
        if self.order is not None and dict(self.order) == newest and self.view is View.TREE:
            self.order = None
            self.say("network order", "")
        elif self.order is not None and dict(self.order) == newest:
            self.say("the order is up to date", "")
        else:
            self.order = newest
            self.say("worst first", "")
        self.draw_tree()

    def do_copy(self) -> None:
        line = self.current_line
        row = line.row
        if row is None:
            name = line.node
        elif isinstance(row, GroupRow):
            name = row.group.name
        elif isinstance(row, LayerRow):
            name = row.layer.name
        else:
            name = row.path if isinstance(row, Scope) else row.label
        self.app.copy_to_clipboard(visible(name))
        self.say(f"copied {name}", "")

    def do_pane_tree(self) -> None:
        if self.view is View.BLOCKS:
            self._set_view(View.TREE)
            self.call_after_refresh(self.draw)
        self.tree.focus()

    def do_pane_detail(self) -> None:
        self.toggle_class("-large-detail")
        self.call_after_refresh(self.draw)

    def do_pane_blocks(self) -> None:
        if not self.block_map.display:
            self._set_view(View.BLOCKS)
            self.block_map.show(self.model.blocks, self.figures)
        self.block_map.focus()
        self.call_after_refresh(self.draw)

    def do_pane_configs(self) -> None:
        configs = self.query_one("#configs", ConfigList)
        if configs.display:
            configs.focus()
        else:
            self.do_configs()

    # -- work ---------------------------------------------------------------------------------------------------

    def do_build(self) -> None:
        self._build(quick=False)

    def do_preview(self) -> None:
        self._build(quick=True)

    def _build(self, quick: bool) -> None:
        self.session.build(quick)
        self.last_word = ""
        self.draw_status()

    def do_compare(self) -> None:
        self.session.compare()
        self.last_word = ""
        self.draw_status()

    def do_stop(self) -> None:
        started = self.session.job_started
        age = time.monotonic() - started if started is not None else 0.0
        if age <= ASK_AFTER_S:
            self._stop()
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self._stop()

        phase = self.session.job.phase if self.session.job is not None else "job"
        self.app.push_screen(Question(f"Stop {phase}? It has run for {spans.duration(age)}.", "stop it", "go on"),
                             answered)

    def _stop(self) -> None:
        self.session.stop_job()
        self.last_word = "stopping …" if self.session.busy else "stopped; the last results stay"
        self.draw_status()

    def do_target(self) -> None:
        def typed(text: str | None) -> None:
            if text is not None:
                self.session.set_target(text)
                self.draw()

        target = self.session.target
        note = "sqnr>=20 (dB, worst output), cosine>=0.999, agreement>=0.99"
        if self.session.results.reference:
            note += ", metric>=base-0.01, metric>=base-1%"
        self.app.push_screen(Prompt("Target", target.text if target is not None else "sqnr>=20", note,
                                    self._wrong_target), typed)

    def _wrong_target(self, text: str) -> str:
        """What is wrong with a target as it is typed, "" where nothing is."""
        try:
            self.session.check_target(text)
        except TrtTuiError as error:
            return f"{error.cause.rstrip('.')}. {error.next_step}"
        return ""

    def do_find(self) -> None:
        session = self.session
        if session.searching:
            self._ask_to_take(f"Take the best so far over, and end the search? {found_so_far(session.finding)}.")
            return
        if is_met(session):
            self.say(f"{known.config_name(session)} meets the target already: nothing to find; g changes the target",
                     "")
            return

        def chosen(answer: tuple[str, messages.Search] | None) -> None:
            if answer is not None:
                tolerance, request = answer
                if session.target is None or tolerance != session.target.text:
                    session.set_target(tolerance)
                self._find(request)

        self.app.push_screen(FindDialog(session, known.config_name(session), self._wrong_target), chosen)

    def _find(self, request: messages.Search) -> None:
        try:
            self.session.search(request)
        except TrtTuiError as error:
            self.app.push_screen(ErrorDialog(error.title, error.cause, error.next_step))
        self.last_word = ""
        self.draw()

    def _ask_to_take(self, question: str) -> None:
        """Asks whether what a search found becomes the config; if so, a search that still runs ends."""
        finding = self.session.finding
        if finding.config is None:
            self.say("nothing was found yet")
            return

        def answered(yes: bool | None) -> None:
            if not yes:
                return
            self._told_of = finding
            if self.session.searching and self.session.finding is finding:
                self.session.stop_job()
            if self.session.take_found():
                self._changed()
            self.say(f"{known.config_name(self.session)}: {found_so_far(finding)}; z takes it back", "")

        self.app.push_screen(Question(question, "take it", "leave it"), answered)

    def _search_ended(self) -> None:
        """Says once what a search found; where it was stopped, asks whether to take that."""
        session, finding = self.session, self.session.finding
        if finding is None or finding is self._told_of or finding.ended is None and session.searching:
            return
        self._told_of = finding
        if not finding.finished:
            if finding.config not in (None, session.config):
                self._ask_to_take(f"Take what the search found? {found_so_far(finding)}.")
            return
        result = finding.ended.result
        self.last_word = f"✓ {result.said}"
        if result.config == session.config:
            if result.config == finding.request.config:
                self.say(f"nothing to do: {result.said}", "")
            else:
                if self.following and result.why:
                    self._go_to(next(iter(result.why)))
                self.say(f"{known.config_name(session)}: {result.said}; z takes it back", "")
        elif result.outcome is Outcome.SHORT and result.best.raised:
            self._ask_to_take(f"Take the best within the budget? {result.said}.")
        else:
            why = "" if finding.met else "; its engine misses it" if finding.ended.confirmed is False else ""
            self.say(f"{result.said}{why}; c lists it as {known.config_name(session, result.config)}")

    # -- configs and files --------------------------------------------------------------------------------------

    def do_configs(self) -> None:
        self.app.push_screen(ConfigsPage(self), self._take_config)

    def _take_config(self, config: PrecisionConfig | None) -> None:
        if config is not None and config != self.session.config:
            self.session.set_config(config)
            self._changed()

    def on_config_list_taken(self, event: ConfigList.Taken) -> None:
        self._take_config(event.config)

    def mark_config(self, config: PrecisionConfig) -> None:
        """Marks a config as A where there is no A or both are set, else as B; takes a mark off again."""
        letter = next((mark for mark, one in self.marks.items() if one == config), None)
        if letter is not None:
            del self.marks[letter]
        elif "A" not in self.marks or "B" in self.marks:
            self.marks = {"A": config}
        else:
            self.marks["B"] = config

    def do_mark(self) -> None:
        configs = self.query_one("#configs", ConfigList)
        config = configs.chosen if configs.has_focus and configs.chosen is not None else self.session.config
        self.mark_config(config)
        letter = next((mark for mark, one in self.marks.items() if one == config), None)
        configs.show(self, self.query_one("#configs-header", Lines))
        name = known.config_name(self.session, config)
        self.say(f"{name} is {letter}" if letter else f"{name} is no longer marked", "")

    def do_diff(self) -> None:
        one = self.marks.get("A")
        other = self.marks.get("B", self.session.config)
        if one is None or one == other:
            named = list(self.session.names)
            index = named.index(other) if other in named else len(named)
            one = named[index - 1] if index else named[1]
        names = (known.config_name(self.session, config) for config in (one, other))
        self.app.push_screen(Page("What differs: {} and {}".format(*names),
                                  diff_lines(self.session, self.model, one, other)))

    def do_export(self) -> None:
        def chosen(answer: tuple[str, Path] | None) -> None:
            if answer is not None:
                self._export(*answer)

        self.app.push_screen(ExportDialog(self.session), chosen)

    def _export(self, kind: str, path: Path) -> None:
        if path.is_dir():
            self.app.push_screen(ErrorDialog(f"{path} is a folder", "", "Name a file in it."))
        elif path.exists():
            def answered(yes: bool | None) -> None:
                if yes:
                    self._write(kind, path, True)

            self.app.push_screen(Question(f"{path} exists. Overwrite it?", "overwrite", "keep it"), answered)
        else:
            self._write(kind, path, False)

    def _write(self, kind: str, path: Path, overwrite: bool) -> None:
        try:
            told = self.session.export(kind, path, overwrite)
        except TrtTuiError as error:
            self.app.push_screen(ErrorDialog(error.title, error.cause, error.next_step))
            return
        self.say(told, "")

    def do_log(self) -> None:
        self.app.push_screen(LogPage(self.session))

    # -- application --------------------------------------------------------------------------------------------

    def do_help(self) -> None:
        self.app.push_screen(HelpPage(self))

    def do_palette(self) -> None:
        def chosen(action_id: str | None) -> None:
            if action_id is not None:
                self.perform(action_id)

        self.app.push_screen(Palette(self), chosen)

    def do_theme(self) -> None:
        self.app.theme = "trt-light" if self.app.theme == "trt-dark" else "trt-dark"

    def do_quit(self) -> None:
        self.app.quit()

    # -- following the cursor -----------------------------------------------------------------------------------

    @on(LayerTree.Moved)
    @on(BlockMap.Moved)
    def _moved(self) -> None:
        self._touched()
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(REST_S, self._rested)
        self.draw_status()

    def _rested(self) -> None:
        self._rest = None
        self.draw_detail()
        group = self.current_group
        if group is not None and self.session.data is not None:
            self._looked = (group.name, self.session.config)
            self.session.look_at(group)

    def _look_where_it_is(self) -> None:
        """Asks for the detail of a row that the cursor is on without having been moved there by a key."""
        group = self.current_group
        if group is None or self._rest is not None or self._looked == (group.name, self.session.config):
            return
        if not self.following or self.session.measured("config").shares:
            self._rest = self.set_timer(REST_S, self._rested)

    @on(LayerTree.Opened)
    def _double_clicked(self) -> None:
        self.perform("open")

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.draw)
