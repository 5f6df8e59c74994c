"""The plots of a report, as SVG that takes its colours and letters from the page."""

import io
import re

import numpy as np

# What stands in a plot for a colour of the page, whose style sheet knows light and dark.
_NAMES = "ink", "line", "first", "second", "third"
_COLOURS = {f"#0{number}0{number}0{number}": f"var(--{name})" for number, name in enumerate(_NAMES, 1)}
_INK, _LINE, *_BARS = _COLOURS
_STYLE = {
    **{"svg.fonttype": "none", "svg.hashsalt": "tfxc", "font.size": 11, "grid.color": _LINE},
    **dict.fromkeys(["axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "text.color"], _INK),
    **dict.fromkeys(["axes.grid", "axes.axisbelow"], True),
    **dict.fromkeys(["axes.spines.top", "axes.spines.right", "legend.frameon"], False),
}


def require_matplotlib():
    """Raises ImportError, with the remedy, where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("A report draws its plots by matplotlib: pip install matplotlib.") from error


def bars(values: dict[str, np.ndarray], ticks, xlabel: str, ylabel: str) -> str:
    """Bars of shares [n] side by side above their ticks, for up to three names; NaN has no bar."""

    def draw(axes):
        width = 0.8 / len(values)
        for number, (name, heights) in enumerate(values.items()):
            places = np.arange(len(ticks)) + (number - (len(values) - 1) / 2) * width
            axes.bar(places, np.nan_to_num(heights), width, color=_BARS[number], label=name)
        axes.set_xticks(np.arange(len(ticks)), ticks)
        axes.grid(axis="x", visible=False)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.yaxis.set_major_formatter("{x:.3g}")
        if len(values) > 1:
            axes.legend()

    return _svg(draw)


def reliability(predicted: np.ndarray, observed: np.ndarray, num: np.ndarray) -> str:
    """Observed shares against predicted probabilities, a disc for each bin, larger for more examples."""

    def draw(axes):
        shown = observed > 0  # a logarithmic scale has no 0
        least = min([*predicted[shown], *observed[shown], 0.1]) / 2
        axes.plot([least, 1], [least, 1], color=_INK, lw=1, ls="--", label="as often as it says")
        sizes = 20 + 300 * num[shown] / max(num.max(), 1)
        axes.scatter(predicted[shown], observed[shown], sizes, color=_BARS[0], alpha=0.8, zorder=3)
        axes.set(xscale="log", yscale="log", xlabel="probability of the best class", ylabel="share of hits")
        axes.legend(loc="upper left")

    return _svg(draw)


def _svg(draw):
    """An SVG element that fills the width of the page; ``draw(axes)`` draws it."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure((5.4, 3.2), layout="constrained")
        draw(figure.subplots())
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # another plot has the same
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for placeholder, colour in _COLOURS.items():
        text = text.replace(placeholder, colour)
    return text
