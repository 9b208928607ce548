"""A run that waits for its user's choice in the browser, and never for nobody.

The question goes to every open page; one that shows it says so. Where none does, as with a run sent
by a script, or all pages are closed, the run goes on by itself.
"""

import secrets
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import comfy.model_management
from server import PromptServer

PATIENCE = 10.0  # seconds in which a page must have shown the question, or be open again
WAITS, GOES_ON = "bayesdiff.waits", "bayesdiff.goes_on"
_waiting: dict[str, "_Question"] = {}  # by token


class Answer(NamedTuple):
    picked: list[int] | None  # None: it is not chosen
    why: str = ""  # not, in words


class _Question:
    def __init__(self, told: dict, seconds: float):
        self.told, self.end = told, time.monotonic() + seconds
        self.answered, self.seen = threading.Event(), False
        self.answer = Answer(None, "nobody chose in time")

    def as_told(self) -> dict:
        return {**self.told, "seconds": max(self.end - time.monotonic(), 0)}


def choice(node: str, workflow: str | None, report: dict, seconds: float) -> Answer:
    """What was picked of the images of a report. Cancel ends it as it ends all sampling."""
    server = getattr(PromptServer, "instance", None)
    if server is None or server.client_id not in server.sockets:
        return Answer(None, "no browser asked for this run")
    token = secrets.token_hex(8)
    question = _Question({"token": token, "node": node, "workflow": workflow, "report": report},
                         seconds)
    _waiting[token] = question
    try:
        server.send_sync(WAITS, question.as_told())
        return _answer(question, lambda: bool(server.sockets))
    finally:
        del _waiting[token]
        server.send_sync(GOES_ON, {"token": token})


def _answer(question: _Question, someone_is_there: Callable[[], bool]) -> Answer:
    alone_since = time.monotonic()  # or not shown yet
    while not question.answered.wait(0.1):
        comfy.model_management.throw_exception_if_processing_interrupted()
        now = time.monotonic()
        if question.seen and someone_is_there():
            alone_since = now
        if now - alone_since > PATIENCE:
            return Answer(None, "no browser shows this graph")
        if now > question.end:
            break
    return question.answer


# Called by the routes, in other threads.

def waiting() -> list[dict]:
    return [question.as_told() for question in list(_waiting.values())]


def seen(token: str) -> bool:
    question = _waiting.get(token)
    if question:
        question.seen = True
    return question is not None


def choose(token: str, picked: list[int] | None) -> bool:
    """Whether that run still waited."""
    question = _waiting.get(token)
    if question is None or question.answered.is_set():
        return False
    question.answer = Answer(picked, "left to the criterion" if picked is None else "")
    question.answered.set()
    return True
