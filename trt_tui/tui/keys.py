"""The current keys: the default keys of all actions, and the changes of a user's ``keys.json``.

A text that names a key calls `shown_key`, so that it is correct after such changes too.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import platformdirs

from trt_tui.errors import TrtTuiError
from trt_tui.files.read_budget import limit_file_reading
from trt_tui.files.reading import read_bytes
from trt_tui.tui.actions import ACTIONS

KeyTable = Mapping[str, tuple[str, ...]]
"""The keys of each action by its id, as Textual names them. The program shows the first key of an action."""

KEYS: KeyTable = {action.id: tuple(action.keys.split(",")) for action in ACTIONS}
"""The default keys of the actions on the main screen."""

DIALOG_KEYS: KeyTable = {"yes": ("y",), "no": ("n",), "name": ("n",), "next_picture": ("tab", "n"), "stop_all": ("a",),
                         "delete_session": ("d", "delete")}
"""The default keys of actions that exist in dialogs only. An action that the main screen also has keeps its key there.
"""

DEFAULT_KEYS: KeyTable = {**KEYS, **DIALOG_KEYS}
"""The default keys of all actions, on the main screen and in dialogs."""

REMOVED_KEYS: Mapping[str, str] = {
    "f7": "{engine} shows the errors inside an engine, and polygraphy debug reduce finds the operator",
    "Z": "{undo} undoes the changes one by one, and {redo} redoes them",
    **dict.fromkeys("md", "{export} exports two configs, and trt-tui compare --config A --config B compares them"),
    "3": "{view} changes the view: tree, worst first, blocks",
    "f6": "start with --trtexec --builderOptimizationLevel=0, and {build} builds quickly",
    "f8": "TEXTUAL_THEME=trt-light in the environment starts with the light theme",
    "f12": "start with --compute-capability 8.9 to preview the engines of another GPU",
    "u": "{toggle} raises one row; the detail pane names the rows that share its kernel",
    "0": "{precision} lists all rows of the filter as its last entry",
    "semicolon": "{free} lists the unused Q/DQ among the changes",
    "apostrophe": "{sort} chooses the column",
    **dict.fromkeys(("comma", "N"), "{next_bad} goes on from the last bad row to the first"),
    "Y": "views are not written to files; {export} exports a report, and trt-tui compare --markdown the tables"}
"""The message for each key that had an action in an earlier release: the way round, with action ids in braces."""

LIST_ACTIONS = ("up", "down", "page_up", "page_down", "first", "last", "open", "close", "quit", "toggle")
"""The actions whose keys are active in every list to choose from."""

_SHOWN_KEY_NAMES = {
    "full_stop": ".", "comma": ",", "slash": "/", "question_mark": "?", "minus": "-", "equals_sign": "=",
    "semicolon": ";", "colon": ":",
    "apostrophe": "'", "grave_accent": "`", "backslash": "\\", "right_square_bracket": "]",
    "escape": "esc", "pageup": "pgup", "pagedown": "pgdn", "up": "↑", "down": "↓", "left": "←", "right": "→"
}
_KEY_NAMES_BY_TEXT = {shown: name for name, shown in _SHOWN_KEY_NAMES.items()}
MAX_KEY_FILE_BYTES = 1 << 20
"""The maximum size of a ``keys.json``."""

_current_keys: dict[str, tuple[str, ...]] = dict(DEFAULT_KEYS)


def use_keymap(keymap: Mapping[str, str]) -> None:
    """Makes the keys of a Textual keymap the current ones of this process; other actions have their default keys.

    An action of the main screen loses a default key that the keymap gives to another one, as in Textual.
    """
    changed_keys = {action: tuple(_KEY_NAMES_BY_TEXT.get(name, name) for name in keys.split(","))
                    for action, keys in keymap.items()}
    taken_keys = {name for action in changed_keys.keys() & KEYS.keys() for name in changed_keys[action]}
    for action, names in DEFAULT_KEYS.items():
        free_names = tuple(name for name in names if name not in taken_keys or action not in KEYS)
        _current_keys[action] = changed_keys.get(action, free_names)


def get_action_keys(action_id: str) -> tuple[str, ...]:
    """Returns the current keys of an action, as Textual names them."""
    return _current_keys[action_id]


def shown_key(action_id: str) -> str:
    """Returns the displayed form of the first key of an action; "no key" if a ``keys.json`` took all of its keys."""
    return key_text(next(iter(_current_keys[action_id]), "no key"))


def fill_in_keys(template: str) -> str:
    """Returns a text in which action ids in braces, as in ``{close} closes``, are replaced by their current keys."""
    return template.format_map({action: shown_key(action) for action in _current_keys})


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


def read_key_file(path: Path) -> tuple[dict[str, str], str]:
    """Returns the Textual keymap in a ``keys.json``, and a warning; "" for no warning.

    The file has the keys of actions by their ids: ``{"build": "f4", "help": "h,question_mark"}``. The keymap is empty
    if the file does not exist or cannot be read.
    """
    if not os.path.exists(path):
        return {}, ""
    try:
        with limit_file_reading(path):
            keymap = msgspec.json.decode(read_bytes(path, MAX_KEY_FILE_BYTES), type=dict[str, str])
    except (OSError, TrtTuiError, ValueError, RecursionError) as error:
        reason = getattr(error, "cause", "") or error
        return {}, f'{path} cannot be read: {reason}; the form is {{"build": "f4", "help": "h,question_mark"}}'
    unknown_actions = sorted(keymap.keys() - DEFAULT_KEYS.keys())
    keymap = {action: keys for action, keys in keymap.items() if keys and action in DEFAULT_KEYS}
    return keymap, f"{path.name} names no actions of this version: {', '.join(unknown_actions)}; {shown_key('help')} "\
        "lists the actions" if unknown_actions else ""
