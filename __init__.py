"""ComfyUI-BayesDiff: per-pixel uncertainty of diffusion models."""

import os

import folder_paths
from comfy_api.latest import ComfyExtension, io

# Before the node modules are imported: their file lists ask for this folder.
folder_paths.add_model_folder_path("llla", os.path.join(folder_paths.models_dir, "llla"))
folder_paths.folder_names_and_paths["llla"][1].add(".safetensors")

from .nodes import routes  # noqa: E402
from .nodes.best_of_n import BayesDiffBestOfN  # noqa: E402
from .nodes.demo import BayesDiffDemoModel, BayesDiffDemoPrompt  # noqa: E402
from .nodes.filter import BayesDiffFilter  # noqa: E402
from .nodes.heatmap import BayesDiffHeatmap  # noqa: E402
from .nodes.llla import (  # noqa: E402
    BayesDiffLLLAFit,
    BayesDiffLLLALoad,
    BayesDiffLLLASave,
)
from .nodes.model_info import BayesDiffModelInfo  # noqa: E402
from .nodes.repair import BayesDiffRepair  # noqa: E402
from .nodes.resample import BayesDiffResample  # noqa: E402
from .nodes.samplers import BayesDiffKSampler, BayesDiffSamplerCustom  # noqa: E402
from .nodes.score_image import BayesDiffScoreImage  # noqa: E402
from .nodes.scores import BayesDiffScore  # noqa: E402
from .nodes.selfcheck import BayesDiffSelfCheck  # noqa: E402
from .nodes.stages import BayesDiffStage  # noqa: E402
from .nodes.trajectory import (  # noqa: E402
    BayesDiffTrajectoryAtStep,
    BayesDiffTrajectoryLoad,
    BayesDiffTrajectorySave,
)

WEB_DIRECTORY = "./web"
routes.add()


class BayesDiffExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [BayesDiffModelInfo, BayesDiffLLLAFit, BayesDiffLLLASave, BayesDiffLLLALoad,
                BayesDiffKSampler, BayesDiffSamplerCustom, BayesDiffBestOfN, BayesDiffRepair,
                BayesDiffResample, BayesDiffTrajectoryAtStep, BayesDiffTrajectorySave,
                BayesDiffTrajectoryLoad, BayesDiffHeatmap, BayesDiffScore, BayesDiffScoreImage,
                BayesDiffFilter, BayesDiffSelfCheck, BayesDiffDemoModel, BayesDiffDemoPrompt,
                *([BayesDiffStage] if os.environ.get("BAYESDIFF_FLEET") else [])]


async def comfy_entrypoint() -> BayesDiffExtension:
    return BayesDiffExtension()
