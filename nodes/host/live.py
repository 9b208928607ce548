"""What the page that asked for a run is told while it runs."""

from collections.abc import Callable

from comfy_execution.utils import get_executing_context
from server import PromptServer


def listener(event: str, workflow: str | None) -> Callable[[dict], None] | None:
    """Tells that page of the node that runs now, of that workflow; None where no page asked."""
    server, running = getattr(PromptServer, "instance", None), get_executing_context()
    if server is None or running is None or server.client_id not in server.sockets:
        return None
    page, place = server.client_id, {"node": running.node_id, "workflow": workflow}
    return lambda told: server.send_sync(event, {**told, **place}, page)
