"""A combination of scores that is learned from labels: a logistic regression with an L2 penalty on
their logarithms, standardised within each batch, because scores of different models, prompts and
samplers have different units and only ranks within a batch are to be told."""

import torch

from . import checks
from .checks import BayesDiffError

PENALTY = 0.1  # on squared weights, beside the mean loss of a picture
TINY = 1e-30


def centered_logs(scores: torch.Tensor) -> torch.Tensor:
    """N x S positive scores of one batch -> their logarithms with mean 0 each."""
    logs = scores.double().clamp(min=TINY).log()
    checks.finite("scores", logs)
    return logs - logs.mean(0)


def standardized_logs(scores: torch.Tensor) -> torch.Tensor:
    """With variance 1 each as well; a score that is the same for all tells nothing and becomes
    0."""
    centered = centered_logs(scores)
    spread = centered.square().mean(0).sqrt()
    return torch.where(spread > 1e-9, centered / spread.clamp(min=1e-9), 0.0)


def logistic(features: torch.Tensor, wrong: torch.Tensor, penalty: float = PENALTY,
             weights: torch.Tensor | None = None) -> torch.Tensor:
    """The minimum of mean log(1 + exp(-y (w.f + b))) + penalty / 2 |w|^2 by Newton's method, b
    without penalty: S + 1 numbers, b last. features: N x S; wrong: N booleans; weights: N, how
    much each picture counts."""
    if not wrong.any() or wrong.all():
        raise BayesDiffError(f"{int(wrong.sum())} of {len(wrong)} pictures are wrong: at least 1 of"
                             " each kind is needed to learn from.")
    f = torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64)], 1)
    share = torch.ones(len(f), dtype=torch.float64) if weights is None else weights.double()
    share = share / share.sum()
    ridge = torch.full((f.shape[1],), float(penalty), dtype=torch.float64)
    ridge[-1] = 1e-9
    found = torch.zeros(f.shape[1], dtype=torch.float64)
    for _ in range(100):
        p = torch.sigmoid(f @ found)
        slope = f.T @ (share * (p - wrong.double())) + ridge * found
        curve = (f * (share * (p * (1 - p)).clamp(min=1e-9))[:, None]).T @ f + ridge.diag()
        step = torch.linalg.solve(curve, slope)
        step = step * min(1.0, 5.0 / float(step.norm().clamp(min=1e-12)))
        found = found - step
        if step.norm() < 1e-9:
            break
    return found


def cross_validated(features: torch.Tensor, wrong: torch.Tensor, folds: int = 5,
                    penalty: float = PENALTY, seed: int = 0) -> torch.Tensor:
    """What a logistic that has not seen a picture says of it: N logits."""
    order = torch.randperm(len(wrong), generator=torch.Generator().manual_seed(seed))
    # each kind spread over the folds
    order = torch.cat([order[wrong[order]], order[~wrong[order]]])
    said = torch.empty(len(wrong), dtype=torch.float64)
    for fold in range(folds):
        out = order[fold::folds]
        rest = torch.ones(len(wrong), dtype=torch.bool)
        rest[out] = False
        found = logistic(features[rest], wrong[rest], penalty)
        said[out] = features[out].double() @ found[:-1] + found[-1]
    return said
