"""The rules by which the outcome of the user's check command follows from its exit code and its output."""

import re
import signal
from dataclasses import dataclass

from trt_tui.files.read_budget import limit_reading_resources


@dataclass(frozen=True)
class CheckResult:
    """The outcome of the check command for one config.

    Attributes:
        exit_code: The exit code; the negative number of the signal if a signal ended the command.
        failure_reason: The reason why the check fails; "" if it passes.
        doubt_reason: The reason why a pass is uncertain; "" if there is none.
    """

    exit_code: int
    failure_reason: str = ""
    doubt_reason: str = ""

    @property
    def passes(self) -> bool:
        return not self.failure_reason

    @property
    def text(self) -> str:
        reason = self.failure_reason or self.doubt_reason
        return f"the check {'passes' if self.passes else 'fails'}{f' ({reason})' if reason else ''}"


@dataclass(frozen=True)
class CheckRules:
    """The rules of one search, with the meaning that ``polygraphy debug`` gives them.

    Attributes:
        fail_codes: The exit codes that count as failures. All other exit codes then pass. () for all but 0.
        ignored_fail_codes: The exit codes that never count as failures.
        fail_patterns: Regular expressions. A check fails only if its output matches one of them, whatever its exit code
            is. With ``fail_codes`` its exit code must also be one of these.
    """

    fail_codes: tuple[int, ...] = ()
    ignored_fail_codes: tuple[int, ...] = ()
    fail_patterns: tuple[str, ...] = ()

    def judge(self, exit_code: int, output: str, can_hide_failure: bool = False) -> CheckResult:
        """Returns the outcome of a check.

        A pass is uncertain if the exit code is neither 0 nor one of ``ignored_fail_codes``, since the check itself may
        have failed. It is also uncertain if ``can_hide_failure`` is True.

        Args:
            output: The text that the command wrote to stdout and to stderr.
            can_hide_failure: True if a program before the last one may have failed, since the command wrote to stderr.

        Raises:
            InputError: A pattern takes too long.
        """
        if exit_code in self.ignored_fail_codes:
            return CheckResult(exit_code)
        exit_text = exit_code_text(exit_code)
        is_fail_code = exit_code in self.fail_codes if self.fail_codes else exit_code != 0
        if not self.fail_patterns:
            if is_fail_code:
                return CheckResult(exit_code, exit_text)
        elif is_fail_code or not self.fail_codes:
            with limit_reading_resources("the output of the check command", len(output),
                                         next_step="Give --fail-regex a simpler pattern."):
                matched = next((pattern for pattern in self.fail_patterns if re.search(pattern, output)), None)
            if matched is not None:
                return CheckResult(exit_code, f"{exit_text}, output matches {matched}")
        doubts = [exit_text] if exit_code else []
        doubts += ["only the last program decides, and stderr is not empty"] if can_hide_failure else []
        return CheckResult(exit_code, "", ", ".join(doubts))


def exit_code_text(exit_code: int) -> str:
    """Returns an exit code as a text, with the name of the signal if a signal ended the command."""
    if exit_code < 0 and -exit_code in list(signal.Signals):
        return f"ended by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"
