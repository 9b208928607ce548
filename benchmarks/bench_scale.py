"""How the cost of mode accurate goes with steps, batch, deviations, nodes and the latent's size,
and what the last layer's variance costs in other ways.

Every point is one run of the node over one of the stock KSampler, in one process, on the U-Net of
SD1.5's size with random weights; extra_calls is what the node says. The last layer: the same
features, of one latent of 24 x 24, by our closed form, by 100 draws of the weights as in the paper,
and by laplace-torch. Writes benchmarks/results/scale.json.

    python run.py bench scale [last]    last: only the last layer, the points stay
"""

import json
import statistics
import sys

import laplace
import torch
import torch.nn.functional as F

from benchmarks.bench_overhead import OPTIONS, Scene, sd15
from benchmarks.in_host import measured
from benchmarks.report import read, write
from tools.in_process import enter_host

BASE = {"steps": 8, "batch": 1, "side": 16, "deviations": 0, "probe_levels": 0}
CHANGES = {"steps": (4, 16), "batch": (2,), "side": (8, 24), "deviations": (2, 8),
           "probe_levels": (2, 8)}
CHANNELS, OUTPUTS, SIDE, DRAWS, REPEATS = 320, 4, 24, 100, 3  # of SD1.5's last layer


@torch.no_grad()
def main() -> None:
    enter_host()
    rows = read("scale")["rows"] if sys.argv[1:] == ["last"] else point_rows()
    write("scale", rows, options={**OPTIONS, **BASE}, last_layer=last_layer_rows(),
          threads=torch.get_num_threads())


def point_rows() -> list[dict]:
    scene = sd15()
    posterior = scene.posterior()
    points = [BASE, *({**BASE, name: value} for name, values in CHANGES.items()
                      for value in values)]
    return [point_row(scene, posterior, point) for point in points]


def point_row(scene: Scene, posterior, point: dict) -> dict:
    settings = scene.settings(point["side"], point["steps"], point["batch"])
    said = []

    def work() -> None:
        found = scene.ours(settings, "accurate", posterior, deviations=point["deviations"],
                           probe_levels=point["probe_levels"])()
        said.append(json.loads(found.args[4]))

    stock = measured(scene.stock(settings))
    wall, cpu, memory = measured(work).over(stock)
    row = {**point, "stock_seconds": round(stock.seconds, 1), "calls": said[0]["calls"],
           "extra_calls": said[0]["extra_calls"], "time_ratio": round(wall, 3),
           "cpu_ratio": round(cpu, 3), "memory_ratio": round(memory, 4)}
    print(row, flush=True)
    return row


def last_layer_rows() -> list[dict]:
    """Seconds to fit from one latent's features and to tell the variance of its outputs, with the
    largest relative error of the variance."""
    from bayesdiff_core.posterior import FeatureStatistics, LastLayer, posterior
    torch.manual_seed(0)
    # smooth along space, as features are
    phi = F.silu(F.avg_pool2d(torch.randn(1, CHANNELS, SIDE + 4, SIDE + 4), 5, stride=1) * 5)
    layer = LastLayer(CHANNELS, kernel=3)

    def ours(structure: str):
        collected = FeatureStatistics(layer, structure)
        collected.add(phi)
        made = posterior(collected, structure, prior_precision=1.0, noise_variance=1.0)
        return lambda: made.predictive_variance(phi)

    def drawn():
        """The paper: a diagonal posterior, 100 draws of the weights, each run through the layer."""
        squares = F.unfold(phi, 3, padding=1).square().sum((0, 2))
        spread = (squares + 1).rsqrt().reshape(1, CHANNELS, 3, 3)
        bias = (phi.shape[-1] * phi.shape[-2] + 1) ** -0.5

        def predict():
            outputs = [F.conv2d(phi, spread * torch.randn(OUTPUTS, CHANNELS, 3, 3),
                                bias * torch.randn(OUTPUTS), padding=1) for _ in range(DRAWS)]
            return torch.stack(outputs).var(0)
        return predict

    def by_laplace_torch():
        """Its diagonal posterior of the layer, which it takes as a linear one on unfolded patches:
        it knows no convolutions over positions."""
        patches = F.unfold(phi, 3, padding=1)[0].T.contiguous()
        net = torch.nn.Sequential(torch.nn.Linear(patches.shape[1], OUTPUTS))
        data = torch.utils.data.TensorDataset(patches, torch.zeros(len(patches), OUTPUTS))
        made = laplace.DiagLaplace(net, "regression", sigma_noise=1.0, prior_precision=1.0)
        with torch.enable_grad():
            made.fit(torch.utils.data.DataLoader(data, batch_size=512))

        def predict():
            with torch.enable_grad():
                parts = [made(part)[1].detach() for part in patches.split(512)]
            found = torch.cat(parts)
            found = found.diagonal(dim1=1, dim2=2) if found.ndim == 3 else found
            return found.T.reshape(1, OUTPUTS, SIDE, SIDE)
        return predict

    ways = {"diagonal, ours": lambda: ours("diagonal"), "full, ours": lambda: ours("full"),
            "diagonal, 100 draws (paper)": drawn, "diagonal, laplace-torch": by_laplace_torch}
    exact = {"diagonal": ours("diagonal")(), "full": ours("full")()}
    rows = []
    for name, make in ways.items():
        made = []
        fits = [measured(lambda make=make, made=made: made.append(make())).seconds
                for _ in range(REPEATS)]
        found = []
        predicts = [measured(lambda made=made, found=found: found.append(made[0]())).seconds
                    for _ in range(REPEATS)]
        truth = exact[name.split(",")[0]]
        error = (found[0] / truth - 1).square().mean().sqrt()
        rows.append({"way": name, "fit_seconds": round(statistics.median(fits), 4),
                     "predict_seconds": round(statistics.median(predicts), 4),
                     "relative_rms_error": float(f"{error:.2g}")})
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
