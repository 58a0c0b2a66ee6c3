"""The records of a comparison: what `compare --json` writes and the app shows.

A value that was not measured is None here and absent in the file; it is never zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trt_tui.core.engines.failures import NoEngine
from trt_tui.core.engines.inspector import EngineReport
from trt_tui.core.engines.made import Made
from trt_tui.core.engines.preview import Preview
from trt_tui.core.engines.rungs import Rung, one_line
from trt_tui.core.measure.bootstrap import Spread
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.words import SIMULATED, built_by, decibels, milliseconds, visible


@dataclass(frozen=True)
class Errors:
    """Error of one tensor (or part of one) against the FP32 reference, pooled over samples.

    Attributes:
        sqnr_db: 10·log10(Σref² / Σ(test-ref)²) in dB; None where the error is exactly zero or a value is not finite.
        cosine: Of the two tensors laid end to end over all samples; 1 for an exact copy.
        mse: Mean squared error, in the tensor's own units squared.
        max_abs: Largest absolute difference.
        mean_abs: Mean absolute difference.
        mismatch: Share of elements that differ, for integer tensors.
        nan: Count of NaN in the test tensor.
        inf: Count of infinities in the test tensor that the reference does not have.
        exact: The difference is zero everywhere.
    """

    sqnr_db: float | None = None
    cosine: float | None = None
    mse: float | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    mismatch: float | None = None
    nan: int = 0
    inf: int = 0
    exact: bool = False

    @property
    def bad(self) -> int:
        """Count of NaN and Inf."""
        return self.nan + self.inf

    def figure(self, mark: str = SIMULATED) -> str:
        """The SQNR as `trt_tui.words.decibels` writes it; ``mark`` stands before a simulated one."""
        return decibels(self.sqnr_db, exact=self.exact, nan=self.nan, inf=self.inf, mark=mark)


@dataclass(frozen=True)
class OutputErrors:
    """Error at one judged output and its worst sample (index among the judged samples, SQNR in dB or None).

    Attributes:
        variation_db: The energy of the reference's deviations from their mean over samples, relative to its energy;
            minus infinity if all samples are equal. None with one sample, and while not all are measured.
    """

    errors: Errors
    worst_index: int | None = None
    worst_sqnr_db: float | None = None
    variation_db: float | None = None

    @property
    def varying_sqnr_db(self) -> float | None:
        """The SQNR against the part of the reference that varies between samples; None if either is unknown."""
        known = self.errors.sqnr_db, self.variation_db
        return known[0] + known[1] if known[0] is not None and known[1] is not None else None


@dataclass(frozen=True)
class Caveat:
    """A reason why the values of a run may not hold in production.

    Attributes:
        kind: A short name for records: "failed run", "overflow", "may overflow", "unchecked range", "steady output",
            "trivial target", "known gap", "builds differ", "not executed", "not met as exported" or "no engine".
        text: The reason as one sentence without a full stop, for people.
        gap_db: The caveat counts only if the margin to the target is smaller than this, in dB; None if it always
            counts.
        fails: True if the run misses every target, whatever its values are.
    """

    kind: str
    text: str
    gap_db: float | None = None
    fails: bool = False


@dataclass(frozen=True)
class Verdict:
    """How a run does at the judged outputs.

    Attributes:
        outputs: By judged output name.
        metric: The user's metric and its parts; the first entry is the headline. Empty without one.
        agreement: Share of samples whose largest class is the reference's, for a classifier without labels.
        samples: Samples measured so far; ``total`` are to be measured.
        energy: The judged error that shares are shares of: the sum of Σ(test-ref)²/Σref² over the float outputs. If
            only integers are judged, the sum of the shares that differ.
        spread: How far the figures may be off because there are few samples; None until all are measured, or with too
            few.
        caveats: Reasons why the values may not hold in production; the target result takes them into account.
        meaningless: The accuracy of runs whose outputs mean nothing, by what was done to the reference's outputs; see
            `trt_tui.core.measure.sample_dependence`. A target that one of them meets is trivial.
    """

    outputs: Mapping[str, OutputErrors]
    metric: Mapping[str, float] = field(default_factory=dict)
    agreement: float | None = None
    samples: int = 0
    total: int = 0
    energy: float | None = None
    spread: Spread | None = None
    caveats: tuple[Caveat, ...] = ()
    meaningless: "Mapping[str, Verdict]" = field(default_factory=dict)

    @property
    def worst(self) -> tuple[str, OutputErrors] | None:
        """The float output with the lowest SQNR; one with NaN or Inf comes first."""
        judged = [(name, one) for name, one in self.outputs.items() if one.errors.mismatch is None]
        if not judged:
            return next(iter(self.outputs.items()), None)

        def badness(item: tuple[str, OutputErrors]) -> tuple[int, float]:
            errors = item[1].errors
            if errors.bad or errors.sqnr_db is None and not errors.exact:
                return (0, 0.0)
            return (1, float("inf") if errors.exact or errors.sqnr_db is None else errors.sqnr_db)

        return min(judged, key=badness)

    @property
    def bad(self) -> int:
        """Count of NaN and Inf over all outputs."""
        return sum(one.errors.bad for one in self.outputs.values())

    @property
    def failed(self) -> bool:
        """True if the run misses every target, whatever its values are."""
        return any(caveat.fails for caveat in self.caveats)

    @property
    def headline(self) -> float | None:
        """The metric's first value."""
        return next(iter(self.metric.values()), None)


