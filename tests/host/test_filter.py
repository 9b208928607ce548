"""Score, Filter and Self-check nodes: images, latents and masks in step, reference files, words."""

import json

import folder_paths
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from comfy_execution.graph_utils import ExecutionBlocker
from PIL import Image

SETTINGS = {"criterion": "mean + z sigma", "z": 1.0, "percent": 16.0, "keep": 2, "threshold": 3.5,
            "allow_empty": False, "groups": "", "reference": "", "reference_mode": "only compare",
            "picked": "2,3"}
SCORES = [3.0, 1.0, 9.0, 2.0, 4.0]
KEPT = {"mean + z sigma": [0, 1, 3, 4], "drop top percent": [0, 1, 3, 4], "keep n": [1, 3],
        "threshold": [0, 1, 3], "reference": [0, 1, 3], "picked": [1, 2]}


def random(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_paths, "temp_directory", str(tmp_path / "temp"))
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path / "output"))


class Parted:
    """The outputs of the filter by name; None where what follows is stopped."""

    def __init__(self, node, output):
        self.ui = output.ui
        for port, value in zip(node.GET_SCHEMA().outputs, output.args, strict=True):
            setattr(self, port.display_name, None if isinstance(value, ExecutionBlocker) else value)


@pytest.fixture
def parted(pack):
    """Runs the filter as the host does: every input is a list."""
    node = pack.filter.BayesDiffFilter

    @torch.inference_mode()
    def run(scores=None, **inputs):
        inputs = {name: value if isinstance(value, list) else [value]
                  for name, value in {**SETTINGS, **inputs}.items()}
        if scores is not None:
            inputs["scores"] = scores
        return Parted(node, node.execute(**inputs))
    return run


@pytest.fixture
def reference(tmp_path):
    """A file with the scores 0.0, 0.1 ... 4.0, of which 84 % are at most 3.36."""
    folder = tmp_path / "output" / "bayesdiff_reference"
    folder.mkdir(parents=True)
    path = folder / "mine.json"
    path.write_text(json.dumps({"format": "bayesdiff-reference", "version": 1,
                                "scores": [place / 10 for place in range(41)]}))
    return path


@pytest.fixture
def scored(pack):
    @torch.inference_mode()
    def run(score="sum", hidden=None, **inputs):
        inputs = {name: value if isinstance(value, list) else [value]
                  for name, value in inputs.items()}
        node = pack.scores.BayesDiffScore
        prepared = node.PREPARE_CLASS_CLONE({"hidden_inputs": hidden or {}})
        return node.execute.__func__(prepared, score=[score], **inputs)
    return run


@pytest.fixture
def trajectory(pack):
    def made(shape=(2, 4, 6, 5), seed=0):
        shape = torch.Size(shape)
        recorder = pack.core.trajectory.TrajectoryRecorder(
            torch.tensor([1.0, 0.0]), shape, 0, list(range(shape[0])))
        for step in range(2):
            parts = [random(*shape, seed=seed + 3 * step + part) for part in range(3)]
            recorder.add(step, *parts, torch.zeros(0, *shape))
        ones = torch.ones(1, shape[1], *[1] * (len(shape) - 2))
        made = recorder.trajectory(2 * ones, 0.5 * ones)
        return made._replace(late=random(*shape, seed=seed + 7))
    return made


@torch.inference_mode()
def stock(case):
    return case.stock()


@pytest.mark.parametrize("criterion", KEPT)
def test_images_latents_and_masks_stay_in_step(parted, reference, criterion):
    images, masks, samples = random(5, 8, 8, 3), random(5, 8, 8), random(5, 4, 2, 2)
    latent = {"samples": samples, "noise_mask": random(5, 1, 8, 8, seed=1), "mine": "kept"}
    out = parted(SCORES, criterion=criterion, reference="mine", images=images, masks=masks,
                 latents=latent)
    kept = KEPT[criterion]
    for side, places in [("kept", kept), ("rejected", [i for i in range(5) if i not in kept])]:
        found = {name: getattr(out, f"{side}_{name}") for name in ["images", "latents", "masks"]}
        assert [len(parts) for parts in found.values()] == [1, 1, 1], "a batch stays a batch"
        assert torch.equal(found["images"][0], images[places])
        assert torch.equal(found["masks"][0], masks[places])
        latents, = found["latents"]
        assert torch.equal(latents["samples"], samples[places])
        assert torch.equal(latents["noise_mask"], latent["noise_mask"][places])
        assert latents["batch_index"] == places and latents["mine"] == "kept"
        assert getattr(out, f"{side}_indices") == ",".join(map(str, places))
    assert out.sorted_scores == sorted(SCORES)
    said = json.loads(out.report)
    assert said["kept"] == kept and said["scores"] == SCORES


