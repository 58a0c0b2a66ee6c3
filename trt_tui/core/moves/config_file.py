"""The file precision.json: a precision config with the ranges that it needs and the results measured with it.

Version 2 contains moves, as ``schemas/precision-config-v2.json`` describes. It lists all layers of a fusion group by
node name. A reader that does not know the groups can therefore apply the file. Version 1 can be read too.

A config for a network can also be read for its quantized twin, and the reverse.

Twins have the same quantizable layers, by name and operator. Quantizers add, remove and rename nodes around these
layers: Casts, Identities, or an activation that a range replaces.
"""

import base64
import binascii
import dataclasses
import difflib
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from trt_tui.core.calibration.calibration import TYPES_WITH_OWN_RANGES, Calibration, ranges_comparison_key
from trt_tui.core.moves.config import (
    MOVE_KINDS,
    KeepRuleMove,
    PrecisionConfig,
    PrecisionMove,
    RangeMove,
    UnknownMoveKindError,
    convert_file_value,
    decode_move,
    encode_move,
    entry_type_error,
)
from trt_tui.core.moves.move import MOVE_TEXTS, Move, MoveSubjectKind
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import PRODUCTS
from trt_tui.core.precision import REQUESTABLE, Precision
from trt_tui.core.quantized_types import MAX_AMAX, QUANTIZED_TYPES
from trt_tui.errors import InputError
from trt_tui.files.reading import MAX_DEPTH, is_nested_deeper, limit_file_reading, read_text
from trt_tui.formatting import escape_hidden_in_json, name_list_text


def quantizable_layers_sha256(network: NetworkOutline) -> str:
    """Returns the hash of the names and operators of all quantizable layers; "" if there are none. Twins have equal
    hashes.
    """
    layers = sorted((layer.name, layer.op_type) for layer in network.layers if layer.op_type in PRODUCTS)
    return hashlib.sha256(repr(layers).encode()).hexdigest() if layers else ""


def find_layers_in_file_precision(network: NetworkOutline, config: PrecisionConfig) -> dict[str, list[str]]:
    """Returns the layers that a config leaves in file precision, grouped by the nearest precision."""
    layers_by_precision: dict[str, list[str]] = defaultdict(list)
    for group in network.groups:
        if group.file_precision is not None and config.precision_of(group) is Precision.FILE:
            layers_by_precision[group.file_precision.nearest_precision.value].extend(group.layers)
    return dict(layers_by_precision)


def find_float_type_of_quantized_layers(network: NetworkOutline) -> Precision:
    """Returns the float type that most quantized layers of the file have; FP32 if the file has no quantized layers."""
    counts = Counter(
        group.file_precision.float_type
        for group in network.groups
        if group.file_precision is not None and group.file_precision.nearest_precision in QUANTIZED_TYPES
    )
    return counts.most_common(1)[0][0] if counts else Precision.FP32


_MAX_NAMED = 5


@dataclass(frozen=True)
class MoveEntry:
    """A move in a file, with the names of its layers or tensors there.

    Attributes:
        location: The location of the move in the file.
        names: The names of layers or tensors that the file lists for the move.
        unknown_entries: Keys of the file entry that its kind of move does not have.
    """

    location: str
    move: Move
    names: tuple[str, ...]
    unknown_entries: tuple[str, ...]


FileEntry = tuple[str, Any, Mapping[str, Any]]
"""The location of the entry of a move in a file, its JSON value, and what follows from the location alone (in version
1): keys and values."""


def decode_file_move(file_name: str, location: str, entry: Any, implied_entries: Mapping[str, Any]) -> MoveEntry:
    """Decodes a `FileEntry` into a move and its names.

    Raises:
        InputError: The kind of move is unknown, or a field is missing or has another type.
    """
    record = {**convert_file_value(entry, dict[str, Any], file_name, location), **implied_entries}
    try:
        move = decode_move(record)
    except UnknownMoveKindError as error:
        raise InputError(f"{file_name}: {location} is not a possible move here", str(error), error.next_step) from None
    except msgspec.ValidationError as error:
        raise entry_type_error(error, record, MOVE_KINDS[record["kind"]], file_name, location) from None
    key = move.subject_kind.names_key
    names = convert_file_value(record.get(key), list[str], file_name, f"{location}.{key}")
    fields = {field.name for field in dataclasses.fields(type(move))} | {"kind", key}
    return MoveEntry(location, move, tuple(names), tuple(entry for entry in record if entry not in fields))


