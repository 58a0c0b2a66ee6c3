"""How much of the work that a config's codes were to do it does in floats."""

from trt_tui.core.codes import CODES
from trt_tui.core.guards.facts import InFloat
from trt_tui.core.measure.comparison import EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Outline


def in_float(network: Outline, config: PrecisionConfig, engine: EngineResult | None) -> InFloat | None:
    """The share of the work back in floats; None where the config has nothing run in codes by default, or the work is
    not known.

    Args:
        engine: Of everything in the codes; where its layers were timed, the share is of their time, else of the
            multiply-accumulates.
    """
    if config.quantized not in CODES:
        return None
    able = [group for group in network.groups if config.quantized in group.allowed]
    back = [group for group in able if config.precision_of(group) not in CODES]
    made = engine.made if engine is not None and engine.as_asked else {}
    times = {name: one.ms for name, one in made.items() if one.ms is not None}
    timed = all(group.name in times for group in able)
    weights = times if timed else {group.name: float(sum(network.layer(name).macs or 0 for name in group.layers))
                                   for group in able}
    total = sum(weights[group.name] for group in able)
    if not total or not all(weights[group.name] for group in able) and not timed:
        return None  # sizes that are not known, so that a share of the others would be one of a part
    return InFloat(sum(weights[group.name] for group in back) / total, timed, len(back), len(able))
