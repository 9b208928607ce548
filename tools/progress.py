"""Queues a prompt and follows it, as the front end does, by the server's messages."""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import NamedTuple

import aiohttp

from tools.server import ServerFailed, ask


class Finished(NamedTuple):
    outputs: dict  # by node
    seconds: dict[str, float]  # by node; those from the cache are left out


def run_prompt(address: str, prompt: dict, extra_data: dict | None = None,
               tell: Callable[[str, float], None] = lambda node, share: None) -> Finished:
    """`tell` hears which node runs and how much of it is done, 0 to 1."""
    return asyncio.run(_run(address, prompt, extra_data or {}, tell))


async def _run(address, prompt, extra_data, tell) -> Finished:
    client = uuid.uuid4().hex
    seconds, node, started = {}, None, time.monotonic()
    async with aiohttp.ClientSession() as session, \
            session.ws_connect(f"{address}/ws?clientId={client}", max_msg_size=0) as messages:
        body = {"prompt": prompt, "client_id": client, "extra_data": extra_data}
        number = ask(address, "/prompt", body)["prompt_id"]
        async for message in messages:
            if message.type != aiohttp.WSMsgType.TEXT:
                continue  # a preview
            kind, data = (message.json()[key] for key in ("type", "data"))
            if data.get("prompt_id") != number:
                continue
            if kind == "executing":
                now = time.monotonic()
                if node is not None:
                    seconds[node] = seconds.get(node, 0) + now - started
                node, started = data["node"], now
                if node is not None:
                    tell(node, 0.0)
            elif kind == "progress":
                tell(data["node"], data["value"] / max(data["max"], 1))
            elif kind in ("execution_error", "execution_interrupted"):
                raise ServerFailed(f"the prompt failed: {data.get('exception_message', kind)}")
            elif kind == "execution_success":
                return Finished(await _outputs(address, number), seconds)
    raise ServerFailed("the server closed the connection before the prompt was done")


async def _outputs(address: str, number: str) -> dict:
    while number not in (history := ask(address, f"/history/{number}")):  # written a moment later
        await asyncio.sleep(0.1)
    return history[number]["outputs"]