def test_list_of_mixed_sizes_stays_a_list(parted):
    images = [random(2, 8, 8, 3), random(1, 16, 8, 3), random(2, 4, 4, 3)]
    latents = [{"samples": random(1, 4, size, 2)} for size in range(1, 6)]
    out = parted(SCORES, criterion="keep n", keep=3, images=images, latents=latents)
    assert [tuple(part.shape[:2]) for part in out.kept_images] == [(2, 8), (1, 4)]
    assert [tuple(part.shape[:2]) for part in out.rejected_images] == [(1, 16), (1, 4)]
    assert torch.equal(out.kept_images[1], images[2][:1])
    assert [latent["samples"].shape[2] for latent in out.kept_latents] == [1, 2, 4]
    assert all(latent["batch_index"] == [0] for latent in out.kept_latents)


def test_frames_of_a_clip_stay_together(parted, trajectory):
    frames, latents = random(18, 8, 8, 3), {"samples": random(2, 16, 3, 2, 2),
                                            "noise_mask": random(3, 1, 2, 2)}
    out = parted([2.0, 1.0], criterion="keep n", keep=1, images=frames, latents=latents,
                 masks=frames[..., 0])
    assert torch.equal(out.kept_images[0], frames[9:]) and out.kept_indices == "1"
    assert torch.equal(out.rejected_masks[0], frames[:9, ..., 0])
    assert out.kept_latents[0]["samples"].shape == (1, 16, 3, 2, 2)
    assert torch.equal(out.kept_latents[0]["noise_mask"], latents["noise_mask"]), "frames for all"
    as_list = parted([2.0, 1.0], criterion="keep n", keep=1, images=[frames[:9], frames[9:]])
    assert torch.equal(as_list.kept_images[0], frames[9:])
    by_trajectory = parted(criterion="keep n", keep=1, images=frames,
                           trajectory=trajectory((2, 16, 3, 2, 2)))
    assert by_trajectory.kept_images[0].shape[0] == 9


def test_a_trajectory_stands_for_its_doubt(parted, trajectory, pack):
    parts = [trajectory(), trajectory((1, 4, 3, 3), seed=9)]
    out = parted(trajectory=parts)
    expected = [score for part in parts for score in pack.core.doubt.doubt(
        {"late 20": part.late, "late 40": part.tail[-1]}, part.mean[-1]).values.tolist()]
    assert json.loads(out.report)["scores"] == pytest.approx(expected)


def test_prompts_are_kept_apart_by_groups(parted):
    scores = [1.0, 2.0, 10.0, 20.0]
    for groups in ["0,0,1,1", "a,b", ["a", "b"]]:
        assert parted(scores, criterion="keep n", keep=1, groups=groups).kept_indices == "0,2"
    assert parted(scores, criterion="keep n", keep=1, groups="0,1,0,1").kept_indices == "0,1"


def test_empty_sides_stop_what_follows_and_nothing_else(parted):
    images = random(2, 8, 8, 3)
    out = parted([1.0, 1.0], images=images)
    assert out.rejected_images is None and out.kept_latents is None and out.rejected_indices == ""
    assert torch.equal(out.kept_images[0], images)
    out = parted([5.0, 6.0], images=images, criterion="threshold")
    assert out.kept_indices == "0" and "the lowest is kept" in out.report
    out = parted([5.0, 6.0], images=images, criterion="threshold", allow_empty=True)
    assert out.kept_images is None and out.kept_indices == ""
    assert torch.equal(out.rejected_images[0], images) and out.histogram.shape == (1, 240, 480, 3)


