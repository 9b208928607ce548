"""Mode paper: the published algorithm on the host's models, its rules and its refusals."""

import functools
import json
from types import SimpleNamespace

import comfy.samplers
import pytest
import torch
from comfy.k_diffusion import sampling as k_diffusion
from comfy_extras import nodes_custom_sampler as stock_nodes

BY_SAMPLER = "by sampler"


def with_energy(llla, level=0.7):
    """The posterior, with the same noise energy at every level."""
    counts = torch.full((32,), 2.0, dtype=torch.float64)
    return SimpleNamespace(**vars(llla), energy_sums=level * counts, energy_counts=counts)


@pytest.fixture
def run_paper(pack, posterior_of):
    """Runs the mode on a case: the LATENT's samples and the observation."""
    def run(case, uncertain=1, samples=3, paper_rule=BY_SAMPLER, seed=5, energy=0.7):
        indices = case.latent.get("batch_index", [0])
        seeds = [pack.core.trajectory.mixed_seed(seed, index) for index in indices]
        predictor = pack.predictor.Predictor(case.model, with_energy(posterior_of(case), energy))
        schedule = pack.core.skip_schedule.Schedule("interval", uncertain) \
            if isinstance(uncertain, int) else \
            pack.core.skip_schedule.Schedule("steps", listed=",".join(map(str, uncertain)))
        observe = functools.partial(pack.paper.observe, predictor=predictor, seeds=seeds,
                                    keep_steps=10, schedule=schedule, samples=samples,
                                    paper_rule=paper_rule)
        latent, seen = case.run_with(pack.sampling.Observer(observe, predictor.tap))
        return latent["samples"], seen
    return run


def entering(pack, inner, x):
    """The observer, with x in place of the sampler's."""
    return pack.sampling.Observer(lambda run: inner.observe(run._replace(x=x)), inner.tap)


def rule_in_core(pack, name, flow=False):
    rules = pack.core.rules
    return {"ddim": rules.ddim, "dpm_2": functools.partial(rules.dpm_solver_2, flow=flow),
            "ddpm": rules.ddpm, "reverse sde euler": rules.reverse_sde_euler,
            "analytic-dpm": lambda s, n: rules.analytic_dpm(s, n, 0.7)}[name]


