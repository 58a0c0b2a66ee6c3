"""What the builder would make of a config: asked of a process of its own, kept on disk by what it depends on."""

import importlib.metadata
import importlib.util
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from typing import Any

from trt_tui.backends.cuda import first_device
from trt_tui.core.calibration.ranges import stamp
from trt_tui.core.engines.preview import Barred, Preview, Refusal, broken, gained, same_engine, suspects, taken_apart
from trt_tui.core.lowering.lowered import quantizes
from trt_tui.core.measure.reference import is_network
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.runner import FixedShape
from trt_tui.errors import BackendUnavailableError, CancelledError, TrtTuiError
from trt_tui.files.reading import digest
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ranges_to_write
from trt_tui.jobs.death import why_it_ended
from trt_tui.jobs.orders import CallOff, Order, Subject
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.spreading import hands_of
from trt_tui.jobs.steps import Steps, Urgency, Wait
from trt_tui.jobs.store import FileCache, Store
from trt_tui.module_path import python_command
from trt_tui.workspace import ReplacedError, Workspace, profile_of

NICENESS = 5
"""Of the process that answers, where other things are to go first; while a person waits for one, it is stopped."""

BEHIND_EFFECTS = frozenset({Urgency.LAYERS, Urgency.BACKGROUND, Urgency.FLIPS})
"""What is measured by itself waits while the builder is at work, so that both are done sooner; also the first look at
what each group owns while it is asked about a config, but not about what that config's choices do."""

BEHIND_MARKS = BEHIND_EFFECTS | {Urgency.MAP}

MOST_BARRIERS = 8
"""What fusion barriers do is asked one by one, of so many."""

ABSENT = Refusal("TensorRT-RTX is not installed", "", "pip install 'trt-tui[rtx]' shows what the builder makes of each "
                 "layer, without a GPU.", absent=True)


def run(workspace: Workspace, store: Store, report: Report, request: rq.PreviewEngine) -> Steps[None]:
    """Tells what the builder makes of each group, then what the config's choices do to the engine."""
    config = request.config
    if not is_installed():
        report.send(ev.EnginePreviewed(report.job, config, Preview(refused=ABSENT)))
        return
    if request.opening:
        yield Urgency.STATS
    try:
        ranges, _ = ranges_to_write(workspace, store, report, config, request.given)
        asking = Asking(workspace, store, report, ranges, request.background)
        preview = yield from asking.preview(config, BEHIND_MARKS)
        report.send(ev.EnginePreviewed(report.job, config, preview))
        if request.effects and preview.refused is None and preview.no_effect is None:
            report.send(ev.EnginePreviewed(report.job, config, (yield from asking.with_effects(config, preview))))
    except (CancelledError, ReplacedError):
        raise
    except TrtTuiError as error:  # everything else goes on without it
        refused = Refusal(error.title, error.cause, error.next_step)
        report.send(ev.EnginePreviewed(report.job, config, Preview(refused=refused)))


def is_installed() -> bool:
    """Whether there is a TensorRT-RTX to ask."""
    return importlib.util.find_spec("tensorrt_rtx") is not None


def hold(held: bool) -> None:
    """Has the process that answers stop while a person waits for something else, or go on."""
    _PROCESS.hold(held)


def _subject(workspace: Workspace, sha256: str) -> Subject:
    """The network of a workspace, by its hash."""
    options = workspace.options
    reference = options.reference if options.reference is not None and is_network(options.reference) else None
    return Subject(str(workspace.network.path), sha256, reference, tuple(options.ort_ops),
                   tuple((path, digest(path)) for path in options.production.plugins))


