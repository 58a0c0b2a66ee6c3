"""What another tool's file asks for, and the config that this makes on a network."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trt_tui.core.calibration.cache import match_cache, read_cache, read_header
from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.engines.inspector import LayerFinder
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.file import LoadedConfig
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.core.precision import FLOATS, Precision
from trt_tui.errors import InputError
from trt_tui.words import first_few, plural

MOST_LISTED = 20
"""So many things that could not be read are listed one by one."""

_MADE = re.compile(r"\(Unnamed Layer\*|ONNXTRT_|Reformatting CopyNode|__myl_|^copied_|_cast(?:In|Out)?$")
"""Names that TensorRT and its parser give to layers that are no nodes of the network."""


@dataclass
class Asked:
    """What a file asks for.

    Attributes:
        tool: Whose file it is.
        quantized, other, tf32: The defaults, see `PrecisionConfig`.
        layers: Precisions by name, as the file has it: of a node, or of a TensorRT layer made of several.
        outputs: Types of results by such names.
        ranges: The amax by tensor name.
        cache: A calibration cache that is named.
        left_out: Tensors whose ranges belong to another network than the one that is open.
        unread: What could not be read, and why.
        notes: What to know.
    """

    tool: str
    quantized: Precision = Precision.FP32
    other: Precision = Precision.FP32
    tf32: bool = False
    layers: dict[str, Precision] = field(default_factory=dict)
    outputs: dict[str, Precision] = field(default_factory=dict)
    ranges: dict[str, float] = field(default_factory=dict)
    cache: Path | None = None
    left_out: set[str] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take_left_out(self, record: Any) -> None:
        """Takes up what the format of a file has no word for, as the file says it behind `NOT_TOLD`.

        Args:
            record: That value, see `trt_tui.core.exporters.left_out`; what is of another kind is passed over.
        """
        if not isinstance(record, Mapping):
            return
        lists = {key: value for key, value in record.items() if isinstance(value, list)}
        moves, ranges = ([one for one in lists.get(key, ()) if isinstance(one, str)] for key in ("moves", "ranges"))
        self.unread += moves
        self.left_out |= set(ranges)
        words = {one.value: one for one in FLOATS}
        rows = record.get("rows")
        for name, word in rows.items() if isinstance(rows, Mapping) else ():
            if isinstance(word, str) and word in words:
                self.layers.setdefault(str(name), words[word])
        # FP16 around quantized layers needs the flag, which may have been taken out since.
        if (around := words.get(str(record.get("around")))) is not None and (
                around is not Precision.FP16 or self.other is around):
            self.other = around


def placed(asked: Asked, network: Network, file: str, *, force: bool = False) -> LoadedConfig:
    """The config of a file on a network; its warnings list what was not read.

    Args:
        force: Leave out names that the network lacks, and list them.

    Raises:
        InputError: the network lacks layers that are named.
    """
    config = PrecisionConfig(asked.quantized, asked.other, asked.tf32)
    unread = list(asked.unread)
    told = _by_layer(asked, network, file, force, unread)
    taken: list[str] = []
    refused: dict[tuple[Precision, str], list[str]] = {}
    for group, precision, named in _by_group(told, network, unread):
        if precision in group.allowed:
            before, config = config, config.with_groups([group], precision, "file")
            taken += [group.name] if not named and config != before else []
        elif named:
            refused.setdefault((precision, group.refusals.get(precision, "it cannot")), []).append(group.name)
    unread += [f"{first_few(names, 3)} in {precision.label}: {why}" for (precision, why), names in refused.items()]
    unread += _other_outputs(asked, network, config)
    ranges, method, notes = _ranges(asked, network, unread)
    if taken:
        notes.append(f"a precision is one of the whole row: {first_few(taken, 3)} take that of a layer behind them")
    lines = [f"{file}: {line}" for line in (*asked.notes, *notes)]
    lines += [f"{file}: not read: {line}" for line in unread[:MOST_LISTED]]
    if len(unread) > MOST_LISTED:
        lines.append(f"{file}: not read: {plural(len(unread) - MOST_LISTED, 'thing')} more")
    count = len(config.moves)
    said = config.defaults_said.rstrip(".") if asked.quantized is not asked.other else f"all in {asked.other.label}"
    lines.insert(0, f"{file}: read as {asked.tool}: {said}; {plural(count, 'row')} otherwise")
    return LoadedConfig(config, Calibration(method, 0, "", ranges), warnings=tuple(lines))


def _by_layer(asked: Asked, network: Network, file: str, force: bool, unread: list[str]) -> dict[str, Precision]:
    """Precisions by the network's layers; names that are none are listed, or refused."""
    finder, found, unknown = LayerFinder(network), {}, []
    for name, precision in asked.layers.items():
        layers = (name,) if network.has_layer(name) else finder.read(name, "")[0]
        if layers:
            found.update(dict.fromkeys(layers, precision))
        elif _MADE.search(name):
            unread.append(f"{name}: a layer that TensorRT makes, no node of {network.name}")
        else:
            unknown.append(name)
    if unknown and not force:
        known = [layer.name for layer in network.layers]
        near = list(dict.fromkeys(match for name in unknown[:5]
                                  for match in difflib.get_close_matches(name, known, 1, 0.6)))
        raise InputError(f"{file} names layers that {network.name} does not have", first_few(unknown),
                         f"Did you mean {', '.join(near)}? --force leaves them out." if near else
                         "Open the network that it was made for, or use --force to leave them out.")
    unread += [f"{name}: {network.name} has no such layer" for name in unknown]
    return found


