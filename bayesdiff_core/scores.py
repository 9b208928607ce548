"""Image-wise scores: one number an image."""

import torch


def total(variance: torch.Tensor) -> torch.Tensor:
    """The paper's score: the variance summed over all pixels and channels, B values."""
    return variance.flatten(1).sum(1, dtype=torch.float64)
