"""Trajectories, posteriors and scores on their way through nodes that take anything: batched,
collected by a loop, held by the host's cache; and names that come through a link."""

import asyncio
import json

import pytest
import torch
from comfy_api.latest import io
from comfy_execution import caching

LISTS = (list, tuple)


def taken_apart(value):
    """As nodes do that index or loop over anything."""
    return list(value) if isinstance(value, LISTS) else [value]


@pytest.fixture
def trajectories(case, ksampler):
    one = case("sd3")
    one.steps = 4
    made = []
    for seed in (3, 4, 5):
        one.latent = {"samples": one.random(1, 16, 9, 7, seed=seed)}
        made.append(ksampler(one, mode="free")[1])
    return made


@pytest.fixture
def heatmap(pack):
    def run(trajectory):
        return pack.heatmap.BayesDiffHeatmap.execute(
            "fast", "glow", 0.5, "per image", 99.0, -1, 2, False, 0, "percentile", 95.0, 0, 0.0,
            False, trajectory=trajectory).args[2]
    return run


def test_nothing_takes_them_apart(trajectories, fits):
    for value in (trajectories[0], fits["full"]):
        assert taken_apart(value) == [value] and not hasattr(value, "__iter__")
        assert value == value and value != value._replace()  # noqa: PLR0124 - no tensor answers
        with pytest.raises(AttributeError):
            value.structure = value.steps = None


def test_batching_anything_joins_them(trajectories, heatmap):
    """As a loop does that adds each to those before."""
    whole = None
    for one in trajectories:
        whole = one if whole is None else whole + one
    assert torch.equal(whole.mean, torch.cat([one.mean for one in trajectories], 1))
    assert torch.equal(heatmap(whole), torch.cat([heatmap(one) for one in trajectories]))
    with pytest.raises(TypeError):
        whole + 1


@pytest.mark.parametrize("collected", [lambda one, two, three: [one, two, three],
                                       lambda one, two, three: [[one], [two, [three]]]])
def test_a_list_that_a_loop_collected_is_one_batch(pack, trajectories, heatmap, resample,
                                                   collected):
    given = collected(*trajectories)
    expected = torch.cat([heatmap(one) for one in trajectories])
    assert torch.equal(heatmap(given), expected)
    samples, _ = resample(given, strength=0.0)
    assert torch.equal(samples, torch.cat([resample(one, strength=0.0)[0]
                                           for one in trajectories]))
    scores = json.loads(pack.scores.BayesDiffScore.execute(["doubt"], trajectory=[given]).args[1])
    assert scores["scores"] == [
        pack.core.scores.default(one).values.item() for one in trajectories]
    at_step = pack.trajectory.BayesDiffTrajectoryAtStep.execute(given, 2, 0.5).args[0]
    assert len(at_step["samples"]) == 3


def test_nested_scores_and_trajectories_reach_the_filter(pack, trajectories):
    widgets = {name: [value] for name, value in {
        "criterion": "keep n", "z": 1.0, "percent": 16.0, "keep": 1, "threshold": 0.0,
        "allow_empty": False, "groups": "", "reference": "",
        "reference_mode": "only compare"}.items()}
    node = pack.filter.BayesDiffFilter
    for scores in ([[3.0, 1.0], [2]], [torch.tensor([3.0, 1.0]), (2.0,)], [3, 1, 2]):
        report = json.loads(node.execute(**widgets, scores=scores).args[-1])
        assert report["kept"] == [1] and report["scores"] == [3.0, 1.0, 2.0]
    report = json.loads(node.execute(**widgets, trajectory=[trajectories[:2],
                                                            trajectories[2]]).args[-1])
    assert len(report["scores"]) == 3


@pytest.mark.parametrize("given, words", [
    ({"samples": torch.zeros(1)}, "trajectory is a dict"), (torch.zeros(3), "is a Tensor"),
    ("a word", "is a str"), ([1.5], "is a float"), ([[], [None]], "is a NoneType")])
def test_a_wrong_type_is_named(pack, heatmap, resample, given, words):
    for use in (heatmap, resample, lambda value: pack.scores.scores_of(None, [value], None)):
        with pytest.raises(pack.BayesDiffError, match=f"{words}.*`trajectory`"):
            use(given)


def test_a_wrong_posterior_and_wrong_scores_are_named(pack, case, trajectories, fits, place):
    one = case("sd3")
    with pytest.raises(pack.BayesDiffError, match="posterior is a Trajectory.*LLLA Fit"):
        pack.samplers.BayesDiffKSampler.execute(one.model, *one.options(), 1.0, trajectories[0],
                                                mode="light")
    with pytest.raises(pack.BayesDiffError, match="2 values of posterior"):
        pack.llla.BayesDiffLLLASave.execute([fits["full"]] * 2, "p", "output", False)
    pack.llla.BayesDiffLLLASave.execute([fits["full"]], "p", "output", False)
    with pytest.raises(pack.BayesDiffError, match="scores is a str"):
        pack.sockets.scores_in([0.5, ["1"]])


@pytest.mark.parametrize("inputs, words", [
    ({"latents": [3]}, "latents is a int.*link a LATENT"),
    ({"latents": [{"images": 1}]}, "latents is a dict"),
    ({"images": [[{"samples": torch.zeros(1)}]]}, "images is a dict.*link images"),
    ({"masks": [None]}, "masks is a NoneType")])
