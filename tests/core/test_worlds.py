"""The worlds' labels: real drawings are right, spoilt ones wrong, and the map says where."""

import pytest
import torch

from benchmarks.worlds import PICTURES, WORLDS, hands, nets, rule, sampling, shapes


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", WORLDS)
def test_real_drawings_are_right_and_spoilt_ones_wrong(name):
    world = WORLDS[name]
    right = world.nearest(world.draw(200, seeded(1)))
    wrong = world.nearest(world.spoilt(200, seeded(2)))
    assert right.wrong.float().mean() <= 0.01
    assert wrong.wrong.float().mean() >= 0.99


@pytest.mark.parametrize("name", PICTURES)
def test_the_nearest_of_a_real_drawing_is_itself(name):
    drawn = PICTURES[name].draw(50, seeded(3))
    found = PICTURES[name].nearest(drawn)
    assert found.distance.quantile(0.95) < 0.1  # of one pixel
    assert (found.nearest - drawn).abs().mean() < 0.01


@pytest.mark.parametrize("name", PICTURES)
def test_what_is_painted_into_a_drawing_is_where_it_is_wrong(name):
    drawn = PICTURES[name].draw(30, seeded(4))
    painted = drawn.clone()
    painted[:, :, 27:, :4] = painted.amax((1, 2, 3))[:, None, None, None]  # a corner no hand is in
    found = PICTURES[name].nearest(painted)
    assert found.wrong.all()
    assert found.where[:, 28:, :3].all()
    assert found.where[:, :24, 8:].float().mean() < 0.01


def test_the_label_does_not_depend_on_the_tone_of_a_hand():
    numbers = hands.numbers(20, seeded(5), 6)
    tones = []
    for tone in (0.2, 1.0):
        numbers[:, 6] = tone
        found = hands.nearest(hands.rendered(numbers, 6))
        assert found.wrong.all()
        tones.append(found.distance)
    # a fit may end in another place now and then
    assert ((tones[0] - tones[1]).abs() < 0.15 * tones[1]).float().mean() >= 0.9


def test_a_blank_picture_of_shapes_is_wrong():
    assert shapes.nearest(torch.full((1, 1, 32, 32), -1.0)).wrong.all()


def test_a_hand_moved_within_its_bounds_stays_right():
    numbers = hands.numbers(20, seeded(6))
    low, high = hands.bounds()
    numbers[:, :-1] = numbers[:, :-1].maximum(low + 0.1 * (high - low))
    assert not hands.nearest(hands.rendered(numbers)).wrong.any()


def test_a_spot_is_the_mean_of_its_neighbors():
    error = torch.rand(2, 9, 9, generator=seeded())
    padded = torch.nn.functional.pad(error, (1, 1, 1, 1))
    naive = padded.unfold(1, 3, 1).unfold(2, 3, 1).mean((3, 4))
    torch.testing.assert_close(rule.spots(error), naive)


@pytest.mark.parametrize("name", ["hands-eps-a", "hands-flow-a"])
def test_a_net_splits_into_features_and_an_affine_last_layer(name):
    net = nets.build(name)
    x, sigma, target = nets.noised(net, hands.draw(3, seeded()), seeded())
    phi = nets.features(net, x, sigma)
    assert nets.output(net, x, sigma).shape == target.shape == (3, 1, 32, 32)
    doubled = net.to_grid(net.last(2 * phi)) - net.to_grid(net.last(phi))
    still = net.to_grid(net.last(phi)) - net.to_grid(net.last(0 * phi))
    torch.testing.assert_close(doubled, still, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("flow", [False, True])
def test_every_sampler_finds_the_only_picture_there_is(flow):
    """A perfect denoiser of one picture, through the samplers' own steps."""
    picture = torch.randn(1, 1, 4, 4, generator=seeded())
    levels = torch.linspace(1, 0, 11) if flow else torch.tensor([8.0, 4, 2, 1, 0.5, 0.1, 0])
    for sampler in sampling.SAMPLERS:
        x = levels[0] * torch.randn(1, 1, 4, 4, generator=seeded(1))
        noise = sampling.Noise([3], (1, 4, 4))
        for sigma, to in zip(levels.tolist(), levels.tolist()[1:]):
            x = sampling.step(sampler, lambda x, sigma: picture, x, sigma, to, picture, flow, noise)
        torch.testing.assert_close(x, picture)


@pytest.mark.parametrize("flow", [False, True])
def test_an_ancestral_step_keeps_the_noise_level(flow):
    """x = a x0 + s n stays so: signal and noise as the next level has them."""
    picture = torch.full((1, 1, 200, 200), 2.0)
    noise = sampling.Noise([5], (1, 200, 200))
    sigma, to = 0.7, 0.5
    signal = (1 - sigma, 1 - to) if flow else (1, 1)
    x = signal[0] * picture + sigma * noise()
    moved = sampling.step("euler_ancestral", None, x, sigma, to, picture, flow, noise)
    assert moved.mean() == pytest.approx(2 * signal[1], abs=0.02)
    assert moved.std() == pytest.approx(to, rel=0.02)
