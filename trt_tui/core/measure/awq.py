"""AWQ: factors for the channels in front of weights in INT4, from the magnitudes of the activations.

Source: Lin et al., "AWQ: Activation-aware Weight Quantization for On-Device LLM Compression and Acceleration" (MLSys
2024). A weight that multiplies large activations is multiplied by a factor before it is rounded, and the producer of
the activations divides by it. The factors are ``mean|X_j|^a``, and the exponent a with the smallest error at the
outputs of the readers is chosen. The move is that of SmoothQuant, whose factors have another formula.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from trt_tui.core.calibration.tensor_collection import RunProgress
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.folded_constants import FoldedConstants
from trt_tui.core.lowering.scales import scale_from_amax
from trt_tui.core.measure import gptq
from trt_tui.core.measure.input_products import InputProductCollector
from trt_tui.core.measure.weight_rounding import (
    MIN_LAYER_IMPROVEMENT,
    RoundedLayer,
    StepProgress,
    build_simulated_model,
    collect_input_products,
    list_rounded_layers,
    measure_output_errors,
    split_held_out_samples,
    spread_scales,
)
from trt_tui.core.moves import vectors
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.rounding_move import RoundingMove
from trt_tui.core.moves.smoothquant_move import SmoothQuantMove
from trt_tui.core.network.constants import largest_magnitude
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import Backend

EXPONENTS = tuple(index / 10 for index in range(1, 11))
"""The exponents that are tried. The exponent 0 leaves the channels as they are."""


def measure_awq_moves(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                      normalisation_groups: Iterable[str], samples: Samples, backend: Backend, *, reason: str = "user",
                      progress: RunProgress | None = None) -> dict[str, SmoothQuantMove]:
    """Returns the factors of the channels behind normalisations that INT4 layers read, by normalisation.

    A normalisation whose readers have no smaller error on the held-out samples is left out. The result is empty if the
    outputs of the network do not improve there.

    Args:
        ranges: Calibrated amax by tensor name, in the units of the tensor.
        normalisation_groups: Groups whose normalisation can be scaled.

    Raises:
        InputError: a tensor contains NaN or an infinity, or the data cannot be read.
    """
    norms = {name: network.zero_cost_support.norms[name] for name in normalisation_groups}
    readers = {name: [group for consumer in norm.consumers
                      if (group := network.find_group(consumer.port[0])) is not None
                      and config.precision_of(group) is Precision.INT4] for name, norm in norms.items()}
    names = [group.name for groups in readers.values() for group in groups]
    base = config.without_moves(RoundingMove, names)
    layers = {layer.group.name: layer for layer in list_rounded_layers(
        network, base, [network.get_group(name) for name in names], {})}
    parts = split_held_out_samples(network, samples)
    if not layers or parts is None:
        return {}
    steps = StepProgress(progress, len(parts[0]) + 4 * len(parts[1]) + len(norms))
    model = build_simulated_model(network, base, ranges)
    folds = FoldedConstants(network, base)
    lowerings = rulebook.plan_lowering(network, base, ranges, folded_constants=folds)
    fit, held_out = (collect_input_products(network, model, list(layers.values()), lowerings, part, backend, steps)
                     for part in parts)
    moves: dict[str, SmoothQuantMove] = {}
    for name, groups in readers.items():
        steps.add(1)
        scaled_layers = [layers[group.name] for group in groups if group.name in layers]
        if len(scaled_layers) < len(groups) or not scaled_layers:
            continue
        means = fit[scaled_layers[0].group.name].magnitudes[0]
        candidates = {0.0: np.ones(len(means), np.float32)} | {exponent: awq_factors(means, exponent)
                                                               for exponent in EXPONENTS}
        errors = {exponent: _measure_reader_errors(scaled_layers, folds, lowerings, fit, factors)
                  for exponent, factors in candidates.items()}
        best = min(errors, key=lambda exponent: errors[exponent])
        if not best or _measure_reader_errors(scaled_layers, folds, lowerings, held_out, candidates[best]) > (
                1 - MIN_LAYER_IMPROVEMENT) * _measure_reader_errors(scaled_layers, folds, lowerings, held_out,
                                                                    candidates[0.0]):
            continue
        maxima = {network.get_layer(layer.site.layer).inputs[0]: np.maximum(
            fit[layer.group.name].maxima, held_out[layer.group.name].maxima) for layer in scaled_layers}
        moves[name] = SmoothQuantMove(
            best, vectors.encode_vector(candidates[best]),
            {tensor: float((largest / candidates[best]).max()) for tensor, largest in maxima.items()}, reason, "AWQ")
    if moves:
        before, after = measure_output_errors(network, (base, base.with_moves(moves)), ranges, parts[1], backend, steps)
        if after >= before:
            return {}
    return moves


def awq_factors(mean_magnitudes: np.ndarray, exponent: float) -> np.ndarray:
    """Returns the factors of channels, float32, with a geometric mean of the largest and the smallest of 1.

    The factor is 1 for a channel whose activations are all zero.
    """
    used = mean_magnitudes > 0
    factors = np.where(used, mean_magnitudes, 1.0).astype(np.float64)**exponent
    if used.any():
        factors[used] /= np.sqrt(factors[used].max() * factors[used].min())
    return np.where(used, factors, 1.0).astype(np.float32)


def _measure_reader_errors(layers: Iterable[RoundedLayer], folds: FoldedConstants,
                           lowerings: Mapping[str, rulebook.GroupLowering],
                           products: Mapping[str, InputProductCollector], factors: np.ndarray) -> float:
    """Returns the sum of the squared errors at the outputs of layers whose input channels have factors."""
    total = 0.0
    for layer in layers:
        weight = folds.compute_constant((layer.site.layer, layer.site.index), with_rounding=False)
        assert weight is not None
        scale = lowerings[layer.group.name].scales[layer.site]
        shape = [-1 if axis != layer.form.channel_axis else 1 for axis in range(2)]
        scaled = weight * factors.reshape(shape)
        steps = spread_scales(scale_from_amax(largest_magnitude(scaled, scale.axis, scale.block_size),
                                              layer.quantized_type), scale, layer.form)
        matrices = layer.form.convert_to_matrices(scaled)
        differences = (layer.quantized_type.quantize(matrices / steps) * steps - matrices) / factors
        total += float(gptq.measure_row_errors(differences, products[layer.group.name].products).sum())
    return total
