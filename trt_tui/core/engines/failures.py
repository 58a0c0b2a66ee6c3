"""Why a config has no engine."""

from trt_tui.core.engines.rungs import Rung
from trt_tui.errors import InputError, TrtTuiError


class NoEngine(TrtTuiError):
    """A config could not be built.

    Attributes:
        rungs: What was tried, if the build went down the rungs.
    """

    rungs: tuple[Rung, ...] = ()


class BuildFailed(NoEngine):
    """A build failed.

    Attributes:
        details: The last of the builder's verbose messages.
        refused: The builder found no implementation in these precisions; False for other reasons, such as memory.
    """

    def __init__(self, title: str, cause: str = "", next_step: str = "", details: tuple[str, ...] = (),
                 refused: bool = True) -> None:
        super().__init__(title, cause, next_step)
        self.details = details
        self.refused = refused


class ParseFailed(NoEngine, InputError):
    """The builder's parser refused the network.

    Attributes:
        node: The node that it stopped at, "" if it names none.
    """

    def __init__(self, title: str, cause: str = "", next_step: str = "", node: str = "") -> None:
        super().__init__(title, cause, next_step)
        self.node = node
