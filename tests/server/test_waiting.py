"""A run that waits for a choice, asked as a page asks; and runs that must not wait."""

import asyncio
import itertools
import json
import threading
import time

import aiohttp
import pytest

from tools.server import ServerFailed, ask, run_prompt

SEEDS = itertools.count(100)


def node(class_type, **inputs):
    return {"class_type": class_type, "inputs": inputs}


def graph(**widgets):
    return {
        "model": node("BayesDiff_DemoModel"),
        "prompt": node("BayesDiff_DemoPrompt", name="die"),
        "empty": node("EmptyLatentImage", width=64, height=64, batch_size=4),
        "sample": node("BayesDiff_KSampler", model=["model", 0], positive=["prompt", 0],
                       negative=["prompt", 0], latent_image=["empty", 0], seed=next(SEEDS), steps=3,
                       cfg=1.0, sampler_name="euler", scheduler="normal", denoise=1.0,
                       mode="free"),
        "filter": node("BayesDiff_UncertaintyScoreFilter", **{
            "scores": ["sample", 3], "latents": ["sample", 0], "criterion": "keep n", "z": 1.0,
            "percent": 25.0, "keep": 1, "threshold": 0.0, "allow_empty": False, "groups": "",
            "reference": "", "reference_mode": "only compare", "picked": "",
            "wait_for_choice": True, **widgets}),
        "kept": node("PreviewAny", source=["filter", 6]),
    }


class Page(threading.Thread):
    """Open as long as a test runs; on_wait(question) answers what a run asks."""

    def __init__(self, address, name, on_wait):
        super().__init__(daemon=True)
        self.address, self.name_, self.on_wait = address, name, on_wait
        self.open, self.done, self.told = threading.Event(), threading.Event(), []

    def run(self):
        asyncio.run(self._listen())

    async def _listen(self):
        async with aiohttp.ClientSession() as session, session.ws_connect(
                f"{self.address}/ws?clientId={self.name_}") as socket:
            self.open.set()
            while not self.done.is_set():
                try:
                    message = await socket.receive(timeout=0.2)
                except asyncio.TimeoutError:
                    continue
                if message.type != aiohttp.WSMsgType.TEXT:
                    continue
                told = json.loads(message.data)
                self.told.append(told["type"])
                if told["type"] == "bayesdiff.waits":
                    await asyncio.to_thread(self.on_wait, told["data"])


@pytest.fixture
def page(server):
    pages = []

    def open_page(name, on_wait):
        pages.append(Page(server.address, name, on_wait))
        pages[-1].start()
        assert pages[-1].open.wait(60)
        return pages[-1]

    yield open_page
    for each in pages:
        each.done.set()
        each.join(10)


def run(server, client, **widgets):
    outputs = run_prompt(server.address, graph(**widgets), extra_data={"client_id": client})
    return outputs["kept"]["text"][0], outputs["filter"]["text"][0]


def answering(server, picked):
    """Shows the question and answers it."""
    def on_wait(question):
        assert ask(server.address, "/bayesdiff/seen", {"token": question["token"]}) == {
            "waits": True}
        ask(server.address, "/bayesdiff/choose", {"token": question["token"], "picked": picked})
    return on_wait


def test_the_run_goes_on_with_what_was_picked_and_every_page_is_told(server, page):
    asking = page("chooser", answering(server, [3, 1]))
    other = page("other tab", lambda question: None)
    kept, text = run(server, "chooser")
    assert kept == "1,3" and "kept 2 of 4: 2, 4" in text and "you picked 2" in text
    end = time.monotonic() + 30
    while time.monotonic() < end and not all("bayesdiff.goes_on" in each.told
                                             for each in (asking, other)):
        time.sleep(0.05)
    for each in (asking, other):
        assert "bayesdiff.waits" in each.told and "bayesdiff.goes_on" in each.told
    assert ask(server.address, "/bayesdiff/waiting") == {"waiting": []}


def test_nothing_may_be_picked_and_the_choice_may_be_left_to_the_criterion(server, page):
    answers = iter([None, []])
    page("undecided", lambda question: answering(server, next(answers))(question))
    kept, text = run(server, "undecided")
    assert len(kept) == 1 and "kept by criterion: left to the criterion" in text
    outputs = run_prompt(server.address, graph(), extra_data={"client_id": "undecided"})
    assert "kept 0 of 4: none" in outputs["filter"]["text"][0]


@pytest.mark.parametrize("rule, kept", [("keep by criterion", 1), ("keep all", 4)])
def test_when_nobody_answers_in_time_the_rule_decides(server, page, rule, kept):
    page("sleeper", lambda question: ask(server.address, "/bayesdiff/seen",
                                         {"token": question["token"]}))
    _, text = run(server, "sleeper", wait_seconds=1, no_answer=rule)
    assert f"kept {kept} of 4" in text and "nobody chose in time" in text


def test_when_nobody_answers_the_run_can_be_stopped(server, page):
    page("stopper", lambda question: ask(server.address, "/bayesdiff/seen",
                                         {"token": question["token"]}))
    with pytest.raises(ServerFailed, match="prompt failed: .*'node_id': 'filter'"):
        run(server, "stopper", wait_seconds=1, no_answer="stop the run")


def test_cancel_from_anywhere_ends_the_waiting(server, page):
    page("canceller", lambda question: ask(server.address, "/interrupt", {}))
    with pytest.raises(ServerFailed, match="prompt failed: .*'node_id': 'filter'"):
        run(server, "canceller")
    assert ask(server.address, "/bayesdiff/waiting") == {"waiting": []}


def test_runs_of_scripts_do_not_wait(server, page):
    """Without a connection not at all; with one that shows nothing, as scripts have, not long."""
    _, text = run(server, "nobody")
    assert "kept 1 of 4" in text and "no browser asked for this run" in text
    page("script", lambda question: None)
    _, text = run(server, "script")
    assert "kept 1 of 4" in text and "no browser shows this graph" in text


@pytest.mark.parametrize("picked, words", [
    ([4], "whole numbers from 0 to 3"), ([0, 0], "different"), (["0"], "whole numbers"),
    ("all", "picked is 'all'"), ([True], "whole numbers")])
def test_a_choice_that_is_none_is_refused_and_the_run_waits_on(server, page, picked, words):
    said = []

    def on_wait(question):
        said.append(ask(server.address, "/bayesdiff/choose", {"token": question["token"],
                                                              "picked": picked}))
        answering(server, [0])(question)

    page("clumsy", on_wait)
    assert run(server, "clumsy")[0] == "0" and words in said[0]["error"]
    told = ask(server.address, "/bayesdiff/choose", {"token": "unknown", "picked": [0]})
    assert "no longer waits" in told["error"]
