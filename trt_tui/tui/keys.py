"""The one table of keys: what each action is bound to, with what the user's own file changes.

Words that name a key ask `key` for it, so that they hold whatever the file says.
"""

import difflib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import yaml

from trt_tui.errors import TrtTuiError
from trt_tui.files.budget import file_budget
from trt_tui.files.reading import read_bytes

Table = Mapping[str, tuple[str, ...]]
"""Keys by action, as Textual names them; the first is the one shown."""

KEYS: Table = {
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

DIALOG_KEYS: Table = {"yes": ("y",), "no": ("n",), "name": ("n",), "pin": ("p",), "axis": ("a",),
                      "next_picture": ("tab", "n"), "stop_all": ("a",)}
"""The keys of what can be done in dialogs alone; what is also done on the main screen has the same key there."""

DEFAULTS: Table = {**KEYS, **DIALOG_KEYS}
"""All of them."""

_MOVING = ("up", "down", "page_up", "page_down", "first", "last", "open", "close", "quit")
PLACES: Mapping[str, tuple[str, ...]] = {
    "": tuple(KEYS), "a question": ("yes", "no", "open", "close", "quit"), "an error": (*_MOVING, "copy", "log"),
    "lists": (*_MOVING, "toggle"), "settings": ("up", "down", "left", "right", "toggle", "open", "close"),
    "the configs": (*_MOVING, "toggle", "configs", "mark", "diff", "name", "pin"),
    "the jobs": (*_MOVING, "toggle", "jobs", "stop", "stop_all"),
    "the pictures": (*_MOVING, "left", "right", "axis", "next_picture")}
"""Which actions have keys at once: on the main screen, of the name "", and in each kind of dialog."""

_SHOWN = {"full_stop": ".", "comma": ",", "slash": "/", "question_mark": "?", "minus": "-", "equals_sign": "=",
          "semicolon": ";", "apostrophe": "'", "grave_accent": "`", "backslash": "\\", "right_square_bracket": "]",
          "escape": "esc", "pageup": "pgup", "pagedown": "pgdn", "up": "↑", "down": "↓", "left": "←", "right": "→"}
_NAMED = {shown: name for name, shown in _SHOWN.items()}
_OTHERS = {"tab", "backspace", "insert", "delete", "home", "end", "enter", "space",
           *(f"f{number}" for number in range(1, 25))}
_UNLIKE = {"commercial_at": "at", "plus_sign": "plus", "low_line": "underscore"}
"""Characters that Textual names otherwise than Unicode, beside those of `_SHOWN`."""
MAX_KEYS_BYTES = 1 << 20
"""Size of a file of keys."""
_SPLIT = "[OABCD"
"""Characters that a slow line leaves of an arrow key whose bytes it splits."""

_in_use: dict[str, tuple[str, ...]] = dict(DEFAULTS)


def use(table: Table) -> None:
    """Makes a table the one in use, in this process."""
    _in_use.update(table)


def keys(action: str) -> tuple[str, ...]:
    """The keys of an action, as Textual names them."""
    return _in_use[action]


def key(action: str) -> str:
    """The key of an action as it is shown."""
    return key_text(_in_use[action][0])


def worded(text: str) -> str:
    """A text with the keys in use in place of the names of actions in braces: ``{close} closes``."""
    return text.format_map({action: key(action) for action in _in_use})


def changed() -> dict[str, str]:
    """The keys that are others than without a file, as Textual takes them in place of those of bindings."""
    return {action: ",".join(names) for action, names in _in_use.items() if names != DEFAULTS[action]}


def now(shown: str) -> str:
    """The key in use for the action that has a key, as it is shown, without a file."""
    return next((key(action) for action, names in KEYS.items() if key_text(names[0]) == shown), shown)


def key_text(name: str) -> str:
    """A key as it is shown."""
    return _SHOWN.get(name, name)


def user_file() -> Path:
    """Where users keep keys of their own."""
    return Path(platformdirs.user_config_dir("trt-tui")) / "keys.json"


@dataclass(frozen=True)
class _Entry:
    """What a file says of an action, and in which line."""

    action: str
    keys: tuple[str, ...]
    line: int


def read(path: Path) -> tuple[Table, list[str]]:
    """The table with what a file changes, and what of the file is not taken, with its line and why.

    The file is JSON (YAML's comments may stand in it): ``{"build": "f4", "help": ["h", "?"]}``, the keys of an action
    in place of those that it has. An entry that clashes with another action is not taken, and every action keeps a key.
    Movement, closing and the like have the same keys in dialogs.
    """
    try:
        with file_budget(path):
            text = read_bytes(path, MAX_KEYS_BYTES).decode(errors="replace")
            root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except FileNotFoundError:
        return DEFAULTS, []
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        line = mark.line + 1 if mark is not None else 1
        return DEFAULTS, [f"{_line(path, line)}: it is no JSON; no key is taken from it"]
    except (OSError, TrtTuiError, RecursionError) as error:
        return DEFAULTS, [] if not path.exists() else [f"{path} cannot be read: {getattr(error, 'cause', '') or error}"]
    if root is None:
        return DEFAULTS, []
    if not isinstance(root, yaml.MappingNode):
        return DEFAULTS, [f"{_line(path, root.start_mark.line + 1)}: it is to be an object: {{\"build\": \"f4\"}}"]
    entries: dict[str, _Entry] = {}
    wrong: list[tuple[int, str]] = []
    for name, value in root.value:
        line = name.start_mark.line + 1
        entry = _entry(name.value, value, line, entries)
        if isinstance(entry, str):
            wrong.append((line, entry))
        else:
            entries[entry.action] = entry
    wrong += _without_clashes(entries)
    table = {**DEFAULTS, **{entry.action: entry.keys for entry in entries.values()}}
    return table, [f"{_line(path, line)}: {why}" for line, why in sorted(wrong)]


def _line(path: Path, line: int) -> str:
    return f"{path.name}, line {line}"


def _entry(action: object, value: yaml.Node, line: int, before: Mapping[str, _Entry]) -> _Entry | str:
    """An entry of the file, or why it cannot be taken."""
    if not isinstance(action, str) or action not in DEFAULTS:
        near = difflib.get_close_matches(str(action), DEFAULTS, 1)
        return f"there is no action {action}" + (f"; is it {near[0]}?" if near else "")
    if action in before:
        return f"{action} stands in line {before[action].line} already"
    nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
    names: list[str] = []
    for node in nodes:
        name = _key_named(node.value) if isinstance(node, yaml.ScalarNode) else None
        if name is None:
            shown = node.value or '""' if isinstance(node, yaml.ScalarNode) else "that"
            return f"{shown} is no key; {action} keeps {_told(action)}"
        if node.value in _SPLIT:
            return f"{node.value} is a part of an arrow key on a slow line; {action} keeps {_told(action)}"
        names.append(name)
    if not names:
        return f"{action} needs a key; it keeps {_told(action)}"
    return _Entry(action, tuple(dict.fromkeys(names)), line)


def _told(action: str) -> str:
    return " ".join(map(key_text, DEFAULTS[action]))


def _key_named(text: str) -> str | None:
    """A key by its name or its character, as Textual names it; None where there is no such key."""
    *modifiers, base = text.split("+") if len(text) > 1 else [text]
    base = _NAMED.get(base.lower(), base)
    if modifiers and not {*modifiers} <= {"ctrl", "shift", "alt"}:
        return None
    if len(base) > 1:
        base = base.lower()
        if base not in _SHOWN and base not in _OTHERS:
            return None
    elif base and not base.isalnum():
        name = unicodedata.name(base, "").lower().replace("-", "_").replace(" ", "_")
        base = _UNLIKE.get(name, name)
    return "+".join((*modifiers, base)) if base else None


def _without_clashes(entries: dict[str, _Entry]) -> list[tuple[int, str]]:
    """Drops the entries that give an action a key of another one, the later of two; tells their lines and why."""
    wrong: list[tuple[int, str]] = []
    while True:
        table = {**DEFAULTS, **{entry.action: entry.keys for entry in entries.values()}}
        owners: dict[tuple[str, str], list[str]] = {}
        for place, actions in PLACES.items():
            for action in actions:
                for name in table[action]:
                    owners.setdefault((place, name), []).append(action)
        clash = next(((place, name, those) for (place, name), those in owners.items() if len(those) > 1), None)
        if clash is None:
            return wrong
        place, name, those = clash
        last = max((entries[action] for action in those if action in entries), key=lambda entry: entry.line)
        other = next(action for action in those if action != last.action)
        del entries[last.action]
        wrong.append((last.line, f"{key_text(name)} is the key of {other}{f' in {place}' if place else ''}; "
                                 f"{last.action} keeps {_told(last.action)}"))
