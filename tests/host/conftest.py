"""ComfyUI in this process, with the pack loaded by ComfyUI's own loader."""

import asyncio
import importlib.util
import json
import sys
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from tools.in_process import enter_host
from tools.places import REPOSITORY

enter_host()

import comfy.sd  # noqa: E402
import comfy.taesd.taesd  # noqa: E402
import folder_paths  # noqa: E402

import nodes as host_nodes  # noqa: E402
from tools import tiny_models  # noqa: E402

SIZES = {"sd15": (4, 8, 8), "sd3": (16, 9, 7), "flux": (16, 9, 7), "flux2": (128, 5, 3),
         "wan": (16, 3, 5, 6), "hunyuan_video": (16, 3, 4, 6)}
STEPS = 3
SAMPLING = {"mode": "accurate", "probe_levels": 0, "skip_interval": 1, "deviations": 0,
            "noise_model": "independent", "uncertainty_seed": 5, "keep_steps": 10}
RESAMPLING = {"step": -1, "fraction": 0.5, "count": 1, "strength": 0.5,
              "strength_unit": "noise level", "draw": "deviations", "seed": 3}


@pytest.fixture(scope="session")
def pack():
    """The modules of the pack, under the name that the host gives them."""
    assert asyncio.run(host_nodes.load_custom_node(str(REPOSITORY))), "the host refused the pack"
    root = str(REPOSITORY).replace(".", "_x_")
    core = Modules(root, "bayesdiff_core", "bayesdiff_core.paper")
    nodes = Modules(root, "nodes", "nodes.files", "nodes.pictures", "nodes.host",
                    "nodes.host.network", "nodes.host.run", "nodes.host.run.modes")
    nodes.root, nodes.core, nodes.observing = sys.modules[root], core, observing
    nodes.BayesDiffError = core.checks.BayesDiffError
    return nodes


class Modules:
    """Modules of the pack as attributes, imported when asked for."""

    def __init__(self, root, *packages):
        self._packages = [f"{root}.{package}" for package in packages]

    def __getattr__(self, name):
        for package in self._packages:
            if importlib.util.find_spec(f"{package}.{name}"):
                return importlib.import_module(f"{package}.{name}")
        raise AttributeError(name)


@pytest.fixture(scope="session")
def load_model(tmp_path_factory):
    """Loads a tiny model by the stock loader; "sd15_v" is sd15 through ModelSamplingDiscrete."""
    folder = tmp_path_factory.mktemp("diffusion_models")
    folder_paths.add_model_folder_path("diffusion_models", str(folder))
    loaded = {}

    def load(name):
        if name == "sd15_v":
            from comfy_extras.nodes_model_advanced import ModelSamplingDiscrete
            return ModelSamplingDiscrete().patch(load("sd15"), "v_prediction", False)[0]
        if name not in loaded:
            path = tiny_models.write(name, folder)
            loaded[name], = host_nodes.UNETLoader().load_unet(path.name, "default")
        return loaded[name]

    return load


class ModelCall(NamedTuple):
    """One call of the model by the sampler."""

    x: torch.Tensor
    sigma: torch.Tensor
    denoised: torch.Tensor
    chunks: tuple


def observing(pack, model, seen):
    """The least that an observer can do: shows each call of the model to seen()."""
    tap = pack.feature_tap.FeatureTap(pack.last_layers.last_layer_of(model))

    def observe(run):
        def call(x, sigma, **kwargs):
            tap.take()
            denoised = run.model(x, sigma, **kwargs)
            seen(ModelCall(x, sigma, denoised, tap.take()))
            return denoised
        return run.go(model=pack.interceptor.StandIn(run.model, call)), None

    return pack.sampling.Observer(observe, tap)


class Case:
    """One way to sample, run by the stock node or by us."""

    def __init__(self, name, model, pack):
        self.model, self.pack, self.name = model, pack, name.removesuffix("_v")
        self.positive, self.negative = self.prompt(1), self.prompt(2)
        self.latent = {"samples": self.random(1, *SIZES[self.name], seed=3)}
        self.cfg, self.denoise, self.sampler, self.steps = 4.0, 1.0, "euler", STEPS

    def prompt(self, seed, tokens=5):
        hunyuan = self.name == "hunyuan_video"
        pooled = tiny_models.HUNYUAN_POOLED if hunyuan else tiny_models.POOLED
        return [[self.random(1, tokens, tiny_models.CONTEXT[self.name], seed=seed),
                 {"pooled_output": self.random(1, pooled, seed=seed)}]]

    @staticmethod
    def random(*shape, seed):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    def options(self):
        return (7, self.steps, self.cfg, self.sampler, "normal", self.positive, self.negative,
                self.latent)

    def stock(self):
        return host_nodes.common_ksampler(self.model, *self.options(), denoise=self.denoise)[0]

    def observed(self, observer=None):
        """Our result, and the calls the observer saw."""
        calls = []
        return self.run_with(self.observer(observer or calls.append))[0], calls

    def observer(self, seen):
        return observing(self.pack, self.model, seen)

    def run_with(self, observer):
        """The LATENT, and what the observer told."""
        return self.pack.sampling.sample(self.model, observer, *self.options(),
                                         denoise=self.denoise)

    def layer(self):
        """The last layer's record and its module."""
        record = self.pack.last_layers.last_layer_of(self.model)
        return record, self.model.get_model_object(record.path)


