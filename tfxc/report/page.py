"""The HTML of a report: one file with its style and plots in it."""

import datetime
import html
from collections.abc import Iterable

import numpy as np

from tfxc.metrics.popularity import popularity_deciles
from tfxc.report.measurements import ODDS
from tfxc.report.plots import bars, reliability
from tfxc.samplers.mixture import has_index

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #20242b; --faint: #5b6472; --line: #dfe3e9;
  --first: #0b57c2; --second: #e06c00; --third: #1d8a4a; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #15181d; --ink: #e4e7ec; --faint: #a0a8b5; --line: #343a44;
    --first: #6ea8fe; --second: #ffa94d; --third: #5fd38d; } }
body { background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 60rem; padding: 1rem; overflow-wrap: anywhere; }
h1, h2 { line-height: 1.2; } h1 { font-size: clamp(1.4rem, 6vw, 2rem); }
h2 { margin-top: 2.5rem; }
.faint { color: var(--faint); }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr));
  gap: 1.5rem; }
figure { margin: 0; } svg { width: 100%; height: auto; font-family: inherit; }
.table { overflow-x: auto; } table { border-collapse: collapse; overflow-wrap: normal; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .75rem .25rem 0; text-align: right;
  vertical-align: top; }
th { font-weight: 600; } th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere;
  min-width: 5.5rem; }
@media (max-width: 30rem) { table { font-size: .8rem; } th, td { padding-right: .4rem; }
  th:first-child, td:first-child { min-width: 4rem; } }
