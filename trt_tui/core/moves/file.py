"""precision.json: a precision config, the ranges it needs and what was measured with it, as a file.

Schema v1 is ``schemas/precision-config-v1.json``. Layers stand in it by node name, every layer of a group that was
given a precision, so that a reader that knows nothing of groups can apply it.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trt_tui.core.calibration.methods import METHODS
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.precision import FLOATS, OFFERED, Precision
from trt_tui.errors import InputError
from trt_tui.files.reading import read_text
from trt_tui.files.writing import write_atomic
from trt_tui.words import visible_json

if TYPE_CHECKING:
    from trt_tui.core.network.layers import Group
    from trt_tui.core.network.network import Network

FORMAT = "trt-tui/precision-config"
VERSION = 1

_KEYS = ("format", "version", "model", "default", "tf32", "layers", "calibration", "overrides", "tolerance", "evidence",
         "made_with")
_DIGEST_BYTES = 3
_NAMED = 5


class Ranges(Protocol):
    """What is written of a calibration; see `trt_tui.core.calibration.calibrate.Calibration`."""

    method: str
    samples: int
    data_sha256: str
    ranges: Mapping[str, float]


@dataclass(frozen=True)
class LoadedConfig:
    """A config as read from a file, checked against a network.

    Attributes:
        config: The precisions, and the ranges that override the calibrated ones.
        ranges: The calibrated amax by tensor name; empty if the file has none.
        method: How the ranges were measured, "" if the file has none.
        samples: On how many samples.
        data_sha256: On which data; "" where the file does not say.
        stale_ranges: Whether the network's weights are others than those the ranges were measured on.
        warnings: What was ignored and what to mind, one sentence each.
        tolerance: The tolerance that the config was made for, "" if the file has none.
        evidence: What was measured with it ("simulated", "engine"), as the file has it.
        made_with: Versions it was made with, as the file has them.
    """

    config: PrecisionConfig
    ranges: dict[str, float] = field(default_factory=dict)
    method: str = ""
    samples: int = 0
    data_sha256: str = ""
    stale_ranges: bool = False
    warnings: tuple[str, ...] = ()
    tolerance: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    made_with: dict[str, str] = field(default_factory=dict)


def schema(name: str = "precision-config-v1") -> dict[str, Any]:
    """The JSON Schema that ships with the package: ``precision-config-v1`` or ``comparison-v1``."""
    return json.loads(resources.files("trt_tui.core").joinpath("schemas", f"{name}.json").read_text("utf-8"))


# -- writing --------------------------------------------------------------------------------------------------------


def write_config(
    path: Path | str,
    network: Network,
    config: PrecisionConfig,
    calibration: Ranges | None = None,
    evidence: Mapping[str, Any] | None = None,
    tolerance: str = "",
    made_with: Mapping[str, str] | None = None,
    *,
    sha256: str | None = None,
) -> None:
    """Writes a config; the file is whole or not there. The same arguments give the same bytes.

    Args:
        sha256: `Network.sha256` where it is known already; by default it is computed.

    Raises:
        InputError: the file cannot be written, or the config is for another network.
    """
    write_atomic(path, config_text(network, config, calibration, evidence, tolerance, made_with, sha256=sha256))


def config_text(
    network: Network,
    config: PrecisionConfig,
    calibration: Ranges | None = None,
    evidence: Mapping[str, Any] | None = None,
    tolerance: str = "",
    made_with: Mapping[str, str] | None = None,
    *,
    sha256: str | None = None,
) -> str:
    """The text that `write_config` writes.

    Raises:
        InputError: the config has groups or ranges that the network lacks.
    """
    groups = {group.name for group in network.groups}
    strangers = [name for name in config.groups if name not in groups]
    strangers += [tensor for tensor in config.ranges if not network.has_tensor(tensor)]
    if strangers:
        raise InputError(f"The config is not one for {network.name}", f"the network lacks {_listed(strangers)}",
                         "Write it for the network that it was made for.")
    layers = {}
    for group in network.groups:
        choice = config.groups.get(group.name)
        if choice is not None:
            layers.update((name, {"precision": choice.precision.value, "reason": choice.reason})
                          for name in group.layers)
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model": {
            "name": network.name,
            "structure_sha256": network.structure_sha256,
            "sha256": network.sha256() if sha256 is None else sha256,
            "nodes": len(network.layers),
            "node_digests": _digests(network),
        },
        "default": {"quantized": config.quantized.value, "other": config.other.value},
        "tf32": config.tf32,
        "layers": layers,
    }
    order = {tensor: place for place, tensor in enumerate(network.activations)}

    def in_order(tensors: Mapping[str, Any]) -> list[str]:
        return sorted(tensors, key=lambda tensor: (order.get(tensor, len(order)), tensor))

    if calibration is not None:
        record["calibration"] = {
            "method": calibration.method,
            "samples": int(calibration.samples),
            "data_sha256": calibration.data_sha256,
            "ranges": {tensor: float(calibration.ranges[tensor]) for tensor in in_order(calibration.ranges)},
        }
    if config.ranges:
        record["overrides"] = {tensor: {"amax": float(config.ranges[tensor].amax),
                                        "method": config.ranges[tensor].method} for tensor in in_order(config.ranges)}
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


def _digests(network: Network) -> str:
    """Base64 of the first 3 bytes of each layer's hash, in network order; tells which layers differ."""
    return base64.b64encode(b"".join(network.digests[layer.name] for layer in network.layers)).decode("ascii")


