"""Configs beside each other: `compare --config A --config B`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from trt_tui.cli.headless import compare_session
from trt_tui.cli.places import write_outputs
from trt_tui.cli.streams import print_table
from trt_tui.core.exporters.junit import Case, junit_xml
from trt_tui.core.exporters.markdown import markdown_table, text_cell
from trt_tui.core.lowering.lowered import cannot_lower, lowers
from trt_tui.core.measure.comparison import Measured
from trt_tui.core.measure.kernels import KernelChange, kernel_change
from trt_tui.core.measure.record import executed_record, result_record
from trt_tui.core.measure.target_result import TargetResult
from trt_tui.core.moves.config import PrecisionConfig, compared
from trt_tui.core.network.hierarchy import build_tree, titles
from trt_tui.core.network.layers import Outline
from trt_tui.errors import ExitCode, InputError
from trt_tui.options import Options
from trt_tui.session.config_results import SIMULATED_RUN, SUFFIXES, outcome_words
from trt_tui.session.session import Session
from trt_tui.words import (
    EXPORTED_NETWORK,
    NOTHING,
    SIMULATED,
    decibels,
    megabytes,
    metric_figure,
    number,
    table,
    visible,
)

_MOST = 12
"""Kernels that are listed of each kind."""


@dataclass(frozen=True)
class Compared:
    """A config that was read, and what is known of it."""

    name: str
    config: PrecisionConfig
    measured: Measured
    lowers_nothing: bool
    results: Mapping[str, TargetResult]
    missed: Mapping[str, str]

    @property
    def outcome(self) -> str:
        """Whether it meets its target; or that it lowers nothing."""
        return "nothing lowered" if self.lowers_nothing else " ".join(outcome_words(self.results))

    @property
    def met(self) -> bool | None:
        """Whether all its results pass; None where nothing is known, or it lowers nothing."""
        return all(result.passes for result in self.results.values()) if self.results else None


def check_lowered(session: Session, run: str, target: str) -> None:
    """Refuses a target for a run that lowers nothing.

    Raises:
        InputError: nothing is lowered.
    """
    outline = session.opened.outline
    if not lowers(outline, session.run_configs()[run]):
        why = cannot_lower(outline) or "every layer of the config is in FP32"
        raise InputError(f"{run} meets {target} only because nothing is lowered", why,
                         "No figure here tells what precision costs.")


def require_results(session: Session, config: PrecisionConfig, target: str) -> None:
    """Refuses a target of which nobody can say whether a config meets it.

    Raises:
        InputError: what the target needs was not measured.
    """
    if SIMULATED_RUN not in session.config_results(config):
        kind = session.target.kind if session.target is not None else "target"
        raise InputError(f"it is not known whether {target} is met", f"no {kind} was measured",
                         "A metric needs --metric and labels, agreement a classifier, sqnr and cosine a float.")


def compare_configs(options: Options, paths: Sequence[str], target: str | None, force: bool, *, engines: bool,
                    json_path: str | None, markdown_path: str | None, junit_path: str | None, places: Iterable[str]
                    ) -> ExitCode:
    """Measures each config on the same samples, prints and writes one table, and the layers in which they differ.

    Returns:
        `ExitCode.TOLERANCE_NOT_MET` if one misses the target that was named, or its own.

    Raises:
        InputError: a target is named, and no config lowers anything, or one has no value for it.
    """
    found: list[Compared] = []
    places = tuple(places)
    for place, path in enumerate(paths):
        with compare_session(options, path, target, force, layers="none", engines=engines, writes=places) as session:
            name = Path(path).name if [Path(one).name for one in paths].count(Path(path).name) == 1 else path
            lowered = lowers(session.opened.outline, session.config)
            if target is not None and lowered:
                require_results(session, session.config, target)
            found.append(Compared(name, session.config, session.measured("config"), not lowered,
                                  session.config_results(session.config), session.missed_by(session.config)))
            if place < len(paths) - 1:
                continue
            if target is not None and all(one.lowers_nothing for one in found):
                check_lowered(session, "config", target)
            write_outputs([(json_path, lambda session: _record(session.opened.outline, found)),
                           (markdown_path, lambda session: _report(session.opened.outline, found)),
                           (junit_path, lambda session: _junit(session, found))], session)
            if "-" not in (json_path, markdown_path, junit_path):
                layers = _layers(session.opened.outline, found)
                print_table("\n".join([*table(_rows(found)), "", *_reasons(found),
                                       *(table(layers, flush_left=len(layers[0]))
                                         if len(layers) > 1 else ["They are the same."]),
                                       *(line for name, change in _kernels(found)
                                         for line in ("", _title(found, name, change), *change.lines(_MOST)))]))
    for one in found:
        for kind, why in one.missed.items():
            click.echo(f"Target not met by {visible(one.name)}{SUFFIXES[kind]}: {visible(why)}", err=True)
    return ExitCode.TOLERANCE_NOT_MET if any(one.missed for one in found) else ExitCode.DONE


def _reasons(found: Sequence[Compared]) -> list[str]:
    """Why outcomes have a question mark, or fail for another reason than their values alone, a line each."""
    lines = [visible(f"{one.name}{SUFFIXES[kind]}: {result.text}") for one in found
             for kind, result in one.results.items() if result.reasons]
    return [*lines, ""] if lines else []


def _rows(found: Sequence[Compared]) -> list[list[str]]:
    """A row for each config: simulated SQNR of the worst output, its worst sample, the metric, the engine's figures."""
    metrics = list(dict.fromkeys(name for one in found if one.measured.verdict is not None
                                 for name in list(one.measured.verdict.metric)[:1]))
    builders = dict.fromkeys(one.measured.engine.builder for one in found if one.measured.engine is not None)
    executed = any(one.measured.executed is not None for one in found)
    counts: dict[str, str] = {}
    for name, change in _kernels(found):
        counts |= {found[0].name: str(change.before), name: str(change.after)}
    built = [f"built by {' and '.join(builders)}", "ms", "MB"] if builders else []
    rows = [["config", "raised", "SQNR", *metrics, *built, *([EXPORTED_NETWORK] if executed else []),
             *(["kernels"] if counts else []), "target"]]
    for one in found:
        verdict, engine = one.measured.verdict, one.measured.engine
        worst = verdict.worst if verdict is not None else None
        row = [one.name, str(sum(move.runs_in is not None for move in one.config.moves.values())), _decibels(worst),
               *(metric_figure(verdict.metric.get(name) if verdict is not None else None, SIMULATED)
                 for name in metrics)]
        if builders:
            worst = engine.verdict.worst if engine is not None and engine.verdict is not None else None
            row += [_decibels(worst, ""), NOTHING if engine is None or not engine.latency_ms else
                    number(engine.latency_ms[0]),
                    NOTHING if engine is None or engine.bytes is None else megabytes(engine.bytes)]
        if executed:
            judged = one.measured.executed.accuracy if one.measured.executed is not None else None
            row.append("not executed" if judged is None else _decibels(judged.worst, ""))
        row += [counts.get(one.name, NOTHING)] if counts else []
        rows.append([*row, one.outcome])
    return rows


