"""Accuracy defects of TensorRT releases, and layers that gain nothing in quantized types.

`KNOWN_DEFECTS` is the table. A row states only the content of its source. A release that the source does not name
counts as unknown. A defect causes a warning and never an error. `find_defect_sites` finds the affected layers when a
network is opened. `match_known_defects` compares them with a config and a target release.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import DefectSite, FusionGroup, Layer, NetworkOutline
from trt_tui.core.network.model_editing import collect_by_key
from trt_tui.core.network.opset_conversion import CUBIC_GRID_NEXT_STEP
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, name_list_text

TENSORRT, TENSORRT_RTX = "TensorRT", "TensorRT-RTX"

_RELEASE_PATTERN = re.compile(r"(?P<rtx>rtx[-:]?)?(?P<numbers>\d{1,4}(?:\.\d{1,5}){0,3})?", re.IGNORECASE)
_NUMBERS_PATTERN = re.compile(r"\d{1,4}(?:\.\d{1,5}){0,3}")
_Version: TypeAlias = tuple[int, ...]
_MAX_PARTS = 4
_MAX_PART = 10**6


def _oldest_version(text: str, missing_part: int = 0) -> _Version:
    """Returns the oldest version of a release text: 10.14.0.0 for "10.14"."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", text)[:_MAX_PARTS])
    return (*numbers, *(missing_part,) * (_MAX_PARTS - len(numbers)))


def _newest_version(text: str) -> _Version:
    """Returns an upper bound of the versions of a release text: "10.14" includes each 10.14.x.y."""
    return _oldest_version(text, _MAX_PART)


@dataclass(frozen=True)
class TensorRTRelease:
    """A release of TensorRT or TensorRT-RTX.

    Attributes:
        product: `TENSORRT` or `TENSORRT_RTX`.
        version: The version with one to four numbers. "10.14" stands for all releases 10.14.x. "" if it is unknown.
    """

    product: str
    version: str

    @property
    def title(self) -> str:
        return f"{self.product} {self.version}".rstrip()

    @property
    def family(self) -> str:
        """The name of the release in the options of bundles: "8.6", "10", "11" or "rtx"; "" for any other release."""
        if self.product == TENSORRT_RTX:
            return "rtx"
        numbers = self.version.split(".")
        return {"10": "10", "11": "11"}.get(numbers[0], "8.6" if numbers[:2] == ["8", "6"] else "")


def parse_release(text: str) -> TensorRTRelease:
    """Parses the text of a release, such as "10.14", "10.14.1.48", "rtx" or "rtx1.5".

    Raises:
        InputError: The text is not a valid release.
    """
    match = _RELEASE_PATTERN.fullmatch(text.strip())
    if match is None or match["numbers"] is None and match["rtx"] is None:
        raise InputError(
            f"{text} is not a TensorRT release",
            "a release has one to four numbers with points between",
            "Write it like 10.14, 10.14.1.48, rtx or rtx1.5.",
        )
    return TensorRTRelease(TENSORRT_RTX if match["rtx"] else TENSORRT, match["numbers"] or "")


def installed_release(builder_name: str, version: str) -> TensorRTRelease:
    """Returns the release of an installed builder ("tensorrt", "tensorrt-rtx") from its version, such as
    "10.7.0.post1".
    """
    match = _NUMBERS_PATTERN.match(version)
    return TensorRTRelease(
        TENSORRT_RTX if builder_name == "tensorrt-rtx" else TENSORRT, match[0] if match is not None else ""
    )


