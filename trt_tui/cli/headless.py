"""What the commands without the app share: a session that runs to its end, and one that writes configs."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trt_tui.cli.interrupts import held
from trt_tui.cli.progress import Bar
from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.engines.failures import NoEngine
from trt_tui.core.engines.inspector import EngineReport
from trt_tui.core.engines.preview import Preview
from trt_tui.core.lowering.lowered import told_as
from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keeping import default_rules_note, with_kept
from trt_tui.core.moves.smooth import Smooth
from trt_tui.core.precision import Precision
from trt_tui.core.search import lowered_beside, lowest
from trt_tui.errors import CancelledError, ExitCode, TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.session.session import Session
from trt_tui.session.state import TOLERANCES
from trt_tui.words import visible

AnEvent = TypeVar("AnEvent", bound=ev.Event)


@contextmanager
def _opened(options: Options, writes: Iterable[str] = (), *, opens: bool = True, builds: bool = False,
            quiet: bool = False, **arguments: Any) -> Iterator[tuple[Session, Callable[[], None], set[str]]]:
    """A session with its network open, what applies its events until no job runs, and what it has warned of.

    Args:
        writes: Places that will be written.
        opens: Whether there is a network to open.
        builds: See `Session.start`.
        quiet: Leave what guards warn of to the command.
    """
    events: queue.Queue[ev.Event] = queue.Queue()
    warned: set[str] = set()
    session = Session(options, events.put, resume=False, automatic=False, **arguments)
    drain = partial(_drain, session, events, Bar(), warned, quiet)
    try:
        if opens:
            session.start(writes=writes, builds=builds)
            drain()
        yield session, drain, warned
    finally:
        session.close()


@contextmanager
def compare_session(options: Options, config_path: str | None, target: str | None, force: bool,
                    layers: str, engines: bool = False, marked: bool = False, writes: Iterable[str] = (),
                    outputs_path: str | None = None, saved_runs: Sequence[str] = ()) -> Iterator[Session]:
    """A session in which everything a comparison shows has been measured.

    Args:
        layers: What is measured at the layers: "shares" with their errors, "errors" alone, or "none".
        writes: Places that will be written.
        engines: Build each run's engine too, and judge it. One that cannot be built has the reason in its place.
        marked: And look into second engines that have the groups' results as outputs.
        outputs_path: Where the outputs of runs are to be written.
        saved_runs: The runs whose outputs are written; all of them by default.

    Raises:
        TrtTuiError: the child process failed or died.
        KeyboardInterrupt: it was interrupted before the verdict of each run was known; later, ``stopped`` of the
            session is set.
    """
    with _opened(options, writes, config_path=config_path, target=target, force=force) as (session, drain, _):
        if target is not None:
            session.set_target(target)
        try:
            session.compare(layers != "none", layers == "shares")
            drain()
            built = tuple(dict.fromkeys(session.run_configs().values())) if engines else ()
            for config in built:
                session.build(config=config, marked=marked, ahead=built)
                try:
                    drain()
                except TrtTuiError as error:
                    if isinstance(error, CancelledError) or isinstance(session.error, ev.Replaced):
                        raise
                    session.without_engine(config, error)
            for config in dict.fromkeys(session.run_configs().values()):
                if (engine := session.results.of(config).engine) is None or not engine.made:
                    session.preview_engine(config, effects=False)
                    drain()
            session.measure_stages()
            drain()
            if outputs_path is not None:
                session.save_outputs(outputs_path, saved_runs)
                drain()
        except KeyboardInterrupt:
            runs = session.run_configs()
            if not all(_whole(session.measured(run).verdict) for run in runs):
                raise
            with held():
                session.stop()
                with suppress(TrtTuiError):  # what was measured is told, whatever the stop made of the rest
                    drain()
                session.stopped = True
                yield session
            return
        with held():
            yield session


@contextmanager
def preflight_session(options: Options, config_path: str | None, target: str | None, force: bool,
                      writes: Iterable[str] = ()) -> Iterator[Session]:
    """A session in which every guard has what it can have.

    Args:
        writes: Places that will be written.

    Raises:
        TrtTuiError: the child process failed or died.
    """
    with _opened(options, writes, config_path=config_path, target=target, force=force, quiet=True
                 ) as (session, drain, _):
        if target is not None:
            session.set_target(target)
        session.compare(layers=False)
        drain()
        session.ask(rq.Preflight(session.config))
        drain()
        with held():
            yield session


@contextmanager
def methods_session(options: Options, config_path: str | None, target: str | None, force: bool,
                    methods: Iterable[str], writes: Iterable[str] = ()) -> Iterator[Session]:
    """A session in which calibration methods have been compared on its config.

    Raises:
        TrtTuiError: the child process failed or died, or the methods cannot be compared.
    """
    with _opened(options, writes, config_path=config_path, target=target, force=force) as (session, drain, *_):
        session.compare_methods(methods)
        drain()
        with held():
            yield session


def bundled(options: Options, config_path: str | None, precision: str | None, force: bool, path: str, release: str,
            samples: bool) -> ev.Exported:
    """Writes a folder that carries a config into production, once what its report says has been measured.

    Figures are measured where data are given.

    Args:
        precision: In place of a config: everything in this precision.
        release: A name of `trt_tui.core.exporters.bundle.RELEASES`.
        samples: Whether samples and their outputs go in.

    Raises:
        TrtTuiError: what is asked for cannot be written, or the child process failed or died.
        KeyboardInterrupt: passed on after the child has been stopped.
    """
    with _opened(options, config_path=config_path, force=force) as (session, drain, _):
        if precision is not None:
            uniform = PrecisionConfig.uniform(Precision(precision), options.other, options.tf32)
            session.history.apply(_with_rules(session, uniform))
            _say_rules(session, session.config)
        given = None
        if options.data is not None:
            session.compare(layers=False)
            session.ask(rq.Compare({"config": session.config}, True, "config"))
            drain()
        else:
            given = session.given.by_codes if session.given is not None else {}
        session.export_bundle(Path(path), release, samples, given)
        drain()
        answer = session.answered
        assert isinstance(answer, ev.Exported), "a request that is done was answered"
        return answer


def _whole(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.samples >= verdict.total


@contextmanager
def search_session(options: Options, config_path: str | None, force: bool, precision: Precision | None,
                   request: rq.FindConfig, writes: Iterable[str] = ()) -> Iterator[Session]:
    """A session in which a search has come to its end, or was interrupted and holds the best so far.

    Args:
        precision: In place of a config: start with everything in this precision, or on the next rung if it cannot.
        request: What to search; its ``config`` is filled in.
        writes: Places that will be written.

    Raises:
        TrtTuiError: the child process failed or died, or the search makes no sense.
        KeyboardInterrupt: it was interrupted before anything was found.
    """
    target = TOLERANCES.join(request.tolerances) or None
    with _opened(options, writes, config_path=config_path, target=target, force=force) as (session, drain, warned):
        start = session.config
        if precision is not None:
            outline = session.opened.outline
            start = lowest(outline, (precision, *request.rungs), options.other, options.tf32)
            start = _with_rules(session, start).with_moves(session.config.ranges)
        if config_path is None:
            _say_rules(session, start)
        session.history.apply(start)  # what is warned of meanwhile is said of it
        fixed: tuple[str, ...] = ()
        if request.method == "lower" and config_path is not None:
            start, fixed = lowered_beside(session.opened.outline, start, request.higher)
        session.search(replace(request, config=start, fixed=fixed))
        failure: TrtTuiError | None = None
        try:
            drain()
        except KeyboardInterrupt:
            with held():
                session.stop()
                with suppress(TrtTuiError):  # what was measured is told, whatever the stop made of the rest
                    drain()
        except TrtTuiError as error:
            if not _found(session):
                raise
            failure = error
        if not _found(session):
            raise KeyboardInterrupt
        assert session.finding is not None and session.finding.config is not None, "it was found"
        session.history.apply(session.finding.config)
        _warn(session, warned)
        with held():
            yield session
        if failure is not None:
            raise failure


def _with_rules(session: Session, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config of uniform precisions with the rules of ``--keep`` and those that apply by default."""
    outline = session.outline or session.preview
    assert outline is not None, "a network that was opened was told of"
    return session.with_default_rules(with_kept(outline, config, session.options.keep))


