"""trt_tui.core.measure.engine_agreement and its job: quantized layers that run in a float type lose their Q/DQ.

The listings in ``tests/listings`` are TensorRT-RTX 1.7.1's for SM89, of each config with all its Q/DQ and without the
unused ones; where that is installed it must list the same today.
"""

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests import TESTS, local, networks, rtx
from tests.driven import DrivenWorker, of
from tests.screen import LARGE, answered, opened, settle, status
from tests.texts import lacking, numbers
from trt_tui.core.engines.group_implementations import (
    GroupImplementation,
    Kernel,
    Preview,
    PreviewRefusal,
    build_preview,
    find_added_kernels,
)
from trt_tui.core.engines.inspector import read_layer_listing
from trt_tui.core.exporters.preview_report import config_preview_sections, preview_record, preview_summary_lines
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.measure.engine_agreement import (
    PREVIEW_REASON,
    QdqRemoval,
    find_unused_quantization,
    find_used_quantization,
    remove_all_unused_qdq,
)
from trt_tui.core.measure.results import Accuracy, ErrorMetrics, OutputErrors
from trt_tui.core.moves.config import PrecisionConfig, PrecisionMove
from trt_tui.core.moves.config_file import config_text
from trt_tui.core.moves.keep_rules import apply_keep_rules
from trt_tui.core.precision import Precision
from trt_tui.core.report import json_record
from trt_tui.core.report.document import report_markdown
from trt_tui.jobs import comparison
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.check_command import CheckResult
from trt_tui.jobs.search_job import SearchJob
from trt_tui.options import Options
from trt_tui.session.search_status import SearchStatus
from trt_tui.session.session import Session
from trt_tui.tui.state import detail, engine_texts

FP32, FP16, INT8, FP8, INT4 = Precision.FP32, Precision.FP16, Precision.INT8, Precision.FP8, Precision.INT4
ALL_INT8 = PrecisionConfig.from_precision(INT8)
FOLDER = TESTS / "listings"
UP, CELU = "/up/ConvTranspose", "/celu/ConvTranspose"
UPSAMPLERS = tuple(f"/up.{index}/ConvTranspose" for index in range(3))
RECORDED = {
    "odd": ("odd_kernels", {UP: (FP16, 0), CELU: (FP32, 1)}, (15, 14), (1, 0)),
    "unet": ("unet_small", {"/up.0/ConvTranspose": (FP16, 0)}, (17, 17), (0, 0)),
    "upsampler": ("upsampler", dict(zip(UPSAMPLERS, ((FP16, 0), (FP16, 1), (FP16, 1)), strict=True)), (11, 9), (4, 2)),
}
"""Network, the float type and unfused Q/DQ of each unused group, kernels and conversions before and after."""


FINDINGS = {
    UP: "INT8 in the config, runs in FP16: its Q/DQ add rounding, but no kernel",
    CELU: "INT8 in the config, runs in FP32: its Q/DQ cost 1 conversion",
}
"""What reports say of the unused groups of ``odd``."""
SET_BY_USER, BUILDER, TAKEN_OUT = "set to INT8 by you", "preview RTX 1.7, SM89", "Took the Q/DQ of"


@pytest.fixture
def recorded(named_network):
    """A network with its recorded previews: of all in INT8, and without the unused Q/DQ; and the second config."""

    def read(name: str):
        network = named_network(RECORDED[name][0])
        config = ALL_INT8
        for group, (precision, _) in RECORDED[name][1].items():
            config = config.with_group_precision([network.get_group(group)], precision)
        previews = [
            build_preview(
                read_layer_listing((FOLDER / f"{name}-{listing}.txt").read_text("utf-8"), network),
                network,
                "1.7.1.116",
                (8, 9),
                0.5,
            )
            for listing in ("int8", "int8-without-unused")
        ]
        return network, previews, config

    return read


def planned(network, config, preview, answer, fixed=None) -> tuple[QdqRemoval, list[PrecisionConfig]]:
    """The removal, and the configs that a preview was requested of; ``answer`` returns their previews."""
    tried = []

    def preview_config(config):
        tried.append(config)
        return answer(config)
        yield

    removals = []

    def run():
        removals.append((yield from remove_all_unused_qdq(network, config, preview, preview_config, fixed or {})))

    assert not [*run()]
    return removals[0], tried


