"""What a model's network predicts, told from the sampling class that is really in use."""

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
