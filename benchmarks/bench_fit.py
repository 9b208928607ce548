"""What LLLA Fit costs beside the network calls it makes, on an SD1.5-size network.

The network is the host's own UNet with SD1.5's configuration and random weights. Plain calls,
diagonal and full fits take turns in one process, on the same batches under the host's guider;
time_ratio is the ratio of their median CPU times. On a shared machine one and the same call takes
10 % more or less from run to run, so in_run_ratio is given too: the CPU time of a fit's run over
that of the network's calls within it. It misses what a fit may do to the network's own speed.
posterior_error compares the predictive variance on a new latent with that of a posterior made of
dense float64 sums over every position. Writes benchmarks/results/fit.json.

    python run.py bench fit [REPEATS]
"""

import statistics
import sys
import time

import torch

from benchmarks.in_host import forget_peak, pack_module, peak_megabytes, sd15_size_model
from benchmarks.report import write
from tools.in_process import enter_host

SIDE = 32
BATCH = 2  # of the alternating runs
MODEL = f"sd15-size, latent {SIDE}x{SIDE}, fp32, batch {BATCH}"
LATENTS = 6  # of the fits whose posteriors are compared: more rows than weights


@torch.no_grad()
def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    enter_host()
    fit = pack_module("nodes.host.fit")
    model = sd15_size_model()
    prompt = [[torch.randn(1, 77, 768), {}]]
    latent = torch.randn(1, 4, SIDE, SIDE)
    times = {name: [] for name in ("plain", "diagonal", "full")}
    ratios = {name: [] for name in times}
    memory = dict.fromkeys(times, 0.0)
    for turn in range(repeats + 1):  # the first one warms up
        for name in times:
            loop = _loop(fit, model, name)
            tasks = _tasks(fit, latent, BATCH)
            forget_peak()
            with _Stopwatch(model) as watch:
                loop.run(model, {0: prompt}, tasks)
            if turn:
                times[name].append(watch.total)
                ratios[name].append(watch.total / watch.network)
            memory[name] = max(memory[name], peak_megabytes())
    plain = statistics.median(times["plain"])
    rows = [{"model": MODEL, "structure": name,
             "time_ratio": round(statistics.median(times[name]) / plain, 3),
             "in_run_ratio": round(statistics.median(ratios[name]), 4),
             "extra_memory_MB": round(memory[name] - memory["plain"]),
             **posterior_row(fit, model, prompt, latent, name)}
            for name in ("diagonal", "full")]
    write("fit", rows, plain_in_run_ratio=round(statistics.median(ratios["plain"]), 4),
          repeats=repeats, threads=torch.get_num_threads(), cpu_seconds_of_runs={
              name: [round(seconds, 2) for seconds in runs] for name, runs in times.items()})


class _Stopwatch:
    """CPU time of a run, and of the network within it."""

    def __init__(self, model):
        network = model.get_model_object("diffusion_model")
        self.network = 0.0
        self._handles = [network.register_forward_pre_hook(self._start),
                         network.register_forward_hook(self._stop)]

    def _start(self, *_):
        self.network -= time.process_time()

    def _stop(self, *_):
        self.network += time.process_time()

    def __enter__(self):
        self.total = -time.process_time()
        return self

    def __exit__(self, *_):
        self.total += time.process_time()
        for handle in self._handles:
            handle.remove()


def posterior_row(fit, model, prompt, latent, structure: str) -> dict:
    """Ours against dense float64 sums over the features that the same calls gave."""
    from bayesdiff_core.posterior import FeatureStatistics, LastLayer, posterior, unfold

    caught = []
    layer = model.get_model_object("diffusion_model").out[2]
    handle = layer.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0]))
    loop = _loop(fit, model, structure)
    loop.run(model, {0: prompt}, _tasks(fit, latent, LATENTS))
    _loop(fit, model, structure).run(model, {0: prompt}, [fit.Task(99, latent, 0, 2.0)])
    handle.remove()
    *seen, held_out = [phi for phi in caught if phi.shape[-2:] == (SIDE, SIDE)]  # not the probe's
    shape, ours = LastLayer(320, kernel=3), loop.statistics
    forget_peak()
    before, started = peak_megabytes(), time.process_time()
    made = posterior(ours, structure)
    finish, peak = time.process_time() - started, peak_megabytes() - before
    dense = FeatureStatistics(shape, structure)
    for phi in seen:
        u = unfold(phi.double(), shape).flatten(0, 1)
        dense.ggn += u.T @ u if structure == "full" else u.square().sum(0)
    dense.latents = ours.latents
    expected = posterior(dense, structure).predictive_variance(held_out)
    error = (made.predictive_variance(held_out) - expected).norm() / expected.norm()
    return {"posterior_error": float(f"{error.item():.2g}"),
            "posterior_seconds_once": round(finish, 2), "posterior_memory_MB": round(peak)}


def _loop(fit, model, name: str):
    """The fit's own loop, or one that makes its network calls and no more."""
    import comfy.samplers
    from comfy_extras.nodes_custom_sampler import Guider_Basic

    structure = name if name != "plain" else "diagonal"
    settings = fit.Settings(structure, BATCH, "uniform", 0.0, 0)
    if name != "plain":
        loop = fit.DataLoop(fit.last_layer_of(model), settings)
        loop._batch = BATCH
        return loop

    class Plain(comfy.samplers.Sampler):
        def run(self, model, prompts, tasks):
            self.tasks = tasks
            guider = Guider_Basic(model)
            guider.set_conds(prompts[0])
            like = torch.zeros(len(tasks), *tasks[0].latent.shape[1:])
            guider.sample(like, like, self, torch.tensor([1.0, 0.0]), disable_pbar=True, seed=0)

        def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None,
                   denoise_mask=None, disable_pbar=False):
            x = torch.cat([task.latent for task in self.tasks])
            sigma = torch.tensor([task.sigma for task in self.tasks])
            comfy.samplers.calc_cond_batch(model_wrap.inner_model, [model_wrap.conds["positive"]],
                                           x, sigma, extra_args["model_options"])
            return latent_image

    return Plain()


def _tasks(fit, latent, count: int) -> list:
    sigmas = torch.logspace(1, -1, count).tolist()
    return [fit.Task(i, latent, 0, sigma) for i, sigma in enumerate(sigmas)]


if __name__ == "__main__":
    main()
