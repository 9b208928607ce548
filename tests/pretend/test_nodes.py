"""Every node on a GPU, through the host's own loaders and memory management."""

import comfy.model_management
import comfy.taesd.taesd
import folder_paths
import pytest
import torch
from comfy_extras.nodes_multigpu import MultiGPUCFGSplitNode
from safetensors.torch import load_file, save_file
from torch.utils._pytree import tree_leaves

import nodes as host_nodes
from tests.host.test_best_of_n import best_of_n  # noqa: F401
from tests.host.test_filter import folders, parted  # noqa: F401
from tests.host.test_heatmap import SETTINGS as HEATMAP
from tests.host.test_score_image import score  # noqa: F401
from tests.pretend import device
from tools import tiny_models

MODELS = ["sd15", "sd3", "flux", "wan"]
MODES = ["free", "light", "accurate", "paper"]
FITTING = {"structure": "diagonal", "num_latents": 2, "timesteps": "uniform", "prior": "fixed",
           "prior_precision": 1.0, "temperature": 1.0, "empty_share": 0.5, "seed": 0, "size": 64}
LOW = 1.19  # gigabytes: less than the host keeps free for its own work, so weights stay away


@pytest.fixture(autouse=True)
def nothing_loaded():
    comfy.model_management.unload_all_models()
    yield
    comfy.model_management.unload_all_models()


@pytest.fixture
def fitted(pack):
    def run(case, **settings):
        inputs = {"model": case.model, "positive": case.positive, "negative": case.negative,
                  "latents": case.latent, **FITTING, **settings}
        return pack.llla.BayesDiffLLLAFit.execute(
            **{name: [value] for name, value in inputs.items()}).args[0]
    return run


@pytest.fixture
def sampled(pack, ksampler):
    def run(case, posterior=None, **options):
        return pack.samplers.BayesDiffKSampler.execute(
            case.model, *case.options(), case.denoise, posterior,
            **{**ksampler.options, **options}).args
    return run


def apart(one, other):
    """Relative: sums of 16 bits come out otherwise in batches of another size."""
    return float((one - other).norm() / other.norm())


def on_the_cpu(*outputs):
    """Nodes hand out what the host keeps between nodes: CPU tensors."""
    tensors = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    return tensors and all(one.device.type == "cpu" for one in tensors)


@pytest.mark.parametrize("name", MODELS)
def test_the_host_loads_the_model_onto_the_card(case, name):
    case = case(name)
    case.stock()
    weights = list(case.model.model.diffusion_model.parameters())
    assert {one.device for one in weights} == {comfy.model_management.get_torch_device()} \
        == {torch.device("cuda:0")}
    assert {one.dtype for one in weights} & {torch.float16, torch.bfloat16}


@pytest.mark.parametrize("name", MODELS)
def test_fit_and_every_mode_give_the_stock_picture_and_cpu_results(case, fitted, sampled, name):
    case = case(name)
    stock, llla = case.stock()["samples"], fitted(case)
    assert on_the_cpu(vars(llla) | {"posterior": vars(llla.posterior)})
    for mode in MODES:
        latent, variance, trajectory, *rest = sampled(case, None if mode == "free" else llla,
                                                      mode=mode)
        assert torch.equal(latent["samples"], stock) == (mode != "paper")
        assert on_the_cpu(latent, variance, list(vars(trajectory).values())[:10], rest)
        assert variance["samples"].max() > 0


@pytest.mark.parametrize("sampler", ["heun", "dpmpp_2m", "euler_ancestral", "dpmpp_2m_sde_gpu",
                                     "dpmpp_2m_sde", "euler_cfg_pp", "uni_pc", "lcm"])
def test_other_samplers_keep_the_picture_with_riders(case, fitted, sampled, sampler):
    case = case("sd3")
    case.sampler = sampler
    latent, variance, *_ = sampled(case, fitted(case), mode="accurate")
    assert torch.equal(latent["samples"], case.stock()["samples"])
    assert torch.isfinite(variance["samples"]).all()


def test_what_follows_the_sampler_works_and_stays_on_the_cpu(  # noqa: PLR0913
        case, fitted, sampled, pack, vae, resample, parted, best_of_n, score,  # noqa: F811
        monkeypatch, tmp_path):
    monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path))
    case = case("sd15")
    case.latent["samples"] = torch.cat([case.random(1, 4, 8, 8, seed=i) for i in (1, 2)])
    latent, variance, trajectory, *_ = sampled(case, fitted(case), mode="accurate")
    for method in ("fast", "pixel"):
        found = pack.heatmap.BayesDiffHeatmap.execute(
            **{**HEATMAP, "method": method, "trajectory": trajectory, "vae": vae}).args
        assert on_the_cpu(found) and torch.isfinite(found[0]).all()
    kept = parted(trajectory=trajectory)
    assert on_the_cpu(vars(kept))
    assert on_the_cpu(resample(trajectory)[0]) and on_the_cpu(resample(trajectory, step=0)[0])
    case.latent["samples"] = case.latent["samples"][:1]
    assert on_the_cpu(best_of_n(case))
    assert on_the_cpu(score(case.model, case.positive, latent)[1])


@pytest.mark.parametrize("name", ["flux", "wan"])
def test_transformers_and_videos_are_resampled_and_chosen_from(case, fitted, sampled, resample,
                                                               best_of_n, name):  # noqa: F811
    case = case(name)
    llla = fitted(case)
    _, _, trajectory, *_ = sampled(case, llla, mode="light")
    assert on_the_cpu(resample(trajectory)[0]) and on_the_cpu(resample(trajectory, step=0)[0])
    assert on_the_cpu(best_of_n(case))


