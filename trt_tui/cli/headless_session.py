"""Sessions of the commands without the app: a session that runs to its end, and a session that writes configs."""

from __future__ import annotations

import os
import queue
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from trt_tui.backends.registry import find_installed_version
from trt_tui.cli.interrupts import defer_interrupts
from trt_tui.cli.progress import ProgressLine
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.engines.fallback_ladder import NoEngineError
from trt_tui.core.engines.group_implementations import Preview
from trt_tui.core.engines.inspector import EngineReport
from trt_tui.core.lowering.lowering_checks import replace_file_precision
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep_rules import apply_keep_rules, default_keep_rules_note
from trt_tui.core.network.known_defects import known_defects_record, known_defects_table, match_known_defects
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.search import lowest_precision_config, reduce_remaining_groups
from trt_tui.errors import CancelledError, ExitCode, TrtTuiError
from trt_tui.formatting import escape_hidden_characters
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.session.loss_causes import config_without_raises
from trt_tui.session.session import Session
from trt_tui.session.state import TOLERANCE_SEPARATOR

EventT = TypeVar("EventT", bound=ev.Event)


class HeadlessSession(Session):
    """A session of a command, which waits for the end of each request. Progress and warnings are printed on stderr.

    Args:
        quiet: True leaves the printing of guard warnings to the command.
        on_event: A function that is called after each applied result; None for none.
    """

    def __init__(self, options: Options, *, quiet: bool = False,
                 on_event: Callable[[Session, ev.Event], None] | None = None, **arguments: Any) -> None:
        self._events: queue.Queue[ev.Event] = queue.Queue()
        self._progress_line, self._printed_warnings = ProgressLine(), set[str]()
        self._quiet, self._on_event = quiet, on_event
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
                if self._on_event is not None and isinstance(event, ev.ResultEvent):
                    self._progress_line.clear_line()
                    self._on_event(self, event)
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
                    raise _job_failure_error(self.error)
        finally:
            self._progress_line.clear_line()
            self.print_new_warnings()

    def run(self, request: rq.Request) -> None:
        """Sends a request and waits for its end."""
        self.send_request(request)
        self.wait_for_jobs()

    def request_answer(self, request: rq.Request, answer_type: type[EventT]) -> EventT:
        """Sends a request and returns its answer."""
        self.run(request)
        assert isinstance(self.last_answer, answer_type), "a finished request has an answer"
        return self.last_answer

    def stop_and_wait(self) -> None:
        """Stops all jobs after an interrupt. Results so far are reported even if the stop causes an error."""
        with defer_interrupts():
            self.stop_jobs()
            with suppress(TrtTuiError):
                self.wait_for_jobs()

    def print_new_warnings(self) -> None:
        """Prints the warnings that are not printed yet."""
        for alarm in () if self._quiet else self.guard_warnings:
            self._print_warning(f"{escape_hidden_characters(alarm.summary)}\n  Why: "
                                f"{escape_hidden_characters(alarm.reason)}\n  Next: "
                                f"{escape_hidden_characters(alarm.next_step)}", alarm.summary)
        for warning in self.warnings:
            self._print_warning(escape_hidden_characters(warning), warning)

    def _print_warning(self, text: str, key: str) -> None:
        if key not in self._printed_warnings:
            self._printed_warnings.add(key)
            print(f"Warning: {text}", file=sys.stderr)


@contextmanager
def _open_session(options: Options, *, builds_engine: bool = False,
                  **arguments: Any) -> Iterator[HeadlessSession]:
    """Opens a session with its network, if there is one.

    Args:
        builds_engine: The ``needs_builder`` of `Session.start`.
        arguments: Arguments of `HeadlessSession`.
    """
    session = HeadlessSession(options, **arguments)
    try:
        if options.model:
            session.start(needs_builder=builds_engine)
            session.wait_for_jobs()
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
        print(f"Warning: {escape_hidden_characters(options.new_calib_cache)} is not written, since no layer needs a "
              "range.", file=sys.stderr)