def test_inputs_are_left_as_they_were(parted):
    latent = {"samples": random(5, 4, 2, 2), "noise_mask": random(5, 1, 8, 8)}
    before = {name: value.clone() for name, value in latent.items()}
    parted(SCORES, latents=latent)
    assert latent.keys() == before.keys()
    assert all(torch.equal(latent[name], before[name]) for name in latent)


def test_a_survivor_can_be_sampled_again_by_its_place(case, parted):
    sampling = case("sd3")
    sampling.latent = {"samples": torch.zeros(4, 16, 9, 7)}
    first = stock(sampling)
    out = parted([4.0, 1.0, 3.0, 2.0], criterion="keep n", latents=first)
    kept, = out.kept_latents
    assert kept["batch_index"] == [1, 3]
    sampling.latent = {**kept, "samples": torch.zeros_like(kept["samples"])}
    again = stock(sampling)
    torch.testing.assert_close(again["samples"], first["samples"][[1, 3]], rtol=1e-3, atol=1e-4)
    second = parted([2.0, 1.0], criterion="keep n", keep=1, latents=again).kept_latents[0]
    assert second["batch_index"] == [3], "the place of the first batch is lost"


def test_a_filtered_noise_mask_is_what_the_host_would_apply(case, parted):
    """Two masks for four images: the host repeats them."""
    sampling = case("sd3")
    masks = torch.zeros(2, 1, 9, 7)
    masks[1, ..., 4:] = 1
    sampling.latent = {"samples": random(4, 16, 9, 7), "noise_mask": masks}
    whole = stock(sampling)["samples"]
    sampling.latent, = parted([1.0, 9.0, 9.0, 2.0], criterion="keep n",
                              latents=sampling.latent).kept_latents
    part = stock(sampling)["samples"]
    torch.testing.assert_close(part, whole[[0, 3]], rtol=1e-3, atol=1e-4)


def test_reference_is_collected_and_then_judges_one_image(parted, tmp_path):
    path = tmp_path / "output" / "bayesdiff_reference" / "model A.json"
    for start in (0, 6):
        out = parted([float(start + i) for i in range(6)], criterion="reference", keep=1,
                     reference="model A", reference_mode="add")
        assert out.rejected_indices == "" and "of the 10 scores" in out.report
    stored = json.loads(path.read_text())
    assert stored["scores"] == [float(i) for i in range(12)]
    for score, kept in [(5.0, "0"), (50.0, "")]:
        out = parted([score], criterion="reference", reference="model A", allow_empty=True)
        assert out.kept_indices == kept
    assert "may be from another model" in out.report
    assert json.loads(path.read_text()) == stored, "only compare writes nothing"
    assert [file.name for file in path.parent.iterdir()] == ["model A.json"]


def test_the_same_image_is_added_once(parted, reference, pack):
    before = pack.names.state(reference)
    parted([0.5, 3.5], reference="mine", reference_mode="add")
    assert pack.names.state(reference) == before
    parted([0.5, 3.55], reference="mine", reference_mode="add")
    assert len(pack.reference_file.read(reference)) == 42


def test_a_changed_reference_is_noticed(pack, reference):
    node = pack.filter.BayesDiffFilter
    def seen():
        return node.fingerprint_inputs(criterion=["reference"], reference=["mine"], z=[1.0])
    before = seen()
    assert before is not None and seen() == before
    pack.reference_file.add(reference, [77.0])
    assert seen() != before
    assert node.fingerprint_inputs(criterion=["keep n"], reference=["mine"]) is None
    assert node.fingerprint_inputs(criterion=["reference"], reference=["../x"]) is None