@dataclass(frozen=True)
class GroupErrors:
    """What was measured at one group in one run.

    Attributes:
        accumulated: The whole network in the run's precisions.
        isolated: The group in the run's precision, every input from the reference.
        precision: What the group ran in.
        ref_max: Largest absolute value of the reference tensor.
        warning: Overflow or underflow in words, "" where there is none.
        fp16_over: How many values of the reference tensor exceed FP16's largest; None where FP16 was not in question.
        fp16_under: How many nonzero values lie below FP16's least magnitude; None where FP16 was not in question.
        fp16_largest: Largest FP32 magnitude that the group rounds, at its last tensor or before; None where FP16 was
            not in question.
        fp16_at: The layer that computes it.
        fp16_state: A value of `trt_tui.core.measure.fp16_range.RangeState`; "" where FP16 was not in question.
    """

    precision: Precision
    accumulated: Errors | None = None
    isolated: Errors | None = None
    ref_max: float | None = None
    warning: str = ""
    fp16_over: int | None = None
    fp16_under: int | None = None
    fp16_largest: float | None = None
    fp16_at: str = ""
    fp16_state: str = ""


@dataclass(frozen=True)
class Share:
    """What one group owns of the judged error.

    Attributes:
        owns: (E(c) - E(c, group in FP32)) / E(c); may be slightly negative. NaN if it is unknown.
        kept_db: Worst judged SQNR in dB with this group alone raised to FP32 (impact_kept), None if exact or bad.
        impact_db: Worst judged SQNR in dB with this group alone as in the run, all others FP32; None if unmeasured.
        samples: On how many of the judged samples it stands; the other figures too.
        margin: With 95 % confidence the share on all judged samples is so near; None where it was taken on all of them,
            or on too few to say.
        unknown: Why ``owns`` says nothing, "" where it does.
    """

    owns: float
    kept_db: float | None = None
    impact_db: float | None = None
    samples: int = 0
    margin: float | None = None
    unknown: str = ""


UNFUSED, MARKED = "unfused", "marked"
"""How tensors inside an engine were read: what its kernels hand on to each other as it was built; or of a second engine
that has the groups' results as outputs, which is not the engine as built."""


@dataclass(frozen=True)
class EngineErrors:
    """Errors inside an engine, at the last tensors of the groups, against FP32 of the network.

    Attributes:
        how: `UNFUSED` or `MARKED`.
        groups: Accumulated errors by group name.
        hidden: Groups whose result stays inside a kernel, or is not told.
        samples: How many samples they were taken on.
        verdict: Of a second engine at the judged outputs; None where there is none.
        missing: Why there are no errors, "" where there are.
    """

    how: str
    groups: Mapping[str, Errors] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    samples: int = 0
    verdict: Verdict | None = None
    missing: str = ""


