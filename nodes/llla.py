"""Fitting, saving and loading a posterior over a model's last layer (LLLA)."""

import os
from pathlib import Path

import folder_paths
import torch
from comfy_api.latest import io, ui

from ..bayesdiff_core import checks
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.llla import PRIORS, Llla, describe, predictive_sd_by_level
from ..bayesdiff_core.posterior import STRUCTURES
from .files import llla_file
from .files.names import check_inside, save_path, state
from .host import fit as data_loop
from .metadata import reported
from .pictures.level_plot import level_plot
from .sockets import LLLA, check_choices, llla_of, single
from .version import PACK_VERSION

FOLDER = "llla"
AS_FITTED = "as fitted"
AS_LOADED = {"structure": [AS_FITTED, *STRUCTURES], "prior": [AS_FITTED, *PRIORS]}
OUTPUT = "[output] "  # before a file's name in the list
FOLDERS = ("models", "output")


class BayesDiffLLLAFit(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_LLLAFit",
            display_name="LLLA Fit",
            category="bayesdiff",
            description="One-time calibration: teaches the pack how sure your checkpoint normally"
                        " is. Only modes light, accurate and paper need it. No data set is needed.",
            inputs=[
                io.Model.Input("model", tooltip="The model to calibrate. It is run, not changed."),
                io.Conditioning.Input("positive", tooltip=(
                    "Prompts like those you will use: one, or a list that is assigned to the"
                    " latents in rotation.")),
                io.Combo.Input("structure", options=list(STRUCTURES),
                               tooltip="full: keeps how weights relate to each other, about 66 MB"
                                       " for SD1.5. diagonal: each weight by itself, as in the"
                                       " paper; small and fast."),
                io.Int.Input("num_latents", default=64, min=1, max=100000,
                             tooltip="Noised latents to run, 1 to 100000, one network call each. 64"
                                     " is a good start."),
                io.Int.Input("size", default=512, min=16, max=8192, step=8, advanced=True,
                             tooltip="Width and height of the model's own samples, in pixels. Only"
                                     " used if no latents or images are linked."),
                io.Combo.Input("timesteps", options=list(data_loop.TIMESTEPS), advanced=True,
                               tooltip="Which noise levels to use. uniform: evenly over the model's"
                                       " timesteps, as in the paper. log sigma: evenly in log"
                                       " sigma. logit normal: more in the middle."),
                io.Combo.Input("prior", options=list(PRIORS), advanced=True,
                               tooltip="fixed: uses prior_precision, as in the paper. evidence:"
                                       " lets the data choose."),
                io.Float.Input("prior_precision", default=1.0, min=1e-6, max=1e9, step=0.1,
                               round=False, advanced=True,
                               tooltip="1 / variance of a weight before any data, above 0. Only"
                                       " used with prior fixed."),
                io.Float.Input("temperature", default=1.0, min=0.0, max=1e6, step=0.05, round=False,
                               advanced=True,
                               tooltip="Scales the variance, 0 to 1000000. 1 leaves it as it is, 0"
                                       " turns the uncertainty off."),
                io.Float.Input("empty_share", default=0.1, min=0.0, max=1.0, step=0.05,
                               advanced=True,
                               tooltip="Share of latents run with the negative prompt, 0 to 1, so"
                                       " that both sides of CFG are covered."),
                io.Int.Input("seed", default=0, min=0, max=0xffffffffffffffff,
                             # Another seed at each run would fit again for each picture.
                             control_after_generate=io.ControlAfterGenerate.fixed, advanced=True,
                             tooltip="Seed of noise and samples, 0 to 2^64 - 1. The same seed gives"
                                     " the same posterior."),
                io.Latent.Input("latents", optional=True,
                                tooltip="Clean latents: one, a batch or a list. If nothing is"
                                        " linked, the model draws its own samples first. An empty"
                                        " latent sets their size."),
                io.Image.Input("images", optional=True,
                               tooltip="Images to use instead of latents, a batch or a list. They"
                                       " need the vae."),
                io.Vae.Input("vae", optional=True,
                             tooltip="The VAE of the model. Only needed with images."),
                io.Conditioning.Input("negative", optional=True,
                                      tooltip="Prompt of the empty_share, usually your negative"
                                              " prompt. If not linked: the first prompt, zeroed"
                                              " out."),
                LLLA.Input("posterior", optional=True,
                           tooltip="An earlier posterior of the same model; the new latents are"
                                   " added to it."),
                io.Int.Input("parts", default=1, min=1, max=10000, optional=True, advanced=True,
                             tooltip="How many machines share this fit, 1 to 10000. Leave at 1 on a"
                                     " single machine."),
                io.Int.Input("part", default=0, min=0, max=9999, optional=True, advanced=True,
                             tooltip="Which part to run here, 0 to parts - 1."),
            ],
            outputs=[LLLA.Output(display_name="posterior",
                                 tooltip="The calibration of this model. Link it to a BayesDiff"
                                         " sampler, and to LLLA Save to keep it.")],
            is_output_node=True,
            is_input_list=True,
            search_aliases=["calibrate", "laplace", "posterior", "uncertainty", "fit", "train"],
        )

    @classmethod
    def execute(cls, model, positive, structure, num_latents, timesteps, prior, prior_precision,
                temperature, empty_share, seed, size, latents=None, images=None, vae=None,
                negative=None, posterior=None, parts=(1,), part=(0,)) -> io.NodeOutput:
        check_choices(cls, structure=structure[0], timesteps=timesteps[0], prior=prior[0])
        model, = single("model", model)
        settings = data_loop.Settings(structure[0], num_latents[0], timesteps[0], empty_share[0],
                                      seed[0], part[0], parts[0])
        earlier = llla_of(posterior)
        data_loop.check(model, settings, earlier)
        examples, source = _examples(model, positive, latents, images, vae and vae[0], size[0],
                                     settings)
        result = data_loop.fit(model, positive, examples, settings, prior[0], prior_precision[0],
                               temperature[0], negative[0] if negative else None, earlier, source,
                               PACK_VERSION)
        return io.NodeOutput(result.llla, ui=_info(cls, result.llla, result.warning))


