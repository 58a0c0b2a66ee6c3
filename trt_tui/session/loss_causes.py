"""The causes of the loss at the fusion groups of a session, found from its measured results."""

from collections.abc import Iterable

from trt_tui.core.calibration.calibration import TensorStats, select_ranges_for_type
from trt_tui.core.lowering.network_rewrite import list_normalisation_rewrites
from trt_tui.core.lowering.rulebook import find_boundary_type
from trt_tui.core.measure.causes import (
    GROUP_DETAILS,
    CauseFacts,
    GroupDetails,
    are_shares_conclusive,
    find_causes,
    list_groups_to_explain,
)
from trt_tui.core.measure.results import Cause
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.constant_moves import channel_scaling_refusal_reason
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES, QuantizedType
from trt_tui.session.state import SessionState


def collect_cause_facts(session: SessionState, config: PrecisionConfig, group: FusionGroup) -> CauseFacts:
    """Returns the known facts from which the causes of the loss at a group are found."""
    results = session.results.get_results_or_empty(config)
    requested = config.precision_of(group)
    precision = group.resolve_file_precision(requested)
    details = session.results.find_value(GROUP_DETAILS, group.name) or GroupDetails()
    stats = details.tensors
    ranges = {
        site.tensor: _find_tensor_range(session, config, site.tensor, stats[site.tensor], QUANTIZED_TYPES[precision])
        for site in (group.activation_qdq_sites() if precision in QUANTIZED_TYPES else ())
        if site.tensor in stats
    }
    outline = session.outline
    judged_amax = {
        name: float(max(stats.maximum.max(), -stats.minimum.min()))
        for name, (_, stats) in (session.facts.input_stats or {}).items()
    }
    for other in outline.groups if outline is not None and ranges else ():
        if (errors := results.group_errors.get(other.name)) is not None and errors.ref_max is not None:
            judged_amax[other.final_tensor] = errors.ref_max
    norm = outline.zero_cost_support.norms.get(group.name) if outline is not None else None
    return CauseFacts(
        group,
        precision,
        find_boundary_type(group, requested, config.other),
        requested is Precision.FILE,
        results.group_errors.get(group.name),
        results.shares.get(group.name),
        results.accuracy is not None and results.accuracy.nonfinite_count > 0,
        are_shares_conclusive(results.shares),
        stats,
        {tensor: amax for tensor, (amax, _) in ranges.items()},
        {tensor: source for tensor, (_, source) in ranges.items()},
        details.facts,
        norm
        if norm is not None and len(norm.layers) > 1 and group.name not in list_normalisation_rewrites(config)
        else None,
        _can_smooth(outline, config, group) if outline is not None else None,
        not config.fixed_range_tensors.isdisjoint(site.tensor for site in group.activation_qdq_sites()),
        judged_amax,
    )


def _can_smooth(outline: NetworkOutline, config: PrecisionConfig, group: FusionGroup) -> bool:
    """Returns True if SmoothQuant can scale channels at a group that are not scaled yet."""
    subject = outline.zero_cost_support.find_channel_scaling_key(group.name, group.layers)
    return (
        subject is not None
        and not channel_scaling_refusal_reason(outline, subject)
        and not config.has_scaled_channels(subject)
    )


def find_worst_group_causes(session: SessionState, config: PrecisionConfig) -> dict[str, tuple[Cause, ...]]:
    """Returns the causes of the groups with the largest losses in a config, by group name, the worst first.

    Groups whose statistics were not measured are left out.
    """
    outline = session.opened_network.outline
    return {
        name: find_causes(collect_cause_facts(session, config, outline.get_group(name)))
        for name in list_groups_to_explain(session.results.get_results_or_empty(config))
        if name in session.results.get_values(GROUP_DETAILS)
    }


def reset_raised_groups(session: SessionState, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config in which raised groups have their default precision again. Its other moves stay.

    The losses in this config are the reason why a search raised the groups.
    """
    outline = session.opened_network.outline
    for name in config.find_raised_groups(outline):
        group = outline.get_group(name)
        config = config.with_group_precision([group], config.default_precision_of(group))
    return config


def find_raise_causes(session: SessionState, config: PrecisionConfig) -> dict[str, tuple[Cause, ...]]:
    """Returns the causes of the losses that the raises of a config prevent, by name of the raised group.

    Groups whose loss was not measured with the default precision are left out.
    """
    outline = session.opened_network.outline
    configs_before_raise = [reset_raised_groups(session, config)]
    causes = {
        name: find_raised_group_causes(session, configs_before_raise, outline.get_group(name))
        for name in config.find_raised_groups(outline)
    }
    return {name: group_causes for name, group_causes in causes.items() if group_causes is not None}


def find_raised_group_causes(
    session: SessionState, configs_before_raise: Iterable[PrecisionConfig], group: FusionGroup
) -> tuple[Cause, ...] | None:
    """Returns the causes of the loss of a group in the first of the configs with a measured loss; None if no loss was
    measured.

    Args:
        configs_before_raise: Configs in which the group is not raised.
    """
    if group.name not in session.results.get_values(GROUP_DETAILS):
        return None
    return next(
        (
            find_causes(collect_cause_facts(session, lowered, group))
            for lowered in configs_before_raise
            if group.name in session.results.get_results_or_empty(lowered).group_errors
        ),
        None,
    )


def list_configs_before_raise(
    session: SessionState, config: PrecisionConfig, group: FusionGroup
) -> list[PrecisionConfig]:
    """Returns configs in which a raised group has its default precision, so that its loss is visible.

    They are the config without any raises, and the runs of uniform precision. The result is [] for other groups.
    """
    default = config.default_precision_of(group)
    if group.precision_rank(config.precision_of(group)) <= group.precision_rank(default):
        return []
    return [
        reset_raised_groups(session, config),
        *(
            run_config
            for run_config in session.list_run_configs().values()
            if run_config.precision_of(group) is default
        ),
    ]


def _find_tensor_range(
    session: SessionState,
    config: PrecisionConfig,
    tensor: str,
    tensor_stats: TensorStats,
    quantized_type: QuantizedType,
) -> tuple[float, str]:
    """Returns the range (amax) of a quantized tensor, and its origin: "the file's", "own", or the name of the range
    method.

    The model file decides first, then the config, then the calibration.
    """
    outline, calibration = session.outline, session.calibration
    if config.quantized is Precision.FILE and outline is not None and tensor in outline.quantized_ranges:
        return outline.quantized_ranges[tensor], "the file's"
    joined_tensors = outline.tensors_with_shared_range.get(tensor, (tensor,)) if outline is not None else (tensor,)
    if range_choice := next((config.range_moves[name] for name in joined_tensors if name in config.range_moves), None):
        return range_choice.amax, "own" if range_choice.method == "user" else range_choice.method
    if calibration is None:
        return tensor_stats.amax, ""
    calibrated = select_ranges_for_type(calibration.range_table, quantized_type)
    amaxes = [calibrated[name] for name in joined_tensors if name in calibrated]
    return max(amaxes, default=tensor_stats.amax), calibration.method
