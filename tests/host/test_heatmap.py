"""The heatmap node with the host's own VAEs, mask node and sampler."""

import importlib
from types import SimpleNamespace

import comfy.taesd.taehv
import folder_paths
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

import nodes as host_nodes

SETTINGS = {
    "method": "fast", "color_map": "turbo", "opacity": 0.6, "value_range": "per image",
    "clip_percentile": 99.0, "step": -1, "draws": 4, "remove_low_pass": False, "seed": 5,
    "mask_by": "percentile", "mask_threshold": 80.0, "grow": 0, "blur": 0.0, "color_bar": False}


def random(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def as_the_host_runs_nodes():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def ours(pack):
    """The pack's own modules, whose errors are those of the node."""
    return SimpleNamespace(**{
        name.rsplit(".")[-1]: importlib.import_module(f"{pack.root.__name__}.{name}")
        for name in ["bayesdiff_core.trajectory", "bayesdiff_core.scores", "bayesdiff_core.doubt",
                     "nodes.heatmap"]})


@pytest.fixture
def run(ours, tmp_path, monkeypatch):
    """Runs the node; previews go to a folder of the test."""
    monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path))

    def run(variance=None, **inputs):
        if variance is not None:
            inputs["variance"] = {"samples": variance}
        if "samples" in inputs:
            inputs["samples"] = {"samples": inputs["samples"]}
        return ours.heatmap.BayesDiffHeatmap.execute(**{**SETTINGS, **inputs})

    return run


@pytest.fixture(scope="module")
def video_vae(random_vae):
    """16 channels, 8 pixels a side, 4 T - 3 frames."""
    return random_vae(comfy.taesd.taehv.TAEHV(latent_channels=16))


@pytest.fixture(scope="module")
def pixel_space():
    return host_nodes.VAELoader().load_vae("pixel_space")[0]


@pytest.fixture
def trajectory(ours):
    """Of two pictures: states 0, 1 and 2, with three deviations or as many as asked for."""
    def made(deviations=3, shape=(2, 4, 6, 5)):
        shape = torch.Size(shape)
        recorder = ours.trajectory.TrajectoryRecorder(
            torch.tensor([1.0, 0.5, 0.0]), shape, deviations, list(range(shape[0])))
        for step in range(3):
            parts = random(deviations, *shape, seed=step) - 0.5
            variance = parts.square().mean(0) if deviations else random(*shape, seed=step)
            recorder.add(step, random(*shape, seed=10 + step), variance, variance, parts)
        ones = torch.ones(1, shape[1], *[1] * (len(shape) - 2))
        return recorder.trajectory(2 * ones, 0.5 * ones)
    return made


def test_fast_map_alone_is_the_enlarged_deviation_of_the_latent(run):
    variance = random(2, 4, 6, 5)
    overlay, heatmap, mask = run(variance, color_map="gray", clip_percentile=100.0).args
    assert overlay.shape == heatmap.shape == (2, 48, 40, 3) and mask.shape == (2, 48, 40)
    assert torch.equal(overlay, heatmap)
    for image in range(2):
        small = np.sqrt(variance[image].numpy().mean(0))
        enlarged = np.array(Image.fromarray(small).resize((40, 48), Image.Resampling.BILINEAR))
        enlarged = (enlarged - enlarged.min()) / (enlarged.max() - enlarged.min())
        assert np.allclose(heatmap[image, ..., 1], enlarged, atol=1e-4)


def test_overlay_mixes_the_colors_into_the_picture_at_its_own_size(run):
    image, variance = random(2, 50, 70, 3), random(2, 4, 6, 5)
    overlay, heatmap, mask = run(variance, image=image, opacity=0.25).args
    assert overlay.shape == (2, 50, 70, 3) and mask.shape == (2, 50, 70)
    assert torch.allclose(overlay, 0.75 * image + 0.25 * heatmap, atol=1e-6)
    assert torch.equal(run(variance, image=image, opacity=0.0).args[0], image)


def test_glow_changes_the_picture_only_where_the_model_was_unsure(run):
    image, variance = torch.zeros(1, 48, 40, 3), torch.full((1, 4, 6, 5), 1e-4)
    variance[..., 4:, 3:] = 1
    overlay, heatmap, _ = run(variance, image=image, color_map="glow", opacity=0.5).args
    assert torch.equal(overlay[:, :24], image[:, :24])
    red, green, blue = overlay[0, -1, -1].tolist()
    assert red == pytest.approx(0.5) and red > 4 * green > 4 * blue
    assert torch.allclose(heatmap, 2 * overlay, atol=1e-6)  # on black, which the picture is


