"""The fixed combination against plain sums, and the joint map."""

import math

import pytest
import torch

from bayesdiff_core import doubt, evidence
from bayesdiff_core.checks import BayesDiffError


def random(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_doubt_is_the_root_of_the_parts_weighted_geometric_mean():
    parts = {"a, mean": random(6) + 0.1, "b, top": random(6, seed=1) + 0.1, "unused": random(6)}
    found = doubt.combined(parts, {"a, mean": 2.0, "b, top": 0.5})
    both = zip(parts["a, mean"].tolist(), parts["b, top"].tolist())
    assert found.tolist() == pytest.approx([math.sqrt((a**2 * b**0.5) ** (1 / 2.5))
                                            for a, b in both])


def maps_of(names, images=3, scale=1.0):
    return {name: scale**2 * random(images, 2, 12, 12, seed=seed)
            for seed, name in enumerate(names)}


@pytest.mark.parametrize("names, variant", [
    (["late 20", "late 40"], "run, no check"),
    (["late 20", "late 40", *evidence.CHECKS[:2]], "run, quick check"),
    (["late 20", "late 40", *evidence.CHECKS], "run, full check"),
    (evidence.CHECKS[:2], "picture, quick check"), (evidence.CHECKS, "picture, full check")])
def test_doubt_takes_the_most_telling_parts_that_there_are(names, variant):
    maps, picture = maps_of(names), random(3, 2, 12, 12, seed=9)
    found = doubt.doubt(maps, picture)
    assert found.variant == variant and list(found.parts) == list(doubt.VARIANTS[variant])
    by = picture.var((2, 3), unbiased=False).mean(1)
    for name, values in found.parts.items():
        if name.endswith(", mean"):
            expected = maps[name.removesuffix(", mean")].mean((1, 2, 3)) / by
            torch.testing.assert_close(values, expected)
    torch.testing.assert_close(found.parts[doubt.CONTRAST], by)
    torch.testing.assert_close(found.values, doubt.combined(found.parts, doubt.VARIANTS[variant]))


def test_a_pictures_doubt_does_not_depend_on_its_batch_and_ranks_not_on_the_latents_scale():
    names = ["late 20", "late 40", *evidence.CHECKS]
    picture = random(3, 2, 12, 12, seed=9)
    together = doubt.doubt(maps_of(names), picture).values
    alone = doubt.doubt({name: one[1:2] for name, one in maps_of(names).items()}, picture[1:2])
    torch.testing.assert_close(alone.values, together[1:2])
    larger = doubt.doubt(maps_of(names, scale=10.0), 10 * picture).values
    ratio = larger / together  # the same for all
    torch.testing.assert_close(ratio, ratio[:1].expand(3))


def test_sound_which_has_no_height_has_a_doubt_too():
    maps = {name: random(2, 4, 30, seed=seed) for seed, name in enumerate(["late 20", "late 40"])}
    picture = random(2, 4, 30, seed=5)
    together = doubt.doubt(maps, picture).values
    alone = doubt.doubt({name: one[:1] for name, one in maps.items()}, picture[:1]).values
    torch.testing.assert_close(together[:1], alone)


def test_without_any_map_it_is_refused_by_name():
    with pytest.raises(BayesDiffError, match="there are .'other'"):
        doubt.doubt({"other": random(1, 1, 2, 2)}, random(1, 1, 2, 2))


def test_the_maps_mean_square_is_the_square_of_the_score():
    maps, picture = maps_of(["late 20", "late 40", *evidence.CHECKS]), random(3, 2, 12, 12, seed=9)
    values = doubt.doubt(maps, picture).values
    found = doubt.doubt_map(maps, values)
    assert found.shape == (3, 1, 12, 12) and (found >= 0).all()
    torch.testing.assert_close(found.mean((1, 2, 3)), values.square())


def test_the_joint_map_weighs_maps_alike():
    one, other = random(2, 3, 8, 8), random(2, 3, 8, 8, seed=1)
    found = doubt.joint_map([one, other])
    assert found.shape == (2, 1, 8, 8)
    torch.testing.assert_close(doubt.joint_map([100 * one, other]), found)
    naive = sum(m.mean(1, keepdim=True) / m.mean((1, 2, 3), keepdim=True) for m in (one, other)) / 2
    torch.testing.assert_close(found, evidence.smooth(evidence.smooth(naive)))
