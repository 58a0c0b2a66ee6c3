"""The owner of a saved session: the program that has it open.

A small file beside the session names the owner to other programs.
The lock of a session decides who writes it. A lock may not reach other hosts with the same home folder.
Therefore a program also refreshes the file regularly. A file that is not fresh belongs to a program that has ended.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from trt_tui.errors import InputError
from trt_tui.files.reading import read_bytes
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import escape_hidden_characters

OWNER_SUFFIX = ".owner"
"""The suffix of the files that name owners."""

REFRESH_INTERVAL_S = 30.0
"""The time between two refreshes of the file of an owner."""

MAX_FRESH_AGE_S = 4 * REFRESH_INTERVAL_S
"""The age from which the file of an owner is not fresh. It allows for clocks of hosts that differ."""

_MAX_OWNER_BYTES = 10_000


class SessionOwner(msgspec.Struct, frozen=True):
    """The program that has a session open.

    Attributes:
        network: The path of the network file.
        since: The Unix time at which the program opened the session.
    """

    pid: int
    host: str
    network: str
    since: float

    @classmethod
    def from_this_process(cls, network_path: str) -> "SessionOwner":
        return cls(os.getpid(), socket.gethostname(), os.path.realpath(network_path), time.time())

    @property
    def is_on_this_host(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def description(self) -> str:
        """Process, host and time as text: "process 4711 on node3, since 14:02"."""
        try:
            moment = time.localtime(self.since)
        except (OverflowError, ValueError, OSError):  # a damaged file
            return f"process {self.pid} on {escape_hidden_characters(self.host)}"
        is_today = moment[:3] == time.localtime()[:3]
        return (f"process {self.pid} on {escape_hidden_characters(self.host)}, since "
                f"{time.strftime('%H:%M' if is_today else '%d %b %H:%M', moment)}")


def read_owner(path: Path) -> SessionOwner | None:
    """Returns the owner in a file; None if there is no such file, or it is damaged."""
    try:
        return msgspec.convert(json.loads(read_bytes(path, _MAX_OWNER_BYTES)), SessionOwner)
    except (OSError, InputError, ValueError, RecursionError):  # the errors of msgspec are ValueErrors
        return None


def find_live_owner(path: Path) -> SessionOwner | None:
    """Returns the owner in a file if its program seems to run; None if not.

    The file must be fresh. A process of this host must exist too.
    """
    owner = read_owner(path)
    try:
        age_s = time.time() - path.stat().st_mtime
    except OSError:
        return None
    if owner is None or age_s > MAX_FRESH_AGE_S:
        return None
    import psutil  # rarely needed, and slow to load

    return owner if not owner.is_on_this_host or psutil.pid_exists(owner.pid) else None


class OwnerFile:
    """The file that names this program as the owner of a session, and the thread that keeps the file fresh.

    Args:
        path: The path of the file.
        on_refresh: Called in the thread after each refresh.
    """

    def __init__(self, path: Path, owner: SessionOwner, on_refresh: Callable[[], None]) -> None:
        self.path, self.owner, self.on_refresh = path, owner, on_refresh
        self._is_removed = threading.Event()
        self._write()
        threading.Thread(target=self._keep_fresh, name="session owner", daemon=True).start()

    def remove(self) -> None:
        """Ends the thread, and removes the file if it still names this program."""
        self._is_removed.set()
        if read_owner(self.path) == self.owner:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _write(self) -> None:
        with contextlib.suppress(InputError):  # without the file, the lock alone tells others
            record = json.dumps(msgspec.to_builtins(self.owner))  # a path in broken UTF-8 is no text for msgspec
            write_file_atomically(self.path, record.encode("ascii"), is_private=True)

    def _keep_fresh(self) -> None:
        while not self._is_removed.wait(REFRESH_INTERVAL_S):
            self.refresh()

    def refresh(self) -> None:
        """Sets the modification time of the file to now. A file that is gone is written again."""
        try:
            os.utime(self.path)
        except FileNotFoundError:
            self._write()
        except OSError:
            return
        self.on_refresh()
