"""The one table of keys: what each action is bound to, with what the user's own file changes.

Words that name a key ask `shown_key` for it, so that they hold whatever the file says.
"""

import difflib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import yaml

from trt_tui.errors import TrtTuiError
from trt_tui.files.read_budget import limit_file_reading
from trt_tui.files.reading import read_bytes

KeyTable = Mapping[str, tuple[str, ...]]
"""Keys by action, as Textual names them; the first is the one shown."""

KEYS: KeyTable = {
    "up": ("up", "k"), "down": ("down", "j"), "left": ("left", "h"), "right": ("right", "l"), "open": ("enter",),
    "page_up": ("pageup",), "page_down": ("pagedown",), "first": ("home",), "last": ("end",),
    "next_bad": ("n",), "previous_bad": ("comma",), "first_nan": ("w",), "filter": ("slash",), "all_found": ("0",),
    "toggle": ("space",), "toggle_kernel": ("u",), "higher": ("equals_sign",), "lower": ("minus",),
    "precision": ("p",), "barrier": ("f",), "rules": ("5",), "range": ("r",), "type_range": ("6",), "methods": ("7",),
    "free": ("9",), "undo": ("z",), "redo": ("full_stop",), "view": ("t",), "colour": ("v",), "sort": ("s",),
    "copy": ("y",), "pane_tree": ("1",), "pane_detail": ("2",), "pane_blocks": ("3",), "pane_configs": ("4",),
    "pictures": ("8",), "build": ("b",), "quick_build": ("f6",), "engine": ("i",), "find": ("a",),
    "compare": ("f5",), "stop": ("x",), "jobs": ("f9",), "target": ("g",), "configs": ("c",), "mark": ("m",),
    "diff": ("d",), "export": ("e",), "log": ("o",), "help": ("f1", "f2", "question_mark", "ctrl+p"),
    "theme": ("f8",), "close": ("escape",), "quit": ("q",)}
"""The keys as they are without a file. The first of each takes neither ctrl nor shift."""

DIALOG_KEYS: KeyTable = {"yes": ("y",), "no": ("n",), "name": ("n",), "pin": ("p",), "axis": ("a",),
                         "next_picture": ("tab", "n"), "stop_all": ("a",)}
"""The keys of what can be done in dialogs alone; what is also done on the main screen has the same key there."""

DEFAULT_KEYS: KeyTable = {**KEYS, **DIALOG_KEYS}
"""All of them."""

_MOVE_ACTIONS = ("up", "down", "page_up", "page_down", "first", "last", "open", "close", "quit")
ACTIONS_BY_SCREEN: Mapping[str, tuple[str, ...]] = {
    "": tuple(KEYS), "a question": ("yes", "no", "open", "close", "quit"), "an error": (*_MOVE_ACTIONS, "copy", "log"),
    "lists": (*_MOVE_ACTIONS, "toggle"), "settings": ("up", "down", "left", "right", "toggle", "open", "close"),
    "the configs": (*_MOVE_ACTIONS, "toggle", "configs", "mark", "diff", "name", "pin"),
    "the jobs": (*_MOVE_ACTIONS, "toggle", "jobs", "stop", "stop_all"),
    "the charts": (*_MOVE_ACTIONS, "left", "right", "axis", "next_picture")}
"""Which actions have keys at once: on the main screen, of the name "", and in each kind of dialog."""

_SHOWN_KEY_NAMES = {
    "full_stop": ".", "comma": ",", "slash": "/", "question_mark": "?", "minus": "-", "equals_sign": "=",
    "semicolon": ";", "apostrophe": "'", "grave_accent": "`", "backslash": "\\", "right_square_bracket": "]",
    "escape": "esc", "pageup": "pgup", "pagedown": "pgdn", "up": "↑", "down": "↓", "left": "←", "right": "→"
}
_KEY_NAMES_BY_TEXT = {shown: name for name, shown in _SHOWN_KEY_NAMES.items()}
_OTHER_KEY_NAMES = {"tab", "backspace", "insert", "delete", "home", "end", "enter", "space",
                    *(f"f{number}" for number in range(1, 25))}
