"""What a model's network predicts and how it enters the denoised image, told by the sampling class
that is really in use."""

import torch
from comfy import model_sampling as host

# model_type is not asked: it stays what the checkpoint said after ModelSamplingDiscrete.
KINDS = {
    host.EPS: "noise (eps)",
    host.V_PREDICTION: "velocity (v)",
    host.EDM: "EDM (F)",
    host.X0: "denoised image (x0)",
    host.CONST: "flow velocity",
}


def prediction_kind(model_sampling) -> str:
    """Named by the class whose calculate_denoised runs; one we do not know is not guessed at."""
    owner = next(cls for cls in type(model_sampling).__mro__ if "calculate_denoised" in vars(cls))
    return KINDS.get(owner, f"not known ({owner.__name__})")


def slope(model_sampling, sigma: torch.Tensor) -> torch.Tensor:
    """d(denoised) / d(network output), B values: asked of the host, as model_type may be stale."""
    zero = torch.zeros(len(sigma), 1, device=sigma.device)
    rise = (model_sampling.calculate_denoised(sigma, zero + 1, zero)
            - model_sampling.calculate_denoised(sigma, zero, zero))
    return rise[:, 0]


def is_flow(model_sampling) -> bool:
    """Whether x holds 1 - sigma of the image, rather than all of it."""
    half, zero = torch.tensor([0.5]), torch.zeros(1, 1)
    return bool(model_sampling.noise_scaling(half, zero, zero + 1) < 0.75)
