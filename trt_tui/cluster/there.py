"""What runs in a worker: it says what it is, opens what the program has open, and does errands.

A `Place` is a result that Dask keeps in the worker for as long as the program that asked for it is connected; with it
go the sessions and the files.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pickle
import shutil
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from distributed import get_worker

import trt_tui
from trt_tui.backends.cuda import first_device
from trt_tui.cluster.parcel import Parcel
from trt_tui.core.hands import Errand
from trt_tui.core.lowering.rules import ARITHMETIC
from trt_tui.core.runner import Backend
from trt_tui.core.source_hash import source_sha256
from trt_tui.errors import BackendUnavailableError, InputError
from trt_tui.files.folders import make_private
from trt_tui.workspace import Workspace

TURN_S = 0.05
"""A task that waits for its turn looks this often whether it was called off."""


@dataclass(frozen=True)
class Kind:
    """What results depend on beside the network, the data and the options.

    Attributes:
        program: Version of this program, with that of its arithmetic.
        runtime: ONNX Runtime, with what it runs on.
        builders: The releases of TensorRT and TensorRT-RTX.
        gpu: Its name; "" where there is none.
    """

    program: str
    runtime: str
    builders: str
    gpu: str

    def differences(self, other: Kind, engines: bool) -> list[str]:
        """How another kind differs, in words; what engines alone depend on counts if ``engines``."""
        said = {"program": "trt-tui", "runtime": "ONNX Runtime"} | (
            {"builders": "TensorRT", "gpu": "GPU"} if engines else {})
        values, others = ({field.name: str(kind.__dict__[field.name]) for field in fields(Kind)}
                          for kind in (self, other))
        return [f"{word} {others[name] or 'none'}, here {values[name] or 'none'}" for name, word in said.items()
                if values[name] != others[name]]


@dataclass(frozen=True)
class Greeting:
    """What a worker says of itself.

    Attributes:
        threads: How many it runs an operator on, where it runs on processor cores.
    """

    kind: Kind
    host: str
    process: int
    threads: int


def kind_of(backend: Backend) -> Kind:
    """The kind of this process, whose backend simulates."""
    releases = []
    for name in ("tensorrt", "tensorrt-rtx"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases.append(f"{name} {importlib.metadata.version(name)}")
    gpu = ""
    with contextlib.suppress(BackendUnavailableError):
        gpu = first_device().name
    program = f"{trt_tui.__version__} ({ARITHMETIC}, source {source_sha256()[:12]})"
    return Kind(program, f"{backend.version} ({backend.provider})", ", ".join(releases), gpu)


def greet() -> Greeting:
    """What this worker is."""
    from trt_tui.backends.registry import get_backend

    return Greeting(kind_of(get_backend()), socket.gethostname(), os.getpid(), get_worker().state.nthreads)


class Place:
    """What a worker has open; its errands run one at a time.

    Args:
        parcel: What to open.
    """

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel
        self._folder = Path(get_worker().local_directory) / f"trt-tui-{uuid.uuid4().hex}"
        self._workspace: Workspace | None = None
        self._turn = threading.Lock()
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def __reduce__(self) -> str:
        raise TypeError("a place stays in its worker")

    def missing(self) -> list[int]:
        """The numbers of the files that are not seen here."""
        return [number for number, file in enumerate(self._parcel.files) if not file.here]

    def take(self, number: int, piece: bytes) -> None:
        """Takes the next piece of a file."""
        path = self._inside(number)
        make_private(path.parent)
        with open(path, "ab") as stream:
            stream.write(piece)

    def open(self) -> None:
        """Opens the parcel.

        Raises:
            InputError: what is open now is not what the program has open.
        """
        parcel, options = self._parcel, self._parcel.options
        if self._folder.exists():
            options = parcel.under(self._folder)
            for number, file in enumerate(parcel.files):
                path = self._inside(number)
                if not path.exists():
                    make_private(path.parent)
                    path.symlink_to(file.path)
        workspace = Workspace(replace(options, threads=get_worker().state.nthreads))
        found = workspace.identify(workspace.network.sha256())
        for what, here, there in (("network", found.sha256, parcel.source.sha256),
                                  ("samples", found.data_sha256, parcel.source.data_sha256)):
            if here != there:
                raise InputError(f"it reads another {what}", "what came of the same files differs there")
        _ = workspace.analysis
        self._workspace = workspace

    @contextlib.contextmanager
    def turn(self, task: str) -> Iterator[Workspace | None]:
        """The workspace once no other errand uses it; None if the task was called off meanwhile."""
        while not self._turn.acquire(timeout=TURN_S):
            if called_off(task):
                yield None
                return
        try:
            yield self._workspace
        finally:
            self._turn.release()

    def _inside(self, number: int) -> Path:
        return Path(f"{self._folder}{self._parcel.files[number].path}")


def missing(place: Place) -> list[int]:
    """See `Place.missing`."""
    return place.missing()


def take(place: Place, number: int, piece: bytes) -> None:
    """See `Place.take`."""
    place.take(number, piece)


def open_place(place: Place) -> None:
    """See `Place.open`."""
    place.open()


def unpacked(errand: bytes) -> Any:
    """The errand, which stays in the worker until the program lets go of it."""
    return pickle.loads(errand)


def called_off(task: str) -> bool:
    """Whether nobody waits for the task that this thread runs: it was cancelled, or the program is gone."""
    known = get_worker().state.tasks.get(task)
    return known is None or known.state != "executing"


def run(place: Place, errand: Errand[Workspace, Any, Any], items: bytes) -> tuple[float, bytes]:
    """Does an errand with some items, which are pickled.

    Returns:
        Seconds; what came of each item, pickled, in place of the last of them an exception where one failed.
    """
    task, results = str(get_worker().get_current_task()), []
    with place.turn(task) as workspace:
        since = time.perf_counter()
        for item in pickle.loads(items) if workspace is not None else ():
            assert workspace is not None, "there are no items without one"
            with contextlib.closing(errand.do(workspace, item)) as doing:
                try:
                    waits = None
                    while not called_off(task):
                        if waits is None or waits.ready():
                            waits = next(doing)
                        else:
                            time.sleep(TURN_S)
                    break
                except StopIteration as stop:
                    results.append(stop.value)
                except Exception as error:
                    results.append(error)
                    break
        return time.perf_counter() - since, pickle.dumps(results)