@contextmanager
def open_comparison_session(options: Options, config_path: str | None, target: str | None, force: bool,
                            layer_detail: str, build_engines: bool = False, marked_engines: bool = False,
                            saved_outputs_path: str | None = None, saved_runs: Sequence[str] = (),
                            print_first_errors: Callable[[Session, str], None] | None = None) -> Iterator[Session]:
    """Opens a session and measures everything that a comparison shows.

    Args:
        layer_detail: The measurements at the layers: "shares" (with errors, and with the facts about causes), "errors",
            or "none". With "errors" and named runs, accumulated errors are measured and nothing else.
        build_engines: True also builds and measures the engine of each run. The reason is stored for an engine that
            cannot be built.
        marked_engines: True also builds marked engines, which have the result of each group as an output.
        saved_outputs_path: The file for the outputs of runs; None writes no file.
        saved_runs: The runs whose outputs are written; empty for all.
        print_first_errors: A function that prints the accumulated errors at the layers of a run, which are then
            measured before everything else; it gets the session and the run key. None to measure the accuracies first.
            It is not called if ``layer_detail`` is "none", or if accumulated errors are measured and nothing else.

    Raises:
        TrtTuiError: The background process failed or died.
        KeyboardInterrupt: The user interrupted before the accuracy of each run was known. After a later interrupt,
            ``was_interrupted`` of the session is True.
    """
    first_errors_run: str | None = None

    def print_errors_of_first_run(session: Session, event: ev.Event) -> None:
        nonlocal first_errors_run
        if (first_errors_run is not None and print_first_errors is not None
                and isinstance(event, ev.GroupErrorsMeasured) and event.final
                and event.config == session.get_run_config(first_errors_run)):
            print_first_errors(session, first_errors_run)
            first_errors_run = None  # isolated errors follow

    with _open_session(options, config_path=config_path, target=target, force=force,
                       on_event=print_errors_of_first_run) as session:
        if target is not None:
            session.set_target(target)
        try:
            errors_only = layer_detail == "errors" and bool(options.runs)
            if print_first_errors is not None and layer_detail != "none" and not errors_only:
                first_errors_run = session.judged_run
            session.request_comparison(layer_detail != "none", layer_detail == "shares", not errors_only,
                                       first_errors_run)
            session.wait_for_jobs()
            if layer_detail == "shares":
                with _tolerate_missing_causes(session):
                    session.request_cause_facts(session.list_run_configs().values())
                    session.wait_for_jobs()
            built_configs = tuple(dict.fromkeys(session.list_run_configs().values())) if build_engines else ()
            for config in built_configs:
                session.request_build(config=config, with_marked_engine=marked_engines, later_configs=built_configs)
                try:
                    session.wait_for_jobs()
                except TrtTuiError as error:
                    if isinstance(error, CancelledError) or isinstance(session.error, ev.FilesReplaced):
                        raise
                    session.store_build_failure(config, error)
            for config in () if errors_only else dict.fromkeys(session.list_run_configs().values()):
                if (engine := session.results.get_results_or_empty(config).engine_result
                    ) is None or not engine.implementations:
                    session.request_preview(config, with_effects=False)
                    session.wait_for_jobs()
            session.request_stages()
            session.wait_for_jobs()
            if saved_outputs_path is not None:
                session.save_outputs(saved_outputs_path, saved_runs)
                session.wait_for_jobs()
        except KeyboardInterrupt:
            accuracies = [session.get_run_results(run).accuracy for run in session.list_run_configs()]
            if any(accuracy is None or accuracy.samples < accuracy.total for accuracy in accuracies):
                raise
            session.stop_and_wait()
            session.was_interrupted = True
        with defer_interrupts():
            yield session


@contextmanager
def open_preflight_session(options: Options, config_path: str | None, target: str | None,
                           force: bool) -> Iterator[Session]:
    """Opens a session and measures the facts that all guards need.

    Raises:
        TrtTuiError: The background process failed or died.
    """
    with _open_session(options, config_path=config_path, target=target, force=force, quiet=True) as session:
        if target is not None:
            session.set_target(target)
        if config_path is not None:  # the guards look at no other run, so INT8 is not calibrated for itself
            session.options = replace(session.options, runs=(Precision.FP16.value,))
        session.request_comparison(with_group_errors=False)
        session.wait_for_jobs()
        session.run(rq.RunPreflight(session.config))
        with defer_interrupts():
            yield session


@contextmanager
def open_method_comparison_session(options: Options, config_path: str | None, target: str | None, force: bool,
                                   methods: Iterable[str]) -> Iterator[Session]:
    """Opens a session and compares range methods on its config.

    Raises:
        TrtTuiError: The background process failed or died, or the methods cannot be compared.
    """
    with _open_session(options, config_path=config_path, target=target, force=force) as session:
        _measure_fp32(session)
        session.compare_range_methods(methods)
        session.wait_for_jobs()
        with defer_interrupts():
            yield session


