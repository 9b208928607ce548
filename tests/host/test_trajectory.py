"""Trajectory At Step, Save and Load: a run's states outside of the run."""

import json
import os
import pickle
from pathlib import Path

import comfy.samplers
import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes
from safetensors import safe_open
from safetensors.torch import save


@pytest.fixture
def at_step(pack):
    def look(trajectory, step=-1, fraction=0.5):
        return pack.trajectory.BayesDiffTrajectoryAtStep.execute(trajectory, step, fraction).args
    return look


def six_steps(case, images=1):
    case.steps = 6
    case.latent = {"samples": case.random(images, *case.latent["samples"].shape[1:], seed=3)}
    return case


def guider_of(case):
    return stock_nodes.CFGGuider.execute(case.model, case.positive, case.negative, case.cfg)[0]


def stock(guider, sampler, sigmas, mean, noise=None):
    """SamplerCustomAdvanced on the latent; with DisableNoise where none is given."""
    return stock_nodes.SamplerCustomAdvanced.execute(
        noise or stock_nodes.DisableNoise.execute()[0], guider,
        comfy.samplers.sampler_object(sampler), sigmas, mean)[0]["samples"]


@pytest.mark.parametrize("name, mode", [("sd15", "free"), ("sd3", "accurate"), ("wan", "free")])
def test_trajectory_keeps_what_the_picture_was_going_to_be(case, ksampler, name, mode):
    case = six_steps(case(name), images=2)
    latent, trajectory = ksampler(case, mode=mode)
    _, calls = case.observed()
    assert trajectory.steps.tolist() == list(range(7)) and len(calls) == 6
    for step, call in enumerate(calls):
        assert torch.equal(trajectory.denoised[step], call.denoised)
    torch.testing.assert_close(trajectory.denoised[-1] * trajectory.scale + trajectory.shift,
                               latent["samples"], rtol=1e-5, atol=1e-5)


def test_steps_are_drawn_by_the_previewer_that_the_user_has_chosen(pack, monkeypatch, tmp_path):
    import comfy.latent_formats
    import comfy.taesd.taesd
    import folder_paths
    import latent_preview
    torch.manual_seed(0)
    decoder = comfy.taesd.taesd.TAESD(latent_channels=4).taesd_decoder
    weights = {name: 0.05 * torch.randn(part.shape) for name, part in decoder.state_dict().items()}
    (tmp_path / "taesd_decoder.safetensors").write_bytes(save(weights))
    monkeypatch.setitem(folder_paths.folder_names_and_paths, "vae_approx",
                        ([str(tmp_path)], {".safetensors"}))
    latent, form = torch.randn(2, 4, 8, 6), comfy.latent_formats.SD15()
    rough = pack.preview.pictures(form, latent)
    assert torch.equal(rough, pack.preview.quick_rgb(form, latent))
    monkeypatch.setattr(latent_preview.args, "preview_method",
                        latent_preview.LatentPreviewMethod.TAESD)
    drawn = pack.preview.pictures(form, latent)
    assert rough.shape == (2, 1, 8, 6, 3) and drawn.shape == (2, 1, 64, 48, 3)
    known = comfy.taesd.taesd.TAESD(None, str(tmp_path / "taesd_decoder.safetensors"), 4)
    wanted = ((known.decode(latent).detach() + 1) / 2).clamp(0, 1).movedim(1, -1)
    assert wanted.std() > 0.01 and (drawn[:, 0] - wanted).abs().max() < 1 / 254


# ---- At Step


