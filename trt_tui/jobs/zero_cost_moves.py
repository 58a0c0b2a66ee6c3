"""The proposals of zero-cost moves for a config: for the groups of one row, or for all groups in a search."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trt_tui.core.measure import zero_cost_moves
from trt_tui.core.moves.bias_correction_move import BiasCorrectionMove
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.rewrite_move import RewriteMove
from trt_tui.core.moves.smoothquant_move import SmoothQuantMove
from trt_tui.core.moves.zero_cost_checks import bias_correction_refusal_reason, replace_file_precision
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.jobs.executors import get_executor
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.workspace import Workspace

SMOOTHQUANT_STRENGTHS = (0.5, 0.25, 0.75)
"""The exponents of SmoothQuant to try, the usual exponent first."""


LEAVES_FILE_SUFFIX = ", no longer in file precision"
"""The suffix in the label of a proposal that replaces the file precision of groups by another precision."""


@dataclass(frozen=True)
class ConfigProposal:
    """A proposed config with zero-cost moves of one kind added, and the label of these moves."""

    label: str
    config: PrecisionConfig


def propose_zero_cost_moves(workspace: Workspace, reporter: JobReporter, groups: Sequence[FusionGroup],
                            config: PrecisionConfig, *, reason: str = "user", kinds: str = "",
                            may_leave_file: bool = False, one_pass: bool = False) -> list[ConfigProposal]:
    """Returns the zero-cost moves that some groups can have and do not have yet, as one config for each kind of move.

    Args:
        may_leave_file: True to change groups in file precision too, which then get the precision nearest to it.
        one_pass: True to measure values for these groups in one separate pass, even if they are known
            (`Workspace.one_pass_values`).
        kinds: "form" for norm operators and SmoothQuant only, "bias" for bias correction only, "" for all.

    Raises:
        InputError: A tensor contains NaN or infinity in FP32, or the data cannot be read.
    """
    network = workspace.network
    config_proposals: list[ConfigProposal] = []

    def prepare_config_for_changes(changed_groups: Iterable[FusionGroup]) -> tuple[PrecisionConfig, str]:
        """Returns the config with the file precision of some groups replaced, and the suffix for the label of the
        proposal."""
        ready = replace_file_precision(config, changed_groups, reason) if may_leave_file else config
        return ready, LEAVES_FILE_SUFFIX if ready != config else ""

    ready, _ = prepare_config_for_changes(groups)
    changed, suffix = prepare_config_for_changes(group for group in groups
                                                 if kinds == "form" and config.precision_of(group) is Precision.FILE
                                                 and group.calibrated_qdq_sites(ready.precision_of(group)))
    if suffix:  # otherwise the effect of other ranges would count as a gain of the following moves
        config_proposals.append(ConfigProposal(f"recalibration{suffix}", changed))
    low_groups = [group for group in groups
                  if kinds != "bias" and ready.precision_of(group).value_type in (Precision.FP16, Precision.BF16)]
    rewrites = zero_cost_moves.propose_normalisation_rewrites(
        network, (group for group in low_groups if group.name not in config.get_moves(RewriteMove)), reason)
    if rewrites:
        operator_names = dict.fromkeys(move.operator.replace("alization", "") for move in rewrites.values())
        changed, suffix = prepare_config_for_changes(group for group in low_groups if group.name in rewrites)
        config_proposals.append(
            ConfigProposal(f"{' and '.join(operator_names)} operator{suffix}", changed.with_moves(rewrites)))
    norms = _find_smoothable_normalisations(workspace, groups, config, may_leave_file) if kinds != "bias" else []
    channels = workspace.one_pass_values.setdefault(("channels", *norms), {}) if one_pass else workspace.channel_amax
    for strength in SMOOTHQUANT_STRENGTHS if norms else ():
        smoothings = zero_cost_moves.measure_smoothquant_moves(
            network, norms, workspace.calibration_samples, workspace.backend, strength=strength, reason=reason,
            channel_maxima=channels, progress=reporter.make_progress_callback("largest values of channels",
                                                                              is_preemptible=True),
            executor=get_executor(workspace, reporter))
        changed, suffix = prepare_config_for_changes(_list_normalisation_groups(network, norms))
        config_proposals.append(
            ConfigProposal(f"SmoothQuant {strength:g}{suffix}",
                           zero_cost_moves.add_smoothquant_moves(changed, network, smoothings)))
    correctable = [
        group for group in groups if kinds != "form" and not bias_correction_refusal_reason(network, group, ready)
        and group.name not in config.get_moves(BiasCorrectionMove)
    ]
    if correctable:
        changed, suffix = prepare_config_for_changes(correctable)
        shifts = {
            name: replace(move, reason=reason)
            for name, move in _measure_bias_corrections(workspace, reporter, correctable, changed, one_pass).items()
        }
        if shifts:
            config_proposals.append(ConfigProposal(f"bias correction{suffix}", changed.with_moves(shifts)))
    return config_proposals


def _measure_bias_corrections(workspace: Workspace, reporter: JobReporter, groups: Sequence[FusionGroup],
                              config: PrecisionConfig, one_pass: bool) -> dict[str, BiasCorrectionMove]:
    """Returns the bias corrections of some groups in a config; unknown corrections are measured."""
    method = workspace.calibration.method if workspace.calibration is not None else ""
    corrections = workspace.bias_corrections.setdefault((config, method), {})
    if one_pass:
        corrections = workspace.one_pass_values.setdefault(
            ("biases", config, method, *(group.name for group in groups)), {})
    missing = [group for group in groups if group.name not in corrections]
    if missing:
        corrections |= zero_cost_moves.measure_bias_corrections(
            workspace.network, config, workspace.ranges, missing, workspace.calibration_samples, workspace.backend,
            progress=reporter.make_progress_callback("means of channels",
                                                     is_preemptible=True), executor=get_executor(workspace, reporter))
    return {group.name: corrections[group.name] for group in groups if group.name in corrections}


def _list_normalisation_groups(network: Network, normalisation_names: Iterable[str]) -> list[FusionGroup]:
    """Returns the groups of some normalisations, and the groups that read their results."""
    layers = [
        layer for name in normalisation_names
        for layer in (name, *(read.port[0] for read in network.zero_cost_support.norms[name].consumers))
    ]
    return list({group.name: group for layer in layers if (group := network.find_group(layer)) is not None}.values())


def _find_smoothable_normalisations(workspace: Workspace, groups: Iterable[FusionGroup], config: PrecisionConfig,
                                    may_leave_file: bool) -> list[str]:
    """Returns the names of the normalisations that feed some groups, are read by INT8 layers, and have no SmoothQuant
    scale yet."""
    network = workspace.network
    norm_names = dict.fromkeys(
        network.zero_cost_support.find_feeding_normalisation(group.name, group.layers) for group in groups)
    smoothable = []
    for name in norm_names:
        norm = network.zero_cost_support.norms[name] if name is not None else None
        if name is None or norm is None or norm.no_smoothquant_reason or name in config.get_moves(SmoothQuantMove):
            continue
        readers = [network.find_group(read.port[0]) for read in norm.consumers]
        reader_groups = [reader for reader in readers if reader is not None]
        config = replace_file_precision(config, reader_groups) if may_leave_file else config
        if any(config.precision_of(reader) is Precision.INT8 for reader in reader_groups):
            smoothable.append(name)
    return smoothable