def engine(network, config, in_float=(), extra: Mapping[str, int] | None = None, kernels=None) -> Preview:
    """A stand-in of a preview with a kernel for each group.

    Args:
        in_float: The groups that run in FP16, or FP32 if they cannot, although they are quantized.
        extra: The number of unfused Q/DQ before quantized groups, by name.
        kernels: The number of kernels, if it is not that of groups and unfused Q/DQ.
    """
    made, count = {}, 0
    for group in network.groups:
        precision = config.precision_of(group).value_type
        unfused = (extra or {}).get(group.name, 0) if precision is INT8 else 0
        count += unfused
        float_type = FP16 if FP16 in group.allowed_precisions else FP32
        shown = float_type if group.name in in_float and precision is INT8 else precision
        made[group.name] = GroupImplementation(shown, False, (group.name,), qdq_count=unfused)
    total = len(network.groups) + count if kernels is None else kernels
    return Preview(
        "1.7.1",
        (8, 9),
        implementations=made,
        qdq_count=count,
        conversion_count=count,
        kernels=tuple(Kernel("kgen", (), (), (str(index),)) for index in range(total)),
        ineffective_groups=(),
        mha_breakers=(),
    )


@pytest.mark.parametrize("name", RECORDED)
def test_quantized_layers_that_run_in_a_float_type_are_found(recorded, name) -> None:
    network, (before, after), config = recorded(name)
    _, unused, kernels, conversions = RECORDED[name]
    found = find_unused_quantization(network, ALL_INT8, before)
    assert {one.group_name: (one.implemented, one.qdq_count) for one in found} == unused
    assert {(one.requested_type, one.fixed_reason) for one in found} == {(INT8, "")}
    assert not find_unused_quantization(network, config, after)
    assert ([len(before.kernels), len(after.kernels)], [before.conversion_count, after.conversion_count]) == (
        [*kernels],
        [*conversions],
    )


@pytest.mark.parametrize("name", RECORDED)
def test_they_get_the_type_that_they_run_in_and_one_preview_shows_what_that_saves(recorded, name) -> None:
    network, (before, after), config = recorded(name)
    _, unused, kernels, conversions = RECORDED[name]
    removal, tried = planned(network, ALL_INT8, before, lambda config: after)
    assert tried == [config] and removal.config == config and not removal.kept_groups
    assert (removal.kernels, removal.conversions) == (kernels, conversions)
    assert removal.config.moves == {
        ("precision", group): PrecisionMove(precision, PREVIEW_REASON) for group, (precision, _) in unused.items()
    }
    assert numbers(removal.savings_text) == [len(unused), *dict.fromkeys(kernels), *dict.fromkeys(conversions)]
    assert '"reason": "preview"' in config_text(network, removal.config, None)


@pytest.mark.rtx("1.7")
@pytest.mark.parametrize("name", RECORDED)
def test_the_builder_lists_what_was_recorded(recorded, name) -> None:
    network, (before, after), changed = recorded(name)
    ranges = {tensor: 1.0 + place / 8 for place, tensor in enumerate(network.calibrated_tensors)}
    for config, preview in ((ALL_INT8, before), (changed, after)):
        text = rtx.layers(lower_from_source_model(network, config, ranges).model)
        now = build_preview(read_layer_listing(text, network), network, "", (8, 9), 0)
        assert not find_added_kernels(now, preview) and not find_added_kernels(preview, now)
        assert now.conversion_count == preview.conversion_count


def test_what_a_rule_or_the_user_has_fixed_keeps_its_type(recorded) -> None:
    network, (before, after), _ = recorded("upsampler")
    first, second, third = map(network.get_group, UPSAMPLERS)
    fixed_for_search = {second.name: "fixed for this search"}
    by_user = PrecisionConfig.from_precision(FP16)
    for group in network.groups:
        reason = "user" if group is first else "search:auto"
        by_user = by_user.with_group_precision([group], INT8, reason)
    removal, tried = planned(network, by_user, before, lambda config: after, fixed_for_search)
    assert [one.group_name for one in removal.groups] == [third.name] and len(tried) == 1
    reasons = {one.group_name: one.fixed_reason for one in removal.kept_groups}
    assert reasons == {first.name: SET_BY_USER} | fixed_for_search
    assert removal.config.precision_of(first) is removal.config.precision_of(second) is INT8
    found = find_unused_quantization(network, by_user, before, fixed_for_search)
    assert {one.group_name: one.fixed_reason for one in found} == reasons | {third.name: ""}
    kept = apply_keep_rules(network, ALL_INT8, [f"{first.name}=fp16"])
    assert first.name not in {one.group_name for one in find_unused_quantization(network, kept, before)}
    for fixed in (UPSAMPLERS, [group.name for group in network.groups]):
        removal, tried = planned(network, ALL_INT8, before, lambda config: after, dict.fromkeys(fixed, "fixed"))
        assert removal.config == ALL_INT8 and not removal.groups and not tried
        assert [one.group_name for one in removal.kept_groups] == [*UPSAMPLERS]


