"""The help page: all actions with their keys, and all words that are explained, with a search field.

Enter performs the selected action, or explains the selected word.
"""

from collections.abc import Callable, Mapping, Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from trt_tui.core.report.glossary import Term
from trt_tui.formatting import cell_width
from trt_tui.tui.actions import ACTIONS, Action
from trt_tui.tui.keys import get_action_keys, key_text
from trt_tui.tui.screens.dialogs import Dialog, KeyHints
from trt_tui.tui.spans import wrap_text
from trt_tui.tui.widgets.inputs import KeyedOptionList, TextField, bind_keys

_TEXT_INDENT = 13
"""The number of cells before the text of an action."""

_TERM_PREFIX = "term "
"""The beginning of the ids of entries for words, which no action id has."""


class HelpPage(Dialog):
    """A page that lists every action with its keys, its help text and the reason why it is disabled, and every word.

    The result is the id of the chosen action, or the chosen `Term`. If consecutive actions have the same reason, only
    the first shows the reason.

    Args:
        disabled_reason: Returns the reason why an action is impossible now, by its id; "" if it is possible.
        terms: The words, columns and marks that are explained, by their heading.
    """

    BINDINGS = bind_keys(down="go('down')", up="go('up')", page_down="go('page_down')",
                         page_up="go('page_up')")

    def __init__(self, disabled_reason: Callable[[str], str], terms: Mapping[str, Sequence[Term]]) -> None:
        super().__init__()
        self.terms = terms
        self._listed_terms: dict[str, Term] = {}
        groups = list(dict.fromkeys(action.group for action in ACTIONS))
        self.actions = sorted(ACTIONS, key=lambda action: groups.index(action.group))
        self.disabled_reasons = {action.id: disabled_reason(action.id) for action in ACTIONS}

    def compose(self) -> ComposeResult:
        with Vertical(classes="box page"):
            yield Static("Keys, actions, words and marks", classes="heading")
            yield TextField(placeholder="an action, a key, a word or a mark", compact=True)
            yield KeyedOptionList(compact=True)
        yield KeyHints()

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    @on(Input.Changed)
    def update_lines(self) -> None:
        """Lists the actions that match all typed words, under the headings of their groups."""
        choices = self.query_one(KeyedOptionList)
        terms = self.query_one(Input).value.lower().split()
        matching = [action for action in self.actions if self._matches_search_terms(action, terms)]
        options: list[Option] = []
        group = previous_reason = ""
        for action in matching:
            if action.group != group:
                group, previous_reason = action.group, ""
                options.append(Option(Content.styled(group, "bold"), disabled=True))
            disabled_reason = self.disabled_reasons[action.id]
            options.append(
                Option(
                    self._build_action_entry(action,
                                             "" if disabled_reason == previous_reason else disabled_reason),
                    id=action.id))
            previous_reason = disabled_reason
        options = self._build_term_options(terms) + options if self._is_term_name(terms) else (
            options + self._build_term_options(terms))
        choices.set_options(options)
        choices.highlighted = next((index for index, choice in enumerate(options) if choice.id is not None), None)

    def _is_term_name(self, search_terms: list[str]) -> bool:
        """Returns True if the typed text is the name of a word and no key; words are listed first then."""
        text = " ".join(search_terms)
        return any(term.is_named(text) for terms in self.terms.values() for term in terms) and not any(
            text == key_text(key) for action in self.actions for key in get_action_keys(action.id))

    def _build_term_options(self, search_terms: list[str]) -> list[Option]:
        """Returns the entries of the words that match all typed words. Words with exactly this name are first."""
        text, options = " ".join(search_terms), list[Option]()
        self._listed_terms = {}
        for heading, terms in sorted(self.terms.items(),
                                     key=lambda entry: not any(term.is_named(text) for term in entry[1])):
            matching = sorted((term for term in terms if self._term_matches(term, heading, search_terms)),
                              key=lambda term: not term.is_named(text))
            if matching:
                options.append(Option(Content.styled(heading, "bold"), disabled=True))
            for term in matching:
                option_id = f"{_TERM_PREFIX}{len(self._listed_terms)}"
                self._listed_terms[option_id] = term
                options.append(Option(self._build_entry(term.name, term.explanation), id=option_id))
        return options

    @staticmethod
    def _term_matches(term: Term, heading: str, search_terms: list[str]) -> bool:
        text = " ".join((heading, term.name, *term.other_names, term.explanation)).lower()
        return all(word in text for word in search_terms)

    @staticmethod
    def _matches_search_terms(action: Action, search_terms: list[str]) -> bool:
        names = [key_text(key) for key in get_action_keys(action.id)]
        text = f"{action.label} {action.help} {action.group}".lower()
        return all(term in text or term in names for term in search_terms)

    def _build_action_entry(self, action: Action, disabled_reason: str) -> Content:
        return self._build_entry(" ".join(map(key_text, get_action_keys(action.id))), action.help, disabled_reason,
                                 bool(self.disabled_reasons[action.id]))

    def _build_entry(self, names: str, explanation: str, disabled_reason: str = "", is_quiet: bool = False) -> Content:
        width = max(20, (self.query_one(KeyedOptionList).size.width or 70) - _TEXT_INDENT - 2)
        lines = wrap_text(explanation, width)
        if cell_width(names) > _TEXT_INDENT - 4:  # keys that are too wide get a line above the text
            text = [f"  {names}", *(" " * _TEXT_INDENT + line for line in lines)]
        else:
            text = [f"  {names:<{_TEXT_INDENT - 2}}{lines[0]}", *(" " * _TEXT_INDENT + line for line in lines[1:])]
        text += [
            " " * _TEXT_INDENT + line
            for line in (wrap_text(f"not now: {disabled_reason}", width) if disabled_reason else ())
        ]
        content = Content("\n".join(text))
        if is_quiet:
            return content.stylize("$quiet")
        return content.stylize("bold $accent", 2, 2 + len(names))

    @property
    def text(self) -> str:
        """The text of the listed actions, without styles."""
        choices = self.query_one(KeyedOptionList)
        return "\n".join(str(choices.get_option_at_index(index).prompt) for index in range(choices.option_count))

    def action_go(self, direction: str) -> None:
        """Moves the cursor of the list while the focus stays in the search field."""
        choices = self.query_one(KeyedOptionList)
        if direction.startswith("page"):
            (choices.action_page_down if direction == "page_down" else choices.action_page_up)()
        else:
            (choices.action_cursor_down if direction == "down" else choices.action_cursor_up)()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Shows the id of the selected action, which users write in ``keys.json``."""
        is_term = event.option_id in self._listed_terms
        name = f"  keys.json: \"{event.option_id}\"" if event.option_id is not None and not is_term else ""
        verb = "explains" if is_term else "runs"
        keys_text = f"{{up}}{{down}} go  {{open}} {verb} it{name}  {{close}} close"
        self.query_one(KeyHints).show_keys(f"type to find  {keys_text}")

    def on_input_submitted(self) -> None:
        self._dismiss_with_action(self.query_one(KeyedOptionList).highlighted_option)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._dismiss_with_action(event.option)

    def _dismiss_with_action(self, option: Option | None) -> None:
        if option is not None and option.id is not None:
            self.dismiss(self._listed_terms.get(option.id, option.id))
