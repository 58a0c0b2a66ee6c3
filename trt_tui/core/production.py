"""How production builds its engines, beside precisions and shapes: one record for all that builds or tells how to.

`Production` is read by `trt-tui build`, by engines that are judged, by bundles, and by the command lines for other
tools; the options of the command line are made from its fields. What a field is called elsewhere stands beside it, as
`Setting`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from trt_tui.errors import InputError

TACTIC_SOURCES = ("CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
"""Those that trtexec 8.6 and 10 know."""

WORKSPACE = "WORKSPACE"
"""The memory pool that kernels may use beside weights and activations."""

NOT_TOLD = "NOT_TOLD"
"""The word in exported files before what they lack of a config; `trt_tui.core.exporters.left_out` makes it, and
`trt_tui.core.importers` reads it."""


def file_argument(path: str) -> str:
    """Returns a path as an argument of a command, which no program takes for an option."""
    return f"./{path}" if path.startswith("-") else path


@dataclass(frozen=True)
class Setting:
    """How one field of `Production` is asked for and told to others.

    Attributes:
        option: The option of the command line.
        help: What it does, for the command line.
        label: What evidence calls it, ``{}`` for its value.
        takes: What the option takes: "" for a flag, "names" with commas, "file", "files" or "texts" (repeated), or a
            number.
        numbers: The range of a number.
        choices: The words that it may have.
        flag: The ``BuilderFlag`` that it sets.
        trtexec: Its argument there, ``{}`` for its value; from sampleOptions.cpp of NVIDIA/TensorRT.
        polygraphy: Its arguments for ``polygraphy convert``; the value follows, or stands at ``{}``.
        cpp: A line of C++ on ``config``.
        lacks: Releases that lack it, as bundles name them.
    """

    option: str
    help: str
    label: str
    takes: str = ""
    metavar: str = ""
    numbers: tuple[int, int] = (0, (1 << 31) - 1)
    choices: Mapping[str, str] = field(default_factory=dict)
    flag: str = ""
    trtexec: str = ""
    polygraphy: tuple[str, ...] = ()
    cpp: str = ""
    lacks: tuple[str, ...] = ()


def _is(default: Any, setting: Setting) -> Any:
    return field(default=default, metadata={"setting": setting})


def _flag(option: str, name: str, help: str, trtexec: str, polygraphy: str, lacks: tuple[str, ...] = ()) -> Any:
    parts = name.split("_")
    return _is(False, Setting(option, help, name, flag=name, trtexec=trtexec, polygraphy=(polygraphy,),
                              cpp=f"config->setFlag(BuilderFlag::k{'_'.join(parts)});", lacks=lacks))


@dataclass(frozen=True)
class Production:
    """How the builder is to work and what its engines are to be like; the builder's own defaults where nothing is said.

    Attributes:
        plugins: Libraries of plugins to load.
        timing_cache: File of measured tactics, read if it is there and written after the build; "" for none.
        optimization_level: 0 to 5.
        tactic_sources: Those that may be used.
        refit: Weights can be replaced in the engine.
        strip_plan: The engine has no weights until it is refitted, and yields zeros.
        version_compatible: Later releases of the same major one load it.
        hardware_compatibility: What other GPUs it runs on: "ampere+" or "same", those of the same compute capability.
        workspace: What kernels may use of the GPU's memory, in MiB.
        sparsity: Weights in which two of four values are zero are computed as such.
        profiles: Further optimization profiles, as written; `trt_tui.core.data.shapes.further_profiles` reads them.
    """

    plugins: tuple[str, ...] = _is((), Setting(
        "--plugins", "Load this library of plugins into TensorRT; may be repeated. Its code runs: name what you trust.",
        "plugins {}", "files", "LIB.so", trtexec="--staticPlugins={}", polygraphy=("--plugins",)))
    timing_cache: str = _is("", Setting(
        "--timing-cache", "Read and extend this timing cache. Without: one in the cache folder, by GPU and release.",
        "", "file", "FILE", trtexec="--timingCacheFile={}",
        polygraphy=("--load-timing-cache", "{}", "--save-timing-cache", "{}")))
    optimization_level: int | None = _is(None, Setting(
        "--optimization-level", "The builder's effort. Without: the builder's default.", "level {}", "number",
        numbers=(0, 5), trtexec="--builderOptimizationLevel={}", polygraphy=("--builder-optimization-level",),
        cpp="config->setBuilderOptimizationLevel({});"))
    tactic_sources: tuple[str, ...] = _is((), Setting(
        "--tactic-sources", "Tactic sources that the builder may use.", "tactics of {}", "names", "A,B",
        trtexec="--tacticSources={}", polygraphy=("--tactic-sources",)))
    refit: bool = _flag("--refit", "REFIT", "Weights can be replaced in the engine.", "--refit", "--refittable")
    strip_plan: bool = _flag(
        "--strip-plan", "STRIP_PLAN", "An engine without weights, to be refitted (10 and later, RTX). The engine that "
        "is judged has them.", "--stripWeights", "--strip-plan", lacks=("8.6",))
    version_compatible: bool = _flag(
        "--version-compatible", "VERSION_COMPATIBLE", "An engine that later releases of the same major one load. "
        "Loading it runs code that it holds.", "--versionCompatible", "--version-compatible", lacks=("rtx",))
    hardware_compatibility: str = _is("", Setting(
        "--hardware-compatibility", "What other GPUs the engine runs on: Ampere and later, or those of the same "
        "compute capability (10 and later).", "hardware compatibility {}",
        choices={"ampere+": "AMPERE_PLUS", "same": "SAME_COMPUTE_CAPABILITY"},
        trtexec="--hardwareCompatibilityLevel={}", polygraphy=("--hardware-compatibility-level",),
        cpp="config->setHardwareCompatibilityLevel(HardwareCompatibilityLevel::k{});", lacks=("rtx",)))
    workspace: int | None = _is(None, Setting(
        "--workspace", "What kernels may use of the GPU's memory, in MiB. Without: all of it.", "workspace {} MiB",
        "number", "MIB", (1, (1 << 31) - 1), trtexec="--memPoolSize=workspace:{}",
        polygraphy=("--pool-limit", "workspace:{}M"),
        cpp="config->setMemoryPoolLimit(MemoryPoolType::kWORKSPACE, {}ULL << 20);"))
    sparsity: bool = _flag("--sparsity", "SPARSE_WEIGHTS", "Compute weights in which two of four values are zero as "
                           "such.", "--sparsity=enable", "--sparse-weights")
    profiles: tuple[str, ...] = _is((), Setting(
        "--profile", "A further optimization profile beside the one of --shapes, several inputs with commas; may be "
        "repeated. Each is timed at its OPT, in samples/s.", "profile {}", "texts", "NAME:MIN:OPT:MAX"))

    @property
    def asked(self) -> Iterator[tuple[Field[Any], Setting, Any]]:
        """The fields that were asked for, with their settings and values."""
        for one in fields(self):
            if (value := vars(self)[one.name]) != one.default:
                yield one, one.metadata["setting"], value

    @property
    def said(self) -> tuple[str, ...]:
        """What was asked for, for people: "REFIT", "workspace 512 MiB"."""
        return tuple(setting.label.format(", ".join(value) if isinstance(value, tuple) else value)
                     for _, setting, value in self.asked if setting.label)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the command line that were given."""
        return tuple(setting.option for _, setting, _ in self.asked)

    @property
    def judged(self) -> Production:
        """How an engine is built that is to be judged: with its weights in it."""
        return replace(self, strip_plan=False)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal where engines are built alike; where timings are kept decides nothing, and plugins are told by their
        content elsewhere."""
        return tuple((one.name, value) for one, _, value in self.asked if one.name not in ("timing_cache", "plugins"))

    def refuse_for(self, release: str, words: str) -> None:
        """Checks that a release has what is asked for.

        Args:
            release: "8.6", "10", "11" or "rtx".
            words: It in words.

        Raises:
            InputError: it lacks an option; names it.
        """
        for one, setting, value in self.asked:
            if release in setting.lacks or release == "8.6" and (one.name, value) == ("hardware_compatibility", "same"):
                said = setting.label.format(value)
                raise InputError(f"{words} has no {said}", f"{setting.option} asks for it",
                                 f"Leave out {setting.option}, or build with another release.")

    def trtexec(self, release: str) -> tuple[str, ...]:
        """The arguments for trtexec of a release ("10", "11"); tactic sources are left out for 11, which throws on
        their names."""
        words: list[str] = []
        for one, setting, value in self.asked:
            if one.name == "tactic_sources":  # trtexec adds to and removes from the default
                every = dict.fromkeys((*TACTIC_SOURCES, *value))
                value = ",".join(f"{'+' if source in value else '-'}{source}" for source in every)
                if release == "11":
                    continue
            if (one.name, value) == ("hardware_compatibility", "same"):
                value = "sameComputeCapability"
            if setting.trtexec:
                words += [setting.trtexec.format(each) for each in (value if isinstance(value, tuple) else (value,))]
        return tuple(words)

    def polygraphy(self) -> tuple[str, ...]:
        """The arguments for ``polygraphy convert``."""
        words: list[str] = []
        for _, setting, value in self.asked:
            given = value if isinstance(value, tuple) else (value,)
            values = [str(setting.choices.get(each, each)) for each in given]
            if setting.takes in ("file", "files"):
                values = [file_argument(each) for each in values]
            if not setting.polygraphy:
                continue
            if value is True or any("{}" in word for word in setting.polygraphy):
                words += [word.format(*values) for word in setting.polygraphy]
            else:
                words += [*setting.polygraphy, *values]
        return tuple(words)

    def cpp(self) -> tuple[str, ...]:
        """Lines of C++ on ``config``, without what is told the builder otherwise (libraries, timings)."""
        return tuple(setting.cpp.format(setting.choices.get(value, value)) for _, setting, value in self.asked
                     if setting.cpp)


def settings() -> dict[str, Setting]:
    """All settings, by the field's name."""
    return {one.name: one.metadata["setting"] for one in fields(Production)}
