"""Errors inside an engine: the results of its fusion groups against FP32 of the network."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from trt_tui.core.data.adaptive_runner import load_adaptive_runner
from trt_tui.core.engines.kernel_results import KernelResult, decode_kernel_result
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.error_metrics import ErrorMetrics, ErrorSums, compute_error_metrics_of_all
from trt_tui.core.measure.judged_outputs import find_common_mask_name, read_mask
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.model_outputs import extract_subgraph_of_outputs
from trt_tui.core.runner import EngineRunner, Runner
from trt_tui.errors import TrtTuiError

ReadGroupResults = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], Mapping[str, Sequence[np.ndarray]]]
"""A function that reads the result of each group in an engine, from a feed and the FP32 tensors for that feed. A result
is one array, or several possible readings."""


def make_kernel_output_reader(runner: EngineRunner, kernel_results: Mapping[str, KernelResult]) -> ReadGroupResults:
    """Returns a function that reads group results from the debug tensors between the kernels of an engine as built."""
    names = {output.tensor for end in kernel_results.values() for output in end.possible_outputs}

    def read_group_results(feed: Mapping[str, np.ndarray],
                           reference: Mapping[str, np.ndarray]) -> Mapping[str, Sequence[np.ndarray]]:
        handed = runner.read_debug_tensors(feed, names)
        return {
            group: decode_kernel_result(handed, end, reference[end.tensor].shape)
            for group, end in kernel_results.items()
        }

    return read_group_results


def make_engine_output_reader(runner: Runner, tensors_by_group: Mapping[str, str]) -> ReadGroupResults:
    """Returns a function that reads group results from a marked engine, which has every group's result as an output."""
    def read_group_results(feed: Mapping[str, np.ndarray],
                           reference: Mapping[str, np.ndarray]) -> Mapping[str, Sequence[np.ndarray]]:
        outputs = runner.run(feed, list(tensors_by_group.values()))
        return {group: [outputs[tensor].astype(np.float32, copy=False).reshape(reference[tensor].shape)]
                for group, tensor in tensors_by_group.items() if outputs[tensor].size == reference[tensor].size}

    return read_group_results


def measure_engine_errors(analysis: Analysis, config: PrecisionConfig, read_group_results: ReadGroupResults,
                          tensors_by_group: Mapping[str, str],
                          feed_indices: Sequence[int]) -> Iterator[dict[str, ErrorMetrics]]:
    """Yields the accumulated errors inside an engine by group name after each feed, over all feeds so far.

    A group is absent if its result could not be read. If a result can be read in several ways, the reading that is
    nearest to FP32 on the first feed is used for all feeds. If the judged outputs have one mask, masked elements do not
    count at the tensors that have the axes of the mask.

    Args:
        config: The config of the engine. Where its moves divide channels, results are multiplied by the divisors first.
        tensors_by_group: The tensor of the network at which each group is compared.
    """
    network, samples = analysis.network, analysis.samples
    divisors = config.find_divisors(network)
    mask = find_common_mask_name(analysis.judged_outputs)
    sums: dict[str, ErrorSums] = {}
    chosen: dict[str, int] = {}
    tensor_names = list(dict.fromkeys(tensors_by_group.values()))
    if not tensor_names:
        return
    with load_adaptive_runner(analysis.backend, extract_subgraph_of_outputs(network.model, tensor_names), samples,
                              low_memory=True, few_executions=True) as runner:
        for index in feed_indices:
            feed = samples.read_full_feed(index)
            reference = runner.run(feed, tensor_names)
            for group, arrays in read_group_results(feed, reference).items():
                tensor = tensors_by_group[group]
                counts = _find_unmasked_elements(analysis, mask, tensor, index, reference[tensor].shape)
                reading_sums = [_sum_errors(reference[tensor], array * divisors.get(tensor, np.float32(1)), counts)
                                for array in arrays]
                if not reading_sums:
                    continue
                if group not in chosen:
                    chosen[group] = reading_sums.index(min(reading_sums, key=lambda item: item.noise_to_signal_ratio))
                if chosen[group] < len(reading_sums):
                    chosen_sums = reading_sums[chosen[group]]
                    sums.setdefault(group,
                                    ErrorSums()).merge_sums({name: getattr(chosen_sums, name)
                                                             for name in vars(chosen_sums)})
            yield dict(zip(sums, compute_error_metrics_of_all([*sums.values()]), strict=True))


def _find_unmasked_elements(analysis: Analysis, mask_name: str, tensor: str, feed_index: int,
                            shape: tuple[int, ...]) -> np.ndarray | None:
    """Returns the elements of a tensor that no mask leaves out, as a bool array in its shape; None if all are compared.
    """
    axes = analysis.mask_axes_by_tensor.get(tensor) if mask_name else None
    if axes is None:
        return None
    mask_array = analysis.samples.pad_rows(read_mask(mask_name, analysis.samples, feed_index), feed_index)
    if mask_array.ndim != sum(axes):
        raise TrtTuiError(f"{mask_name} does not fit {tensor}",
                          f"its shape is {mask_array.shape}, the tensor's {shape}", "")
    sizes = [size if has else 1 for has, size in zip(axes, shape, strict=True)]
    return np.broadcast_to(mask_array.reshape(sizes), shape)


def _sum_errors(reference: np.ndarray, actual: np.ndarray, is_unmasked: np.ndarray | None) -> ErrorSums:
    sums = ErrorSums()
    if is_unmasked is None:
        sums.add_tensor_pair(reference, actual)
    else:
        sums.add_tensor_pair(reference[is_unmasked], actual[is_unmasked])
    return sums
