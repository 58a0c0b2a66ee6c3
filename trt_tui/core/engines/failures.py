"""Why no engine came of a config."""

from __future__ import annotations

from trt_tui.core.engines.rungs import Rung
from trt_tui.errors import InputError, TrtTuiError


class NoEngine(TrtTuiError):
    """No engine came of a config.

    Attributes:
        rungs: What was tried, where the build went down the rungs.
    """

    rungs: tuple[Rung, ...] = ()


class BuildFailed(NoEngine):
    """A build failed.

    Attributes:
        details: The last of the builder's most detailed messages.
        refused: The builder found nothing that honours the precisions; else it lacked memory, say.
    """

    def __init__(self, title: str, cause: str = "", next_step: str = "", details: tuple[str, ...] = (),
                 refused: bool = True) -> None:
        super().__init__(title, cause, next_step)
        self.details = details
        self.refused = refused


class ParseFailed(NoEngine, InputError):
    """The builder's parser refused the network.

    Attributes:
        node: The node that it stopped at, "" where it names none.
    """

    def __init__(self, title: str, cause: str = "", next_step: str = "", node: str = "") -> None:
        super().__init__(title, cause, next_step)
        self.node = node
