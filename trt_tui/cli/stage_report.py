"""The stages of a comparison as text: a row each, and where it first goes wrong."""

from trt_tui import words
from trt_tui.cli.made import engine_table
from trt_tui.cli.report import session_metric
from trt_tui.core.measure import stages as kinds
from trt_tui.core.measure.comparison import EngineResult, Verdict
from trt_tui.core.measure.stages import Stage
from trt_tui.session.session import Session
from trt_tui.words import NOTHING, table


def stage_lines(session: Session) -> list[str]:
    """What stands on the way to production; nothing where no stage was asked for."""
    rows = session.stage_rows()
    if not rows:
        return []
    production = next((stage for stage, _ in rows if stage.name == kinds.PRODUCTION), None)
    lines = [""]
    for one in production.inputs if production is not None else ():
        lines.append(f"inputs of production: {one.said}")
    metric = session_metric(session)
    errors = ["SQNR", "cosine", "MSE", "max abs"]
    figures = [["stage", *errors, metric, "NaN/Inf", f"to the one before: {errors[0]}", *errors[1:], "ms", ""]]
    for stage, verdict in rows:
        figures.append(_row(session, stage, verdict))
        for name, beside in stage.beside:
            figures.append([f"  against {name}", *_errors(beside, ""), "", _bad(beside), *[""] * 6])
    kept = [i for i in range(len(figures[0])) if any(row[i] for row in figures[1:])]
    lines += table([[row[i] for i in kept] for row in figures])
    lines += [f"{stage.name}: not built: {stage.failed}" for stage, _ in rows if stage.failed]
    results = {stage.name: session.target_result(verdict) for stage, verdict in rows}
    lines += [f"{name}: {result.text}" for name, result in results.items() if result is not None and result.reasons]
    lines += ["", *session.stage_summary()]
    for stage, _ in rows:
        if stage.engine is not None and stage.engine.report is not None:
            lines += ["", f"what became of each layer in {stage.name}:",
                      *engine_table(session.opened.outline, stage.engine.report).splitlines()]
        if stage.engine is not None:
            lines += [f"{stage.name}: {said}" for said in _speed(stage.engine)]
        if stage.engine is not None and stage.engine.note:
            lines.append(f"{stage.name}: {stage.engine.note}")
    return lines


def _speed(engine: EngineResult) -> list[str]:
    graph = f"{words.milliseconds(engine.graph_ms[0])} as one CUDA graph" if engine.graph_ms is not None else ""
    return [*filter(None, [graph]), *engine.profiles_said]


def _row(session: Session, stage: Stage, verdict: Verdict | None) -> list[str]:
    mark = words.SIMULATED if stage.kind == kinds.SIMULATED else ""
    if verdict is None:
        return [stage.name, *[NOTHING] * 4, *[""] * 8]
    target = session.target
    metric = ""
    if verdict.headline is not None:
        metric = words.metric_figure(verdict.headline, mark)
    elif verdict.agreement is not None and target is not None and target.kind == "agreement":
        metric = words.rate(verdict.agreement, mark)
    engine = stage.engine
    if engine is None and stage.kind == kinds.BUILT and stage.config is not None:
        engine = session.results.of(stage.config).engine
    ms = words.number(engine.latency_ms[0]) if engine is not None and engine.latency_ms is not None else ""
    result = session.target_result(verdict)
    said = [result.outcome.value if result is not None else ""]
    if engine is not None and not engine.as_asked:
        said.append("otherwise")
    name = f"{stage.name} ({engine.builder})" if engine is not None else stage.name
    return [name, *_errors(verdict, mark), metric, _bad(verdict),
            *(_errors(stage.before, mark) if stage.before is not None else [""] * 4), ms, ", ".join(filter(None, said))]


def _errors(verdict: Verdict, mark: str) -> list[str]:
    """dB, cosine, MSE and the largest error of the worst output."""
    if verdict.worst is None:
        return [NOTHING] * 4
    errors = verdict.worst[1].errors
    if errors.mismatch is not None:
        return [f"{words.differing(errors.mismatch, mark)} differ", "", "", ""]
    return [errors.figure(mark), words.cosine(errors.cosine), words.number(errors.mse), words.number(errors.max_abs)]


def _bad(verdict: Verdict) -> str:
    return str(verdict.bad)
