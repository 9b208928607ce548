"""Data sets that a program draws, so that any picture's distance to them can be computed.

A world has `draw(n, generator)`, `spoilt(n, generator)`, `nearest(pictures)` and `CONTRAST`.
"""

from benchmarks.worlds import gaussians, hands, shapes

PICTURES = {"hands": hands, "shapes": shapes}
WORLDS = {**PICTURES, "gaussians": gaussians}
