"""What the commands without an app share: a session driven to its end, and a child process that writes configs."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from trt_tui.cli.interrupts import held
from trt_tui.cli.progress import Bar
from trt_tui.core.engines.failures import NoEngine
from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.moves import file as config_file
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision
from trt_tui.errors import CancelledError, ExitCode, TrtTuiError
from trt_tui.jobs import messages as m
from trt_tui.jobs.client import Client
from trt_tui.options import Options
from trt_tui.session.session import Session
from trt_tui.words import visible

AnEvent = TypeVar("AnEvent", bound=m.Event)


@contextmanager
def _opened(options: Options, **arguments: Any) -> Iterator[tuple[Session, Callable[[], None]]]:
    """A session with its network open, and what applies its events until no job runs."""
    events: queue.Queue[m.Event] = queue.Queue()
    session = Session(options, events.put, resume=False, automatic=False, **arguments)
    drain = partial(_drain, session, events, Bar(), set())
    try:
        session.start()
        drain()
        yield session, drain
    finally:
        session.close()


@contextmanager
def compare_session(options: Options, config_path: str | None, target: str | None, force: bool,
                    layers: bool, engines: bool = False) -> Iterator[Session]:
    """A session in which everything a comparison shows has been measured.

    Args:
        engines: Build each run's engine too, and judge it. One that cannot be had is there with its reason.

    Raises:
        TrtTuiError: the child process failed or died.
        KeyboardInterrupt: it was interrupted before the verdict of each run was known; later, ``stopped`` of the
            session is set.
    """
    with _opened(options, config_path=config_path, target=target, force=force) as (session, drain):
        if target is not None:
            session.set_target(target)
        try:
            session.compare(layers=layers)
            drain()
            for config in dict.fromkeys(session.run_configs().values()) if engines else ():
                session.build(config=config)
                try:
                    drain()
                except TrtTuiError as error:
                    if isinstance(error, CancelledError) or isinstance(session.error, m.Replaced):
                        raise
                    session.without_engine(config, error)
        except KeyboardInterrupt:
            runs = session.run_configs()
            if not all(_whole(session.measured(run).verdict) for run in runs):
                raise
            with held():
                session.stop_job()
                with suppress(TrtTuiError):
                    drain()
                session.stopped = True
                yield session
            return
        with held():
            yield session


def _whole(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.samples >= verdict.total


@contextmanager
def search_session(options: Options, config_path: str | None, force: bool, precision: Precision | None,
                   request: m.FindConfig) -> Iterator[Session]:
    """A session in which a search has come to its end, or was interrupted and holds the best so far.

    Args:
        precision: What to begin with in place of a config: everything in it.
        request: What to search; its ``config`` is filled in.

    Raises:
        TrtTuiError: the child process failed or died, or the search makes no sense.
        KeyboardInterrupt: it was interrupted before anything was found.
    """
    target = next(iter(request.tolerances), None)
    with _opened(options, config_path=config_path, target=target, force=force) as (session, drain):
        start = session.config if precision is None else PrecisionConfig.uniform(precision, options.other)
        session.search(replace(request, config=start))
        failure: TrtTuiError | None = None
        try:
            drain()
        except KeyboardInterrupt:
            with held():
                session.stop_job()
                with suppress(TrtTuiError):
                    drain()
        except TrtTuiError as error:
            if not _found(session):
                raise
            failure = error
        if not _found(session):
            raise KeyboardInterrupt
        with held():
            yield session
        if failure is not None:
            raise failure


def _found(session: Session) -> bool:
    """Whether the search has found a config."""
    return session.finding is not None and session.finding.config is not None


def _drain(session: Session, events: queue.Queue[m.Event], bar: Bar, warned: set[str]) -> None:
    """Applies events until no job runs; the bar is gone after it, and what to warn of is said, but for ``warned``."""
    try:
        while session.busy:
            event = events.get()
            session.apply(event)
            if isinstance(event, m.Progress):
                bar.show(event)
            elif isinstance(event, m.SearchProgress) and session.finding is not None:
                bar.searched(session.finding)
            if isinstance(event, m.Cancelled):
                raise CancelledError("stopped")
            if session.error is not None:
                raise _raised(session.error)
    finally:
        bar.clear()
        for warning in session.warnings:
            if warning not in warned:
                warned.add(warning)
                _print_warning(warning)


def _raised(error: m.Failed | m.Died) -> TrtTuiError:
    if isinstance(error, m.Died):
        return TrtTuiError("the child process that measures ended", f"{error.why}\n{error.log}".strip(),
                           error.next_step)
    kind = NoEngine if error.rungs else TrtTuiError
    raised = kind(error.title, error.cause, error.next_step)
    raised.exit_code = ExitCode(error.exit_code)
    if isinstance(raised, NoEngine):
        raised.rungs = error.rungs
    return raised


class Writer:
    """A child process in which a network is read, and which writes a config of it.

    Args:
        options: What the network and the data are.
        config_path: The config, None for everything in one precision.
        precision: That precision.
        force: Take a config made for another structure.

    Attributes:
        outline: The network.
        config: What is written.
        given: The ranges (amax by tensor name) that came with the config, where they hold for this network.

    Raises:
        TrtTuiError: the network or the config is refused, or the child process failed or died.
        KeyboardInterrupt: passed on after the child has been stopped.
    """

    def __init__(self, options: Options, config_path: str | None, precision: str | None, force: bool) -> None:
        self._events: queue.Queue[m.Event] = queue.Queue()
        self._client, self._bar = Client(self._events.put), Bar()
        try:
            read = self._answer(m.Open(options, lean=True), m.Previewed)
            self.outline = read.outline
            self.config, self.given = load_config(self.outline, options, config_path, precision, force)
        except BaseException:
            self._client.close()
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def export(self, kind: str, path: str) -> m.Exported:
        """Writes a format of `trt_tui.core.exporters.production.EXPORT_FORMATS`."""
        return self._answer(m.Export(kind, path, self.config, self.given), m.Exported)

    def engine(self, path: str, quick: bool) -> m.EngineWritten:
        """Builds the engine and writes it; what the builder warned of is said on stderr."""
        return self._answer(m.WriteEngine(self.config, path, quick, self.given), m.EngineWritten)

    def _answer(self, request: m.Request, wanted: type[AnEvent]) -> AnEvent:
        answer: AnEvent | None = None
        self._client.send(request)
        try:
            while not isinstance(event := self._events.get(), m.Done):
                match event:
                    case m.Progress():
                        self._bar.show(event)
                    case m.Note(level="warning"):
                        self._bar.clear()
                        _print_warning(event.text)
                    case m.Note() if not event.text.startswith("info: "):
                        self._bar.clear()
                        print(visible(event.text), file=sys.stderr)
                    case m.Failed() | m.Died():
                        raise _raised(event)
                    case m.Cancelled():
                        raise CancelledError("stopped")
                    case wanted():
                        answer = event
        finally:
            self._bar.clear()
        assert answer is not None, "a request that is done was answered"
        return answer


def load_config(outline: Outline, options: Options, config_path: str | None, precision: str | None, force: bool
                ) -> tuple[PrecisionConfig, Mapping[str, float]]:
    """The config asked for and the ranges that came with it; what to warn of is said."""
    if config_path is None:
        return PrecisionConfig.uniform(Precision(precision), options.other), {}
    loaded = config_file.read_config(config_path, outline, force=force)
    for warning in loaded.warnings:
        _print_warning(warning)
    return loaded.config, {} if loaded.stale_ranges else loaded.ranges


def _print_warning(text: str) -> None:
    print(f"Warning: {visible(text)}", file=sys.stderr)