def profile_words(name: str, least: Sequence[int], usual: Sequence[int], most: Sequence[int]) -> str:
    """The shapes of an input in a profile: ``image 4x3x8x8 (1x3x8x8 to 8x3x8x8)``."""
    least_word, usual_word, most_word = ("x".join(map(str, shape)) for shape in (least, usual, most))
    return f"{visible(name)} {usual_word}" + (f" ({least_word} to {most_word})" if least_word != most_word else "")


@dataclass(frozen=True)
class ProfileTimes:
    """How fast an engine is in one of several optimization profiles, at its usual shapes.

    Attributes:
        shapes: Least, usual and largest shape by input name, of dynamic inputs.
        samples: How many samples a run takes there.
        latency_ms: Median, minimum and maximum of runs that were enqueued; ``graph_ms`` as one CUDA graph each.
        missing: What could not be measured and why, "" where all was.
    """

    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
    samples: int
    latency_ms: tuple[float, float, float] | None = None
    graph_ms: tuple[float, float, float] | None = None
    missing: str = ""

    @property
    def samples_per_s(self) -> float | None:
        """By the faster of the two ways to run it."""
        known = [one[0] for one in (self.latency_ms, self.graph_ms) if one is not None and one[0] > 0]
        return 1e3 * self.samples / min(known) if known else None

    @property
    def said(self) -> str:
        """In words."""
        shapes = ", ".join(profile_words(name, *ranges) for name, ranges in self.shapes.items())
        told = [f"{round(rate):,} samples/s"] if (rate := self.samples_per_s) is not None else []
        told += [milliseconds(self.latency_ms[0])] if self.latency_ms is not None else []
        told += [f"{milliseconds(self.graph_ms[0])} as one CUDA graph"] if self.graph_ms is not None else []
        return f"{shapes}: {', '.join((*told, *filter(None, [self.missing])))}"


@dataclass(frozen=True)
class OneBuild:
    """What one of several builds of the same config came to.

    Attributes:
        errors: At its worst judged output.
        latency_ms: Median.
    """

    errors: Errors | None = None
    latency_ms: float | None = None
    build_s: float | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class EngineResult:
    """What an engine that TensorRT built computes, judged by its own outputs.

    Attributes:
        verdict: None if it was built but cannot run here.
        latency_ms: Median, minimum and maximum of the timed runs, in milliseconds.
        bytes: Size of the engine.
        build_s: How long the build took, in seconds; 0 where the engine came from the cache.
        note: What to know about these figures.
        device: The GPU, "" if there is none.
        device_memory: Bytes that a run needs beside weights and tensors.
        report: Its layers, if the backend lists them.
        made: What became of each group, by group name.
        origin: "cold", "timing cache" or "engine cache": what the build could start from.
        quick: Built with the lowest effort: neither its latency nor its size is that of production.
        shapes: Verdicts at other shapes of the profile ("min", "max"), if they were asked for.
        rungs: What was tried; the engine was built on the last of them. See `trt_tui.core.engines.rungs`.
        otherwise: If it was not built as asked: the groups that run in another precision, with that precision, as far
            as the backend says.
        simulated: If it was not built as asked: the simulation of what was built instead.
        failed: Why it could not be built, "" if it was.
        remarks: What parser and builder warned of, by group name; see `trt_tui.core.engines.remarks`.
        inside: Errors at the groups; None where they were not measured.
        builds: What each of several builds came to, of which this is the worst; () where it was built once.
        graph_ms: The same as ``latency_ms`` of runs that were launched as one CUDA graph each.
        profiles: How fast it is in each profile, where it has several; () else.
        rows_differ: Outputs at which identical samples of one batch came out different.
    """

    verdict: Verdict | None
    backend: str
    latency_ms: tuple[float, float, float] | None = None
    bytes: int | None = None
    build_s: float | None = None
    note: str = ""
    device: str = ""
    device_memory: int | None = None
    report: EngineReport | None = None
    made: Mapping[str, Made] = field(default_factory=dict)
    origin: str = ""
    quick: bool = False
    shapes: Mapping[str, Verdict] = field(default_factory=dict)
    rungs: tuple[Rung, ...] = ()
    otherwise: Mapping[str, Precision] = field(default_factory=dict)
    simulated: Verdict | None = None
    failed: str = ""
    inside: EngineErrors | None = None
    builds: tuple[OneBuild, ...] = ()
    rows_differ: tuple[str, ...] = ()
    graph_ms: tuple[float, float, float] | None = None
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    profiles: tuple[ProfileTimes, ...] = ()

    @property
    def profiles_said(self) -> tuple[str, ...]:
        """How fast it is in each of several profiles, in words."""
        return tuple(f"profile {place}: {one.said}" for place, one in enumerate(self.profiles))

    @property
    def builder(self) -> str:
        """The builder and the GPU: ``TensorRT 8.6.1, H200``."""
        return built_by(self.backend, self.device)

    @property
    def as_asked(self) -> bool:
        """Whether it is an engine of the config that was asked for, so that its figures are figures of that config."""
        return not self.failed and (not self.rungs or self.rungs[-1].as_asked)

    def beside(self, asked: Verdict | None) -> Verdict | None:
        """The simulation to compare it with: of what was built instead if it was not built as asked, else ``asked``."""
        return asked if self.as_asked else self.simulated


