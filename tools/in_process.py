"""ComfyUI in this process, on the CPU: for tests and tools, never for the pack."""

import os
import sys


def enter_host(on_cpu: bool = True) -> None:
    """Makes the host that BAYESDIFF_HOST names importable. Call it before comfy is imported; once
    it is there, it stays as it is.

    Its folder goes first on sys.path: it has a module `nodes`, and so has the checkout.
    """
    if "comfy.cli_args" in sys.modules:
        return
    folder = os.environ.get("BAYESDIFF_HOST")
    if not folder:
        sys.exit("no ComfyUI is named (BAYESDIFF_HOST): start this through run.py")
    sys.path.insert(0, folder)
    import comfy.cli_args
    import utils.install_util  # noqa: F401 - early, as main.py does: old hosts' comfy/ hides it
    comfy.cli_args.args.cpu = on_cpu  # read once, when comfy.model_management is imported
