"""Sessions and workers that a test drives by hand, and the small files they open."""

import queue
import time
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import onnx

from tests import networks
from trt_tui.core.data.samples import JudgedFeeds
from trt_tui.core.measure.results import EngineResult, K, ResultKind, V
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import WaitStep
from trt_tui.jobs.server import JobServer
from trt_tui.jobs.store import EngineCache, ResultCache, ResultStore, engine_key_parts
from trt_tui.options import Options
from trt_tui.session.history import SessionFolder
from trt_tui.session.session import Session
from trt_tui.workspace import Workspace

LIMIT_S = 60.0
"""How long a test waits for an event before it fails."""


def run_to_end(steps):
    """Returns what steps return, after each of their waits."""
    while True:
        try:
            step = next(steps)
        except StopIteration as ended:
            return ended.value
        while isinstance(step, WaitStep) and not step.ready():
            time.sleep(0.01)


def isolate(monkeypatch, folder: Path, cache: Path | None = None) -> None:
    """Puts the user's state and cache under a folder and keeps libraries to two threads.

    Args:
        cache: Where results are kept instead, for tests that may share what was measured.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache or folder / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


def save_mlp(folder: Path, samples: int = 16, seed: int = 0, name: str = "mlp") -> Options:
    """Writes a three-layer network and samples for it, in batches of 4; returns the options that open them."""
    model, data = folder / f"{name}.onnx", folder / f"{name}.npz"
    onnx.save(networks.mlp(seed), model)
    rng = np.random.default_rng(seed)
    np.savez(data, x=rng.standard_normal((samples, 16), dtype=np.float32))
    return Options(str(model), str(data), batch=4, whatif_samples=0)


def save_resnet(folder: Path, samples: int = 16, batch: int = 4, size: int = 32) -> Options:
    """Writes a residual network of 8 groups and images for it; returns the options that open them."""
    model, data = folder / "small_resnet.onnx", folder / "images.npz"
    onnx.save(networks.small_resnet(size=size), model)
    np.savez(data, image=networks.random_images(np.random.default_rng(0), (samples, 3, size, size)))
    return Options(str(model), str(data), batch=batch, whatif_samples=0)


def stuck_data(folder: Path) -> Path:
    """Writes a script of data that never come; it leaves ``stuck.started`` beside it when it is asked for them."""
    script = folder / "stuck.py"
    script.write_text(
        "import pathlib, time\n"
        "def load_data():\n"
        "    pathlib.Path(__file__).with_suffix('.started').touch()\n"
        "    time.sleep(3600)\n"
        "    yield {}\n"
    )
    return script


def of(events: Collection[ev.Event], *types: type) -> list[ev.Event]:
    """Those of some types."""
    return [event for event in events if isinstance(event, types)]


def values(events: Collection[ev.Event], kind: ResultKind[K, V]) -> list[V]:
    """The measured values of a kind."""
    return [event.value for event in of(events, ev.ValueMeasured) if event.kind == kind]


class Wire:
    """In place of the pipe to the program: keeps the events, and lets a test act on each."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.on_event: Callable[[ev.Event], None] = lambda event: None

    def send(self, event: ev.Event) -> None:
        if isinstance(event, ev.JobProgress) and event.total:
            assert 0 <= event.done <= event.total, event
        self.events.append(event)
        self.on_event(event)


class SharedStore(ResultStore):
    """Holds what was measured for all tests that name its folder, and engines for one of them."""

    def __init__(self, measured: Path, engines: Path) -> None:
        super().__init__(ResultCache(measured), EngineCache(engines))
        self._built: dict[str, EngineResult] = {}

    def load_engine_result(self, workspace: Workspace, config: PrecisionConfig) -> EngineResult | None:
        return self._built.get(self.make_result_key(workspace, "engine", config, *engine_key_parts(workspace)))

    def save_engine_result(self, workspace: Workspace, config: PrecisionConfig, result: EngineResult) -> None:
        self._built[self.make_result_key(workspace, "engine", config, *engine_key_parts(workspace))] = result


