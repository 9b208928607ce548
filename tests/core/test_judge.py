"""What bench quality judges by, against plain loops."""

import numpy as np
import pytest
import scipy.linalg
import torch

from benchmarks import bench_quality
from tools import judge


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sizes", [(40, 30), (5, 30), (40, 6)])  # more or fewer than features
def test_frechet_distance_is_that_of_the_covariances(sizes):
    a, b = random(sizes[0], 8), 2 * random(sizes[1], 8, seed=1) + 0.5
    cov_a, cov_b = (np.cov(x.double().numpy().T) for x in (a, b))
    root = scipy.linalg.sqrtm(cov_a @ cov_b + 0j).real
    apart = (a.double().mean(0) - b.double().mean(0)).square().sum().item()
    expected = apart + np.trace(cov_a + cov_b - 2 * root)
    assert judge.frechet(a, b) == pytest.approx(expected, rel=1e-4)


def test_inside_is_within_the_kth_neighbors_distance_of_a_real_one():
    samples, real = 1.5 * random(30, 3), random(20, 3, seed=1)
    expected = []
    for sample in samples:
        near = False
        for one in real:
            radius = sorted((one - other).norm() for other in real)[2]  # the first is itself
            near |= bool((sample - one).norm() <= radius)
        expected.append(near)
    assert judge.inside(samples, real, k=2).tolist() == expected and 0 < sum(expected) < 30


def test_a_share_of_each_class_is_dropped_by_score():
    labels = torch.arange(100) % 2
    values = torch.arange(100.0).flip(0)
    kept = bench_quality.kept_within(values, labels)
    assert (~kept).nonzero().flatten().tolist() == list(range(16))  # the 8 highest of each


def test_scores_within_a_class_ignore_what_classes_differ_in():
    labels = torch.arange(60) % 3
    values = random(60).exp()
    scaled = values * torch.tensor([1.0, 10.0, 0.01])[labels]
    inner = bench_quality.within_class(values, labels)
    assert torch.allclose(inner, bench_quality.within_class(scaled, labels), atol=1e-6)