@pytest.mark.parametrize("name", ["sd15", "sd15_v", "sd3", "flux2", "wan"])
def test_the_stock_sampler_goes_on_to_the_runs_own_picture(case, ksampler, at_step, name):
    """Bit for bit with the noise output; with DisableNoise but for the rounding of the scale."""
    case = six_steps(case(name), images=2)
    case.latent["batch_index"] = [3, 1]
    latent, trajectory = ksampler(case, mode="free")
    guider = guider_of(case)
    for step in range(0 if name.startswith("sd15") else 1, 6):
        mean, variance, sigma, sigmas, noise = at_step(trajectory, step)
        assert torch.equal(stock(guider, "euler", sigmas, mean, noise), latent["samples"])
        torch.testing.assert_close(stock(guider, "euler", sigmas, mean), latent["samples"],
                                   rtol=1e-3, atol=1e-3)
        assert sigma == sigmas[0] == trajectory.sigmas[step] and len(sigmas) == 7 - step
        assert mean["batch_index"] == [3, 1] and variance["samples"].shape == mean["samples"].shape


def test_where_the_latents_scale_is_the_samplers_disable_noise_gives_the_same_bits(pack, ksampler,
                                                                                  at_step):
    model, _, _ = pack.demo.BayesDiffDemoModel.execute().args
    prompts = [pack.demo.BayesDiffDemoPrompt.execute(name).args[0]
               for name in ("smiley", "nothing")]
    latent, _, trajectory, *_ = pack.samplers.BayesDiffKSampler.execute(
        model, 1, 6, 3.0, "euler", "normal", *prompts,
        {"samples": torch.zeros(1, pack.demo_model.CHANNELS, 16, 16)}, 1.0, None,
        **{**ksampler.options, "mode": "free"}).args
    guider = stock_nodes.CFGGuider.execute(model, *prompts, 3.0)[0]
    for step in range(6):
        mean, _, _, sigmas, _ = at_step(trajectory, step)
        assert torch.equal(stock(guider, "euler", sigmas, mean), latent["samples"])


@pytest.mark.parametrize("name", ["sd15", "sd3", "wan"])
def test_variance_is_that_of_the_mean_latent(case, pack, ksampler, at_step, name):
    """By moving x and looking how far the latent goes."""
    case = six_steps(case(name))
    _, trajectory = ksampler(case)
    at = trajectory.position(3)
    mean, variance, *_ = at_step(trajectory, 3)
    spread = trajectory.variance.clone()
    moved = trajectory.mean.clone()
    moved[at] += spread[at].sqrt()
    further = at_step(trajectory._replace(mean=moved), 3)[0]
    torch.testing.assert_close((further["samples"] - mean["samples"]).square(),
                               variance["samples"], rtol=0.02, atol=1e-7)


def test_fraction_finds_the_nearest_kept_step_and_1_is_the_result(case, ksampler, at_step):
    latent, trajectory = ksampler(six_steps(case("sd3")), keep_steps=4)
    assert [len(at_step(trajectory, fraction=f)[3]) for f in (0.3, 0.6, 1.0)] == [5, 3, 1]
    mean, variance, sigma, *_ = at_step(trajectory, 6)
    assert torch.equal(mean["samples"], latent["samples"]) and sigma == 0
    torch.testing.assert_close(variance["samples"], trajectory.latent_variance())


def test_states_that_no_latent_can_hold_are_refused(case, pack, ksampler, at_step):
    _, trajectory = ksampler(six_steps(case("sd3")), keep_steps=4)
    for attempt, words in [
            (lambda: at_step(trajectory, 0), "sigma 1 the state of a flow is noise alone"),
            (lambda: at_step(trajectory, 3), r"step 3 is not in .* keeps \[0, 2, 4, 6\]"),
            (lambda: at_step(trajectory._replace(recipe=None), 2), "does not say how")]:
        with pytest.raises(pack.BayesDiffError, match=words):
            attempt()


# ---- Resample from mean and variance


@pytest.mark.parametrize("name, sampler, by", [
    ("sd15", "euler", "guider"), ("sd3", "euler", "guider"), ("sd3", "euler_ancestral", "model"),
    ("wan", "heun", "model"), ("sd3", "dpmpp_2m_sde", "guider")])
