"""The measurement of outputs that depend on the other samples of the batch."""

from collections.abc import Generator, Sequence

from trt_tui.core.data.samples import can_mix_samples
from trt_tui.core.data.shapes import first_dimension
from trt_tui.core.guards.guard import GuardFacts
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.error_metrics import ErrorSums
from trt_tui.core.measure.judged_outputs import FLOAT_KIND, take_judged_slice
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import counted_noun_text

MAX_COMPARED_SAMPLES = 4


def measure_batch_dependence(analysis: Analysis,
                             feed_indices: Sequence[int]) -> Generator[None, None, GuardFacts]:
    """Measures the SQNR of FP32 outputs of single samples against the same samples in the batch in use.

    Yields between two executions.
    """
    samples = analysis.samples
    feed_index = next((index for index in feed_indices if samples.count_samples_of_feed(index) > 1), None)
    if feed_index is None:
        return GuardFacts(no_batch_reason="each batch has one sample")
    if not can_mix_samples(samples, [feed_index]):
        return GuardFacts(no_batch_reason="the inputs have no row for each sample")
    rows = range(min(samples.count_samples_of_feed(feed_index), MAX_COMPARED_SAMPLES))
    fixed_size = next((size for info in analysis.network.inputs if info.name in samples.per_sample_array_names
                       and isinstance(size := first_dimension(info), int)), 1)
    alone = analysis.copy_with_batches([[(feed_index, row)] * fixed_size for row in rows])
    outputs = [output for output in analysis.judged_outputs if output.kind == FLOAT_KIND]
    sums = {output.name: ErrorSums() for output in outputs}
    try:
        in_batch = analysis.get_fp32_outputs(feed_index)
        yield
        for row in rows:
            outputs_alone = alone.get_fp32_outputs(row)
            for output in outputs:
                expected, got = (take_judged_slice(tensors[output.tensor], output)
                                 for tensors in (in_batch, outputs_alone))
                if expected.shape[:1] == (samples.count_samples_of_feed(feed_index), ) and (
                        got.shape == (fixed_size, *expected.shape[1:])):
                    sums[output.name].add_tensor_pair(expected[row], got[0])
            yield
    except TrtTuiError as error:
        return GuardFacts(no_batch_reason=f"single samples are not executed: {error.title}")
    differences = {name: output_sums.compute_error_metrics().comparable_sqnr_db
                   for name, output_sums in sums.items() if output_sums.count}
    if not differences:
        return GuardFacts(no_batch_reason="no float output has a row for each sample")
    return GuardFacts(batch_sqnr_db=differences, compared_batch=counted_noun_text(
        samples.count_rows_of_full_feed(feed_index), "sample"))
