"""The options of the TensorRT builder in one record, without precisions and shapes.

`trt-tui build`, measured engines, bundles and exported commands all use `BuilderOptions`. Each field has a
`BuilderOptionSpec` with the names of the option in other tools. `trt_tui.core.importers.commands.read_builder_options`
reads the fields from trtexec arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from trt_tui.errors import InputError

TACTIC_SOURCES = ("CUBLAS", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
"""The tactic sources that trtexec 8.6 and 10 know."""

WORKSPACE_POOL = "WORKSPACE"
"""The memory pool that kernels may use in addition to weights and activations."""

OMISSION_MARKER = "NOT_TOLD"
"""The word that precedes, in exported files, the parts of a config that the file lacks.
`trt_tui.core.exporters.formats` writes it, and `trt_tui.core.importers` reads it."""


def escape_path_argument(path: str) -> str:
    """Returns a path as a command argument that no program reads as an option."""
    return f"./{path}" if path.startswith("-") else path


@dataclass(frozen=True)
class BuilderOptionSpec:
    """The names and texts of one field of `BuilderOptions` in trtexec, in Polygraphy and for users.

    Attributes:
        trtexec: The argument of trtexec, with ``{}`` for the value; from sampleOptions.cpp of NVIDIA/TensorRT. The
            option ``--trtexec`` accepts it too.
        label: The name for users, with ``{}`` for the value.
        value_kind: The kind of value: "" for a flag, "text", "names" with commas, "files" (repeated), or "number".
        number_range: The range of a number.
        choices: The allowed words, each with its name in TensorRT.
        flag: The ``BuilderFlag`` that the option sets.
        polygraphy: The arguments of ``polygraphy convert``. The value follows the last argument, or replaces ``{}``.
        unsupported_releases: The releases without the option, as bundles name them.
    """

    trtexec: str
    label: str
    value_kind: str = ""
    number_range: tuple[int, int] = (0, (1 << 31) - 1)
    choices: Mapping[str, str] = field(default_factory=dict)
    flag: str = ""
    polygraphy: tuple[str, ...] = ()
    unsupported_releases: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The name of the option in trtexec."""
        return self.trtexec.partition("=")[0]


def _option_field(default: Any, spec: BuilderOptionSpec) -> Any:
    return field(default=default, metadata={"setting": spec})


def _builder_flag_field(
    trtexec_argument: str, builder_flag: str, polygraphy_argument: str, unsupported_releases: tuple[str, ...] = ()
) -> Any:
    return _option_field(
        False,
        BuilderOptionSpec(
            trtexec_argument,
            builder_flag,
            flag=builder_flag,
            polygraphy=(polygraphy_argument,),
            unsupported_releases=unsupported_releases,
        ),
    )


