"""What gamma^2 costs beside one call of an SD1.5-size network, and what a coarser grid loses.

The network is the host's own UNet with SD1.5's configuration and random weights, so the features
have the right size; their values are random, so the loss is measured on the trained bench nets.
Writes benchmarks/results/predictive.json.
"""

import functools
import statistics
import sys
import time

import torch

from benchmarks import denoiser, nets
from benchmarks.in_host import SD15
from benchmarks.report import write
from tools.in_process import enter_host


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    rows = [*cost_rows(repeats), *loss_rows()]
    write("predictive", rows)


@torch.no_grad()
def cost_rows(repeats: int) -> list[dict]:
    enter_host()
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    from bayesdiff_core.posterior import FeatureStatistics, LastLayer, posterior

    torch.manual_seed(0)
    unet = UNetModel(**SD15, dtype=torch.float32, operations=comfy.ops.manual_cast).eval()
    for p in unet.parameters():
        torch.nn.init.normal_(p, std=0.02)
    caught = []
    unet.out[2].register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0]))
    x, t, context = torch.randn(1, 4, 64, 64), torch.tensor([500.0]), torch.randn(1, 77, 768)
    unet(x, t, context=context)
    layer = LastLayer(unet.out[2].in_channels, kernel=3)
    collected = FeatureStatistics(layer)
    collected.add(caught[0], positions=4096)
    collected.ggn += torch.eye(layer.inputs)  # one latent does not fill the space
    full, diagonal = posterior(collected), posterior(collected, "diagonal")
    ways = {"diagonal": lambda phi: diagonal.predictive_variance(phi),
            **{f"full, every {n}": lambda phi, n=n: full.predictive_variance(phi, n)
               for n in (1, 2, 4)}}
    times = {name: [] for name in ["call", *ways]}
    for _ in range(repeats):  # alternating, so that all share the machine's moods
        caught.clear()
        times["call"].append(_seconds(lambda: unet(x, t, context=context)))
        for name, way in ways.items():
            times[name].append(_seconds(functools.partial(way, caught[0])))
    call = statistics.median(times["call"])
    return [{"model": "sd15-size, latent 64x64, fp32, batch 1", "way": name,
             "time_ratio": round(statistics.median(times[name]) / call, 5)} for name in ways]


@torch.no_grad()
def loss_rows() -> list[dict]:
    """Relative error of gamma^2 on the grid between computed positions, on trained nets."""
    rows = []
    for name in ("emoji", "fashion"):
        net = nets.load(name)
        made = denoiser.fit(name, net)
        sigmas = denoiser.sigmas(net, 25)
        den = denoiser.Denoiser(net, torch.arange(8), posterior=made)
        x = sigmas[0] * torch.randn(8, net.channels, nets.SIZE, nets.SIZE,
                                    generator=torch.Generator().manual_seed(0))
        errors = {2: [], 4: []}
        for sigma, sigma_next in zip(sigmas.tolist(), sigmas.tolist()[1:]):
            phi = den.features(x, sigma)
            exact = made.predictive_variance(phi)
            for every in errors:
                coarse = made.predictive_variance(phi, every)
                errors[every].append(((coarse - exact).norm() / exact.norm()).item())
            x = x + (sigma_next - sigma) * nets.output(net, phi)
        rows += [{"model": f"{name}, 16x16", "way": f"full, every {every}",
                  "relative_error": round(statistics.mean(values), 4)}
                 for every, values in errors.items()]
    return rows


def _seconds(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
