"""The guards against samples, labels and references that do not fit the network."""

import math
from collections.abc import Iterator

import numpy as np

from trt_tui.core.guards.guard import Alarm, GuardFacts, InputStats, LabelClassFacts, require
from trt_tui.core.network.layers import LayerKind, NetworkOutline
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, name_list_text, number_text

MIN_FRAMEWORK_SQNR_DB = 60.0


def fp32_miss_text(guard_facts: GuardFacts) -> str:
    """Returns the targets that FP32 itself misses against another reference, in one line; "" if it misses none."""
    accuracy = guard_facts.fp32_accuracy
    missed = [target for target in guard_facts.targets if accuracy is not None and target.is_met_by(accuracy) is False]
    if accuracy is None or not missed:
        return ""
    reference_text = escape_hidden_characters(guard_facts.reference_name)
    return (f"FP32 itself misses the target against {reference_text}: "
            + ", ".join(target.measured_value_text(accuracy) for target in missed))


def find_framework_mismatches(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if FP32 outputs of the network differ from those of the reference.

    Rule: it warns if FP32 misses the target, or if the SQNR of an output against outputs of a framework is below 60 dB.

    Source: two FP32 runtimes agree to at least 100 dB, even if only one fuses layers. A framework that multiplies in
    TF32 or FP16 agrees to 50 to 60 dB. Below that, the network computes something else, or the inputs were prepared
    differently. No precision of a layer corrects either.
    """
    require(facts.framework_errors or facts.fp32_accuracy or None, "FP32 is the reference")
    if summary := fp32_miss_text(facts):
        yield (
            summary, "no precision of a layer corrects that: both compute something else, or their inputs differ",
            "Compare the weights, the exports and the preprocessing of both sides before any layer.")
        return
    for name, errors in (facts.framework_errors or {}).items():
        bad = errors.nonfinite_count or not errors.exact and (errors.sqnr_db is None
                                                              or errors.sqnr_db < MIN_FRAMEWORK_SQNR_DB)
        if bad and errors.mismatch is None:
            yield (
                f"FP32 differs from the framework: {errors.sqnr_text('')} dB at {escape_hidden_characters(name)}",
                "two FP32 runtimes agree to 100 dB and more, so this is not a precision problem",
                "Check the export and the preprocessing of both sides before any layer.")


def find_constant_inputs(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the judged samples are copies of one sample.

    Rule: it warns if there are at least two samples, and every input is equal in all compared samples, up to 64.

    Source: with ones instead of images, INT8 of the bundled network passes, and every sample repeats the result of the
    first. A single input that never changes, such as a mask, is common and causes no warning.
    """
    require(not facts.has_random_inputs, "random inputs")
    equal_count = require(facts.equal_sample_count, "the samples were not compared")
    if equal_count:
        yield (
            f"all {counted_noun_text(equal_count, 'judged sample')} are the same",
            "ranges and errors of a single input say nothing about other inputs, and a PASS on it proves nothing",
            "Give samples that differ from each other, as production feeds them.")


MIN_SPREAD_RATIO = 2.0
MIN_MEAN_SHIFT = 0.5
MIN_STANDARD_ERRORS, MIN_STANDARD_ERRORS_FEW, FEW_SAMPLES = 5.0, 8.0, 8
_TINY = 1e-12


def find_input_mismatches(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if calibration inputs differ from the judged inputs in scale, mean or channel order.

    Rules, for each float or 8-bit input, over means, standard deviations and largest magnitudes of single samples:

    - Spread or reach: the standard deviations, or the largest magnitudes, differ by a factor of 2 in the geometric
      mean. If the factor is near 255, the warning says so, because a missing division by 255 causes it.
    - Mean: the mean of a channel differs by at least half of its standard deviation.
    - Order: the means of three channels, each minus the mean of the sample, agree only in reversed order (RGB read as
      BGR).
    - One of the two inputs has a single value everywhere, and the other has not.

    A difference counts if it is at least 5 standard errors of the difference of two means; 8 with fewer than 8 samples.

    Source: TensorRT's calibrators accept any input without a warning. With inputs times 255, the F1 of the bundled
    network falls to 8.5. Samples of the same kind differ by chance according to Student's t. From 12 samples on, 5
    standard errors have a probability below 0.01 %.
    """
    require(not facts.has_random_inputs, "random inputs")
    require(not facts.judges_calibration_samples, "the same samples calibrate and are judged")
    require(facts.range_facts, "no layer needs a range")
    input_stats = require(facts.input_stats or None, "no input of floats or bytes")
    for name, (calibration_stats, judged_stats) in input_stats.items():
        difference = _describe_input_difference(calibration_stats, judged_stats)
        if difference is not None:
            quantity, explanation = difference
            yield (
                f"calibration inputs differ from judged inputs: {quantity} of {escape_hidden_characters(name)}",
                f"{explanation} (calibration {_input_stats_text(calibration_stats)}; judged "
                f"{_input_stats_text(judged_stats)}): one of the two does not match production",
                "Prepare both with the same code.")


def _input_stats_text(input_stats: InputStats) -> str:
    means = ", ".join(number_text(float(value) + 0.0) for value in input_stats.mean.mean(0)[:4])
    std = math.sqrt(float(np.mean(np.square(input_stats.std))))
    return (
        f"{number_text(float(input_stats.minimum.min()) + 0.0)} to "
        f"{number_text(float(input_stats.maximum.max()))}, mean {means}, "
        f"std {number_text(std)}")


def _describe_input_difference(calibration_stats: InputStats, judged_stats: InputStats) -> tuple[str, str] | None:
    """Returns the quantity in which two inputs differ, and an explanation; None if they may be of the same kind."""
    varied = [bool(stats.maximum.max() > stats.minimum.min()) for stats in (calibration_stats, judged_stats)]
    if not all(varied):
        return None if not any(varied) else ("spread", "one is constant, the other is not")
    for quantity, logs in (("spread", _compute_log_std_by_sample), ("reach", _compute_log_amax_by_sample)):
        differences = _compare_column_means(*(logs(stats) for stats in (calibration_stats, judged_stats)))
        if differences is not None and abs(differences[0][0]) >= math.log(MIN_SPREAD_RATIO) and differences[1].any():
            factor = math.exp(abs(differences[0][0]))
            side = "larger" if differences[0][0] > 0 else "smaller"
            by_255 = ", as where one is divided by 255 and the other is not" if 200 <= factor <= 325 else ""
            return quantity, f"the calibration inputs are {number_text(factor)} times {side}{by_255}"
    if calibration_stats.channel_count != judged_stats.channel_count:
        return None
    if _has_reversed_channels(calibration_stats, judged_stats):
        return "channel order", "the means of their channels fit when they are reversed, as of RGB read as BGR"
    differences = _compare_column_means(calibration_stats.mean, judged_stats.mean)
    if differences is None:
        return None
    both = np.concatenate([calibration_stats.mean, judged_stats.mean])
    std = np.sqrt(np.mean(np.square(np.concatenate([calibration_stats.std, judged_stats.std])), 0)
                  + both.var(0)) + _TINY
    channels = [
        channel for channel in np.flatnonzero(differences[1])
        if abs(differences[0][channel]) >= MIN_MEAN_SHIFT * std[channel]
    ]
    if not channels:
        return None
    worst = max(channels, key=lambda channel: float(abs(differences[0][channel]) / std[channel]))
    channel_text = f"of channel {worst} " if calibration_stats.channel_count > 1 else ""
    return (
        "mean",
        f"the mean "
        f"{channel_text}is "
        f"{number_text(float(differences[0][worst]))} off, of a std of {number_text(float(std[worst]))}"
    )


def _compute_log_std_by_sample(input_stats: InputStats) -> np.ndarray:
    """Returns the logarithms of the samples' standard deviations over all channels, ``(samples, 1)``.

    Samples with a single value are left out.
    """
    centre = input_stats.mean.mean(1, keepdims=True)
    variance = np.mean(np.square(input_stats.std) + np.square(input_stats.mean - centre), 1)
    logs: np.ndarray = 0.5 * np.log(variance[variance > _TINY])
    return logs[:, None]


def _compute_log_amax_by_sample(input_stats: InputStats) -> np.ndarray:
    """Returns the logarithms of the samples' largest magnitudes, ``(samples, 1)``. Samples of zeros are left out."""
    reach = np.maximum(np.abs(input_stats.minimum), np.abs(input_stats.maximum)).max(1)
    logs: np.ndarray = np.log(reach[reach > _TINY])
    return logs[:, None]


def _compare_column_means(first_array: np.ndarray, second_array: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the differences of column means, and True for each difference that chance does not explain.

    None if there are too few rows to compare.
    """
    count = len(first_array) + len(second_array)
    if not len(first_array) or not len(second_array) or count < 3:
        return None
    spread = sum(np.square(rows - rows.mean(0)).sum(0) for rows in (first_array, second_array)) / (count - 2)
    difference = first_array.mean(0) - second_array.mean(0)
    errors = np.sqrt(spread * (1 / len(first_array) + 1 / len(second_array))) + _TINY
    return difference, np.abs(difference) / errors > (MIN_STANDARD_ERRORS
                                                      if count >= FEW_SAMPLES else MIN_STANDARD_ERRORS_FEW)


def _has_reversed_channels(calibration_stats: InputStats, judged_stats: InputStats) -> bool:
    if calibration_stats.channel_count != 3:
        return False
    calibration_offsets, judged_offsets = (stats.mean - stats.mean.mean(1, keepdims=True)
                                           for stats in (calibration_stats, judged_stats))
    direct, reversed_order = _compare_column_means(calibration_offsets, judged_offsets), _compare_column_means(
        calibration_offsets[:, ::-1], judged_offsets)
    if direct is None or reversed_order is None or not direct[1].any() or reversed_order[1].any():
        return False
    return bool(np.abs(reversed_order[0]).max() < 0.5 * np.abs(direct[0]).max())


_SCALING_OPERATORS = frozenset((
    "Add", "BatchNormalization", "Div", "GroupNormalization", "InstanceNormalization", "LayerNormalization",
    "LpNormalization", "MeanVarianceNormalization", "Mul", "QuantizeLinear", "RMSNormalization", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceSum", "Sub"))
"""Operators by which a network brings its input into another range, or begins a decomposed normalisation."""


def find_scaled_inputs(network: NetworkOutline) -> frozenset[str]:
    """Finds the inputs that an operator of the network scales, shifts or normalises before any other computation."""
    unscaled_inputs: dict[str, set[str]] = {info.name: {info.name} for info in network.inputs}
    scaled: set[str] = set()
    for layer in network.layers:
        read_inputs = set[str]().union(*(unscaled_inputs.get(name, ()) for name in layer.inputs))
        if layer.op_type in _SCALING_OPERATORS:
            scaled |= read_inputs
        elif layer.kind in (LayerKind.COPY, LayerKind.CAST) or layer.op_type == "Pad":
            unscaled_inputs |= dict.fromkeys(layer.outputs, read_inputs)
    return frozenset(scaled)


def find_byte_images(facts: GuardFacts) -> Iterator[Alarm]:
    """Asks whether a float input should hold bytes.

    Rule: a float input holds byte images if all compared samples have two axes of at least 8 values, and all their
    values are whole numbers from 0 to 255, with one above 127. The guard asks unless the first operators behind the
    input scale or normalise it.

    Source: errors are relative, so they look normal if calibration data and judged data are both 255 times too large.
    With the images of the bundled network times 255, as whole numbers, INT8 has 22 dB and meets 20 dB; with the images
    themselves it has 11 dB. A divided or normalised image does not consist of whole numbers. Some networks take bytes,
    so the warning is a question. Token ids have an integer type.
    """
    require(not facts.has_random_inputs, "random inputs")
    byte_inputs = require(facts.byte_inputs, "the inputs were not checked")
    for name, sample_count in byte_inputs.items():
        yield (
            f"{escape_hidden_characters(name)} holds bytes: does production divide them by 255?",
            f"all values of {counted_noun_text(sample_count, 'sample')} are whole numbers from 0 to 255, and the "
            "network does not scale this input; if it expects 0 to 1, all ranges and errors are of other values",
            "Prepare the data as production does. If production feeds bytes too, the data are right.")


def find_unfit_label_warnings(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if labels name classes that the output does not have.

    Rule: it checks integer labels of a classifier, or of each pixel if the output has classes in its second axis. The
    guard warns about a label that is negative or at least the number of classes. -1 and -100 are not labels, and
    neither is 255 beside small numbers. An array counts as class labels if at least half of its labels fit and labels
    repeat; other arrays hold numbers of samples or quantities. One-hot rows must have as many columns as there are
    classes.

    Source: PyTorch ignores the label -100, and Cityscapes and Pascal VOC mark ignored pixels with 255. A metric counts
    a label that no output can have as an error of every run, so that the baseline is too low and hides losses. Labels
    that begin at 1 make nearly every sample wrong.
    """
    unfit_labels = require(facts.unfit_labels, "no labels, or no output with classes")
    for labels in unfit_labels:
        array, output = escape_hidden_characters(labels.label_array), escape_hidden_characters(labels.output)
        summary = f"labels in {array} do not fit the {labels.class_count} classes of {output}"
        if labels.one_hot_size is not None:
            yield (summary, f"a one-hot row there has {labels.one_hot_size} columns",
                   "Give labels of the classes that the network was trained on.")
            continue
        starts_at_one = labels.outside == (labels.class_count, ) and not labels.has_class_0
        yield (
            summary, f"{name_list_text(list(map(str, labels.outside)), 5)} occur there, and classes are 0 to "
            f"{labels.class_count - 1}" + ("; class 0 never occurs, as if labels begin at 1" * starts_at_one),
            "Subtract 1 from the labels." if starts_at_one else
            "Correct the labels, or leave these samples out: no run can be right about them.")


MIN_BATCH_SQNR_DB = 80.0


def find_batch_dependence(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if the outputs of a sample depend on the other samples of its batch.

    Rule: FP32 outputs of up to 4 samples are computed in the batch in use, and again alone (in a batch of copies if the
    network has a fixed batch). The guard warns if the SQNR of an output between the two is below 80 dB.

    Source: another batch only changes the order of sums in FP32, which leaves 134 dB and more in the networks of the
    tests (residual network, U-Net, BERT, ViT). Subtracting the mean of the batch from the outputs leaves 0 dB. Accuracy
    that was measured at one batch says nothing about another then, and the copies that fill up a fixed batch change the
    results too.
    """
    sqnrs_db = require(facts.batch_sqnr_db, facts.no_batch_reason or "it was not measured")
    for name, sqnr_db in sqnrs_db.items():
        if sqnr_db < MIN_BATCH_SQNR_DB:
            difference = f"has an SQNR of {sqnr_db:.1f} dB" if math.isfinite(sqnr_db) else "is not finite"
            yield (
                f"{escape_hidden_characters(name)} depends on the other samples of the batch",
                f"FP32 of a sample alone {difference} against FP32 of the same sample in a batch of "
                f"{facts.compared_batch}; rounding alone leaves over {MIN_BATCH_SQNR_DB:.0f} dB",
                "Measure at the batch of production (--batch), or export the network in inference mode.")


def find_missing_classes(facts: GuardFacts) -> Iterator[Alarm]:
    """Warns if classes of the judged samples have no calibration sample.

    Rule: it checks each array of integer labels in which a class occurs in at least two judged samples on average.
    Negative numbers such as -1, and 255 beside small numbers, are not classes. The guard warns about missing classes if
    there are at least two calibration samples per class. With fewer samples, the limit is the number of classes that a
    random draw of that many samples could miss. It is the sum of (1 - share)^n over the classes, plus two of its
    standard deviations.

    Source: a property of only one class (its brightest texture, its rare token) has no effect on any range if none of
    its samples calibrates. The draw is binomial. With a thousand classes and 64 samples most classes are missing, and
    that alone means nothing.
    """
    require(not facts.no_classes_reason, facts.no_classes_reason)
    all_class_facts = require(facts.class_facts or None, "no labels that name classes")
    require(facts.range_facts, "no layer needs a range")
    for class_facts in all_class_facts:
        missing = sorted(class_facts.judged_counts.keys() - class_facts.calibration_counts.keys())
        if missing and (2 * len(class_facts.judged_counts) <= class_facts.calibration_samples
                        or len(missing) > _estimate_classes_missed_by_chance(class_facts)):
            yield (
                f"{len(missing)} of {len(class_facts.judged_counts)} classes in "
                f"{escape_hidden_characters(class_facts.label_array)} have no calibration sample",
                f"{counted_noun_text(class_facts.calibration_samples, 'sample')} calibrate, none of class "
                f"{name_list_text([str(label) for label in missing])}: values that occur only in these classes are "
                "not in the ranges",
                "Give --calib-data with every class.")


def _estimate_classes_missed_by_chance(class_facts: LabelClassFacts) -> float:
    """Returns the number of classes that a random draw of the calibration samples could miss."""
    missed = [(1 - min(1.0, count / class_facts.judged_samples))**class_facts.calibration_samples
              for count in class_facts.judged_counts.values()]
    return sum(missed) + 2 * math.sqrt(sum(share * (1 - share) for share in missed))