@dataclass(frozen=True)
class BuilderOptions:
    """The options of the TensorRT builder. The defaults are those of the builder.

    Attributes:
        plugins: Plugin libraries to load.
        timing_cache: File of measured tactics, read if it exists and written after the build; "" for none.
        optimization_level: 0 to 5.
        tactic_sources: Changes of the builder's tactic sources: ``+NAME`` or ``-NAME``.
        refit: True if the weights of the engine can be replaced.
        strip_plan: True if the engine contains no weights. It yields zeros until it is refitted.
        version_compatible: True if later releases of the same major release can load the engine. Loading it runs code
            that it contains.
        hardware_compatibility: Other GPUs on which the engine runs: "ampere+", or "sameComputeCapability".
        workspace: GPU memory that kernels may use, in MiB.
        sparsity: True if weights in which two of four values are zero may use sparse kernels.
        profiles: Additional optimization profiles in the form of ``--shapes``, with commas between inputs;
            `trt_tui.core.data.batches.parse_additional_profiles` reads them.
    """

    plugins: tuple[str, ...] = _option_field(
        (), BuilderOptionSpec("--staticPlugins={}", "plugins {}", "files", polygraphy=("--plugins",))
    )
    timing_cache: str = _option_field(
        "",
        BuilderOptionSpec(
            "--timingCacheFile={}", "", "text", polygraphy=("--load-timing-cache", "{}", "--save-timing-cache", "{}")
        ),
    )
    optimization_level: int | None = _option_field(
        None,
        BuilderOptionSpec(
            "--builderOptimizationLevel={}",
            "level {}",
            "number",
            number_range=(0, 5),
            polygraphy=("--builder-optimization-level",),
        ),
    )
    tactic_sources: tuple[str, ...] = _option_field(
        (), BuilderOptionSpec("--tacticSources={}", "tactics {}", "names", polygraphy=("--tactic-sources",))
    )
    refit: bool = _builder_flag_field("--refit", "REFIT", "--refittable")
    strip_plan: bool = _builder_flag_field(
        "--stripWeights", "STRIP_PLAN", "--strip-plan", unsupported_releases=("8.6",)
    )
    version_compatible: bool = _builder_flag_field(
        "--versionCompatible", "VERSION_COMPATIBLE", "--version-compatible", unsupported_releases=("rtx",)
    )
    hardware_compatibility: str = _option_field(
        "",
        BuilderOptionSpec(
            "--hardwareCompatibilityLevel={}",
            "hardware compatibility {}",
            "text",
            choices={"ampere+": "AMPERE_PLUS", "sameComputeCapability": "SAME_COMPUTE_CAPABILITY"},
            polygraphy=("--hardware-compatibility-level",),
            unsupported_releases=("rtx",),
        ),
    )
    workspace: int | None = _option_field(
        None,
        BuilderOptionSpec(
            "--memPoolSize=workspace:{}",
            "workspace {} MiB",
            "number",
            (1, (1 << 31) - 1),
            polygraphy=("--pool-limit", "workspace:{}M"),
        ),
    )
    sparsity: bool = _builder_flag_field("--sparsity=enable", "SPARSE_WEIGHTS", "--sparse-weights")
    profiles: tuple[str, ...] = _option_field((), BuilderOptionSpec("", "profile {}"))

    @property
    def requested_options(self) -> Iterator[tuple[Field[Any], BuilderOptionSpec, Any]]:
        """The options that differ from their defaults, each as field, `BuilderOptionSpec` and value."""
        for option_field in fields(self):
            if (value := vars(self)[option_field.name]) != option_field.default:
                yield option_field, option_field.metadata["setting"], value

    @property
    def requested_option_texts(self) -> tuple[str, ...]:
        """The options that differ from their defaults as texts for users: "REFIT", "workspace 512 MiB"."""
        return tuple(
            setting.label.format(", ".join(value) if isinstance(value, tuple) else value)
            for _, setting, value in self.requested_options
            if setting.label
        )

    @property
    def comparison_key(self) -> tuple[object, ...]:
        """A key that is equal for equal builds.

        The timing cache does not influence the key. Plugins are compared elsewhere, by their content.
        """
        return tuple(
            (option_field.name, value)
            for option_field, _, value in self.requested_options
            if option_field.name not in ("timing_cache", "plugins")
        )

    def check_release_support(self, release: str, release_title: str) -> None:
        """Refuses options that a TensorRT release does not have.

        Args:
            release: "10", "11", "rtx", or a version such as "8.6" or "8.6.1".
            release_title: The name of the release for users.

        Raises:
            InputError: The release lacks an option; the error names the option.
        """
        for _, setting, value in self.requested_options:
            if release.startswith(setting.unsupported_releases) or (
                release.startswith("8.6") and value == "sameComputeCapability"
            ):
                option_text = setting.label.format(value)
                raise InputError(
                    f"{release_title} has no {option_text}",
                    f"{setting.option} needs it",
                    f"Leave out {setting.option}, or build with another release.",
                )

    def check_builder_support(self, builder_name: str, version: str) -> None:
        """Refuses options that an installed builder does not have.

        Raises:
            InputError: The builder lacks an option; the error names the option.
        """
        self.check_release_support("rtx" if builder_name == "tensorrt-rtx" else version, f"{builder_name} {version}")

    def trtexec_arguments(self, release: str) -> tuple[str, ...]:
        """Returns the trtexec arguments for a release ("10", "11").

        Tactic sources are omitted for release 11, which does not accept their names.
        """
        arguments: list[str] = []
        for option_field, setting, value in self.requested_options:
            if option_field.name == "tactic_sources" and release == "11" or not setting.trtexec:
                continue
            joined_value = ",".join(value) if isinstance(value, tuple) else value
            arguments += map(setting.trtexec.format, value if setting.value_kind == "files" else [joined_value])
        return tuple(arguments)

    def polygraphy_arguments(self) -> tuple[str, ...]:
        """Returns the arguments for ``polygraphy convert``.

        Raises:
            InputError: Only some tactic sources are set, but Polygraphy needs all of them.
        """
        arguments: list[str] = []
        for option_field, setting, value in self.requested_options:
            items = value if isinstance(value, tuple) else (value,)
            if option_field.name == "tactic_sources":
                if missing := [name for name in TACTIC_SOURCES if name not in {source[1:] for source in items}]:
                    raise InputError(
                        "Polygraphy needs all tactic sources",
                        f"--tacticSources names no {missing[0]}",
                        f"Name each of {', '.join(TACTIC_SOURCES)} with + or -.",
                    )
                items = tuple(source[1:] for source in items if source[0] == "+")
            values = [str(setting.choices.get(item, item)) for item in items]
            if option_field.name in ("timing_cache", "plugins"):
                values = [escape_path_argument(item) for item in values]
            if not setting.polygraphy:
                continue
            if value is True or any("{}" in argument for argument in setting.polygraphy):
                arguments += [argument.format(*values) for argument in setting.polygraphy]
            else:
                arguments += [*setting.polygraphy, *values]
        return tuple(arguments)


def builder_option_specs() -> dict[str, BuilderOptionSpec]:
    """Returns the `BuilderOptionSpec` of every builder option, by field name."""
    return {option_field.name: option_field.metadata["setting"] for option_field in fields(BuilderOptions)}
