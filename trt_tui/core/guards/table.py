"""All guards, and what they make of some facts."""

from trt_tui.core.guards.back_in_float import BackInFloat
from trt_tui.core.guards.beyond_range import BeyondRange
from trt_tui.core.guards.constant_inputs import ConstantInputs
from trt_tui.core.guards.facts import Facts
from trt_tui.core.guards.few_samples import FewSamples
from trt_tui.core.guards.foreign_cache import ForeignCache
from trt_tui.core.guards.fp16_floor import Fp16Floor
from trt_tui.core.guards.framework import Framework
from trt_tui.core.guards.guard import Alarm, Checked, Guard
from trt_tui.core.guards.missing_classes import MissingClasses
from trt_tui.core.guards.more_samples import MoreSamples
from trt_tui.core.guards.stale_ranges import StaleRanges
from trt_tui.core.guards.unlike_inputs import UnlikeInputs

GUARDS: tuple[Guard, ...] = (
    ConstantInputs(), UnlikeInputs(), StaleRanges(), ForeignCache(), FewSamples(), MissingClasses(), MoreSamples(),
    BeyondRange(), Framework(), Fp16Floor(), BackInFloat())
"""All guards, the gravest first."""


def checked(facts: Facts) -> tuple[Checked, ...]:
    """What each guard makes of the facts, in the order of `GUARDS`."""
    found = []
    for guard in GUARDS:
        lacks = guard.lacks(facts)
        found.append(Checked(guard, () if lacks else tuple(guard.check(facts)), lacks))
    return tuple(found)


def alarms(facts: Facts) -> tuple[Alarm, ...]:
    """All that is to be warned of, the gravest first."""
    return tuple(alarm for one in checked(facts) for alarm in one.alarms)
