"""The verdicts on the pieces of a network, and the report of the operator that an engine computes wrongly.

A piece is a set of cells (`trt_tui.core.engines.engine_cells`). `trt_tui.core.measure.location_search` chooses the
pieces.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from trt_tui.core.precision import FP16_MAX, Precision
from trt_tui.formatting import counted_noun_text, milliseconds_text, name_list_text

FAULT_FACTOR = 4.0
"""The factor by which the error of a kernel must exceed the error that its types explain.

FP16 accumulators cost a factor of 2 in the error, which is 6 dB (`engine_agreement.ACCUMULATION_GAP_DB`).
"""

REBUILD_COUNT = 3
"""The number of builds of the whole network that must agree before the network is cut."""

MIN_SLICE_ELEMENTS = 64
"""The minimum number of elements of one sample or one channel for an error of its own."""

UNIT_ROUNDOFF = {Precision.FP32: 2.0**-24, Precision.TF32: 2.0**-11, Precision.FP16: 2.0**-11, Precision.BF16: 2.0**-8}
"""The relative error of one rounding to each float type. A kernel rounds its result at least once."""


APPROXIMATION_ERROR = 2.0**-11
"""The maximum relative error of the instruction tanh.approx.f32, according to the PTX ISA. NVIDIA's kernels may use it
for operators in FP32."""

APPROXIMATED_OPERATORS = frozenset(("Tanh", "Sigmoid", "LSTM", "GRU", "RNN", "Swish", "Mish"))
"""The operators for which a kernel in FP32 may use tanh.approx.f32."""


class PieceState(Enum):
    """The verdict on one piece of a network."""

    FAULTY = "shows the fault"
    SOUND = "does not show the fault"
    NOT_COMPARABLE = "not comparable"
    NOT_JUDGED = "not judged"
    NOT_BUILT = "not built"


@dataclass(frozen=True)
class OutputFault:
    """The error of one output of a piece against FP64, with the error that the types of its kernels explain.

    Errors are root mean squares in the units of the tensor.

    Attributes:
        actual: The error of the engine.
        predicted: The error of the simulation, or of ONNX Runtime for FP32; at least one rounding to the type.
        nonfinite_count: The number of NaN and Inf that FP64 does not have.
        is_overflow: True if the simulation has NaN or Inf too, so that the range of the type explains them. All these
            elements must be NaN or Inf in the simulation, or beyond half the range of FP16 in FP64.
        by_row, by_channel: The ratio of both errors for each index of the first and of the second axis. Empty if a
            slice has too few elements.
        fp32_error: The error of ONNX Runtime in FP32; None if it was not measured.
    """

    tensor: str
    shape: tuple[int, ...]
    actual: float
    predicted: float
    nonfinite_count: int = 0
    is_overflow: bool = False
    by_row: tuple[float, ...] = ()
    by_channel: tuple[float, ...] = ()
    fp32_error: float | None = None

    @property
    def ratio(self) -> float:
        """The largest ratio of both errors, over the tensor and over its rows; infinite for NaN or Inf."""
        if self.nonfinite_count:
            return math.inf
        return max((_ratio(self.actual, self.predicted), *self.by_row))

    @property
    def description(self) -> str:
        """The error as text, such as ``y: 31 times the error that its types explain``."""
        if self.nonfinite_count:
            cause = "the simulation has such values too: the range of the type" if self.is_overflow else "FP64 has none"
            return f"{self.tensor}: {self.nonfinite_count} NaN or Inf; {cause}"
        return f"{self.tensor}: {ratio_text(self.ratio)} times the error that its types explain"

    def to_record(self) -> dict[str, Any]:
        return {
            "tensor": self.tensor, "shape": list(self.shape), "error": _finite(self.actual),
            "predicted": _finite(self.predicted), "times": _finite(self.ratio), "not_finite": self.nonfinite_count,
            "overflow": self.is_overflow, "by_sample": [*map(_finite, self.by_row)],
            "by_channel": [*map(_finite, self.by_channel)], "onnxruntime": _finite(self.fp32_error)
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ratio(actual: float, predicted: float) -> float:
    if not math.isfinite(actual):
        return math.inf
    return actual / predicted if predicted > 0 else math.inf if actual > 0 else 0.0


def ratio_text(ratio: float) -> str:
    return "infinitely many" if math.isinf(ratio) else f"{ratio:.3g}"


def measure_output_fault(tensor: str, reference: np.ndarray, engine_output: np.ndarray, simulated: np.ndarray,
                         precision: Precision | None, fp32_output: np.ndarray | None = None) -> OutputFault:
    """Measures the error of one output against FP64, and the error that the types of its kernels explain.

    Elements at which FP64 is NaN or infinite do not count.

    Args:
        reference: The FP64 result of the piece.
        simulated: The result of the simulation, or that of ONNX Runtime if the piece is FP32.
        precision: The lowest float type in the piece, to which the result is rounded at least once; None for FP32.
        fp32_output: The result of ONNX Runtime in FP32.
    """
    expected = np.asarray(reference, np.float64)
    counted = np.isfinite(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        errors, explained, fp32_errors = (
            np.where(counted, np.asarray(array, np.float64).reshape(expected.shape) - expected, 0.0)
            for array in (engine_output, simulated, simulated if fp32_output is None else fp32_output))
    bad = ~np.isfinite(errors)
    is_overflow = bool(not np.isfinite(explained).all() and bad.any() and (
        ~np.isfinite(explained) | (np.abs(expected) > FP16_MAX / 2))[bad].all())
    explained = np.where(np.isfinite(explained), explained, 0.0)
    floor = UNIT_ROUNDOFF.get(precision or Precision.FP32, UNIT_ROUNDOFF[Precision.FP32]) * _rms(
        np.where(counted, expected, 0.0))
    predicted = max(_rms(explained), floor)
    finite_errors = np.where(bad, 0.0, errors)
    by_row, by_channel = (_slice_ratios(finite_errors, explained, axis, predicted) for axis in (0, 1))
    return OutputFault(tensor, expected.shape, _rms(finite_errors), predicted, int(bad.sum()), is_overflow, by_row,
                       by_channel, _rms(fp32_errors) if fp32_output is not None else None)


def _rms(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0


def _slice_ratios(errors: np.ndarray, explained: np.ndarray, axis: int, predicted: float) -> tuple[float, ...]:
    """Returns the ratio of both errors for each index of an axis. The error of the whole tensor counts as explained."""
    if errors.ndim <= axis or errors.shape[axis] < 2 or errors.size // errors.shape[axis] < MIN_SLICE_ELEMENTS:
        return ()
    rows, explained_rows = (np.sqrt(np.mean(np.square(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)), 1))
                            for array in (errors, explained))
    return tuple(_ratio(float(actual), max(float(part), predicted))
                 for actual, part in zip(rows, explained_rows, strict=True))


def find_unequal_rows(outputs: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> list[str]:
    """Finds the outputs whose rows differ in any bit although the rows of FP64 are equal."""
    return [name for name, array in outputs.items()
            if array.ndim and len(array) > 1 and not np.array_equal(array[1:], np.broadcast_to(array[:1], array.shape)[
                1:], equal_nan=array.dtype.kind == "f")
            and np.allclose(reference[name][1:], reference[name][:1], rtol=1e-12, atol=1e-12, equal_nan=True)]


@dataclass(frozen=True)
class PieceVerdict:
    """The verdict on a piece, with its reason.

    Attributes:
        note: The kernel that differs from that of the whole, the operator without a reference, or the build error.
        faults: The errors of its outputs, the largest ratio first.
        different_kernel: The first kernel of the piece that the whole engine does not have; "" if it has all. Such a
            piece can show the fault, but it cannot prove that there is none.
        suspects: The cells with which the search begins, by index.
        explanation: The reason for NaN or Inf that the simulation has too; "" if it does not explain them all.
    """

    state: PieceState
    note: str = ""
    faults: tuple[OutputFault, ...] = ()
    different_kernel: str = ""
    suspects: tuple[int, ...] = ()
    explanation: str = ""

    @property
    def description(self) -> str:
        state = self.state.value + (" with other kernels" if self.has_fault_with_other_kernels else "")
        return ": ".join(filter(None, (state, self.note or (self.faults[0].description if self.faults else ""))))

    @property
    def has_fault_with_other_kernels(self) -> bool:
        """True if the piece shows the fault, and its kernels are not those of the whole engine."""
        return self.state is PieceState.FAULTY and bool(self.different_kernel)

    def apply_kernel_difference(self, different_kernel: str) -> "PieceVerdict":
        """Returns the verdict on a piece with a kernel that the whole engine does not have; "" for no such kernel.

        The verdict stays if the piece shows the fault. If not, the piece is not comparable.
        """
        if not different_kernel:
            return self
        if self.state is PieceState.FAULTY:
            return replace(self, different_kernel=different_kernel)
        return PieceVerdict(PieceState.NOT_COMPARABLE, f"the whole engine has no {different_kernel}", (),
                            different_kernel)


def judge_outputs(faults: Collection[OutputFault]) -> PieceVerdict:
    """Returns the verdict on a piece from the errors of its outputs."""
    ordered = tuple(sorted(faults, key=lambda fault: -fault.ratio))
    is_faulty = bool(ordered) and ordered[0].ratio > FAULT_FACTOR
    return PieceVerdict(PieceState.FAULTY if is_faulty else PieceState.SOUND, "", ordered)


@dataclass(frozen=True)
class Piece:
    """A part of the network: some cells of the engine, by index.

    Attributes:
        rebuild: The number of a further build of the whole network, from 1; 0 for the engine itself and for a piece,
            which uses the timing cache.
        is_read: True if the values between the kernels of the whole engine are read, in place of a build.
        is_marked: True for a marked engine: a further build of the whole network with the results of all cells as
            outputs, which shows where the search begins.
        is_simulated: True if the simulation alone shows the fault, so that nothing is built.
    """

    cells: tuple[int, ...]
    rebuild: int = 0
    is_read: bool = False
    is_marked: bool = False
    is_simulated: bool = False


class LocationOutcome(Enum):
    """The outcome of a location."""

    FOUND = "found"
    SPREAD = "spread"
    VANISHES = "vanishes"
    UNFINISHED = "unfinished"
    NO_FAULT = "no fault"
    UNSTABLE = "unstable"
    NOT_JUDGED = "not judged"
    NOT_BUILT = "not built"


@dataclass(frozen=True)
class LocationResult:
    """The result of a location: the smallest piece that shows the fault, and everything that was tried.

    Attributes:
        piece: The smallest piece that shows the fault; the whole network if no smaller one shows it.
        verdicts: Each piece that was tried with its verdict, in their order.
        is_limit_reached: True if the limit of builds or of time ended the search. A smaller piece may then exist.
        largest_piece: The piece in which the largest ratio of an engine without a fault arises: one cell, or more if
            the limit ended the search, or other pieces were not comparable; None if no piece was judged.
    """

    outcome: LocationOutcome
    piece: Piece
    verdicts: tuple[tuple[Piece, PieceVerdict], ...] = ()
    is_limit_reached: bool = False
    largest_piece: Piece | None = None

    @property
    def piece_verdict(self) -> PieceVerdict | None:
        """The verdict on the smallest piece; None if nothing was tried.

        If builds of the whole network disagree, it is that of a faulty one.
        """
        verdict = self._find_verdict(self.piece)
        if self.outcome is not LocationOutcome.UNSTABLE:
            return verdict
        return next((other for piece, other in self.verdicts if piece.cells == self.piece.cells and not piece.is_marked
                     and other.state is PieceState.FAULTY), verdict)

    @property
    def largest_verdict(self) -> PieceVerdict | None:
        """The verdict on the piece in which the largest ratio arises; None if there is none."""
        return self._find_verdict(self.largest_piece) if self.largest_piece is not None else None

    def _find_verdict(self, wanted: Piece) -> PieceVerdict | None:
        return next((verdict for piece, verdict in reversed(self.verdicts)
                     if piece.cells == wanted.cells and not piece.is_marked), None)

    @property
    def explanation(self) -> str:
        """The reason for NaN or Inf that the simulation has too; "" if there are none or it does not explain them."""
        return self.verdicts[0][1].explanation if self.verdicts else ""

    def count_verdicts(self, state: PieceState) -> int:
        return sum(verdict.state is state for _, verdict in self.verdicts)

    def describe_outcome(self, cell_names: Sequence[str]) -> str:
        """Returns the outcome as a sentence."""
        names = _cell_list_text(self.piece, cell_names)
        verdict = self.piece_verdict
        error = verdict.faults[0].description if verdict is not None and verdict.faults else ""
        if verdict is not None and verdict.has_fault_with_other_kernels:
            error += f"; with other kernels: the whole engine has no {verdict.different_kernel}"
        match self.outcome:
            case LocationOutcome.FOUND:
                return f"found: {names}: {verdict.note or error if verdict is not None else ''}"
            case LocationOutcome.SPREAD:
                return f"spread over {counted_noun_text(len(self.piece.cells), 'fused layer')}: {names}: {error}"
            case LocationOutcome.VANISHES:
                skipped = self.count_verdicts(PieceState.NOT_COMPARABLE)
                other = f"; {counted_noun_text(skipped, 'piece')} got other kernels" if skipped else ""
                return (f"the fault disappears when the network is cut: only the whole network shows it ({error})"
                        f"{other}")
            case LocationOutcome.UNFINISHED:
                rest = (f"the fault is within {len(self.piece.cells)} of "
                        f"{counted_noun_text(len(cell_names), 'fused layer')}: {names}"
                        if len(self.piece.cells) < len(cell_names) else "no smaller piece was found to show the fault")
                return f"not finished: the limit of builds or of time is reached; {rest}: {error}"
            case LocationOutcome.NO_FAULT:
                return f"no fault: every output is within {FAULT_FACTOR:g} times the error that its types explain" + (
                    f" (largest: {error})" if error else "")
            case LocationOutcome.UNSTABLE:
                states = [verdict.state.value for piece, verdict in self.verdicts if piece.cells == self.piece.cells]
                return (f"unstable: the engine {states[0]}; of its rebuilds {states[1:].count(states[0])} of "
                        f"{len(states) - 1} agree")
        notes = [verdict.note for _, verdict in self.verdicts if verdict.note]
        return f"{self.outcome.value}: {notes[0] if notes else 'no reason is known'}"

    def describe_largest_ratio(self, cell_names: Sequence[str]) -> str:
        """Returns the fused layer of the largest ratio of an engine without a fault as a sentence; "" if unknown."""
        piece, verdict = self.largest_piece, self.largest_verdict
        if piece is None or verdict is None or not verdict.faults:
            return ""
        fault = verdict.faults[0]
        is_one_cell = len(piece.cells) == 1
        size = "" if is_one_cell else f" {counted_noun_text(len(piece.cells), 'fused layer')}"
        bound = "exceeds the bound" if fault.ratio > FAULT_FACTOR else "within the bound"
        reason = ("the limit of builds or of time is reached" if self.is_limit_reached else
                  "smaller parts are not comparable")
        if not is_one_cell and len(piece.cells) == len(cell_names):
            return f"largest ratio of a part: not known; {reason}"
        return (f"largest ratio of a part:{size} {_cell_list_text(piece, cell_names)}: {fault.description}, "
                f"{bound}{'' if is_one_cell else f'; {reason}'}")


def _cell_list_text(piece: Piece, cell_names: Sequence[str]) -> str:
    return name_list_text([cell_names[index] for index in piece.cells if index < len(cell_names)], 3)


@dataclass(frozen=True)
class Workaround:
    """A change of the build that may avoid a fault, with the result of the changed build.

    Attributes:
        description: The change, such as "a fusion barrier at x".
        verdict: The verdict on the whole engine; None if it was not built.
        latency_ms: The median latency of the whole engine.
        failure_reason: The reason why there is no engine; "" if there is one.
    """

    description: str
    verdict: PieceVerdict | None = None
    latency_ms: float | None = None
    failure_reason: str = ""

    @property
    def is_sound(self) -> bool:
        return self.verdict is not None and self.verdict.state is PieceState.SOUND

    @property
    def result_text(self) -> str:
        """The result as text: the largest error of the engine, and its latency."""
        if self.verdict is None:
            return f"not possible: {self.failure_reason}"
        word = "avoids the fault" if self.is_sound else "does not help"
        error = f" ({self.verdict.faults[0].description})" if self.verdict.faults else ""
        return f"{word}{error}" + (f", {milliseconds_text(self.latency_ms)}" if self.latency_ms is not None else "")

    def to_record(self) -> dict[str, Any]:
        times = self.verdict.faults[0].ratio if self.verdict is not None and self.verdict.faults else None
        return {"change": self.description, "helps": self.is_sound, "times": _finite(times),
                "latency_ms": self.latency_ms, "failed": self.failure_reason}


@dataclass(frozen=True)
class FaultReport:
    """The report of a location: the operator, the piece that shows it, and the workarounds that were tried.

    Attributes:
        engine_name: The engine, such as its file name.
        builder_text: The builder with its version.
        cell_names: The engine layers of the smallest piece, in the order of execution.
        layers: The network's layers in the piece, each with its operator.
        kernel_names: The kernels of the piece, as far as the release reports them.
        types_text: The types that its kernels read and write.
        inputs, outputs: The tensors at its boundary.
        fp32_backend_text: The backend that computes pieces in FP32 for comparison.
        feed_notes: What the choice of the judged batch leaves out.
        all_cell_names: The engine layers of the whole engine.
        outcome_text: The outcome as a sentence.
        latency_ms: The median latency of the engine.
        builds, seconds: The number of builds, and the duration of the location.
        different_kernel: The first kernel that a rebuild has and the engine does not; "" if there is none.
        suspect_kernels: The kernels that all faulty builds have and no sound build has, each with its layers.
        written_paths: The files of the bug report.
        is_timing_cache_refused: True if the release does not use the timing cache of the rebuilds for pieces.
        approximated_operators: The operators in FP32 for which a kernel may use a fast approximation.
    """

    engine_name: str
    builder_text: str
    device: str
    outcome_text: str
    result: LocationResult
    cell_names: tuple[str, ...] = ()
    layers: tuple[tuple[str, str], ...] = ()
    kernel_names: tuple[str, ...] = ()
    types_text: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    fp32_backend_text: str = ""
    feed_notes: tuple[str, ...] = ()
    all_cell_names: tuple[str, ...] = ()
    latency_ms: float | None = None
    builds: int = 0
    seconds: float = 0.0
    different_kernel: str = ""
    suspect_kernels: tuple[str, ...] = ()
    workarounds: tuple[Workaround, ...] = ()
    written_paths: tuple[str, ...] = ()
    is_timing_cache_refused: bool = False
    approximated_operators: tuple[str, ...] = ()

    @property
    def has_fault(self) -> bool:
        """True unless the engine is sound on all batches, with all its outputs."""
        return self.result.outcome is not LocationOutcome.NO_FAULT or bool(self.feed_notes)

    @property
    def lines(self) -> list[str]:
        """The report as lines of text."""
        result = self.result
        lines = [
            f"{self.engine_name} ({self.builder_text}{f' on {self.device}' if self.device else ''})", self.outcome_text,
            f"bound: {FAULT_FACTOR:g} times the error that the types explain, against FP64 on the same inputs",
            f"{counted_noun_text(self.builds, 'build')} in {self.seconds:.0f} s; "
            f"{counted_noun_text(len(self.all_cell_names), 'fused layer')} in the engine; "
            f"{result.count_verdicts(PieceState.NOT_COMPARABLE)} of "
            f"{counted_noun_text(len(result.verdicts), 'piece')} not comparable"
        ]
        lines += filter(None, (result.describe_largest_ratio(self.all_cell_names),
                               self.fp32_backend_text and f"FP32 backend: {self.fp32_backend_text}", *self._notes))
        if self.different_kernel:
            lines.append(f"first kernel that differs between builds: {self.different_kernel}")
        if self.suspect_kernels:
            lines.append(f"kernels that all faulty builds have and no sound build has: "
                         f"{counted_noun_text(len(self.suspect_kernels), 'kernel')}")
            lines += [f"  {text}" for text in self.suspect_kernels[:_MAX_SUSPECTS]]
        if result.outcome not in (LocationOutcome.NO_FAULT, LocationOutcome.NOT_JUDGED, LocationOutcome.NOT_BUILT):
            lines += [
                f"smallest piece: {counted_noun_text(len(result.piece.cells), 'fused layer')}, "
                f"{counted_noun_text(len(self.layers), 'node')}",
                "nodes: " + name_list_text([f"{name} ({operator})" for name, operator in self.layers], 8),
                *([f"kernels: {name_list_text(self.kernel_names, 4)}"] if self.kernel_names else []),
                *([f"types: {self.types_text}"] if self.types_text else []),
                f"reads {name_list_text(self.inputs, 4)}; yields {name_list_text(self.outputs, 4)}"
            ]
            for fault in result.piece_verdict.faults if result.piece_verdict is not None else ():
                lines += _fault_lines(fault)
        if self.workarounds:
            lines.append("workarounds, the cheapest first:")
            lines += [f"  {workaround.description}: {workaround.result_text}" for workaround in self.workarounds]
        return lines + ([f"Wrote {self.written_paths[0]}"] if self.written_paths else [])

    @property
    def _notes(self) -> list[str]:
        """The circumstances of the search as lines of text."""
        marked = [verdict for piece, verdict in self.result.verdicts if piece.is_marked]
        others = sum(verdict.has_fault_with_other_kernels for _, verdict in self.result.verdicts)
        return [
            *([] if self.all_cell_names else ["no layer of the engine belongs to this network: it is of another "
                                              "network, or was built without the names of its layers"]),
            *([f"tolerance: {name_list_text(self.approximated_operators, 4)} in FP32 may err by "
               f"{APPROXIMATION_ERROR:.2g} of the result (tanh.approx.f32)"] if self.approximated_operators else []),
            *(["TensorRT does not use the timing cache: kernels are measured again, and pieces can get other kernels"]
              if self.is_timing_cache_refused else []),
            *(verdict.note for verdict in marked if verdict.state in (PieceState.FAULTY, PieceState.SOUND)),
            *([f"{counted_noun_text(others, 'piece')} showed the fault with other kernels than the whole engine"]
              if others else [])
        ]

    def to_record(self) -> dict[str, Any]:
        verdict = self.result.piece_verdict
        return {
            "engine": self.engine_name, "builder": self.builder_text, "gpu": self.device,
            "outcome": self.result.outcome.value, "says": self.outcome_text, "factor": FAULT_FACTOR,
            "witness": self.fp32_backend_text, "notes": list(self.feed_notes),
            "fused_layers": len(self.all_cell_names), "piece": list(self.cell_names),
            "nodes": [{"name": name, "operator": operator} for name, operator in self.layers],
            "kernels": list(self.kernel_names), "types": self.types_text, "inputs": list(self.inputs),
            "outputs": list(self.outputs), "latency_ms": self.latency_ms, "builds": self.builds,
            "suspect_kernels": list(self.suspect_kernels), "largest": self._largest_record(),
            "seconds": round(self.seconds, 3), "limit_reached": self.result.is_limit_reached,
            "errors": [fault.to_record() for fault in verdict.faults] if verdict is not None else [],
            "timing_cache_refused": self.is_timing_cache_refused,
            "approximated": list(self.approximated_operators),
            "tried": [{"cells": list(piece.cells), "rebuild": piece.rebuild, "read": piece.is_read,
                       "marked": piece.is_marked, "simulated": piece.is_simulated,
                       "result": item.state.value, "note": item.note, "other_kernel": item.different_kernel,
                       "times": _finite(item.faults[0].ratio) if item.faults else None}
                      for piece, item in self.result.verdicts],
            "ways_round": [workaround.to_record() for workaround in self.workarounds]
        }


    def _largest_record(self) -> dict[str, Any] | None:
        """The piece of the largest ratio of an engine without a fault; None if none was searched."""
        verdict, piece = self.result.largest_verdict, self.result.largest_piece
        if verdict is None or piece is None or not verdict.faults:
            return None
        return {"piece": [self.all_cell_names[index] for index in piece.cells], "errors": [
            fault.to_record() for fault in verdict.faults], "exceeds": verdict.state is PieceState.FAULTY}


_MAX_LISTED_SLICES, _MAX_SUSPECTS = 3, 12


def _fault_lines(fault: OutputFault) -> list[str]:
    """Returns the error of an output as text, with the samples and channels that are worst."""
    lines = [f"{fault.description}; shape {'x'.join(map(str, fault.shape))}, error {fault.actual:.3g} for "
             f"{fault.predicted:.3g} explained" + (f", ONNX Runtime {fault.fp32_error:.3g}"
                                                    if fault.fp32_error is not None else "")]
    for noun, ratios in (("sample", fault.by_row), ("channel", fault.by_channel)):
        worst = sorted(range(len(ratios)), key=lambda index: -ratios[index])[:_MAX_LISTED_SLICES]
        if worst and ratios[worst[0]] > FAULT_FACTOR:
            lines.append(f"  worst {noun}s of {len(ratios)}: " + ", ".join(
                f"{index} ({ratio_text(ratios[index])} times)" for index in worst))
    return lines