class Previewing:
    """An errand: what the builder makes of a config, asked in a thread of the process.

    Args:
        order: One about the same network; its config is not read.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._previewer: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_previewer": None}

    def words(self, item: PrecisionConfig) -> str:
        """See `trt_tui.core.hands.Errand`."""
        return "the preview of a config"

    def do(self, subject: Workspace, item: PrecisionConfig) -> Generator[Wait, None, Preview]:
        """See `trt_tui.core.hands.Errand`."""
        from trt_tui.jobs.previewer import Previewer  # needed in workers alone

        network = _subject(subject, self._order.subject.sha256)
        previewer = self._previewer = self._previewer or Previewer((network, subject.network))
        order, found = replace(self._order, subject=network, config=item), list[Preview | None]()
        previewer.wanted = order.number
        thread = threading.Thread(target=lambda: found.append(previewer.answer(order)), daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                yield Wait(lambda: not thread.is_alive())
        finally:
            previewer.wanted = 0
            thread.join()
        preview = found[0] if found else None
        return preview if preview is not None else Preview(refused=Refusal("the builder was called off", "", ""))


class Asking:
    """What is asked of the builder about one network.

    Args:
        report: Woken from a thread when there is an answer.
        ranges: amax by tensor, in the tensors' own units.
        background: Somebody waits for something else.
    """

    def __init__(self, workspace: Workspace, store: Store, report: Report, ranges: Mapping[str, float],
                 background: bool = False) -> None:
        self.network, self._store, self._report, self._ranges = workspace.network, store, report, ranges
        self._workspace, self._niceness = workspace, NICENESS if background else 0
        source = workspace.source
        sha256 = source.sha256 if source is not None else store.network_sha256(workspace.network)
        self._subject = _subject(workspace, sha256)
        self._profile, self._asked = _profile(workspace), workspace.options.compute_capability
        self._gpu: tuple[int, int] | None = None
        with suppress(BackendUnavailableError):  # without a GPU one has to be named
            self._gpu = first_device().compute_capability

    def preview(self, config: PrecisionConfig, ahead_of: frozenset[Urgency] = BEHIND_EFFECTS) -> Steps[Preview]:
        """Returns what the builder makes of a config, or why that is not known.

        Args:
            ahead_of: What waits meanwhile.
        """
        key = self._key(config)
        known = self._store.results.get(key, Preview)
        if known is not None:
            return known
        order = self._order(config)
        try:
            _PROCESS.send(order, self._report.wake, self._niceness)
            yield Wait(lambda: _PROCESS.done(order.number), ahead_of=ahead_of)
            preview = _PROCESS.taken(order.number)
        finally:
            _PROCESS.call_off(order.number)
        if preview.refused is None:
            self._keep(config, preview)
        return preview

    def previews(self, configs: Sequence[PrecisionConfig]) -> Steps[list[Preview]]:
        """Returns what the builder makes of several configs: at once where other processes are, else one by one."""
        others, found = self._workspace.others, dict[PrecisionConfig, Preview]()
        unknown = [config for config in dict.fromkeys(configs)
                   if self._store.results.get(self._key(config), Preview) is None]
        if others is not None and min(len(unknown), others.able(engines=True)) > 1:
            hands = hands_of(self._workspace, self._report, engines=True)
            for made in hands.work(Previewing(self._order(configs[0])), unknown):
                if made is not None:
                    found.update([made])
                    if made[1].refused is None:
                        self._keep(*made)
                yield Wait(hands.ready)
        told = []
        for config in configs:
            told.append(found[config] if config in found else (yield from self.preview(config)))
        return told

    def with_effects(self, config: PrecisionConfig, preview: Preview) -> Steps[Preview]:
        """Returns the preview with what the config's choices do to the engine, found by leaving them out."""
        network = self.network
        idle: set[str] = set()
        waiting: list[Sequence[Group]] = [suspects(network, config, preview)]
        while asked := [groups for groups in waiting if groups]:
            answers = yield from self.previews([config.without_groups(groups) for groups in asked])
            waiting = []
            for groups, without in zip(asked, answers, strict=True):
                if without.refused is None and same_engine(preview, without):
                    idle.update(group.name for group in groups)
                elif without.refused is None and len(groups) > 1:
                    half = len(groups) // 2
                    waiting += [groups[:half], groups[half:]]
        apart: tuple[str, ...] = ()
        if chosen := [group for group in taken_apart(network, config, preview) if group.name not in idle]:
            without = yield from self.preview(config.without_groups(chosen))
            apart = broken(network, chosen, without)
        tensors = Barrier.subject.ordered(network, config.of(Barrier))[:MOST_BARRIERS]
        answers = yield from self.previews([config.without(Barrier, [tensor]) for tensor in tensors])
        barred = {tensor: Barred(tuple(gained(preview, without)), tuple(gained(without, preview)))
                  for tensor, without in zip(tensors, answers, strict=True) if without.refused is None}
        preview = replace(preview, no_effect=tuple(group.name for group in network.groups if group.name in idle),
                          breaks_mha=apart, barred=barred)
        self._keep(config, preview)
        return preview

    def _keep(self, config: PrecisionConfig, preview: Preview) -> None:
        """Stores a preview. Raises as `Store.keep`."""
        self._workspace.require_unchanged()
        self._store.results.put(self._key(config), preview)

    def _order(self, config: PrecisionConfig) -> Order:
        return Order(_PROCESS.number(), self._subject, config, self._ranges, self._profile, self._gpu, self._asked)

    def _key(self, config: PrecisionConfig) -> str:
        """All that an engine's kernels depend on; ranges too, since equal scales are fused where others are not."""
        ranges = stamp(self._ranges) if quantizes(self.network, config) else ()
        return FileCache.key("preview, code", self._subject, config.key(), ranges, sorted(self._profile.items()),
                             self._gpu, self._asked, _release())


