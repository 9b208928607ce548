"""ComfyUI in this process, on GPUs that only pretend: it finds them by itself."""

import pytest
import torch

from tests.pretend import device
from tools.in_process import enter_host

device.install(cards=2)
enter_host(on_cpu=False)

from tests.host.conftest import (  # noqa: E402, F401 - the same fixtures
    case,
    fits,
    ksampler,
    load_model,
    pack,
    place,
    posterior_of,
    random_vae,
    resample,
    vae,
)


@pytest.fixture(autouse=True)
def as_nodes_are_run():
    with torch.inference_mode():
        yield
