"""Opening a network, resuming its session, and opening it anew if its files were replaced."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trt_tui.core.calibration.methods import RANGE_METHODS
from trt_tui.core.data.watched import Source
from trt_tui.core.guards.facts import Facts
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.file import LoadedConfig
from trt_tui.core.moves.keeping import default_rules_note, with_kept
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.history import ConfigNames, History
from trt_tui.session.results import Results
from trt_tui.session.saved import Saved
from trt_tui.session.state import State
from trt_tui.words import plural


class Opening:
    """Takes what was opened into the state of a session.

    Args:
        state: What it changes.
        ask: Sends a request to the child process.
        resume: Resume the saved session of the same network, if there is one.
    """

    def __init__(self, state: State, ask: Callable[[rq.Request], None], *, resume: bool) -> None:
        self._state = state
        self._ask = ask
        self._resume = resume
        self._replaced: tuple[str, ...] = ()
        self._resumed: str | None = None
        self._untouched: object = None
        self._saved_target: str | None = None

    def opened(self, event: ev.Opened) -> None:
        """Takes a network: the first time with what was saved of it, later with what was chosen so far."""
        state, first = self._state, self._state.outline is None
        state.opened = event
        state.warnings = list(event.data.warnings)
        state.log.extend(event.data.warnings)
        if not first:
            self._start_over()
            return
        if event.outline.has_own_precisions:
            state.history = History(PrecisionConfig.uniform(Precision.FILE))
        resumed = state.automatic and self._resume and self._resume_saved(event.outline)
        config = self._with_options(state.config)
        if not resumed:
            config = state.with_default_rules(config)
            if not state.config_path and (note := default_rules_note(event.outline, config)):
                state.log.append(note)
                state.notice = note
        state.history.apply(config)
        state.set_first_target()
        state.names.give(state.config)
        self._untouched = state.history.snapshot()

    def _with_options(self, config: PrecisionConfig) -> PrecisionConfig:
        """A config with TF32 and with the layers kept that the command line asks for.

        Raises:
            InputError: see `trt_tui.core.moves.keeping.with_kept`.
        """
        options, network = self._state.options, self._state.outline or self._state.preview
        assert network is not None, "a network that was opened was told of"
        return with_kept(network, replace(config, tf32=True) if options.tf32 else config, options.keep)

    def _resume_saved(self, outline: Outline) -> bool:
        """Resumes the saved session of the same network; returns False if there is none."""
        state = self._state
        saved = state.store.load(outline.structure_sha256, str(outline.path), outline)
        state.warnings.extend(state.store.lost)
        if saved is None:
            return False
        if not state.target_text:
            state.target_text = self._saved_target = saved.target
        self._take_up(saved)
        if saved.note:
            state.warnings.append(saved.note)
            self._resumed = saved.note
        return True

    def _take_up(self, saved: Saved) -> None:
        """Goes on with the configs of a session."""
        state = self._state
        state.history, state.names, state.saved_sha256 = saved.history(), saved.names(), saved.sha256
        count = len(state.config.moves)
        state.notice = (f"Resumed: {state.names.give(state.config)}, "
                        f"{count} {'change' if count == 1 else 'changes'}.")

    def hashed(self, source: Source) -> None:
        """Takes the hashes of what figures are of, and drops ranges that were measured on something else."""
        state, before = self._state, self._state.source
        state.source = source
        if before is not None:
            self._take_over(before, source)
            return
        self._adopt(source)
        if state.saved_sha256 not in ("", source.sha256):
            self._drop_ranges("other weights, in the session resumed,")

    def _adopt(self, source: Source) -> None:
        """One network under two paths is one network: its own session takes the place of that of another network of
        the same structure, unless somebody has changed that one meanwhile."""
        state = self._state
        if self._resumed is None or (
                state.saved_sha256 != source.sha256 and state.history.snapshot() != self._untouched):
            return
        before, own = state.target_text, state.store.adopt(source.sha256)
        if own is None:
            return
        state.warnings = [text for text in state.warnings if text != self._resumed]
        if state.saved_sha256 == source.sha256:
            return
        self._take_up(own)
        state.history.apply(self._with_options(state.config))
        state.names.give(state.config)
        if before == self._saved_target:
            state.target_text = own.target
            state.set_first_target()

    def config_read(self, loaded: LoadedConfig) -> None:
        """Starts from a config file; undo brings back the resumed config."""
        state = self._state
        state.history.apply(self._with_options(loaded.config))
        state.names.give(state.config)
        state.warnings.extend(loaded.warnings)
        if loaded.calibration.ranges and not loaded.stale_ranges:
            state.given = loaded.calibration
            if state.lean:
                return
            self._ask(rq.UseRanges(state.given, True, Path(state.config_path or "").name))
            if state.options.calib_data is not None or state.options.calib_method != RANGE_METHODS[0]:
                state.warnings.append(f"The ranges are those of {Path(state.config_path or '').name}: what "
                                      "--calib-data and --calib-method give is looked at beside them only.")
        if not state.lean and not state.target_text and loaded.tolerance:
            state.target_text = loaded.tolerance
            state.set_first_target()
        state.save()

    # -- files that were replaced -------------------------------------------------------------------------------

    def replaced(self, files: tuple[str, ...]) -> None:
        """Opens anew what has been replaced."""
        state = self._state
        if not state.asked.any(rq.Open):
            self._replaced = files
            self._ask(rq.Open(state.options, structure=state.opened.outline.structure_sha256))

    def _start_over(self) -> None:
        """Drops all that was measured on files that have been replaced; the user's changes stay."""
        state = self._state
        state.warnings.append(f"{', '.join(self._replaced) or 'What was opened'}: replaced, so all is measured anew.")
        self._replaced = ()
        state.calibration = state.built = None
        state.results = Results()
        state.facts = Facts()
        state.why.clear()
        if not state.searching:
            state.finding = None
        state.set_first_target()
        state.rebase_target()

    def _take_over(self, before: Source, now: Source) -> None:
        """Keeps of the ranges that were chosen what still holds after something was replaced."""
        state = self._state
        changed = now.files.differing(before.files)
        same = (now.sha256, now.data_sha256) == (before.sha256, before.data_sha256)
        if not same or any(not name.endswith(".py") for name in changed):
            self._drop_ranges("what was replaced")
        if state.given is not None and state.calibration is None and now.sha256 == before.sha256:
            self._ask(rq.UseRanges(state.given, True, Path(state.config_path or "").name))

    def _drop_ranges(self, whose: str) -> None:
        """Returns what was measured on something else to the calibrated ranges, in every config of the history."""
        state = self._state
        dropped = [one for one in state.config.moves.values() if one.measured]
        others = sum(one.kind != RangeChoice.kind for one in dropped)
        state.history.map(lambda config: config.without_measured())
        state.names = ConfigNames(((config.without_measured(), name) for config, name in state.names.items()),
                                  {config.without_measured(): note for config, note in state.names.notes.items()})
        state.names.give(state.config)
        if dropped:
            said = [plural(count, word) for count, word in ((len(dropped) - others, "range"), (others, "free move"))
                    if count]
            state.warnings.append(f"{' and '.join(said)} measured on {whose} are taken back: choose anew.")
