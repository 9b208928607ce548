"""The demo's page: one HTML file with everything in it."""

import base64
import html
import io
from pathlib import Path

from PIL import Image

SHOWN = 192  # pixels a side

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fafafa; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.row { display: flex; flex-wrap: wrap; gap: 12px; }
figure { margin: 0; width: min(192px, 22vw); }
img { width: 100%; border-radius: 6px; display: block; }
figcaption { font-size: .85rem; text-align: center; color: #555; }
.wrong figcaption, .bad { color: #b91c1c; } .right figcaption { color: #15803d; }
.rejected img { outline: 3px solid #b91c1c; } .kept img { outline: 3px solid #15803d; }
.peek { position: relative; } .peek img + img { position: absolute; inset: 0; }
.peek:hover img + img { opacity: 0; }
pre { background: #fff; border: 1px solid #ddd; border-radius: 6px; padding: 1rem; overflow: auto; }
"""


def write(path: Path, story, words: str) -> Path:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(_page(story, words), encoding="utf-8")
    part.replace(path)
    return path


def _page(story, words: str) -> str:
    wrong = len(story.found)
    at_random = sum(story.wrong) * len(story.rejected) / len(story.scores)
    mending = "".join(_mending(story, place) for place in story.found or story.rejected)
    batch = "".join(_one(story, place) for place in story.order)
    best = "".join(_figure([picture], "wrong" if bad else "right", "wrong" if bad else "right")
                   for picture, bad in zip(story.best, story.best_wrong))
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>ComfyUI-BayesDiff: what the model doubts</title><style>{STYLE}</style>
<h1>What the model doubts, and whether it is wrong there</h1>
<p>A small model drew {len(story.scores)} pictures of a {html.escape(story.name)}. The filter
rejected the {len(story.rejected)} that it doubts most. <b class="bad">{wrong} of these are
wrong</b>; at random it would be {at_random:.1f}. A program
counted, which knows exactly what a right one looks like.</p>
<h2>The mistake, the glow, and the same picture mended</h2>{mending}
<h2>All of them, the least doubted first</h2>
<p>Point at a picture to see it without the glow. Green: kept. Red: rejected.</p>
<div class="row">{batch}</div>
<h2>The surest of other seeds</h2>
<p>{len(story.chosen["runs"])} seeds were started and the {len(story.best)} surest finished:
{story.chosen["calls_saved"]} of {story.chosen["calls"] + story.chosen["calls_saved"]} network calls
saved.</p><div class="row">{best}</div>
<h2>In numbers</h2><pre>{html.escape(words.strip())}</pre>
</html>
"""


def _mending(story, place: int) -> str:
    after = "still wrong" if story.mended_wrong[place] else "mended"
    before = "drawn: wrong" if story.wrong[place] else "drawn"
    return ('<div class="row" style="margin-bottom: 12px">'
            + _figure([story.pictures[place]], before, "wrong" if story.wrong[place] else "")
            + _figure([story.glowing[place]], f"doubt {story.scores[place]:.3f}", "")
            + _figure([story.mended[place]], after,
                      "wrong" if story.mended_wrong[place] else "right") + "</div>")


def _one(story, place: int) -> str:
    kept = "rejected" if place in story.rejected else "kept"
    caption = f"{story.scores[place]:.3f}" + (", wrong" if story.wrong[place] else "")
    return _figure([story.pictures[place], story.compared[place]], caption,
                   f"{kept} {'wrong' if story.wrong[place] else ''}")


def _figure(pictures: list[Image.Image], caption: str, kind: str) -> str:
    images = "".join(f'<img src="{_data(picture)}" alt="">' for picture in pictures)
    return (f'<figure class="{kind}"><div class="peek">{images}</div>'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>")


def _data(picture: Image.Image) -> str:
    held = io.BytesIO()
    picture.resize((SHOWN, SHOWN), Image.Resampling.LANCZOS).save(held, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(held.getvalue()).decode()
