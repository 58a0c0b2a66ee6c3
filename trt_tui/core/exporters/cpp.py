"""A fragment of C++ that builds an engine from a bundle's network, as each release's API has it.

The API follows ``NvInfer.h``: TensorRT 10 is strongly typed by a creation flag, 11 and TensorRT-RTX always are, 8.6 is
told precisions layer by layer beside Q/DQ. TF32 is on by default in all of them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from trt_tui.core.data.shapes import ShapeRange
from trt_tui.core.precision import Precision
from trt_tui.core.production import Production
from trt_tui.core.runner import Told
from trt_tui.words import visible

_TYPES = {Precision.FP32: "kFLOAT", Precision.TF32: "kFLOAT", Precision.FP16: "kHALF", Precision.INT8: "kINT8"}
_FLAGS = {Precision.FP16: "kFP16", Precision.INT8: "kINT8"}

_HEAD = """\
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

_TELL = """
struct Told
{
    char const* layer;
    char const* precision; //!< "" is none
    char const* output;
};

// What each layer computes in, and what it writes; Q and DQ in the network say the rest.
Told const kTOLD[] = {
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

void tell(nvinfer1::INetworkDefinition& network)
{
    using nvinfer1::DataType;
    using nvinfer1::LayerType;
    std::map<std::string, Told> told;
    for (auto const& one : kTOLD)
    {
        told[one.layer] = one;
    }
    std::set<LayerType> const moves{LayerType::kSHUFFLE, LayerType::kIDENTITY, LayerType::kCAST, LayerType::kSLICE,
        LayerType::kCONCATENATION, LayerType::kGATHER, LayerType::kSCATTER, LayerType::kONE_HOT,
        LayerType::kREVERSE_SEQUENCE, LayerType::kFILL, LayerType::kNON_ZERO, LayerType::kNMS};
    std::set<LayerType> const untold{LayerType::kCONSTANT, LayerType::kSHAPE, LayerType::kASSERTION,
        LayerType::kQUANTIZE, LayerType::kDEQUANTIZE, LayerType::kCONDITION, LayerType::kCONDITIONAL_INPUT,
        LayerType::kCONDITIONAL_OUTPUT, LayerType::kITERATOR, LayerType::kLOOP_OUTPUT, LayerType::kRECURRENCE,
        LayerType::kTRIP_LIMIT};
    for (int32_t i = 0; i < network.getNbLayers(); ++i)
    {
        auto& layer = *network.getLayer(i);
        auto const found = told.find(nodeOf(layer));
        if (found == told.end() || untold.count(layer.getType()))
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

_PARSE = """\
    std::unique_ptr<nvonnxparser::IParser> parser{nvonnxparser::createParser(*network, logger)};
    if (!parser->parseFromFile(%s, static_cast<int32_t>(ILogger::Severity::kWARNING)))
    {
        throw std::runtime_error("the network was not parsed: see the log");
    }
"""

_CACHE = """
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

_BUILD = """
    std::unique_ptr<IHostMemory> engine{builder->buildSerializedNetwork(*network, *config)};
    if (!engine)
    {
        throw std::runtime_error("the engine was not built: see the log");
    }
"""

_KEEP = """\
    std::unique_ptr<IHostMemory> measured{cache ? cache->serialize() : nullptr};
    if (measured)
    {
        writeFile(timings, measured->data(), measured->size());
    }
"""

_TAIL = """\
    writeFile(%s, engine->data(), engine->size());
    return engine;
}
"""


