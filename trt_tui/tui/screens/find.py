"""The dialog that starts a search: the tolerance, a budget, the strategy, what layers are raised to."""

import re
from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from trt_tui.core.lowering.lowered import quantizes
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision, rank
from trt_tui.core.search import DOWNWARDS
from trt_tui.session.finding import MAX_BUILDS, search_request
from trt_tui.session.session import Session
from trt_tui.tui.keys import worded
from trt_tui.tui.screens.dialogs import CLOSE, Dialog, Setting
from trt_tui.tui.widgets.field import Field
from trt_tui.words import visible

STRATEGIES = {
    "auto": "chooses by what is known",
    "greedy": "the largest gain first",
    "bisect": "the first layers, by halving",
    "bisect-reverse": "the last layers, by halving",
    "linear": "the first layers, one by one",
    "linear-reverse": "the last layers, one by one",
    "worst-first": "the worst layers, one by one",
    "scoped": "lowers layer by layer from FP32",
    "lower": "lowers what saves most time first",
}
"""What each method of `trt_tui.core.search.SEARCH_METHODS` does, in a few words."""

class FindDialog(Dialog):
    """Dismisses with a tolerance and the request of a search for it.

    Args:
        wrong_with: What is wrong with a tolerance, "" where nothing is.
        met: Whether the config meets the target: then only what lowers from FP32 has anything to find.
    """

    AUTO_FOCUS = "#tolerance"

    BINDINGS = [CLOSE, Binding("enter", "start", id="open"), Binding("down,j", "app.focus_next", id="down"),
                Binding("up,k", "app.focus_previous", id="up")]

    def __init__(self, session: Session, name: str, wrong_with: Callable[[str], str], met: bool = False) -> None:
        super().__init__()
        self.config, self.config_name, self.wrong_with, self.met = session.config, name, wrong_with, met
        self.down = False
        self.tolerance = session.target.text if session.target is not None else "sqnr>=20"
        self.confirms = session.builder is not None and session.builder.runs
        outline = session.outline
        assert outline is not None, "a search begins where a network is open"
        self.method = Setting("strategy", [(name, f"{name}: {what}") for name, what in STRATEGIES.items()], "strategy")
        self.higher = Setting("raise to", [((one, between), rungs_text(one, between))
                                           for one, between in higher_than(self.config)], "higher")
        self.ranges = self.builds = None
        if quantizes(outline, session.config):
            self.ranges = Setting("ranges", [(True, "other ones are tried first"), (False, "stay as they are")],
                                  "ranges")
        if self.confirms:
            self.builds = Setting("engines", [(MAX_BUILDS, f"at most {MAX_BUILDS} are built to confirm it"),
                                              (0, "none: simulated only")], "builds")

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box"):
            yield Static(f"Find the fix: the fewest layers of {visible(self.config_name)} to raise", classes="heading",
                         markup=False)
            with Vertical(classes="field"):
                yield Static("tolerance ")
                yield Field(self.tolerance, compact=True, select_on_focus=False, id="tolerance")
            with Vertical(classes="field"):
                yield Static("budget ")
                yield Field("", placeholder=f"none; or like {self.budgets}", compact=True, id="budget")
            yield self.method
            yield self.higher
            if self.ranges is not None:
                yield self.ranges
            if self.builds is not None:
                yield self.builds
            else:
                yield Static("engines      none run here: simulated only", classes="dim setting")
            met = f"{self.config_name} meets it: scoped and lower alone have something to do, from FP32 down"
            yield Static(visible(met) if self.met else "", id="note", markup=False)
            yield Static(worded("{open} starts  {up}{down} go  {left}{right} change  {close} close"), classes="hint")

    @property
    def budgets(self) -> str:
        """An example of each budget that can be given."""
        return "8 layers or 1.5 ms" if self.confirms else "8 layers"

    def on_setting_changed(self) -> None:
        """Ranges stay as they are in what goes downwards, unless they are asked for."""
        down = self.method.value in DOWNWARDS
        if self.ranges is not None and down is not self.down:
            self.ranges.choose(not down)
        self.down = down

    def on_input_submitted(self) -> None:
        """Enter was pressed in a line."""
        self.action_start()

    def action_start(self) -> None:
        """Starts the search, or says what is wrong."""
        tolerance, text = (self.query_one(name, Input).value.strip() for name in ("#tolerance", "#budget"))
        raised, latency = parse_budget(text)
        builds = self.builds.value if self.builds is not None else MAX_BUILDS
        wrong = self.wrong_with(tolerance)
        if not wrong and text and raised is latency is None:
            wrong = f"a budget is like {self.budgets}"
        if not wrong and latency is not None and not self.confirms:
            wrong = "a budget in ms needs engines, and none runs here"
        if not wrong and latency is not None and not builds:
            wrong = "a budget in ms needs engines: let some be built"
        if wrong:
            note = self.query_one("#note", Static)
            note.update(Content(visible(wrong)))
            note.add_class("bad")
            return
        higher, between = self.higher.value
        self.dismiss((tolerance, search_request(
            self.config, (tolerance,), method=self.method.value, higher=higher, rungs=between,
            ranges=self.ranges.value if self.ranges is not None else None, max_raised=raised, max_latency=latency,
            max_builds=builds)))


def parse_budget(text: str) -> tuple[int | None, float | None]:
    """How many layers, or how many milliseconds; neither where the text is no budget."""
    if not (match := re.fullmatch(r"(\d+(?:\.\d+)?) *(layers?|ms|)", text)):
        return None, None
    number, unit = match.groups()
    if unit == "ms":
        return None, float(number)
    return (int(number), None) if number.isdecimal() else (None, None)


def higher_than(config: PrecisionConfig) -> list[tuple[Precision, tuple[Precision, ...]]]:
    """What layers of a config can be raised to, FP32 and the 16-bit type around codes, and the rungs below it: the last
    has all."""
    around = [config.other] if rank(config.quantized) < rank(config.other) < rank(Precision.FP32) else []
    lower = [one for one in (Precision.INT8, Precision.FP8) if rank(config.quantized) < rank(one)] if around else []
    between = [tuple(around), *([(*lower, *around)] if lower else [])] if around else []
    finer = [one for one in (Precision.FP16_SUMS_FP32, Precision.BF16) if config.other is Precision.FP16]
    if finer or config.other is Precision.FP32 and not config.tf32:
        between.append((*lower, *around, *finer, *(() if config.tf32 else (Precision.TF32,))))
    return [(Precision.FP32, ()), *((one, ()) for one in around), *((Precision.FP32, rungs) for rungs in between)]


def rungs_text(higher: Precision, between: Sequence[Precision]) -> str:
    """A choice of `higher_than` in words: "FP32, or FP8, FP16 where that does"."""
    return f"{higher.label}, or {', '.join(one.label for one in between)} where that does" if between else higher.label

