"""Sessions of the commands without the app, what the commands measure in them, and the progress in the terminal."""

from __future__ import annotations

import os
import queue
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from trt_tui.cli.interrupts import defer_interrupts
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep_rules import apply_keep_rules, default_keep_rules_note
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.search import build_reduced_start_config, lowest_precision_config
from trt_tui.errors import CancelledError, FileReplacedError, TrtTuiError
from trt_tui.formatting import duration_text, escape_hidden_characters, take_first_cells
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.session.comparison_report import make_target_entries
from trt_tui.session.loss_causes import reset_raised_groups
from trt_tui.session.search_status import SearchStatus, best_evaluation_text
from trt_tui.session.session import Session
from trt_tui.session.state import TOLERANCE_SEPARATOR

EventT = TypeVar("EventT", bound=ev.Event)


class HeadlessSession(Session):
    """A session of a command, which waits for the end of each request. Progress and warnings are printed on stderr.

    Args:
        quiet: True leaves the printing of guard warnings to the command.

    Attributes:
        on_result: A function that is called after each applied result; None for none.
    """

    def __init__(self, options: Options, *, quiet: bool = False, **arguments: Any) -> None:
        self._events: queue.Queue[ev.Event] = queue.Queue()
        self._progress_line, self._printed_warnings = ProgressLine(), set[str]()
        self._quiet = quiet
        self.on_result: Callable[[ev.Event], None] | None = None
        super().__init__(options, self._events.put, resume=False, automatic=False, **arguments)

    def wait_for_jobs(self) -> None:
        """Applies events until no job runs, with a progress line on stderr. New warnings are printed at the end.

        Raises:
            TrtTuiError: A job failed, or the background process died.
        """
        try:
            while self.is_busy:
                event = self._events.get()
                self.apply_event(event)
                if self.on_result is not None and isinstance(event, ev.ResultEvent):
                    self._progress_line.clear_line()
                    self.on_result(event)
                if isinstance(event, ev.JobProgress):
                    self._progress_line.show_job_progress(event)
                elif isinstance(event, ev.SearchProgress) and self.search_status is not None:
                    self._progress_line.show_search_progress(self.search_status)
                elif isinstance(event, ev.LogMessage) and (text := _printed_log_text(self, event)):
                    self._progress_line.clear_line()
                    # No line of a command's output can be taken for one of ours.
                    text = escape_hidden_characters(text, keep_line_breaks=True).replace("\n", "\n      ")
                    print(text, file=sys.stderr)
                if isinstance(event, ev.JobCancelled):
                    raise CancelledError("stopped")
                if self.error is not None:
                    raise self.error.error
        finally:
            self._progress_line.clear_line()
            self.print_new_warnings()

    def run_request(self, request: rq.Request) -> None:
        """Sends a request and waits for its end."""
        self.send_request(request)
        self.wait_for_jobs()

    def request_answer(self, request: rq.Request, answer_type: type[EventT]) -> EventT:
        """Sends a request and returns its answer."""
        self.run_request(request)
        assert isinstance(self.last_answer, answer_type), "a finished request has an answer"
        return self.last_answer

    def write_config(self, request_type: Callable[..., rq.Request], **fields: Any) -> ev.ConfigExported:
        """Sends a request to write the current config, with the ranges of its file, and returns the answer."""
        request = request_type(config=self.config, config_calibration=self.file_ranges, **fields)
        return self.request_answer(request, ev.ConfigExported)

    def write_export(self, kind: str, path: str) -> ev.ConfigExported:
        """Writes the current config in a format of `EXPORT_FORMATS`, with the tolerance and the doubt of its file."""
        targets = [*filter(None, self.target_text.split(TOLERANCE_SEPARATOR))]
        return self.write_config(
            rq.ExportConfig, kind=kind, path=path, target_entries=make_target_entries(self, targets)
        )

    @property
    def network_outline(self) -> NetworkOutline:
        """The outline of the network that the command names."""
        assert self.outline is not None, "an opened network has been announced"
        return self.outline

    @property
    def file_ranges(self) -> Calibration:
        return self.config_calibration or Calibration()

    def stop_and_wait(self) -> None:
        """Stops all jobs after an interrupt. Results so far are reported even if the stop causes an error."""
        with defer_interrupts():
            self.stop_jobs()
            with suppress(TrtTuiError):
                self.wait_for_jobs()

    def print_new_warnings(self) -> None:
        """Prints the warnings that are not printed yet."""
        for alarm in () if self._quiet else self.guard_warnings:
            self._print_warning(
                f"{escape_hidden_characters(alarm.summary)}\n  Why: "
                f"{escape_hidden_characters(alarm.reason)}\n  Next: "
                f"{escape_hidden_characters(alarm.next_step)}",
                alarm.summary,
            )
        for warning in self.warnings:
            self._print_warning(escape_hidden_characters(warning), warning)

    def _print_warning(self, text: str, key: str) -> None:
        if key not in self._printed_warnings:
            self._printed_warnings.add(key)
            print(f"Warning: {text}", file=sys.stderr)