def _say_rules(session: Session, config: PrecisionConfig) -> None:
    """Prints on stderr which layers the default rules keep in a config, and why."""
    outline = session.outline or session.preview
    if outline is not None and (note := default_rules_note(outline, config)):
        print(visible(note), file=sys.stderr)


def _found(session: Session) -> bool:
    """Whether the search has found a config."""
    return session.finding is not None and session.finding.config is not None


def _drain(session: Session, events: queue.Queue[ev.Event], bar: Bar, warned: set[str],
           quiet: bool = False) -> None:
    """Applies events until no job runs; the bar is gone after it, and what to warn of is said, but for ``warned``."""
    try:
        while session.busy:
            event = events.get()
            session.apply(event)
            if isinstance(event, ev.Progress):
                bar.show(event)
            elif isinstance(event, ev.SearchProgress) and session.finding is not None:
                bar.searched(session.finding)
            elif isinstance(event, ev.Note) and session.lean and event.level != "warning":
                if not event.text.startswith("info: "):
                    bar.clear()
                    print(visible(event.text), file=sys.stderr)
            if isinstance(event, ev.Note) and event.level == "note" and not quiet:
                bar.clear()
                print(f"Note: {visible(event.text)}", file=sys.stderr)
            if isinstance(event, ev.Cancelled):
                raise CancelledError("stopped")
            if session.error is not None:
                raise _raised(session.error)
    finally:
        bar.clear()
        _warn(session, warned, quiet)


