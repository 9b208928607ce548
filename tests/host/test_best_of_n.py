"""Best of N: survivors are KSampler's, and the calls are those that it says."""

import json

import comfy.model_management
import comfy.samplers
import comfy.utils
import pytest
import torch

import nodes as host_nodes

OPTIONS = {"n": 4, "keep": 2, "drop_at": 0.5, "drop_schedule": "once", "seed_stride": 1,
           "rank_by": "relative change",
           "uncertainty_seed": 5, "keep_steps": 3}
VARIANCE = {"rank_by": "variance, accurate"}
FREE = ("doubt", "relative change", "trajectory variance")


@pytest.fixture
def best_of_n(pack, posterior_of):
    """Runs the node on a case, from seed 7 on; the posterior is connected where it is needed."""
    def run(case, **options):
        options = {**OPTIONS, **options}
        if options["rank_by"] not in FREE:
            options.setdefault("posterior", posterior_of(case))
        seed = options.pop("seed", case.options()[0])
        return pack.best_of_n.BayesDiffBestOfN.execute(
            case.model, seed, *case.options()[1:], case.denoise, **options).args
    return run


def stock(case, seed):
    return host_nodes.common_ksampler(case.model, seed, *case.options()[1:],
                                      denoise=case.denoise)[0]["samples"]


def alone(pack, case, seed, mode, posterior=None):
    """Latent, variance and scores of BayesDiff KSampler."""
    latent, variance, trajectory, *_ = pack.samplers.BayesDiffKSampler.execute(
        case.model, seed, *case.options()[1:], case.denoise, posterior, mode=mode, probe_levels=0,
        skip_interval=0, deviations=0, noise_model="independent", uncertainty_seed=5,
        keep_steps=3).args
    return latent["samples"], variance["samples"], pack.core.scores.of_trajectory(trajectory)


def detail(picture):
    """Mean standard deviation of what windows of 3 x 3 hold."""
    height, width = picture.shape[-2:]
    return torch.stack([picture[..., max(y - 1, 0):y + 2, max(x - 1, 0):x + 2]
                        .std((-2, -1), unbiased=False)
                        for y in range(height) for x in range(width)]).mean()


class Counter:
    """Network calls. Not counted at the last layer, which a posterior's fingerprint runs too."""

    def __init__(self, case):
        self.calls = 0
        self._network = case.model.get_model_object("diffusion_model")

    def __enter__(self):
        self._handle = self._network.register_forward_pre_hook(self._count)
        return self

    def _count(self, module, inputs):
        self.calls += 1

    def __exit__(self, *_):
        self._handle.remove()


SAMPLERS = [("doubt", "sd3", name) for name in comfy.samplers.SAMPLER_NAMES]
SAMPLERS += [("relative change", "sd3", name) for name in ("euler", "dpmpp_2m_sde")]
SAMPLERS += [("trajectory variance", "sd15", name)
             for name in ("euler", "dpmpp_2m_sde", "uni_pc", "dpmpp_2m_cfg_pp", "dpm_adaptive")]
SAMPLERS += [("variance, accurate", "sd3", name)
             for name in ("euler", "heun", "dpmpp_2m", "uni_pc", "dpm_fast", "dpmpp_3m_sde",
                          "euler_ancestral_cfg_pp", "sa_solver_pece")]
SAMPLERS += [("variance, accurate", "sd15", name) for name in ("lms", "dpmpp_2m_cfg_pp")]


@pytest.mark.parametrize("rank_by, name, sampler", SAMPLERS)
def test_a_survivor_is_its_seed_sampled_alone_bit_for_bit(case, pack, best_of_n, posterior_of,
                                                          rank_by, name, sampler):
    case = case(name)
    case.sampler, case.steps = sampler, 5
    case.latent["samples"] = case.latent["samples"][..., :4, :5]
    free, llla = rank_by in FREE, posterior_of(case)
    with Counter(case) as counter:
        latent, variance, trajectory, (seed,), text, (score,), report, _ = best_of_n(
            case, rank_by=rank_by, n=2, keep=1, drop_at=0.6)
    said = json.loads(report)
    assert said["calls"] == counter.calls
    assert seed in (7, 8) and text == str(seed) and said["seeds"] == [seed]
    assert torch.equal(latent["samples"], stock(case, seed))
    with Counter(case) as counter:
        _, expected, told = alone(pack, case, seed, "free" if free else "accurate",
                               None if free else llla)
    assert torch.equal(variance["samples"], expected)
    assert score == pytest.approx(
        told[rank_by if rank_by in ("doubt", "relative change") else "sum"].item(), rel=1e-5)
    assert torch.allclose(trajectory.latent_mean(), latent["samples"], atol=1e-4)
    if sampler != "dpm_adaptive":  # whose calls depend on the seed
        assert said["calls"] + said["calls_saved"] == 2 * counter.calls
        # dpm_fast has two steps of its own here, and its second one enters below the stop; of five
        # steps a look ahead saves nothing
        assert said["calls_saved"] > 0 or sampler == "dpm_fast" or rank_by == "doubt"