@contextmanager
def open_session(
    options: Options,
    measure: Callable[[HeadlessSession], None] | None = None,
    *,
    builds_engine: bool = False,
    **arguments: Any,
) -> Iterator[HeadlessSession]:
    """Opens a session with its network, if there is one.

    Args:
        measure: A function that measures what the command reports. Interrupts are deferred once it has returned. None
            for a command that sends its requests itself.
        builds_engine: The ``needs_builder`` of `Session.start`.
        arguments: Arguments of `HeadlessSession`.

    Raises:
        TrtTuiError: The network or the config is refused, or the background process failed or died.
        KeyboardInterrupt: The user interrupted; the background process is stopped first.
    """
    session = HeadlessSession(options, **arguments)
    try:
        if options.model:
            session.start(needs_builder=builds_engine)
            session.wait_for_jobs()
        if measure is not None:
            measure(session)
        with defer_interrupts() if measure is not None else nullcontext():
            yield session
        _warn_of_unwritten_calib_cache(options)
    except SystemExit:  # a command that has finished exits with its code inside the block
        _warn_of_unwritten_calib_cache(options)
        raise
    finally:
        session.close()


def _warn_of_unwritten_calib_cache(options: Options) -> None:
    """Prints a warning at the end of a command that did not write the new calibration cache of ``--calib-cache``."""
    if options.new_calib_cache is not None and not os.path.exists(options.new_calib_cache):
        print(
            f"Warning: {escape_hidden_characters(options.new_calib_cache)} is not written, since no layer needs a "
            "range.",
            file=sys.stderr,
        )


def measure_comparison(
    session: HeadlessSession,
    target: str | None,
    layer_detail: str = "none",
    build_engines: bool = False,
    marked_engines: bool = False,
    saved_outputs: tuple[str | None, Sequence[str]] = (None, ()),
    print_first_errors: Callable[[Session, str], None] | None = None,
) -> None:
    """Measures all values of the report of a comparison.

    Args:
        target: The target of the command line; None for none.
        layer_detail: The measurements at the layers: "shares" (with errors, and with the facts about causes), "errors",
            or "none". With "errors" and named runs, accumulated errors are measured and nothing else.
        build_engines: True also builds and measures the engine of each run. The reason is stored for an engine that
            cannot be built.
        marked_engines: True also builds marked engines, which have the result of each group as an output.
        saved_outputs: The file for the outputs of runs, None for none, and the runs, which are all if none is named.
        print_first_errors: A function that prints the accumulated errors at the layers of a run, which are then
            measured before everything else; it gets the session and the run key. None to measure the accuracies first.
            It is not called if ``layer_detail`` is "none", or if accumulated errors are measured and nothing else.

    Raises:
        KeyboardInterrupt: The user interrupted before the accuracy of each run was known. After a later interrupt,
            ``was_interrupted`` of the session is True.
    """
    first_errors_run: str | None = None

    def print_errors_of_first_run(event: ev.Event) -> None:
        nonlocal first_errors_run
        if (
            first_errors_run is not None
            and print_first_errors is not None
            and isinstance(event, ev.GroupErrorsMeasured)
            and event.final
            and event.config == session.get_run_config(first_errors_run)
        ):
            print_first_errors(session, first_errors_run)
            first_errors_run = None  # isolated errors follow

    session.on_result = print_errors_of_first_run
    if target is not None:
        session.set_target(target)
    options, run_configs = session.options, tuple(dict.fromkeys(session.list_run_configs().values()))
    try:
        errors_only = layer_detail == "errors" and bool(options.runs)
        if print_first_errors is not None and layer_detail != "none" and not errors_only:
            first_errors_run = session.exit_code_run
        session.request_comparison(layer_detail != "none", layer_detail == "shares", not errors_only, first_errors_run)
        session.wait_for_jobs()
        if layer_detail == "shares":
            with _tolerate_missing_causes(session):
                session.request_cause_facts(run_configs)
                session.wait_for_jobs()
        for config in run_configs if build_engines else ():
            session.request_build(config=config, with_marked_engine=marked_engines, later_configs=run_configs)
            try:
                session.wait_for_jobs()
            except TrtTuiError as error:
                if isinstance(error, CancelledError | FileReplacedError):
                    raise
                session.store_build_failure(config, error)
        for config in () if errors_only else run_configs:
            if (
                engine := session.results.get_results_or_empty(config).engine_result
            ) is None or not engine.implementations:
                session.request_preview(config, with_effects=False)
                session.wait_for_jobs()
        session.request_stages()
        session.wait_for_jobs()
        saved_path, saved_runs = saved_outputs
        if saved_path is not None:
            session.save_outputs(saved_path, saved_runs)
            session.wait_for_jobs()
    except KeyboardInterrupt:
        accuracies = [session.get_run_results(run).accuracy for run in session.list_run_configs()]
        if any(accuracy is None or accuracy.samples < accuracy.total for accuracy in accuracies):
            raise
        session.stop_and_wait()
        session.was_interrupted = True


