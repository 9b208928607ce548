"""The sampler nodes: outputs, manners of a stock sampler, refusals."""

import json
from types import SimpleNamespace

import comfy.latent_formats
import comfy.model_base
import comfy.model_patcher
import comfy.samplers
import comfy.supported_models
import comfy.utils
import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes
from comfy_extras.nodes_differential_diffusion import DifferentialDiffusion

import nodes as host_nodes

MODELS = ["sd15", "sd15_v", "sd3", "flux", "wan"]
MODES = ["free", "light", "accurate", "paper"]
OPTIONS = {"mode": "accurate", "probe_levels": 0, "skip_interval": 1, "deviations": 0,
           "noise_model": "independent", "uncertainty_seed": 5, "keep_steps": 10, "check": "off"}


@pytest.fixture
def ksampler(pack, posterior_of):
    """Runs BayesDiff KSampler on a case; posterior_of(case) is connected unless another is."""
    def run(case, **options):
        posterior = options.pop("posterior", ...)
        posterior = posterior_of(case) if posterior is ... else posterior
        return pack.samplers.BayesDiffKSampler.execute(
            case.model, *case.options(), case.denoise, posterior, **{**OPTIONS, **options}).args
    return run


def batch(case, *indices):
    """The case with a batch whose items differ and know their places."""
    like = case.latent["samples"]
    case.latent = {"samples": torch.cat([case.random(*like.shape, seed=i) for i in indices]),
                   "batch_index": list(indices), "mine": "kept"}
    return case


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_every_mode_gives_picture_variance_trajectory_and_scores(pack, case, ksampler, name, mode):
    case = batch(case(name), 3, 1)
    case.steps = 5
    stock = case.stock()
    latent, variance, trajectory, scores, report, mean = ksampler(case, mode=mode)
    assert torch.equal(latent["samples"], stock["samples"]) == (mode != "paper")
    assert torch.equal(mean["samples"], latent["samples"]) == (mode != "paper")
    assert latent.keys() == variance.keys() == stock.keys() and latent["mine"] == "kept"
    values = variance["samples"]
    assert values.shape == latent["samples"].shape and values.dtype == latent["samples"].dtype
    assert torch.isfinite(values).all() and values.min() >= 0 and values.max() > 0
    assert scores == pack.core.scores.of_trajectory(trajectory)["doubt"].tolist()
    assert min(scores) > 0
    assert torch.allclose(trajectory.latent_picture(), latent["samples"], atol=1e-4)
    assert torch.allclose(trajectory.latent_mean(), latent["samples"], atol=1e-4) \
        == (mode != "paper")  # there the picture is a draw around E(x_0)
    assert trajectory.steps.tolist() == list(range(6))
    said = json.loads(report)
    assert said["scores"] == scores and said["mode"] == mode
    assert said["score"] == "doubt" and "relative to its contrast" in said["measures"]
    assert said["variance"] == ("trajectory variance" if mode == "free" else "the posterior's")
    assert said["summed_variance"] == pytest.approx(values.double().flatten(1).sum(1).tolist(),
                                                    rel=1e-5)
    assert said["calls"] == 5
    # light: one in five; accurate: half, rounded down; paper: S = 10 on steps 2 and 4
    assert said["extra_calls"] == {"free": 0, "light": 1, "accurate": 2, "paper": 20}[mode]


@pytest.mark.parametrize("mode", MODES)
def test_same_seeds_same_bits_and_another_seed_leaves_the_picture(case, ksampler, mode):
    case = case("sd3")
    first, again, other = (ksampler(case, mode=mode, uncertainty_seed=s) for s in (5, 5, 6))
    assert torch.equal(first[1]["samples"], again[1]["samples"])
    assert torch.equal(first[0]["samples"], other[0]["samples"]) == (mode != "paper")
    assert torch.equal(first[1]["samples"], other[1]["samples"]) == (mode == "free")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["sd15", "sd3"])
def test_an_images_variance_does_not_depend_on_its_batch_mates(case, ksampler, name, mode):
    together = ksampler(batch(case(name), 4, 1, 7), mode=mode)[1]["samples"]
    alone = ksampler(batch(case(name), 1), mode=mode)[1]["samples"]
    torch.testing.assert_close(together[1:2], alone, rtol=1e-2, atol=1e-3 * alone.max().item())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["sd15", "flux"])
