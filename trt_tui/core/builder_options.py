"""How production builds its engines, beside precisions and shapes: one record for all that builds or tells how to.

`BuilderOptions` is read by `trt-tui build`, by engines that are judged, by bundles, and by the command lines for other
tools; the options of the command line are made from its fields. What a field is called elsewhere stands beside it, as
`BuilderOptionSpec`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from trt_tui.errors import InputError

TACTIC_SOURCES = ("CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
"""Those that trtexec 8.6 and 10 know."""

WORKSPACE_POOL = "WORKSPACE"
"""The memory pool that kernels may use beside weights and activations."""

OMISSION_MARKER = "NOT_TOLD"
"""The word in exported files before what they lack of a config; `trt_tui.core.exporters.omissions` makes it, and
`trt_tui.core.importers` reads it."""


def escape_path_argument(path: str) -> str:
    """Returns a path as an argument of a command, which no program takes for an option."""
    return f"./{path}" if path.startswith("-") else path


@dataclass(frozen=True)
class BuilderOptionSpec:
    """How one field of `BuilderOptions` is asked for and told to others.

    Attributes:
        option: The option of the command line.
        help: What it does, for the command line.
        label: What evidence calls it, ``{}`` for its value.
        value_kind: What the option takes: "" for a flag, "names" with commas, "file", "files" or "texts" (repeated), or
            a number.
        number_range: The range of a number.
        choices: The words that it may have.
        flag: The ``BuilderFlag`` that it sets.
        trtexec: Its argument there, ``{}`` for its value; from sampleOptions.cpp of NVIDIA/TensorRT.
        polygraphy: Its arguments for ``polygraphy convert``; the value follows, or stands at ``{}``.
        cpp: A line of C++ on ``config``.
        unsupported_releases: Releases that lack it, as bundles name them.
    """

    option: str
    help: str
    label: str
    value_kind: str = ""
    metavar: str = ""
    number_range: tuple[int, int] = (0, (1 << 31) - 1)
    choices: Mapping[str, str] = field(default_factory=dict)
    flag: str = ""
    trtexec: str = ""
    polygraphy: tuple[str, ...] = ()
    cpp: str = ""
    unsupported_releases: tuple[str, ...] = ()


def _option_field(default: Any, spec: BuilderOptionSpec) -> Any:
    return field(default=default, metadata={"setting": spec})


def _builder_flag_field(cli_option: str, builder_flag: str, help_text: str, trtexec_argument: str,
                        polygraphy_argument: str, unsupported_releases: tuple[str, ...] = ()) -> Any:
    parts = builder_flag.split("_")
    return _option_field(
        False,
        BuilderOptionSpec(cli_option, help_text, builder_flag, flag=builder_flag, trtexec=trtexec_argument,
                          polygraphy=(polygraphy_argument, ), cpp=f"config->setFlag(BuilderFlag::k{'_'.join(parts)});",
                          unsupported_releases=unsupported_releases))


@dataclass(frozen=True)
class BuilderOptions:
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
        profiles: Further optimization profiles, as written; `trt_tui.core.data.shapes.parse_additional_profiles` reads
    them.
    """

    plugins: tuple[str, ...] = _option_field((), BuilderOptionSpec(
        "--plugins", "Load this library of plugins into TensorRT; may be repeated. Its code runs: name what you trust.",
        "plugins {}", "files", "LIB.so", trtexec="--staticPlugins={}", polygraphy=("--plugins",)))
    timing_cache: str = _option_field("", BuilderOptionSpec(
        "--timing-cache", "Read and extend this timing cache. Without: one in the cache folder, by GPU and release.",
        "", "file", "FILE", trtexec="--timingCacheFile={}",
        polygraphy=("--load-timing-cache", "{}", "--save-timing-cache", "{}")))
    optimization_level: int | None = _option_field(None, BuilderOptionSpec(
        "--optimization-level", "The builder's effort. Without: the builder's default.", "level {}", "number",
        number_range=(0, 5), trtexec="--builderOptimizationLevel={}", polygraphy=("--builder-optimization-level",),
        cpp="config->setBuilderOptimizationLevel({});"))
    tactic_sources: tuple[str, ...] = _option_field((), BuilderOptionSpec(
        "--tactic-sources", "Tactic sources that the builder may use.", "tactics of {}", "names", "A,B",
        trtexec="--tacticSources={}", polygraphy=("--tactic-sources",)))
    refit: bool = _builder_flag_field("--refit", "REFIT", "Weights can be replaced in the engine.", "--refit",
                                      "--refittable")
    strip_plan: bool = _builder_flag_field(
        "--strip-plan", "STRIP_PLAN", "An engine without weights, to be refitted (10 and later, RTX). The engine that "
        "is judged has them.", "--stripWeights", "--strip-plan", unsupported_releases=("8.6",))
    version_compatible: bool = _builder_flag_field(
        "--version-compatible", "VERSION_COMPATIBLE", "An engine that later releases of the same major one load. "
        "Loading it runs code that it holds.", "--versionCompatible", "--version-compatible",
        unsupported_releases=("rtx", ))
    hardware_compatibility: str = _option_field("", BuilderOptionSpec(
        "--hardware-compatibility", "What other GPUs the engine runs on: Ampere and later, or those of the same "
        "compute capability (10 and later).", "hardware compatibility {}",
        choices={"ampere+": "AMPERE_PLUS", "same": "SAME_COMPUTE_CAPABILITY"},
        trtexec="--hardwareCompatibilityLevel={}", polygraphy=("--hardware-compatibility-level",),
        cpp="config->setHardwareCompatibilityLevel(HardwareCompatibilityLevel::k{});", unsupported_releases=("rtx",)))
    workspace: int | None = _option_field(None, BuilderOptionSpec(
        "--workspace", "What kernels may use of the GPU's memory, in MiB. Without: all of it.", "workspace {} MiB",
        "number", "MIB", (1, (1 << 31) - 1), trtexec="--memPoolSize=workspace:{}",
        polygraphy=("--pool-limit", "workspace:{}M"),
        cpp="config->setMemoryPoolLimit(MemoryPoolType::kWORKSPACE, {}ULL << 20);"))
    sparsity: bool = _builder_flag_field("--sparsity", "SPARSE_WEIGHTS",
                                         "Compute weights in which two of four values are zero as "
                                         "such.", "--sparsity=enable", "--sparse-weights")
    profiles: tuple[str, ...] = _option_field((), BuilderOptionSpec(
        "--profile", "A further optimization profile beside the one of --shapes, several inputs with commas; may be "
        "repeated. Each is timed at its OPT, in samples/s.", "profile {}", "texts", "NAME:MIN:OPT:MAX"))

    @property
    def requested_options(self) -> Iterator[tuple[Field[Any], BuilderOptionSpec, Any]]:
        """The fields that were asked for, with their settings and values."""
        for option_field in fields(self):
            if (value := vars(self)[option_field.name]) != option_field.default:
                yield option_field, option_field.metadata["setting"], value

    @property
    def requested_option_texts(self) -> tuple[str, ...]:
        """What was asked for, for people: "REFIT", "workspace 512 MiB"."""
        return tuple(setting.label.format(", ".join(value) if isinstance(value, tuple) else value)
                     for _, setting, value in self.requested_options if setting.label)

    @property
    def requested_option_names(self) -> tuple[str, ...]:
        """The options of the command line that were given."""
        return tuple(setting.option for _, setting, _ in self.requested_options)

    @property
    def options_for_measured_engine(self) -> BuilderOptions:
        """How an engine is built that is to be judged: with its weights in it."""
        return replace(self, strip_plan=False)

    @property
    def comparison_key(self) -> tuple[object, ...]:
        """Equal where engines are built alike; where timings are kept decides nothing, and plugins are told by their
        content elsewhere."""
        return tuple((option_field.name, value)
                     for option_field, _, value in self.requested_options
                     if option_field.name not in ("timing_cache", "plugins"))

    def check_release_support(self, release: str, release_title: str) -> None:
        """Checks that a release has what is asked for.

        Args:
            release: "8.6", "10", "11" or "rtx".
            release_title: It in words.

        Raises:
            InputError: it lacks an option; names it.
        """
        for option_field, setting, value in self.requested_options:
            if release in setting.unsupported_releases or release == "8.6" and (option_field.name, value) == (
                    "hardware_compatibility", "same"):
                option_text = setting.label.format(value)
                raise InputError(f"{release_title} has no {option_text}", f"{setting.option} needs it",
                                 f"Leave out {setting.option}, or build with another release.")

    def trtexec_arguments(self, release: str) -> tuple[str, ...]:
        """The arguments for trtexec of a release ("10", "11"); tactic sources are left out for 11, which throws on
        their names."""
        arguments: list[str] = []
        for option_field, setting, value in self.requested_options:
            if option_field.name == "tactic_sources":  # trtexec adds to and removes from the default
                all_sources = dict.fromkeys((*TACTIC_SOURCES, *value))
                value = ",".join(f"{'+' if source in value else '-'}{source}" for source in all_sources)
                if release == "11":
                    continue
            if (option_field.name, value) == ("hardware_compatibility", "same"):
                value = "sameComputeCapability"
            if setting.trtexec:
                arguments += [
                    setting.trtexec.format(item) for item in (value if isinstance(value, tuple) else (value, ))
                ]
        return tuple(arguments)

    def polygraphy_arguments(self) -> tuple[str, ...]:
        """The arguments for ``polygraphy convert``."""
        arguments: list[str] = []
        for _, setting, value in self.requested_options:
            items = value if isinstance(value, tuple) else (value,)
            values = [str(setting.choices.get(item, item)) for item in items]
            if setting.value_kind in ("file", "files"):
                values = [escape_path_argument(item) for item in values]
            if not setting.polygraphy:
                continue
            if value is True or any("{}" in argument for argument in setting.polygraphy):
                arguments += [argument.format(*values) for argument in setting.polygraphy]
            else:
                arguments += [*setting.polygraphy, *values]
        return tuple(arguments)

    def cpp_config_lines(self) -> tuple[str, ...]:
        """Lines of C++ on ``config``, without what is told the builder otherwise (libraries, timings)."""
        return tuple(
            setting.cpp.format(setting.choices.get(value, value))
            for _, setting, value in self.requested_options
            if setting.cpp)


def builder_option_specs() -> dict[str, BuilderOptionSpec]:
    """All settings, by the field's name."""
    return {option_field.name: option_field.metadata["setting"] for option_field in fields(BuilderOptions)}
