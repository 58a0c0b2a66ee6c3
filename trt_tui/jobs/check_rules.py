"""The rules by which the outcome of the user's check command follows from its exit code and its output."""

import re
from dataclasses import dataclass

from trt_tui.files.read_budget import limit_reading_resources


@dataclass(frozen=True)
class CheckRules:
    """The rules of one search, with the meaning that ``polygraphy debug`` gives them.

    Attributes:
        fail_codes: The exit codes that count as failures, and no others; () for all but 0.
        ignored_fail_codes: The exit codes that never count as failures.
        fail_patterns: Regular expressions. A check fails only if its output matches one of them, whatever its exit code
            is; with ``fail_codes`` it must also end with one of these.
    """

    fail_codes: tuple[int, ...] = ()
    ignored_fail_codes: tuple[int, ...] = ()
    fail_patterns: tuple[str, ...] = ()

    def failure_reason(self, exit_code: int, output: str) -> str:
        """Returns the reason why a check fails; "" if it passes.

        Args:
            output: The text that the command wrote to stdout and to stderr.

        Raises:
            InputError: A pattern takes too long.
        """
        code_text = f"exit code {exit_code}"
        if exit_code in self.ignored_fail_codes:
            return ""
        if not self.fail_patterns:
            return code_text if (exit_code in self.fail_codes if self.fail_codes else exit_code != 0) else ""
        if self.fail_codes and exit_code not in self.fail_codes:
            return ""
        with limit_reading_resources("the output of the check command", len(output),
                                     next_step="Give --fail-regex a simpler pattern."):
            matched = next((pattern for pattern in self.fail_patterns if re.search(pattern, output)), None)
        return f"{code_text}, output matches {matched!r}" if matched is not None else ""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of the check command for one config.

    Attributes:
        exit_code: The exit code; the negative number of the signal if a signal ended the command.
        failure_reason: The reason why the check fails; "" if it passes.
    """

    exit_code: int
    failure_reason: str = ""

    @property
    def passes(self) -> bool:
        return not self.failure_reason

    @property
    def text(self) -> str:
        return "the check passes" if self.passes else f"the check fails ({self.failure_reason})"