def test_masked_pixels_have_no_variance(case, ksampler, name, mode):
    case = case(name)
    height, width = case.latent["samples"].shape[-2:]
    mask = torch.zeros(1, height, width)
    mask[..., : width // 2] = 1
    case.latent["noise_mask"], case.denoise = mask, 0.7
    stock = case.stock()["samples"]
    latent, variance, *_ = ksampler(case, mode=mode)
    assert torch.equal(latent["samples"], stock) == (mode != "paper")
    kept, drawn = variance["samples"][..., width // 2:], variance["samples"][..., : width // 2]
    assert kept.count_nonzero() == 0 and drawn.min() > 0


def test_differential_diffusion_keeps_its_picture_and_masks_the_variance(case, ksampler):
    case = case("sd15")
    case.steps = 6
    ramp = torch.linspace(0, 1, 8).expand(1, 8, 8).clone()
    case.latent["noise_mask"] = ramp
    case.model = DifferentialDiffusion.execute(case.model)[0]
    stock = case.stock()["samples"]
    latent, variance, *_ = ksampler(case)
    assert torch.equal(latent["samples"], stock)
    columns = variance["samples"].mean((0, 1, 2))
    assert columns[0] < 0.2 * columns[-1] and columns[-1] > 0


def test_free_works_with_a_model_that_has_no_known_last_layer(case, pack, ksampler, monkeypatch):
    case = case("wan")
    monkeypatch.setattr(pack.last_layers, "FAMILIES", [])
    stock = case.stock()["samples"]
    latent, variance, *_ = ksampler(case, mode="free", posterior=None)
    assert torch.equal(latent["samples"], stock) and variance["samples"].max() > 0
    with pytest.raises(pack.BayesDiffError, match="no known last affine layer"):
        ksampler(case, posterior=SimpleNamespace(about=None))


class Sound(torch.nn.Module):
    """The least that the host takes for a network, of latents B x channels x length."""

    dtype = torch.float32

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.7), requires_grad=False)

    def forward(self, x, timesteps, **_):
        return torch.tanh(self.scale * x) + 0.1 * timesteps[:, None, None]


@pytest.mark.parametrize("check", ["auto", "off"])
def test_sound_is_sampled_and_scored(pack, check):
    config = comfy.supported_models.SD3({"disable_unet_model_creation": True})
    config.latent_format = comfy.latent_formats.StableAudio1()
    model = comfy.model_base.BaseModel(config, comfy.model_base.ModelType.FLOW)
    model.diffusion_model, cpu = Sound(), torch.device("cpu")
    prompt = [[torch.zeros(1, 1, 4), {}]]
    options = (comfy.model_patcher.ModelPatcher(model, cpu, cpu), 3, 12, 2.0, "euler", "normal",
               prompt, prompt)
    latent = {"samples": torch.zeros(2, 64, 40)}
    stock, = host_nodes.common_ksampler(*options, latent)
    out = pack.samplers.BayesDiffKSampler.execute(*options, latent, 1.0, mode="auto", check=check)
    assert torch.equal(out.args[0]["samples"], stock["samples"])
    assert out.args[1]["samples"].shape == (2, 64, 40) and min(out.args[3]) > 0
    scored = pack.scores.BayesDiffScore.execute(["doubt"], trajectory=[out.args[2]])
    assert scored.args[0] == out.args[3]
    with pytest.raises(pack.BayesDiffError, match="Use the latent of a picture or a video"):
        pack.heatmap.BayesDiffHeatmap.execute(
            "fast", "glow", 0.5, "per image", 99.0, -1, 2, False, 0, "percentile", 95.0, 0, 0.0,
            False, trajectory=out.args[2])


def test_free_is_the_variance_of_the_last_denoised(case, ksampler):
    case = case("sd15")
    case.steps = 5
    denoised = []
    case.observed(lambda call: denoised.append(call.denoised))
    variance = torch.stack(denoised[-2:]).var(0, unbiased=False)
    scale = case.model.model.latent_format.scale_factor
    torch.testing.assert_close(ksampler(case, mode="free")[1]["samples"], variance / scale**2)


