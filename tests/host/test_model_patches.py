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


@pytest.mark.parametrize("mode", ["free", "accurate"])
def test_a_compiled_model_gives_the_stock_picture_and_a_variance(case, ksampler, mode):
    """With the tracer alone: what a compiler makes of it may round otherwise."""
    case = case("sd3")
    case.model = case.model.clone()
    set_torch_compile_wrapper(case.model, backend="eager")
    latent, trajectory = ksampler(case, mode=mode)
    assert torch.equal(latent["samples"], case.stock()["samples"])
    assert trajectory.variance[-1].max() > 0
