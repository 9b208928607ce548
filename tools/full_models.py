"""Checkpoints with random weights as large as the real ones, for `python run.py test full`.

Names and shapes are those of the host's own classes, built without memory for their weights; the
numbers are written one tensor after the other. What a model of these weights draws means nothing.

    BAYESDIFF_HOST=<ComfyUI> python -m tools.full_models NAME FOLDER
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    from tools.in_process import enter_host
    enter_host()

import comfy.ldm.models.autoencoder
import comfy.ldm.wan.vae
import comfy.sd1_clip
import comfy.sdxl_clip
import comfy.supported_models
import torch
from safetensors.torch import _SIZE, _TYPES

KINDS = {dtype: name for name, dtype in _TYPES.items()}
POOL = 4_194_301  # random numbers, used over and over: no multiple of a row, so that no two agree
PICTURE_VAE = {"double_z": True, "z_channels": 4, "resolution": 256, "in_channels": 3, "out_ch": 3,
               "ch": 128, "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [],
               "dropout": 0.0}
UNET = {"image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 320,
        "use_spatial_transformer": True}
SD15 = {**UNET, "num_res_blocks": [2, 2, 2, 2], "channel_mult": [1, 2, 4, 4], "context_dim": 768,
        "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0], "transformer_depth_middle": 1,
        "transformer_depth_output": [1] * 9 + [0] * 3, "use_linear_in_transformer": False,
        "adm_in_channels": None}
SDXL = {**UNET, "num_res_blocks": [2, 2, 2], "channel_mult": [1, 2, 4], "context_dim": 2048,
        "transformer_depth": [0, 0, 2, 2, 10, 10], "transformer_depth_middle": 10,
        "transformer_depth_output": [0] * 3 + [2] * 3 + [10] * 3, "num_classes": "sequential",
        "use_linear_in_transformer": True, "adm_in_channels": 2816}
FLUX = {"image_model": "flux", "in_channels": 16, "out_channels": 16, "vec_in_dim": 768,
        "context_in_dim": 4096, "hidden_size": 3072, "mlp_ratio": 4.0, "num_heads": 24,
        "depth": 19, "depth_single_blocks": 38, "axes_dim": [16, 56, 56], "theta": 10000,
        "patch_size": 2, "qkv_bias": True, "guidance_embed": True, "txt_ids_dims": []}
WAN = {"image_model": "wan2.1", "model_type": "t2v", "dim": 1536, "ffn_dim": 8960, "num_heads": 12,
       "num_layers": 30, "freq_dim": 256, "text_dim": 4096, "in_dim": 16, "out_dim": 16,
       "patch_size": (1, 2, 2), "window_size": (-1, -1), "qk_norm": True, "cross_attn_norm": True,
       "eps": 1e-6}
State = dict[str, torch.Tensor]


class Written(NamedTuple):
    """What the files of a name hold."""

    network: int  # parameters of the network alone
    parameters: int  # of all
    size: int  # bytes of all files


def network(config, prefix: bool = False) -> State:
    """prefix: as in a file that holds other parts, too."""
    config.set_inference_dtype(torch.float16, None)
    state = config.get_model({}, "", device=torch.device("meta")).diffusion_model.state_dict()
    return config.process_unet_state_dict_for_saving(state) if prefix else state


def picture_vae(config, legacy: bool = True) -> State:
    """legacy: with the two layers between it and the latent that Flux's has not."""
    kinds = comfy.ldm.models.autoencoder
    parts = {} if legacy else {
        f"{part}_config": {"target": f"comfy.ldm.modules.diffusionmodules.model.{part.title()}",
                           "params": config} for part in ("encoder", "decoder")}
    with torch.device("meta"):
        made = kinds.AutoencoderKL(ddconfig=config, embed_dim=4) if legacy else \
            kinds.AutoencodingEngine(**parts, regularizer_config={
                "target": "comfy.ldm.models.autoencoder.DiagonalGaussianRegularizer"})
    return made.state_dict()


def checkpoint(config, clip: torch.nn.Module) -> State:
    """One file with all, as the host's own node saves it."""
    return {**network(config, prefix=True),
            **config.process_clip_state_dict_for_saving(clip.state_dict()),
            **config.process_vae_state_dict_for_saving(picture_vae(PICTURE_VAE))}


