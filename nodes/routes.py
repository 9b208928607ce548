"""What the browser asks the server beside running graphs."""

from collections.abc import Mapping

from ..bayesdiff_core import filtering
from ..bayesdiff_core.checks import BayesDiffError
from .filter import BLOCK, decided, told_of
from .host import waiting, web
from .host.run.by_mode import PAPER_RULES, Options
from .host.run.cost import cost

MOST_SCORES = 4096  # that are decided on for the browser; the node itself takes more
MOST = 1e100  # of a number: its square can still be summed
FILTER_WIDGETS = {"criterion": str, "z": float, "percent": float, "keep": int, "threshold": float,
                  "allow_empty": bool, "groups": str, "reference": str, "reference_mode": str,
                  "picked": str, "when_empty": str}


def add() -> None:
    web.serve("/bayesdiff/cost", cost_of)
    web.serve_posted("/bayesdiff/decide", decision_on)
    web.serve("/bayesdiff/waiting", lambda query: {"waiting": waiting.waiting()})
    web.serve_posted("/bayesdiff/seen", lambda given: {"waits": waiting.seen(given.get("token"))})
    web.serve_posted("/bayesdiff/choose", choose)


def cost_of(query: Mapping[str, str]) -> dict:
    """What a run will cost, by a sampler node's widgets (web/schedule.js). Numbers that are no
    numbers are left to the node itself; those beyond the widgets' ranges are brought back into
    them, as anyone may ask."""
    def number(name: str, default: float, most: float, least: float = 0):
        try:
            return min(max(type(most)(query.get(name, default)), least), most)
        except (ValueError, OverflowError):
            return default

    options = Options(
        query.get("mode", "auto"), query.get("skip_schedule", "chosen"),
        number("skip_interval", 4, 1000), query.get("uncertain_steps", "")[:10_000],
        number("probe_levels", 0, 100), number("deviations", 0, 256),
        number("mc_samples", 10, 256, 1), query.get("paper_rule", PAPER_RULES[0]),
        query.get("noise_model", "independent"), keep_steps=number("keep_steps", 10, 1000, 2),
        check=query.get("check", "auto"))
    try:
        told = cost(options, number("steps", 20, 10_000, 1), query.get("sampler_name", "euler"),
                    query.get("scheduler", "normal"), number("denoise", 1.0, 1.0),
                    query.get("flow") == "true", query.get("posterior") != "false")
    except (BayesDiffError, ValueError, KeyError, AttributeError) as error:
        return {"error": str(error)}
    return told._asdict()


def decision_on(given: Mapping) -> dict:
    """What Uncertainty Score Filter would keep of these scores, by its widgets
    (web/gallery.js)."""
    try:
        scores = _checked("scores", given, list)
        if len(scores) > MOST_SCORES:
            raise BayesDiffError(f"there are {len(scores)} scores, at most {MOST_SCORES} were"
                                 " expected: run the node to see what it keeps.")
        scores = [_number(f"score {place}", score, float) for place, score in enumerate(scores, 1)]
        filtering.check_scores(scores)
        given = {"when_empty": BLOCK, **given}  # a page from before an update does not send it
        widgets = {name: _checked(name, given, kind) for name, kind in FILTER_WIDGETS.items()}
        decision, notes = decided(scores, **widgets)
    except BayesDiffError as error:
        return {"error": str(error)}
    return {**told_of(decision), "notes": notes}


def choose(given: Mapping) -> dict:
    """What was picked in a run that waits (web/gallery.js); nothing leaves it to the criterion."""
    picked, token = given.get("picked"), given.get("token")
    waits = next((one for one in waiting.waiting() if one["token"] == token), None)
    if waits is None:
        return {"error": "this run no longer waits for a choice."}
    count = len(waits["report"]["scores"])
    if picked is not None and not (isinstance(picked, list) and len(set(map(str, picked))) == len(
            picked) and all(type(index) is int and 0 <= index < count for index in picked)):
        return {"error": f"picked is {picked!r:.80}, different whole numbers from 0 to {count - 1}"
                         " were expected."}
    return {"chosen": waiting.choose(token, picked)}


def _checked(name: str, given: Mapping, kind: type):
    value = given.get(name)
    if kind in (int, float):
        return _number(name, value, kind)
    if type(value) is not kind:
        raise BayesDiffError(f"{name} is {value!r:.80}, a {kind.__name__} was expected.")
    return value


def _number(name: str, value, kind: type):
    if type(value) not in (int, float) or not abs(value) <= MOST:
        raise BayesDiffError(f"{name} is {value!r:.80}, a number from {-MOST:g} to {MOST:g} was"
                             " expected.")
    return kind(value)
