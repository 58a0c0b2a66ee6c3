"""Why a config has no engine."""

from trt_tui.core.engines.fallback_ladder import BuildAttempt
from trt_tui.errors import InputError, TrtTuiError


class NoEngineError(TrtTuiError):
    """A config could not be built.

    Attributes:
        attempts: What was tried, if the build went down the rungs.
    """

    attempts: tuple[BuildAttempt, ...] = ()


class BuildError(NoEngineError):
    """A build failed.

    Attributes:
        details: The last of the builder's verbose messages.
        is_refused: The builder found no implementation in these precisions; False for other reasons, such as memory.
    """

    def __init__(self, title: str, cause: str = "", next_step: str = "", details: tuple[str, ...] = (),
                 is_refused: bool = True) -> None:
        super().__init__(title, cause, next_step)
        self.details = details
        self.is_refused = is_refused


class NetworkParseError(NoEngineError, InputError):
    """The builder's parser refused the network.

    Attributes:
        node: The node that it stopped at, "" if it names none.
    """

    def __init__(self, title: str, cause: str = "", next_step: str = "", node: str = "") -> None:
        super().__init__(title, cause, next_step)
        self.node = node
