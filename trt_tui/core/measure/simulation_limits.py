"""Reasons for doubt in parts of a network that no value of a run covers: outputs that are not judged, and layers inside
control flow, which the simulation leaves in FP32."""

from collections.abc import Mapping

from trt_tui.core.lowering.lowering_checks import body_layers_text, reduces_precision
from trt_tui.core.measure.results import Caveat
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.formatting import escape_hidden_characters


def make_unjudged_output_caveats(unjudged_outputs: Mapping[str, str]) -> tuple[Caveat, ...]:
    """Returns a caveat for each network output that is not judged.

    Args:
        unjudged_outputs: The reason why an output is not judged, by name of the output.
    """
    return tuple(Caveat("unjudged output", f"the output {escape_hidden_characters(name)} is not judged: "
                        f"{escape_hidden_characters(reason)}") for name, reason in unjudged_outputs.items())


def find_unsimulated_layer_caveats(network: NetworkOutline, config: PrecisionConfig) -> tuple[Caveat, ...]:
    """Returns a caveat if a config reduces precisions and float layers stand inside control flow."""
    layers_text = body_layers_text(network)
    if not layers_text or not reduces_precision(network, config):
        return ()
    return (Caveat("unsimulated layers", f"{layers_text} are simulated in FP32, as a strongly typed engine runs them; "
                   "a weakly typed one may run them in lower precisions"),)