"""


def page_of(model, measured, figures, counts, num_named) -> str:
    """The page about what was ``measured``; arguments as of ``report``, figures those of the measurements."""
    head, k = model.head, measured.k
    sections = [
        _intro(model, measured),
        _table(("", ""), ((name.replace("_", " "), _number(value)) for name, value in figures.items())),
        *_popularity(measured, counts),
        *_calibration(measured, type(head).__name__),
        *_classes(model, measured, num_named),
        *_sampler(model, measured),
    ]
    title = f"{type(head).__name__} of {head.num_classes:,} classes, the {k} best"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n'
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def _intro(model, measured):
    loss = model.classification_loss
    trained = "all classes" if model.sampler is None else f"the draws of {type(model.sampler).__name__}"
    text = (
        f"{measured.num_examples:,} examples with {measured.labels.sum():,} labels, measured on "
        f"{datetime.date.today():%Y-%m-%d}. Loss: {type(loss).__name__}, in training over {trained}; here "
        "over all classes."
    )
    return _faint(text) + _faint(model.head.describe())


def _popularity(measured, counts):
    """By decile: recall, and shares of recommendations and labels."""
    source = "training" if counts is not None else "these data, as no training counts were given"
    counts = measured.labels if counts is None else counts
    deciles = popularity_deciles(counts).ids
    labels, found, *recommended = (
        np.bincount(deciles, of_class, minlength=10)
        for of_class in (measured.labels, measured.found, measured.first, measured.recommended)
    )
    with np.errstate(invalid="ignore"):
        recall = found / labels
    names = "ranked first", f"{measured.k} best", "labels"
    sums = (*recommended, labels)
    shares = {name: of_decile / of_decile.sum() for name, of_decile in zip(names, sums, strict=True)}
    ticks = [str(number) for number in range(1, 11)]
    rows = (
        (
            ticks[number],
            f"{np.count_nonzero(deciles == number):,}",
            _span(counts[deciles == number]),
            _number(recall[number]),
            *(f"{share[number]:.1%}" for share in shares.values()),
        )
        for number in np.unique(deciles)
    )
    yield "<h2>By popularity</h2>"
    yield _faint(
        "Each decile holds a tenth of the classes, 1 the most frequent ones; classes of one count share a "
        f"decile. Counts are those of labels in {source}. Recall is the share of a decile's labels that are "
        f"among the {measured.k} best."
    )
    yield _plots(
        ("Recall by popularity decile", bars({"recall": recall}, ticks, "popularity decile", "recall")),
        ("Shares by popularity decile", bars(shares, ticks, "popularity decile", "share")),
    )
    yield _table(("decile", "classes", "counts", "recall", *names), rows)


def _calibration(measured, head):
    yield "<h2>Calibration</h2>"
    bins = measured.calibration
    if bins is None:
        yield _faint("Scores of this loss are no probabilities, so there is nothing to compare with hits.")
        return
    shown = np.flatnonzero(bins.num)
    num = bins.num[shown]
    predicted, observed = bins.predicted[shown] / num, bins.observed[shown] / num
    yield _faint(
        f"Where the probabilities of the {head} are right, the best class is a label in that share of the "
        "examples, and points lie on the line. Below it the model is too sure. "
        f"Expected calibration error: {_number(bins.error)}. The table alone shows bins without a hit."
    )
    yield _plots(("Share of hits by probability", reliability(predicted, observed, num)))
    rows = (
        (_odds(power), f"{n:,}", _number(mean), _number(share))
        for power, n, mean, share in zip(ODDS[shown], num, predicted, observed, strict=True)
    )
    yield _table(("odds of the best class", "examples", "probability", "hits"), rows)


def _classes(model, measured, num_named):
    """The classes that come first more often, or less often, than their share of the labels."""
    expected = measured.labels / measured.labels.sum() * measured.first.sum()
    excess, names = measured.first - expected, model.class_names
    for title, sign in (("too often", 1), ("too rarely", -1)):
        largest = np.argsort(-sign * excess, kind="stable")[:num_named]  # of equal classes the lower ids
        rows = (
            (
                f"class {own}" if names is None else names[int(own)],
                f"{measured.first[own]:,}",
                f"{expected[own]:,.1f}",
                f"{measured.recommended[own]:,}",
                f"{measured.labels[own]:,}",
                f"{measured.found[own]:,}",
            )
            for own in largest[sign * excess[largest] > 0]
        )
        yield f"<h2>Recommended {title}</h2>"
        yield _faint(
            "Classes with the largest difference between how often they ranked first and how often they "
            "would have by their share of the labels."
        )
        columns = "class", "first", "expected", f"{measured.k} best", "labels", "found"
        yield _table(columns, rows)


def _sampler(model, measured):
    if model.sampler is None:
        return
    yield "<h2>Sampler</h2>"
    name, quality = type(model.sampler).__name__, measured.proposal
    if quality is None:
        yield _faint(f"{name} does not know how often it draws a class, so nobody can compare it.")
        return
    yield _faint(
        f"How near the draws of {name} are to the softmax over all classes, as means over up to 256 queries."
    )
    num_draws = getattr(model.sampler, "num_negatives", None)
    effective = "effective draws: as many from the softmax itself would do as well"
    rows = {
        "draws for a query": "-" if num_draws is None else f"{num_draws:,}",
        effective: _number(quality["effective_sample_size"]),
        "divergence from the softmax, in nats": _number(quality["kl"]),
        "share of draws that are labels": _number(quality["accidental_hits"]),
    }
    if has_index(model.sampler):
        history = getattr(getattr(model, "history", None), "history", {})
        age = history.get("sampler/index_age", [np.nan])[-1]
        rows["age of the index at the end of training, in steps"] = _number(age)
    yield _table(("", ""), rows.items())


def _odds(power):
    return f"{2.0**power:,.0f} : 1" if power >= 0 else f"1 : {2.0**-power:,.0f}"


def _span(counts):
    if not len(counts):
        return "-"
    least, most = f"{counts.min():,.0f}", f"{counts.max():,.0f}"
    return least if least == most else f"{least} to {most}"


def _number(value):
    return "-" if np.isnan(value) else f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def _faint(text):
    return f'<p class="faint">{html.escape(text)}</p>'


def _plots(*plots: tuple[str, str]) -> str:
    parts = (f'<figure role="img" aria-label="{html.escape(title)}">{svg}</figure>' for title, svg in plots)
    return f'<div class="plots">{"".join(parts)}</div>'


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of texts, which are escaped; no head where all columns are without a name."""
    columns = list(columns)

    def line(tag, cells):
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    head = line("th", columns) if any(columns) else ""
    body = "\n".join(line("td", row) for row in rows)
    return f'<div class="table"><table>{head}\n{body}</table></div>'
