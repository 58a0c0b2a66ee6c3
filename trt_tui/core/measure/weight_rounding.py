"""Rounding moves from the calibration samples: weight scales and quantized values with a smaller error at the output.

Layers are taken in network order, in a few waves. One pass over the samples reads the inputs of all layers of a wave,
in the network with all activations and weights quantized as in the config. The layers of earlier waves have their new
values by then. Layers of one wave see each other with the nearest values, which differ from the new ones by less than
the noise of the activations.

Three quarters of the samples choose the values. The last quarter decides whether they are offered: a layer whose error
does not shrink there keeps the nearest values, and so does the whole set if the outputs of the network do not improve.

The inputs of a layer enter as sums of products, from which the error at its output follows for any weight. A Conv is a
product of a matrix with the patches of its input (im2col).

Scales and the rounding of a weight are chosen by the error of the layer's output.

The error of one output channel is ``d H d^T``, with the errors d of its weights and the sums H of products of two
inputs over samples. The output channels are therefore independent, and no sample is needed once H is known.

Sources: Frantar et al., "GPTQ" (ICLR 2023), with columns in their order and symmetric scales that are fixed before;
Hassibi et al., "Optimal Brain Surgeon and General Network Pruning" (1993), for the update of the weights that are not
rounded yet.

All arrays have a first axis for the groups of a grouped Conv; other layers have one group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.tensor_collection import CollectedTensor, RunProgress, collect_tensors, divide_by_size
from trt_tui.core.data.adaptive_runner import AdaptiveRunner
from trt_tui.core.data.samples import Samples, can_mix_samples, mix_samples_into_batches
from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.network_rewrite import EditedConstants, compute_weight_edits_digest
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.moves.config import (
    KeepRuleMove,
    PrecisionConfig,
    replace_file_precision_of_groups,
    rounding_refusal_reason,
)
from trt_tui.core.moves.constant_moves import (
    RoundingMove,
    decode_vector,
    encode_integers,
    encode_vector,
    find_sole_weight_site,
    quantize_weight,
)
from trt_tui.core.network.layers import FusionGroup, Layer, NetworkOutline, QdqSite
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.network.network import Network
from trt_tui.core.precision import MIN_FP16_SCALE, Precision
from trt_tui.core.quantized_types import BLOCK_PRECISIONS, QUANTIZED_TYPES, QuantizedType
from trt_tui.core.runner import Backend

MIN_ROWS = 4096
ROWS_PER_COLUMN = 4
"""The rows that are read of a layer: this number for each column, and at least `MIN_ROWS`."""

_SEED = 0


@dataclass(frozen=True)
class MatrixForm:
    """The conversion of a weight, and of the input of its layer, to matrices. A weight becomes ``(groups, rows, columns)``
    with output channels as rows.

    Attributes:
        shape: The shape of the weight.
        groups: The number of groups of a grouped Conv; 1 for other layers.
        is_conv: True for a Conv.
        channel_axis: The axis of the output channels in the weight.
        transposes_input: True for a Gemm with ``transA``.
        strides, dilations: Of a Conv, one for each spatial axis.
        pads: The padding of a Conv before and behind each spatial axis.
        auto_pad: The attribute of a Conv.
    """

    shape: tuple[int, ...]
    groups: int = 1
    is_conv: bool = False
    channel_axis: int = 0
    transposes_input: bool = False
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[tuple[int, int], ...] = ()
    auto_pad: str = "NOTSET"

    @property
    def columns(self) -> int:
        return math.prod(self.shape[1:]) if self.is_conv else self.shape[1 - self.channel_axis]

    def convert_to_matrices(self, weight: np.ndarray) -> np.ndarray:
        """Returns a weight, or an array of its shape, as ``(groups, rows, columns)``."""
        if self.is_conv:
            return weight.reshape(self.groups, self.shape[0] // self.groups, -1)
        return (weight if self.channel_axis == 0 else weight.T)[None]

    def convert_from_matrices(self, matrices: np.ndarray) -> np.ndarray:
        """Returns matrices ``(groups, rows, columns)`` in the shape of the weight."""
        if self.is_conv:
            return matrices.reshape(self.shape)
        matrix: np.ndarray = matrices[0]
        return matrix if self.channel_axis == 0 else matrix.T

    def select_input_rows(self, array: np.ndarray, count: int) -> np.ndarray:
        """Returns at most ``count`` rows of a layer's input, float32 ``(groups, rows, columns)``.

        The rows are the same ones for inputs of the same shape.
        """
        if not self.is_conv:
            matrix = array.T if self.transposes_input else array.reshape(-1, array.shape[-1])
            return np.ascontiguousarray(matrix[_choose_row_indices(len(matrix), count)], np.float32)[None]
        patches = self._view_patches(array)
        spatial = patches.shape[2 : 2 + len(self.strides)]
        positions = np.unravel_index(
            _choose_row_indices(math.prod((len(array), *spatial)), count), (len(array), *spatial)
        )
        rows = patches.transpose(0, *range(2, 2 + len(spatial)), 1, *range(2 + len(spatial), patches.ndim))[positions]
        return np.ascontiguousarray(rows.reshape(len(rows), self.groups, self.columns).swapaxes(0, 1), np.float32)

    def _view_patches(self, array: np.ndarray) -> np.ndarray:
        """Returns a view of the patches of a Conv's input: ``(batch, channels, *positions, *kernel)``."""
        kernel, axes = self.shape[2:], tuple(range(2, array.ndim))
        extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, self.dilations, strict=True)]
        padded = np.pad(array, [(0, 0), (0, 0), *self._find_pads(array.shape[2:], extents)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axes)
        steps = [slice(None, None, stride) for stride in self.strides]
        taps = [slice(None, None, dilation) for dilation in self.dilations]
        view: np.ndarray = windows[(slice(None), slice(None), *steps, *taps)]
        return view

    def _find_pads(self, sizes: tuple[int, ...], extents: list[int]) -> list[tuple[int, int]]:
        if not self.auto_pad.startswith("SAME"):
            return list(self.pads)
        totals = [
            max((-(-size // stride) - 1) * stride + extent - size, 0)
            for size, stride, extent in zip(sizes, self.strides, extents, strict=True)
        ]
        pads = [(total // 2, total - total // 2) for total in totals]
        return pads if self.auto_pad == "SAME_UPPER" else [(behind, before) for before, behind in pads]


def _choose_row_indices(total: int, count: int) -> np.ndarray:
    """Returns the indices of at most ``count`` of ``total`` rows in order; the same ones each time."""
    if total <= count:
        return np.arange(total)
    return np.sort(np.random.default_rng(_SEED).choice(total, count, replace=False, shuffle=False))


def find_matrix_form(network: Network, layer: Layer, site: QdqSite) -> MatrixForm | None:
    """Returns the matrix form of a layer's weight; None if the weight is not a Conv kernel or the second matrix of a
    product."""
    shape = tuple(size for size in network.shape(site.tensor) or () if isinstance(size, int))
    node = network.node(layer.name)
    if layer.op_type == "Conv" and site.axis == 0 and site.index == 1:
        spatial = len(shape) - 2
        pads = node.attributes.get_ints("pads", [0] * 2 * spatial)
        auto_pad = node.attributes.get_string("auto_pad", "NOTSET")
        return MatrixForm(
            shape,
            node.attributes.get_int("group", 1),
            True,
            0,
            False,
            tuple(node.attributes.get_ints("strides", [1] * spatial)),
            tuple(node.attributes.get_ints("dilations", [1] * spatial)),
            tuple((0, 0) if auto_pad == "VALID" else (pads[axis], pads[axis + spatial]) for axis in range(spatial)),
            auto_pad,
        )
    if layer.op_type in ("Gemm", "MatMul") and site.index == 1 and len(shape) == 2 and site.axis in (0, 1):
        return MatrixForm(
            shape,
            channel_axis=site.axis,
            transposes_input=layer.op_type == "Gemm" and bool(node.attributes.get_int("transA", 0)),
        )
    return None


@dataclass
class InputProductCollector:
    """A collector of the sums of products of two inputs of a layer.

    Attributes:
        form: The form of the layer.
        rows_per_feed: The number of rows that are read of one feed.
        quantized_type: The type to which the input is rounded first; None if the layer reads floats.
        scale: The scale of the input in that type.
        products: The sums, float32 ``(groups, columns, columns)``.
    """

    form: MatrixForm
    rows_per_feed: int
    quantized_type: QuantizedType | None = None
    scale: float = 1.0
    products: np.ndarray = field(default_factory=lambda: np.zeros(()))

    def add_values(self, array: np.ndarray) -> None:
        """Adds rows of a float array to the sums.

        Raises:
            ValueError: The rows contain NaN or an infinity.
        """
        rows = self.form.select_input_rows(array, self.rows_per_feed)
        if not np.isfinite(rows).all():
            raise ValueError("NaN or an infinity")
        if self.quantized_type is not None:
            rows = self.quantized_type.quantize(rows / np.float32(self.scale)) * np.float32(self.scale)
        self.products = self.products + rows.swapaxes(1, 2) @ rows

    def merge_values(self, later_collector: InputProductCollector) -> None:
        """Adds the sums of another collector, which has seen later feeds."""
        self.products = self.products + later_collector.products


DAMPING = 0.01
"""The share of the mean diagonal of H that is added to its diagonal. It bounds the condition of H."""

COLUMNS_PER_BLOCK = 64
"""The number of columns after which the errors are applied to all later columns in one product."""

RANGE_FACTORS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.7)
"""The factors of a scale that are tried, the largest weight first."""


def measure_row_errors(differences: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Returns the squared error at the output for each output channel, float64 ``(groups, rows)``.

    Args:
        differences: The errors of the weights ``(groups, rows, columns)``.
        products: The sums of products of two inputs ``(groups, columns, columns)``.
    """
    errors = differences @ products
    errors *= differences
    sums: np.ndarray = errors.sum(axis=-1, dtype=np.float64)
    return sums


def invert_to_upper_factor(products: np.ndarray) -> np.ndarray:
    """Returns the upper triangular U with ``U^T U = H^-1`` of damped products, float64.

    With H in reversed order equal to ``L L^T``, the reversed L is the inverse of U.

    Args:
        products: Of shape ``(groups, columns, columns)``; not all 0.
    """
    damped = products.astype(np.float64)
    columns = damped.shape[-1]
    diagonal = np.arange(columns)
    means = damped[:, diagonal, diagonal].mean(axis=1, keepdims=True)
    damped[:, diagonal, diagonal] += np.where(means > 0, DAMPING * means, 1.0)
    lower = np.linalg.cholesky(damped[:, ::-1, ::-1])
    return _invert_lower_triangle(lower)[:, ::-1, ::-1]


_TRIANGLE_SIZE = 128
"""The size up to which a triangle is inverted as any matrix."""


def _invert_lower_triangle(lower: np.ndarray) -> np.ndarray:
    """Returns the inverse of lower triangular matrices, by halves."""
    size = lower.shape[-1]
    if size <= _TRIANGLE_SIZE:
        return np.tril(np.linalg.inv(lower))
    half = size // 2
    result = np.zeros_like(lower)
    result[:, :half, :half] = first = _invert_lower_triangle(lower[:, :half, :half])
    result[:, half:, half:] = second = _invert_lower_triangle(lower[:, half:, half:])
    result[:, half:, :half] = -second @ (lower[:, half:, :half] @ first)
    return result


def round_by_output_error(
    weight: np.ndarray,
    steps: np.ndarray,
    products: np.ndarray,
    quantized_type: QuantizedType,
    on_progress: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Returns quantized values ``(groups, rows, columns)``, float32, rounded by GPTQ.

    Args:
        weight: The weights ``(groups, rows, columns)``.
        steps: The scale of each weight, in the same shape.
        products: The sums of products of two inputs ``(groups, columns, columns)``.
        on_progress: A callback between blocks. An exception from it ends the computation.
    """
    upper = invert_to_upper_factor(products).astype(np.float32)
    remaining = np.array(weight.swapaxes(1, 2), np.float32, order="C")  # a copy (groups, columns, rows)
    column_steps = steps.swapaxes(1, 2)
    result = np.empty_like(remaining)
    columns = remaining.shape[1]
    for start in range(0, columns, COLUMNS_PER_BLOCK):
        on_progress()
        stop = min(start + COLUMNS_PER_BLOCK, columns)
        errors = np.empty_like(remaining[:, start:stop])
        for column in range(start, stop):
            values, step = remaining[:, column], column_steps[:, column]
            result[:, column] = quantized_type.quantize(values / step)
            error = (values - result[:, column] * step) / upper[:, column, column, None]
            errors[:, column - start] = error
            if column + 1 < stop:
                remaining[:, column + 1 : stop] -= upper[:, column, column + 1 : stop, None] * error[:, None]
        if stop < columns:
            remaining[:, stop:] -= upper[:, start:stop, stop:].swapaxes(1, 2) @ errors
    return np.ascontiguousarray(result.swapaxes(1, 2))


def choose_scale_factors(
    weight: np.ndarray,
    steps: np.ndarray,
    products: np.ndarray,
    quantized_type: QuantizedType,
    segments: Sequence[slice],
    round_steps: Callable[[np.ndarray], np.ndarray],
    on_progress: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Returns the factor of `RANGE_FACTORS` for each scale with the smallest output error ``(groups, rows, segments)``.

    Each factor is chosen by the error of the columns of its scale alone. A row keeps its scales if all chosen factors
    together increase its error.

    Args:
        weight, steps, products: As for `round_by_output_error`.
        segments: The columns that share a scale: all of them, or one slice for each block.
        round_steps: A function that rounds scales to the type in which they are stored.
    """
    best_errors = np.full((*weight.shape[:2], len(segments)), np.inf)
    best_factors = np.ones(best_errors.shape, np.float32)
    for factor in RANGE_FACTORS:
        on_progress()
        candidate_steps = round_steps(steps * np.float32(factor))
        differences = weight - quantized_type.quantize(weight / candidate_steps) * candidate_steps
        for index, columns in enumerate(segments):
            errors = measure_row_errors(differences[..., columns], products[:, columns, columns])
            better = errors < best_errors[..., index]
            best_errors[..., index] = np.where(better, errors, best_errors[..., index])
            best_factors[..., index] = np.where(better, np.float32(factor), best_factors[..., index])
    if len(segments) > 1:
        loses = measure_row_errors(
            _compute_rounding_errors(
                weight, round_steps(steps * expand_factors_to_columns(best_factors, segments)), quantized_type
            ),
            products,
        ) >= measure_row_errors(_compute_rounding_errors(weight, steps, quantized_type), products)
        best_factors[loses] = 1
    return best_factors


def expand_factors_to_columns(factors: np.ndarray, segments: Sequence[slice]) -> np.ndarray:
    """Repeats the factor of each scale ``(groups, rows, segments)`` for its columns ``(groups, rows, columns)``."""
    return np.repeat(factors, [columns.stop - columns.start for columns in segments], axis=2)


def _compute_rounding_errors(weight: np.ndarray, steps: np.ndarray, quantized_type: QuantizedType) -> np.ndarray:
    """Returns the errors of weights that are rounded to the nearest quantized values."""
    errors: np.ndarray = weight - quantized_type.quantize(weight / steps) * steps
    return errors


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


def measure_roundings(
    network: Network,
    config: PrecisionConfig,
    ranges: Mapping[str, float],
    groups: Iterable[FusionGroup],
    samples: Samples,
    backend: Backend,
    *,
    methods: Sequence[str] = METHODS,
    progress: RunProgress | None = None,
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
    waves = _split_into_independent_waves(layers)
    steps = StepProgress(
        progress, len(waves) * (len(parts[0]) + len(parts[1])) + len(layers) + (len(methods) + 2) * len(parts[1])
    )
    moves: dict[str, dict[str, RoundingMove]] = {method: {} for method in methods}
    gains: dict[str, dict[str, float]] = {method: {} for method in methods}
    for wave in waves:
        current = base.with_moves(moves[methods[-1]])
        model = build_simulated_model(network, current, ranges)
        folds = EditedConstants(network, current)
        lowerings = rulebook.plan_lowering(network, current, ranges, edited_constants=folds)
        fit, held_out = (
            collect_input_products(network, model, wave, lowerings, part, backend, steps) for part in parts
        )
        for layer in wave:
            steps.report_progress(1)
            scale = lowerings[layer.group.name].scales[layer.site]
            weight = folds.compute_constant((layer.site.layer, layer.site.index), with_rounding=False)
            assert weight is not None
            digest = compute_weight_edits_digest(network, current, (layer.site.layer, layer.site.index))
            for method, (candidate, gain) in _round_layer(
                layer,
                weight,
                scale,
                fit[layer.group.name].products,
                held_out[layer.group.name].products,
                methods,
                steps.report_progress,
            ).items():
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
    waves = _split_into_independent_waves(list_rounded_layers(network, config, groups))
    return len(waves) + len(METHODS) if waves else 0


class StepProgress:
    """The progress over several passes over the samples. An exception from its callback stops the work."""

    def __init__(self, callback: RunProgress | None, total: int) -> None:
        self._callback, self._total, self._done = callback, total, 0

    def report_progress(self, new_steps: int = 0) -> None:
        self._done += new_steps
        if self._callback is not None:
            self._callback(min(self._done, self._total), self._total)

    def make_pass_callback(self) -> RunProgress:
        start = self._done

        def on_progress(done: int, _total: int) -> None:
            self._done = start + done
            self.report_progress()

        return on_progress


def split_held_out_samples(network: NetworkOutline, samples: Samples) -> tuple[Samples, Samples] | None:
    """Returns three quarters of the samples and the last quarter, by a fixed seed; None for a single sample.

    Batches are kept if there are at least four. They are kept too if the network has a fixed batch, or if their rows
    cannot be separated.
    """
    random = np.random.default_rng(_SEED)
    has_fixed_batch = any(info.shape is None or isinstance(next(iter(info.shape), 1), int) for info in network.inputs)
    divides_batches = (
        len(samples) < HELD_OUT_SHARE and not has_fixed_batch and can_mix_samples(samples, range(len(samples)))
    )
    positions = [
        (feed, row)
        for feed in range(len(samples))
        for row in range(samples.count_samples_of_feed(feed) if divides_batches else 1)
    ]
    if len(positions) < 2 or divides_batches and samples.padding is not None:
        return None
    shuffled = [positions[index] for index in random.permutation(len(positions))]
    held = max(len(positions) // HELD_OUT_SHARE, 1)
    rest, held_out = (
        mix_samples_into_batches(samples, [sorted(part)])
        if divides_batches
        else samples.select_feeds([feed for feed, _ in sorted(part)])
        for part in (shuffled[held:], shuffled[:held])
    )
    return rest, held_out


def list_rounded_layers(network: Network, config: PrecisionConfig, groups: Iterable[FusionGroup]) -> list[RoundedLayer]:
    """Returns the layers whose weights can be rounded, in network order."""
    names = {group.name for group in groups}
    return [
        RoundedLayer(group, site, form, QUANTIZED_TYPES[config.precision_of(group)])
        for group in network.groups
        if group.name in names
        and (site := find_sole_weight_site(group)) is not None
        and not rounding_refusal_reason(network, group, config)
        and (form := find_matrix_form(network, network.get_layer(site.layer), site)) is not None
        and form.columns <= MAX_COLUMNS
    ]


def _split_into_independent_waves(layers: Sequence[RoundedLayer]) -> list[list[RoundedLayer]]:
    bounds = [len(layers) * number // MAX_WAVES for number in range(MAX_WAVES + 1)]
    return [
        wave
        for start, stop in pairwise(bounds)
        for wave in divide_by_size(
            layers[start:stop],
            lambda layer: 2 * 4 * layer.form.groups * layer.form.columns**2,  # float32, in both parts of the samples
            MAX_WAVE_BYTES,
        )
    ]


# -- passes over the samples ------------------------------------------------------------------------------------------


def build_simulated_model(network: Network, config: PrecisionConfig, ranges: Mapping[str, float]) -> ir.Model:
    """Returns a network with the quantized weights and activations of a config, and everything else in FP32.

    The rounding of FP16 and BF16 is left out: it is far below that of quantized values. Weights in a type that
    quantizes no activations, or blocks of them, are constants with dequantized values, since not every runtime has the
    type. Groups in file precision have the precision nearest to it.
    """
    config = replace_file_precision_of_groups(config, network.groups)
    kept = {
        group.name
        for group in network.groups
        if (precision := config.precision_of(group)) in QUANTIZED_TYPES
        and QUANTIZED_TYPES[precision].quantizes_activations
        and precision not in BLOCK_PRECISIONS
    }
    simulated = replace(config.without_moves(KeepRuleMove), other=Precision.FP32, tf32=False)
    for group in network.groups:
        precision = config.precision_of(group) if group.name in kept else Precision.FP32
        simulated = simulated.with_group_precision([group], precision)
    model = lower_to_typed_network(network, simulated, ranges).model
    folds = EditedConstants(network, config)
    nodes = {node.name: node for node in model.graph}
    for name, lowering in rulebook.plan_lowering(network, config, ranges, edited_constants=folds).items():
        for site in (site for site in lowering.scales if site.role == "weight" and name not in kept):
            weight, node = folds.compute_constant((site.layer, site.index)), nodes.get(site.layer)
            if weight is None or node is None:
                continue
            array = rulebook.quantize_dequantize_weight(weight, lowering.scales[site])
            tensor = f"{site.layer}__dequantized_{site.index}"
            value = ir.val(tensor, const_value=ir.tensor(np.ascontiguousarray(array, np.float32), name=tensor))
            model.graph.register_initializer(value)
            node.replace_input_with(site.index, value)
    return model


def collect_input_products(
    network: Network,
    model: ir.Model,
    wave: Sequence[RoundedLayer],
    lowerings: Mapping[str, rulebook.GroupLowering],
    samples: Samples,
    backend: Backend,
    steps: StepProgress,
) -> dict[str, InputProductCollector]:
    """Returns the sums of products of the inputs of some layers, by group. Layers with equal inputs share them."""
    shared: dict[object, InputProductCollector] = {}
    by_group: dict[str, InputProductCollector] = {}
    readings: list[CollectedTensor] = []
    for layer in wave:
        tensor = network.get_layer(layer.site.layer).inputs[0]
        activation = next(
            (
                scale
                for site, scale in lowerings[layer.group.name].scales.items()
                if site.layer == layer.site.layer and site.index == 0
            ),
            None,
        )
        form, scale = layer.form, 1.0 if activation is None else float(activation.values)
        read_shape = (1, *form.shape[1:]) if form.is_conv else ()
        key = tensor, scale, activation is None, replace(form, shape=read_shape, channel_axis=0)
        if key not in shared:
            rows = max(MIN_ROWS, ROWS_PER_COLUMN * form.columns)
            shared[key] = InputProductCollector(
                form,
                math.ceil(rows / len(samples)),
                None if activation is None else activation.quantized_type,
                scale,
            )
            readings.append(CollectedTensor(tensor, shared[key]))
        by_group[layer.group.name] = shared[key]
    collect_tensors(model, readings, samples, backend, steps.make_pass_callback())
    return by_group


def measure_output_errors(
    network: Network,
    configs: Sequence[PrecisionConfig],
    ranges: Mapping[str, float],
    samples: Samples,
    backend: Backend,
    steps: StepProgress | None = None,
) -> list[float]:
    """Returns the error of the network's float outputs in some configs against FP32, as a share of their energy.

    The shares of several outputs are added. Only what the configs quantize is rounded.
    """
    names = [value_name(value) for value in network.model.graph.outputs if network.is_fp32(value_name(value))]
    references = _collect_outputs(network.model, names, samples, backend, steps)
    errors = []
    for config in configs:
        outputs = _collect_outputs(build_simulated_model(network, config, ranges), names, samples, backend, steps)
        shares = []
        for name in names:
            energy = sum(float(np.square(feed[name], dtype=np.float64).sum()) for feed in references)
            error = sum(
                float(np.square(feed[name].astype(np.float64) - reference[name]).sum())
                for feed, reference in zip(outputs, references, strict=True)
            )
            shares.append(error / energy if energy > 0 else error)
        errors.append(sum(shares))
    return errors


def _collect_outputs(
    model: ir.Model, names: Sequence[str], samples: Samples, backend: Backend, steps: StepProgress | None
) -> list[dict[str, np.ndarray]]:
    results = []
    with AdaptiveRunner(backend, model, samples, low_memory=True) as runner:
        for index in range(len(samples)):
            outputs = runner.run(samples.read_feed(index))
            results.append({name: np.asarray(outputs[name]) for name in names})
            if steps is not None:
                steps.report_progress(1)
    return results


# -- one layer ------------------------------------------------------------------------------------------------------


def _round_layer(
    layer: RoundedLayer,
    weight: np.ndarray,
    scale: rulebook.QdqScale,
    products: np.ndarray,
    held_out_products: np.ndarray,
    methods: Sequence[str],
    on_progress: Callable[[], None],
) -> dict[str, tuple[RoundingMove, float]]:
    """Returns the roundings of one weight that have a smaller error on both parts of the samples, with their gains."""
    form, quantized_type = layer.form, layer.quantized_type
    matrices = form.convert_to_matrices(weight).astype(np.float32)
    nearest_steps = expand_scales_to_weights(scale.values, scale, form)
    segments = _list_segments(scale, form)
    round_steps = partial(_round_scales_to_stored_type, scale)
    nearest = quantized_type.quantize(matrices / nearest_steps) * nearest_steps

    def measure_errors(dequantized: np.ndarray) -> tuple[float, float]:
        return tuple(
            float(measure_row_errors(matrices - dequantized, sums).sum())  # type: ignore[return-value]
            for sums in (products, held_out_products)
        )

    nearest_errors = measure_errors(nearest)
    energy = float(measure_row_errors(matrices, held_out_products).sum())
    candidates: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    steps = round_steps(nearest_steps)
    if segments is not None and ("scales" in methods or quantized_type.block_sizes):
        factors = choose_scale_factors(
            matrices, nearest_steps, products, quantized_type, segments, round_steps, on_progress
        )
        scaled_steps = round_steps(nearest_steps * expand_factors_to_columns(factors, segments))
        candidates["scales"] = scaled_steps, quantized_type.quantize(matrices / scaled_steps)
        if quantized_type.block_sizes:  # with 256 values in a range, GPTQ gains nothing from smaller ranges
            steps = scaled_steps
    if "GPTQ" in methods:
        rounded = round_by_output_error(matrices, steps, products, quantized_type, on_progress)
        values = quantized_type.quantize(matrices / steps)
        loses = measure_row_errors(matrices - rounded * steps, products) > measure_row_errors(
            matrices - values * steps, products
        )
        candidates["GPTQ"] = steps, np.where(loses[..., None], values, rounded)
    results: dict[str, tuple[RoundingMove, float]] = {}
    for method, (used_steps, values) in candidates.items():
        fit_error, held_out_error = measure_errors(values * used_steps)
        if fit_error < nearest_errors[0] and held_out_error <= (1 - MIN_LAYER_IMPROVEMENT) * nearest_errors[1]:
            results[method] = (
                _build_rounding_move(layer, weight, scale, used_steps, values, method),
                (nearest_errors[1] - held_out_error) / energy if energy > 0 else 0.0,
            )
    return {method: results[method] for method in methods if method in results}


def _build_rounding_move(
    layer: RoundedLayer,
    weight: np.ndarray,
    scale: rulebook.QdqScale,
    steps: np.ndarray,
    values: np.ndarray,
    method: str,
) -> RoundingMove:
    form = layer.form
    step_array = form.convert_from_matrices(np.broadcast_to(steps, values.shape))
    differences = form.convert_from_matrices(values) - quantize_weight(weight, step_array, layer.quantized_type)
    return RoundingMove(
        method,  # type: ignore[arg-type]
        layer.quantized_type.precision,
        encode_vector(_gather_scales(step_array, scale)),
        encode_integers(differences) if differences.any() else "",
    )


def expand_scales_to_weights(values: np.ndarray, scale: rulebook.QdqScale, form: MatrixForm) -> np.ndarray:
    """Repeats each scale for its weights, float32 ``(groups, rows, columns)``."""
    spread = replace(scale, values=values, original_values=None).broadcast_to_shape(form.shape)
    return np.ascontiguousarray(form.convert_to_matrices(np.broadcast_to(spread, form.shape)), np.float32)


def _gather_scales(step_array: np.ndarray, scale: rulebook.QdqScale) -> np.ndarray:
    """Takes one scale for each channel or block from the scales of all weights; returns them flat, in the stored order."""
    if scale.axis is None:
        return step_array.ravel()[:1]
    if scale.block_size is not None:
        return np.take(step_array, np.arange(0, step_array.shape[scale.axis], scale.block_size), scale.axis).ravel()
    return np.moveaxis(step_array, scale.axis, 0).reshape(step_array.shape[scale.axis], -1)[:, 0]


def _list_segments(scale: rulebook.QdqScale, form: MatrixForm) -> list[slice] | None:
    """Returns the columns that share a scale in each row; None if several rows share a scale, which then cannot
    change."""
    size = scale.block_size or form.columns
    return None if scale.axis is None else [slice(start, start + size) for start in range(0, form.columns, size)]


def _round_scales_to_stored_type(scale: rulebook.QdqScale, steps: np.ndarray) -> np.ndarray:
    """Rounds scales to the type in which a config stores them: BF16, or FP16 if FP16 represents them.

    The scales are then the same in every type in which a config may store them, and so are the quantized values.
    """
    if scale.stored_type is Precision.BF16:
        return rulebook.round_to_precision(steps, Precision.BF16)
    if steps.min() < MIN_FP16_SCALE or scale.original_values is not None:
        return steps
    return rulebook.round_to_precision(steps, Precision.FP16)


def _find_raised_scales(
    network: Network, config: PrecisionConfig, ranges: Mapping[str, float], layers: Sequence[RoundedLayer]
) -> list[str]:
    """Returns the groups whose rounded scales the rulebook raises for the bias. Their roundings are dropped."""
    moved = config.get_moves(RoundingMove)
    lowerings = rulebook.plan_lowering(network, config, ranges, edited_constants=EditedConstants(network, config))
    return [
        layer.group.name
        for layer in layers
        if layer.group.name in moved
        and not np.array_equal(
            lowerings[layer.group.name].scales[layer.site].values.ravel(), decode_vector(moved[layer.group.name].scales)
        )
    ]


def _choose_layers_by_gain(gains: Mapping[str, float]) -> list[str]:
    """Returns the layers with the largest gains that have `MIN_GAIN_SHARE` of all gains together."""
    ordered = sorted(gains, key=lambda name: -gains[name])
    gains_before = accumulate((gains[name] for name in ordered), initial=0.0)
    needed = MIN_GAIN_SHARE * sum(gains.values())
    return [name for name, gain in zip(ordered, gains_before, strict=False) if gain < needed]
