"""Stages: what a network goes through on its way to production, each held against FP32 and against the one before."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trt_tui.core.data.dumps import DUMP_SUFFIXES, split_dump_spec
from trt_tui.core.measure.production_inputs import InputDifference
from trt_tui.core.measure.results import Accuracy, EngineResult, RunResult
from trt_tui.core.measure.runs import Run, RunKind
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.target_outcome import judge_accuracy
from trt_tui.errors import InputError
from trt_tui.formatting import add_decibel_unit, decibels_text

STAGE_RUNS = ("fp16", "int8", "config")
ENGINE_SUFFIXES = (".plan", ".engine", ".trt")
PRODUCTION_STAGE = "production"

MIN_AGREEMENT_DB = 40.0
"""Outputs that are this close agree: an error of 1 % of them."""

MAX_PRODUCTION_GAP_DB = 3.0
"""Production does something else where its error against FP32 is this much larger than that of what was tested, or
where both are not this much nearer to each other than to FP32."""


@dataclass(frozen=True)
class StageResult:
    """A run that is a stage on the way to production, and its figures.

    Attributes:
        effect_text: What this stage does, in a word or two: "quantization", "the build".
        result: The result against the reference: an `EngineResult` of an engine in a file. None for a config, whose
            results are stored under it.
        accuracy_to_previous: Against the stage before, as far as both have the same outputs; None for the first one.
        other_accuracies: Against others, by their names: of production what was simulated and built.
        input_differences: How the inputs that production has dumped differ from those here.
    """

    run: Run
    effect_text: str
    result: RunResult | None = None
    accuracy_to_previous: Accuracy | None = None
    other_accuracies: tuple[tuple[str, Accuracy], ...] = ()
    input_differences: tuple[InputDifference, ...] = ()

    @property
    def engine_result(self) -> EngineResult | None:
        """The layers, latency and size of an engine in a file; None for another run."""
        return self.result if isinstance(self.result, EngineResult) else None


def parse_stage_run(stage_text: str) -> Run:
    """Reads ``NAME=FILE``, ``fp16``, ``int8``, ``config``, or one of these as built: ``trt-fp16``.

    Raises:
        InputError: it is none of these.
    """
    name, equals, file = stage_text.partition("=")
    name = name.strip()
    if not equals:
        run = name.removeprefix("trt-")
        if run not in STAGE_RUNS:
            raise InputError(f"--stage {stage_text}: there is no stage of that name", f"without a file there are "
                             f"{', '.join(STAGE_RUNS)}, and as built {', '.join(f'trt-{run}' for run in STAGE_RUNS)}",
                             "Name a file: --stage NAME=Q.onnx, NAME=outputs.npz or NAME=model.plan.")
        return Run(name, RunKind.BUILT_ENGINE if name.startswith("trt-") else RunKind.SIMULATED_CONFIG, run)
    if not name or not file:
        raise InputError(f"--stage {stage_text}: {'a file' if name else 'a name'} is missing", "",
                         "Write it as NAME=FILE, for example --stage qdq=quantized.onnx.")
    return Run(name, find_run_kind_of_file(file, f"--stage {stage_text}"), file_path=file)


def find_run_kind_of_file(file_name: str, option_text: str) -> RunKind:
    """What a file is as a stage, by its name.

    Args:
        option_text: The option that names it.

    Raises:
        InputError: it is nothing that a stage can be.
    """
    suffix = split_dump_spec(file_name)[0].suffix.lower()
    if suffix == ".onnx":
        return RunKind.NETWORK_FILE
    if suffix in DUMP_SUFFIXES or Path(file_name).is_dir():
        return RunKind.DUMP
    if suffix in ENGINE_SUFFIXES:
        return RunKind.ENGINE_FILE
    raise InputError(
        f"{option_text}: what {Path(file_name).name} is cannot be told", f"its name ends in {suffix or 'nothing'}",
        f"A network ends in .onnx, outputs in {' or '.join(DUMP_SUFFIXES)}, an engine in "
        f"{', '.join(ENGINE_SUFFIXES)}: link it to such a name.")


def list_requested_stages(stage_texts: Sequence[str], engine_file: str | None,
                          outputs_file: str | None) -> tuple[Run, ...]:
    """All stages that are asked for, in their order: those named, an engine in a file, and production last.

    Raises:
        InputError: one cannot be read, two have the same name, or a file of production is no dump.
    """
    runs = [parse_stage_run(text) for text in stage_texts]
    if engine_file is not None:
        runs.append(Run(Path(engine_file).name, RunKind.ENGINE_FILE, file_path=engine_file))
    if outputs_file is not None:
        if find_run_kind_of_file(outputs_file, "--outputs") is not RunKind.DUMP:
            raise InputError(f"--outputs {Path(outputs_file).name} is no dump of tensors", "",
                             "Give Polygraphy's RunResults (.json) or an .npz; an engine is named with --engine.")
        runs.append(Run(PRODUCTION_STAGE, RunKind.DUMP, file_path=outputs_file))
    names = [run.name for run in runs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two stages are called {twice[0]}", "their rows could not be told apart",
                         "Give each a name of its own.")
    return tuple(runs)


def worst_output_sqnr_db(accuracy: Accuracy | None) -> float | None:
    """The SQNR of the worst output: infinite for an exact copy, minus infinity where it is not finite; None without."""
    errors = accuracy.worst_errors if accuracy is not None else None
    if errors is not None and errors.mismatch is not None and not errors.exact:
        return -10 * math.log10(errors.mismatch)
    return errors.comparable_sqnr_db if errors is not None else None


def first_divergence_text(stages_with_accuracy: Sequence[tuple[StageResult, Accuracy | None]],
                          targets: Sequence[Target], has_unmeasured_stages: bool = False) -> str:
    """Where it first goes wrong, in a line; "" without stages that have figures.

    The first stage that misses the targets is it. If its outputs agree and only the metric does not, what comes behind
    the judged outputs is at fault.

    Args:
        stages_with_accuracy: In their order, each with its verdict against FP32.
        has_unmeasured_stages: Others are still to be measured, so that nobody knows that none misses the target.
    """
    measured_stages = [(stage, accuracy) for stage, accuracy in stages_with_accuracy if accuracy is not None]
    for stage, accuracy in measured_stages:
        result = judge_accuracy(targets, accuracy)
        if result is None or result.passes:
            continue
        figure = max((db for db in (worst_output_sqnr_db(accuracy), worst_output_sqnr_db(stage.accuracy_to_previous))
                      if db is not None), default=-math.inf)
        metric_alone = all(failed_target.kind == "metric"
                           for failed_target in targets
                           if not failed_target.is_met_by(accuracy))
        if metric_alone and not accuracy.nonfinite_count and figure >= MIN_AGREEMENT_DB:
            return (f"first diverges: {stage.run.name}: its outputs agree, the metric does not: "
                    "look at the postprocessing")
        return f"first diverges: {stage.run.name}: {stage.effect_text}"
    lowest = min(measured_stages, key=lambda item: _stage_sqnr_db(item[0], item[1]), default=None)
    if lowest is None or has_unmeasured_stages:
        return ""
    stage, accuracy = lowest
    against = stage.accuracy_to_previous if stage.accuracy_to_previous is not None else accuracy
    worst_errors = against.worst_errors if against is not None else None
    figure_text = add_decibel_unit(worst_errors.sqnr_text("")) if worst_errors is not None else ""
    compared_with = "the stage before" if stage.accuracy_to_previous is not None else "FP32"
    return (f"no stage misses the target; furthest from {compared_with} is {stage.run.name}, {figure_text}: "
            f"{stage.effect_text}")


def _stage_sqnr_db(stage_result: StageResult, accuracy: Accuracy | None) -> float:
    db = worst_output_sqnr_db(
        stage_result.accuracy_to_previous if stage_result.accuracy_to_previous is not None else accuracy)
    return db if db is not None else math.inf


def compare_production_with_tested_run(stage_result: StageResult, accuracy: Accuracy | None,
                                       tested_accuracy: Accuracy | None, tested_name: str) -> tuple[bool, str] | None:
    """Whether production does what was tested, with a sentence; None where nobody knows.

    Errors of two runs of the same precisions are mostly the same errors, so they are nearer to each other than to FP32;
    those of other ranges or other layers are not.

    Args:
        accuracy: Of production, against FP32.
        tested_accuracy: Of what it should do, against FP32.
        tested_name: What that is called.
    """
    if wrong := [entry for entry in stage_result.input_differences if not entry.is_equal_except_rounding]:
        return False, f"production is given other inputs: {wrong[0].description}. Compare what prepares the data first."
    production_db, tested_db = worst_output_sqnr_db(accuracy), worst_output_sqnr_db(tested_accuracy)
    between = next((db for name, entry in stage_result.other_accuracies
                    if name == tested_name and (db := worst_output_sqnr_db(entry)) is not None), None)
    if production_db is None or tested_db is None or between is None:
        return None
    text = (
        f"{_sqnr_db_text(production_db)} against FP32, "
        f"{tested_name} {_sqnr_db_text(tested_db)}; {_sqnr_db_text(between)} between them"
    )
    if between >= MIN_AGREEMENT_DB or production_db >= tested_db - MAX_PRODUCTION_GAP_DB and between >= min(
            production_db, tested_db) + MAX_PRODUCTION_GAP_DB:
        return True, f"production is what was tested: {text}."
    return False, (f"production is NOT what was tested: {text}. Look for another engine, config or ranges, other "
                   "preprocessing (--inputs compares what it was given), and what comes behind the network.")


def _sqnr_db_text(value_db: float) -> str:
    if value_db == -math.inf:
        return "NaN or Inf"
    return add_decibel_unit(
        decibels_text(value_db if math.isfinite(value_db) else None, exact=value_db == math.inf, mark=""))
