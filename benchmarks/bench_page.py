"""What our files add to the time in which ComfyUI's page becomes ready, in Chromium.

Pages with and without our scripts take turns on one server; without means that the browser gets
empty files for them. Ready is when the graph is there and all nodes are registered. Writes
benchmarks/results/page.json.

    python run.py bench page [TURNS]
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from benchmarks.report import write
from tools import browser, server

OURS = "**/extensions/ComfyUI-BayesDiff/*"
READY = "() => window.app?.graph && window.LiteGraph?.registered_node_types?.BayesDiff_ModelInfo"
SIZES = ("() => performance.getEntriesByType('resource').filter((entry) =>"
         " entry.name.includes('/extensions/ComfyUI-BayesDiff/')).map((e) => e.decodedBodySize)")

# Both go through a handler, which takes time of its own.
HANDLERS = {"with": lambda route: route.continue_(),
            "without": lambda route: route.fulfill(body="", content_type="text/javascript")}


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    times, sizes = {"with": [], "without": []}, []
    with tempfile.TemporaryDirectory() as base, \
            server.running(Path(os.environ["BAYESDIFF_HOST"]), Path(sys.executable), Path(base),
                           log=Path(base) / "log") as address, sync_playwright() as playwright:
        server.ask(address, "/settings", {"Comfy.TutorialCompleted": True})
        chromium = playwright.chromium.launch(executable_path=browser.chromium(),
                                              args=["--no-sandbox", "--disable-gpu"])
        for turn in range(turns + 1):  # the first one warms up
            for name, found in times.items():
                page = chromium.new_page()
                page.route(OURS, HANDLERS[name])
                page.goto(address)
                page.wait_for_function(READY, polling=5)
                if turn:
                    found.append(page.evaluate("() => performance.now()"))
                if name == "with":
                    sizes = page.evaluate(SIZES)
                page.close()
        chromium.close()
    medians = {name: statistics.median(found) for name, found in times.items()}
    differences = [a - b for a, b in zip(times["with"], times["without"])]
    write("page", [{"files": len(sizes), "kilobytes": round(sum(sizes) / 1000, 1),
                    "ready_ms": round(medians["with"]),
                    "ready_without_ms": round(medians["without"]),
                    "added_ms": round(statistics.median(differences))}],
          turns=turns, differences_ms=[round(each) for each in differences])


if __name__ == "__main__":
    main()