class DrivenWorker(JobServer):
    """A worker in this process whose steps the test asks for.

    Args:
        folder: Where it keeps what it measures.
        measured: Where results are kept instead, for tests that may share what was measured.
    """

    def __init__(self, folder: Path, measured: Path | None = None) -> None:
        self.wire = Wire()
        super().__init__(
            self.wire.send,
            SharedStore(measured, folder / "engines")
            if measured is not None
            else ResultStore(ResultCache(folder / "results")),
        )
        self.last = 0

    @property
    def workspace(self) -> Workspace:
        return self.slot.workspace

    @property
    def network(self) -> Network:
        return self.workspace.network

    @property
    def feeds(self) -> JudgedFeeds:
        return self.workspace.feeds

    def ask(self, request: rq.Request) -> int:
        """Puts a request in the inbox, as `receive_requests` does; returns its number."""
        self.last += 1
        self.scheduler.inbox.append((self.last, request))
        return self.last

    def once(self, wanted: Callable[[ev.Event], bool], act: Callable[[], object]) -> list[object]:
        """Has the first wanted event do something; what that returns is put into the list."""
        done: list[object] = []

        def on_event(event: ev.Event) -> None:
            if not done and wanted(event):
                done.append(None)
                done[0] = act()

        self.wire.on_event = on_event
        return done

    def step(self) -> bool:
        return self.scheduler.run_next_step()

    def waited(self) -> bool:
        """Waits for the process that executes an exported file; False where no task waits for one."""
        arrived = self.scheduler.arrival_event
        if not any(
            isinstance(task.request, rq.BuildEngine | rq.WriteEngine | rq.FindMixedPrecisionConfig)
            for task in self.scheduler.scheduled_jobs
        ):
            return False
        assert arrived.wait(LIMIT_S), "nothing comes of what a task waits for"
        arrived.clear()
        return True

    def finish(self) -> list[ev.Event]:
        """Works until there is nothing left to do; returns the events of it."""
        before = len(self.wire.events)
        while self.step() or self.waited():
            pass
        return self.wire.events[before:]

    def answer(self, request: rq.Request) -> list[ev.Event]:
        """Asks and finishes; returns the events of that request."""
        job = self.ask(request)
        return [event for event in self.finish() if event.job == job]

    def stop(self, *jobs: int) -> None:
        self.scheduler.jobs_to_stop.update(jobs or range(self.last + 1))


class DrivenSession(Session):
    """A session with a real child process whose events the test applies."""

    def __init__(self, options: Options, folder: Path, **arguments: object) -> None:
        self.queue: queue.Queue[ev.Event] = queue.Queue()
        self.seen: list[ev.Event] = []
        super().__init__(options, self.queue.put, session_folder=SessionFolder(folder / "sessions"), **arguments)

    @property
    def child_pid(self) -> int | None:
        """The child's process id while it lives."""
        child = self._client._child
        return child.process.pid if child is not None and child.is_alive else None

    def until(self, wanted: Callable[[ev.Event], bool]) -> ev.Event:
        """Applies events up to the first wanted one, which is returned."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                event = self.next_event(max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not seen in {LIMIT_S} s; last events: {self.seen[-5:]}") from None
            self.seen.append(event)
            self.apply_event(event)
            if wanted(event):
                return event

    def settled(self) -> "DrivenSession":
        """Opens what it is of, and works until there is nothing left to do."""
        self.start()
        self.until_idle()
        assert self.error is None, self.error
        return self

    def next_event(self, timeout_s: float) -> ev.Event:
        return self.queue.get(timeout=timeout_s)

    def until_type(self, *types: type) -> ev.Event:
        return self.until(lambda event: isinstance(event, types))

    def written(self, kind: str, path: Path, overwrite: bool = False) -> str:
        """Exports and waits; returns what is said of it."""
        self.export_config(kind, path, overwrite)
        self.until_idle()
        return self.notice

    def until_idle(self) -> None:
        while self.is_busy:
            self.until(lambda event: True)


class LocalClient:
    """In place of the child process: a worker in this one, which works while the session waits for an event."""

    def __init__(self, deliver: Callable[[ev.Event], None], store: ResultStore | None = None) -> None:
        self.scheduler = JobServer(deliver, store).scheduler
        self._last = 0

    def send_request(self, request: rq.Request) -> int:
        self._last += 1
        self.scheduler.inbox.append((self._last, request))
        return self._last

    def stop_jobs(self, jobs: Collection[int] | None = None, is_urgent: bool = True) -> None:
        self.scheduler.jobs_to_stop.update(range(self._last + 1) if jobs is None else jobs)

    def close(self) -> None:
        self.scheduler.scheduled_jobs.clear()


class LocalSession(DrivenSession):
    """A session that is answered in this process: for tests of what becomes of the answers."""

    def __init__(self, options: Options, folder: Path, **arguments: object) -> None:
        super().__init__(options, folder, **arguments)
        self._client = LocalClient(self.queue.put)

    def next_event(self, timeout_s: float) -> ev.Event:
        deadline = time.monotonic() + timeout_s
        while self.queue.empty():
            if not self._client.scheduler.run_next_step():
                time.sleep(0.005)
            if time.monotonic() > deadline:
                raise queue.Empty
        return self.queue.get()
