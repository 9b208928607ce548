"""What a latent looks like at a glance, as the host's own previews show it."""

import comfy.model_management
import latent_preview
import numpy as np
import torch
import torch.nn.functional as F

from ...bayesdiff_core.trajectory import parts_of

MOST_BY_NETWORK = 160  # pictures of a run: a small network takes its time for each on a CPU


def pictures(latent_format, latent: torch.Tensor) -> torch.Tensor:
    """B x C x (T) x H x W in the sampler's space -> B x T x H x W x 3 in 0..1: by TAESD where the
    user has chosen that for previews and its file is there, else by the format's colors."""
    if latent_format is None or latent.ndim != 4 or len(latent) > MOST_BY_NETWORK:
        return quick_rgb(latent_format, latent)
    device = comfy.model_management.get_torch_device()
    previewer = latent_preview.get_previewer(device, latent_format)
    if not isinstance(previewer, latent_preview.TAESDPreviewerImpl):
        return quick_rgb(latent_format, latent)
    drawn = [np.array(previewer.decode_latent_to_preview(one[None].to(device))) for one in latent]
    return torch.from_numpy(np.stack(drawn)).unsqueeze(1).float() / 255


def quick_rgb(latent_format, latent: torch.Tensor) -> torch.Tensor:
    """B x C x (T) x H x W in the sampler's space -> B x T x H x W x 3 in 0..1; gray where the
    format knows no colors."""
    size = latent.shape[-2:]
    reshape = getattr(latent_format, "latent_rgb_factors_reshape", None)
    factors = getattr(latent_format, "latent_rgb_factors", None)
    latent = (reshape(latent) if reshape and factors else latent).float()
    if factors is None:
        picture = latent.mean(1, keepdim=True).movedim(1, -1).repeat_interleave(3, -1)
    else:
        bias = getattr(latent_format, "latent_rgb_factors_bias", None)
        picture = F.linear(latent.movedim(1, -1), torch.tensor(factors).T,
                           None if bias is None else torch.tensor(bias))
    if picture.ndim == 4:
        picture = picture.unsqueeze(1)
    if picture.shape[2:4] != size:  # a reshape may have unfolded positions
        planes = picture.flatten(0, 1).movedim(-1, 1)
        picture = F.interpolate(planes, size, mode="area").movedim(1, -1).unflatten(
            0, picture.shape[:2])
    return ((picture + 1) / 2).clamp(0, 1)


def latent_format_of(trajectory):
    """Of the model that it was sampled with; None where that is not known, or not linked."""
    guider = getattr(parts_of(trajectory)[0].recipe, "guider", None)
    return guider.model_patcher.model.latent_format if hasattr(guider, "model_patcher") else None
