"""The table of keys: the default keys of all actions, and the changes of a user's ``keys.json``.

A text that names a key calls `shown_key`, so that it is correct after such changes too.
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
"""The keys of each action by its id, as Textual names them. The program shows the first key of an action."""

KEYS: KeyTable = {
    "up": ("up", "k"), "down": ("down", "j"), "left": ("left", "h"), "right": ("right", "l"), "open": ("enter",),
    "page_up": ("pageup",), "page_down": ("pagedown",), "first": ("home",), "last": ("end",),
    "next_bad": ("n",), "previous_bad": ("comma", "N"), "first_nan": ("w",), "filter": ("slash",), "all_found": ("0",),
    "toggle": ("space",), "toggle_kernel": ("u",), "higher": ("equals_sign",), "lower": ("minus",),
    "precision": ("p",), "barrier": ("f",), "rules": ("5",), "range": ("r",), "type_range": ("6",), "methods": ("7",),
    "free": ("9",), "remove_qdq": ("semicolon",), "undo": ("z",), "redo": ("full_stop", "ctrl+r"),
    "sessions": ("S",), "view": ("t",),
    "colour": ("v",), "sort": ("s",), "sort_by": ("apostrophe",),
    "copy": ("y",),
    "pane_tree": ("1",), "pane_detail": ("2",), "pane_blocks": ("3",), "pane_configs": ("4",),
    "pictures": ("8",), "build": ("b",), "quick_build": ("f6",), "engine": ("i",), "find": ("a",),
    "compare": ("f5",), "stop": ("x",), "jobs": ("f9",), "target": ("g",), "configs": ("c",),
    "export": ("e",), "log": ("o",), "help": ("f1", "f2", "question_mark", "colon", "ctrl+p"),
    "explain": ("f3",),
    "preview_gpu": ("f12",), "theme": ("f8",), "close": ("escape",), "quit": ("q",)}
"""The default keys of the actions on the main screen. The first key of each action needs no ctrl, and no
shift besides those of capital letters. The help page lists all actions, and performs them without their keys."""

DIALOG_KEYS: KeyTable = {"yes": ("y",), "no": ("n",), "name": ("n",), "next_picture": ("tab", "n"), "stop_all": ("a",),
                         "delete_session": ("d", "delete")}
"""The default keys of actions that exist in dialogs only. An action that the main screen also has keeps its key there.
"""

DEFAULT_KEYS: KeyTable = {**KEYS, **DIALOG_KEYS}
"""The default keys of all actions, on the main screen and in dialogs."""

REMOVED_KEYS: Mapping[str, str] = {
    "Z": "{undo} undoes the changes one by one, and {redo} redoes them",
    **dict.fromkeys("md", "{export} exports two configs, and trt-tui compare --config A --config B compares them"),
    "Y": "views are not written to files; {export} exports a report, and trt-tui compare --markdown the tables"}
"""The message for each key that had an action in an earlier release: the way round, with action ids in braces."""

_MOVE_ACTIONS = ("up", "down", "page_up", "page_down", "first", "last", "open", "close", "quit")
ACTIONS_BY_SCREEN: Mapping[str, tuple[str, ...]] = {
    "": tuple(KEYS), "a question": ("yes", "no", "open", "close", "quit"), "an error": (*_MOVE_ACTIONS, "copy", "log"),
    "a file": ("up", "down", "left", "right", "toggle", "open", "close"),
    "lists": (*_MOVE_ACTIONS, "toggle"),
    "settings": ("up", "down", "left", "right", "toggle", "open", "close"),
    "the configs": (*_MOVE_ACTIONS, "toggle", "configs", "name"),
    "the jobs": (*_MOVE_ACTIONS, "toggle", "jobs", "stop", "stop_all"),
    "an explanation": (*_MOVE_ACTIONS, "left", "right", "explain"),
    "the sessions": (*_MOVE_ACTIONS, "toggle", "sessions", "delete_session"),
    "a search result": (*_MOVE_ACTIONS, "find"),
    "the charts": (*_MOVE_ACTIONS, "left", "right", "next_picture")}
"""The actions whose keys are active together, by screen: "" for the main screen, else a kind of dialog."""

_SHOWN_KEY_NAMES = {
    "full_stop": ".", "comma": ",", "slash": "/", "question_mark": "?", "minus": "-", "equals_sign": "=",
    "semicolon": ";", "colon": ":",
    "apostrophe": "'", "grave_accent": "`", "backslash": "\\", "right_square_bracket": "]",
    "escape": "esc", "pageup": "pgup", "pagedown": "pgdn", "up": "↑", "down": "↓", "left": "←", "right": "→"
}
_KEY_NAMES_BY_TEXT = {shown: name for name, shown in _SHOWN_KEY_NAMES.items()}
_OTHER_KEY_NAMES = {"tab", "backspace", "insert", "delete", "home", "end", "enter", "space",
                    *(f"f{number}" for number in range(1, 25))}
_TEXTUAL_CHARACTER_NAMES = {"commercial_at": "at", "plus_sign": "plus", "low_line": "underscore"}
"""Characters with different names in Textual and Unicode, besides the characters in `_SHOWN_KEY_NAMES`."""
MAX_KEY_FILE_BYTES = 1 << 20
"""The maximum size of a ``keys.json``."""
_SPLIT_ARROW_CHARACTERS = "[OABCD"
"""Characters that arrive as separate keys if a slow connection splits the bytes of an arrow key."""

_current_keys: dict[str, tuple[str, ...]] = dict(DEFAULT_KEYS)


def use_key_table(key_table: KeyTable) -> None:
    """Makes a key table the current one of this process."""
    _current_keys.update(key_table)


def get_action_keys(action_id: str) -> tuple[str, ...]:
    """Returns the current keys of an action, as Textual names them."""
    return _current_keys[action_id]


def shown_key(action_id: str) -> str:
    return key_text(_current_keys[action_id][0])


def fill_in_keys(template: str) -> str:
    """Returns a text in which action ids in braces, as in ``{close} closes``, are replaced by their current keys."""
    return template.format_map({action: shown_key(action) for action in _current_keys})


def find_changed_keys() -> dict[str, str]:
    """Returns the keys that differ from the defaults, in the form of a Textual keymap."""
    return {action: ",".join(names) for action, names in _current_keys.items() if names != DEFAULT_KEYS[action]}


def find_current_key(default_key_text: str) -> str:
    """Returns the current key of the action that has a given default key, both as displayed."""
    return next((shown_key(action) for action, names in KEYS.items() if key_text(names[0]) == default_key_text),
                default_key_text)


def key_text(key_name: str) -> str:
    """Returns the displayed form of a Textual key name, such as "." for ``full_stop``."""
    return _SHOWN_KEY_NAMES.get(key_name, key_name)


def user_keys_path() -> Path:
    """Returns the path of the ``keys.json`` in which a user can change keys."""
    return Path(platformdirs.user_config_dir("trt-tui")) / "keys.json"


@dataclass(frozen=True)
class _KeyEntry:
    """An entry of ``keys.json``: the keys of one action, and the line number of the entry."""

    action: str
    keys: tuple[str, ...]
    line: int


def read_key_file(path: Path) -> tuple[KeyTable, list[str]]:
    """Returns the key table with the changes of a ``keys.json``, and the errors in that file.

    The file is JSON, in which comments in YAML's form are allowed: ``{"build": "f4", "help": ["h", "?"]}``. The keys in
    the file replace the default keys of the action. An entry with the key of another action is rejected, and every
    action keeps at least one key. Movement, closing and similar actions have the same keys in dialogs. Each error names
    its line and the reason.
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
            f"{_file_location_text(path, root.start_mark.line + 1)}: a JSON object is needed: {{\"build\": \"f4\"}}"
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
    """Returns the parsed entry of one action in ``keys.json``, or the reason why the entry is rejected."""
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
    """Returns the Textual name of a key that is written as a name or a character; None if no such key exists."""
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
    """Drops each entry of ``keys.json`` that gives a key to two actions, and returns line numbers and reasons.

    Of two clashing entries the later is dropped.
    """
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
