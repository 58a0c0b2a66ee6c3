"""The words of the app, of ``--help`` and of reports, each explained in one or two sentences for users.

The app shows these texts for a clicked word and finds them on the help page. A word has no other meaning in any text.
"""

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Term:
    """A word that is explained to users.

    Attributes:
        name: The word as texts write it.
        explanation: One or more sentences.
        other_names: Short forms, column titles and related words with the same explanation.
    """

    name: str
    explanation: str
    other_names: tuple[str, ...] = ()

    def is_named(self, text: str) -> bool:
        """Returns True if a text is one of the names, in any case."""
        return text.lower() in (name.lower() for name in (self.name, *self.other_names))


TERMS = (
    # -- the network ------------------------------------------------------------------------------------------------
    Term("fused layer", "The nodes that TensorRT runs as one kernel. They take one precision together, and have one "
         "row in the list.", ("layer", "fusion group", "group")),
    Term("node", "One operator of the ONNX file."),
    Term("scope", "A level of the node names between slashes, such as enc1/conv. Its row stands for all fused layers "
         "below it."),
    Term("blocks", "Parts of the network that repeat. The blocks view has a column for each block and a line for each "
         "role.", ("block", "heat map")),
    Term("role", "The fused layers at the same place in all blocks of a repeating network."),
    Term("kernel", "A program that the engine runs on the GPU, as TensorRT lists it. One kernel can contain several "
         "fused layers.", ("engine layer",)),
    Term("MHA", "Multi-head attention. TensorRT may run the two MatMuls of an attention and their Softmax as one MHA "
         "kernel.", ("attention", "in MHA")),
    Term("plugin", "An operator from a library that the builder loads. The simulation needs the same operator in ONNX "
         "Runtime (--ort-ops)."),
    # -- precisions -------------------------------------------------------------------------------------------------
    Term("precision", "The number format that a fused layer is requested to run in. The engine may use another one.",
         ("precisions", "prec")),
    Term("FP32", "32-bit floating point, the precision of the reference."),
    Term("TF32", "FP32 with 10 bits of mantissa in products. It applies to all FP32 layers or to none."),
    Term("BF16", "16-bit floating point with the range of FP32 and 7 bits of mantissa."),
    Term("FP16", "16-bit floating point. Values above 65504 overflow."),
    Term("FP16+", "FP16 with an FP32 accumulator.", ("fp16 accumulating in fp32",)),
    Term("FP8", "An 8-bit floating-point format (E4M3) with a scale. It needs SM89 or later."),
    Term("INT8", "8-bit integers with a scale: each value is rounded to one of 256 levels of its range."),
    Term("INT4", "4-bit integers with a scale, for the weights of MatMul and Gemm only."),
    Term("MXFP8", "FP8 values in blocks of 32 that share a scale, a power of two. Engines compute the scales of "
         "activations at run time. It needs SM100 or later."),
    Term("NVFP4", "4-bit floating-point values (E2M1) in blocks of 16 that share an FP8 scale. Engines compute the "
         "scales of activations at run time. It needs SM100 or later."),
    Term("file precision", "The precision that a quantized or typed network file already gives to each layer.",
         ("--precision file", "of the file")),
    Term("default precision", "The precision of a fused layer before any change of yours. The config sets it for the "
         "whole network.", ("default",)),
    Term("raise", "To give a fused layer a higher precision, so that its error shrinks.", ("raised", "raises")),
    Term("toggle", "To switch a row between FP32 and its default precision.", ("toggled", "toggles")),
    Term("keep rule", "A rule that fixes the precision of the layers it names. Nothing else changes them.",
         ("kept", "fixed", "fixed by rule")),
    Term("accumulator", "The type in which a kernel sums products."),
    # -- quantization -----------------------------------------------------------------------------------------------
    Term("quantized type", "A type whose values are stored with a scale: INT8, FP8, INT4, MXFP8 or NVFP4.",
         ("quantized", "quantization")),
    Term("Q/DQ", "A pair of QuantizeLinear and DequantizeLinear nodes, which rounds a tensor to a quantized type.",
         ("QuantizeLinear", "DequantizeLinear")),
    Term("unfused Q/DQ", "Q/DQ that the engine runs as a kernel by itself, because a fusion did not happen. It costs "
         "time."),
    Term("unused Q/DQ", "The Q/DQ of a layer that is quantized in the config and runs in a float type in the engine. "
         "They round values, and no kernel is faster for them."),
    Term("conversion", "A kernel that only changes the type or the layout of a tensor: a reformat, or unfused Q/DQ.",
         ("conversions",)),
    Term("scale", "The number by which a quantized value is multiplied. It follows from the range."),
    Term("range", "The interval from -amax to amax that quantized values represent. Values outside it are clipped.",
         ("ranges", "dynamic range", "amax", "clipped")),
    Term("range method", "The rule that chooses amax from samples: minmax, percentile, entropy or mse.",
         ("minmax", "percentile", "entropy", "--calib-method")),
    Term("calibration", "The measurement of ranges on samples.", ("calibrated", "calibrate")),
    Term("bits in use", "The bits of INT8 that the values of a tensor use. An amax far above the usual magnitude "
         "leaves few of them.", ("of 8 bits", "rms")),
    Term("explicit quantization", "Quantization by Q/DQ nodes in the network. A strongly typed TensorRT needs it."),
    Term("implicit quantization", "Quantization by ranges and layer precisions beside the network, for TensorRT up to "
         "10 (--weak).", ("layer constraints", "weakly typed")),
    Term("typed network", "The ONNX file of a config in which every tensor has its type: Q/DQ nodes and Cast nodes are "
         "written in. A strongly typed TensorRT builds it as it is.", ("strongly typed",)),
    # -- configs ----------------------------------------------------------------------------------------------------
    Term("config", "The precisions of all layers with your changes. Each change makes a new one: c0, c1, c2.",
         ("configs", "precision.json")),
    Term("change", "One decision in a config about a fused layer or a tensor: a precision, a range, a kept layer, a "
         "fusion barrier or a zero-cost change.", ("changes", "move")),
    Term("zero-cost change", "A change that adds no run time: an operator for a decomposed norm, QK scale, "
         "SmoothQuant, equalization or bias correction (--free).",
         ("zero-cost", "SmoothQuant", "SmoothQ", "equalization", "bias correction", "free")),
    Term("QK scale", "The number that multiplies the scores of an attention. In front of the product of queries and "
         "keys it keeps the product in the range of FP16.", ("scale of QK",)),
    Term("fusion barrier", "A tensor that becomes a network output, so that TensorRT does not fuse across it."),
    Term("remedy", "A change that may reduce the error of a fused layer, with its simulated result.",
         ("remedies", "try")),
    Term("search", "A run through many configs for one that meets the target with the fewest raised layers."),
    Term("Pareto front", "The configs that no other config beats in both cost and accuracy."),
    # -- measuring --------------------------------------------------------------------------------------------------
    Term("sample", "One row of the data. Values are measured on samples, so more of them make values more certain.",
         ("samples",)),
    Term("calibration sample", "A sample on which ranges are measured. It is not among the judged samples.",
         ("calibrated on",)),
    Term("reference", "The outputs that errors are measured against: those of FP32, of a framework or of another "
         "network (--reference)."),
    Term("judged output", "A tensor at which a run is compared with the reference. --judge names others.",
         ("judged outputs", "judged error")),
    Term("run", "Anything whose outputs are compared with the reference: FP16, INT8, the config, an engine or a file.",
         ("runs",)),
    Term("accuracy", "The errors, the metric and the top-1 agreement of a run at the judged outputs."),
    Term("error", "The difference between the outputs of a run and those of the reference, mostly as SQNR.",
         ("errors",)),
    Term("SQNR", "Signal to quantization noise in dB: the energy of the reference divided by that of the error. 20 dB "
         "is an error of 10%, 40 dB of 1%.", ("sqnr_db", "dB")),
    Term("cosine", "The cosine similarity of the outputs of a run and of the reference; 1 for an exact copy."),
    Term("MSE", "The mean squared error."),
    Term("max error", "The largest difference from the reference in any element.", ("max abs", "largest error")),
    Term("mean error", "The mean difference from the reference, without signs.", ("mean abs",)),
    Term("relative error", "Of a tensor in two dumps: the norm of the difference, divided by the norm of the first. "
         "0.1 is an SQNR of 20 dB.", ("relative",)),
    Term("max rel", "The largest |second - first| / |first| of an element in two dumps, and the mean of all. Elements "
         "whose first value is 0 are left out. A script that adds a small number to |first| counts them, and its value "
         "is then much larger.", ("mean rel", "max_relative", "mean_relative")),
    Term("differing", "The share of the elements of an integer output that differ from the reference.", ("differ",)),
    Term("worst sample", "The sample with the lowest SQNR, and that SQNR. The number behind # is its index.",
         ("worst",)),
    Term("metric", "Your function from outputs and labels to a number (--metric), such as F1. Its name is the title of "
         "its column."),
    Term("top-1", "The share of samples for which the run has the same top class as the reference.",
         ("top-1 agreement", "agreement")),
    Term("NaN/Inf", "The number of output values that are not finite although they are in the reference.",
         ("NaN", "Inf", "bad", "overflow", "overflows")),
    Term("confidence interval", "The 95% interval: with this probability it contains the value on many samples. The "
         "column ± is the distance from the value to the farther end of the interval.",
         ("margin", "interval", "±")),
    Term("without it", "The value of a config that a search offers, without one of its changes. It is blank if the "
         "search has not evaluated that config."),
    Term("target", "The bound that a run must meet, such as sqnr>=20 or f1>=base-1%.", ("targets",)),
    Term("tolerance", "A target of a search (--tolerance).", ("tolerances",)),
    Term("baseline", "The value of FP32 from which a relative target is computed; base in a target.", ("base",)),
    Term("PASS", "The target is met with the whole confidence interval, and no other reason for doubt is known."),
    Term("PASS?", "The target is met, but without certainty: the confidence interval crosses the bound, or there is a "
         "reason for doubt."),
    Term("FAIL?", "The target is missed, but without certainty: the confidence interval crosses the bound."),
    Term("FAIL", "The target is missed with certainty, or the run fails for another reason."),
    Term("outcome", "PASS, PASS?, FAIL? or FAIL: the comparison of a run with the target."),
    Term("error share", "The part of the judged error that disappears if one fused layer alone is raised to FP32. A ? "
         "behind it means fewer than 8 samples.",
         ("share", "shares", "share of loss", "loss share")),
    Term("sensitivity", "The error if one fused layer alone is reduced and all others are in FP32.",
         ("if reduced alone", "impact")),
    Term("isolated error", "The error of a fused layer whose inputs are exact: what this layer adds by itself.",
         ("isolated",)),
    Term("accumulated error", "The error at the output of a fused layer with the whole network in the run's "
         "precisions.", ("accumulated",)),
    Term("engine error", "The accumulated error of a fused layer inside a built engine."),
    Term("together", "The worst rows raised together: the accuracy with this row and all worse rows in FP32.",
         ("worst rows raised together", "sweep")),
    Term("if FP32", "The value that the target bounds after the row is raised to FP32. On a raised row, the value "
         "after the row has its default precision again.", ("toggled value",)),
    Term("simulation", "The network in ONNX Runtime with all roundings of a config written in. No engine is built.",
         ("simulated",)),
    Term("what-if", "The simulated accuracy of one changed config."),
    Term("guard", "A check whether measured values can mislead: too few samples, clipped values, ranges of other data.",
         ("guards", "warning", "warnings")),
    # -- engines ----------------------------------------------------------------------------------------------------
    Term("engine", "The network as TensorRT built it, with its own accuracy and latency.", ("engines",)),
    Term("as built", "Measured on a built engine, not simulated. Such values have no ~.", ("built",)),
    Term("as requested", "The engine runs each layer in the precision that the config requests.",
         ("requested", "asked")),
    Term("as exported", "The network of the file as the config exports it, where it cannot stay as it is.",
         ("exported",)),
    Term("exported network", "The exported file of a config, executed by ONNX Runtime because no engine can be built "
         "here.", ("not executed",)),
    Term("preview", "The engine layers that TensorRT-RTX lists for a config without a GPU. Nothing is executed."),
    Term("no effect", "The engine is the same without this change."),
    Term("cause", "A known reason for the loss of a fused layer, with its measured values and the next step. It is "
         "shown only if its condition holds on the samples and the loss reaches an output."),
    Term("refused", "The builder cannot build the config because of this layer."),
    Term("fused", "The layer is inside a kernel that does not report its types."),
    Term("MHA split", "Without this precision the attention would run as one MHA kernel."),
    Term("gap", "The dB by which the engine is worse than its simulation.", ("engine gap",)),
    Term("ms", "The median latency of one execution in milliseconds. In the list: the time of the row's kernels.",
         ("latency",)),
    Term("MB", "The size of the engine file in 10^6 bytes.", ("size",)),
    Term("INT8 time", "The share of the engine's time in INT8 layers.",
         ("FP8 time", "INT4 time", "MXFP8 time", "NVFP4 time")),
    Term("MACs", "Multiply-accumulate operations: the work of a layer, as a share of the network's.", ("cost",)),
    Term("reformat", "An engine layer that only changes the type or the memory layout of a tensor. It costs time.",
         ("reformats",)),
    Term("marked engine", "A second engine with the result of every fused layer as an output. It is not the engine as "
         "built."),
    Term("debug tensor", "A tensor between kernels that the engine as built lets you read."),
    Term("fallback ladder", "The attempts after TensorRT refuses a config, each of which requests less than the one "
         "before."),
    Term("compute capability", "The generation of a GPU as NVIDIA numbers it, such as 8.9 or SM89."),
    # -- files and stages -------------------------------------------------------------------------------------------
    Term("stage", "A step on the way to production whose outputs are compared: framework, ONNX, Q/DQ or engine.",
         ("stages",)),
    Term("dump", "A file of tensors by name: Polygraphy's RunResults, or .npz.", ("dumps",)),
    Term("bundle", "A folder with everything that one TensorRT release needs to build and check a config's engine."),
    Term("session", "The configs, results and names of a network, which are saved and resumed.", ("sessions",)),
    Term("background process", "The process that reads your files and runs the network, so that the app stays "
         "responsive."),
    Term("worker", "A process of a Dask cluster that takes part in measurements.", ("workers",)),
    # -- labels of the detail pane ----------------------------------------------------------------------------------
    Term("why", "Why this row has its error, the most important reason first.", ("also",)),
    Term("set", "Who set the precision of the row, and the other changes on it."),
    Term("output", "A tensor that the network or a fused layer computes. The detail pane shows its shape.",
         ("outputs",)),
    Term("distance to FP16's limit", "The factor by which the largest value may grow before FP16 overflows.",
         ("headroom",)),
    Term("made", "What the engine or the preview makes of the row: precision, time and kernel."),
)
"""All terms, by subject."""

TERMS_BY_NAME = {term.name: term for term in TERMS}


@cache
def find_term(name: str) -> Term | None:
    """Returns the term with a name, in any case; a plural s is ignored if needed. None if there is no such term."""
    return next((term for text in (name, name.removesuffix("s")) for term in TERMS if term.is_named(text)), None)
