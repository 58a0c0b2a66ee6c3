"""AWQ: factors for the channels in front of weights in INT4, from the magnitudes of the activations.

Source: Lin et al., "AWQ: Activation-aware Weight Quantization for On-Device LLM Compression and Acceleration" (MLSys
2024). A weight that multiplies large activations is multiplied by a factor before it is rounded, and the producer of
the activations divides by it. The factors are ``mean|X_j|^a``, and the exponent a with the smallest error at the
outputs of the readers is chosen. The move is that of SmoothQuant, whose factors have another formula.
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence

import numpy as np

from trt_tui.core.calibration.tensor_collection import RunProgress
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.folded_constants import FoldedConstants
from trt_tui.core.lowering.scales import scale_from_amax
from trt_tui.core.measure import gptq, zero_cost_moves
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
from trt_tui.core.moves.smoothquant_move import SmoothQuantMove, scaling_refusal_reason
from trt_tui.core.network.constants import largest_magnitude
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.network import Network
from trt_tui.core.network.zero_cost_support import ScaledConstant
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import Backend

EXPONENTS = tuple(index / 10 for index in range(1, 11))
"""The exponents that are tried. The exponent 0 leaves the channels as they are."""

SIMULATED_CONFIG_COUNT = 2
"""The number of configs that `measure_awq_moves` simulates: without and with the factors."""


def awq_refusal_reason(network: NetworkOutline, subject: str, config: PrecisionConfig) -> str:
    """Returns the reason why the channels that a group produces cannot have AWQ's factors in a config; "" if they
    can."""
    if reason := scaling_refusal_reason(network, subject):
        return reason
    scaling = network.zero_cost_support.channel_scalings[subject]
    if scaling.products:
        return f"{scaling.products[0]} multiplies its channels by those of another layer"
    groups = [group for layer in scaling.reading_layers if (group := network.find_group(layer)) is not None]
    precisions = {config.precision_of(group) for group in groups}
    if Precision.INT4 not in precisions:
        return "no layer in INT4 reads its channels"
    quantized = sorted(precision.label for precision in precisions if precision in QUANTIZED_TYPES
                       and QUANTIZED_TYPES[precision].quantizes_activations)
    return f"a layer in {quantized[0]} reads its channels too" if quantized else ""


def measure_awq_moves(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                      subjects: Iterable[str], samples: Samples, backend: Backend, *, reason: str = "user",
                      channel_maxima: MutableMapping[str, np.ndarray] | None = None,
                      progress: RunProgress | None = None) -> dict[str, SmoothQuantMove]:
    """Returns the factors of channels that INT4 layers read, by the group that produces the channels.

    A group whose readers have no smaller error on the held-out samples is left out. The result is empty if the outputs
    of the network do not improve there.

    Args:
        ranges: Calibrated amax by tensor name, in the units of the tensor.
        subjects: Groups whose channels can be scaled; others are left out.
        channel_maxima: Known largest magnitudes, as for `zero_cost_moves.measure_smoothquant_moves`.

    Raises:
        InputError: a tensor contains NaN or an infinity, or the data cannot be read.
    """
    channel_maxima = {} if channel_maxima is None else channel_maxima
    scalings = {name: network.zero_cost_support.channel_scalings[name] for name in subjects
                if not awq_refusal_reason(network, name, config)}
    readers = {(name, reader.port): group for name, scaling in scalings.items() for reader in scaling.readers
               if (group := network.find_group(reader.port[0])) is not None
               and config.precision_of(group) is Precision.INT4}
    names = [group.name for group in readers.values()]
    base = config.without_moves(RoundingMove, names)
    layers = {(layer.site.layer, layer.site.index): layer for layer in list_rounded_layers(
        network, base, [network.get_group(name) for name in names], {})}
    parts = split_held_out_samples(network, samples)
    if not layers or parts is None:
        return {}
    steps = StepProgress(progress, len(parts[0]) + 4 * len(parts[1]) + len(scalings) + len(samples))
    zero_cost_moves.measure_smoothquant_moves(network, scalings, samples, backend, channel_maxima=channel_maxima,
                                              progress=steps.make_pass_callback())
    model = build_simulated_model(network, base, ranges)
    folds = FoldedConstants(network, base)
    lowerings = rulebook.plan_lowering(network, base, ranges, folded_constants=folds)
    fit, held_out = (collect_input_products(network, model, list(layers.values()), lowerings, part, backend, steps)
                     for part in parts)
    moves: dict[str, SmoothQuantMove] = {}
    for name, scaling in scalings.items():
        steps.add(1)
        ports = [port for subject, port in readers if subject == name]
        if not ports or any(port not in layers for port in ports):
            continue
        scaled_readers = [(reader, layers[reader.port]) for reader in scaling.readers if reader.port in ports]

        def measure_errors(products: Mapping[str, InputProductCollector], factors: np.ndarray,
                           scaled_readers: Sequence[tuple[ScaledConstant, RoundedLayer]] = scaled_readers) -> float:
            return sum(_measure_reader_error(reader, layer, folds, lowerings, products, factors)
                       for reader, layer in scaled_readers)

        means = np.zeros(scaling.channels, np.float32)
        for reader, layer in scaled_readers:
            magnitudes = (fit[layer.group.name].magnitudes[0] / fit[layer.group.name].row_count).astype(np.float32)
            np.maximum(means, reader.channel_maxima(magnitudes, scaling.channels, -1), out=means)
        unscaled = np.ones(scaling.channels, np.float32)
        candidates = {exponent: awq_factors(means, exponent) for exponent in EXPONENTS}
        errors = {exponent: measure_errors(fit, factors) for exponent, factors in candidates.items()}
        best = min(errors, key=lambda exponent: errors[exponent])
        if errors[best] < measure_errors(fit, unscaled) and measure_errors(held_out, candidates[best]) <= (
                1 - MIN_LAYER_IMPROVEMENT) * measure_errors(held_out, unscaled):
            moves[name] = SmoothQuantMove(
                best, vectors.encode_vector(candidates[best]),
                zero_cost_moves.compute_scaled_ranges(network, scaling, candidates[best], channel_maxima), reason,
                "AWQ")
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


def _measure_reader_error(reader: ScaledConstant, layer: RoundedLayer, folds: FoldedConstants,
                          lowerings: Mapping[str, rulebook.GroupLowering],
                          products: Mapping[str, InputProductCollector], factors: np.ndarray) -> float:
    """Returns the squared error at the output of a layer whose input channels have factors."""
    weight = folds.compute_constant(reader.port, with_rounding=False)
    assert weight is not None
    scale = lowerings[layer.group.name].scales[layer.site]
    scaled = reader.divide(weight, factors)
    steps = spread_scales(scale_from_amax(largest_magnitude(scaled, scale.axis, scale.block_size),
                                          layer.quantized_type), scale, layer.form)
    matrices = layer.form.convert_to_matrices(scaled)
    errors = layer.form.convert_from_matrices(layer.quantized_type.quantize(matrices / steps) * steps - matrices)
    differences = layer.form.convert_to_matrices(errors * np.broadcast_to(reader.divisors(factors), errors.shape))
    return float(gptq.measure_row_errors(differences, products[layer.group.name].products).sum())
