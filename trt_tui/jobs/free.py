"""The moves that cost nothing at run time, made for a config: on one row, and on all groups at once for a search."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trt_tui.core.measure import free
from trt_tui.core.moves.bias_correction import BiasCorrection
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.offers import no_correction, out_of_the_file
from trt_tui.core.moves.rewrite import Rewrite
from trt_tui.core.moves.smooth import Smooth
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.spreading import hands_of
from trt_tui.workspace import Workspace

STRENGTHS = (0.5, 0.25, 0.75)
"""The exponents of SmoothQuant that are tried; the usual one first."""


LEAVES_FILE = ", no longer as in the file"
"""Behind the name of a proposal that gives groups as in the file a precision."""


@dataclass(frozen=True)
class Proposal:
    """A config with one kind of move more, and what it is called."""

    label: str
    config: PrecisionConfig


def proposals(workspace: Workspace, report: Report, groups: Sequence[Group], config: PrecisionConfig, *,
              reason: str = "user", kinds: str = "", leaves_file: bool = False, together: bool = False
              ) -> list[Proposal]:
    """What can be done about some groups, and is not done yet: one proposal for all of them for each kind.

    Args:
        leaves_file: Groups as in the file may be changed too, which take the precision nearest to it then.
        together: Values are measured for these groups in one pass, whatever is known; see `Workspace.together`.
        kinds: "form" for operators and scaled channels alone, "bias" for corrected biases alone.

    Raises:
        InputError: a tensor holds NaN or an infinity in FP32, or the data cannot be read.
    """
    network = workspace.network
    found: list[Proposal] = []

    def leaving(changed: Iterable[Group]) -> tuple[PrecisionConfig, str]:
        """The config with some groups ready to be changed, and what stands behind the proposal's name."""
        ready = out_of_the_file(config, changed, reason) if leaves_file else config
        return ready, LEAVES_FILE if ready != config else ""

    ready, _ = leaving(groups)
    changed, suffix = leaving(group for group in groups if kinds == "form" and config.precision_of(group)
                              is Precision.FILE and group.ranged(ready.precision_of(group)))
    if suffix:  # so that what other ranges give is not taken for a gain of the moves that follow
        found.append(Proposal(f"recalibration{suffix}", changed))
    low = [group for group in groups
           if kinds != "bias" and ready.precision_of(group).values in (Precision.FP16, Precision.BF16)]
    written = free.rewrites(network, (group for group in low if group.name not in config.of(Rewrite)), reason)
    if written:
        words = dict.fromkeys(move.operator.replace("alization", "") for move in written.values())
        changed, suffix = leaving(group for group in low if group.name in written)
        found.append(Proposal(f"{' and '.join(words)} operator{suffix}", changed.with_moves(written)))
    norms = _norms(workspace, groups, config, leaves_file) if kinds != "bias" else []
    channels = workspace.together.setdefault(("channels", *norms), {}) if together else workspace.channel_amax
    for strength in STRENGTHS if norms else ():
        made = free.smoothings(network, norms, workspace.calibrating, workspace.backend, strength=strength,
                               reason=reason, known=channels,
                               progress=report.sweeping("largest values of channels", gives_way=True),
                               hands=hands_of(workspace, report))
        changed, suffix = leaving(_around(network, norms))
        found.append(Proposal(f"SmoothQuant {strength:g}{suffix}", free.with_smoothings(changed, network, made)))
    able = [group for group in groups if kinds != "form" and not no_correction(network, group, ready)
            and group.name not in config.of(BiasCorrection)]
    if able:
        changed, suffix = leaving(able)
        shifts = {name: replace(move, reason=reason)
                  for name, move in _shifts(workspace, report, able, changed, together).items()}
        if shifts:
            found.append(Proposal(f"bias correction{suffix}", changed.with_moves(shifts)))
    return found


def _shifts(workspace: Workspace, report: Report, groups: Sequence[Group], config: PrecisionConfig, together: bool
            ) -> dict[str, BiasCorrection]:
    """The corrections of some groups in a config, measured where they are not known."""
    method = workspace.calibration.method if workspace.calibration is not None else ""
    known = workspace.corrections.setdefault((config, method), {})
    if together:
        known = workspace.together.setdefault(("biases", config, method, *(group.name for group in groups)), {})
    missing = [group for group in groups if group.name not in known]
    if missing:
        known |= free.corrections(workspace.network, config, workspace.ranges, missing, workspace.calibrating,
                                  workspace.backend, progress=report.sweeping("means of channels", gives_way=True),
                                  hands=hands_of(workspace, report))
    return {group.name: known[group.name] for group in groups if group.name in known}


def _around(network: Network, norms: Iterable[str]) -> list[Group]:
    """Some normalisations and the groups that read what they scale."""
    layers = [layer for name in norms for layer in (name, *(read.port[0] for read in network.free.norms[name].reads))]
    return list({group.name: group for layer in layers if (group := network.group_of(layer)) is not None}.values())


def _norms(workspace: Workspace, groups: Iterable[Group], config: PrecisionConfig, leaves_file: bool) -> list[str]:
    """The normalisations at some groups whose channels INT8 layers read and that are not scaled yet."""
    network = workspace.network
    found = dict.fromkeys(network.free.before(group.name, group.layers) for group in groups)
    wanted = []
    for name in found:
        norm = network.free.norms[name] if name is not None else None
        if name is None or norm is None or norm.no_smooth or name in config.of(Smooth):
            continue
        readers = [network.group_of(read.port[0]) for read in norm.reads]
        known = [one for one in readers if one is not None]
        config = out_of_the_file(config, known) if leaves_file else config
        if any(config.precision_of(one) is Precision.INT8 for one in known):
            wanted.append(name)
    return wanted
