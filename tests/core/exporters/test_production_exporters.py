import argparse
import errno
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests import networks
from tests.core.lowering.test_weak import Parsed, ranges_of
from tests.networks import Builder, floats
from tests.refusals import refused
from tests.texts import lacking
from trt_tui import demo
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.calibration.cache import read_calibration_cache
from trt_tui.core.data.batches import ShapeRange, parse_additional_profiles
from trt_tui.core.exporters.build_commands import (
    TrtexecFiles,
    build_command_lines_for_constraints,
    polygraphy_command,
    polygraphy_script,
    trtexec_script,
)
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.exporters.modelopt import (
    build_name_patterns,
    find_modelopt_exclusions,
    modelopt_record,
    write_modelopt_record,
)
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.core.importers.commands import read_builder_options
from trt_tui.core.lowering.weak_typing import lower_to_implicit_quantization
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files import writing

IMAGE = {"image": ShapeRange((1, 3, 32, 32), (2, 3, 32, 32), (4, 3, 32, 32))}
AWKWARD = (
    "conv1",
    "conv10",
    "conv1/x",
    "a.b",
    "aXb",
    "a b$(c)",
    "(x)",
    "[y]|z",
    "w+",
    "^q$",
    "back\\slash",
    "new\nline",
    "new",
    "tail",
    "tail\n",
    '"quote"',
    "é:9",
    "--flag=1",
)

SOURCES = "-CUBLAS,-CUBLAS_LT,-CUDNN,-EDGE_MASK_CONVOLUTIONS,+JIT_CONVOLUTIONS"
PRODUCTION = BuilderOptions(
    ("a.so", "b.so"), "timing.cache", 5, (*SOURCES.split(","),), True, True, True, "ampere+", 512, True
)
"""Everything that can be asked for."""


@pytest.fixture(scope="module")
def resnet(named_network):
    """The network, a config with a float island, and what a weakly typed TensorRT is told of it."""
    network = named_network("small_resnet")
    config = PrecisionConfig().with_group_precision([network.get_group("/layer1/conv1/Conv")], Precision.FP32)
    return network, config, lower_to_implicit_quantization(network, config, ranges_of(network))


@pytest.fixture(scope="module")
def awkward(opened):
    """A static chain of Softmax layers, one for each awkward name."""
    b = Builder()
    value = "x"
    for index, name in enumerate(AWKWARD):
        last = index == len(AWKWARD) - 1
        value = b.node("Softmax", [value], name=name, output="y" if last else f"t{index}")
    return opened(b.model([floats("x", 2, 4)], [floats("y", 2, 4)], name="awkward"))


def options(argv):
    """Options by name, as trtexec reads them: each argument is split at its first equals sign."""
    return dict(word.partition("=")[::2] for word in argv[1:])


def entries(text):
    """Values by name, as trtexec reads a list: split at commas, then at the last colon; quotes keep a name together."""
    result = {}
    for entry in text.split(","):
        quoted = entry.split("'")
        assert len(quoted) in (1, 3)
        name, value = (quoted[1], quoted[2][1:]) if len(quoted) == 3 else entry.rsplit(":", 1)
        result[name] = value
    return result


def lines_by_name(*arguments, **options):
    return {line.name: line for line in build_command_lines_for_constraints(*arguments, **options)}


