"""Score An Image: against direct calls of the model, its rules and its refusals."""

import json
import math

import comfy.model_management
import comfy.samplers
import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes
from comfy_extras import nodes_model_advanced

import nodes as host_nodes
from tools.demo_worlds import SIZE

QUICK, FULL = "quick", "full"
LEVELS = {"sd15": lambda ratio: (1.0, ratio),  # ratio -> signal, sigma
          "sd3": lambda ratio: (1 / (1 + ratio), ratio / (1 + ratio))}
LEVELS["wan"] = LEVELS["sd3"]


@pytest.fixture
def score(pack):
    """Scores, variance, report and latent of one batch; lists as they are."""
    def run(model, positive, latent=None, cfg=1.0, effort=QUICK, seed=3, **linked):
        def listed(value):
            return value if isinstance(value, list) and isinstance(value[0], dict) else [value]
        linked = {name: [value] for name, value in linked.items()}
        if latent is not None:
            linked["latent"] = listed(latent)
        scores, variance, report, latent = pack.score_image.BayesDiffScoreImage.execute(
            [model], [positive], [cfg], [effort], [seed], **linked).args
        return scores, variance, json.loads(report), latent
    return run


def batch(case, count=3):
    shape = case.latent["samples"].shape
    return {"samples": torch.cat([(0.3 + i) * case.random(*shape, seed=20 + i)
                                  for i in range(count)])}


def calls_of(case, pack):
    """(x, sigma) -> denoised by the model, through the stock sampler and not through the node."""
    def denoise(x, sigma):
        seen = []
        if case.cfg == 1:
            guider = stock_nodes.BasicGuider.execute(case.model, case.positive)[0]
        else:
            guider = stock_nodes.CFGGuider.execute(case.model, case.positive, case.negative,
                                                   case.cfg)[0]
        tapped = case.observer(seen.append)
        observer = pack.sampling.Observer(lambda run: tapped.observe(run._replace(x=x)),
                                          tapped.tap)
        pack.sampling.sample_guider(
            guider, observer, stock_nodes.DisableNoise.execute()[0],
            comfy.samplers.sampler_object("euler"), torch.tensor([sigma, sigma / 2]),
            {"samples": torch.zeros_like(x)})
        (call,) = seen
        return call.denoised
    return denoise


class Naive:
    """The maps and parts of pictures z (in the sampler's space), by loops."""

    def __init__(self, case, pack, z, denoise, full=False, seed=3):
        self.z, self.denoise, self.at = z, denoise, LEVELS[case.name]
        self.mixed_seed, self.seed = pack.core.trajectory.mixed_seed, seed
        apart = {ratio: [self.apart(ratio, i, sign) for i in range(3) for sign in (1, -1)]
                 for ratio in ((1.2, 2.0) if full else (1.2,))}
        self.pull = {ratio: (sum(each) / 6) ** 2 for ratio, each in apart.items()}
        redrawn = [self.drawn(50 + i, sign) for i in range(2) for sign in (1, -1)] if full else []
        self.maps = [sum(one ** 2 for one in each) / len(each)
                     for each in (*apart.values(), redrawn) if each]

    def noised(self, ratio, number, sign):
        a, s = self.at(ratio)
        generator = torch.Generator().manual_seed(self.mixed_seed(self.seed, number))
        return a * self.z + s * sign * torch.randn((1, *self.z.shape[1:]), generator=generator)

    def apart(self, ratio, number, sign):
        return self.denoise(self.noised(ratio, number, sign), self.at(ratio)[1]) - self.z

    def drawn(self, number, sign):
        s, t, u = (self.at(ratio)[1] for ratio in (1.2, 0.5, 0.2))
        x = self.noised(1.2, number, sign)
        for now, after in ((s, t), (t, u), (u, 0.0)):
            clean = self.denoise(x, now)
            x = clean + (after / now) * (x - clean)
        return x - self.z

    def parts(self):
        contrast = [float(torch.stack([channel.double().var(unbiased=False)
                                       for channel in one]).mean()) for one in self.z]
        found = {"pull 1.2, mean": [float(one.mean()) / c
                                    for one, c in zip(self.pull[1.2], contrast)]}
        if 2.0 in self.pull:
            found["pull 2.0, patch"] = [worst(one) / c
                                        for one, c in zip(self.pull[2.0], contrast)]
            found["redrawn, mean"] = [float(one.mean()) / c
                                      for one, c in zip(self.maps[2], contrast)]
        return found | {"contrast, picture": contrast}


