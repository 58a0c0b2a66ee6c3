"""The table of actions, each with its keys and its texts, and the current keys.

The main screen performs an action by its method ``do_`` with the id of the action. If it has a method ``refuse_`` with
the id, that returns the reason why the action is impossible now. A ``keys.json`` of the user changes keys: a text that
names a key calls `shown_key`, so that it is correct after such changes too.
"""

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from trt_tui.errors import TrtTuiError
from trt_tui.files.reading import limit_file_reading, read_bytes


class Precondition(enum.Enum):
    """The conditions without which an action is impossible."""

    NOTHING = enum.auto()
    NETWORK = enum.auto()
    ROW = enum.auto()
    GROUPS = enum.auto()
    SAMPLES = enum.auto()
    BUILDER = enum.auto()


@dataclass(frozen=True)
class Action:
    """A command that the user can give with a key, with its texts for the footer and the help page.

    Attributes:
        keys: The default keys, as Textual names them, with commas. The program shows the first key.
        label: One or two words for the footer.
        group: The heading above the action on the help page.
        help: A sentence for the help page.
        footer: The rank of the action in the footer; None if the footer does not show the action. Actions of low rank
            come first and remain in a narrow footer.
    """

    id: str
    keys: str
    label: str
    group: str
    help: str
    precondition: Precondition = Precondition.NOTHING
    footer: int | None = None


