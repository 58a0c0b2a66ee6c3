"""Sessions that are answered in the test's own process, on the null backend: real ones, but for the arithmetic."""

from __future__ import annotations

import itertools
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from tests import networks
from tests.driven import LocalClient, SharedStore
from tests.standins.null import LOADED, NullBackend, NullBuilder, NullRunner, execute
from trt_tui.core.lowering.gated.assembly import build_gated_graph, split_graph_into_pieces
from trt_tui.core.lowering.gated.gated_graph import GatedGraph
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.network import Network, open_network
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.store import ResultStore
from trt_tui.options import Options
from trt_tui.session.history import SessionFolder
from trt_tui.session.session import Session

H200 = NullBuilder()
"""A TensorRT whose engines run here."""

NO_GPU = NullBuilder("tensorrt-rtx", "1.7.1.35", "", runs=False)
"""A TensorRT-RTX that builds on a machine without a GPU."""

QKV, CORE = "node_MatMul_12", "node_softmax"
"""Groups of `vit`: the first block's query, key and value, and the Softmax after it."""


def vit(overflowing: bool = False) -> onnx.ModelProto:
    """A vision transformer in which three channels are loud in two of the blocks.

    Args:
        overflowing: The first block's scores are beyond FP16.
    """
    model = networks.vit()
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        if tensor.name in ("blocks.0.norm1.weight", "blocks.1.norm1.weight"):
            array[[7, 21, 30]] *= 15
        elif overflowing and tensor.name == "val_13":
            array[:, :128] *= 1e4
        else:
            continue
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


@cache
def model_bytes(network: str) -> bytes:
    """``vit``, ``overflowing``, ``tiny_resnet`` or a function of `tests.networks`, as a file holds it."""
    if network == "tiny_resnet":  # arithmetic is what searches wait for
        return networks.small_resnet(size=_image_size(network)).SerializeToString()
    made = vit(network == "overflowing") if network in ("vit", "overflowing") else getattr(networks, network)()
    return made.SerializeToString()


def _image_size(network: str) -> int:
    return 8 if network == "tiny_resnet" else 32


def options(folder: Path, network: str = "vit", metric: bool = True, random: bool = False) -> Options:
    """Writes a network of image classification, 16 labelled images that are judged in batches of 8, and 8 that
    calibrate, each four times, as many as no guard warns of; returns the options that open them.

    Args:
        random: Open it without data.
    """
    model = folder / f"{network}.onnx"
    model.write_bytes(model_bytes(network))
    if random:
        return Options(str(model), batch=8, whatif_samples=8)
    rng = np.random.default_rng(0)
    images = networks.random_images(rng, (24, 3, *2 * (_image_size(network),)))
    labels = {"labels": _classes(network, images[:16])} if metric else {}
    np.savez(folder / "samples.npz", image=images[:16], **labels)
    np.savez(folder / "calibration.npz", image=np.tile(images[16:], (4, 1, 1, 1)))
    return Options(
        str(model),
        str(folder / "samples.npz"),
        str(folder / "calibration.npz"),
        batch=8,
        whatif_samples=8,
        metric=f"{Path(__file__).parent / 'standins' / 'score.py'}:score" if metric else None,
    )


_known_classes: dict[str, np.ndarray] = {}


def _classes(network: str, images: np.ndarray) -> np.ndarray:
    """What the network itself takes images for."""
    if network not in _known_classes:
        runner = NullRunner(onnx.load_from_string(model_bytes(network)))
        _known_classes[network] = runner.run({runner.inputs[0].name: images})["logits"].argmax(axis=1)
    return _known_classes[network]