def test_picture_is_decoded_as_the_stock_node_does(run, vae, trajectory):
    samples, traced = random(2, 4, 6, 5, seed=1), trajectory()
    stock, = host_nodes.VAEDecode().decode(vae, {"samples": samples})
    assert torch.equal(run(random(2, 4, 6, 5), samples=samples, vae=vae, opacity=0.0).args[0],
                       stock)
    stock, = host_nodes.VAEDecode().decode(vae, {"samples": traced.latent_mean()})
    assert torch.equal(run(trajectory=traced, vae=vae, opacity=0.0, step=1).args[0], stock)


def test_step_of_a_trajectory_is_the_variance_kept_there(run, trajectory):
    traced = trajectory()
    for step in [0, 1, 2]:
        of_step = run(trajectory=traced, step=step).args
        as_variance = run(traced.latent_variance(step)).args
        assert all(torch.equal(a, b) for a, b in zip(of_step, as_variance))
    assert torch.equal(run(trajectory=traced, map="variance").args[1], of_step[1])


def test_the_map_of_a_trajectory_is_its_doubt_and_agrees_with_the_score(run, ours, trajectory):
    traced = trajectory()
    traced = traced._replace(late=random(*traced.mean.shape[1:], seed=3))
    values = ours.scores.default(traced).values
    found = run(trajectory=traced)
    expected = ours.doubt.doubt_map({"late 20": traced.late}, values)
    assert torch.equal(found.args[1], run(expected).args[1])
    assert found.ui["bayesdiff"][0]["map"] == "doubt"
    # one with twice the doubt glows twice as much where the batch shares its range
    torch.testing.assert_close(expected.mean((1, 2, 3)), values.square().float())


@pytest.mark.parametrize("low_pass", [False, True])
@pytest.mark.parametrize("deviations", [3, 0])
def test_pixel_map_is_the_deviation_of_decoded_draws(ours, vae, trajectory, deviations, low_pass):
    traced = trajectory(deviations)
    source = ours.heatmap.source_of(None, traced, None, 1)
    deviation = ours.heatmap.pixel_deviation(source, vae, 5, 3, low_pass)
    pictures = []
    for draw in traced.draws(1, 5, 3):
        latent = (traced.mean[1] + draw) * 2 + 0.5  # from the sampler's space by scale and shift
        picture, = host_nodes.VAEDecode().decode(vae, {"samples": latent})
        if low_pass:
            local = torch.nn.functional.avg_pool2d(picture.movedim(-1, 1), 5, 1, 2,
                                                   count_include_pad=False)
            picture = picture - local.movedim(1, -1)
        pictures.append(picture.double())
    expected = torch.stack(pictures).var(0).mean(-1).sqrt()
    assert deviation.shape == (2, 1, 48, 40) and expected.max() > 0.01
    assert torch.allclose(deviation[:, 0].double(), expected, rtol=1e-3, atol=1e-5)


def test_pixel_map_in_pixel_space_has_half_the_latent_deviation(ours, pixel_space):
    """It decodes -1..1 to 0..1. Inside of the clamp, many draws give the deviation back."""
    variance = 0.01 * random(1, 3, 5, 5) + 0.001
    source = ours.heatmap.source_of({"samples": variance},
                                    None, {"samples": torch.zeros(1, 3, 5, 5)}, -1)
    deviation = ours.heatmap.pixel_deviation(source, pixel_space, 3000, 0, False)
    assert torch.allclose(deviation, variance.mean(1, keepdim=True).sqrt() / 2, rtol=0.05)


def test_draws_repeat_by_seed_and_do_not_depend_on_batch_mates(ours):
    variance = random(3, 4, 6, 5)
    draws = ours.heatmap.independent_draws(variance, 4, 9)
    assert draws.shape == (4, 3, 4, 6, 5)
    assert torch.equal(draws, ours.heatmap.independent_draws(variance, 4, 9))
    assert torch.equal(draws[:, :1], ours.heatmap.independent_draws(variance[:1], 4, 9))
    assert not torch.equal(draws, ours.heatmap.independent_draws(variance, 4, 8))
    alike = ours.heatmap.independent_draws(torch.ones(2, 4, 6, 5), 4, 9)
    assert not torch.equal(alike[:, 0], alike[:, 1]), "two images share their noise"