ACTIONS = (
    Action("up", "up,k", "up", "Move", "Move up"),
    Action("down", "down,j", "down", "Move", "Move down"),
    Action("left", "left,h", "close", "Move", "Close the row, or go to the scope around it"),
    Action("right", "right,l", "open", "Move", "Open the row, or go into it"),
    Action(
        "open", "enter", "open", "Move", "Open or close a scope, a layer's nodes, the folded nodes", Precondition.ROW
    ),
    Action("page_up", "pageup", "page up", "Move", "Move up by a page"),
    Action("page_down", "pagedown", "page down", "Move", "Move down by a page"),
    Action("first", "home", "first", "Move", "Go to the first row"),
    Action("last", "end", "last", "Move", "Go to the last row"),
    Action(
        "next_bad",
        "n",
        "next bad",
        "Move",
        "Go to the next row with a share of 1 % or more, or NaN or Inf",
        Precondition.NETWORK,
        footer=45,
    ),
    Action(
        "first_nan",
        "w",
        "worst",
        "Move",
        "Go to the row to raise first: the first with NaN or Inf, else that with the largest share, "
        "without rows whose raise was measured and does not help",
        Precondition.NETWORK,
    ),
    Action(
        "filter",
        "slash",
        "find",
        "Move",
        "Show only rows that match: text, !text, /regex/, share>1%, prec:int8, op:conv",
        Precondition.NETWORK,
        footer=30,
    ),
    Action(
        "toggle",
        "space",
        "FP32",
        "Change",
        "Toggle FP32 for a layer, a scope or a role of the blocks",
        Precondition.GROUPS,
        footer=10,
    ),
    Action(
        "higher", "equals_sign", "up", "Change", "Raise by one of the precisions in use", Precondition.GROUPS, footer=11
    ),
    Action(
        "lower", "minus", "down", "Change", "Reduce by one of the precisions in use", Precondition.GROUPS, footer=12
    ),
    Action(
        "precision",
        "p",
        "precision",
        "Change",
        "Choose a precision from a list, for the row or all rows that match the filter",
        Precondition.GROUPS,
        footer=50,
    ),
    Action(
        "barrier",
        "f",
        "barrier",
        "Change",
        "Toggle a fusion barrier: the row's output becomes a network output, and TensorRT does not fuse across it",
        Precondition.GROUPS,
    ),
    Action(
        "rules",
        "5",
        "rules",
        "Change",
        "Keep norms, softmax, the head, names by pattern in FP32 or FP16 by rule",
        Precondition.NETWORK,
    ),
    Action(
        "range",
        "r",
        "range",
        "Change",
        "Next range method for the layer's inputs (minmax, percentile, entropy, mse); of a scope: type one for all",
        Precondition.GROUPS,
        footer=15,
    ),
    Action(
        "type_range",
        "6",
        "type range",
        "Change",
        "Type a range for the inputs: an amax, a method, p99.9, top5-mean",
        Precondition.GROUPS,
    ),
    Action(
        "methods",
        "7",
        "methods",
        "Work",
        "Calibration methods side by side; enter uses one for the whole network",
        Precondition.SAMPLES,
    ),
    Action(
        "free",
        "9",
        "free",
        "Change",
        "Zero-cost changes of the row and of the network, each with its value",
        Precondition.SAMPLES,
        footer=67,
    ),
    Action("undo", "z", "undo", "Change", "Undo the last change", Precondition.NETWORK, footer=40),
    Action("redo", "full_stop,ctrl+r", "redo", "Change", "Redo what was undone", Precondition.NETWORK),
    Action(
        "sessions",
        "S",
        "sessions",
        "Files",
        "The saved sessions of this network; enter opens one, and one can be deleted",
        Precondition.NETWORK,
    ),
    Action(
        "explain",
        "f3",
        "explain",
        "Look",
        "Explain the value under the cursor: what it is and how it came about. A right click "
        "does so for any value, title or word",
        Precondition.ROW,
        footer=43,
    ),
    Action("view", "t", "view", "Look", "Tree, worst first, blocks", Precondition.NETWORK, footer=41),
    Action(
        "colour",
        "v",
        "colour by",
        "Look",
        "Colour by share, isolated or accumulated error; of FP16, INT8 or the config",
        Precondition.NETWORK,
        footer=66,
    ),
    Action(
        "sort",
        "s",
        "sort",
        "Look",
        "Choose the column that sorts the rows. A click on a column title sorts by it",
        Precondition.NETWORK,
    ),
    Action("copy", "y", "copy name", "Look", "Copy the full name to the clipboard (OSC 52)", Precondition.ROW),
    Action("pane_tree", "1", "list", "Look", "Go to the list; again: full screen, and back"),
    Action("pane_detail", "2", "detail", "Look", "Detail pane full screen, and back", Precondition.ROW),
    Action(
        "pictures",
        "8",
        "pictures",
        "Look",
        "Charts: values and channels, errors over samples, classes",
        Precondition.NETWORK,
    ),
    Action(
        "build",
        "b",
        "build",
        "Work",
        "Build the config and measure its accuracy and latency; without TensorRT, execute its export",
        Precondition.BUILDER,
        footer=20,
    ),
    Action(
        "engine",
        "i",
        "engine",
        "Look",
        "The engine: its layers, their times, and what to check",
        Precondition.NETWORK,
        footer=65,
    ),
    Action(
        "find",
        "a",
        "fix",
        "Work",
        "Find the fewest layers to raise so that the target is met; again: what it found, to look at and to take",
        Precondition.NETWORK,
        footer=18,
    ),
    Action("compare", "f5", "compare", "Work", "Measure everything again"),
    Action(
        "stop",
        "x",
        "stop",
        "Work",
        "Stop the job shown (asks if it has run for over 10 s); the list of jobs stops any or all",
        footer=60,
    ),
    Action("jobs", "f9", "jobs", "Work", "All jobs, running and done, with their times; stops one or all"),
    Action("target", "g", "target", "Work", "Change the target that runs must meet", Precondition.NETWORK),
    Action(
        "configs",
        "4,c",
        "configs",
        "Configs",
        "Go to the configs; again: all of them with their results. Enter selects one, such as c0 to start over",
        Precondition.NETWORK,
        footer=55,
    ),
    Action(
        "export",
        "e",
        "export",
        "Files",
        "Write precision.json, the typed network, files for other tools, or a report",
        Precondition.NETWORK,
        footer=42,
    ),
    Action(
        "log",
        "o",
        "log",
        "Files",
        "Show why a job failed, then the log; at its end the reasons for PASS? and FAIL? in full",
    ),
    Action(
        "help",
        "f1,f2,question_mark,colon,ctrl+p",
        "keys",
        "Application",
        "All keys, actions, words and marks: type to find one, enter runs or explains it",
        footer=0,
    ),
    Action("close", "escape", "close", "Application", "Close the topmost dialog or pane"),
    Action("quit", "q", "quit", "Application", "Save and quit", footer=70),
)
"""All actions, in the order of the help page. The first key of each action needs no ctrl, and no shift besides those of
capital letters. The help page performs the actions without their keys."""

