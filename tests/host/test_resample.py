"""Resample From Timestep: other endings of a trajectory, by the sampler that made it."""

import gc
import itertools
import weakref

import comfy.model_base
import comfy.model_patcher
import comfy.samplers
import comfy.supported_models_base
import comfy.utils
import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes

import nodes as host_nodes


def longer(case, steps=6, images=1):
    case.steps = steps
    case.latent = {"samples": case.random(images, *case.latent["samples"].shape[1:], seed=3)}
    return case


@pytest.mark.parametrize("mode", ["free", "accurate", "paper"])
@pytest.mark.parametrize("sampler", ["euler", "dpm_2"])
def test_strength_0_gives_the_original_back_bit_for_bit(case, ksampler, resample, sampler, mode):
    case = longer(case("sd3"), images=2)
    case.sampler = sampler
    latent, trajectory = ksampler(case, mode=mode)
    for step in (0, 3):
        samples, report = resample(trajectory, step=step, strength=0.0, count=2)
        assert torch.equal(samples, latent["samples"].repeat_interleave(2, 0))
        assert report["calls"] == 0


@pytest.mark.parametrize("name, sampler", [
    *((name, sampler) for name in ("sd3", "wan") for sampler in ("euler", "heun", "dpm_2", "ddim")),
    ("sd15", "heun"), ("sd15_v", "euler")])
def test_sampling_on_from_an_unmoved_state_is_the_original_bit_for_bit(case, pack, ksampler, name,
                                                                      sampler):
    case = longer(case(name), steps=3, images=2)
    case.sampler = sampler
    latent, trajectory = ksampler(case, mode="free")
    assert torch.equal(latent["samples"], case.stock()["samples"])
    for step in range(3):
        variations = pack.variations.Variations(trajectory, trajectory.recipe, step)
        samples = variations.sample(torch.zeros(1, *trajectory.mean[0].shape))
        assert torch.equal(samples[0], latent["samples"])
        assert variations.rms() == [0.0, 0.0]


@pytest.mark.parametrize("sampler", ["dpmpp_2m", "dpmpp_2m_sde", "uni_pc", "euler_cfg_pp"])
def test_any_sampler_can_go_on_from_the_start_unmoved(case, pack, ksampler, sampler):
    case = longer(case("sd3"))
    case.sampler = sampler
    latent, trajectory = ksampler(case)
    variations = pack.variations.Variations(trajectory, trajectory.recipe, 0)
    samples = variations.sample(torch.zeros(1, *trajectory.mean[0].shape))
    assert torch.equal(samples[0], latent["samples"])


@pytest.mark.parametrize("name, step, draw, unit", [
    *(("sd3", *rest) for rest in itertools.product(
        (0, 2, 5), ("deviations", "gaussian"), ("noise level", "posterior"))),
    ("sd15", 4, "deviations", "noise level")])
def test_more_strength_changes_more(case, ksampler, resample, name, step, draw, unit):
    case = longer(case(name))
    latent, trajectory = ksampler(case)
    changes, moves = [], []
    for strength in (0.01, 0.1, 0.5, 1.0):
        samples, report = resample(trajectory, step=step, strength=strength, draw=draw,
                                   strength_unit=unit)
        changes.append((samples - latent["samples"]).norm().item())
        moves.append(report["rms"][0])
    assert changes == sorted(changes) and 0 < 5 * changes[0] < changes[-1]
    assert moves == sorted(moves)
    if unit == "noise level" and step:
        assert moves[-1] == pytest.approx(trajectory.sigmas[step].item(), rel=1e-4)
    if unit == "posterior" and draw == "gaussian" and step:
        expected = trajectory.variance[step].mean().sqrt().item()
        assert moves[-1] == pytest.approx(expected, rel=0.1)


def test_one_step_on_is_what_the_stock_sampler_makes_of_the_moved_state(case, pack, ksampler,
                                                                       resample):
    """By the host's SamplerCustomAdvanced on x_t as a latent, without noise added."""
    case = longer(case("sd15"))
    _, trajectory = ksampler(case)
    samples, _ = resample(trajectory, step=4)
    offset = pack.core.resampling.offsets(trajectory, 4, 1, 3, 0.5, "noise level", False)[0]
    scale = case.model.model.latent_format.scale_factor
    guider = stock_nodes.CFGGuider.execute(case.model, case.positive, case.negative, case.cfg)[0]
    expected = stock_nodes.SamplerCustomAdvanced.execute(
        stock_nodes.DisableNoise.execute()[0], guider, comfy.samplers.sampler_object("euler"),
        trajectory.sigmas[4:], {"samples": (trajectory.mean[4] + offset) / scale})[0]["samples"]
    torch.testing.assert_close(samples, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["sd15", "sd3"])
