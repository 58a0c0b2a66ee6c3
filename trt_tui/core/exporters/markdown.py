"""A comparison as a report in Markdown: a pure function of the comparison's JSON record."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trt_tui.core.measure.agreement import KERNEL
from trt_tui.core.measure.comparison import profile_words
from trt_tui.core.measure.metric_parts import part_rows
from trt_tui.core.moves.config import PrecisionConfig, tables
from trt_tui.core.network.layers import Outline
from trt_tui.core.search import Result
from trt_tui.words import (
    COMPUTED_IN,
    SIMULATED,
    built_by,
    byte_size,
    cosine,
    decibels,
    differing,
    duration,
    engine_title,
    executed_key,
    first_few,
    megabytes,
    metric_figure,
    near,
    number,
    percent,
    plural,
    rate,
    run_named,
    run_title,
    share_of_layers,
    variation,
    visible,
    with_unit,
    worst_sample,
)

WORST_ROWS = 15
"""How many layers of a run are listed."""

_ENGINE = "-engine"


def comparison_markdown(comparison: Mapping[str, Any], network: Outline | None = None,
                        config: PrecisionConfig | None = None) -> str:
    """The report: verdict, judged outputs, engines, layers that lose most, and the config.

    Args:
        comparison: A record of schema ``comparison-v1``; what it lacks is left out.
        network: Adds each layer's operator.
        config: Adds what it gives each group; needs ``network``.
    """
    model = comparison.get("model", {})
    reference = comparison.get("reference", {})
    runs: Mapping[str, Mapping[str, Any]] = comparison.get("runs", {})
    where = " ".join(str(reference[key]) for key in ("backend", "provider") if reference.get(key))
    samples = comparison.get("samples", 0)
    against = f"FP32{f' on {where}' if where else ''}"
    if "source" in reference:
        against = f"{text_cell(reference['source'])}; errors at layers against {against}"
    lines = [f"# Precision of {text_cell(model.get('name', 'the network'))}", "",
             f"{plural(samples, 'sample')}, against {against}. "
             "`~` marks a simulated figure; engine figures are of the engine as built. "
             "An exported network is the exported file, executed by ONNX Runtime with default options.", ""]
    if (simulation := comparison.get("simulation", {})).get("reason"):
        lines += [f"Simulated: {text_cell(simulation['level'])}; {text_cell(simulation['reason'])}.", ""]
    if "metric" in reference:
        whose = text_cell(reference["source"]) if "source" in reference else "FP32"
        lines += [f"Metric in {whose}: {metric_figure(reference['metric'])}.", ""]
    lines += guards_markdown(comparison.get("guards", ()))
    if "target" in comparison:
        lines += [f"Target: {text_cell(comparison['target'])}.", ""]
    lines += ["## Verdict", "", *_verdict(runs), ""]
    if reasons := _reasons(runs):
        lines += [*reasons, ""]
    if parts := _parts(reference.get("metric_parts", {}), runs):
        lines += ["## Metric by part", "", *parts, ""]
    lines += ["## Judged outputs", "", *_outputs(runs), ""]
    if previews := {name: run["preview"] for name, run in runs.items() if "preview" in run}:
        lines += ["## What a builder would make of it", ""]
        for name, one in previews.items():
            lines.append(f"- {_run_name(runs, name)}: {text_cell(preview_words(one))}")
            lines += (f"  - {text_cell(group)}: {text_cell(text)}" for group, told in one.get("remarks", {}).items()
                      for text in told)
        lines.append("")
    if stages := comparison.get("stages", ()):
        lines += ["## Stages", "", *_stages(stages), "", *map(text_cell, comparison.get("stages_say", ())), ""]
    engines = {name: run for name, run in runs.items() if run.get("source") == "engine"}
    if engines:
        lines += ["## Engines", "", *_engines(runs, engines), ""]
    refused = {name: run["failed"] for name, run in runs.items()
               if run.get("source", "").startswith("onnxruntime") and run.get("failed")}
    if refused:
        lines += ["## Exported networks that were not executed", "",
                  *(f"- {_run_name(runs, name)}: {text_cell(why)}" for name, why in refused.items()), ""]
    for name, run in engines.items():
        if run.get("profiles"):
            lines += [f"## Profiles of the {_run_name(runs, name)}", "", *_profiles(run["profiles"]), ""]
        if several := _builds(run):
            lines += [f"## Builds of the {_run_name(runs, name)}", "", *several, ""]
    for name, run in engines.items():
        if run.get("as_asked") is False:
            lines += [f"## How the {_run_name(runs, name)} was built", "", *_rungs(run), ""]
    for name, run in engines.items():
        if run.get("to_check"):
            lines += [f"## What to check in the {_run_name(runs, name)}", ""]
            lines += [*(f"- {text_cell(line)}" for line in run["to_check"]), ""]
    for name, run in runs.items():
        rows = [*_read(run), *_worst(run, network)]
        if rows:
            lines += [f"## Where {_run_name(runs, name, run_named)} loses", "", *rows, ""]
    if config is not None and network is not None:
        lines += ["## Config", "", *_config(config, network), ""]
    return "\n".join(lines).rstrip() + "\n"


def guards_markdown(guards: Sequence[Mapping[str, str]]) -> list[str]:
    """What guards warn of, under a heading; nothing where they warn of nothing.

    Args:
        guards: Records as `trt_tui.core.guards.guard.alarm_record` makes them.
    """
    rows = [tuple(text_cell(one[key]) for key in ("guard", "what", "why", "next")) for one in guards]
    return ["## Warnings", "", *markdown_table(("guard", "what", "why", "next"), rows), ""] if rows else []


def preview_words(preview: Mapping[str, Any]) -> str:
    """How many groups a builder would not run as asked, and which."""
    release = ".".join(preview["release"].split(".")[:2])
    others = preview["not_as_asked"]
    which = f": {first_few(others)}" if others else ""
    return (f"{len(others)} of {plural(preview['groups'], 'group')} would not run as asked{which} "
            f"(preview, RTX {release}, {preview['gpu']}: {plural(preview['kernels'], 'kernel')})")


def _stages(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each stage at its worst output, against the reference and against the stage before."""
    rows = []
    for stage in stages:
        mark = SIMULATED if stage["kind"] == "simulated" else ""
        engine = stage.get("engine", {})
        builder = f" ({built_by(engine['backend'], engine.get('gpu', ''))})" if engine else ""
        for name, one, metric in ((text_cell(stage["name"] + builder), stage, stage.get("metric")),
                                  *((f"against {text_cell(name)}", one, None)
                                    for name, one in stage.get("beside", {}).items())):
            rows.append((name, *_stage_figures(one.get("outputs", {}), mark),
                         metric_figure(metric, mark) if metric is not None else "",
                         *_stage_figures(one.get("before", {}).get("outputs", {}), mark)[:2],
                         one.get("result", {}).get("outcome", ""),
                         text_cell(stage.get("failed", "")) if one is stage else ""))
    header = ("stage", "SQNR", "cosine", "MSE", "max abs", "metric", "SQNR to the one before", "cosine", "target", "")
    return markdown_table(header, rows)


