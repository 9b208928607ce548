"""Masks of latents, as the host reads them."""

from collections.abc import Sequence

import torch


def laid_on(shape: Sequence[int], mask: torch.Tensor) -> torch.Tensor:
    """A MASK as the noise_mask of latents of that shape, as Set Latent Noise Mask lays it. Where
    there is a number of them for each clip, they are that clip's frames: the host would take all
    for frames of every clip."""
    if len(shape) == 3:  # sound: the host reads a mask's rows as channels
        return mask
    laid = mask.reshape(-1, 1, *mask.shape[-2:])
    if len(shape) == 5 and len(laid) % shape[0] == 0:
        return laid.reshape(shape[0], 1, -1, *mask.shape[-2:])
    return laid