def _warn(session: Session, warned: set[str], quiet: bool = False) -> None:
    """Says what to warn of, but for ``warned``; if ``quiet`` nothing of what guards say."""
    for alarm in () if quiet else session.alarms:
        if alarm.what not in warned:
            warned.add(alarm.what)
            print(f"Warning: {visible(alarm.what)}\n  Why: {visible(alarm.why)}\n  Next: {visible(alarm.next_step)}",
                  file=sys.stderr)
    for warning in session.warnings:
        if warning not in warned:
            warned.add(warning)
            print(f"Warning: {visible(warning)}", file=sys.stderr)


def _raised(error: ev.Failed | ev.Died) -> TrtTuiError:
    if isinstance(error, ev.Died):
        return TrtTuiError("the child process that measures ended", f"{error.why}\n{error.log}".strip(),
                           error.next_step)
    kind = NoEngine if error.rungs else TrtTuiError
    raised = kind(error.title, error.cause, error.next_step)
    raised.exit_code = ExitCode(error.exit_code)
    if isinstance(raised, NoEngine):
        raised.rungs = error.rungs
    return raised


@contextmanager
def compared_dumps(first: str, second: str, threshold: float, writes: Iterable[str]) -> Iterator[ev.DumpsCompared]:
    """Two dumps that have been compared, of a network that is not named; see `Writer.compare_dumps`."""
    with _opened(Options(""), writes, opens=False, lean=True) as (session, drain, _):
        session.ask(rq.CompareDumps(first, second, threshold))
        drain()
        assert isinstance(session.answered, ev.DumpsCompared), "a request that is done was answered"
        with held():
            yield session.answered


