"""With the tap on, pictures are those of the stock nodes, bit for bit."""

import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes
from safetensors.torch import save_file

from nodes import LoraLoaderModelOnly

MODELS = ["sd15", "sd15_v", "sd3", "flux", "wan"]


def check_equal(case):
    stock = case.stock()
    ours, calls = case.observed()
    assert torch.isfinite(stock["samples"]).all() and stock["samples"].std() > 0.01
    assert torch.equal(stock["samples"], ours["samples"])
    assert stock.keys() == ours.keys()
    return calls


@pytest.mark.parametrize("cfg", [1.0, 4.0])
@pytest.mark.parametrize("name", MODELS)
def test_result_equals_the_stock_ksampler(case, name, cfg):
    case = case(name)
    case.cfg = cfg
    calls = check_equal(case)
    assert [len(call.chunks) for call in calls] == [1 if cfg == 1 else 2] * 3


@pytest.mark.parametrize("name", MODELS)
def test_prompts_of_different_length_give_the_same_picture(case, name):
    case = case(name)
    case.negative = case.prompt(2, tokens=9)
    for call in check_equal(case):
        assert sorted(chunk.branch for chunk in call.chunks) == [0, 1]


@pytest.mark.parametrize("name", ["sd15", "sd3", "wan"])
def test_batches_with_a_batch_index_give_the_same_pictures(case, name):
    case = case(name)
    case.latent["samples"] = case.latent["samples"].repeat_interleave(2, dim=0)
    case.latent["batch_index"] = [4, 1]
    for call in check_equal(case):
        assert all(len(chunk.features) == 2 for chunk in call.chunks)


@pytest.mark.parametrize("name", ["sd15", "flux"])
def test_noise_mask_and_partial_denoise_give_the_same_picture(case, name):
    case = case(name)
    height, width = case.latent["samples"].shape[-2:]
    case.latent["noise_mask"] = torch.zeros(1, height * 8, width * 8)
    case.latent["noise_mask"][..., : width * 4] = 1
    case.denoise = 0.6
    check_equal(case)


def test_empty_latent_keeps_unknown_keys_and_loses_the_hosts_private_ones(case):
    case = case("sd3")
    case.latent = {"samples": torch.zeros(1, 4, 8, 8), "downscale_ratio_spacial": 8, "mine": "kept"}
    check_equal(case)
    assert case.observed()[0]["mine"] == "kept"


@pytest.mark.parametrize("sampler", ["dpmpp_2m", "dpm_2", "heun", "euler_ancestral", "dpmpp_sde",
                                     "lcm", "uni_pc", "euler_cfg_pp", "dpm_adaptive", "ddim"])
def test_other_samplers_give_the_same_picture(case, sampler):
    case = case("sd3")
    case.sampler = sampler
    assert check_equal(case)


@pytest.mark.parametrize("name", ["sd15", "sd3"])
def test_lora_patched_model_gives_the_same_picture(case, name, tmp_path):
    case = case(name)
    plain = case.stock()["samples"]
    case.model = with_lora(case, tmp_path)
    check_equal(case)
    assert not torch.equal(plain, case.stock()["samples"])


def with_lora(case, folder):
    """A rank-2 LoRA on the last layer itself, loaded by the stock node."""
    import folder_paths
    record, layer = case.layer()
    out, inputs = layer.weight.shape[0], layer.weight.shape[1:]
    save_file({f"{record.path}.lora_up.weight": case.random(out, 2, *[1] * (len(inputs) - 1),
                                                            seed=5),
               f"{record.path}.lora_down.weight": case.random(2, *inputs, seed=6) * 0.05},
              folder / f"lora_{case.name}.safetensors")
    folder_paths.add_model_folder_path("loras", str(folder))
    return LoraLoaderModelOnly().load_lora_model_only(
        case.model, f"lora_{case.name}.safetensors", 0.8)[0]


@pytest.mark.parametrize("name", ["sd15_v", "flux"])
def test_guider_gives_what_sampler_custom_advanced_gives(case, pack, name):
    case = case(name)
    guider = stock_nodes.CFGGuider.execute(case.model, case.positive, case.negative, 4.0)[0]
    noise = stock_nodes.RandomNoise.execute(7)[0]
    sampler = stock_nodes.KSamplerSelect.execute("dpmpp_2m")[0]
    sigmas = stock_nodes.BasicScheduler.execute(case.model, "karras", 3, 1.0)[0]
    stock = stock_nodes.SamplerCustomAdvanced.execute(noise, guider, sampler, sigmas, case.latent)
    state = {key: id(value) for key, value in vars(guider).items()}
    calls = []
    ours = pack.sampling.sample_guider(guider, case.observer(calls.append), noise, sampler, sigmas,
                                       case.latent)
    assert len(calls) == 3
    assert torch.equal(stock[0]["samples"], ours[0]["samples"])
    assert state == {key: id(value) for key, value in vars(guider).items()}
