"""The status of a search: its request, its progress and its result so far."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trt_tui.core.measure.target import HeldOutResult, Outcome, parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layer_tree import group_titles, tensor_shape_text
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.precision import Precision
from trt_tui.core.report.json_record import drop_missing_values, target_outcome_record
from trt_tui.core.search import TOP_DOWN_METHODS, Evaluation, ReductionStep, SearchOutcome, SearchResult
from trt_tui.formatting import counted_noun_text, mark_figures_as_simulated
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq

MAX_NAMED_LAYERS = 2
"""The maximum number of layers that a row of the evaluation table names; for more layers, the row shows their
number."""

MAX_BUILDS = 3
"""The number of engines that a search builds by default, if engines can be built."""


def make_search_request(
    config: PrecisionConfig,
    tolerances: Sequence[str],
    *,
    method: str = "auto",
    higher_precision: Precision = Precision.FP32,
    intermediate_precisions: Sequence[Precision] = (),
    try_ranges: bool | None = None,
    try_zero_cost: bool | None = None,
    max_raised: int | None = None,
    max_latency: float | None = None,
    max_builds: int = MAX_BUILDS,
    check_command: str | None = None,
    sample: str = "",
    hold_out: bool = True,
) -> rq.FindMixedPrecisionConfig:
    """Builds the request of a search, for the app and the commands.

    The arguments are those of `trt_tui.jobs.requests.FindMixedPrecisionConfig`.

    Args:
        try_ranges: True tries other ranges. None means True for methods that raise layers, and False for methods that
            reduce them.
        try_zero_cost: True tries zero-cost moves; None as for ``try_ranges``.
    """
    raises_precision = method not in TOP_DOWN_METHODS
    return rq.FindMixedPrecisionConfig(
        config,
        tuple(tolerances),
        method,
        higher_precision,
        raises_precision if try_ranges is None else try_ranges,
        max_raised,
        max_latency,
        max_builds,
        check_command,
        tuple(intermediate_precisions),
        raises_precision if try_zero_cost is None else try_zero_cost,
        sample=sample,
        hold_out=hold_out and not sample,
    )


@dataclass
class SearchStatus:
    """A running or finished search with its best result so far.

    Attributes:
        certain_evaluation: The newest best evaluation without doubt, which a cheaper one in doubt may have replaced; None
            if there is none, or if it lacks a margin that the search requires.
        duration_s: The run time in seconds when the search ended; 0 before.
    """

    request: rq.FindMixedPrecisionConfig
    progress: ev.SearchProgress | None = None
    end_event: ev.SearchEnded | None = None
    certain_evaluation: Evaluation | None = None
    duration_s: float = 0.0

    def add_progress(self, progress: ev.SearchProgress) -> None:
        self.progress, candidates = progress, (progress.result.best_evaluation, self.certain_evaluation)
        self.certain_evaluation = next(
            (
                evaluation.with_required_margins(progress.margins)
                for evaluation in candidates
                if evaluation is not None
                and evaluation.with_required_margins(progress.margins).passes
                and evaluation.target_result.target_outcome.outcome is Outcome.PASS
            ),
            None,
        )

    @property
    def report(self) -> ev.SearchEnded | ev.SearchProgress | None:
        """The newest report of the search; None before the first one."""
        return self.end_event or self.progress

    @property
    def result(self) -> SearchResult | None:
        """The best result of the search so far; None before the first report of the search."""
        return self.report.result if self.report is not None else None

    @property
    def has_other_samples(self) -> bool:
        """True if the values of the search belong to other samples than those of the session."""
        return self.report is not None and self.report.has_other_samples

    @property
    def margins_by_target(self) -> dict[str, float]:
        """The score that the search required of each target, because an exported network or an engine yielded less than
        was simulated; empty without such a margin."""
        return dict(zip(self.request.tolerances, self.report.margins if self.report is not None else (), strict=False))

    @property
    def best_evaluation(self) -> Evaluation | None:
        """The evaluation of the best config so far; None if nothing is evaluated yet."""
        return self.result.best_evaluation if self.result is not None else None

    @property
    def best_config(self) -> PrecisionConfig | None:
        """The best config of the search so far; None if nothing is evaluated yet."""
        return self.result.config if self.result is not None and self.best_evaluation is not None else None

    @property
    def is_target_met(self) -> bool:
        """True if the best config of the search meets the tolerance.

        After the search, its executed exported network, its measured engine and the held-out samples meet it too.
        """
        return self.result is not None and self.result.is_met

    @property
    def sample_count(self) -> int | None:
        """The number of samples of the search; None if it has no accuracy yet."""
        accuracy = self.best_evaluation.target_result.accuracy if self.best_evaluation is not None else None
        return accuracy.samples if accuracy is not None else None

    @property
    def move_reasons(self) -> dict[str, str]:
        """The reason for each change of the best config: for raised groups by group name, for ranges by tensor.

        If the session shows values on other samples, the reasons of raised groups name those of the search.
        """
        ranges = self.best_evaluation.range_moves if self.best_evaluation is not None else {}
        reasons = self.end_event.result.raise_reasons if self.end_event is not None else {}
        samples_text = (
            f" ({counted_noun_text(self.sample_count or 0, 'sample')} of the search)" if self.has_other_samples else ""
        )
        return {
            **dict.fromkeys(ranges, f"search:{self.request.method}"),
            **{name: f"{reason}{samples_text}" for name, reason in reasons.items()},
        }

    def find_move_reasons(self, config: PrecisionConfig) -> dict[str, str]:
        """Returns the reason for each change that leads to a config of the search, by group name or tensor."""
        if config == self.best_config:
            return self.move_reasons
        start_moves = self.request.config.moves
        return {
            subject: f"search:{self.request.method}"
            for (kind, subject), move in config.moves.items()
            if start_moves.get((kind, subject)) != move
        }

    @property
    def is_finished(self) -> bool:
        """True if the search ended by itself, without a stop by the user."""
        return (
            self.end_event is not None
            and not self.end_event.was_stopped
            and self.end_event.result.outcome is not SearchOutcome.SEARCHING
        )

    def make_search_record(self, outline: NetworkOutline) -> dict[str, Any]:
        """Builds the record of the search for precision.json; empty while the search is running."""
        if self.end_event is None:
            return {}
        ended, result, exported, held_out = (
            self.end_event,
            self.end_event.result,
            self.end_event.exported,
            self.end_event.held_out,
        )
        effort = ended.zero_cost_effort
        rows = reduction_table(result.reduction_steps, outline, self.request)[1:]
        return drop_missing_values(
            {
                "method": self.request.method,
                "how": ended.description,
                "met": self.is_target_met,
                "said": result.summary,
                "evaluations": len(ended.evaluations),
                "candidates": ended.candidate_count,
                "why": dict(result.raise_reasons),
                "remarks": list(ended.remarks),
                "lowered": [
                    {**dict(zip(_REDUCTION_KEYS, row, strict=True)), "layer": layer.layer_name}
                    for layer, row in zip(result.reduction_steps, rows, strict=True)
                ]
                or None,
                "unused_qdq": [removal.to_record() for removal in ended.qdq_removals] or None,
                "zero_cost": {
                    "tried": effort.tried,
                    "changes": effort.total,
                    "evaluations": effort.evaluations,
                    "budget": effort.budget,
                    "not_measured": list(effort.unmeasured_kinds),
                    "said": effort.text,
                }
                if effort.text
                else None,
                **target_outcome_record(ended.target_outcome),
                "confirmed_by_engine": ended.confirmed,
                "held_out": {
                    "samples": held_out.sample_count,
                    "chosen_on": held_out.search_samples,
                    "met": held_out.target_result.passes,
                    "figure": held_out.target_result.value_text,
                    **target_outcome_record(held_out.target_result.target_outcome)["result"],
                    "values": [asdict(value) for value in held_out.values],
                }
                if held_out is not None
                else None,
                "exported_network": {
                    "executor": exported.executor_name,
                    "met": exported.is_met,
                    "said": exported.exported_result_text,
                    "samples": exported.samples or None,
                }
                if exported is not None
                else None,
                "check": self.request.check_command,
            }
        )


_REDUCTION_KEYS = ("index", "layer", "shape", "similarity", "threshold", "choose this layer because", "sticks")
"""The keys of ``evidence.search.lowered`` in precision.json, in the order of the columns of `reduction_table`."""


def reduction_table(
    reduction_steps: Sequence[ReductionStep], outline: NetworkOutline, request: rq.FindMixedPrecisionConfig
) -> list[list[str]]:
    """Builds the table of the trials of a top-down search, with a header; [] if there are no trials.

    The columns are those of the published procedure:

    - index and layer,
    - shape of the layer's result,
    - similarity at the judged outputs if the layer is reduced,
    - threshold,
    - reason for the higher precision,
    - the higher precision if the layer keeps it.
    """
    if not reduction_steps:
        return []
    title_by_name = group_titles(outline)
    threshold, higher = " and ".join(request.tolerances) or "check", request.higher_precision.label
    table = [["index", "layer", "shape", "similarity", "threshold", "reason", "stays higher"]]
    for index, row in enumerate(reduction_steps):
        sizes = tensor_shape_text(outline.shape(outline.get_group(row.layer_name).final_tensor))
        similarity = mark_figures_as_simulated(row.similarity_text)
        reason = f"in lower precision it misses the threshold: {similarity}" if row.stays_higher else ""
        table.append(
            [
                str(index),
                title_by_name.get(row.layer_name, row.layer_name),
                sizes,
                similarity,
                threshold,
                reason,
                higher if row.stays_higher else "",
            ]
        )
    return table


def evaluation_table(
    end_event: ev.SearchEnded, outline: NetworkOutline, request: rq.FindMixedPrecisionConfig, base: Mapping[str, float]
) -> list[list[str]]:
    """Builds the table of all configs that a search has evaluated, with a header.

    The columns are: step of the search, tried layer, difference from the start config, the value of each tolerance,
    outcome, engine, and missed check. A config whose exported network or engine misses the target fails, whatever its
    simulation yields. A result that misses the target on held-out samples is FAIL?.

    Args:
        base: The metric of the reference and its parts; {} without a metric.
    """
    engine_texts, missed_checks = end_event.engine_texts, end_event.missed_checks
    targets = [
        target.with_base_values(base, covers_all_samples=False) if target.kind == "metric" else target
        for target in map(parse_target, request.tolerances)
    ]
    title_by_name = group_titles(outline)
    rows = [
        [
            "",
            "step",
            "about",
            "config",
            *(request.tolerances or ["check"]),
            "",
            *["engine"] * bool(engine_texts),
            *["missed check"] * bool(missed_checks),
        ]
    ]
    for index, evaluation in enumerate(end_event.evaluations):
        accuracy, checks = evaluation.target_result.accuracy, end_event.find_missed_checks(evaluation.config)
        value_texts = [
            mark_figures_as_simulated(target.measured_value_text(accuracy)) if accuracy is not None else ""
            for target in targets
        ]
        rows.append(
            [
                str(index + 1),
                evaluation.step_name,
                title_by_name.get(evaluation.about, evaluation.about),
                _config_difference_text(evaluation, request, title_by_name),
                *(value_texts or [evaluation.target_result.value_text]),
                evaluation.target_result.target_outcome.with_missed_check(
                    "; ".join(checks.values()),
                    Outcome.FAIL if end_event.missed_runs_text(evaluation.config) else Outcome.UNCERTAIN_FAIL,
                ).outcome.value,
                *[engine_texts.get(index, "")] * bool(engine_texts),
                *["; ".join(missed_checks.get(index, {}).values())] * bool(missed_checks),
            ]
        )
    return rows


def _config_difference_text(
    evaluation: Evaluation, request: rq.FindMixedPrecisionConfig, title_by_name: Mapping[str, str]
) -> str:
    """Returns the difference of a config from the start config as text: "o_proj in FP32, SmoothQuant, 2 ranges by
    entropy"."""
    if 0 < len(evaluation.raised_groups) <= MAX_NAMED_LAYERS:
        parts = [
            f"{title_by_name.get(name, name)} in {evaluation.precisions.get(name, request.higher_precision).label}"
            for name in evaluation.raised_groups
        ]
    else:
        parts = [evaluation.raised_group_counts_text(request.higher_precision)] if evaluation.raised_groups else []
    counts = Counter(choice.method for choice in evaluation.range_moves.values())
    parts += [
        *evaluation.zero_cost_sets,
        *(f"not on {title_by_name.get(name, name)}" for name in evaluation.plain_groups),
        *(f"{counted_noun_text(count, 'range')} by {method}" for method, count in counts.items()),
    ]
    return ", ".join(parts) or "the start"