@pytest.mark.parametrize(
    ("precision", "implemented", "found"),
    [
        (INT8, FP16, True),
        (INT8, INT8, False),
        (INT8, None, False),
        (FP8, FP16, True),
        (FP8, FP8, False),
        (INT4, FP16, False),
        (FP16, FP16, False),
        (FP32, FP16, False),
    ],
)
def test_only_types_that_quantize_both_operands_count_and_only_if_a_float_type_is_seen(
    named_network, precision, implemented, found
) -> None:
    """INT4 quantizes weights only, and its layers multiply in 16 bits by design."""
    network = named_network("mlp")
    group = network.groups[1]
    config = PrecisionConfig.from_precision(FP16).with_group_precision([group], precision, "search:auto")
    assert config.precision_of(group) is precision or precision is INT4
    preview = Preview(implementations={group.name: GroupImplementation(implemented, False, ())})
    assert bool(find_unused_quantization(network, config, preview)) is found


def test_a_built_engine_counts_more_than_a_preview(recorded) -> None:
    """Of what the preview shows in FP16, the engine runs one in INT8."""
    network, (before, _), _ = recorded("odd")
    built = engine(network, ALL_INT8, (CELU,)).implementations
    reasons = find_used_quantization(network, ALL_INT8, built)
    assert UP in reasons and CELU not in reasons and not lacking(reasons[UP], "INT8", "built engine")
    found = find_unused_quantization(network, ALL_INT8, before, reasons)
    assert {one.group_name: one.fixed_reason for one in found} == {UP: reasons[UP], CELU: ""}
    assert found[0].finding_text.endswith(f"; {reasons[UP]}")


def test_a_product_in_int8_keeps_unfused_qdq(named_network) -> None:
    """A preview has no times: the product may save more than the kernels of its Q/DQ cost."""
    network = named_network("small_resnet")
    extra = {group.name: 2 for group in network.groups}
    preview = engine(network, ALL_INT8, extra=extra)
    assert preview.qdq_count > 4 and not find_unused_quantization(network, ALL_INT8, preview)


def test_layers_without_which_the_engine_is_worse_keep_their_qdq(recorded) -> None:
    """Only halves that make it worse are tried on, down to the one layer that needs them."""
    network, _, _ = recorded("upsampler")
    needed = UPSAMPLERS[1]
    plain = engine(network, ALL_INT8, UPSAMPLERS, {UPSAMPLERS[0]: 1, UPSAMPLERS[2]: 2})

    def answer(config):
        more = 9 if config.precision_of(network.get_group(needed)) is FP16 else 0
        shown = engine(network, config, UPSAMPLERS, {UPSAMPLERS[0]: 1, UPSAMPLERS[2]: 2})
        return replace(shown, kernels=shown.kernels + more * (Kernel("kgen", (), (), ("more",)),))

    removal, tried = planned(network, ALL_INT8, plain, answer)
    assert [one.group_name for one in removal.groups] == [UPSAMPLERS[0], UPSAMPLERS[2]]
    assert [one.group_name for one in removal.kept_groups] == [needed]
    assert removal.kernels == (len(network.groups) + 3, len(network.groups)) and removal.conversions == (3, 0)
    assert len(tried) == len(set(tried)) <= 5


def test_conversions_decide_between_engines_of_as_many_kernels(recorded) -> None:
    network, _, _ = recorded("unet")
    group = "/up.0/ConvTranspose"
    for conversions, taken in ((2, True), (3, True), (4, False)):
        plain = replace(engine(network, ALL_INT8, (group,), {}, 17), conversion_count=3)
        removal, _ = planned(
            network,
            ALL_INT8,
            plain,
            lambda config, count=conversions: replace(engine(network, config, (), {}, 17), conversion_count=count),
        )
        assert bool(removal.groups) is taken and removal.conversions == (3, conversions if taken else 3)