@pytest.mark.parametrize("name", ["", "../mine", "a/b", "a\\b", ".hidden", "x" * 101, "a\nb"])
def test_names_that_leave_the_folder_are_refused(parted, pack, tmp_path, name):
    for inputs in [{"criterion": "reference"}, {"reference_mode": "add"}]:
        with pytest.raises(pack.BayesDiffError, match="a name of 1 to 100 characters"):
            parted(SCORES, reference=name, **inputs)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("text", [
    "", "{", "[]", "\x00", '{"format": "other"}', '{"format": "bayesdiff-reference"}',
    '{"format": "bayesdiff-reference", "version": 2, "scores": []}',
    '{"format": "bayesdiff-reference", "version": 1, "scores": [1, NaN]}',
    '{"format": "bayesdiff-reference", "version": 1, "scores": ["1"]}', "[" * 100000])
def test_a_broken_reference_is_told_and_left_alone(parted, pack, reference, text):
    reference.write_text(text)
    for inputs in [{"criterion": "reference"}, {"reference_mode": "add"}]:
        with pytest.raises(pack.BayesDiffError, match="mine.json cannot be used"):
            parted(SCORES, reference="mine", **inputs)
    assert reference.read_text() == text


@pytest.mark.parametrize("inputs, words", [
    ({}, "neither scores nor a trajectory"),
    ({"scores": []}, "no scores"),
    ({"scores": [1.0, float("nan")]}, "score 2 is nan"),
    ({"scores": [1.0, 2.0], "images": torch.zeros(3, 4, 4, 3)}, "holds 3 .* are 2 scores"),
    ({"scores": [1.0, 2.0], "images": torch.zeros(4, 4, 4, 3)}, "holds 4 .* link the latents too"),
    ({"scores": [1.0, 2.0], "images": torch.zeros(0, 4, 4, 3)}, "holds 0 "),
    ({"scores": [1.0, 2.0], "masks": torch.zeros(4, 4)}, "masks input holds 1 "),
    ({"scores": [1.0], "latents": {"samples": torch.zeros(2, 4, 4, 4)}}, "holds 2 latents"),
    ({"scores": [1.0, 2.0], "groups": "1,2,3"}, "3 labels for 2 images"),
    ({"scores": [1.0], "criterion": "reference", "reference": "none"}, "holds 0 scores, at least"),
])
def test_bad_input_is_refused_in_words(parted, pack, inputs, words):
    with pytest.raises(pack.BayesDiffError, match=words):
        parted(**inputs)


@pytest.mark.parametrize("scores, groups", [
    ([0.0], ""), ([-2.5, -2.5], ""), ([1e-12, 5e9], ""), ([1.0, 2.0, 3.0, 4.0], "a,b,c,d"),
    ([float(i % 7) for i in range(300)], "")])
def test_histogram_of_any_scores_is_a_picture(parted, scores, groups):
    for threshold in (0.0, 1e12):
        out = parted(scores, groups=groups, criterion="threshold", threshold=threshold)
        assert out.histogram.shape == (1, 240, 480, 3) and out.histogram.std() > 0.01
        assert out.ui["bayesdiff"][0]["kept"] == [int(i) for i in out.kept_indices.split(",")]
        assert out.ui["text"][0].startswith(f"kept {len(out.ui['bayesdiff'][0]['kept'])} of")


def test_picked_images_are_kept_whatever_their_scores(parted):
    out = parted([3.0, 1.0, 2.0, 4.0], criterion="picked", picked="4,1")
    assert out.kept_indices == "0,3" and out.rejected_indices == "1,2"
    assert parted([3.0, 1.0], criterion="picked", picked="").kept_indices == "1"  # never empty
    assert parted([3.0, 1.0], criterion="keep n", keep=1, picked="1").kept_indices == "1"


def test_browser_gets_a_small_picture_of_each_image(parted, tmp_path):
    pictures = random(3, 512, 256, 3)
    out = parted([1.0, 2.0, 3.0], images=[pictures[:1], pictures[1:]])
    shown = out.ui["bayesdiff"][0]["thumbnails"]
    small = [Image.open(tmp_path / "temp" / file["subfolder"] / file["filename"]) for file in shown]
    assert [picture.size for picture in small] == [(128, 256)] * 3
    for picture, whole in zip(small, pictures):
        wanted = F.interpolate(whole.movedim(-1, 0)[None], (256, 128), mode="area")[0]
        got = torch.from_numpy(np.array(picture)).movedim(-1, 0) / 255
        assert (got - wanted).abs().max() < 0.51 / 255


