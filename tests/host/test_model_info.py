"""The Model Info node tells the truth about a model."""

import pytest
import torch
from comfy_extras.nodes_model_advanced import ModelSamplingDiscrete

EXPECTED = {
    "sd15": ["BaseModel", "noise (eps)", "U-Net", "diffusion_model.out.2", "3 x 3", "320", "2881"],
    "sd15_v": ["velocity (v)"],
    "sd3": ["SD3", "flow velocity", "Stable Diffusion 3", "diffusion_model.final_layer.linear",
            "2 x 2", "64, with bias, 65"],
    "flux": ["Flux", "flow velocity", "diffusion_model.final_layer.linear", "128, with bias, 129"],
    "wan": ["WAN21", "flow velocity", "diffusion_model.head.head", "1 x 2 x 2", "32, with bias"],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_report_names_family_layer_and_prediction(case, pack, name):
    text, = pack.model_info.BayesDiffModelInfo.execute(case(name).model).args
    assert all(words in text for words in EXPECTED[name]), text
    assert text.endswith("posterior over the last layer: supported")


def test_report_of_an_unknown_network_offers_trajectory_variance(case, pack):
    model = case("sd3").model.clone()
    model.add_object_patch("diffusion_model", torch.nn.Linear(1, 1))
    text = pack.model_info.report(model)
    assert "not supported" in text and "Linear" in text and "trajectory variance" in text


def test_prediction_of_an_unknown_kind_is_not_guessed(case, pack):
    model, = ModelSamplingDiscrete().patch(case("sd15").model, "lcm", False)
    assert "prediction: not known (LCM)" in pack.model_info.report(model)


def test_text_is_shown_in_the_node_as_well(case, pack):
    output = pack.model_info.BayesDiffModelInfo.execute(case("sd3").model)
    assert output.ui["text"] == (output.args[0],)