@pytest.mark.parametrize("sampler", ["euler", "dpm_2"])
@pytest.mark.parametrize("mode", MODES)
def test_progress_counts_the_extra_calls_and_ends_full(case, ksampler, posterior_of, mode, sampler):
    case, told = case("sd3"), []
    posterior_of(case)  # has a progress of its own, the first time
    case.steps, case.sampler = 6, sampler
    comfy.utils.set_progress_bar_global_hook(
        lambda value, total, preview, node_id=None, **_: told.append((value, total)))
    try:
        report = json.loads(ksampler(case, mode=mode)[4])
    finally:
        comfy.utils.set_progress_bar_global_hook(None)
    values = [value for value, _ in told]
    assert {total for _, total in told} == {6 + report["extra_calls"]}
    assert values == sorted(values) and values[-1] == 6 + report["extra_calls"]


@pytest.mark.parametrize("known", [True, False])
def test_one_step_is_the_stock_samplers_and_only_the_check_tells_of_it(case, pack, known):
    """As models draw that were made for it."""
    case = case("sd3")
    guider = stock_nodes.BasicGuider.execute(case.model, case.positive)[0]
    sampler = comfy.samplers.ksampler("euler") if known else comfy.samplers.KSAMPLER(sample_euler)
    inputs = (stock_nodes.RandomNoise.execute(7)[0], guider, sampler, torch.tensor([1.0, 0.0]),
              case.latent)
    stock = stock_nodes.SamplerCustomAdvanced.execute(*inputs)[0]["samples"]
    latent, variance, *_, report, _ = pack.samplers.BayesDiffSamplerCustom.execute(
        *inputs, check="quick").args
    said = json.loads(report)
    assert torch.equal(latent["samples"], stock) and not variance["samples"].any()
    assert said["notes"] == [pack.core.scores.STILL] and said["check_calls"] == 6
    assert said["scores"][0] > 0 and said["parts"]["pull 1.2, mean"][0] > 0


def test_kept_steps_hold_the_stock_samplers_states(case, ksampler):
    case = case("sd15")
    case.steps = 6
    states = []
    case.observed(lambda call: states.append(call.x))
    trajectory = ksampler(case, keep_steps=4)[2]
    assert trajectory.steps.tolist() == [0, 2, 4, 6]
    for at, step in enumerate([0, 2, 4]):
        assert torch.equal(trajectory.mean[at], states[step])
    assert trajectory.variance[0].count_nonzero() == 0
    assert trajectory.variance[1].sum() > 0


@pytest.mark.parametrize("sampler", ["dpm_fast", "uni_pc", "dpm_adaptive"])
def test_samplers_with_levels_of_their_own_keep_first_and_last(case, ksampler, sampler):
    case = case("sd3")
    case.sampler, case.steps = sampler, 4
    trajectory = ksampler(case, mode="free" if sampler == "dpm_adaptive" else "light")[2]
    assert trajectory.steps[0] == 0 and trajectory.steps[-1] == 4
    assert trajectory.variance[-1].sum() > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["sd15_v", "flux"])
def test_custom_node_gives_what_sampler_custom_advanced_gives(case, pack, posterior_of, name, mode):
    case = case(name)
    guider = stock_nodes.CFGGuider.execute(case.model, case.positive, case.negative, 4.0)[0]
    inputs = (stock_nodes.RandomNoise.execute(7)[0], guider,
              stock_nodes.KSamplerSelect.execute("euler")[0],
              stock_nodes.BasicScheduler.execute(case.model, "simple", 4, 1.0)[0], case.latent)
    stock = stock_nodes.SamplerCustomAdvanced.execute(*inputs)[0]["samples"]
    latent, variance, _, scores, *_ = pack.samplers.BayesDiffSamplerCustom.execute(
        *inputs, posterior_of(case), **{**OPTIONS, "mode": mode}).args
    assert torch.equal(latent["samples"], stock) == (mode != "paper")
    assert variance["samples"].min() >= 0 and scores[0] > 0


