"""Files that carry a config into a production build, by format: what `trt-tui export` and the app write."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.calibration.cache import calibration_algorithm, write_calibration_cache
from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.data.shapes import ShapeRange, parse_additional_profiles
from trt_tui.core.exporters import polygraphy, trtexec
from trt_tui.core.exporters.modelopt import check_modelopt_config, write_modelopt
from trt_tui.core.exporters.omissions import implicit_omission_record, omission_record
from trt_tui.core.exporters.onnx import export_typed_network
from trt_tui.core.lowering.implicit_quantization import ImplicitQuantizationConstraints, lower_to_implicit_quantization
from trt_tui.core.lowering.lowered import replace_file_precision
from trt_tui.core.lowering.releases import WEAK_PRECISIONS, groups_by_release_dependent_precision
from trt_tui.core.lowering.scales import compute_activation_ranges
from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.moves.barrier_move import BarrierMove
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.rewrite_move import RewriteMove
from trt_tui.core.moves.smoothquant_move import SmoothQuantMove
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.writing import file_transaction

_Ranges = Mapping[str, float]
_Shapes = Mapping[str, ShapeRange] | None
_BuilderOptions = BuilderOptions | None

EXPORT_FORMATS = ("onnx", "trtexec", "polygraphy", "modelopt", "calibration-cache")


def find_companion_files(export_format: str, path: Path) -> dict[str, Path]:
    """The files beside ``path`` that a format consists of too, by role ("typed", "base", "cache").

    They are named after the whole name of ``path``, so that no two exports share one.
    """
    roles = {"trtexec": ("typed", "base", "cache"), "polygraphy": ("base", "cache"),
             "modelopt": ("base", "cache")}.get(export_format, ())
    endings = {"typed": ".typed.onnx", "base": ".base.onnx", "cache": ".cache"}
    return {role: path.with_name(path.name + endings[role]) for role in roles}


def command_file_names(export_format: str, path: Path) -> trtexec.TrtexecFiles:
    """The names that a format's commands use for the files beside ``path``."""
    names = {role: file_path.name for role, file_path in find_companion_files(export_format, path).items()}
    return trtexec.TrtexecFiles(engine=f"{path.name}.engine", **names)


def write_export(export_format: str, path: Path, network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                 *, shapes: Mapping[str, ShapeRange] | None = None, builder_options: BuilderOptions | None = None,
                 range_method: str = "") -> list[Path]:
    """Writes a config in a format of `EXPORT_FORMATS`; returns every file that was written, ``path`` first.

    If a file cannot be written, none is, and files that were there stay as they were.

    Args:
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        shapes: The optimization profile by input name.
        builder_options: How the builder is to work, where a format tells it.
        range_method: How the ranges were measured, as a calibration cache states it; "" where nobody knows.

    Raises:
        InputError: the config cannot be told in this format, a range is missing, or a file cannot be written.
    """
    writers: dict[str, Callable[[Path, Network, PrecisionConfig, _Ranges, _Shapes, _BuilderOptions, str],
                               list[Path]]] = {
        "onnx": _write_onnx, "trtexec": _write_trtexec, "polygraphy": _write_polygraphy, "modelopt": _write_modelopt,
        "calibration-cache": _write_calibration_cache}
    if export_format not in writers:
        raise InputError(f"unknown format {export_format}", f"there are {', '.join(writers)}", "")
    refuse_overwriting_inputs([path, *find_companion_files(export_format, path).values()],
                              [network.path, *network.external_files])
    with file_transaction():
        return writers[export_format](path, network, config, ranges, shapes, builder_options, range_method)


def trtexec_command_lines(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                          files: trtexec.TrtexecFiles, shapes: Mapping[str, ShapeRange] | None = None,
                          builder_options: BuilderOptions | None = None) -> tuple[trtexec.TrtexecCommandLine, ...]:
    """The command lines that build a config with trtexec."""
    config = replace_file_precision(network, config)
    special_precisions = groups_by_release_dependent_precision(network, config).keys() - WEAK_PRECISIONS
    constraints = lower_to_implicit_quantization(network, config, ranges) if not special_precisions else None
    refusal_reason = (
        f"no weakly typed TensorRT has {' or '.join(sorted(precision.label for precision in special_precisions))}"
        if special_precisions else "")
    return trtexec.build_trtexec_command_lines(network, config, constraints, files, shapes=shapes,
                                               builder_options=builder_options, refusal_reason=refusal_reason)


def _write_onnx(path: Path, network: Network, config: PrecisionConfig, ranges: _Ranges,
                shapes: _Shapes, builder_options: _BuilderOptions, range_method: str) -> list[Path]:
    written_model = export_typed_network(lower_from_source_model(network, config, ranges).model, network, path)
    return [written_model.path, *written_model.data_files]


