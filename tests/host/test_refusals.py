"""What cannot give a true number is refused, in words."""

import comfy.patcher_extension
import comfy.samplers
import pytest
import torch
from comfy.ldm.wan.model import SCAILWanModel, WanModel


def is_one_short_sentence(refused):
    said = str(refused.value)
    return len(said) < 260 and ". " not in said


def guided_at_each_call(case, pack):
    return lambda call: pack.feature_tap.guided(call.chunks, case.cfg, call.x.shape)


@pytest.mark.parametrize("cfg", [1.0, 4.0])
def test_area_prompts_are_refused_when_features_are_combined(case, pack, cfg):
    case = case("sd15")
    case.cfg = cfg
    case.positive[0][1]["area"] = (4, 4, 0, 0)
    case.observed()  # watching alone is fine
    with pytest.raises(pack.BayesDiffError, match="several parts .* trajectory") as refused:
        case.observed(guided_at_each_call(case, pack))
    assert is_one_short_sentence(refused)


def test_combined_prompts_are_refused_when_features_are_combined(case, pack):
    case = case("sd15")
    case.positive += case.prompt(8)
    with pytest.raises(pack.BayesDiffError, match="several parts"):
        case.observed(guided_at_each_call(case, pack))


def test_prompts_that_start_late_are_refused_when_features_are_combined(case, pack):
    case = case("sd15")
    case.negative[0][1]["start_percent"] = 0.5
    with pytest.raises(pack.BayesDiffError, match="cfg 4 ran the positive .* percents") as refused:
        case.observed(guided_at_each_call(case, pack))
    assert is_one_short_sentence(refused)


def test_model_without_a_row_names_its_class_and_the_alternative(case, pack):
    model = case("wan").model.clone()
    model.add_object_patch("diffusion_model", torch.nn.Linear(1, 1))
    with pytest.raises(pack.BayesDiffError, match="torch.nn.*Linear, which has no .*trajectory"):
        pack.last_layers.last_layer_of(model)


def test_subclass_is_known_unless_it_has_its_own_token_layout(pack):
    class Renamed(WanModel):
        pass

    assert pack.last_layers._family(Renamed).name == "Wan"
    assert pack.last_layers._family(SCAILWanModel) is None


def test_patch_that_changes_the_output_after_the_last_layer_is_refused(case, pack):
    case = case("flux")
    case.model = case.model.clone()
    case.model.add_wrapper_with_key(comfy.patcher_extension.WrappersMP.DIFFUSION_MODEL, "test",
                                    lambda executor, *args, **kwargs: executor(*args, **kwargs) * 2)
    with pytest.raises(pack.BayesDiffError, match="not the output of this model") as refused:
        case.observed()
    assert is_one_short_sentence(refused)


def test_network_call_that_bypasses_the_last_layer_is_refused(case, pack):
    case = case("flux")
    case.model = case.model.clone()
    case.model.add_wrapper_with_key(comfy.patcher_extension.WrappersMP.DIFFUSION_MODEL, "test",
                                    lambda executor, x, *args, **kwargs: x)
    with pytest.raises(pack.BayesDiffError, match="ran 0 times .*EasyCache") as refused:
        case.observed()
    assert is_one_short_sentence(refused)


def test_sampler_of_another_make_is_refused(case, pack):
    class Foreign(comfy.samplers.Sampler):
        pass

    with pytest.raises(pack.BayesDiffError, match="Foreign.*KSAMPLER"):
        pack.sampling._observed_sampler(Foreign(), None, None, None, None)


def test_torch_compile_wrapper_is_dropped_on_our_clone_only(case, pack):
    from comfy_api.torch_helpers import set_torch_compile_wrapper
    plain = case("sd3")
    compiled = case("sd3")
    compiled.model = compiled.model.clone()
    set_torch_compile_wrapper(compiled.model, backend="eager")
    wrappers = compiled.model.wrappers["apply_model"]
    compiled.stock()  # now it is compiled, without a hook
    ours, calls = compiled.observed()
    assert len(calls) == 3 and torch.equal(ours["samples"], plain.stock()["samples"])
    assert list(wrappers) == ["torch.compile"]


def test_the_host_names_our_error_without_a_path(pack):
    """It prints the type before the sentence: a module's path there would hide it."""
    import execution
    assert execution.full_type_name(pack.BayesDiffError) == "BayesDiffError"