def export_bundle(options: Options, config_path: str | None, precision: str | None, force: bool, folder: str,
                  tensorrt_release: str) -> ev.ConfigExported:
    """Writes a folder with all files that production needs for a config.

    The results in its report are measured first, if there are data.

    Args:
        precision: The precision of all groups instead of a config; None for the config.
        tensorrt_release: A name of `trt_tui.core.exporters.bundle.RELEASE_TITLES`.

    Raises:
        TrtTuiError: The folder cannot be written, or the background process failed or died.
        KeyboardInterrupt: The user interrupted; the background process is stopped first.
    """
    with _open_session(options, config_path=config_path, force=force) as session:
        if precision is not None:
            uniform = PrecisionConfig.from_precision(Precision(precision), options.other, options.tf32)
            session.history.push_config(_add_keep_rules(session, uniform))
            _print_default_rules(session, session.config)
        config_calibration = None
        if options.data is not None:
            session.request_comparison(with_group_errors=False)
            session.run(rq.CompareRuns({"config": session.config}, True, "config", with_raises=False))
        else:
            config_calibration = session.config_calibration or Calibration()
        session.export_bundle(Path(folder), tensorrt_release, True, config_calibration)
        session.wait_for_jobs()
        answer = session.last_answer
        assert isinstance(answer, ev.ConfigExported), "a finished request has an answer"
        return answer


@contextmanager
def open_search_session(options: Options, config_path: str | None, force: bool, precision: Precision | None,
                        request: rq.FindMixedPrecisionConfig) -> Iterator[Session]:
    """Opens a session and runs a search to its end, or to an interrupt with the best config so far.

    Args:
        precision: The precision of all groups at the start, instead of a config. A group that cannot run in it has the
            next intermediate precision.
        request: The request of the search, without its ``config``.

    Raises:
        TrtTuiError: The background process failed or died, or the search is not possible.
        KeyboardInterrupt: The user interrupted before the search had a config.
    """
    targets_text = TOLERANCE_SEPARATOR.join(request.tolerances) or None
    with _open_session(options, config_path=config_path, target=targets_text, force=force) as session:
        _measure_fp32(session)
        start_config = session.config
        if precision is not None:
            outline = session.opened_network.outline
            start_config = lowest_precision_config(outline, (precision, *request.intermediate_precisions),
                                                   options.other, options.tf32)
            start_config = _add_keep_rules(session, start_config).with_moves(session.config.range_moves)
        if config_path is None:
            _print_default_rules(session, start_config)
        session.history.push_config(start_config)  # warnings during the search are about this config
        fixed_groups: tuple[str, ...] = ()
        if request.method == "lower" and config_path is not None:
            start_config, fixed_groups = reduce_remaining_groups(session.opened_network.outline, start_config,
                                                                 request.higher_precision)
        session.start_search(replace(request, config=start_config, fixed_groups=fixed_groups))
        failure: TrtTuiError | None = None
        try:
            session.wait_for_jobs()
        except KeyboardInterrupt:
            session.stop_and_wait()
        except TrtTuiError as error:
            if not _has_best_search_config(session):
                raise
            failure = error
        if not _has_best_search_config(session):
            raise KeyboardInterrupt
        assert session.search_status is not None and session.search_status.best_config is not None, "it was found"
        session.history.push_config(session.search_status.best_config)
        if failure is None and session.search_status.is_finished:
            _measure_raise_causes(session)
        session.print_new_warnings()
        with defer_interrupts():
            yield session
        if failure is not None:
            raise failure


def _measure_fp32(session: HeadlessSession) -> None:
    """Measures FP32 against another reference, if there is one: it can miss the target before any layer is raised."""
    if session.opened_network.reference is not None:
        fp32 = PrecisionConfig.from_precision(Precision.FP32)
        session.run(rq.CompareRuns({"fp32": fp32}, with_group_errors=False))


def _measure_raise_causes(session: HeadlessSession) -> None:
    """Measures the losses for which a search raised groups: those with each of them in its default precision.

    If the user interrupts or the measurement fails, the report of the search has no causes.
    """
    lowered = config_without_raises(session, session.config)
    if lowered == session.config:
        return
    try:
        with _tolerate_missing_causes(session):
            session.run(rq.CompareRuns({"config": lowered}))
            session.request_cause_facts([lowered], session.config.find_raised_groups(session.opened_network.outline))
            session.wait_for_jobs()
    except KeyboardInterrupt:
        session.stop_and_wait()  # the result of the search is complete
        session.error = None


