"""precision.json: a precision config, the ranges it needs and what was measured with it, as a file.

Version 2 holds moves and is ``schemas/precision-config-v2.json``. Layers stand in it by node name, every layer of a
group that was given a precision, so that a reader that knows nothing of groups can apply it. Version 1 is read too.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.codes import MAX_AMAX
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.entries import encoded, shaped
from trt_tui.core.moves.placing import Entry, Named, Placing
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.moves.twins import around_codes, has_own_precisions, in_file, twin_sha256
from trt_tui.core.network.layers import Outline
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.budget import file_budget
from trt_tui.files.reading import MAX_DEPTH, is_nested_deeper, read_text
from trt_tui.words import first_few, visible_json

FORMAT = "trt-tui/precision-config"
VERSION = 2

_DIGEST_BYTES = 3
OtherCodes = Annotated[str, msgspec.Meta(pattern="^fp8$")]
Amax = Annotated[float, msgspec.Meta(ge=0, le=MAX_AMAX)]


@dataclass(frozen=True)
class LoadedConfig:
    """A config as read from a file, checked against a network.

    Attributes:
        config: The defaults and the moves, ranges that override the calibrated ones among them.
        calibration: The ranges, and how they were measured, as far as the file says; without ranges if it has none.
        stale_ranges: Whether the network's weights are others than those the ranges were measured on.
        warnings: What was ignored and what to mind, one sentence each.
        tolerance: The tolerance that the config was made for, "" if the file has none.
        evidence: What was measured with it ("simulated", "engine"), as the file has it.
        made_with: Versions it was made with, as the file has them.
    """

    config: PrecisionConfig
    calibration: Calibration
    stale_ranges: bool = False
    warnings: tuple[str, ...] = ()
    tolerance: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    made_with: dict[str, Any] = field(default_factory=dict)


# -- the shape of a file --------------------------------------------------------------------------------------------


class _Model(msgspec.Struct):
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


class _Default(msgspec.Struct):
    quantized: Literal["fp32", "bf16", "fp16+", "fp16", "fp8", "int8", "int4", "file"] = "int8"
    other: Literal["fp32", "bf16", "fp16", "file"] = "fp16"


class _Calibration(msgspec.Struct):
    method: str = ""
    samples: int = 0
    data_sha256: str = ""
    ranges: dict[str, Any] = {}
    others: dict[str, dict[str, Any]] = {}


class _File(msgspec.Struct, kw_only=True):
    """What every version has."""

    format: str
    version: int
    model: _Model
    default: _Default
    tf32: bool = False
    calibration: _Calibration | None = None
    tolerance: str = ""
    evidence: dict[str, Any] = {}
    made_with: dict[str, Any] = {}

    def entries(self) -> Iterator[Entry]:
        """Its moves, each with its place in the file."""
        raise NotImplementedError


class _Version1(_File, kw_only=True):
    """A precision for each layer, and ranges."""

    layers: dict[str, Any] = {}
    overrides: dict[str, Any] = {}

    def entries(self) -> Iterator[Entry]:
        for kind, entries, place in ((Choice, self.layers, "layers"), (RangeChoice, self.overrides, "overrides")):
            for name, entry in entries.items():
                yield Entry(f"{place}[{name!r}]", {"kind": kind.kind, kind.subject.key: [name]}, entry)


class _Version2(_File, kw_only=True):
    """Moves."""

    moves: list[dict[str, Any]] = []

    def entries(self) -> Iterator[Entry]:
        return (Entry(f"moves[{index}]", {}, entry) for index, entry in enumerate(self.moves))


_VERSIONS: dict[int, type[_File]] = {1: _Version1, VERSION: _Version2}


# -- writing --------------------------------------------------------------------------------------------------------


def config_text(
    network: Outline,
    config: PrecisionConfig,
    calibration: Calibration | None = None,
    *,
    evidence: Mapping[str, Any] | None = None,
    tolerance: str = "",
    made_with: Mapping[str, str] | None = None,
    sha256: str | None = None,
    weights_of: str = "",
) -> str:
    """The text of a config's file. The same arguments give the same bytes.

    Args:
        weights_of: The name of the FP32 network that brings the weights of layers that are not as in the quantized
            file; "" without one.
        sha256: `Network.sha256` where it is known already; by default it is computed.

    Raises:
        InputError: the config has groups or ranges that the network lacks.
    """
    strangers = [target for kind, moves in config.shown(network) for target, _ in moves
                 if not kind.subject.has(network, target)]
    if strangers:
        raise InputError(f"The config is not one for {network.name}", f"the network lacks {first_few(strangers)}",
                         "Write it for the network that it was made for.")
    entries = []
    for kind, moves in config.shown(network):
        for target, move in moves:
            names = {kind.subject.key: kind.subject.names(network, target)}
            entries.append({"kind": kind.kind, **names, **encoded(move)})
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model": {
            "name": network.name,
            "structure_sha256": network.structure_sha256,
            "sha256": _sha256(network) if sha256 is None else sha256,
            "nodes": len(network.layers),
            "node_digests": _digests(network),
            "twin_sha256": twin_sha256(network),
            "quantized": has_own_precisions(network),
            **({"in_file": held, "other_in_file": around_codes(network).value}
               if (held := in_file(network, config)) else {}),
            **({"weights_of": weights_of} if weights_of else {}),
        },
        "default": {"quantized": config.quantized.value, "other": config.other.value},
        "tf32": config.tf32,
        "moves": entries,
    }
    if calibration is not None:
        record["calibration"] = {
            "method": calibration.method,
            "samples": int(calibration.samples),
            "data_sha256": calibration.data_sha256,
            "ranges": {tensor: float(calibration.ranges[tensor])
                       for tensor in RangeChoice.subject.ordered(network, calibration.ranges)},
        }
        if calibration.others:
            record["calibration"]["others"] = {precision: {
                tensor: float(own[tensor]) for tensor in RangeChoice.subject.ordered(network, own)}
                for precision, own in calibration.others.items()}
    if tolerance:
        record["tolerance"] = tolerance
    if evidence:
        record["evidence"] = _sorted(evidence)
    if made_with:
        record["made_with"] = _sorted(made_with)
    return visible_json(json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def _sorted(value: Any) -> Any:
    """Keys in order, and null where a number is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _sorted(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [_sorted(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sha256(network: Outline) -> str:
    return network.sha256() if isinstance(network, Network) else ""


def _digests(network: Outline) -> str:
    """Base64 of the first 3 bytes of each layer's hash, in network order; tells which layers differ."""
    return base64.b64encode(b"".join(network.digests[layer.name] for layer in network.layers)).decode("ascii")


# -- reading --------------------------------------------------------------------------------------------------------


def read_config(path: Path | str, network: Outline, *, force: bool = False, sha256: str | None = None
                ) -> LoadedConfig:
    """Reads a config for a network.

    Args:
        force: Take a config made for another structure; what does not fit is ignored and named in the warnings.
        sha256: `Network.sha256` where it is known already; by default it is computed. "" leaves the weights unchecked.

    Raises:
        InputError: the file cannot be read, is no config of a known version, is for another structure, or has kinds of
            move that are not known, or names layers, precisions or ranges that the network cannot have.
    """
    with file_budget(path):
        return _placed(Path(path), network, force, sha256)


def _placed(path: Path, network: Outline, force: bool, sha256: str | None) -> LoadedConfig:
    record = _json(path)
    shape = _VERSIONS[_version(record, path.name)]
    file = shaped(record, shape, path.name)
    placing = Placing(path.name, network, [entry.read(path.name) for entry in file.entries()])
    placing.warnings += [f"{path.name}: unknown entry {key!r} is ignored." for key in record
                         if key not in shape.__struct_fields__]
    foreign = file.model.structure_sha256 != network.structure_sha256
    if foreign and file.model.quantized is not has_own_precisions(network) and file.model.twin_sha256 and (
            file.model.twin_sha256 == twin_sha256(network)):
        placing.warnings.append(f"{path.name} was made for {file.model.name}, which has the same layers to quantize: "
                                "what fits is taken.")
    elif foreign:
        _tell_of_structure(path.name, network, file.model, placing, force)
    placing.lenient = foreign
    defaults = PrecisionConfig(Precision(file.default.quantized), Precision(file.default.other), file.tf32)
    if file.model.in_file and not has_own_precisions(network):
        defaults = _out_of_file(path.name, file.model, placing, file.tf32)
    calibration = file.calibration or _Calibration()
    ranges = _ranges(calibration.ranges, "calibration.ranges", path.name, network, placing)
    others: dict[str, dict[str, float]] = {
        shaped(precision, OtherCodes, path.name, "a name in calibration.others"):
            _ranges(own, f"calibration.others.{precision}", path.name, network, placing)
        for precision, own in calibration.others.items()}
    config = placing.made(defaults)
    def hashed() -> str:
        return _sha256(network) if sha256 is None else sha256

    if file.model.weights_of and _codes_alone(network) and _other_weights(file.model.sha256, hashed):
        _check_weights(path.name, file.model, network, config, force, placing)
    stale = bool(ranges or any(move.measured for move in config.moves.values()) or config.ranges) and (
        foreign or _other_weights(file.model.sha256, hashed))
    if stale:
        more = any(move.measured and move.kind != RangeChoice.kind for move in config.moves.values())
        config = config.without_measured()
        what = "ranges, factors and shifts" if more else "ranges"
        hint = " If it was made with --reference, give that here too." if (
            _codes_alone(network) and not file.model.weights_of) else ""
        placing.warnings.append(f"{path.name}: its {what} were measured on other weights; they are left out, "
                                f"calibrate again.{hint}")
    measured = Calibration(calibration.method, calibration.samples, calibration.data_sha256, ranges, others)
    return LoadedConfig(config, measured, stale, tuple(placing.warnings), file.tolerance, file.evidence, file.made_with)


def _ranges(written: Mapping[str, Any], where: str, file: str, network: Outline, placing: Placing
            ) -> dict[str, float]:
    """The amax by tensor name of those tensors that the network has."""
    ranges = {tensor: shaped(amax, Amax, file, f"{where}[{tensor!r}]") for tensor, amax in written.items()}
    placing.check_names(RangeChoice.subject, ranges, f"{where} names")
    return {tensor: amax for tensor, amax in ranges.items() if network.has_tensor(tensor)}


def _json(path: Path) -> dict[str, Any]:
    text = read_text(path)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) != len(pairs):
            seen: set[str] = set()
            key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise InputError(f"{path.name} has the key {key!r} twice", "only one of them could count",
                             "Delete one of them.")
        return record

    def no_number(text: str) -> float:
        raise InputError(f"{path.name} holds {text}", "JSON knows finite numbers only",
                         "Correct the file, or export the config again.")

    def no_config(why: str) -> InputError:
        return InputError(f"{path.name} is not a precision config", why, "Name a precision.json that trt-tui wrote.")

    try:
        record = json.loads(text, object_pairs_hook=once, parse_constant=no_number)
        if is_nested_deeper(record, MAX_DEPTH):
            raise no_config("it is nested too deeply")
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise InputError(f"{path.name} is not valid JSON", f"line {error.lineno}, column {error.colno}: {error.msg}",
                         "Correct the file there, or export the config again.") from None
    except RecursionError:
        raise no_config("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise InputError(f"{path.name} holds half a character", "a lone surrogate, as in \"\\ud800\", is no text",
                         "Correct the file, or export the config again.") from None
    except ValueError:
        raise InputError(f"{path.name} holds a number of thousands of digits", "no entry of a config needs one",
                         "Correct the file, or export the config again.") from None
    if not isinstance(record, dict) or "format" not in record:
        raise no_config("it has no \"format\" entry")
    if record["format"] != FORMAT:
        raise no_config(f"its format is {record['format']!r}, not {FORMAT!r}")
    return record


def _version(record: Mapping[str, Any], file: str) -> int:
    version = record.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version not in _VERSIONS:
        raise InputError(f"{file} has version {version!r} of {FORMAT}",
                         f"this trt-tui reads versions {' and '.join(map(str, _VERSIONS))}",
                         "Update trt-tui, or export the config again with this one.")
    return version


def _other_weights(written: str, sha256: Callable[[], str]) -> bool:
    """Whether a config was made for other weights, as far as that can be told."""
    return bool(written) and sha256() not in ("", written)


# -- is it for this network -----------------------------------------------------------------------------------------


def _codes_alone(network: Outline) -> bool:
    """Returns True for a quantized network that is open without the FP32 network that it was made from."""
    given = network.given if isinstance(network, Network) else None
    return given is not None and not given.replaced


def _check_weights(file: str, model: _Model, network: Outline, config: PrecisionConfig, force: bool,
                   placing: Placing) -> None:
    """Checks that no layer of a config needs the FP32 weights that it was made with, which are missing.

    Raises:
        InputError: a layer needs them.
    """
    if all(config.precision_of(group) is Precision.FILE for group in network.groups):
        return
    if not force:
        raise InputError(f"{file} was made with the FP32 weights of {model.weights_of}",
                         f"layers that it does not leave as in {network.name} have these weights",
                         f"Add --reference {model.weights_of}. --force goes on with the weights of {network.name}.")
    placing.warnings.append(f"{file}: it was made with the FP32 weights of {model.weights_of}; here layers have those "
                            f"of {network.name}.")


def _out_of_file(file: str, model: _Model, placing: Placing, tf32: bool) -> PrecisionConfig:
    """The defaults of a config on a network in FP32, where it leaves layers as another file has them: these are given
    the precisions that come nearest to that."""
    precisions = {one.value for one in Precision}
    placing.moves = [one for one in placing.moves if one.move.decides != Precision.FILE.value]
    placing.moves += [Named(f"model.in_file[{name!r}]", Choice(Precision(name), "file"), tuple(layers), ())
                      for name, layers in model.in_file.items() if name in precisions]
    placing.warnings.append(f"{file}: what {model.name} has in its file is asked of this network.")
    return PrecisionConfig(Precision.FP32, Precision(model.other_in_file) if model.other_in_file in precisions else
                           Precision.FP32, tf32)


def _tell_of_structure(file: str, network: Outline, model: _Model, placing: Placing, force: bool) -> None:
    """Refuses a config for another structure, or warns where that was asked for."""
    differs = _difference(network, model, placing.unknown(Choice.subject))
    if not force:
        raise InputError(f"{file} was made for another structure than {network.name}",
                         f"it was made for {model.name}; {differs}",
                         "Open the network it was made for, or use --force to take what fits.")
    placing.warnings.append(f"{file} was made for another structure ({model.name}); {differs}.")


def _difference(network: Outline, model: _Model, unknown: Sequence[str]) -> str:
    layers = network.layers
    said = [] if model.nodes in (None, len(layers)) else [
        f"it has {model.nodes} nodes and this network {len(layers)}"]
    if unknown:
        said.append(f"this network lacks {first_few(unknown)}")
    try:
        packed = base64.b64decode(model.node_digests, validate=True)
    except (ValueError, binascii.Error):
        packed = b""
    if packed:
        known = {packed[i:i + _DIGEST_BYTES] for i in range(0, len(packed), _DIGEST_BYTES)}
        here = [network.digests[layer.name] for layer in layers]
        changed = [layer.name for layer, digest in zip(layers, here, strict=True) if digest not in known]
        gone = len(known - set(here))
        if changed:
            said.append(f"layers that differ here: {first_few(changed)}")
        if gone > len(changed):
            said.append(f"{gone - len(changed)} of its layers are not in this network")
    return "; ".join(said) or "layers are the same, inputs, outputs or stored constants differ"
