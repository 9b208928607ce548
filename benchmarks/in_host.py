"""What benches share that run in the host: the pack as the host loads it, big models, memory."""

import asyncio
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from tools.places import REPOSITORY

SD15 = {
    "image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 320,
    "num_res_blocks": [2, 2, 2, 2], "channel_mult": (1, 2, 4, 4), "context_dim": 768,
    "use_spatial_transformer": True, "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_output": [1] * 9 + [0] * 3, "transformer_depth_middle": 1, "num_heads": 8,
    "num_head_channels": -1, "use_linear_in_transformer": False, "adm_in_channels": None,
}

FLUX = {
    "image_model": "flux", "in_channels": 16, "out_channels": 16, "vec_in_dim": 768,
    "context_in_dim": 4096, "hidden_size": 1536, "mlp_ratio": 4.0, "num_heads": 12, "depth": 6,
    "depth_single_blocks": 14, "axes_dim": [16, 56, 56], "theta": 10000, "patch_size": 2,
    "qkv_bias": True, "guidance_embed": True, "txt_ids_dims": [],
}

# For a look at whether a bench works at all.
TINY_SD15 = {**SD15, "model_channels": 32}
TINY_FLUX = {**FLUX, "hidden_size": 128, "num_heads": 1, "depth": 1, "depth_single_blocks": 1}


def pack_module(name: str):
    """A module of the pack, loaded by the host; call tools.in_process.enter_host first."""
    import nodes as host_nodes
    root = str(REPOSITORY).replace(".", "_x_")
    try:
        return importlib.import_module(f"{root}.{name}")
    except ModuleNotFoundError:
        assert asyncio.run(host_nodes.load_custom_node(str(REPOSITORY)))
        return importlib.import_module(f"{root}.{name}")


def sd15_size_model():
    """A MODEL of the host's own classes with SD1.5's sizes and random weights, fp32."""
    return random_model(sd15_config())


def sd15_config(tiny: bool = False):
    import comfy.supported_models
    return comfy.supported_models.SD15({**(TINY_SD15 if tiny else SD15)})


def flux_config(tiny: bool = False):
    """Flux at half its width and a third of its depth: about 1 B parameters."""
    import comfy.supported_models
    return comfy.supported_models.Flux({**(TINY_FLUX if tiny else FLUX)})


def random_model(config, shared: bool = False):
    """fp32. shared: weights of the same shape are one, which takes less memory and the same
    work."""
    import comfy.model_management
    import comfy.model_patcher

    config.set_inference_dtype(torch.float32, None)
    network = config.get_model({}, "", device=torch.device("meta" if shared else "cpu"))
    generator, known, count = torch.Generator().manual_seed(0), {}, 0
    for module in network.diffusion_model.modules():
        for name, weight in module.named_parameters(recurse=False):
            count += weight.numel()
            if not shared:
                _fill(weight.data, name, generator)
                continue
            key = (weight.shape, name)
            if key not in known:
                known[key] = torch.nn.Parameter(torch.empty(weight.shape), False)
                _fill(known[key].data, name, generator)
            setattr(module, name, known[key])
    print(f"{count / 1e6:.0f} M parameters", flush=True)
    device = comfy.model_management.get_torch_device()
    return comfy.model_patcher.ModelPatcher(network.eval(), device, device)


def _fill(weight: torch.Tensor, name: str, generator: torch.Generator) -> None:
    fan_in = max(weight[0].numel(), 1)
    weight.normal_(std=0.1 if weight.ndim == 1 else fan_in**-0.5, generator=generator)
    if weight.ndim == 1 and name == "weight":  # a norm's
        weight += 1


def outside_over_inside(network: torch.nn.Module, work: Callable) -> float:
    """This process's CPU time outside the network's calls, over the time inside them."""
    inside, entered = 0.0, 0.0

    def enter(*_) -> None:
        nonlocal entered
        entered = time.process_time()

    def leave(*_) -> None:
        nonlocal inside
        inside += time.process_time() - entered

    handles = [network.register_forward_pre_hook(enter), network.register_forward_hook(leave)]
    started = time.process_time()
    try:
        work()
    finally:
        for handle in handles:
            handle.remove()
    return (time.process_time() - started - inside) / inside


class Measured(NamedTuple):
    seconds: float
    cpu_seconds: float
    megabytes: float  # the process's peak

    def over(self, other: "Measured") -> list[float]:
        return [ours / theirs for ours, theirs in zip(self, other)]


def measured(work: Callable) -> Measured:
    forget_peak()
    started = time.perf_counter(), time.process_time()
    work()
    return Measured(time.perf_counter() - started[0], time.process_time() - started[1],
                    peak_megabytes())


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
