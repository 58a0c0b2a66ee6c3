"""Stages of a network on its way to production, each compared with the reference and with the previous stage.

The inputs that production dumped are compared with the inputs used here, with explanations of differences.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trt_tui.core.data.array_files import PICKLE_SUFFIXES
from trt_tui.core.data.tensor_files import DUMP_FORMATS, DUMP_SUFFIXES, split_dump_spec
from trt_tui.core.measure.error_metrics import ErrorMetrics, ErrorSums
from trt_tui.core.measure.results import Accuracy, EngineResult, ResultKind, Run, RunKind, RunResult
from trt_tui.core.measure.target import Target, judge_accuracy
from trt_tui.errors import InputError
from trt_tui.formatting import RUN_TITLES, add_decibel_unit, decibels_text, number_text

MIN_SAME_INPUT_DB = 60.0
"""The minimum SQNR at which two inputs count as equal. Casts and codecs of FP32 have a higher one."""

_IDENTITY_FIT = (1.0, 0.0)
"""The scale and offset of inputs that differ only by noise."""

_MAX_EXPLAINED_ELEMENTS = 1 << 20
"""The maximum number of elements from which an explanation is sought."""


@dataclass(frozen=True)
class InputDifference:
    """The difference between an input tensor in production and the same input here.

    Attributes:
        description: The difference in words, with an explanation if there is one.
    """

    input_name: str
    errors: ErrorMetrics
    description: str

    @property
    def is_equal_except_rounding(self) -> bool:
        """True if both inputs are equal except for rounding."""
        errors = self.errors
        return errors.exact or errors.sqnr_db is not None and errors.sqnr_db >= MIN_SAME_INPUT_DB


def compare_input_over_feeds(input_name: str, array_pairs: Iterator[tuple[np.ndarray, np.ndarray]]) -> InputDifference:
    """Compares a local input with the input in production, over all feeds.

    Args:
        array_pairs: For each feed, the local array and the array in production, of the same shape.
    """
    sums = ErrorSums()
    first: list[tuple[np.ndarray, np.ndarray]] = []
    held_elements = 0
    for local, production in array_pairs:
        sums.add_tensor_pair(local, production)
        if held_elements < _MAX_EXPLAINED_ELEMENTS:
            first.append((np.array(local, np.float64), np.array(production, np.float64)))
            held_elements += local.size
    errors = sums.compute_error_metrics()
    figure = add_decibel_unit(errors.sqnr_text(""))
    difference = InputDifference(input_name, errors, f"{input_name} is the same ({figure})")
    if difference.is_equal_except_rounding:
        return difference
    sides = [np.concatenate(side) for side in zip(*first, strict=True)]
    if sides and _fit_scale_and_offset(*sides) == _IDENTITY_FIT:
        return InputDifference(input_name, errors,
                               f"{input_name} differs by {figure}, as after another resize, decoder or type")
    explanation = explain_input_difference(*sides) if sides else ""
    return InputDifference(input_name, errors,
                           f"{input_name} differs ({figure}){f': {explanation}' if explanation else ''}")


def explain_input_difference(local_array: np.ndarray, production_array: np.ndarray) -> str:
    """Returns an explanation why an input differs in production, such as a scale or swapped channels; "" if there is
    none.

    The possible transformations are a scale and an offset, channels in another order, an axis mirrored or swapped, and
    samples in another order.

    Args:
        local_array, production_array: Arrays of the same shape, first axis samples.
    """
    if local_array.size == 0 or not (np.isfinite(local_array).all() and np.isfinite(production_array).all()):
        return "production has NaN or Inf" if local_array.size else ""
    if (fit := _fit_scale_and_offset(local_array, production_array)) and fit != _IDENTITY_FIT:
        return f"there it is {_linear_formula_text(*fit)}"
    for axis in range(1, local_array.ndim):
        if 2 <= local_array.shape[axis] <= 4:
            turned = np.flip(local_array, axis)
            if _fit_scale_and_offset(turned, production_array) == _IDENTITY_FIT:
                return f"its channels (axis {axis}) are in reverse order, as RGB and BGR are"
            channel_fits = [
                _fit_scale_and_offset(np.take(local_array, index, axis), np.take(production_array, index, axis))
                for index in range(local_array.shape[axis])
            ]
            if all(channel_fits) and any(fit_of_channel != _IDENTITY_FIT for fit_of_channel in channel_fits):
                lines = "; ".join(f"channel {index} is {_linear_formula_text(*fit_of_channel)}"
                                  for index, fit_of_channel in enumerate(channel_fits)
                                  if fit_of_channel)
                return f"different normalisation: there {lines}"
    if local_array.ndim == 4 and local_array.shape[2] == local_array.shape[3] and _fit_scale_and_offset(
            local_array.swapaxes(2, 3), production_array) == _IDENTITY_FIT:
        return "height and width are swapped"
    for axis in range(1, local_array.ndim):
        if local_array.shape[axis] > 4 and _fit_scale_and_offset(np.flip(local_array, axis),
                                                                 production_array) == _IDENTITY_FIT:
            return f"it is mirrored along axis {axis}"
    if len(local_array) > 1 and (order := _find_sample_order(local_array, production_array)) is not None:
        return f"the samples are in another order: there {', '.join(map(str, order[:5]))}, … of those here"
    return ""


def _linear_formula_text(scale: float, offset: float) -> str:
    text = f"{number_text(scale)} times this" if scale != 1 else "this"
    return text + (f" {'+' if offset > 0 else '-'} {number_text(abs(offset))}" if offset else "")


def _fit_scale_and_offset(local_array: np.ndarray, production_array: np.ndarray) -> tuple[float, float] | None:
    """Fits a scale and an offset that convert one array into another; None if the result has less than 40 dB.

    Equal arrays have (1.0, 0.0).
    """
    local_values, production_values = local_array.ravel(), production_array.ravel()
    spread = float(np.var(local_values))
    if not spread:
        return None
    scale = float(np.mean((local_values - local_values.mean()) *
                          (production_values - production_values.mean()))) / spread
    offset = float(production_values.mean() - scale * local_values.mean())
    rest, whole = float(np.var(production_values - scale * local_values)), float(np.var(production_values))
    if not scale or rest > 1e-4 * whole:
        return None
    scale = 1.0 if abs(scale - 1) < 1e-3 else scale
    return scale, 0.0 if abs(offset) < 1e-3 * float(np.abs(production_values).max()) else offset


def _find_sample_order(local_array: np.ndarray, production_array: np.ndarray) -> Sequence[int] | None:
    """Returns the order of the local samples in which production has them; None if a sample has no equal.

    Also None if all samples are in the same order.
    """
    rows, production_rows = local_array.reshape(len(local_array),
                                                -1), production_array.reshape(len(production_array), -1)
    order = []
    for production_row in production_rows:
        distances = np.square(rows - production_row).sum(1)
        nearest = int(np.argmin(distances))
        if distances[nearest] > 1e-4 * float(np.square(production_row).sum()):
            return None
        order.append(nearest)
    return order if order != list(range(len(rows))) else None


ENGINE_SUFFIXES = (".plan", ".engine", ".trt")
PRODUCTION_STAGE = "production"

MIN_AGREEMENT_DB = 40.0
"""The SQNR from which on two outputs agree: an error of 1 % of the outputs."""

MAX_PRODUCTION_GAP_DB = 3.0
"""The gap in dB beyond which production differs from the tested run: its error against FP32 is larger by more."""

MIN_COMMON_ERROR_GAP_DB = 0.5
"""The gap in dB by which production must be nearer to the tested run than the worse of the two is to FP32.

