"""What the bench truth counts with, against plain loops."""

import pytest
import torch

from benchmarks import bench_teach, bench_truth
from benchmarks.worlds import repair


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_auroc_counts_pairs_and_half_of_a_tie():
    values = torch.randint(0, 5, (40,), generator=seeded()).double()
    wrong = torch.rand(40, generator=seeded(1)) < 0.3
    pairs = [(float(a > b) + 0.5 * float(a == b)) for a in values[wrong] for b in values[~wrong]]
    assert bench_truth.auroc(values, wrong) == pytest.approx(sum(pairs) / len(pairs))


def test_average_precision_is_the_mean_precision_at_the_hits():
    values = torch.rand(30, generator=seeded())
    wrong = torch.rand(30, generator=seeded(1)) < 0.3
    order = sorted(range(30), key=lambda index: -float(values[index]))
    precisions = [sum(bool(wrong[i]) for i in order[:n + 1]) / (n + 1)
                  for n, index in enumerate(order) if wrong[index]]
    assert bench_truth.average_precision(values, wrong) == \
        pytest.approx(sum(precisions) / len(precisions))


def test_a_mask_is_the_top_of_its_map_grown():
    values = torch.zeros(1, 10, 10)
    values[0, 4, 4:6] = 1
    mask = repair.mask_of(values, 0.02, 1)
    assert mask[0, 0].nonzero().tolist() == [[i, j] for i in (3, 4, 5) for j in (3, 4, 5, 6)]


@pytest.mark.parametrize("flow", [False, True])
def test_a_repair_leaves_the_outside_as_it_was(flow):
    class Given:
        sigmas = torch.linspace(1, 0, 6) if flow else torch.tensor([8.0, 4, 2, 1, 0])

        def denoise(self, x, sigma):
            return torch.full_like(x, 5.0)

    given = Given()
    given.flow = flow
    picture = torch.randn(2, 1, 6, 6, generator=seeded())
    mask = torch.zeros(2, 1, 6, 6)
    mask[..., :3] = 1
    done, calls = repair.redraw(given, picture, mask, 1.5, 0)
    assert torch.equal(done[..., 3:], picture[..., 3:])
    torch.testing.assert_close(done[..., :3], torch.full_like(done[..., :3], 5.0))
    assert calls == (3 if flow else 2)  # from sigma 0.6 of 1, or 2 of 8


def test_the_calls_of_a_combination_count_a_map_once():
    assert bench_truth.cost(["late 20, top", "pull 1.2, mean", "renoised 1.2, spread"]) == 6


def test_bench_teach_names_as_many_of_each_kind_and_tests_on_no_run_it_looked_at():
    scores = torch.rand(200, generator=seeded()).double() + 0.1
    wrong = torch.rand(200, generator=seeded(1)) < 0.25
    order = torch.randperm(200, generator=seeded(2))
    runs, left = bench_teach.taught_runs({"score": scores}, wrong, order, 20)
    kinds = [example.disliked for run in runs for example in run.examples]
    assert (kinds.count(True), kinds.count(False)) == (20, 20)
    assert len(left) == 200 - 20 * len(runs) and left.tolist() == order[-len(left):].tolist()
    taught_logs = {round(example.logs["score"], 9) for run in runs for example in run.examples}
    assert not taught_logs & {round(float(log), 9) for log in scores[left].log()}