# -- reading --------------------------------------------------------------------------------------------------------


def read_config(path: Path | str, network: Network, force: bool = False, *, sha256: str | None = None) -> LoadedConfig:
    """Reads a config for a network.

    Args:
        force: Take a config made for another structure; what does not fit is ignored and named in the warnings.
        sha256: `Network.sha256` where it is known already; by default it is computed. "" leaves the weights unchecked.

    Raises:
        InputError: the file cannot be read, is no config of a known version, is for another structure, or names
            layers, precisions or ranges that the network cannot have.
    """
    path = Path(path)
    reader = _Reader(path.name, _json(path), network, force)
    return reader.read(network.sha256 if sha256 is None else lambda: sha256)


def _json(path: Path) -> dict[str, Any]:
    text = read_text(path)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) != len(pairs):
            seen: set[str] = set()
            key = next(key for key, _ in pairs if key in seen or seen.add(key))
            raise InputError(f"{path.name} has the key {key!r} twice", "only one of them could count",
                             "Delete one of them.")
        return record

    def no_number(text: str) -> float:
        raise InputError(f"{path.name} holds {text}", "JSON knows finite numbers only",
                         "Correct the file, or export the config again.")

    try:
        record = json.loads(text, object_pairs_hook=once, parse_constant=no_number)
    except json.JSONDecodeError as error:
        raise InputError(f"{path.name} is not valid JSON", f"line {error.lineno}, column {error.colno}: {error.msg}",
                         "Correct the file there, or export the config again.") from None
    except RecursionError:
        raise InputError(f"{path.name} is not a precision config", "it is nested too deeply",
                         "Name a precision.json that trt-tui wrote.") from None
    except ValueError:
        raise InputError(f"{path.name} holds a number of thousands of digits", "no entry of a config needs one",
                         "Correct the file, or export the config again.") from None
    try:
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise InputError(f"{path.name} is not a precision config", "it is nested too deeply",
                         "Name a precision.json that trt-tui wrote.") from None
    except UnicodeEncodeError:
        raise InputError(f"{path.name} holds half a character", "a lone surrogate, as in \"\\ud800\", is no text",
                         "Correct the file, or export the config again.") from None
    if not isinstance(record, dict) or "format" not in record:
        raise InputError(f"{path.name} is not a precision config", "it has no \"format\" entry",
                         "Name a precision.json that trt-tui wrote.")
    return record


