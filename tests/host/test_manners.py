"""What people add to a model or a prompt works with deviations riding along, or is refused."""

import json

import comfy.cldm.cldm
import comfy.controlnet
import comfy.hooks
import comfy.model_management
import comfy.ops
import pytest
import torch
from comfy_extras import nodes_model_advanced, nodes_pag

import nodes as host_nodes
from tools import tiny_models

OPTIONS = {"mode": "accurate", "probe_levels": 0, "skip_interval": 1, "deviations": 0,
           "noise_model": "independent", "uncertainty_seed": 5, "keep_steps": 2}


def rescale_cfg(case):
    case.model = nodes_model_advanced.RescaleCFG().patch(case.model, 0.7)[0]


def perturbed_attention(case):
    case.model = nodes_pag.PerturbedAttentionGuidance.execute(case.model, 3.0)[0]


def image_prompt(case):
    """As an IPAdapter does: adds to what cross attention gives."""
    case.model = case.model.clone()
    case.model.set_model_attn2_output_patch(lambda out, extra_options: out * 1.1 + 0.05)


def control_net(case):
    network = comfy.cldm.cldm.ControlNet(
        image_size=32, in_channels=4, hint_channels=3, model_channels=320, num_res_blocks=[1],
        channel_mult=[1], transformer_depth=[1], transformer_depth_middle=-1, context_dim=768,
        num_heads=8, use_spatial_transformer=True, operations=comfy.ops.disable_weight_init)
    generator = torch.Generator().manual_seed(1)
    network.load_state_dict({key: tiny_models.random_weight(key, weight.shape, generator)
                             for key, weight in network.state_dict().items()})
    control = comfy.controlnet.ControlNet(network,
                                          load_device=comfy.model_management.get_torch_device())
    case.positive, case.negative = host_nodes.ControlNetApplyAdvanced().apply_controlnet(
        case.positive, case.negative, control, torch.rand(1, 64, 64, 3), 0.8, 0.0, 0.9)


def hooked_weights(case):
    """A LoRA that a hook puts on for the positive prompt only."""
    record, layer = case.layer()
    out, inputs = layer.weight.shape[0], layer.weight.shape[1:]
    lora = {f"{record.path}.lora_up.weight": case.random(out, 2, 1, 1, seed=5),
            f"{record.path}.lora_down.weight": case.random(2, *inputs, seed=6) * 0.05}
    hooks = comfy.hooks.create_hook_lora(lora=lora, strength_model=0.8, strength_clip=0.0)
    case.positive = comfy.hooks.set_hooks_for_conditioning(case.positive, hooks)


def longer_negative(case):
    case.negative = case.prompt(2, tokens=9)


def prompt_of_each_image(case):
    case.positive[0][0] = case.random(2, 5, 768, seed=8)


@pytest.mark.parametrize("add", [rescale_cfg, perturbed_attention, image_prompt, control_net,
                                 hooked_weights, longer_negative, prompt_of_each_image])
def test_picture_stays_and_variance_comes(case, pack, posterior_of, add):
    case = case("sd15")
    case.latent["samples"] = case.latent["samples"].repeat_interleave(2, dim=0)
    plain, llla = case.stock()["samples"], posterior_of(case)
    add(case)
    stock = case.stock()["samples"]
    assert not torch.equal(stock, plain), "what was added does nothing here"
    latent, variance, _, _, report, _ = pack.samplers.BayesDiffKSampler.execute(
        case.model, *case.options(), case.denoise, llla, **OPTIONS).args
    assert torch.equal(latent["samples"], stock)
    assert variance["samples"].min() >= 0 and variance["samples"].max() > 0
    approximate = any("a patch changes the guidance" in note
                      for note in json.loads(report)["notes"])
    assert approximate == (add in (rescale_cfg, perturbed_attention))


def area(case):
    case.positive[0][1]["area"] = (4, 4, 0, 0)


def masked(case):
    mask = torch.zeros(1, 8, 8)
    mask[..., :4] = 1
    case.positive[0][1].update(mask=mask, mask_strength=1.0)
    case.positive += case.prompt(8)


def late(case):
    case.negative[0][1]["start_percent"] = 0.5


@pytest.mark.parametrize("add", [area, masked, late])
def test_prompts_made_of_parts_are_refused_with_a_posterior_and_fine_without(case, pack,
                                                                             posterior_of, add):
    case = case("sd15")
    llla = posterior_of(case)
    add(case)
    stock = case.stock()["samples"]

    def run(mode):
        return pack.samplers.BayesDiffKSampler.execute(
            case.model, *case.options(), case.denoise, llla, **{**OPTIONS, "mode": mode}).args
    with pytest.raises(pack.BayesDiffError, match="use mode free"):
        run("light")
    latent, variance, *_ = run("free")
    assert torch.equal(latent["samples"], stock) and variance["samples"].max() > 0
