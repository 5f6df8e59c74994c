"""Samplers' proposals against the softmax of one trained head: figures, and probability by rank."""

import numpy as np

from common.training_log import markdown_table
from tfxc.samplers import DNS, Step, cumulative_probability, proposal_quality

NUM_CURVE_QUERIES = 64


def compare_proposals(head, named_samplers, query, labels):
    """Measures each sampler's proposal; an unused sampler first sees these queries, then the head.

    Args:
        head: a trained head.
        named_samplers: samplers by name; None is the softmax itself.
        query: queries [N, D].
        labels: positives [N, P].

    Returns:
        Means over the queries by name, ``{"kl": ..., "effective_sample_size": ..., "accidental_hits": ...}``,
        and the curves of cumulative probability by name, float [L]. ``DNS`` is left out, since the
        probabilities of its proposal are unknown.
    """
    rows, curves = {}, {}
    few = slice(None, None, -(-len(query) // NUM_CURVE_QUERIES))
    for name, sampler in named_samplers.items():
        if isinstance(sampler, DNS):
            continue
        if sampler is not None:
            if not sampler.built:
                sampler.build((head.num_classes, head.effective_dim))
                sampler.sample(Step(head.effective_query(query), labels))  # an index may depend on queries
                sampler.refresh(head)
            quality = proposal_quality(sampler, head, query, labels)
            rows[name] = {key: float(np.mean(value)) for key, value in quality._asdict().items()}
        curves[name] = cumulative_probability(sampler, head, query[few], labels[few])
    return rows, curves


def proposal_table(rows):
    """The figures as a Markdown table, the nearest proposal first."""
    lines = [
        [name, f"{row['kl']:.3f}", f"{row['effective_sample_size']:.2f}", f"{row['accidental_hits']:.2%}"]
        for name, row in sorted(rows.items(), key=lambda item: item[1]["kl"])
    ]
    return markdown_table(["proposal", "KL(softmax, Q)", "effective sample size", "accidental hits"], lines)