def _decibels(worst: Any, mark: str = SIMULATED) -> str:
    if worst is None:
        return NOTHING
    errors = worst[1].errors
    return decibels(errors.sqnr_db, exact=errors.exact, nan=errors.nan, inf=errors.inf, mark=mark)


def _layers(outline: Outline, found: Sequence[Compared]) -> list[list[str]]:
    """The layers and tensors in which any config differs from the first, with a header."""
    places = titles(build_tree(outline.layers, outline.groups))
    told: dict[str, dict[int, str]] = {}
    first: dict[str, str] = {}
    for place, one in enumerate(found[1:], 1):
        for line in compared(found[0].config, one.config, outline):
            what = line.kind.about(places.get(line.target, line.target))
            first[what] = line.here
            told.setdefault(what, {})[place] = line.there
    rows = [["differs", *(one.name for one in found)]]
    for what, there in told.items():
        rows.append([what, first[what], *(there.get(place, first[what]) for place in range(1, len(found)))])
    return rows


def _kernels(found: Sequence[Compared]) -> list[tuple[str, KernelChange]]:
    """What becomes of the first config's kernels in each other one, by its name, where that is known."""
    changes = [(one.name, kernel_change(found[0].measured, one.measured)) for one in found[1:]]
    return [(name, change) for name, change in changes if change is not None]


def _title(found: Sequence[Compared], name: str, change: KernelChange) -> str:
    return f"{found[0].name} and {name}: {change.said}"


def _record(outline: Outline, found: Sequence[Compared]) -> str:
    """The tables and the kernels as JSON; what is not known is null."""
    configs = []
    for one in found:
        verdict, engine = one.measured.verdict, one.measured.engine
        worst = verdict.worst if verdict is not None else None
        results = {kind: result_record(result)["result"] for kind, result in one.results.items()}
        configs.append({"name": one.name, "sqnr_db": worst[1].errors.sqnr_db if worst is not None else None,
                        "metric": dict(verdict.metric) if verdict is not None else {}, "met": one.met,
                        "results": results,
                        "latency_ms": engine.latency_ms[0] if engine is not None and engine.latency_ms else None,
                        "engine_bytes": engine.bytes if engine is not None else None,
                        "builder": engine.builder if engine is not None else None,
                        "exported_network": executed_record(one.measured.executed)
                        if one.measured.executed is not None else None})
    header, *rows = _layers(outline, found)
    record = {"configs": configs, "differ": [dict(zip(header, row, strict=True)) for row in rows],
              "kernels": {name: change.record() for name, change in _kernels(found)}}
    return json.dumps(record, indent=1) + "\n"


def _report(outline: Outline, found: Sequence[Compared]) -> str:
    """The tables and the kernels in Markdown."""
    layers = _layers(outline, found)
    kernels: list[str] = []
    for name, change in _kernels(found):
        kernels += ["", f"## {text_cell(_title(found, name, change))}", ""]
        kernels += [f"- {'lost' if line[0] == '-' else 'gained'} {text_cell(line[2:])}" for line in change.lines(_MOST)]
    return "\n".join([f"# Configs of {text_cell(outline.name)}", "", *_markdown(_rows(found)), "",
                      *(f"- {text_cell(line)}" if line else "" for line in _reasons(found)), "## Layers that differ",
                      "", *(_markdown(layers) if len(layers) > 1 else ["None."]), *kernels]) + "\n"


def _junit(session: Session, found: Sequence[Compared]) -> str:
    """A case for each result of each config, in JUnit's XML."""
    cases = [Case(one.name + SUFFIXES[kind], f"target not met: {one.missed[kind]}" if kind in one.missed else "",
                  text=result.text) for one in found for kind, result in one.results.items()]
    cases += [Case(one.name, text=one.outcome) for one in found if not one.results]
    return junit_xml(session.opened.outline.name, cases, session.warnings)


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    return markdown_table([text_cell(cell) for cell in rows[0]], [[*map(text_cell, row)] for row in rows[1:]])