def _stage_figures(outputs: Mapping[str, Mapping[str, Any]], mark: str) -> tuple[str, str, str, str]:
    """dB, cosine, MSE and the largest error of the worst of some outputs."""
    def badness(one: Mapping[str, Any]) -> float:
        db = one.get("sqnr_db")
        return db if db is not None else float("inf") if one.get("cosine") == 1 else -float("inf")

    floats = [one for one in outputs.values() if "mismatch" not in one]
    if not floats:
        return ("", "", "", "")
    worst = min(floats, key=badness)
    return (decibels(worst.get("sqnr_db"), exact=badness(worst) == float("inf"), nan=worst.get("nan", 0),
                     inf=worst.get("inf", 0), mark=mark), cosine(worst.get("cosine")), number(worst.get("mse")),
            number(worst.get("max_abs")))


def _run_name(runs: Mapping[str, Mapping[str, Any]], name: str,
              words: Callable[[str, bool], str] = run_title) -> str:
    base = name.removesuffix(_ENGINE)
    in_file = bool(runs.get(base.removesuffix(executed_key("")), {}).get("as_in_file"))
    return engine_title(base, in_file) if base != name else text_cell(words(name, in_file))


def _engines(runs: Mapping[str, Mapping[str, Any]], engines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How each engine was built, and how many of its layers compute in what with which share of the time."""
    rows, shares = [], []
    words = [word for word in COMPUTED_IN if any(word in run.get("computed_in", {}) for run in engines.values())]
    for name, run in engines.items():
        memory, seconds = run.get("device_memory_bytes"), run.get("build_s")
        graph = run.get("cuda_graph_ms", {})
        rows.append((_run_name(runs, name), text_cell(run.get("backend", "")), text_cell(run.get("gpu", "")),
                     "" if seconds is None else duration(seconds), text_cell(run.get("built_from", "")),
                     "" if memory is None else byte_size(memory),
                     number(graph["median"]) if "median" in graph else "",
                     "quick" if run.get("quick") else "", text_cell(run.get("note", "")), _as_asked(run)))
        if run.get("computed_in"):
            shares.append((_run_name(runs, name), *(_computed_in(run["computed_in"].get(word)) for word in words)))
    header = ("engine", "builder", "GPU", "built in", "from", "device memory", "ms, CUDA graph", "effort", "note",
              "as asked")
    lines = markdown_table(header, rows)
    if shares:
        lines += ["", "Layers, and their share of the time:", "",
                  *markdown_table(("engine", *(COMPUTED_IN[word] for word in words)), shares)]
    return lines


def _profiles(profiles: Sequence[Mapping[str, Any]]) -> list[str]:
    """How fast an engine is in each of its profiles."""
    rows = [(text_cell(", ".join(profile_words(name, *(shapes[end] for end in ("min", "opt", "max")))
                                 for name, shapes in one["shapes"].items())), str(one["samples"]),
             f"{round(one['samples_per_s']):,}" if "samples_per_s" in one else "",
             *(number(one[key]["median"]) if key in one else "" for key in ("latency_ms", "cuda_graph_ms")))
            for one in profiles]
    return markdown_table(("profile, at its usual shapes", "samples", "samples/s", "ms", "ms, CUDA graph"), rows)


def _builds(run: Mapping[str, Any]) -> list[str]:
    """What each of several builds of a config came to, and where identical samples come out different."""
    lines: list[str] = []
    if builds := run.get("builds"):
        rows = [(_decibels(one["errors"], "") if "errors" in one else "", number(one.get("latency_ms")),
                 duration(one["build_s"]) if "build_s" in one else "",
                 byte_size(one["engine_bytes"]) if "engine_bytes" in one else "") for one in builds]
        lines += ["The engine above is the worst of:", "",
                  *markdown_table(("dB at the worst output", "ms", "built in", "size"), rows)]
    if names := run.get("rows_differ"):
        lines += [*([""] if lines else []), f"Identical samples of one batch come out different at "
                  f"{', '.join(map(code_cell, names))}."]
    return lines


def _as_asked(run: Mapping[str, Any]) -> str:
    """Whether an engine is one of the config asked for, where that is to be said."""
    if run.get("source", "").startswith("onnxruntime"):
        return "not executed" if run.get("failed") else ""
    return "not built" if run.get("failed") else "otherwise" if run.get("as_asked") is False else ""


def _rungs(run: Mapping[str, Any]) -> list[str]:
    """What was tried for an engine that was not built as asked, or not at all, and what it runs otherwise."""
    rows = [(text_cell(one["said"]), text_cell(one.get("failed", "built"))) for one in run.get("rungs", ())]
    lines = [*markdown_table(("told", "result"), rows), ""] if len(rows) > 1 else []
    if run.get("failed"):
        return lines[:-1] or [f"It was not: {text_cell(run['failed'])}"]
    made = [(code_cell(name), str(precision).upper()) for name, precision in run.get("made_otherwise", {}).items()]
    lines.append("Its figures are not of the config that was asked for." + (
        "" if made else " TensorRT tells of no layer that runs otherwise."))
    outputs = run.get("made_simulated", {}).get("outputs", {})
    if (worst := _worst_output(outputs)) is not None:
        figure = with_unit(_decibels(outputs[worst], SIMULATED))
        lines += ["", f"What was made, simulated: {figure} at {code_cell(worst)}."]
    return lines + (["", *markdown_table(("runs otherwise", "in"), made)] if made else [])


def _computed_in(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    return share_of_layers(entry["layers"], entry.get("time"))


def _verdict(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = []
    for name, run in runs.items():
        mark = "~" if run.get("source") == "simulated" else ""
        outputs = run.get("outputs", {})
        worst = _worst_output(outputs)
        errors = outputs.get(worst, {}) if worst is not None else {}
        mismatches = {o: e["mismatch"] for o, e in outputs.items() if e.get("mismatch") is not None}
        latency, agreement = run.get("latency_ms", {}), run.get("agreement")
        rows.append((
            ", ".join(filter(None, (_run_name(runs, name), _as_asked(run)))), _source(run),
            _decibels(errors, mark) if errors else "", code_cell(worst),
            _sample(min((e["worst_sample"] for e in outputs.values() if "worst_sample" in e),
                        key=_sample_order, default=None), mark),
            differing(max(mismatches.values()), mark) if mismatches else "",
            str(sum(e.get("nan", 0) + e.get("inf", 0) for e in outputs.values())) if outputs else "",
            metric_figure(run["metric"], mark) if "metric" in run else "",
            rate(agreement, mark) if agreement is not None else "",
            number(latency["median"]) + (" (quick)" if run.get("quick") else "") if "median" in latency else "",
            megabytes(run["engine_bytes"]) if "engine_bytes" in run else "", run.get("result", {}).get("outcome", "")))
    header = ("run", "source", "SQNR", "output", "worst sample", "integers that differ", "NaN/Inf", "metric",
              "same class", "ms", "MB", "target")
    return markdown_table(header, rows)


def _reasons(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Why a result has a question mark, or fails for another reason than its value alone; a line for each run."""
    results = [(name, run["result"]) for name, run in runs.items() if run.get("result", {}).get("reasons")]
    return [f"- {_run_name(runs, name)}: {one['outcome']}: {text_cell('; '.join(one['reasons']))}"
            for name, one in results]


def _source(run: Mapping[str, Any]) -> str:
    """The source of a run's values; of an engine with its builder and GPU, of an exported network with its executor."""
    executor = built_by(run.get("backend", ""), run.get("gpu", ""))
    return text_cell(f"{run.get('source', '')} ({executor})" if executor else run.get("source", ""))


def _parts(reference: Mapping[str, float], runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The parts of the metric, the worst drop first; nothing of a metric without parts."""
    scored = {name: run for name, run in runs.items() if run.get("metric_parts") and run.get("as_asked", True)}
    if len(reference) < 2 or not scored:
        return []
    marks = [SIMULATED if run.get("source") == "simulated" else "" for run in scored.values()]
    rows = [(text_cell(row.name), metric_figure(row.reference),
             *("" if figure is None else metric_figure(figure, mark)
               for figure, mark in zip(row.figures, marks, strict=True)),
             "" if row.drop is None else metric_figure(row.drop))
            for row in part_rows(reference, [run["metric_parts"] for run in scored.values()])]
    return markdown_table(("part", "FP32", *(_run_name(runs, name) for name in scored), "worst drop"), rows)


def _worst_output(outputs: Mapping[str, Mapping[str, Any]]) -> str | None:
    judged = [name for name, errors in outputs.items() if "sqnr_db" in errors]
    return min(judged, key=lambda name: _badness(outputs[name]), default=None)


def _badness(errors: Mapping[str, Any]) -> float:
    """Sorts errors, the worst first: NaN and Inf, then by SQNR, exact ones last."""
    if errors.get("nan") or errors.get("inf"):
        return float("-inf")
    sqnr = errors.get("sqnr_db")
    return float("inf") if sqnr is None else sqnr


def _sample_order(sample: Mapping[str, Any]) -> float:
    sqnr = sample.get("sqnr_db")
    return float("inf") if sqnr is None else sqnr


def _outputs(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = []
    for name, run in runs.items():
        mark = "~" if run.get("source") == "simulated" else ""
        for output, errors in run.get("outputs", {}).items():
            rows.append((
                _run_name(runs, name), code_cell(output), _decibels(errors, mark) if "sqnr_db" in errors else "",
                cosine(errors["cosine"], mark) if errors.get("cosine") is not None else "",
                *(mark + number(errors[key]) if errors.get(key) is not None else "" for key in ("max_abs", "mean_abs")),
                differing(errors["mismatch"], mark) if errors.get("mismatch") is not None else "",
                str(errors.get("nan", "")), str(errors.get("inf", "")), _sample(errors.get("worst_sample"), mark),
                _variation(errors), decibels(errors["varying_sqnr_db"], mark=mark)
                if errors.get("varying_sqnr_db") is not None else ""))
    header = ("run", "output", "SQNR", "cosine", "max abs", "mean abs", "differ", "NaN", "Inf", "worst sample",
              "variation", "SQNR of what varies")
    return markdown_table(header, rows)


def _variation(errors: Mapping[str, Any]) -> str:
    """How much the reference varies between samples; "" where that is not known."""
    if "variation_db" not in errors:
        return ""
    return variation(-math.inf if errors["variation_db"] is None else errors["variation_db"])


def _read(run: Mapping[str, Any]) -> list[str]:
    """How the errors inside an engine were read, and where it parts from its simulation."""
    read = run.get("layers_read")
    if read is None:
        return []
    if "missing" in read:
        return [f"Not known: {text_cell(read['missing'])}.", ""]
    what = "of a second engine with these results as outputs: marked, not the engine as built" \
        if read["how"] == "marked" else "of what the kernels of the engine as built hand on"
    hidden = f"; {plural(len(read['hidden']), 'group')} inside kernels" if read["hidden"] else ""
    lines = [f"On {plural(read['samples'], 'sample')}, {what}{hidden}.", ""]
    if (parts := read.get("parts_at")) is not None:
        lines += [f"{code_cell(parts['group'])}: {KERNEL}: {_decibels(parts['engine'], '')} dB for "
                  f"{_decibels(parts['simulated'], SIMULATED)} dB simulated.", ""]
    return lines


def _worst(run: Mapping[str, Any], network: Outline | None) -> list[str]:
    """The groups that own most of the error; the layers of lowest isolated SQNR where shares were not measured."""
    layers: Mapping[str, Mapping[str, Any]] = run.get("layers", {})
    groups: Mapping[str, Mapping[str, Any]] = run.get("groups", {})
    shares = {name: group["owns"] for name, group in groups.items() if group.get("owns") is not None}
    unknown = [name for name, group in groups.items() if group.get("owns_unknown")]
    if shares or unknown:
        names = [*sorted(shares, key=lambda name: -shares[name]), *unknown]
    else:
        names = sorted(layers, key=lambda name: _badness(
            layers[name].get("isolated") or layers[name].get("accumulated") or {}))
    if not names:
        return []
    mark = "~" if run.get("source") == "simulated" else ""
    rows: list[tuple[str, ...]] = []
    for name in names[:WORST_ROWS]:
        layer, group = layers.get(name, {}), groups.get(name, {})
        kept = group.get("impact_kept")
        bad = [f"{count} {kind}" for kind in ("nan", "inf") for count in (layer.get("accumulated", {}).get(kind, 0),)
               if count]
        rows.append((
            code_cell(name), _operator(network, name), str(layer.get("precision", "")).upper(),
            near(shares[name], group.get("owns_margin"), mark) if name in shares else "unknown" * (name in unknown),
            str(group.get("samples", "")),
            *(_decibels(layer[kind], mark) if kind in layer else "" for kind in ("isolated", "accumulated")),
            _decibels(kept, mark) if kept else "", ", ".join(bad)))
    header: tuple[str, ...] = ("layer", "operator", "precision", "share", "on samples", "isolated", "accumulated",
                               "alone in FP32", "NaN/Inf")
    if not shares and not unknown:
        header, rows = (*header[:3], *header[5:]), [(*row[:3], *row[5:]) for row in rows]
    table = markdown_table(header, rows)
    rest = names[WORST_ROWS:]
    if rest:
        together = percent(sum(max(shares.get(name, 0), 0) for name in rest), mark) if shares else ""
        table += ["", f"{len(rest)} more{f', together {together}' if together else ''}."]
    return table


def _operator(network: Outline | None, name: str) -> str:
    if network is None or not network.has_layer(name):
        return ""
    group = network.group_of(name)
    return group.operator if group is not None and group.name == name else network.layer(name).op_type


def _config(config: PrecisionConfig, network: Outline) -> list[str]:
    lines = [config.defaults_said + ("; FP32 layers may use TF32." if config.tf32 else ".")]
    moves = moves_markdown(config, network)
    return [*lines, "", *moves] if moves else lines


def moves_markdown(config: PrecisionConfig, network: Outline) -> list[str]:
    """A table for each kind of move in a config."""
    lines: list[str] = []
    for header, rows in tables(config, network):
        lines += ["", *markdown_table(header, [(code_cell(row[0]), *map(text_cell, row[1:])) for row in rows])]
    return lines[1:]


def search_markdown(network: Outline, result: Result, evaluations: Sequence[Sequence[str]],
                    lowered: Sequence[Sequence[str]], headline: str,
                    notes: Sequence[str], metric: Sequence[Sequence[str]], engines: Sequence[Sequence[str]],
                    plot: Sequence[str], guards: Sequence[Mapping[str, str]] = ()) -> str:
    """The report of a search: the config with the reasons, and every evaluation as evidence.

    Args:
        evaluations: Rows of all of the search, in its order, a header first.
        lowered: Rows of what a strategy that goes downwards has tried, a header first; [] for any other.
        headline: The outcome in one line.
        notes: How it was found, where its figures are from, what else to know.
        metric: Rows of the metric's parts, a header first.
        engines: Rows of the configs that were built, a header first.
        plot: Lines that draw these.
        guards: See `guards_markdown`.
    """
    lines = [f"# The fix found for {text_cell(network.name)}", "", f"{text_cell(headline)}.", ""]
    lines += [*(f"- {text_cell(note)}" for note in notes), "", "## Config", "", *_config(result.config, network), ""]
    lines += guards_markdown(guards)
    if result.why:
        whys = [(code_cell(name), text_cell(why)) for name, why in result.why.items()]
        lines += ["## Why", "", *markdown_table(("layer", "why it is raised"), whys), ""]
    for title, (header, *parts) in (("Metric", metric or [()]), ("Engines", engines or [()])):
        if parts:
            lines += [f"## {title}", "", *markdown_table(header, [tuple(map(text_cell, row)) for row in parts]), ""]
    if plot:
        lines += ["```text", *map(visible, plot), "```", ""]
    if lowered:
        header, *parts = lowered
        cells = [tuple(map(text_cell, row)) for row in parts]
        lines += ["## Lowered layer by layer", "", *markdown_table(header, cells), ""]
    header, *parts = evaluations
    lines += ["## Evaluations", "", "Each is simulated, on the same samples.", "",
              *markdown_table(tuple(map(text_cell, header)), [tuple(map(text_cell, row)) for row in parts])]
    return "\n".join(lines).rstrip() + "\n"


# -- cells ----------------------------------------------------------------------------------------------------------


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table without the columns that are empty throughout."""
    if not rows:
        return ["Nothing was measured."]
    kept = [i for i in range(len(header)) if i == 0 or any(row[i] for row in rows)]

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return [line(header[i] for i in kept), line("---" for _ in kept), *(line(row[i] for i in kept) for row in rows)]


def text_cell(text: Any) -> str:
    """A text of one line that Markdown shows as it is."""
    return "".join(f"\\{c}" if c in "\\|`*_<>[]&" else c for c in visible(text))


def code_cell(name: str | None) -> str:
    """A name as code, fenced by more backticks than it holds in a row."""
    if not name:
        return ""
    name = visible(name).replace("|", "\\|")
    if "`" not in name:
        return f"`{name}`"
    fence = "`" * (1 + max(map(len, re.findall("`+", name))))
    return f"{fence} {name} {fence}"


def _decibels(errors: Mapping[str, Any], mark: str) -> str:
    sqnr = errors.get("sqnr_db")
    exact = sqnr is None and errors.get("cosine", 1) == 1
    return decibels(sqnr, exact=exact, nan=errors.get("nan", 0), inf=errors.get("inf", 0), mark=mark)


def _sample(sample: Mapping[str, Any] | None, mark: str) -> str:
    return worst_sample(sample["index"], sample.get("sqnr_db"), mark) if sample is not None else ""
