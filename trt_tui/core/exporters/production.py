"""Files that carry a config into a production build, by format: what `trt-tui export` and the app write."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trt_tui.core.calibration.cache import algorithm_of, write_cache
from trt_tui.core.data.places import refuse_over
from trt_tui.core.data.shapes import ShapeRange, further_profiles
from trt_tui.core.exporters import polygraphy, trtexec
from trt_tui.core.exporters.left_out import left_out, left_out_weak
from trt_tui.core.exporters.modelopt import refuse_modelopt, write_modelopt
from trt_tui.core.exporters.onnx import export_typed
from trt_tui.core.lowering.lowered import told_as
from trt_tui.core.lowering.releases import WEAK, asked_codes
from trt_tui.core.lowering.scales import activation_ranges
from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.lowering.weak import Weak, lower_weak
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.rewrite import Rewrite
from trt_tui.core.moves.smooth import Smooth
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.production import Production
from trt_tui.errors import InputError
from trt_tui.files.writing import file_transaction

_Ranges = Mapping[str, float]
_Shapes = Mapping[str, ShapeRange] | None
_Production = Production | None

EXPORT_FORMATS = ("onnx", "trtexec", "polygraphy", "modelopt", "calibration-cache")


def companions(kind: str, path: Path) -> dict[str, Path]:
    """The files beside ``path`` that a format consists of too, by role ("typed", "base", "cache").

    They are named after the whole name of ``path``, so that no two exports share one.
    """
    roles = {"trtexec": ("typed", "base", "cache"), "polygraphy": ("base", "cache"),
             "modelopt": ("base", "cache")}.get(kind, ())
    endings = {"typed": ".typed.onnx", "base": ".base.onnx", "cache": ".cache"}
    return {role: path.with_name(path.name + endings[role]) for role in roles}


def files_beside(kind: str, path: Path) -> trtexec.Files:
    """The names that a format's commands use for the files beside ``path``."""
    names = {role: one.name for role, one in companions(kind, path).items()}
    return trtexec.Files(engine=f"{path.name}.engine", **names)


def write(kind: str, path: Path, network: Network, config: PrecisionConfig, ranges: Mapping[str, float], *,
          shapes: Mapping[str, ShapeRange] | None = None,
          production: Production | None = None, method: str = "") -> list[Path]:
    """Writes a config in a format of `EXPORT_FORMATS`; returns every file that was written, ``path`` first.

    If a file cannot be written, none is, and files that were there stay as they were.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        shapes: The optimization profile by input name.
        production: How the builder is to work, where a format tells it.
        method: How the ranges were measured, as a calibration cache states it; "" where nobody knows.

    Raises:
        InputError: the config cannot be told in this format, a range is missing, or a file cannot be written.
    """
    writers: dict[str, Callable[[Path, Network, PrecisionConfig, _Ranges, _Shapes, _Production, str],
                               list[Path]]] = {
        "onnx": _onnx, "trtexec": _trtexec, "polygraphy": _polygraphy, "modelopt": _modelopt,
        "calibration-cache": _cache}
    if kind not in writers:
        raise InputError(f"unknown format {kind}", f"there are {', '.join(writers)}", "")
    refuse_over([path, *companions(kind, path).values()], [network.path, *network.external_files])
    with file_transaction():
        return writers[kind](path, network, config, ranges, shapes, production, method)


def trtexec_lines(network: Network, config: PrecisionConfig, ranges: Mapping[str, float], files: trtexec.Files,
                  shapes: Mapping[str, ShapeRange] | None = None,
                  production: Production | None = None) -> tuple[trtexec.CommandLine, ...]:
    """The command lines that build a config with trtexec."""
    config = told_as(network, config)
    others = asked_codes(network, config).keys() - WEAK
    weak = lower_weak(network, config, ranges) if not others else None
    no_weak = f"no weakly typed TensorRT has {' or '.join(sorted(one.label for one in others))}" if others else ""
    return trtexec.command_lines(network, config, weak, files, shapes=shapes, production=production, no_weak=no_weak)


