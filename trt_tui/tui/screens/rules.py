"""The dialog of keep rules, which keep layers in a float precision.

Each rule of the program has a line. One further line accepts patterns and names of layers.
"""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from trt_tui.core.moves.config import KEEP_PRECISIONS, KeepMove, PrecisionConfig
from trt_tui.core.moves.keep_rules import KEEP_RULE_TEXTS, KEEP_RULES
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.tui.screens.dialogs import ChoiceField, FieldsDialog, KeyHints
from trt_tui.tui.widgets.inputs import TextField, bind_keys


class RulesDialog(FieldsDialog):
    """A dialog in which the user chooses the keep rules. Its result is the config in which exactly the chosen rules
    apply.

    Args:
        apply_rules: Returns that config for the texts of the rules. Raises `TrtTuiError` if a text is not a valid rule.
    """

    AUTO_FOCUS, ENTER_TEXT = ".setting", "applies all at once"

    BINDINGS = bind_keys(open="apply", down="app.focus_next", up="app.focus_previous")

    def __init__(self, outline: NetworkOutline, config: PrecisionConfig,
                 apply_rules: Callable[[list[str]], PrecisionConfig]) -> None:
        super().__init__()
        self.apply_rules = apply_rules
        kept_precisions = {move.rule: move.precision for move in config.get_moves(KeepMove).values()}
        self.choice_fields: list[ChoiceField[str]] = []
        for rule, groups in KEEP_RULES.items():
            if count := len(groups(outline)):
                rule_text = f"{count:>3}: {KEEP_RULE_TEXTS[rule]}"
                choices = [("", f"not kept    {rule_text}"), (rule, f"kept FP32   {rule_text}"),
                           (f"{rule}=fp16", f"kept FP16   {rule_text}"), (f"{rule}=bf16", f"kept BF16   {rule_text}")]
                choice_field = ChoiceField(rule, choices, rule)
                if rule in kept_precisions:
                    choice_field.index = KEEP_PRECISIONS.index(kept_precisions[rule]) + 1
                self.choice_fields.append(choice_field)
        pattern_rules = [rule if precision is Precision.FP32 else f"{rule}={precision.value}"
                         for rule, precision in kept_precisions.items() if rule not in KEEP_RULES]
        self.pattern_text = ",".join(pattern_rules)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box wide"):
            yield Static("Kept by rule, even if other settings differ", classes="heading")
            yield from self.choice_fields
            with Vertical(classes="field"):
                yield Static("others ")
                yield TextField(self.pattern_text, placeholder="/regex/ or layers, with commas; add =fp16",
                                compact=True, select_on_focus=False, id="more")  # a list, to which patterns are added
            yield Static("", id="note", markup=False)
        yield KeyHints()

    def on_input_submitted(self) -> None:
        self.action_apply()

    def action_apply(self) -> None:
        """Closes the dialog with the new config, or shows the error in a rule."""
        texts = [setting.value for setting in self.choice_fields if setting.value]
        if text := self.query_one("#more", Input).value.strip():
            texts.append(text)
        try:
            config = self.apply_rules(texts)
        except TrtTuiError as error:
            self.show_note(". ".join(part.rstrip(".") for part in (error.title, error.cause) if part))
            return
        self.dismiss(config)