def held_out_result_text(held_out: HeldOutResult) -> str:
    """Returns the result of a search on held-out samples, which the search has not used, as text.

    For example "chosen on 64 samples: ~20.4 dB (19.9 to 21.0 dB); on 32 held out: ~19.8 dB (19.2 to 20.6 dB): FAIL?:
    the 95 % interval 19.2 to 20.6 dB spans the target". The numbers in parentheses are 95 % confidence intervals.
    """
    searched = ", ".join(
        _value_with_interval_text(value.searched, value.searched_interval) for value in held_out.values
    )
    measured = ", ".join(
        _value_with_interval_text(value.held_out, value.held_out_interval) for value in held_out.values
    )
    return (
        f"chosen on {counted_noun_text(held_out.search_samples, 'sample')}: {searched}; on "
        f"{held_out.sample_count} held out: {measured}: {held_out.target_result.target_outcome.text}"
    )


def _value_with_interval_text(value_text: str, interval_text: str) -> str:
    return mark_figures_as_simulated(value_text) + (f" ({interval_text})" if interval_text else "")


def best_value_text(search_status: SearchStatus) -> str:
    """Returns the value of the best config of a search so far as text: "~20.4 dB, meets the target"."""
    if (best := search_status.best_evaluation) is None:
        return "nothing yet"
    value_text = mark_figures_as_simulated(best.target_result.value_text)
    return f"{value_text}, {'meets' if search_status.is_target_met else 'misses'} the target"


def best_evaluation_text(search_status: SearchStatus) -> str:
    """Returns the best result of a search so far: "~20.4 dB, meets the target: 3 in FP32, 2 other ranges"."""
    if (best := search_status.best_evaluation) is None:
        return best_value_text(search_status)
    parts = [best.raised_group_counts_text(search_status.request.higher_precision)]
    parts += best.zero_cost_sets
    if best.used_ranges:
        parts.append(counted_noun_text(len(best.used_ranges), "other range"))
    return f"{best_value_text(search_status)}: {', '.join(parts)}"
