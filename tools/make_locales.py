"""Writes locales/*/nodeDefs.json: English as the nodes say it, other languages in the same order.

Runs in a host, as the nodes do: BAYESDIFF_HOST=... python -m tools.make_locales. What a language
has no words for yet is named, and stands in English until somebody translates it.
"""

import asyncio
import json

from tools.in_process import enter_host
from tools.places import REPOSITORY

LOCALES = REPOSITORY / "locales"


def main() -> None:
    enter_host()
    english = {schema.node_id: _entry(schema) for schema in _schemas()}
    for path in sorted(LOCALES.glob("*/nodeDefs.json")):
        known = {} if path.parent.name == "en" else json.loads(path.read_text("utf-8"))
        words = _translated(english, known, path.parent.name if known else None)
        path.write_text(json.dumps(words, ensure_ascii=False, indent=2) + "\n", "utf-8")


def _schemas():
    from benchmarks.in_host import pack_module
    pack = pack_module("nodes").__name__.rpartition(".")[0]
    import sys
    nodes = asyncio.run(asyncio.run(sys.modules[pack].comfy_entrypoint()).get_node_list())
    return [node.GET_SCHEMA() for node in nodes]


def _entry(schema) -> dict:
    return {"display_name": schema.display_name, "description": schema.description,
            "inputs": {port.id: {"name": port.id, "tooltip": port.tooltip}
                       for port in schema.inputs},
            "outputs": {str(place): {"name": port.display_name, "tooltip": port.tooltip}
                        for place, port in enumerate(schema.outputs)}}


def _translated(english, known, language: str | None, where: str = ""):
    if isinstance(english, str):
        if language and not isinstance(known, str):
            print(f"{language}: no words for{where}: {english}")
        return known if isinstance(known, str) else english
    known = known if isinstance(known, dict) else {}
    return {key: _translated(value, known.get(key), language, f"{where} {key}")
            for key, value in english.items()}


if __name__ == "__main__":
    main()
