"""The dialog of the rules that keep layers in a float precision: a line for each, and one for patterns and layers."""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep import KEPT_IN, Keep
from trt_tui.core.moves.keeping import RULE_TEXTS, RULES
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.tui.keys import worded
from trt_tui.tui.screens.dialogs import CLOSE, Dialog, Setting
from trt_tui.tui.widgets.field import Field
from trt_tui.words import visible


class RulesDialog(Dialog):
    """Dismisses with the config in which exactly the chosen rules keep layers.

    Args:
        kept: Makes that config of the texts of rules; raises `TrtTuiError` where one of them is wrong.
    """

    AUTO_FOCUS = ".setting"

    BINDINGS = [CLOSE, Binding("enter", "apply", id="open"), Binding("down,j", "app.focus_next", id="down"),
                Binding("up,k", "app.focus_previous", id="up")]

    def __init__(self, outline: Outline, config: PrecisionConfig, kept: Callable[[list[str]], PrecisionConfig]) -> None:
        super().__init__()
        self.kept = kept
        given = {move.rule: move.precision for move in config.of(Keep).values()}
        self.settings: list[Setting[str]] = []
        for rule, groups in RULES.items():
            if count := len(groups(outline)):
                what = f"{count:>3}: {RULE_TEXTS[rule]}"
                choices = [("", f"as decided  {what}"), (rule, f"kept FP32   {what}"),
                           (f"{rule}=fp16", f"kept FP16   {what}"), (f"{rule}=bf16", f"kept BF16   {what}")]
                setting = Setting(rule, choices, rule)
                if rule in given:
                    setting.index = KEPT_IN.index(given[rule]) + 1
                self.settings.append(setting)
        own = [rule if precision is Precision.FP32 else f"{rule}={precision.value}"
               for rule, precision in given.items() if rule not in RULES]
        self.more = ",".join(own)

    def compose(self) -> ComposeResult:
        """Its parts."""
        with Vertical(classes="box wide"):
            yield Static("Kept by rule, whatever else is decided", classes="heading")
            yield from self.settings
            with Vertical(classes="field"):
                yield Static("others ")
                yield Field(self.more, placeholder="/regex/ or layers, with commas; =fp16 behind one", compact=True,
                            select_on_focus=False, id="more")
            yield Static("", id="note", markup=False)
            yield Static(worded("{open} applies all at once  {up}{down} go  {left}{right} change  {close} close"),
                         classes="hint")

    def on_input_submitted(self) -> None:
        """Enter was pressed in the line."""
        self.action_apply()

    def action_apply(self) -> None:
        """Closes with the config, or says what is wrong."""
        texts = [setting.value for setting in self.settings if setting.value]
        if text := self.query_one("#more", Input).value.strip():
            texts.append(text)
        try:
            config = self.kept(texts)
        except TrtTuiError as error:
            note = self.query_one("#note", Static)
            note.update(Content(visible(". ".join(part.rstrip(".") for part in (error.title, error.cause) if part))))
            note.add_class("bad")
            return
        self.dismiss(config)
