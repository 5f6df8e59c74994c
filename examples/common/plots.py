"""The plots of the programs, as PNG: quality against training time, and samplers' proposals."""

import numpy as np

try:
    import matplotlib
except ModuleNotFoundError as error:  # at the start instead of after hours of training
    raise SystemExit("This program draws its results: pip install '.[examples]' in a clone.") from error

matplotlib.use("Agg")
from matplotlib import cycler, pyplot  # noqa: E402

_MOST_NAMED = 5  # the most curves with names at their ends


def plot(histories, path, metric="val_ndcg_at_10", label="validation NDCG@10", title=None, clock="seconds"):
    """Draws a validation metric against training time, a curve for each run, as PNG.

    A few curves have names at their ends; many curves have a legend, and a logarithmic scale of time.

    The curve of a run with measurements on a sample within its epochs shows these. The clock is "seconds", or
    "processor_seconds" over all cores, which other programs disturb less.
    """
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    # There may be more runs than the ten colours.
    styles = cycler(linestyle=["-", ":"], marker=[".", "x"])
    axes.set_prop_cycle(styles * matplotlib.rcParams["axes.prop_cycle"])
    for name, rows in histories.items():
        points = [(point[clock], point["quality"]) for row in rows for point in row.get("curve", ())]
        points = points or [(row[clock], row[metric]) for row in rows]
        (line,) = axes.plot(*zip(*points, strict=True), label=name)
        if len(histories) <= _MOST_NAMED:
            annotate = {"textcoords": "offset points", "color": line.get_color(), "va": "center"}
            axes.annotate(name, points[-1], (6, 0), **annotate)
    if len(histories) > _MOST_NAMED:
        axes.set_xscale("log")
        axes.legend(fontsize="small")
    axes.set(xlabel={"seconds": "training time (s)"}.get(clock, "processor time (s)"), ylabel=label)
    axes.margins(x=0.12)
    axes.grid(alpha=0.3)
    if title:
        axes.set_title(title, loc="left", fontsize="medium")
    figure.savefig(path, dpi=120)


def plot_proposals(curves, path):
    """Draws cumulative probability against rank by score, a curve for each proposal, as PNG."""
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name, curve in curves.items():
        style = {"color": "black", "linestyle": "--"} if name == "full" else {}
        axes.plot(np.arange(1, len(curve) + 1), curve, label=name, **style)
    axes.set(xscale="log", xlabel="classes, by falling score", ylabel="cumulative probability")
    axes.grid(alpha=0.3)
    if curves:
        axes.legend()
    figure.savefig(path, dpi=120)
