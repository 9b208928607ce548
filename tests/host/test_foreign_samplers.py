"""Samplers with the habits of other packs': the same picture, the same numbers as a tidy one's.

Each takes euler's steps, or Heun's, and differs from the host's only in how it treats its tensors,
its callback and its model.
"""

import functools
import json

import comfy.samplers
import pytest
import torch
from comfy.k_diffusion import sampling as k_diffusion
from comfy_extras import nodes_custom_sampler as stock_nodes

STEPS = 6


def to_d(x, sigma, denoised):
    return (x - denoised) / sigma


def euler(habit):
    """A sampler function that takes euler's steps. habit(i, x, sigma, ask, tell, step) takes one:
    ask(x, sigma) calls the model, tell(i, x, sigma, denoised) the callback."""
    def sample_habit(model, x, sigmas, extra_args=None, callback=None, disable=None):
        ones = x.new_ones([len(x)])

        def ask(x, sigma):
            return model(x, sigma * ones, **extra_args)

        def tell(i, x, sigma, denoised):
            level = {} if sigma is None else {"sigma": sigma, "sigma_hat": sigma}
            callback({"i": i, "x": x, "denoised": denoised, **level})

        memory = {"buffer": torch.zeros_like(x), "sigmas": sigmas}
        for i in range(len(sigmas) - 1):
            x = habit(i, x, sigmas[i], sigmas[i + 1], ask, tell, memory)
        return x
    return sample_habit


def reuses_its_buffer(i, x, sigma, after, ask, tell, memory):
    memory["buffer"].copy_(ask(x, sigma))
    tell(i, x, sigma, memory["buffer"][:])
    return x + (after - sigma) * to_d(x, sigma, memory["buffer"])


def tells_late(i, x, sigma, after, ask, tell, memory):
    denoised = ask(x, sigma)
    x = x + (after - sigma) * to_d(x, sigma, denoised)
    tell(i, x, sigma, denoised)
    return x


def computes_in_place_and_tells_late(i, x, sigma, after, ask, tell, memory):
    denoised = ask(x, sigma)
    x += (after - sigma) * to_d(x, sigma, denoised)
    tell(i, x, sigma, denoised)
    denoised.zero_()
    return x


def tells_the_last_step_twice(i, x, sigma, after, ask, tell, memory):
    x = tells_late(i, x, sigma, after, ask, tell, memory)
    if after == 0:
        tell(i, x, sigma, x)  # euler's last step ends at its estimate
    return x


def tells_the_last_estimate_under_another_number_too(i, x, sigma, after, ask, tell, memory):
    denoised = ask(x, sigma)
    x = x + (after - sigma) * to_d(x, sigma, denoised)
    tell(i, x, sigma, denoised)
    if after == 0:
        tell(i + 1, x, after, denoised)
    return x


def asks_once_more_before_it_tells(i, x, sigma, after, ask, tell, memory):
    denoised = ask(x, sigma)
    ask(x + 1, sigma)
    ask(denoised, after.clamp(min=0.01))
    tell(i, x, sigma, denoised)
    return x + (after - sigma) * to_d(x, sigma, denoised)


def asks_from_its_callback(i, x, sigma, after, ask, tell, memory):
    denoised = ask(x, sigma)

    def told(*told):
        ask(x - 1, sigma)
        tell(*told)
    told(i, x, sigma, denoised)
    return x + (after - sigma) * to_d(x, sigma, denoised)


def asks_in_double(i, x, sigma, after, ask, tell, memory):
    """And tells a state of another kind of number."""
    denoised = ask(x, sigma)
    tell(i, x.double(), sigma, denoised.double())
    return x + (after - sigma) * to_d(x, sigma, denoised)


def says_nothing(i, x, sigma, after, ask, tell, memory):
    return x + (after - sigma) * to_d(x, sigma, ask(x, sigma))


def says_nothing_and_writes_over_the_answer(i, x, sigma, after, ask, tell, memory):
    denoised = ask(x, sigma)
    x = x + (after - sigma) * to_d(x, sigma, denoised)
    denoised.zero_()
    return x


def tells_no_noise_level(i, x, sigma, after, ask, tell, memory):
    """Only what ComfyUI itself reads."""
    denoised = ask(x, sigma)
    tell(i, x, None, denoised)
    return x + (after - sigma) * to_d(x, sigma, denoised)