class LoadedMoveApplier:
    """The moves in a file, which it checks against a network and adds to a config.

    Args:
        file_name: The name of the file, for messages.
        moves: The moves in the order of the file.

    Attributes:
        is_lenient: True if unsuitable moves are ignored with a warning; False if they are refused.
        warnings: The ignored entries and other cautions, one sentence each.
    """

    def __init__(self, file_name: str, network: NetworkOutline, moves: Sequence[MoveEntry]) -> None:
        self.file = file_name
        self.network = network
        self.moves = list(moves)
        self.is_lenient = False
        self.warnings = [
            f"{file_name}: {named_move.location}: unknown entry {entry!r} is ignored."
            for named_move in moves
            for entry in named_move.unknown_entries
        ]

    def find_unknown_names(self, subject_kind: MoveSubjectKind) -> list[str]:
        """Returns the names of groups or tensors in the moves of the file that the network lacks."""
        return [
            name
            for named_move in self.moves
            if named_move.move.subject_kind is subject_kind
            for name in named_move.names
            if not subject_kind.has_layer_or_tensor(self.network, name)
        ]

    def check_subject_names(self, subject_kind: MoveSubjectKind, names: Iterable[str], file_part_text: str) -> None:
        """Refuses names of layers or tensors that the network lacks. If `is_lenient` is True, it adds a warning
        instead.

        Args:
            file_part_text: The beginning of the error message: the part of the file with a verb, such as
                "calibration.ranges names".

        Raises:
            InputError: The network lacks a name, and `is_lenient` is False.
        """
        unknown_names = [name for name in names if not subject_kind.has_layer_or_tensor(self.network, name)]
        if not unknown_names:
            return
        if not self.is_lenient:
            near_names = _find_similar_names(unknown_names, subject_kind.list_subject_names(self.network))
            raise InputError(
                f"{self.file}: {file_part_text} {subject_kind.noun}s that {self.network.name} does not have",
                name_list_text(unknown_names),
                f"Did you mean {', '.join(near_names)}?"
                if near_names
                else "Check the names; trt-tui inspect lists them.",
            )
        self.warnings.append(
            f"{self.file}: {file_part_text} {subject_kind.noun}s that are not in this network, ignored: "
            f"{name_list_text(unknown_names)}."
        )

    def apply_moves(self, config: PrecisionConfig) -> PrecisionConfig:
        """Returns the config with the moves of the file.

        Raises:
            InputError: The network lacks a name, a layer or tensor cannot have its move, or two moves contradict each
                other.
        """
        for move_class in MOVE_KINDS.values():
            named_moves = [named_move for named_move in self.moves if type(named_move.move) is move_class]
            names = [name for named_move in named_moves for name in named_move.names]
            self.check_subject_names(move_class.subject_kind, names, f"a move of kind {move_class.kind!r} names")
            moves_by_subject = self._choose_moves_by_subject(move_class, named_moves)
            self._warn_of_unnamed_layers(move_class, names, moves_by_subject)
            config = config.with_moves(
                {
                    subject: moves_by_subject[subject][1]
                    for subject in move_class.subject_kind.sort_subjects(self.network, moves_by_subject)
                }
            )
        for subject, keep_move in config.get_moves(KeepRuleMove).items():
            precision_move = config.precision_moves.get(subject)
            if precision_move is not None and precision_move.precision is not keep_move.precision:
                raise InputError(
                    f"{self.file}: {subject} has two precisions",
                    f"it is kept in {keep_move.label} by {keep_move.origin_text}, and set to {precision_move.label}",
                    "Take one of them out.",
                )
        return config.without_moves(PrecisionMove, config.groups_fixed_by_rule)

    def _choose_moves_by_subject(
        self, move_class: type[Move], named_moves: Sequence[MoveEntry]
    ) -> dict[str, tuple[str, Move]]:
        """Returns the move on each group or tensor, with the name of the group or tensor in the file."""
        subject_kind = move_class.subject_kind
        moves_by_subject: dict[str, tuple[str, Move]] = {}
        for name, move in ((name, named_move.move) for named_move in named_moves for name in named_move.names):
            if not subject_kind.has_layer_or_tensor(self.network, name):
                continue
            subject_name = subject_kind.find_move_subject(self.network, name)
            reason = (
                subject_kind.name_refusal_reason(self.network, name)
                if subject_name is None
                else move.refusal_reason(self.network, subject_name)
            )
            if subject_name is None or reason:
                if not self.is_lenient:
                    raise InputError(
                        f"{self.file}: {name} cannot {move.action_text}",
                        reason,
                        "Take it out of the file, or choose a possible value.",
                    )
                self.warnings.append(f"{self.file}: ignored, {name} cannot {move.action_text}: {reason}.")
                continue
            first_name, first_move = moves_by_subject.get(subject_name, (name, move))
            if first_move.equivalence_key != move.equivalence_key:
                raise InputError(
                    f"{self.file} gives one {subject_kind.subject_noun} two {MOVE_TEXTS[move_class.kind].column}s",
                    f"{first_name} {first_move.label} and {name} {move.label}: {subject_kind.shared_move_reason}",
                    "Give both the same, or take one of them out.",
                )
            if subject_name not in moves_by_subject or name == subject_name:
                moves_by_subject[subject_name] = (name, move)
        return moves_by_subject

    def _warn_of_unnamed_layers(
        self, move_class: type[Move], names: Sequence[str], moves_by_subject: Mapping[str, tuple[str, Move]]
    ) -> None:
        """Adds a warning about layers that get a move of their fusion group although the file does not name them."""
        named_names = set(names)
        moved_names = {
            name: other_names
            for subject, (name, _) in moves_by_subject.items()
            if (
                other_names := [
                    member_name
                    for member_name in move_class.subject_kind.list_names_of_subject(self.network, subject)
                    if member_name not in named_names
                ]
            )
        }
        if moved_names:
            texts = "; ".join(
                f"{name} includes {name_list_text(other_names)}"
                for name, other_names in list(moved_names.items())[:_MAX_NAMED]
            )
            more = f"; {len(moved_names) - _MAX_NAMED} more do" if len(moved_names) > _MAX_NAMED else ""
            self.warnings.append(
                f"{self.file}: a {MOVE_TEXTS[move_class.kind].column} applies to the whole "
                f"{move_class.subject_kind.subject_noun}: {texts}{more}."
            )


