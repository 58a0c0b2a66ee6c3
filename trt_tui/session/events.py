"""What each event of the child process does to a session."""

import time
from collections.abc import Mapping
from functools import singledispatchmethod
from typing import Protocol

from trt_tui.core.data.portions import ON_HOST
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.finding import SEARCHING
from trt_tui.session.job import BY_ITSELF, DONE, FAILED, REPLACED, STOPPED
from trt_tui.session.opening import Opening
from trt_tui.session.state import State
from trt_tui.words import duration


class Acts(Protocol):
    """What an event can trigger."""

    def compare(self, layers: bool = True) -> None:
        """Measures the runs of the verdict."""

    def preview_engine(self, *, opening: bool = False) -> None:
        """Asks what the builder makes of the config."""

    def recall(self) -> None:
        """Asks what was measured of the other configs before."""

    def take_found(self) -> bool:
        """Makes what a search found the config; False where there is none, or it is already."""

    def take_ranges(self, ranges: Mapping[str, RangeChoice]) -> None:
        """Gives tensors ranges, as one change."""


class Events:
    """Applies events to the state of a session, by their type.

    Args:
        state: What they change.
        opening: Applies what was opened.
        acts: What follows by itself when something has ended.
    """

    def __init__(self, state: State, opening: Opening, acts: Acts) -> None:
        self._state = state
        self._opening = opening
        self._acts = acts

    @singledispatchmethod
    def take(self, event: ev.Event) -> None:
        """Applies an event.

        Raises:
            TypeError: its type is unknown.
            TrtTuiError: what it triggers cannot be done.
        """
        raise TypeError(f"a session takes no {type(event).__name__}")

    # -- what was opened ----------------------------------------------------------------------------------------

    @take.register
    def _previewed(self, event: ev.Previewed) -> None:
        self._state.preview = event.outline

    @take.register
    def _opened(self, event: ev.Opened) -> None:
        self._opening.opened(event)

    @take.register
    def _config(self, event: ev.ConfigRead) -> None:
        self._opening.config_read(event.loaded)

    @take.register
    def _builder(self, event: ev.BuilderReady) -> None:
        self._state.builder = event.builder

    @take.register
    def _hashed(self, event: ev.Hashed) -> None:
        self._opening.hashed(event.source)

    @take.register
    def _replaced(self, event: ev.Replaced) -> None:
        """Opens files anew that were replaced; a command ends instead."""
        self._ended(event, FAILED)
        if self._state.automatic:
            self._opening.replaced(event.files)
        else:
            self._state.show(event)

    # -- what was measured --------------------------------------------------------------------------------------

    @take.register
    def _calibrated(self, event: ev.Calibrated) -> None:
        self._state.calibration = event.calibration

    @take.register
    def _facts(self, event: ev.FactsMeasured) -> None:
        self._state.facts = self._state.facts.with_new(event.facts)
        self._state.log_warned()

    @take.register(ev.VerdictMeasured)
    @take.register(ev.ExportedMeasured)
    @take.register(ev.LayersMeasured)
    @take.register(ev.SharesMeasured)
    @take.register(ev.RaisedMeasured)
    @take.register(ev.WaysOutMeasured)
    @take.register(ev.StatsMeasured)
    @take.register(ev.Recalled)
    @take.register(ev.SamplesMeasured)
    @take.register(ev.SampleJudged)
    @take.register(ev.Fp32EngineJudged)
    @take.register(ev.StageMeasured)
    @take.register(ev.EngineErrorsMeasured)
    def _measured(self, event: ev.Event) -> None:
        self._state.results.take(event)

    @take.register
    def _reference(self, event: ev.ReferenceMeasured) -> None:
        state = self._state
        state.results.take(event)
        state.results.whole = bool(event.metric) and state.data is not None and event.samples >= state.data.whatif
        state.rebase_target(state.results.whole)

    @take.register
    def _engine_previewed(self, event: ev.EnginePreviewed) -> None:
        state, refused = self._state, event.preview.refused
        state.results.take(event)
        if refused is not None and refused.absent:
            state.no_previews = refused
        elif refused is not None and refused.said not in state.log:
            state.log.append(refused.said)

    @take.register
    def _built(self, event: ev.Built) -> None:
        state = self._state
        if not state.results.built(event.config, event.result):
            state.log.append("The quick build is not shown: this config was built in full before.")
            return
        state.built = event.config
        state.names.give(event.config)
        state.save()

    @take.register
    def _executed(self, event: ev.ExportedExecuted) -> None:
        self._state.results.take(event)
        self._state.names.give(event.config)
        self._state.save()

    @take.register
    def _exported(self, event: ev.Exported) -> None:
        first, *others = event.paths
        where = "in" if others and others[0].startswith(f"{first}/") else "beside"
        self._state.notice = f"Wrote {first}" + (f" and {len(others)} files {where} it" if others else "")
        self._state.answered = event

    @take.register
    def _ranges_set(self, event: ev.RangesSet) -> None:
        self._acts.take_ranges(event.ranges)

    @take.register
    def _methods(self, event: ev.MethodsCompared) -> None:
        self._state.methods = event

    @take.register(ev.EngineWritten)
    @take.register(ev.EngineRead)
    @take.register(ev.DumpsCompared)
    def _answered(self, event: ev.EngineWritten | ev.EngineRead | ev.DumpsCompared) -> None:
        self._state.answered = event

    # -- searching ----------------------------------------------------------------------------------------------

    @take.register
    def _search_progress(self, event: ev.SearchProgress) -> None:
        state = self._state
        if state.finding is None or not isinstance(state.asked.get(event.job), rq.FindConfig):
            return
        state.finding.progress = event
        state.asked.take(ev.Progress(event.job, SEARCHING, event.done, 0))

    @take.register
    def _search_ended(self, event: ev.SearchEnded) -> None:
        state, finding, result = self._state, self._state.finding, event.result
        if finding is None or state.asked.get(event.job) is not finding.request:
            return
        finding.ended = event
        state.log.extend((result.said, *event.remarks))
        if result.best is None:
            return
        state.names.give(result.config)
        if not event.other_samples:
            state.results.at(result.config).verdict = result.best.judgement.verdict
        if not finding.request.sample and not event.other_samples:
            for place, config in event.front.items():
                if (verdict := event.evaluations[place].judgement.verdict) is not None:
                    state.results.tried(config, verdict)
        if state.automatic and finding.finished and finding.met and state.config == finding.request.config:
            self._acts.take_found()
        if state.config in (result.config, finding.taken):
            chosen = {target for _, target in state.config.moves}
            state.why |= {name: why for name, why in finding.why.items() if name in chosen}

    # -- how jobs go and end ------------------------------------------------------------------------------------

    @take.register
    def _progress(self, event: ev.Progress) -> None:
        self._state.asked.take(event)

    @take.register
    def _begun(self, event: ev.Begun) -> None:
        if (job := self._state.asked.job(event.job)) is not None:
            job.begin()

    @take.register
    def _runs_at(self, event: ev.RunsAt) -> None:
        state = self._state
        if event.level != state.level and event.level.reason:
            host = event.level.name.startswith(ON_HOST)
            text = f"Simulated {'' if host else 'with '}{event.level.name}: {event.level.reason}"
            state.log.append(text)
            if host:
                state.warnings.append(text)
        state.level = event.level

    @take.register
    def _note(self, event: ev.Note) -> None:
        self._state.log.append(event.text)
        if event.level == "warning":
            self._state.warnings.append(event.text)

    @take.register
    def _done(self, event: ev.Done) -> None:
        state, stopped = self._state, self._state.asked.stopped(event.job)
        state.log_warned()
        if not isinstance(self._ended(event, REPLACED if event.replaced else DONE), rq.Open):
            return
        if state.builder is None and not state.lean and (idle := state.options.about_engines):
            state.warnings.append(f"{', '.join(idle)}: no TensorRT works here, so no engine is built by it.")
        if state.automatic and not stopped and state.data is not None:
            self._acts.compare()
            self._acts.preview_engine(opening=True)
            self._acts.recall()

    @take.register
    def _cancelled(self, event: ev.Cancelled) -> None:
        state = self._state
        request, finding = self._ended(event, STOPPED), state.finding
        if isinstance(request, rq.FindConfig) and finding is not None and finding.config is not None:
            state.names.give(finding.config)

    @take.register
    def _failed(self, event: ev.Failed) -> None:
        request = self._ended(event, FAILED)
        self._state.show(event)
        # Whether a config can be read turns out after the network is open, which is compared in any case.
        if isinstance(request, rq.Open) and request.config and self._state.automatic and self._state.source is not None:
            self._acts.compare()

    @take.register
    def _died(self, event: ev.Died) -> None:
        state = self._state
        for number in [number for number in state.asked if number <= event.job]:
            state.asked.end(number, FAILED)
        state.error = event
        state.log.append(f"The child process ended with code {event.exit_code}.")
        state.log.extend(event.log.splitlines())

    def _ended(self, event: ev.Event, how: str) -> rq.Request | None:
        """Counts a job as ended, and puts into the log how long it took; returns what was asked."""
        state = self._state
        job = state.asked.end(event.job, how)
        if job is not None and job.begun is not None and not isinstance(job.request, BY_ITSELF):
            clock = time.strftime("%H:%M:%S", time.localtime(job.sent_at))
            state.log.append(f"{clock} {job.words}: {how}, {duration(job.seconds)}")
        return job.request if job is not None else None