class BayesDiffLLLASave(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_LLLASave",
            display_name="LLLA Save",
            category="bayesdiff",
            description="Saves a posterior to a file, for LLLA Load.",
            inputs=[
                LLLA.Input("posterior", tooltip="From LLLA Fit or LLLA Load."),
                io.String.Input("filename_prefix", default="posterior",
                                tooltip="File name, 1 to 100 characters, no slashes. A counter is"
                                        " added unless overwrite is on."),
                io.Combo.Input("folder", options=list(FOLDERS), advanced=True,
                               tooltip="models: models/llla. output: output/llla. LLLA Load lists"
                                       " both."),
                io.Boolean.Input("overwrite", default=False, advanced=True,
                                 tooltip="On: uses exactly this name and replaces an older file."
                                         " Off: never replaces a file."),
            ],
            outputs=[io.String.Output(display_name="file",
                                      tooltip="Name of the file, as LLLA Load lists it.")],
            is_output_node=True,
            search_aliases=["laplace", "posterior", "save posterior"],
        )

    @classmethod
    def execute(cls, posterior, filename_prefix, folder, overwrite) -> io.NodeOutput:
        check_choices(cls, folder=folder)
        place = _output_folder() if folder == "output" else \
            Path(folder_paths.get_folder_paths(FOLDER)[0])
        path = save_path(place, filename_prefix, overwrite)
        llla_file.write(llla_of(posterior), path)
        name = path.name if folder == "models" else OUTPUT + path.name
        return io.NodeOutput(name, ui={**ui.PreviewText(f"saved as {name}").as_dict(),
                                       **reported({"file": name})})


