"""Tells the browser what a run will cost, before it (web/schedule.js)."""

from collections.abc import Mapping

from ..bayesdiff_core.checks import BayesDiffError
from .host import forecast
from .samplers import PAPER_SAMPLES, SHARES

ROUTE = "/bayesdiff/schedule"


def answer(query: Mapping[str, str]) -> dict:
    """Of a sampler node's widgets. Numbers that are no numbers are left to the node itself; those
    beyond the widgets' ranges are brought back into them, as anyone may ask."""
    def number(name: str, default: float, most: float, least: float = 0):
        try:
            return min(max(type(most)(query.get(name, default)), least), most)
        except (ValueError, OverflowError):
            return default

    mode = query.get("mode", "free")
    try:
        told = forecast.forecast(
            mode, number("steps", 20, 10_000, 1), query.get("sampler_name", "euler"),
            query.get("scheduler", "normal"), number("denoise", 1.0, 1.0),
            SHARES.get(mode, 0.0), number("nodes", 0, 100),
            number("deviations", 0, 256) or PAPER_SAMPLES * (mode == "paper"),
            query.get("meaning", "independent"), number("skip_interval", 0, 1000),
            query.get("flow") == "true")
    except (BayesDiffError, ValueError, KeyError, AttributeError) as error:
        return {"error": str(error)}
    return told._asdict()