def test_a_change_that_costs_another_layer_its_int8_kernel_is_not_made(recorded) -> None:
    network, _, _ = recorded("odd")

    def answer(config):  # the Conv before it no longer runs in INT8
        lost = ("/depthwise/Conv",) if config.precision_of(network.get_group(UP)) is FP16 else ()
        return engine(network, config, (UP, CELU, *lost), {CELU: 1})

    removal, _ = planned(network, ALL_INT8, answer(ALL_INT8), answer)
    assert [one.group_name for one in removal.groups] == [CELU] and removal.conversions == (1, 0)
    assert [one.group_name for one in removal.kept_groups] == [UP]


def test_what_a_change_exposes_goes_next_and_what_has_no_preview_stays(recorded) -> None:
    network, _, _ = recorded("upsampler")
    first, second, third = UPSAMPLERS

    def answer(config):  # the second is inside a fused region until the first is out
        shown = engine(network, config, UPSAMPLERS, dict.fromkeys(UPSAMPLERS, 1))
        if config.precision_of(network.get_group(first)) is INT8:
            hidden = replace(shown.implementations[second], precision=None)
            return replace(shown, implementations={**shown.implementations, second: hidden})
        return shown

    removal, tried = planned(network, ALL_INT8, answer(ALL_INT8), answer)
    assert [one.group_name for one in removal.groups] == [*UPSAMPLERS] and len(tried) == 2
    assert removal.conversions == (3, 0)
    for refused in (None, Preview(refusal=PreviewRefusal("no"))):
        removal, tried = planned(network, ALL_INT8, answer(ALL_INT8), lambda config, one=refused: one)
        assert removal.config == ALL_INT8 and not removal.groups and len(tried) == 3
        assert [one.group_name for one in removal.kept_groups] == [first, third]


def test_reports_name_the_layers_and_what_their_qdq_cost(recorded) -> None:
    network, (before, _), changed = recorded("odd")
    assert preview_record(network, ALL_INT8, before)["unused_qdq"] == FINDINGS
    assert json_record.preview_record(network, ALL_INT8, before)["unused_qdq"] == FINDINGS
    lines = preview_summary_lines(network, ALL_INT8, before)
    assert all(f"{group}: {text}" in lines for group, text in FINDINGS.items())
    report = report_markdown("", config_preview_sections(network, ALL_INT8, before, None))
    assert not lacking(report, *FINDINGS.values())
    assert "unused_qdq" not in preview_record(network, changed, recorded("odd")[1][1])


def accuracy_of(sqnr_db: float) -> Accuracy:
    return Accuracy({"y": OutputErrors(ErrorMetrics(sqnr_db, 1.0))})


def test_a_removal_says_what_was_measured_and_nothing_else(recorded) -> None:
    network, (before, after), _ = recorded("odd")
    removal, _ = planned(network, ALL_INT8, before, lambda config: after)
    record = removal.to_record()
    assert record == {
        "layers": {UP: {"asked": "int8", "made": "fp16"}, CELU: {"asked": "int8", "made": "fp32"}},
        "preview": "RTX 1.7, SM89",
        "kernels": [15, 14],
        "conversions": [1, 0],
        "removed": True,
    }
    measured = replace(removal, accuracies=(accuracy_of(27.8), accuracy_of(30.5)), latencies_ms=(1.5, 1.25))
    assert measured.savings_text.startswith(removal.savings_text)
    assert numbers(measured.savings_text.removeprefix(removal.savings_text)) == [27.8, 30.5, 1.5, 1.25]
    assert measured.to_record() | record == measured.to_record() and measured.to_record()["latency_ms"] == [1.5, 1.25]
    assert measured.to_record()["simulated_sqnr_db"] == [27.8, 30.5]
    rejected = replace(measured, rejection="because the engine would be slower")
    assert rejected.to_record()["removed"] is False and rejected.rejection in rejected.savings_text
    assert numbers(rejected.savings_text)[:3] == [2, 15, 14] and "stay" in rejected.savings_text


# -- the job and the search --------------------------------------------------------------------------------------------

IMAGES = {"odd": ("image", (3, 16, 16)), "unet": ("image", (1, 32, 32)), "upsampler": ("latent", (8, 4, 4))}


@pytest.fixture
def worker(tmp_path):
    """Opens a network of `RECORDED` with 8 samples, without a preview process."""

    def make(name: str) -> DrivenWorker:
        network, (tensor, shape) = RECORDED[name][0], IMAGES[name]
        onnx.save(getattr(networks, network)(), tmp_path / f"{name}.onnx")
        np.savez(tmp_path / f"{name}.npz", **{tensor: networks.random_images(np.random.default_rng(0), (8, *shape))})
        made = DrivenWorker(tmp_path)
        options = Options(str(tmp_path / f"{name}.onnx"), str(tmp_path / f"{name}.npz"), whatif_samples=0, batch=1)
        assert isinstance(made.answer(rq.OpenNetwork(options))[-1], ev.JobDone)
        return made

    return make


