"""What the sampler node asks of a GPU, counted on one that only pretends (tests/pretend/device.py).

The network has its full size, and neither weights nor products: its launches are counted, and the
work in them, without the time and the memory that they would take. A process of its own, as torch
has to be told of the device before ComfyUI is imported; bench_overhead starts it and reads the JSON
that is its last line.

    python -m benchmarks.overhead_counts SCENE LATENT_SIDE [tiny]
"""

import json
import sys
from typing import NamedTuple

import torch

from tests.pretend import device
from tools.in_process import enter_host


class Card(NamedTuple):
    """What one costs where: assumed, of the size of a consumer's card, for a prediction."""

    launch: float = 8e-6  # seconds until the CPU has handed over one kernel
    stall: float = 3e-5  # seconds in which the card runs dry when the CPU waits for it
    bytes_per_second: float = 12e9  # between the CPU and the card
    network_flops: float = 6e13  # reached, in 16 bits
    float_flops: float = 2e13  # reached, in 32 bits: the posterior's


ASSUMED = Card()


def share(ours: device.Counted, stock: device.Counted, card: Card = ASSUMED) -> float:
    """Predicted time that is ours outside the network, over the network's time in the same run."""
    more = device.Counts(*map(int.__sub__, ours.outside, stock.outside))
    crossed = more.to_device + more.from_device
    # The CPU hands over while the card computes: the slower of the two counts.
    network = max(ours.network.flops / card.network_flops, ours.network.launches * card.launch)
    outside = max(more.flops / card.float_flops, more.launches * card.launch)
    return (outside + more.stalls * card.stall + crossed / card.bytes_per_second) / network


def row(ours: device.Counted, stock: device.Counted, latent: int, posterior: int) -> dict:
    """latent, posterior: bytes of one latent, and of the posterior that a run keeps there."""
    def launches(of):
        return of.network.launches + of.outside.launches

    def moved(of):
        return sum(part.to_device + part.from_device for part in of)

    def stalls(of):
        return of.network.stalls + of.outside.stalls

    extra = ours.outside.peak - stock.outside.peak - posterior
    return {"launches_ratio": round(launches(ours) / launches(stock), 3),
            "launches_outside": ours.outside.launches,
            "stock_launches_outside": stock.outside.launches,
            "bytes_moved": moved(ours), "stock_bytes_moved": moved(stock),
            "stalls": stalls(ours), "stock_stalls": stalls(stock),
            "peak_extra_latents": round(extra / latent, 1),
            "predicted_gpu_share": round(share(ours, stock), 5)}


def weightless(config):
    """A MODEL in 16 bits on the card whose weights take no memory: each is one number, stretched.
    """
    import comfy.model_management
    import comfy.model_patcher

    config.set_inference_dtype(torch.float16, None)
    network = config.get_model({}, "", device=torch.device("meta"))
    card = comfy.model_management.get_torch_device()
    for module in network.diffusion_model.modules():
        for name, weight in module.named_parameters(recurse=False):
            number = torch.full((1,), 0.01, dtype=torch.float16, device=card)
            setattr(module, name, torch.nn.Parameter(number.expand(weight.shape), False))
    return comfy.model_patcher.ModelPatcher(network.eval(), card, card)


@torch.inference_mode()
def main(name: str, side: int, tiny: bool) -> None:
    from benchmarks import bench_overhead
    from benchmarks.in_host import pack_module

    scene = bench_overhead.SCENES[name](tiny, weightless)
    network, settings = scene.model.model.diffusion_model, scene.settings(side)

    def counted(work) -> device.Counted:
        with device.counting(network, hollow=True) as found:
            work()
        return found[0]

    with device.counting(network, hollow=True):
        full = scene.posterior(side)
    ways = bench_overhead.ways(scene, settings, full)
    counted(scene.stock(settings))  # fills the host's own caches
    stock = counted(scene.stock(settings))
    latent = settings[-1]["samples"].nbytes
    on_card = pack_module("bayesdiff_core.posterior").FullPosterior
    rows = []
    for (mode, structure), (work, posterior) in ways.items():
        kept = 4 * posterior.posterior.factor.numel() \
            if posterior and isinstance(posterior.posterior, on_card) else 0
        rows.append({"mode": mode, "posterior": structure,
                     **row(counted(work), stock, latent, kept)})
        print(rows[-1], flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    device.install()
    enter_host(on_cpu=False)
    main(sys.argv[1], int(sys.argv[2]), "tiny" in sys.argv[3:])