def test_mean_and_variance_resample_as_their_trajectory_does(case, ksampler, resample, at_step,
                                                             name, sampler, by):
    case = six_steps(case(name), images=2)
    case.sampler = sampler
    _, trajectory = ksampler(case)
    mean, variance, _, sigmas, _ = at_step(trajectory, 3)
    links = {"guider": guider_of(case)} if by == "guider" else {
        "model": case.model, "positive": case.positive, "negative": case.negative, "cfg": case.cfg}
    for move in ({"strength_unit": "noise level"}, {"strength_unit": "posterior", "strength": 1.0}):
        expected, told = resample(trajectory, step=3, draw="gaussian", count=2, **move)
        found, report = resample(mean=mean, variance=variance, sigmas=sigmas, count=2, **move,
                                 sampler=comfy.samplers.sampler_object(sampler), **links)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        assert report["rms"] == pytest.approx(told["rms"], rel=1e-4)
        assert report["step"] is None and "gaussian" in report["notes"][0]


def test_latents_without_seeds_are_drawn_by_their_place(case, ksampler, resample, at_step):
    """As those of the default uncertainty_seed."""
    case = six_steps(case("sd3"), images=2)
    case.latent["batch_index"] = [3, 1]
    _, trajectory = ksampler(case, uncertainty_seed=0)
    mean, variance, _, sigmas, _ = at_step(trajectory, 3)
    bare = {"samples": mean["samples"], "batch_index": [3, 1]}
    found, _ = resample(mean=bare, variance=variance, sigmas=sigmas, guider=guider_of(case),
                        sampler=comfy.samplers.sampler_object("euler"))
    expected, _ = resample(trajectory, step=3, draw="gaussian")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_links_that_miss_or_contradict_are_refused_in_words(case, pack, ksampler, resample, at_step,
                                                            load_model):
    case = six_steps(case("sd3"))
    _, trajectory = ksampler(case)
    mean, variance, _, sigmas, _ = at_step(trajectory, 3)
    whole = {"mean": mean, "variance": variance, "sigmas": sigmas, "guider": guider_of(case),
             "sampler": comfy.samplers.sampler_object("euler")}

    def changed(values):
        return {**variance, "samples": values}

    negative, infinite = variance["samples"].clone(), variance["samples"].clone()
    negative.view(-1)[3], infinite.view(-1)[3] = -1.0, torch.inf
    for links, words in [
            ({}, "nothing is linked to start from"),
            ({"trajectory": trajectory, "mean": mean}, "a trajectory is linked, and mean too"),
            ({"trajectory": trajectory, "sigmas": sigmas}, "and sigmas too"),
            ({**whole, "variance": None}, "mean, sigmas without variance"),
            ({**whole, "sigmas": None}, "without sigmas"),
            ({**whole, "sampler": None}, "no sampler is linked"),
            ({**whole, "guider": None}, "missing: model, positive, negative, cfg"),
            ({**whole, "guider": None, "model": case.model, "positive": case.positive, "cfg": 4.0},
             "missing: negative"),
            ({**whole, "cfg": 3.0}, "a guider is linked, and cfg too"),
            ({**whole, "model": case.model}, "a guider is linked, and model too"),
            ({**whole, "mask": torch.ones(1, 9, 7)}, "mask is linked, but mean and variance"),
            ({**whole, "variance": changed(variance["samples"][..., 1:])},
             r"mean has the shape \[1, 16, 9, 7\] and variance \[1, 16, 9, 6\]"),
            ({**whole, "variance": changed(negative)}, "variance has 1 negative values.* -1"),
            ({**whole, "variance": changed(infinite)}, "variance: 1 of 1008 values are NaN or inf"),
            ({**whole, "mean": changed(infinite)}, "mean: 1 of 1008 values"),
            ({**whole, "sigmas": sigmas.flip(0)}, "sigmas must fall"),
            ({**whole, "sigmas": sigmas[:1]}, "sigmas holds 1 values"),
            ({**whole, "sigmas": torch.tensor([1.0, 0.5, 0.0])}, "noise alone"),
            ({**whole, "guider": stock_nodes.BasicGuider.execute(load_model("sd15"), [])[0]},
             r"\[1, 16, 9, 7\], and the model given is a UNetModel \(4 latent"),
            ({"trajectory": trajectory, "guider": stock_nodes.BasicGuider.execute(
                load_model("flux"), case.positive)[0]}, "sampled by a .*MMDIT.* Flux"),
            ({"trajectory": trajectory, "guider": whole["guider"], "positive": case.positive},
             "a guider is linked, and positive too")]:
        with pytest.raises(pack.BayesDiffError, match=words):
            resample(**links)


