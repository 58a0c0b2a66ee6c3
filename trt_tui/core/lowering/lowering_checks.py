"""Checks of a config before lowering: reduced precisions, and support by releases and GPUs."""

from collections.abc import Collection
from dataclasses import replace

from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.network.network import Network
from trt_tui.core.network.opset_conversion import CUBIC_GRID_NEXT_STEP, CUBIC_GRID_NOTE, find_cubic_grid_samples
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.core.quantized_types import BLOCK_PRECISIONS, QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, name_list_text

WEAK_PRECISIONS = frozenset((Precision.INT8,))
"""The precisions of `groups_by_release_dependent_precision` that a weakly typed TensorRT supports."""

TYPED_ONLY_TEXT = "TensorRT 10 or later, typed"
"""The releases that support an FP32 accumulator for FP16 products, which Casts around the product request."""


def reduces_precision(network: NetworkOutline, config: PrecisionConfig) -> bool:
    """Returns True if any fusion group of a config runs below FP32 or multiplies in TF32."""
    return any(
        _is_below_fp32(group, config.precision_of(group)) or config.tf32 and group.qdq_sites_of_multiplied_inputs()
        for group in network.groups
    )


def _is_below_fp32(group: FusionGroup, precision: Precision) -> bool:
    if precision is Precision.FILE and group.file_precision is not None:
        return not group.file_precision.is_plain_fp32
    return precision is not Precision.FP32


def quantizes_activations(network: NetworkOutline, config: PrecisionConfig) -> bool:
    """Returns True if any fusion group of a config quantizes activations with calibrated scales."""
    return any(group.calibrated_qdq_sites(config.precision_of(group)) for group in network.groups)


def leaves_quantized_precision_unused(network: NetworkOutline, config: PrecisionConfig) -> bool:
    """Returns True if the default precision of a config is a quantized type in which no fusion group can run."""
    return config.quantized in QUANTIZED_TYPES and all(
        config.precision_of(group) is not config.quantized for group in network.groups
    )


