"""The options of earlier releases that are gone, with the way round that an error names."""

from collections.abc import Mapping

from trt_tui.errors import InputError

REMOVED_OPTIONS: Mapping[str, str] = {
    "--preset": "Use --keep RULE, which takes the same rules.",
    "--sticky": "Use --keep RULE, which takes the same rules.",
    "--no-layers": "Use --layers none.",
    **dict.fromkeys(("--locate", "--max-seconds", "compare --max-builds"),
                    "The errors inside an engine (compare --engines --marked) and `polygraphy debug reduce` find an "
                    "operator that it computes wrongly."),
    "--repair-constants": "Export the network again from FP32, with all constants finite.",
    "--evidence": "Run verify.sh of the bundle on the machine of the engine: its exit code judges the engine.",
}
"""The next step for each removed option. "COMMAND OPTION" is an option that other commands still have."""


def find_removed_option_error(command: str, option: str) -> InputError | None:
    """Returns the error for an option of an earlier release; None if there was no such option."""
    next_step = REMOVED_OPTIONS.get(f"{command} {option}", REMOVED_OPTIONS.get(option, ""))
    return InputError(f"{command} has no option {option} any more", "", next_step) if next_step else None
