"""What BayesDiff can do with a model, before anything is computed."""

from comfy_api.latest import io, ui

from ..bayesdiff_core.checks import BayesDiffError
from .host.network.last_layers import last_layer_of
from .host.network.parameterization import prediction_kind
from .metadata import reported


class BayesDiffModelInfo(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_ModelInfo",
            display_name="BayesDiff Model Info",
            category="bayesdiff",
            description="Tells whether LLLA Fit works with this model, and why not if it does not.",
            inputs=[io.Model.Input("model", tooltip="The diffusion model to look at. It is not run"
                                                    " and not changed.")],
            outputs=[io.String.Output(display_name="report",
                                      tooltip="The report as text, one fact per line.")],
            is_output_node=True,
            search_aliases=["supported", "model type", "last layer", "laplace", "uncertainty"],
        )

    @classmethod
    def execute(cls, model) -> io.NodeOutput:
        text = report(model)
        return io.NodeOutput(text, ui={**ui.PreviewText(text).as_dict(),
                                       **reported({"facts": text.split("\n")})})


def report(model) -> str:
    lines = [f"model: {type(model.model).__name__}",
             f"prediction: {prediction_kind(model.get_model_object('model_sampling'))}"]
    try:
        layer = last_layer_of(model)
    except BayesDiffError as reason:
        return "\n".join([*lines, "posterior over the last layer: not supported", str(reason)])
    kernel = layer.shape.kernel
    kind = f"{kernel} x {kernel} convolution" if kernel else \
        f"linear, a token covers {' x '.join(map(str, layer.patch))} of the latent"
    return "\n".join([
        *lines, f"family: {layer.family}",
        f"last layer: {layer.path} ({kind})",
        f"features: {layer.shape.features}, {'with' if layer.shape.bias else 'without'} bias,"
        f" {layer.shape.inputs} weights per output",
        "posterior over the last layer: supported"])