@pytest.mark.parametrize("name, sampler, paper_rule, means", [
    ("sd3", "euler", BY_SAMPLER, "ddim"), ("sd3", "dpm_2", BY_SAMPLER, "dpm_2"),
    ("sd15", "ddim", BY_SAMPLER, "ddim"), ("sd15", "dpm_2", BY_SAMPLER, "dpm_2"),
    ("sd15", "ddpm", BY_SAMPLER, "ddpm"), ("sd15", "euler", "ddpm", "ddpm"),
    ("sd15", "ddpm", "analytic-dpm", "analytic-dpm"),
    ("sd15", "euler", "reverse sde euler", "reverse sde euler"),
])
def test_the_run_is_algorithm_2_with_predictions_of_the_hosts_model(
        case, pack, run_paper, posterior_of, name, sampler, paper_rule, means):
    """Against the core's iteration on the same model, called here without the sampler adapter."""
    case = case(name)
    case.cfg, case.steps, case.sampler = 1.0, 4, "euler"
    llla, (record, _), calls = posterior_of(case), case.layer(), []
    case.sampler = sampler
    case.observed(calls.append)
    sigmas = pack.sampling.levels(case.model, 4, sampler, "normal", 1.0)

    def with_posterior(x, sigma):
        seen = []
        guider = stock_nodes.BasicGuider.execute(case.model, case.positive)[0]
        noise = stock_nodes.DisableNoise.execute()[0]
        # Half of sigma, so that x is not scaled as at the end of a run.
        pack.sampling.sample_guider(guider, entering(pack, case.observer(seen.append), x),
                                    noise,
                                    comfy.samplers.sampler_object("euler"),
                                    torch.tensor([sigma, sigma / 2]), case.latent)
        (call,) = seen
        predictive = pack.core.posterior.Predictive(
            llla.posterior, call.chunks[0].features, record.outputs,
            to_grid=lambda outputs: record.to_grid(outputs, x.shape))
        return (x - call.denoised) / sigma, predictive

    expected = pack.core.algorithm.bayesdiff(
        lambda x, sigma: torch.cat([with_posterior(one[None], sigma)[0] for one in x]),
        with_posterior, calls[0].x, sigmas, rule_in_core(pack, means, name == "sd3"), {0, 2}, 3,
        pack.core.iteration.ImageNoise([pack.core.trajectory.mixed_seed(5, 0)],
                                       calls[0].x.shape[1:]))
    samples, seen = run_paper(case, paper_rule=paper_rule)
    trajectory = seen.trajectory
    torch.testing.assert_close(trajectory.mean[-1], expected.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(trajectory.sampled, expected.sample, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(trajectory.latent_picture(), samples, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(trajectory.variance[-1], expected.variance, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(trajectory.mean[-1], trajectory.sampled, rtol=1e-2)
    told = "\n".join(seen.notes)
    assert ("replaced the sampler" in told) == (paper_rule != BY_SAMPLER)
    assert ("adds noise at each step" in told) == (means not in ("ddim", "dpm_2"))


@pytest.mark.parametrize("sampler", ["euler", "dpm_2"])
def test_one_monte_carlo_sample_counts_as_an_extra_call(case, run_paper, sampler):
    case = case("sd15")
    case.steps, case.sampler, calls = 6, sampler, []
    case.observed(calls.append)
    _, seen = run_paper(case, samples=1)
    assert seen.uncertain == (0, 2, 4) and seen.calls == len(calls)
    assert seen.extra_calls == (2 if sampler == "euler" else 4)


@pytest.mark.parametrize("paper_rule", [BY_SAMPLER, "ddpm", "analytic-dpm", "reverse sde euler"])
def test_an_images_noise_is_its_own(case, run_paper, paper_rule):
    case = case("sd15")
    shape = case.latent["samples"].shape

    def run(*indices):
        case.latent = {"samples": torch.cat([case.random(*shape, seed=i) for i in indices]),
                       "batch_index": list(indices)}
        return run_paper(case, paper_rule=paper_rule)
    (together, seen), (alone, seen_alone) = run(4, 1, 7), run(1)
    torch.testing.assert_close(together[1:2], alone, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(seen.trajectory.variance[-1, 1:2],
                               seen_alone.trajectory.variance[-1], rtol=1e-2, atol=1e-2)


def test_steps_given_one_by_one_are_those_that_the_run_takes(case, pack, run_paper):
    case = case("sd15")
    case.steps = 6
    _, seen = run_paper(case, uncertain=(1, 4), samples=2)
    assert seen.uncertain == (1, 4) and (seen.calls, seen.extra_calls) == (6, 4)
    assert not seen.trajectory.variance[1].any() and seen.trajectory.variance[2].min() > 0
    _, seen = run_paper(case, uncertain=(0, 4), samples=2)
    assert seen.extra_calls == 2  # x is known at step 0
    with pytest.raises(pack.BayesDiffError, match="step 6 .* 0 to 5"):
        run_paper(case, uncertain=(0, 6))


def test_heatmaps_and_scores_take_the_picture_and_draw_around_the_mean(case, pack, run_paper):
    case = case("sd15")
    samples, seen = run_paper(case)
    trajectory = pack.sampling.with_latents(seen.trajectory, case.latent, {"samples": samples})
    source = pack.heatmap.source_of(None, trajectory, None, -1)
    torch.testing.assert_close(source.result, samples)
    assert torch.equal(source.mean, trajectory.latent_mean())
    assert not torch.allclose(source.mean, source.result, rtol=1e-2)
    scores = pack.core.scores
    torch.testing.assert_close(scores.of_trajectory(trajectory)["relative change"],
                               scores.relative_change(trajectory.latent_tail(), samples))
    assert torch.equal(scores.default(trajectory).parts["contrast, picture"],
                       pack.core.evidence.contrast(trajectory.sampled))


def foreign(model, x, sigmas, extra_args=None, callback=None, disable=None, **options):
    raise AssertionError("mode paper does not run the sampler itself")


@pytest.mark.parametrize("function, flow, options, paper_rule, words", [
    (k_diffusion.sample_heun, False, {}, BY_SAMPLER, "no rule for the sampler heun: choose ddim"),
    (foreign, False, {"a": torch.rand(500), "b": torch.rand(9)}, BY_SAMPLER, "foreign with a, b"),
    (functools.partial(foreign, a=torch.rand(9)), False, {}, BY_SAMPLER, "sampler partial"),
    (k_diffusion.sample_euler, False, {"s_churn": 0.5}, BY_SAMPLER, "euler with s_churn"),
    (k_diffusion.sample_ddpm, True, {}, BY_SAMPLER, "ddpm is not defined for flow"),
    *((k_diffusion.sample_euler, True, {}, rule, f"{rule} is not defined for flow")
      for rule in ("ddpm", "analytic-dpm", "reverse sde euler")),
    (k_diffusion.sample_euler, False, {}, "ddim", "paper_rule is 'ddim', one of"),
])
def test_what_the_paper_has_no_rule_for_is_refused_in_one_short_sentence(
        pack, function, flow, options, paper_rule, words):
    with pytest.raises(pack.BayesDiffError, match=words) as caught:
        pack.paper.rule_of(function, flow, options, paper_rule)
    said = str(caught.value)
    assert len(said) < 250 and "tensor" not in said and said.count(". ") == 0


def test_energies_that_are_none_are_refused_before_the_model_is_called(case, pack, run_paper):
    case = case("sd15")
    with pytest.raises(pack.BayesDiffError, match="noise energy is 3.0"):
        run_paper(case, paper_rule="analytic-dpm", energy=3.0)
    run_paper(case, paper_rule="ddpm", energy=3.0)


def test_the_nodes_report_names_steps_and_calls(case, pack, posterior_of):
    case = case("sd15")
    case.steps, case.sampler = 6, "ddpm"
    out = pack.samplers.BayesDiffKSampler.execute(
        case.model, *case.options(), 1.0, posterior_of(case), mode="paper", skip_interval=2,
        mc_samples=1, uncertainty_seed=5, keep_steps=10)
    report = json.loads(out.args[4])
    assert (report["calls"], report["extra_calls"]) == (6, 1)
    assert out.ui["bayesdiff"][0]["schedule"]["uncertain"] == [0, 3]
