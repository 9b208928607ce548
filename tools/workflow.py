"""Workflows as the front end saves them, and as the server runs them. Standard library only.

The front end keeps a node's widget values as a list, in the order of its inputs; the server wants
them by name. /object_info has that order. Muted and bypassed nodes, reroutes and subgraphs are the
front end's own affair and are refused.
"""

import json
from pathlib import Path

WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
NOTES = ("Note", "MarkdownNote")  # for the reader only
CONTROL = "control_after_generate"  # a widget of the front end that no node receives


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def ports(info: dict) -> dict[str, tuple[str, dict]]:
    """Type and options of each input of a node, in order."""
    found = {}
    for group in ("required", "optional"):
        for name in info["input_order"].get(group, []):
            kind, *options = info["input"][group][name]
            options = options[0] if options else {}
            if isinstance(kind, list):  # an older way to write a combo
                kind, options = "COMBO", {**options, "options": kind}
            found[name] = kind, options
    return found


def widgets(info: dict) -> list[str]:
    """Names of a node's widgets in the order of their saved values."""
    names = []
    for name, (kind, options) in ports(info).items():
        if kind in WIDGETS and not options.get("forceInput"):
            names.append(name)
            if options.get(CONTROL):
                names.append(CONTROL)
    return names


def _has_upload(info: dict) -> bool:
    """Whether the front end adds a button for uploads, whose value some versions save last."""
    return any(name.endswith("_upload") and value for _, options in ports(info).values()
               for name, value in options.items())


def api_prompt(workflow: dict, object_info: dict) -> dict:
    """The prompt that the front end would queue."""
    sources = {link[0]: [str(link[1]), link[2]] for link in workflow["links"]}
    prompt = {}
    for node in workflow["nodes"]:
        kind = node["type"]
        if kind in NOTES:
            continue
        if kind not in object_info or node.get("mode", 0):
            raise ValueError(f"node {node['id']} is a {kind} in mode {node.get('mode', 0)}: only"
                             " nodes of this server that are switched on can be queued")
        info = object_info[kind]
        names, values = widgets(info), node.get("widgets_values") or []
        if len(values) == len(names) + 1 and _has_upload(info):
            values = values[:-1]
        if not isinstance(values, list) or len(names) != len(values):
            raise ValueError(f"node {node['id']} ({kind}) has {len(values)} widget values,"
                             f" {len(names)} were expected: {', '.join(names)}")
        inputs = dict(zip(names, values))
        inputs.pop(CONTROL, None)
        inputs.update({port["name"]: sources[port["link"]] for port in node.get("inputs", [])
                       if port.get("link") is not None})
        prompt[str(node["id"])] = {"class_type": kind, "inputs": inputs,
                                   "_meta": {"title": title(node, object_info)}}
    return prompt


def title(node: dict, object_info: dict) -> str:
    return node.get("title") or object_info[node["type"]]["display_name"]


def numbered(prompt: dict, title: str) -> str:
    """The number of the node with that title."""
    number, = (number for number, node in prompt.items() if node["_meta"]["title"] == title)
    return number
