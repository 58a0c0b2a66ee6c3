"""Rounding moves from the calibration samples: weight scales and quantized values with a smaller error at the output.

Layers are taken in network order, in a few waves. One pass over the samples reads the inputs of all layers of a wave,
in the network with all activations and weights quantized as in the config. The layers of earlier waves have their new
values by then. Layers of one wave see each other with the nearest values, which differ from the new ones by less than
the noise of the activations.

Three quarters of the samples choose the values. The last quarter decides whether they are offered: a layer whose error
does not shrink there keeps the nearest values, and so does the whole set if the outputs of the network do not improve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.tensor_collection import CollectorFanout, RunProgress, collect_tensors
from trt_tui.core.data.adaptive_runner import load_adaptive_runner
from trt_tui.core.data.samples import Samples, can_mix_samples, mix_samples_into_batches
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.folded_constants import FoldedConstants, find_weight_edits_digest
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.measure import gptq
from trt_tui.core.measure.input_products import (
    MIN_ROWS,
    ROWS_PER_COLUMN,
    InputProductCollector,
    MatrixForm,
    find_matrix_form,
)
from trt_tui.core.moves import vectors
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.constant_moves import RoundingMove, find_rounded_site, quantize_weight
from trt_tui.core.moves.layer_moves import KeepMove
from trt_tui.core.moves.zero_cost_checks import replace_file_precision, rounding_refusal_reason
from trt_tui.core.network.layers import FusionGroup, NetworkOutline, QdqSite
from trt_tui.core.network.naming import value_name
from trt_tui.core.network.network import Network
from trt_tui.core.precision import MIN_FP16_SCALE, Precision
from trt_tui.core.quantized_types import BLOCK_PRECISIONS, QUANTIZED_TYPES, QuantizedType
from trt_tui.core.runner import Backend

METHODS = ("scales", "GPTQ")
"""The methods of `RoundingMove`, in the order of their proposals."""

MAX_WAVES = 4
"""The number of waves unless memory needs more."""

MAX_WAVE_BYTES = 768 << 20
"""The maximum size of the sums of products of one wave, over both parts of the samples."""

MAX_COLUMNS = 8192
"""The maximum number of inputs of an output channel. The sums of products grow with its square."""

HELD_OUT_SHARE = 4
"""One of this number of samples is held out."""

MIN_LAYER_IMPROVEMENT = 0.01
"""The minimum share of a layer's error that a rounding must remove on the held-out samples."""

MIN_GAIN_SHARE = 0.99
"""The share of the sum of all gains that the offered layers have together, those with the largest gain first."""

_SPLIT_SEED = 0


@dataclass(frozen=True)
class RoundingProposal:
    """The rounding moves of one method for several groups.

    Attributes:
        moves: The moves by group, those that give most first.
    """

    method: str
    moves: Mapping[str, RoundingMove]


@dataclass(frozen=True)
class RoundedLayer:
    """A layer whose weight can be rounded: its group, weight, form and the type of its quantized values."""

    group: FusionGroup
    site: QdqSite
    form: MatrixForm
    quantized_type: QuantizedType