@pytest.fixture
def standin_previews(monkeypatch, recorded):
    """Previews of the recorded configs as listed, and of any other as a stand-in of the builder makes it."""

    def use(name: str, more=()) -> list[PrecisionConfig]:
        network, (before, after), changed = recorded(name)
        asked: list[PrecisionConfig] = []

        def preview_config(self, config):
            asked.append(config)
            listed = {ALL_INT8: before, changed: after}.get(config)
            return listed or engine(network, config, (*RECORDED[name][1], *more), dict.fromkeys(RECORDED[name][1], 1))
            yield

        class Client:
            def __init__(self, *arguments) -> None:
                self.preview_config = lambda config: preview_config(self, config)

        monkeypatch.setattr(comparison, "PreviewClient", Client)
        monkeypatch.setattr(comparison, "is_tensorrt_rtx_installed", lambda: True)
        monkeypatch.setattr(SearchJob, "preview_config", preview_config)
        monkeypatch.setattr(SearchJob, "preview_engine", preview_config)
        return asked

    return use


def found(events) -> ev.SearchEnded:
    assert isinstance(events[-1], ev.JobDone), events[-1]
    return of(events, ev.SearchEnded)[-1]


def accuracy_measured(worker: DrivenWorker, config: PrecisionConfig) -> Accuracy:
    return of(worker.answer(rq.MeasureWhatIf(config)), ev.AccuracyMeasured)[-1].accuracy


def test_the_job_sends_the_config_with_the_accuracy_of_both(worker, standin_previews, recorded) -> None:
    asked, changed = standin_previews("odd"), recorded("odd")[2]
    opened_worker = worker("odd")
    (removed,) = of(opened_worker.answer(rq.RemoveUnusedQdq(ALL_INT8)), ev.UnusedQdqRemoved)
    assert (removed.config, removed.removal.config, asked) == (ALL_INT8, changed, [ALL_INT8, changed])
    accuracies = tuple(accuracy_measured(opened_worker, config) for config in (ALL_INT8, changed))
    assert removed.removal.accuracies == accuracies
    before, after = (accuracy.worst_errors.sqnr_db for accuracy in accuracies)
    assert after > before and f"~{before:.1f} to ~{after:.1f} dB" in removed.removal.savings_text
    (again,) = of(opened_worker.answer(rq.RemoveUnusedQdq(changed)), ev.UnusedQdqRemoved)
    assert again.removal.config == changed and not again.removal.groups and again.removal.accuracies is None


def test_the_job_says_why_it_cannot_preview(worker, standin_previews, monkeypatch) -> None:
    opened_worker, asked = worker("odd"), standin_previews("odd")
    monkeypatch.setattr(comparison, "preview_mismatch_reason", lambda workspace: "weakly typed")
    assert (
        of(opened_worker.answer(rq.RemoveUnusedQdq(ALL_INT8)), ev.JobFailed)[0].error.cause == "weakly typed"
        and not asked
    )
    monkeypatch.setattr(comparison, "preview_mismatch_reason", lambda workspace: "")

    def refused(self, config):
        return Preview(refusal=PreviewRefusal("no tactic", "for conv1", "Do this."))
        yield

    monkeypatch.setattr(
        comparison.PreviewClient,
        "__init__",
        lambda self, *more: setattr(self, "preview_config", lambda config: refused(self, config)),
    )
    failed = of(opened_worker.answer(rq.RemoveUnusedQdq(ALL_INT8)), ev.JobFailed)[0]
    assert (failed.error.cause, failed.error.next_step) == ("no tactic: for conv1", "Do this.")
    monkeypatch.setattr(comparison, "is_tensorrt_rtx_installed", lambda: False)
    failed = of(opened_worker.answer(rq.RemoveUnusedQdq(ALL_INT8)), ev.JobFailed)[0]
    assert "TensorRT-RTX" in failed.error.title and "pip install" in failed.error.next_step


def goal_of(opened_worker: DrivenWorker, gain_db: float, config=ALL_INT8, **more) -> rq.FindMixedPrecisionConfig:
    """A search for a number of decibels more than a config has."""
    target = accuracy_measured(opened_worker, config).worst_errors.sqnr_db + gain_db
    return rq.FindMixedPrecisionConfig(
        ALL_INT8, (f"sqnr>={target:.3f}",), try_ranges=False, try_zero_cost=False, use_preview=True, **more
    )