@dataclass(frozen=True)
class AffectedReleases:
    """The releases of TensorRT or TensorRT-RTX with a known defect, according to its source.

    Attributes:
        product: `TENSORRT` or `TENSORRT_RTX`.
        observed: The oldest and the newest release in which the defect was observed; None if the source names none.
        introduced: The first release with the defect; None if it is unknown.
        fixed: The first release without the defect; None if it is unknown, or if there is none.
    """

    product: str = TENSORRT
    observed: tuple[str, str] | None = None
    introduced: str | None = None
    fixed: str | None = None

    def affects(self, release: TensorRTRelease) -> bool | None:
        """Returns True if a release has the defect according to the source, False if it does not, and None if that is
        unknown.

        A release without a patch number stands for its latest patch. If only earlier patches have the defect, the
        answer is None.
        """
        if release.product != self.product:
            return False
        if not release.version:
            return None
        oldest, newest = _oldest_version(release.version), _newest_version(release.version)
        if (
            self.fixed is not None
            and oldest >= _oldest_version(self.fixed)
            or self.introduced is not None
            and newest < _oldest_version(self.introduced)
        ):
            return False
        is_newest_known = (
            newest < _oldest_version(self.fixed)
            if self.fixed is not None
            else self.observed is not None and newest[:2] <= _newest_version(self.observed[1])[:2]
        )
        return True if self.names_release(release) and is_newest_known else None

    def names_release(self, release: TensorRTRelease) -> bool:
        """Returns True if the source names a version of the given release, such as 10.0.0 for "10", or names no release
        at all.
        """
        if self == AffectedReleases(self.product):
            return release.product == self.product
        first = self.introduced or (self.observed[0] if self.observed is not None else None)
        last = self.fixed or (self.observed[1] if self.observed is not None else None)
        return (
            release.product == self.product
            and bool(release.version)
            and first is not None
            and last is not None
            and _newest_version(release.version) >= _oldest_version(first)
            and _oldest_version(release.version) <= _newest_version(last)
        )

    @property
    def releases_text(self) -> str:
        """The affected releases for users, such as "since TensorRT 10.8, seen in 10.11.0.33"."""
        observed_text = " to ".join(dict.fromkeys(self.observed)) if self.observed is not None else ""
        parts = (
            [f"since {self.product} {self.introduced}"]
            if self.introduced is not None
            else ([f"in {self.product} {observed_text}"] if observed_text else [f"in {self.product}, releases unknown"])
        )
        if self.introduced is not None and observed_text not in ("", self.introduced):
            parts.append(f"seen in {observed_text}")
        if self.fixed is not None:
            parts.append(f"fixed in {self.fixed}")
        return ", ".join(parts)


@dataclass(frozen=True)
class BuildTarget:
    """The release and the GPU that engines are built for; each is None if it is unknown.

    Attributes:
        release: The TensorRT release.
        compute_capability: The compute capability of the GPU.
    """

    release: TensorRTRelease | None = None
    compute_capability: tuple[int, int] | None = None


PrecisionLookup: TypeAlias = Callable[[FusionGroup], Precision]
"""A function that returns the precision of a fusion group in a config."""


@dataclass(frozen=True)
class KnownDefect:
    """An accuracy defect of some releases of TensorRT.

    Attributes:
        operators: The operator types with the defect, as words; `ATTENTION` for the products of a fused attention.
        symptom: The defect as a clause in the present tense, to which the releases are added.
        threads: The paths of the source threads on GitHub as words, the most important first.
        workaround: The workaround, as one or two sentences in the imperative.
        condition: A further condition that the table cannot express, as a clause; "" if there is none.
        precisions: The precisions with the defect, without accumulators; empty if all precisions have it.
        attributes: The values of attributes that an operator with the defect has.
        min_layers: The least number of layers with these operators in a network with the defect.
        compute_capabilities: The GPUs with the defect; empty if the source does not restrict it to some GPUs.
        status: "reported" by a user, "confirmed by NVIDIA", or "reproduced with trt-tui".
        component: The faulty part of TensorRT: "parser" or "builder".
        is_in_exports: False if the files that trt-tui writes do not have the defect.
    """

    operators: str
    symptom: str
    threads: str
    workaround: str
    releases: tuple[AffectedReleases, ...]
    condition: str = ""
    precisions: tuple[Precision, ...] = ()
    attributes: Mapping[str, int | str] = field(default_factory=dict)
    min_layers: int = 1
    compute_capabilities: tuple[tuple[int, int], ...] = ()
    status: str = "reported"
    component: str = "builder"
    is_in_exports: bool = True

    def affects(self, target: BuildTarget) -> bool | None:
        """Returns True if engines for a target have the defect, False if they do not, and None if that is unknown."""
        answers = [None if target.release is None else releases.affects(target.release) for releases in self.releases]
        gpu = target.compute_capability
        if not any(answer is not False for answer in answers) or (
            self.compute_capabilities and gpu is not None and gpu not in self.compute_capabilities
        ):
            return False
        return (
            True if True in answers and not self.condition and not (self.compute_capabilities and gpu is None) else None
        )

    @property
    def releases_text(self) -> str:
        gpus = " and ".join(f"{major}.{minor}" for major, minor in self.compute_capabilities)
        return " and ".join(releases.releases_text for releases in self.releases) + (
            f", on GPUs of compute capability {gpus}" if gpus else ""
        )