def test_trtexec_is_told_what_was_lowered(resnet):
    network, config, weak = resnet
    lines = lines_by_name(network, config, weak, shapes=IMAGE)
    assert list(lines) == ["10", "10-weak", "11"]
    told = options(lines["10-weak"].argv)
    assert entries(told["--layerPrecisions"]) == {n: p.value for n, p in weak.precisions.items()}
    assert entries(told["--layerOutputTypes"]) == {n: p.value for n, p in weak.output_types.items()}
    assert told["--precisionConstraints"] == "obey" and told["--calib"] == "calibration.cache"
    assert told["--onnx"] == "base.onnx" and {"--fp16", "--int8"} <= told.keys() and "--stronglyTyped" not in told
    for name in ("10", "11"):
        strong = options(lines[name].argv)
        assert strong["--onnx"] == "typed.onnx" and ("--stronglyTyped" in strong) is (name == "10")
        assert not {"--fp16", "--int8", "--calib", "--layerPrecisions", "--precisionConstraints"} & strong.keys()
    for line in lines.values():
        assert line.argv[0] == "trtexec" and "--noTF32" in line.argv
        assert [options(line.argv)[f"--{key}Shapes"] for key in ("min", "opt", "max")] == [
            "image:1x3x32x32",
            "image:2x3x32x32",
            "image:4x3x32x32",
        ]


def test_every_profile_stands_behind_its_number(resnet):
    network, config, weak = resnet
    asked = BuilderOptions(profiles=("image:8x3x32x32", "image:9x3x32x32:10x3x32x32:12x3x32x32"))
    for line in build_command_lines_for_constraints(network, config, weak, shapes=IMAGE, builder_options=asked):
        words = line.argv[line.argv.index("--profile=0") :][:12]
        assert [word for word in words if "opt" in word or "profile" in word] == [
            *"--profile=0 --optShapes=image:2x3x32x32 --profile=1 --optShapes=image:8x3x32x32 --profile=2".split(),
            "--optShapes=image:10x3x32x32",
        ]
        assert words[9:] == ("--minShapes=image:9x3x32x32", *words[10:]) and "--profiles" not in " ".join(line.argv)
    further = parse_additional_profiles(asked.profiles, network.inputs, IMAGE)
    command = " ".join(polygraphy_command(weak, shapes=IMAGE, more_profiles=further, builder_options=asked))
    assert command.count("--trt-min-shapes") == 3 and command.index("[4,3,32,32]") < command.index("[8,3,32,32]")
    with pytest.raises(InputError, match="no input 'other'"):
        build_command_lines_for_constraints(
            network, config, weak, shapes=IMAGE, builder_options=BuilderOptions(profiles=("image:8x3x32x32,other:1",))
        )


def test_what_trtexec_is_told_is_read_again(resnet):
    network, _, _ = resnet
    options = replace(
        PRODUCTION, profiles=("image:4x3x32x32:8x3x32x32:9x3x32x32", "image:5x3x32x32:5x3x32x32:5x3x32x32")
    )
    words = [
        *options.trtexec_arguments("10"),
        "--profile=1 --minShapes=image:4x3x32x32 --optShapes=image:8x3x32x32",
        "--maxShapes=image:9x3x32x32 --profile=2 --optShapes=image:5x3x32x32",
    ]
    assert read_builder_options(" ".join(words)) == options
    assert parse_additional_profiles(options.profiles, network.inputs, IMAGE)[0]["image"].opt == (8, 3, 32, 32)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", {}),
        ("--vc", {"version_compatible": True}),
        ("--sparsity=disable", {}),
        ("--hardwareCompatibilityLevel=none", {}),
        ("--memPoolSize=workspace:2G", {"workspace": 2048}),
        ("--memPoolSize=workspace:1.5GiB", {"workspace": 1536}),
        ("--tacticSources=-CUDNN", {"tactic_sources": ("-CUDNN",)}),
        ("--timingCacheFile='a b.cache'", {"timing_cache": "a b.cache"}),
        ("--profile=1 --optShapes=a:b:1x2,c:3", {"profiles": ("a:b:1x2:1x2:1x2,c:3:3:3",)}),
        ("--profile=1 --minShapes=x:1 --maxShapes=x:4", {"profiles": ("x:1:4:4",)}),
    ],
)
def test_the_words_of_trtexec_are_the_options_of_the_builder(text, changed):
    assert read_builder_options(text) == replace(BuilderOptions(), **changed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--fp16", "--fp16 is not an option"),
        ("refit", "refit is not an option"),
        ("--refit=1", "--refit=1 is not valid"),
        ("--builderOptimizationLevel=6", "is not valid"),
        ("--builderOptimizationLevel", "is not valid"),
        ("--memPoolSize=dlaSRAM:1", "is not valid"),
        ("--memPoolSize=workspace:x", "is not valid"),
        ("--tacticSources=CUDNN", "is not valid"),
        ("--hardwareCompatibilityLevel=all", "is not valid"),
        ("--builderOptimizationLevel=2.5", "is not valid"),
        ("--builderOptimizationLevel=3M", "is not valid"),
        ("--tacticSources=+", "is not valid"),
        ("--profile=x --optShapes=x:1", "--profile is not an option"),
        ("--profile=1", "has no shapes"),
        ("--stripWeight", "--stripWeights"),
        ("--memPool=workspace:1", "--memPoolSize"),
        ("--precisionConstraints=obey", "--config"),
        ("--layerPrecisions=a:fp16", "--config"),
        ("--shapes=x:1", "Use --shapes"),
        ("--layerOutputTypes=a:fp16", "--config"),
        ("--workspace=512", "--memPoolSize=workspace:MIB"),
        ("--sparsity=force", "is not valid"),
        ("--optShapes=x:1", "--shapes"),
        ("--profile=0 --optShapes=x:1", "--shapes"),
        ("--timingCacheFile='a", "quote"),
    ],
)
def test_what_is_no_option_of_the_builder_is_refused(text, said):
    with pytest.raises(InputError) as raised:
        read_builder_options(text)
    assert said in f"{raised.value.title} {raised.value.cause} {raised.value.next_step}"


