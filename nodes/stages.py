"""A sampler run in two parts, which need not be on one machine: what a fleet's best of N is made of
(fleet/staged.py). Only a fleet's servers offer it."""

from comfy_api.latest import io
from comfy_execution.graph_utils import ExecutionBlocker

from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.selection import stops
from .best_of_n import RANKS
from .files import run_file
from .host.run import by_mode, sampling
from .host.run.by_mode import Options
from .host.run.resume import Resumable
from .metadata import reported
from .samplers import check_input, ksampler_inputs, observer_for, outputs, results

START, FINISH = "start", "finish"
FREE = [name for name, rank in RANKS.items() if rank.mode == "free"]


class BayesDiffStage(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_Stage",
            display_name="BayesDiff KSampler In Two Parts",
            category="bayesdiff/fleet",
            description="BayesDiff KSampler in mode free, paused at a step and continued here or"
                        " on another machine, with identical results.",
            inputs=[
                *ksampler_inputs(seed="Seed of the noise.", sampler="The sampler.",
                                 latent="The latent to denoise: one image or clip."),
                io.Combo.Input("part", options=[START, FINISH],
                               tooltip="start: runs to the stop and saves the run. finish:"
                                       " continues a saved run."),
                io.String.Input("run", tooltip="File name in output/bayesdiff_runs, 1 to 100"
                                               " characters."),
                io.Float.Input("stop_at", default=0.5, min=0.05, max=0.95,
                               tooltip="Where it pauses, as a share of the steps, 0.05 to 0.95."),
                io.Combo.Input("rank_by", options=FREE,
                               tooltip="Which score to report at the stop. Higher is less sure."),
                check_input(),
            ],
            outputs=outputs(),
            is_output_node=True,
        )

    @classmethod
    def execute(cls, model, seed, steps, cfg, sampler_name, scheduler, positive, negative,
                latent_image, denoise, part, run, stop_at, rank_by,
                check="auto") -> io.NodeOutput:
        if len(latent_image["samples"]) != 1:
            raise BayesDiffError(f"the latent is a batch of {len(latent_image['samples'])}, one"
                                 " image or clip was expected: set the batch size to 1.")
        observer = observer_for("free", model, None, latent_image, Options(check=check))

        def sample(observer, seed: int):
            return sampling.sample(model, observer, seed, steps, cfg, sampler_name, scheduler,
                                   positive, negative, latent_image, denoise)

        one = Resumable(observer, seed, sample, RANKS[rank_by].score)
        path, count = run_file.path_of(run), len(sampling.levels(
            model, steps, sampler_name, scheduler, denoise)) - 1
        if part == FINISH:
            one.take_up(run_file.read(path, seed))
            one.go(None, 0, count)
            return results(one.latent, latent_image, one.observation,
                           by_mode.taken("free", None, sampler_name), None)
        stop, = stops(2, 1, max(count, 0), stop_at, "once", first=2)
        one.go(stop.step, 0, stop.step)
        if one.latent is not None:
            raise BayesDiffError(f"{sampler_name} finished before step {stop.step}, so there is no"
                                 " second part: choose another sampler.")
        run_file.write(one.state(), seed, path)
        report = {"seed": seed, "scores": one.scores, "score": rank_by, "calls": one.calls,
                  "ahead_calls": one.ahead_calls, "step": stop.step, "steps": count}
        return io.NodeOutput(*[ExecutionBlocker(None)] * len(outputs()), ui=reported(report))
