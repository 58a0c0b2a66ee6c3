"""The sessions of late: what `trt-tui` alone in a terminal offers to open again, with the arguments each was opened
with."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import platformdirs
from filelock import Timeout

from trt_tui.errors import InputError
from trt_tui.files.damaged_files import rename_damaged_file
from trt_tui.files.locks import file_lock
from trt_tui.files.reading import MAX_TEXT_BYTES, read_bytes
from trt_tui.files.writing import make_private_folder, write_file_atomically
from trt_tui.formatting import counted_noun_text, duration_text, pad_right, table_lines
from trt_tui.module_path import python_command

if TYPE_CHECKING:
    from trt_tui.session.session import Session

MAX_LOCK_WAIT_S = 5.0
"""How long the list is waited for while other programs write it."""

MAX_RECENT_SESSIONS = 9
"""Sessions that are listed."""
_MAX_AGE_S = 9999 * 86400.0
"""Age that is told of an older session, and of one whose time makes no sense."""


class RecentSession(msgspec.Struct, frozen=True):
    """One use of the app.

    Attributes:
        arguments: What followed ``trt-tui``, in ``folder``.
        config: The config in hand at its end; ``outcome`` says whether it met the target.
        when: The end, in seconds since the epoch.
        session: The name of the saved session that holds its configs, "" if nothing was saved.
    """

    folder: str
    arguments: list[str]
    network: str
    config: str
    outcome: str
    when: float
    session: str = ""

    @property
    def resume_arguments(self) -> list[str]:
        """The arguments that open it again with its own configs, whatever other sessions the network has."""
        return [*self.arguments, *(["--session", self.session] if self.session else [])]


def load_recent_sessions() -> list[RecentSession]:
    """The sessions of late, newest first; none where the list is missing or cannot be read.

    A damaged list is kept under another name, with a word.
    """
    path = _recent_sessions_path()
    try:
        data = read_bytes(path, MAX_TEXT_BYTES)
    except (InputError, OSError):
        return []
    try:
        sessions = msgspec.json.decode(data, type=list[RecentSession])
        if any("\0" in text for entry in sessions for text in (entry.folder, entry.session, *entry.arguments)):
            raise ValueError("no path and no argument has a NUL")
        return sessions[:MAX_RECENT_SESSIONS]
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        damaged_copy = rename_damaged_file(path)
        click.echo(
            f"Warning: the list of recent sessions is "
            f"damaged{f'; it is kept as {damaged_copy}' if damaged_copy else ''}.",
            err=True)
        return []


def record_recent_session(session: Session, arguments: list[str]) -> None:
    """Puts a session that ends at the head of the list; one whose network never opened is left out.

    The list is a convenience: where it cannot be written, nothing is said.
    """
    from trt_tui.session.results import outcome_texts
    from trt_tui.tui.config_status import config_title

    if session.outline is None:
        return
    accuracy = session.get_run_results("config").accuracy
    entry = RecentSession(
        os.getcwd(), _remove_session_options(arguments),
        Path(session.outline.path).name, config_title(session, 28), "not measured" if accuracy
        is None else " ".join(outcome_texts(session.config_target_outcomes(session.config))) or "all in FP32",
        time.time(), session.session_folder.name)
    with contextlib.suppress(InputError, OSError, ValueError, Timeout):  # a name of broken UTF-8 is a ValueError
        make_private_folder(_recent_sessions_path().parent)
        with file_lock(_recent_sessions_path(), MAX_LOCK_WAIT_S):  # several programs may end at once
            entries = [entry, *(earlier for earlier in load_recent_sessions() if not _is_same_session(entry, earlier))]
            write_file_atomically(_recent_sessions_path(), msgspec.json.encode(entries[:MAX_RECENT_SESSIONS]),
                                  is_private=True)


def _is_same_session(first: RecentSession, second: RecentSession) -> bool:
    """Returns True if a use of the app goes on from another: by the saved session, or by the arguments without one."""
    if first.session and second.session:
        return first.session == second.session
    return (first.folder, first.arguments) == (second.folder, second.arguments)


def _remove_session_options(arguments: list[str]) -> list[str]:
    """Returns arguments without the name of a session and without ``--new``, which would not open it again."""
    remaining = iter(arguments)
    reusable = []
    for argument in remaining:
        if argument == "--session":
            next(remaining, None)
        elif argument != "--new" and not argument.startswith("--session="):
            reusable.append(argument)
    return reusable


def recent_session_lines(sessions: list[RecentSession], current_time: float) -> list[str]:
    """A line for each session: its number, network, config, outcome, age, and the command that opens it again."""
    def resume_command_text(recent_session: RecentSession) -> str:
        several = sum((sibling.folder, sibling.arguments) == (recent_session.folder, recent_session.arguments)
                      for sibling in sessions) > 1
        folder_change = "" if recent_session.folder == os.getcwd() else f"cd {shlex.quote(recent_session.folder)} && "
        return (
            f"{folder_change}trt-tui "
            f"{shlex.join(recent_session.resume_arguments if several else recent_session.arguments)}"
        )

    rows = table_lines([[
        str(number),
        pad_right(entry.network, 32).rstrip(), entry.config, entry.outcome,
        _session_age_text(current_time - entry.when)
    ] for number, entry in enumerate(sessions, 1)], left_aligned_columns=4)
    return [
        line for row, entry in zip(rows, sessions, strict=True)
        for line in (f" {row}", f"    {resume_command_text(entry)}")
    ]


def _session_age_text(seconds: float) -> str:
    seconds = min(max(0.0, seconds), _MAX_AGE_S)
    days = int(seconds // 86400)
    return "just now" if seconds < 10 else f"{counted_noun_text(days, 'day') if days else duration_text(seconds)} ago"


def offer_recent_sessions(sessions: list[RecentSession]) -> None:
    """Lists the sessions and opens the one whose number is typed, in place of this program."""
    click.echo("Recent sessions:\n\n" + "\n".join(recent_session_lines(sessions, time.time())) + "\n")
    click.echo("`trt-tui --help` lists the commands, `trt-tui demo` opens the bundled network.")
    choice = click.prompt("Number to open, enter for none", default="", show_default=False).strip()
    if not choice:
        return
    if not choice.isdecimal() or not 1 <= int(choice) <= len(sessions):
        raise InputError(f"no session has the number {choice}", "", f"Type a number from 1 to {len(sessions)}.")
    entry = sessions[int(choice) - 1]
    try:
        os.chdir(entry.folder)
    except OSError as error:
        raise InputError(f"the folder {entry.folder} cannot be entered", error.strerror or "",
                         "Give the network's path to `trt-tui`.") from None
    entry = msgspec.structs.replace(entry, arguments=entry.resume_arguments)
    sys.stdout.flush()
    os.execv(sys.executable, python_command("trt_tui", *entry.arguments))


def _recent_sessions_path() -> Path:
    return Path(platformdirs.user_state_dir("trt-tui")) / "recent.json"
