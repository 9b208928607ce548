"""What a run will cost, told before it.

No model is loaded for it, so noise levels are those of Stable Diffusion, or of SD3 for flows; the
steps that get extra calls may lie a little off. Their number and the cost do not depend on it but
where a schedule has no room.
"""

import asyncio
import functools
from types import SimpleNamespace
from typing import NamedTuple

import comfy.model_sampling
import comfy.samplers
import torch
from aiohttp import web
from server import PromptServer
from torch.overrides import TorchFunctionMode

from ...bayesdiff_core.deviations import MEANINGS
from .ghosts import chosen_plan
from .paper import chosen_schedule, rule_of
from .sampling import levels

MOST_STEPS = 200  # more are not tried out: a sampler's calls a step do not change


class Forecast(NamedTuple):
    steps: int
    uncertain: list[int]  # steps at which extra calls are made
    calls: int  # of the network, by the sampler
    extra_calls: int


class _Model(comfy.model_sampling.ModelSamplingDiscrete, comfy.model_sampling.EPS):
    pass


class _Flow(comfy.model_sampling.ModelSamplingDiscreteFlow, comfy.model_sampling.CONST):
    pass


def forecast(mode: str, steps: int, sampler_name: str, scheduler: str, denoise: float = 1.0,
             share: float = 0.0, nodes: int = 0, deviations: int = 0, meaning: str = MEANINGS[0],
             skip_interval: int = 0, flow: bool = False) -> Forecast:
    sigmas = _levels(min(steps, MOST_STEPS), sampler_name, scheduler, denoise, flow)
    count = max(len(sigmas) - 1, 0)
    calls, uncertain, extra = _calls(sampler_name, tuple(sigmas.tolist()), flow), [], 0
    if mode == "paper" and count:
        rule = rule_of(comfy.samplers.sampler_object(sampler_name).sampler_function, flow)
        uncertain, extra = chosen_schedule(rule, sigmas, skip_interval, deviations)
    elif share and count > 1:  # at the only step there is nothing to measure yet
        plan = chosen_plan(sigmas, flow, share, nodes, deviations, meaning)
        uncertain, extra = plan.steps(sigmas), plan.evaluations
    return Forecast(count, uncertain, calls, extra)


def _levels(steps, sampler_name, scheduler, denoise, flow) -> torch.Tensor:
    model = SimpleNamespace(get_model_object=lambda name: _model_sampling(flow), model_options={})
    return levels(model, steps, sampler_name, scheduler, denoise)


@functools.cache
def _model_sampling(flow: bool):
    return _Flow() if flow else _Model()


class _NoSharedNumbers(TorchFunctionMode):
    """In this thread nothing is drawn from torch's own generator: another thread may be drawing a
    picture with it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.randn_like:
            return torch.zeros_like(args[0])
        return function(*args, **(kwargs or {}))


@functools.lru_cache(maxsize=256)
def _calls(sampler_name: str, sigmas: tuple[float, ...], flow: bool) -> int:
    """The sampler itself is run, on a model of one number, and its calls are counted."""
    count = 0

    def model(x, sigma, model_options={}, **_):
        nonlocal count
        count += 1
        args = {"denoised": x * 0, "uncond_denoised": x * 0, "input": x, "sigma": sigma,
                "model_options": model_options, "cond_denoised": x * 0}
        for function in model_options.get("sampler_post_cfg_function", []):
            function(args)
        return x * 0

    patcher = SimpleNamespace(get_model_object=lambda name: _model_sampling(flow))
    model.inner_model = SimpleNamespace(
        model_patcher=patcher, inner_model=SimpleNamespace(model_sampling=_model_sampling(flow)))
    sampler = comfy.samplers.sampler_object(sampler_name)
    try:
        with _NoSharedNumbers():
            sampler.sampler_function(model, torch.ones(1, 1, 1, 1), torch.tensor(sigmas),
                                     extra_args={"model_options": {}, "seed": 0},
                                     callback=lambda info: None, disable=True,
                                     **sampler.extra_options)
    except Exception:  # whatever a foreign sampler wants of a model: a forecast must not fail
        return len(sigmas) - 1
    return count


def serve(path: str, answer) -> None:
    """Adds a GET route that gives answer(query) as JSON. Before the host has a server, as in its
    own tests, there is nothing to add to."""
    server = getattr(PromptServer, "instance", None)
    if server is None:
        return

    @server.routes.get(path)
    async def get(request):
        return web.json_response(await asyncio.to_thread(answer, request.query))
