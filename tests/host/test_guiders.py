"""Guiders of other packs: a scale that changes by step is followed, other ways are refused."""

import comfy.samplers
import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes
from comfy_extras.nodes_perpneg import Guider_PerpNeg

SIGMAS = torch.tensor([1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
OPTIONS = {"mode": "accurate", "deviations": 4, "keep_steps": 10, "uncertainty_seed": 5}
SCALES = [5.0, 5.0, 3.0, 1.0, 2.0]


class ByTable(comfy.samplers.CFGGuider):
    """Looks a level up, remembers levels that it did not know, and runs out of them."""

    def set_scales(self, scales):
        self.table = {float(sigma): scale for sigma, scale in zip(SIGMAS, scales)}
        self.spare = [7.0]

    def predict_noise(self, x, timestep, model_options={}, seed=None):
        level = float(timestep[0])
        if level not in self.table:
            self.table[level] = self.spare.pop()
        self.cfg = self.table[level]
        return super().predict_noise(x, timestep, model_options, seed)


class ByItself(comfy.samplers.CFGGuider):
    """Calls the host's function, and leaves the negative prompt out at scale 1."""

    def set_scales(self, scales):
        self.cfg = list(scales)

    def predict_noise(self, x, timestep, model_options={}, seed=None):
        place = int((SIGMAS[:-1] - timestep[0].cpu()).abs().argmin())
        negative = self.conds["negative"] if self.cfg[place] != 1 else None
        return comfy.samplers.sampling_function(
            self.inner_model, x, timestep, negative, self.conds["positive"], self.cfg[place],
            model_options=model_options, seed=seed)


class Louder(ByTable):
    def predict_noise(self, *args, **kwargs):
        return 1.01 * super().predict_noise(*args, **kwargs)


class Twice(ByTable):
    def predict_noise(self, *args, **kwargs):
        super().predict_noise(*args, **kwargs)
        return super().predict_noise(*args, **kwargs)


def plain(case, scale):
    guider = comfy.samplers.CFGGuider(case.model)
    guider.set_conds(case.positive, case.negative)
    guider.set_cfg(scale)
    return guider


def scheduled(case, kind, scales=SCALES):
    guider = kind(case.model)
    guider.set_conds(case.positive, case.negative)
    guider.set_scales(scales)
    return guider


def perp_neg(case):
    guider = Guider_PerpNeg(case.model)
    guider.set_conds(case.positive, case.negative, case.prompt(5))
    guider.set_cfg(4.0, 0.5)
    return guider


def perp_neg_of_one_prompt(case):
    """Which is plain CFG in its numbers."""
    guider = Guider_PerpNeg(case.model)
    guider.set_conds(case.positive, case.negative, case.negative)
    guider.set_cfg(4.0, 0.5)
    return guider


def dual(case):
    return stock_nodes.DualCFGGuider.execute(case.model, case.positive, case.prompt(6),
                                             case.negative, 3.0, 2.0, "regular")[0]


@pytest.fixture
def run(case, pack, posterior_of):
    """Of a guider that is made of a case: the stock latent, and BayesDiff Sampler Custom's
    outputs."""
    def sample(make, **options):
        one = case("sd3")
        llla = posterior_of(one)

        def inputs():
            return (stock_nodes.RandomNoise.execute(7)[0], make(one),
                    comfy.samplers.sampler_object("euler"), SIGMAS, one.latent)
        stock = stock_nodes.SamplerCustomAdvanced.execute(*inputs())[0]["samples"]
        out = pack.samplers.BayesDiffSamplerCustom.execute(*inputs(), llla,
                                                           **{**OPTIONS, **options})
        assert torch.equal(out.args[0]["samples"], stock)
        return out.args[2], out.ui["bayesdiff_report"][0]
    return sample


@pytest.mark.parametrize("kind", [ByTable, ByItself])
def test_a_scale_that_stays_gives_the_numbers_of_cfg(run, kind):
    expected, _ = run(lambda case: plain(case, 5.0))
    found, report = run(lambda case: scheduled(case, kind, [5.0] * 5))
    assert report["mode"] == "accurate" and report["extra_calls"] > 0
    assert torch.equal(found.variance, expected.variance)


@pytest.mark.parametrize("kind", [ByTable, ByItself])
def test_a_scale_that_changes_is_followed_step_by_step(run, kind):
    found, _ = run(lambda case: scheduled(case, kind))
    first, later = run(lambda case: plain(case, 5.0))[0], run(lambda case: plain(case, 3.0))[0]
    assert found.variance[-1].max() > 0 and found.variance.min() >= 0
    # As long as the scale is 5 the run is that of 5, and then it is neither's.
    assert torch.equal(found.variance[:3], first.variance[:3])
    for other in (first, later):
        assert not torch.allclose(found.variance[3], other.variance[3])
    assert torch.equal(found.variance[:3], run(lambda case: scheduled(
        case, kind, [5.0, 5.0, 5.0, 4.0, 4.0]))[0].variance[:3])


@pytest.mark.skipif(not hasattr(stock_nodes, "CFGOverride"), reason="this host has no CFG Override")
def test_the_hosts_own_override_is_followed(run):
    def overridden(case):
        model, found = stock_nodes.CFGOverride.execute(case.model, 2.0, 0.0, 1.0)[0], plain(case, 5)
        found.model_patcher, found.model_options = model, model.model_options
        return found

    assert torch.equal(run(overridden)[0].variance, run(lambda case: plain(case, 2.0))[0].variance)


@pytest.mark.parametrize("make", [perp_neg, perp_neg_of_one_prompt, dual,
                                  lambda case: scheduled(case, Louder),
                                  lambda case: scheduled(case, Twice)])
def test_other_ways_are_refused_in_one_short_sentence_and_fine_in_mode_free(pack, run, make):
    with pytest.raises(pack.BayesDiffError,
                       match="the guider .* combines its prompts in") as refused:
        run(make)
    assert len(str(refused.value)) < 260
    trajectory, report = run(make, mode="auto", check="off")
    assert report["mode"] == "free" and trajectory.variance[-1].max() > 0
    assert "may combine its prompts in its own way" in report["why"]


def test_a_check_at_other_levels_neither_loses_the_picture_nor_reaches_the_guider(run, case):
    """ByTable has one answer to spare, and a check asks at more levels than that."""
    made = []

    def make(case):
        made.append(scheduled(case, ByTable))
        return made[-1]

    _, report = run(make, mode="free", check="full")
    assert report["check_calls"] == 0
    assert any("ByTable does not answer at noise levels between" in n for n in report["notes"])
    assert made[-1].table.keys() == {float(sigma) for sigma in SIGMAS[:-1]}
    assert made[-1].spare == [7.0]