class _Reader:
    def __init__(self, file: str, record: dict[str, Any], network: Network, force: bool) -> None:
        self.file = file
        self.record = record
        self.network = network
        self.force = force
        self.warnings: list[str] = []

    def read(self, sha256: Any) -> LoadedConfig:
        self._check_version()
        model = self._mapping("model")
        foreign = self._check_structure(model)
        self.lenient = foreign and self.force
        for key in self.record:
            if key not in _KEYS:
                self.warnings.append(f"{self.file}: unknown entry {key!r} is ignored.")
        default = self._mapping("default")
        quantized = self._precision(default.get("quantized", "int8"), "default.quantized", OFFERED)
        other = self._precision(default.get("other", "fp16"), "default.other", FLOATS)
        tf32 = self.record.get("tf32", False)
        if not isinstance(tf32, bool):
            raise self._nonsense("tf32", tf32, "true or false")
        calibration = self._mapping("calibration", optional=True)
        ranges = self._ranges(calibration)
        config = PrecisionConfig(quantized, other, tf32).with_moves(self._groups()).with_moves(self._overrides())
        stale = False
        if ranges or config.ranges:
            stale = foreign
            written = model.get("sha256")
            if not foreign and written:
                here = sha256()
                stale = bool(here) and here != written
            if stale:
                config = config.without_ranges(METHODS)
                self.warnings.append(f"{self.file}: its ranges were measured on other weights; they are left out, "
                                     "calibrate again.")
        samples = calibration.get("samples", 0)
        return LoadedConfig(
            config, ranges, self._text(calibration, "method", "calibration."),
            samples if isinstance(samples, int) and not isinstance(samples, bool) else 0,
            self._text(calibration, "data_sha256", "calibration."), stale, tuple(self.warnings),
            self._text(self.record, "tolerance"), self._mapping("evidence", optional=True),
            self._mapping("made_with", optional=True))

    # -- is it for this network ---------------------------------------------------------------------------------

    def _check_version(self) -> None:
        if self.record["format"] != FORMAT:
            raise InputError(f"{self.file} is not a precision config",
                             f"its format is {self.record['format']!r}, not {FORMAT!r}",
                             "Name a precision.json that trt-tui wrote.")
        version = self.record.get("version")
        if version != VERSION or isinstance(version, bool):
            raise InputError(f"{self.file} has version {version!r} of {FORMAT}",
                             f"this trt-tui reads version {VERSION}",
                             "Update trt-tui, or export the config again with this one.")

    def _check_structure(self, model: dict[str, Any]) -> bool:
        """Whether the config was made for another structure."""
        written = model.get("structure_sha256")
        if not isinstance(written, str) or not written:
            raise self._nonsense("model.structure_sha256", written, "a hash")
        if written == self.network.structure_sha256:
            return False
        name, differs = model.get("name", "another network"), self._difference(model)
        if not self.force:
            raise InputError(f"{self.file} was made for another structure than {self.network.name}",
                             f"it was made for {name}; {differs}",
                             "Open the network it was made for, or use --force to take what fits.")
        self.warnings.append(f"{self.file} was made for another structure ({name}); {differs}.")
        return True

    def _difference(self, model: dict[str, Any]) -> str:
        layers = self.network.layers
        nodes = model.get("nodes")
        said = [] if nodes in (None, len(layers)) else [f"it has {nodes} nodes and this network {len(layers)}"]
        unknown = [name for name in self._mapping("layers", optional=True) if not self.network.has_layer(name)]
        if unknown:
            said.append(f"this network lacks {_listed(unknown)}")
        try:
            packed = base64.b64decode(model.get("node_digests") or "", validate=True)
        except (TypeError, ValueError, binascii.Error):
            packed = b""
        if packed:
            known = {packed[i:i + _DIGEST_BYTES] for i in range(0, len(packed), _DIGEST_BYTES)}
            here = [self.network.digests[layer.name] for layer in layers]
            changed = [layer.name for layer, digest in zip(layers, here, strict=True) if digest not in known]
            gone = len(known - set(here))
            if changed:
                said.append(f"layers that differ here: {_listed(changed)}")
            if gone > len(changed):
                said.append(f"{gone - len(changed)} of its layers are not in this network")
        return "; ".join(said) or "layers are the same, inputs, outputs or stored constants differ"

    # -- its parts ----------------------------------------------------------------------------------------------

    def _groups(self) -> dict[str, Choice]:
        layers = self._mapping("layers", optional=True)
        unknown = [name for name in layers if not self.network.has_layer(name)]
        if unknown and not self.lenient:
            near = _near(unknown, [layer.name for layer in self.network.layers])
            raise InputError(f"{self.file} names layers that {self.network.name} does not have", _listed(unknown),
                             f"Near: {', '.join(near)}." if near else "Check the names; trt-tui inspect lists them.")
        if unknown:
            self.warnings.append(f"{self.file}: ignored, not in this network: {_listed(unknown)}.")
        chosen: dict[str, tuple[str, Choice]] = {}
        for name, entry in layers.items():
            if not self.network.has_layer(name):
                continue
            choice = self._choice(name, entry)
            group = self.network.group_of(name)
            refused = self._refused(name, group, choice.precision)
            if refused:
                if not self.lenient:
                    raise InputError(f"{self.file}: {name} cannot run in {choice.precision.label}", refused,
                                     "Take it out of \"layers\", or give it a precision it can run in.")
                self.warnings.append(f"{self.file}: ignored, {name} cannot run in {choice.precision.label}: {refused}.")
                continue
            earlier = chosen.get(group.name)
            if earlier is not None and earlier[1].precision is not choice.precision:
                first, before = earlier
                raise InputError(
                    f"{self.file} gives one group two precisions",
                    f"{first} {before.precision.label} and {name} {choice.precision.label}: TensorRT fuses them",
                    "Give both the same precision, or take one of them out.")
            if earlier is None or name == group.name:
                chosen[group.name] = (name, choice)
        self._tell_of_groups(layers, chosen)
        return {group.name: chosen[group.name][1] for group in self.network.groups if group.name in chosen}

    def _tell_of_groups(self, named: Mapping[str, Any], chosen: Mapping[str, tuple[str, Choice]]) -> None:
        """Says which layers take a precision that the file does not give them, since they are fused with one named."""
        moved = {name: rest for group in self.network.groups if (name := chosen.get(group.name, ("",))[0])
                 and (rest := [layer for layer in group.layers if layer not in named])}
        if moved:
            told = "; ".join(f"{name} takes {_listed(rest)} with it" for name, rest in list(moved.items())[:_NAMED])
            more = f"; {len(moved) - _NAMED} more do" if len(moved) > _NAMED else ""
            self.warnings.append(f"{self.file}: a precision is one of the whole group: {told}{more}.")

    def _choice(self, name: str, entry: Any) -> Choice:
        where = f"layers[{name!r}]"
        if not isinstance(entry, dict) or "precision" not in entry:
            raise self._nonsense(where, entry, 'of the form {"precision": "fp32", "reason": "user"}')
        precision = self._precision(entry["precision"], f"{where}.precision", tuple(Precision))
        return Choice(precision, self._text(entry, "reason", f"{where}.") or "user")

    def _refused(self, name: str, group: Group | None, precision: Precision) -> str:
        """Why a layer cannot run in a precision, "" if it can."""
        if group is None:
            return f"it has no precision of its own: {self.network.layer(name).note or 'no float result'}"
        if precision is Precision.TF32:
            return 'TF32 is a setting of the whole config, "tf32": true'
        return "" if precision in group.allowed else group.refusals[precision]

    def _ranges(self, calibration: dict[str, Any]) -> dict[str, float]:
        ranges = calibration.get("ranges", {})
        if not isinstance(ranges, dict):
            raise self._nonsense("calibration.ranges", ranges, "amax values by tensor name")
        return {tensor: self._amax(amax, f"calibration.ranges[{tensor!r}]")
                for tensor, amax in self._known_tensors(ranges, "calibration.ranges").items()}

    def _overrides(self) -> dict[str, RangeChoice]:
        overrides = self._known_tensors(self._mapping("overrides", optional=True), "overrides")
        result = {}
        for tensor, entry in overrides.items():
            where = f"overrides[{tensor!r}]"
            if not isinstance(entry, dict) or "amax" not in entry:
                raise self._nonsense(where, entry, 'of the form {"amax": 2.5, "method": "user"}')
            result[tensor] = RangeChoice(self._amax(entry["amax"], f"{where}.amax"),
                                         self._text(entry, "method", f"{where}.") or "user")
        return result

    def _known_tensors(self, entries: dict[str, Any], where: str) -> dict[str, Any]:
        unknown = [tensor for tensor in entries if not self.network.has_tensor(tensor)]
        if unknown and not self.lenient:
            names = [output for layer in self.network.layers for output in layer.outputs if output]
            near = _near(unknown, [*(info.name for info in self.network.inputs), *names])
            raise InputError(f"{self.file}: {where} names tensors that {self.network.name} does not have",
                             _listed(unknown), f"Near: {', '.join(near)}." if near else "Check the names.")
        if unknown:
            self.warnings.append(f"{self.file}: {where} ignored for {_listed(unknown)}: not in this network.")
        return {tensor: entry for tensor, entry in entries.items() if self.network.has_tensor(tensor)}

    # -- values -------------------------------------------------------------------------------------------------

    def _mapping(self, key: str, optional: bool = False) -> dict[str, Any]:
        value = self.record.get(key, {} if optional else None)
        if not isinstance(value, dict):
            raise self._nonsense(key, value, "an object")
        return value

    def _text(self, record: dict[str, Any], key: str, prefix: str = "") -> str:
        value = record.get(key, "")
        if not isinstance(value, str):
            raise self._nonsense(prefix + key, value, "a text")
        return value

    def _precision(self, value: Any, where: str, offered: Sequence[Precision]) -> Precision:
        if value == "fp8":
            raise InputError(f"{self.file}: {where} is fp8", "FP8 is reserved and cannot be asked for yet",
                             f"Use one of {', '.join(p.value for p in offered)}.")
        known = {precision.value: precision for precision in offered}
        if not isinstance(value, str) or value not in known:
            raise self._nonsense(where, value, f"one of {', '.join(known)}")
        return known[value]

    def _amax(self, value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._nonsense(where, value, "a number")
        try:
            amax = float(value)
        except OverflowError:
            amax = math.inf
        if not (math.isfinite(amax) and amax >= 0):
            raise self._nonsense(where, value, "a finite number from 0 up")
        return amax

    def _nonsense(self, where: str, value: Any, wanted: str) -> InputError:
        text = "missing" if value is None else json.dumps(value, ensure_ascii=False)
        return InputError(f"{self.file}: {where} is {text if len(text) <= 60 else text[:57] + '...'}",
                          f"it has to be {wanted}", "Correct the file, or export the config again.")


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _near(unknown: Sequence[str], known: Sequence[str]) -> list[str]:
    near = (difflib.get_close_matches(name, known, 1, 0.6) for name in unknown[:_NAMED])
    return list(dict.fromkeys(match[0] for match in near if match))
