"""The pack's demo model for tools and benches, with its network's sizes, which only training needs.

Call tools.in_process.enter_host before importing this.
"""

from pathlib import Path
from typing import NamedTuple

from benchmarks.in_host import pack_module

_pack = pack_module("nodes.host.demo_model")
CLASS_WIDTH, CLASS_KEY = _pack.CLASS_WIDTH, _pack.CLASS_KEY
base_model, PatchVAE = _pack.network, _pack.PatchVAE
UNET = {
    "image_size": 16, "in_channels": _pack.CHANNELS, "out_channels": _pack.CHANNELS,
    "model_channels": 64, "channel_mult": [1, 2, 2], "num_res_blocks": [1, 1, 1],
    "conv_resample": False, "transformer_depth": [0, 0, 1],
    "transformer_depth_output": [0, 0, 0, 0, 1, 1], "transformer_depth_middle": 1,
    "use_spatial_transformer": True, "context_dim": CLASS_WIDTH, "num_heads": 4,
    "num_head_channels": -1, "num_classes": "sequential", "adm_in_channels": CLASS_WIDTH,
}


class Demo(NamedTuple):
    model: object  # MODEL
    vae: object  # VAE
    classes: dict[str, list]  # name -> CONDITIONING
    no_class: list


def load(path: Path) -> Demo:
    path = Path(path)
    classes = {name: _pack.conditioning(path, name) for name in _pack.class_names(path)}
    return Demo(_pack.model(path), _pack.vae(), classes, _pack.conditioning(path, None))