@pytest.mark.parametrize("name, mode", [("sd15", "accurate"), *(("flux", mode) for mode in MODES)])
def test_with_little_memory_weights_stay_away_and_the_picture_stays(case, fitted, sampled, name,
                                                                    mode):
    case = case(name)
    llla = fitted(case)
    comfy.model_management.unload_all_models()
    with device.card_of(LOW):
        stock = case.stock()["samples"]
        network = case.model.model.diffusion_model
        assert next(network.parameters()).device.type == "cpu" and case.model.model.model_lowvram
        latent, *_ = sampled(case, llla, mode=mode)
        again = fitted(case)
    assert torch.equal(latent["samples"], stock) == (mode != "paper")
    assert torch.allclose(again.ggn, llla.ggn, rtol=1e-3, atol=1e-3 * float(llla.ggn.max()))


def test_models_are_offloaded_between_nodes_and_nothing_of_a_run_stays_on_the_card(
        case, fitted, sampled, vae):
    case = case("sd15")
    llla, before = fitted(case), device.MACHINE.live
    outputs = sampled(case, llla, mode="light")
    vae.decode(outputs[0]["samples"])
    comfy.model_management.unload_all_models()
    assert device.MACHINE.live < before
    assert torch.equal(sampled(case, llla, mode="light")[1]["samples"], outputs[1]["samples"])


def test_running_out_of_memory_is_the_hosts_own_exception(case, fitted, sampled):
    case = case("sd15")
    llla = fitted(case)
    case.latent["samples"] = torch.zeros(1, 4, 64, 64)
    comfy.model_management.unload_all_models()
    with device.card_of(0.03), pytest.raises(torch.cuda.OutOfMemoryError):
        sampled(case, llla, mode="accurate")
    assert comfy.model_management.is_oom(torch.cuda.OutOfMemoryError("as the host knows it"))


def test_running_out_of_memory_in_an_extra_call_is_told_with_advice(case, fitted, sampled):
    case = case("sd15")
    llla, calls, fills = fitted(case), [], []

    def at_a_call(*_):
        calls.append(1)
        if fills and len(calls) == fills[0]:  # another program takes the rest of the card
            for card in device.MACHINE.cards:
                card.total = card.live

    handle = case.model.model.diffusion_model.register_forward_pre_hook(at_a_call)
    try:
        stock = sampled(case, llla, mode="accurate", check="off")[0]["samples"]
        fills.append(len(calls))  # the run ends with an extra call
        calls.clear()
        with device.card_of(8), pytest.raises(torch.cuda.OutOfMemoryError, match="or mode free"):
            sampled(case, llla, mode="accurate", check="off")
        fills.clear()
    finally:
        handle.remove()
    again = sampled(case, llla, mode="accurate", check="off")[0]["samples"]
    assert torch.equal(again, stock)


@pytest.fixture(scope="session")
def weights_of(tmp_path_factory):
    """A tiny model in another precision, as files and the loader's widget have it."""
    folder = tmp_path_factory.mktemp("weights")
    folder_paths.add_model_folder_path("diffusion_models", str(folder))

    def load(name, dtype, kind="default"):
        path = folder / f"{name}_{dtype}.safetensors".replace("torch.", "")
        source = tiny_models.write(name, folder)
        save_file({key: one.to(dtype) for key, one in load_file(source).items()}, path)
        return host_nodes.UNETLoader().load_unet(path.name, kind)[0]
    return load


@pytest.mark.parametrize("dtype, kind, kept", [
    (torch.float32, "default", torch.float16), (torch.float16, "default", torch.float16),
    (torch.bfloat16, "default", torch.bfloat16),
    (torch.float16, "fp8_e4m3fn", torch.float8_e4m3fn)])
@pytest.mark.parametrize("name", ["sd3", "flux"])
def test_precisions_of_the_weights_keep_the_picture(case, fitted, sampled, weights_of, name, dtype,
                                                    kind, kept):
    case = case(name)
    case.model = weights_of(name, dtype, kind)
    stock, llla = case.stock()["samples"], fitted(case)
    if name == "flux":
        assert case.model.model.diffusion_model.final_layer.linear.weight.dtype in (
            kept, torch.bfloat16)
    for mode in ("free", "accurate"):
        latent, variance, *_ = sampled(case, llla, mode=mode)
        assert torch.equal(latent["samples"], stock)
        assert torch.isfinite(variance["samples"]).all() and variance["samples"].max() > 0


@pytest.mark.parametrize("name, mode", [("sd15", "accurate"), *(("sd3", mode) for mode in MODES)])
def test_prompts_on_two_cards_give_the_picture_and_the_variance_of_one(case, fitted, sampled, name,
                                                                       mode):
    case = case(name)
    llla = fitted(case)
    stock, (_, alone, *_) = case.stock()["samples"], sampled(case, llla, mode=mode)
    case.model = MultiGPUCFGSplitNode.execute(case.model, 2).args[0]
    places = []
    for patcher in (case.model, *case.model.get_additional_models_with_key("multigpu")):
        patcher.model.diffusion_model.register_forward_hook(
            lambda module, inputs, output: places.append(output.device))
    split, (latent, variance, *_) = case.stock()["samples"], sampled(case, llla, mode=mode)
    assert set(places) == {torch.device("cuda:0"), torch.device("cuda:1")}
    assert torch.equal(latent["samples"], split) == (mode != "paper")
    assert apart(split, stock) < 0.01 and apart(variance["samples"], alone["samples"]) < 0.15
    assert on_the_cpu(latent, variance)