def sd15() -> State:
    return checkpoint(comfy.supported_models.SD15({**SD15}),
                      comfy.sd1_clip.SD1ClipModel(device="meta", dtype=torch.float16))


def sdxl() -> State:
    return checkpoint(comfy.supported_models.SDXL({**SDXL}),
                      comfy.sdxl_clip.SDXLClipModel(device="meta", dtype=torch.float16))


def wan_vae() -> State:
    with torch.device("meta"):
        return comfy.ldm.wan.vae.WanVAE(dim=96, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2,
                                        attn_scales=[],
                                        temperal_downsample=[False, True, True]).state_dict()


def flux(**other: int) -> Callable[[], State]:
    return lambda: network(comfy.supported_models.Flux({**FLUX, **other}))


def wan() -> State:
    return network(comfy.supported_models.WAN21_T2V({**WAN}))


FP8, HALF = torch.float8_e4m3fn, torch.float16
# By name: the files below models/, with the precision of the network; all else is fp16.
FILES = {
    "sd15": {"checkpoints/v1-5-pruned-emaonly-fp16.safetensors": (sd15, HALF)},
    "sd15 fp8": {"checkpoints/v1-5-pruned-emaonly-fp16.safetensors": (sd15, FP8)},
    "sdxl": {"checkpoints/sd_xl_base_1.0.safetensors": (sdxl, HALF)},
    "flux 4B": {"diffusion_models/flux1-dev.safetensors": (flux(depth=6, depth_single_blocks=13),
                                                           FP8),
                "vae/ae.safetensors": (lambda: picture_vae({**PICTURE_VAE, "z_channels": 16},
                                                           legacy=False), HALF)},
    "wan": {"diffusion_models/wan2.1_t2v_1.3B_fp16.safetensors": (wan, HALF),
            "vae/wan_2.1_vae.safetensors": (wan_vae, HALF)},
}
FILES["flux"] = {**FILES["flux 4B"], "diffusion_models/flux1-dev.safetensors": (flux(), FP8)}


def write(name: str, models: Path) -> Written:
    """The files of that name, below a folder like ComfyUI's models."""
    counts, sizes, networks = [], [], []
    for file, (made, precision) in FILES[name].items():
        state, path = made(), models / file
        inner = {key for key in state if key.startswith("model.diffusion_model.")} or (
            state.keys() if "diffusion_models" in file else set())
        kinds = {key: one.dtype if not one.is_meta else precision if key in inner else HALF
                 for key, one in state.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        write_file(part, state, kinds)
        os.replace(part, path)
        counts.append(sum(one.numel() for one in state.values()))
        networks.append(sum(state[key].numel() for key in inner))
        sizes.append(path.stat().st_size)
    return Written(sum(networks), sum(counts), sum(sizes))


def write_file(path: Path, state: State, kinds: dict[str, torch.dtype]) -> None:
    """A safetensors file, one tensor at a time: its length, its table, its numbers."""
    table, end = {}, 0
    for key, one in state.items():
        start, end = end, end + one.numel() * _SIZE[kinds[key]]
        table[key] = {"dtype": KINDS[kinds[key]], "shape": list(one.shape),
                      "data_offsets": [start, end]}
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0))
    used = 0
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for key, one in state.items():
            if not one.is_meta:  # a table of positions
                file.write(one.contiguous().numpy().tobytes())
                continue
            for chunk in numbers(key, one.shape, pool, used):
                file.write(chunk.to(kinds[key]).view(torch.uint8).numpy().tobytes())
            used += one.numel()


def numbers(key: str, shape: torch.Size, pool: torch.Tensor, used: int) -> Iterator[torch.Tensor]:
    """As tiny_models.random_weight: activations stay near 1."""
    scale, middle = 0.1, 0.0
    if len(shape) > 1:
        scale = 1 / math.sqrt(shape[1:].numel())
    elif key.endswith((".weight", ".scale")):  # of a norm
        middle = 1.0
    left = shape.numel()
    while left > 0:
        start = used % POOL
        chunk = pool[start:start + left]
        yield middle + scale * chunk
        used, left = used + len(chunk), left - len(chunk)


if __name__ == "__main__":
    print(json.dumps(write(sys.argv[1], Path(sys.argv[2]))._asdict()))
