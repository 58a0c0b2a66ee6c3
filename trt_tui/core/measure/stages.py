"""Stages: what a network goes through on its way to production, each held against FP32 and against the one before."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trt_tui.core.data.dumps import DUMP_SUFFIXES, split_dump
from trt_tui.core.measure.comparison import EngineResult, Verdict
from trt_tui.core.measure.inputs import InputDifference
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.target_result import judge_accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.errors import InputError
from trt_tui.words import decibels, with_unit

SIMULATED, BUILT, NETWORK, OUTPUTS, ENGINE = "simulated", "built", "network", "outputs", "engine"
"""What a stage is: a run of the simulation, its engine, another network, a dump of tensors, an engine in a file."""

RUNS = ("fp16", "int8", "config")
ENGINE_SUFFIXES = (".plan", ".engine", ".trt")
PRODUCTION = "production"

AGREES_DB = 40.0
"""Outputs that are this close agree: an error of 1 % of them."""

TESTED_DB = 3.0
"""Production does something else where its error against FP32 is this much larger than that of what was tested, or
where both are not this much nearer to each other than to FP32."""


@dataclass(frozen=True)
class Asked:
    """A stage that is asked for.

    Attributes:
        kind: One of the kinds above.
        run: Of a simulated or built one: "fp16", "int8" or "config".
        file: Of the others.
    """

    name: str
    kind: str
    run: str = ""
    file: str = ""


@dataclass(frozen=True)
class Stage:
    """A stage and its figures.

    Attributes:
        cause: What this stage does, in a word or two: "quantization", "the build".
        config: Of a simulated or built one: its figures stand in the store of results under it.
        verdict: Of the others, against what errors are taken against.
        before: Against the stage before, as far as both have the same outputs; None for the first one.
        beside: Against others, by their names: of production what was simulated and built.
        engine: An engine in a file: what it is made of, its latency and size.
        inputs: How the inputs that production has dumped differ from those here.
        failed: Why there are no figures, "" where there are.
    """

    name: str
    kind: str
    cause: str
    file: str = ""
    config: PrecisionConfig | None = None
    verdict: Verdict | None = None
    before: Verdict | None = None
    beside: tuple[tuple[str, Verdict], ...] = ()
    engine: EngineResult | None = None
    inputs: tuple[InputDifference, ...] = ()
    failed: str = ""
    lines: tuple[str, ...] = field(default=())


def parse_stage(text: str) -> Asked:
    """Reads ``NAME=FILE``, ``fp16``, ``int8``, ``config``, or one of these as built: ``trt-fp16``.

    Raises:
        InputError: it is none of these.
    """
    name, equals, file = text.partition("=")
    name = name.strip()
    if not equals:
        run = name.removeprefix("trt-")
        if run not in RUNS:
            raise InputError(f"--stage {text}: there is no stage of that name", f"without a file there are "
                             f"{', '.join(RUNS)}, and as built {', '.join(f'trt-{run}' for run in RUNS)}",
                             "Name a file: --stage NAME=Q.onnx, NAME=outputs.npz or NAME=model.plan.")
        return Asked(name, BUILT if name.startswith("trt-") else SIMULATED, run=run)
    if not name or not file:
        raise InputError(f"--stage {text}: {'a file' if name else 'a name'} is missing", "",
                         "Write it as NAME=FILE, for example --stage qdq=quantized.onnx.")
    return Asked(name, kind_of_file(file, f"--stage {text}"), file=file)


def kind_of_file(file: str, option: str) -> str:
    """What a file is as a stage, by its name.

    Args:
        option: The option that names it.

    Raises:
        InputError: it is nothing that a stage can be.
    """
    suffix = split_dump(file)[0].suffix.lower()
    if suffix == ".onnx":
        return NETWORK
    if suffix in DUMP_SUFFIXES or Path(file).is_dir():
        return OUTPUTS
    if suffix in ENGINE_SUFFIXES:
        return ENGINE
    raise InputError(f"{option}: what {Path(file).name} is cannot be told", f"its name ends in {suffix or 'nothing'}",
                     f"A network ends in .onnx, outputs in {' or '.join(DUMP_SUFFIXES)}, an engine in "
                     f"{', '.join(ENGINE_SUFFIXES)}: link it to such a name.")


def stages_of(texts: Sequence[str], engine: str | None, outputs: str | None) -> tuple[Asked, ...]:
    """All stages that are asked for, in their order: those named, an engine in a file, and production last.

    Raises:
        InputError: one cannot be read, two have the same name, or a file of production is no dump.
    """
    found = [parse_stage(text) for text in texts]
    if engine is not None:
        found.append(Asked(Path(engine).name, ENGINE, file=engine))
    if outputs is not None:
        if kind_of_file(outputs, "--outputs") != OUTPUTS:
            raise InputError(f"--outputs {Path(outputs).name} is no dump of tensors", "",
                             "Give Polygraphy's RunResults (.json) or an .npz; an engine is named with --engine.")
        found.append(Asked(PRODUCTION, OUTPUTS, file=outputs))
    names = [one.name for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two stages are called {twice[0]}", "their rows could not be told apart",
                         "Give each a name of its own.")
    return tuple(found)


def worst_db(verdict: Verdict | None) -> float | None:
    """The SQNR of the worst output: infinite for an exact copy, minus infinity where it is not finite; None without."""
    if verdict is None or verdict.worst is None:
        return None
    errors = verdict.worst[1].errors
    if errors.mismatch is not None:
        return math.inf if errors.exact else -10 * math.log10(errors.mismatch)
    if errors.bad or errors.sqnr_db is None and not errors.exact:
        return -math.inf
    return math.inf if errors.exact or errors.sqnr_db is None else errors.sqnr_db


def diverges(stages: Sequence[tuple[Stage, Verdict | None]], targets: Sequence[Target], more: bool = False) -> str:
    """Where it first goes wrong, in a line; "" without stages that have figures.

    The first stage that misses the targets is it. If its outputs agree and only the metric does not, what comes behind
    the judged outputs is at fault.

    Args:
        stages: In their order, each with its verdict against FP32.
        more: Others are still to be measured, so that nobody knows that none misses the target.
    """
    known = [(stage, verdict) for stage, verdict in stages if verdict is not None]
    for stage, verdict in known:
        result = judge_accuracy(targets, verdict)
        if result is None or result.passes:
            continue
        figure = max((db for db in (worst_db(verdict), worst_db(stage.before)) if db is not None), default=-math.inf)
        metric_alone = all(target.kind == "metric" for target in targets if not target.reached(verdict))
        if metric_alone and not verdict.bad and figure >= AGREES_DB:
            return f"first diverges: {stage.name}: its outputs agree, the metric does not: look at the postprocessing"
        return f"first diverges: {stage.name}: {stage.cause}"
    lowest = min(known, key=lambda one: _loss(one[0], one[1]), default=None)
    if lowest is None or more:
        return ""
    stage, verdict = lowest
    against = stage.before if stage.before is not None else verdict
    worst = against.worst if against is not None else None
    figure_text = with_unit(worst[1].errors.figure("")) if worst is not None else ""
    what = "the stage before" if stage.before is not None else "FP32"
    return f"no stage misses the target; furthest from {what} is {stage.name}, {figure_text}: {stage.cause}"


def _loss(stage: Stage, verdict: Verdict | None) -> float:
    db = worst_db(stage.before if stage.before is not None else verdict)
    return db if db is not None else math.inf


def is_tested(stage: Stage, verdict: Verdict | None, tested: Verdict | None, what: str) -> tuple[bool, str] | None:
    """Whether production does what was tested, with a sentence; None where nobody knows.

    Errors of two runs of the same precisions are mostly the same errors, so they are nearer to each other than to FP32;
    those of other ranges or other layers are not.

    Args:
        verdict: Of production, against FP32.
        tested: Of what it should do, against FP32.
        what: What that is called.
    """
    if wrong := [one for one in stage.inputs if not one.same]:
        return False, f"production is given other inputs: {wrong[0].said}. Compare what prepares the data first."
    here, there = worst_db(verdict), worst_db(tested)
    between = next((db for name, one in stage.beside if name == what and (db := worst_db(one)) is not None), None)
    if here is None or there is None or between is None:
        return None
    said = f"{_db(here)} against FP32, {what} {_db(there)}; {_db(between)} between them"
    if between >= AGREES_DB or here >= there - TESTED_DB and between >= min(here, there) + TESTED_DB:
        return True, f"production is what was tested: {said}."
    return False, (f"production is NOT what was tested: {said}. Look for another engine, config or ranges, other "
                   "preprocessing (--inputs compares what it was given), and what comes behind the network.")


def _db(value: float) -> str:
    if value == -math.inf:
        return "NaN or Inf"
    return with_unit(decibels(value if math.isfinite(value) else None, exact=value == math.inf, mark=""))
