"""The options with which the user opens a network, as plain data."""

from dataclasses import dataclass, field, replace

from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.network.known_defects import BuildTarget, installed_release, parse_release
from trt_tui.core.precision import Precision


@dataclass(frozen=True)
class Options:
    """The options of the command line: the network, the data, and the settings for measuring accuracy and building
    engines.

    The help of the command line describes each option.

    Attributes:
        calib_cache: The calibration cache that ranges are read from; None to calibrate.
        new_calib_cache: The calibration cache that is written after calibration; None to write none. The file of
            ``--calib-cache`` is this one if it does not exist.
        verbose: True to show the raw messages of TensorRT and CUDA.
        written_paths: The files that a command will write. A network whose weights are in one of them is refused.
    """

    model: str
    data: str | None = None
    calib_data: str | None = None
    judge: tuple[str, ...] = ()
    metric: str | None = None
    shapes: tuple[str, ...] = ()
    backend: str = "auto"
    calib_method: str = "minmax"
    samples: int | None = None
    whatif_samples: int = 32
    batch: int | None = None
    seed: int = 0
    other: Precision = Precision.FP16
    calib_cache: str | None = None
    new_calib_cache: str | None = None
    weak: bool = False
    compute_capability: tuple[int, int] | None = None
    judge_at: tuple[str, ...] = ()
    strict: bool = False
    builds: int = 1
    hold_out: bool = False
    reference: str | None = None
    runs: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    engine_files: tuple[str, ...] = ()
    outputs: str | None = None
    inputs: str | None = None
    tf32: bool = False
    production: BuilderOptions = field(default_factory=BuilderOptions)
    ort_ops: tuple[str, ...] = ()
    preview: bool = True
    keep: tuple[str, ...] = ()
    exact: bool = False
    tensor_ranges: tuple[tuple[str, str], ...] = ()
    gpus: str | None = None
    workers: str | None = None
    scheduler: str | None = None
    threads: int | None = None
    verbose: bool = False
    tensorrt_release: str | None = None
    written_paths: tuple[str, ...] = ()

    @property
    def has_data(self) -> bool:
        return self.data is not None or self.calib_data is not None

    def make_build_target(
        self, builder_name: str = "", builder_version: str = "", compute_capability: tuple[int, int] | None = None
    ) -> BuildTarget:
        """Returns the release and the GPU that engines are built for: the release of ``--for``, or else of a builder.

        Args:
            builder_name: "tensorrt" or "tensorrt-rtx".
            builder_version: The installed version; "" if no builder is installed.
            compute_capability: The compute capability of the GPU of this machine; None if it is unknown.
        """
        if self.tensorrt_release is not None:
            return BuildTarget(parse_release(self.tensorrt_release), self.compute_capability)
        release = installed_release(builder_name, builder_version) if builder_version else None
        return BuildTarget(release, self.compute_capability or compute_capability)

    @property
    def engine_only_options(self) -> tuple[str, ...]:
        """The names of the given options that have an effect only on engines, as written on the command line."""
        flags = {
            "--weak": self.weak,
            "--strict": self.strict,
            "--judge-at": self.judge_at,
            "--builds": self.builds > 1,
            "--compute-capability": self.compute_capability,
            "--plugins": self.production.plugins,
            "--trtexec": replace(self.production, plugins=()) != BuilderOptions(),
        }
        return tuple(name for name, value in flags.items() if value)
