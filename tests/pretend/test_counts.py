"""What a run asks of the device beside the stock sampler's: counted, so the same on any machine."""

import pytest
import torch

import nodes as host_nodes
from benchmarks import overhead_counts
from tests.host.conftest import SAMPLING
from tests.pretend import device

KEPT = 4
STEPS = 6
SIDE = 16


class Run:
    """A case with room for its posterior, counted."""

    def __init__(self, case, pack, steps=STEPS):
        self.case, self.pack = case, pack
        case.steps = steps
        channels = case.latent["samples"].shape[1]
        case.latent["samples"] = torch.zeros(1, channels, SIDE, SIDE)
        self.latent = case.latent["samples"].nbytes

    def counted(self, work):
        with device.counting(self.case.model.model.diffusion_model) as found:
            work()
        return found[0]

    def stock(self):
        return self.counted(self.case.stock)

    def ours(self, mode, posterior, **options):
        return self.counted(lambda: self.pack.samplers.BayesDiffKSampler.execute(
            self.case.model, *self.case.options(), 1.0, posterior,
            **{**SAMPLING, "mode": mode, "keep_steps": KEPT, **options}))

    def posterior(self, structure="full"):
        settings = self.pack.fit.Settings(structure, 2, "uniform", 0.2, 1)
        example = self.pack.fit.Example(self.case.random(*self.case.latent["samples"].shape,
                                                         seed=4))
        return self.pack.fit.fit(self.case.model, [self.case.positive], [example], settings).llla


@pytest.fixture
def run(case, pack):
    def made(name, **options):
        one = Run(case(name), pack, **options)
        one.stock()  # loads the model, and fills the host's own caches
        return one
    return made


def extra_calls(mode):
    return {"free": 0, "light": 1, "accurate": 3}[mode]


@pytest.mark.parametrize("mode", ["free", "light", "accurate"])
@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_the_cpu_waits_once_a_kept_step_and_twice_a_run_beside_the_stock_sampler(run, name, mode):
    one = run(name)
    posterior = one.posterior()
    stock, ours = one.stock(), one.ours(mode, posterior)
    assert stock.network.stalls == 0  # so extra calls of the network bring none
    assert ours.outside.stalls <= stock.outside.stalls + KEPT + 2


@pytest.mark.parametrize("mode", ["light", "accurate"])
def test_the_posterior_crosses_once_a_run_and_nothing_of_the_batchs_size_a_step(run, mode):
    one = run("sd3")
    posterior = one.posterior()
    stock, ours = one.stock(), one.ours(mode, posterior)
    factor = 4 * posterior.posterior.factor.numel()
    # The stock sampler's prompts and noise, its part for each extra call, the layer's fingerprint.
    calls = 1 + extra_calls(mode) / STEPS
    fingerprint = 2 * 16 * posterior.about.shape.features
    assert factor < ours.outside.to_device - stock.outside.to_device
    assert ours.outside.to_device < calls * stock.outside.to_device + factor + fingerprint \
        + 0.5 * STEPS * one.latent


@pytest.mark.parametrize("mode, a_step", [("free", 9), ("light", 47), ("accurate", 58)])
@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_kernels_launched_outside_the_network_are_few(run, name, mode, a_step):
    one = run(name)
    posterior = one.posterior()
    stock, ours = one.stock(), one.ours(mode, posterior)
    calls = 1 + extra_calls(mode) / STEPS
    assert ours.network.launches <= calls * stock.network.launches + 20  # the fingerprint's
    assert ours.outside.launches <= calls * stock.outside.launches + a_step * STEPS


@pytest.mark.parametrize("mode, latents", [("free", 25), ("light", 60), ("accurate", 60)])
@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_memory_beside_the_stock_samplers_is_a_few_latents(run, name, mode, latents):
    one = run(name)
    posterior = one.posterior()
    stock, ours = one.stock(), one.ours(mode, posterior)
    kept = 4 * posterior.posterior.factor.numel() if mode != "free" else 0
    deviations = 4 if mode == "accurate" else 2
    assert ours.outside.peak - stock.outside.peak - kept <= (
        latents + (4 * deviations if mode != "free" else 0)) * one.latent