def test_another_guider_sampler_or_cfg_takes_over_from_the_step(case, ksampler, resample):
    case = six_steps(case("sd3"))
    latent, trajectory = ksampler(case)
    assert torch.equal(resample(trajectory, strength=0.0, guider=guider_of(case))[0],
                       latent["samples"])
    for other in ({"sampler": comfy.samplers.sampler_object("heun")}, {"cfg": 2.0}):
        assert not torch.equal(resample(trajectory, strength=0.0, **other)[0], latent["samples"])


# ---- joined


def test_a_joined_trajectory_is_resampled_part_by_part(case, pack, ksampler, resample):
    case = six_steps(case("sd3"), images=2)
    latents, parts = zip(*(ksampler(case, mode="accurate", uncertainty_seed=s) for s in (1, 2)))
    case.latent = {"samples": case.latent["samples"][:1]}
    one, last = ksampler(case, mode="accurate")
    whole = pack.core.trajectory.joined([*parts, last])
    options = {"step": 3, "count": 2, "strength": 0.4}
    found, report = resample(whole, **options)
    expected = [resample(part, **options)[0] for part in (*parts, last)]
    assert torch.equal(found, torch.cat(expected)) and len(report["rms"]) == 5
    same, _ = resample(whole, step=3, strength=0.0)
    assert torch.equal(same, torch.cat([latent["samples"] for latent in (*latents, one)]))
    mask = torch.zeros(5, 9, 7)
    mask[3] = 1
    varied, _ = resample(whole, step=3, mask=mask)
    assert [torch.equal(a, b) for a, b in zip(varied, same)] == [True] * 3 + [False, True]


def test_a_joined_trajectory_has_states_and_maps_of_all_images(case, pack, ksampler, at_step):
    case = six_steps(case("sd3"))
    latents, parts = zip(*(ksampler(case, mode="free", uncertainty_seed=s) for s in (1, 2)))
    whole = pack.core.trajectory.joined(list(parts))
    mean, variance, _, sigmas, noise = at_step(whole, 3)
    on = stock(guider_of(case), "euler", sigmas, mean, noise)
    # A batch of two is not computed bit for bit as two of one.
    torch.testing.assert_close(on, torch.cat([latent["samples"] for latent in latents]),
                               rtol=1e-3, atol=1e-3)
    assert len(variance["samples"]) == 2
    assert pack.viewer.of_trajectory(whole)["images"]


# ---- Save and Load


@pytest.fixture
def saving(pack):
    def run(trajectory, prefix="mine", overwrite=False):
        return pack.trajectory.BayesDiffTrajectorySave.execute(trajectory, prefix,
                                                               overwrite).args[0]
    return run


@pytest.fixture
def loading(pack):
    return lambda file: pack.trajectory.BayesDiffTrajectoryLoad.execute(file).args[0]


def folder(place) -> Path:
    return place / "output" / "bayesdiff_trajectories"


def same(one, other) -> bool:
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
               for a, b in zip(*(each._replace(recipe=None)._asdict().values()
                                 for each in (one, other))))


