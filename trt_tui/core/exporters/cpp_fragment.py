"""A C++ fragment that builds an engine from the network of a bundle, with the API of each TensorRT release.

The API is that of ``NvInfer.h``. TensorRT 10 is strongly typed if a creation flag is set; 11 and TensorRT-RTX always
are. TensorRT 8.6 receives a precision for each layer in addition to Q/DQ. TF32 is on by default in all releases.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.data.shapes import ShapeRange
from trt_tui.core.precision import Precision
from trt_tui.core.runner import LayerConstraints
from trt_tui.formatting import escape_hidden_characters

_TYPE_NAMES = {Precision.FP32: "kFLOAT", Precision.TF32: "kFLOAT", Precision.FP16: "kHALF", Precision.INT8: "kINT8"}
_FLAG_NAMES = {Precision.FP16: "kFP16", Precision.INT8: "kINT8"}

_HEADER_CODE = """\
// {title}
// For {release}. Made by trt-tui. Reads {network}{cache}, in the working directory.

#include <NvInfer.h>
#include <NvOnnxParser.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>
{more}
namespace
{{

std::vector<char> readFile(std::string const& path)
{{
    std::ifstream file(path, std::ios::binary);
    return {{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}};
}}

void writeFile(std::string const& path, void const* data, std::size_t size)
{{
    std::ofstream(path, std::ios::binary).write(static_cast<char const*>(data), static_cast<std::streamsize>(size));
}}
{told}
}} // namespace

