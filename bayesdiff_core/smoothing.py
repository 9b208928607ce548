"""Local means: of a noisy variance, and of what is to be looked at without them."""

import torch
import torch.nn.functional as F

NEIGHBOR = 0.2  # weight of a neighboring pixel in the smoothed variance


def smoothed(variance: torch.Tensor) -> torch.Tensor:
    """A light 3 x 3 mean over the last two axes: few deviations leave pixel noise, which this
    trades for a little blur. Keeps 0 and a constant as they are."""
    kernel = variance.new_tensor([NEIGHBOR, 1.0, NEIGHBOR])
    kernel = (kernel[:, None] * kernel)[None, None]
    planes = variance.reshape(-1, 1, *variance.shape[-2:])
    weight = F.conv2d(torch.ones_like(planes[:1]), kernel, padding=1)
    return (F.conv2d(planes, kernel, padding=1) / weight).reshape(variance.shape)


def without_low_pass(picture: torch.Tensor) -> torch.Tensor:
    """Frames x H x W x channels less its local mean, over windows of 1/8 of the shorter side."""
    reach = max(min(picture.shape[1:3]) // 16, 1)
    return picture - window_means(window_means(picture, reach, 1), reach, 2)


def window_means(values: torch.Tensor, reach: int, dim: int) -> torch.Tensor:
    """Over `reach` entries either side, fewer at the border. The cost does not grow with reach."""
    length = values.shape[dim]
    at = torch.arange(length, device=values.device)
    start, end = (at - reach).clamp(min=0), (at + reach + 1).clamp(max=length)
    sums = torch.cat([torch.zeros_like(values.narrow(dim, 0, 1)), values.cumsum(dim)], dim)
    counts = (end - start).reshape(-1, *[1] * (values.ndim - 1 - dim % values.ndim))
    return (sums.index_select(dim, end) - sums.index_select(dim, start)) / counts
