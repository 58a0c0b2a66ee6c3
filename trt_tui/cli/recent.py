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
from trt_tui.files.damaged import set_aside
from trt_tui.files.folders import make_private
from trt_tui.files.locking import locked
from trt_tui.files.reading import TEXT_BYTES, read_bytes
from trt_tui.files.writing import write_atomic
from trt_tui.module_path import python_command
from trt_tui.words import duration, left, plural, table

if TYPE_CHECKING:
    from trt_tui.session.session import Session

PATIENCE_S = 5.0
"""How long the list is waited for while other programs write it."""

MOST = 9
"""Sessions that are listed."""
_MAX_AGE_S = 9999 * 86400.0
"""Age that is told of an older session, and of one whose time makes no sense."""


class Recent(msgspec.Struct, frozen=True):
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
    def resuming(self) -> list[str]:
        """The arguments that open it again with its own configs, whatever other sessions the network has."""
        return [*self.arguments, *(["--session", self.session] if self.session else [])]


def recent() -> list[Recent]:
    """The sessions of late, newest first; none where the list is missing or cannot be read.

    A damaged list is kept under another name, with a word.
    """
    path = _place()
    try:
        data = read_bytes(path, TEXT_BYTES)
    except (InputError, OSError):
        return []
    try:
        listed = msgspec.json.decode(data, type=list[Recent])
        if any("\0" in text for one in listed for text in (one.folder, one.session, *one.arguments)):
            raise ValueError("no path and no argument has a NUL")
        return listed[:MOST]
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        kept = set_aside(path)
        click.echo(f"Warning: the list of recent sessions is damaged{f'; it is kept as {kept}' if kept else ''}.",
                   err=True)
        return []


def remember(session: Session, arguments: list[str]) -> None:
    """Puts a session that ends at the head of the list; one whose network never opened is left out.

    The list is a convenience: where it cannot be written, nothing is said.
    """
    from trt_tui.session.config_results import outcome_words
    from trt_tui.tui.known import config_title

    if session.outline is None:
        return
    verdict = session.measured("config").verdict
    one = Recent(os.getcwd(), _typed(arguments), Path(session.outline.path).name, config_title(session, 28),
                 "not measured" if verdict is None else
                 " ".join(outcome_words(session.config_results(session.config))) or "nothing lowered", time.time(),
                 session.store.name)
    with contextlib.suppress(InputError, OSError, ValueError, Timeout):  # a name of broken UTF-8 is a ValueError
        make_private(_place().parent)
        with locked(_place(), PATIENCE_S):  # several programs may end at once
            kept = [one, *(other for other in recent() if not _same(one, other))]
            write_atomic(_place(), msgspec.json.encode(kept[:MOST]), private=True)


def _same(one: Recent, other: Recent) -> bool:
    """Returns True if a use of the app goes on from another: by the saved session, or by the arguments without one."""
    if one.session and other.session:
        return one.session == other.session
    return (one.folder, one.arguments) == (other.folder, other.arguments)


def _typed(arguments: list[str]) -> list[str]:
    """Returns arguments without the name of a session and without ``--new``, which would not open it again."""
    rest = iter(arguments)
    typed = []
    for one in rest:
        if one == "--session":
            next(rest, None)
        elif one != "--new" and not one.startswith("--session="):
            typed.append(one)
    return typed


def listed(sessions: list[Recent], now: float) -> list[str]:
    """A line for each session: its number, network, config, outcome, age, and the command that opens it again."""
    def command(one: Recent) -> str:
        several = sum((other.folder, other.arguments) == (one.folder, one.arguments) for other in sessions) > 1
        there = "" if one.folder == os.getcwd() else f"cd {shlex.quote(one.folder)} && "
        return f"{there}trt-tui {shlex.join(one.resuming if several else one.arguments)}"

    rows = table([[str(number), left(one.network, 32).rstrip(), one.config, one.outcome, _age(now - one.when)]
                  for number, one in enumerate(sessions, 1)], flush_left=4)
    return [line for row, one in zip(rows, sessions, strict=True) for line in (f" {row}", f"    {command(one)}")]


def _age(seconds: float) -> str:
    seconds = min(max(0.0, seconds), _MAX_AGE_S)
    days = int(seconds // 86400)
    return "just now" if seconds < 10 else f"{plural(days, 'day') if days else duration(seconds)} ago"


def offer(sessions: list[Recent]) -> None:
    """Lists the sessions and opens the one whose number is typed, in place of this program."""
    click.echo("Recent sessions:\n\n" + "\n".join(listed(sessions, time.time())) + "\n")
    click.echo("`trt-tui --help` lists the commands, `trt-tui demo` opens the bundled network.")
    choice = click.prompt("Number to open, enter for none", default="", show_default=False).strip()
    if not choice:
        return
    if not choice.isdecimal() or not 1 <= int(choice) <= len(sessions):
        raise InputError(f"no session has the number {choice}", "", f"Type a number from 1 to {len(sessions)}.")
    one = sessions[int(choice) - 1]
    try:
        os.chdir(one.folder)
    except OSError as error:
        raise InputError(f"the folder {one.folder} cannot be entered", error.strerror or "",
                         "Give the network's path to `trt-tui`.") from None
    one = msgspec.structs.replace(one, arguments=one.resuming)
    sys.stdout.flush()
    os.execv(sys.executable, python_command("trt_tui", *one.arguments))


def _place() -> Path:
    return Path(platformdirs.user_state_dir("trt-tui")) / "recent.json"
