"""The export of a TensorRT calibration cache: the calibrated range of each tensor, or the range that the config sets.
"""

from collections.abc import Mapping

from trt_tui.core.calibration.cache import calibration_algorithm, calibration_cache_text
from trt_tui.core.exporters.formats import ExportContext, WrittenExport
from trt_tui.core.lowering.lowering_checks import replace_file_precision
from trt_tui.core.lowering.scales import compute_activation_ranges
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.files.writing import write_file_atomically


def write_calibration_cache_export(context: ExportContext) -> WrittenExport:
    """Writes the calibration cache of a config."""
    write_file_atomically(context.path, config_calibration_cache_text(context.network, context.config, context.ranges,
                                                                      context.calibration.method))
    return WrittenExport([context.path])


def config_calibration_cache_text(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                                  range_method: str) -> str:
    """Returns the calibration cache of a config. Tensors with scaled channels have the ranges of the network without
    these factors.

    Args:
        ranges: The calibrated amax by tensor name.
        range_method: The method of the ranges; "" if unknown.
    """
    config = replace_file_precision(network, config).without_fixed_ranges()
    return calibration_cache_text({**ranges, **compute_activation_ranges(network, ranges, config)},
                                  calibration_algorithm(range_method))