@pytest.mark.parametrize("method", ["fast", "pixel"])
def test_no_variance_gives_an_empty_map_and_mask(run, ours, vae, method):
    samples = random(2, 4, 6, 5)
    overlay, heatmap, mask = run(torch.zeros(2, 4, 6, 5), samples=samples, vae=vae, method=method,
                                 grow=3, blur=2.0).args
    lowest = ours.heatmap.maps.colored(torch.zeros(1), "turbo")
    assert mask.count_nonzero() == 0 and torch.equal(heatmap, lowest.expand(heatmap.shape))


def test_video_has_a_map_for_each_frame(run, ours, video_vae):
    variance, samples = random(1, 16, 3, 4, 5), random(1, 16, 3, 4, 5, seed=1)
    stock, = host_nodes.VAEDecode().decode(video_vae, {"samples": samples})
    assert stock.shape == (9, 32, 40, 3)
    for method in ["fast", "pixel"]:
        overlay, heatmap, mask = run(variance, samples=samples, vae=video_vae, method=method,
                                     opacity=0.0).args
        assert torch.equal(overlay, stock) and heatmap.shape == stock.shape
        assert mask.shape == (9, 32, 40) and not torch.equal(mask[0], mask[-1])
    alone = run(variance, clip_percentile=100.0).args[1]
    between = run(variance, image=stock, clip_percentile=100.0).args[1]
    assert alone.shape == (3, 32, 40, 3) and torch.allclose(alone, between[::4], atol=1e-4)


def test_pixel_map_of_two_videos_keeps_them_apart(ours, video_vae):
    variance, mean = random(2, 16, 2, 3, 3), {"samples": random(2, 16, 2, 3, 3, seed=1)}
    variance[1] = 0
    source = ours.heatmap.source_of({"samples": variance}, None, mean, -1)
    deviation = ours.heatmap.pixel_deviation(source, video_vae, 2, 0, False)
    assert deviation.shape == (2, 5, 24, 24)
    assert deviation[0].mean() > 0.01 and deviation[1].count_nonzero() == 0


def test_shared_range_makes_images_comparable(run):
    variance = random(1, 4, 6, 5).repeat(2, 1, 1, 1) * torch.tensor([1.0, 16.0]).reshape(2, 1, 1, 1)
    each, shared = (run(variance, value_range=of, color_map="gray").args
                    for of in ["per image", "shared"])
    assert torch.allclose(each[1][0], each[1][1], atol=1e-4)
    assert shared[1][0].max() < shared[1][1].max() / 2
    assert each[2].mean((1, 2)).tolist() == pytest.approx([0.2, 0.2], abs=0.01)
    assert shared[2][0].mean() < 0.05 and shared[2].mean().item() == pytest.approx(0.2, abs=0.01)


def test_mask_by_value_is_where_the_deviation_is_above_it(run):
    variance = random(1, 4, 6, 5)
    mask = run(variance, mask_by="value", mask_threshold=0.7, image=torch.zeros(1, 6, 5, 3)).args[2]
    assert torch.equal(mask, (variance.mean(1).sqrt() > 0.7).float())


def test_color_bar_stands_beside_the_heatmap_and_leaves_the_rest_alone(run):
    variance, image = random(2, 4, 16, 20), random(2, 128, 160, 3)
    plain = run(variance, image=image).args
    overlay, heatmap, mask = run(variance, image=image, color_bar=True).args
    assert torch.equal(overlay, plain[0]) and torch.equal(mask, plain[2])
    assert torch.equal(heatmap[:, :, :160], plain[1])
    strip = heatmap[:, :, 160:]
    assert strip.shape[2] % 8 == 0 and strip.shape[2] > 40
    assert not torch.equal(strip[0], strip[1]), "the numbers of two images are the same"


@pytest.mark.parametrize("height", [1, 3, 8, 2048])
def test_color_bar_fits_any_height(run, height):
    heatmap = run(random(1, 4, 4, 4), image=torch.zeros(1, height, 8, 3), color_bar=True).args[1]
    assert heatmap.shape[1] == height


@pytest.mark.parametrize("low, high, labels", [
    (0.0, 0.0, ["0"]), (0.25, 0.25, ["0.25"]), (0.0, 1.0, ["0.00", "0.50", "1.00"]),
    (0.02, 0.274, ["0.02", "0.15", "0.27"]), (0.5, 0.5004, ["0.50000", "0.50020", "0.50040"]),
    (12.0, 212.0, ["12", "112", "212"]), (0.0, 3e-6, ["0.00e+00", "1.50e-06", "3.00e-06"])])