def worst(one):
    side = 2 * max(min(one.shape[-2:]) // 16, 1) + 1
    frames = one.mean(0).reshape(-1, *one.shape[-2:])
    return max(float(frame[y:y + side, x:x + side].mean()) for frame in frames
               for y in range(frame.shape[0] - side + 1) for x in range(frame.shape[1] - side + 1))


def smooth(plane):
    """Mean over 3 x 3 pixels, of those that there are."""
    height, width = plane.shape
    return torch.tensor([[float(plane[max(y - 1, 0):y + 2, max(x - 1, 0):x + 2].mean())
                          for x in range(width)] for y in range(height)])


@pytest.mark.parametrize("name, cfg, effort, calls", [
    ("sd15", 4.0, QUICK, 6), ("sd3", 1.0, FULL, 24), ("wan", 1.0, QUICK, 6)])
def test_parts_are_those_of_direct_calls_of_the_model(case, pack, score, name, cfg, effort, calls):
    case = case(name)
    case.cfg = cfg
    latent = batch(case, 2)
    asked, denoise = [], calls_of(case, pack)

    def counted(x, sigma):
        asked.append(sigma)
        return torch.cat([denoise(one[None], sigma) for one in x])
    z = case.model.model.process_latent_in(latent["samples"])
    expected = Naive(case, pack, z, counted, effort == FULL).parts()
    negative = {} if cfg == 1 else {"negative": case.negative}
    scores, _, report, _ = score(case.model, case.positive, latent, cfg, effort, **negative)
    assert report["calls"] == len(asked) == calls
    for part, values in report["parts"].items():
        assert values == pytest.approx(expected[part], rel=2e-3), part
    weights = report["weights"]
    assert weights == pack.core.doubt.VARIANTS[f"picture, {effort} check"] and not report["notes"]
    whole = 2 * sum(weights.values())
    assert scores == pytest.approx([math.exp(sum(w * math.log(expected[p][i])
                                                 for p, w in weights.items()) / whole)
                                    for i in (0, 1)], rel=2e-3)


def test_pictures_do_not_depend_on_those_beside_them_and_a_seed_gives_the_same_bits(case, score):
    case = case("sd15")
    latent = batch(case)
    scores, variance, report, _ = score(case.model, case.positive, latent)
    again = score(case.model, case.positive, latent)
    assert again[0] == scores and torch.equal(again[1][0]["samples"], variance[0]["samples"])
    other = score(case.model, case.positive, latent, seed=4)
    assert other[2]["parts"]["pull 1.2, mean"] != report["parts"]["pull 1.2, mean"]
    split = [{"samples": one} for one in latent["samples"].split([1, 2])]
    in_list = score(case.model, case.positive, split)
    assert in_list[0] == pytest.approx(scores, rel=1e-4) and in_list[2]["calls"] == 12
    assert [len(one["samples"]) for one in in_list[1]] == [1, 2]
    for part, values in report["parts"].items():
        assert in_list[2]["parts"][part] == pytest.approx(values, rel=1e-4)


def test_each_latent_of_a_list_goes_by_its_own_prompt(case, pack, score):
    case = case("sd15")
    latents, prompts = [batch(case, 2), case.latent], [case.positive, case.negative]
    scores, *_ = pack.score_image.BayesDiffScoreImage.execute(
        [case.model], prompts, [1.0], [QUICK], [3], latent=latents).args
    for latent, prompt, found in zip(latents, prompts, (scores[:2], scores[2:])):
        assert score(case.model, prompt, latent)[0] == pytest.approx(found, rel=1e-4)


@pytest.fixture
def heatmap(pack):
    """Overlay and mask by the node's own defaults."""
    def run(**linked):
        inputs = pack.heatmap.BayesDiffHeatmap.GET_SCHEMA().inputs
        widgets = {port.id: port.default for port in inputs
                   if getattr(port, "default", None) is not None}
        overlay, _, mask = pack.heatmap.BayesDiffHeatmap.execute(**widgets, **linked).args
        return overlay, mask
    return run


@pytest.mark.parametrize("name", ["sd15", "sd3", "wan"])
def test_the_heatmap_takes_the_variance(case, score, heatmap, name):
    case = case(name)
    given = batch(case, 2)
    _, (variance,), _, (latent,) = score(case.model, case.positive, given)
    assert torch.equal(latent["samples"], given["samples"])
    assert variance["samples"].shape == given["samples"].shape and variance["samples"].min() > 0
    overlay, mask = heatmap(variance=variance, samples=latent)
    assert len(overlay) == 2 * (3 if name == "wan" else 1) and 0.03 < mask.mean() < 0.07


def test_the_variance_is_the_joint_map_with_the_mean_square_of_the_score(case, pack, score):
    case = case("sd15")
    case.cfg, latent = 1.0, batch(case, 2)
    scores, variance, _, _ = score(case.model, case.positive, latent, effort=FULL)
    z = case.model.model.process_latent_in(latent["samples"])
    denoise = calls_of(case, pack)
    naive = Naive(case, pack, z, lambda x, s: torch.cat([denoise(one[None], s) for one in x]),
                  full=True)
    for image, (found, value) in enumerate(zip(variance[0]["samples"], scores)):
        planes = [one[image].mean(0) for one in naive.maps]
        joint = smooth(smooth(sum(plane / plane.mean() for plane in planes) / 3))
        for plane in found:
            torch.testing.assert_close(plane, joint * (value**2 / joint.mean()).float(),
                                       rtol=2e-3, atol=0)


def test_nothing_stays_on_the_model(case, score):
    case = case("sd15")
    before = case.stock()["samples"]
    model, options = case.model, repr(case.model.model_options)
    patches = dict(model.patches), dict(model.object_patches), repr(model.wrappers)
    score(model, case.positive, case.latent, 4.0, negative=case.negative)
    assert repr(model.model_options) == options
    assert (model.patches, model.object_patches, repr(model.wrappers)) == patches
    assert torch.equal(case.stock()["samples"], before)


def test_a_run_can_be_cancelled_and_works_afterwards(case, score):
    case = case("sd15")
    expected, calls = score(case.model, case.positive, batch(case))[0], []
    watched = case.model.clone()

    def cancels(apply_model, args):
        calls.append(args["timestep"])
        if len(calls) == 3:
            comfy.model_management.interrupt_current_processing()
        return apply_model(args["input"], args["timestep"], **args["c"])
    watched.set_model_unet_function_wrapper(cancels)
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        score(watched, case.positive, batch(case))
    assert len(calls) == 3
    assert score(case.model, case.positive, batch(case))[0] == expected


def test_levels_beyond_the_models_own_are_clamped_and_told(case, score):
    case = case("sd15")
    model = nodes_model_advanced.ModelSamplingContinuousEDM().patch(case.model, "eps", 1.5, 0.3)[0]
    _, _, report, _ = score(model, case.positive, batch(case), effort=FULL)
    assert [note.split(": noise of ")[1] for note in report["notes"]] == [
        "1.5 times the signal was used instead of 2.0",
        "0.3 times the signal was used instead of 0.2"]


def test_a_noise_mask_changes_no_score_and_is_told(case, score):
    case = case("sd15")
    latent = batch(case)
    plain = score(case.model, case.positive, latent)[0]
    scores, _, report, (latent,) = score(case.model, case.positive,
                                         {**latent, "noise_mask": torch.eye(64)[None]})
    assert scores == plain and "noise mask" in report["notes"][0] and "noise_mask" in latent


@pytest.mark.parametrize("linked, words", [
    ({}, "neither a latent nor an image"),
    ({"image": torch.rand(1, 64, 64, 3)}, "without a vae"),
    ({"latent": {"samples": torch.zeros(0, 4, 8, 8)}}, r"are empty, their shape is \(0, 4, 8, 8\)"),
    ({"latent": {"samples": torch.zeros(1, 4, 8, 8)}}, "latent is empty"),
    ({"latent": {"samples": torch.full((1, 4, 8, 8), torch.nan)}}, "256 of 256 values are NaN"),
    ({"latent": {"samples": torch.rand(1, 16, 8, 8)}}, "B x 4 x H x W was expected"),
    ({"latent": {"samples": torch.rand(1, 4, 8, 8)}, "cfg": 4.0}, "no negative is linked"),
])
def test_what_cannot_be_scored_is_refused_in_words(case, pack, score, linked, words):
    case = case("sd15")
    with pytest.raises(pack.BayesDiffError, match=words):
        score(case.model, case.positive, **linked)


def test_a_prompt_that_leaves_the_levels_out_and_lists_that_do_not_match_are_refused(case, pack,
                                                                                      score):
    case = case("sd15")
    with pytest.raises(pack.BayesDiffError, match="2 positive prompts .* 3 latents"):
        pack.score_image.prompts_of([case.positive] * 2, None, 1.0, 3)
    case.positive[0][1]["end_percent"] = 0.1
    with pytest.raises(pack.BayesDiffError, match="leaves noise level 1.2 out"):
        score(case.model, case.positive, case.latent)


@pytest.fixture(scope="module")
def demo(pack):
    return pack.demo.BayesDiffDemoModel.execute().args


def test_drawings_with_a_piece_of_another_pasted_in_score_higher_and_are_marked_there(
        pack, demo, score, heatmap):
    model, vae, _ = demo
    prompt = {name: pack.demo.BayesDiffDemoPrompt.execute(name).args[0]
              for name in ("smiley", "nothing")}
    empty, = host_nodes.EmptyLatentImage().generate(SIZE, SIZE, 16)
    drawn, = host_nodes.KSampler().sample(model, 5, 12, 2.5, "euler", "normal", prompt["smiley"],
                                          prompt["nothing"], empty)
    whole = vae.decode(drawn["samples"])
    pasted = whole.clone()
    pasted[:, 12:36, 32:56] = whole.roll(1, 0)[:, 8:32, 28:52]  # its eye, a little off
    images = torch.cat([whole, pasted])
    scores, (variance,), report, (latent,) = score(model, prompt["smiley"], image=images, vae=vae)
    assert pack.core.selfcheck.auroc(scores[:16], scores[16:]) > 0.75
    contrast = report["parts"]["contrast, picture"]
    assert pack.core.selfcheck.auroc(contrast[:16], contrast[16:]) < 0.65  # no trivial matter
    for linked in ({"samples": latent, "vae": vae}, {"image": images}):
        overlay, mask = heatmap(variance=variance, **linked)
        assert overlay.shape == images.shape
        inside = mask[16:, 12:36, 32:56].mean()
        assert inside > 2 * mask[16:].mean()
