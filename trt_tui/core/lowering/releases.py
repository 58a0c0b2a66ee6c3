"""Which releases and GPUs take the precisions of a config: refused by name where one does not, with the way out."""

from collections.abc import Collection

from trt_tui.core.codes import CODES
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.adapters import CUBIC_READ_AS_NEAREST, OLDER_CUBIC, cubic_grids
from trt_tui.core.network.layers import Outline
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.words import first_few, plural

WEAK = frozenset((Precision.INT8,))
"""Those of `asked_codes` that a TensorRT takes which is told precisions layer by layer."""

TYPED_ALONE = "TensorRT 10 or later, typed"
"""What takes products that are summed in FP32 by the Casts around them."""


def needs(precision: Precision) -> str:
    """The releases and GPUs that take a precision, in words; "" where all that are supported do."""
    return TYPED_ALONE if precision is Precision.FP16_SUMS_FP32 else CODES[precision].needs if precision in CODES \
        else ""


def asked_codes(network: Outline, config: PrecisionConfig) -> dict[Precision, list[str]]:
    """The groups of a config that not all releases can be told of, by precision: those that read codes, and those whose
    products are summed in FP32."""
    found: dict[Precision, list[str]] = {}
    for group in network.groups:
        precision = config.precision_of(group)
        if precision in CODES or precision is Precision.FP16_SUMS_FP32:
            found.setdefault(precision, []).append(group.name)
    return found


def refuse_cubic_grids(network: Network, who: str) -> None:
    """Checks that no parser reads a GridSample of a network with another meaning than ONNX gives it.

    Args:
        who: The release, for messages.

    Raises:
        InputError: a GridSample of opset 20 or later has mode cubic.
    """
    if found := cubic_grids(network.model):
        raise InputError(f"{who} may read {found[0]} with another meaning",
                         CUBIC_READ_AS_NEAREST.format(first_few(found, most=2)), OLDER_CUBIC)


def refuse_codes(network: Outline, config: PrecisionConfig, takes: Collection[Precision], who: str,
                 gpu: tuple[int, int] | None = None) -> None:
    """Checks that a release and a GPU support what a config asks for.

    Args:
        takes: Those of `asked_codes` that the release takes.
        who: The release, for messages.
        gpu: The compute capability that is built for, None where it is not known.

    Raises:
        InputError: one of them does not; names the precision and a layer.
    """
    for precision, groups in asked_codes(network, config).items():
        code = CODES.get(precision)
        least = code.compute_capability if code is not None else None
        if precision not in takes:
            why, way = f"{who} has no {precision.label}", "or build with a release that has it: " + needs(precision)
        elif gpu is not None and least is not None and gpu < least:
            why = f"a GPU of compute capability {gpu[0]}.{gpu[1]} has no {precision.label}"
            way = f"or build for {least[0]}.{least[1]} or later"
        else:
            continue
        rest = f", {groups[0]} among them" if len(groups) > 1 else f", {groups[0]}"
        raise InputError(why, f"this config has {plural(len(groups), 'layer')} in {precision.label}{rest}",
                         f"Put them in FP16 or INT8, {way}.")