//! Builds the engine; throws std::runtime_error where TensorRT refuses.
std::unique_ptr<nvinfer1::IHostMemory> buildEngine(nvinfer1::ILogger& logger)
{{
    using namespace nvinfer1;
    std::unique_ptr<IBuilder> builder{{createInferBuilder(logger)}};
"""

_CONSTRAINTS_CODE = """
struct LayerConstraint
{
    char const* layer;
    char const* precision; //!< "" is none
    char const* output;
};

// Precision and output type of each layer; Q and DQ in the network set the others.
LayerConstraint const kLayerConstraints[] = {
%s};

nvinfer1::DataType typeOf(std::string const& word)
{
    using nvinfer1::DataType;
    return word == "fp16" ? DataType::kHALF : word == "int8" ? DataType::kINT8 : DataType::kFLOAT;
}

//! The node that a layer was parsed from: its metadata's, else the layer's own name.
std::string nodeOf(nvinfer1::ILayer const& layer)
{
    std::string const start = "[ONNX Layer: ";
    std::string const metadata = layer.getMetadata() ? layer.getMetadata() : "";
    auto const from = metadata.find(start);
    auto const end = from == std::string::npos ? from : metadata.find('\\x1e', from);
    auto const to = metadata.rfind(']', end);
    if (from == std::string::npos || to == std::string::npos)
    {
        return layer.getName();
    }
    return metadata.substr(from + start.size(), to - from - start.size());
}

void applyConstraints(nvinfer1::INetworkDefinition& network)
{
    using nvinfer1::DataType;
    using nvinfer1::LayerType;
    std::map<std::string, LayerConstraint> constraints;
    for (auto const& constraint : kLayerConstraints)
    {
        constraints[constraint.layer] = constraint;
    }
    std::set<LayerType> const moves{LayerType::kSHUFFLE, LayerType::kIDENTITY, LayerType::kCAST, LayerType::kSLICE,
        LayerType::kCONCATENATION, LayerType::kGATHER, LayerType::kSCATTER, LayerType::kONE_HOT,
        LayerType::kREVERSE_SEQUENCE, LayerType::kFILL, LayerType::kNON_ZERO, LayerType::kNMS};
    std::set<LayerType> const unconstrained{LayerType::kCONSTANT, LayerType::kSHAPE, LayerType::kASSERTION,
        LayerType::kQUANTIZE, LayerType::kDEQUANTIZE, LayerType::kCONDITION, LayerType::kCONDITIONAL_INPUT,
        LayerType::kCONDITIONAL_OUTPUT, LayerType::kITERATOR, LayerType::kLOOP_OUTPUT, LayerType::kRECURRENCE,
        LayerType::kTRIP_LIMIT};
    for (int32_t i = 0; i < network.getNbLayers(); ++i)
    {
        auto& layer = *network.getLayer(i);
        auto const found = constraints.find(nodeOf(layer));
        if (found == constraints.end() || unconstrained.count(layer.getType()))
        {
            continue;
        }
        bool computes = false;
        for (int32_t o = 0; o < layer.getNbOutputs(); ++o)
        {
            auto const type = layer.getOutput(o)->getType();
            if ((type != DataType::kFLOAT && type != DataType::kHALF) || layer.getOutput(o)->isShapeTensor())
            {
                continue;
            }
            computes = true;
            if (*found->second.output)
            {
                layer.setOutputType(o, typeOf(found->second.output));
            }
        }
        if (computes && *found->second.precision && !moves.count(layer.getType()))
        {
            layer.setPrecision(typeOf(found->second.precision));
        }
    }
}
"""

_PARSER_CODE = """\
    std::unique_ptr<nvonnxparser::IParser> parser{nvonnxparser::createParser(*network, logger)};
    if (!parser->parseFromFile(%s, static_cast<int32_t>(ILogger::Severity::kWARNING)))
    {
        throw std::runtime_error("the network was not parsed: see the log");
    }
"""

_LOAD_CACHE_CODE = """
    // Measured tactics: of this GPU, CUDA and release only. An empty cache is filled by this build.
    std::string const timings = %s;
    auto const known = readFile(timings);
    std::unique_ptr<ITimingCache> cache{config->createTimingCache(known.data(), known.size())};
    if (!cache && !known.empty())
    {
        cache.reset(config->createTimingCache(nullptr, 0));
    }
    if (cache)
    {
        config->setTimingCache(*cache, false);
    }
"""

_BUILD_CODE = """
    std::unique_ptr<IHostMemory> engine{builder->buildSerializedNetwork(*network, *config)};
    if (!engine)
    {
        throw std::runtime_error("the engine was not built: see the log");
    }
"""

_SAVE_CACHE_CODE = """\
    std::unique_ptr<IHostMemory> measured{cache ? cache->serialize() : nullptr};
    if (measured)
    {
        writeFile(timings, measured->data(), measured->size());
    }
"""

_END_CODE = """\
    writeFile(%s, engine->data(), engine->size());
    return engine;
}
"""


def cpp_builder_fragment(release: str, release_title: str, title: str, constraints: LayerConstraints | None, *,
                         tf32: bool = False, shapes: Mapping[str, ShapeRange] | None = None,
                         more_profiles: Sequence[Mapping[str, ShapeRange]] = (),
                         builder_options: BuilderOptions | None = None, network_file: str = "network.onnx",
                         engine_file: str = "model.engine") -> str:
    """Returns the text of a C++ fragment that builds the engine of a bundle.

    Args:
        release: "8.6", "10", "11" or "rtx".
        release_title: The release as text.
        title: The description of the engine, for the heading.
        constraints: The layer constraints of TensorRT 8.6, in addition to Q/DQ; None for a strongly typed release.
        tf32: True if FP32 layers may use TF32. If False, the flag of TF32 is cleared.
        shapes: The optimization profile by input name, for inputs with dynamic dimensions.
        more_profiles: Additional optimization profiles.
        builder_options: The options of the builder. network_file, engine_file: Paths of the network and the engine in
            the code.
    """
    builder_options = builder_options or BuilderOptions()
    timing_cache_file = builder_options.timing_cache
    text = _HEADER_CODE.format(
        title=escape_hidden_characters(title), release=release_title, network=network_file,
        cache=f" and {timing_cache_file}" if timing_cache_file else "",
        more="#include <map>\n#include <set>\n" if constraints else "",
        told=_CONSTRAINTS_CODE % "".join(_layer_constraint_lines(constraints)) if constraints else "")
    if builder_options.plugins:
        text += "    // Libraries of plugins come before the parser.\n"
        text += "".join(f"    builder->getPluginRegistry().loadLibrary({_cpp_string_literal(path)});\n"
                        for path in builder_options.plugins)
    text += (
        f"    std::unique_ptr<INetworkDefinition> "
        f"network{{builder->createNetworkV2({_network_creation_flags_text(release)})}};\n"
    )
    text += _PARSER_CODE % _cpp_string_literal(network_file)
    if constraints:
        text += "    applyConstraints(*network);\n"
    text += "\n    std::unique_ptr<IBuilderConfig> config{builder->createBuilderConfig()};\n"
    text += "".join(f"    config->setFlag(BuilderFlag::{flag});\n" for flag in _list_builder_flags(constraints))
    text += ("    config->setFlag(BuilderFlag::kTF32); // as in the config\n" if tf32 else
             "    config->clearFlag(BuilderFlag::kTF32); // on by default: it keeps 10 bits of mantissa\n")
    text += "".join(f"    {line}\n" for line in builder_options.cpp_config_lines())
    for index, profile in enumerate((shapes or {}, *more_profiles)):
        text += "".join(_shape_profile_lines(profile, f"profile{index or ''}"))
    text += (_LOAD_CACHE_CODE % _cpp_string_literal(timing_cache_file)
             if timing_cache_file else "") + _BUILD_CODE + (_SAVE_CACHE_CODE if timing_cache_file else "")
    return text + _END_CODE % _cpp_string_literal(engine_file)


def _network_creation_flags_text(release: str) -> str:
    return {"8.6": "1U << static_cast<uint32_t>(NetworkDefinitionCreationFlag::kEXPLICIT_BATCH)",
            "10": "1U << static_cast<uint32_t>(NetworkDefinitionCreationFlag::kSTRONGLY_TYPED)"}.get(release, "0U")


def _list_builder_flags(constraints: LayerConstraints | None) -> list[str]:
    if constraints is None:
        return []
    flags = [
        _FLAG_NAMES[precision]
        for precision in (Precision.FP16, Precision.INT8)
        if precision in constraints.precision_flags
    ]
    return [*flags, "kOBEY_PRECISION_CONSTRAINTS"] if flags else []


def _layer_constraint_lines(constraints: LayerConstraints) -> Iterable[str]:
    for name in dict.fromkeys((*constraints.precisions, *constraints.output_types)):
        type_names = [
            precision.value if (precision := precisions.get(name)) in _TYPE_NAMES and precision is not None else ""
            for precisions in (constraints.precisions, constraints.output_types)
        ]
        yield (
            f"    "
            f"{{{_cpp_string_literal(name)}, "
            f"{_cpp_string_literal(type_names[0])}, {_cpp_string_literal(type_names[1])}}},\n"
        )
    if not (constraints.precisions or constraints.output_types):
        yield '    {"", "", ""},\n'


def _shape_profile_lines(shapes: Mapping[str, ShapeRange], profile_variable: str) -> Iterable[str]:
    if not shapes:
        return
    yield f"\n    auto* const {profile_variable} = builder->createOptimizationProfile();\n"
    for name, shape_range in shapes.items():
        for selector, sizes in (("kMIN", shape_range.min), ("kOPT", shape_range.opt), ("kMAX", shape_range.max)):
            dims = f"Dims{{{len(sizes)}, {{{', '.join(map(str, sizes))}}}}}"
            yield (
                f"    "
                f"{profile_variable}->setDimensions({_cpp_string_literal(name)}, "
                f"OptProfileSelector::{selector}, {dims});\n"
            )
    yield f"    config->addOptimizationProfile({profile_variable});\n"


def _cpp_string_literal(text: str) -> str:
    """Returns a C++ string literal. Bytes outside ASCII become octal escapes, which end after three digits."""
    characters = []
    for byte in text.encode("utf-8", "surrogateescape"):
        char = chr(byte)
        characters.append(json.dumps(char)[1:-1] if char in '"\\' else char if 32 <= byte < 127 else f"\\{byte:03o}")
    return '"' + "".join(characters).replace("??", "?\\?") + '"'
