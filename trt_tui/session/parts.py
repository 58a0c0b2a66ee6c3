"""The parts of the user's metric, such as one for each class, in FP32, each run and each engine."""

from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.measure.metric_parts import part_rows
from trt_tui.session.state import State
from trt_tui.words import NOTHING, SIMULATED, engine_title, metric_figure, run_title


def columns(state: State) -> list[tuple[str, str, Verdict]]:
    """Title, mark and verdict of each run that has parts of a metric, and of its engine; a config that is another run
    is left out."""
    configs = state.run_configs()
    found: list[tuple[str, str, Verdict | None]] = []
    for run, config in configs.items():
        if run == "config" and config in (configs["fp16"], configs["int8"]):
            continue
        known = state.results.of(config)
        found.append((run_title(run, state.config.as_in_file), SIMULATED, known.verdict))
        if known.engine is not None and known.engine.as_asked:
            found.append((engine_title(run, state.config.as_in_file), "", known.engine.verdict))
    if state.results.fp32_engine is not None:
        found.insert(0, ("FP32 engine", "", state.results.fp32_engine.verdict))
    return [(title, mark, verdict) for title, mark, verdict in found if verdict is not None and verdict.metric]


def parts_table(state: State) -> list[list[str]]:
    """A row for each part, that with the worst drop first, below the headline's and a header; none of a metric without
    parts."""
    reference, runs = state.results.reference, columns(state)
    if len(reference) < 2 or not runs:
        return []
    rows = [["metric by part, worst drop first", "FP32", *(title for title, _, _ in runs), "drop"]]
    for row in part_rows(reference, [verdict.metric for _, _, verdict in runs]):
        figures = [NOTHING if figure is None else metric_figure(figure, mark)
                   for figure, (_, mark, _) in zip(row.figures, runs, strict=True)]
        rows.append([row.name, metric_figure(row.reference), *figures,
                     NOTHING if row.drop is None else metric_figure(row.drop)])
    return rows