Measured in INT8 on five networks, as gaps between the simulation and an execution of the exported network. The same
config had 0.8 to 20 dB, because a difference of one ulp changes some quantized values. FP32 and FP16 had at most 0.05
dB. Other ranges had less than 0 dB, except on one network where the weights cause most of the error.
"""


@dataclass(frozen=True)
class StageResult:
    """The results of one stage on the way to production, such as an ONNX file, an engine or production itself.

    Attributes:
        effect_text: The change that this stage makes, in a word or two: "quantization", "the build".
        result: The result against the reference; an `EngineResult` for an engine file. None for a config, whose results
            are stored under the config.
        accuracy_to_previous: The accuracy against the previous stage at the common outputs; None for the first stage.
        other_accuracies: Accuracies against other runs, by name. Production is compared with the simulated and built
            runs.
        input_differences: The differences between the inputs that production has dumped and the local ones.
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


STAGES = ResultKind[str, StageResult]("stages")
"""The stages on the way to production, by name in their order. The results of a stage that is a config are stored with
the config."""


def parse_stage_run(stage_text: str) -> Run:
    """Parses the text of a stage: ``NAME=FILE``, a run of `RUN_TITLES`, or such a run as built, as ``trt-fp16``.

    Raises:
        InputError: the text has another form.
    """
    name, equals, file = stage_text.partition("=")
    name = name.strip()
    if not equals:
        run = name.removeprefix("trt-")
        if run not in RUN_TITLES:
            raise InputError(f"--stage {stage_text}: unknown stage",
                             f"available without a file: {', '.join(RUN_TITLES)}, and as built "
                             f"{', '.join(f'trt-{run}' for run in RUN_TITLES)}",
                             "Name a file: --stage NAME=Q.onnx, NAME=outputs.npz or NAME=model.plan.")
        return Run(name, RunKind.BUILT_ENGINE if name.startswith("trt-") else RunKind.SIMULATED_CONFIG, run)
    if not name or not file:
        raise InputError(f"--stage {stage_text}: {'a file' if name else 'a name'} is missing", "",
                         "Write it as NAME=FILE, for example --stage qdq=quantized.onnx.")
    return Run(name, find_run_kind_of_file(file, f"--stage {stage_text}"), file_path=file)


