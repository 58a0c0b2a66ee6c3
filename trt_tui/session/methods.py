"""What is said of calibration methods that were compared."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trt_tui import words
from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.measure.record import result_record
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.session.state import State
from trt_tui.words import SIMULATED


def _compared(session: State) -> ev.MethodsCompared:
    if session.methods is None:
        raise InputError("no calibration methods were compared", "", "")
    return session.methods


@dataclass(frozen=True)
class _Ranking:
    """The column by which methods are ranked.

    Attributes:
        title: Its heading.
        figure: Its cell for an accuracy.
        score: Higher is better; None if it was not measured.
        shown: The table has the column in any case.
    """

    title: str
    figure: Callable[[Verdict], str]
    score: Callable[[Verdict], float | None]
    shown: bool = False


def _sqnr_score(accuracy: Verdict) -> float | None:
    """Returns the SQNR of the worst output in dB: infinite if it is exact, negative infinity for NaN and Inf."""
    if accuracy.worst is None:
        return None
    errors = accuracy.worst[1].errors
    if errors.exact:
        return math.inf
    return errors.sqnr_db if errors.sqnr_db is not None and not accuracy.bad else -math.inf


def _sqnr_figure(accuracy: Verdict) -> str:
    errors = accuracy.worst[1].errors if accuracy.worst is not None else None
    return "" if errors is None else words.decibels(errors.sqnr_db, exact=errors.exact)


_BY_SQNR = _Ranking("SQNR", _sqnr_figure, _sqnr_score, shown=True)


def _ranking(session: State) -> _Ranking:
    """Returns the column of the target's value; that of the SQNR without a target, or if the value is not measured."""
    target, rows = session.target, _compared(session).rows
    if target is None or any(target.score(row.verdict) is None for row in rows):
        return _BY_SQNR
    if target.kind == "sqnr" and target.output is None:
        return _BY_SQNR
    if target.kind == "metric" and target.part is None:
        headings = {_heading(name) for row in rows for name in list(row.verdict.metric)[:1]}
        if len(headings) == 1:
            return _Ranking(headings.pop(), lambda accuracy: words.metric_figure(accuracy.headline, SIMULATED),
                            target.score, shown=True)
    of = f" of {target.output}" if target.output is not None else ""
    return _Ranking(f"{target.title}{of}", lambda accuracy: SIMULATED + target.measured(accuracy), target.score)


def _heading(name: str) -> str:
    """Returns the function of a metric that is named as ``FILE.py:FUNCTION``."""
    return name.rpartition(":")[2]


def method_rows(session: State) -> list[list[str]]:
    """A row for each method, with a header: SQNR of the worst output, its worst sample, metric, target, seconds.

    What the methods are ranked by has a column in any case. Figures are simulated; seconds are those of calibrating,
    and absent where the ranges were known from before.
    """
    target, compared, ranking = session.target, _compared(session), _ranking(session)
    names = list(dict.fromkeys(name for row in compared.rows for name in list(row.verdict.metric)[:1]))
    more = [] if ranking.shown else [ranking]
    table = [["method", "SQNR", "worst sample", *map(_heading, names), *(one.title for one in more),
              "target" if target is not None else "", "s"]]
    for row in compared.rows:
        worst = row.verdict.worst
        errors = worst[1] if worst is not None else None
        result = session.target_result(row.verdict)
        sample = "" if errors is None or errors.worst_sqnr_db is None else (
            f"{words.decibels(errors.worst_sqnr_db)} #{errors.worst_index}")
        table.append([row.method, _sqnr_figure(row.verdict), sample,
                      *(words.metric_figure(row.verdict.metric.get(name), SIMULATED) for name in names),
                      *(one.figure(row.verdict) for one in more), "" if result is None else result.outcome.value,
                      words.number(row.seconds) if row.seconds >= 0.01 else "known"])
    if target is None:
        table = [[*row[:-2], row[-1]] for row in table]
    return table


def best_method(session: State) -> str:
    """The method with the best value in the column of `ranked_by`; of equal ones that with the best SQNR."""
    ranking = _ranking(session)

    def score(row: ev.MethodRow) -> tuple[float, float]:
        values = [one(row.verdict) for one in (ranking.score, _sqnr_score)]
        first, second = (-math.inf if value is None else value for value in values)
        return first, second

    return max(_compared(session).rows, key=score).method


def ranked_by(session: State) -> str:
    """The heading of the column by which methods are ranked."""
    return _ranking(session).title


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
    return {"calibration_methods": rows, "best": best_method(session), "ranked_by": ranked_by(session)}
