"""What travels between the nodes: the pack's own socket types, and the host's LATENT."""

from collections.abc import Iterator

import torch
from comfy_api.latest import io

from ..bayesdiff_core import checks
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.llla import Llla
from ..bayesdiff_core.trajectory import Trajectory, joined

LLLA = io.Custom("BAYESDIFF_LLLA")  # bayesdiff_core.llla.Llla
TRAJECTORY = io.Custom("BAYESDIFF_TRAJECTORY")  # bayesdiff_core.trajectory.Trajectory


def latent_of(latent: dict) -> torch.Tensor:
    """Of a latent of several parts (video with sound) the first, as the stock VAE Decode does."""
    samples = latent["samples"]
    return (samples.unbind()[0] if samples.is_nested else samples).float()


def trajectories_of(value) -> list[Trajectory]:
    """Of an input that may be one, or lists of them as a loop collects them."""
    found = list(flat(value))
    for one in found:
        if not isinstance(one, Trajectory):
            raise _wrong("trajectory", one, "the output `trajectory` of a BayesDiff node")
    return found


def trajectory_of(value) -> Trajectory | None:
    """The same as one batch; None where nothing is linked."""
    if value is None or isinstance(value, Trajectory):
        return value
    return joined(trajectories_of(value))


def llla_of(value) -> Llla | None:
    found = list(flat(value)) if value is not None else [None]
    single("posterior", found)
    if found[0] is not None and not hasattr(found[0], "about"):
        raise _wrong("posterior", found[0], "the output `posterior` of LLLA Fit or LLLA Load")
    return found[0]


def latents_in(name: str, values) -> list[dict]:
    """Of an input that may hold lists of them, as a loop collects them."""
    found = list(flat(values))
    for one in found:
        if not isinstance(one, dict) or "samples" not in one:
            raise _wrong(name, one, "a LATENT, as samplers give it")
    return found


def images_in(name: str, values) -> list[torch.Tensor]:
    """The same of images, or of masks."""
    found = list(flat(values))
    for one in found:
        if not isinstance(one, torch.Tensor):
            raise _wrong(name, one, f"{name} as ComfyUI has them")
    return found


def scores_in(values) -> list[float]:
    """Of an input that may hold lists of them, as a loop collects them."""
    found = [number for one in flat(values)
             for number in (one.flatten().tolist() if isinstance(one, torch.Tensor) else [one])]
    for one in found:
        if not isinstance(one, int | float):
            raise _wrong("scores", one, "`scores` of a BayesDiff node, which are numbers")
    return [float(one) for one in found]


def flat(value) -> Iterator:
    """What lists of lists hold, as a loop collects them."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from flat(one)
    else:
        yield value


def _wrong(name: str, value, expected: str) -> BayesDiffError:
    return BayesDiffError(f"{name} is a {type(value).__name__}, so it comes from a node of another"
                          f" kind: link {expected}.")


def check_choices(node: type[io.ComfyNode], **given) -> None:
    """Refuses what is not in the node's own lists: through a link anything can come."""
    for port in node.define_schema().inputs:
        if isinstance(port, io.Combo.Input) and port.id in given:
            checks.one_of(port.id, given[port.id], port.options)


def single(name: str, values: list) -> list:
    """Of an input that may come as a list."""
    if len(values) != 1:
        raise BayesDiffError(f"{len(values)} values of {name} are connected, 1 was expected.")
    return values