def measure_preflight(session: HeadlessSession, target: str | None) -> None:
    """Measures the facts that all guards need."""
    if target is not None:
        session.set_target(target)
    if session.config_path is not None:  # the guards look at no other run, so INT8 is not calibrated for itself
        session.options = replace(session.options, runs=(Precision.FP16.value,))
    session.request_comparison(with_group_errors=False)
    session.wait_for_jobs()
    session.run_request(rq.RunPreflight(session.config))


def measure_range_methods(session: HeadlessSession, methods: Iterable[str]) -> None:
    """Compares range methods on the config of a session."""
    _measure_fp32(session)
    session.compare_range_methods(methods)
    session.wait_for_jobs()


def export_bundle(
    options: Options, config_path: str | None, precision: str | None, force: bool, folder: str, tensorrt_release: str
) -> ev.ConfigExported:
    """Writes a folder with all files that production needs for a config.

    The results of the config are measured first for its report, if there are data.

    Args:
        precision: The precision of all groups instead of a config; None for the config.
        tensorrt_release: A name of `trt_tui.core.exporters.bundle.RELEASE_TITLES`.

    Raises:
        TrtTuiError: The folder cannot be written, or the background process failed or died.
        KeyboardInterrupt: The user interrupted; the background process is stopped first.
    """
    with open_session(options, config_path=config_path, force=force) as session:
        if precision is not None:
            _use_uniform_precision(session, Precision(precision))
        config_calibration = None
        if options.data is not None:
            session.run_request(rq.CompareRuns({"config": session.config}, True, "config", with_raises=False))
        else:
            config_calibration = session.config_calibration or Calibration()
        session.export_bundle(Path(folder), tensorrt_release, True, config_calibration)
        session.wait_for_jobs()
        answer = session.last_answer
        assert isinstance(answer, ev.ConfigExported), "a finished request has an answer"
        return answer


