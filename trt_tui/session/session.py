"""The session that the app and the commands share: what they ask for, and the config they change.

A `Session` owns no thread and draws nothing. It sends requests to the child process and takes its events through
`apply`, which whoever runs the event loop calls; after each change of the config it saves itself, and results are kept
by the child process, so that a closed terminal loses nothing.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from trt_tui.core.data.places import files_read, refuse_over
from trt_tui.core.exporters import production
from trt_tui.core.exporters.markdown import comparison_markdown
from trt_tui.core.measure.comparison import ExportedRun, unbuilt
from trt_tui.core.measure.stages import stages_of
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError, NotYetError, TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.client import Client
from trt_tui.options import Options
from trt_tui.session.changing import Changing
from trt_tui.session.events import Events
from trt_tui.session.finding import Finding
from trt_tui.session.job import job_words
from trt_tui.session.opening import Opening
from trt_tui.session.saved import SavedSessions
from trt_tui.words import builder_title


class Session(Changing):
    """What is known of a network, and all that can be asked and changed; see the module's docstring.

    Attributes:
        EXPORTS: The formats that it can be written in.
        asks_previews: Whether it asks by itself what the builder makes of configs; ``asks_flips`` what the figures
            become when a row is flipped.

    Args:
        options: What to open.
        deliver: Called with each event of the child process, from another thread; it must hand the event to the
            event loop, which calls `apply`.
        config_path: A precision.json to start from.
        target: A target text, like "metric>=base-0.01" or "sqnr>=20"; a default is set when None.
        force: Take a config file of another structure, as far as it fits.
        store: Where sessions are saved; the user's state folder by default.
        resume: Resume the saved session of the same network, if there is one.
        automatic: Measure by itself and save; False for commands that do one thing and end.
        lean: Open only the network, for commands that measure nothing.
    """

    asks_previews: ClassVar[bool] = True
    asks_flips: ClassVar[bool] = True
    EXPORTS = ("precision.json", *production.EXPORT_FORMATS, "markdown", "bundle", "subgraph")

    def __init__(
        self,
        options: Options,
        deliver: Callable[[ev.Event], None],
        *,
        config_path: str | None = None,
        target: str | None = None,
        force: bool = False,
        resume: bool = True,
        store: SavedSessions | None = None,
        automatic: bool = True,
        lean: bool = False,
    ) -> None:
        super().__init__(options, config_path=config_path, target=target, automatic=automatic, store=store, lean=lean)
        self._force = force
        self._events = Events(self, Opening(self, self.ask, resume=resume), self)
        self._client = Client(deliver, self._reopening)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self, *, writes: Iterable[str] = (), builds: bool = False) -> None:
        """Starts the child process and opens the network; comparisons start by themselves once it is open.

        Args:
            writes: Files that will be written; refused if the network's weights lie there.
            builds: Refuse to open it if no TensorRT works.
        """
        self.ask(rq.Open(self.options, config=self.config_path, force=self._force, writes=tuple(writes),
                         lean=self.lean, builds=builds))
        if self.options.tensor_ranges:
            self.ask(rq.SetRanges(self.config, self.options.tensor_ranges))

    def close(self) -> None:
        """Saves and ends the child process."""
        try:
            self.save()
            self.saver.close()
        finally:
            self._client.close()

    def ask(self, request: rq.Request) -> None:
        """Sends a request to the child process."""
        self.asked.add(self._client.send(request), request, job_words(request, self.names, self.builder is not None))

    def apply(self, event: ev.Event) -> None:
        """Takes an event in. Events of jobs that were stopped are dropped."""
        if not self.asked.heeds(event):
            return
        try:
            self._events.take(event)
        except TrtTuiError as error:
            self.show(ev.Failed(event.job, error.title, error.cause, error.next_step, int(error.exit_code)))

    def stop(self, jobs: Collection[int] | None = None) -> None:
        """Stops jobs, by default all: asks, and kills the child process if one has not stopped within 2 s."""
        self.asked.stop(self.asked if jobs is None else jobs)
        self._client.stop(jobs)

    def _reopening(self) -> list[rq.Request]:
        """The requests that bring a new child process to the state of the last one."""
        if self.outline is None:
            return []
        opening = rq.Open(self.options, self.source, self.outline.structure_sha256)
        return [opening, *([rq.UseRanges(self.calibration)] if self.calibration is not None else [])]

    # -- asking for more ------------------------------------------------------------------------------------------

    def compare(self, layers: bool = True, shares: bool = True) -> None:
        """Measures the runs of the verdict (again), with ``layers`` errors at their groups, and ``shares``."""
        runs: dict[str, PrecisionConfig] = {}
        for run, config in self.run_configs().items():
            if config not in runs.values():
                runs[run] = config
        shares_of = next(run for run, config in runs.items() if config == self.config)
        if self.opened.reference is not None:
            runs = {"fp32": PrecisionConfig.uniform(Precision.FP32), **runs}
        self.ask(rq.Compare(runs, layers, shares_of if layers and shares else None))
        if self.automatic:
            self.measure_stages()
            self.try_flips()

    def try_flips(self) -> None:
        """Asks what the figures become when a row is flipped, of the rows that matter."""
        if self.asks_flips and self.data is not None:
            self.ask(rq.TryFlips(self.config))

    def measure_stages(self) -> None:
        """Runs the stages on the way to production, if any are asked for."""
        options = self.options
        if stages := stages_of(options.stages, options.engine, options.outputs):
            self.ask(rq.MeasureStages(stages, self.run_configs(), options.inputs))

    @property
    def may_preview(self) -> bool:
        """Whether the builder can be asked what it makes of configs."""
        return self.asks_previews and self.options.preview and self.no_previews is None

    def preview_engine(self, config: PrecisionConfig | None = None, effects: bool = True, opening: bool = False
                       ) -> None:
        """Asks what the builder makes of a config, the current one by default, unless that is known or cannot be.

        Args:
            effects: Ask what its choices do to the engine too.
            opening: See `rq.PreviewEngine`.
        """
        config = config if config is not None else self.config
        known = self.results.of(config).preview
        if self.may_preview and (known is None or effects and known.refused is None and known.no_effect is None):
            self.ask(rq.PreviewEngine(config, effects=effects, background=self.automatic, opening=opening))

    def recall(self) -> None:
        """Asks what an earlier program measured of the configs that have names, so that their figures stand again."""
        others = tuple(config for config in self.names if config not in self.run_configs().values())
        if others:
            self.ask(rq.Recall(others))

    def look_at(self, group: Group) -> None:
        """Asks for the statistics and the ways out of a group, unless they are known or asked for."""
        if self.data is None:
            return
        waiting = list(self.asked.values())
        if group.name not in self.results.statistics and rq.Stats(group.name) not in waiting:
            self.ask(rq.Stats(group.name))
        request = rq.TryWaysOut(group.name, self.config)
        if (group.name, self.config) not in self.results.ways_out and request not in waiting and len(group.allowed) > 1:
            self.ask(request)

    def measure_samples(self) -> None:
        """Asks for the error of each sample in the config, unless it is known or asked for."""
        request = rq.MeasureSamples(self.config)
        if self.data is not None and self.config not in self.results.samples and request not in self.asked.values():
            self.ask(request)

    def judge_sample(self, sample: int) -> None:
        """Asks for one sample alone, in all runs, and for what each group owns of its error."""
        if (known := self.results.alone.get((self.config, sample))) is None or not known.complete:
            self.ask(rq.JudgeSample(self.config, self.run_configs(), sample))

    def build(self, quick: bool = False, config: PrecisionConfig | None = None, marked: bool = False,
              ahead: Iterable[PrecisionConfig] = ()) -> None:
        """Builds a config, the current one by default; ``quick`` takes the lowest effort, ``marked`` also looks into a
        second engine that has the groups' results as outputs, ``ahead`` are configs that will be built next.

        Raises:
            NotYetError: a build is going on.
        """
        if self.building:
            raise NotYetError("a build is going on", "", "Stop it, or wait.")
        if self.searching and self.builder is not None:
            raise NotYetError("a search is going on, which builds engines too", "", "Stop it, or wait.")
        self.ask(rq.Build(config if config is not None else self.config, quick, marked, tuple(ahead)))

    def without_engine(self, config: PrecisionConfig, error: TrtTuiError) -> None:
        """Keeps the reason in place of an engine or an executed export, for a comparison that goes on without it."""
        self.error = None
        if self.builder is not None:
            self.results.built(config, unbuilt(builder_title(self.builder.name, self.builder.version), error))
            return
        backend = self.opened.backend
        reason = ": ".join(filter(None, (error.title, error.cause)))
        self.results.at(config).executed = ExportedRun(f"{backend.name} {backend.version} {backend.device}",
                                                       backend.device.lower(), missing=reason)

    # -- searching ------------------------------------------------------------------------------------------------

    def search(self, request: rq.FindConfig) -> None:
        """Starts a search. In the app what it finds becomes the config, as one change.

        Raises:
            NotYetError: a build or a search is going on.
        """
        if self.building or self.searching:
            raise NotYetError(f"a {'build' if self.building else 'search'} is going on", "", "Stop it, or wait.")
        request = replace(request, preview=self.asks_previews and self.options.preview)
        self.finding = Finding(request)
        self.ask(request)

    def take_found(self) -> bool:
        """Makes the best config of the search current, as one change; False where there is none, or it is already."""
        finding = self.finding
        if finding is None or finding.config is None or finding.best is None or finding.config == self.config:
            return False
        before = self.config.groups
        changed = [group for group in self.opened.outline.groups
                   if finding.config.groups.get(group.name) != before.get(group.name)]
        finding.taken = finding.config
        self.why |= finding.why
        if finding.ended is not None and not finding.ended.other_samples:
            self.results.at(finding.config).verdict = finding.best.judgement.verdict
        self._change(finding.config, changed)
        return True

    # -- files ----------------------------------------------------------------------------------------------------

    def export(self, kind: str, path: Path, overwrite: bool = False) -> None:
        """Has the child process write a format of `EXPORTS` that is a file; `notice` says when it is there.

        Raises:
            InputError: there is no such format, the file exists and ``overwrite`` is False, or it is read from.
        """
        path = Path(path).expanduser()
        files = [one for one in self.EXPORTS if one not in ("bundle", "subgraph")]
        if kind not in files:
            raise InputError(f"unknown format {kind}", f"there are {', '.join(files)}", "")
        beside = production.companions(kind, path).values()
        for other in () if overwrite else (path, *beside):
            if os.path.exists(other):  # also of a name that is too long, which Path.exists() raises for
                why = "" if other == path else "it is written beside the other"
                raise InputError(f"{other} exists", why, "Choose another name, or overwrite it.")
        self._refuse_what_is_read([path, *beside], None if kind == "precision.json" else self.config_path)
        if kind == "precision.json":
            self.ask(rq.WriteText(str(path), self.precision_json()))
        elif kind == "markdown":
            self.ask(rq.WriteText(str(path), comparison_markdown(self.record(), self.opened.outline, self.config)))
        else:
            self.ask(rq.Export(kind, str(path), self.config))

    def export_bundle(self, path: Path, release: str, samples: bool, given: Mapping[str, float] | None = None) -> None:
        """Has the child process write a folder that carries the config into production.

        Args:
            release: A name of `trt_tui.core.exporters.bundle.RELEASES`.
            samples: Whether samples and their outputs go in.
            given: See `trt_tui.jobs.requests.Export`.
        """
        method = self.given.method if given is not None and self.given is not None else ""
        self.ask(rq.WriteBundle(str(Path(path).expanduser()), release, self.config, self.precision_json(),
                                self.record(), samples, given, method))

    def export_group(self, path: Path, group: Group) -> None:
        """Has the child process write a group as a folder that shows its fault by itself."""
        self.ask(rq.WriteSubgraph(str(Path(path).expanduser()), self.config, group=group.name))

    def save_outputs(self, path: str, names: Sequence[str] = ()) -> None:
        """Has the child process write the outputs of runs on all samples.

        Args:
            names: Of `SAVED_RUNS`; by default FP32 and each run, of several with one config the first.
        """
        every = {"fp32": PrecisionConfig.uniform(Precision.FP32), **self.run_configs()}
        runs = {name: every[name] for name in names}
        for run, config in () if names else every.items():
            if config not in runs.values():
                runs[run] = config
        self.ask(rq.SaveOutputs(path, runs))

    def _refuse_what_is_read(self, written: Iterable[Path], config_path: str | None) -> None:
        options = self.options
        read = files_read(options.model, options.reference, options.data, options.calib_data, options.calib_cache,
                          options.metric, options.production.timing_cache or None, config_path)
        refuse_over(written, read)