@pytest.mark.parametrize("name", ["odd", "upsampler"])
def test_a_search_takes_them_out_before_it_raises_anything(worker, standin_previews, recorded, name) -> None:
    standin_previews(name)
    _, _, changed = recorded(name)
    opened_worker = worker(name)
    goal = goal_of(opened_worker, 1.0, changed)
    plain, ended = found(opened_worker.answer(replace(goal, use_preview=False))), found(opened_worker.answer(goal))
    removal = ended.qdq_removals[0]
    assert removal.config == changed and not removal.rejection and ended.result.is_met and plain.result.is_met
    start = ended.evaluations[0].target_result.accuracy
    assert start == accuracy_measured(opened_worker, changed) == removal.accuracies[1]
    assert len(ended.result.best_evaluation.raised_groups) <= len(plain.result.best_evaluation.raised_groups)
    for group in RECORDED[name][1]:
        if group not in ended.result.best_evaluation.raised_groups:
            assert ended.result.config.precision_moves[group].reason == PREVIEW_REASON
            assert not lacking(ended.result.raise_reasons[group], "INT8", RECORDED[name][1][group][0].label)
    assert removal.report_text in ended.remarks and BUILDER in removal.report_text
    record = SearchStatus(goal, end_event=ended).make_search_record(opened_worker.network)
    assert record["unused_qdq"][0] == removal.to_record() and removal.report_text in record["remarks"]
    assert not plain.qdq_removals and not plain.remarks


def test_what_is_taken_out_is_not_counted_as_raised(worker, standin_previews, recorded) -> None:
    standin_previews("odd")
    changed = recorded("odd")[2]
    opened_worker = worker("odd")
    ended = found(opened_worker.answer(goal_of(opened_worker, -0.5, changed, max_raised=0)))
    assert ended.result.config == changed and ended.result.is_met and not ended.result.best_evaluation.raised_groups
    assert "already meets" in ended.result.summary


@pytest.mark.parametrize("method", ["auto", "lower", "bisect"])
def test_layers_that_a_search_must_not_change_keep_their_type(worker, standin_previews, recorded, method) -> None:
    standin_previews("odd")
    opened_worker = worker("odd")
    kept = apply_keep_rules(opened_worker.network, ALL_INT8, ["/stem/Conv=fp16"])
    goal = replace(goal_of(opened_worker, 0.5, method=method), config=kept, fixed_groups=(UP,))
    ended = found(opened_worker.answer(goal))
    network = opened_worker.network
    assert ended.result.config.precision_of(network.get_group("/stem/Conv")) is FP16
    assert ended.result.config.precision_of(network.get_group(UP)) is INT8
    assert [one.group_name for one in ended.qdq_removals[0].groups] == [CELU]


def test_what_a_raise_exposes_is_taken_out_of_the_result(worker, standin_previews, recorded) -> None:
    """After the first ConvTranspose is out, raising a Conv leaves another Conv without its INT8 kernel."""
    standin_previews("odd")
    changed = recorded("odd")[2]
    opened_worker = worker("odd")
    goal = goal_of(opened_worker, 1.0, changed)
    plain = found(opened_worker.answer(goal))
    raised = plain.result.best_evaluation.raised_groups
    exposed = next(
        group.name for group in opened_worker.network.groups if plain.result.config.precision_of(group) is INT8
    )
    asked = standin_previews("odd", (exposed,))
    ended = found(opened_worker.answer(goal))
    later = ended.qdq_removals[1]
    assert raised and [one.group_name for one in later.groups] == [exposed] and later.config in asked
    assert later.accuracies[0] == plain.result.best_evaluation.target_result.accuracy
    steps = [evaluation.step_name for evaluation in ended.evaluations]
    assert steps[steps.index("unused Q/DQ") + 1 :] == ["revert"] * len(raised), (
        "each raise is needed without the Q/DQ too"
    )
    assert all("(fails)" in ended.result.raise_reasons[name] for name in raised)
    assert ended.result.is_met and not later.rejection
    assert ended.result.config == later.config and ended.result.best_evaluation.raised_groups == raised
    assert ended.result.config.precision_moves[exposed].reason == PREVIEW_REASON
    assert f"Q/DQ out of {exposed}" in ended.result.summary and len(ended.remarks) == 2