@pytest.mark.parametrize("rank_by", [*FREE[1:], "variance, light"])
def test_the_seeds_with_the_lowest_score_so_far_are_kept(case, pack, best_of_n, posterior_of,
                                                            rank_by):
    case = case("sd3")
    case.steps = 6
    *_, seeds, _, scores, report, _ = best_of_n(case, n=6, keep=2, rank_by=rank_by)
    said = json.loads(report)
    halfway = {run["seed"]: run["scores"][0] for run in said["runs"]}
    assert set(seeds) == set(sorted(halfway, key=halfway.get)[:2])
    assert scores == sorted(scores)
    for run in said["runs"]:
        assert run["dropped_at"] == (None if run["seed"] in seeds else 3)
        assert len(run["scores"]) == (2 if run["seed"] in seeds else 1)
    if rank_by == "variance, light":
        return
    for seed in halfway:  # against the denoised estimates of the stock sampler
        calls = []
        pack.sampling.sample(case.model, case.observer(calls.append), seed, *case.options()[1:])
        scale = case.model.model.latent_format.scale_factor
        two = torch.stack([call.denoised for call in calls[1:3]]) / scale
        spread = two.var(0, unbiased=False)
        expected = spread.sum() if rank_by == "trajectory variance" else \
            spread.sqrt().mean() / detail(two[-1])
        assert halfway[seed] == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("name", ["sd15", "sd3"])
def test_by_doubt_each_seed_is_judged_by_the_picture_that_it_is_heading_for(case, pack, best_of_n,
                                                                           name):
    """Against the model, called by itself at the levels that are left."""
    case, evidence = case(name), pack.core.evidence
    case.steps = 12
    *_, report, _ = best_of_n(case, n=3, keep=1, rank_by="doubt")
    said = json.loads(report)
    flow = name == "sd3"
    assert evidence.ahead_calls(12) == (3, 2) and evidence.ahead_calls(48) == (7, 6)
    assert [run["calls"] for run in said["runs"]] == [
        6 + 5 if run["dropped_at"] else 12 + 5 + evidence.QUICK.calls for run in said["runs"]]
    for run in said["runs"]:
        found = []

        def observe(sampler, found=found):
            def denoise(x, sigma):
                return sampler.model(x, x.new_full((len(x),), float(sigma)), **sampler.extra_args)

            def noise(number):
                generator = torch.Generator().manual_seed(
                    pack.core.trajectory.mixed_seed(0, number))
                return torch.randn(1, *sampler.x.shape[1:], generator=generator)

            def callback(info):
                if info["i"] == 5:
                    found.append(pack.core.doubt.doubt(*evidence.ahead(
                        denoise, info["x"], sampler.sigmas[5:], info["denoised"], noise, flow,
                        calls=(3, 2))))
            return sampler.go(callback=callback), None
        pack.sampling.sample(case.model, pack.sampling.Observer(observe), run["seed"],
                             *case.options()[1:])
        assert run["scores"][0] == pytest.approx(found[0].values.item(), rel=1e-4)


def test_all_are_kept_where_all_are_asked_for(case, best_of_n):
    latent, *_, report, mean = best_of_n(case("sd3"), n=2, keep=2)
    said = json.loads(report)
    assert len(latent["samples"]) == 2 and said["calls_saved"] == 0 and said["calls"] == 6


@pytest.mark.parametrize("rank_by", ["relative change", "variance, accurate"])
def test_halving_drops_half_at_each_stop_and_keeps_the_bits(case, pack, best_of_n, posterior_of,
                                                            rank_by):
    case, llla = case("sd3"), None
    case.steps, case.sampler = 8, "dpmpp_2m"
    mode = "free"
    if rank_by not in FREE:
        mode, llla = "accurate", posterior_of(case)
    with Counter(case) as counter:
        latent, variance, _, (seed,), _, _, report, _ = best_of_n(case, n=8, keep=1, drop_at=0.75,
                                                               drop_schedule="halving",
                                                               seed_stride=1,
                                                               rank_by=rank_by)
    said = json.loads(report)
    assert said["stops"] == [{"step": 2, "left": 4}, {"step": 4, "left": 2}, {"step": 6, "left": 1}]
    assert [sum(run["dropped_at"] == step for run in said["runs"]) for step in (2, 4, 6)] \
        == [4, 2, 1]
    assert said["calls"] == counter.calls
    if llla is None:
        assert said["calls"] == 8 * 2 + 4 * 2 + 2 * 2 + 2
        assert said["calls_saved"] == 8 * 8 - said["calls"]
    expected, spread, _ = alone(pack, case, seed, mode, llla)
    assert torch.equal(latent["samples"], expected) and torch.equal(variance["samples"], spread)


def test_keys_stay_and_a_place_in_a_batch_is_used_but_not_handed_on(case, best_of_n):
    case = case("sd3")
    case.latent.update(mine="kept", batch_index=[2])
    latent, variance, _, seeds, *_ = best_of_n(case)
    assert latent.keys() == variance.keys() == {"samples", "mine"}
    assert torch.equal(latent["samples"][:1], stock(case, seeds[0]))