def measure_roundings(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                      groups: Iterable[FusionGroup], samples: Samples, backend: Backend, *,
                      methods: Sequence[str] = METHODS, progress: RunProgress | None = None
                      ) -> tuple[RoundingProposal, ...]:
    """Returns roundings of the weights of some groups for each method that reduces the error of the outputs.

    Args:
        ranges: Calibrated amax by tensor name, in the units of the tensor.
        groups: Groups of any kind; those without a possible rounding are left out.
        samples: The calibration samples.

    Raises:
        InputError: a range is missing, a tensor contains NaN or an infinity, or the data cannot be read.
    """
    layers = list_rounded_layers(network, config, groups)
    parts = split_held_out_samples(network, samples)
    if not layers or parts is None:
        return ()
    base = config.without_moves(RoundingMove, [layer.group.name for layer in layers])
    waves = _split_into_waves(layers)
    steps = StepProgress(progress, len(waves) * (len(parts[0]) + len(parts[1])) + len(layers)
                      + (len(methods) + 2) * len(parts[1]))
    moves: dict[str, dict[str, RoundingMove]] = {method: {} for method in methods}
    gains: dict[str, dict[str, float]] = {method: {} for method in methods}
    for wave in waves:
        current = base.with_moves(moves[methods[-1]])
        model = build_simulated_model(network, current, ranges)
        folds = FoldedConstants(network, current)
        lowerings = rulebook.plan_lowering(network, current, ranges, folded_constants=folds)
        fit, held_out = (collect_input_products(network, model, wave, lowerings, part, backend, steps)
                         for part in parts)
        for layer in wave:
            steps.add(1)
            scale = lowerings[layer.group.name].scales[layer.site]
            weight = folds.compute_constant((layer.site.layer, layer.site.index), with_rounding=False)
            assert weight is not None
            digest = find_weight_edits_digest(network, current, (layer.site.layer, layer.site.index))
            for method, (candidate, gain) in _round_layer(layer, weight, scale, fit[layer.group.name].products,
                                                          held_out[layer.group.name].products, methods,
                                                          steps.check).items():
                moves[method][layer.group.name] = replace(candidate, weight_edits=digest, reason="user")
                gains[method][layer.group.name] = gain
        del fit, held_out
        for method in methods:
            for name in _find_raised_scales(network, current.with_moves(moves[method]), ranges, wave):
                moves[method].pop(name, None)
                gains[method].pop(name, None)
    proposals = []
    for method in methods:
        chosen = _choose_layers_by_gain(gains[method])
        if not chosen:
            continue
        kept = {name: moves[method][name] for name in chosen}
        before, after = measure_output_errors(network, (base, base.with_moves(kept)), ranges, parts[1], backend, steps)
        if after < before:
            proposals.append(RoundingProposal(method, kept))
    return tuple(proposals)


def count_simulated_configs(network: Network, config: PrecisionConfig, groups: Iterable[FusionGroup]) -> int:
    """Returns the maximum number of configs that `measure_roundings` simulates: one for each wave and each method."""
    waves = _split_into_waves(list_rounded_layers(network, config, groups))
    return len(waves) + len(METHODS) if waves else 0


class StepProgress:
    """The progress over several passes; its callback stops the work by an exception."""

    def __init__(self, callback: RunProgress | None, total: int) -> None:
        self._callback, self._total, self._done = callback, total, 0

    def add(self, count: int) -> None:
        self._done += count
        self.check()

    def check(self) -> None:
        if self._callback is not None:
            self._callback(min(self._done, self._total), self._total)

    def make_pass_callback(self) -> RunProgress:
        start = self._done

        def on_progress(done: int, _total: int) -> None:
            self._done = start + done
            self.check()

        return on_progress