def replace_all_file_precisions(network: NetworkOutline, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config in which each file precision is replaced by the nearest other precision.

    The ranges of the file's Q/DQ pairs are added to the config. Lowerings that cannot express file precision need this.
    """
    file_groups = [group for group in network.groups if config.precision_of(group) is Precision.FILE]
    if not file_groups:
        return config
    float_types = {group.file_precision.float_type for group in file_groups if group.file_precision is not None}
    other_precision = (
        config.other
        if config.other is not Precision.FILE
        else max(float_types, default=Precision.FP32, key=precision_rank)
    )
    replaced = replace(
        config,
        quantized=Precision.INT8 if config.quantized is Precision.FILE else config.quantized,
        other=other_precision,
    )
    for group in network.groups:
        replaced = replaced.with_group_precision(
            [group], group.resolve_file_precision(config.precision_of(group)), "file"
        )
    quantized_tensors = {
        site.tensor
        for group in file_groups
        if group.file_precision is not None and group.file_precision.nearest_precision is Precision.INT8
        for site in group.activation_qdq_sites()
    }
    for tensor, amax in network.quantized_ranges.items():
        if tensor in quantized_tensors and tensor not in config.range_moves:
            replaced = replaced.with_range(tensor, RangeMove(amax, "file"))
    return replaced


def no_lower_precision_reason(network: NetworkOutline) -> str:
    """Returns the reason why no layer can run below FP32, or none can be quantized; "" if one can."""
    if not any(group.allowed_precisions - {Precision.FP32} for group in network.groups):
        refusals = [reason for group in network.groups for reason in group.refusal_reasons.values()]
        notes = [layer.refusal_reason for layer in network.layers if layer.refusal_reason]
        first_reason = next(iter(refusals or notes), "it has no layer in FP32")
        return (
            f"No layer of this network can run in lower precision ({first_reason}): every run is FP32 and "
            "therefore exact"
            + (
                f". A weakly typed engine is not: {layers_text} may run in lower precisions there"
                if (layers_text := subgraph_layers_text(network))
                else ""
            )
        )
    if not any(Precision.INT8 in group.allowed_precisions for group in network.groups):
        return "No layer of this network can run in INT8: the error of the INT8 run comes from the other layers"
    return ""


def subgraph_layers_text(network: NetworkOutline) -> str:
    """Returns a text that counts the float layers inside control flow and the nodes around them; "" if there are none."""
    layers = [layer for layer in network.layers if layer.body_layers]
    count = sum(layer.body_layers for layer in layers)
    names = name_list_text([layer.name for layer in layers], max_count=3)
    return f"{counted_noun_text(count, 'float layer')} inside {escape_hidden_characters(names)}" if layers else ""


def has_half_subgraph_results(network: NetworkOutline, group: FusionGroup) -> bool:
    """Returns True if control flow in a group returns FP16 or BF16 in the file."""
    return (
        group.file_precision is not None
        and group.file_precision.result_type is not Precision.FP32
        and any(network.get_layer(name).body_layers for name in group.layers)
    )


def weak_typing_notes(network: NetworkOutline, precision_flags: Collection[Precision]) -> tuple[str, ...]:
    """Returns a note on layers whose precision a weakly typed build chooses itself; () if there are none."""
    layers_text = subgraph_layers_text(network)
    flags_text = " and ".join(sorted(flag.label for flag in precision_flags))
    return (
        (f"Not judged: TensorRT chooses {flags_text} for {layers_text}, because control flow takes no precision.",)
        if layers_text and precision_flags
        else ()
    )


def precision_requirements_text(precision: Precision) -> str:
    """Returns a text for users that names the releases and GPUs that support a precision; "" if all do."""
    return (
        TYPED_ONLY_TEXT
        if precision is Precision.FP16_ACC_FP32
        else QUANTIZED_TYPES[precision].requirements_text
        if precision in QUANTIZED_TYPES
        else ""
    )


def find_min_compute_capability(config: PrecisionConfig) -> tuple[int, int] | None:
    """Returns the lowest compute capability that supports all quantized types of a config; None if it has no such type."""
    precisions = {config.quantized, *(move.precision for move in config.precision_moves.values())}
    return max(
        (
            quantized_type.min_compute_capability
            for precision in precisions
            if (quantized_type := QUANTIZED_TYPES.get(precision)) is not None
            and quantized_type.min_compute_capability is not None
        ),
        default=None,
    )


def tensorrt_operators_text(network: NetworkOutline, config: PrecisionConfig) -> str:
    """Returns a text that names the precisions of a config that need TensorRT's own operators, and the releases with
    these operators; "" if there are none.
    """
    precisions = BLOCK_PRECISIONS.intersection(config.precision_of(group) for group in network.groups)
    return " and ".join(
        f"{precision.label} ({QUANTIZED_TYPES[precision].requirements_text}, or TensorRT-RTX)"
        for precision in sorted(precisions)
    )


def groups_by_release_dependent_precision(
    network: NetworkOutline, config: PrecisionConfig
) -> dict[Precision, list[str]]:
    """Returns the fusion groups in precisions that only some releases support, by precision.

    Such precisions are the quantized types, and FP16 with an FP32 accumulator.
    """
    groups_by_precision: dict[Precision, list[str]] = {}
    for group in network.groups:
        precision = config.precision_of(group)
        if precision in QUANTIZED_TYPES or precision is Precision.FP16_ACC_FP32:
            groups_by_precision.setdefault(precision, []).append(group.name)
    return groups_by_precision


def refuse_cubic_grid_samples(network: Network, release_name: str) -> None:
    """Refuses a network with a GridSample whose mode TensorRT's parser may interpret differently from ONNX.

    Args:
        release_name: The release, for messages.

    Raises:
        InputError: a GridSample of opset 20 or later has mode cubic.
    """
    if node_names := find_cubic_grid_samples(network.model):
        raise InputError(
            f"{release_name} may read {node_names[0]} with another meaning",
            CUBIC_GRID_NOTE.format(name_list_text(node_names, max_count=2)),
            CUBIC_GRID_NEXT_STEP,
        )


def refuse_unsupported_precisions(
    network: NetworkOutline,
    config: PrecisionConfig,
    supported_precisions: Collection[Precision],
    release_name: str,
    compute_capability: tuple[int, int] | None = None,
) -> None:
    """Refuses a config with a precision that a release or a GPU does not support.

    Args:
        supported_precisions: The precisions of `groups_by_release_dependent_precision` that the release supports.
        release_name: The release, for messages.
        compute_capability: The compute capability of the target GPU; None if unknown.

    Raises:
        InputError: a precision is not supported; the error names the precision and a layer.
    """
    for precision, groups in groups_by_release_dependent_precision(network, config).items():
        quantized_type = QUANTIZED_TYPES.get(precision)
        min_capability = quantized_type.min_compute_capability if quantized_type is not None else None
        if precision not in supported_precisions:
            reason, next_step = (
                f"{release_name} has no {precision.label}",
                "or build with a release that supports it: " + precision_requirements_text(precision),
            )
        elif compute_capability is not None and min_capability is not None and compute_capability < min_capability:
            reason = (
                f"a GPU of compute capability {compute_capability[0]}.{compute_capability[1]} has no {precision.label}"
            )
            next_step = f"or build for {min_capability[0]}.{min_capability[1]} or later"
        else:
            continue
        layer_text = f", {groups[0]} among them" if len(groups) > 1 else f", {groups[0]}"
        raise InputError(
            reason,
            f"this config has {counted_noun_text(len(groups), 'layer')} in {precision.label}{layer_text}",
            f"Put them in FP16 or INT8, {next_step}.",
        )