@pytest.mark.parametrize("mode, name", [("free", "sd3"), ("accurate", "sd3"), ("free", "wan")])
def test_a_saved_trajectory_comes_back_bit_for_bit_and_goes_on(case, place, ksampler, resample,
                                                               saving, loading, mode, name):
    case = six_steps(case(name), images=2)
    case.latent["batch_index"] = [4, 1]
    latent, trajectory = ksampler(case, mode=mode)
    loaded = loading(saving(trajectory))
    assert same(loaded, trajectory)
    assert torch.equal(resample(loaded, strength=0.0)[0], latent["samples"])
    prompts = {"positive": case.positive, "negative": case.negative}
    for step in (0, 3):
        expected, _ = resample(trajectory, step=step)
        for links in ({"model": case.model, **prompts}, {"guider": guider_of(case)}):
            assert torch.equal(resample(loaded, step=step, **links)[0], expected)


def test_a_loaded_trajectory_serves_heatmap_score_and_at_step(case, pack, place, ksampler, saving,
                                                              loading, at_step):
    case = six_steps(case("sd3"))
    _, trajectory = ksampler(case)
    loaded = loading(saving(trajectory))
    for made, original in zip(at_step(loaded, 3)[:2], at_step(trajectory, 3)[:2]):
        torch.testing.assert_close(made["samples"], original["samples"])
    found, expected = (pack.scores.BayesDiffScore.execute(["sum"], trajectory=[each]).args[0]
                       for each in (loaded, trajectory))
    assert found == expected
    schema = pack.heatmap.BayesDiffHeatmap.define_schema()
    widgets = {port.id: port.default for port in schema.inputs if hasattr(port, "default")
               and port.default is not None}
    found, expected = (pack.heatmap.BayesDiffHeatmap.execute(**widgets, trajectory=each).args[1]
                       for each in (loaded, trajectory))
    assert torch.equal(found, expected)


def test_masks_options_and_joined_parts_are_saved_too(case, pack, place, ksampler, resample, saving,
                                                      loading):
    case = six_steps(case("sd3"))
    case.latent["noise_mask"] = torch.zeros(1, 9, 7)
    case.latent["noise_mask"][..., :4] = 1
    _, one = ksampler(case, mode="free")
    recipe = one.recipe._replace(sampler=comfy.samplers.ksampler("euler", {"s_noise": 0.5}), seed=9)
    whole = pack.core.trajectory.joined([one._replace(recipe=recipe)] * 2)
    loaded = loading(saving(whole))
    assert [part.images for part in loaded.recipe] == [1, 1]
    assert loaded.recipe[1].recipe.sampler.extra_options == {"s_noise": 0.5}
    assert loaded.recipe[1].recipe.seed == 9
    links = {"guider": guider_of(case), "step": 3}
    assert torch.equal(resample(loaded, **links)[0], resample(whole, **links)[0])
    with pytest.raises(pack.BayesDiffError, match="parts that were sampled in different ways"):
        saving(pack.core.trajectory.joined([one, one._replace(recipe=recipe)]))


def test_a_sampler_that_words_do_not_tell_must_be_linked_again(case, pack, place, ksampler,
                                                               resample, saving, loading):
    case = six_steps(case("sd3"))
    _, trajectory = ksampler(case, mode="free")
    own = comfy.samplers.KSAMPLER(lambda *args, **kwargs: None)
    loaded = loading(saving(trajectory._replace(recipe=trajectory.recipe._replace(sampler=own))))
    links = {"guider": guider_of(case), "step": 3}
    with pytest.raises(pack.BayesDiffError, match="no sampler is linked"):
        resample(loaded, **links)
    samples, _ = resample(loaded, **links, sampler=comfy.samplers.sampler_object("euler"))
    assert torch.equal(samples, resample(trajectory, step=3)[0])


def test_a_loaded_trajectory_needs_a_model_of_its_family(case, pack, place, ksampler, resample,
                                                         saving, loading, load_model):
    case = six_steps(case("sd3"))
    _, trajectory = ksampler(case, mode="free")
    loaded = loading(saving(trajectory))
    prompts = {"positive": case.positive, "negative": case.negative}
    for links, words in [
            ({}, "missing: model, positive, negative"),
            ({**prompts, "model": load_model("sd15")}, r"MMDITWrapper \(16.*UNetModel \(4 latent"),
            ({**prompts, "model": load_model("flux")}, "MMDIT.* Flux")]:
        with pytest.raises(pack.BayesDiffError, match=words):
            resample(loaded, **links)


