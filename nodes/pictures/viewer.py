"""Small pictures for the viewer in the browser (web/viewer.js), as files in the temporary folder.

A sheet is one PNG for an image: a column for each frame, its picture above and its deviations
below, as 16 bit numbers in red and green, so that the browser can color them and tell values.
"""

import contextlib
import logging
import secrets
from pathlib import Path
from typing import NamedTuple

import folder_paths
import torch
import torch.nn.functional as F
from comfy_api.latest import io, ui

from ...bayesdiff_core import heatmap as maps
from ...bayesdiff_core.doubt import NAME as DOUBT
from ...bayesdiff_core.scores import doubt_of
from ...bayesdiff_core.trajectory import Trajectory
from ..host.preview import latent_format_of, pictures
from ..host.run.sampling import Forming

FOLDER = "bayesdiff"  # in the temporary folder
MOST_FILES = 2000  # there: the host clears it only when it starts
MOST_IMAGES = 64  # of a run
MOST_FORMING = 16  # while it goes on
STEP_SIDE, RESULT_SIDE, THUMB_SIDE = 192, 512, 256  # pixels of a frame, at most
CLIP_PERCENTILE = 99.0
COLORS = 64


def shown(make, *args):
    """What one of the functions below makes; None where the disk takes no file. Pictures for the
    browser must not cost the result that they show."""
    try:
        made = make(*args)
        _forget_the_oldest()
        return made
    except OSError as error:
        logging.warning("BayesDiff: no pictures for the browser: %s", error)
        return None


def of_trajectory(trajectory: Trajectory) -> dict | None:
    """What the picture was going to be and the root of Var(x_t) at the kept steps, of the result
    its doubt; None for latents that are no pictures, or not finite, which the report tells of."""
    if trajectory.mean.ndim - 1 not in (4, 5) or not trajectory.variance.isfinite().all():
        return None
    frames, deviations = _step_frames(trajectory)
    sheets = _sheets(frames[:MOST_IMAGES], deviations[:MOST_IMAGES], trajectory.steps.tolist(),
                     trajectory.sigmas[trajectory.steps].tolist())
    return _viewer([{"steps": sheet} for sheet in sheets], len(frames), maps.GLOW, DOUBT,
                   kind_of(trajectory))


def of_forming(forming: Forming) -> dict | None:
    """One step as it comes: a sheet with a column for each image; None for what is no picture, or
    not finite, which the run's own checks will tell of."""
    if forming.denoised.ndim not in (4, 5) or not forming.variance.isfinite().all():
        return None
    count = len(forming.denoised)
    first = forming._replace(**{name: getattr(forming, name)[:MOST_FORMING]
                                for name in ("denoised", "variance")})
    drawn = pictures(first.latent_format, first.denoised)
    frames, deviations = (
        _fitted(part.flatten(0, 1), STEP_SIDE)[None, :MOST_FORMING]
        for part in (drawn, _like(drawn, first.variance * first.scale.square()).unsqueeze(-1)))
    shown = frames.shape[1]
    sheet, = _sheets(frames, deviations[..., 0], [forming.step] * shown,
                     [float(forming.sigmas[forming.step])] * shown)
    kind = _kind(forming.variance, forming.tail)
    left_out = count * drawn.shape[1] - shown
    return {**_viewer([], 0, maps.GLOW, kind, kind), "sheet": sheet, "left_out": left_out,
            "step": forming.step, "steps": len(forming.sigmas) - 1}


def kind_of(trajectory: Trajectory) -> str:
    """What its variance tells, a word of web/words.js."""
    return _kind(trajectory.variance[-1], trajectory.tail[-1])


def _kind(variance: torch.Tensor, tail: torch.Tensor) -> str:
    return "change" if torch.equal(variance, tail) else "uncertainty"


class Masks(NamedTuple):
    mask: torch.Tensor  # N x H x W, in 0..1
    keys: list[str]  # names of their pictures
    painted: list[bool]  # by hand


def of_heatmap(image: torch.Tensor | None, deviation: torch.Tensor, trajectory: Trajectory | None,
               color_map: str, kind: str, clip_percentile: float, shared: bool,
               masks: Masks) -> dict:
    """The result's map over its picture, which may be missing, at most RESULT_SIDE pixels wide and
    high; and the steps that led there, where a trajectory is known. kind: what the map tells, a
    word of web/words.js."""
    clips, frames = deviation.shape[:2]
    ends = maps.color_range(deviation, clip_percentile, shared)
    deviation = _fitted(deviation.flatten(0, 1).unsqueeze(-1), RESULT_SIDE)[:MOST_IMAGES, ..., 0]
    drawn = torch.zeros(*deviation.shape, 3) if image is None else _fitted(image, RESULT_SIDE)
    results = _sheets(drawn[:MOST_IMAGES, None], deviation[:, None])
    for number, sheet in enumerate(results):
        clip = 0 if shared else number // frames
        sheet["frames"][0] |= {"low": float(ends.low[clip]), "high": float(ends.high[clip]),
                               "blank": image is None}
    mask = _fitted(masks.mask.unsqueeze(-1), RESULT_SIDE)[:MOST_IMAGES]
    # As the MaskEditor has it: what is masked is transparent.
    to_paint = _saved(torch.cat([drawn[:MOST_IMAGES].cpu(), 1 - mask.cpu()], dim=-1))
    entries = [{"result": sheet, "mask": {"file": file, "key": key, "painted": painted}}
               for sheet, file, key, painted
               in zip(results, to_paint, masks.keys, masks.painted)]
    if trajectory is not None and (told := of_trajectory(trajectory)):
        steps = told["images"]
        each = trajectory.mean.shape[3] if trajectory.mean.ndim == 6 else 1  # latent frames
        for number, entry in enumerate(entries):
            clip, frame = divmod(number, frames)
            at = clip * each + round(frame * (each - 1) / max(frames - 1, 1))
            entry["steps"] = steps[min(at, len(steps) - 1)]["steps"]
    return _viewer(entries, clips * frames, color_map, kind,
                   kind if trajectory is None else kind_of(trajectory))


