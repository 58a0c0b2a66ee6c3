"""Every action of the application, once: keys, footer, help and palette all come from `ACTIONS`.

An action is done by the method ``do_<id>`` of the main screen. ``enabled`` gives the reason why it cannot be done now,
"" where it can; the reason is what a press of its key then shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.binding import Binding

from trt_tui.core.precision import Precision
from trt_tui.tui import spans
from trt_tui.tui.state.built import shown_engine

if TYPE_CHECKING:
    from trt_tui.tui.screens.main import MainScreen


def always(main: MainScreen) -> str:
    return ""


def opened(main: MainScreen) -> str:
    return "" if main.model is not None else "the network is not open yet"


def has_groups(main: MainScreen) -> str:
    if reason := opened(main):
        return reason
    groups = main.chosen_groups()
    if groups:
        return ""
    line = main.current_line
    row = line.row if line is not None else None
    return getattr(row, "refused", "") or "this row has no precision to choose"


def has_row(main: MainScreen) -> str:
    return opened(main) or ("" if main.current_line is not None else "no row is chosen")


def one_group(main: MainScreen) -> str:
    if reason := has_groups(main):
        return reason
    group = main.current_group
    if group is None:
        return "choose a single group: ranges belong to one group's inputs"
    if not group.quantizable:
        return f"ranges matter in INT8 only: {group.refusals[Precision.INT8]}"
    return "" if main.session.calibration is not None else "no ranges were measured yet"


def can_undo(main: MainScreen) -> str:
    return opened(main) or ("" if main.session.history.can_undo else "nothing to undo")


def can_redo(main: MainScreen) -> str:
    return opened(main) or ("" if main.session.history.can_redo else "nothing to redo")


def job_runs(main: MainScreen) -> str:
    return "" if main.session.busy else "no job is running"


def can_ask(main: MainScreen) -> str:
    if reason := opened(main):
        return reason
    return "no samples: reopen with --data" if main.session.data is None else ""


def can_build(main: MainScreen) -> str:
    if reason := can_ask(main):
        return reason
    if main.session.searching and main.session.builder is not None:
        return "a search is going on, which builds too: x stops it"
    return "a build is going on: x stops it" if main.session.building else ""


def can_find(main: MainScreen) -> str:
    return "" if main.session.searching else can_build(main)


def can_preview(main: MainScreen) -> str:
    if reason := can_build(main):
        return reason
    return "" if main.session.builder is not None else "ONNX Runtime builds in a moment: b builds in full"


def has_engine(main: MainScreen) -> str:
    if reason := opened(main):
        return reason
    known = main.session.results.check is not None or shown_engine(main.session) is not None
    return "" if known else "nothing was built yet: b builds"


def repeats(main: MainScreen) -> str:
    if reason := opened(main):
        return reason
    return "" if main.model.blocks is not None else "this network does not repeat, so it has no blocks"


def has_bad_rows(main: MainScreen) -> str:
    if reason := opened(main):
        return reason
    if not main.figures.values and not main.figures.bad:
        return "nothing was measured yet"
    return "" if main.figures.loud else "no row is bad: every one owns less than 1 %"


def has_nan(main: MainScreen) -> str:
    return opened(main) or ("" if main.figures.bad else "no NaN or Inf in this run")


def two_configs(main: MainScreen) -> str:
    return opened(main) or ("" if len(main.session.names) > 1 else "there is only one config yet")


@dataclass(frozen=True)
class Action:
    """One thing the user can do.

    Attributes:
        keys: As Textual names them; the first is the one shown.
        label: A word or two for the footer.
        help: A sentence for help and palette.
        group: The heading it stands under in help.
        footer: Its place in the footer (low comes first and survives in narrow ones), None to leave it out.
    """

    id: str
    keys: tuple[str, ...]
    label: str
    help: str
    group: str
    enabled: Callable[[MainScreen], str] = always
    footer: int | None = None

    @property
    def key(self) -> str:
        return key_text(self.keys[0])


_KEY_TEXTS = {"full_stop": ".", "comma": ",", "slash": "/", "question_mark": "?", "minus": "-", "equals_sign": "=",
              "escape": "esc", "pageup": "pgup", "pagedown": "pgdn", "up": "↑", "down": "↓", "left": "←", "right": "→"}


def key_text(key: str) -> str:
    """A key as it is shown."""
    return _KEY_TEXTS.get(key, key.upper() if key[:1] == "f" and key[1:].isdigit() else key)


ACTIONS: tuple[Action, ...] = (
    Action("up", ("up", "k"), "up", "Move up", "Move"),
    Action("down", ("down", "j"), "down", "Move down", "Move"),
    Action("left", ("left", "h"), "close", "Close the row, or go to the scope around it", "Move"),
    Action("right", ("right", "l"), "open", "Open the row, or go into it", "Move"),
    Action("open", ("enter",), "open", "Open or close a scope, a group's nodes, the folded nodes", "Move", has_row),
    Action("page_up", ("pageup",), "page up", "Move up by a page", "Move"),
    Action("page_down", ("pagedown",), "page down", "Move down by a page", "Move"),
    Action("first", ("home",), "first", "Go to the first row", "Move"),
    Action("last", ("end",), "last", "Go to the last row", "Move"),
    Action("next_bad", ("n",), "next bad", "Go to the next row that owns 1 % or more, or has NaN or Inf", "Move",
           has_bad_rows, 45),
    Action("previous_bad", ("comma",), "previous bad", "Go to the bad row before", "Move", has_bad_rows),
    Action("first_nan", ("w",), "first NaN", "Go to where the first NaN or Inf appears", "Move", has_nan),
    Action("filter", ("slash",), "find", "Show only groups whose name, path or operator holds the words typed", "Move",
           opened, 30),
    Action("toggle", ("space",), "FP32", "FP32 on and off, for a group, a scope or a role of the blocks", "Change",
           has_groups, 10),
    Action("higher", ("equals_sign",), "up", "One step up: INT8, FP16, FP32", "Change", has_groups, 11),
    Action("lower", ("minus",), "down", "One step down: FP32, FP16, INT8", "Change", has_groups, 12),
    Action("precision", ("p",), "precision", "Choose a precision from a list", "Change", has_groups, 50),
    Action("range", ("r",), "range", "Next range method for the group's inputs (minmax, percentile, entropy, mse)",
           "Change", one_group, 15),
    Action("undo", ("z",), "undo", "Undo the last change", "Change", can_undo, 40),
    Action("redo", ("full_stop",), "redo", "Redo what was undone", "Change", can_redo),
    Action("view", ("t",), "view", "Tree, worst first, blocks", "Look", opened, 41),
    Action("colour", ("v",), "colour by", "Colour by share, isolated or accumulated error; of FP16, INT8 or the config",
           "Look", opened, 42),
    Action("sort", ("s",), "sort", "Sort by the newest figures; again: network order", "Look", opened),
    Action("copy", ("y",), "copy name", "Copy the full name to the clipboard (OSC 52)", "Look", has_row),
    Action("pane_tree", ("1",), "tree", "Go to the tree", "Look"),
    Action("pane_detail", ("2",), "detail", "Make the detail pane large, and small again", "Look", has_row),
    Action("pane_blocks", ("3",), "blocks", "Go to the blocks", "Look", repeats),
    Action("pane_configs", ("4",), "configs", "Go to the configs", "Look", opened),
    Action("build", ("b",), "build", "Build the config with the backend and judge it by its own outputs", "Work",
           can_build, 20),
    Action("find", ("a",), "fix", "Find the fewest layers to raise so that the target is met; again: take the "
           "best so far over", "Work", can_find, 18),
    Action("preview", ("f6",), "preview", "Quick build, a preview: with the lowest effort, slower than production",
           "Work", can_preview),
    Action("engine", ("i",), "engine", "What the engine is made of: its layers and times, and what to check", "Look",
           has_engine, 65),
    Action("compare", ("f5",), "compare", "Measure everything again", "Work", can_ask),
    Action("stop", ("x",), "stop", "Stop the running job (asks if it is older than 10 s)", "Work", job_runs, 60),
    Action("target", ("g",), "target", "Change the target that runs must meet", "Work", opened),
    Action("configs", ("c",), "configs", "All configs with their results; enter takes one up again", "Configs",
           opened, 55),
    Action("mark", ("m",), "mark A/B", "Mark a config as A, the next one as B", "Configs", opened),
    Action("diff", ("d",), "diff", "What differs between A and B, or from the config before", "Configs",
           two_configs),
    Action("export", ("e",), "export", "Write precision.json, a typed ONNX, files for other tools, or a report",
           "Files", opened, 58),
    Action("log", ("o",), "log", "Show the log", "Files"),
    Action("help", ("question_mark", "f1"), "keys", "All keys", "Application", always, 0),
    Action("palette", ("f2", "ctrl+p"), "palette", "Find an action by its name", "Application"),
    Action("theme", ("f8",), "theme", "Light or dark", "Application"),
    Action("close", ("escape",), "close", "Close the topmost thing, and nothing else", "Application"),
    Action("quit", ("q",), "quit", "Save and quit", "Application", always, 70),
)

BY_ID = {action.id: action for action in ACTIONS}


def bindings() -> list[Binding]:
    """The key bindings of the main screen."""
    return [Binding(key, f"do('{action.id}')", action.label, show=False, priority=key == "ctrl+p")
            for action in ACTIONS for key in action.keys]


def footer_line(width: int, main: MainScreen) -> spans.Line:
    """The keys that fit, those that can be pressed now brighter than the others."""
    shown = sorted((action for action in ACTIONS if action.footer is not None), key=lambda action: action.footer)
    last = shown.pop(0)
    room = width - len(last.key) - len(last.label) - 3
    line: spans.Line = [(" ", "")]
    used = 1
    for action in shown:
        size = len(action.key) + 1 + len(action.label) + 2
        if used + size > room:
            continue
        off = bool(action.enabled(main))
        line += [(action.key, "dim" if off else "key"), (f" {action.label}  ", "dim" if off else "")]
        used += size
    return spans.padded(line, width, [(last.key, "key"), (f" {last.label} ", "")])