@pytest.fixture
def sound(case, place, ksampler, saving):
    """A sound file, its tensors, and its header without the checksum, which would refuse all
    changes."""
    path = folder(place) / saving(ksampler(six_steps(case("sd3")), mode="accurate")[1], "sound")
    with safe_open(path, framework="pt") as file:
        words = {k: v for k, v in file.metadata().items() if k != "checksum"}
        return path, {name: file.get_tensor(name).clone() for name in file.keys()}, words


@pytest.fixture
def refused(pack, place, loading):
    def refuse(content, words):
        path = folder(place) / "bad.safetensors"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        with pytest.raises(pack.BayesDiffError, match=words):
            loading(path.name)
    return refuse


def test_truncated_and_foreign_files_are_refused(sound, refused, fits, pack, place):
    path, tensors, words = sound
    whole = path.read_bytes()
    for part in (0.0, 0.05, 0.5, 0.99):
        refused(whole[:int(len(whole) * part)], "truncated|empty")
    refused(whole + b"more", "cannot be read")
    refused(pickle.dumps({"mean": [1.0] * 50}), "pickle .* never opened")
    refused(save({"weight": torch.ones(3)}, {"format": "pt"}), "not a trajectory that Trajectory S")
    pack.llla_file.write(fits["full"], place / "posterior.safetensors")
    refused((place / "posterior.safetensors").read_bytes(), "format is 'bayesdiff-llla'")
    refused(save(tensors, {**words, "checksum": "0"}), "checksum is '0'")
    damaged = bytearray(whole)
    damaged[-5] ^= 1
    refused(bytes(damaged), "checksum is ")


@pytest.mark.parametrize("name, change, words", [
    ("mean", lambda t: t.half(), "mean is F16"),
    ("mean", lambda t: t[..., 1:].contiguous(), "mean is F32 of shape"),
    ("mean", lambda t: t * torch.nan, "not finite"),
    ("variance", lambda t: t - 1, "negative variance"),
    ("deviations", lambda t: t[:, :, :0].contiguous(), "deviations of shape"),
    ("deviations", lambda t: None, "deviations of shape"),
    ("result", lambda t: None, "holds the tensors"),
    ("extra", lambda t: torch.ones(2), "holds the tensors .*extra"),
    ("sigmas", lambda t: t.flip(0), "do not fall"),
    ("steps", lambda t: t + 1, "do not rise to the last"),
    ("seeds", lambda t: -t, "negative seed"),
    ("scale", lambda t: t.flatten(), "scale is F32"),
])
def test_damaged_tensors_are_refused_by_name(sound, refused, name, change, words):
    _, tensors, header = sound
    changed = {**tensors, name: change(tensors.get(name))}
    refused(save({k: v for k, v in changed.items() if v is not None}, header), words)


@pytest.mark.parametrize("change", [
    [], 7, {"family": 3}, {"family": ["a", "b", 3, 4]}, {"family": ["a", "b\n", 3, True]},
    {"cfg": "8"}, {"cfg": True}, {"cfg": float("nan")}, {"sampler": 3}, {"options": []},
    {"options": {"eta": float("inf")}}, {"options": {"eta": [1]}}, {"parts": []},
    {"parts": [{"images": 2, "seed": 1}]},
    {"parts": [{"images": 1, "seed": -1, "batch_index": []}]},
    {"parts": [{"images": 1, "seed": 2**64, "batch_index": []}]},
    {"parts": [{"images": 1, "seed": 1, "batch_index": [1, 2]}]}, {"more": 1}])
def test_recipes_that_cannot_be_are_refused(sound, refused, change):
    _, tensors, header = sound
    recipe = {**json.loads(header["recipe"]), **change} if isinstance(change, dict) else change
    refused(save(tensors, {**header, "recipe": json.dumps(recipe)}), "recipe is .* how it was")