def test_unfinished_schedules_scale_the_variance_as_the_picture(case, pack, posterior_of):
    """A flow stopped at sigma > 0 is handed out divided by 1 - sigma: so must be its variance."""
    case = case("sd3")
    llla = posterior_of(case, 0.01)
    sigmas = torch.tensor([0.9, 0.7, 0.5])
    guider = stock_nodes.BasicGuider.execute(case.model, case.positive)[0]
    inputs = (stock_nodes.RandomNoise.execute(7)[0], guider,
              stock_nodes.KSamplerSelect.execute("euler")[0], sigmas, case.latent)
    _, variance, trajectory, *_ = pack.samplers.BayesDiffSamplerCustom.execute(
        *inputs, llla, **OPTIONS).args
    stock = stock_nodes.SamplerCustomAdvanced.execute(*inputs)[0]["samples"]
    assert torch.allclose(trajectory.latent_mean(), stock, atol=1e-4)
    spread = trajectory.deviations[-1].square()
    early, late = spread[:trajectory.early], spread[trajectory.early:]
    total = sum(part.mean(0) for part in (early, late) if len(part))
    ratio = variance["samples"].sum() / (total * trajectory.scale**2).sum()
    assert ratio.item() == pytest.approx(1, abs=0.05)


def sample_euler(model, x, sigmas, extra_args=None, callback=None, disable=None, tape=None):
    """A sampler of another pack, with a name of the host's; it writes into one buffer."""
    estimate = torch.empty_like(x)
    for i, (sigma, after) in enumerate(zip(sigmas, sigmas[1:])):
        estimate.copy_(model(x, sigma * x.new_ones(len(x)), **extra_args))
        callback({"x": x, "i": i, "sigma": sigma, "sigma_hat": sigma, "denoised": estimate})
        x = x + (after - sigma) * (x - estimate) / sigma
    return x


@pytest.mark.parametrize("mode", ["auto", "light", "accurate"])
@pytest.mark.parametrize("make, words", [
    (lambda: comfy.samplers.KSAMPLER(sample_euler), "not one of ComfyUI's own"),
    (lambda: comfy.samplers.ksampler("dpm_adaptive"), "not known to treat each image"),
    (lambda: comfy.samplers.sampler_object("sa_solver_pece"), "rounds differently for other batch"),
    (lambda: comfy.samplers.ksampler("euler", {"s_churn": 0.5}), "with s_churn")])
def test_a_sampler_that_is_not_known_is_observed_in_mode_free_with_a_word(case, pack, posterior_of,
                                                                           mode, make, words):
    case = case("sd3")
    guider = stock_nodes.BasicGuider.execute(case.model, case.positive)[0]
    inputs = (stock_nodes.RandomNoise.execute(7)[0], guider, make(),
              torch.tensor([1.0, 0.7, 0.4, 0.2, 0.0]), case.latent)
    stock = stock_nodes.SamplerCustomAdvanced.execute(*inputs)[0]["samples"]
    latent, variance, trajectory, _, report, _ = pack.samplers.BayesDiffSamplerCustom.execute(
        *inputs, posterior_of(case), **{**OPTIONS, "mode": mode}).args
    said = json.loads(report)
    assert said["mode"] == "free" and words in said["why"] and said["extra_calls"] == 0
    assert torch.equal(latent["samples"], stock)
    assert variance["samples"].max() > 0 and trajectory.deviations.shape[1] == 0


def test_a_future_sampler_of_the_host_is_not_trusted(case, pack, monkeypatch):
    monkeypatch.setattr(sample_euler, "__module__", "comfy.k_diffusion.sampling")
    assert pack.known_samplers.why_not(comfy.samplers.KSAMPLER(sample_euler)) is None
    monkeypatch.setattr(sample_euler, "__name__", "sample_of_tomorrow")
    assert "sample_of_tomorrow is not known" in pack.known_samplers.why_not(
        comfy.samplers.KSAMPLER(sample_euler))


def test_auto_is_light_where_a_posterior_is_connected_and_free_elsewhere(case, ksampler):
    case = case("sd3")
    for options, mode, why in [({}, "light", "a posterior is connected"),
                               ({"posterior": None}, "free", "no posterior is connected")]:
        auto = ksampler(case, mode="auto", **options)
        chosen = ksampler(case, mode=mode, **options)
        assert torch.equal(auto[1]["samples"], chosen[1]["samples"])
        assert {**json.loads(auto[4]), "why": ""} == json.loads(chosen[4])
        assert json.loads(auto[4])["why"] == why


