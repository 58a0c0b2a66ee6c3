"""The export of a TensorRT calibration cache: the calibrated range of each tensor, or the range that the config sets.
"""

from trt_tui.core.calibration.cache import calibration_algorithm, write_calibration_cache
from trt_tui.core.exporters.formats import ExportContext, WrittenExport
from trt_tui.core.lowering.lowering_checks import replace_file_precision
from trt_tui.core.lowering.scales import compute_activation_ranges
from trt_tui.core.moves.smoothquant_move import SmoothQuantMove


def write_calibration_cache_export(context: ExportContext) -> WrittenExport:
    """Writes the calibration cache of a config. Smoothed tensors have the ranges of the network without SmoothQuant."""
    config = replace_file_precision(context.network, context.config).without_moves(SmoothQuantMove)
    config_ranges = compute_activation_ranges(context.network, context.ranges, config)
    write_calibration_cache(context.path, {**context.ranges, **config_ranges},
                            calibration_algorithm(context.range_method))
    return WrittenExport([context.path])