def test_numbers_of_the_bar_can_be_told_apart(ours, low, high, labels):
    assert ours.heatmap.numbers(low, high, 3) == labels


@pytest.mark.parametrize("blur", [0.0, 6.0])
def test_mask_goes_into_sampling_unchanged(run, case, blur):
    """Where the mask is 0 the picture stays; where it is 1 it is sampled again."""
    sampling = case("sd15")
    samples, variance = sampling.latent["samples"], torch.zeros(1, 4, 8, 8)
    variance[..., 4:] = 1
    mask = run(variance, blur=blur, mask_by="value", mask_threshold=0.9).args[2]
    sampling.latent, = host_nodes.SetLatentNoiseMask().set_mask({"samples": samples}, mask)
    changed = (sampling.stock()["samples"] - samples).abs().amax((0, 1, 2))
    assert changed[:2].max() < 1e-4 and changed[6:].min() > 0.01


def test_mask_goes_into_differential_diffusion(run, case):
    from comfy_extras.nodes_differential_diffusion import DifferentialDiffusion
    sampling = case("sd15")
    samples, variance = sampling.latent["samples"], torch.zeros(1, 4, 8, 8)
    variance[..., 4:] = 1
    mask = run(variance, blur=4.0, mask_by="value", mask_threshold=0.9).args[2]
    sampling.latent, = host_nodes.SetLatentNoiseMask().set_mask({"samples": samples}, mask)
    sampling.model = DifferentialDiffusion.execute(sampling.model).args[0]
    changed = (sampling.stock()["samples"] - samples).abs().amax((0, 1, 2))
    assert changed[:2].max() < changed[6:].min() / 2, "it changes all a little in its last step"


def test_mask_of_a_video_goes_into_sampling(run, case):
    sampling = case("wan")
    samples, variance = sampling.latent["samples"], torch.zeros(1, 16, 3, 5, 6)
    variance[..., 3:] = 1
    mask = run(variance, mask_by="value", mask_threshold=0.9).args[2]
    sampling.latent, = host_nodes.SetLatentNoiseMask().set_mask({"samples": samples}, mask)
    changed = (sampling.stock()["samples"] - samples).abs().amax((0, 1, 2, 3))
    assert changed[:3].max() < 1e-4 and changed[4:].min() > 0.01


def test_viewer_gets_the_picture_and_the_map_without_loss(run, tmp_path):
    variance, image = random(2, 4, 6, 5), random(2, 24, 20, 3)
    output = run(variance, image=image, value_range="shared")
    viewer, = output.ui["bayesdiff"]
    ends = []
    for number, entry in enumerate(viewer["images"]):
        picture, deviation, frame = read_frame(tmp_path, entry["result"], 0)
        assert torch.allclose(picture, image[number], atol=0.51 / 255)
        wanted = functional.interpolate(variance.mean(1, keepdim=True).sqrt(), (24, 20),
                                        mode="bilinear")[number, 0]
        torch.testing.assert_close(deviation, wanted, rtol=0, atol=frame["top"] / 65535)
        ends.append((frame["low"], frame["high"]))
    assert ends[0] == ends[1] and viewer["map"] == "uncertainty" and not viewer["left_out"]
    assert len(viewer["images"]) == 2 and "steps" not in viewer["images"][0]


def test_viewer_scrubs_through_the_kept_steps_of_each_image(run, ours, tmp_path):
    sigmas, kept = torch.tensor([2.0, 1.0, 0.5, 0.0]), torch.tensor([0, 2, 3])
    variance = random(3, 2, 4, 6, 5)
    zeros, scale = torch.zeros_like(variance), torch.full((1, 4, 1, 1), 2.0)
    trajectory = ours.trajectory.Trajectory(
        sigmas, kept, zeros, variance, zeros, zeros[:, None, :0], 0, torch.tensor([1, 2]), scale,
        torch.zeros(1), late=random(2, 4, 6, 5, seed=4))
    doubt = ours.scores.doubt_of(trajectory)
    viewer, = run(trajectory=trajectory).ui["bayesdiff"]
    for number, entry in enumerate(viewer["images"]):
        assert [frame["step"] for frame in entry["steps"]["frames"]] == [0, 2, 3]
        assert [frame["sigma"] for frame in entry["steps"]["frames"]] == [2.0, 0.5, 0.0]
        for column in range(3):
            picture, deviation, frame = read_frame(tmp_path, entry["steps"], column)
            wanted = 2 * variance[column, number].mean(0).sqrt() if column < 2 else \
                doubt[number, 0].sqrt()
            torch.testing.assert_close(deviation, wanted, rtol=0, atol=frame["top"] / 65535)
            assert (picture - 0.5).abs().max() < 0.51 / 255  # a mean of zeros is gray


