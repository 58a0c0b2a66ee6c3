"""Checks whether zero-cost moves can apply to a fusion group: norm as operator, rounding, bias correction, new Q/DQ.

The table `trt_tui.core.measure.zero_cost_kinds` reads them.
"""

from collections.abc import Iterable

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.constant_moves import (
    ROUNDED_OPERATORS,
    ROUNDED_PRECISIONS,
    find_sole_weight_site,
)
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision


def rewrite_refusal_reason(network: NetworkOutline, group: FusionGroup) -> str:
    """Returns the reason why an operator cannot replace the normalisation of a fusion group; "" if it can."""
    norm = network.zero_cost_support.norms.get(group.name)
    return "no decomposed LayerNorm or RMSNorm" if norm is None else norm.no_rewrite_reason


def bias_correction_refusal_reason(network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
    """Returns the reason why the bias of a fusion group cannot be corrected in a config; "" if it can."""
    bias = network.zero_cost_support.biases.get(group.name)
    if bias is None:
        return "it has no weight that INT8 rounds"
    if bias.refusal_reason:
        return bias.refusal_reason
    return "" if config.precision_of(group) is Precision.INT8 else "it does not run in INT8"


def rounding_refusal_reason(network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
    """Returns the reason why the weight of a fusion group cannot get a measured rounding in a config; "" if it can."""
    site = find_sole_weight_site(group)
    if site is None:
        return "it does not have exactly one weight"
    if config.precision_of(group) not in ROUNDED_PRECISIONS:
        return f"it runs in neither {' nor '.join(precision.label for precision in ROUNDED_PRECISIONS)}"
    operator = network.get_layer(site.layer).op_type
    return "" if operator in ROUNDED_OPERATORS else f"the rounding of a {operator} by the error is not supported"


def replace_file_precision_of_groups(
    config: PrecisionConfig, groups: Iterable[FusionGroup], reason: str = "user"
) -> PrecisionConfig:
    """Returns a config in which some fusion groups have the precision nearest to their file precision.

    A group with a zero-cost move cannot keep its form in the file.
    """
    for group in groups:
        if config.precision_of(group) is Precision.FILE and group.file_precision is not None:
            config = config.with_group_precision([group], group.file_precision.nearest_precision, reason)
    return config


def find_qdq_repair(network: NetworkOutline, config: PrecisionConfig, group: FusionGroup) -> Precision | None:
    """Returns the precision of a fusion group with which an export repairs its Q/DQ nodes; None if nothing needs
    repair.

    An export writes new Q/DQ nodes in this precision. Returns None too if the group is not in file precision.
    """
    if config.precision_of(group) is not Precision.FILE:
        return None
    return next(
        (
            finding.repair_precision
            for finding in network.qdq_findings or ()
            if finding.group == group.name and finding.repair_precision is not None
        ),
        None,
    )


def qdq_repair_refusal_reason(network: NetworkOutline, group: FusionGroup, config: PrecisionConfig) -> str:
    """Returns the reason why new Q/DQ nodes would not repair a fusion group; "" if they would."""
    if network.qdq_findings is None:
        return "the file has no Q/DQ nodes"
    return (
        ""
        if find_qdq_repair(network, config, group) is not None
        else ("the check of the file finds no Q/DQ nodes here that new ones repair")
    )