HABITS = [reuses_its_buffer, tells_late, computes_in_place_and_tells_late,
          tells_the_last_step_twice, tells_the_last_estimate_under_another_number_too,
          asks_once_more_before_it_tells, asks_from_its_callback,
          asks_in_double, tells_no_noise_level]


def heun_that_tells_late(model, x, sigmas, extra_args=None, callback=None, disable=None):
    ones = x.new_ones([len(x)])
    for i in range(len(sigmas) - 1):
        denoised = model(x, sigmas[i] * ones, **extra_args)
        d, dt = k_diffusion.to_d(x, sigmas[i], denoised), sigmas[i + 1] - sigmas[i]
        if sigmas[i + 1] == 0:
            x = x + d * dt
        else:
            x_2 = x + d * dt
            second = model(x_2, sigmas[i + 1] * ones, **extra_args)
            x = x + (d + k_diffusion.to_d(x_2, sigmas[i + 1], second)) / 2 * dt
        callback({"i": i, "x": x, "sigma": sigmas[i], "denoised": denoised})
    return x


@pytest.fixture
def named(monkeypatch):
    """A sampler function under a name of KSampler's list, as packs add theirs."""
    def add(function):
        name = function.__name__.removeprefix("sample_")
        if name not in comfy.samplers.KSampler.SAMPLERS:
            monkeypatch.setattr(comfy.samplers.KSampler, "SAMPLERS",
                                [*comfy.samplers.KSampler.SAMPLERS, name])
        monkeypatch.setattr(k_diffusion, f"sample_{name}", function, raising=False)
        return name
    return add


@pytest.fixture
def run(case, pack, named):
    """Latent, variance, trajectory and report of mode free, by a sampler's name or function."""
    def with_sampler(sampler, model="sd3", **options):
        one = case(model)
        one.steps = STEPS
        one.latent = {"samples": one.random(2, *one.latent["samples"].shape[1:], seed=3)}
        one.sampler = sampler if isinstance(sampler, str) else named(sampler)
        latent, variance, trajectory, _, report, _ = pack.samplers.BayesDiffKSampler.execute(
            one.model, *one.options(), one.denoise, None, mode="free", check="off",
            **options).args
        assert torch.equal(latent["samples"], one.stock()["samples"])
        return latent["samples"], variance["samples"], trajectory, json.loads(report)
    return with_sampler


@pytest.mark.parametrize("name", ["sd15", "sd3"])
@pytest.mark.parametrize("habit", HABITS)
def test_states_and_variance_are_those_of_a_tidy_sampler(run, habit, name):
    latent, variance, trajectory, report = run(euler(habit), name)
    same, expected, tidy, expected_report = run("euler", name)
    torch.testing.assert_close(latent, same)
    torch.testing.assert_close(variance, expected)
    assert variance.min() >= 0 and variance.max() > 0
    assert trajectory.steps.tolist() == tidy.steps.tolist() == list(range(STEPS + 1))
    torch.testing.assert_close(trajectory.mean, tidy.mean)
    assert report["scores"] == pytest.approx(expected_report["scores"], rel=1e-4)
    assert report["notes"] == []


@pytest.mark.parametrize("habit", [*HABITS, None])
def test_sampling_on_from_an_unmoved_state_is_the_original(run, pack, habit):
    latent, _, trajectory, _ = run(euler(habit) if habit else heun_that_tells_late)
    for step in (1, 3, 5):
        variations = pack.variations.Variations(trajectory, trajectory.recipe, step)
        samples = variations.sample(torch.zeros(1, *trajectory.mean[0].shape))
        assert torch.equal(samples[0], latent), step


def test_of_two_calls_a_step_the_first_is_the_state(run):
    _, variance, trajectory, _ = run(heun_that_tells_late)
    _, expected, tidy, _ = run("heun")
    torch.testing.assert_close(trajectory.mean, tidy.mean)
    torch.testing.assert_close(variance, expected)


@pytest.mark.parametrize("habit", [says_nothing, says_nothing_and_writes_over_the_answer])
def test_a_sampler_that_says_nothing_is_watched_by_its_calls(run, habit):
    _, variance, trajectory, report = run(euler(habit))
    _, expected, tidy, _ = run("euler")
    torch.testing.assert_close(variance, expected)
    assert trajectory.steps.tolist() == [0, STEPS]
    torch.testing.assert_close(trajectory.mean, tidy.mean[[0, -1]])
    assert any("does not tell how" in note for note in report["notes"])


