"""Every stock node that patches a model and needs nothing else: the stock picture with each of
them, and a variance or a refusal in words. docs/model_patches.md is the same as a table.

Not FreeU and SelfAttentionGuidance: they look for levels and for a middle block that the tiny U-Net
has not."""

from typing import NamedTuple

import pytest
import torch


class Patch(NamedTuple):
    """A node, with settings at which it does something to a tiny model."""

    module: str
    node: str
    settings: dict
    model: str = "sd15"

    def __str__(self):
        return f"{self.node}-{self.model}"

    def put_on(self, model):
        kind = getattr(pytest.importorskip(f"comfy_extras.{self.module}"), self.node, None)
        if kind is None:
            pytest.skip(f"this host has no {self.node}")
        if hasattr(kind, "define_schema"):
            made = kind.execute(model, **self.settings)
            return getattr(made, "args", made)[0]
        return getattr(kind(), kind.FUNCTION)(model, **self.settings)[0]

ATTENTION = {"q": 1.1, "k": 0.9, "v": 1.2, "out": 0.9}
WHOLE_RUN = {"start_percent": 0.0, "end_percent": 1.0}
SHRINK = {"block_number": 1, "downscale_factor": 2.0, **WHOLE_RUN, "downscale_after_skip": True,
          "downscale_method": "bicubic", "upscale_method": "bicubic"}
ROPE = {"scale_x": 1.2, "shift_x": 1.0, "scale_y": 1.1, "shift_y": 0.0, "scale_t": 1.0,
        "shift_t": 0.0}
EDM = {"sampling": "v_prediction", "sigma_max": 80.0, "sigma_min": 0.01}
PATCHES = [
    Patch("nodes_fresca", "FreSca", {"scale_low": 1.1, "scale_high": 1.5, "freq_cutoff": 2}),
    Patch("nodes_tcfg", "TCFG", {}),
    Patch("nodes_cfg", "CFGZeroStar", {}),
    Patch("nodes_cfg", "CFGNorm", {"strength": 0.8}),
    Patch("nodes_apg", "APG", {"eta": 0.5, "norm_threshold": 2.0, "momentum": 0.3}),
    Patch("nodes_eps", "EpsilonScaling", {"scaling_factor": 1.02}),
    Patch("nodes_eps", "TemporalScoreRescaling", {"tsr_k": 0.9, "tsr_sigma": 1.0}),
    Patch("nodes_lumina2", "RenormCFG", {"cfg_trunc": 100.0, "renorm_cfg": 0.8}),
    Patch("nodes_tomesd", "TomePatchModel", {"ratio": 0.5}),
    Patch("nodes_mahiro", "Mahiro", {}),
    Patch("nodes_model_downscale", "PatchModelAddDownscale", SHRINK),
    Patch("nodes_hypertile", "HyperTile", {"tile_size": 32, "swap_size": 2, "max_depth": 0,
                                           "scale_depth": False}),
    Patch("nodes_attention_multiply", "UNetSelfAttentionMultiply", ATTENTION),
    Patch("nodes_attention_multiply", "UNetCrossAttentionMultiply", ATTENTION),
    Patch("nodes_video_model", "VideoLinearCFGGuidance", {"min_cfg": 2.0}),
    Patch("nodes_video_model", "VideoTriangleCFGGuidance", {"min_cfg": 2.0}),
    Patch("nodes_nag", "NAGuidance", {"nag_scale": 5.0, "nag_alpha": 0.5, "nag_tau": 1.5}),
    Patch("nodes_model_advanced", "ModelSamplingContinuousEDM", EDM),
    Patch("nodes_model_advanced", "ModelSamplingContinuousV", EDM),
    Patch("nodes_model_advanced", "ModelComputeDtype", {"dtype": "bf16"}),
    Patch("nodes_model_advanced", "ModelSamplingSD3", {"shift": 5.0}, "sd3"),
    Patch("nodes_sd3", "SkipLayerGuidanceSD3", {"layers": "0", "scale": 3.0, **WHOLE_RUN}, "sd3"),
    Patch("nodes_slg", "SkipLayerGuidanceDiT", {
        "double_layers": "0", "single_layers": "", "scale": 3.0, **WHOLE_RUN,
        "rescaling_scale": 0.5}, "flux"),
    Patch("nodes_model_advanced", "ModelSamplingFlux", {
        "max_shift": 1.5, "base_shift": 0.3, "width": 512, "height": 512}, "flux"),
    Patch("nodes_nag", "NAGuidance", {"nag_scale": 5.0, "nag_alpha": 0.5, "nag_tau": 1.5}, "flux"),
    Patch("nodes_rope", "ScaleROPE", ROPE, "wan"),
]
REFUSED = [  # with what is told
    (Patch("nodes_slg", "SkipLayerGuidanceDiTSimple", {
        "double_layers": "0", "single_layers": "", **WHOLE_RUN}, "flux"),
     "ask for the prompts one by one"),
]

@pytest.fixture
def patched(case, posterior_of):
    """A case with the node, and the stock sampler's picture."""
    def made(patch):
        one = case(patch.model)
        plain = one.stock()["samples"]
        posterior_of(one)  # of the model without the node
        one.model = patch.put_on(one.model)
        stock = one.stock()["samples"]
        assert not torch.equal(plain, stock), "the node does nothing here"
        return one, stock
    return made


@pytest.mark.parametrize("patch", PATCHES, ids=str)
def test_the_stock_picture_in_every_mode_and_a_variance(patched, ksampler, patch):
    case, stock = patched(patch)
    for mode in ("free", "accurate"):
        latent, trajectory = ksampler(case, mode=mode)
        assert torch.equal(latent["samples"], stock), mode
        assert torch.isfinite(trajectory.variance).all(), mode
        assert trajectory.variance[-1].max() > 0, mode


@pytest.mark.parametrize("patch, words", REFUSED, ids=str)
def test_the_stock_picture_in_mode_free_and_a_refusal_in_words(patched, ksampler, pack, patch,
                                                               words):
    case, stock = patched(patch)
    assert torch.equal(ksampler(case, mode="free")[0]["samples"], stock)
    with pytest.raises(pack.BayesDiffError, match=words):
        ksampler(case, mode="accurate")