def test_polygraphy_needs_all_tactic_sources():
    with pytest.raises(InputError, match="all tactic sources"):
        BuilderOptions(tactic_sources=("-CUDNN",)).polygraphy_arguments()


def test_tf32_files_and_the_level_stand_in_every_line(resnet):
    network, config, weak = resnet
    files = TrtexecFiles("t.onnx", "b.onnx", "c.cache", "e.plan")
    for line in build_command_lines_for_constraints(
        network, replace(config, tf32=True), weak, files, builder_options=PRODUCTION
    ):
        told = options(line.argv)
        assert "--noTF32" not in told and "TF32" in " ".join(line.comments)
        assert told["--saveEngine"] == "e.plan" and told["--timingCacheFile"] == "timing.cache"
        assert told["--builderOptimizationLevel"] == "5" and told["--memPoolSize"] == "workspace:512"
        assert {"--refit", "--stripWeights", "--versionCompatible"} <= told.keys() and told["--sparsity"] == "enable"
        assert told["--hardwareCompatibilityLevel"] == "ampere+"
        assert [one for one in line.argv if "Plugins" in one] == ["--staticPlugins=a.so", "--staticPlugins=b.so"]
        sources = None if line.name == "11" else SOURCES
        assert told.get("--tacticSources") == sources and ("throws" in " ".join(line.comments)) == (sources is None)
        assert not any("Shapes" in option for option in told)
    assert [line.name for line in build_command_lines_for_constraints(network, config)] == ["10", "11"]


def test_shapes_are_told_as_trtexec_wants_them(opened, awkward):
    static = build_command_lines_for_constraints(
        awkward, PrecisionConfig(), shapes={"x": ShapeRange((2, 4), (2, 4), (2, 4))}
    )
    assert not any("Shapes" in word for line in static for word in line.argv)
    b = Builder()
    b.node("Add", [b.gemm("a:b", (8, 4), "/fc"), "fixed"], "/sum", output="y")
    one = opened(b.model([floats("a:b", "batch", 8), floats("fixed", 4)], [floats("y", "batch", 4)], name="two"))
    shapes = {"a:b": ShapeRange((1, 8), (2, 8), (3, 8))}
    lines = lines_by_name(
        one, PrecisionConfig(), lower_to_implicit_quantization(one, PrecisionConfig(), ranges_of(one)), shapes=shapes
    )
    # With a calibration cache trtexec wants the static inputs as well.
    assert entries(options(lines["10-weak"].argv)["--maxShapes"]) == {"a:b": "3x8", "fixed": "4"}
    assert entries(options(lines["11"].argv)["--maxShapes"]) == {"a:b": "3x8"}
    b = Builder()
    b.gemm("a,b", (8, 4), "/fc", output="y")
    one = opened(b.model([floats("a,b", "batch", 8)], [floats("y", "batch", 4)], name="comma"))
    with pytest.raises(InputError, match="a,b"):
        build_command_lines_for_constraints(one, PrecisionConfig(), shapes={"a,b": shapes["a:b"]})


