"""Stands between a sampler and its model, and owns what they say to each other besides x.

A cfg_pp sampler reads the unconditional result through a function that it adds to the model options
at each call. Whoever answers in the model's place must tell it too, so an answer is a pair.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

POST_CFG = "sampler_post_cfg_function"


class Answer(NamedTuple):
    denoised: torch.Tensor
    uncond: torch.Tensor | None = None  # only where the sampler wants to know it


class Guidance(NamedTuple):
    """What the host's guidance told of one combination of the prompts' results."""

    scale: float
    plain: torch.Tensor | None  # whether it was CFG before any patch; None where nobody asked
    denoised: torch.Tensor | None  # what came of it


class StandIn:
    """Stands in for the model a sampler calls; all else about it is the model's own. hear: is told
    of answers that were known before (x, sigma, denoised), for which nobody calls."""

    def __init__(self, model, call: Callable, hear: Callable | None = None):
        object.__setattr__(self, "_model", model)
        object.__setattr__(self, "_call", call)
        object.__setattr__(self, "_hear", hear)

    def __call__(self, *args, **kwargs):
        return self._call(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self._model, name)

    def __setattr__(self, name, value):
        setattr(self._model, name, value)


class Question:
    """One call of a sampler. known: how many post-CFG functions there were without it; all, where
    none is given."""

    def __init__(self, model, x: torch.Tensor, sigma: torch.Tensor, kwargs: dict,
                 known: int | None = None):
        self.x, self.sigma, self.kwargs = x, sigma, kwargs
        self._model = model
        functions = self.options.get(POST_CFG, [])
        self._known, self._added = functions[:known], functions[known:]  # the sampler's come last
        self.guidance: list[Guidance] = []  # of the last ask

    @property
    def options(self) -> dict:
        return self.kwargs["model_options"]

    def ask(self, x: torch.Tensor, prove: bool = False) -> Answer:
        """The model itself, at this noise level; as often as wanted. prove: whether the guidance is
        plain is told too."""
        uncond, plain, self.guidance = [], [None], []

        def listen_first(args: dict) -> torch.Tensor:
            plain.append(_is_plain(args))
            return args["denoised"]

        def listen_last(args: dict) -> torch.Tensor:
            if self._added:
                uncond.append(args["uncond_denoised"])
            self.guidance.append(Guidance(args.get("cond_scale"), plain[-1],
                                          args["denoised"] if prove else None))
            return args["denoised"]

        functions = [*([listen_first] if prove else []), *self._known, listen_last]
        kwargs = {**self.kwargs, "model_options": {**self.options, POST_CFG: functions}}
        return Answer(self._model(x, self.sigma[:len(x)], **kwargs), *uncond[:1])

    def known(self, answer: Answer) -> Answer:
        """An answer that was given before; whoever stands in for the model hears of it too."""
        hear = getattr(self._model, "_hear", None)
        if hear:
            hear(self.x, self.sigma, answer.denoised)
        return answer

    def told(self, answer: Answer) -> torch.Tensor:
        """What the sampler gets to see of an answer."""
        denoised = answer.denoised
        for function in self._added:
            denoised = function({"denoised": denoised, "uncond_denoised": answer.uncond,
                                 "input": self.x, "sigma": self.sigma,
                                 "model_options": self.options})
        return denoised


def _is_plain(args: dict) -> torch.Tensor:
    """Whether the result is classifier-free guidance of the two prompts' results; on the device."""
    cond, uncond, found = (args[name] for name in ("cond_denoised", "uncond_denoised", "denoised"))
    expected = uncond + (cond - uncond) * args["cond_scale"]
    return (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def intercepted(model, extra_args: dict, answer: Callable[[Question], Answer]) -> StandIn:
    """The model with `answer` in its place. extra_args: as the run began, to know the functions
    that its sampler adds from the user's."""
    known = len(extra_args["model_options"].get(POST_CFG, []))

    def call(x, sigma, **kwargs):
        question = Question(model, x, sigma, kwargs, known)
        return question.told(answer(question))

    return StandIn(model, call)