def thumbnails(images: list[torch.Tensor], side: int = THUMB_SIDE) -> list[dict]:
    """A file for each picture, H x W x 3 or more."""
    return [_saved(_fitted(image[None, ..., :3].float(), side))[0]
            for image in images[:MOST_IMAGES]]


def of_latents(latents: list[torch.Tensor], like: Trajectory) -> list[dict | None]:
    """A file for each latent of the trajectory's kind, 1 x C x ...; of a clip its first frame. None
    for those that are no pictures, and beyond MOST_IMAGES."""
    if latents[0].ndim not in (4, 5):
        return [None] * len(latents)
    drawn = pictures(latent_format_of(like), torch.cat(latents[:MOST_IMAGES]))[:, 0]
    return thumbnails(list(drawn)) + [None] * (len(latents) - len(drawn))


def _viewer(images: list[dict], count: int, color_map: str, kind: str, steps_kind: str) -> dict:
    colors = (maps.layer(torch.linspace(0, 1, COLORS), color_map) * 255).round().int()
    return {"images": images, "left_out": count - len(images), "map": kind,
            "steps_map": steps_kind, "colors": colors.tolist()}


def _step_frames(trajectory: Trajectory) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures, images x steps x H x W x 3, and deviations; the frames of a clip are images."""
    kept, latent = len(trajectory.steps), trajectory.denoised
    if latent is None:  # a file of before: x_t by the spread of its noise, or it would be burnt out
        levels = trajectory.sigmas[trajectory.steps].reshape(-1, *[1] * (trajectory.mean.ndim - 1))
        latent = trajectory.mean / torch.hypot(levels, torch.ones_like(levels))
    drawn = pictures(latent_format_of(trajectory), latent.flatten(0, 1))
    variance = (trajectory.variance * trajectory.scale.square()).flatten(0, 1)
    variance[-len(trajectory.seeds):] = doubt_of(trajectory)
    deviations = _like(drawn, variance)

    def dealt(frames):
        small = _fitted(frames.flatten(0, 1), STEP_SIDE).unflatten(0, frames.shape[:2])
        return small.unflatten(0, (kept, -1)).flatten(1, 2).transpose(0, 1)

    return dealt(drawn), dealt(deviations.unsqueeze(-1))[..., 0]


def _like(drawn: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """The map of a variance, at the pictures' size: a network draws more pixels than a latent has.
    """
    deviations = maps.deviation_map(variance)
    if deviations.shape == drawn.shape[:-1]:
        return deviations
    return F.interpolate(deviations, drawn.shape[2:4], mode="bilinear")


def _sheets(pictures: torch.Tensor, deviations: torch.Tensor, steps: list[int] = (-1,),
            sigmas: list[float] = (0.0,)) -> list[dict]:
    """images x frames x H x W (x 3) -> for each image its file, and what its frames are."""
    top = deviations.amax((-2, -1), keepdim=True)
    code = (deviations / top.clamp(min=1e-30) * 65535).round().long()
    numbers = torch.stack([code // 256, code % 256, torch.zeros_like(code)], dim=-1) / 255
    columns = torch.cat([pictures.cpu(), numbers.cpu()], dim=2)
    sheets = columns.transpose(1, 2).flatten(2, 3)  # images x 2 H x frames W x 3
    described = []
    for file, of_image, tops in zip(_saved(sheets), deviations, top.flatten(1).tolist()):
        ends = maps.color_range(of_image, CLIP_PERCENTILE, shared=False)
        described.append({"file": file, "frames": [
            {"step": step, "sigma": sigma, "top": highest, "low": low, "high": high}
            for step, sigma, highest, low, high
            in zip(steps, sigmas, tops, ends.low.tolist(), ends.high.tolist())]})
    return described


def _saved(pictures: torch.Tensor) -> list[dict]:
    """The host cuts fractions off; half a level more keeps every level what it is."""
    return ui.ImageSaveHelper.save_images(pictures + 0.5 / 255, f"{FOLDER}/{secrets.token_hex(4)}",
                                          io.FolderType.temp, None, compress_level=1)


def _forget_the_oldest() -> None:
    folder = Path(folder_paths.get_temp_directory(), FOLDER)
    files = sorted(folder.glob("*"), key=lambda file: file.stat().st_mtime_ns)
    for file in files[:-MOST_FILES]:
        with contextlib.suppress(OSError):  # someone has it open
            file.unlink()


def _fitted(frames: torch.Tensor, side: int) -> torch.Tensor:
    """N x H x W x C, made smaller if it is greater than that, in its own proportions."""
    height, width = frames.shape[1:3]
    shrink = side / max(height, width)
    if shrink >= 1:
        return frames
    size = [max(round(length * shrink), 1) for length in (height, width)]
    return F.interpolate(frames.movedim(-1, 1), size, mode="area").movedim(1, -1)
