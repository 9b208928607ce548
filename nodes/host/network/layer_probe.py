"""What the last layer's weights are like, asked of the layer itself by running it.

Its weights may be quantised, patched or elsewhere, so they are never read. Run these while the
model is loaded.
"""

from typing import NamedTuple

import torch

from ....bayesdiff_core.checks import BayesDiffError
from ....bayesdiff_core.llla import Llla
from ....bayesdiff_core.posterior import LastLayer
from .last_layers import LastAffine

# Another checkpoint's layer answers differently by percents, another precision by a tenth of one.
SAME_CHECKPOINT = 0.005
ANSWERS = 64
CHUNK = 256  # impulses a run of the layer: bounds the memory


class Probe(NamedTuple):
    weight_norm: float  # squared, weights and bias
    outputs: int
    fingerprint: torch.Tensor


def probe(module, record: LastAffine, like: torch.Tensor) -> Probe:
    """like: features as they enter the layer; their device and precision are used."""
    shape = record.shape
    bias = _run(module, _impulses(shape, 0, 1, like) * 0)  # the answer to nothing
    norm = sum((_run(module, _impulses(shape, start, min(start + CHUNK, shape.features), like))
                - bias).square().sum().item() for start in range(0, shape.features, CHUNK))
    channel = 1 if shape.kernel else -1
    one_position = bias.movedim(channel, 0).flatten(1)[:, 0]
    return Probe(norm + one_position.square().sum().item(), bias.shape[channel],
                 fingerprint(module, record, like))


def fingerprint(module, record: LastAffine, like: torch.Tensor) -> torch.Tensor:
    """The layer's answer to fixed pseudo-random features: ANSWERS numbers, or fewer."""
    shape = record.shape
    size = (16, shape.features, shape.kernel, shape.kernel) if shape.kernel else \
        (1, 16, shape.features)
    count = torch.Size(size).numel()
    features = torch.arange(count, dtype=torch.float64).square().sin().reshape(size)
    answer = _run(module, features.to(like.device, like.dtype))
    if shape.kernel:  # the window's center sees every weight
        answer = answer[:, :, shape.kernel // 2, shape.kernel // 2]
    return answer.flatten()[:ANSWERS].float()


def difference(first: torch.Tensor, second: torch.Tensor) -> float:
    """Of two fingerprints, relative: 0 the same, about 1.4 unrelated."""
    if first.shape != second.shape:
        return float("inf")
    scale = max(first.norm().item(), second.norm().item())
    return (first - second).norm().item() / scale if scale else 0.0


def check_posterior(llla: Llla, record: LastAffine) -> None:
    """Refuses a posterior of another kind of model."""
    about = llla.about
    if about.family != record.family or about.layer != record.path:
        raise BayesDiffError(f"the posterior was fitted on {about.family} ({about.layer}), the"
                             f" model is {record.family} ({record.path}): load a posterior of this"
                             " model, or make one with LLLA Fit.")
    if about.shape != record.shape or about.outputs != record.outputs:
        raise BayesDiffError(f"the posterior was fitted on a last layer with {_size(about)}, the"
                             f" model's has {_size(record)}: load a posterior of this model, or"
                             " make one with LLLA Fit.")


def checkpoint_warning(llla: Llla, fingerprint: torch.Tensor) -> str | None:
    """Words if the model's last layer is not the one that the posterior was fitted on."""
    apart = difference(llla.fingerprint, fingerprint.cpu())
    if apart <= SAME_CHECKPOINT:
        return None
    return (f"Warning: the model's last layer differs by {apart:.1%} from the one this posterior"
            " was fitted on: another checkpoint, another precision or a LoRA on that layer. Treat"
            " the numbers as a rough guess, or run LLLA Fit on this model.")


def _impulses(shape: LastLayer, start: int, end: int, like: torch.Tensor) -> torch.Tensor:
    """One feature at a time set to 1: in the middle of a window, or in a token of its own."""
    rows = like.new_zeros(end - start, shape.features)
    rows.diagonal(start).fill_(1)
    if not shape.kernel:
        return rows[None]
    images = like.new_zeros(len(rows), shape.features, shape.kernel, shape.kernel)
    images[:, :, shape.kernel // 2, shape.kernel // 2] = rows
    return images


def _run(module, features: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return module(features).cpu().double()


def _size(layer) -> str:
    return (f"{layer.shape.features} features, kernel {layer.shape.kernel or 'none'},"
            f" {'a' if layer.shape.bias else 'no'} bias and {layer.outputs} outputs")
