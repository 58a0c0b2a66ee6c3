"""What the commands without an app share: a session driven to its end, and configs loaded with their ranges."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trt_tui.backends.registry import get_backend
from trt_tui.cli.interrupts import held
from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.data.watched import Inputs
from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.moves import file as config_file
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import CancelledError, InputError, TrtTuiError
from trt_tui.jobs import messages as m
from trt_tui.jobs.client import Client
from trt_tui.jobs.prepare import known_ranges, prepare
from trt_tui.options import Options
from trt_tui.session.finding import Finding, found_so_far
from trt_tui.session.session import Session
from trt_tui.words import duration, visible


class _Bar:
    """One line of progress on stderr, where that is a terminal."""

    def __init__(self) -> None:
        self.shown = 0.0
        self.wrote = False
        self.live = os.isatty(2)
        self.best = ""

    def show(self, event: m.Progress) -> None:
        if not self.live or time.monotonic() - self.shown < 0.1:
            return
        count = f" {event.done}/{event.total}" if event.total else ""
        left = f", {duration(event.left_s)} left" if event.left_s is not None and event.left_s >= 1 else ""
        self._write(f"{event.phase}{count}{left}")

    def searched(self, finding: Finding) -> None:
        """How far a search is; where stderr is no terminal, a line for each config that is better."""
        if finding.best is None:
            return
        said = f"best so far: {found_so_far(finding)}"
        if self.live:
            if time.monotonic() - self.shown >= 0.1:
                self._write(f"{finding.progress.done} tried; {said}")
        elif said != self.best:
            self.best = said
            print(f"{finding.progress.done} tried; {said}", file=sys.stderr)

    def _write(self, text: str) -> None:
        self.shown = time.monotonic()
        self._line(visible(text))
        self.wrote = True

    def clear(self) -> None:
        if self.wrote:
            self._line("")

    def _line(self, text: str) -> None:
        """Puts a text in place of the line; `sys.stderr` itself lets no control sequence through."""
        with suppress(OSError):  # a terminal that has gone away
            os.write(2, f"\r\x1b[K{text}".encode())


@contextmanager
def _opened(options: Options, warns: bool = True, **arguments: Any) -> Iterator[tuple[Session, Callable[[], None]]]:
    """A session with its network open, and what applies its events until no job runs."""
    events: queue.Queue[m.Event] = queue.Queue()
    session = Session(options, events.put, resume=False, automatic=False, **arguments)
    drain = partial(_drain, session, events, _Bar(), set() if warns else None)
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
                   request: m.Search) -> Iterator[Session]:
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
            if session.finding.config is None:
                raise
            failure = error
        if session.finding.config is None:
            raise KeyboardInterrupt
        with held():
            yield session
        if failure is not None:
            raise failure


def write_engine(options: Options, config: PrecisionConfig, ranges: Mapping[str, float], path: Path,
                 quick: bool, read: Inputs) -> tuple[list[str], str]:
    """Builds a config's engine in a child process and writes it; returns what to tell the user, and how it was built
    where it could not be as asked.

    Args:
        read: What the config and the ranges were read for, as it was then.

    Raises:
        TrtTuiError: something of it has been replaced since; the backend is not available, refuses the network, or
            failed; or the child process died.
        KeyboardInterrupt: passed on after the child has been stopped.
    """
    with _opened(options, warns=False) as (session, drain):
        if changed := session.source.files.differing(read):
            raise InputError(f"{', '.join(changed)}: replaced after it was read", "the ranges are of what it was",
                             "Run the command again.")
        if ranges:
            session.use_ranges(Calibration("config", 0, "", dict(ranges)))
        session.write_engine(config, path, quick)
        before = len(session.log)
        drain()
        return [line for line in session.log[before:] if not line.startswith("info: ")], session.built_otherwise


def _drain(session: Session, events: queue.Queue[m.Event], bar: _Bar, warned: set[str] | None) -> None:
    """Applies events until no job runs; the bar is gone after it, and what to warn of is said, unless ``warned``."""
    try:
        while session.busy:
            event = events.get()
            session.apply(event)
            if isinstance(event, m.Progress):
                bar.show(event)
            elif isinstance(event, m.SearchProgress):
                bar.searched(session.finding)
            if isinstance(event, m.Cancelled):
                raise CancelledError("stopped")
            if session.error is not None:
                raise _raised(session.error)
    finally:
        bar.clear()
        for warning in session.warnings if warned is not None else ():
            if warning not in warned:
                warned.add(warning)
                _print_warning(warning)


def _raised(error: m.Failed | m.Died) -> TrtTuiError:
    if isinstance(error, m.Died):
        return TrtTuiError("the child process that measures ended", f"{error.why}\n{error.log}".strip(),
                           error.next_step)
    raised = TrtTuiError(error.title, error.cause, error.next_step)
    raised.exit_code = error.exit_code
    raised.rungs = error.rungs
    return raised


def load_config(options: Options, config_path: str | None, precision: str | None, force: bool
                ) -> tuple[Network, PrecisionConfig, dict[str, float], tuple[str, ...]]:
    """The network, the config asked for, the ranges that came with it, and warnings."""
    network = open_network(options.model, get_backend)
    if config_path is None:
        return network, PrecisionConfig.uniform(Precision(precision), options.other), {}, ()
    loaded = config_file.read_config(config_path, network, force=force)
    return network, loaded.config, {} if loaded.stale_ranges else loaded.ranges, tuple(loaded.warnings)


def prepared(network: Network, request: m.Prepare) -> m.Prepared:
    """What it takes to write a config; see `trt_tui.jobs.prepare`. Data are read in a child process.

    Raises:
        TrtTuiError: there are neither ranges nor data, or the child process failed or died.
        KeyboardInterrupt: passed on after the child has been stopped.
    """
    _, missing = known_ranges(network, request, _print_warning)
    if not request.options.has_data or not (missing or request.shapes):
        return prepare(network, request)
    events: queue.Queue[m.Event] = queue.Queue()
    client, bar = Client(events.put), _Bar()
    answer: m.Prepared | None = None
    try:
        client.send(request)
        while not isinstance(event := events.get(), m.Done):
            match event:
                case m.Progress():
                    bar.show(event)
                case m.Prepared():
                    answer = event
                case m.Failed() | m.Died():
                    raise _raised(event)
    finally:
        bar.clear()
        client.close()
    return answer


def _print_warning(text: str) -> None:
    print(f"Warning: {visible(text)}", file=sys.stderr)