def test_score_node_gives_the_chosen_score_and_all_others(scored, pack, trajectory):
    traced, mask, core = trajectory(), random(1, 48, 40), pack.core.scores
    for name in core.SCORES:
        scores, report, images = scored(name, trajectory=traced, mask=mask).args
        assert scores == core.of_trajectory(traced, mask)[name].tolist()
        said = json.loads(report)
        assert said["score"] == name
        assert list(said["all"]) == [*core.SCORES, *core.default(traced).parts]
        assert isinstance(images, ExecutionBlocker)
    variance = {"samples": traced.latent_variance()}
    assert scored("sum", variance=variance).args[0] == scored("sum", trajectory=traced).args[0]
    assert scored("trajectory variance", trajectory=traced).args[0] == \
        pytest.approx(traced.latent_tail().double().mean((1, 2, 3)).tolist())


def test_score_node_takes_lists_of_mixed_sizes_and_clips(scored):
    parts = [{"samples": random(2, 4, 6, 5)}, {"samples": random(1, 4, 9, 3)},
             {"samples": random(2, 16, 3, 4, 4)}]
    scores = scored("mean", variance=parts).args[0]
    assert scores == pytest.approx([image.double().mean().item() for part in parts
                                    for image in part["samples"]])
    masks = [random(2, 8, 8), random(1, 8, 8), random(1, 8, 8)]
    assert len(scored("inside mask", variance=parts, mask=masks).args[0]) == 5


def test_scores_go_where_saved_pictures_take_their_metadata_from(scored, pack, trajectory):
    from comfy_api.latest import io
    images, info = random(2, 8, 8, 3), {"workflow": {"id": 1}}
    hidden = {io.Hidden.extra_pnginfo: info, io.Hidden.unique_id: "17"}
    output = scored("mean", hidden, trajectory=trajectory(), images=images)
    assert output.args[2][0] is images
    assert info["workflow"] == {"id": 1}
    assert info["bayesdiff"]["17"]["scores"] == output.args[0]
    assert "will not carry" in scored("mean", trajectory=trajectory()).ui["text"][0]


@pytest.mark.parametrize("inputs, words", [
    ({}, "neither a variance nor a trajectory"),
    ({"variance": {"samples": torch.zeros(0, 4, 4, 4)}}, "shape .0, 4, 4, 4., which holds no"),
    ({"variance": []}, "the list is empty"),
    ({"variance": {"samples": torch.full((1, 4, 4, 4), torch.nan)}}, "NaN"),
    ({"variance": {"samples": torch.ones(1, 4, 4, 4)}, "score": "inside mask"}, "needs a mask"),
    ({"variance": {"samples": torch.ones(1, 4, 4, 4)}, "score": "trajectory variance"},
     "needs a trajectory, and none is linked: link it, or choose one of sum, mean, local contrast,"
     " worst patch.$"),
    ({"variance": {"samples": torch.ones(1, 4, 4, 4)}, "score": "luck"}, "'luck', one of doubt,"),
    ({"variance": {"samples": torch.ones(2, 4, 4, 4)}, "mask": torch.zeros(1, 8, 8)}, "empty"),
    ({"variance": {"samples": torch.ones(2, 4, 4, 4)}, "mask": [torch.ones(1, 8, 8)] * 2},
     "2 masks come as a list, and 1 latents"),
])
def test_score_node_refuses_in_words(scored, pack, inputs, words):
    with pytest.raises(pack.BayesDiffError, match=words):
        scored(**inputs)


def test_self_check_tells_in_words(pack):
    node, scores = pack.selfcheck.BayesDiffSelfCheck, [float(i) for i in range(12)]
    output = node.execute(["1,2, 3,4"], ["9,10,11,12"], scores)
    report, auroc = output.args
    assert auroc == 1.0 and json.loads(report)["auroc"] == 1.0
    text, = output.ui["text"]
    assert text.startswith("The score is significantly better than chance with 4 liked and 4")
    assert "interval 0.5" in text and "p = 0.029" in text
    for wrong, words in [((["2"], ["1"], []), "no scores"), ((["13"], ["1"], scores), "image '13'"),
                         ((["1"], ["1,2"], scores), "both liked and disliked")]:
        with pytest.raises(pack.BayesDiffError, match=words):
            node.execute(*wrong)