def _by_group(told: Mapping[str, Precision], network: Network, unread: list[str]
              ) -> Iterable[tuple[Group, Precision, bool]]:
    """The precision of each group that something is told of, and whether its own layer is named.

    What is told of the layers that give a group its character counts, else the highest of the others.
    """
    groups: dict[str, dict[str, Precision]] = {}
    for name, precision in told.items():
        group = network.group_of(name)
        if group is not None:
            groups.setdefault(group.name, {})[name] = precision
    for name, members in groups.items():
        group = network.group(name)
        own = [members[layer] for layer in group.layers if layer in group.anchors and layer in members]
        chosen = max(own or members.values(), key=group.rank)
        others = [layer for layer, precision in members.items() if precision is not chosen]
        if others and any(layer in group.anchors for layer in others):
            unread.append(f"{first_few(others, 3)}: {name} takes one precision, {chosen.label}")
        yield group, chosen, bool(own)


def _other_outputs(asked: Asked, network: Network, config: PrecisionConfig) -> list[str]:
    """Types of results that a config does not have by itself: another than what their layer computes in."""
    differing = []
    for name, wanted in asked.outputs.items():
        group = network.group_of(name) if network.has_layer(name) else None
        if group is None:
            continue
        precision = config.precision_of(group)
        surrounding = precision if precision in (Precision.FP32, Precision.FP16, Precision.BF16) else config.other
        if precision is Precision.INT8 and surrounding is Precision.BF16:
            surrounding = Precision.FP32  # TensorRT has no kernels from INT8 to BF16, see `lowering.weak`
        if wanted is not surrounding and wanted is not precision:
            differing.append(name)
    return [f"types of the results of {first_few(differing, 3)}: a result has the type of what computes it"
            ] if differing else []


def _ranges(asked: Asked, network: Network, unread: list[str]) -> tuple[dict[str, float], str, list[str]]:
    """The ranges that the file has or names, how they were measured, and what to know of them."""
    ranges = {tensor: amax for tensor, amax in asked.ranges.items() if tensor in network.activations}
    method, notes = "", list[str]()
    if asked.cache is not None:
        try:
            method = read_header(asked.cache).method
            if not ranges:
                ranges, told = match_cache(_read_by_layers(read_cache(asked.cache), network), network.activations)
                notes += told
        except InputError as error:
            if not ranges:
                unread.append(f"calibration cache {asked.cache.name}: {error.title}; --calib-cache names it where it "
                              "lies")
    return {tensor: amax for tensor, amax in ranges.items() if tensor not in asked.left_out}, method, notes


def _read_by_layers(ranges: Mapping[str, float], network: Network) -> dict[str, float]:
    """Returns the ranges of a cache without those of tensors inside of fused layers and of constants, which TensorRT
    needs and a config does not; it calls the tensor of a constant ``c`` ``c_output``."""
    known, constants = set(network.activations), network.constants
    return {tensor: amax for tensor, amax in ranges.items() if tensor in known or not (
        network.has_tensor(tensor) or tensor.removesuffix("_output") in constants)}