def test_step_0_gives_the_papers_adjacent_initial_positions(case, pack, ksampler, resample, name):
    """Against the stock sampler with mixed noise."""
    case, eta = longer(case(name)), 0.2
    _, trajectory = ksampler(case)
    samples, _ = resample(trajectory, step=0, strength=eta, seed=9)
    noise = comfy.sample.prepare_noise(case.latent["samples"], 7)
    seed = pack.core.trajectory.mixed_seed(trajectory.seeds[0].item(), 9)
    z = torch.randn(noise.shape, generator=torch.Generator().manual_seed(seed))

    class Mixed:
        seed = 7

        @staticmethod
        def generate_noise(latent):
            return (1 - eta)**0.5 * noise + eta**0.5 * z

    guider = stock_nodes.CFGGuider.execute(case.model, case.positive, case.negative, case.cfg)[0]
    sigmas = stock_nodes.BasicScheduler.execute(case.model, "normal", case.steps, 1.0)[0]
    expected = stock_nodes.SamplerCustomAdvanced.execute(
        Mixed, guider, comfy.samplers.sampler_object("euler"), sigmas, case.latent)[0]["samples"]
    torch.testing.assert_close(samples, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name, size, step", [
    ("sd15", (64, 64), 4), ("sd3", (9, 7), 0), ("sd3", (9, 7), 3), ("wan", (20, 24), 0),
    ("wan", (20, 24), 3)])