def _write_trtexec(path: Path, network: Network, config: PrecisionConfig, ranges: _Ranges,
                   shapes: _Shapes, builder_options: _BuilderOptions, range_method: str) -> list[Path]:
    companion_paths = find_companion_files("trtexec", path)
    lines = trtexec_command_lines(network, config, ranges, command_file_names("trtexec", path), shapes, builder_options)
    written_files = _write_onnx(companion_paths["typed"], network, config, ranges, shapes, builder_options,
                                range_method)
    omissions: Mapping[str, Any] = {}
    if groups_by_release_dependent_precision(network, replace_file_precision(network,
                                                                             config)).keys() <= WEAK_PRECISIONS:
        constraints = lower_to_implicit_quantization(network, config, ranges)
        written_files += _write_fp32_network_and_cache(companion_paths, network, constraints, trtexec.CALIBRATOR)
        omissions = implicit_omission_record(network, config, companion_paths["base"].name, constraints)
    trtexec.write_trtexec_script(path, lines, f"Builds {network.name} in the precisions of its config.", omissions)
    return [path, *written_files]


def _write_polygraphy(path: Path, network: Network, config: PrecisionConfig, ranges: _Ranges,
                      shapes: _Shapes, builder_options: _BuilderOptions, range_method: str) -> list[Path]:
    companion_paths = find_companion_files("polygraphy", path)
    constraints = lower_to_implicit_quantization(network, config, ranges)
    files = command_file_names("polygraphy", path)
    algorithm = calibration_algorithm(
        range_method) if range_method in polygraphy.CALIBRATORS else calibration_algorithm("")
    more_profiles = parse_additional_profiles(builder_options.profiles if builder_options else (), network.inputs,
                                              shapes or {})
    command = polygraphy.polygraphy_command(constraints, path.name, files, shapes=shapes, more_profiles=more_profiles,
                                            builder_options=builder_options, range_method=range_method)
    polygraphy.write_polygraphy_script(
        path, constraints, f"Precisions of {network.name}", command,
        implicit_omission_record(network, config, companion_paths["base"].name, constraints))
    return [path, *_write_fp32_network_and_cache(companion_paths, network, constraints, algorithm)]


def _write_fp32_network_and_cache(companion_paths: Mapping[str, Path], network: Network,
                                  constraints: ImplicitQuantizationConstraints,
                                  calibration_algorithm: str) -> list[Path]:
    """The FP32 network under the config's node names, and the cache where anything has a range.

    Args:
        calibration_algorithm: The calibrator that is to read the cache; it takes none that names another.
    """
    written_model = export_typed_network(constraints.model, network, companion_paths["base"])
    if not constraints.ranges:
        return [written_model.path, *written_model.data_files]
    write_calibration_cache(companion_paths["cache"], constraints.calibration_cache_ranges(), calibration_algorithm)
    return [written_model.path, *written_model.data_files, companion_paths["cache"]]


def _write_modelopt(path: Path, network: Network, config: PrecisionConfig, ranges: _Ranges,
                    shapes: _Shapes, builder_options: _BuilderOptions, range_method: str) -> list[Path]:
    companion_paths = find_companion_files("modelopt", path)
    full_config, config = config, replace_file_precision(network, config)
    check_modelopt_config(network, config)
    base_model = lower_from_source_model(network, _derive_fp32_config(config), {}).model
    written_model = export_typed_network(base_model, network, companion_paths["base"])
    used_ranges = compute_activation_ranges(network, ranges, config)
    if used_ranges:
        write_calibration_cache(companion_paths["cache"], used_ranges, calibration_algorithm(range_method))
    write_modelopt(path, network, config, companion_paths["base"].name, range_method,
                   companion_paths["cache"].name if used_ranges else "",
                   omission_record(network, full_config, companion_paths["base"].name, used_ranges))
    return [path, written_model.path, *written_model.data_files, *([companion_paths["cache"]] if used_ranges else [])]


def _derive_fp32_config(config: PrecisionConfig) -> PrecisionConfig:
    """All in FP32, with the operators, scaled channels and hidden outputs of a config: what is quantized elsewhere."""
    fp32_config = PrecisionConfig.from_precision(Precision.FP32)
    for move_class in (RewriteMove, SmoothQuantMove, BarrierMove):
        fp32_config = fp32_config.with_moves(config.get_moves(move_class))
    return fp32_config


def _write_calibration_cache(path: Path, network: Network, config: PrecisionConfig, ranges: _Ranges,
                             shapes: _Shapes, builder_options: _BuilderOptions, range_method: str) -> list[Path]:
    write_calibration_cache(
        path, {
            **ranges, **compute_activation_ranges(
                network, ranges,
                replace_file_precision(network, config).without_moves(SmoothQuantMove))
        }, calibration_algorithm(range_method))
    return [path]