@dataclass(frozen=True)
class ExportedRun:
    """The execution of a config's exported file by ONNX Runtime, which builds nothing: it is neither fast nor slow.

    It is of the config, but of no engine. It can refute a simulated result and never confirms one.

    Attributes:
        executor: The program that executed it: ``ONNX Runtime 1.27.0 CPU``.
        provider: The execution provider, "cpu" or "cuda".
        accuracy: At the network's own outputs; None if the file was not executed.
        missing: The reason why it was not executed, "" if it was.
    """

    executor: str
    provider: str
    accuracy: Verdict | None = None
    missing: str = ""

    @property
    def source(self) -> str:
        """The source of its values in records: ``onnxruntime-cpu``."""
        return f"onnxruntime-{self.provider}"


@dataclass(frozen=True)
class ExportedFound:
    """The exported file of the config that was found, as ONNX Runtime executes it on the samples of the search.

    Attributes:
        executor: The program that executed it.
        met: Whether it meets the tolerances; None if it was not executed or cannot be judged.
        figure: What it yields, in words; the reason if it was not executed.
        simulated: What was simulated, in words.
    """

    executor: str
    met: bool | None
    figure: str
    simulated: str = ""

    @property
    def text(self) -> str:
        """In words, without a full stop."""
        if self.met is None:
            return f"the exported network was not executed: {self.figure}"
        if self.met:
            return f"the exported network yields {self.figure} in {self.executor}"
        return f"not met as exported: {self.figure} in {self.executor} where {SIMULATED}{self.simulated} was simulated"


def unbuilt(builder: str, error: TrtTuiError) -> EngineResult:
    """The result of a build that failed: the reason in place of an engine.

    Args:
        builder: Its title.
    """
    rungs = error.rungs if isinstance(error, NoEngine) else ()
    cause = rungs[0].failed if rungs else error.cause
    return EngineResult(None, builder, failed=": ".join(filter(None, (error.title, one_line(cause)))), rungs=rungs)


@dataclass
class Measured:
    """What was measured of one config; it grows as figures come in.

    Attributes:
        verdict: Simulated; None if nothing was measured yet.
        exported: For a file's own network of which TensorRT refuses something, of its typed network without that.
        groups: Errors by group name; ``complete`` once they are on all samples.
        shares: By group name; of those measured so far.
        engine: The result of building the config.
        executed: The execution of its exported file; None if that was not asked for.
        raised: Verdicts with the first 1, 2, ... groups of ``raised_order``, the worst first, raised to FP32.
        preview: What the builder would make of the config; None while it was not asked.
    """

    verdict: Verdict | None = None
    groups: Mapping[str, GroupErrors] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    engine: EngineResult | None = None
    executed: ExportedRun | None = None
    complete: bool = False
    raised_order: tuple[str, ...] = ()
    raised: tuple[Verdict, ...] = ()
    exported: Verdict | None = None
    preview: Preview | None = None
