"""Masks of judged outputs, which select the elements that count and leave out padding.

The same masks apply at the fusion groups whose tensors have the axes of the mask.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.tensor_collection import NetworkProbe
from trt_tui.core.data.samples import Samples
from trt_tui.core.measure.error_metrics import flatten_each_sample
from trt_tui.core.measure.judged_outputs import JudgedOutput, take_judged_slice
from trt_tui.core.network.network import FP16_MASK_VALUE, Network
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError

_MIN_MASK_MAGNITUDE = FP16_MASK_VALUE / 2
"""The minimum magnitude of a mask value in every type: half of the value that represents a mask in FP16."""


def find_unmasked_elements(judged_output: JudgedOutput, samples: Samples, feed_index: int, reference: np.ndarray,
                           test: np.ndarray | None = None) -> np.ndarray | None:
    """Returns the elements of a judged output that no mask leaves out in a feed, as a bool array; None if there is no
    mask.

    A mask has the leading axes of the tensor (or 1 in their place) and applies to all other axes: ``(samples, tokens)``
    for ``(samples, tokens, features)``. An element counts if the mask is not 0 there. An element that the network
    itself masks does not count, unless the run no longer masks it.

    Args:
        reference: The whole tensor in FP32.
        test: The whole tensor in the judged run, of the same shape. If None, the masks of FP32 alone apply.

    Raises:
        InputError: the data have no such array, or its shape does not fit.
    """
    unmasked = _find_elements_outside_network_mask(judged_output, reference,
                                                   test) if judged_output.mask_threshold else None
    if not judged_output.mask:
        return unmasked
    shape = reference.shape
    arrays = {**samples.read_labels(feed_index), **samples.read_feed(feed_index)}
    if judged_output.mask not in arrays:
        raise InputError(f"--judge {judged_output.name}: the data have no {judged_output.mask}",
                         f"they have {', '.join(arrays)}", "Name an input or another array of the data after @.")
    mask = arrays[judged_output.mask]
    fits = mask.ndim <= len(shape) and all(mask_size in (1, size)
                                           for mask_size, size in zip(mask.shape, shape, strict=False))
    if not fits:
        sizes, tensor_sizes = ("x".join(map(str, shape_of_array)) for shape_of_array in (mask.shape, shape))
        raise InputError(f"--judge {judged_output.name}: {judged_output.mask} does not fit {judged_output.tensor}",
                         f"its shape is {sizes}, the tensor's {tensor_sizes}: the leading axes have to be the same",
                         "Name a mask such as (samples, tokens) for a tensor (samples, tokens, features).")
    counts = np.reshape(mask != 0, mask.shape + (1,) * (len(shape) - mask.ndim))
    is_counted = take_judged_slice(np.broadcast_to(counts, shape), judged_output)
    return is_counted if unmasked is None else is_counted & unmasked


def _find_elements_outside_network_mask(judged_output: JudgedOutput, reference: np.ndarray,
                                        test: np.ndarray | None) -> np.ndarray:
    """Returns the elements of a judged output that the network itself does not mask, as a bool array. NaN is not a
    mask."""
    expected = take_judged_slice(reference, judged_output)
    masked = np.abs(expected) >= judged_output.mask_threshold
    if test is not None:
        got = take_judged_slice(test, judged_output)
        masked &= (np.abs(got) >= min(judged_output.mask_threshold, _MIN_MASK_MAGNITUDE)) & (np.signbit(got)
                                                                                             == np.signbit(expected))
    unmasked: np.ndarray = ~masked
    return unmasked


def refuse_nan_in_judged_tensors(judged_outputs: Sequence[JudgedOutput], samples: Samples, feed_index: int,
                                 arrays_by_tensor: Mapping[str, np.ndarray], source_text: str) -> None:
    """Raises an error if the judged tensors of a reference contain NaN outside masked elements.

    NaN counts unless every judged output of its tensor leaves it out as padding.

    Args:
        arrays_by_tensor: Whole tensors of a feed by name.
        source_text: The origin of the tensors, for the error message.

    Raises:
        InputError: a NaN counts.
    """
    for tensor, array in arrays_by_tensor.items():
        if array.dtype.kind != "f" or not np.isnan(array).any():
            continue
        parts = [(take_judged_slice(array, output), find_unmasked_elements(output, samples, feed_index, array))
                 for output in judged_outputs if output.tensor == tensor]
        if not parts or any(counts is None or np.isnan(part[counts]).any() for part, counts in parts):
            nan = next((found for part, counts in parts if (
                found := np.isnan(part if counts is None else np.where(counts, part, 0))).any()), np.isnan(array))
            row = int(flatten_each_sample(nan, samples.count_samples_of_feed(feed_index)).any(axis=1).argmax())
            raise InputError(f"{source_text} yields NaN at {tensor}",
                             f"sample {samples.sample_name(feed_index, row)} of {samples.source} causes it",
                             "No precision can be judged against it: check the network and the data.")


def find_common_mask_name(judged_outputs: Iterable[JudgedOutput]) -> str:
    """Returns the name of the only mask of the judged outputs; "" if there is none or more than one."""
    masks = {output.mask for output in judged_outputs if output.mask}
    return masks.pop() if len(masks) == 1 else ""


def read_mask(mask_name: str, samples: Samples, feed_index: int) -> np.ndarray:
    """Returns the mask of a feed as a bool array, True for each element that is compared."""
    mask: np.ndarray = {**samples.read_labels(feed_index), **samples.read_feed(feed_index)}[mask_name] != 0
    return mask


def find_mask_axes(network: Network, backend: Backend, samples: Samples, mask_name: str, tensors: Sequence[str]
                   ) -> dict[str, tuple[bool, ...]]:
    """Returns for each tensor the axes that it shares with a mask: one bool for each axis of the tensor.

    Shared axes are recognised by their sizes in the first and the last feed, which are executed for this purpose. The
    first axis of mask and tensor is that of the samples. The second axis of the mask is the only other axis of the
    tensor with the same size. A tensor is left out if several axes have this size, as in attention scores, or none has
    it.
    """
    possible: dict[str, set[int]] = {}
    ranks: dict[str, int] = {}
    for index in sorted({0, len(samples) - 1}):
        sizes = samples.pad_rows(read_mask(mask_name, samples, index), index).shape
        for tensor, shape in _measure_tensor_shapes(network, backend, samples, index, tensors).items():
            fits = len(sizes) in (1, 2) and shape[:1] == sizes[:1]
            matching_axes = {axis for axis, size in enumerate(shape) if axis and size == sizes[-1]} if fits else set()
            matching_axes = {0} if fits and len(sizes) == 1 else matching_axes
            possible[tensor] = possible.get(tensor, matching_axes) & matching_axes
            ranks[tensor] = len(shape)
    return {tensor: tuple(axis == 0 or axis in matching_axes for axis in range(ranks[tensor]))
            for tensor, matching_axes in possible.items() if len(matching_axes) == 1}


def _measure_tensor_shapes(network: Network, backend: Backend, samples: Samples, feed_index: int, tensors: Sequence[str]
                           ) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of float tensors in a feed."""
    probe = NetworkProbe(network.model)
    outputs = {
        tensor: probe.add_output(probe.append_operator("Shape", probe.get_fp32_value(tensor), dtype=ir.DataType.INT64))
        for tensor in dict.fromkeys(tensors)
    }
    with probe.load_probe_runner(backend, samples) as runner:
        shapes = runner.run(samples.read_feed(feed_index))
    return {tensor: tuple(map(int, shapes[name])) for tensor, name in outputs.items()}
