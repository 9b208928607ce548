"""What travels between the nodes: the pack's own socket types, and the host's LATENT."""

import torch
from comfy_api.latest import io

from ..bayesdiff_core.checks import BayesDiffError

LLLA = io.Custom("BAYESDIFF_LLLA")  # bayesdiff_core.llla.Llla
TRAJECTORY = io.Custom("BAYESDIFF_TRAJECTORY")  # bayesdiff_core.trajectory.Trajectory


def latent_of(latent: dict) -> torch.Tensor:
    """Of a latent of several parts (video with sound) the first, as the stock VAE Decode does."""
    samples = latent["samples"]
    return (samples.unbind()[0] if samples.is_nested else samples).float()


def single(name: str, values: list) -> list:
    """Of an input that may come as a list."""
    if len(values) != 1:
        raise BayesDiffError(f"{len(values)} values of {name} are connected, 1 was expected.")
    return values