def test_options_that_a_sampler_does_not_take_are_never_handed_to_it(sound, place, loading):
    path, tensors, header = sound
    for change in ({"options": {"model": 1}}, {"options": {"nothing": 1}}, {"sampler": "__init__"}):
        recipe = json.dumps({**json.loads(header["recipe"]), **change})
        path.write_bytes(save(tensors, {**header, "recipe": recipe}))
        assert loading(path.name).recipe.sampler is None


def test_what_is_too_large_is_neither_written_nor_read(pack, case, place, ksampler, saving, sound,
                                                       loading, monkeypatch):
    path, *_ = sound
    before = sorted(os.listdir(folder(place)))
    _, trajectory = ksampler(six_steps(case("sd3")), mode="free")
    monkeypatch.setattr(pack.trajectory_file, "MOST_BYTES", trajectory.nbytes)
    with pytest.raises(pack.BayesDiffError, match="GiB, a file may have"):
        saving(trajectory)
    assert sorted(os.listdir(folder(place))) == before
    large = folder(place) / "large.safetensors"
    with open(large, "wb") as file:
        file.truncate(2**40)  # takes no room
    with pytest.raises(pack.BayesDiffError, match="large.safetensors has 1024.0 GiB"):
        loading(large.name)


@pytest.mark.parametrize("name, change, words", [
    ("tail", lambda tail: tail * torch.nan, "values that are not finite"),
    ("sigmas", lambda sigmas: sigmas.flip(0), "noise levels that do not fall")])
def test_what_could_not_be_loaded_again_is_not_written(pack, case, place, ksampler, saving, name,
                                                       change, words):
    _, trajectory = ksampler(six_steps(case("sd3")), mode="free")
    trajectory = trajectory._replace(**{name: change(getattr(trajectory, name))})
    with pytest.raises(pack.BayesDiffError, match=f"{words}, so Trajectory Load would refuse"):
        saving(trajectory)
    assert not folder(place).exists()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(pack, case, place, ksampler, saving,
                                                             monkeypatch):
    _, trajectory = ksampler(six_steps(case("sd3")), mode="free")
    assert saving(trajectory, overwrite=True) == "mine.safetensors"
    old = (folder(place) / "mine.safetensors").read_bytes()

    def full_disk(tensors, name, metadata):
        Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pack.safe_file, "save_file", full_disk)
    with pytest.raises(pack.BayesDiffError, match="No space left"):
        saving(trajectory, overwrite=True)
    assert os.listdir(folder(place)) == ["mine.safetensors"]
    assert (folder(place) / "mine.safetensors").read_bytes() == old


def test_names_count_up_and_lead_nowhere_else(pack, case, place, ksampler, saving, loading):
    _, trajectory = ksampler(six_steps(case("sd3")), mode="free")
    assert [saving(trajectory), saving(trajectory)] == ["mine_00001_.safetensors",
                                                        "mine_00002_.safetensors"]
    node = pack.trajectory.BayesDiffTrajectoryLoad
    assert node.GET_SCHEMA().inputs[0].options == pack.trajectory_file.files()
    assert node.fingerprint_inputs("mine_00001_.safetensors")
    for prefix in ("a/b", "../up", "", ".hidden"):
        with pytest.raises(pack.BayesDiffError, match="filename_prefix is .* plain name"):
            saving(trajectory, prefix)
    (place / "secret.safetensors").write_bytes(b"secret")
    (folder(place) / "link.safetensors").symlink_to(place / "secret.safetensors")
    for file in ("../secret.safetensors", "gone.safetensors", "",
                 str(place / "secret.safetensors")):
        with pytest.raises(pack.BayesDiffError, match="is not in output/bayesdiff_trajectories"):
            loading(file)
    with pytest.raises(pack.BayesDiffError, match="leads out of its folder"):
        loading("link.safetensors")
