"""LLLA Fit against naive dense computations, and what it must leave alone."""

import math

import comfy.model_management
import comfy.sd
import pytest
import torch
import torch.nn.functional as F
from comfy.taesd.taesd import TAESD

MODELS = ["sd15", "sd3", "flux", "wan"]
PLAIN = {"structure": "diagonal", "latents": 6, "timesteps": "uniform", "empty_share": 0.34,
         "seed": 5}


@pytest.fixture
def fitted(pack):
    """Fits on the case's model with two prompts and two latents, settings changed by name."""
    def fit(case, earlier=None, prompts=None, examples=None, prior="fixed", **changes):
        prompts = prompts or [case.prompt(1), case.prompt(2)]
        latents = [case.random(1, *case.latent["samples"].shape[1:], seed=s) for s in (3, 4)]
        examples = examples or [pack.fit.Example(latent) for latent in latents]
        settings = pack.fit.Settings(**{**PLAIN, **changes})
        return pack.fit.fit(case.model, prompts, examples, settings, prior, earlier=earlier).llla
    return fit


class Watch:
    """Features into the last layer while the network runs, caught by hooks of our own."""

    def __init__(self, case):
        self.features, self._on = [], False
        network = case.model.get_model_object("diffusion_model")
        self._handles = [
            network.register_forward_pre_hook(lambda *_: self._turn(True)),
            network.register_forward_hook(lambda *_: self._turn(False)),
            case.layer()[1].register_forward_pre_hook(lambda module, inputs: self._see(inputs[0]))]

    def _turn(self, on):
        self._on = on

    def _see(self, features):
        if self._on:
            self.features.append(features.detach().double())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in self._handles:
            handle.remove()

    def rows(self, shape):
        """u of all calls, densely, in float64."""
        def unfolded(phi):
            if shape.kernel:
                return F.unfold(phi, shape.kernel, padding=shape.kernel // 2).transpose(1, 2)
            return phi
        u = torch.cat([unfolded(phi).reshape(-1, shape.inputs - shape.bias)
                       for phi in self.features])
        return torch.cat([u, torch.ones_like(u[:, :1])], 1) if shape.bias else u


@pytest.mark.parametrize("name, structure", [
    ("sd15", "diagonal"), ("sd3", "full"), ("flux", "full"), ("wan", "full"), ("wan", "diagonal")])
def test_statistics_are_the_dense_sums_over_the_features_seen(case, fitted, name, structure):
    case = case(name)
    with Watch(case) as watch:
        made = fitted(case, structure=structure)
    assert sum(map(len, watch.features)) == made.about.latents == 6
    rows = watch.rows(made.about.shape)
    expected = rows.T @ rows if structure == "full" else rows.square().sum(0)
    assert torch.allclose(made.ggn, expected, rtol=1e-4, atol=1e-6 * expected.max().item())
    assert all((rows.float() == row).all(1).any() for row in made.sketch[::7])


def test_full_statistics_of_a_convolution_are_the_dense_sums(case, pack):
    """Without the posterior: its eigenvectors take seconds at this size."""
    case = case("sd15")
    settings = pack.fit.Settings(**{**PLAIN, "structure": "full", "empty_share": 0.0})
    loop = pack.fit.DataLoop(case.layer()[0], settings)
    latent = case.latent["samples"]
    with Watch(case) as watch:
        loop.run(case.model, {0: case.positive}, [pack.fit.Task(i, latent, 0, s)
                                                  for i, s in enumerate([10.0, 1.0, 0.1])])
    rows = watch.rows(loop.statistics.layer)
    expected = rows.T @ rows
    assert (loop.statistics.ggn - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("name", MODELS)
def test_layer_is_probed_without_reading_its_weights(case, fitted, name):
    case = case(name)
    about = fitted(case).about
    _, module = case.layer()
    norm = module.weight.double().square().sum() + module.bias.double().square().sum()
    assert about.weight_norm == pytest.approx(norm.item(), rel=1e-3)
    assert about.outputs == len(module.bias)


@pytest.mark.parametrize("name", ["sd15_v", "sd15", "sd3"])
def test_residual_and_noise_energy_are_those_of_the_noised_latents(case, pack, fitted, name):
    """By the definition of each prediction: eps = noise, v = alpha noise - sigma x0, n - x0."""
    case = case(name)
    seen = []
    sampling = case.model.get_model_object("model_sampling")
    original = sampling.noise_scaling
    sampling.noise_scaling = lambda sigma, noise, x0, *rest: (
        seen.append((sigma, noise, x0)), original(sigma, noise, x0, *rest))[1]
    outputs = []
    handle = case.model.get_model_object("diffusion_model").register_forward_hook(
        lambda module, inputs, output: outputs.append(output.double()))
    try:
        made = fitted(case)
    finally:
        del sampling.noise_scaling
        handle.remove()
    form = case.model.get_model_object("latent_format")
    size = case.latent["samples"].shape[1:]
    given = [form.process_in(case.random(1, *size, seed=s)) for s in (3, 4)]
    assert all(any(torch.equal(one, known) for known in given)
               for _, _, x0 in seen for one in x0.split(1))
    total = count = 0
    energy = 0.0
    for (sigma, noise, x0), output in zip(seen, outputs):
        sigma = sigma.double().reshape(-1, 1, 1, 1)
        noise, x0 = noise.double(), x0.double()
        alpha = 1 / (1 + sigma**2).sqrt()
        target = {"sd15": noise, "sd15_v": alpha * noise - alpha * sigma * x0,
                  "sd3": noise - x0}[name]
        total += (target - output).square().sum().item()
        count += output.numel()
        d = alpha * output + alpha**2 * sigma * (x0 + sigma * noise) if name == "sd15_v" else output
        energy += d.square().flatten(1).mean(1).sum().item()
    assert made.about.residual_count == count
    assert made.about.residual_sum == pytest.approx(total, rel=2e-3)
    assert made.energy_sums.sum().item() == pytest.approx(energy, rel=2e-3)
    assert made.energy_counts.sum() == 6


def same(first, second):
    return torch.equal(first.ggn, second.ggn) and torch.equal(first.sketch, second.sketch) \
        and torch.equal(first.energy_sums, second.energy_sums)


@pytest.mark.parametrize("timesteps", ["uniform", "log sigma", "logit normal"])
def test_same_seed_gives_the_same_bits_and_another_does_not(case, fitted, timesteps):
    case = case("sd3")
    first, again = (fitted(case, timesteps=timesteps) for _ in range(2))
    assert same(first, again) and torch.equal(first.fingerprint, again.fingerprint)
    assert not same(first, fitted(case, timesteps=timesteps, seed=6))


def test_levels_follow_their_distribution(case, pack):
    for name, low, high in [("sd15", 0.02, 15.0), ("flux", 0.0, 1.0)]:
        sampling = case(name).model.get_model_object("model_sampling")
        sigmas = [pack.fit.noise_level(sampling, "uniform", u) for u in (0.0005, 0.25, 0.9995)]
        assert high > sigmas[0] > sigmas[1] > sigmas[2] > low
        assert sigmas[1] == pytest.approx(float(sampling.percent_to_sigma(0.25)))
        middle = pack.fit.noise_level(sampling, "log sigma", 0.5)
        assert middle**2 == pytest.approx(float(sampling.sigma_min) * float(sampling.sigma_max))
        normal = pack.fit.noise_level(sampling, "logit normal", 0.15865525)  # one sigma below
        assert normal == pytest.approx(float(sampling.percent_to_sigma(1 / (1 + math.e))), rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_batch_size_and_running_out_of_memory_do_not_matter(case, fitted, name, monkeypatch):
    case = case(name)
    whole = fitted(case, empty_share=0.0, latents=9)
    network, sizes = case.model.get_model_object("diffusion_model"), []

    def refuse_pairs(module, inputs):
        sizes.append(len(inputs[0]))
        if len(inputs[0]) > 1:
            raise comfy.model_management.OOM_EXCEPTION("no memory, says the test")
    handle = network.register_forward_pre_hook(refuse_pairs)
    try:
        alone = fitted(case, empty_share=0.0, latents=9)
    finally:
        handle.remove()
    assert sizes == [4, 2, *[1] * 9]
    assert torch.allclose(whole.ggn, alone.ggn, rtol=1e-4, atol=1e-5 * whole.ggn.max().item())
    assert whole.about.latents == alone.about.latents == 9
    assert whole.energy_counts.sum() == alone.energy_counts.sum() == 9


def test_out_of_memory_with_one_latent_is_passed_on_with_advice(case, fitted):
    case = case("wan")

    def refuse(module, inputs):
        raise comfy.model_management.OOM_EXCEPTION("no memory, says the test")
    handle = case.model.get_model_object("diffusion_model").register_forward_pre_hook(refuse)
    with pytest.raises(comfy.model_management.OOM_EXCEPTION, match="one latent at a time"):
        fitted(case)
    handle.remove()


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_continuing_is_fitting_all_at_once(case, fitted, structure):
    case = case("sd3")
    whole = fitted(case, structure=structure, latents=10)
    part = fitted(case, structure=structure, latents=4)
    before = part.ggn.clone()
    both = fitted(case, earlier=part, structure=structure, latents=6)
    assert torch.allclose(both.ggn, whole.ggn, rtol=1e-5, atol=1e-6 * whole.ggn.max().item())
    assert both.about.latents == 10 and torch.equal(part.ggn, before)
    assert both.about.residual_sum == pytest.approx(whole.about.residual_sum, rel=1e-6)
    assert torch.allclose(both.energy_sums, whole.energy_sums)


def test_full_statistics_can_be_continued_as_diagonal_but_not_the_other_way(case, fitted, pack):
    case = case("sd3")
    full, thin = fitted(case, structure="full"), fitted(case)
    assert fitted(case, earlier=full).about.structure == "diagonal"
    with pytest.raises(pack.BayesDiffError, match="diagonal statistics, full ones were expected"):
        fitted(case, earlier=thin, structure="full")


def test_continuing_on_another_checkpoint_warns_and_on_another_model_refuses(case, pack, fitted):
    case_, other = case("sd3"), case("wan")
    made = fitted(case_)
    with pytest.raises(pack.BayesDiffError, match="fitted on Stable Diffusion 3 .* model is Wan"):
        fitted(other, earlier=made)
    assert pack.layer_probe.checkpoint_warning(made, made.fingerprint) is None
    changed = made._replace(fingerprint=made.fingerprint * 1.02)
    prompts, examples = [case_.prompt(1)], [pack.fit.Example(case_.latent["samples"])]
    settings = pack.fit.Settings(**PLAIN)
    result = pack.fit.fit(case_.model, prompts, examples, settings, earlier=changed)
    assert "differs by 2.0%" in result.warning
    narrow = made._replace(about=made.about._replace(
        shape=made.about.shape._replace(features=48)))
    with pytest.raises(pack.BayesDiffError, match="48 features.* model's has 64 features"):
        pack.layer_probe.check_posterior(narrow, case_.layer()[0])


def test_fingerprint_survives_another_precision_but_not_a_lora_on_the_layer(case, pack):
    case = case("sd3")
    record, module = case.layer()
    like = torch.zeros(1)
    first = pack.layer_probe.fingerprint(module, record, like)
    assert len(first) == 64
    copy = torch.nn.Linear(module.in_features, module.out_features)
    copy.load_state_dict(module.state_dict())
    second = pack.layer_probe.fingerprint(copy.bfloat16(), record, like.bfloat16())
    assert 0 < pack.layer_probe.difference(first, second) < pack.layer_probe.SAME_CHECKPOINT
    with torch.no_grad():
        copy.weight += 0.02 * torch.randn(copy.weight.shape, generator=torch.Generator()
                                          .manual_seed(0)).to(copy.weight)
    third = pack.layer_probe.fingerprint(copy, record, like.bfloat16())
    assert pack.layer_probe.difference(first, third) > pack.layer_probe.SAME_CHECKPOINT


def test_empty_share_and_prompts_are_dealt_evenly(case, pack):
    sampling = case("sd3").model.get_model_object("model_sampling")
    settings = pack.fit.Settings(**{**PLAIN, "latents": 200, "empty_share": 0.1})
    examples = [pack.fit.Example(torch.zeros(1)) for _ in range(3)]
    tasks = pack.fit._tasks(sampling, ["a", "b"], examples, settings, start=0)
    numbers = [task.prompt for task in tasks]
    assert numbers.count(pack.fit.EMPTY) == 20
    assert abs(numbers.count(0) - numbers.count(1)) <= 20
    empty = sorted(task.sigma for task in tasks if task.prompt == pack.fit.EMPTY)
    assert len(empty) == 20 and empty[1] < 0.25 and empty[-2] > 0.75  # at all levels


def test_scheduled_prompts_run_one_by_one_and_gaps_are_refused(case, pack, fitted):
    case = case("sd15")
    early, late = case.prompt(1), case.prompt(2)
    early[0][1]["end_percent"] = 0.5
    late[0][1]["start_percent"] = 0.5
    with Watch(case) as watch:
        made = fitted(case, prompts=[early + late], empty_share=0.0)
    assert [len(phi) for phi in watch.features] == [1] * 6 and made.about.latents == 6
    with pytest.raises(pack.BayesDiffError, match="leaves noise level .* remove its start"):
        fitted(case, prompts=[early], empty_share=0.0)


def test_area_prompts_count_all_their_features(case, fitted):
    case = case("sd15")
    corner = case.prompt(2)
    corner[0][1]["area"] = (4, 4, 0, 0)
    with Watch(case) as watch:
        made = fitted(case, prompts=[case.prompt(1) + corner], empty_share=0.0)
    expected = watch.rows(made.about.shape).square().sum(0)
    assert torch.allclose(made.ggn, expected, rtol=1e-4) and made.about.latents == 6
    assert made.ggn[-1] == 6 * (64 + 16)  # positions


# ---- the node


@pytest.fixture
def node(pack):
    """Runs LLLA Fit as the host does: every input in a list."""
    def run(case, num_latents=4, structure="diagonal", **inputs):
        widgets = {"positive": [case.prompt(1)], "structure": [structure],
                   "num_latents": [num_latents],
                   "timesteps": ["uniform"], "prior": ["fixed"], "prior_precision": [1.0],
                   "temperature": [1.0], "empty_share": [0.25], "seed": [5], "size": [64]}
        with torch.inference_mode():
            return pack.llla.BayesDiffLLLAFit.execute(model=[case.model], **{**widgets, **inputs})
    return run


@pytest.mark.parametrize("name", MODELS)
def test_with_nothing_connected_the_model_draws_its_own_samples(case, node, name):
    case = case(name)
    out = node(case)
    made, = out.args
    assert made.about.latents == 4 and '"own samples"' in made.about.settings
    assert "latents seen: 4" in out.ui["text"][0] and len(out.ui["images"]) == 1
    assert all(level["variance"] > 0 for level in out.ui["bayesdiff"])


def test_an_empty_latent_gives_the_size_of_own_samples(case, node):
    case = case("sd3")
    with Watch(case) as watch:
        made, = node(case, latents=[{"samples": torch.zeros(1, 4, 6, 10)}]).args
    assert '"own samples"' in made.about.settings
    assert {phi.shape[1] for phi in watch.features} == {3 * 5}


def test_lists_of_latents_and_prompts_of_equal_length_stay_together(case, node, pack):
    case = case("sd3")
    sizes = [(8, 8), (8, 8), (6, 10)]
    latents = [{"samples": case.random(1, 16, *size, seed=i)} for i, size in enumerate(sizes)]
    prompts = [case.prompt(i, tokens=5 + i) for i in range(3)]
    pairs = pack.fit.examples_of(case.model, latents, len(prompts))
    assert [example.prompt for example in pairs] == [0, 1, 2]
    made, = node(case, latents=latents, positive=prompts, num_latents=6).args
    assert made.about.latents == 6
    batch = {"samples": torch.cat([latents[0]["samples"], latents[1]["samples"]])}
    together = pack.fit.examples_of(case.model, [batch], 3)
    assert [example.prompt for example in together] == [None, None]


def test_images_are_encoded_with_the_vae(case, node):
    shapes = {name: weight.shape for name, weight in TAESD(latent_channels=4).state_dict().items()}
    vae = comfy.sd.VAE(sd={name: 0.1 * torch.randn(shape) for name, shape in shapes.items()})
    case = case("sd15")
    images = [torch.rand(2, 64, 64, 4), torch.rand(1, 64, 128, 3)]
    made, = node(case, images=images, vae=[vae]).args
    assert '"images"' in made.about.settings
    latents = [{"samples": vae.encode(image[..., :3])} for image in images]
    assert torch.equal(node(case, latents=latents).args[0].ggn, made.ggn)


@pytest.mark.parametrize("inputs, words", [
    ({"latents": [{"samples": torch.zeros(0, 16, 8, 8)}]}, "latents are empty.*at least 1 image"),
    ({"latents": [{"samples": torch.ones(1, 4, 8, 8)}]}, r"\(1, 4, 8, 8\), B x 16 x H x W was"),
    ({"latents": [{"samples": torch.ones(1, 16, 3, 8, 8)}]}, r"B x 16 x H x W was expected.*VAE"),
    ({"latents": [{"samples": torch.full((1, 16, 8, 8), math.nan)}]}, "latents: 1024 of 1024"),
    ({"num_latents": 0}, "number of noised latents is 0, at least 1"),
    ({"empty_share": [1.5]}, "empty-prompt calls is 1.5, 0 to 1"),
    ({"timesteps": ["sometimes"]}, "'sometimes', one of"),
    ({"images": [torch.rand(1, 64, 64, 3)]}, "without a vae: connect"),
    ({"images": [torch.rand(0, 64, 64, 3)], "vae": [object()]}, "at least 1 image was expected"),
    ({"images": [torch.rand(1, 64, 64, 3)], "latents": [{"samples": torch.ones(1, 16, 8, 8)}]},
     "both latents and images"),
])
def test_bad_input_is_refused_in_words(case, node, pack, inputs, words):
    with pytest.raises(pack.BayesDiffError, match=words):
        node(case("sd3"), **inputs)


def test_evidence_chooses_prior_and_noise_from_the_data(case, fitted, pack):
    case = case("sd3")
    fixed, evidence = fitted(case, structure="full"), fitted(case, structure="full",
                                                             prior="evidence")
    about = evidence.about
    noise = about.residual_sum / about.residual_count
    values = torch.linalg.eigvalsh(fixed.ggn / noise)
    priors = torch.logspace(-4, 4, 4001, dtype=torch.float64).tolist()
    best = max(priors, key=lambda p: pack.core.posterior.log_evidence(
        values.clamp(min=0), p, about.weight_norm, about.outputs))
    assert evidence.posterior.prior_precision == pytest.approx(best, rel=0.01)


def test_half_precision_features_are_squared_in_single(case, fitted):
    """Features near 300 overflow fp16 when squared."""
    case = case("sd3")
    assert fitted(case, structure="full").ggn.isfinite().all()
    module = case.layer()[1]
    handle = module.register_forward_pre_hook(lambda module, inputs: (inputs[0].half() * 0 + 300,))
    original = module.forward
    module.forward = lambda features: original(features.float())
    try:
        made = fitted(case)
    finally:
        handle.remove()
        del module.forward
    assert made.ggn[0] == pytest.approx(9e4 * made.ggn[-1].item())