_TEXTUAL_CHARACTER_NAMES = {"commercial_at": "at", "plus_sign": "plus", "low_line": "underscore"}
"""Characters that Textual names otherwise than Unicode, beside those of `_SHOWN_KEY_NAMES`."""
MAX_KEY_FILE_BYTES = 1 << 20
"""Size of a file of keys."""
_SPLIT_ARROW_CHARACTERS = "[OABCD"
"""Characters that a slow line leaves of an arrow key whose bytes it splits."""

_current_keys: dict[str, tuple[str, ...]] = dict(DEFAULT_KEYS)


def use_key_table(key_table: KeyTable) -> None:
    """Makes a table the one in use, in this process."""
    _current_keys.update(key_table)


def get_action_keys(action_id: str) -> tuple[str, ...]:
    """The keys of an action, as Textual names them."""
    return _current_keys[action_id]


def shown_key(action_id: str) -> str:
    return key_text(_current_keys[action_id][0])


def fill_in_keys(template: str) -> str:
    """A text with the keys in use in place of the names of actions in braces: ``{close} closes``."""
    return template.format_map({action: shown_key(action) for action in _current_keys})


def find_changed_keys() -> dict[str, str]:
    """The keys that are others than without a file, as Textual takes them in place of those of bindings."""
    return {action: ",".join(names) for action, names in _current_keys.items() if names != DEFAULT_KEYS[action]}


def find_current_key(default_key_text: str) -> str:
    """The key in use for the action that has a key, as it is shown, without a file."""
    return next((shown_key(action) for action, names in KEYS.items() if key_text(names[0]) == default_key_text),
                default_key_text)


def key_text(key_name: str) -> str:
    """A key as it is shown."""
    return _SHOWN_KEY_NAMES.get(key_name, key_name)


def user_keys_path() -> Path:
    """Where users keep keys of their own."""
    return Path(platformdirs.user_config_dir("trt-tui")) / "keys.json"


@dataclass(frozen=True)
class _KeyEntry:
    """What a file says of an action, and in which line."""

    action: str
    keys: tuple[str, ...]
    line: int


def read_key_file(path: Path) -> tuple[KeyTable, list[str]]:
    """The table with what a file changes, and what of the file is not taken, with its line and why.

    The file is JSON (YAML's comments may stand in it): ``{"build": "f4", "help": ["h", "?"]}``, the keys of an action
    in place of those that it has. An entry that clashes with another action is not taken, and every action keeps a key.
    Movement, closing and the like have the same keys in dialogs.
    """
    try:
        with limit_file_reading(path):
            text = read_bytes(path, MAX_KEY_FILE_BYTES).decode(errors="replace")
            root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except FileNotFoundError:
        return DEFAULT_KEYS, []
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        line_number = mark.line + 1 if mark is not None else 1
        return DEFAULT_KEYS, [f"{_file_location_text(path, line_number)}: not valid JSON; its keys are ignored"]
    except (OSError, TrtTuiError, RecursionError) as error:
        return DEFAULT_KEYS, [] if not path.exists() else [
            f"{path} cannot be read: {getattr(error, 'cause', '') or error}"
        ]
    if root is None:
        return DEFAULT_KEYS, []
    if not isinstance(root, yaml.MappingNode):
        return DEFAULT_KEYS, [
            f"{_file_location_text(path, root.start_mark.line + 1)}: it is to be an object: {{\"build\": \"f4\"}}"
        ]
    entries: dict[str, _KeyEntry] = {}
    errors: list[tuple[int, str]] = []
    for name, value in root.value:
        line_number = name.start_mark.line + 1
        entry = _parse_key_entry(name.value, value, line_number, entries)
        if isinstance(entry, str):
            errors.append((line_number, entry))
        else:
            entries[entry.action] = entry
    errors += _remove_clashing_entries(entries)
    key_table = {**DEFAULT_KEYS, **{entry.action: entry.keys for entry in entries.values()}}
    return key_table, [f"{_file_location_text(path, line_number)}: {reason}" for line_number, reason in sorted(errors)]