def run_search(session: HeadlessSession, precision: Precision | None, request: rq.FindMixedPrecisionConfig) -> None:
    """Runs a search and makes its best config the current config. This also happens if the search was interrupted or
    has failed.

    Args:
        precision: The precision of all groups at the start, instead of a config. A group that cannot run in it has the
            next intermediate precision.
        request: The request of the search, without its ``config``.

    Raises:
        TrtTuiError: The search is not possible.
        KeyboardInterrupt: The user interrupted before the search had a config.
    """
    _measure_fp32(session)
    start_config, options, outline = session.config, session.options, session.opened_network.outline
    if precision is not None:
        start_config = lowest_precision_config(
            outline, (precision, *request.intermediate_precisions), options.other, options.tf32
        )
        start_config = _add_keep_rules(session, start_config)
    if session.config_path is None:
        _print_default_keep_rules(session, start_config)
    session.history.push_config(start_config)  # warnings during the search are about this config
    fixed_groups: tuple[str, ...] = ()
    if request.method == "lower" and session.config_path is not None:
        start_config, fixed_groups = build_reduced_start_config(outline, start_config, request.higher_precision)
    session.start_search(replace(request, config=start_config, fixed_groups=fixed_groups))
    search_status = session.search_status
    assert search_status is not None, "it was started"
    try:
        session.wait_for_jobs()
    except KeyboardInterrupt:
        session.stop_and_wait()
    except TrtTuiError:
        if search_status.best_config is None:
            raise
    if search_status.best_config is None:
        raise KeyboardInterrupt
    session.history.push_config(search_status.best_config)
    if session.error is None and search_status.is_finished:
        _measure_raise_causes(session)
    session.print_new_warnings()


def _measure_fp32(session: HeadlessSession) -> None:
    """Measures FP32 against another reference, if there is one. FP32 itself can miss the target."""
    if session.opened_network.reference is not None:
        fp32 = PrecisionConfig.from_precision(Precision.FP32)
        session.run_request(rq.CompareRuns({"fp32": fp32}, with_group_errors=False))


def _measure_raise_causes(session: HeadlessSession) -> None:
    """Measures the losses for which a search raised groups, in the config without the raises.

    If the user interrupts or the measurement fails, the report of the search has no causes.
    """
    lowered = reset_raised_groups(session, session.config)
    if lowered == session.config:
        return
    try:
        with _tolerate_missing_causes(session):
            session.run_request(rq.CompareRuns({"config": lowered}))
            session.request_cause_facts([lowered], session.config.find_raised_groups(session.opened_network.outline))
            session.wait_for_jobs()
    except KeyboardInterrupt:
        session.stop_and_wait()  # the result of the search is complete
        session.error = None


@contextmanager
def _tolerate_missing_causes(session: HeadlessSession) -> Iterator[None]:
    """Prints a note if the ``with`` block cannot measure the causes of losses. All other results are complete.

    Raises:
        TrtTuiError: The background process died, or files were replaced.
    """
    try:
        yield
    except TrtTuiError as error:
        if isinstance(error, CancelledError | FileReplacedError) or isinstance(session.error, ev.ChildProcessDied):
            raise
        session.error = None
        session.wait_for_jobs()
        print(
            f"Note: the causes of the losses were not measured: {escape_hidden_characters(error.title)}: "
            f"{escape_hidden_characters(error.cause)}",
            file=sys.stderr,
        )