@pytest.mark.parametrize("mode, noise_model", [
    ("free", "independent"), ("light", "independent"), ("accurate", "shared")])
def test_no_features_are_held_while_the_network_runs(run, mode, noise_model):
    """Of a U-Net they are as large as 80 latents, and the network itself takes most meanwhile."""
    one, live = run("sd15"), []
    posterior = one.posterior("diagonal")
    handle = one.case.model.model.diffusion_model.register_forward_pre_hook(
        lambda *_: live.append(device.MACHINE.live))
    try:
        one.stock()
        stock = max(live)
        live.clear()
        one.ours(mode, posterior, noise_model=noise_model, deviations=2, check="off")
    finally:
        handle.remove()
    assert (len(live) > STEPS) == (mode != "free")
    assert max(live) - stock <= 60 * one.latent


def test_memory_of_mode_free_is_bounded_whatever_the_steps(run):
    one = run("flux", steps=75)  # 40 % of them would be 30 latents
    assert one.ours("free", None).outside.peak - one.stock().outside.peak <= 25 * one.latent


def test_with_more_steps_neither_memory_nor_waits_nor_the_posteriors_bytes_grow(run):
    """A plan for more steps has more deviations, by itself; here it has as many."""
    found, one = [], run("flux")
    posterior = one.posterior()
    for one.case.steps in (50, 75):  # from 50 on the window over the last estimates is full
        stock, ours = one.stock(), one.ours("accurate", posterior, deviations=2, probe_levels=2)
        found.append(map(int.__sub__, ours.outside, stock.outside))
    short, long = (device.Counts(*counts) for counts in found)
    assert long.peak <= short.peak + one.latent
    assert long.stalls == short.stalls
    assert long.to_device - short.to_device < 0.1 * one.latent * 25  # signs, a bit each
    assert long.from_device - short.from_device < one.latent


def test_levels_that_are_not_asked_for_are_those_of_the_calls(case, pack):
    """Samplers of the table that is trusted make the one call of step i at sigmas[i]."""
    case = case("sd3")
    trusted = [name for name in host_nodes.comfy.samplers.SAMPLER_NAMES
               if pack.known_samplers.calls_at_sigmas(
                   host_nodes.comfy.samplers.sampler_object(name))]
    assert len(trusted) > 15
    for case.sampler in trusted:
        levels = []
        case.observed(lambda call: levels.append(float(call.sigma[0])))  # noqa: B023
        sigmas = pack.sampling.levels(case.model, case.steps, case.sampler, "normal", 1.0)
        assert levels == sigmas[:-1].tolist(), case.sampler


def counted(launches=0, stalls=0, crossed=0, flops=0, in_network=(0, 0)):
    network = device.Counts(launches=in_network[0], flops=in_network[1])
    return device.Counted(network, device.Counts(launches, stalls, crossed, 0, 0, flops))


@pytest.mark.parametrize("ours, share", [
    (counted(3, 0, 0, 0, (100, 0)), 0.02), (counted(1, 5, 0, 0, (100, 0)), 0.10),
    (counted(1, 0, 700, 0, (100, 0)), 0.07), (counted(1, 0, 0, 40, (100, 0)), 0.04),
    (counted(3, 0, 0, 0, (100, 4000)), 0.01)])
def test_the_predicted_share_is_the_time_of_what_is_ours_over_the_networks(ours, share):
    """A launch takes 1 second, a stall 2, a byte 1/100, a flop 1/20 in the network and 1/10 of
    ours; the network has 100 launches, or 4000 flops that take twice as long."""
    card = overhead_counts.Card(1.0, 2.0, 100.0, 20.0, 10.0)
    stock = counted(1, 0, 0, 0, (90, 0))
    assert overhead_counts.share(ours, stock, card) == pytest.approx(share)