@contextmanager
def _tolerate_missing_causes(session: HeadlessSession) -> Iterator[None]:
    """Prints a note if the causes of losses cannot be measured; the results that they explain are complete.

    Raises:
        TrtTuiError: The background process died, or files were replaced.
    """
    try:
        yield
    except TrtTuiError as error:
        if isinstance(error, CancelledError) or isinstance(session.error, ev.FilesReplaced | ev.ChildProcessDied):
            raise
        session.error = None
        session.wait_for_jobs()
        print(f"Note: the causes of the losses were not measured: {escape_hidden_characters(error.title)}: "
              f"{escape_hidden_characters(error.cause)}", file=sys.stderr)


def _add_keep_rules(session: Session, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config of uniform precisions with the keep rules of ``--keep`` and the default keep rules."""
    outline = session.outline or session.unmeasured_outline
    assert outline is not None, "an opened network has been announced"
    return session.apply_default_keep_rules(apply_keep_rules(outline, config, session.options.keep))


def _print_default_rules(session: Session, config: PrecisionConfig) -> None:
    """Prints on stderr the layers that the default keep rules keep in a config, with the reason."""
    outline = session.outline or session.unmeasured_outline
    if outline is not None and (note := default_keep_rules_note(outline, config)):
        print(escape_hidden_characters(note), file=sys.stderr)


def _has_best_search_config(session: Session) -> bool:
    return session.search_status is not None and session.search_status.best_config is not None


def _printed_log_text(session: Session, message: ev.LogMessage) -> str:
    """Returns the text of a log line that commands print at once; "" for a line that they do not print."""
    if message.level == "note":
        return f"Note: {message.text}"
    if message.level == "raw":
        return message.text if session.options.verbose else ""
    return message.text if session.network_only and message.level != "warning" else ""


def _job_failure_error(failure: ev.JobFailed | ev.ChildProcessDied) -> TrtTuiError:
    if isinstance(failure, ev.ChildProcessDied):
        return TrtTuiError("the background process ended", f"{failure.reason}\n{failure.log}".strip(),
                           failure.next_step)
    error_type = NoEngineError if failure.attempts else TrtTuiError
    exception = error_type(failure.title, failure.cause, failure.next_step)
    exception.exit_code = ExitCode(failure.exit_code)
    if isinstance(exception, NoEngineError):
        exception.attempts = failure.attempts
    return exception


@contextmanager
def open_dump_session(request: rq.CompareDumps | rq.InspectDump,
                      answer_type: type[EventT]) -> Iterator[EventT]:
    """Opens a session without a network, and yields the answer to a request about dumps."""
    with _open_session(Options(""), network_only=True) as session:
        answer = session.request_answer(request, answer_type)
        with defer_interrupts():
            yield answer


@contextmanager
def open_config_writer(options: Options, config_path: str | None = None, precision: str | None = None,
                       force: bool = False, *, default_precision: Precision = Precision.INT8,
                       builds_engine: bool = False) -> Iterator[ConfigWriter]:
    """Opens a session that reads a network and measures nothing.

    Args:
        options: The network, the data and further options.
        config_path: The file of the config; None for one precision for all groups.
        precision: That precision.
        force: True accepts a config made for another structure.
        default_precision: The precision without a config and a precision, for a network without file precisions.
        builds_engine: True refuses to read the network if no TensorRT works.

    Raises:
        TrtTuiError: The network or the config is refused, or the background process failed or died.
        KeyboardInterrupt: The user interrupted; the background process is stopped first.
    """
    with _open_session(options, builds_engine=builds_engine, config_path=config_path, force=force,
                       network_only=True) as session:
        outline = session.unmeasured_outline
        assert outline is not None, "an opened network has been announced"
        if precision is None and config_path is None:
            precision = (Precision.FILE if outline.has_file_precision else default_precision).value
        config = session.config
        if precision is not None:
            uniform = PrecisionConfig.from_precision(Precision(precision), options.other, options.tf32)
            config = _add_keep_rules(session, uniform).with_moves(session.config.range_moves)
            _print_default_rules(session, config)
        yield ConfigWriter(session, outline, config)


class ConfigWriter:
    """A session that reads a network and measures nothing, for commands that describe or write the network.

    Attributes:
        outline: The outline of the network.
        config: The config that is written.
    """

    def __init__(self, session: HeadlessSession, outline: NetworkOutline, config: PrecisionConfig) -> None:
        self._session, self.outline, self.config = session, outline, config
        self._config_calibration = session.config_calibration or Calibration()

    def export_config(self, export_format: str, path: str) -> ev.ConfigExported:
        """Exports the config in a format of the format registry. Returns the written files."""
        return self._session.request_answer(
            rq.ExportConfig(export_format, path, self.config, self._config_calibration), ev.ConfigExported)

    def compare_dumps(self, request: rq.CompareDumps) -> ev.DumpsCompared:
        """Compares two dumps of the network, apart from the tensors whose channels the config scales."""
        scaled_tensors = tuple(tensor for (_, subject), move in self.config.moves.items()
                               for tensor in move.find_divisors(self.outline, subject))
        return self._session.request_answer(replace(request, scaled_tensors=scaled_tensors), ev.DumpsCompared)

    @property
    def setup_text(self) -> str:
        return self._session.setup_text

    def add_calibration_cache_ranges(self) -> None:
        """Adds the ranges of the calibration cache of the command line to those of the config."""
        if self._session.options.calib_cache is not None:
            self._session.run(rq.UseRanges(self._config_calibration, True))

    def precision_json_text(self, sha256: str) -> str:
        """Returns the text of precision.json with all known ranges, for a network with the given hash."""
        return self._session.unmeasured_precision_json_text(self.config, sha256)

    def raise_groups_to_fp32(self, group_names: Iterable[str]) -> list[str]:
        """Raises fusion groups to FP32, as a comparison of two dumps suggests. Returns the groups that were not in FP32
        before."""
        groups = [group for name in group_names if self.config.precision_of(group := self.outline.get_group(name))
                  is not Precision.FP32]
        self.config = self.config.with_group_precision(groups, Precision.FP32, "dumps")
        return [group.name for group in groups]

    def list_tensors_without_range(self) -> list[str]:
        """Returns the quantized tensors whose range is unknown."""
        session = self._session
        calibration = session.calibration or session.config_calibration
        config = replace_file_precision(self.outline, self.config)
        known_tensors = {*(calibration.ranges if calibration is not None else ()), *config.range_moves}
        return [
            tensor for tensor in dict.fromkeys(site.tensor
                                               for group in self.outline.groups
                                               for site in group.calibrated_qdq_sites(config.precision_of(group)))
            if tensor not in known_tensors
        ]

    def export_subgraph(self, folder: str, input_tensors: tuple[str, ...],
                        output_tensors: tuple[str, ...]) -> ev.ConfigExported:
        """Writes the part of the network between some tensors as a folder. Returns the written files."""
        return self._session.request_answer(
            rq.WriteSubgraph(folder, self.config, input_tensors, output_tensors,
                             config_calibration=self._config_calibration), ev.ConfigExported)

    def write_text(self, text: str, path: str) -> ev.ConfigExported:
        return self._session.request_answer(rq.WriteTextFile(path, text), ev.ConfigExported)

    def build_engine(self, path: str) -> ev.EngineWritten:
        """Builds the engine of the config and writes it to a file. The builder's warnings are printed on stderr."""
        return self._session.request_answer(rq.WriteEngine(self.config, path, self._config_calibration),
                                            ev.EngineWritten)

    def known_defects_report(self, *, of_config: bool) -> tuple[dict[str, Any], list[str]]:
        """Returns the known defects of the network that the release of builds may have, as JSON record and as lines.

        Args:
            of_config: True for defects of the config, False for those of any precision.
        """
        target = self._session.options.make_build_target("tensorrt", find_installed_version("tensorrt"))
        matches = match_known_defects(self.outline, target, self.config.precision_of if of_config else None)
        return {"known_defects": known_defects_record(target, matches)}, known_defects_table(
            self.outline, target, matches, "this config" if of_config else "this network")

    def read_engine(self, path: str) -> EngineReport:
        """Reads the implementation of each layer from an engine, or from the JSON of trtexec --exportLayerInfo."""
        return self._session.request_answer(rq.ReadEngineFile(path), ev.EngineFileRead).engine_report

    def preview_engine(self) -> Preview:
        """Returns a preview of the engine that the builder would make from the config, or the reason why there is
        none."""
        self._session.run(rq.PreviewEngine(self.config, self._config_calibration))
        preview = self._session.results.get_results_or_empty(self.config).preview
        assert preview is not None, "a finished request has an answer"
        return preview