def _add_keep_rules(session: HeadlessSession, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config of uniform precisions with the ranges and keep rules of the command line and the default keep
    rules."""
    return session.apply_default_keep_rules(
        apply_keep_rules(session.network_outline, config, session.options.keep)
    ).with_moves(session.config.range_moves)


def _print_default_keep_rules(session: HeadlessSession, config: PrecisionConfig) -> None:
    """Prints the layers whose precision the default keep rules fix in a config, with the reason."""
    if note := default_keep_rules_note(session.network_outline, config):
        print(escape_hidden_characters(note), file=sys.stderr)


def _use_uniform_precision(session: HeadlessSession, precision: Precision) -> None:
    """Makes a config with one precision for all groups the current config."""
    uniform = PrecisionConfig.from_precision(precision, session.options.other, session.options.tf32)
    session.history.push_config(_add_keep_rules(session, uniform))
    _print_default_keep_rules(session, session.config)


def _printed_log_text(session: Session, message: ev.LogMessage) -> str:
    """Returns the text of a log line that commands print at once; "" for a line that they do not print."""
    if message.level == "note":
        return f"Note: {message.text}"
    if message.level == "raw":
        return message.text if session.options.verbose else ""
    return message.text if session.network_only and message.level != "warning" else ""


@contextmanager
def open_config_session(
    options: Options,
    config_path: str | None = None,
    precision: str | None = None,
    force: bool = False,
    *,
    default_precision: Precision = Precision.INT8,
    builds_engine: bool = False,
) -> Iterator[HeadlessSession]:
    """Opens a session for a command that describes or writes a network. The session measures nothing.

    Args:
        options: The network, the data and further options.
        config_path: The file of the config; None for one precision for all groups.
        precision: That precision.
        force: True accepts a config made for another structure.
        default_precision: The precision without a config and a precision, for a network without file precisions.
        builds_engine: True refuses to read the network if no TensorRT works.

    Raises:
        TrtTuiError: The errors of `open_session`.
        KeyboardInterrupt: The user interrupted; the background process is stopped first.
    """
    with open_session(
        options, builds_engine=builds_engine, config_path=config_path, force=force, network_only=True
    ) as session:
        if session.outline is not None and config_path is None:
            default = Precision.FILE if session.outline.has_file_precision else default_precision
            _use_uniform_precision(session, Precision(precision or default))
        yield session


_BAR_CELLS = 24
"""The width of the progress bar in cells."""

_MIN_DRAW_INTERVAL_S = 0.1
"""The minimum time between two drawings."""


class ProgressLine:
    """One line of progress on stderr, if stderr is a terminal. If it is not, only improvements of a search are printed.

    The bar is drawn by rich. The live displays of rich and click hide the cursor, and a killed program would leave it
    hidden. Therefore this class writes the line itself.
    """

    def __init__(self) -> None:
        self._last_drawn_s = 0.0
        self._is_drawn = False
        self._is_terminal = os.isatty(2) and os.environ.get("TERM") != "dumb"
        self._best_text = ""

    def show_job_progress(self, event: ev.JobProgress) -> None:
        """Shows the progress of a job: its phase, a bar if its end is known, and the remaining time."""
        if not self._is_redraw_due():
            return
        count_text = f" {event.done}/{event.total}" if event.total else ""
        time_left = f", {duration_text(event.left_s)} left" if event.left_s is not None and event.left_s >= 1 else ""
        self._draw_progress(f"{event.phase}{count_text}{time_left}", event.done, event.total)

    def show_search_progress(self, search_status: SearchStatus) -> None:
        """Shows the progress of a search. If stderr is not a terminal, prints a line for each better config."""
        if search_status.best_evaluation is None or search_status.progress is None:
            return
        best_text = f"best so far: {best_evaluation_text(search_status)}"
        if self._is_terminal:
            if self._is_redraw_due():
                self._draw_progress(
                    f"{search_status.progress.trial.step_name}: {search_status.progress.done} tried; {best_text}"
                )
        elif best_text != self._best_text:
            self._best_text = best_text
            print(f"{search_status.progress.done} tried; {best_text}", file=sys.stderr)

    def clear_line(self) -> None:
        if self._is_drawn:
            self._replace_terminal_line("")

    def _is_redraw_due(self) -> bool:
        return self._is_terminal and time.monotonic() - self._last_drawn_s >= _MIN_DRAW_INTERVAL_S

    def _draw_progress(self, text: str, done: int = 0, total: int = 0) -> None:
        self._last_drawn_s, self._is_drawn = time.monotonic(), True
        columns = shutil.get_terminal_size().columns - 1
        bar = f"{_progress_bar_text(done, total)} " if total and columns > 3 * _BAR_CELLS else ""
        self._replace_terminal_line(
            bar + take_first_cells(escape_hidden_characters(text), columns - (_BAR_CELLS + 1 if bar else 0))
        )

    def _replace_terminal_line(self, text: str) -> None:
        """Replaces the progress line by a text. `sys.stderr` itself passes no control sequences."""
        with suppress(OSError):  # the terminal may be closed
            os.write(2, f"\r\x1b[K{text}".encode())


def _progress_bar_text(done: int, total: int) -> str:
    """Returns a progress bar as text, with colours unless NO_COLOR is set."""
    from rich.console import Console
    from rich.progress_bar import ProgressBar

    console = Console(force_terminal=True, width=_BAR_CELLS, legacy_windows=False)
    with console.capture() as drawn:
        console.print(ProgressBar(total, done, _BAR_CELLS, complete_style="bar.finished"), end="")
    return drawn.get()
