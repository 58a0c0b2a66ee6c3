"""The errors of quantized weights, by layer."""

import math
from collections.abc import Mapping

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.bias_scales import weight_sqnr_db
from trt_tui.core.lowering.folded_constants import FoldedConstants
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network


def measure_weight_errors(network: Network, config: PrecisionConfig,
                          ranges: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
    """Measures the SQNR of dequantized weights against FP32 in dB, by group and by the layer that reads the weight.

    This is ``compute_weight_error`` of ONNX Runtime (``onnxruntime.quantization.qdq_loss_debug``) on the exported
    network. The FP32 weights are those that the config quantizes: a SmoothQuant move scales them first. The dequantized
    weights are those of a rounding move if there is one. An exact weight
    has the value None. Groups without quantized weights are absent, and groups in file precision too, because a file
    may contain the quantized values only.

    Args:
        ranges: Calibrated amax by tensor name, in the units of the tensor.

    Raises:
        InputError: A range is missing.
    """
    folds = FoldedConstants(network, config)
    errors: dict[str, dict[str, float | None]] = {}
    for name, group_lowering in rulebook.plan_lowering(network, config, ranges, folded_constants=folds).items():
        for site, scale in group_lowering.scales.items():
            port = site.layer, site.index
            weight = folds.compute_constant(port, with_rounding=False) if site.role == "weight" else None
            used_weight = folds.compute_constant(port) if weight is not None else None
            if weight is not None and used_weight is not None:
                sqnr_db = weight_sqnr_db(weight, rulebook.quantize_dequantize_weight(used_weight, scale))
                errors.setdefault(name, {})[site.layer] = sqnr_db if math.isfinite(sqnr_db) else None
    return errors