def test_a_full_disk_costs_the_pictures_only(run, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")
    monkeypatch.setattr(Image.Image, "save", full)
    output = run(random(2, 4, 6, 5))
    assert output.ui["bayesdiff"] == [None] and output.args[0].shape == (2, 48, 40, 3)
    assert len(output.ui["bayesdiff_report"][0]["masked"]) == 2


def test_only_the_newest_pictures_are_kept(run, pack, monkeypatch, tmp_path):
    monkeypatch.setattr(pack.viewer, "MOST_FILES", 3)
    (tmp_path / "another.png").touch()
    shown = [run(random(2, 4, 6, 5)).ui["bayesdiff"][0]["images"] for _ in range(3)]
    names = [entry[part]["file"]["filename"] for images in shown for part in ("result", "mask")
             for entry in images]
    assert {file.name for file in (tmp_path / "bayesdiff").iterdir()} == set(names[-3:])
    assert (tmp_path / "another.png").exists()


def read_frame(folder, sheet, column):
    """Picture, deviations and description of a sheet's column, as web/viewer.js reads them."""
    frame, columns = sheet["frames"][column], len(sheet["frames"])
    path = folder / sheet["file"]["subfolder"] / sheet["file"]["filename"]
    pixels = torch.from_numpy(np.array(Image.open(path))).float()
    height, width = pixels.shape[0] // 2, pixels.shape[1] // columns
    part = pixels[:, column * width:(column + 1) * width]
    codes = 256 * part[height:, :, 0] + part[height:, :, 1]
    return part[:height] / 255, codes / 65535 * frame["top"], frame


@pytest.mark.parametrize("method", ["fast", "pixel"])
def test_inputs_are_left_as_they_were(run, pixel_space, method):
    variance, samples, image = (random(1, 3, 6, 5, seed=s) for s in range(3))
    given = [variance, samples, image.movedim(1, -1)]
    before = [part.clone() for part in given]
    run(variance, samples=samples, image=given[2], vae=pixel_space, method=method, blur=1.0)
    run(variance, samples=samples, vae=pixel_space, method=method)
    assert all(torch.equal(a, b) for a, b in zip(given, before))


def test_interrupt_stops_between_draws(run, vae):
    import comfy.model_management as management
    management.interrupt_current_processing(True)
    with pytest.raises(management.InterruptProcessingException):
        run(random(1, 4, 2, 2), samples=random(1, 4, 2, 2), vae=vae, method="pixel")
    management.interrupt_current_processing(False)


VARIANCE, PICTURES = torch.ones(2, 4, 4, 4), torch.zeros(3, 32, 32, 3)


@pytest.mark.parametrize("inputs, words", [
    ({}, "neither a variance nor a trajectory"),
    ({"variance": VARIANCE, "step": 3}, "step is 3"),
    ({"variance": VARIANCE, "image": PICTURES}, "holds 3 pictures.* batch of 2"),
    ({"variance": VARIANCE, "image": torch.zeros(4, 32, 32, 3)}, "holds 4 .* batch of 2"),
    ({"variance": torch.ones(1, 16, 5, 4, 4), "image": PICTURES}, "holds 3 .* of 5 frames"),
    ({"variance": torch.ones(2, 16, 2, 4, 4), "image": torch.zeros(5, 8, 8, 3)}, "holds 5 "),
    ({"variance": VARIANCE, "method": "pixel"}, "no VAE"),
    ({"variance": VARIANCE, "method": "pixel", "vae": "any"}, "no samples"),
    ({"variance": VARIANCE, "samples": VARIANCE[:1]}, "shape .1, 4, 4, 4. .* .2, 4, 4, 4."),
    ({"variance": -VARIANCE}, "down to -1"),
    ({"variance": VARIANCE * torch.nan}, "NaN"),
    ({"variance": VARIANCE[0]}, "shape .4, 4, 4."),
    ({"variance": VARIANCE, "mask_threshold": 101.0}, "percentile is 101"),
])
def test_bad_input_is_refused_in_words(run, pack, inputs, words):
    with pytest.raises(pack.BayesDiffError, match=words):
        run(**inputs)


def test_step_that_was_not_kept_is_refused(run, pack, trajectory):
    with pytest.raises(pack.BayesDiffError, match="step 7 is not in this trajectory"):
        run(trajectory=trajectory(), step=7)