@pytest.fixture
def case(pack, load_model):
    return lambda name: Case(name, load_model(name), pack)


@pytest.fixture(scope="session")
def posterior_of(pack):
    """A posterior from the features of a few calls; temperature 0 makes it certain."""
    made = {}

    def fit(case, temperature=1.0):
        key = case.name, temperature
        if key not in made:
            record, layer = case.layer()
            structure = "diagonal" if record.shape.kernel else "full"  # a full U-Net one takes 10 s
            statistics = pack.core.posterior.FeatureStatistics(record.shape, structure)
            chunks = [chunk for call in case.observed()[1] for chunk in call.chunks]
            for chunk in chunks:
                statistics.add(chunk.features)
            about = SimpleNamespace(family=record.family, layer=record.path, shape=record.shape,
                                    outputs=record.outputs)
            fingerprint = pack.layer_probe.fingerprint(layer, record, chunks[0].features)
            posterior = pack.core.posterior.posterior(statistics, structure,
                                                      temperature=temperature)
            made[key] = SimpleNamespace(about=about, posterior=posterior, fingerprint=fingerprint)
        return made[key]

    return fit


@pytest.fixture
def ksampler(pack, posterior_of):
    """Latent and trajectory of BayesDiff KSampler."""
    def run(case, **options):
        options = {**SAMPLING, **options}
        posterior = None if options["mode"] == "free" else posterior_of(case)
        latent, _, trajectory, *_ = pack.samplers.BayesDiffKSampler.execute(
            case.model, *case.options(), case.denoise, posterior, **options).args
        return latent, trajectory

    run.options = SAMPLING
    return run


@pytest.fixture
def resample(pack):
    """Samples and report of Resample From Timestep."""
    def run(trajectory=None, **options):
        latent, report = pack.resample.BayesDiffResample.execute(
            trajectory, **{**RESAMPLING, **options}).args
        return latent["samples"], json.loads(report)

    run.options = RESAMPLING
    return run


@pytest.fixture(scope="session")
def fits(pack, load_model):
    """A full and a diagonal posterior of the tiny Wan."""
    case, made = Case("wan", load_model("wan"), pack), {}
    for structure in ("full", "diagonal"):
        settings = pack.fit.Settings(structure, 5, "uniform", 0.2, 1)
        made[structure] = pack.fit.fit(case.model, [case.positive],
                                       [pack.fit.Example(case.latent["samples"])], settings,
                                       pack_version=pack.version.PACK_VERSION).llla
    return made


@pytest.fixture
def place(tmp_path, monkeypatch):
    """models/llla and the output folder, for this test alone."""
    models, output = tmp_path / "models", tmp_path / "output"
    models.mkdir()
    output.mkdir()
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "llla",
                        ([str(models)], {".safetensors"}))
    monkeypatch.setattr(folder_paths, "output_directory", str(output))
    folder_paths.filename_list_cache.pop("llla", None)
    yield tmp_path
    folder_paths.filename_list_cache.pop("llla", None)


@pytest.fixture(scope="session")
def random_vae():
    """A VAE of the network as the host finds it in a file, with weights that give pictures, not
    overflow."""
    def random(shape, seed):
        return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) - 0.5

    def made(network):
        shapes = {key: weight.shape for key, weight in network.state_dict().items()}
        weights = {key: torch.zeros(shape) if len(shape) == 1 else
                   random(shape, seed) * (14 / shape[1:].numel()) ** 0.5
                   for seed, (key, shape) in enumerate(shapes.items()) if shape}
        weights[list(weights)[-1]] += 0.5  # middle gray
        others = {key: torch.tensor(1.0) for key in shapes.keys() - weights}
        return comfy.sd.VAE(sd=weights | others)

    return made


@pytest.fixture(scope="session")
def vae(random_vae):
    """Of pictures: 4 channels, 8 pixels a side."""
    return random_vae(comfy.taesd.taesd.TAESD())