@pytest.fixture
def taught(pack, trajectory):
    """Runs the self-check as the host does, on a run of 12 images of which those with the highest
    worst patch are disliked."""
    @torch.inference_mode()
    def teach(seed=0, each=4, teach="add", name="mine", **inputs):
        run = trajectory((12, 4, 6, 5), seed)
        order = pack.core.scores.of_trajectory(run)["worst patch"].argsort().tolist()
        sides = [pack.core.filtering.numbers_of(side) for side in (order[:each], order[-each:])]
        inputs = {"liked": [sides[0]], "disliked": [sides[1]], "trajectory": [run], "name": [name],
                  "teach": [teach], **inputs}
        output = pack.selfcheck.BayesDiffSelfCheck.execute(**inputs)
        return json.loads(output.args[0]), output.ui["text"][0]
    return teach


def test_what_is_taught_over_runs_becomes_a_score_and_a_filter(taught, scored, parted, trajectory,
                                                               pack, tmp_path):
    nodes = pack.scores.BayesDiffScore, pack.filter.BayesDiffFilter
    def offered(node):
        inputs = node.INPUT_TYPES()
        return (inputs["required"] | inputs["optional"])["score"][1]["options"]
    assert not any("taught: mine" in offered(node) for node in nodes)
    report, text = taught(0)
    assert "4 liked and 4 disliked images: at least 8 of each" in text
    with pytest.raises(pack.BayesDiffError, match="'taught: mine': .* better than chance yet"):
        scored("taught: mine", trajectory=trajectory())
    for seed in (100, 200, 300, 400):
        report, text = taught(seed)
    assert report["taught"]["liked"] == report["taught"]["disliked"] == 20
    assert report["taught"]["usable"] and "5 runs" in text and "significantly better" in text
    assert "what counts most: worst patch +" in text
    assert all("taught: mine" in offered(node) for node in nodes)
    assert [file.name for file in (tmp_path / "output" / "bayesdiff_taught").iterdir()] == \
        ["mine.json"]

    new, core = trajectory((12, 4, 6, 5), 900), pack.core
    expected, _ = core.taught.score(
        core.taught.learn(pack.taught_file.read(pack.taught_file.path_of("mine"))),
        {name: values.tolist() for name, values in core.scores.of_trajectory(new).items()})
    halves = [trajectory((5, 4, 6, 5), 900), trajectory((7, 4, 6, 5), 901)]
    assert scored("taught: mine", trajectory=new).args[0] == pytest.approx(expected)
    assert len(scored("taught: mine", trajectory=halves).args[0]) == 12
    patches = core.scores.of_trajectory(new)["worst patch"]
    out = parted(trajectory=new, criterion="drop top percent", percent=50.0, score="taught: mine")
    said = json.loads(out.report)
    assert said["scores"] == pytest.approx(expected)
    assert patches[said["kept"]].mean() < patches[said["rejected"]].mean()
    linked = parted(SCORES, trajectory=new, score="taught: mine")
    assert json.loads(linked.report)["scores"] == SCORES, "scores that are linked come first"
    single = scored("taught: mine", trajectory=trajectory((1, 4, 6, 5), 5))
    assert 0 <= single.args[0][0] <= 1
    assert "compared with the runs you taught" in json.loads(single.args[1])["notes"][0]
    assert "compared with the runs" in single.ui["text"][0]


def test_the_filter_takes_any_score_of_a_trajectory(parted, trajectory, pack):
    run = trajectory()
    for name in ("sum", "trajectory variance", "relative change"):
        out = parted(trajectory=run, score=name)
        assert json.loads(out.report)["scores"] == pytest.approx(
            pack.core.scores.of_trajectory(run)[name].tolist())


