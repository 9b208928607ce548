"""A model that comes with the pack, so that everything can be tried without a download."""

from pathlib import Path

from comfy_api.latest import io

from ..bayesdiff_core.checks import BayesDiffError
from .files import llla_file
from .host import demo_model
from .sockets import LLLA

FOLDER = Path(__file__).resolve().parent.parent / "models"
MODEL_FILE = FOLDER / "bayesdiff_demo.safetensors"
POSTERIOR_FILE = FOLDER / "bayesdiff_demo_llla.safetensors"
# What the file should hold: the list that is shown where it is missing.
CLASSES = ["hand", "die", "smiley"]
NOTHING = "nothing"


class BayesDiffDemoModel(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_DemoModel",
            display_name="BayesDiff Demo Model",
            category="bayesdiff",
            description="A small model that comes with the pack: draws hands, dice and smileys,"
                        " 64 x 64 pixels. Runs on a CPU, no download.",
            inputs=[],
            outputs=[
                io.Model.Output(display_name="model",
                                tooltip="The demo model. Use it with Empty Latent Image at 64 x 64"
                                        " and BayesDiff Demo Prompt."),
                io.Vae.Output(display_name="vae", tooltip="Its VAE: packs 4 x 4 pixels into one"
                                                          " latent position, without loss."),
                LLLA.Output(display_name="posterior",
                            tooltip="Its calibration, made by LLLA Fit on drawings like those it"
                                    " was trained on."),
            ],
            search_aliases=["example model", "test model", "hands", "try", "load"],
        )

    @classmethod
    def execute(cls) -> io.NodeOutput:
        return io.NodeOutput(demo_model.model(MODEL_FILE), demo_model.vae(),
                             llla_file.read(POSTERIOR_FILE))


class BayesDiffDemoPrompt(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_DemoPrompt",
            display_name="BayesDiff Demo Prompt",
            category="bayesdiff",
            description="What the demo model should draw. It reads no text: choose a class.",
            inputs=[
                io.Combo.Input("name", options=[*_classes(), NOTHING],
                               tooltip="What to draw: one of the demo model's classes. Use nothing"
                                       " for the negative prompt."),
            ],
            outputs=[
                io.Conditioning.Output(display_name="conditioning",
                                       tooltip="For positive or negative of a sampler. Only the"
                                               " demo model can read it."),
            ],
            search_aliases=["example prompt", "class"],
        )

    @classmethod
    def execute(cls, name) -> io.NodeOutput:
        chosen = None if name == NOTHING else name
        return io.NodeOutput(demo_model.conditioning(MODEL_FILE, chosen))


def _classes() -> list[str]:
    """The nodes must be there even if the file is not: execute says then what is wrong."""
    try:
        return demo_model.class_names(MODEL_FILE)
    except BayesDiffError:
        return CLASSES
