"""All that is known about what was opened: the network, its data, configs, results, the target, and its records."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.calibration.methods import RANGE_METHODS
from trt_tui.core.codes import CODES
from trt_tui.core.data.watched import Source
from trt_tui.core.engines.preview import Refusal
from trt_tui.core.guards.facts import Facts, InFloat
from trt_tui.core.guards.guard import Alarm
from trt_tui.core.guards.table import alarms
from trt_tui.core.guards.work import in_float
from trt_tui.core.lowering.lowered import lowers
from trt_tui.core.measure.comparison import EngineResult, Measured, Verdict
from trt_tui.core.measure.judge import Judged
from trt_tui.core.measure.reference import is_network
from trt_tui.core.measure.target import Target, default_target, parse_target
from trt_tui.core.measure.target_result import TargetResult, judge_accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keeping import with_default_rules
from trt_tui.core.moves.network_method import network_method
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision
from trt_tui.core.runner import Level
from trt_tui.errors import InputError, NotYetError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.summaries import BackendSummary, BuilderSummary, DataSummary
from trt_tui.options import Options
from trt_tui.session.asked import Asked
from trt_tui.session.config_results import ENGINE_RUN, EXECUTED_RUN, SIMULATED_RUN
from trt_tui.session.finding import Finding
from trt_tui.session.history import ConfigNames, History
from trt_tui.session.results import Results
from trt_tui.session.saved import Saved, SavedSessions
from trt_tui.session.saving import Saver
from trt_tui.words import EXPORTED

TOLERANCES = "; "
"""What stands between several tolerances in a file; all of them are targets when it is read."""

RUNS = ("fp16", "int8", "config")
"""The runs of the verdict, in the order they are shown."""


SAVED_RUNS = ("fp32", *RUNS)
"""The runs whose outputs can be written."""


class State:
    """What is known so far; None, "" or empty if it is not known yet. It sends no requests and draws nothing.

    Attributes:
        options: The options of the command line.
        config_path: The precision.json that was named.
        automatic: Whether it measures by itself and is saved.
        lean: Whether the network alone is opened; ``preview`` is all of it then.
        preview: The layers of a big network, before the rest of it is known.
        builder: What builds engines.
        level: How the simulation runs on a device.
        source: The hashes of network and data, and their files.
        calibration: The ranges in use; ``given`` are those of the config file.
        saved_sha256: Hash of the weights that the resumed session was measured on.
        history: The configs; ``names`` what they are called, ``changed_at`` when a group was last changed (Unix time).
        results: All that was measured.
        built: The config that was built last.
        finding: The search that runs or ran last.
        why: The reason for each choice of the last search whose result became the config; see `Finding.why`.
        target: What a run must reach; ``target_text`` as it was given, "" or None for the default.
        further_targets: What it must reach too: the other tolerances of a config file.
        facts: What guards look at, as far as the child process measures it.
        asked: The requests under way.
        error: The last error.
        warnings: Messages that stay on screen; ``log`` holds all of them, ``notice`` is the last message to show.
        answered: The answer to the last request that writes or reads a file.
        no_previews: Why no config of this session has a preview, once that is known.
        methods: The calibration methods that were compared last.
        stopped: Whether a command was interrupted and shows what it had measured.
        store: Where it is saved; ``saver`` writes to it.
    """

    def __init__(self, options: Options, *, config_path: str | None = None, target: str | None = None,
                 automatic: bool = True, store: SavedSessions | None = None, lean: bool = False) -> None:
        self.options = options
        self.config_path = config_path
        self.automatic = automatic
        self.lean = lean
        self.preview: Outline | None = None
        self.builder: BuilderSummary | None = None
        self.level: Level | None = None
        self.source: Source | None = None
        self.calibration: Calibration | None = None
        self.given: Calibration | None = None
        self.saved_sha256 = ""
        self.history = History(PrecisionConfig.uniform(Precision.INT8, options.other, options.tf32))
        self.names = ConfigNames()
        self.changed_at: dict[str, float] = {}
        self.results = Results()
        self.built: PrecisionConfig | None = None
        self.finding: Finding | None = None
        self.why: dict[str, str] = {}
        self.target: Target | None = None
        self.further_targets: tuple[Target, ...] = ()
        self.target_text = target
        self.facts = Facts()
        self.asked = Asked()
        self.error: ev.Failed | ev.Died | None = None
        self.warnings: list[str] = []
        self.log: list[str] = []
        self.notice = ""
        self.no_previews: Refusal | None = None
        self.answered: ev.Exported | ev.EngineWritten | ev.EngineRead | ev.DumpsCompared | None = None
        self.methods: ev.MethodsCompared | None = None
        self.stopped = False
        self.store = store if store is not None else SavedSessions()
        self.saver = Saver(self.store)
        self._opened: ev.Opened | None = None
        self._work: tuple[tuple[Outline, PrecisionConfig, EngineResult | None], InFloat | None] | None = None

    # -- what was opened ----------------------------------------------------------------------------------------

    @property
    def opened(self) -> ev.Opened:
        """What was opened.

        Raises:
            NotYetError: nothing is open yet.
        """
        if self._opened is None:
            raise NotYetError("nothing is open yet", "", "Wait for the network.")
        return self._opened

    @opened.setter
    def opened(self, event: ev.Opened) -> None:
        self._opened = event

    @property
    def outline(self) -> Outline | None:
        """The network that is open."""
        return self._opened.outline if self._opened is not None else None

    @property
    def judged(self) -> tuple[Judged, ...]:
        """The outputs that errors are taken at."""
        return self._opened.judged if self._opened is not None else ()

    @property
    def data(self) -> DataSummary | None:
        """The samples in use."""
        return self._opened.data if self._opened is not None else None

    @property
    def backend(self) -> BackendSummary | None:
        """What simulates."""
        return self._opened.backend if self._opened is not None else None

    @property
    def metric(self) -> str | None:
        """The name of the user's metric."""
        return self._opened.metric if self._opened is not None else None

    @property
    def reference(self) -> str:
        """What errors are taken against, in words: ``FP32``, or the file that was named."""
        named = self._opened.reference if self._opened is not None else None
        return named.name if named is not None else "FP32"

    @property
    def fp32(self) -> Verdict | None:
        """FP32 of the network itself, where errors are taken against something else and it is measured."""
        if self._opened is None or self._opened.reference is None:
            return None
        return self.results.of(PrecisionConfig.uniform(Precision.FP32)).verdict

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
        if self.config_path is not None and self.given is not None and (
                self.given.ranges.items() <= self.calibration.ranges.items()):
            rest = "" if self.calibration == self.given else " and others"
            return f"ranges of {Path(self.config_path).name}{rest}"
        method = network_method(self.config, self.opened.outline) or self.calibration.method
        return f"calibrated on {self.data.calibrating}{f' by {method}' if method in RANGE_METHODS[1:] else ''}"

    # -- what is going on ---------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether anything is under way; in the app, previews and flips aside."""
        return bool(self.asked) if not self.automatic else self.asked.keep_busy

    @property
    def building(self) -> bool:
        """Whether an engine is being built because the user asked for it."""
        return self.asked.any(rq.Build, rq.WriteEngine)

    @property
    def searching(self) -> bool:
        """Whether a search is going on."""
        return self.asked.any(rq.FindConfig)

    def show(self, failure: ev.Failed) -> None:
        """Shows an error in the log and on the screen."""
        self.error = failure
        self.log.append(f"{failure.title}: {failure.cause}")
        self.log.extend(failure.detail.splitlines())

    # -- configs and results ------------------------------------------------------------------------------------

    @property
    def config(self) -> PrecisionConfig:
        """The current config."""
        return self.history.current

    def run_configs(self) -> dict[str, PrecisionConfig]:
        """The config of every run of `RUNS`."""
        other = self.config.other if self.config.other is not Precision.FILE else self.options.other
        tf32 = self.config.tf32
        return {"fp16": self.with_default_rules(PrecisionConfig.uniform(Precision.FP16, tf32=tf32)),
                "int8": self.with_default_rules(PrecisionConfig.uniform(Precision.INT8, other, tf32)),
                "config": self.config}

    def with_default_rules(self, config: PrecisionConfig) -> PrecisionConfig:
        """Returns a config of uniform precisions with the rules that apply by default, less those turned off."""
        network = self.outline or self.preview
        return config if network is None else with_default_rules(network, config, self.options.no_keep)

    def measured(self, run: str) -> Measured:
        """What is known of the config of a run."""
        return self.results.of(self.run_configs()[run])

    # -- what guards say ----------------------------------------------------------------------------------------

    def guarded(self) -> Facts:
        """What guards look at: what the child process has measured of data and ranges, and what is known of runs."""
        if self.outline is None:
            return self.facts
        config, fp32 = self.config, self.fp32
        dumped = self.options.reference is not None and not is_network(self.options.reference)
        name = "the file" if config.as_in_file else config.quantized.label if not config.moves else self.names.get(
            config, "the config")
        framework = fp32.outputs if fp32 is not None and dumped and fp32.samples >= fp32.total else {}
        return replace(self.facts, framework={output: one.errors for output, one in framework.items()}, run=name,
                       verdict=self.results.of(config).verdict, half=self.measured("fp16").verdict,
                       floats=config.other.value, codes=config.quantized in CODES,
                       quantized=config.codes_in_use(self.outline).label, target=self.target,
                       in_float=self._in_float(self.outline))

    def _in_float(self, outline: Outline) -> InFloat | None:
        """How much of the config's work is done in floats: counted over all groups for each config, not at each key."""
        of = outline, self.config, self.measured("int8").engine
        if self._work is None or any(one is not other for one, other in zip(of, self._work[0], strict=True)):
            self._work = of, in_float(*of)
        return self._work[1]

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What guards warn of, the gravest first."""
        return alarms(self.guarded())

    @property
    def warned(self) -> list[tuple[str, str]]:
        """All that stays on screen, in short and in full: what guards warn of, then the other warnings."""
        return [*((alarm.what, alarm.line) for alarm in self.alarms), *((text, text) for text in self.warnings)]

    def log_warned(self) -> None:
        """Puts into the log what stays on screen and is not in it yet."""
        logged = set(self.log)
        self.log.extend(f"warning: {line}" for _, line in self.warned if not {line, f"warning: {line}"} & logged)

    # -- the target ---------------------------------------------------------------------------------------------

    def check_target(self, text: str) -> Target:
        """Reads a target of this network.

        Raises:
            InputError: the text is no target, or bounds what is not measured here.
        """
        target = parse_target(text)
        if self.outline is not None:
            target.require_measurable(self.judged, self.outline, self.metric)
        if target.kind == "metric" and self.results.whole:
            target.with_base(self.results.reference)
        return target

    def check_targets(self, text: str) -> list[Target]:
        """Reads several targets, with `TOLERANCES` between them; raises as `check_target`."""
        return [self.check_target(one) for one in text.split(TOLERANCES)]

    def set_target(self, text: str) -> None:
        """Changes the target, or several with `TOLERANCES` between them.

        Raises:
            InputError: the text is no target, or bounds what is not measured here.
        """
        self.target, *further = self.check_targets(text)
        self.further_targets, self.target_text = tuple(further), text
        self.rebase_target()
        self.save()

    def set_first_target(self) -> None:
        """The target that was given with the network or in a file; the default if it cannot be used here."""
        try:
            self.target, *further = self._given_targets()
        except InputError as error:
            # The text comes from a file: the command line's is checked before a session is made.
            self.warnings.append(f"The target is not taken. {error.title}: {error.cause}")
            self.target_text = None
            self.target, *further = self._given_targets()
        self.further_targets = tuple(further)

    def _given_targets(self) -> list[Target]:
        if self.target_text:
            return self.check_targets(self.target_text)
        return [default_target(self.metric, self.judged, self.opened.outline, bool(self.opened.data.labels))]

    @property
    def targets(self) -> tuple[Target, ...]:
        """All that a run must reach."""
        return (self.target, *self.further_targets) if self.target is not None else ()

    def rebase_target(self, whole: bool = True) -> None:
        """Gives a target that bounds the metric what that is in FP32.

        Args:
            whole: Whether that was measured on all samples.

        Raises:
            InputError: the metric has no part of the target's name; in the app the default takes its place.
        """
        def rebased(target: Target) -> Target:
            return target.with_base(self.results.reference, whole) if target.kind == "metric" else target

        if self.target is None:
            return
        try:
            self.target, self.further_targets = rebased(self.target), tuple(map(rebased, self.further_targets))
        except InputError as error:
            if not self.automatic:
                raise
            self.warnings.append(f"The target is not taken. {error.title}: {error.cause}")
            self.target_text, self.further_targets = None, ()
            self.target = rebased(self._given_targets()[0])

    @property
    def states_target(self) -> bool:
        """Whether somebody has stated the target: the user, or who wrote the config. Nobody has stated the default."""
        return bool(self.target_text)

    @property
    def targets_text(self) -> str:
        """The targets as they are written in a file."""
        return TOLERANCES.join(target.text for target in self.targets)

    def target_result(self, accuracy: Verdict | None) -> TargetResult | None:
        """Whether an accuracy meets the targets, with reasons; None where nobody can say yet."""
        return judge_accuracy(self.targets, accuracy) if accuracy is not None else None

    def missed_by(self, config: PrecisionConfig) -> dict[str, str]:
        """Why a config misses a target that somebody has stated, by the keys of `config_results`; empty if it does not.

        It is missed for FAIL and FAIL?, as simulated, as exported or as built.
        """
        known, missed = self.results.of(config), {}
        accuracies = {SIMULATED_RUN: known.verdict, EXPORTED: known.exported,
                      EXECUTED_RUN: known.executed.accuracy if known.executed is not None else None,
                      ENGINE_RUN: known.engine.verdict if known.engine is not None else None}
        for kind, result in self.config_results(config).items() if self.states_target else ():
            if not result.passes and (accuracy := accuracies[kind]) is not None:
                missed[kind] = self.miss_text(result, accuracy)
        return missed

    def miss_text(self, result: TargetResult, accuracy: Verdict) -> str:
        """Why a target is missed, in words."""
        targets = " and ".join(target.shown for target in self.targets)
        has = " and ".join(target.measured(accuracy) for target in self.targets)
        reasons = "; ".join(reason for reason in result.reasons if reason not in has)
        return f"{targets}, and it has {has}" + (f" ({result.outcome.value}: {reasons})" if reasons else "")

    def config_results(self, config: PrecisionConfig) -> dict[str, TargetResult]:
        """The results of a config: as simulated, as it is exported, and as built where it was built as asked.

        Empty for a config that lowers nothing, which proves nothing.
        """
        if self.outline is None or not lowers(self.outline, config):
            return {}
        known = self.results.of(config)
        built = known.engine.verdict if known.engine is not None and known.engine.as_asked else None
        executed = known.executed.accuracy if known.executed is not None else None
        accuracies = {SIMULATED_RUN: known.verdict, EXPORTED: known.exported, EXECUTED_RUN: executed, ENGINE_RUN: built}
        return {name: result for name, one in accuracies.items() if (result := self.target_result(one)) is not None}

    # -- saving -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Has history, names and target saved, unless nothing was opened or this session belongs to a command."""
        if self.outline is None or not self.automatic:
            return
        self.saver.save(self.outline.structure_sha256,
                        partial(Saved.of, self.outline, History.restored(*self.history.snapshot()), self.names.copy(),
                                self.target_text or "", self.sha256 or self.saved_sha256))
