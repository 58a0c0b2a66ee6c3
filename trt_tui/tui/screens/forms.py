"""The dialogs with fields: an export, the keep rules, and the start of a search."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.core.lowering.network_rewrite import quantizes_activations
from trt_tui.core.measure.target import Outcome
from trt_tui.core.moves.config import KEEP_PRECISIONS, KeepRuleMove, PrecisionConfig
from trt_tui.core.moves.keep_rules import KEEP_RULE_TEXTS, KEEP_RULES
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.core.quantized_types import BLOCK_PRECISIONS, QUANTIZED_TYPES
from trt_tui.core.search import TOP_DOWN_METHODS
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import escape_hidden_characters, is_hidden_character
from trt_tui.session.results import find_decisive_outcome
from trt_tui.session.search_status import MAX_BUILDS, make_search_request
from trt_tui.session.session import Session
from trt_tui.session.state import TOLERANCE_SEPARATOR
from trt_tui.tui.keys import fill_in_keys
from trt_tui.tui.screens.dialogs import ChoiceField, Dialog, FieldsDialog, KeyHints
from trt_tui.tui.state.config_status import config_title, search_start_name
from trt_tui.tui.widgets.inputs import KeyedOptionList, TextField, bind_keys

_LINES_BESIDE_FORMATS = 9
"""The lines of the dialog besides the list: border, heading, path, a note of three lines, and keys."""

_FIRST_FORMATS = 3
"""The number of formats in the list of exports before the entry "more"."""


class ExportDialog(Dialog):
    """A dialog that asks for an export format and a path, and then shows the error of the export.

    The dialog closes when the file is written.

    Attributes:
        job: The number of the job; None if none runs.

    Args:
        write_export: Requests the export of a format to a path. The function calls `wait_for_job` after it sent a
            request.
    """

    heading, box_classes = "Export", "wide"
    BINDINGS = bind_keys(up="formats")

    def __init__(self, session: Session, write_export: Callable[[str, Path], None]) -> None:
        super().__init__()
        self.write_export = write_export
        self.model_path = Path(session.options.model)
        exported_run = session.get_run_results("config").exported_run
        self.loading_options = exported_run.options if exported_run is not None else ""
        self.takes_sample_shapes = (
            not session.options.shapes
            and session.options.data is not None
            and any(info.has_open_size for info in session.opened_network.outline.inputs)
        )
        self.export_formats = list(EXPORT_FORMATS)
        self.export_format = self.export_formats[0]
        self.job: int | None = None

    def default_export_path(self, export_format: str) -> str:
        """Returns the proposed path for an export format, in the current folder."""
        stem = "".join("_" if is_hidden_character(character) else character for character in self.model_path.stem)
        return str(Path.cwd() / f"{stem}{EXPORT_FORMATS[export_format].suffix}")

    def compose_contents(self) -> ComposeResult:
        yield KeyedOptionList(
            *self._make_options()[:_FIRST_FORMATS],
            Option(f"{'more':<16} {len(self.export_formats) - _FIRST_FORMATS} formats for other tools"),
            compact=True,
        )
        yield Static("to", classes="dim")
        yield TextField(self.default_export_path(self.export_format), compact=True)
        yield Static("", id="note", markup=False)

    @staticmethod
    def _make_options() -> list[Option]:
        return [
            Option(Content(f"{export_format.title:<16} {export_format.description}"))
            for export_format in EXPORT_FORMATS.values()
        ]

    def on_mount(self) -> None:
        self.query_one(KeyedOptionList).highlighted = 0

    def update_lines(self) -> None:
        """Limits the height of the list, so that path and result stay visible on a low screen."""
        self.query_one(KeyedOptionList).styles.max_height = max(2, self.size.height * 9 // 10 - _LINES_BESIDE_FORMATS)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Selects a format. A proposed path that the user did not change is replaced by the path for the new format.

        The entry "more" is replaced by the other formats.
        """
        path, choices = self.query_one(Input), self.query_one(KeyedOptionList)
        if event.option_index == _FIRST_FORMATS and choices.option_count <= event.option_index + 1:
            choices.remove_option_at_index(event.option_index)
            choices.add_options(self._make_options()[_FIRST_FORMATS:])
            choices.highlighted = event.option_index
        untouched = path.value == self.default_export_path(self.export_format)
        self.export_format = self.export_formats[event.option_index]
        if untouched:
            path.value = self.default_export_path(self.export_format)
        notes = {
            f"ONNX Runtime loads the exported network {self.loading_options}, not by default.": self.loading_options,
            "The engine takes the shapes of the samples only: reopen with --shapes for others.": (
                self.takes_sample_shapes and EXPORT_FORMATS[self.export_format].has_build_commands
            ),
        }
        self.show_note(" ".join(note for note, applies in notes.items() if applies), False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.query_one(Input).focus()

    def action_formats(self) -> None:
        self.query_one(KeyedOptionList).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Requests the export, unless it is already running."""
        if not event.value.strip() or self.job is not None:
            return
        self.show_note("", False)
        try:
            self.write_export(self.export_format, Path(event.value.strip()).expanduser())
        except TrtTuiError as error:
            self.show_failure(error.title, error.cause, error.next_step)

    def wait_for_job(self, job_number: int) -> None:
        """Shows that the job runs, and keeps the dialog open until it ends."""
        self.job = job_number
        self.show_note(fill_in_keys("writing …  {close} closes this dialog; the export goes on"), False)
        self._show_current_keys()

    def show_finished_export(self, notice: str) -> None:
        """Closes the dialog. Under a page that was opened over it, it shows the written files instead."""
        self.job = None
        if self.is_current:
            self.dismiss(None)
        else:
            self.show_note(f"{notice}.", False)

    def show_failure(self, title: str, cause: str, next_step: str) -> None:
        """Shows why the file was not written; the user can then try another path or format."""
        self.job = None
        self.show_note(". ".join(part.rstrip(".") for part in (title, cause, next_step) if part) + ".")
        self._show_current_keys()

    def on_descendant_focus(self) -> None:
        """Shows the keys of the field with the focus."""
        self._show_current_keys()

    def _show_current_keys(self) -> None:
        keys = "{open} writes it  {up} formats" if self.job is None else "{up} formats"
        if not isinstance(self.focused, Input):
            keys = "{open} chooses the format  {up}{down} go"
        self.query_one(KeyHints).show_keys(f"{keys}  {{close}} close")


def find_export_dialog_of_job(screens: Iterable[Screen[Any]], job_number: int) -> ExportDialog | None:
    return next((screen for screen in screens if isinstance(screen, ExportDialog) and screen.job == job_number), None)


class RulesDialog(FieldsDialog):
    """A dialog in which the user chooses the keep rules. Its result is the config in which exactly the chosen rules
    apply.

    Args:
        apply_rules: Returns that config for the texts of the rules. Raises `TrtTuiError` if a text is not a valid rule.
    """

    heading, box_classes = "Kept by rule, even if other settings differ", "wide"
    AUTO_FOCUS, ENTER_TEXT = ".setting", "applies all at once"

    BINDINGS = bind_keys(open="apply", down="app.focus_next", up="app.focus_previous")

    def __init__(
        self, outline: NetworkOutline, config: PrecisionConfig, apply_rules: Callable[[list[str]], PrecisionConfig]
    ) -> None:
        super().__init__()
        self.apply_rules = apply_rules
        kept_precisions = {move.rule: move.precision for move in config.get_moves(KeepRuleMove).values()}
        self.choice_fields: list[ChoiceField[str]] = []
        for rule, groups in KEEP_RULES.items():
            if count := len(groups(outline)):
                choices = [
                    ("", "not kept "),
                    (rule, "kept FP32"),
                    (f"{rule}=fp16", "kept FP16"),
                    (f"{rule}=bf16", "kept BF16"),
                ]
                choice_field = ChoiceField(rule, choices, rule, f"{count:>4}: {KEEP_RULE_TEXTS[rule]}")
                if rule in kept_precisions:
                    choice_field.index = KEEP_PRECISIONS.index(kept_precisions[rule]) + 1
                self.choice_fields.append(choice_field)
        pattern_rules = [
            rule if precision is Precision.FP32 else f"{rule}={precision.value}"
            for rule, precision in kept_precisions.items()
            if rule not in KEEP_RULES
        ]
        self.pattern_text = ",".join(pattern_rules)

    def compose_contents(self) -> ComposeResult:
        yield from self.choice_fields
        patterns = TextField(
            self.pattern_text,
            placeholder="/regex/ or layers, with commas; add =fp16",
            compact=True,
            select_on_focus=False,
            id="more",
        )  # a list, to which patterns are added
        yield Vertical(Static("others "), patterns, classes="field")
        yield Static("", id="note", markup=False)

    def on_descendant_focus(self) -> None:
        """Shows the layers of the rule with the focus below the rules if its own line has no room for them."""
        super().on_descendant_focus()
        field = self.focused
        is_cut = isinstance(field, ChoiceField) and field.details not in field.render().plain
        self.show_note(field.details.strip() if isinstance(field, ChoiceField) and is_cut else "", is_error=False)

    def on_input_submitted(self) -> None:
        self.action_apply()

    def action_apply(self) -> None:
        """Closes the dialog with the new config, or shows the error in a rule."""
        settings = [setting.value for setting in self.choice_fields]
        texts = list(filter(None, [*settings, self.query_one("#more", Input).value.strip()]))
        try:
            config = self.apply_rules(texts)
        except TrtTuiError as error:
            self.show_note(". ".join(part.rstrip(".") for part in (error.title, error.cause) if part))
            return
        self.dismiss(config)


STRATEGY_TEXTS = {
    "auto": "chooses by the values measured",
    "greedy": "the largest gain first",
    "bisect": "the first layers, by halving",
    "bisect-reverse": "the last layers, by halving",
    "linear": "the first layers, one by one",
    "linear-reverse": "the last layers, one by one",
    "worst-first": "the worst layers, one by one",
    "scoped": "reduces layer by layer from FP32",
    "lower": "reduces the most expensive layers first",
}
"""A short description of each method in `trt_tui.core.search.SEARCH_METHODS`."""


class ConfigSearchDialog(FieldsDialog):
    """A dialog in which the user sets up a search. Its result is a tolerance and the search request.

    Args:
        get_error_text: Returns the error in a typed tolerance; "" if the tolerance is valid.
        is_target_met: True if the config already meets the target. A search for this target then starts without the
            raised layers, to find fewer. If no layer is raised, there is nothing to search.
    """

    AUTO_FOCUS, ENTER_TEXT = "#tolerance", "starts"

    BINDINGS = bind_keys(open="start", down="app.focus_next", up="app.focus_previous")

    def __init__(self, session: Session, get_error_text: Callable[[str], str], is_target_met: bool = False) -> None:
        super().__init__()
        self.config, self.get_error_text = session.config, get_error_text
        self.heading, self.is_downwards = "Find the fix: the fewest layers to raise", False
        self.tolerance = session.targets_text or "sqnr>=20"
        self.can_confirm = session.builder is not None and session.builder.can_run
        self.budget_example_text = "8 layers or 1.5 ms" if self.can_confirm else "8 layers"
        outline = session.outline
        assert outline is not None, "a search needs an open network"
        raised_groups = [outline.get_group(group_name) for group_name in session.config.find_raised_groups(outline)]
        self.unraised_config = session.config.without_group_precision(raised_groups)
        fewer_text = (
            f"{fill_in_keys('{open} looks for fewer')}, from {search_start_name(session, self.unraised_config)}"
            if self.unraised_config != session.config
            else "no layer is raised"
        )
        outcome = find_decisive_outcome(session.config_target_outcomes(session.config))
        doubt_text = " in doubt (PASS?)" if outcome and outcome.outcome is Outcome.UNCERTAIN_PASS else ""
        self.met_text = f"{config_title(session)} passes{doubt_text}; {fewer_text}" if is_target_met else ""
        self.may_have_lost_result = session.search_status is None and bool(session.saved_sha256)
        self.method_field = ChoiceField(
            "strategy", [(name, f"{name}: {description}") for name, description in STRATEGY_TEXTS.items()], "strategy"
        )
        self.higher_field = ChoiceField(
            "raise to",
            [
                (
                    (precision, intermediate),
                    f"{precision.label}, or {', '.join(lower.label for lower in intermediate)} where that does"
                    if intermediate
                    else precision.label,
                )
                for precision, intermediate in list_raised_precision_choices(self.config)
            ],
            "higher",
        )
        self.ranges_field = self.builds_field = None
        if quantizes_activations(outline, session.config):
            self.ranges_field = ChoiceField(
                "ranges", [(True, "other ones are tried first"), (False, "stay as they are")], "ranges"
            )
        if self.can_confirm:
            self.builds_field = ChoiceField(
                "engines",
                [(MAX_BUILDS, f"at most {MAX_BUILDS} are built to confirm it"), (0, "none: simulated only")],
                "builds",
            )

    def compose_contents(self) -> ComposeResult:
        yield Vertical(Static("target    "), TextField(self.tolerance, compact=True, id="tolerance"), classes="field")
        yield Vertical(
            Static("budget "),
            TextField("", placeholder=f"none; or like {self.budget_example_text}", compact=True, id="budget"),
            classes="field",
        )
        fields = (self.method_field, self.higher_field, self.ranges_field, self.builds_field)
        yield from (field for field in fields if field is not None)
        if self.builds_field is None:
            yield Static("engines      cannot run here: simulated only", classes="dim setting")
        if self.may_have_lost_result:
            yield Static("Pages of searches before this start are not kept.", classes="dim setting")
        yield Static(escape_hidden_characters(self.met_text), id="note", markup=False)

    def on_choice_field_changed(self) -> None:
        """Adapts the choice of ranges to the strategy. A top-down search keeps the ranges, unless the user requests
        others."""
        is_downwards = self.method_field.value in TOP_DOWN_METHODS
        if self.ranges_field is not None and is_downwards is not self.is_downwards:
            self.ranges_field.index = int(is_downwards)
        self.is_downwards = is_downwards

    def on_input_submitted(self) -> None:
        self.action_start()

    def action_start(self) -> None:
        """Closes the dialog with the search request, or shows the error in a field."""
        tolerance, text = (self.query_one(name, Input).value.strip() for name in ("#tolerance", "#budget"))
        max_raised, max_latency = parse_budget(text)
        max_builds = self.builds_field.value if self.builds_field is not None else MAX_BUILDS
        met_text = self.met_text if tolerance == self.tolerance else ""
        config = self.unraised_config if met_text else self.config
        errors = {
            met_text: config == self.config,
            self.get_error_text(tolerance): True,
            f"write a budget like {self.budget_example_text}": text and max_raised is max_latency is None,
            "a budget in ms needs engines, and none can run here": max_latency is not None and not self.can_confirm,
            "a budget in ms needs engines: let some be built": max_latency is not None and not max_builds,
        }
        if error_text := next((text for text, applies in errors.items() if text and applies), ""):
            self.show_note(error_text)
            return
        higher, intermediate = self.higher_field.value
        self.dismiss(
            (
                tolerance,
                make_search_request(
                    config,
                    tolerance.split(TOLERANCE_SEPARATOR),
                    method=self.method_field.value,
                    higher_precision=higher,
                    intermediate_precisions=intermediate,
                    try_ranges=self.ranges_field.value if self.ranges_field is not None else None,
                    max_raised=max_raised,
                    max_latency=max_latency,
                    max_builds=max_builds,
                ),
            )
        )


def parse_budget(text: str) -> tuple[int | None, float | None]:
    """Returns a budget as a number of layers or as a latency in milliseconds; (None, None) if the text is not a budget."""
    if not (match := re.fullmatch(r"(\d+(?:\.\d+)?) *(layers?|ms|)", text)):
        return None, None
    number, unit = match.groups()
    if unit == "ms":
        return None, float(number)
    return (int(number), None) if number.isdecimal() else (None, None)


def list_raised_precision_choices(config: PrecisionConfig) -> list[tuple[Precision, tuple[Precision, ...]]]:
    """Returns the choices of precisions that a search may raise layers to, each with its intermediate precisions.

    Layers can be raised to FP32, or to the 16-bit type of the layers around quantized ones. The last choice has all
    intermediate precisions.
    """
    quantized_rank, other_rank = precision_rank(config.quantized), precision_rank(config.other)
    boundary_types = [config.other] if quantized_rank < other_rank < precision_rank(Precision.FP32) else []
    lower_types = [
        precision
        for precision in (reversed(Precision) if boundary_types else ())
        if (quantized_type := QUANTIZED_TYPES.get(precision)) is not None
        and quantized_type.quantizes_activations
        and quantized_rank < precision_rank(precision)
        and (not quantized_type.block_scale_type or config.quantized in BLOCK_PRECISIONS)
    ]
    intermediate = [tuple(types) for types in (boundary_types, lower_types and [*lower_types, config.other]) if types]
    finer_types = [Precision.FP16_ACC_FP32, Precision.BF16] if config.other is Precision.FP16 else []
    if finer_types or config.other is Precision.FP32 and not config.tf32:
        intermediate.append((*lower_types, *boundary_types, *finer_types, *(() if config.tf32 else (Precision.TF32,))))
    return [
        (Precision.FP32, ()),
        *((precision, ()) for precision in boundary_types),
        *((Precision.FP32, precisions) for precisions in intermediate),
    ]