def test_outside_the_mask_nothing_changes_at_all(case, ksampler, resample, name, size, step):
    case = longer(case(name), images=2)
    latent, trajectory = ksampler(case)
    mask = torch.zeros(1, *size)
    mask[..., :size[1] // 2] = 1
    samples, _ = resample(trajectory, step=step, mask=mask, count=2, strength=1.0)
    original = latent["samples"].repeat_interleave(2, 0)
    width = original.shape[-1]
    same = samples == original
    assert same[..., width // 2 + 1:].all()
    assert same[..., :width // 2 - 1].float().mean() < 0.01
    whole, _ = resample(trajectory, step=step, count=2, strength=1.0)
    assert not torch.equal(samples[..., :1], whole[..., :1])


def test_a_mask_for_each_frame_of_each_clip_goes_by_clips(case, ksampler, resample):
    case = longer(case("wan"), images=2)
    latent, trajectory = ksampler(case, mode="free")
    frames = latent["samples"].shape[2]
    mask = torch.cat([torch.zeros(frames, 8, 8), torch.ones(frames, 8, 8)])
    samples, _ = resample(trajectory, step=2, mask=mask, strength=1.0, draw="gaussian")
    changed = (samples != latent["samples"]).flatten(1).float().mean(1)
    assert changed[0] == 0 and changed[1] > 0.9


def test_an_inpainting_mask_of_the_original_still_protects(case, ksampler, resample):
    case = longer(case("sd3"))
    mask = torch.zeros(1, 9, 7)
    mask[..., :4] = 1
    case.latent["noise_mask"], case.denoise = mask, 0.7
    latent, trajectory = ksampler(case)
    for given in (None, torch.ones(1, 9, 7)):
        samples, _ = resample(trajectory, mask=given)
        assert not torch.equal(samples[..., :4], latent["samples"][..., :4])
        torch.testing.assert_close(samples[..., 4:], latent["samples"][..., 4:], rtol=0, atol=1e-5)


def test_same_seed_same_bits_and_variations_differ(case, ksampler, resample):
    case = longer(case("sd3"), images=2)
    case.latent.update(batch_index=[4, 1], mine="kept")
    _, trajectory = ksampler(case)
    first, again, other = (resample(trajectory, count=3, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert len(first) == 6 and not torch.equal(first[0], first[1])


def test_batches_are_laid_out_image_by_image_and_keep_their_keys(case, pack, ksampler, resample):
    case = longer(case("sd3"), images=2)
    case.latent.update(batch_index=[4, 1], mine="kept")
    latent, trajectory = ksampler(case)
    varied, _ = pack.resample.BayesDiffResample.execute(
        trajectory, **{**resample.options, "count": 3, "strength": 0.01}).args
    assert varied["batch_index"] == [4, 4, 4, 1, 1, 1] and varied["mine"] == "kept"
    for i, sample in enumerate(varied["samples"]):
        near = [(sample - one).norm() for one in latent["samples"]]
        assert near[i // 3] < 0.2 * near[1 - i // 3]


def test_calls_and_progress_are_those_of_the_steps_left(case, ksampler, resample):
    case, told, calls = longer(case("sd3")), [], []
    _, trajectory = ksampler(case)
    network = case.model.get_model_object("diffusion_model")
    handle = network.register_forward_pre_hook(lambda *_: calls.append(None))
    comfy.utils.set_progress_bar_global_hook(
        lambda value, total, preview, node_id=None, **_: told.append((value, total)))
    try:
        _, report = resample(trajectory, step=4, count=3)
    finally:
        comfy.utils.set_progress_bar_global_hook(None)
        handle.remove()
    assert report["calls"] == len(calls) == 2 * 3
    values = [value for value, _ in told]
    assert {total for _, total in told} == {6}
    assert values == sorted(values) and values[-1] == 6
    assert report["step"] == 4 and report["sigma"] == trajectory.sigmas[4].item()


def test_fraction_takes_the_nearest_kept_step_below_the_last(case, ksampler, resample):
    case = longer(case("sd3"))
    _, trajectory = ksampler(case, keep_steps=4)
    assert trajectory.steps.tolist() == [0, 2, 4, 6]
    found = [resample(trajectory, fraction=fraction)[1]["step"] for fraction in (0, 0.3, 0.6, 1)]
    assert found == [0, 2, 4, 4]


def test_another_prompt_or_model_takes_over_from_the_step(case, pack, ksampler, resample):
    case = longer(case("sd3"))
    latent, trajectory = ksampler(case)
    before = dict(trajectory.recipe.guider.original_conds)
    prompted, _ = resample(trajectory, strength=0.0, positive=case.prompt(8))
    negated, _ = resample(trajectory, strength=0.0, negative=case.prompt(8))
    assert not torch.equal(prompted, latent["samples"])
    assert not torch.equal(negated, latent["samples"]) and not torch.equal(negated, prompted)
    same, _ = resample(trajectory, strength=0.0, positive=case.positive, negative=case.negative)
    assert torch.equal(same, latent["samples"])
    assert trajectory.recipe.guider.original_conds == before
    scaled = case.model.clone()
    scaled.set_model_unet_function_wrapper(
        lambda apply, given: 0.9 * apply(given["input"], given["timestep"], **given["c"]))
    changed, _ = resample(trajectory, strength=0.0, model=scaled)
    assert not torch.equal(changed, latent["samples"])
    assert torch.equal(resample(trajectory, strength=0.0, model=case.model)[0], latent["samples"])


def test_trajectories_of_the_custom_node_and_of_best_of_n_go_on(case, pack, posterior_of, ksampler,
                                                               resample):
    case = longer(case("sd3"))
    guider = stock_nodes.BasicGuider.execute(case.model, case.positive)[0]
    inputs = (stock_nodes.RandomNoise.execute(7)[0], guider,
              stock_nodes.KSamplerSelect.execute("heun")[0],
              stock_nodes.BasicScheduler.execute(case.model, "simple", 6, 1.0)[0], case.latent)
    latent, _, custom, *_ = pack.samplers.BayesDiffSamplerCustom.execute(
        *inputs, posterior_of(case), **ksampler.options).args
    best, _, one, *_ = pack.best_of_n.BayesDiffBestOfN.execute(
        case.model, *case.options(), 1.0, n=2, keep=1, drop_at=0.5, drop_schedule="once",
        seed_stride=1, rank_by="trajectory variance", uncertainty_seed=0, keep_steps=10).args
    for trajectory, original in ((custom, latent), (one, best)):
        assert torch.equal(resample(trajectory, strength=0.0)[0], original["samples"])
        on = pack.variations.Variations(trajectory, trajectory.recipe, 3)
        unmoved = on.sample(torch.zeros(1, *trajectory.mean[0].shape))[0]
        assert torch.equal(unmoved, original["samples"])


def test_a_free_trajectory_gives_gaussian_moves_and_says_so(case, ksampler, resample):
    case = longer(case("sd3"))
    _, trajectory = ksampler(case, mode="free")
    samples, report = resample(trajectory)
    assert "keeps no deviations" in report["notes"][0]
    same, report = resample(trajectory, draw="gaussian")
    assert torch.equal(samples, same) and report["notes"] == []


def test_the_recipe_holds_the_users_model_and_nothing_of_a_run(case, ksampler):
    case = longer(case("sd3"))
    _, trajectory = ksampler(case)
    recipe = trajectory.recipe
    assert recipe.guider.model_patcher is case.model
    assert recipe.guider.model_options is case.model.model_options
    assert not {"inner_model", "conds", "loaded_models"} & vars(recipe.guider).keys()
    assert recipe.noise.device.type == "cpu" and recipe.sampler.sampler_function.__name__ \
        == "sample_euler"
    gone = weakref.ref(trajectory.recipe.guider)
    del recipe, trajectory
    assert gone() is None or gc.collect() >= 0 and gone() is None


def test_what_cannot_be_true_is_refused_in_words(case, pack, ksampler, resample, load_model):
    case = longer(case("sd3"))
    _, trajectory = ksampler(case, keep_steps=4)
    mask = torch.zeros(0, 9, 7)
    certain = trajectory._replace(deviations=trajectory.deviations * 0)
    for attempt, words in [
            (lambda: resample(trajectory, step=3), r"step 3 is not in .* keeps \[0, 2, 4, 6\]"),
            (lambda: resample(trajectory, step=40), "step 40 is not in this trajectory"),
            (lambda: resample(trajectory, step=6), r"step 6 is the result .* \[0, 2, 4\]"),
            (lambda: resample(trajectory, count=0), "count is 0, at least 1"),
            (lambda: resample(trajectory, strength=-1.0), "strength is -1"),
            (lambda: resample(trajectory, mask=mask), r"mask is empty .*\(0, 9, 7\)"),
            (lambda: resample(trajectory._replace(recipe=None)), "does not say how it was sampled"),
            (lambda: resample(certain, step=2), "no variance at step 2"),
            (lambda: resample(trajectory, model=load_model("sd15")),
             r"MMDITWrapper \(16 latent.* as in SD3.*UNetModel \(4 latent.* as in SD15"),
            (lambda: resample(trajectory, model=load_model("flux")), "MMDIT.* Flux")]:
        with pytest.raises(pack.BayesDiffError, match=words):
            attempt()


def test_a_stock_latent_goes_in_and_out_as_a_stock_sampler_takes_it(case, ksampler, resample):
    """The result is a LATENT that KSampler samples on."""
    case = longer(case("wan"))
    _, trajectory = ksampler(case, mode="free")
    samples, _ = resample(trajectory, count=2)
    assert samples.shape == (2, *case.latent["samples"].shape[1:])
    again = host_nodes.common_ksampler(case.model, 1, 2, 1.0, "euler", "normal", case.positive,
                                       case.negative, {"samples": samples}, denoise=0.5)[0]
    assert again["samples"].shape == samples.shape


# ---- samplers that add noise


class GaussianNetwork(torch.nn.Module):
    """The exact network of images whose pixels are independent and of standard deviation SPREAD."""

    SPREAD = 0.6

    def __init__(self, flow, **_):
        super().__init__()
        self.flow, self.dtype, self.sigmas = flow, torch.float32, None

    def forward(self, x, timesteps, **_):
        sigma = (timesteps / 1000 if self.flow else self.sigmas(timesteps)).reshape(-1, 1, 1, 1)
        signal = 1 - sigma if self.flow else 1.0
        x = x if self.flow else x * (sigma**2 + 1).sqrt()
        denoised = signal * self.SPREAD**2 / (signal**2 * self.SPREAD**2 + sigma**2) * x
        return (x - denoised) / sigma


def gaussian_model(pack, flow):
    """As a MODEL of the host."""
    config = pack.demo_model.DemoConfig({"flow": flow, "dtype": torch.float32})
    kind = comfy.model_base.ModelType.FLOW if flow else comfy.model_base.ModelType.EPS
    network = comfy.model_base.BaseModel(config, kind, unet_model=GaussianNetwork)
    network.diffusion_model.sigmas = network.model_sampling.sigma
    return comfy.model_patcher.ModelPatcher(network, torch.device("cpu"), torch.device("cpu"))


def sampled(pack, ksampler, model, prompt, sampler, latent, steps, cfg=1.0):
    """Latents and trajectory of plain runs, in one batch."""
    out = pack.samplers.BayesDiffKSampler.execute(
        model, 1, steps, cfg, sampler, "normal", prompt, prompt, {"samples": latent}, 1.0, None,
        **{**ksampler.options, "mode": "free", "keep_steps": 100}).args
    return out[0]["samples"], out[2]


def correlation(one, other):
    return torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].item()


@pytest.mark.parametrize("flow, sampler", [
    *itertools.product([False, True], ["euler_ancestral", "dpmpp_2m_sde", "dpmpp_sde"]),
    (False, "ddpm"), (False, "dpm_2_ancestral"), (False, "seeds_2"), (True, "lcm")])
def test_resampling_keeps_the_statistics_of_samplers_that_add_noise(pack, ksampler, resample, flow,
                                                                    sampler):
    """From half way. The original ending is one of many, so it is as near to the variations as
    they are to each other."""
    prompt = [[torch.zeros(1, 1, 64), {}]]
    plain, trajectory = sampled(pack, ksampler, gaussian_model(pack, flow), prompt, sampler,
                                torch.zeros(8, 12, 16, 16), 20)
    samples, report = resample(trajectory, step=10, strength=1e-6, count=2, draw="gaussian")
    one, two = samples.unflatten(0, (8, 2)).unbind(1)
    assert report["calls"] and not torch.equal(one, two)
    for varied in (one, two):
        assert varied.var().item() == pytest.approx(plain.var().item(), rel=0.04)
        assert correlation(plain, varied) == pytest.approx(correlation(one, two), abs=0.03)


def test_resampling_a_trained_net_has_the_spread_of_many_plain_runs(pack, ksampler, resample):
    """The net that ships, on one class."""
    model = pack.demo.BayesDiffDemoModel.execute().args[0]
    prompt = pack.demo.BayesDiffDemoPrompt.execute("smiley").args[0]
    plain, trajectory = sampled(pack, ksampler, model, prompt, "euler_ancestral",
                                torch.zeros(32, pack.demo_model.CHANNELS, 16, 16), 12)
    varied, _ = resample(trajectory, step=6, strength=1e-6, draw="gaussian")
    assert varied.var(0).mean().item() == pytest.approx(plain.var(0).mean().item(), rel=0.12)


@pytest.mark.parametrize("sampler", ["euler_ancestral", "dpmpp_2m_sde"])
def test_with_noise_of_its_own_a_sampler_repeats_by_seed(case, ksampler, resample, sampler):
    case = longer(case("sd3"))
    case.sampler = sampler
    latent, trajectory = ksampler(case)
    assert torch.equal(resample(trajectory, step=3, strength=0.0)[0], latent["samples"])
    first, again, other = (resample(trajectory, step=3, strength=0.01, seed=seed)[0]
                           for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_churn_repeats_by_seed_too(case, pack, ksampler, resample):
    case = longer(case("sd3"))
    _, trajectory = ksampler(case)
    churning = comfy.samplers.ksampler("euler", {"s_churn": 1.0})
    first, again, other = (resample(trajectory, step=3, strength=0.0, seed=seed,
                                    sampler=churning)[0]
                           for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_eight_variations_of_mode_light_are_eight_pictures(case, ksampler, resample):
    """Where the plan has one early deviation and the late ones are still 0."""
    case = longer(case("sd3"), steps=10)
    latent, trajectory = ksampler(case, mode="light")
    assert trajectory.early == 1
    samples, _ = resample(trajectory, step=-1, count=8, strength=0.3)
    moved = (samples - latent["samples"]).flatten(1)
    between = torch.corrcoef(moved)[~torch.eye(8, dtype=torch.bool)]
    assert between.abs().max() < 0.9
