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


class StandIn:
    """Stands in for the model a sampler calls; all else about it is the model's own."""

    def __init__(self, model, call: Callable):
        object.__setattr__(self, "_model", model)
        object.__setattr__(self, "_call", call)

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

    @property
    def options(self) -> dict:
        return self.kwargs["model_options"]

    def ask(self, x: torch.Tensor) -> Answer:
        """The model itself, at this noise level; as often as wanted."""
        sigma, heard, kwargs = self.sigma[:len(x)], [], self.kwargs
        if self._added:
            def listen(args: dict) -> torch.Tensor:
                heard.append(args["uncond_denoised"])
                return args["denoised"]
            kwargs = {**kwargs, "model_options": {**self.options,
                                                  POST_CFG: [*self._known, listen]}}
        return Answer(self._model(x, sigma, **kwargs), *heard)

    def told(self, answer: Answer) -> torch.Tensor:
        """What the sampler gets to see of an answer."""
        denoised = answer.denoised
        for function in self._added:
            denoised = function({"denoised": denoised, "uncond_denoised": answer.uncond,
                                 "input": self.x, "sigma": self.sigma,
                                 "model_options": self.options})
        return denoised


def intercepted(model, extra_args: dict, answer: Callable[[Question], Answer]) -> StandIn:
    """The model with `answer` in its place. extra_args: as the run began, to know the functions
    that its sampler adds from the user's."""
    known = len(extra_args["model_options"].get(POST_CFG, []))

    def call(x, sigma, **kwargs):
        question = Question(model, x, sigma, kwargs, known)
        return question.told(answer(question))

    return StandIn(model, call)