def _find_similar_names(unknown_names: Sequence[str], known_names: Sequence[str]) -> list[str]:
    matches = (difflib.get_close_matches(name, known_names, 1, 0.6) for name in unknown_names[:_MAX_NAMED])
    return list(dict.fromkeys(match[0] for match in matches if match))


CONFIG_FORMAT = "trt-tui/precision-config"
CONFIG_VERSION = 2

_DIGEST_BYTES = 3
OtherQuantizedType = Annotated[
    str, msgspec.Meta(pattern=f"^{'$|^'.join(code.precision.value for code in TYPES_WITH_OWN_RANGES)}$")
]
if TYPE_CHECKING:
    _DefaultPrecision = str
else:
    _DefaultPrecision = Literal[tuple(precision.value for precision in REQUESTABLE)]
AmaxEntry = Annotated[float, msgspec.Meta(ge=0, le=MAX_AMAX)]


_ShortText = Annotated[str, msgspec.Meta(max_length=10_000)]
"""A text of a file that is shown: longer ones are refused."""


class ConfigDoubt(msgspec.Struct):
    """The reason for doubt that a search found in a config, as a file contains it.

    Attributes:
        targets: The tolerances of the search, from `trt_tui.session.history.join_target_texts`.
        missed_runs: The runs that missed them, by their values of `trt_tui.core.measure.results.RunKind`.
        config_sha256: The hash of the config and its ranges, which shows whether they have changed since.
    """

    text: _ShortText
    targets: _ShortText
    missed_runs: list[str]
    config_sha256: str = ""


@dataclass(frozen=True)
class LoadedConfig:
    """A config that was read from a file and checked against a network.

    Attributes:
        config: The default precisions and the moves, including ranges that replace the calibrated ranges.
        calibration: The calibration in the file; its fields are empty if the file lacks them.
        has_stale_ranges: True if the ranges were measured on other weights than those of the network.
        warnings: The ignored entries and other cautions, one sentence each.
        tolerance: The tolerance of the search that made the config; "" if the file has none.
        doubt: The doubt of that search in the config; None if there is none, or if the config, its ranges or the
            network have changed since.
    """

    config: PrecisionConfig
    calibration: Calibration
    has_stale_ranges: bool = False
    warnings: tuple[str, ...] = ()
    tolerance: str = ""
    doubt: ConfigDoubt | None = None