@dataclass(frozen=True)
class DefectMatch:
    """A known defect of TensorRT that affects layers of a network in the precisions of a config.

    Attributes:
        key: The key of the defect in `KNOWN_DEFECTS`.
        layers: The names of the layers with the defect, in network order.
        groups: The names of the affected fusion groups; empty if the layers are in no group.
        is_certain: True if the target release has the defect according to the source.
        is_near: True if the source names some version of the target release, or if the release is unknown.
    """

    key: str
    layers: tuple[str, ...]
    groups: tuple[str, ...]
    is_certain: bool
    is_near: bool

    @property
    def defect(self) -> KnownDefect:
        return KNOWN_DEFECTS[self.key]

    @property
    def text(self) -> str:
        """The description for users: symptom, condition, releases, status, source and workaround."""
        defect = self.defect
        condition = f" {defect.condition}," if defect.condition else ""
        remark = "" if self.is_near else "; unknown for this release"
        thread = re.sub(r"/(issues|pull)/", "#", defect.threads.split()[0])
        return (
            f"{defect.symptom}{condition} {defect.releases_text} ({defect.status}, {thread}{remark}). "
            f"{defect.workaround}"
        )

    def warning_text(self, network: NetworkOutline) -> str:
        """Returns the description with the affected layers before it: "/grid (GridSample): the parser reads ..."."""
        operators = dict.fromkeys(network.get_layer(name).op_type for name in self.layers)
        return f"{name_list_text(self.layers, max_count=3)} ({', '.join(operators)}): {self.text}"

    def make_record(self) -> dict[str, Any]:
        """Returns the JSON record of the match, which follows ``schemas/known-defects-v1.json``."""
        defect = self.defect
        return {
            "defect": self.key,
            "component": defect.component,
            "status": defect.status.split()[0],
            "symptom": f"{defect.symptom} {defect.condition}".rstrip(),
            "releases": defect.releases_text,
            "layers": list(self.layers),
            "groups": list(self.groups),
            "affects_target": "yes" if self.is_certain else "unknown",
            "sources": [f"https://github.com/{thread}" for thread in defect.threads.split()],
            "workaround": defect.workaround,
        }


# -- the table --------------------------------------------------------------------------------------------------------

ATTENTION = "fused attention"
"""The operators of rows that concern the products and the Softmax of an attention that TensorRT fuses."""

LINEAR_GRID_KEY = "grid-sample-linear"
"""The key of the defect whose places are known only when the file is opened, which removes the mode."""

_FP16, _FP16_OR_BF16 = (Precision.FP16,), (Precision.FP16, Precision.BF16)


def _make_affected_releases(first: str, last: str = "", **limits: str) -> AffectedReleases:
    """Builds the `AffectedReleases` of a defect that was observed from a first to a last TensorRT release."""
    return AffectedReleases(observed=(first, last or first), **limits)