def test_teaching_the_same_images_again_changes_nothing_and_only_check_writes_nothing(
        taught, pack):
    path = pack.taught_file.path_of("mine")
    _, text = taught(teach="only check")
    assert not path.exists() and "0 liked and 0 disliked" in text
    first, _ = taught()
    before, written = path.read_bytes(), pack.names.state(path)
    again, _ = taught()
    assert again == first and pack.names.state(path) == written
    checked, _ = taught(each=3, teach="only check")
    assert checked["taught"] == first["taught"] and path.read_bytes() == before
    assert "taught" not in taught(name="", teach="only check")[0]


def test_a_run_of_one_kind_can_be_taught_but_not_checked(taught, pack):
    report, text = taught(disliked=[""])
    assert report["taught"]["liked"] == 4 and report["taught"]["disliked"] == 0
    assert text.startswith("The score was not checked")
    with pytest.raises(pack.BayesDiffError, match="at least 1 of each"):
        taught(disliked=[""], teach="only check")


def test_more_teaching_is_noticed(taught, pack):
    def seen():
        return [pack.scores.BayesDiffScore.fingerprint_inputs(score=["taught: mine"]),
                pack.filter.BayesDiffFilter.fingerprint_inputs(score=["taught: mine"]),
                pack.selfcheck.BayesDiffSelfCheck.fingerprint_inputs(name=["mine"], liked=["1"])]
    assert seen() == [None] * 3
    taught()
    before = seen()
    assert None not in before and seen() == before
    taught(100)
    assert all(now != then for now, then in zip(seen(), before))
    assert pack.scores.BayesDiffScore.fingerprint_inputs(score=["taught: ../x"]) is None
    assert pack.scores.BayesDiffScore.fingerprint_inputs(score=["sum"]) is None


@pytest.mark.parametrize("inputs, words", [
    ({"trajectory": None}, "no trajectory is linked"),
    ({"trajectory": None, "teach": ["only check"]}, "neither scores nor a trajectory"),
    ({"name": [" "]}, "name is empty"),
    ({"name": ["../mine"]}, "a name of 1 to 100 characters"),
    ({"name": ["a/b"]}, "a name of 1 to 100 characters"),
    ({"liked": [""], "disliked": [""]}, "both empty"),
    ({"liked": ["1"], "disliked": ["1"]}, "both liked and disliked"),
    ({"liked": ["13"]}, "image '13', and there are 12"),
    ({"scores": [1.0, 2.0]}, "2 scores, and the trajectory holds 12"),
    ({"scores": [float("nan")] * 12}, "score 1 is nan"),
])
def test_what_cannot_be_taught_is_refused_in_words(pack, trajectory, tmp_path, inputs, words):
    given = {"liked": ["2"], "disliked": ["1"], "trajectory": [trajectory((12, 4, 6, 5))],
             "name": ["mine"], "teach": ["add"], **inputs}
    with pytest.raises(pack.BayesDiffError, match=words):
        pack.selfcheck.BayesDiffSelfCheck.execute(**given)
    assert not list(tmp_path.rglob("*.json"))


def test_few_images_are_not_taught(taught, trajectory, pack):
    with pytest.raises(pack.BayesDiffError, match="3 images .* at least 4"):
        taught(trajectory=[trajectory((3, 4, 6, 5))], liked=["2"], disliked=["1"])


@pytest.mark.parametrize("name, words", [
    ("taught: other", "has no other.json: refresh"), ("taught: ../mine", "1 to 100 characters"),
    ("taught: ", "1 to 100 characters")])
def test_unknown_taught_scores_are_refused_in_words(taught, scored, parted, trajectory, pack, name,
                                                   words):
    taught()
    for run in (scored, parted):
        with pytest.raises(pack.BayesDiffError, match=words):
            run(score=name, trajectory=trajectory())
    with pytest.raises(pack.BayesDiffError, match="needs a trajectory"):
        scored("taught: mine", variance={"samples": torch.ones(2, 4, 4, 4)})


def spoilt(key, value):
    def change(words):
        run = words["runs"][0]
        place = run["examples"][0] if key in run["examples"][0] else run if key in run else words
        place[key] = value
    return change


