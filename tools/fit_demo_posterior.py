"""Fits the posterior that comes with the demo model, by LLLA Fit's own code.

    BAYESDIFF_HOST=<ComfyUI> python -m tools.fit_demo_posterior

The same model file gives the same posterior.
"""

import time

if __name__ == "__main__":
    from tools.in_process import enter_host
    enter_host()

import torch

from benchmarks.in_host import pack_module
from tools.demo_worlds import draw

NUMBER = 1000  # noised latents
EMPTY_SHARE = 0.2
SEED = 0


def main() -> None:
    torch.set_num_threads(1)  # sums in another order would be other bits
    demo, fit = pack_module("nodes.demo"), pack_module("nodes.host.fit")
    demo_model = pack_module("nodes.host.demo_model")
    llla_file = pack_module("nodes.files.llla_file")
    names = demo_model.class_names(demo.MODEL_FILE)
    started = time.time()
    result = fit.fit(
        demo_model.model(demo.MODEL_FILE),
        [demo_model.conditioning(demo.MODEL_FILE, name) for name in names],
        _examples(fit, names, demo_model.PatchVAE()),
        fit.Settings("full", NUMBER, "uniform", EMPTY_SHARE, SEED),
        negative=demo_model.conditioning(demo.MODEL_FILE, None))
    llla_file.write(result.llla, demo.POSTERIOR_FILE)
    print(f"{demo.POSTERIOR_FILE}: {demo.POSTERIOR_FILE.stat().st_size / 1e6:.1f} MB in"
          f" {time.time() - started:.0f} s")
    print("\n".join(pack_module("bayesdiff_core.llla").describe(result.llla)))


def _examples(fit, names: list[str], vae) -> list:
    """Drawings as in training, the same number of each class, one class after the other in turn."""
    each, generator = -(-NUMBER // len(names)), torch.Generator().manual_seed(SEED)
    latents = [vae.encode(draw(name, each, generator)) for name in names]
    return [fit.Example(latents[number][i, None], number)
            for i in range(each) for number in range(len(names))]


if __name__ == "__main__":
    main()