@cache
def outline(network: str = "vit") -> NetworkOutline:
    """A network as the app knows it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{network}.onnx"
        path.write_bytes(model_bytes(network))
        return open_network(path).build_outline()


class Clock:
    """A clock on which a fixed time passes between two looks at it."""

    def __init__(self, step_s: float = 0.5) -> None:
        self._times = itertools.count()
        self._step_s = step_s

    def perf_counter(self) -> float:
        return next(self._times) * self._step_s

    time = monotonic = perf_counter


_graphs: dict[str, GatedGraph] = {}
_pieces: dict[tuple[object, ...], tuple[GatedGraph, list[ir.Model]]] = {}


def build_graph(network: Network, **features: Any) -> GatedGraph:
    """A gated graph, built once for all sessions. One with a reference is changed where it is used."""
    if features.get("with_reference"):
        return build_gated_graph(network, **features)
    key = f"{network.sha256()} {features}"
    if key not in _graphs:
        _graphs[key] = build_gated_graph(network, **features)
    return _graphs[key]


def split_graph(graph: GatedGraph, *arguments: Any, **options: Any) -> list[ir.Model]:
    """The pieces of a gated graph, which are made and loaded once for all sessions."""
    key = id(graph), arguments, *options.items()
    if key not in _pieces:
        _pieces[key] = graph, [*split_graph_into_pieces(graph, *arguments, **options)]
        for piece in _pieces[key][1]:
            piece.meta[LOADED] = NullBackend().load(piece)
    return _pieces[key][1]


class NullClient(LocalClient):
    """Answers with the null backend, and with a builder where there is one.

    Args:
        held: Requests that stay unanswered, as those of a slow job do, by their types.
        sweeps: Changed configs are measured group by group.

    Attributes:
        sent: All that was asked.
        stops: How often it was told to stop.
        searched: A search is held once it has made so many evaluations; None lets it end.
    """

    def __init__(
        self,
        deliver: Callable[[ev.Event], None],
        store: ResultStore,
        builder: NullBuilder | None,
        held: Collection[type],
        sweeps: bool,
    ) -> None:
        self._thread, self._sent_by_threads = threading.current_thread(), deque[ev.Event]()
        super().__init__(self._deliver, store)
        self._works_in_steps, reports = False, itertools.count()
        # All that is told, on machines of any speed, but of the progress of work up to its end every 25th report.
        self.scheduler.is_report_due = lambda kind: (
            kind != "progress" or self._works_in_steps or next(reports) % 25 == 0
        )
        self.sent: list[rq.Request] = []
        self.stops = 0
        self.closed = False
        self.held, self._sweeps = set(held), sweeps
        self.searched: int | None = None
        self._to, self._evaluations = deliver, 0
        self._waiting: list[tuple[int, rq.Request]] = []
        self._stand_ins = {
            "get_simulation_backend": lambda *_, **__: NullBackend(),
            "get_engine_builder": lambda *_, **__: builder,
            "execute_exported_file": execute,
            "build_gated_graph": build_graph,
            "split_graph_into_pieces": split_graph,
        }

    def _deliver(self, event: ev.Event) -> None:
        """Keeps the order of events, as the pipe of a process does, also of those that a build thread sends."""
        if threading.current_thread() is not self._thread:
            self._sent_by_threads.append(event)
            return
        self._deliver_of_threads()
        self._evaluations = event.done if isinstance(event, ev.SearchProgress) else self._evaluations
        self._to(event)

    def _deliver_of_threads(self) -> None:
        while self._sent_by_threads:
            self._to(self._sent_by_threads.popleft())

    def send_request(self, request: rq.Request) -> int:
        self.sent.append(request)
        swept = self._sweeps or not isinstance(request, rq.MeasureWhatIf)
        job = super().send_request(request if swept else replace(request, with_shares=False))
        if type(request) in self.held:
            self._waiting.append(self.scheduler.inbox.pop())
        return job

    def stop_jobs(self, jobs: Collection[int] | None = None, is_urgent: bool = True) -> None:
        self.stops += 1
        self.searched = None
        super().stop_jobs(jobs)
        released = [one for one in self._waiting if jobs is None or one[0] in jobs]
        self.scheduler.inbox.extend(released)
        self._waiting = [one for one in self._waiting if one not in released]

    def release(self) -> None:
        """Lets what was held be answered."""
        self.held.clear()
        self.scheduler.inbox.extend(self._waiting)
        self._waiting = []

    def close(self) -> None:
        self.closed = True
        super().close()

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done, or what is to be done is held."""
        searching = any(isinstance(task.request, rq.FindMixedPrecisionConfig) for task in self.scheduler.scheduled_jobs)
        held = searching and self.searched is not None and self._evaluations >= self.searched
        return held or not (self.scheduler.scheduled_jobs or self.scheduler.inbox)

    def work(self, steps: int | None = None) -> None:
        """Does what is to be done, so many steps of it at most, up to a wait for a thread."""
        self._works_in_steps = steps is not None
        self._deliver_of_threads()
        with ExitStack() as patched:
            for module in [one for name, one in sys.modules.items() if name.startswith("trt_tui.")]:
                if stand_ins := {name: one for name, one in self._stand_ins.items() if name in vars(module)}:
                    patched.enter_context(patch.multiple(module, **stand_ins))
            for _ in range(steps) if steps is not None else itertools.count():
                if self.idle or not self.scheduler.run_next_step():
                    return


class NullSession(Session):
    """See the module's docstring. What several tests ask of one network is computed once.

    Args:
        deliver: Takes the events; by default they are applied.
        builder, held, sweeps, searched: See `NullClient`.

    Attributes:
        measured_before: Folder of what was measured, for all sessions.
        child: In place of the child process.
    """

    measured_before: Path

    def __init__(
        self,
        options: Options,
        deliver: Callable[[ev.Event], None] | None = None,
        *,
        folder: Path,
        builder: NullBuilder | None = None,
        held: Collection[type] = (),
        sweeps: bool = True,
        searched: int | None = None,
        **arguments: Any,
    ) -> None:
        deliver = deliver or self.apply_event
        super().__init__(options, deliver, session_folder=SessionFolder(folder / "sessions"), **arguments)
        self.child = self._client = NullClient(
            deliver, SharedStore(self.measured_before, folder / "engines"), builder, held, sweeps
        )
        self.child.searched = searched

    def rest(self) -> NullSession:
        """Waits until everything that was asked and is not held is answered."""
        while not self.child.idle:
            self.child.work()
            time.sleep(0.001)
        return self


def measured(
    folder: Path,
    network: str = "vit",
    target: str = "sqnr>=20",
    *,
    metric: bool = True,
    random: bool = False,
    **session: Any,
) -> NullSession:
    """A session that has measured everything by itself."""
    made = NullSession(options(folder, network, metric, random), folder=folder, resume=False, target=target, **session)
    made.start()
    return made.rest()