KNOWN_DEFECTS: Mapping[str, KnownDefect] = {
    LINEAR_GRID_KEY: KnownDefect(
        "",
        "the parser reads mode linear of opset 20 and later as nearest",
        "NVIDIA/TensorRT/issues/4646 onnx/onnx-tensorrt/pull/1060",
        "Build from a file that trt-tui writes, which leaves the mode out, or export with an opset from 16 to 19.",
        (_make_affected_releases("10.13.3", "11.1"), AffectedReleases(TENSORRT_RTX, ("1.5", "1.5"), fixed="1.7")),
        component="parser",
        is_in_exports=False,
    ),
    "grid-sample-cubic": KnownDefect(
        "GridSample",
        "the parser reads mode cubic of opset 20 and later as nearest",
        "onnx/onnx-tensorrt/pull/1060 NVIDIA/TensorRT/issues/4646",
        CUBIC_GRID_NEXT_STEP,
        (_make_affected_releases("11.1"), AffectedReleases(TENSORRT_RTX, ("1.4", "1.5"), fixed="1.7")),
        attributes={"mode": "cubic"},
        component="parser",
    ),
    "grid-sample-fp32-in-fp16": KnownDefect(
        "GridSample",
        "an FP32 GridSample has wrong results",
        "pytorch/TensorRT/issues/4074",
        "Build with an earlier release, or keep the whole network in FP32.",
        (_make_affected_releases("10.14.1.48", introduced="10.14.1.48"),),
        "between layers in FP16",
        (Precision.FP32,),
    ),
    "cumsum-axes": KnownDefect(
        "CumSum",
        "CumSums all sum along one axis",
        "NVIDIA/TensorRT/issues/4551 onnx/onnx-tensorrt/issues/1034",
        "Replace them by MatMuls with a triangular matrix of ones, or build with a release before 10.8.",
        (_make_affected_releases("10.11.0.33", introduced="10.8"),),
        "if their axes differ",
        min_layers=2,
    ),
    "cumsum-directions": KnownDefect(
        "CumSum",
        "CumSums have the same result",
        "NVIDIA/TensorRT/issues/4513",
        "Replace them by MatMuls with a triangular matrix of ones.",
        (AffectedReleases(),),
        "if they differ in the attribute reverse",
        min_layers=2,
    ),
    "group-norm-of-one-group": KnownDefect(
        "GroupNormalization",
        "a GroupNormalization of one group is computed for each channel alone",
        "NVIDIA/TensorRT/issues/4756 onnx/onnx-tensorrt/pull/1052",
        "Reshape its input to one channel, use InstanceNormalization there, and reshape back.",
        (_make_affected_releases("10.16.1.11"), AffectedReleases(TENSORRT_RTX, ("1.7.1", "1.7.1"))),
        attributes={"num_groups": 1},
        component="parser",
    ),
    "instance-norm-fp16": KnownDefect(
        "InstanceNormalization",
        "an InstanceNormalization in FP16 has large errors",
        "NVIDIA-AI-IOT/torch2trt/issues/776 NVIDIA/TensorRT/issues/2691",
        "Keep it in FP32.",
        (_make_affected_releases("8.2.1.8"),),
        precisions=_FP16,
    ),
    "conv-transpose-1d-int8-bias": KnownDefect(
        "ConvTranspose",
        "a ConvTranspose has wrong results in INT8",
        "NVIDIA/TensorRT/issues/1840",
        "Build with 8.4 or later, or keep it in FP16 or FP32.",
        (_make_affected_releases("8.2.1.8", fixed="8.4"),),
        "if it is one-dimensional with a bias",
        (Precision.INT8,),
        status="confirmed by NVIDIA",
    ),
    "conv-transpose-channel-scales": KnownDefect(
        "ConvTranspose",
        "an INT8 ConvTranspose with a weight scale for each output channel is refused or has wrong results",
        "NVIDIA/TensorRT/issues/1699 NVIDIA/TensorRT/issues/1694 NVIDIA/TensorRT/issues/2380 "
        "NVIDIA/TensorRT/issues/1519",
        "Write a scale for each input channel (axis 0), or keep it in FP16 or FP32.",
        (_make_affected_releases("8.0.1.6", "8.2.0.6"),),
        precisions=(Precision.INT8,),
        status="confirmed by NVIDIA",
    ),
    "attention-fp16-mha-v2": KnownDefect(
        ATTENTION,
        "the kernel _gemm_mha_v2 of a fused attention in FP16 has wrong results",
        "NVIDIA/TensorRT/issues/3777",
        "Build with 10.0.1 or later, or keep the attention in FP32.",
        (_make_affected_releases("10.0.0", introduced="10.0.0", fixed="10.0.1"),),
        precisions=_FP16,
        status="confirmed by NVIDIA",
    ),
    "attention-many-keys": KnownDefect(
        ATTENTION,
        "the sum of the Softmax overflows to NaN in a fused FP16 attention",
        "tier4/autoware-ml/pull/95",
        "Run the attention in BF16, which sums in FP32, or subtract the maximum before the Softmax.",
        (AffectedReleases(),),
        "if it has more than 65,504 keys",
        _FP16,
    ),
    "attention-sm120": KnownDefect(
        ATTENTION,
        "a fused attention in FP16 or BF16 has wrong results",
        "NVIDIA/TensorRT/issues/4837",
        "Keep the attention in FP32, or prevent its fusion.",
        (_make_affected_releases("10.16.1"),),
        precisions=_FP16_OR_BF16,
        compute_capabilities=((12, 0),),
    ),
    "attention-transposed-input": KnownDefect(
        ATTENTION,
        "a fused FP16 or BF16 attention reads its input with wrong strides",
        "NVIDIA/TensorRT/issues/4826",
        "Keep the attention in FP32, which is not fused.",
        (_make_affected_releases("11.2"),),
        "if it is a transposed network input",
        _FP16_OR_BF16,
    ),
    "attention-two-scalings": KnownDefect(
        ATTENTION,
        "an attention has wrong results, even in FP32",
        "NVIDIA/TensorRT/issues/4333 NVIDIA/TensorRT/issues/4328",
        "Scale the queries only, by the product of both factors.",
        (_make_affected_releases("10.7.0.23"),),
        "if its queries and its keys are scaled",
        status="confirmed by NVIDIA",
    ),
    "attention-equal-rows": KnownDefect(
        ATTENTION,
        "equal samples of one batch have different results behind an FP16 attention",
        "NVIDIA/TensorRT/issues/4796",
        "Build with batch size 1, or compare the engine on a batch of equal samples.",
        (_make_affected_releases("10.6.0.23", "10.16.0.72"),),
        precisions=_FP16,
        compute_capabilities=((8, 9),),
    ),
    "attention-reduced-keys": KnownDefect(
        ATTENTION,
        "an attention has wrong results with more than one sample",
        "NVIDIA/TensorRT/issues/4853",
        "Build with batch size 1.",
        (_make_affected_releases("10.11", "11.1"),),
        "if a Conv reduces its keys, as in SegFormer",
    ),
    "consecutive-vector-products": KnownDefect(
        "MatMul Gemm",
        "two consecutive products lose accuracy",
        "NVIDIA/TensorRT/issues/3969",
        "Pad the inputs of the products to more than one row and column.",
        (_make_affected_releases("10.0.1", "10.1.0", introduced="10.0"),),
        "if they have one row or one column",
        min_layers=2,
        status="confirmed by NVIDIA",
    ),
    "resize-of-transposed-condition": KnownDefect(
        "Resize",
        "a Resize has wrong results with dynamic shapes",
        "NVIDIA/TensorRT/issues/4846",
        "Move the Transpose before the If.",
        (_make_affected_releases("11.1.0.106", "11.2.1.2"),),
        "if it reads the transposed result of an If",
    ),
}
"""The known defects by a key, which records name.

Restrictions of the sources:

- grid-sample-linear: issue 4646 was observed in 10.13.3, pull request 1060 in 11.1 and RTX 1.5. RTX 1.7.1 reads both
  modes.
- grid-sample-cubic: observed here with the parser of TensorRT-RTX 1.4. The pull request names 1.5.
- grid-sample-fp32-in-fp16: one report, which an engineer of NVIDIA could not reproduce.
- group-norm-of-one-group: the parser of TensorRT-RTX 1.7.1 creates the layer that the thread names as the cause, a
  normalisation without the channel axis. No engine of it was executed here.
- conv-transpose-1d-int8-bias: NVIDIA announced the correction for 8.4.
- conv-transpose-channel-scales: 8.0.1.6 refuses other numbers of input and output channels. In thread 2380 of 2022
  NVIDIA writes that the kernels read the scales along the input channels, and names no release.
- attention-fp16-mha-v2: the thread quotes the release notes of 10.0.0 EA.
- attention-equal-rows: strongly typed networks with the libraries 10.6.0.23 and 10.16.0.72 on an L20. A comment found
  equal results in 11.0.0.114.
- attention-two-scalings: the label of the thread says that NVIDIA tracks the defect.
- consecutive-vector-products: the thread quotes the release notes of 10.1.0, and measured 8.6.3 without the defect.
"""


