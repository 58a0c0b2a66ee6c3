"""Networks that tests and benchmarks use; all weights are seeded, none are trained.

Only ``export``, which is run by hand, and ``torch_modules`` need torch; nothing imported here does.
"""

from .build import Builder, floats
from .decoder import decoder
from .encoders import bert, bert_block, vit, vit_block
from .feeding import Handed, feeds, random_images, random_mask
from .kernels import attention_block, attention_operator, odd_kernels, upsampler
from .large import many_layers, synthetic_tree
from .light import LIGHT_NAMES, light
from .odd import (
    badly_named,
    half,
    opset7,
    quantized,
    save_with_external_data,
    with_custom_operator,
    with_if,
    with_local_function,
    with_loop,
    with_sequence,
)
from .seeding import quiet_session
from .small import chain, mlp, small_resnet, unet_small

__all__ = [
    "LIGHT_NAMES",
    "Builder",
    "Handed",
    "attention_block",
    "attention_operator",
    "badly_named",
    "bert",
    "bert_block",
    "chain",
    "decoder",
    "feeds",
    "floats",
    "half",
    "light",
    "many_layers",
    "mlp",
    "odd_kernels",
    "opset7",
    "quantized",
    "quiet_session",
    "random_images",
    "random_mask",
    "save_with_external_data",
    "small_resnet",
    "synthetic_tree",
    "unet_small",
    "upsampler",
    "vit",
    "vit_block",
    "with_custom_operator",
    "with_if",
    "with_local_function",
    "with_loop",
    "with_sequence",
]
