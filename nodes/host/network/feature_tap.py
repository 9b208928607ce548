"""The feature tap: what flows into the last affine layer, read while the model samples.

The wrapper sits on a clone of the user's model and its hook lives only while a call runs, so that
neither the shared module nor the user's model keeps a trace.
"""

import contextlib
import math
from typing import NamedTuple

import torch
from comfy.patcher_extension import WrappersMP

from ....bayesdiff_core.checks import BayesDiffError
from ....bayesdiff_core.posterior import guided_features
from .last_layers import LastAffine

WRAPPER_KEY = "bayesdiff"
COND, UNCOND = 0, 1  # as in transformer_options["cond_or_uncond"]


class Chunk(NamedTuple):
    """Features of one conditioning in one network call."""

    branch: int  # COND or UNCOND
    features: torch.Tensor  # B x C x H x W of a convolution, B x N x C of the image's tokens
    latent_shape: tuple[int, ...]  # what the network was given: smaller than the latent in an area
    group: int = 0  # evaluations of the prompts in one model call: a patch such as PAG adds some


class FeatureTap:
    def __init__(self, layer: LastAffine):
        self.layer = layer
        self._chunks: list[Chunk] = []
        self._group = 0
        self._checked: set[tuple] = set()
        self.compiled = False  # what holds the layer was compiled, and ran as it is written

    def attach(self, model):
        """A clone of the MODEL that feeds this tap."""
        clone = model.clone()
        clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, WRAPPER_KEY, self._apply_model)
        clone.add_wrapper_with_key(WrappersMP.CALC_COND_BATCH, WRAPPER_KEY, self._calc_cond_batch)
        return clone

    def take(self) -> tuple[Chunk, ...]:
        """The chunks since the last take."""
        chunks, self._chunks, self._group = tuple(self._chunks), [], 0
        return chunks

    def _calc_cond_batch(self, executor, *args, **kwargs):
        self._group += 1
        return executor(*args, **kwargs)

    def _apply_model(self, executor, x, t, c_concat=None, c_crossattn=None, control=None,
                     transformer_options={}, **kwargs):
        model, seen = executor.class_obj, []
        with _as_written(model, self.layer.path) as (module, compiled):
            self.compiled |= compiled
            handle = module.register_forward_hook(
                lambda module, inputs, output: seen.append((inputs[0].detach(), output.detach())))
            try:
                denoised = executor(x, t, c_concat, c_crossattn, control, transformer_options,
                                    **kwargs)
            finally:
                handle.remove()
        if len(seen) != 1:
            raise BayesDiffError(f"{self.layer.path} ran {len(seen)} times in one network call,"
                                 " once was expected: bypass the node that caches, compiles or"
                                 " repeats the network (EasyCache, TorchCompile, ...), or use mode"
                                 " free.")
        features, output = seen[0]
        self._check(model, x, t, features, output, denoised)
        branches = transformer_options.get("cond_or_uncond", [COND])
        shape = (len(x) // len(branches), *x.shape[1:])
        parts = self.layer.crop(features, x.shape).chunk(len(branches))
        self._chunks += [Chunk(branch, part, shape, self._group)
                         for branch, part in zip(branches, parts)]
        return denoised

    def _check(self, model, x, t, features, output, denoised) -> None:
        """Proves, for every new set of shapes, that the layer's output is the model's output."""
        shapes = (features.shape, output.shape, x.shape)
        if shapes in self._checked:
            return
        output = self.layer.sign * self.layer.to_grid(output, x.shape).float()
        if output.shape != x.shape or not torch.allclose(
                model.model_sampling.calculate_denoised(t, output, x), denoised,
                rtol=1e-4, atol=1e-6, equal_nan=True):
            raise BayesDiffError(f"the output of {self.layer.path}, laid on the latent as for"
                                 f" {self.layer.family}, is not the output of this model: bypass"
                                 " the patch that changes it afterwards, or use mode free, which"
                                 " gives trajectory variance.")
        self._checked.add(shapes)


@contextlib.contextmanager
def _as_written(model, path: str):
    """The module at the path, and whether it or what holds it was compiled: that ignores hooks
    which are added later, so the module inside takes its place for a while. Blocks beside it that
    are compiled stay so."""
    holder, replaced = model, []
    try:
        for name in path.split("."):
            module = getattr(holder, name)
            inside = getattr(module, "_orig_mod", None)  # torch.compile's
            if inside is not None:
                replaced.append((holder, name, module))
                setattr(holder, name, inside)
                module = inside
            holder = module
        yield holder, bool(replaced)
    finally:
        for holder, name, module in reversed(replaced):
            setattr(holder, name, module)


def guided(chunks: tuple[Chunk, ...], scale: float, latent_shape: tuple[int, ...],
           device: torch.device | None = None) -> torch.Tensor:
    """The features of one guided model call on a latent of this shape."""
    branches: dict[int, torch.Tensor] = {}
    chunks = tuple(chunk for chunk in chunks if chunk.group == chunks[0].group)
    for chunk in chunks:
        if chunk.branch in branches or chunk.latent_shape != tuple(latent_shape):
            raise BayesDiffError("the conditioning is made of several parts (areas, masks, combined"
                                 " or scheduled prompts, or context windows), one positive and one"
                                 " negative prompt for the whole latent were expected: use mode"
                                 " free, which gives trajectory variance.")
        # The host may run the prompts on several devices (MultiGPU CFG Split), in any order.
        branches[chunk.branch] = chunk.features.to(device or chunk.features.device, torch.float32)
    if branches.keys() == {COND, UNCOND}:
        return guided_features(branches[COND], branches[UNCOND], scale)
    if branches.keys() == {COND} and math.isclose(scale, 1.0):
        return branches[COND]
    names = {COND: "positive", UNCOND: "negative"}
    ran = " and ".join(names.get(branch, f"number {branch}") for branch in branches)
    raise BayesDiffError(f"a call with cfg {scale:g} ran the {ran} prompt, a positive and a"
                         " negative one were expected (at cfg 1 the positive one): use mode free,"
                         " or do without start and end percents, and nodes that ask for the"
                         " prompts one by one (SkipLayerGuidanceDiTSimple).")
