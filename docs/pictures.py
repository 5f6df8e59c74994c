"""Draws the pictures of the guide: ``python docs/pictures.py`` writes docs/images/*.svg.

Letters are outlines and the ground is light, so a page in dark colours or without the font shows them so.
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "tfxc", "font.size": 13})

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402

IMAGES = Path(__file__).resolve().parent / "images"
GROUND, INK, FAINT = "#f6f7f9", "#20242b", "#5b6472"
GREY, BLUE, ORANGE, GREEN = "#dfe3e9", "#cfe1f7", "#fbdcb8", "#d2ebd2"
LABEL, NEGATIVE, UNTOUCHED = "#0b57c2", "#e06c00", "#c9d0da"


def canvas(height):
    """Axes of one unit an inch that fill a figure as wide as a phone can show with legible letters."""
    figure = plt.figure(figsize=(6, height), facecolor=GROUND)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 6), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def write(figure, name):
    figure.savefig(IMAGES / f"{name}.svg", facecolor=GROUND, metadata={"Date": None, "Creator": None})


def box(axes, y, colour, title, question, choices):
    axes.add_patch(
        FancyBboxPatch((1.05, y), 3.9, 1.05, boxstyle="round,pad=0,rounding_size=0.12", fc=colour, ec=INK)
    )
    axes.text(1.25, y + 0.74, title, weight="bold", color=INK, va="center")
    axes.text(2.35, y + 0.74, question, color=INK, va="center", size=11.5)
    axes.text(1.25, y + 0.3, choices, color=FAINT, va="center", size=11)


def arrow(axes, points, text="", **style):
    """A line through the points whose end has a head, and words beside its middle."""
    xs, ys = zip(*points, strict=True)
    axes.plot(xs, ys, color=INK, lw=1.5, solid_capstyle="butt", **style)
    axes.annotate(
        "", points[-1], points[-2], arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 0, "shrinkA": 0}
    )
    axes.text(xs[0] + 0.15, (ys[0] + ys[-1]) / 2, text, color=FAINT, size=11, va="center")


def three_parts():
    """Encoder, sampler, head and loss, and what passes between them in a training step."""
    figure, axes = canvas(6.3)
    box(axes, 5.05, GREY, "encoder", "any Keras model", "inputs to queries [B, D]")
    box(axes, 3.45, BLUE, "sampler", "which classes are scored?", "MIDX, Unigram, InBatch, ...")
    box(axes, 1.85, ORANGE, "head", "how is a class scored?", "DenseHead, MACHHead, ...")
    box(axes, 0.25, GREEN, "loss", "how wrong are the scores?", "SoftmaxCrossentropy, ...")
    arrow(axes, [(3, 5.05), (3, 4.5)], "queries")
    arrow(axes, [(3, 3.45), (3, 2.9)], "labels and candidates")
    arrow(axes, [(3, 1.85), (3, 1.3)], "their scores")
    arrow(axes, [(1.05, 5.55), (0.65, 5.55), (0.65, 2.4), (1.05, 2.4)])
    for y in (2.4, 5.55):
        arrow(axes, [(4.95, 0.75), (5.35, 0.75), (5.35, y), (4.95, y)], ls=(0, (4, 2)))
    turned = {"color": FAINT, "size": 11, "rotation": 90, "ha": "center", "va": "center"}
    axes.text(0.4, 3.97, "queries", **turned)
    axes.text(5.62, 3.97, "gradients, of touched rows only", **turned)
    write(figure, "three_parts")


def touched_rows(columns=125, rows=80, negatives=100):
    """A million classes, a hundred in each square, and the squares in which a query touches one."""
    figure, axes = canvas(4.9)
    side = 5.5 / columns
    left, bottom, label = 0.25, 4.65 - rows * side, np.array([48, 44])
    axes.add_patch(plt.Rectangle((left, bottom), columns * side, rows * side, fc=UNTOUCHED))
    lines = {"color": GROUND, "lw": 0.4}
    axes.vlines(left + side * np.arange(columns), bottom, bottom + rows * side, **lines)
    axes.hlines(bottom + side * np.arange(rows), left, left + columns * side, **lines)
    # Most negatives are like the label, and some are anywhere.
    drawn = np.random.default_rng(3).standard_t(1.3, (20 * negatives, 2)) * 7 + label
    drawn = drawn[np.all((drawn > 0) & (drawn < (columns - 1, rows - 1)), axis=1)].astype(int)
    near = list(dict.fromkeys(map(tuple, drawn.tolist())))
    for colour, squares in ((NEGATIVE, near[:negatives]), (LABEL, [tuple(label)])):
        for column, row in squares:
            corner = (
                left + (column - 0.2) * side,
                bottom + (row - 0.2) * side,
            )  # larger than its square, to be seen
            axes.add_patch(plt.Rectangle(corner, 1.4 * side, 1.4 * side, fc=colour, zorder=3))
    legend = (0.3, LABEL, "the label"), (1.75, NEGATIVE, "100 negatives"), (3.75, UNTOUCHED, "not touched")
    for x, colour, text in legend:
        axes.add_patch(plt.Rectangle((x, 0.7), 0.17, 0.17, fc=colour))
        axes.text(x + 0.27, 0.785, text, color=INK, va="center", size=12)
    axes.text(0.3, 0.33, "1,000,000 classes, 100 in each square", color=FAINT, va="center", size=12)
    write(figure, "touched_rows")


if __name__ == "__main__":
    three_parts()
    touched_rows()
