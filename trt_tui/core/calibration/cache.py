"""A reader and a writer of TensorRT calibration caches: text files with the range of each tensor."""

import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trt_tui.core.quantized_types import INT8, MAX_AMAX
from trt_tui.errors import InputError
from trt_tui.files.reading import limit_file_reading, read_text
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import counted_noun_text, name_list_text

_CACHE_HEADER = re.compile(r"TRT-(\d+)-(\w+)")
_CACHE_LINE = re.compile(r"(?P<tensor>.+): *(?P<scale>[0-9a-fA-F]{1,8})")


_CALIBRATOR_BY_METHOD = {
    "minmax": "MinMaxCalibration",
    "entropy": "EntropyCalibration2",
    "percentile": "LegacyCalibration",
}
"""The TensorRT calibrator that implements each range method."""


@dataclass(frozen=True)
class CalibrationCacheHeader:
    """The first line of a calibration cache.

    Attributes:
        release: The TensorRT release, such as "8.6.1".
        algorithm: The TensorRT calibrator, such as "EntropyCalibration2".
    """

    release: str
    algorithm: str

    @property
    def range_method(self) -> str:
        """The range method of trt-tui that corresponds to the calibrator in the header; "" if there is none."""
        name = "EntropyCalibration2" if self.algorithm == "EntropyCalibration" else self.algorithm
        return next((method for method, algorithm in _CALIBRATOR_BY_METHOD.items() if algorithm == name), "")


def calibration_algorithm(range_method: str) -> str:
    """Returns the name of TensorRT's calibrator for a range method; the default calibrator if the method has none."""
    return _CALIBRATOR_BY_METHOD.get(range_method, "EntropyCalibration2")


def read_calibration_cache_header(path: str | Path) -> CalibrationCacheHeader:
    """Reads the first line of a calibration cache. Raises the errors of `read_calibration_cache`."""
    with limit_file_reading(path):
        line = next(iter(read_text(Path(path)).splitlines()), "").strip()
    match = _CACHE_HEADER.fullmatch(line)
    if match is None:
        raise InputError(
            f"{path}, line 1: not a TensorRT calibration cache",
            "The first line must look like TRT-8601-EntropyCalibration2.",
            "Give a cache that TensorRT wrote.",
        )
    release_number = int(match[1])  # 8601 is 8.6.1, 101601 is 10.16.1
    parts = (
        (release_number // 10000, release_number // 100 % 100, release_number % 100)
        if release_number >= 10000
        else (release_number // 1000, release_number // 100 % 10, release_number % 100)
    )
    return CalibrationCacheHeader(".".join(map(str, parts)), match[2])


def read_calibration_cache(path: str | Path) -> dict[str, float]:
    """Reads a TensorRT calibration cache; returns the amax by tensor name.

    The first line is ``TRT-<version>-<algorithm>``. Each other line is ``<tensor>: <scale>``. The scale is amax / 127,
    written as the big-endian hexadecimal bits of a float32.

    Raises:
        InputError: The file cannot be read or has another form. The error names the line.
    """
    with limit_file_reading(path):
        read_calibration_cache_header(path)
        ranges: dict[str, float] = {}
        for number, line in enumerate(read_text(Path(path)).splitlines()[1:], start=2):
            if not line.strip():
                continue
            match = _CACHE_LINE.fullmatch(line.strip())
            scale = struct.unpack(">f", bytes.fromhex(match["scale"].zfill(8)))[0] if match else math.nan
            if match is None or not 0 <= scale * INT8.max_value <= MAX_AMAX:
                raise InputError(
                    f"{path}, line {number}: not the scale of a tensor",
                    f"The line is {line.strip()[:80]!r}; expected: tensor name, colon, 8 hexadecimal digits.",
                    "Give a cache that TensorRT wrote.",
                )
            ranges[match["tensor"]] = scale * INT8.max_value
    return ranges


def write_calibration_cache(
    path: str | Path, ranges: Mapping[str, float], algorithm: str = "EntropyCalibration2"
) -> None:
    """Writes the text of `calibration_cache_text` to a file. An existing file is replaced.

    Raises:
        InputError: The file cannot be written, or `calibration_cache_text` raises the error.
    """
    write_file_atomically(path, calibration_cache_text(ranges, algorithm))


def calibration_cache_text(ranges: Mapping[str, float], algorithm: str = "EntropyCalibration2") -> str:
    """Returns the text of a TensorRT calibration cache in the form that `read_calibration_cache` describes.

    An amax of 0 is written as scale 1.

    Args:
        ranges: The amax by tensor name.
        algorithm: The name of TensorRT's calibrator, from `calibration_algorithm`. TensorRT accepts a cache only
            together with the calibrator that it names.

    Raises:
        InputError: A range or a tensor name cannot be represented in such a file.
    """
    lines = [f"TRT-8601-{algorithm}"]  # TensorRT 8.6.1
    for tensor, amax in ranges.items():
        if not tensor or "\n" in tensor or "\r" in tensor:
            raise InputError(
                f"tensor name {tensor!r} cannot be written to a calibration cache",
                "an entry of the cache ends at a line break" if tensor else "it is empty",
                "Rename the tensor in the network, or export --format onnx, which needs no cache.",
            )
        scale = amax / INT8.max_value if amax else 1.0
        if not (math.isfinite(scale) and 0 < scale < 2.0**127):
            raise InputError(f"{amax} is not a valid range of '{tensor}'", "A range is a finite number from 0 up.")
        lines.append(f"{tensor}: {struct.pack('>f', scale).hex()}")
    return "\n".join(lines) + "\n"


def select_network_ranges(
    cached_ranges: Mapping[str, float], network_tensors: Iterable[str]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Selects the ranges of a calibration cache whose tensors are in the network.

    Args:
        cached_ranges: The amax by tensor name, from `read_calibration_cache`.
        network_tensors: The tensors of the network that need a range.

    Returns:
        The ranges of tensors in the network, and warnings. These list ranges of unknown tensors, and tensors without a
            range.
    """
    names = dict.fromkeys(network_tensors)
    fitting = {tensor: amax for tensor, amax in cached_ranges.items() if tensor in names}
    unknown = [tensor for tensor in cached_ranges if tensor not in names]
    missing = [tensor for tensor in names if tensor not in cached_ranges]
    warnings = []
    if unknown:
        warnings.append(
            f"{len(unknown)} of {counted_noun_text(len(cached_ranges), 'range')} in the cache match no tensor here: "
            f"{name_list_text(unknown, 3)}"
        )
    if missing:
        warnings.append(
            f"No range in the cache for {len(missing)} of {counted_noun_text(len(names), 'tensor')}: "
            f"{name_list_text(missing, 3)}"
        )
    return fitting, tuple(warnings)
