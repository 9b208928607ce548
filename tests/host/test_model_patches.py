"""Stock nodes that change a model: the stock picture with each of them, and a result or a refusal
in words. docs/model_patches.md is the same as a table."""

import comfy.sd
import pytest
import torch
from comfy_api.torch_helpers import set_torch_compile_wrapper
from comfy_extras.nodes_context_windows import WanContextWindowsManualNode
from comfy_extras.nodes_easycache import EasyCacheNode, LazyCacheNode
from comfy_extras.nodes_model_merging import ModelMergeSimple

CACHES = {"EasyCache": EasyCacheNode, "LazyCache": LazyCacheNode}


def merged(case):
    return ModelMergeSimple().merge(case.model, case.model.clone(), 0.4)[0]


def with_bypassed_lora(case):
    record, layer = case.layer()
    out, inputs = layer.weight.shape[0], layer.weight.shape[1:]
    lora = {f"{record.path}.lora_up.weight": case.random(out, 2, seed=5),
            f"{record.path}.lora_down.weight": case.random(2, *inputs, seed=6) * 0.05}
    return comfy.sd.load_bypass_lora_for_models(case.model, None, lora, 0.8, 0)[0]


def cached(case, kind):
    """Reuses what it can between 15 and 95 % of a run."""
    return CACHES[kind].execute(case.model, 10.0, 0.15, 0.95, False).args[0]


def windowed(case):
    return WanContextWindowsManualNode.execute(case.model, 9, 4, "standard_static", 1, False,
                                               "pyramid", False).args[0]


@pytest.mark.parametrize("mode", ["free", "light", "accurate"])
@pytest.mark.parametrize("change", [merged, with_bypassed_lora])
def test_merged_and_bypassed_weights_give_the_stock_picture_and_a_variance(case, ksampler, change,
                                                                          mode):
    case = case("sd3")
    plain = case.stock()["samples"]
    case.model = change(case)
    stock = case.stock()["samples"]
    latent, trajectory = ksampler(case, mode=mode)
    assert torch.equal(latent["samples"], stock)
    assert not torch.equal(stock, plain)  # a merge rounds its weights anew
    assert trajectory.variance[-1].max() > 0


@pytest.mark.parametrize("kind", CACHES)
def test_caches_give_the_stock_picture_in_mode_free_and_are_refused_in_words_elsewhere(
        case, pack, ksampler, kind):
    case = case("flux")
    case.steps = 8
    plain = case.stock()["samples"]
    case.model = cached(case, kind)
    stock = case.stock()["samples"]
    assert not torch.equal(plain, stock)  # it did reuse something
    latent, trajectory = ksampler(case, mode="free")
    assert torch.equal(latent["samples"], stock) and trajectory.variance[-1].max() > 0
    with pytest.raises(pack.BayesDiffError, match=f"(?i)bypass.*{kind}|{kind}.*bypass"):
        ksampler(case, mode="accurate")


def test_context_windows_give_the_stock_picture_in_mode_free_and_are_refused_elsewhere(
        case, pack, ksampler):
    case = case("wan")
    case.latent["samples"] = case.random(1, 16, 6, 5, 6, seed=3)
    ksampler(case, mode="accurate")  # without them it is taken
    case.model = windowed(case)
    stock = case.stock()["samples"]
    latent, _ = ksampler(case, mode="free")
    assert torch.equal(latent["samples"], stock)
    with pytest.raises(pack.BayesDiffError, match="context windows"):
        ksampler(case, mode="accurate")


def otherwise_rounded(graph, inputs):
    """A backend that gives what a compiler may: numbers which are nearly the uncompiled ones."""
    def run(*args):
        return [one * (1 + 2**-20) if torch.is_tensor(one) and one.is_floating_point() else one
                for one in graph(*args)]
    return run


@pytest.fixture
def quiet_compiler(caplog):
    """Writing down all that it tells takes as long as its work."""
    caplog.set_level("WARNING", logger="torch.__trace")


def compiled(case, **options):
    set_torch_compile_wrapper(model := case.model.clone(), **options)
    return model


@pytest.mark.usefixtures("quiet_compiler")
@pytest.mark.parametrize("name, block", [("sd3", "joint_blocks.0"), ("flux", "single_blocks.0")])
def test_a_model_with_compiled_blocks_gives_its_own_stock_picture_and_a_variance(
        case, ksampler, name, block):
    case = case(name)
    plain = case.stock()["samples"]
    case.model = compiled(case, backend=otherwise_rounded, keys=[f"diffusion_model.{block}"])
    stock = case.stock()["samples"]
    assert not torch.equal(plain, stock)
    for mode in ("free", "light", "accurate"):
        latent, trajectory = ksampler(case, mode=mode)
        assert torch.equal(latent["samples"], stock), mode
        assert trajectory.variance[-1].max() > 0, mode


def as_the_host_does(case):
    return compiled(case, backend=otherwise_rounded)


def by_an_object_patch(case):
    model = case.model.clone()
    model.add_object_patch("diffusion_model", torch.compile(
        model.get_model_object("diffusion_model"), backend=otherwise_rounded))
    return model


@pytest.mark.usefixtures("quiet_compiler")
@pytest.mark.parametrize("change", [as_the_host_does, by_an_object_patch])
def test_a_network_that_is_compiled_as_a_whole_runs_uncompiled_and_that_is_said(
        case, pack, ksampler, posterior_of, change):
    case = case("sd3")
    plain, network = case.stock()["samples"], case.model.model.diffusion_model
    uncompiled_model, posterior = case.model, posterior_of(case)
    case.model = change(case)
    stock = case.stock()["samples"]
    assert torch.equal(ksampler(case, mode="free")[0]["samples"], stock)
    latent, _, _, _, report, _ = pack.samplers.BayesDiffKSampler.execute(
        case.model, *case.options(), case.denoise, posterior, **ksampler.options).args
    assert torch.equal(latent["samples"], plain) and not torch.equal(plain, stock)
    assert torch.allclose(plain, stock, rtol=1e-3, atol=1e-3)
    assert "ran uncompiled" in report
    case.model = uncompiled_model
    assert torch.equal(case.stock()["samples"], plain)
    assert case.model.model.diffusion_model is network
