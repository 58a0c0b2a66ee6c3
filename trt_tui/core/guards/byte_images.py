"""The guard against images that the data hold as bytes and that the network expects in another range.

Rule: a float input holds byte images if all compared samples have two axes of at least 8 values, and all their values
are whole numbers from 0 to 255, with one above 127. The guard asks unless the first operators behind the input scale or
normalise it.

Source: errors are relative, so they look normal if calibration data and judged data are both 255 times too large. With
the images of the bundled network times 255, as whole numbers, INT8 has 22 dB and meets 20 dB; with the images
themselves it has 11 dB. A divided or normalised image does not consist of whole numbers. Some networks take bytes, so
the warning is a question. Token ids have an integer type.
"""

from collections.abc import Iterator

from trt_tui.core.guards.guard import Guard, GuardFacts, GuardWarning
from trt_tui.core.network.layers import LayerKind, NetworkOutline
from trt_tui.formatting import counted_noun_text, escape_hidden_characters

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


class ByteImagesGuard(Guard):
    """The guard that asks whether a float input should hold bytes."""

    name = "byte-images"
    description = "images of whole numbers from 0 to 255 in a float input"

    def explain_missing_facts(self, guard_facts: GuardFacts) -> str:
        if guard_facts.has_random_inputs:
            return "random inputs"
        return "" if guard_facts.byte_inputs is not None else "the inputs were not checked"

    def find_warnings(self, guard_facts: GuardFacts) -> Iterator[GuardWarning]:
        for name, sample_count in (guard_facts.byte_inputs or {}).items():
            yield self.make_warning(
                f"{escape_hidden_characters(name)} holds bytes: does production divide them by 255?",
                f"all values of {counted_noun_text(sample_count, 'sample')} are whole numbers from 0 to 255, and the "
                "network does not scale this input; if it expects 0 to 1, all ranges and errors are of other values",
                "Prepare the data as production does. If production feeds bytes too, the data are right.")
