"""The workspace that the app and the commands share: network, samples, config history and results.

A `Session` owns no thread and draws nothing. It sends requests to the child process and takes its events through
`apply`, which whoever runs the event loop calls; after each change of the config it saves itself, and results are kept
by the child process, so that a closed terminal loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import singledispatchmethod
from pathlib import Path

from trt_tui import __version__
from trt_tui.backends.registry import get_backend
from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.calibration.methods import METHODS
from trt_tui.core.data.places import files_read, refuse_over
from trt_tui.core.data.watched import Source
from trt_tui.core.exporters import production
from trt_tui.core.exporters.markdown import comparison_markdown
from trt_tui.core.measure.agreement import what_to_check
from trt_tui.core.measure.comparison import EngineResult, Measured, Verdict, builder_title, unbuilt
from trt_tui.core.measure.judge import Judged
from trt_tui.core.measure.record import comparison_record, engine_record, verdict_record
from trt_tui.core.measure.target import Target, default_target, parse_target
from trt_tui.core.moves import file as config_file
from trt_tui.core.moves.config import PrecisionConfig, step
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.files.writing import write_atomic
from trt_tui.jobs import messages as m
from trt_tui.jobs.client import Client
from trt_tui.options import Options
from trt_tui.session.finding import SEARCHING, Finding
from trt_tui.session.history import History
from trt_tui.session.results import Results
from trt_tui.session.saved import Saved, Store

_ENDINGS = (m.SearchEnded, m.Done, m.Cancelled, m.Failed, m.Died)
"""Events that are taken of a stopped job, too."""

TOLERANCES = "; "
"""What stands between several tolerances in a file; the first one is the target when it is read."""

RUNS = ("fp16", "int8", "config")
"""The runs of the verdict, in the order they are shown."""


class Session:
    """See the module's docstring.

    Attributes:
        EXPORTS: What it can be written as.

    Args:
        options: What to open.
        deliver: Called with each event of the child process, from another thread; it must hand the event to the
            event loop, which calls `apply`.
        config_path: A precision.json to start from.
        target: A target text, like "metric>=base-0.01" or "sqnr>=20"; a default is set when None.
        store: Where sessions are saved; the user's state folder by default.
        resume: Take up the saved session of the same network, where there is one.
        automatic: Measure by itself and save; False for commands that do one thing and end.
    """

    EXPORTS = ("precision.json", *production.KINDS, "markdown")

    def __init__(
        self,
        options: Options,
        deliver: Callable[[m.Event], None],
        *,
        config_path: str | None = None,
        target: str | None = None,
        force: bool = False,
        resume: bool = True,
        store: Store | None = None,
        automatic: bool = True,
    ) -> None:
        self.options = options
        self.config_path = config_path
        self.force = force
        self.automatic = automatic
        self.outline: Outline | None = None
        self.preview: Outline | None = None
        self.judged: tuple[Judged, ...] = ()
        self.data: m.DataSummary | None = None
        self.backend: m.BackendSummary | None = None
        self.builder: m.BuilderSummary | None = None
        self.metric: str | None = None
        self.source: Source | None = None
        self.calibration: Calibration | None = None
        self.history = History(PrecisionConfig.uniform(Precision.INT8, options.other))
        self.names: dict[PrecisionConfig, str] = {}
        self.changed_at: dict[str, float] = {}
        self.results = Results()
        self.built: PrecisionConfig | None = None
        self.built_otherwise = ""  # how the engine that was written last was built, where not as asked
        self.finding: Finding | None = None
        self.why: dict[str, str] = {}  # of what the search last taken has set, see Finding.why
        self.target: Target | None = None
        self.job: m.Progress | None = None
        self.job_started: float | None = None
        self.error: m.Failed | m.Died | None = None
        self.warnings: list[str] = []
        self.log: list[str] = []
        self.notice = ""
        self.stopped = False
        self._target_text = target
        self._resume = resume
        self._store = store if store is not None else Store()
        self._saved_sha256 = ""
        self._given: Calibration | None = None  # the ranges of the config file
        self._replaced: tuple[str, ...] = ()
        self._jobs: dict[int, m.Request] = {}
        self._stopped: set[int] = set()
        self._client = Client(deliver, self._reopening)

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the child process and opens the network; comparisons start by themselves once it is open."""
        self._ask(m.Open(self.options))

    def close(self) -> None:
        """Saves and ends the child process."""
        self.save()
        self._store.release()
        self._client.close()

    @property
    def sha256(self) -> str:
        """The hash of the network and its weights; "" until it is known."""
        return self.source.sha256 if self.source is not None else ""

    @property
    def ranges_from(self) -> str:
        """Where the ranges in use are from, in words; "" while none are needed."""
        if self.calibration is None or self.data is None:
            return ""
        if self.options.calib_cache is not None:
            rest = " and others" if self.calibration.samples else ""
            return f"ranges of {Path(self.options.calib_cache).name}{rest}"
        if self._given is not None and self.calibration == self._given:
            return f"ranges of {Path(self.config_path).name}"
        return f"calibrated on {self.data.calibrating}"

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    @property
    def child_pid(self) -> int | None:
        """Process id of the child, for showing and for tests."""
        return self._client.pid

    def stop_job(self) -> None:
        """Stops the running job: asks, and kills the child process if it has not stopped within 2 s."""
        self._stopped.update(self._jobs)
        self._client.stop()

    def _reopening(self) -> list[m.Request]:
        """What brings a new child process to where the last one was."""
        if self.outline is None:
            return []
        opening = m.Open(self.options, self.source, self.outline.structure_sha256)
        return [opening, *([m.UseRanges(self.calibration)] if self.calibration is not None else [])]

    def _ask(self, request: m.Request) -> None:
        job = self._client.send(request)
        self._jobs[job] = request
        if self.job_started is None:
            self.job_started = time.monotonic()

    def _end(self, job: int) -> m.Request | None:
        request = self._jobs.pop(job, None)
        self._stopped.discard(job)
        if not self._jobs:
            self.job = None
            self.job_started = None
        return request

    # -- events -------------------------------------------------------------------------------------------------

    def apply(self, event: m.Event) -> None:
        """Takes an event in. Events of jobs that were stopped are dropped."""
        if event.job in self._stopped and not isinstance(event, _ENDINGS):
            return
        try:
            self._take(event)
        except TrtTuiError as error:
            self._show(m.Failed(event.job, error.title, error.cause, error.next_step, int(error.exit_code)))

    @singledispatchmethod
    def _take(self, event: m.Event) -> None:
        """Takes an event in by its type.

        Raises:
            TypeError: nothing is known of its type.
        """
        raise TypeError(f"a session takes no {type(event).__name__}")

    @_take.register(m.VerdictMeasured)
    @_take.register(m.LayersMeasured)
    @_take.register(m.SharesMeasured)
    @_take.register(m.RaisedMeasured)
    @_take.register(m.OptionsMeasured)
    @_take.register(m.StatsMeasured)
    @_take.register(m.Checked)
    def _on_measured(self, event: m.Event) -> None:
        self.results.take(event)

    @_take.register
    def _on_prepared(self, event: m.Prepared) -> None:
        """Answers what is asked where no session is; nothing of it is kept."""

    @_take.register
    def _on_previewed(self, event: m.Previewed) -> None:
        self.preview = event.outline

    @_take.register
    def _on_opened(self, event: m.Opened) -> None:
        first = self.outline is None
        self.outline = event.outline
        self.judged = event.judged
        self.data = event.data
        self.backend = event.backend
        self.metric = event.metric
        self.warnings = list(event.data.warnings)
        self.log.extend(event.data.warnings)
        if not first:
            self._start_over()
            return
        if event.outline.quantized_groups:
            self.history = History(self._as_opened(event.outline))
        self._resume_saved()
        self._set_first_target()
        self._name(self.config)

    def _as_opened(self, outline: Outline) -> PrecisionConfig:
        """The precisions that an already quantized file states: INT8 where it has Q/DQ, the other type elsewhere."""
        config = PrecisionConfig.uniform(Precision.INT8, self.options.other)
        others = [g for g in outline.groups if g.quantizable and g.name not in outline.quantized_groups]
        config = config.with_groups(others, self.options.other, "file")
        for tensor, amax in outline.quantized_ranges.items():
            config = config.with_range(tensor, RangeChoice(amax, "file"))
        return config

    def _resume_saved(self) -> None:
        """Takes up the saved session of the same network."""
        if not self.automatic or not self._resume:
            return
        saved = self._store.load(self.outline.structure_sha256, str(self.outline.path), self.outline)
        self.warnings.extend(self._store.lost)
        if saved is None:
            return
        self.history = saved.history()
        self.names = dict(saved.named())
        if not self._target_text:
            self._target_text = saved.target
        count = len(self.config.groups) + len(self.config.ranges)
        self.notice = f"Resumed: {self._name(self.config)}, {count} {'change' if count == 1 else 'changes'}."
        if saved.note:
            self.warnings.append(saved.note)
        self._saved_sha256 = saved.sha256

    def _start_over(self) -> None:
        """Drops all that was measured of files that have been replaced; what was chosen stays."""
        self.warnings.append(f"{', '.join(self._replaced) or 'What was opened'}: replaced, so all is measured anew.")
        self._replaced = ()
        self.calibration, self.built = None, None
        self.results = Results()
        self.why.clear()
        if not self.searching:
            self.finding = None
        self._set_first_target()
        if self.target.kind == "metric":
            self.target = self.target.with_base(None)

    def _drop_ranges(self, whose: str) -> None:
        """Returns what was measured on something else to the calibrated ranges, in every config of the history."""
        dropped = [one for one in self.config.ranges.values() if one.method in METHODS]
        self.history.map(lambda config: config.without_ranges(METHODS))
        self.names = {config.without_ranges(METHODS): name for config, name in self.names.items()}
        self._name(self.config)
        if dropped:
            self.warnings.append(f"{len(dropped)} range{'s' * (len(dropped) != 1)} measured on {whose} "
                                 "are taken back: r chooses anew.")

    def _read_config(self) -> None:
        """Starts from the config file that was named; what was resumed can be had back by undo."""
        loaded = config_file.read_config(self.config_path, self.outline, self.force, sha256=self.sha256)
        self.history.apply(loaded.config)
        self._name(self.config)
        self.warnings.extend(loaded.warnings)
        if loaded.ranges and not loaded.stale_ranges:
            self._given = Calibration(loaded.method, loaded.samples, loaded.data_sha256, loaded.ranges)
            self._ask(m.UseRanges(self._given, fill=True))
            if self.options.calib_data is not None or self.options.calib_method != METHODS[0]:
                self.warnings.append(f"The ranges are those of {Path(self.config_path).name}: what --calib-data and "
                                     "--calib-method give is looked at beside them only.")
        if not self._target_text and loaded.tolerance:
            self._target_text = loaded.tolerance.partition(TOLERANCES)[0]
            self._set_first_target()
        self.save()

    def _set_first_target(self) -> None:
        try:
            self.target = self._make_target()
        except InputError as error:
            # The text comes from a file: the command line's is checked before a session is made.
            self.warnings.append(f"The target is not taken. {error.title}: {error.cause}")
            self._target_text = None
            self.target = self._make_target()

    @_take.register
    def _on_builderready(self, event: m.BuilderReady) -> None:
        self.builder = event.builder

    @_take.register
    def _on_hashed(self, event: m.Hashed) -> None:
        before, self.source = self.source, event.source
        if before is not None:
            self._take_over(before)
            return
        if self._saved_sha256 not in ("", self.sha256):
            self._drop_ranges("other weights, in the session resumed,")
        if self.config_path is not None:
            self._read_config()

    def _take_over(self, before: Source) -> None:
        """Keeps of the ranges that were chosen what still holds after something was replaced."""
        changed = self.source.files.differing(before.files)
        same = (self.source.sha256, self.source.data_sha256) == (before.sha256, before.data_sha256)
        if not same or any(not name.endswith(".py") for name in changed):
            self._drop_ranges("what was replaced")
        if self._given is not None and self.calibration is None and self.source.sha256 == before.sha256:
            self._ask(m.UseRanges(self._given, fill=True))

    @_take.register
    def _on_calibrated(self, event: m.Calibrated) -> None:
        self.calibration = event.calibration

    @_take.register
    def _on_progress(self, event: m.Progress) -> None:
        if event.job in self._jobs:
            self.job = event

    @_take.register
    def _on_referencemeasured(self, event: m.ReferenceMeasured) -> None:
        self.results.take(event)
        if self.target is not None and self.target.kind == "metric":
            self.target = self.target.with_base(next(iter(event.metric.values()), None))

    @_take.register
    def _on_built(self, event: m.Built) -> None:
        if not self.results.built(event.config, event.result):
            self.log.append("The preview is not shown: this config was built in full before.")
            return
        self.built = event.config
        self._name(event.config)
        self.save()

    @_take.register
    def _on_searchprogress(self, event: m.SearchProgress) -> None:
        if self.finding is None or not isinstance(self._jobs.get(event.job), m.Search):
            return
        self.finding.progress = event
        self.job = m.Progress(event.job, SEARCHING, event.done, 0)

    @_take.register
    def _on_searchended(self, event: m.SearchEnded) -> None:
        if self.finding is None or self._jobs.get(event.job) is not self.finding.request:
            return
        finding, result = self.finding, event.result
        finding.ended = event
        self.log.extend((result.said, *event.remarks))
        if result.best is None:
            return
        self.results.at(result.config).verdict = result.best.judgement.verdict
        self._name(result.config)
        if self.automatic and finding.finished and finding.met and self.config == finding.request.config:
            self.take_found()
        if self.config == result.config or self.config == finding.taken:
            chosen = self.config.groups.keys() | self.config.ranges.keys()
            self.why |= {name: why for name, why in finding.why.items() if name in chosen}

    @_take.register
    def _on_wrote(self, event: m.Wrote) -> None:
        self.notice = f"Wrote {event.path}, {event.bytes / 1e6:.1f} MB."
        if event.otherwise:
            self.notice += f" It is NOT the engine of this config: TensorRT refuses it, and built {event.otherwise}."
        self.log.extend(event.lines)
        self.built_otherwise = event.otherwise

    @_take.register
    def _on_note(self, event: m.Note) -> None:
        self.log.append(event.text)
        if event.level == "warning":
            self.warnings.append(event.text)

    @_take.register
    def _on_done(self, event: m.Done) -> None:
        stopped = event.job in self._stopped
        request = self._end(event.job)
        if isinstance(request, m.Open) and self.builder is None and (idle := self.options.about_engines):
            self.warnings.append(f"{', '.join(idle)}: no TensorRT works here, so no engine is built by it.")
        if isinstance(request, m.Open) and self.automatic and not stopped and self.data is not None:
            self.compare()

    @_take.register
    def _on_cancelled(self, event: m.Cancelled) -> None:
        if isinstance(self._end(event.job), m.Search) and self.finding.config is not None:
            self._name(self.finding.config)
        self.log.append("Stopped.")

    @_take.register
    def _on_failed(self, event: m.Failed) -> None:
        self._end(event.job)
        self._show(event)

    @_take.register
    def _on_replaced(self, event: m.Replaced) -> None:
        """Opens anew what has been replaced; a command ends there."""
        self._end(event.job)
        if not self.automatic:
            self._show(event)
        elif not any(isinstance(request, m.Open) for request in self._jobs.values()):
            self._replaced = event.files
            self._ask(m.Open(self.options, structure=self.outline.structure_sha256))

    def _show(self, failure: m.Failed) -> None:
        self.error = failure
        self.log.append(f"{failure.title}: {failure.cause}")
        self.log.extend(failure.detail.splitlines())

    @_take.register
    def _on_died(self, event: m.Died) -> None:
        for job in [job for job in self._jobs if job <= event.job]:
            self._end(job)
        self.error = event
        self.log.append(f"The child process ended with code {event.exit_code}.")
        self.log.extend(event.log.splitlines())

    # -- changing the config ------------------------------------------------------------------------------------

    @property
    def config(self) -> PrecisionConfig:
        return self.history.current

    def run_configs(self) -> dict[str, PrecisionConfig]:
        """The config of every run of `RUNS`."""
        return {"fp16": PrecisionConfig.uniform(Precision.FP16),
                "int8": PrecisionConfig.uniform(Precision.INT8, self.config.other), "config": self.config}

    def measured(self, run: str) -> Measured:
        """What is known of the config of a run."""
        return self.results.of(self.run_configs()[run])

    def toggle(self, groups: Iterable[Group]) -> None:
        """FP32 on and off: raises all of them, or returns all of them to their defaults if all are FP32."""
        groups = [g for g in groups if len(g.allowed) > 1]
        if groups and all(self.config.precision_of(g) is Precision.FP32 for g in groups):
            self._change(self.config.without_groups(groups), groups)
        else:
            self._change(self.config.with_groups(groups, Precision.FP32), groups)

    def step(self, groups: Iterable[Group], up: bool) -> None:
        """One step up or down the ladder INT8, FP16, FP32."""
        config, groups = self.config, list(groups)
        for group in groups:
            config = config.with_groups([group], step(group, config.precision_of(group), up))
        self._change(config, groups)

    def set_precision(self, groups: Iterable[Group], precision: Precision) -> None:
        """Gives groups a precision; those that cannot run in it keep what they have."""
        groups = list(groups)
        self._change(self.config.with_groups(groups, precision), groups)

    def set_range(self, tensor: str, choice: RangeChoice | None) -> None:
        """Replaces a tensor's range, or returns it to the calibrated one."""
        self._change(self.config.with_range(tensor, choice))

    def next_range(self, group: Group) -> str:
        """The next range method for a group's inputs, once its statistics are known; returns the method's name.

        Raises:
            InputError: the group is not quantized, or its statistics are still being measured.
        """
        tensors = [site.tensor for site in group.activations()]
        if not tensors or self.config.precision_of(group) is not Precision.INT8:
            raise InputError(f"{group.name} does not run in INT8", "only INT8 layers have ranges", "")
        known = self.results.statistics.get(group.name, {})
        if any(tensor not in known for tensor in tensors):
            self.look_at(group)
            raise InputError("its ranges are still being measured", "", "Press r again in a moment.")
        base = self.calibration.method if self.calibration is not None else "minmax"
        methods = [base, *(name for name in ("minmax", "percentile", "entropy", "mse") if name != base)]
        current = self.config.ranges.get(tensors[0])
        now = current.method if current is not None and current.method in methods else base
        following = methods[(methods.index(now) + 1) % len(methods)]
        config = self.config
        for tensor in tensors:
            choice = None if following == base else RangeChoice(known[tensor].ranges[following], following)
            config = config.with_range(tensor, choice)
        self._change(config, [group])
        return following

    def set_config(self, config: PrecisionConfig) -> None:
        """Makes a config current."""
        self._change(config)

    def undo(self) -> bool:
        return self.history.undo() and self._changed()

    def redo(self) -> bool:
        return self.history.redo() and self._changed()

    def _change(self, config: PrecisionConfig, groups: Iterable[Group] = ()) -> None:
        if self.history.apply(config):
            now = time.time()
            self.changed_at.update((group.name, now) for group in groups)
            self._changed()

    def _changed(self) -> bool:
        self._name(self.config)
        self.save()
        if self.automatic and self.data is not None:
            self._ask(m.WhatIf(self.config, shares=True))
        return True

    def _name(self, config: PrecisionConfig) -> str:
        if config not in self.names:
            number, taken = len(self.names), set(self.names.values())
            while f"c{number}" in taken:
                number += 1
            self.names[config] = f"c{number}"
        return self.names[config]

    # -- asking for more ----------------------------------------------------------------------------------------

    def compare(self, layers: bool = True) -> None:
        """Measures the runs of the verdict and, with ``layers``, their groups and shares (again)."""
        runs: dict[str, PrecisionConfig] = {}
        for run, config in self.run_configs().items():
            if config not in runs.values():
                runs[run] = config
        shares_of = next(run for run, config in runs.items() if config == self.config)
        self._ask(m.Compare(runs, layers, shares_of if layers else None))

    def measure_shares(self) -> None:
        """Measures the shares of the current config."""
        self._ask(m.WhatIf(self.config, shares=True))

    def look_at(self, group: Group) -> None:
        """Asks for the statistics and the ways out of a group, unless they are known or asked for."""
        if self.data is None:
            return
        waiting = list(self._jobs.values())
        if group.name not in self.results.statistics and m.Stats(group.name) not in waiting:
            self._ask(m.Stats(group.name))
        request = m.TryOptions(group.name, self.config)
        if (group.name, self.config) not in self.results.options and request not in waiting and len(group.allowed) > 1:
            self._ask(request)

    def build(self, quick: bool = False, config: PrecisionConfig | None = None) -> None:
        """Builds a config, the current one by default; ``quick`` makes a preview with the lowest effort.

        Raises:
            InputError: a build is going on.
        """
        if self.building:
            raise InputError("a build is going on", "", "x stops it.")
        if self.searching and self.builder is not None:
            raise InputError("a search is going on, which builds engines too", "", "x stops it.")
        self._ask(m.Build(config if config is not None else self.config, quick))

    def without_engine(self, config: PrecisionConfig, error: TrtTuiError) -> None:
        """Puts the reason in the place of an engine that could not be had, for a comparison that goes on without it."""
        self.error = None
        builder = self.builder if self.builder is not None else self.backend
        self.results.built(config, unbuilt(builder_title(builder.name, builder.version), error))

    def unbuilt(self) -> dict[str, EngineResult]:
        """The engines of a comparison that could not be had, by run; the FP32 check is "fp32"."""
        engines = {"fp32": self.results.check, **{run: self.measured(run).engine for run in RUNS}}
        return {run: engine for run, engine in engines.items() if engine is not None and engine.failed}

    def write_engine(self, config: PrecisionConfig, path: Path, quick: bool = False) -> None:
        """Builds a config's engine and writes it to a file, without judging it.

        Raises:
            InputError: a build is going on, or something is read from that file.
        """
        if self.building:
            raise InputError("a build is going on", "", "x stops it.")
        self._refuse_what_is_read([path], self.config_path)
        self._ask(m.WriteEngine(config, str(path), quick))

    def use_ranges(self, calibration: Calibration) -> None:
        """Takes ranges in place of calibrating."""
        self._ask(m.UseRanges(calibration))

    @property
    def building(self) -> bool:
        return any(isinstance(request, m.Build | m.WriteEngine) for request in self._jobs.values())

    # -- searching ----------------------------------------------------------------------------------------------

    def search(self, request: m.Search) -> None:
        """Starts a search. In the app what it finds becomes the config, as one change.

        Raises:
            InputError: a build or a search is going on.
        """
        if self.building or self.searching:
            raise InputError(f"a {'build' if self.building else 'search'} is going on", "", "x stops it.")
        self.finding = Finding(request)
        self._ask(request)

    @property
    def searching(self) -> bool:
        return any(isinstance(request, m.Search) for request in self._jobs.values())

    def take_found(self) -> bool:
        """Makes the best config of the search current, as one change; False where there is none, or it is already."""
        finding = self.finding
        if finding is None or finding.config is None or finding.config == self.config:
            return False
        before = self.config.groups
        changed = [group for group in self.outline.groups
                   if finding.config.groups.get(group.name) != before.get(group.name)]
        finding.taken = finding.config
        self.why |= finding.why
        self.results.at(finding.config).verdict = finding.best.judgement.verdict
        self._change(finding.config, changed)
        return True

    # -- targets ------------------------------------------------------------------------------------------------

    def _make_target(self) -> Target:
        if self._target_text:
            return self.check_target(self._target_text)
        return default_target(self.metric, self.judged, self.outline, bool(self.data and self.data.labels))

    def check_target(self, text: str) -> Target:
        """Reads a target of this network.

        Raises:
            InputError: the text is no target, or bounds what is not measured here.
        """
        target = parse_target(text)
        if self.outline is not None:
            target.check(self.judged, self.outline, self.metric)
        return target

    def set_target(self, text: str) -> None:
        """Changes the target.

        Raises:
            InputError: the text is no target, or bounds what is not measured here.
        """
        self.target = self.check_target(text)
        if self.target.kind == "metric":
            self.target = self.target.with_base(next(iter(self.results.reference.values()), None))
        self._target_text = text
        self.save()

    # -- files --------------------------------------------------------------------------------------------------

    def record(self) -> dict:
        """What was measured, as `compare --json` writes it."""
        record = comparison_record(self.outline, self.sha256, self.data, self.backend,
                                   {run: self.measured(run) for run in RUNS},
                                   next(iter(self.results.reference.values()), None), self.results.check)
        for run, lines in self.to_check().items():
            record["runs"].get(f"{run}-engine", {})["to_check"] = lines
        return record

    def to_check(self) -> dict[str, list[str]]:
        """What to look at, by run, where an engine is worse than simulated."""
        found = {run: what_to_check(self.outline, config, known.verdict, known.engine, self.results.check)
                 for run, config in self.run_configs().items() if (known := self.results.of(config)).engine is not None}
        return {run: lines for run, lines in found.items() if lines}

    def export(self, kind: str, path: Path, overwrite: bool = False) -> str:
        """Writes a format of `EXPORTS`; returns what to tell the user.

        Raises:
            InputError: the file exists and ``overwrite`` is False, or it cannot be written.
        """
        path = Path(path).expanduser()
        if path.exists() and not overwrite:
            raise InputError(f"{path} exists", "", "Choose another name, or overwrite it.")
        self._refuse_what_is_read([path, *production.companions(kind, path).values()],
                                  None if kind == "precision.json" else self.config_path)
        if kind == "precision.json":
            write_atomic(path, self.precision_json())
            return f"Wrote {path}"
        if kind == "markdown":
            write_atomic(path, comparison_markdown(self.record(), self.outline, self.config))
            return f"Wrote {path}"
        if not overwrite:
            for other in production.companions(kind, path).values():
                if other.exists():
                    raise InputError(f"{other} exists", "it is written beside the other", "Choose another name, or "
                                     "overwrite it.")
        network = open_network(self.options.model, get_backend)
        if self.source is not None and (changed := self.source.files.replaced()):
            raise InputError(f"{', '.join(changed)}: replaced after it was read",
                             "the ranges and figures here are of what it was", "f5 measures it anew.")
        written = production.write(kind, path, network, self.config,
                                   self.calibration.ranges if self.calibration else {},
                                   shapes=self.data.shapes if self.data is not None else {}, effort=self.options.effort)
        beside = f" and {len(written) - 1} files beside it" if len(written) > 1 else ""
        return f"Wrote {written[0]}{beside}"

    def _refuse_what_is_read(self, written: Iterable[Path], config_path: str | None) -> None:
        options = self.options
        read = files_read(options.model, options.data, options.calib_data, options.calib_cache, options.metric,
                          options.timing_cache, config_path)
        refuse_over(written, read, options.model)

    def precision_json(self) -> str:
        """The text of precision.json: the config with ranges, tolerance and evidence."""
        measured: dict[str, Verdict | EngineResult] = {}
        result = self.results.of(self.config)
        if result.verdict is not None:
            measured["simulated"] = result.verdict
        if result.engine is not None:
            measured["engine"] = result.engine
        evidence = evidence_record(measured)
        tolerance = self.target.text if self.target else ""
        finding = self.finding
        if finding is not None and finding.ended is not None and finding.config == self.config:
            evidence["search"] = finding.record()
            tolerance = TOLERANCES.join(finding.request.tolerances)
        return config_file.config_text(self.outline, self.config, self.calibration, evidence=evidence,
                                       tolerance=tolerance, made_with=self.made_with(), sha256=self.sha256)

    def made_with(self) -> dict[str, str]:
        made = {"trt_tui": __version__}
        if self.backend is not None:
            made["onnxruntime"] = self.backend.version
        if self.builder is not None:
            made[self.builder.name] = self.builder.version
            if self.builder.device:
                made["gpu"] = self.builder.device
        return made

    # -- saving -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Saves history, names and target, unless nothing was opened or this session belongs to a command."""
        if self.outline is None or not self.automatic:
            return
        self._store.save(self.outline.structure_sha256,
                         Saved.of(self.outline, self.history, self.names, self._target_text or "",
                                  self.sha256 or self._saved_sha256))


def evidence_record(evidence: Mapping[str, Verdict | EngineResult]) -> dict:
    """The evidence part of precision.json: judged outputs of the simulation and of the engine, kept apart."""
    return {name: engine_record(one) if isinstance(one, EngineResult) else verdict_record(one)
            for name, one in evidence.items()}
