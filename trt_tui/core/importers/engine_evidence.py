"""The reader of the `result.json` of a bundle: the errors of an engine that was built and executed elsewhere.

The file is from another machine and counts as hostile. Its size, its nesting, and the type and range of each value are
checked; unknown keys are ignored.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import EVIDENCE_FORMAT
from trt_tui.core.engines.inspector import EngineReport, build_engine_report
from trt_tui.core.measure.engine_agreement import ACCUMULATION_GAP_DB, is_worse_than_simulated
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.errors import InputError
from trt_tui.files.read_budget import limit_file_reading
from trt_tui.files.reading import is_nested_deeper, read_text
from trt_tui.formatting import add_decibel_unit, counted_noun_text, decibels_text, name_list_text, number_text

MAX_EVIDENCE_BYTES, MAX_OUTPUTS, MAX_LAYERS, MAX_TEXT_LENGTH = 16 << 20, 1000, 100_000, 4096
_MAX_DEPTH = 8

MAX_SQNR_DB = 10_000.0
"""The largest size of an SQNR in dB. The ratio of the largest and the smallest float64 is 6,300 dB."""

MAX_COUNT = 1 << 53
"""The largest number of elements; every reader of JSON represents it exactly."""

_BUILDER_TITLES = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}


@dataclass(frozen=True)
class EngineEvidence:
    """The result of an engine that was built elsewhere.

    Attributes:
        file_name: The name of the file.
        builder_text: The builder and its release.
        gpu: The GPU, "" if it is unknown.
        compute_capability: Its compute capability as text, "" if it is unknown.
        outputs: The errors of the engine against FP32, by output, on the samples of the bundle.
        simulated: The errors of the simulation on the same samples, when the bundle was written.
        engine_report: The layers of the engine; None if they are unknown.
        missing_outputs: The outputs of the network that the file lacks.
        integer_outputs: The outputs that are no floats. Near ties decide them, so no kernel is blamed.
    """

    file_name: str
    builder_text: str
    gpu: str
    compute_capability: str
    outputs: Mapping[str, ErrorMetrics]
    simulated: Mapping[str, ErrorMetrics] = field(default_factory=dict)
    engine_report: EngineReport | None = None
    missing_outputs: tuple[str, ...] = ()
    integer_outputs: frozenset[str] = frozenset()

    @property
    def lines(self) -> list[str]:
        """The evidence as lines: the engine, then each output beside its simulation on the same samples."""
        capability = f"SM{self.compute_capability.replace('.', '')}" if self.compute_capability else ""
        layers = counted_noun_text(len(self.engine_report.layers), "engine layer") if self.engine_report else ""
        lines = [f"{self.file_name}: " + ", ".join(filter(None, (self.builder_text, self.gpu, capability, layers)))]
        for name, errors in self.outputs.items():
            text = f"  {name}: {add_decibel_unit(errors.sqnr_text(''))} as built there"
            if (simulated := self.simulated.get(name)) is not None:
                text += f", {add_decibel_unit(simulated.sqnr_text())} simulated on the same samples"
                gap_text = self._gap_text(errors, simulated)
                text += ": worse, which near ties of integers may explain" if (
                    gap_text and name in self.integer_outputs) else gap_text
            else:
                text += ", its simulation is not in the file"
            lines.append(text)
        if self.missing_outputs:
            lines.append(f"  not in the file: {name_list_text(self.missing_outputs)}; a bundle leaves out outputs that "
                         "it cannot compare, such as masks")
        return lines

    @staticmethod
    def _gap_text(errors: ErrorMetrics, simulated: ErrorMetrics) -> str:
        """Returns the fault of an output as a text; "" if rounding may explain its errors.

        An output whose reference is zero throughout has no SQNR. Its errors are compared by their mean.
        """
        if errors.nonfinite_count or simulated.nonfinite_count:
            return ": a kernel error, not rounding" if not simulated.nonfinite_count else ""
        if errors.exact:
            return ""
        if errors.sqnr_db is None:
            return _gap_without_signal_text(errors, simulated)
        if not is_worse_than_simulated(errors, simulated, ACCUMULATION_GAP_DB):
            return ""
        gap_text = ("far from the exact simulation" if simulated.sqnr_db is None else
                    f"{add_decibel_unit(decibels_text(simulated.sqnr_db - errors.sqnr_db, mark=''))} worse")
        return f": {gap_text}, which rounding does not explain"

    def to_record(self) -> dict[str, Any]:
        return {
            "file": self.file_name, "builder": self.builder_text, "gpu": self.gpu,
            "compute_capability": self.compute_capability,
            "outputs": {name: {"engine": _errors_record(errors), **({"simulated": _errors_record(
                self.simulated[name])} if name in self.simulated else {})} for name, errors in self.outputs.items()},
            "missing_outputs": list(self.missing_outputs),
            "engine_layers": len(self.engine_report.layers) if self.engine_report is not None else None
        }


def _gap_without_signal_text(errors: ErrorMetrics, simulated: ErrorMetrics) -> str:
    """Returns the fault of an output without an SQNR as a text; "" if rounding may explain its errors."""
    if not simulated.exact and simulated.sqnr_db is None:
        pairs = [(value, expected) for value, expected in ((errors.mean_abs, simulated.mean_abs),
                                                           (errors.max_abs, simulated.max_abs))
                 if value is not None and expected is not None]
        if not pairs or pairs[0][0] <= pairs[0][1] * 10**(ACCUMULATION_GAP_DB / 20):
            return ""
    largest = errors.max_abs if errors.max_abs is not None else errors.mean_abs
    return f": an error of {number_text(largest)} without an SQNR, which rounding does not explain"


def _errors_record(errors: ErrorMetrics) -> dict[str, Any]:
    return {key: value for key in ("sqnr_db", "max_abs", "mean_abs", "nan", "inf", "exact")
            if (value := getattr(errors, key)) is not None}


def read_engine_evidence(path: Path | str, network: NetworkOutline) -> EngineEvidence:
    """Reads the `result.json` of a bundle of a network.

    Raises:
        InputError: The file is not such a file, is damaged, or is about another network.
    """
    path = Path(path)
    with limit_file_reading(path):
        text = read_text(path, MAX_EVIDENCE_BYTES)
        try:
            record = json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            raise _damaged_error(path, f"it is not JSON: {str(error)[:200]}") from None
        if not isinstance(record, dict) or record.get("format") != EVIDENCE_FORMAT or record.get("version") != 1:
            raise _damaged_error(path, "it lacks the format and version that verify.sh of a bundle writes")
        if is_nested_deeper(record, _MAX_DEPTH):
            raise _damaged_error(path, "it is nested too deeply")
        if record.get("network") != network.structure_sha256:
            raise InputError(f"{path.name} is about another network", "the structure of the network there differs",
                             f"Export the bundle of {network.name} again, and run its verify.sh.")
        builder = _BUILDER_TITLES.get(_read_text(path, record, "builder"))
        if builder is None:
            raise _damaged_error(path, "its builder is unknown")
        outputs = _read_outputs(path, record, "outputs", network)
        return EngineEvidence(path.name, f"{builder} {_read_text(path, record, 'release')}",
                              _read_text(path, record, "gpu"), _read_text(path, record, "compute_capability"),
                              outputs, _read_outputs(path, record, "simulated", network),
                              _read_layers(path, record, network),
                              tuple(info.name for info in network.outputs if info.name not in outputs),
                              frozenset(info.name for info in network.outputs if info.dtype.kind in "biu"))


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not a number")


def _damaged_error(path: Path, cause: str) -> InputError:
    return InputError(f"{path.name} is not the result of a bundle's verify.sh", cause,
                      "Run verify.sh of a bundle of this network, and name its result.json.")


def _read_text(path: Path, record: Mapping[str, Any], key: str) -> str:
    value = record.get(key, "")
    if not isinstance(value, str) or len(value) > MAX_TEXT_LENGTH:
        raise _damaged_error(path, f"{key} is not a short text")
    return value


def _read_outputs(path: Path, record: Mapping[str, Any], key: str, network: NetworkOutline) -> dict[str, ErrorMetrics]:
    entries = record.get(key, {})
    if not isinstance(entries, dict) or len(entries) > MAX_OUTPUTS or key == "outputs" and not entries:
        raise _damaged_error(path, f"{key} is not a table of outputs")
    known_names = [info.name for info in network.outputs]
    if unknown_names := [name[:MAX_TEXT_LENGTH] for name in entries if name not in known_names]:
        raise InputError(f"{path.name} names outputs that {network.name} does not have",
                         f"{key} has {name_list_text(unknown_names)}; the network has {name_list_text(known_names)}",
                         f"Export the bundle of {network.name} again, and run its verify.sh.")
    return {name: _read_errors(path, f"{key}, {name[:MAX_TEXT_LENGTH]}", entry) for name, entry in entries.items()}


def _read_errors(path: Path, title: str, entry: object) -> ErrorMetrics:
    if not isinstance(entry, dict):
        raise _damaged_error(path, f"{title} has no errors")
    values = {key: _read_number(path, title, key, entry.get(key)) for key in ("sqnr_db", "max_abs", "mean_abs")}
    counts = {key: entry.get(key, 0) for key in ("nan", "inf")}
    for key, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_COUNT:
            raise _damaged_error(path, f"{title}: {key} is not a count")
    is_exact = entry.get("exact", False)
    sizes = [value for key in ("max_abs", "mean_abs") if (value := values[key]) is not None]
    if not isinstance(is_exact, bool) or is_exact and (values["sqnr_db"] is not None or any(counts.values())
                                                       or any(size * size > 0 for size in sizes)):
        raise _damaged_error(path, f"{title}: an exact result has no error")
    if not is_exact and not any(counts.values()):
        if values["sqnr_db"] is None and not sizes:
            raise _damaged_error(path, f"{title} has no errors")
        if sizes and not any(sizes):
            raise _damaged_error(path, f"{title}: a result without an error is exact")
    return ErrorMetrics(sqnr_db=values["sqnr_db"], max_abs=values["max_abs"], mean_abs=values["mean_abs"],
                        nan=counts["nan"], inf=counts["inf"], exact=is_exact)


def _read_number(path: Path, title: str, key: str, value: object) -> float | None:
    """Returns an error value as a float; None for None. An integer may be too large for a float."""
    if value is None:
        return None
    error = _damaged_error(path, f"{title}: {key} is not a valid number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise error
    try:
        number = float(value)
    except OverflowError:
        raise error from None
    low, high = (-MAX_SQNR_DB, MAX_SQNR_DB) if key == "sqnr_db" else (0.0, sys.float_info.max)
    if not low <= number <= high:
        raise error
    return number


def _read_layers(path: Path, record: Mapping[str, Any], network: NetworkOutline) -> EngineReport | None:
    layers = record.get("layers", [])
    if not isinstance(layers, list) or len(layers) > MAX_LAYERS:
        raise _damaged_error(path, "layers is not a list of engine layers")
    entries = [layer for layer in layers if isinstance(layer, dict)]
    try:
        return build_engine_report(entries, network) if entries else None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise _damaged_error(path, f"its layers cannot be read: {type(error).__name__}") from None
