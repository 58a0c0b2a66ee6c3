"""The list of configs with their results, the judged value after a row is toggled, and changes in plain words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trt_tui.core.lowering.network_rewrite import toggle_fp32
from trt_tui.core.measure.error_metrics import ErrorMetrics
from trt_tui.core.measure.results import Accuracy, EngineResult, ExportedRun, OutputErrors, RunKind
from trt_tui.core.measure.target import AGREEMENT, ALL_PARTS, Target
from trt_tui.core.moves.config import PrecisionConfig, list_config_differences
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.report.run_columns import RunRow, list_run_columns
from trt_tui.formatting import (
    MIN_SHOWN_SHARE,
    NOT_MEASURED,
    SIMULATED_MARK,
    byte_size_text,
    counted_noun_text,
    number_text,
)
from trt_tui.jobs.requests import MeasureToggles
from trt_tui.session.history import UserState
from trt_tui.session.results import find_decisive_outcome
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, Span
from trt_tui.tui.state import engine_texts
from trt_tui.tui.state.config_status import (
    MAX_NOISE_SQNR_DB,
    is_measuring_shares,
    is_measuring_toggles,
    is_within_noise,
    missing_samples_text,
    target_outcome_line,
    target_value_span,
    value_margin_text,
)
from trt_tui.tui.state.marks import CURSOR_MARK, MARGIN_MARK, OTHER_PRECISION_MARK, SAME_VALUE_MARK
from trt_tui.tui.table import Column, fit_table


def config_table(session: Session, width: int) -> tuple[Line, list[tuple[PrecisionConfig, Line]]]:
    """Returns the header and the lines of the config list, newest config first, with as many columns as fit."""
    if session.outline is None:
        return [], []
    kind = session.target.kind if session.target is not None else "sqnr"
    metric = next(iter(session.results.reference_metric), "metric")[:8]
    if session.target is not None and session.target.part_name is not None:
        metric = "worst" if session.target.part_name == ALL_PARTS else session.target.part_name[-8:]
    title = {"metric": metric, "sqnr": "", "agreement": AGREEMENT.title}.get(kind, kind[:8])
    error_columns = list_run_columns("config list")
    names = session.config_names.list_configs_newest_first()
    has_built = any(
        results.engine_result is not None or results.exported_run is not None
        for results in (session.results.get_results_or_empty(config) for config, _ in names)
    )
    built_count = 0 if not has_built else 1 if session.builder is None else 2  # an exported network has no latency
    mark, title_mark = (SIMULATED_MARK, "") if has_built else ("", SIMULATED_MARK)
    columns = [
        Column(""),
        Column("raised", True, rank=1),  # errors are left out only if the target is another value
        *(
            Column(f"{title_mark}{column.title}", True, rank=3 + len(error_columns) - index if title else 0)
            for index, column in enumerate(error_columns)
        ),
        *([Column(f"{title_mark}{title}", True)] if title else []),
        Column(MARGIN_MARK, True, rank=2),
        *[Column(engine_texts.built_column_title(session, width < 60), True), Column("ms", True)][:built_count],
        Column(""),
    ]
    margin_target = session.target or Target("sqnr", 0.0)
    configs, rows = list[PrecisionConfig](), list[list[Span]]()
    for config, name in names:
        results = session.results.get_results_or_empty(config)
        accuracy, engine = results.accuracy, results.engine_result
        is_current = config == session.config
        error_style = "bad" if accuracy and accuracy.nonfinite_count else ""
        built_spans = _built_spans(session, engine if engine is not None else results.exported_run)
        samples_text = missing_samples_text(session, accuracy) if accuracy is not None else ""
        outcome_line = (
            [(samples_text, "dim")] if samples_text else target_outcome_line(session.config_target_outcomes(config))
        )
        configs.append(config)
        rows.append(
            [
                (f" {CURSOR_MARK if is_current else ' '}{name}", "strong" if is_current else ""),
                (f"{len(config.find_raised_groups(session.outline))}", "dim"),
                *((column.text(RunRow(accuracy, mark)) or NOT_MEASURED, error_style) for column in error_columns),
                *([(target_value_span(session, accuracy, has_built)[0], "")] if title else []),
                (value_margin_text(margin_target, accuracy) if accuracy is not None else "", "dim"),
                *built_spans[:built_count],
                ("".join(text for text, _ in outcome_line), outcome_line[0][1] if outcome_line else ""),
            ]
        )
    header, *lines = fit_table(columns, rows, width)
    return header, list(zip(configs, lines, strict=True))


def _built_spans(session: Session, run: EngineResult | ExportedRun | None) -> tuple[Span, Span]:
    """Returns the value of a config's engine or exported network, and the latency of the engine.

    An engine that cannot run here has its size in place of the value. A session with a builder has a dash for an
    exported network, because the column then contains values of engines.
    """
    engine = run if isinstance(run, EngineResult) else None
    unknown = NOT_MEASURED, "dim"
    if run is None or engine is None and session.builder is not None:
        return unknown, unknown
    if engine is None and run.accuracy is None:
        return ("not executed", "dim"), unknown
    if engine is not None and engine.accuracy is None:
        return (byte_size_text(engine.engine_bytes) if engine.engine_bytes is not None else "built", "dim"), unknown
    mark = OTHER_PRECISION_MARK if engine is not None and not engine.is_built_as_requested else ""
    value_text = f"{mark}{target_value_span(session, run.accuracy, False)[0].removesuffix(' dB')}"
    if engine is None:
        return (value_text, ""), unknown
    return (value_text, ""), (number_text(engine.latency_ms[0]) if engine.latency_ms else NOT_MEASURED, "")


@dataclass(frozen=True)
class ToggleResult:
    """The judged value with one row toggled, and its target outcome.

    Attributes:
        outcome_text: The new outcome if the toggle changes it: PASS or PASS? if the config misses the target, else FAIL
            or FAIL?. FAIL also if the run fails whatever its value is. ``≈`` if the value equals that of the config
            within noise, and so does its outcome. ``est.`` if the value is estimated from part of the samples, which
            decides nothing. ``…`` if the value is still to be measured.
        margin: The distance by which the value is better than the bound of the target; None if it is unknown.
        is_partial: True if the value is estimated from part of the samples.
        margin_of_error_text: The margin of the value, such as ``±2.1``, as `value_margin_text` gives it.
        lower_precision: The precision that a row in FP32 is returned to, "default" if its groups have several; "" for a
            row that is raised to FP32.
    """

    value_text: str = ""
    outcome_text: str = ""
    value_style: str = ""
    outcome_style: str = ""
    margin: float | None = None
    is_partial: bool = False
    margin_of_error_text: str = ""
    lower_precision: str = ""


def _awaits_toggle(session: Session, groups: Sequence[FusionGroup]) -> bool:
    """Returns True if a job measures toggled rows, and the toggle of these groups is one of them."""
    shares, moves = session.get_run_results("config").shares, session.config.precision_moves
    return is_measuring_toggles(session) and any(
        name in moves or name not in shares or shares[name].fraction >= MIN_SHOWN_SHARE
        for name in (group.name for group in groups)
    )


def find_toggled_config(session: Session, groups: Sequence[FusionGroup]) -> PrecisionConfig:
    """Returns the current config with some groups toggled, also while the network is still being opened."""
    outline = session.outline
    return (
        toggle_fp32(outline, session.config, groups)
        if outline is not None
        else session.config.with_toggled_fp32(groups)
    )


def find_toggle_result(session: Session, groups: Sequence[FusionGroup]) -> ToggleResult:
    """Returns the judged value after the groups of a row or scope are toggled.

    It is empty if the value is unknown, or if the scope has too many groups to be measured.
    """
    toggled_config = find_toggled_config(session, groups)
    if len(groups) > MeasureToggles.MAX_SCOPE_GROUPS or toggled_config == session.config:
        return ToggleResult()
    if (accuracy := find_toggled_accuracy(session, groups)) is None:
        return (
            ToggleResult(outcome_text="…", outcome_style="dim") if _awaits_toggle(session, groups) else ToggleResult()
        )
    labels = {group.precision_label(toggled_config.precision_of(group)) for group in groups}
    value_text, style = target_value_span(session, accuracy)
    is_partial = accuracy.samples < accuracy.total
    outcome_text, outcome_style = (
        ("est.", "dim") if is_partial else _toggle_outcome_span(session, accuracy, toggled_config)
    )
    has_margin = accuracy is session.results.get_results_or_empty(toggled_config).accuracy
    return ToggleResult(
        value_text.removesuffix(" dB"),
        outcome_text,
        style,
        outcome_style,
        session.target.margin_to_bound(accuracy) if session.target is not None else None,
        is_partial,
        value_margin_text(session.target or Target("sqnr", 0.0), accuracy) if has_margin else "",
        "default" if len(labels) > 1 else next(iter(labels - {Precision.FP32.label}), ""),
    )


def find_toggled_accuracy(session: Session, groups: Sequence[FusionGroup]) -> Accuracy | None:
    """Returns the accuracy after the groups of a row or scope are toggled.

    It is from a measured what-if, else from the final error share of a row that the key raises to FP32. None if both
    are missing.
    """
    toggled_config = find_toggled_config(session, groups)
    measured = session.results.get_results_or_empty(toggled_config).accuracy
    if measured is not None and measured.samples >= measured.total:
        return measured
    is_raised = len(groups) == 1 and toggled_config.precision_of(groups[0]) is Precision.FP32
    return _estimate_accuracy_from_share(session, groups[0]) if is_raised else None


def _toggle_outcome_span(session: Session, accuracy: Accuracy, toggled_config: PrecisionConfig) -> Span:
    """Returns the outcome of a toggled row and its style, as `ToggleResult.outcome_text` describes it.

    The runs that both configs have decide: an executed export or an engine as well, as in the list of configs.
    """
    outcomes, outcome = session.config_target_outcomes(session.config), session.target_outcome(accuracy)
    simulated_outcomes = {RunKind.SIMULATED_CONFIG: outcome} if outcome is not None else {}
    toggled_outcomes = {**simulated_outcomes, **session.config_target_outcomes(toggled_config)}
    kinds = outcomes.keys() & toggled_outcomes.keys() or toggled_outcomes.keys()
    outcome_now, outcome = (
        find_decisive_outcome({kind: run_outcomes[kind] for kind in kinds & run_outcomes.keys()})
        for run_outcomes in (outcomes, toggled_outcomes)
    )
    is_changed = outcome is not None and outcome.passes is not (outcome_now is None or outcome_now.passes)
    if outcome is not None and (is_changed or accuracy.fails_every_target):
        return outcome.outcome.value, "good" if outcome.passes else "bad"
    config_accuracy = session.results.get_results_or_empty(session.config).accuracy
    is_same = config_accuracy is not None and is_within_noise(session, accuracy, config_accuracy)
    return (SAME_VALUE_MARK, "dim") if is_same else ("", "")


def _estimate_accuracy_from_share(session: Session, group: FusionGroup) -> Accuracy | None:
    """Returns the SQNR with one row raised, which was measured together with the share of that row.

    None if it was not measured, or if the target is not an SQNR of the worst judged output. None also while the
    measured toggle is awaited, if its confidence interval decides whether the raise changes the SQNR beyond noise.
    """
    results, target = session.results.get_results_or_empty(session.config), session.target
    share = results.shares.get(group.name)
    if share is None or share.sqnr_if_raised_db is None or target is None:
        return None
    errors = {"": OutputErrors(ErrorMetrics(share.sqnr_if_raised_db))}
    is_judged = target.kind == "sqnr" and target.output_name is None
    total = max(share.samples, session.count_judging_samples(session.config))
    sqnr_db = target.measured_value(results.accuracy) if is_judged and results.accuracy is not None else None
    is_distinct = sqnr_db is None or abs(share.sqnr_if_raised_db - sqnr_db) >= MAX_NOISE_SQNR_DB
    is_final = (share.samples == total or not is_measuring_shares(session)) and (
        is_distinct or not _awaits_toggle(session, [group])
    )
    return Accuracy(errors, samples=share.samples, total=total) if is_judged and is_final else None


_MAX_LISTED_CHANGES = 3
"""The maximum number of changes of one step that are listed one by one."""


def change_text(
    session: Session, before: UserState, after: UserState, titles: Mapping[str, str], template: str = "{0}: {1} → {2}"
) -> str:
    """Returns a change in plain words: "enc/conv: INT8 → FP32", "target: sqnr>=20 → sqnr>=14".

    "" if the two states are equal.

    Args:
        titles: The displayed names of fusion groups, by name.
        template: The form of a changed value, from its title and its texts before and after.
    """
    texts = []
    if before.config != after.config:
        texts += _config_change_texts(before.config, after.config, session.opened_network.outline, titles, template)
    if before.target_text != after.target_text:
        texts.append(template.format("target", before.target_text or "default", after.target_text or "default"))
    texts += _name_change_texts(session, before, after)
    more_count = len(texts) - _MAX_LISTED_CHANGES
    more_texts = [f"{more_count} more"] * (more_count > 0)
    return ", ".join([*texts[:_MAX_LISTED_CHANGES], *more_texts])


def _config_change_texts(
    before: PrecisionConfig, after: PrecisionConfig, outline: NetworkOutline, titles: Mapping[str, str], template: str
) -> list[str]:
    """Returns a text for each pair of old and new decision: the name of one subject, or the number of several."""
    differences = list_config_differences(before, after, outline)
    counts = Counter((line.move_class, line.first_text, line.second_text) for line in differences)
    texts = []
    for (move_class, first_text, second_text), count in counts.items():
        subject = next(
            line.subject
            for line in differences
            if (line.move_class, line.first_text, line.second_text) == (move_class, first_text, second_text)
        )
        title = move_class.difference_title(
            titles.get(subject, subject) if count == 1 else counted_noun_text(count, move_class.subject_kind.noun)
        )
        texts.append(template.format(title, first_text, second_text))
    if before.tf32 != after.tf32:
        texts.append("TF32 allowed" if after.tf32 else "TF32 not allowed")
    return texts


def _name_change_texts(session: Session, before: UserState, after: UserState) -> list[str]:
    names = session.config_names

    def find_config_name(config: PrecisionConfig, chosen_names: Mapping[PrecisionConfig, str]) -> str:
        return chosen_names.get(config) or names.find_numbered_name(config)

    return [
        f"{find_config_name(config, before.chosen_names)} named {find_config_name(config, after.chosen_names)}"
        for config in {**before.chosen_names, **after.chosen_names}
        if before.chosen_names.get(config) != after.chosen_names.get(config)
    ]
