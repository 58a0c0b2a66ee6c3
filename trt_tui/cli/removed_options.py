"""The options of earlier releases that are gone, with the way round that an error names, and commands with a new name.
"""

from collections.abc import Mapping

import click

from trt_tui.errors import InputError

REMOVED_OPTIONS: Mapping[str, str] = {
    "--preset": "Use --keep RULE, which takes the same rules.",
    "--sticky": "Use --keep RULE, which takes the same rules.",
    "--no-layers": "Use --layers none.",
    "--lower": "Use --method lower.",
    "search --from": "Use --higher, which also sets the start of --method lower and scoped.",
    "--no-keep": "Use --config with a precision.json without the entries of the rule; `trt-tui export --format json` "
                 "writes one to edit.",
    **dict.fromkeys(("--fail-code", "--ignore-fail-code", "--fail-regex"),
                    "Let the command of --check decide, such as 'python check.py || [ $? -eq 3 ]': exit code 0 "
                    "accepts a config."),
    "--artifacts": "Let the command of --check copy its files: 'cp \"$TRT_TUI_MODEL\" kept/ && python check.py'.",
    "--held-out": "Measure the result on other samples: trt-tui compare MODEL --data OTHER --config RESULT.",
    "--free-budget": "Leave it out, or use --no-free: the limit of the zero-cost changes is fixed.",
    **{option: f"Use --trtexec {replacement}." for option, replacement in {
        "--timing-cache": "--timingCacheFile=FILE", "--optimization-level": "--builderOptimizationLevel=N",
        "--tactic-sources": "--tacticSources=+A,-B", "--refit": "--refit", "--strip-plan": "--stripWeights",
        "--version-compatible": "--versionCompatible", "--workspace": "--memPoolSize=workspace:MIB",
        "--hardware-compatibility": "--hardwareCompatibilityLevel=ampere+", "--sparsity": "--sparsity=enable",
        "--profile": "'--profile=1 --minShapes=X:MIN --optShapes=X:OPT --maxShapes=X:MAX'",
        "--quick": "--builderOptimizationLevel=0"}.items()},
    **dict.fromkeys(("compare --threshold", "compare --model", "compare -o", "compare --output"),
                    "Use trt-tui dumps FIRST SECOND, which has it."),
    "--script": "Use -o fix.json, then trt-tui export MODEL --config fix.json --format polygraphy -o fix.py. For a "
                "fix.sh, use --format trtexec.",
    "--top-k": "Use --json OUT, which contains all tensors.",
    "--costs": "Leave it out, or use --max-latency MS, which estimates latencies from engines.",
    "--no-samples": "Export the bundle in the app, which asks whether it contains samples.",
    **dict.fromkeys(("--locate", "--max-seconds", "compare --max-builds"),
                    "Use --engines, with --marked for TensorRT before 10.16: it names the first layer that the engine "
                    "computes wrongly. Then cut this layer out with trt-tui subgraph."),
    "--evidence": "Run verify.sh of the bundle on the machine of the engine: its exit code judges the engine. To see "
                  "values, run trt-tui compare --engines there.",
    "--junit": "Use the exit code, which is 1 if a target is missed; --json and --markdown contain the values.",
    "--metric=detection:map": "Copy the script of trt_tui/core/measure/README.md (mAP of a detector) beside the "
                              "annotations, and give --metric coco_map.py:mean_ap.",
    "--repair-constants": "Export the file again from FP32: trt-tui compare names the first constant that is not "
                          "finite. With --reference FP32.onnx trt-tui takes the lost constants from that network.",
}
"""The next step for each removed option. "COMMAND OPTION" is an option that other commands still have,
and "OPTION=VALUE" a value that the option had."""


def find_removed_option_error(command: str, option: str) -> InputError | None:
    """Returns the error for an option of an earlier release; None if there was no such option."""
    next_step = REMOVED_OPTIONS.get(f"{command} {option}", REMOVED_OPTIONS.get(option, ""))
    return InputError(f"{command} has no option {option} any more", "", next_step) if next_step else None


def refuse_removed_metric(metric_spec: str) -> None:
    """Raises an `InputError` for the metric that earlier releases contained."""
    if metric_spec.startswith("detection:map"):
        raise InputError("trt-tui has no --metric=detection:map any more", "",
                         REMOVED_OPTIONS["--metric=detection:map"])


def _is_dump(dump_spec: str) -> bool:
    """Returns True if a path names a dump, whether it exists or not. The reader of dumps refuses pickles."""
    from pathlib import Path

    from trt_tui.core.data.array_files import PICKLE_SUFFIXES
    from trt_tui.core.data.tensor_files import DUMP_SUFFIXES, split_dump_spec

    suffix = split_dump_spec(dump_spec)[0].suffix.lower()
    return suffix in (*DUMP_SUFFIXES, *PICKLE_SUFFIXES) or Path(dump_spec).is_dir()


_OLD_SPELLINGS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("compare", "--calib-methods"): ("methods", "--calib-methods"),
    ("inspect", "--lint"): ("lint", ), ("inspect", "--preview"): ("preview", ), ("inspect", "--scheme"): ("scheme", ),
    ("export", "--format", "bundle"): ("bundle", ), ("export", "--format", "subgraph"): ("subgraph", ),
}
"""The words of the command line, the command first, that a command of its own replaces."""


def replace_old_spelling(words: list[str]) -> list[str]:
    """Returns the words of a command line with the new name of a command, which a note names."""
    command = words[0] if words else ""
    if command in ("compare", "inspect") and len(words) > 1 and not words[1].startswith("-") and _is_dump(words[1]):
        return _note_new_spelling(f"{command}` of dumps", ["dumps", *words[1:]])
    parts = [part for word in words[1:]
             for part in (word.split("=", 1) if word.startswith(("--format=", "--calib-methods=")) else [word])]
    for (old_command, *old_words), (new_command, *new_words) in _OLD_SPELLINGS.items():
        for start in range(len(parts)) if command == old_command else ():
            end = start + len(old_words)
            if parts[start:end] == old_words:
                return _note_new_spelling(f"{' '.join([command, *old_words])}`",
                                          [new_command, *parts[:start], *new_words, *parts[end:]])
    return words


def _note_new_spelling(old_spelling: str, words: list[str]) -> list[str]:
    click.echo(f"Note: `trt-tui {old_spelling} is `trt-tui {words[0]}` from 0.3 on; 0.4 has only that.", err=True)
    return words