def test_a_restart_keeps_the_states_of_the_steps_alone(run):
    """It goes back up to the noise level before, in between, and counts these steps too."""
    def sample_restarting(model, x, sigmas, extra_args=None, callback=None, disable=None):
        ones, told = x.new_ones([len(x)]), 0
        levels = sigmas.tolist()
        way = [*zip(levels[:3], levels[1:4]), (levels[2], levels[3]), *zip(levels[3:], levels[4:])]
        for sigma, after in way:
            if told == 3:
                x = x + (sigma**2 - levels[3]**2) ** 0.5 * torch.ones_like(x)
            denoised = model(x, sigma * ones, **extra_args)
            callback({"i": told, "x": x, "sigma": x.new_tensor(sigma), "denoised": denoised})
            x, told = x + (after - sigma) * to_d(x, sigma, denoised), told + 1
        return x

    _, _, trajectory, _ = run(sample_restarting)
    _, _, tidy, _ = run("euler")
    assert trajectory.steps.tolist() == [0, 1, 2, STEPS]
    torch.testing.assert_close(trajectory.mean[:3], tidy.mean[:3])


def test_a_sampler_that_always_tells_the_same_is_watched_by_its_calls(run):
    def sample_stubborn(model, x, sigmas, extra_args=None, callback=None, disable=None):
        first = None
        for i in range(len(sigmas) - 1):
            denoised = model(x, sigmas[i] * x.new_ones([len(x)]), **extra_args)
            first = denoised if first is None else first
            callback({"i": i, "x": x, "sigma": sigmas[i], "denoised": first})
            x = x + (sigmas[i + 1] - sigmas[i]) * to_d(x, sigmas[i], denoised)
        return x

    _, variance, trajectory, report = run(sample_stubborn)
    torch.testing.assert_close(variance, run("euler")[1])
    assert len(trajectory.steps) == STEPS + 1
    assert any("does not tell how" in note for note in report["notes"])


class Callable:
    """A sampler that is no function, and has no name."""

    def __call__(self, *args, **kwargs):
        return euler(tells_late)(*args, **kwargs)


@pytest.mark.parametrize("made", [Callable, lambda: functools.partial(euler(tells_late))])
@pytest.mark.parametrize("mode", ["free", "accurate"])
def test_a_sampler_without_a_name_is_observed(case, pack, posterior_of, made, mode):
    one = case("sd3")
    sigmas = torch.tensor([1.0, 0.8, 0.6, 0.4, 0.2, 0.0])

    def sampled(node, function, **options):
        guider = comfy.samplers.CFGGuider(one.model)
        guider.set_conds(one.positive, one.negative)
        guider.set_cfg(4.0)
        return node.execute(stock_nodes.RandomNoise.execute(7)[0], guider,
                            comfy.samplers.KSAMPLER(function), sigmas, one.latent, **options)

    options = {"posterior": posterior_of(one), "mode": mode, "check": "off"}
    ours = sampled(pack.samplers.BayesDiffSamplerCustom, made(), **options)
    stock = sampled(stock_nodes.SamplerCustomAdvanced, made())
    assert torch.equal(ours.args[0]["samples"], stock.args[0]["samples"])
    tidy = sampled(pack.samplers.BayesDiffSamplerCustom, k_diffusion.sample_euler,
                   **{**options, "mode": "free"})
    torch.testing.assert_close(ours.args[2].mean, tidy.args[2].mean)
    report, = ours.ui["bayesdiff_report"]
    assert report["mode"] == "free" and ("not one of ComfyUI's own" in report["why"]) \
        == (mode == "accurate")


@pytest.fixture
def still(case):
    """A model that always says the same."""
    one = case("sd3")
    one.model = one.model.clone()
    one.model.set_model_sampler_post_cfg_function(lambda args: torch.ones_like(args["denoised"]))
    return one


@pytest.mark.parametrize("sampler, mode", [("euler", "free"), (euler(tells_late), "free"),
                                           ("euler", "light")])