def test_a_removal_that_a_check_rejects_is_not_made(worker, standin_previews, recorded, monkeypatch) -> None:
    standin_previews("unet")
    changed = recorded("unet")[2]
    opened_worker = worker("unet")

    def check(self, config):
        return CheckResult("rejected" if config == changed else "")
        yield

    monkeypatch.setattr(SearchJob, "run_check_command", check)
    ended = found(opened_worker.answer(goal_of(opened_worker, -0.5, check_command="judge")))
    assert ended.result.config == ALL_INT8 and ended.result.is_met and len(ended.qdq_removals) == 1
    (removal,) = ended.qdq_removals
    assert removal.rejection and ended.remarks[0].startswith(removal.savings_text) and "stay" in ended.remarks[0]


def test_only_what_the_result_lacks_is_reported_as_taken_out(recorded) -> None:
    network, (before, after), changed = recorded("odd")
    removal, _ = planned(network, ALL_INT8, before, lambda config: after)
    assert removal.find_quantized_groups(network, ALL_INT8) == (UP, CELU)
    raised = changed.with_group_precision([network.get_group(UP)], FP32)
    assert removal.find_quantized_groups(network, raised) == ()
    assert removal.find_quantized_groups(network, changed.without_group_precision([network.get_group(CELU)])) == (CELU,)


def test_a_removal_that_makes_the_error_larger_is_not_made(worker, standin_previews, recorded, monkeypatch) -> None:
    standin_previews("odd")
    changed = recorded("odd")[2]
    opened_worker = worker("odd")
    goal = goal_of(opened_worker, -0.5)
    measure = SearchJob.measure_accuracy

    def worse_without(self, config):
        accuracy = yield from measure(self, config)
        if config != changed:
            return accuracy
        outputs = {
            name: replace(one, errors=replace(one.errors, sqnr_db=one.errors.sqnr_db - 20))
            for name, one in accuracy.outputs.items()
        }
        return replace(accuracy, outputs=outputs)

    monkeypatch.setattr(SearchJob, "measure_accuracy", worse_without)
    ended = found(opened_worker.answer(goal))
    assert ended.result.config == ALL_INT8 and ended.result.is_met
    removal = ended.qdq_removals[0]
    assert "error" in removal.rejection and ended.remarks[0].startswith(removal.savings_text)
    assert not SearchStatus(goal, end_event=ended).make_search_record(opened_worker.network)["unused_qdq"][0]["removed"]


# -- the app -----------------------------------------------------------------------------------------------------------


async def test_one_key_takes_them_out_and_one_undo_brings_them_back(tmp_path, quick, monkeypatch) -> None:
    made: list[PrecisionConfig] = []
    outline = local.outline()
    unused = tuple(group.name for group in outline.groups if group.is_quantizable)[1:4]

    def preview_of(config) -> Preview:
        return engine(outline, config, unused, dict.fromkeys(unused[:2], 2))

    class Client:
        def __init__(self, *arguments) -> None:
            pass

        def preview_config(self, config):
            made.append(config)
            return preview_of(config)
            yield

    monkeypatch.setattr(comparison, "PreviewClient", Client)
    monkeypatch.setattr(comparison, "is_tensorrt_rtx_installed", lambda: True)
    async with opened(tmp_path, LARGE) as (app, main, pilot):
        session = app.session
        refusal = main._qdq_removal_refusal_reason
        assert "--no-preview" in refusal()
        session.requests_previews = True
        assert refusal() and "--no-preview" not in refusal()
        before = session.config
        session.apply_event(ev.EnginePreviewed(0, before, preview_of(before)))
        assert refusal() == ""
        session.requests_previews = False
        await answered(pilot, "9", "q")
        kernels = len(outline.groups)
        (said,) = (line for line in session.log if line.startswith(TAKEN_OUT))
        assert numbers(said)[:5] == [3, kernels + 4, kernels, 4, 0] and TAKEN_OUT in status(main)
        changed = session.config
        assert {group: session.config.precision_moves[group] for group in unused} == dict.fromkeys(
            unused, PrecisionMove(FP16, PREVIEW_REASON)
        ) and made == [before, changed]
        text = detail.group_settings_text(session, changed, outline.group_by_name[unused[0]])
        assert text.startswith("FP16 by the preview") and f"({BUILDER})" in text
        session.apply_event(ev.EnginePreviewed(0, changed, preview_of(changed)))
        assert refusal().endswith(f"({BUILDER})"), "nothing is left"
        await answered(pilot, "9", "q", "escape")
        assert session.config == changed
        await answered(pilot, "z")
        assert session.config == before and not session.history.can_undo