ACTIONS_BY_ID = {action.id: action for action in ACTIONS}


KeyTable = Mapping[str, tuple[str, ...]]
"""The keys of each action by its id, as Textual names them. The program shows the first key of an action."""

KEYS: KeyTable = {action.id: tuple(action.keys.split(",")) for action in ACTIONS}
"""The default keys of the actions on the main screen."""

DIALOG_KEYS: KeyTable = {
    "yes": ("y",),
    "no": ("n",),
    "name": ("n",),
    "next_picture": ("tab", "n"),
    "stop_all": ("a",),
    "delete_session": ("d", "delete"),
}
"""The default keys of actions that exist in dialogs only. An action that the main screen also has keeps its key there.
"""

DEFAULT_KEYS: KeyTable = {**KEYS, **DIALOG_KEYS}
"""The default keys of all actions, on the main screen and in dialogs."""

LIST_ACTIONS = ("up", "down", "page_up", "page_down", "first", "last", "open", "close", "quit", "toggle")
"""The actions whose keys are active in every list to choose from."""

_SHOWN_KEY_NAMES = {
    "full_stop": ".",
    "comma": ",",
    "slash": "/",
    "question_mark": "?",
    "minus": "-",
    "equals_sign": "=",
    "semicolon": ";",
    "colon": ":",
    "apostrophe": "'",
    "grave_accent": "`",
    "backslash": "\\",
    "right_square_bracket": "]",
    "escape": "esc",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}
_KEY_NAMES_BY_TEXT = {shown: name for name, shown in _SHOWN_KEY_NAMES.items()}
MAX_KEY_FILE_BYTES = 1 << 20
"""The maximum size of a ``keys.json``."""

_current_keys: dict[str, tuple[str, ...]] = dict(DEFAULT_KEYS)


def use_keymap(keymap: Mapping[str, str]) -> None:
    """Sets the keys of actions in this process from a Textual keymap. Actions that the keymap lacks have their default
    keys.

    An action of the main screen loses a default key that the keymap gives to another one, as in Textual.
    """
    changed_keys = {
        action: tuple(_KEY_NAMES_BY_TEXT.get(name, name) for name in keys.split(",")) for action, keys in keymap.items()
    }
    taken_keys = {name for action in changed_keys.keys() & KEYS.keys() for name in changed_keys[action]}
    for action, names in DEFAULT_KEYS.items():
        free_names = tuple(name for name in names if name not in taken_keys or action not in KEYS)
        _current_keys[action] = changed_keys.get(action, free_names)


def get_action_keys(action_id: str) -> tuple[str, ...]:
    """Returns the current keys of an action, as Textual names them."""
    return _current_keys[action_id]


def shown_key(action_id: str) -> str:
    """Returns the first key of an action as displayed; "no key" if ``keys.json`` left it without a key."""
    return key_text(next(iter(_current_keys[action_id]), "no key"))


def fill_in_keys(template: str) -> str:
    """Returns a text in which action ids in braces, as in ``{close} closes``, are replaced by their current keys."""
    return template.format_map({action: shown_key(action) for action in _current_keys})


def find_current_key(default_key_text: str) -> str:
    """Returns the current key of the action that has the given default key. Both are written as displayed."""
    return next(
        (shown_key(action) for action, names in KEYS.items() if key_text(names[0]) == default_key_text),
        default_key_text,
    )


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
    return (
        keymap,
        f"{path.name} names no actions of this version: {', '.join(unknown_actions)}; {shown_key('help')} "
        "lists the actions"
        if unknown_actions
        else "",
    )