@pytest.mark.parametrize("change", [
    spoilt("format", "bayesdiff-reference"), spoilt("version", 2), spoilt("runs", {}),
    spoilt("runs", [1]), spoilt("images", 0), spoilt("images", 1.5), spoilt("mean", {}),
    spoilt("mean", {"sum": float("nan")}), spoilt("sd", {"sum": -1.0}), spoilt("examples", 3),
    spoilt("examples", [{}]), spoilt("disliked", 1), spoilt("mark", 1), spoilt("logs", [1.0]),
    spoilt("logs", {"sum": 1e300}), spoilt("logs", {"\x00": 1.0})])
def test_a_broken_file_of_what_was_taught_is_told_and_left_alone(taught, scored, trajectory, pack,
                                                                change):
    taught()
    path = pack.taught_file.path_of("mine")
    words = json.loads(path.read_text())
    del words["checksum"]
    change(words)
    path.write_text(json.dumps(words))
    before = path.read_bytes()
    for run in (taught, lambda: scored("taught: mine", trajectory=trajectory())):
        with pytest.raises(pack.BayesDiffError, match="bayesdiff_taught/mine.json cannot be used"):
            run()
    assert path.read_bytes() == before


def test_a_changed_or_huge_file_of_what_was_taught_is_told(taught, pack, monkeypatch):
    taught()
    path = pack.taught_file.path_of("mine")
    whole = path.read_text()
    path.write_text(whole.replace('"disliked": true', '"disliked": false', 1))
    with pytest.raises(pack.BayesDiffError, match="do not fit its checksum"):
        taught()
    path.write_text(whole)
    monkeypatch.setattr(pack.json_file, "MOST_BYTES", 100)
    with pytest.raises(pack.BayesDiffError, match="larger than"):
        taught()


EMPTY = {"criterion": "threshold", "threshold": -1.0, "allow_empty": True}


@pytest.mark.parametrize("when_empty, kept, rejected", [
    ("stop what follows", None, [0, 1, 2, 3, 4]), ("the best one", [1], [0, 2, 3, 4]),
    ("empty list", [], [0, 1, 2, 3, 4]), ("none", [None], [0, 1, 2, 3, 4])])
def test_what_goes_on_where_nothing_is_kept_is_a_choice(parted, when_empty, kept, rejected):
    images = random(5, 4, 4, 3)
    out = parted(SCORES, images=images, when_empty=when_empty, **EMPTY)
    if kept and kept != [None]:
        assert torch.equal(out.kept_images[0], images[kept])
        assert "so the lowest score is kept" in out.report
    else:
        assert out.kept_images == kept
    assert torch.equal(out.rejected_images[0], images[rejected])
    assert out.kept_indices == ("1" if when_empty == "the best one" else "")
    assert out.kept_masks is None  # not linked
    full = parted(SCORES, images=images, when_empty=when_empty, criterion="keep n", keep=5)
    assert full.rejected_images == (kept if when_empty != "the best one" else None)


def test_indices_count_from_0_or_from_1(parted):
    for first in (0, 1):
        out = parted(SCORES, criterion="keep n", first_index=first)
        assert out.kept_indices == ",".join(str(index + first) for index in KEPT["keep n"])
        assert out.rejected_indices == ",".join(str(index + first) for index in (0, 2, 4))
        assert json.loads(out.report)["kept"] == KEPT["keep n"]  # which counts from 0 as ever


def test_lists_that_a_loop_collected_are_filtered_one_by_one(parted):
    images, latents = random(5, 4, 4, 3), random(5, 4, 8, 8)
    nested = [[images[:2], [images[2:3]]], images[3:]]
    out = parted([[3.0, 1.0], [9.0, [2.0, 4.0]]], criterion="keep n", images=nested,
                 latents=[[{"samples": latents[:3]}], [{"samples": latents[3:]}]])
    assert torch.equal(torch.cat(out.kept_images), images[KEPT["keep n"]])
    assert torch.equal(torch.cat([one["samples"] for one in out.kept_latents]),
                       latents[KEPT["keep n"]])


def test_scores_that_are_all_0_are_told(parted):
    assert "all scores are 0" in parted([0.0, 0.0], criterion="keep n").report
    assert "all scores are 0" not in parted([0.0, 1.0], criterion="keep n").report