def test_auto_leaves_a_guider_of_its_own_kind_to_mode_free(case, pack, posterior_of):
    case = case("sd3")
    dual = stock_nodes.DualCFGGuider.execute(case.model, case.positive, case.negative,
                                             case.negative, 4.0, 3.0, "regular")[0]
    report = pack.samplers.BayesDiffSamplerCustom.execute(
        stock_nodes.RandomNoise.execute(7)[0], dual, comfy.samplers.ksampler("euler"),
        torch.tensor([1.0, 0.5, 0.0]), case.latent, posterior_of(case),
        **{**OPTIONS, "mode": "auto"}).args[4]
    assert json.loads(report)["mode"] == "free" and "own way" in json.loads(report)["why"]


@pytest.mark.parametrize("schedule, steps", [
    ({"skip_schedule": "interval", "skip_interval": 2}, [0, 3, 6]),
    ({"skip_schedule": "steps", "uncertain_steps": "1, 4,7"}, [1, 4, 7]),
    ({"skip_schedule": "steps", "uncertain_steps": "2"}, [2])])
@pytest.mark.parametrize("mode, noise_model", [("light", "independent"), ("accurate", "shared"),
                                               ("paper", "independent")])
def test_the_steps_asked_for_are_those_with_extra_calls(case, pack, posterior_of, schedule, steps,
                                                         mode, noise_model):
    """Told by the network's calls themselves: more than one at a noise level."""
    case = case("sd3")
    case.steps, levels = 8, []
    case.model = case.model.clone()
    case.model.set_model_unet_function_wrapper(
        lambda apply, args: (levels.append(args["timestep"][0].item()),
                             apply(args["input"], args["timestep"], **args["c"]))[1])
    options = {**OPTIONS, "mode": mode, "noise_model": noise_model, **schedule}
    out = pack.samplers.BayesDiffKSampler.execute(case.model, *case.options(), case.denoise,
                                                  posterior_of(case), **options)
    ran = out.ui["bayesdiff"][0]["schedule"]
    in_order = sorted(set(levels), reverse=True)
    probed = [step for step, level in enumerate(in_order) if levels.count(level) > 1]
    # At the first step there is nothing to measure yet.
    assert probed == [step for step in steps if step] == [step for step in ran["uncertain"] if step]
    told = pack.cost.cost(pack.by_mode.Options(**options), 8, "euler", "normal", flow=True)
    assert told.uncertain == ran["uncertain"] and told.extra_calls == ran["extra_calls"]


def test_denoised_estimates_that_are_kept_hold_no_larger_batch(case, pack, ksampler, monkeypatch):
    kept = []
    add = pack.core.trajectory.TrajectoryVariance.add
    monkeypatch.setattr(pack.core.trajectory.TrajectoryVariance, "add",
                        lambda self, denoised, *_: (kept.append(denoised), add(self, denoised)))
    case = case("sd3")
    ksampler(case, mode="accurate")
    assert {one.untyped_storage().nbytes() for one in kept} == {kept[0].nbytes}


