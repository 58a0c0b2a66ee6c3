"""Runs: anything with outputs that are compared with a reference, whether simulated, executed, built or dumped."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from trt_tui.core.moves.config import PrecisionConfig


class RunKind(Enum):
    """The origin of the outputs of a run. Records contain the values of this enum."""

    SIMULATED_CONFIG = "simulated"
    TYPED_NETWORK = "typed"
    EXPORTED_FILE = "exported"
    BUILT_ENGINE = "built"
    NETWORK_FILE = "network"
    DUMP = "outputs"
    ENGINE_FILE = "engine"


@dataclass(frozen=True)
class Run:
    """Something with outputs that are compared with the reference and with other runs, such as an engine or a dump.

    Attributes:
        name: The name of its row.
        config_name: The name of the config of a simulated or built run, from `trt_tui.formatting.RUN_TITLES`.
        config: That config, under which the results are stored; None until it is known.
        file_path: The file of a run that is read from a file, as the user named it.
        unavailable_reason: The reason why the run has no outputs, "" if it has outputs.
        files: All files of a run that is read from files; empty until they are opened.
    """

    name: str
    kind: RunKind
    config_name: str = ""
    config: PrecisionConfig | None = None
    file_path: str = ""
    unavailable_reason: str = ""
    files: tuple[Path, ...] = ()