def _onnx(path: Path, network: Network, config: PrecisionConfig, ranges: _Ranges,
          shapes: _Shapes, production: _Production, method: str) -> list[Path]:
    written = export_typed(lower_strong(network, config, ranges).model, network, path)
    return [written.path, *written.data]


def _trtexec(path: Path, network: Network, config: PrecisionConfig, ranges: _Ranges,
             shapes: _Shapes, production: _Production, method: str) -> list[Path]:
    beside = companions("trtexec", path)
    lines = trtexec_lines(network, config, ranges, files_beside("trtexec", path), shapes, production)
    written = _onnx(beside["typed"], network, config, ranges, shapes, production, method)
    lacking: Mapping[str, Any] = {}
    if asked_codes(network, told_as(network, config)).keys() <= WEAK:
        weak = lower_weak(network, config, ranges)
        written += _base(beside, network, weak, trtexec.CALIBRATOR)
        lacking = left_out_weak(network, config, beside["base"].name, weak)
    trtexec.write_script(path, lines, f"Builds {network.name} in the precisions of its config.", lacking)
    return [path, *written]


def _polygraphy(path: Path, network: Network, config: PrecisionConfig, ranges: _Ranges,
                shapes: _Shapes, production: _Production, method: str) -> list[Path]:
    beside = companions("polygraphy", path)
    weak = lower_weak(network, config, ranges)
    files = files_beside("polygraphy", path)
    algorithm = algorithm_of(method) if method in polygraphy.CALIBRATORS else algorithm_of("")
    further = further_profiles(production.profiles if production else (), network.inputs, shapes or {})
    command = polygraphy.polygraphy_command(weak, path.name, files, shapes=shapes, further=further,
                                            production=production, method=method)
    polygraphy.write_polygraphy_script(path, weak, f"Precisions of {network.name}", command,
                                       left_out_weak(network, config, beside["base"].name, weak))
    return [path, *_base(beside, network, weak, algorithm)]


def _base(beside: Mapping[str, Path], network: Network, weak: Weak, algorithm: str) -> list[Path]:
    """The FP32 network under the config's node names, and the cache where anything has a range.

    Args:
        algorithm: The calibrator that is to read the cache; it takes none that names another.
    """
    exported = export_typed(weak.model, network, beside["base"])
    if not weak.ranges:
        return [exported.path, *exported.data]
    write_cache(beside["cache"], weak.cache_ranges(), algorithm)
    return [exported.path, *exported.data, beside["cache"]]


def _modelopt(path: Path, network: Network, config: PrecisionConfig, ranges: _Ranges,
              shapes: _Shapes, production: _Production, method: str) -> list[Path]:
    beside = companions("modelopt", path)
    whole, config = config, told_as(network, config)
    refuse_modelopt(network, config)
    base = lower_strong(network, _changed_fp32(config), {}).model
    exported = export_typed(base, network, beside["base"])
    used = activation_ranges(network, ranges, config)
    if used:
        write_cache(beside["cache"], used, algorithm_of(method))
    write_modelopt(path, network, config, beside["base"].name, method, beside["cache"].name if used else "",
                   left_out(network, whole, beside["base"].name, used))
    return [path, exported.path, *exported.data, *([beside["cache"]] if used else [])]


def _changed_fp32(config: PrecisionConfig) -> PrecisionConfig:
    """All in FP32, with the operators, scaled channels and hidden outputs of a config: what is quantized elsewhere."""
    found = PrecisionConfig.uniform(Precision.FP32)
    for kind in (Rewrite, Smooth, Barrier):
        found = found.with_moves(config.of(kind))
    return found


def _cache(path: Path, network: Network, config: PrecisionConfig, ranges: _Ranges,
           shapes: _Shapes, production: _Production, method: str) -> list[Path]:
    write_cache(path, {**ranges, **activation_ranges(network, ranges, told_as(network, config).without(Smooth))},
                algorithm_of(method))
    return [path]
