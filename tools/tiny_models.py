"""Tiny checkpoints with random weights, built from the host's own classes, which its stock loaders
load as the real thing. They make tests and the demo quick; their pictures mean nothing.

    BAYESDIFF_HOST=<ComfyUI> python -m tools.tiny_models FOLDER
"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    from tools.in_process import enter_host
    enter_host()

import comfy.ops
import torch
from safetensors.torch import save_file

CONTEXT = {"sd15": 768, "sd3": 1024, "flux": 1024, "flux2": 1024, "wan": 1024,
           "hunyuan_video": 1024}  # width of a prompt's tokens
POOLED = 64  # width of a prompt's pooled_output, where the model takes one
HUNYUAN_POOLED = 768  # the host asks for this many


def _sd15():
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
    network = UNetModel(image_size=32, in_channels=4, out_channels=4, model_channels=320,
                        num_res_blocks=[1], channel_mult=[1], transformer_depth=[1],
                        transformer_depth_output=[0, 0], transformer_depth_middle=-1,
                        context_dim=CONTEXT["sd15"], num_heads=8, use_spatial_transformer=True,
                        operations=comfy.ops.disable_weight_init)
    return network, {}


def _sd3():
    from comfy.ldm.modules.diffusionmodules.mmdit import OpenAISignatureMMDITWrapper
    context = {"target": "torch.nn.Linear",
               "params": {"in_features": CONTEXT["sd3"], "out_features": 64}}
    network = OpenAISignatureMMDITWrapper(
        input_size=None, in_channels=16, out_channels=16, depth=1, adm_in_channels=POOLED,
        context_embedder_config=context, num_patches=16 * 16, pos_embed_max_size=16,
        operations=comfy.ops.disable_weight_init)
    return network, {}


def _flux():
    from comfy.ldm.flux.model import Flux
    network = Flux(image_model="flux", in_channels=16, out_channels=16, vec_in_dim=POOLED,
                   context_in_dim=CONTEXT["flux"], hidden_size=128, mlp_ratio=4.0, num_heads=1,
                   depth=1, depth_single_blocks=1, axes_dim=[16, 56, 56], theta=10000, patch_size=2,
                   qkv_bias=True, guidance_embed=True, txt_ids_dims=[],
                   operations=comfy.ops.disable_weight_init)
    return network, {}


def _flux2():
    from comfy.ldm.flux.model import Flux
    network = Flux(image_model="flux2", in_channels=128, out_channels=128, vec_in_dim=None,
                   context_in_dim=CONTEXT["flux2"], hidden_size=128, mlp_ratio=3.0, num_heads=1,
                   depth=1, depth_single_blocks=1, axes_dim=[32, 32, 32, 32], theta=2000,
                   patch_size=1, qkv_bias=False, guidance_embed=True, txt_ids_dims=[3],
                   global_modulation=True, mlp_silu_act=True, ops_bias=False,
                   operations=comfy.ops.disable_weight_init)
    return network, {}


def _hunyuan_video():
    from comfy.ldm.hunyuan_video.model import HunyuanVideo
    network = HunyuanVideo(image_model="hunyuan_video", in_channels=16, out_channels=16,
                           vec_in_dim=HUNYUAN_POOLED, context_in_dim=CONTEXT["hunyuan_video"],
                           hidden_size=128, mlp_ratio=4.0, num_heads=1, depth=1,
                           depth_single_blocks=1, axes_dim=[16, 56, 56], theta=256,
                           patch_size=[1, 2, 2], qkv_bias=True, guidance_embed=True, byt5=False,
                           meanflow=False, use_cond_type_embedding=False, vision_in_dim=None,
                           meanflow_sum=False, operations=comfy.ops.disable_weight_init)
    return network, {}


def _wan():
    from comfy.ldm.wan.model import WanModel
    config = {"dim": 32, "ffn_dim": 64, "num_heads": 2, "num_layers": 1, "freq_dim": 32,
              "text_dim": CONTEXT["wan"], "in_dim": 16, "out_dim": 16, "patch_size": [1, 2, 2]}
    network = WanModel(**config, operations=comfy.ops.disable_weight_init)
    return network, {"config": json.dumps({"transformer": config})}


BUILDERS = {"sd15": _sd15, "sd3": _sd3, "flux": _flux, "flux2": _flux2, "wan": _wan,
            "hunyuan_video": _hunyuan_video}


def write(name: str, folder: Path) -> Path:
    """Writes <folder>/tiny_<name>.safetensors, a file of diffusion_models/, unless it is there."""
    path = folder / f"tiny_{name}.safetensors"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        network, metadata = BUILDERS[name]()
        generator = torch.Generator().manual_seed(0)
        weights = {key: random_weight(key, weight.shape, generator).half()
                   for key, weight in network.state_dict().items()}
        save_file(weights, path, metadata=metadata)
    return path


def random_weight(key: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Keeps activations near 1, so that outputs are neither 0 nor overflow. No layer is left 0, as
    many a last layer is at the start of training."""
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        is_scale = key.endswith((".weight", ".scale"))  # of a norm
        return 1 + 0.1 * noise if is_scale else 0.1 * noise
    return noise / max(noise[0].numel(), 1) ** 0.5


if __name__ == "__main__":
    for name in BUILDERS:
        write(name, Path(sys.argv[1]))
