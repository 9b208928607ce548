"""What is in a trajectory: a state of it as LATENTs, and files of it."""

from comfy_api.latest import io, ui

from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.resampling import chosen_step
from ..bayesdiff_core.trajectory import Trajectory, parts_of
from .files import trajectory_file
from .files.names import save_path, state
from .host.run import recipes, states
from .metadata import ANSWERS_FROM_CACHE, reported
from .sockets import TRAJECTORY, trajectory_of


class BayesDiffTrajectoryAtStep(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_TrajectoryAtStep",
            display_name="Trajectory At Step",
            category="bayesdiff",
            description="Takes one step out of a sampled run, so that ComfyUI's own samplers can"
                        " continue from it.",
            inputs=[
                TRAJECTORY.Input("trajectory", tooltip="From a BayesDiff sampler or Trajectory"
                                                       " Load."),
                io.Int.Input("step", default=-1, min=-1, max=10000,
                             tooltip="A step that the trajectory keeps. 0 is the start, -1 uses"
                                     " fraction."),
                io.Float.Input("fraction", default=0.5, min=0.0, max=1.0, step=0.05,
                               tooltip="Where to look, 0 (the start) to 1 (the result). Uses the"
                                       " nearest kept step. Only with step -1."),
            ],
            outputs=[
                io.Latent.Output(display_name="mean",
                                 tooltip="The latent at that step, E(x_t), with its remaining"
                                         " noise. Link it to latent_image of"
                                         " SamplerCustomAdvanced."),
                io.Latent.Output(display_name="variance",
                                 tooltip="Var(x_t), 0 or more, in the units of mean squared."),
                io.Float.Output(display_name="sigma", tooltip="The noise level at that step, 0 or"
                                                              " more."),
                io.Sigmas.Output(display_name="sigmas",
                                 tooltip="The remaining noise levels, from high to low."),
                io.Noise.Output(display_name="noise",
                                tooltip="Use it instead of DisableNoise: it adds what rounding left"
                                        " out of mean, so that the sampler continues exactly."),
            ],
            search_aliases=["rewind", "split", "state", "continue", "mean", "variance",
                            "uncertainty"],
            **ANSWERS_FROM_CACHE,
        )

    @classmethod
    def execute(cls, trajectory, step, fraction) -> io.NodeOutput:
        trajectory = trajectory_of(trajectory)
        step = chosen_step(trajectory, step, fraction)
        found = states.latent_state(trajectory, step)
        sigmas = trajectory.sigmas[step:].clone()
        text = (f"step {step} of {len(trajectory.sigmas) - 1}, sigma {float(sigmas[0]):.4g},"
                f" {len(sigmas) - 1} steps left")
        report = {"step": step, "sigma": float(sigmas[0]), "steps_left": len(sigmas) - 1}
        return io.NodeOutput(found.mean, found.variance, float(sigmas[0]), sigmas, found.noise,
                             ui={**ui.PreviewText(text).as_dict(), **reported(report)})


class BayesDiffTrajectorySave(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_TrajectorySave",
            display_name="Trajectory Save",
            category="bayesdiff",
            description="Saves a sampled run to a file, to look at or resample later without"
                        " sampling again.",
            inputs=[
                TRAJECTORY.Input("trajectory", tooltip="From a BayesDiff sampler, up to 2 GiB."),
                io.String.Input("filename_prefix", default="trajectory",
                                tooltip="File name in output/bayesdiff_trajectories, 1 to 100"
                                        " characters, no slashes. A counter is added unless"
                                        " overwrite is on."),
                io.Boolean.Input("overwrite", default=False, advanced=True,
                                 tooltip="On: uses exactly this name and replaces an older file."
                                         " Off: never replaces a file."),
            ],
            outputs=[io.String.Output(display_name="file", tooltip="Name of the file, as Trajectory"
                                                                   " Load lists it.")],
            is_output_node=True,
            search_aliases=["save trajectory", "uncertainty"],
        )

    @classmethod
    def execute(cls, trajectory, filename_prefix, overwrite) -> io.NodeOutput:
        path = save_path(trajectory_file.folder(), filename_prefix, overwrite)
        trajectory = trajectory_of(trajectory)
        trajectory_file.write(trajectory, *recipes.packed(trajectory), path)
        return io.NodeOutput(path.name, ui={**ui.PreviewText(f"saved as {path.name}").as_dict(),
                                            **reported({"file": path.name})})


class BayesDiffTrajectoryLoad(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_TrajectoryLoad",
            display_name="Trajectory Load",
            category="bayesdiff",
            description="Loads a saved run. Maps and scores work right away; to resample it, link a"
                        " model and prompts there.",
            inputs=[
                io.Combo.Input("file", options=trajectory_file.files(),
                               tooltip="A file in output/bayesdiff_trajectories. Press R to refresh"
                                       " the list."),
            ],
            outputs=[TRAJECTORY.Output(display_name="trajectory",
                                       tooltip="The run as it was saved, without its model and"
                                               " prompts.")],
            is_output_node=True,
            search_aliases=["load trajectory", "uncertainty"],
        )

    @classmethod
    def fingerprint_inputs(cls, file):
        return state(trajectory_file.path_of(file))

    @classmethod
    def execute(cls, file) -> io.NodeOutput:
        path = trajectory_file.path_of(file)
        if path is None:
            raise BayesDiffError(f"{file[:120]} is not in output/{trajectory_file.FOLDER}: refresh"
                                 " the list and choose another, or save one.")
        trajectory = recipes.unpacked(*trajectory_file.read(path))
        report = {"images": trajectory.mean.shape[1], "steps": len(trajectory.sigmas) - 1,
                  "kept_steps": trajectory.steps.tolist()}
        return io.NodeOutput(trajectory, ui={
            **ui.PreviewText("\n".join(_told(trajectory))).as_dict(), **reported(report)})


def _told(trajectory: Trajectory) -> list[str]:
    recipe = parts_of(trajectory)[0].recipe
    lines = [f"{trajectory.mean.shape[1]} images, {len(trajectory.sigmas) - 1} steps, kept:"
             f" {trajectory.steps.tolist()}"]
    if recipe is None:
        return [*lines, "it is not known how it was sampled, so it cannot be resampled"]
    needed = ["a model", "positive", *["negative"] * (recipe.guider.cfg != 1),
              *["cfg"] * (recipe.guider.cfg is None), *["a sampler"] * (recipe.sampler is None)]
    return [*lines, f"sampled by a {recipe.guider.family}",
            f"to resample it, link {', '.join(needed)}, or a guider instead"]
