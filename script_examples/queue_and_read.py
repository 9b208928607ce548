#!/usr/bin/env python
"""Queues a workflow on a running ComfyUI, waits for it over its websocket, and prints what the
BayesDiff nodes report: scores, what was kept, notes, and the files that were saved.

    python script_examples/queue_and_read.py WORKFLOW_API.json
    python script_examples/queue_and_read.py WORKFLOW_API.json --server HOST:8188 --set 3.seed=7

WORKFLOW_API.json: in ComfyUI, Workflow > Export (API). Python 3.10 or newer, nothing to install.
docs/api.md says what the reports hold.
"""

import argparse
import base64
import json
import os
import socket
import sys
import urllib.error
import urllib.request
import uuid


def main() -> int:
    options = parsed()
    with open(options.workflow, encoding="utf-8") as file:
        prompt = json.load(file)
    for change in options.set:
        place, _, value = change.partition("=")
        node, _, widget = place.partition(".")
        prompt[node]["inputs"][widget] = json.loads(value)

    client = str(uuid.uuid4())
    with Websocket(options.server, f"/ws?clientId={client}", options.timeout) as events:
        try:
            number = ask(options.server, "/prompt", {"prompt": prompt, "client_id": client})[
                "prompt_id"]
        except urllib.error.HTTPError as error:
            print(f"refused: {error.read().decode(errors='replace')}", file=sys.stderr)
            return 1
        for event in events:
            data = event.get("data") or {}
            if data.get("prompt_id") != number:
                continue
            if event["type"] == "execution_error":
                print(f"failed in {name_of(prompt, data['node_id'])}: {data['exception_message']}",
                      file=sys.stderr)
            if event["type"] == "execution_interrupted":
                print("interrupted", file=sys.stderr)
            if event["type"] == "executing":
                # execution_success comes before /history has the run, this one after.
                if data["node"] is None:
                    break
                print(f"running {name_of(prompt, data['node'])}", file=sys.stderr)
    entry = ask(options.server, f"/history/{number}")[number]
    if not entry["status"]["completed"]:
        return 1
    for node, output in entry["outputs"].items():
        show(name_of(prompt, node), output)
    return 0


def show(name: str, output: dict) -> None:
    for report in output.get("bayesdiff_report", []):
        for key in ("mode", "scores", "seeds", "kept", "rejected", "file"):
            if key in report:
                print(f"{name}: {key} {json.dumps(report[key])}")
        for note in report["notes"]:
            print(f"{name}: note: {note}")
    for kind in ("images", "latents"):
        for file in output.get(kind, []):
            if file.get("type") == "output":
                print(f"{name}: saved {os.path.join(file['subfolder'], file['filename'])}")


def name_of(prompt: dict, node: str) -> str:
    """A node that a loop made has no entry of its own."""
    entry = prompt.get(node) or {"class_type": "a node made while it ran"}
    return f"{(entry.get('_meta') or {}).get('title') or entry['class_type']} ({node})"


def ask(server: str, path: str, body: dict | None = None) -> dict:
    request = urllib.request.Request(f"http://{server}{path}",
                                     data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


class Websocket:
    """As much of RFC 6455 as it takes to read ComfyUI's events. Iterating gives the JSON ones;
    previews, which are binary, are left out."""

    def __init__(self, server: str, path: str, seconds: float):
        host, _, port = server.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=seconds)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall((f"GET {path} HTTP/1.1\r\nHost: {server}\r\nUpgrade: websocket\r\n"
                              f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                              "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        self._stream = self._socket.makefile("rb")
        answer = self._stream.readline().decode()
        if " 101 " not in answer:
            raise ConnectionError(f"{server} opened no websocket: {answer.strip()}")
        while self._stream.readline().strip():
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.close()
        self._socket.close()

    def __iter__(self):
        text = b""
        while True:
            last, kind, data = self._frame()
            if kind == 8:  # close
                raise ConnectionError("the server closed the websocket")
            if kind == 9:  # ping: a pong with the same data, masked by 0 as a client must mask
                self._socket.sendall(bytes([0x8A, 0x80 | len(data)]) + bytes(4) + data)
            elif kind in (0, 1):
                text += data
                if last:
                    yield json.loads(text)
                    text = b""

    def _frame(self) -> tuple[bool, int, bytes]:
        first, second = self._read(2)
        size = second & 0x7F
        if size > 125:
            size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
        return bool(first & 0x80), first & 0x0F, self._read(size)

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError("the server is gone")
        return data


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workflow", help="a workflow in the API format")
    parser.add_argument("--server", default="127.0.0.1:8188", metavar="HOST:PORT")
    parser.add_argument("--set", action="append", default=[], metavar="NODE.WIDGET=JSON",
                        help="changes a widget; may be repeated")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS",
                        help="how long to wait for a sign of life (default: 600)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
