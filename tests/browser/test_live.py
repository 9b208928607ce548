"""The picture forms in the sampler while it runs.

With BAYESDIFF_PICTURES=1 an animated picture of that goes to docs/images, for README.md.
"""

import io
import os

from PIL import Image

from tests.browser.conftest import SCREENSHOTS
from tests.browser.graphs import add_nodes, until
from tests.browser.test_panels import KINDS, NODES, PLACES, SAMPLING, SEEDS, Panel
from tools.places import REPOSITORY

# What the panel shows at each change of its slider's end, while the run goes on.
WATCH = """(root) => {
    window.formed = [];
    const slider = root.querySelector("[aria-label=step]");
    const words = root.querySelector(".bayesdiff-body .bayesdiff-caption");
    new MutationObserver(() => {
        if (words.textContent !== window.formed.at(-1)?.words) window.formed.push({
            words: words.textContent, steps: +slider.max + 1,
            stale: root.hasAttribute("data-stale"),
            pixels: root.querySelector("canvas").toDataURL() });
    }).observe(words, { childList: true, characterData: true, subtree: true });
}"""


@KINDS
def test_the_picture_forms_with_its_map_while_the_sampler_runs(page, nodes_2, screenshot):
    page.evaluate("(on) => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)",
                  nodes_2)
    sampler = {**SAMPLING, "mode": "free", "seed": 70_000 + next(SEEDS), "steps": 60,
               "keep_steps": 6}
    nodes = {name: NODES[name] for name in list(NODES)[:4]}
    add_nodes(page, {**nodes, "BayesDiff_KSampler": sampler,
                     "VAEDecode": NODES["VAEDecode"],
                     "PreviewImage": {"images": ["VAEDecode", 0]}}, PLACES)
    page.evaluate("() => Object.assign(window.app.canvas.ds, { scale: 0.9, offset: [60, 80] })")
    viewer = Panel(page, "KSampler", "viewer")
    viewer.tell(f"({WATCH})(root)")
    page.get_by_test_id("queue-button").click()
    until(page, "window.formed.length === 3")
    screenshot()
    viewer.wait("/^Result/.test(root.querySelector('.bayesdiff-body .bayesdiff-caption')"
                ".textContent)")
    formed = page.evaluate("() => window.formed")
    before = [each for each in formed if each["words"].startswith("After")]
    assert [each["words"].split(":")[0] for each in before] == [
        f"After {step} of 60 steps" for step in (0, 12, 24, 36, 48)]
    assert [each["steps"] for each in before] == [1, 2, 3, 4, 5]  # one can go back
    assert not any(each["stale"] for each in before)
    assert len({each["pixels"] for each in before}) == 5
    assert all("what still changed late" in each["words"] for each in before)
    viewer.find("[aria-label=step]").focus()
    page.keyboard.press("Home")
    viewer.wait("/^After 0 of 60/.test(root.querySelector('.bayesdiff-body .bayesdiff-caption')"
                ".textContent)")
    assert viewer.pixels() == before[0]["pixels"]  # the same, when it is played again
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', false)")


def test_the_scrubber_plays_the_picture_forming(page):
    sampler = {**SAMPLING, "mode": "free", "seed": 3, "steps": 40, "keep_steps": 21,
               "check": "quick"}
    sampler.pop("posterior")
    nodes = {name: NODES[name] for name in list(NODES)[:4]}
    add_nodes(page, {**nodes, "BayesDiff_KSampler": sampler, "VAEDecode": NODES["VAEDecode"],
                     "PreviewImage": {"images": ["VAEDecode", 0]}},
              {**PLACES, "BayesDiff_KSampler": [330, 60, 380, 900]})
    page.evaluate("() => Object.assign(window.app.canvas.ds, { scale: 1, offset: [0, 60] })")
    viewer = Panel(page, "KSampler", "viewer")
    page.get_by_test_id("queue-button").click()
    viewer.wait("/^Result/.test(root.querySelector('.bayesdiff-body .bayesdiff-caption')"
                ".textContent)")
    page.mouse.move(5, 500)
    frames, pixels = [], set()
    for step in range(21):
        viewer.tell("(root.querySelector('[aria-label=step]').value = given,"
                    " root.querySelector('[aria-label=step]').dispatchEvent(new Event('input')))",
                    step)
        words = "Result" if step == 20 else f"After {2 * step} of 40 steps"
        viewer.wait("root.querySelector('.bayesdiff-body .bayesdiff-caption').textContent"
                    f".startsWith('{words}')")
        pixels.add(viewer.pixels())
        shot = viewer.find(".bayesdiff-body").screenshot()
        frames.append(Image.open(io.BytesIO(shot)).convert("RGB"))
    assert len(pixels) == 21
    asked = os.environ.get("BAYESDIFF_PICTURES")
    folder = REPOSITORY / "docs" / "images" if asked else SCREENSHOTS
    folder.mkdir(exist_ok=True)
    path = folder / "scrubber.webp"
    frames[0].save(path, save_all=True, append_images=frames[1:], loop=0, quality=75,
                   duration=[300] * 20 + [2500])
    assert path.stat().st_size < 1_000_000
