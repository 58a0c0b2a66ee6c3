"""FP16's rounding alone gives the error that is to be mended: no layer raised from a quantized type to FP16 can help.

Rule: it warns where the run misses the target, FP16 throughout misses it too, and the worst output's SQNR in FP16 is
less than 1 dB above the run's.

Source: errors of INT8 layers and of FP16 roundings add up; a run within 1 dB of FP16 has four fifths of its error from
there (10^-0.1 = 0.79), and all of its INT8 layers together are worth the last fifth.
"""

from collections.abc import Iterator

from trt_tui.core.guards.facts import Facts
from trt_tui.core.guards.guard import Alarm, Guard
from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.measure.target_result import judge_accuracy

LESS_THAN_DB = 1.0


def _sqnr(verdict: Verdict) -> float | None:
    worst = verdict.worst
    return worst[1].errors.sqnr_db if worst is not None and not verdict.bad else None


class Fp16Floor(Guard):
    """See the module's docstring."""

    name = "fp16-floor"
    about = "FP16's rounding alone against the error to be mended"

    def lacks(self, facts: Facts) -> str:
        """Why these facts tell it nothing."""
        verdict, half = facts.verdict, facts.half
        if verdict is None or half is None or min(verdict.samples, half.samples) < max(verdict.total, half.total):
            return "the runs are not measured"
        if facts.floats != "fp16" or not facts.codes:
            return "the run is not of codes within FP16"
        return "" if _sqnr(verdict) is not None and _sqnr(half) is not None else "no SQNR was measured"

    def check(self, facts: Facts) -> Iterator[Alarm]:
        """Yields what it warns of."""
        verdict, half, target = facts.verdict, facts.half, facts.target
        assert verdict is not None and half is not None, "else it lacks"
        run_db, half_db = _sqnr(verdict), _sqnr(half)
        assert run_db is not None and half_db is not None, "else it lacks"
        results = [judge_accuracy([target], one) if target is not None else None for one in (verdict, half)]
        if any(result is None or result.passes for result in results):
            return
        if half_db - run_db < LESS_THAN_DB:
            yield self.alarm(f"FP16's rounding alone gives the error of {facts.run}",
                             f"FP16 throughout has {half_db:.1f} dB, {facts.run} {run_db:.1f}, and both miss the "
                             f"target: raising layers from {facts.quantized} to FP16 gains nothing",
                             "Raise what loses in FP16 to FP32 (the FP16 run's shares say which), or use --other bf16.")
