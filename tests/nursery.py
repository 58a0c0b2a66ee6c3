"""Child processes of tests, forked from one that has the imports done: a second of processor time less each.

What tests of the process itself hold (how it starts, dies and goes with the program) is marked ``spawned``: there the
program starts it as it does in use.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from types import ModuleType, SimpleNamespace
from typing import IO, Any
from unittest import mock

import pytest

from trt_tui.jobs import child_exit, client, exported_process, server
from trt_tui.jobs.child_exit import kill_process_group
from trt_tui.module_path import python_command

_FORKS = multiprocessing.get_context("forkserver")
PRELOADED = (
    "trt_tui.jobs.server",
    "trt_tui.backends.onnxruntime",
    "onnxruntime",
    "onnx.reference",
    "trt_tui.core.network.model_file",
    "distributed.nanny",
    "trt_tui.cluster.cluster",
    "tests.nursery",
    "tests.preloaded",
)
_FORKS.set_forkserver_preload(list(PRELOADED))
_LIVING: dict[int, Forked] = {}


class _Descriptor:
    """A file descriptor that goes along with a process as it starts."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple:
        return _detached, (DupFd(self.number),)


def _detached(sent: Any) -> int:
    return sent.detach()


class Forked:
    """What the program uses of `subprocess.Popen`, for a child process of this program alone."""

    def __init__(
        self,
        module: str,
        numbers: Sequence[str],
        *,
        stdout: IO[bytes],
        env: dict[str, str] | None = None,
        start_new_session: bool = False,
        **_: object,
    ) -> None:
        begun, begins = _FORKS.Pipe(duplex=False)
        descriptors = [_Descriptor(int(one)) for one in (*numbers, stdout.fileno())]
        self._process = _FORKS.Process(
            target=_live, daemon=True, args=(begins, module, env or dict(os.environ), start_new_session, descriptors)
        )
        with mock.patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):  # not to be run again
            self._process.start()
        begins.close()
        begun.recv()
        self.pid = self._process.pid
        self._ended = threading.Event()
        _LIVING[self.pid] = self
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        self._process.join()
        self._ended.set()

    def poll(self) -> int | None:
        return self._process.exitcode if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("worker", timeout)
        return self._process.exitcode

    def kill(self) -> None:
        if self.poll() is None:
            self._process.kill()


def _live(begins: Connection, module: str, env: dict[str, str], leads_group: bool, descriptors: Sequence[int]) -> None:
    if leads_group:
        os.setsid()
    *numbers, log = descriptors
    for output in (1, 2):
        os.dup2(log, output)
    begins.send(None)
    begins.close()
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = env.get("PYTHONPATH", "").split(os.pathsep)
    os.fsync = lambda file: None
    sys.modules[module].main([str(number) for number in numbers])


def _bury(pid: int) -> None:
    """As `trt_tui.jobs.child_exit.wait_and_end_process_group`, of a process that is not this one's own child."""
    _LIVING.pop(pid).wait()
    kill_process_group(pid)


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the program fork its child processes."""

    def start(command: Sequence[str], **options: Any) -> Any:
        numbers = list(itertools.takewhile(str.isdecimal, reversed(command)))[::-1]
        for module in (server.__name__, exported_process.__name__):
            if list(command) == python_command(module, *numbers):
                return Forked(module, numbers, **options)
        return subprocess.Popen(command, **options)

    monkeypatch.setattr(child_exit, "subprocess", SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL))
    monkeypatch.setattr(client, "wait_and_end_process_group", _bury)