def split_held_out_samples(network: NetworkOutline, samples: Samples) -> tuple[Samples, Samples] | None:
    """Returns three quarters of the samples and the last quarter, by a fixed seed; None for a single sample.

    Batches are kept if there are at least four. They are kept too if the network has a fixed batch, or if their rows
    cannot be separated.
    """
    random = np.random.default_rng(_SPLIT_SEED)
    has_fixed_batch = any(info.shape is None or isinstance(next(iter(info.shape), 1), int) for info in network.inputs)
    if len(samples) < HELD_OUT_SHARE and not has_fixed_batch and can_mix_samples(samples, range(len(samples))):
        positions = [(feed, row) for feed in range(len(samples)) for row in range(samples.count_samples_of_feed(feed))]
        if len(positions) < 2 or samples.padding is not None:
            return None
        shuffled = [positions[index] for index in random.permutation(len(positions))]
        held = max(len(positions) // HELD_OUT_SHARE, 1)
        return (mix_samples_into_batches(samples, [sorted(shuffled[held:])]),
                mix_samples_into_batches(samples, [sorted(shuffled[:held])]))
    if len(samples) < 2:
        return None
    held = max(len(samples) // HELD_OUT_SHARE, 1)
    order = [int(index) for index in random.permutation(len(samples))]
    return samples.select_feeds(sorted(order[held:])), samples.select_feeds(sorted(order[:held]))


def list_rounded_layers(network: Network, config: PrecisionConfig, groups: Iterable[FusionGroup]
                        ) -> list[RoundedLayer]:
    """Returns the layers whose weights can be rounded, in network order."""
    names = {group.name for group in groups}
    layers = []
    for group in network.groups:
        site = find_rounded_site(group)
        if group.name not in names or site is None or rounding_refusal_reason(network, group, config):
            continue
        form = find_matrix_form(network, network.get_layer(site.layer), site)
        if form is not None and form.columns <= MAX_COLUMNS:
            layers.append(RoundedLayer(group, site, form, QUANTIZED_TYPES[config.precision_of(group)]))
    return layers


def _split_into_waves(layers: Sequence[RoundedLayer]) -> list[list[RoundedLayer]]:
    waves: list[list[RoundedLayer]] = []
    bounds = [len(layers) * number // MAX_WAVES for number in range(MAX_WAVES + 1)]
    for start, stop in pairwise(bounds):
        wave: list[RoundedLayer] = []
        for layer in layers[start:stop]:
            if wave and 2 * sum(entry.form.product_bytes for entry in (*wave, layer)) > MAX_WAVE_BYTES:
                waves.append(wave)
                wave = []
            wave.append(layer)
        if wave:
            waves.append(wave)
    return waves


# -- passes over the samples ------------------------------------------------------------------------------------------


def build_simulated_model(network: Network, config: PrecisionConfig, ranges: Mapping[str, float]) -> ir.Model:
    """Returns a network in which all that a config quantizes is quantized, and all else is FP32.

    The rounding of FP16 and BF16 is left out: it is far below that of quantized values. Weights in a type that
    quantizes no activations, or blocks of them, are constants with dequantized values, since not every runtime has the
    type. Groups in file precision have the precision nearest to it.
    """
    config = replace_file_precision(config, network.groups)
    kept = {group.name for group in network.groups if (precision := config.precision_of(group)) in QUANTIZED_TYPES
            and QUANTIZED_TYPES[precision].quantizes_activations and precision not in BLOCK_PRECISIONS}
    simulated = replace(config.without_moves(KeepMove), other=Precision.FP32, tf32=False)
    simulated = simulated.with_group_precision((group for group in network.groups if group.name not in kept),
                                               Precision.FP32)
    for group in network.groups:
        if group.name in kept:
            simulated = simulated.with_group_precision([group], config.precision_of(group))
    model = lower_to_typed_network(network, simulated, ranges).model
    folds = FoldedConstants(network, config)
    nodes = {node.name: node for node in model.graph}
    for name, lowering in rulebook.plan_lowering(network, config, ranges, folded_constants=folds).items():
        for site, scale in lowering.scales.items() if name not in kept else ():
            if site.role != "weight":
                continue
            weight, node = folds.compute_constant((site.layer, site.index)), nodes.get(site.layer)
            if weight is None or node is None:
                continue
            array = rulebook.quantize_dequantize_weight(weight, scale)
            value = ir.Value(name=f"{site.layer}__dequantized_{site.index}", type=ir.TensorType(ir.DataType.FLOAT),
                             shape=ir.Shape(array.shape))
            value.const_value = ir.tensor(np.ascontiguousarray(array, np.float32), name=value.name)
            model.graph.register_initializer(value)
            node.replace_input_with(site.index, value)
    return model


def collect_input_products(network: Network, model: ir.Model, wave: Sequence[RoundedLayer],
                            lowerings: Mapping[str, rulebook.GroupLowering], samples: Samples, backend: Backend,
                            steps: StepProgress) -> dict[str, InputProductCollector]:
    """Returns the sums of products of the inputs of some layers, by group. Layers with equal inputs share them."""
    shared: dict[object, InputProductCollector] = {}
    by_group: dict[str, InputProductCollector] = {}
    by_tensor: dict[str, CollectorFanout] = {}
    for layer in wave:
        tensor = network.get_layer(layer.site.layer).inputs[0]
        activation = next((scale for site, scale in lowerings[layer.group.name].scales.items()
                           if site.layer == layer.site.layer and site.index == 0), None)
        form, scale = layer.form, 1.0 if activation is None else float(activation.values)
        shape = form.shape[1:] if form.is_conv else ()
        key = (tensor, scale, activation is None, form.groups, form.is_conv, shape, form.strides, form.dilations,
               form.pads, form.auto_pad, form.transposes_input)
        if key not in shared:
            rows = max(MIN_ROWS, ROWS_PER_COLUMN * form.columns)
            shared[key] = InputProductCollector(form, max(math.ceil(rows / len(samples)), 1),
                                                None if activation is None else activation.quantized_type, scale)
            by_tensor.setdefault(tensor, CollectorFanout()).append(shared[key])
        by_group[layer.group.name] = shared[key]
    collect_tensors(model, by_tensor, samples, backend, steps.make_pass_callback())
    return by_group


def measure_output_errors(network: Network, configs: Sequence[PrecisionConfig], ranges: Mapping[str, float],
                          samples: Samples, backend: Backend, steps: StepProgress | None = None) -> list[float]:
    """Returns the error of the network's float outputs in some configs against FP32, as a share of their energy.

    The shares of several outputs are added. Only what the configs quantize is rounded.
    """
    names = [value_name(value) for value in network.model.graph.outputs if network.is_float(value_name(value))]
    references = _run_outputs(network.model, names, samples, backend, steps)
    errors = []
    for config in configs:
        outputs = _run_outputs(build_simulated_model(network, config, ranges), names, samples, backend, steps)
        shares = []
        for name in names:
            energy = sum(float(np.square(feed[name], dtype=np.float64).sum()) for feed in references)
            error = sum(float(np.square(feed[name].astype(np.float64) - reference[name]).sum())
                        for feed, reference in zip(outputs, references, strict=True))
            shares.append(error / energy if energy > 0 else error)
        errors.append(sum(shares))
    return errors


def _run_outputs(model: ir.Model, names: Sequence[str], samples: Samples, backend: Backend,
                 steps: StepProgress | None) -> list[dict[str, np.ndarray]]:
    results = []
    with load_adaptive_runner(backend, model, samples, low_memory=True) as runner:
        for index in range(len(samples)):
            outputs = runner.run(samples.read_feed(index))
            results.append({name: np.asarray(outputs[name]) for name in names})
            if steps is not None:
                steps.add(1)
    return results


# -- one layer ------------------------------------------------------------------------------------------------------


def _round_layer(layer: RoundedLayer, weight: np.ndarray, scale: rulebook.QdqScale, products: np.ndarray,
                 held_out_products: np.ndarray, methods: Sequence[str],
                 on_progress: Callable[[], None]) -> dict[str, tuple[RoundingMove, float]]:
    """Returns the roundings of one weight that have a smaller error on both parts of the samples, with their gains."""
    form, quantized_type = layer.form, layer.quantized_type
    matrices = form.convert_to_matrices(weight).astype(np.float32)
    nearest_steps = spread_scales(scale.values, scale, form)
    segments = _list_segments(scale, form)
    round_steps = partial(_round_steps, scale)
    nearest = quantized_type.quantize(matrices / nearest_steps) * nearest_steps

    def measure_errors(dequantized: np.ndarray) -> tuple[float, float]:
        return tuple(float(gptq.measure_row_errors(matrices - dequantized, sums).sum())  # type: ignore[return-value]
                     for sums in (products, held_out_products))

    nearest_errors = measure_errors(nearest)
    energy = float(gptq.measure_row_errors(matrices, held_out_products).sum())
    candidates: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    steps = round_steps(nearest_steps)
    if segments is not None and ("scales" in methods or quantized_type.block_sizes):
        factors = gptq.choose_scale_factors(matrices, nearest_steps, products, quantized_type, segments, round_steps,
                                            on_progress)
        scaled_steps = round_steps(nearest_steps * gptq.spread_factors(factors, segments))
        candidates["scales"] = scaled_steps, quantized_type.quantize(matrices / scaled_steps)
        if quantized_type.block_sizes:  # with 256 values in a range, GPTQ gains nothing from smaller ranges
            steps = scaled_steps
    if "GPTQ" in methods:
        rounded = gptq.round_by_output_error(matrices, steps, products, quantized_type, on_progress)
        values = quantized_type.quantize(matrices / steps)
        loses = (gptq.measure_row_errors(matrices - rounded * steps, products)
                 > gptq.measure_row_errors(matrices - values * steps, products))
        candidates["GPTQ"] = steps, np.where(loses[..., None], values, rounded)
    results: dict[str, tuple[RoundingMove, float]] = {}
    for method in methods:
        if method not in candidates:
            continue
        used_steps, values = candidates[method]
        fit_error, held_out_error = measure_errors(values * used_steps)
        if fit_error >= nearest_errors[0] or held_out_error > (1 - MIN_LAYER_IMPROVEMENT) * nearest_errors[1]:
            continue
        results[method] = (_build_rounding_move(layer, weight, scale, used_steps, values, method),
                           (nearest_errors[1] - held_out_error) / energy if energy > 0 else 0.0)
    return results


def _build_rounding_move(layer: RoundedLayer, weight: np.ndarray, scale: rulebook.QdqScale, steps: np.ndarray,
                         values: np.ndarray, method: str) -> RoundingMove:
    form = layer.form
    step_array = form.convert_from_matrices(np.broadcast_to(steps, values.shape))
    differences = form.convert_from_matrices(values) - quantize_weight(weight, step_array, layer.quantized_type)
    return RoundingMove(method, layer.quantized_type.precision,  # type: ignore[arg-type]
                        vectors.encode_vector(_gather_scales(step_array, scale)),
                        vectors.encode_integers(differences) if differences.any() else "")


def spread_scales(values: np.ndarray, scale: rulebook.QdqScale, form: MatrixForm) -> np.ndarray:
    """Returns the scale of each weight, float32 ``(groups, rows, columns)``."""
    spread = replace(scale, values=values, original_values=None).broadcast_to_shape(form.shape)
    return np.ascontiguousarray(form.convert_to_matrices(np.broadcast_to(spread, form.shape)), np.float32)


def _gather_scales(step_array: np.ndarray, scale: rulebook.QdqScale) -> np.ndarray:
    """Returns the scales in their layout, flat, from the scale of each weight."""
    if scale.axis is None:
        return step_array.ravel()[:1]
    if scale.block_size is not None:
        return np.take(step_array, np.arange(0, step_array.shape[scale.axis], scale.block_size), scale.axis).ravel()
    return np.moveaxis(step_array, scale.axis, 0).reshape(step_array.shape[scale.axis], -1)[:, 0]


def _list_segments(scale: rulebook.QdqScale, form: MatrixForm) -> list[slice] | None:
    """Returns the columns that share a scale in each row; None if several rows share one, so that it cannot change."""
    if scale.axis is None:
        return None
    size = scale.block_size
    return [slice(0, form.columns)] if size is None else [slice(start, start + size)
                                                          for start in range(0, form.columns, size)]


def _round_steps(scale: rulebook.QdqScale, steps: np.ndarray) -> np.ndarray:
    """Returns scales rounded to FP16 where FP16 holds them.

    The scales are then the same in every type in which a config may store them, and so are the quantized values.
    """
    if scale.stored_type is Precision.BF16:
        return rulebook.round_to_precision(steps, Precision.BF16)
    if steps.min() < MIN_FP16_SCALE or scale.original_values is not None:
        return steps
    return rulebook.round_to_precision(steps, Precision.FP16)


def _find_raised_scales(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                        layers: Sequence[RoundedLayer]) -> list[str]:
    """Returns the groups with a rounding whose scales the rulebook raises for the bias, so that they are not kept."""
    moved = config.get_moves(RoundingMove)
    lowerings = rulebook.plan_lowering(network, config, ranges, folded_constants=FoldedConstants(network, config))
    return [layer.group.name for layer in layers if layer.group.name in moved
            and not np.array_equal(lowerings[layer.group.name].scales[layer.site].values.ravel(),
                                   vectors.decode_vector(moved[layer.group.name].scales))]


def _choose_layers_by_gain(gains: Mapping[str, float]) -> list[str]:
    """Returns the layers with the largest gains that have `MIN_GAIN_SHARE` of all gains together."""
    ordered = sorted(gains, key=lambda name: -gains[name])
    total, chosen, covered = sum(gains.values()), list[str](), 0.0
    for name in ordered:
        if covered >= MIN_GAIN_SHARE * total:
            break
        chosen.append(name)
        covered += gains[name]
    return chosen