def test_a_run_in_which_nothing_changes_is_told_in_words(still, pack, named, posterior_of, sampler,
                                                         mode):
    still.sampler = sampler if isinstance(sampler, str) else named(sampler)
    out = pack.samplers.BayesDiffKSampler.execute(
        still.model, *still.options(), 1.0, posterior_of(still), mode=mode, check="off")
    assert not out.args[2].tail.any()
    report, = out.ui["bayesdiff_report"]
    assert report["notes"].count(pack.core.scores.STILL) == 1
    assert pack.core.scores.STILL in out.ui["text"][0]


def test_nodes_that_get_its_trajectory_say_so_too(still, pack, ksampler):
    _, trajectory = ksampler(still, mode="free")
    widgets = {name: [value] for name, value in {
        "criterion": "keep n", "z": 1.0, "percent": 16.0, "keep": 1, "threshold": 0.0,
        "allow_empty": False, "groups": "", "reference": "",
        "reference_mode": "only compare"}.items()}
    nodes = {"score": lambda **inputs: pack.scores.BayesDiffScore.execute(["doubt"], **inputs),
             "filter": lambda **inputs: pack.filter.BayesDiffFilter.execute(**widgets, **inputs)}
    for name, execute in nodes.items():
        report, = execute(trajectory=[trajectory]).ui["bayesdiff_report"]
        assert pack.core.scores.STILL in report["notes"], name
    report, = nodes["filter"](scores=[0.0, 0.0]).ui["bayesdiff_report"]
    assert any("all scores are 0" in note for note in report["notes"])


def test_best_of_n_says_where_no_seed_was_better_than_another(still, pack):
    still.steps = STEPS
    report = json.loads(pack.best_of_n.BayesDiffBestOfN.execute(
        still.model, *still.options(), 1.0, n=4, keep=2, drop_at=0.5, drop_schedule="once",
        rank_by="trajectory variance", uncertainty_seed=5, keep_steps=4).args[6])
    assert pack.core.scores.STILL in report["notes"]
    assert any("after step 3 all 4 seeds had the score 0:" in note for note in report["notes"])


def test_best_of_n_ranks_at_the_end_where_a_sampler_says_nothing(case, pack, named):
    """It cannot be left on the way, so all are finished, and the best of them are kept."""
    one = case("sd3")
    one.steps, one.sampler = STEPS, named(euler(says_nothing))
    report = json.loads(pack.best_of_n.BayesDiffBestOfN.execute(
        one.model, *one.options(), one.denoise, n=4, keep=2, drop_at=0.5, drop_schedule="once",
        rank_by="relative change", uncertainty_seed=5, keep_steps=10).args[6])
    by_score = sorted(report["runs"], key=lambda run: run["scores"][-1])
    assert report["seeds"] == [run["seed"] for run in by_score[:2]]
    assert len({run["scores"][-1] for run in by_score}) == 4
    assert report["calls"] == 4 * STEPS and report["calls_saved"] == 0
    assert any("does not tell how" in note for note in report["notes"])


@pytest.mark.parametrize("rank_by", ["relative change", "doubt"])
@pytest.mark.parametrize("habit", [reuses_its_buffer, tells_late, computes_in_place_and_tells_late])
def test_best_of_n_ranks_and_keeps_as_with_a_tidy_sampler(case, pack, named, rank_by, habit):
    found = []
    for sampler in (named(euler(habit)), "euler"):
        one = case("sd3")
        one.steps, one.sampler = STEPS, sampler
        *_, trajectory, seeds, _, scores, report, _ = pack.best_of_n.BayesDiffBestOfN.execute(
            one.model, *one.options(), one.denoise, n=4, keep=2, drop_at=0.5, seed_stride=1,
            drop_schedule="once", rank_by=rank_by, uncertainty_seed=5, keep_steps=10).args
        found.append((trajectory, seeds, scores, json.loads(report)))
    (ours, *told, report), (tidy, seeds, scores, expected) = found
    assert told == [seeds, pytest.approx(scores, rel=1e-4)]
    for one, other in zip(report["runs"], expected["runs"]):
        assert one["scores"] == pytest.approx(other["scores"], rel=1e-4)
    assert ours.steps.tolist() == tidy.steps.tolist()
    torch.testing.assert_close(ours.mean, tidy.mean)
