"""Runs: whatever has outputs that are compared with a reference, be it simulated, executed, built or dumped."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from trt_tui.core.moves.config import PrecisionConfig


class RunKind(Enum):
    """What yields the outputs of a run. The values stand in records."""

    SIMULATED_CONFIG = "simulated"
    TYPED_NETWORK = "typed"
    EXPORTED_FILE = "exported"
    BUILT_ENGINE = "built"
    NETWORK_FILE = "network"
    DUMP = "outputs"
    ENGINE_FILE = "engine"


@dataclass(frozen=True)
class Run:
    """Something whose outputs are compared with the reference and with other runs.

    Attributes:
        name: The name of its row.
        config_name: Which config a simulated or built run has: a name of `trt_tui.formatting.RUN_NAMES`.
        config: That config, under which its results are stored; None until it is known.
        file_path: The file of a run that is read from one, as it was named.
        unavailable_reason: The reason why the run has no outputs, "" if it has some.
        files: All files of a run that is read from files; empty until they are opened.
    """

    name: str
    kind: RunKind
    config_name: str = ""
    config: PrecisionConfig | None = None
    file_path: str = ""
    unavailable_reason: str = ""
    files: tuple[Path, ...] = ()
