"""Variances are finite and never negative, whatever the precision, the noise levels, the guidance
and the number of steps; and the same everywhere."""

import hashlib
import os
import subprocess
import sys

import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes

from tools.places import REPOSITORY
from tools.reports import SOAK

MODES = ["free", "light", "accurate"]
OPTIONS = {"probe_levels": 0, "skip_interval": 1, "deviations": 0, "noise_model": "independent",
           "uncertainty_seed": 5, "keep_steps": 10}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check(variance: torch.Tensor, trajectory) -> None:
    for values in (variance, trajectory.variance, trajectory.tail):
        assert torch.isfinite(values).all() and values.min() >= 0
    nothing_changes = len(trajectory.sigmas) == 2 and not trajectory.deviations.numel()
    assert trajectory.sigmas[-2] == 0 or nothing_changes or variance.max() > 0


def ksampler(pack, case, llla, mode, **options):
    _, variance, trajectory, scores, *_ = pack.samplers.BayesDiffKSampler.execute(
        case.model, *case.options(), case.denoise, llla, **{**OPTIONS, "mode": mode,
                                                            **options}).args
    check(variance["samples"], trajectory)
    return variance["samples"], scores


def in_precision(case, kind):
    """The case with a model that computes in that type; says what its features are."""
    case.model = case.model.clone()
    case.model.set_model_compute_dtype(TYPES[kind])
    seen = []
    handle = case.layer()[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    case.stock()
    handle.remove()
    return seen[0].dtype


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", ["sd3", "wan", *(["sd15"] if SOAK else [])])
def test_every_precision_and_guidance(case, pack, posterior_of, tried, name, kind, mode):
    case = case(name)
    llla, like = posterior_of(case), None
    case.latent["samples"] = case.latent["samples"][..., :4, :4]  # half precision is slow on a CPU
    assert in_precision(case, kind) == TYPES[kind]
    for cfg in (0.0, 1.0, 7.5, 30.0):
        case.cfg = cfg
        variance, _ = ksampler(pack, case, llla, mode)
        like = variance if cfg == 7.5 else like
    case.cfg, case.model = 7.5, case.model.clone()
    case.model.set_model_compute_dtype(torch.float32)
    expected, _ = ksampler(pack, case, llla, mode)
    # still the same thing
    assert like.sum().item() == pytest.approx(expected.sum().item(), rel=0.5)
    tried("precisions, guidances and modes", 5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [1, 2, 3, 50, *([200, 1000] if SOAK else [])])
def test_every_number_of_steps(case, pack, posterior_of, tried, steps, mode):
    case = case("sd3")
    case.steps, llla = steps, posterior_of(case)
    ksampler(pack, case, llla, mode)
    tried("numbers of steps, 1 to 1000", 1)


EXTREMES = {"sd15": [[1e6, 1e3, 1.0, 0.0], [1e-6, 1e-7, 0.0], [14.6, 14.59, 14.58, 0.0],
                     [1e4, 1e-4, 0.0], [5.0, 1.0, 0.9], [1e-3, 1e-3 * (1 - 1e-6), 0.0]],
            "sd3": [[1.0, 0.999999, 0.0], [1.0, 1e-6, 0.0], [1e-5, 1e-6, 0.0],
                    [1.0, 0.5, 0.49999], [0.999, 0.5, 1e-7, 0.0], [1.0, 0.99, 0.98, 0.97]]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sampler", ["dpmpp_2m", *(["euler", "heun", "euler_ancestral",
                                                              "lms"] if SOAK else [])])
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_noise_levels(case, pack, posterior_of, tried, name, sampler, mode):
    case = case(name)
    guider = stock_nodes.CFGGuider.execute(case.model, case.positive, case.negative, 4.0)[0]
    for sigmas in EXTREMES[name]:
        inputs = (stock_nodes.RandomNoise.execute(7)[0], guider,
                  stock_nodes.KSamplerSelect.execute(sampler)[0], torch.tensor(sigmas), case.latent)
        stock = stock_nodes.SamplerCustomAdvanced.execute(*inputs)[0]["samples"]
        assert torch.isfinite(stock).all(), "the stock sampler cannot do this either"
        latent, variance, trajectory, *_ = pack.samplers.BayesDiffSamplerCustom.execute(
            *inputs, posterior_of(case), **{**OPTIONS, "mode": mode}).args
        assert torch.equal(latent["samples"], stock)
        for values in (variance["samples"], trajectory.variance):
            assert torch.isfinite(values).all() and values.min() >= 0
    tried("extreme noise levels", len(EXTREMES[name]))


@pytest.mark.parametrize("mode", [*MODES, "paper"])
def test_scores_alone_are_scores_in_a_batch(case, pack, posterior_of, tried, mode):
    case = case("sd3")
    size = case.latent["samples"].shape[1:]
    places = [4, 0, 9]
    case.latent = {"samples": case.random(3, *size, seed=3), "batch_index": places}
    _, together = ksampler(pack, case, posterior_of(case), mode)
    images = case.latent["samples"]
    for place, image, score in zip(places, images, together):
        case.latent = {"samples": image[None], "batch_index": [place]}
        _, (alone,) = ksampler(pack, case, posterior_of(case), mode)
        assert alone == pytest.approx(score, rel=1e-3)
    tried("scores alone and in a batch", len(places))


def test_same_seed_same_bits_in_another_process(pack, case, posterior_of):
    """One that runs this test alone, with another seed of Python's own."""
    case = case("sd3")
    posterior = posterior_of(case, temperature=0.75)  # its own: others' are of what they sampled
    bits = hashlib.sha256()
    for mode in (*MODES, "paper"):
        bits.update(ksampler(pack, case, posterior, mode)[0].flatten().numpy())
    print(bits.hexdigest())
    if os.environ.get("BAYESDIFF_OTHER_PROCESS"):
        return
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/host/test_numbers.py", "-k", "another_process",
         "-s", "--rootdir", "tests", "-c", "tests/pytest.ini"], cwd=REPOSITORY, text=True,
        env={**os.environ, "BAYESDIFF_OTHER_PROCESS": "1", "PYTHONHASHSEED": "7"},
        capture_output=True).stdout
    assert bits.hexdigest() in told, told[-2000:]