class Writer:
    """A session in which a network is read but nothing is measured, for commands that describe or write it.

    Args:
        options: What the network and the data are.
        config_path: The config, None for everything in one precision.
        precision: That precision.
        force: Take a config made for another structure.
        default: The precision without either, of a network that has none of its own.
        writes: Files that will be written; refused if the network's weights lie there.
        builds: Refuse to read it if no TensorRT works.

    Attributes:
        outline: The network.
        config: What is written.

    Raises:
        TrtTuiError: the network or the config is refused, or the child process failed or died.
        KeyboardInterrupt: passed on after the child has been stopped.
    """

    def __init__(self, options: Options, config_path: str | None = None, precision: str | None = None,
                 force: bool = False, *, default: Precision = Precision.INT8, writes: Iterable[str] = (),
                 builds: bool = False) -> None:
        with ExitStack() as opened:
            self._session, self._drain, _ = opened.enter_context(_opened(
                options, writes, builds=builds, config_path=config_path, force=force, lean=True))
            outline, given = self._session.preview, self._session.given
            assert outline is not None, "a network that was opened was told of"
            self.outline = outline
            if precision is None and config_path is None and outline.has_own_precisions:
                precision = Precision.FILE.value
            self.config = self._session.config
            if precision is not None or config_path is None:
                uniform = PrecisionConfig.uniform(Precision(precision or default), options.other, options.tf32)
                self.config = _with_rules(self._session, uniform).with_moves(self._session.config.ranges)
                _say_rules(self._session, self.config)
            self._given, self._method = (given.by_codes, given.method) if given is not None else ({}, "")
            self._opened = opened.pop_all()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._opened.close()

    def export(self, kind: str, path: str) -> ev.Exported:
        """Writes a format of `trt_tui.core.exporters.production.EXPORT_FORMATS`; returns what was written."""
        return self._answer(rq.Export(kind, path, self.config, self._given, self._method), ev.Exported)

    def compare_dumps(self, first: str, second: str, threshold: float) -> ev.DumpsCompared:
        """Compares two dumps of the network; `threshold` is of the relative error of a tensor."""
        norms = [self.outline.free.norms[group] for group in self.config.of(Smooth)]
        scaled = [tensor for norm in norms for tensor in norm.scaled]
        scaled += [tensor for norm in norms if norm.scale for tensor in self.outline.layer(norm.scale[0]).outputs[:1]]
        return self._answer(rq.CompareDumps(first, second, threshold, tuple(scaled)), ev.DumpsCompared)

    def take_cache(self) -> None:
        """Adds the ranges of the calibration cache that the options name to those of the config."""
        if self._session.options.calib_cache is not None:
            given = self._session.given or Calibration("", 0, "", {})
            self._session.ask(rq.UseRanges(given, True))
            self._drain()

    def precision_text(self, sha256: str) -> str:
        """The text of precision.json, with the ranges that are known; `sha256` is that of the network."""
        return self._session.precision_text(self.config, sha256)

    def raise_groups(self, names: Iterable[str]) -> list[str]:
        """Raises groups to FP32, since two dumps say so; returns those that were not there before."""
        groups = [group for name in names if self.config.precision_of(group := self.outline.group(name))
                  is not Precision.FP32]
        self.config = self.config.with_groups(groups, Precision.FP32, "dumps")
        return [group.name for group in groups]

    def lacking_ranges(self) -> list[str]:
        """Returns the tensors that are quantized and whose range is not known."""
        session = self._session
        known = session.calibration or session.given
        config = told_as(self.outline, self.config)
        has = {*(known.ranges if known is not None else ()), *config.ranges}
        return [tensor for tensor in dict.fromkeys(
            site.tensor for group in self.outline.groups for site in group.ranged(config.precision_of(group)))
            if tensor not in has]

    def subgraph(self, path: str, start: tuple[str, ...], stop: tuple[str, ...]) -> ev.Exported:
        """Writes the part of the network between some tensors as a folder; returns what was written."""
        return self._answer(rq.WriteSubgraph(path, self.config, start, stop, given=self._given), ev.Exported)

    def text(self, text: str, path: str) -> ev.Exported:
        """Writes a text; returns what was written."""
        return self._answer(rq.WriteText(path, text), ev.Exported)

    def engine(self, path: str, quick: bool) -> ev.EngineWritten:
        """Builds the engine and writes it; prints the builder's warnings on stderr, returns what was written."""
        return self._answer(rq.WriteEngine(self.config, path, quick, self._given), ev.EngineWritten)

    def read_engine(self, path: str) -> EngineReport:
        """What became of each layer in an engine, or in the JSON of trtexec --exportLayerInfo."""
        return self._answer(rq.ReadEngine(path), ev.EngineRead).report

    def previewed(self) -> Preview:
        """What the builder makes of the config, or why that is not known."""
        self._session.ask(rq.PreviewEngine(self.config, self._given))
        self._drain()
        preview = self._session.results.of(self.config).preview
        assert preview is not None, "a request that is done was answered"
        return preview

    def _answer(self, request: rq.Request, wanted: type[AnEvent]) -> AnEvent:
        self._session.ask(request)
        self._drain()
        answer = self._session.answered
        assert isinstance(answer, wanted), "a request that is done was answered"
        return answer