def test_what_cannot_be_true_is_refused_in_words(case, pack, posterior_of, ksampler):
    case = case("sd3")
    llla = posterior_of(case)

    def custom(guider=None, sampler=None, sigmas=None, **options):
        guider = guider or stock_nodes.BasicGuider.execute(case.model, case.positive)[0]
        return lambda: pack.samplers.BayesDiffSamplerCustom.execute(
            stock_nodes.RandomNoise.execute(7)[0], guider,
            sampler or stock_nodes.KSamplerSelect.execute("euler")[0],
            torch.tensor([1.0, 0.5, 0.0]) if sigmas is None else sigmas, case.latent, llla,
            **{**OPTIONS, **options})

    dual = stock_nodes.DualCFGGuider.execute(case.model, case.positive, case.negative,
                                             case.negative, 4.0, 3.0, "regular")[0]
    other_family = llla.__class__(**{**vars(llla)})
    other_family.about = llla.about.__class__(**{**vars(llla.about), "family": "Flux"})
    nested = {"samples": comfy.nested_tensor.NestedTensor([case.latent["samples"]])} \
        if hasattr(comfy, "nested_tensor") else None
    for attempt, words in [
            (lambda: ksampler(case, posterior=None), "accurate needs a posterior"),
            (lambda: ksampler(case, posterior=other_family), "fitted on Flux.*Stable Diffusion 3"),
            (custom(guider=dual), "DualCFG.*CFGGuider"),
            (custom(skip_schedule="steps", uncertain_steps="0,2"), "step 2 .* 0 to 1 were"),
            (custom(skip_schedule="steps", uncertain_steps="1,0"), "rising numbers without"),
            (custom(skip_schedule="steps", uncertain_steps="0;1"), "separated by commas"),
            (custom(skip_schedule="steps", uncertain_steps=" "), "is not a step"),
            (custom(sampler=comfy.samplers.ksampler("heun"), mode="paper"), "ddim or euler"),
            (custom(sigmas=torch.tensor([0.5, 1.0, 0.0])), r"sigmas\[0\] = 0.5 is followed by 1"),
            (custom(sigmas=torch.tensor([1.0]), mode="free"), "number of steps is 0, at least 1")]:
        with pytest.raises(pack.BayesDiffError, match=words):
            attempt()
    if nested:
        case.latent = nested
        with pytest.raises(pack.BayesDiffError, match="several tensors"):
            ksampler(case)


def test_another_checkpoint_is_warned_of(case, pack, ksampler, posterior_of):
    case = case("sd3")
    llla = posterior_of(case)
    assert json.loads(ksampler(case)[4])["notes"] == []
    changed = llla.__class__(**{**vars(llla), "fingerprint": llla.fingerprint * 1.1})
    (note,) = json.loads(ksampler(case, posterior=changed)[4])["notes"]
    assert "differs by" in note


@pytest.mark.parametrize("sampler", [sampler for sampler in comfy.samplers.KSampler.SAMPLERS
                                     if sampler != "dpm_adaptive"  # depend on the picture
                                     and not sampler.startswith("ar_")])
def test_cost_counts_the_calls_of_every_sampler(case, pack, sampler):
    case = case("sd15")
    case.sampler, case.steps, calls = sampler, 6, []
    pack.sampling.sample(case.model, case.observer(calls.append),
                         *case.options())
    state = torch.get_rng_state()
    told = pack.cost.cost(pack.by_mode.Options("free"), 6, sampler, "normal")
    assert (told.steps, told.calls) == (6, len(calls))
    # It may be asked for while a picture is drawn, and must not draw from the same numbers.
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("mode, sampler", [("light", "dpmpp_2m"), ("accurate", "heun"),
                                           ("paper", "euler"), ("paper", "dpm_2")])
@pytest.mark.parametrize("noise_model", ["independent", "shared"])
def test_cost_is_what_a_run_takes(case, pack, posterior_of, mode, sampler, noise_model):
    case = case("sd15")
    case.sampler, case.steps = sampler, 8
    options = {**OPTIONS, "mode": mode, "noise_model": noise_model}
    out = pack.samplers.BayesDiffKSampler.execute(case.model, *case.options(), case.denoise,
                                                  posterior_of(case), **options)
    told = pack.cost.cost(pack.by_mode.Options(**options), 8, sampler, "normal")
    ran = out.ui["bayesdiff"][0]["schedule"]
    assert told._asdict() == {name: ran[name] for name in told._fields} and ran["flow"] is False


@pytest.mark.parametrize("mode", ["accurate", "paper"])
def test_the_posteriors_factor_is_laid_out_once_a_run(case, pack, ksampler, posterior_of,
                                                      monkeypatch, mode):
    case = case("sd3")
    posterior, laid_out = pack.core.posterior.FullPosterior, []
    made = posterior._affine_for
    monkeypatch.setattr(posterior, "_affine_for",
                        lambda self, phi: (laid_out.append(phi.dtype), made(self, phi))[1])
    given = posterior_of(case)
    assert isinstance(given.posterior, posterior)
    report = json.loads(ksampler(case, mode=mode)[4])
    assert report["calls"] == case.steps and len(laid_out) == 1
    assert not given.posterior._affine  # what is cached between runs holds no copy
