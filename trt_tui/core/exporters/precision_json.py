"""The export of a config as a precision.json, and of its ranges as a TensorRT calibration cache."""

from collections.abc import Mapping

from trt_tui import __version__
from trt_tui.core.calibration.cache import calibration_algorithm, calibration_cache_text
from trt_tui.core.exporters.formats import ExportContext, WrittenExport
from trt_tui.core.lowering.lowering_checks import replace_file_precision
from trt_tui.core.lowering.scales import compute_activation_ranges
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import config_text
from trt_tui.core.network.network import Network
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import counted_noun_text


def write_precision_json_export(context: ExportContext) -> WrittenExport:
    """Writes the config with the ranges of ``context.calibration``. A note says if quantized tensors have no range."""
    network, config, calibration = context.network, context.config, context.calibration
    text = config_text(network, config, calibration if calibration.ranges else None,
                       made_with={"trt_tui": __version__}, weights_of=network.weights_source_name)
    write_file_atomically(context.path, text)
    quantized_config = replace_file_precision(network, config)
    tensors = {site.tensor for group in network.groups
               for site in group.calibrated_qdq_sites(quantized_config.precision_of(group))}
    missing_count = len(tensors - calibration.ranges.keys() - quantized_config.range_moves.keys())
    notes = [f"{context.path.name} has no range for {counted_noun_text(missing_count, 'quantized tensor')}; --data, "
             "--calib-data or --calib-cache adds the ranges, here or in the command that reads the "
             "file."] if missing_count else []
    return WrittenExport([context.path], tuple(notes))


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