@pytest.mark.parametrize("name", ["a,b", "a*", "it's"])
def test_names_that_trtexec_would_misread_are_refused(opened, name):
    b = Builder()
    b.node("Relu", ["x"], name=name, output="y")
    one = opened(b.model([floats("x", 2, 4)], [floats("y", 2, 4)], name="odd"))
    config = PrecisionConfig.from_precision(Precision.FP16)
    lines = lines_by_name(one, config, lower_to_implicit_quantization(one, config, {}))
    assert not lines["10-weak"].argv and repr(name) in lines["10-weak"].refusal_reason
    assert lines["10"].argv and lines["11"].argv


def test_lists_too_long_for_an_argument_are_refused(resnet):
    network, config, weak = resnet
    many = replace(weak, precisions={f"/layer{'x' * 100}/{i}": Precision.FP16 for i in range(1300)})
    line = lines_by_name(network, config, many)["10-weak"]
    assert not line.argv and "--layerPrecisions" in line.refusal_reason


def run_script(path, *arguments, trtexec):
    return subprocess.run(
        ["sh", str(path), *arguments],
        env={"TRTEXEC": str(trtexec), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=20,
    )


@pytest.mark.skipif(shutil.which("sh") is None, reason="no POSIX shell here")
@pytest.mark.parametrize("precision", [Precision.FP8, Precision.FP16_ACC_FP32])
def test_what_a_format_cannot_tell_is_refused_by_name(tmp_path, resnet, precision):
    network, label = resnet[0], re.escape(precision.label)
    config = PrecisionConfig.from_precision(Precision.INT8).with_group_precision(
        [network.get_group("/fc/Gemm")], precision
    )
    for kind, says in (
        ("polygraphy", f"a weakly typed TensorRT has no {label}"),
        ("modelopt", f"cannot contain {label}"),
    ):
        with refused(says, cause="/fc/Gemm", next_step="FP16"):
            write_export(kind, tmp_path / kind, network, config, ranges_of(network))
        assert not list(tmp_path.glob(f"{kind}*"))
    written = write_export("trtexec", tmp_path / "build.sh", network, config, ranges_of(network)).paths
    assert [path.name for path in written] == ["build.sh", "build.sh.typed.onnx"]
    ran = subprocess.run(["sh", str(tmp_path / "build.sh"), "10-weak"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and not lacking(ran.stderr, "weakly typed", precision.label)


def test_the_script_runs_the_line_it_is_asked_for(tmp_path, awkward):
    trtexec = tmp_path / "fake trtexec"
    trtexec.write_text(
        '#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done >"$OUT"\n'.replace("$OUT", str(tmp_path / "out"))
    )
    trtexec.chmod(0o755)
    config = PrecisionConfig.from_precision(Precision.FP16).with_group_precision(awkward.groups[:1], Precision.FP32)
    lines = build_command_lines_for_constraints(
        awkward, config, lower_to_implicit_quantization(awkward, config, {}), TrtexecFiles(engine="an engine's.plan")
    )
    folder = tmp_path / "my exports"
    folder.mkdir()
    (folder / "build.sh").write_text(trtexec_script(lines, "a title\nof two lines; $(exit 9)"))
    assert subprocess.run(["sh", "-n", str(folder / "build.sh")], timeout=20).returncode == 0
    for line in lines:
        done = run_script(folder / "build.sh", line.name, "--verbose", trtexec=trtexec)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out").read_bytes().decode().split("\0")[:-1] == [*line.argv[1:], "--verbose"]
    for arguments in ([], ["9"]):
        done = run_script(folder / "build.sh", *arguments, trtexec=trtexec)
        assert done.returncode == 2 and "10|10-weak|11" in done.stderr


@pytest.mark.skipif(shutil.which("sh") is None, reason="no POSIX shell here")
def test_a_refused_line_says_why(tmp_path, resnet):
    network, config, weak = resnet
    lines = build_command_lines_for_constraints(network, config, replace(weak, precisions={"it's,": Precision.INT8}))
    (tmp_path / "build.sh").write_text(trtexec_script(lines, "refused"))
    done = run_script(tmp_path / "build.sh", "10-weak", trtexec="false")
    assert done.returncode == 2 and "comma" in done.stderr


def postprocess(path, parsed, monkeypatch):
    """Runs a script as Polygraphy does, on what its parser would give."""
    common = pytest.importorskip("polygraphy.backend.common")
    backend = pytest.importorskip("polygraphy.backend.trt")
    monkeypatch.setitem(sys.modules, "tensorrt", parsed.trt)
    func = common.InvokeFromScript(str(path), "postprocess")
    assert backend.PostprocessNetwork(("builder", parsed.definition), func)() == ("builder", parsed.definition)


@pytest.mark.parametrize("release", ["8.6.1", "10.16.1"])
def test_polygraphy_runs_the_script(tmp_path, monkeypatch, resnet, release):
    network, _, weak = resnet
    (tmp_path / "script.py").write_text(polygraphy_script(weak, "a network", polygraphy_command(weak, "script.py")))
    parsed, expected = Parsed(network, release), Parsed(network, release)
    postprocess(tmp_path / "script.py", parsed, monkeypatch)
    assert expected.tell(weak) == []
    assert parsed.told() == expected.told() and parsed.ranges() == expected.ranges() and any(parsed.told().values())


def test_the_script_stands_awkward_names(tmp_path, monkeypatch, awkward):
    config = PrecisionConfig.from_precision(Precision.FP16).with_group_precision(awkward.groups[:1], Precision.FP32)
    weak = lower_to_implicit_quantization(awkward, config, {})
    command = polygraphy_command(weak, 'a "script".py', TrtexecFiles("t", 'b\\"""', "c", "it's"))
    (tmp_path / "script.py").write_text(polygraphy_script(weak, '"""\n\\N', command))
    parsed = Parsed(awkward, "10.16.1")
    postprocess(tmp_path / "script.py", parsed, monkeypatch)
    assert {name for name, one in parsed.told().items() if "precision" in one} == set(AWKWARD)


@pytest.mark.parametrize(
    ("of", "release", "says"),
    [
        ("small_resnet", "11.4.0", "strongly typed"),
        ("unet_small", "10.16.1", "another one"),
        ("bf16", "8.6.1", "no BF16"),
    ],
)
def test_the_script_refuses_what_it_cannot_tell(tmp_path, monkeypatch, named_network, resnet, of, release, says):
    network, _, weak = resnet
    if of == "bf16":
        weak = lower_to_implicit_quantization(network, PrecisionConfig.from_precision(Precision.BF16), {})
    (tmp_path / "script.py").write_text(polygraphy_script(weak, "a network", ()))
    parsed = Parsed(named_network("unet_small" if of == "unet_small" else "small_resnet"), release)
    with pytest.raises(SystemExit, match=says):
        postprocess(tmp_path / "script.py", parsed, monkeypatch)


def test_an_fp32_config_has_no_script(named_network):
    network = named_network("small_resnet")
    with pytest.raises(InputError, match="no Polygraphy script"):
        polygraphy_script(
            lower_to_implicit_quantization(network, PrecisionConfig.from_precision(Precision.FP32), {}), "", ()
        )


def test_polygraphy_takes_the_command(resnet):
    convert = pytest.importorskip("polygraphy.tools.convert.convert")
    network, config, weak = resnet
    parser = argparse.ArgumentParser()
    convert.Convert().setup_parser(parser.add_subparsers())
    command = polygraphy_command(weak, "script.py", TrtexecFiles(), shapes=IMAGE, builder_options=PRODUCTION)
    parsed = parser.parse_args(command[1:])
    assert (parsed.model_file, parsed.output) == (TrtexecFiles.base, TrtexecFiles.engine)
    assert parsed.fp16 and parsed.int8 and not parsed.tf32 and not parsed.bf16
    assert parsed.precision_constraints == "obey" and parsed.trt_network_postprocess_script == ["script.py"]
    assert parsed.calibration_cache == TrtexecFiles.cache and parsed.builder_optimization_level == 5
    assert parsed.trt_opt_shapes == [["image:[2,3,32,32]"]] and parsed.load_timing_cache == "timing.cache"
    assert (parsed.refittable, parsed.strip_plan, parsed.version_compatible, parsed.sparse_weights) == (True,) * 4
    assert parsed.memory_pool_limit == ["workspace:512M"] and parsed.hardware_compatibility_level == "AMPERE_PLUS"
    assert parsed.tactic_sources == ["JIT_CONVOLUTIONS"] and parsed.plugins == ["a.so", "b.so"]
    tf32 = lower_to_implicit_quantization(network, replace(config, tf32=True), ranges_of(network))
    assert parser.parse_args(polygraphy_command(tf32)[1:]).tf32
    assert shlex.join(polygraphy_command(tf32)).endswith("--tf32 --calibration-cache calibration.cache")


FORMATS = [name for name, export_format in EXPORT_FORMATS.items() if export_format.writer]
CACHE_FORMATS = [name for name in FORMATS if "cache" in EXPORT_FORMATS[name].companions]


def kept(folder):
    """What is in a folder, by name."""
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


def refused_write(kind, folder, network, name="out"):
    with pytest.raises(InputError) as caught:
        write_export(kind, folder / name, network, PrecisionConfig(), ranges_of(network))
    assert caught.value.cause and caught.value.next_step
    return caught.value


def full_disk(function, fails_at):
    """A function of os whose calls fail from one of them on."""
    calls = itertools.count()

    def failing(*arguments, **options):
        if next(calls) >= fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return function(*arguments, **options)

    return failing


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_an_export_that_fails_at_any_file_leaves_all_as_it_was(tmp_path, monkeypatch, named_network, kind, before):
    """A disk is full when the first file is opened, the second, and so on; likewise where files take their places."""
    network = named_network("mlp")
    if before:
        write_export(
            kind,
            tmp_path / "out",
            network,
            PrecisionConfig.from_precision(Precision.INT8),
            dict.fromkeys(network.calibrated_tensors, 9.0),
        )
    there = kept(tmp_path)
    files = len(write_export(kind, tmp_path / "other", network, PrecisionConfig(), ranges_of(network)).paths)
    for path in tmp_path.glob("other*"):
        path.unlink()
    for function in ("open", "fsync", "replace"):
        for fails_at in range(files if function != "replace" or not before else 1):
            with monkeypatch.context() as patched:
                patched.setattr(writing.os, function, full_disk(getattr(os, function), fails_at))
                assert "No space left" in refused_write(kind, tmp_path, network).cause
            assert kept(tmp_path) == there, (function, fails_at)


@pytest.mark.parametrize("kind", [*CACHE_FORMATS, "calibration-cache"])
def test_a_name_that_no_cache_takes_leaves_no_companion(tmp_path, opened, kind):
    b = Builder()
    hidden = b.node("MatMul", ["x", b.kernel("w", (4, 4), 4)], name="a", output="line\nbreak")
    b.node("MatMul", [hidden, b.kernel("v", (4, 4), 4)], name="b", output="y")
    network = opened(b.model([floats("x", 2, 4)], [floats("y", 2, 4)], name="broken"))
    assert "a calibration cache" in refused_write(kind, tmp_path, network).title
    assert not kept(tmp_path)


@pytest.mark.parametrize("kind", CACHE_FORMATS)
@pytest.mark.parametrize("hostile", ["folder", "read-only", "long name"])
def test_a_companion_that_cannot_be_written_leaves_the_others_alone(tmp_path, named_network, kind, hostile):
    name, cache = "n" * 247 if hostile == "long name" else "out", tmp_path / "out.cache"
    if hostile == "folder":
        cache.mkdir()
    elif hostile == "read-only":
        cache.write_text("mine")
        cache.chmod(0o444)
    there = kept(tmp_path)
    refused_write(kind, tmp_path, named_network("mlp"), name)
    assert kept(tmp_path) == there


def test_networks_of_one_export_share_a_copy_of_their_weights(tmp_path, opened):
    """Both files of a trtexec export refer to one copy, which goes too if the export fails."""
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    onnx.save(networks.mlp(), source / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    network = open_network(source / "net.onnx")
    write_export("trtexec", out / "a.sh", network, PrecisionConfig.from_precision(Precision.FP32), {})
    assert sorted(path.name for path in out.iterdir()) == ["a.sh", "a.sh.base.onnx", "a.sh.typed.onnx", "net.bin"]
    for path in out.iterdir():
        path.unlink()
    (out / "a.sh.base.onnx").mkdir()
    with pytest.raises(InputError):
        write_export("trtexec", out / "a.sh", network, PrecisionConfig.from_precision(Precision.FP32), {})
    assert [path.name for path in out.iterdir()] == ["a.sh.base.onnx"]


def matched(network, some):
    """The nodes that ModelOpt leaves out."""
    return {layer.name for layer in network.layers for pattern in some if re.match(pattern, layer.name)}


@pytest.mark.parametrize("count", [0, 1, 5, len(AWKWARD)])
def test_patterns_match_the_chosen_nodes_and_no_others(awkward, count):
    chosen = list(np.random.default_rng(count).permutation(AWKWARD)[:count])
    assert matched(awkward, build_name_patterns(chosen, AWKWARD)) == set(chosen)


@pytest.mark.parametrize("name", ["small_resnet", "unet_small", "bert"])
def test_modelopt_leaves_out_what_the_config_says(named_network, name):
    network = named_network(name)
    quantizable = [group for group in network.groups if group.is_quantizable]
    config = (
        PrecisionConfig()
        .with_group_precision(quantizable[1:2], Precision.FP32)
        .with_group_precision(quantizable[2:3], Precision.FP16)
        .with_group_precision([g for g in network.groups if not g.is_quantizable][:1], Precision.FP32)
    )
    record = modelopt_record(network, config)
    without, fp32 = set(), set()
    for group in network.groups:
        precision = config.precision_of(group)
        without |= set(group.layers) if precision is not Precision.INT8 else set()
        fp32 |= set(group.layers) if precision is Precision.FP32 else set()
    assert matched(network, record["quantize"]["nodes_to_exclude"]) == without
    sites = {site.layer for group in network.groups for site in group.sites if site.role != "skip"}
    assert matched(network, record["quantize"]["nodes_to_quantize"]) == sites - without
    assert matched(network, record["autocast"]["nodes_to_exclude"]) == fp32
    assert fp32 < without < {layer.name for layer in network.layers}
    assert find_modelopt_exclusions(network, config).low_precision is Precision.FP16


def test_fp32_around_int8_is_kept_from_autocast(named_network):
    network = named_network("small_resnet")
    pool = network.get_group("/avgpool/GlobalAveragePool")
    config = PrecisionConfig(other=Precision.FP32).with_group_precision([pool], Precision.FP16)
    out = find_modelopt_exclusions(network, config)
    assert set(out.fp32_layers) == {layer.name for layer in network.layers} - set(pool.layers)
    assert set(out.unquantized_layers) == set(pool.layers) and out.low_precision is Precision.FP16
    assert find_modelopt_exclusions(network, PrecisionConfig(other=Precision.FP32)).low_precision is None


def test_the_file_tells_how_to_use_it(tmp_path, resnet):
    network, config, _ = resnet
    write_modelopt_record(tmp_path / "lists.json", network, config, "base.onnx", "entropy", "lists.cache")
    record = json.loads((tmp_path / "lists.json").read_text())
    usage = "\n".join(record["_usage"])
    compile(usage, "usage", "exec")
    assert "'lists.json'" in usage or '"lists.json"' in usage
    lists = record["quantize"]
    assert lists["calibration_method"] == "entropy" and lists["calibration_cache_path"] == "lists.cache"
    assert lists["high_precision_dtype"] == "fp32" and record["autocast"]["low_precision_type"] == "fp16"
    assert "'base.onnx'" in usage and '**lists["quantize"]' in usage and '**lists["autocast"]' in usage
    assert "noTF32" in " ".join(record["_notes"])
    whole = modelopt_record(network, PrecisionConfig())
    assert whole["quantize"]["high_precision_dtype"] == "fp16" and "autocast" not in whole
    write_modelopt_record(
        tmp_path / "lists.json", network, PrecisionConfig.from_precision(Precision.FP32, Precision.FP32)
    )
    record = json.loads((tmp_path / "lists.json").read_text())
    assert "quantize(" not in "\n".join(record["_usage"])


def test_what_modelopt_leaves_out_by_itself_is_said(tmp_path, run):
    """ModelOpt 0.47 quantized the bundled network's other 20 layers, told to quantize all 28."""
    assert (
        run(
            *f"export {demo.network_path()} --precision int8 --data {demo.calibration_path()}".split(),
            *f"--format modelopt -o {tmp_path}/m".split(),
        )[0]
        == 0
    )
    record = json.loads((tmp_path / "m").read_text())
    (note,) = (one for one in record["_notes"] if "does not quantize some layers" in one)
    assert len(record["quantize"]["nodes_to_quantize"]) == 28
    assert re.findall(r"(/\S+) \((\d+) channels? in, (\d+) out\)", note) == [
        ("/enc1/widen/conv/Conv", "1", "12"),
        ("/enc1/residual/depthwise/conv/Conv", "1", "12"),
        ("/enc1/residual/pointwise/Conv", "12", "12"),
        ("/dec2/gate/score/Conv", "12", "1"),
        ("/dec1/gate/query/Conv", "12", "6"),
        ("/dec1/gate/key/Conv", "12", "6"),
        ("/dec1/gate/score/Conv", "6", "1"),
        ("/head/Conv", "12", "11"),
    ]
    ranges = read_calibration_cache(tmp_path / "m.cache")
    base = onnx.load(tmp_path / "m.base.onnx")
    fed = {value for node in base.graph.node if node.op_type == "Conv" for value in node.input[:1]}
    assert fed <= set(ranges)


def test_a_precision_stands_in_for_a_config(tmp_path, run):
    def exported(kind, *arguments):
        code, _, said = run("export", demo.network_path(), *arguments, "--format", kind, "-o", tmp_path / kind)
        return (tmp_path / kind).read_text() if not code else (code, said)

    data = ["--precision", "int8", "--data", demo.samples_path(), "--calib-data", demo.calibration_path()]
    assert exported("calibration-cache", *data).startswith("TRT-")
    assert exported("trtexec", *data).count("--optShapes=image:8x1x96x96") == 3, "as the data has it"
    assert "FP16" in exported("markdown", "--precision", "fp16")
    code, said = exported("onnx")
    assert code == 2 and "config or a" in said
