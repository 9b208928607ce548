"""Routes of the host's web server."""

import asyncio
import json

from aiohttp import web
from server import PromptServer

MOST_BYTES = 1_000_000  # of a question


def serve(path: str, answer) -> None:
    """Adds a GET route that gives answer(query) as JSON."""
    async def get(request):
        return web.json_response(await asyncio.to_thread(answer, request.query))
    _add("GET", path, get)


def serve_posted(path: str, answer) -> None:
    """Adds a POST route that gives answer(the JSON object that was sent) as JSON."""
    async def post(request):
        body = await request.read()
        if len(body) > MOST_BYTES:
            return _refused(413, f"the request has {len(body)} bytes, at most {MOST_BYTES} were"
                                 " expected")
        try:
            given = json.loads(body)
        except (ValueError, RecursionError) as error:
            return _refused(400, f"the request is not JSON: {error}")
        if not isinstance(given, dict):
            return _refused(400, f"the request is a {type(given).__name__}, a JSON object was"
                                 " expected")
        return web.json_response(await asyncio.to_thread(answer, given))
    _add("POST", path, post)


def _refused(status: int, words: str) -> web.Response:
    return web.json_response({"error": words}, status=status)


def _add(method: str, path: str, handler) -> None:
    """Before the host has a server, as in its own tests, there is nothing to add to."""
    server = getattr(PromptServer, "instance", None)
    if server is not None:
        server.routes.route(method, path)(handler)