class BayesDiffLLLALoad(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_LLLALoad",
            display_name="LLLA Load",
            category="bayesdiff",
            description="Loads a saved posterior. Structure, prior and temperature can be changed"
                        " without fitting again.",
            inputs=[
                io.Combo.Input("file", options=_files(),
                               tooltip="A file in models/llla or, marked [output], in output/llla."
                                       " Press R to refresh the list."),
                io.Combo.Input("structure", options=AS_LOADED["structure"], advanced=True,
                               tooltip="as fitted, full or diagonal. A diagonal file cannot become"
                                       " full."),
                io.Combo.Input("prior", options=AS_LOADED["prior"], advanced=True,
                               tooltip="as fitted. fixed: uses prior_precision. evidence: lets the"
                                       " data choose."),
                io.Float.Input("prior_precision", default=1.0, min=1e-6, max=1e9, step=0.1,
                               round=False, advanced=True,
                               tooltip="1 / variance of a weight before any data, above 0. Only"
                                       " used with prior fixed."),
                io.Float.Input("temperature", default=1.0, min=0.0, max=1e6, step=0.05, round=False,
                               advanced=True,
                               tooltip="Scales the variance once more, 0 to 1000000. 1 leaves it as"
                                       " fitted."),
            ],
            outputs=[LLLA.Output(display_name="posterior",
                                 tooltip="The calibration of one model. Link it to a BayesDiff"
                                         " sampler.")],
            is_output_node=True,
            search_aliases=["laplace", "posterior", "load posterior"],
        )

    @classmethod
    def fingerprint_inputs(cls, file, **settings):
        return state(_path(file))

    @classmethod
    def execute(cls, file, structure, prior, prior_precision, temperature) -> io.NodeOutput:
        # Not by check_choices: the schema lists the folders' files, and that follows every link.
        checks.one_of("structure", structure, AS_LOADED["structure"])
        checks.one_of("prior", prior, AS_LOADED["prior"])
        path = _path(file)
        if path is None:
            raise BayesDiffError(f"{file[:120]} is in neither models/llla nor output/llla: refresh"
                                 " the list and choose another, or fit and save one.")
        check_inside(path, [_output_folder(), *map(Path, folder_paths.get_folder_paths(FOLDER))])
        llla = llla_file.read(path, structure=None if structure == AS_FITTED else structure,
                              prior=None if prior == AS_FITTED else prior,
                              prior_precision=prior_precision if prior == "fixed" else None,
                              temperature_factor=temperature)
        return io.NodeOutput(llla, ui=_info(cls, llla))


def _examples(model, positive, latents, images, vae, size, settings):
    """What to noise, and where it is from."""
    if latents and images:
        raise BayesDiffError("both latents and images are connected, one of them was expected:"
                             " disconnect the other.")
    if images:
        return data_loop.examples_of(model, data_loop.encoded(images, vae), len(positive)), "images"
    if latents:
        examples = data_loop.examples_of(model, latents, len(positive))
        if any(torch.count_nonzero(example.latent) for example in examples):
            return examples, "latents"
        empty = examples[0].latent
    else:
        empty = data_loop.empty_latent(model, size)
    return data_loop.own_samples(model, positive, empty, settings), "own samples"


def _info(cls, llla: Llla, warning: str | None = None) -> dict:
    """What a node shows: text, a plot, and the plotted numbers for the browser."""
    levels = predictive_sd_by_level(llla)
    shown = [{"sigma": level.sigma, "variance": level.variance} for level in levels]
    text = "\n".join([*([warning] if warning else []), *describe(llla)])
    return {**ui.PreviewText(text).as_dict(),
            **ui.PreviewImage(level_plot(levels), cls=cls).as_dict(),
            "bayesdiff": shown, **reported({
                "family": llla.about.family, "layer": llla.about.layer,
                "latents": llla.about.latents, "structure": llla.structure, "prior": llla.prior,
                "prior_precision": llla.posterior.prior_precision,
                "temperature": llla.temperature, "levels": shown,
                "notes": [warning] if warning else []})}


def _output_folder() -> Path:
    return Path(folder_paths.get_output_directory()) / FOLDER


def _files() -> list[str]:
    found = sorted(path.name for path in _output_folder().glob("*.safetensors"))
    return [*folder_paths.get_filename_list(FOLDER), *(OUTPUT + name for name in found)]


def _path(file: str) -> Path | None:
    """None if there is no such file."""
    if file.startswith(OUTPUT):
        name = file.removeprefix(OUTPUT)
        found = str(_output_folder() / name) if name == os.path.basename(name) else ""
    else:
        found = folder_paths.get_full_path(FOLDER, file) or ""
    return Path(found) if os.path.isfile(found) else None  # False for names that cannot be
