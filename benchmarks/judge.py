"""A small classifier of each data set, in whose features the drawings of the nets are judged.

It is trained on the images that the nets were trained on, has no other part in them, and is kept in
the cache. The real images it judges by are the tenth that neither it nor the nets have seen.
"""

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks import images, nets
from tools.places import cache_folder

EPOCHS, BATCH, FEATURES = 4, 128, 96
# k of the manifold: the least of LOOKED_AT at which real images themselves are seldom outside of
# each other's (11 %, 5 %, 1.3 % and 0.3 % on Fashion-MNIST)
NEIGHBORS = 10
LOOKED_AT = (3, 5, 10, 20)


class Judge(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        layers, before = [], channels
        for width, stride in ((48, 1), (64, 2), (96, 1), (128, 2), (128, 1)):
            layers += [nn.Conv2d(before, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU()]
            before = width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                                  nn.Linear(4 * before, FEATURES), nn.ReLU())
        self.last = nn.Linear(FEATURES, nets.CLASSES)

    @torch.no_grad()
    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        """B x C x H x W in [-1, 1] -> B x FEATURES."""
        return torch.cat([self.body(part.clamp(-1, 1)) for part in pictures.split(500)])


def _train(data: str) -> Judge:
    torch.manual_seed(0)
    x_all, y_all = images.load(data, nets.SIZE)
    keep = len(x_all) * 9 // 10
    judge = Judge(x_all.shape[1])
    steps = EPOCHS * keep // BATCH
    optimizer = torch.optim.AdamW(judge.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    for _ in range(steps):
        pick = torch.randint(keep, (BATCH,))
        x = x_all[pick]
        flipped = torch.rand(BATCH, 1, 1, 1) < 0.5
        x = torch.where(flipped, x.flip(3), x)
        loss = F.cross_entropy(judge.last(judge.body(x)), y_all[pick], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    judge.eval()
    with torch.no_grad():
        right = judge.last(judge.features(x_all[keep:])).argmax(1) == y_all[keep:]
    judge.accuracy = float(right.float().mean())
    return judge


def load(data: str) -> Judge:
    """The judge of a data set; `accuracy` is that on images it has not seen."""
    kept = cache_folder() / "nets" / f"judge-{data}-{EPOCHS}.safetensors"
    if not kept.exists():
        judge = _train(data)
        kept.parent.mkdir(parents=True, exist_ok=True)
        parts = {**judge.state_dict(), "accuracy": torch.tensor(judge.accuracy)}
        save_file(parts, kept.with_suffix(".part"))
        kept.with_suffix(".part").replace(kept)
    parts = load_file(kept)
    judge = Judge(parts["body.0.weight"].shape[1])
    judge.accuracy = float(parts.pop("accuracy"))
    judge.load_state_dict(parts)
    return judge.eval().requires_grad_(False)


def real(data: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images that nothing was trained on, and their labels."""
    x, y = images.load(data, nets.SIZE)
    unseen = len(x) * 9 // 10
    return x[unseen:], y[unseen:]