def test_what_a_loop_gives_the_filter_by_mistake_is_named(pack, inputs, words):
    widgets = {name: [value] for name, value in {
        "criterion": "keep n", "z": 1.0, "percent": 16.0, "keep": 1, "threshold": 0.0,
        "allow_empty": False, "groups": "", "reference": "",
        "reference_mode": "only compare"}.items()}
    with pytest.raises(pack.BayesDiffError, match=words):
        pack.filter.BayesDiffFilter.execute(**widgets, scores=[1.0], **inputs)


def test_a_variance_of_another_type_is_named(pack):
    with pytest.raises(pack.BayesDiffError, match="variance is a Tensor"):
        pack.scores.BayesDiffScore.execute(["sum"], variance=[[torch.zeros(1, 4, 8, 8)]])


def test_a_mode_or_rank_through_a_link_is_named(pack, case, fits):
    one = case("sd3")
    with pytest.raises(pack.BayesDiffError, match="mode is 'fast', one of auto, free"):
        pack.samplers.BayesDiffKSampler.execute(one.model, *one.options(), 1.0, mode="fast")
    with pytest.raises(pack.BayesDiffError, match="rank_by is 'sum', one of doubt"):
        pack.best_of_n.BayesDiffBestOfN.execute(
            one.model, *one.options(), 1.0, n=2, keep=1, drop_at=0.5, drop_schedule="once",
            rank_by="sum", uncertainty_seed=0, keep_steps=2)


def test_every_other_choice_through_a_link_is_named(pack):
    """Before anything is computed: a word that a list does not have must not mean another."""
    told_otherwise = {"sampler_name", "scheduler",  # lists of the host
                      "file", "name", "score"}  # of what there is: a file, a class, an input
    tried = set()
    for node in asyncio.run(asyncio.run(pack.root.comfy_entrypoint()).get_node_list()):
        schema = node.GET_SCHEMA()
        combos = {port.id: port for port in schema.inputs if isinstance(port, io.Combo.Input)}
        right = {port.id: port.options[0] if port.id in combos and port.options else None
                 for port in schema.inputs}
        for name in combos.keys() - told_otherwise:
            given = {**right, name: "nonsense"}
            if schema.is_input_list:
                given = {port: [value] for port, value in given.items()}
            with pytest.raises(pack.BayesDiffError, match=f"^{name} is 'nonsense', one of"):
                node.execute(**given)
            tried.add(name)
    assert tried >= {"skip_schedule", "check", "draw", "color_map", "when_empty", "effort"}


@pytest.mark.parametrize("wrong", [{"sampler": "res_9000"}, {"scheduler": "AYS SD1"}])
def test_a_name_that_ksampler_does_not_have_is_refused(pack, case, wrong):
    """Through a link anything can come, and the host's own code would sample the first of its
    list."""
    one = case("sd3")
    model, seed, steps, cfg, *_, positive, negative, latent = one.model, *one.options()
    names = {"sampler": "euler", "scheduler": "normal", **wrong}
    inputs = (model, seed, steps, cfg, names["sampler"], names["scheduler"], positive, negative,
              latent, 1.0)
    kind, name = next(iter(wrong.items()))
    for run in (lambda: pack.samplers.BayesDiffKSampler.execute(*inputs, mode="free"),
                lambda: pack.repair.BayesDiffRepair.execute(*inputs, torch.ones(1, 8, 8), 1),
                lambda: pack.best_of_n.BayesDiffBestOfN.execute(
                    *inputs, n=2, keep=1, drop_at=0.5, drop_schedule="once", rank_by="doubt",
                    uncertainty_seed=0, keep_steps=2)):
        with pytest.raises(pack.BayesDiffError, match=f"{kind} is '{name}', which KSampler does"):
            run()


@pytest.mark.skipif(not hasattr(caching, "is_model_patcher_output"),
                    reason="this host's cache does not look at models")
def test_under_memory_pressure_the_host_lets_go_of_an_old_trajectory_first(trajectories,
                                                                           monkeypatch):
    """Its cache measures only tensors, and tuples of them. A trajectory holds its model, so that to
    let go of anything else first would free little."""
    class Keys:
        def get_data_key(self, node):
            return node

    class Entry:
        def __init__(self, *outputs):
            self.outputs = [list(outputs)]

    cache = caching.RAMPressureCache(lambda *_: None)
    cache.cache_key_set, cache.generation = Keys(), 2
    latent = {"samples": torch.zeros(4)}
    entries = {"picture": Entry(torch.zeros(1, 8, 8, 3)), "trajectory": Entry(trajectories[0]),
               "latent": Entry(latent)}
    for at, (key, entry) in enumerate(entries.items()):
        cache.cache[key], cache.used_generation[key], cache.timestamps[key] = entry, 1, at
    free = iter([0, 0, 10**9])
    monkeypatch.setattr(caching.psutil, "virtual_memory",
                        lambda: type("Memory", (), {"available": next(free)}))
    cache.ram_release(10**6)
    assert set(cache.cache) == {"picture", "latent"}
