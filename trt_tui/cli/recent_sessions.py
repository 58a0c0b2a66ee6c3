"""The list of recent sessions, which `trt-tui` without arguments offers to open again with their arguments."""

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
from trt_tui.files.locks import file_lock
from trt_tui.files.reading import MAX_TEXT_BYTES, read_bytes
from trt_tui.files.writing import make_private_folder, rename_damaged_file, write_file_atomically
from trt_tui.formatting import counted_noun_text, duration_text, pad_right, table_lines
from trt_tui.module_path import python_command

if TYPE_CHECKING:
    from trt_tui.session.session import Session

MAX_LOCK_WAIT_S = 5.0
"""The maximum waiting time for the list while other programs write it."""

MAX_RECENT_SESSIONS = 9
"""The maximum number of listed sessions."""
_MAX_AGE_S = 9999 * 86400.0
"""The displayed age of an older session, and of a session with an impossible time."""


class RecentSession(msgspec.Struct, frozen=True):
    """One recent use of the app, with the arguments that open its session again.

    Attributes:
        arguments: The command-line arguments after ``trt-tui``, in ``folder``.
        config: The title of the current config at the end.
        outcome: The result of the target for that config.
        when: The end, in seconds since the epoch.
        session: The name of the saved session with its configs; "" if nothing was saved.
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
        """The arguments that open the session again with its own configs, even if the network has other sessions."""
        return [*self.arguments, *(["--session", self.session] if self.session else [])]


def load_recent_sessions() -> list[RecentSession]:
    """Returns the recent sessions, newest first; empty if the list is missing or cannot be read.

    A damaged list is kept under another name, and a warning is printed.
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
    except (ValueError, RecursionError):  # the errors of msgspec are ValueErrors
        damaged_copy = rename_damaged_file(path)
        click.echo(
            f"Warning: the list of recent sessions is "
            f"damaged{f'; it is kept as {damaged_copy}' if damaged_copy else ''}.",
            err=True,
        )
        return []


def record_recent_session(session: Session, arguments: list[str]) -> None:
    """Adds an ending session to the head of the list. A session whose network never opened is omitted.

    The list is a convenience: if it cannot be written, no error is reported.
    """
    from trt_tui.session.results import outcome_texts
    from trt_tui.tui.state.config_status import config_title

    if session.outline is None:
        return
    accuracy = session.get_run_results("config").accuracy
    entry = RecentSession(
        os.getcwd(),
        _remove_session_options(arguments),
        Path(session.outline.path).name,
        config_title(session, 28),
        "not measured"
        if accuracy is None
        else " ".join(outcome_texts(session.config_target_outcomes(session.config))) or "all in FP32",
        time.time(),
        session.session_folder.name,
    )
    with contextlib.suppress(InputError, OSError, ValueError, Timeout):  # a name in broken UTF-8 raises ValueError
        make_private_folder(_recent_sessions_path().parent)
        with file_lock(_recent_sessions_path(), MAX_LOCK_WAIT_S):  # several programs may end at once
            entries = [entry, *(earlier for earlier in load_recent_sessions() if not _is_same_session(entry, earlier))]
            write_file_atomically(
                _recent_sessions_path(), msgspec.json.encode(entries[:MAX_RECENT_SESSIONS]), is_private=True
            )


def _is_same_session(first: RecentSession, second: RecentSession) -> bool:
    """Returns True if two uses of the app share a saved session, or, without saved sessions, their arguments."""
    if first.session and second.session:
        return first.session == second.session
    return (first.folder, first.arguments) == (second.folder, second.arguments)


def _remove_session_options(arguments: list[str]) -> list[str]:
    """Returns arguments without ``--session`` and ``--new``, which would not open the same session again."""
    remaining = iter(arguments)
    reusable = []
    for argument in remaining:
        if argument == "--session":
            next(remaining, None)
        elif argument != "--new" and not argument.startswith("--session="):
            reusable.append(argument)
    return reusable


def recent_session_lines(sessions: list[RecentSession], current_time: float) -> list[str]:
    """Returns two lines for each session: number, network, config, outcome and age, and the command that opens it
    again."""

    def resume_command_text(recent_session: RecentSession) -> str:
        several = (
            sum(
                (sibling.folder, sibling.arguments) == (recent_session.folder, recent_session.arguments)
                for sibling in sessions
            )
            > 1
        )
        folder_change = "" if recent_session.folder == os.getcwd() else f"cd {shlex.quote(recent_session.folder)} && "
        return (
            f"{folder_change}trt-tui "
            f"{shlex.join(recent_session.resume_arguments if several else recent_session.arguments)}"
        )

    rows = table_lines(
        [
            [
                str(number),
                pad_right(entry.network, 32).rstrip(),
                entry.config,
                entry.outcome,
                _session_age_text(current_time - entry.when),
            ]
            for number, entry in enumerate(sessions, 1)
        ],
        left_aligned_columns=4,
    )
    return [
        line
        for row, entry in zip(rows, sessions, strict=True)
        for line in (f" {row}", f"    {resume_command_text(entry)}")
    ]


def _session_age_text(seconds: float) -> str:
    seconds = min(max(0.0, seconds), _MAX_AGE_S)
    days = int(seconds // 86400)
    return "just now" if seconds < 10 else f"{counted_noun_text(days, 'day') if days else duration_text(seconds)} ago"


def offer_recent_sessions(sessions: list[RecentSession]) -> None:
    """Lists the recent sessions, and replaces this process by the session whose number the user types."""
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
        raise InputError(
            f"the folder {entry.folder} cannot be entered",
            error.strerror or "",
            "Give the network's path to `trt-tui`.",
        ) from None
    entry = msgspec.structs.replace(entry, arguments=entry.resume_arguments)
    sys.stdout.flush()
    os.execv(sys.executable, python_command("trt_tui", *entry.arguments))


def _recent_sessions_path() -> Path:
    return Path(platformdirs.user_state_dir("trt-tui")) / "recent.json"