def find_defect_sites(
    graph: LayerGraph, groups: Sequence[FusionGroup], linear_grid_samples: Sequence[str] = ()
) -> tuple[DefectSite, ...]:
    """Returns the layers of a network that a known defect may affect in some release and precision.

    Args:
        linear_grid_samples: The GridSamples whose mode linear was removed when the file was opened.
    """
    attentions = collect_by_key(
        (group.attention, group.name)
        for group in groups
        if group.attention and group.attention_role in ("QK", "Softmax", "PV")
    )
    sites = [_build_defect_site(LINEAR_GRID_KEY, groups, name) for name in linear_grid_samples if name in graph.by_name]
    for key, defect in KNOWN_DEFECTS.items():
        if defect.operators == ATTENTION:
            sites += [DefectSite(key, tuple(names), tuple(names)) for names in attentions.values() if len(names) == 3]
            continue
        names = [
            layer.name
            for layer in graph.layers
            if layer.op_type in defect.operators.split()
            and not layer.domain
            and all(
                (attribute := graph.node(layer.name).attributes.get(name)) is not None and attribute.value == value
                for name, value in defect.attributes.items()
            )
        ]
        sites += [_build_defect_site(key, groups, name) for name in names if len(names) >= defect.min_layers]
    return tuple(sites)