def _release() -> str:
    for name in ("tensorrt-rtx", "tensorrt_rtx"):
        with suppress(importlib.metadata.PackageNotFoundError):  # the package has two names
            return importlib.metadata.version(name)
    return ""


def _profile(workspace: Workspace) -> dict[str, tuple[FixedShape, FixedShape, FixedShape]]:
    """Shapes of the dynamic inputs, as asked for or as the data has them."""
    network = workspace.network
    asked = {name: (one.min, one.opt, one.max) for name, one in workspace.shapes.items()}
    dynamic = {info.name for info in network.inputs
               if info.shape is not None and not all(isinstance(size, int) for size in info.shape)}
    if dynamic <= asked.keys():
        return asked
    return {**profile_of(network, workspace.data.judged, workspace.feeds), **asked}


class _Process:
    """The process that answers, and what it has answered."""

    def __init__(self, wake: Callable[[], None], niceness: int) -> None:
        self.pipe, theirs = Pipe()
        tied, held = os.pipe()
        self.lifeline = open(held, "wb")  # the process ends when this is closed, stopped or not
        with theirs, open(tied, "rb"):
            descriptors = (theirs.fileno(), tied)
            command = python_command("trt_tui.jobs.previewer", *descriptors, niceness)
            self.process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
        self.wake = wake
        self.ended = False
        self.answers: dict[int, Preview | None] = {}
        self.outgoing = queue.SimpleQueue[Order | CallOff | None]()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def hold(self, held: bool) -> None:
        """Stops the process, or lets it go on."""
        self.process.send_signal(signal.SIGSTOP if held else signal.SIGCONT)  # nothing where it has ended

    def _write(self) -> None:
        """Passes on what is to be sent: a thread of its own waits for a process that is stopped, or starts."""
        with suppress(OSError):  # it has ended, which `ended` says soon
            while (message := self.outgoing.get()) is not None:
                self.pipe.send(message)

    def _read(self) -> None:
        with suppress(EOFError, OSError):  # the process has ended, which `ended` says
            while True:
                number, preview = self.pipe.recv()
                self.answers[number] = preview
                self.wake()
        self.process.wait()
        self.ended = True
        self.outgoing.put(None)
        self.lifeline.close()
        self.wake()


class _Asked:
    """The end of this process: starts the one that answers with the first order, and anew after it died."""

    def __init__(self) -> None:
        self._process: _Process | None = None
        self._number = 0
        self._held = False

    @property
    def started(self) -> bool:
        """Whether the process runs, and so knows a network."""
        return self._process is not None and not self._process.ended

    def number(self) -> int:
        """The number of the next order."""
        self._number += 1
        return self._number

    def send(self, order: Order, wake: Callable[[], None], niceness: int) -> None:
        """Passes an order on, in place of the one before."""
        if self._process is None or not self.started:
            self._process = _Process(wake, niceness)
            self.hold(self._held)
        self._process.wake = wake
        self._process.outgoing.put(order)

    def hold(self, held: bool) -> None:
        """Has the process stop what it does, or go on with it, and so one that is started meanwhile."""
        self._held = held
        if self._process is not None and self.started:
            self._process.hold(held)

    def done(self, number: int) -> bool:
        """Whether there is an answer, or will be none."""
        return self._process is None or self._process.ended or number in self._process.answers

    def taken(self, number: int) -> Preview:
        """The answer, or that there is none."""
        process = self._process
        preview = process.answers.pop(number, None) if process is not None else None
        if preview is not None:
            return preview
        death = why_it_ended(process.process.poll() if process is not None else None, "", None, None)
        return Preview(refused=Refusal("the process that asks TensorRT-RTX ended", death.why,
                                       "The log has what it printed."))

    def call_off(self, number: int) -> None:
        """Ends an order that nobody waits for any more; nothing where it was answered."""
        if self._process is not None and self.started and number not in self._process.answers:
            self._process.outgoing.put(CallOff(number))
        if self._process is not None:
            self._process.answers.pop(number, None)


_PROCESS = _Asked()
