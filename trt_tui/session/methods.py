"""What is said of calibration methods that were compared."""

import math
from typing import Any

from trt_tui import words
from trt_tui.core.measure.record import result_record
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.session.state import State
from trt_tui.words import SIMULATED


def _compared(session: State) -> ev.MethodsCompared:
    if session.methods is None:
        raise InputError("no calibration methods were compared", "", "")
    return session.methods


def method_rows(session: State) -> list[list[str]]:
    """A row for each method, with a header: SQNR of the worst output, its worst sample, metric, target, seconds.

    Figures are simulated; seconds are those of calibrating, and absent where the ranges were known from before.
    """
    target, compared = session.target, _compared(session)
    names = list(dict.fromkeys(name for row in compared.rows for name in list(row.verdict.metric)[:1]))
    titles = (name.rpartition(":")[2] for name in names)  # of FILE.py:FUNCTION the function
    table = [["method", "SQNR", "worst sample", *titles, "target" if target is not None else "", "s"]]
    for row in compared.rows:
        worst = row.verdict.worst
        errors = worst[1] if worst is not None else None
        result = session.target_result(row.verdict)
        sample = "" if errors is None or errors.worst_sqnr_db is None else (
            f"{words.decibels(errors.worst_sqnr_db)} #{errors.worst_index}")
        sqnr = "" if errors is None else words.decibels(errors.errors.sqnr_db, exact=errors.errors.exact)
        table.append([row.method, sqnr, sample,
                      *(words.metric_figure(row.verdict.metric.get(name), SIMULATED) for name in names),
                      "" if result is None else result.outcome.value,
                      words.number(row.seconds) if row.seconds >= 0.01 else "known"])
    if target is None:
        table = [[*row[:-2], row[-1]] for row in table]
    return table


def best_method(session: State) -> str:
    """The method with the best figure of the target, or with the least error where there is none."""
    target, rows = session.target, _compared(session).rows

    def score(row: ev.MethodRow) -> float:
        told = target.score(row.verdict) if target is not None else None
        if told is not None:
            return told
        energy = row.verdict.energy
        return -energy if energy is not None and math.isfinite(energy) else -math.inf

    return max(rows, key=score).method


def methods_miss(session: State) -> str:
    """Why the best method misses the target that somebody has stated; "" if one meets it, or nobody can say."""
    rows = _compared(session).rows
    results = [session.target_result(row.verdict) for row in rows]
    if not session.states_target or any(result is None or result.passes for result in results):
        return ""
    best = next(row for row in rows if row.method == best_method(session))
    result = session.target_result(best.verdict)
    return session.miss_text(result, best.verdict) if result is not None else ""


def methods_record(session: State) -> dict[str, Any]:
    """The comparison as plain data for JSON; figures that are not finite are null."""
    rows = []
    for row in _compared(session).rows:
        worst = row.verdict.worst
        sqnr = worst[1].errors.sqnr_db if worst is not None else None
        rows.append({"method": row.method, "sqnr_db": sqnr, "metric": dict(row.verdict.metric),
                     "calibration_seconds": row.seconds, "calibration_samples": row.samples,
                     "samples": row.verdict.samples,
                     **result_record(session.target_result(row.verdict))})
    return {"calibration_methods": rows, "best": best_method(session)}