def find_run_kind_of_file(file_name: str, option_text: str) -> RunKind:
    """Returns the kind of run that a file is as a stage, by the suffix of its name.

    Args:
        option_text: The option that names the file.

    Raises:
        InputError: the file cannot be a stage.
    """
    suffix = split_dump_spec(file_name)[0].suffix.lower()
    if suffix == ".onnx":
        return RunKind.NETWORK_FILE
    if suffix in (*DUMP_SUFFIXES, *PICKLE_SUFFIXES) or Path(file_name).is_dir():
        return RunKind.DUMP
    if suffix in ENGINE_SUFFIXES:
        return RunKind.ENGINE_FILE
    raise InputError(
        f"{option_text}: the kind of {Path(file_name).name} is unknown", f"its name ends in {suffix or 'nothing'}",
        f"A network ends in .onnx, outputs in {' or '.join(DUMP_SUFFIXES)}, an engine in "
        f"{', '.join(ENGINE_SUFFIXES)}: rename or link the file.")


def list_requested_stages(stage_texts: Sequence[str], engine_files: Sequence[str],
                          outputs_file: str | None) -> tuple[Run, ...]:
    """Returns all stages that the user requested: named stages in their order, then engine files, then production.

    Raises:
        InputError: a text cannot be parsed, two stages have the same name, or the file of production is not a dump.
    """
    runs = [parse_stage_run(text) for text in stage_texts]
    file_names = [Path(file).name for file in engine_files]
    runs += [Run(name if file_names.count(name) == 1 else file, RunKind.ENGINE_FILE, file_path=file)
             for file, name in zip(engine_files, file_names, strict=True)]
    if outputs_file is not None:
        if find_run_kind_of_file(outputs_file, "--outputs") is not RunKind.DUMP:
            raise InputError(f"--outputs {Path(outputs_file).name} is not a dump of tensors", "",
                             f"Give {DUMP_FORMATS}; an engine is named with --engine.")
        runs.append(Run(PRODUCTION_STAGE, RunKind.DUMP, file_path=outputs_file))
    names = [run.name for run in runs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two stages are called {twice[0]}", "their rows would look alike",
                         "Give each a different name.")
    return tuple(runs)