def builder_fragment(release: str, words: str, title: str, told: Told | None, *, tf32: bool = False,
                     shapes: Mapping[str, ShapeRange] | None = None,
                     further: Sequence[Mapping[str, ShapeRange]] = (), production: Production | None = None,
                     network: str = "network.onnx", engine: str = "model.engine") -> str:
    """The text of the fragment.

    Args:
        release: "8.6", "10", "11" or "rtx".
        words: The release in words.
        title: What is built, for the heading.
        told: What 8.6 is told layer by layer beside Q/DQ; None for a strongly typed release.
        tf32: Whether FP32 layers may use TF32; else its flag is cleared.
        shapes: The optimization profile by input name; for inputs with dynamic dimensions.
        further: More profiles.
        production: How the builder is to work.
        network, engine: The files.
    """
    production = production or Production()
    cache = production.timing_cache
    text = _HEAD.format(title=visible(title), release=words, network=network, cache=f" and {cache}" if cache else "",
                        more="#include <map>\n#include <set>\n" if told else "",
                        told=_TELL % "".join(_rows(told)) if told else "")
    if production.plugins:
        text += "    // Libraries of plugins come before the parser.\n"
        text += "".join(f"    builder->getPluginRegistry().loadLibrary({_literal(path)});\n"
                        for path in production.plugins)
    text += f"    std::unique_ptr<INetworkDefinition> network{{builder->createNetworkV2({_creation(release)})}};\n"
    text += _PARSE % _literal(network)
    if told:
        text += "    tell(*network);\n"
    text += "\n    std::unique_ptr<IBuilderConfig> config{builder->createBuilderConfig()};\n"
    text += "".join(f"    config->setFlag(BuilderFlag::{flag});\n" for flag in _flags(told))
    text += ("    config->setFlag(BuilderFlag::kTF32); // as the config has it\n" if tf32 else
             "    config->clearFlag(BuilderFlag::kTF32); // on by default: it keeps 10 bits of mantissa\n")
    text += "".join(f"    {line}\n" for line in production.cpp())
    for place, profile in enumerate((shapes or {}, *further)):
        text += "".join(_profile(profile, f"profile{place or ''}"))
    text += (_CACHE % _literal(cache) if cache else "") + _BUILD + (_KEEP if cache else "")
    return text + _TAIL % _literal(engine)


def _creation(release: str) -> str:
    return {"8.6": "1U << static_cast<uint32_t>(NetworkDefinitionCreationFlag::kEXPLICIT_BATCH)",
            "10": "1U << static_cast<uint32_t>(NetworkDefinitionCreationFlag::kSTRONGLY_TYPED)"}.get(release, "0U")


def _flags(told: Told | None) -> list[str]:
    if told is None:
        return []
    found = [_FLAGS[one] for one in (Precision.FP16, Precision.INT8) if one in told.flags]
    return [*found, "kOBEY_PRECISION_CONSTRAINTS"] if found else []


def _rows(told: Told) -> Iterable[str]:
    for name in dict.fromkeys((*told.precisions, *told.output_types)):
        words = [one.value if (one := given.get(name)) in _TYPES and one is not None else ""
                 for given in (told.precisions, told.output_types)]
        yield f"    {{{_literal(name)}, {_literal(words[0])}, {_literal(words[1])}}},\n"
    if not (told.precisions or told.output_types):
        yield '    {"", "", ""},\n'


def _profile(shapes: Mapping[str, ShapeRange], variable: str) -> Iterable[str]:
    if not shapes:
        return
    yield f"\n    auto* const {variable} = builder->createOptimizationProfile();\n"
    for name, one in shapes.items():
        for selector, sizes in (("kMIN", one.min), ("kOPT", one.opt), ("kMAX", one.max)):
            dims = f"Dims{{{len(sizes)}, {{{', '.join(map(str, sizes))}}}}}"
            yield f"    {variable}->setDimensions({_literal(name)}, OptProfileSelector::{selector}, {dims});\n"
    yield f"    config->addOptimizationProfile({variable});\n"


def _literal(text: str) -> str:
    """A string literal; bytes beyond ASCII as octal escapes, which end after three digits."""
    quoted = []
    for byte in text.encode("utf-8", "surrogateescape"):
        char = chr(byte)
        quoted.append(json.dumps(char)[1:-1] if char in '"\\' else char if 32 <= byte < 127 else f"\\{byte:03o}")
    return '"' + "".join(quoted).replace("??", "?\\?") + '"'
