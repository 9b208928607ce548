"""Whatever happens, the user's model is left as it was."""

import comfy.model_management
import pytest
import torch

MODELS = ["sd15", "sd3", "flux", "wan"]


class Trouble(Exception):
    pass


def on_second_call(action):
    calls = []

    def observer(call):
        calls.append(None)
        if len(calls) == 2:
            action()
    return observer


def raise_trouble(*_):
    raise Trouble


def trace(case):
    """Everything of the user's model that a run could leave something on."""
    network = case.model.get_model_object("diffusion_model")
    hooks = [(name, kind) for name, module in network.named_modules()
             for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
             if getattr(module, kind)]
    model = case.model
    return hooks, repr(model.wrappers), repr(model.callbacks), repr(model.model_options), \
        sorted(model.object_patches), sorted(model.patches)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ending", ["success", "observer fails", "network fails", "interrupt"])
def test_nothing_is_left_after(case, pack, name, ending):
    case = case(name)
    stock, before = case.stock()["samples"], trace(case)
    assert before[0] == []
    if ending == "success":
        case.observed()
    elif ending == "observer fails":
        with pytest.raises(Trouble):
            case.observed(on_second_call(raise_trouble))
    elif ending == "network fails":
        # The layer itself fails in the second call, while our hook is on it.
        layer, handles = case.layer()[1], []
        with pytest.raises(Trouble):
            case.observed(on_second_call(
                lambda: handles.append(layer.register_forward_pre_hook(raise_trouble))))
        handles[0].remove()
    else:
        interrupt = comfy.model_management.interrupt_current_processing
        with pytest.raises(comfy.model_management.InterruptProcessingException):
            case.observed(on_second_call(lambda: interrupt(True)))
    assert trace(case) == before
    assert torch.equal(case.stock()["samples"], stock)