def worst_output_sqnr_db(accuracy: Accuracy | None) -> float | None:
    """Returns the SQNR of the worst output: infinite for an exact copy, minus infinity for NaN or Inf; None without
    outputs.

    For an integer output, the fraction that differs counts as the noise-to-signal ratio.
    """
    errors = accuracy.worst_errors if accuracy is not None else None
    if errors is not None and errors.mismatch is not None and not errors.exact:
        return -10 * math.log10(errors.mismatch)
    return errors.comparable_sqnr_db if errors is not None else None


def first_divergence_text(stages_with_accuracy: Sequence[tuple[StageResult, Accuracy | None]],
                          targets: Sequence[Target], has_unmeasured_stages: bool = False) -> str:
    """Returns a line about the first stage at which the results go wrong; "" if no stage has results.

    This is the first stage that misses the targets. If its outputs agree and only the metric fails, the cause is behind
    the judged outputs. If no stage misses the targets, the line names the stage that is furthest from its predecessor.

    Args:
        stages_with_accuracy: The stages in their order, each with its accuracy against the reference.
        has_unmeasured_stages: True if other stages are still to be measured. It is then unknown whether all meet the
            targets.
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
    """Returns True if production computes the same as the tested run, together with a sentence; None if it is unknown.

    Two runs with the same precisions have mostly the same errors, so they are nearer to each other than to FP32. With
    other ranges or other layers they are not. Without such errors both must agree to `MIN_AGREEMENT_DB` in the part of
    each output that varies between samples.

    Args:
        accuracy: The accuracy of production against the reference.
        tested_accuracy: The accuracy of the tested run against the reference.
        tested_name: The name of the tested run.
    """
    if wrong := [entry for entry in stage_result.input_differences if not entry.is_equal_except_rounding]:
        return False, f"production gets other inputs: {wrong[0].description}. Compare the data preparation first."
    production_db, tested_db = worst_output_sqnr_db(accuracy), worst_output_sqnr_db(tested_accuracy)
    accuracy_between = next((entry for name, entry in stage_result.other_accuracies
                             if name == tested_name and worst_output_sqnr_db(entry) is not None), None)
    between = worst_output_sqnr_db(accuracy_between)
    if accuracy is None or accuracy_between is None or production_db is None or tested_db is None or between is None:
        return None
    variations_db = [output.variation_db for name in accuracy_between.outputs
                     if (output := accuracy.outputs.get(name)) is not None and output.variation_db is not None]
    text = (
        f"{_sqnr_db_text(production_db)} against FP32, "
        f"{tested_name} {_sqnr_db_text(tested_db)}; {_sqnr_db_text(between)} between them"
    )
    is_one_broken = (production_db == -math.inf) is not (tested_db == -math.inf)
    if between == math.inf or between + min(variations_db, default=0.0) >= MIN_AGREEMENT_DB or (
            not is_one_broken and production_db >= tested_db - MAX_PRODUCTION_GAP_DB
            and between >= min(production_db, tested_db) + MIN_COMMON_ERROR_GAP_DB):
        return True, f"production agrees with the tested config: {text}."
    return False, (f"production differs from the tested config: {text}. Look for another engine, config or ranges, "
                   "other preprocessing (--inputs compares the inputs of production), and the steps after the "
                   "network.")


def _sqnr_db_text(value_db: float) -> str:
    if value_db == -math.inf:
        return "NaN or Inf"
    return add_decibel_unit(
        decibels_text(value_db if math.isfinite(value_db) else None, exact=value_db == math.inf, mark=""))