@pytest.mark.parametrize("name", ["flux", "wan"])
def test_masks_and_clips_work(case, best_of_n, name):
    case = case(name)
    mask = torch.zeros(1, *case.latent["samples"].shape[-2:])
    mask[..., :3] = 1
    case.latent["noise_mask"], case.denoise, case.steps = mask, 0.7, 4
    latent, variance, _, seeds, *_ = best_of_n(case)
    for i, seed in enumerate(seeds):
        assert torch.equal(latent["samples"][i:i + 1], stock(case, seed))
    assert variance["samples"][..., 3:].count_nonzero() == 0 and variance["samples"].max() > 0


@pytest.mark.parametrize("rank_by", ["relative change", "variance, accurate"])
def test_progress_rises_over_all_seeds_and_ends_full(case, best_of_n, posterior_of, rank_by):
    case, told = case("sd3"), []
    case.steps = 6
    posterior_of(case)
    comfy.utils.set_progress_bar_global_hook(
        lambda value, total, preview, node_id=None, **_: told.append((value, total)))
    try:
        best_of_n(case, rank_by=rank_by)
    finally:
        comfy.utils.set_progress_bar_global_hook(None)
    values = [value for value, _ in told]
    assert {total for _, total in told} == {4 * 3 + 2 * 3}
    assert values == sorted(values) and values[-1] == 4 * 3 + 2 * 3


def test_cancelling_between_two_seeds_stops(case, pack, best_of_n, monkeypatch):
    case = case("sd3")
    rank = pack.best_of_n.RANKS["relative change"]

    def cancelling(at):
        comfy.model_management.interrupt_current_processing(True)
        return rank.score.part_way(at)
    monkeypatch.setitem(pack.best_of_n.RANKS, "relative change", rank._replace(
        score=rank.score._replace(part_way=cancelling)))
    with Counter(case) as counter, \
            pytest.raises(comfy.model_management.InterruptProcessingException):
        best_of_n(case, drop_at=0.67)
    assert counter.calls == 2


def test_a_sampler_that_does_not_repeat_itself_is_refused(case, pack, best_of_n, monkeypatch):
    from comfy.k_diffusion import sampling

    state = iter(range(1, 1000))

    def moody(model, x, sigmas, extra_args=None, callback=None, disable=None):
        return sampling.sample_euler(model, x + 0.1 * next(state), sigmas, extra_args, callback,
                                     disable)
    monkeypatch.setattr(comfy.samplers, "sampler_object",
                        lambda name: comfy.samplers.KSAMPLER(moody))
    with pytest.raises(pack.BayesDiffError, match="does not repeat itself"):
        best_of_n(case("sd3"))


@pytest.mark.parametrize("change, options, words", [
    ({"samples": (0, 16, 9, 7)}, {}, r"holds no image \(its shape is \(0, 16, 9, 7\)\)"),
    ({"samples": (3, 16, 9, 7)}, {}, "batch of 3, one image or clip was expected"),
    ({"steps": 2}, {}, "2 steps leave nothing to stop before: at least 3"),
    ({"denoise": 0.0}, {}, "0 steps"),
    ({}, {"keep": 5}, "5 of 4 runs are to be kept: 1 to 4 were expected"),
    ({}, {"rank_by": "variance, light", "posterior": None}, "light needs a posterior"),
])
def test_bad_input_is_refused_in_words(case, pack, best_of_n, change, options, words):
    case = case("sd3")
    for name, value in change.items():
        if name == "samples":
            case.latent = {"samples": torch.zeros(value)}
        else:
            setattr(case, name, value)
    with pytest.raises(pack.BayesDiffError, match=words):
        best_of_n(case, **options)


def test_latents_trajectory_and_map_are_one_batch(case, pack, best_of_n, tmp_path, monkeypatch):
    """As they go on together, to Heatmap and to Resample, image by image."""
    monkeypatch.setattr(pack.viewer.folder_paths, "get_temp_directory", lambda: str(tmp_path))
    case = case("sd15")
    latent, variance, trajectory, seeds, *_, mean = best_of_n(case, n=3, keep=2)
    assert torch.equal(mean["samples"], latent["samples"]) and len(seeds) == 2
    assert torch.allclose(trajectory.latent_mean(), latent["samples"], atol=1e-4)
    widgets = {port.id: port.default for port in pack.heatmap.BayesDiffHeatmap.GET_SCHEMA().inputs
               if getattr(port, "default", None) is not None}
    overlay, _, mask = pack.heatmap.BayesDiffHeatmap.execute(
        **widgets, trajectory=trajectory, image=torch.rand(2, 64, 64, 3)).args
    assert len(overlay) == len(mask) == 2
    parts = pack.core.trajectory.parts_of(trajectory)
    assert [part.recipe.seed for part in parts] == list(seeds)


def test_workers_that_get_neighboring_seeds_share_none(case, best_of_n):
    case = case("sd3")
    runs = [{run["seed"] for run in json.loads(best_of_n(case, n=4, keep=1, seed_stride=1000,
                                                         seed=seed)[6])["runs"]}
            for seed in (7, 8)]
    assert not runs[0] & runs[1] and min(runs[0]) == 7 and min(runs[1]) == 8
