"""Image-wise scores: one number an image, or a clip. Higher means less sure.

Variances are B x C x (T) x H x W, answers B values in float64. What has several frames is judged as
one; sound, B x C x length, as a picture of one row.
"""

import torch
from torch.nn import functional

from . import doubt
from .checks import BayesDiffError
from .heatmap import deviation_map, resized
from .smoothing import without_low_pass
from .trajectory import Trajectory

SUM, MEAN, CONTRAST, PATCH = "sum", "mean", "local contrast", "worst patch"
IN_MASK, TRAJECTORY, RELATIVE = "inside mask", "trajectory variance", "relative change"
DOUBT = doubt.NAME
SCORES = [DOUBT, SUM, MEAN, CONTRAST, PATCH, IN_MASK, TRAJECTORY, RELATIVE]
MEASURES = {  # what a number is, in words for a report
    DOUBT: "how much the picture changed in the last steps and, if it was checked, how much the"
           " model would change it, relative to its contrast. Higher is less sure",
    SUM: "variance summed over pixels and channels", MEAN: "mean variance of a latent value",
    CONTRAST: "how far the standard deviation is from its local mean",
    PATCH: "highest mean variance in a window", IN_MASK: "mean variance inside the mask",
    TRAJECTORY: "how much the picture still changed in the last 40 % of the steps",
    RELATIVE: "how much the picture changed in the last 40 % of the steps, relative to its detail"}
LEAST_DETAIL = 1e-6  # of a flat picture, in the latent's unit
DEFAULT = DOUBT  # bench truth
STILL = ("the scores of the run say nothing: the picture did not change over the last steps, as far"
         " as the sampler shows it. Choose another sampler or more steps, or go by the check or a"
         " posterior's scores")


def total(variance: torch.Tensor) -> torch.Tensor:
    """The paper's score: the variance summed over all pixels and channels, B values."""
    return variance.flatten(1).sum(1, dtype=torch.float64)


def mean(variance: torch.Tensor) -> torch.Tensor:
    """The sum over pixels and channels by their number: sizes can be compared."""
    return variance.flatten(1).mean(1, dtype=torch.float64)


def local_contrast(variance: torch.Tensor) -> torch.Tensor:
    """How much the standard deviation differs from its local mean (windows of 1/8 of the shorter
    side), as a root mean square: a few spots count more than a haze, a constant counts nothing."""
    deviation = deviation_map(variance).double()
    local = without_low_pass(deviation.flatten(0, 1).unsqueeze(-1))
    return local.square().reshape(len(variance), -1).mean(1).sqrt()


def worst_patch(variance: torch.Tensor) -> torch.Tensor:
    """The largest mean variance in a window of 1/8 of the shorter side, whole windows only."""
    local = deviation_map(variance).double().square()
    side = 2 * max(min(local.shape[-2:]) // 16, 1) + 1
    window = [min(side, length) for length in local.shape[-2:]]
    return functional.avg_pool2d(local, window, stride=1).flatten(1).amax(1)


def relative_change(tail: torch.Tensor, picture: torch.Tensor) -> torch.Tensor:
    """How much the denoised estimate changed in the last steps, relative to the picture's own
    detail, or every detailed picture would count as unsure: the mean of the trajectory variance's
    root over the mean standard deviation in windows of 3 x 3. A number without a unit."""
    change = tail.double().sqrt().flatten(1).mean(1)
    return change / detail(picture).clamp(min=LEAST_DETAIL)


def detail(picture: torch.Tensor) -> torch.Tensor:
    """Mean standard deviation in windows of 3 x 3, cut off at the border: B values."""
    planes = doubt.with_height(picture).double().flatten(0, -3).unsqueeze(1)

    def window(values: torch.Tensor) -> torch.Tensor:
        return functional.avg_pool2d(values, 3, stride=1, padding=1, count_include_pad=False)

    planes = planes - planes.mean((2, 3), keepdim=True)  # for the rounding of what follows
    spread = (window(planes.square()) - window(planes).square()).clamp(min=0).sqrt()
    return spread.reshape(len(picture), -1).mean(1)


def inside(variance: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean variance weighted by a mask of any size: M x H x W, where M is 1, B, or the frames of B
    clips one after the other."""
    local = deviation_map(variance).double().square()  # B x T x H x W
    batch, frames = local.shape[:2]
    mask = mask.reshape(-1, *mask.shape[-2:]).double()
    each, left_over = divmod(len(mask), batch)
    if len(mask) != 1 and (left_over or not each or frames == 1 and each > 1):
        raise BayesDiffError(f"the mask input holds {len(mask)} masks for {batch} images: link one"
                             " for all, or one for each.")
    mask = mask.reshape(min(batch, len(mask)), -1, *mask.shape[-2:])
    mask = resized(mask, frames, *mask.shape[-2:])
    weights = functional.interpolate(mask, local.shape[-2:], mode="bilinear", antialias=True)
    weights = weights.clamp(min=0).expand(batch, -1, -1, -1)
    whole = weights.flatten(1).sum(1)
    if not (whole > 0).all():
        empty = (~(whole > 0)).nonzero().flatten().tolist()
        raise BayesDiffError(f"the mask of image {empty[0]} is empty, so there is nothing inside to"
                             " score: paint something, or choose another score.")
    return (weights * local).flatten(1).sum(1) / whole


def all_scores(variance: torch.Tensor, tail: torch.Tensor | None = None,
               mask: torch.Tensor | None = None,
               picture: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """Every score that the given parts allow, by name. picture: the latent that was drawn."""
    if not variance.numel():
        raise BayesDiffError(f"the variance has the shape {list(variance.shape)}, which holds no"
                             " image; at least 1 was expected.")
    variance = doubt.with_height(variance)
    deviation_map(variance)  # refuses what is no variance
    found = {SUM: total(variance), MEAN: mean(variance), CONTRAST: local_contrast(variance),
             PATCH: worst_patch(variance)}
    if mask is not None:
        found[IN_MASK] = inside(variance, mask)
    if tail is not None:
        found[TRAJECTORY] = mean(tail)
    if tail is not None and picture is not None:
        found[RELATIVE] = relative_change(tail, picture)
    return found


def default(trajectory: Trajectory) -> doubt.Doubt:
    """DEFAULT of a trajectory, which every sampler mode records."""
    return doubt.doubt(trajectory.maps(), trajectory.picture)


def is_still(trajectory: Trajectory) -> bool:
    """Whether the run shows no change at all, in any of its images: what STILL says."""
    return not trajectory.maps()[doubt.LATE].any()


def doubt_of(trajectory: Trajectory) -> torch.Tensor:
    """The map whose mean square is the square of that score: B x 1 x (T) x H x W."""
    return doubt.doubt_map(trajectory.maps(), default(trajectory).values)


def of_trajectory(trajectory: Trajectory,
                  mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """Every score, and the parts of DOUBT, by name."""
    found = default(trajectory)
    return {DOUBT: found.values, **all_scores(
        trajectory.latent_variance(), trajectory.latent_tail(), mask,
        trajectory.latent_picture()), **found.parts}