def _build_defect_site(key: str, groups: Sequence[FusionGroup], name: str) -> DefectSite:
    return DefectSite(key, (name,), tuple(group.name for group in groups if name in group.layers))


def match_known_defects(
    network: NetworkOutline, target: BuildTarget, precision_of: PrecisionLookup | None = None
) -> list[DefectMatch]:
    """Returns the known defects that may affect a config in engines for a target, confirmed ones first.

    Sites with the same defect are one match. A site counts if all its groups run in a precision with the defect. A
    defect with a further condition counts only if its source names the target release.

    Args:
        precision_of: Returns the precision of a group; None to match defects of all precisions.
    """
    matches: dict[str, DefectMatch] = {}
    for site in network.defect_sites:
        defect = KNOWN_DEFECTS[site.key]
        is_affected = defect.affects(target)
        is_near = target.release is None or any(releases.names_release(target.release) for releases in defect.releases)
        if is_affected is False or defect.condition and (target.release is None or not is_near):
            continue
        if (
            precision_of is not None
            and defect.precisions
            and not all(
                group.resolve_file_precision(precision_of(group)).value_type in defect.precisions
                for group in map(network.get_group, site.groups)
            )
        ):
            continue
        earlier = matches.get(site.key, DefectMatch(site.key, (), (), is_affected is True, is_near))
        matches[site.key] = replace(
            earlier,
            layers=(*earlier.layers, *site.layers),
            groups=tuple(dict.fromkeys((*earlier.groups, *site.groups))),
        )
    return sorted(matches.values(), key=lambda match: not match.is_certain)


def known_defect_lines(
    network: NetworkOutline, target: BuildTarget, precision_of: PrecisionLookup, group: FusionGroup
) -> list[str]:
    """Returns the texts of the known defects that affect a fusion group in a config.

    Defects of other releases are left out, and defects with a condition that the program cannot check.
    """
    return [
        match.text
        for match in match_known_defects(network, target, precision_of)
        if group.name in match.groups and match.is_near and not match.defect.condition
    ]


def known_defects_record(target: BuildTarget, matches: Iterable[DefectMatch]) -> dict[str, Any]:
    """Returns the JSON record of the known defects of a network, which follows ``schemas/known-defects-v1.json``."""
    record: dict[str, Any] = {"defects": [match.make_record() for match in matches]}
    if target.release is not None:
        record["release"] = target.release.title
    if target.compute_capability is not None:
        record["compute_capability"] = ".".join(map(str, target.compute_capability))
    return record


def known_defect_table_lines(
    network: NetworkOutline, target: BuildTarget, matches: Sequence[DefectMatch], subject: str
) -> list[str]:
    """Returns a table of the known defects of a network as lines; [] if there are none and the release is unknown.

    Args:
        subject: The words for the checked object: "this network" for defects of any precision, or "this config".
    """
    release = target.release
    if release is not None and not matches:
        return [f"no known defect of {release.title} concerns {subject}"]
    titles = (
        ("", f"known defects of some releases that concern {subject} (--for RELEASE names those of one release)")
        if release is None
        else (
            f"known defects of {release.title} that concern {subject}",
            f"known defects of other releases or GPUs that may concern {subject}",
        )
    )
    return [
        line
        for is_certain, title in zip((True, False), titles, strict=True)
        if (texts := [f"  {match.warning_text(network)}" for match in matches if match.is_certain is is_certain])
        for line in (f"{title}:", *texts)
    ]