async def test_a_config_that_changed_meanwhile_is_left_alone_and_fixed_layers_are_named(tmp_path, quick) -> None:
    async with opened(tmp_path, LARGE) as (app, main, pilot):
        session, outline = app.session, local.outline()
        group = next(group for group in outline.groups if group.is_quantizable)
        user_config = PrecisionConfig.from_precision(FP16).with_group_precision([group], INT8)
        session.set_config(user_config)
        await settle(pilot)
        preview = engine(outline, user_config, (group.name,), {group.name: 2})
        session.apply_event(ev.EnginePreviewed(0, user_config, preview))
        refusal = main._qdq_removal_refusal_reason()
        assert (
            refusal.startswith(f"{group.name}: ") and refusal.endswith(f"; {SET_BY_USER}") and numbers(refusal) == [2]
        )
        removal, _ = planned(
            outline,
            ALL_INT8,
            engine(outline, ALL_INT8, (group.name,), {group.name: 2}),
            lambda config: engine(outline, config),
        )
        for config, shown in (
            (ALL_INT8, "the config has changed, so its Q/DQ stay"),
            (user_config, "no Q/DQ can be taken out: the engine is worse without those of"),
        ):
            event = ev.UnusedQdqRemoved(0, config, removal)
            if config is user_config:
                event = replace(event, removal=replace(removal, config=config, groups=(), kept_groups=removal.groups))
            session.apply_event(event)
            main.handle_session_event(event)
            await settle(pilot)
            assert shown in status(main) and session.config == user_config


def test_the_detail_pane_says_it_and_how_to_act(recorded) -> None:
    network, (before, _), _ = recorded("odd")
    sentences = engine_texts.preview_implementation_sentences(before, network.get_group(CELU), INT8, {})
    assert sentences[0].startswith(f"{BUILDER}: ≠ FP32") and "INT8" in sentences[0]
    assert sentences[1].startswith(FINDINGS[CELU]) and "key 9" in sentences[1]
    sentences = engine_texts.preview_implementation_sentences(before, network.get_group("/stem/Conv"), INT8, {})
    assert not any("Q/DQ" in sentence for sentence in sentences)


# -- the commands ------------------------------------------------------------------------------------------------------


@pytest.mark.rtx("1.7")
def test_commands_name_the_layers_and_a_search_reports_what_it_took_out(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Session, "requests_previews", True)
    model, data, out, report = (tmp_path / name for name in ("odd.onnx", "data.npz", "found.json", "found.md"))
    onnx.save(networks.odd_kernels(), model)
    np.savez(data, image=networks.random_images(np.random.default_rng(0), (8, 3, 16, 16)))
    code, text, _ = run("preview", model, "--data", data)
    assert code == 1 and all(f"{group}: {one}" in text for group, one in FINDINGS.items())
    code, text, _ = run("compare", model, "--data", data, "--layers", "none", "--markdown", report)
    assert code == 0 and all(f"  {group}: {one}" in text for group, one in FINDINGS.items())
    assert not lacking(report.read_text("utf-8"), *FINDINGS.values())
    code, text, _ = run("search", model, "--data", data, "--tolerance", "sqnr>=29", "-o", out, "--markdown", report)
    saved = next(line.strip() for line in text.splitlines() if line.strip().startswith(TAKEN_OUT))
    assert code == 0 and numbers(saved)[:5] == [2, 15, 14, 1, 0] and saved in report.read_text("utf-8"), text
    assert f"INT8 ran in FP16 ({BUILDER})" in text
    record = json.loads(out.read_text("utf-8"))
    (removed,) = record["evidence"]["search"]["unused_qdq"]
    assert (removed["kernels"], removed["conversions"], removed["removed"]) == ([15, 14], [1, 0], True)
    assert removed["simulated_sqnr_db"][0] < 29 <= removed["simulated_sqnr_db"][1]
    assert {
        tuple(move["layers"])[0]: (move["precision"], move["reason"])
        for move in record["moves"]
        if move["kind"] == "precision"
    } == {UP: ("fp16", "preview"), CELU: ("fp32", "preview")}
    code, text, _ = run("preview", model, "--config", out, "--data", data, "--json")
    assert code == 0 and "unused_qdq" not in json.loads(text)
    code, text, _ = run("search", model, "--data", data, "--tolerance", "sqnr>=29", "--no-preview", "-o", out)
    assert code == 0 and "Q/DQ" not in text
