"""A page with all pictures of a choice, the surest first. One file that needs no server."""

import html
import os
from pathlib import Path
from urllib.parse import quote

from fleet.choosing import Choice, Chosen
from fleet.sideways import replaced

FILE = "gallery.html"

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 0; background: #1b1b1d; color: #ddd }}
header {{ position: sticky; top: 0; background: #242428; padding: 10px 16px; z-index: 1;
  display: flex; flex-wrap: wrap; gap: 6px 20px; align-items: center }}
h1 {{ font-size: 16px; margin: 0 }} label {{ user-select: none }}
select, input {{ font: inherit; background: #333; color: inherit; border: 1px solid #555;
  border-radius: 4px; padding: 1px 4px }}
main {{ display: grid; gap: 10px; padding: 16px;
  grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)) }}
figure {{ margin: 0; background: #242428; border-radius: 6px; overflow: hidden;
  border: 2px solid #3b7d4f }}
figure.rejected {{ border-color: #a3473d }} figure.rejected img {{ opacity: .55 }}
img {{ width: 100%; display: block; aspect-ratio: 1; object-fit: contain; background: #111 }}
figcaption {{ padding: 4px 8px 6px; overflow-wrap: anywhere }}
b {{ font-variant-numeric: tabular-nums }} .small {{ color: #999 }}
.only-kept .rejected, .only-rejected .kept {{ display: none }}
details {{ flex-basis: 100% }}
</style></head><body>
<header><h1>{title}</h1>
<span>{kept} kept, {rejected} rejected by {score}; the surest first. Unsure is not the same as bad.
</span>
<label>show <select id="side"><option value="">all</option><option value="only-kept">kept</option>
<option value="only-rejected">rejected</option></select></label>
<label>prompt or seed <input id="words" size="12"></label>
<details><summary>how it was decided</summary><ul>{notes}</ul></details></header>
<main>
{figures}
</main>
<script>
const main = document.querySelector("main");
document.getElementById("side").onchange = (e) => {{ main.className = e.target.value; }};
document.getElementById("words").oninput = (e) => {{
  const words = e.target.value.toLowerCase();
  for (const figure of main.children)
    figure.hidden = !figure.dataset.words.includes(words);
}};
</script>
</body></html>
"""

FIGURE = """<figure class="{side}" data-words="{words}"><a href="{file}"><img src="{file}" \
loading="lazy" alt="seed {seed}"></a><figcaption><b>{score:.4g}</b> seed {seed}<br>\
<span class="small">{group}</span></figcaption></figure>"""


def write(choice: Choice, source: Path, folder: Path, title: str) -> Path:
    kept = sum(each.kept for each in choice.pictures)
    page = PAGE.format(
        title=html.escape(title), score=html.escape(choice.name), kept=kept,
        rejected=len(choice.pictures) - kept,
        notes="".join(f"<li>{html.escape(note)}</li>" for note in choice.notes),
        figures="\n".join(_figure(each, source, folder) for each in choice.pictures))
    with replaced(folder / FILE) as part:
        part.write_text(page, encoding="utf-8")
    return folder / FILE


def _figure(each: Chosen, source: Path, folder: Path) -> str:
    picture = each.picture
    file = quote(os.path.relpath(source / picture.file, folder).replace(os.sep, "/"))
    return FIGURE.format(side="kept" if each.kept else "rejected", file=file, seed=picture.seed,
                         score=each.score, group=html.escape(each.group),
                         words=html.escape(f"{each.group} {picture.seed}".lower(), quote=True))
