"""LLLA Fit's data loop: noised latents through the network, features into the statistics.

It runs as a sampler under the host's own guider, so that the host loads the model, however little
memory there is, and prepares the conditioning. The features need no targets; the residuals, which
"evidence" uses, are against the latents given.
"""

import hashlib
import json
import math
from typing import NamedTuple

import comfy.model_management
import comfy.sample
import comfy.samplers
import comfy.utils
import torch
from comfy_extras.nodes_custom_sampler import Guider_Basic

import nodes as host_nodes

from ...bayesdiff_core import checks, llla
from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.llla import About, Llla
from ...bayesdiff_core.noise_energy import NoiseEnergy
from ...bayesdiff_core.posterior import FeatureStatistics
from . import memory
from .network.feature_tap import FeatureTap
from .network.last_layers import LastAffine, last_layer_of
from .network.layer_probe import Probe, check_posterior, checkpoint_warning, probe
from .network.parameterization import slope

TIMESTEPS = ("uniform", "log sigma", "logit normal")
LARGEST_BATCH = 4
OWN_SAMPLE_STEPS = 20
LATENTS_AN_OWN_SAMPLE = 8  # how often each is noised
# These look at the first noise level of a batch only.
SCHEDULED = {"start_percent", "end_percent", "hooks", "control"}
GOLDEN = (math.sqrt(5) - 1) / 2
EMPTY = -1  # in place of a prompt's number


class Settings(NamedTuple):
    structure: str
    latents: int  # how many noised ones
    timesteps: str
    empty_share: float
    seed: int
    part: int = 0  # of `parts`, counted from 0: which share of the latents is run here
    parts: int = 1


class Example(NamedTuple):
    """A clean latent, 1 x C (x T) x H x W in the VAE's space, and its prompt's number or None.
    No latent: another part of the fit has it."""

    latent: torch.Tensor | None
    prompt: int | None = None


class Task(NamedTuple):
    """One noised latent."""

    index: int
    latent: torch.Tensor
    prompt: int  # or EMPTY
    sigma: float


class Result(NamedTuple):
    llla: Llla
    warning: str | None


def fit(model, prompts: list, examples: list[Example], settings: Settings, prior: str = "fixed",
        prior_precision: float = 1.0, temperature: float = 1.0, negative=None,
        earlier: Llla | None = None, source: str = "latents", pack_version: str = "none") -> Result:
    """A posterior for the MODEL. prompts: CONDITIONINGs. `earlier` is continued: its latents stay
    in, and noise and levels go on where they ended."""
    record = check(model, settings, earlier)
    if negative is None:
        negative, = host_nodes.ConditioningZeroOut().zero_out(prompts[0])
    tasks = _tasks(model.get_model_object("model_sampling"), prompts, examples, settings,
                   start=earlier.about.latents if earlier else 0)
    loop = DataLoop(record, settings)
    with memory.advice("memory ran out with one latent at a time: fit on smaller ones (size, or"
                       " other latents), or choose structure 'diagonal'."):
        loop.run(model, {**dict(enumerate(prompts)), EMPTY: negative}, tasks)
    how = {**settings._asdict(), "source": source, "prompts": len(prompts)}
    about = About(record.family, record.path, record.shape, loop.probe.outputs,
                  weight_norm=loop.probe.weight_norm, settings=json.dumps([how]),
                  pack_version=pack_version, structure=settings.structure, latents=0,
                  residual_sum=0.0, residual_count=0)
    made = llla.make(loop.statistics, loop.energy, torch.cat(loop.sketch),
                     torch.tensor(loop.sketch_sigmas), loop.probe.fingerprint, about,
                     settings.structure, prior, prior_precision, temperature, earlier)
    return Result(made, earlier and checkpoint_warning(earlier, loop.probe.fingerprint))


def check(model, settings: Settings, earlier: Llla | None = None) -> LastAffine:
    """Refuses, before anything is run, what a fit would stumble over; the model's last layer."""
    checks.at_least("number of noised latents", settings.latents, 1)
    checks.one_of("timesteps", settings.timesteps, TIMESTEPS)
    if not 0 <= settings.empty_share <= 1:
        raise BayesDiffError(f"share of empty-prompt calls is {settings.empty_share}, 0 to 1 was"
                             " expected.")
    if not 0 <= settings.part < settings.parts:
        raise BayesDiffError(f"part is {settings.part} of {settings.parts} parts, 0 to"
                             f" {settings.parts - 1} was expected.")
    record = last_layer_of(model)
    if earlier is not None:
        check_posterior(earlier, record)
        if settings.structure == "full" and earlier.about.structure != "full":
            raise BayesDiffError("the posterior to continue from holds diagonal statistics, full"
                                 " ones were expected: choose structure 'diagonal', or start over.")
    return record


def examples_of(model, latents: list[dict], prompts: int) -> list[Example]:
    """LATENTs, each one or a batch, as examples. As many LATENTs as prompts belong together, as the
    host's data-set nodes give them."""
    paired = len(latents) == prompts > 1
    examples = []
    for number, latent in enumerate(latents):
        for one in checked(model, latent).split(1):
            examples.append(Example(one, number if paired else None))
    if not examples:
        raise BayesDiffError("the latents hold 0 images, at least 1 was expected: connect a LATENT"
                             " with images in it, or nothing, so that the model draws its own.")
    return examples