# -- the entries of a file ----------------------------------------------------------------------------------------


class _ModelEntry(msgspec.Struct):
    structure_sha256: str
    name: str = "another network"
    sha256: str = ""
    nodes: int | None = None
    node_digests: str = ""
    twin_sha256: str = ""
    quantized: bool = False
    in_file: dict[str, list[str]] = {}
    other_in_file: str = ""
    weights_of: str = ""


class _DefaultPrecisionsEntry(msgspec.Struct):
    quantized: _DefaultPrecision = "int8"
    other: Literal["fp32", "bf16", "fp16", "file"] = "fp16"


class _CalibrationEntry(msgspec.Struct):
    method: str = ""
    samples: int = 0
    data_sha256: str = ""
    ranges: dict[str, Any] = {}
    others: dict[str, dict[str, Any]] = {}


class _ConfigFile(msgspec.Struct, kw_only=True):
    """The common entries of all versions of precision.json."""

    format: str
    version: int
    model: _ModelEntry
    default: _DefaultPrecisionsEntry
    tf32: bool = False
    calibration: _CalibrationEntry | None = None
    tolerance: str = ""
    doubt: ConfigDoubt | None = None
    evidence: dict[str, Any] = {}
    made_with: dict[str, Any] = {}


class _ConfigFileVersion1(_ConfigFile, kw_only=True):
    """Version 1 of precision.json: a precision for each layer, and ranges."""

    layers: dict[str, Any] = {}
    overrides: dict[str, Any] = {}

    def iterate_move_entries(self) -> Iterator[FileEntry]:
        """Yields the moves of the file, each with its location in the file."""
        for kind, entries, section in (
            (PrecisionMove, self.layers, "layers"),
            (RangeMove, self.overrides, "overrides"),
        ):
            for name, entry in entries.items():
                yield f"{section}[{name!r}]", entry, {"kind": kind.kind, kind.subject_kind.names_key: [name]}


class _ConfigFileVersion2(_ConfigFile, kw_only=True):
    """Version 2 of precision.json: a list of moves."""

    moves: list[dict[str, Any]] = []

    def iterate_move_entries(self) -> Iterator[FileEntry]:
        """Yields the moves of the file, each with its location in the file."""
        return ((f"moves[{index}]", entry, {}) for index, entry in enumerate(self.moves))


_FILE_CLASS_BY_VERSION: dict[int, type[_ConfigFileVersion1 | _ConfigFileVersion2]] = {
    1: _ConfigFileVersion1,
    CONFIG_VERSION: _ConfigFileVersion2,
}


def _config_sha256(config: PrecisionConfig, calibration: Calibration | None) -> str:
    """Returns the hash of a config and its ranges. Configs with the same effect have equal hashes."""
    ranges = calibration.range_table if calibration is not None else {}
    return hashlib.sha256(repr((config.comparison_key, ranges_comparison_key(ranges))).encode()).hexdigest()


# -- writing ------------------------------------------------------------------------------------------------------