def _file_location_text(path: Path, line_number: int) -> str:
    return f"{path.name}, line {line_number}"


def _parse_key_entry(action_id: object, keys_node: yaml.Node, line_number: int,
                     entries: Mapping[str, _KeyEntry]) -> _KeyEntry | str:
    """An entry of the file, or why it cannot be taken."""
    if not isinstance(action_id, str) or action_id not in DEFAULT_KEYS:
        similar_actions = difflib.get_close_matches(str(action_id), DEFAULT_KEYS, 1)
        return f"there is no action {action_id}" + (f"; is it {similar_actions[0]}?" if similar_actions else "")
    if action_id in entries:
        return f"{action_id} is already in line {entries[action_id].line}"
    nodes = keys_node.value if isinstance(keys_node, yaml.SequenceNode) else [keys_node]
    names: list[str] = []
    for node in nodes:
        name = _parse_key(node.value) if isinstance(node, yaml.ScalarNode) else None
        if name is None:
            node_text = node.value or '""' if isinstance(node, yaml.ScalarNode) else "that"
            return f"{node_text} is not a key; {action_id} keeps {_default_keys_text(action_id)}"
        if node.value in _SPLIT_ARROW_CHARACTERS:
            return (
                f"{node.value} is a part of an arrow key on a slow connection; "
                f"{action_id} keeps {_default_keys_text(action_id)}"
            )
        names.append(name)
    if not names:
        return f"{action_id} needs a key; it keeps {_default_keys_text(action_id)}"
    return _KeyEntry(action_id, tuple(dict.fromkeys(names)), line_number)


def _default_keys_text(action_id: str) -> str:
    return " ".join(map(key_text, DEFAULT_KEYS[action_id]))


def _parse_key(text: str) -> str | None:
    """A key by its name or its character, as Textual names it; None where there is no such key."""
    *modifiers, base = text.split("+") if len(text) > 1 else [text]
    base = _KEY_NAMES_BY_TEXT.get(base.lower(), base)
    if modifiers and not {*modifiers} <= {"ctrl", "shift", "alt"}:
        return None
    if len(base) > 1:
        base = base.lower()
        if base not in _SHOWN_KEY_NAMES and base not in _OTHER_KEY_NAMES:
            return None
    elif base and not base.isalnum():
        name = unicodedata.name(base, "").lower().replace("-", "_").replace(" ", "_")
        base = _TEXTUAL_CHARACTER_NAMES.get(name, name)
    return "+".join((*modifiers, base)) if base else None


def _remove_clashing_entries(entries: dict[str, _KeyEntry]) -> list[tuple[int, str]]:
    """Drops the entries that give an action a key of another one, the later of two; tells their lines and why."""
    errors: list[tuple[int, str]] = []
    while True:
        key_table = {**DEFAULT_KEYS, **{entry.action: entry.keys for entry in entries.values()}}
        owners: dict[tuple[str, str], list[str]] = {}
        for screen, actions in ACTIONS_BY_SCREEN.items():
            for action in actions:
                for name in key_table[action]:
                    owners.setdefault((screen, name), []).append(action)
        clash = next(((screen, name, clashing) for (screen, name), clashing in owners.items() if len(clashing) > 1),
                     None)
        if clash is None:
            return errors
        screen, name, clashing = clash
        last = max((entries[action] for action in clashing if action in entries), key=lambda entry: entry.line)
        owner = next(action for action in clashing if action != last.action)
        del entries[last.action]
        errors.append((last.line, f"{key_text(name)} is the key of {owner}{f' in {screen}' if screen else ''}; "
                                 f"{last.action} keeps {_default_keys_text(last.action)}"))