def encoded(images: list[torch.Tensor], vae) -> list[dict]:
    """IMAGEs as LATENTs."""
    if vae is None:
        raise BayesDiffError("images are connected without a vae: connect the VAE that belongs to"
                             " the model, or latents instead of images.")
    for image in images:
        if not image.numel():
            raise BayesDiffError(f"images have shape {tuple(image.shape)}, at least 1 image was"
                                 " expected.")
    return [{"samples": vae.encode(image[..., :3])} for image in images]


def empty_latent(model, size: int) -> torch.Tensor:
    """What an Empty Latent node would give for pictures of size x size pixels."""
    form = model.get_model_object("latent_format")
    side = max(1, size // form.spacial_downscale_ratio)
    frames = (1,) * (form.latent_dimensions - 2)
    return torch.zeros(1, form.latent_channels, *frames, side, side)


def own_samples(model, prompts: list, empty: torch.Tensor, settings: Settings) -> list[Example]:
    """Pictures that the model draws itself: the posterior needs features, not true pictures."""
    count = math.ceil(settings.latents / LATENTS_AN_OWN_SAMPLE)
    examples = []
    for i in range(count):
        prompt = i % len(prompts)
        if i % settings.parts != settings.part:
            examples.append(Example(None, prompt))
            continue
        nothing, = host_nodes.ConditioningZeroOut().zero_out(prompts[prompt])
        drawn, = host_nodes.common_ksampler(
            model, _seed(settings.seed, "own sample", i), OWN_SAMPLE_STEPS, 1.0, "euler", "normal",
            prompts[prompt], nothing, {"samples": empty})
        samples = drawn["samples"].float().cpu()
        checks.finite("the model's own samples", samples)
        examples.append(Example(samples, prompt))
    return examples


class DataLoop(comfy.samplers.Sampler):
    """Collects statistics over groups of latents that share a prompt and a shape."""

    def __init__(self, record: LastAffine, settings: Settings):
        self.statistics = FeatureStatistics(record.shape, settings.structure)
        self.energy = NoiseEnergy()
        self.sketch: list[torch.Tensor] = []
        self.sketch_sigmas: list[float] = []
        self.probe: Probe | None = None
        self._record, self._settings = record, settings
        self._tap = FeatureTap(record)
        self._batch = LARGEST_BATCH
        self._rows = max(4, math.ceil(llla.SKETCH_ROWS / settings.latents))
        self._tasks: list[Task] = []
        self._one_by_one = False
        self._progress = None

    def run(self, model, prompts: dict, tasks: list[Task]) -> None:
        tapped = self._tap.attach(model)
        self._progress = comfy.utils.ProgressBar(len(tasks))
        groups: dict[tuple, list[Task]] = {}
        for task in tasks:
            groups.setdefault((task.prompt, task.latent.shape), []).append(task)
        for (prompt, shape), self._tasks in groups.items():
            self._one_by_one = any(SCHEDULED & entry[1].keys() for entry in prompts[prompt])
            guider = Guider_Basic(tapped)
            guider.set_conds(prompts[prompt])
            like = torch.zeros(len(self._tasks[:self._batch]), *shape[1:])
            sigmas = torch.tensor([task.sigma for task in self._tasks]).sort(descending=True).values
            guider.sample(torch.zeros_like(like), like, self, sigmas, disable_pbar=True,
                          seed=self._settings.seed)

    @torch.no_grad()
    def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None,
               denoise_mask=None, disable_pbar=False):
        waiting = self._tasks
        while waiting:
            comfy.model_management.throw_exception_if_processing_interrupted()
            now = waiting[:1 if self._one_by_one else self._batch]
            if not self._add(now, model_wrap, extra_args["model_options"], noise.device):
                self._batch = max(1, len(now) // 2)
                comfy.model_management.soft_empty_cache()
                continue
            waiting = waiting[len(now):]
            self._progress.update(len(now))
        return latent_image

    def _add(self, tasks: list[Task], guider, model_options: dict, device) -> bool:
        """One network call. False if memory ran out and fewer latents may do."""
        model = guider.inner_model
        generators = [torch.Generator().manual_seed(_seed(self._settings.seed, "noise", task.index))
                      for task in tasks]
        noise = torch.cat([torch.randn(task.latent.shape, generator=generator)
                           for task, generator in zip(tasks, generators)]).to(device)
        sigma = torch.tensor([task.sigma for task in tasks], device=device)
        x0 = model.process_latent_in(torch.cat([task.latent for task in tasks]).to(device))
        x = model.model_sampling.noise_scaling(sigma, noise, x0)
        self._tap.take()
        try:
            # The prompt's own prediction: what patches do to guidance is not the network's.
            denoised, = comfy.samplers.calc_cond_batch(model, [guider.conds["positive"]], x, sigma,
                                                       model_options)
        except Exception as error:
            if len(tasks) == 1 or not memory.ran_out(error):
                raise
            return False
        chunks = self._tap.take()
        if not chunks:
            raise BayesDiffError(f"the prompt leaves noise level {tasks[0].sigma:.4g} out, so the"
                                 " network was not called there: remove its start and end percents"
                                 " for the fit.")
        seen = self.statistics.latents + len(tasks)
        each = sigma.reshape(-1, *[1] * (x.ndim - 1))
        residual = (x0 - denoised) / slope(model.model_sampling, sigma).reshape(each.shape)
        for number, chunk in enumerate(chunks):
            self.statistics.add(chunk.features, residual=residual.cpu() if number == 0 else None)
        self.statistics.latents = seen  # an area prompt has several chunks a latent
        self.energy.add(sigma.cpu(), ((x - denoised) / each).cpu())
        self._sketch(tasks, generators, chunks[0].features)
        if self.probe is None:
            module = comfy.utils.get_attr(model, self._record.path)
            self.probe = probe(module, self._record, chunks[0].features[:0].to(x.device))
        return True

    def _sketch(self, tasks: list[Task], generators: list[torch.Generator], features) -> None:
        shape = self._record.shape
        for i, (task, generator) in enumerate(zip(tasks, generators)):
            if len(self.sketch_sigmas) + self._rows > llla.SKETCH_ROWS and self.sketch:
                return
            one = features[i * len(features) // len(tasks), None]
            positions = one[0, 0].numel() if shape.kernel else one[..., 0].numel()
            picked = torch.randperm(positions, generator=generator)[:self._rows]
            self.sketch.append(llla.rows_at(one, shape, picked))
            self.sketch_sigmas += [task.sigma] * len(picked)


def noise_level(model_sampling, timesteps: str, u: float) -> float:
    """The sigma at quantile u of a distribution of timesteps."""
    if timesteps == "log sigma":
        low, high = (math.log(float(s)) for s in (model_sampling.sigma_min,
                                                  model_sampling.sigma_max))
        return math.exp(high + u * (low - high))
    if timesteps == "logit normal":
        u = torch.special.ndtri(torch.tensor(u, dtype=torch.float64)).sigmoid().item()
    return float(model_sampling.percent_to_sigma(u))


def _tasks(model_sampling, prompts: list, examples: list[Example], settings: Settings,
           start: int) -> list[Task]:
    """Levels follow the golden ratio: any run of them, and any regular part of a run, is spread
    evenly."""
    offset = _seed(settings.seed, "levels", 0) / 2**32
    tasks = []
    for index in range(start, start + settings.latents):
        example = examples[index % len(examples)]
        prompt = index % len(prompts) if example.prompt is None else example.prompt
        empty = math.floor((index + 1) * settings.empty_share + 1e-9) \
            > math.floor(index * settings.empty_share + 1e-9)
        u = 0.0005 + 0.999 * ((offset + index * GOLDEN) % 1)  # 0 and 1 are no levels of a model
        sigma = noise_level(model_sampling, settings.timesteps, u)
        tasks.append(Task(index, example.latent, EMPTY if empty else prompt, sigma))
    return _of_part(tasks, settings)


def _of_part(tasks: list[Task], settings: Settings) -> list[Task]:
    """Each task is in one part. Of own samples those of this part were drawn; of latents that were
    given, all parts have all."""
    if any(task.latent is None for task in tasks):
        found = [task for task in tasks if task.latent is not None]
    else:
        found = [task for task in tasks if task.index % settings.parts == settings.part]
    if not found:
        raise BayesDiffError(f"part {settings.part} of {settings.parts} has no latent to run: take"
                             " fewer parts, or more latents.")
    return found


def _seed(seed: int, purpose: str, index: int) -> int:
    """32 bits, all that torch's CPU generator takes in, and unlike for neighboring seeds."""
    digest = hashlib.sha256(f"bayesdiff {seed} {purpose} {index}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def checked(model, latent: dict) -> torch.Tensor:
    """Latents that the model can take: B x C (x T) x H x W."""
    samples = latent["samples"]
    if samples.is_nested:
        raise BayesDiffError("the latents are nested (a video with its sound): one LATENT of"
                             " pictures or frames was expected.")
    if not samples.numel():
        raise BayesDiffError(f"the latents are empty, their shape is {tuple(samples.shape)}: at"
                             " least 1 image was expected. Connect a LATENT with images in it.")
    form = model.get_model_object("latent_format")
    samples = comfy.sample.fix_empty_latent_channels(model, samples.float().cpu(),
                                                     latent.get("downscale_ratio_spacial"))
    if samples.ndim != form.latent_dimensions + 2 or samples.shape[1] != form.latent_channels:
        axes = " x T" * (form.latent_dimensions - 2)
        raise BayesDiffError(f"the latents have shape {tuple(samples.shape)}, B x"
                             f" {form.latent_channels}{axes} x H x W was expected by the model's"
                             f" {type(form).__name__} format: encode the images with the VAE that"
                             " belongs to this model.")
    checks.finite("latents", samples)
    return samples