def config_text(
    network: NetworkOutline,
    config: PrecisionConfig,
    calibration: Calibration | None = None,
    *,
    evidence: Mapping[str, Any] | None = None,
    tolerance: str = "",
    doubt: ConfigDoubt | None = None,
    made_with: Mapping[str, str] | None = None,
    sha256: str | None = None,
    weights_of: str = "",
) -> str:
    """Returns the text of precision.json for a config. Equal arguments give equal texts.

    Args:
        weights_of: The name of the FP32 reference, from which layers outside file precision have their weights; "" if
            there is none.
        sha256: The value of `Network.sha256`; None computes it.

    Raises:
        InputError: The config contains groups or ranges that the network lacks.
    """
    unknown_subjects = [
        subject
        for move_class, moves in config.list_moves(network)
        for subject, _ in moves
        if not move_class.subject_kind.has_layer_or_tensor(network, subject)
    ]
    if unknown_subjects:
        raise InputError(
            f"The config does not fit {network.name}",
            f"the network lacks {name_list_text(unknown_subjects)}",
            "Export it for the network that it was made for.",
        )
    entries = []
    for move_class, moves in config.list_moves(network):
        for subject, move in moves:
            names = {move_class.subject_kind.names_key: move_class.subject_kind.list_names_of_subject(network, subject)}
            entries.append({"kind": move_class.kind, **names, **encode_move(move)})
    record: dict[str, Any] = {
        "format": CONFIG_FORMAT,
        "version": CONFIG_VERSION,
        "model": {
            "name": network.name,
            "structure_sha256": network.structure_sha256,
            "sha256": _network_sha256(network) if sha256 is None else sha256,
            "nodes": len(network.layers),
            # They show which layers of a network have changed.
            "node_digests": base64.b64encode(
                b"".join(network.layer_digests[layer.name] for layer in network.layers)
            ).decode("ascii"),
            "twin_sha256": quantizable_layers_sha256(network),
            "quantized": network.has_file_precision,
            **(
                {"in_file": layers_of_file, "other_in_file": find_float_type_of_quantized_layers(network).value}
                if (layers_of_file := find_layers_in_file_precision(network, config))
                else {}
            ),
            **({"weights_of": weights_of} if weights_of else {}),
        },
        "default": {"quantized": config.quantized.value, "other": config.other.value},
        "tf32": config.tf32,
        "moves": entries,
    }
    optional_entries = {
        "calibration": _calibration_record(network, calibration) if calibration is not None else {},
        "tolerance": tolerance,
        "doubt": {**msgspec.structs.asdict(doubt), "config_sha256": _config_sha256(config, calibration)}
        if doubt
        else {},
        "evidence": _sort_keys_recursively(evidence or {}),
        "made_with": _sort_keys_recursively(made_with or {}),
    }
    record |= {key: entry for key, entry in optional_entries.items() if entry}
    return escape_hidden_in_json(json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def _calibration_record(network: NetworkOutline, calibration: Calibration) -> dict[str, Any]:
    def sort_ranges(ranges: Mapping[str, float]) -> dict[str, float]:
        return {tensor: float(ranges[tensor]) for tensor in RangeMove.subject_kind.sort_subjects(network, ranges)}

    others = {precision: sort_ranges(ranges) for precision, ranges in calibration.ranges_by_type.items()}
    return {
        "method": calibration.method,
        "samples": int(calibration.samples),
        "data_sha256": calibration.data_sha256,
        "ranges": sort_ranges(calibration.ranges),
        **({"others": others} if others else {}),
    }


def _sort_keys_recursively(json_value: Any) -> Any:
    """Returns a JSON value with sorted keys. Numbers that are not finite become null."""
    if isinstance(json_value, Mapping):
        return {str(key): _sort_keys_recursively(json_value[key]) for key in sorted(json_value, key=str)}
    if isinstance(json_value, (list, tuple)):
        return [_sort_keys_recursively(item) for item in json_value]
    if isinstance(json_value, np.generic):
        json_value = json_value.item()
    return None if isinstance(json_value, float) and not math.isfinite(json_value) else json_value


def _network_sha256(network: NetworkOutline) -> str:
    return network.sha256() if isinstance(network, Network) else ""


# -- reading ------------------------------------------------------------------------------------------------------


def read_config(
    path: Path | str, network: NetworkOutline, *, force: bool = False, sha256: str | None = None
) -> LoadedConfig:
    """Reads a config from a file and checks it against a network.

    Args:
        force: True accepts a config for a network with another structure. Entries that do not fit are ignored, with a
            warning.
        sha256: The value of `Network.sha256`; None computes it. "" skips the check of the weights.

    Raises:
        InputError: The file cannot be read, is not a config of a supported version, or was made for another structure.
            Or the file has an unknown kind of move, or layers, precisions or ranges that the network cannot have.
    """
    with limit_file_reading(path):
        return _load_config(Path(path), network, force, sha256)


def _load_config(path: Path, network: NetworkOutline, force: bool, sha256: str | None) -> LoadedConfig:
    record = _read_json(path)
    file_class = _FILE_CLASS_BY_VERSION[_check_version(record, path.name)]
    file = convert_file_value(record, file_class, path.name)
    move_applier = LoadedMoveApplier(
        path.name, network, [decode_file_move(path.name, *entry) for entry in file.iterate_move_entries()]
    )
    move_applier.warnings += [
        f"{path.name}: unknown entry {key!r} is ignored." for key in record if key not in file_class.__struct_fields__
    ]
    has_other_structure = file.model.structure_sha256 != network.structure_sha256
    if (
        has_other_structure
        and file.model.quantized is not network.has_file_precision
        and file.model.twin_sha256
        and (file.model.twin_sha256 == quantizable_layers_sha256(network))
    ):
        move_applier.warnings.append(
            f"{path.name} was made for {file.model.name}, which has the same quantizable layers: matching entries are "
            "used."
        )
    elif has_other_structure:
        _check_structure(path.name, network, file.model, move_applier, force)
    move_applier.is_lenient = has_other_structure
    defaults = PrecisionConfig(Precision(file.default.quantized), Precision(file.default.other), file.tf32)
    if file.model.in_file and not network.has_file_precision:
        defaults = _convert_default_precisions(path.name, file.model, move_applier, file.tf32)
    calibration = file.calibration or _CalibrationEntry()
    ranges = _read_checked_ranges(calibration.ranges, "calibration.ranges", path.name, network, move_applier)
    ranges_by_type: dict[str, dict[str, float]] = {
        convert_file_value(
            precision, OtherQuantizedType, path.name, "a name in calibration.others"
        ): _read_checked_ranges(type_ranges, f"calibration.others.{precision}", path.name, network, move_applier)
        for precision, type_ranges in calibration.others.items()
    }
    measured = Calibration(calibration.method, calibration.samples, calibration.data_sha256, ranges, ranges_by_type)
    config = move_applier.apply_moves(defaults)

    def is_made_for_other_weights() -> bool:
        """Returns True if the config was made for other weights. False if either hash is missing."""
        return bool(file.model.sha256) and (_network_sha256(network) if sha256 is None else sha256) not in (
            "",
            file.model.sha256,
        )

    if file.model.weights_of and _has_only_quantized_weights(network) and is_made_for_other_weights():
        _check_missing_weights(path.name, file.model, network, config, force, move_applier)
    doubt = file.doubt
    if doubt is not None and (doubt.config_sha256 != _config_sha256(config, measured) or is_made_for_other_weights()):
        doubt = None
    is_stale = bool(
        ranges or any(move.has_measured_values for move in config.moves.values()) or config.range_moves
    ) and (has_other_structure or is_made_for_other_weights())
    if is_stale:
        config = config.without_measured_moves()
        hint = (
            " If it was made with --reference, use that option here too."
            if (
                _has_only_quantized_weights(network) and not file.model.weights_of and network.reference_weights is None
            )
            else ""
        )
        move_applier.warnings.append(
            f"{path.name}: its measured values are those of other weights and are ignored: calibrate again.{hint}"
        )
    return LoadedConfig(config, measured, is_stale, tuple(move_applier.warnings), file.tolerance, doubt)


def _read_checked_ranges(
    range_entries: Mapping[str, Any],
    file_location: str,
    file_name: str,
    network: NetworkOutline,
    move_applier: LoadedMoveApplier,
) -> dict[str, float]:
    """Reads the ranges in a part of the file as amax by tensor. Unknown tensors are left out or refused."""
    ranges = {
        tensor: convert_file_value(amax, AmaxEntry, file_name, f"{file_location}[{tensor!r}]")
        for tensor, amax in range_entries.items()
    }
    move_applier.check_subject_names(RangeMove.subject_kind, ranges, f"{file_location} names")
    return {tensor: amax for tensor, amax in ranges.items() if network.has_tensor(tensor)}


def _read_json(path: Path) -> dict[str, Any]:
    def reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        ((key, count),) = Counter(key for key, _ in pairs).most_common(1) or (("", 1),)
        if count > 1:
            raise ValueError(f"an object has the key {key!r} twice")
        return dict(pairs)

    def reject_non_finite(text: str) -> float:
        raise ValueError(f"{text} is not a number of JSON")

    try:
        record = json.loads(read_text(path), object_pairs_hook=reject_repeated_keys, parse_constant=reject_non_finite)
        if is_nested_deeper(record, MAX_DEPTH):
            raise ValueError("it is nested too deeply")
        json.dumps(record, ensure_ascii=False).encode("utf-8")  # half a character, as in "\ud800", is not text
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(
            f"{path.name} is not valid JSON", reason, "Correct the file, or export the config again."
        ) from None
    if not isinstance(record, dict) or record.get("format") != CONFIG_FORMAT:
        raise InputError(
            f"{path.name} is not a precision config",
            f"it has no entry format with the value {CONFIG_FORMAT}",
            "Name a precision.json that trt-tui wrote.",
        )
    return record


def _check_version(record: Mapping[str, Any], file_name: str) -> int:
    version = record.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version not in _FILE_CLASS_BY_VERSION:
        raise InputError(
            f"{file_name} has version {version!r} of {CONFIG_FORMAT}",
            f"this trt-tui reads versions {' and '.join(map(str, _FILE_CLASS_BY_VERSION))}",
            "Update trt-tui, or export the config again with this one.",
        )
    return version


# -- check against the network ------------------------------------------------------------------------------------


def _has_only_quantized_weights(network: NetworkOutline) -> bool:
    """Returns True for a quantized network that was opened without its FP32 reference."""
    source_model = network.source_model if isinstance(network, Network) else None
    return source_model is not None and not network.weights_source_name


def _check_missing_weights(
    file_name: str,
    model: _ModelEntry,
    network: NetworkOutline,
    config: PrecisionConfig,
    force: bool,
    move_applier: LoadedMoveApplier,
) -> None:
    """Refuses a config whose layers need the FP32 weights of a reference that is not open.

    If ``force`` is True, it adds a warning instead.

    Raises:
        InputError: A layer needs the missing weights.
    """
    if all(config.precision_of(group) is Precision.FILE for group in network.groups):
        return
    if not force:
        advice = "" if network.reference_weights_text else f"Add --reference {model.weights_of}. "
        raise InputError(
            f"{file_name} was made with the FP32 weights of {model.weights_of}",
            network.reference_weights_text or "layers without file precision have these weights",
            f"{advice}--force goes on with the weights of {network.name}.",
        )
    move_applier.warnings.append(
        f"{file_name}: it was made with the FP32 weights of {model.weights_of}; here layers use the weights of "
        f"{network.name}."
    )


def _convert_default_precisions(
    file_name: str, model: _ModelEntry, move_applier: LoadedMoveApplier, tf32: bool
) -> PrecisionConfig:
    """Converts the default precisions of a config for a quantized file to those for an FP32 network.

    Layers in file precision get a move to the nearest precision instead.
    """
    precisions = {named_move.value for named_move in Precision}
    move_applier.moves = [
        named_move for named_move in move_applier.moves if named_move.move.equivalence_key != Precision.FILE.value
    ]
    move_applier.moves += [
        MoveEntry(f"model.in_file[{name!r}]", PrecisionMove(Precision(name), "file"), tuple(layers), ())
        for name, layers in model.in_file.items()
        if name in precisions
    ]
    move_applier.warnings.append(f"{file_name}: the file precisions of {model.name} are requested for this network.")
    return PrecisionConfig(
        Precision.FP32, Precision(model.other_in_file) if model.other_in_file in precisions else Precision.FP32, tf32
    )


def _check_structure(
    file_name: str, network: NetworkOutline, model: _ModelEntry, move_applier: LoadedMoveApplier, force: bool
) -> None:
    """Refuses a config for a network with another structure. If ``force`` is True, it adds a warning instead."""
    differs = _structure_difference_text(network, model, move_applier.find_unknown_names(PrecisionMove.subject_kind))
    if not force:
        raise InputError(
            f"{file_name} was made for another structure than {network.name}",
            f"it was made for {model.name}; {differs}",
            "Open the network it was made for, or use --force to use the matching entries.",
        )
    move_applier.warnings.append(f"{file_name} was made for another structure ({model.name}); {differs}.")


def _structure_difference_text(network: NetworkOutline, model: _ModelEntry, unknown_names: Sequence[str]) -> str:
    layers = network.layers
    differences = (
        [] if model.nodes in (None, len(layers)) else [f"it has {model.nodes} nodes and this network {len(layers)}"]
    )
    if unknown_names:
        differences.append(f"this network lacks {name_list_text(unknown_names)}")
    try:
        digest_bytes = base64.b64decode(model.node_digests, validate=True)
    except (ValueError, binascii.Error):
        digest_bytes = b""
    if digest_bytes:
        file_digests = {digest_bytes[i : i + _DIGEST_BYTES] for i in range(0, len(digest_bytes), _DIGEST_BYTES)}
        layer_digests = [network.layer_digests[layer.name] for layer in layers]
        changed = [
            layer.name for layer, digest in zip(layers, layer_digests, strict=True) if digest not in file_digests
        ]
        missing_count = len(file_digests - set(layer_digests))
        if changed:
            differences.append(f"layers that differ here: {name_list_text(changed)}")
        if missing_count > len(changed):
            differences.append(f"{missing_count - len(changed)} of its layers are not in this network")
    return "; ".join(differences) or "layers are the same, inputs, outputs or stored constants differ"
