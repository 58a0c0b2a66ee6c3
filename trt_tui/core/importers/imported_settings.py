"""The settings in a file of another tool, and their conversion into a config for a network."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trt_tui.core.calibration.cache import read_calibration_cache, read_calibration_cache_header, select_network_ranges
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.engines.inspector import LayerFinder
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import LoadedConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, name_list_text

PRECISION_BY_NAME = {
    "fp32": Precision.FP32,
    "float32": Precision.FP32,
    "float": Precision.FP32,
    "fp16": Precision.FP16,
    "float16": Precision.FP16,
    "half": Precision.FP16,
    "bf16": Precision.BF16,
    "bfloat16": Precision.BF16,
    "int8": Precision.INT8,
    "fp8": Precision.FP8,
    "int4": Precision.INT4,
}
"""Precisions by the names that the tools use."""

MAX_LISTED = 20
"""Maximum number of unread parts that are listed one by one."""

_MAX_SUGGESTIONS = 5
"""Maximum number of unknown names that get a similar name. Each takes a pass over all layers."""

_GENERATED_NAME = re.compile(r"\(Unnamed Layer\*|ONNXTRT_|Reformatting CopyNode|__myl_|^copied_|_cast(?:In|Out)?$")
"""Names that TensorRT and its parser give to layers that are not nodes of the network."""


@dataclass
class ImportedSettings:
    """The precisions, ranges and notes that were read from a file of another tool.

    Attributes:
        tool: The title of this kind of file in messages.
        quantized, other, tf32: The default precisions, as in `PrecisionConfig`.
        layer_precisions: Precisions by name: that of a node, or of a TensorRT layer of several nodes.
        optional_names: Names in `layer_precisions` that the network may lack. A warning lists the missing ones.
        output_precisions: Output types by name.
        ranges: The amax by tensor name.
        cache_path: The calibration cache that the file names; None if it names none.
        excluded_ranges: Tensors whose ranges belong to another network than the opened one.
        unread_lines: The parts that could not be read, with the reason.
        notes: Other notes for the user.
    """

    tool: str
    quantized: Precision = Precision.FP32
    other: Precision = Precision.FP32
    tf32: bool = False
    layer_precisions: dict[str, Precision] = field(default_factory=dict)
    optional_names: set[str] = field(default_factory=set)
    output_precisions: dict[str, Precision] = field(default_factory=dict)
    ranges: dict[str, float] = field(default_factory=dict)
    cache_path: Path | None = None
    excluded_ranges: set[str] = field(default_factory=set)
    unread_lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def restore_omitted_settings(self, omission_record: Any) -> None:
        """Adds the settings that an export could not express in its format. It stored them as an omission record.

        Args:
            omission_record: The stored value; see `trt_tui.core.exporters.formats`. Values of another type are
                ignored.
        """
        if not isinstance(omission_record, Mapping):
            return
        lists = {key: value for key, value in omission_record.items() if isinstance(value, list)}
        moves, ranges = ([item for item in lists.get(key, ()) if isinstance(item, str)] for key in ("moves", "ranges"))
        self.unread_lines += moves
        self.excluded_ranges |= set(ranges)
        precisions = {item.value: item for item in FLOAT_PRECISIONS}
        rows = omission_record.get("rows")
        for name, precision_name in rows.items() if isinstance(rows, Mapping) else ():
            if isinstance(precision_name, str) and precision_name in precisions:
                self.layer_precisions.setdefault(str(name), precisions[precision_name])
        # FP16 around quantized layers needs the flag, which the user may have removed since the export.
        if (boundary_type := precisions.get(str(omission_record.get("around")))) is not None and (
            boundary_type is not Precision.FP16 or self.other is boundary_type
        ):
            self.other = boundary_type


def apply_precision_flags(
    settings: ImportedSettings, float_flags: Sequence[str], quantized_flags: Sequence[str]
) -> None:
    """Sets the default precisions from builder flags, which are keys of `PRECISION_BY_NAME`."""
    float_precisions, quantized_precisions = (
        [PRECISION_BY_NAME[flag] for flag in float_flags],
        [PRECISION_BY_NAME[flag] for flag in quantized_flags],
    )
    settings.other = float_precisions[0] if float_precisions else Precision.FP32
    settings.quantized = quantized_precisions[0] if quantized_precisions else settings.other
    if len(float_precisions) + bool(quantized_precisions) > 1:
        labels = " and ".join(precision.label for precision in (*quantized_precisions[:1], *float_precisions[:1]))
        settings.notes.append(
            f"TensorRT chooses between {labels} for layers without a setting; here layers that can run in "
            f"{(quantized_precisions or float_precisions)[0].label} do so, the others run in {settings.other.label}"
        )
    settings.unread_lines += [
        f"--{precision.value}: {quantized_precisions[0].label} is used" for precision in quantized_precisions[1:]
    ]


def build_config(settings: ImportedSettings, network: Network, file_name: str, *, force: bool = False) -> LoadedConfig:
    """Converts imported settings into a config for a network. Its warnings list the parts that could not be read.

    Args:
        force: True to ignore names that the network lacks, with a warning.

    Raises:
        InputError: The network lacks layers that the file names.
    """
    config = PrecisionConfig(settings.quantized, settings.other, settings.tf32)
    unread_lines = list(settings.unread_lines)
    layer_precisions = _find_layer_precisions(settings, network, file_name, force, unread_lines)
    adopted_rows: list[str] = []
    refused_groups: dict[tuple[Precision, str], list[str]] = {}
    for group, precision, is_named in _choose_group_precisions(layer_precisions, network, unread_lines):
        if precision in group.allowed_precisions:
            previous_config, config = config, config.with_group_precision([group], precision, "file")
            adopted_rows += [group.name] if not is_named and config != previous_config else []
        elif is_named:
            refused_groups.setdefault((precision, group.refusal_reasons.get(precision, "it cannot")), []).append(
                group.name
            )
    unread_lines += [
        f"{name_list_text(names, 3)} in {precision.label}: {reason}"
        for (precision, reason), names in refused_groups.items()
    ]
    unread_lines += _unread_output_type_lines(settings, network, config)
    ranges, method, notes = _read_ranges(settings, network, unread_lines)
    if adopted_rows:
        notes.append(
            f"a precision applies to the whole row: {name_list_text(adopted_rows, 3)} take the "
            "precision of a later layer in the row"
        )
    lines = [f"{file_name}: {line}" for line in (*settings.notes, *notes)]
    lines += [f"{file_name}: not read: {line}" for line in unread_lines[:MAX_LISTED]]
    if len(unread_lines) > MAX_LISTED:
        lines.append(f"{file_name}: not read: {counted_noun_text(len(unread_lines) - MAX_LISTED, 'entry')} more")
    count = len(config.moves)
    defaults_text = (
        config.defaults_text.rstrip(".")
        if settings.quantized is not settings.other
        else f"all in {settings.other.label}"
    )
    lines.insert(
        0,
        f"{file_name}: read as {settings.tool}: {defaults_text}; {counted_noun_text(count, 'row')} set to "
        "another precision",
    )
    return LoadedConfig(config, Calibration(method, 0, "", ranges), warnings=tuple(lines))


def _find_layer_precisions(
    settings: ImportedSettings, network: Network, file_name: str, force: bool, unread_lines: list[str]
) -> dict[str, Precision]:
    """Returns the imported precisions by layer of the network. Unknown names are added to the unread lines, or refused."""
    finder, layer_precisions, unknown_names = LayerFinder(network), {}, []
    for name, precision in settings.layer_precisions.items():
        layers = (name,) if network.has_layer(name) else finder.find_named_layers(name, "")[0]
        if layers:
            layer_precisions.update(dict.fromkeys(layers, precision))
        elif _GENERATED_NAME.search(name):
            unread_lines.append(f"{name}: a layer that TensorRT adds, not a node of {network.name}")
        else:
            unknown_names.append(name)
    layer_names = [layer.name for layer in network.layers]
    similar_names = {
        name: match
        for name in unknown_names[:_MAX_SUGGESTIONS]
        for match in difflib.get_close_matches(name, layer_names, 1, 0.6)
    }
    if not force and (not layer_precisions or not settings.optional_names.issuperset(unknown_names)) and unknown_names:
        raise InputError(
            f"{file_name} names layers that {network.name} does not have",
            name_list_text(unknown_names),
            f"Did you mean {', '.join(dict.fromkeys(similar_names.values()))}? --force leaves them out."
            if similar_names
            else "Open the network that it was made for, or use --force to leave them out.",
        )
    unread_lines += [
        f"{name}: {network.name} has no such layer"
        + (f"; did you mean {similar_names[name]}?" if name in similar_names else "")
        for name in unknown_names
    ]
    return layer_precisions


def _choose_group_precisions(
    layer_precisions: Mapping[str, Precision], network: Network, unread_lines: list[str]
) -> Iterable[tuple[FusionGroup, Precision, bool]]:
    """Yields each group with imported precisions, the chosen precision, and True if the file names a main layer of the
    group.

    The precisions of main layers have priority. If the file names no main layer, the highest precision of the other
    layers is chosen.
    """
    named_layers = collect_by_key(
        (group.name, name) for name in layer_precisions if (group := network.find_group(name)) is not None
    )
    for name, layers in named_layers.items():
        group, precisions = network.get_group(name), {layer: layer_precisions[layer] for layer in layers}
        main_precisions = [
            precisions[layer] for layer in group.layers if layer in group.main_layers and layer in precisions
        ]
        chosen_precision = max(main_precisions or precisions.values(), key=group.precision_rank)
        other_layers = [layer for layer, precision in precisions.items() if precision is not chosen_precision]
        if other_layers and any(layer in group.main_layers for layer in other_layers):
            unread_lines.append(
                f"{name_list_text(other_layers, 3)}: {name} has one precision, {chosen_precision.label}"
            )
        yield group, chosen_precision, bool(main_precisions)


def _unread_output_type_lines(settings: ImportedSettings, network: Network, config: PrecisionConfig) -> list[str]:
    """Returns a line for the user on output types that differ from the precisions of their layers; [] if none differ.

    A config cannot represent such types.
    """
    differing_layers = []
    for name, requested in settings.output_precisions.items():
        group = network.find_group(name) if network.has_layer(name) else None
        if group is None:
            continue
        precision = config.precision_of(group)
        boundary_type = precision if precision in (Precision.FP32, Precision.FP16, Precision.BF16) else config.other
        if precision is Precision.INT8 and boundary_type is Precision.BF16:
            boundary_type = Precision.FP32  # TensorRT has no kernels from INT8 to BF16
        if requested is not boundary_type and requested is not precision:
            differing_layers.append(name)
    return (
        [f"types of the results of {name_list_text(differing_layers, 3)}: a result has the type of what computes it"]
        if differing_layers
        else []
    )


def _read_ranges(
    settings: ImportedSettings, network: Network, unread_lines: list[str]
) -> tuple[dict[str, float], str, list[str]]:
    """Reads the ranges in the file or in its calibration cache. Returns the ranges, their method, and notes for the
    user."""
    ranges = {tensor: amax for tensor, amax in settings.ranges.items() if tensor in network.calibrated_tensors}
    method, notes = "", list[str]()
    if settings.cache_path is not None:
        try:
            method = read_calibration_cache_header(settings.cache_path).range_method
            if not ranges:
                ranges, match_notes = select_network_ranges(
                    _drop_unneeded_ranges(read_calibration_cache(settings.cache_path), network),
                    network.calibrated_tensors,
                )
                notes += match_notes
        except InputError as error:
            if not ranges:
                unread_lines.append(
                    f"calibration cache {settings.cache_path.name}: {error.title}; name its path with --calib-cache"
                )
    return {tensor: amax for tensor, amax in ranges.items() if tensor not in settings.excluded_ranges}, method, notes


def _drop_unneeded_ranges(cached_ranges: Mapping[str, float], network: Network) -> dict[str, float]:
    """Returns the ranges of a cache without those of constants and of tensors inside fused layers.

    TensorRT needs these ranges, but a config does not. TensorRT gives the constant ``c`` the tensor name ``c_output``.
    """
    calibrated_tensors, constants = set(network.calibrated_tensors), network.constant_tensors
    return {
        tensor: amax
        for tensor, amax in cached_ranges.items()
        if tensor in calibrated_tensors
        or not (network.has_tensor(tensor) or tensor.removesuffix("_output") in constants)
    }
