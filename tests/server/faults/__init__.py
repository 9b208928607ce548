"""Nodes for tests alone: what they give runs out of memory, or fails, at a call that is chosen."""

import copy

import comfy.model_management
from comfy.patcher_extension import WrappersMP

ERRORS = {"memory": comfy.model_management.OOM_EXCEPTION, "fault": RuntimeError}
WHEN = {"first": ("INT", {"default": 1}), "last": ("INT", {"default": 1}),
        "error": (list(ERRORS),)}


class Fault:
    """Strikes at calls `first` to `last`."""

    def __init__(self, first, last, error):
        self.calls, self.first, self.last, self.error = 0, first, last, ERRORS[error]

    def __call__(self):
        self.calls += 1
        if self.first <= self.calls <= self.last:
            raise self.error(f"a fault that was asked for, at call {self.calls}")


class FaultyModel:
    CATEGORY, FUNCTION, RETURN_TYPES = "faults", "make", ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), **WHEN}}

    def make(self, model, first, last, error):
        fault, clone = Fault(first, last, error), model.clone()

        def apply_model(executor, *args, **kwargs):
            fault()
            return executor(*args, **kwargs)

        clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, "faults", apply_model)
        return (clone,)


class FaultyVAE:
    CATEGORY, FUNCTION, RETURN_TYPES = "faults", "make", ("VAE",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"vae": ("VAE",), **WHEN}}

    def make(self, vae, first, last, error):
        fault, faulty = Fault(first, last, error), copy.copy(vae)
        faulty.first_stage_model = copy.copy(vae.first_stage_model)
        decode = vae.first_stage_model.decode

        def failing(*args, **kwargs):
            fault()
            return decode(*args, **kwargs)

        faulty.first_stage_model.decode = failing
        return (faulty,)


NODE_CLASS_MAPPINGS = {"FaultyModel": FaultyModel, "FaultyVAE": FaultyVAE}
