"""The sampler nodes: outputs, manners of a stock sampler, refusals."""

import json

import comfy.samplers
import comfy.utils
import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes
from comfy_extras.nodes_differential_diffusion import DifferentialDiffusion

MODELS = ["sd15", "sd15_v", "sd3", "flux", "wan"]
MODES = ["free", "light", "accurate", "paper"]
OPTIONS = {"mode": "accurate", "nodes": 0, "skip_interval": 1, "deviations": 0,
           "meaning": "independent", "uncertainty_seed": 5, "keep_steps": 10}


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
    latent, variance, trajectory, scores, report = ksampler(case, mode=mode)
    assert torch.equal(latent["samples"], stock["samples"]) == (mode != "paper")
    assert latent.keys() == variance.keys() == stock.keys() and latent["mine"] == "kept"
    values = variance["samples"]
    assert values.shape == latent["samples"].shape and values.dtype == latent["samples"].dtype
    assert torch.isfinite(values).all() and values.min() >= 0 and values.max() > 0
    assert scores == pack.core.scores.of_trajectory(trajectory)["relative change"].tolist()
    assert min(scores) > 0
    assert torch.allclose(trajectory.latent_mean(), latent["samples"], atol=1e-4)
    assert trajectory.steps.tolist() == list(range(6))
    said = json.loads(report)
    assert said["scores"] == scores and said["mode"] == mode
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
        ksampler(case, posterior=object())


def test_free_is_the_variance_of_the_last_denoised(case, ksampler):
    case = case("sd15")
    case.steps = 5
    denoised = []
    case.observed(lambda call: denoised.append(call.denoised))
    variance = torch.stack(denoised[-2:]).var(0, unbiased=False)
    scale = case.model.model.latent_format.scale_factor
    torch.testing.assert_close(ksampler(case, mode="free")[1]["samples"], variance / scale**2)


def test_paper_follows_algorithm_2_with_predictions_of_the_hosts_model(case, pack, ksampler,
                                                                       posterior_of):
    """Against the core's iteration on the same model, called here without the sampler adapter."""
    case = case("sd3")
    case.cfg, case.steps = 1.0, 4
    llla = posterior_of(case)
    record, _ = case.layer()
    seeds = [pack.core.trajectory.mixed_seed(5, 0)]
    calls = []
    case.observed(calls.append)
    sigmas = torch.stack([call.sigma[0] for call in calls] + [torch.tensor(0.0)])

    def with_posterior(x, sigma):
        seen = []
        guider = stock_nodes.BasicGuider.execute(case.model, case.positive)[0]
        one = case.watcher(seen.append)
        at = torch.tensor([sigma, sigma / 2])
        noise = stock_nodes.DisableNoise.execute()[0]
        # x enters as a latent that is noised no further: x / (1 - sigma) times (1 - sigma)
        pack.sampling.sample_guider(guider, Entering(one, x), noise,
                                    comfy.samplers.sampler_object("euler"), at, case.latent)
        (call,) = seen
        predictive = pack.core.posterior.Predictive(
            llla.posterior, call.chunks[0].features, record.outputs,
            to_grid=lambda tokens: record.to_grid(tokens, x.shape))
        return (x - call.denoised) / sigma, predictive

    expected = pack.core.bayesdiff.bayesdiff(
        lambda x, sigma: torch.cat([with_posterior(one[None], sigma)[0] for one in x]),
        with_posterior, calls[0].x, sigmas, pack.core.rules.ddim, {0, 2}, 3,
        pack.core.bayesdiff.ImageNoise(seeds, calls[0].x.shape[1:]))
    latent, variance, trajectory, *_ = ksampler(case, mode="paper", deviations=3)
    torch.testing.assert_close(trajectory.mean[-1], expected.sample, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(trajectory.variance[-1], expected.variance, rtol=1e-3, atol=1e-5)


class Entering:
    """A watcher that puts its own x in place of the sampler's."""

    def __init__(self, inner, x):
        self.tap, self._inner, self._x = inner.tap, inner, x

    def run(self, run):
        return self._inner.run(run._replace(x=self._x))


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
    latent, variance, _, scores, _ = pack.samplers.BayesDiffSamplerCustom.execute(
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


class Foreign:
    """A sampler function of another pack."""

    @staticmethod
    def function(model, x, sigmas, extra_args=None, callback=None, disable=None):
        return x


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
    churning = comfy.samplers.ksampler("euler", {"s_churn": 0.5})
    foreign = comfy.samplers.KSAMPLER(Foreign.function)
    other_family = llla.__class__(**{**vars(llla)})
    other_family.about = llla.about.__class__(**{**vars(llla.about), "family": "Flux"})
    nested = {"samples": comfy.nested_tensor.NestedTensor([case.latent["samples"]])} \
        if hasattr(comfy, "nested_tensor") else None
    for attempt, words in [
            (lambda: ksampler(case, posterior=None), "accurate needs a posterior"),
            (lambda: ksampler(case, posterior=other_family), "fitted on Flux.*Stable Diffusion 3"),
            (custom(guider=dual), "DualCFG.*CFGGuider"),
            (custom(sampler=churning), "s_churn.*set these to 0"),
            (custom(sampler=foreign), "not one of ComfyUI's own"),
            (custom(sampler=comfy.samplers.ksampler("dpm_adaptive")), "error that all items"),
            (custom(sampler=comfy.samplers.ksampler("heun"), mode="paper"), "ddim or euler"),
            (custom(sigmas=torch.tensor([0.5, 1.0, 0.0])), r"sigmas\[0\] = 0.5 is followed by 1"),
            (custom(sigmas=torch.tensor([1.0, 0.0]), mode="free"), "steps .* at least 2")]:
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
def test_forecast_counts_the_calls_of_every_sampler(case, pack, sampler):
    case = case("sd15")
    case.sampler, case.steps, calls = sampler, 6, []
    pack.sampling.sample(case.model, pack.Observing(pack, case.model, calls.append),
                         *case.options())
    state = torch.get_rng_state()
    told = pack.forecast.forecast("free", 6, sampler, "normal")
    assert (told.steps, told.calls) == (6, len(calls))
    # It may be asked for while a picture is drawn, and must not draw from the same numbers.
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("mode, sampler", [("light", "dpmpp_2m"), ("accurate", "heun"),
                                           ("paper", "euler"), ("paper", "dpm_2")])
@pytest.mark.parametrize("meaning", ["independent", "shared"])
def test_forecast_is_what_a_run_takes(case, pack, posterior_of, mode, sampler, meaning):
    case = case("sd15")
    case.sampler, case.steps = sampler, 8
    options = {**OPTIONS, "mode": mode, "meaning": meaning}
    out = pack.samplers.BayesDiffKSampler.execute(case.model, *case.options(), case.denoise,
                                                  posterior_of(case), **options)
    told = pack.forecast.forecast(mode, 8, sampler, "normal",
                                  share=pack.samplers.SHARES.get(mode, 0), skip_interval=1,
                                  deviations=10 * (mode == "paper"), meaning=meaning)
    ran = out.ui["bayesdiff"][0]["schedule"]
    assert told._asdict() == {name: ran[name] for name in told._fields} and ran["flow"] is False
