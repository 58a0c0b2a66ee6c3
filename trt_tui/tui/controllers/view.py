"""What the rows show: their view, their colour, their order; and the panes."""

from collections.abc import Callable, Mapping
from typing import Any

from trt_tui.core.network.hierarchy import GroupRow, LayerRow, Scope
from trt_tui.jobs import events as ev
from trt_tui.tui.controllers.controller import Controller, action
from trt_tui.tui.screens.dialogs import Item, Picker
from trt_tui.tui.state.figures import Measure, engine_errors
from trt_tui.tui.state.order import Column, weights_by
from trt_tui.tui.state.tree import View
from trt_tui.words import visible

_RUNS = {"config": ("config", "oiae"), "int8": ("INT8", "1237"), "fp16": ("FP16", "4568")}
_MEASURES = {Measure.OWNS: "share of the judged error", Measure.ISOLATED: "isolated error",
             Measure.ACCUMULATED: "accumulated error", Measure.ENGINE: "engine error"}


class Looks(Controller):
    """See the module's docstring."""

    def heeds(self) -> Mapping[type[ev.Event], Callable[[Any], None]]:
        """Handlers that draw the rows anew where their figures are others, the detail where it tells more."""
        figures = (ev.Opened, ev.Hashed, ev.VerdictMeasured, ev.LayersMeasured, ev.SharesMeasured,
                   ev.RaisedMeasured, ev.ExportedMeasured, ev.Built, ev.Fp32EngineJudged, ev.BuilderReady,
                   ev.EnginePreviewed, ev.EngineErrorsMeasured, ev.ReferenceMeasured, ev.Replaced, ev.Failed, ev.Died)
        return {**dict.fromkeys(figures, self._figures_changed),
                **dict.fromkeys((ev.StatsMeasured, ev.WaysOutMeasured), self._more_is_known),
                ev.Done: self._done}

    def _figures_changed(self, event: ev.Event) -> None:
        self.desk.stale_figures = True

    def _done(self, event: ev.Done) -> None:
        self.desk.stale_figures |= self.listing.following

    def _more_is_known(self, event: ev.Event) -> None:
        if self.desk.resting:
            self.desk.draw_detail()

    @action(label="view", help="Tree, worst first, blocks", group="Look", disabled=Controller.not_open, footer=41)
    def view(self) -> None:
        """Goes on to the next view."""
        views = self.listing.views
        self.see(views[(views.index(self.listing.view) + 1) % len(views)])

    def see(self, view: View) -> None:
        """Shows a view; the cursor stays on its row."""
        desk, listing = self.desk, self.listing
        line = desk.current_line
        desk.set_view(view)
        if listing.view is View.WORST and listing.figures.values:
            listing.sort(Column.SHARE)
        if listing.view is View.BLOCKS:
            desk.show_blocks(line.row.group.name if line is not None and isinstance(line.row, GroupRow) else "")
        else:
            desk.tree.focus()
        if line is not None and isinstance(line.row, GroupRow):
            listing.reveal(line.row.group.name)
        desk.draw_tree(line.key if line is not None and listing.placed else None)
        desk.draw_soon()

    @action(label="colour by", help="Colour by share, isolated or accumulated error; of FP16, INT8 or the config",
            group="Look", disabled=Controller.not_open, footer=42)
    def colour(self) -> None:
        """Asks what to colour by."""
        listing = self.listing
        items = []
        for run, (run_title, keys) in _RUNS.items():
            for key, (measure, title) in zip(keys, _MEASURES.items(), strict=True):
                found = listing.figures_in(measure, run)
                empty = "" if found.values or found.bad else "not measured"
                if measure is Measure.ENGINE and empty:
                    if run == "config" and not self.no_marked_engine():
                        title, empty = "engine error: builds a second engine, marked", ""
                    else:
                        empty = self._why_no_engine_error(run)
                items.append(Item(key, f"{run_title:<6} {title}", (measure, run), empty))

        def chosen(value: tuple[Measure, str] | None) -> None:
            if value is not None:
                listing.measure, listing.run = value
                if value == (Measure.ENGINE, "config") and not engine_errors(self.session, "config"):
                    self.session.build(marked=True)
                self.desk.draw()

        self.desk.app.push_screen(Picker("Colour by", items, (listing.measure, listing.run)), chosen)

    def no_marked_engine(self) -> str:
        """Why no second engine can be built to look into."""
        if reason := self.cannot_build():
            return reason
        builder = self.session.builder
        return "" if builder is not None and builder.runs else "no engine runs here"

    def _why_no_engine_error(self, run: str) -> str:
        """Why there are no errors inside the engine of a run."""
        engine = self.session.measured(run).engine
        if engine is not None and engine.inside is not None and engine.inside.missing:
            return engine.inside.missing
        return self.no_marked_engine() or "not measured"

    @action(label="sort", help="Sort by the newest figures, worst first; again: network order. A click on a column's "
            "title sorts by it", group="Look", disabled=Controller.not_open)
    def sort(self) -> None:
        """Orders the rows anew, or as in the network."""
        self.sort_by(Column.SHARE)

    def sort_by(self, column: Column) -> None:
        """Orders the rows by the newest figures of a column; as in the network where they are so already."""
        desk, listing = self.desk, self.listing
        if not listing.is_measured:
            return
        desk.touched()
        newest = weights_by(listing.figures, column)
        if not newest and column is not Column.LAYER:
            desk.say(f"nothing is known to sort by {column.value}" if column is not Column.SHARE else
                     "nothing was measured to sort by")
            return
        there = listing.by is column and listing.order is not None and dict(listing.order) == newest
        if column is Column.LAYER or there and listing.view is View.TREE:
            listing.sort(Column.LAYER)
            desk.say("network order", "")
        else:
            listing.sort(column)
            listing.following = True
            what = column.value if column is Column.SHARE else f"sorted by {column.value}"
            desk.say(f"{what}, and follows the figures until the cursor moves", "")
        desk.draw_tree()

    @action(label="copy name", help="Copy the full name to the clipboard (OSC 52)", group="Look",
            disabled=Controller.no_row)
    def copy(self) -> None:
        """Copies the name of the row."""
        line = self.desk.current_line
        if line is None:
            return
        row = line.row
        if row is None:
            name = line.node
        elif isinstance(row, GroupRow):
            name = row.group.name
        elif isinstance(row, LayerRow):
            name = row.layer.name
        else:
            name = row.path if isinstance(row, Scope) else row.label
        self.desk.app.copy_to_clipboard(visible(name))
        self.desk.say(f"copied {name}", "")

    @action(label="list", help="Go to the list; again: it alone, and back", group="Look")
    def pane_tree(self) -> None:
        """To the list, or from there the list alone."""
        desk = self.desk
        pane = desk.block_map if self.listing.view is View.BLOCKS else desk.tree
        there = desk.zoomed != "detail" and pane.has_focus
        pane.focus()
        desk.zoom("list" if there and desk.zoomed != "list" else "")

    @action(label="detail", help="The detail alone, and back", group="Look", disabled=Controller.no_row)
    def pane_detail(self) -> None:
        """The detail large or small."""
        self.desk.zoom("" if self.desk.zoomed == "detail" else "detail")

    def no_blocks(self) -> str:
        """Why there is no heat map."""
        return self.not_open() or ("" if self.listing.model.blocks is not None
                                   else "this network does not repeat, so it has no blocks")

    @action(label="blocks", help="Go to the blocks", group="Look", disabled=no_blocks)
    def pane_blocks(self) -> None:
        """To the heat map."""
        group = self.desk.current_group
        self.desk.set_view(View.BLOCKS)
        self.desk.show_blocks(group.name if group is not None else "")
        self.desk.zoom(self.desk.zoomed if self.desk.zoomed == "list" else "")

    @action(label="configs", help="Go to the configs; again: they alone, and back", group="Look",
            disabled=Controller.not_open)
    def pane_configs(self) -> None:
        """To the list of configs, from there the list alone; to its page where there is no room for the list."""
        desk = self.desk
        if desk.zoomed == "detail":
            desk.zoom("")
        if desk.configs.display or desk.zoomed == "list":
            there = desk.configs.has_focus
            desk.zoom("configs" if there and desk.zoomed != "configs" else "")
            desk.configs.focus()
        else:
            self.desk.perform("configs")