def known_defect_warnings(
    network: NetworkOutline, target: BuildTarget, precision_of: PrecisionLookup
) -> tuple[list[str], str]:
    """Returns warnings about the files that are written for a config, one for each defect that the release certainly
    has.

    The second value is a note on the defects that the target may have; "" if there are none. Defects of other releases,
    and defects that the files avoid, are left out.
    """
    matches = [
        match
        for match in match_known_defects(network, target, precision_of)
        if match.defect.is_in_exports and match.is_near
    ]
    others = [match.warning_text(network) for match in matches if not match.is_certain]
    note = (
        (
            f"Known defects of some releases or GPUs may concern this config: {' '.join(others)} --for RELEASE names "
            "those of one release."
        )
        if others
        else ""
    )
    return [match.warning_text(network) for match in matches if match.is_certain], note


MIN_CHANNELS = 16
"""The size below which ModelOpt does not quantize a layer: the channels of a Conv, K and N of a MatMul or Gemm."""


def excluded_conv_reason(graph: LayerGraph, layer: Layer) -> str:
    """Returns the reason why ModelOpt never quantizes a Conv, whatever its options; "" if it does, and for other layers.

    The rules are those of ModelOpt 0.47, ``find_nodes_from_convs_to_exclude`` in
    ``modelopt/onnx/quantization/graph_utils.py``.
    """
    if layer.op_type != "Conv":
        return ""
    weight = graph.shape(layer.inputs[1])
    if (
        layer.inputs[1] not in graph.constant_tensors
        or weight is None
        or not all(isinstance(dimension, int) for dimension in weight)
    ):
        return "its weight is computed"
    output_channels, input_channels, *kernel = (int(size) for size in weight if isinstance(size, int))
    if min(output_channels, input_channels) >= MIN_CHANNELS:
        return ""
    shape = graph.shape(layer.inputs[0])
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if isinstance(channels, int) and channels != input_channels:  # grouped
        is_quantized = output_channels % 8 == 0 and all(size >= 3 for size in kernel)
    else:
        is_first = any(info.name in layer.inputs for info in graph.inputs)
        is_wide = max(output_channels, input_channels) >= MIN_CHANNELS
        is_quantized = (
            (output_channels % 8 == 0 or input_channels % 8 == 0) and (is_first or is_wide) and len(set(kernel)) == 1
        )
    return "" if is_quantized else f"{counted_noun_text(input_channels, 'channel')} in, {output_channels} out"


def find_known_issues(
    graph: LayerGraph, layers: Mapping[str, Layer], groups: Iterable[FusionGroup]
) -> dict[str, tuple[str, ...]]:
    """Returns the reasons, each with its source, why a quantized type saves no time at a fusion group, by group name."""
    issues_by_group: dict[str, tuple[str, ...]] = {}
    for group in groups:
        issues: list[str] = []
        for layer in (layers[name] for name in sorted(group.main_layers) if group.is_quantizable):
            conv_reason = excluded_conv_reason(graph, layer)
            if reason := f"a Conv with {conv_reason}" if conv_reason else _small_product_reason(graph, layer):
                issues.append(f"{reason}: ModelOpt leaves it out, as quantization saves no time there (ModelOpt 0.47)")
            if layer.op_type == "ConvTranspose":
                issues.append(
                    "TensorRT-RTX 1.7 runs a ConvTranspose in FP16 or FP32 even if INT8 is requested, so INT8 adds error "
                    "without speed"
                )
        if issues:
            issues_by_group[group.name] = tuple(dict.fromkeys(issues))
    return issues_by_group


def _small_product_reason(graph: LayerGraph, layer: Layer) -> str:
    """Returns the reason why a MatMul or Gemm is too small to gain from quantization; "" if it is not, if sizes are
    open, and for other layers.

    The rules are those of ``find_nodes_from_matmul_to_exclude`` in ``modelopt/onnx/quantization/graph_utils.py``: M or
    N of 1 (GEMV), K or N below 16.
    """
    input_shape, output_shape = graph.shape(layer.inputs[0]), graph.shape(layer.outputs[0])
    if (
        layer.op_type not in ("MatMul", "Gemm")
        or not input_shape
        or not output_shape
        or len(input_shape) < 2
        or len(output_shape) < 2
    ):
        return ""
    rows, columns, inner_size = output_shape[-2], output_shape[-1], input_shape[-1]
    if rows == 1 or columns == 1:
        return f"a product of {'one row' if rows == 1 else 'one column'}"
    sizes = (("K", inner_size), ("N", columns))
    return next(
        (f"a product with {name} = {size}" for name, size in sizes if isinstance(size, int) and size < MIN_CHANNELS), ""
    )
