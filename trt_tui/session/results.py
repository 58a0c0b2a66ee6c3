"""All that was measured, of configs by what each decides and of the network itself."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import singledispatchmethod

from trt_tui.core.calibration.statistics import TensorStats, TopChannels
from trt_tui.core.measure.comparison import EngineResult, Measured, Verdict
from trt_tui.core.measure.single import OneSample, SampleErrors
from trt_tui.core.measure.stages import SIMULATED, Stage
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.jobs import events as ev


class Results(Mapping[PrecisionConfig, Measured]):
    """What was measured of each config; configs that only differ in their reasons are the same.

    Attributes:
        reference: The FP32 network's own metric and its parts, the headline first; empty without one.
        whole: Whether that is of all judged samples.
        stages: What stands on the way to production, by name in its order; one of a config points to its figures here.
        fp32_engine: The FP32 engine, judged against FP32 on the simulating backend.
        statistics: Of the inputs and the tail of a group in FP32, by the group's name and the tensor's.
        samples: Errors sample by sample, by config; ``alone`` samples that were judged alone, by config and number.
        weights: The ranges of the channels of a group's weights, by the group's name and the tensor's.
        ways_out: The ways out for a group, by its name and the config that they were tried in.
    """

    def __init__(self) -> None:
        self.reference: Mapping[str, float] = {}
        self.whole = False
        self.fp32_engine: EngineResult | None = None
        self.stages: dict[str, Stage] = {}
        self.statistics: dict[str, Mapping[str, TensorStats]] = {}
        self.samples: dict[PrecisionConfig, SampleErrors] = {}
        self.alone: dict[tuple[PrecisionConfig, int], OneSample] = {}
        self.weights: dict[str, Mapping[str, TopChannels]] = {}
        self.ways_out: dict[tuple[str, PrecisionConfig], tuple[ev.WayOut, ...]] = {}
        self._configs: dict[PrecisionConfig, Measured] = {}

    def __getitem__(self, config: PrecisionConfig) -> Measured:
        return self._configs[config]

    def __iter__(self) -> Iterator[PrecisionConfig]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    def of(self, config: PrecisionConfig) -> Measured:
        """What is known of a config: nothing where nothing was measured."""
        return self._configs.get(config) or Measured()

    def at(self, config: PrecisionConfig) -> Measured:
        """The place of a config in the store, to be filled."""
        return self._configs.setdefault(config, Measured())

    @singledispatchmethod
    def take(self, event: ev.Event) -> None:
        """Keeps what an event says was measured.

        Raises:
            TypeError: the event holds no measurement.
        """
        raise TypeError(f"{type(event).__name__} measures nothing")

    @take.register
    def _reference(self, event: ev.ReferenceMeasured) -> None:
        self.reference = dict(event.metric)

    @take.register
    def _verdict(self, event: ev.VerdictMeasured) -> None:
        """Of two verdicts that are not final the one on more samples stands."""
        known = self.at(event.config)
        if known.verdict is None or event.final or event.verdict.samples >= known.verdict.samples:
            known.verdict = event.verdict

    @take.register
    def _exported(self, event: ev.ExportedMeasured) -> None:
        self.at(event.config).exported = event.verdict

    @take.register
    def _layers(self, event: ev.LayersMeasured) -> None:
        known = self.at(event.config)
        known.groups, known.complete = dict(event.groups), event.final

    @take.register
    def _shares(self, event: ev.SharesMeasured) -> None:
        self.at(event.config).shares.update(event.shares)

    @take.register
    def _raised(self, event: ev.RaisedMeasured) -> None:
        known = self.at(event.config)
        known.raised_order, known.raised = event.order, event.verdicts

    @take.register
    def _ways_out(self, event: ev.WaysOutMeasured) -> None:
        self.ways_out[event.group, event.config] = event.options
        for option in event.options:
            self.tried(option.config, option.verdict)

    def tried(self, config: PrecisionConfig, verdict: Verdict) -> None:
        """Keeps a verdict of a config unless a better one is known."""
        known = self.at(config)
        if known.verdict is None:
            known.verdict = verdict

    @take.register
    def _recalled(self, event: ev.Recalled) -> None:
        """What was measured since stands."""
        if event.verdict is not None:
            self.tried(event.config, event.verdict)
        if event.engine is not None and self.of(event.config).engine is None:
            self.built(event.config, event.engine)
        if event.executed is not None and self.of(event.config).executed is None:
            self.at(event.config).executed = event.executed

    @take.register
    def _executed(self, event: ev.ExportedExecuted) -> None:
        self.at(event.config).executed = event.result

    @take.register
    def _stage(self, event: ev.StageMeasured) -> None:
        self.stages[event.stage.name] = event.stage

    def stage_verdict(self, stage: Stage) -> Verdict | None:
        """A stage against what errors are taken against: of one of a config what stands here under it."""
        if stage.config is None or stage.failed:
            return stage.verdict
        known = self.of(stage.config)
        if stage.kind == SIMULATED:
            return known.verdict
        return known.engine.verdict if known.engine is not None else None

    @take.register
    def _statistics(self, event: ev.StatsMeasured) -> None:
        self.statistics[event.group] = dict(event.tensors)
        self.weights[event.group] = dict(event.weights)

    @take.register
    def _samples(self, event: ev.SamplesMeasured) -> None:
        self.samples[event.config] = event.errors

    @take.register
    def _sample(self, event: ev.SampleJudged) -> None:
        self.alone[event.config, event.one.sample] = event.one

    @take.register
    def _fp32_engine(self, event: ev.Fp32EngineJudged) -> None:
        self.fp32_engine = event.result

    @take.register
    def _engine_errors(self, event: ev.EngineErrorsMeasured) -> None:
        known = self.at(event.config)
        if known.engine is not None:
            known.engine = replace(known.engine, inside=event.errors)

    @take.register
    def _previewed(self, event: ev.EnginePreviewed) -> None:
        self.at(event.config).preview = event.preview

    def built(self, config: PrecisionConfig, result: EngineResult) -> bool:
        """Keeps the engine of a config; False where it is a quick build of one that was built in full before."""
        known = self.at(config)
        if result.quick and known.engine is not None and not known.engine.quick:
            return False
        known.engine = result
        return True
