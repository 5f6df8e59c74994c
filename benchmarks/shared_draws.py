"""Draws of MIDX for each query beside draws that the batch shares, by next items.

The arguments after ``--`` go to examples/sequential_recommendation.py, which trains the models; an
interrupted run resumes. For example, with the sessions of Diginetica, a line of items each:

    python benchmarks/shared_draws.py --seeds 0 1 2 -- --data diginetica.txt \\
        --test-data diginetica-test.txt --format sessions --max-length 10 --batch-size 128 --epochs 2 \\
        --samplers full midx-rq shared-100 shared-1000 mean-query-1000

Shared draws come from the mean of the proposals of the batch's queries, "mean-query" draws from the proposal
of their mean. Without arguments it uses the bundled novels, one epoch and one seed.
"""

import sys
from functools import partial
from pathlib import Path

from _seeds import compare_over_seeds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import sequential_recommendation  # noqa: E402
from common.sampler_choice import SAMPLERS  # noqa: E402

import tfxc  # noqa: E402
from tfxc._keras import keras  # noqa: E402

COLUMNS = {
    "NDCG@10": ("ndcg_at_10", "{:.4f}"),
    "Recall@10": ("recall_at_10", "{:.4f}"),
    "processor s": ("processor_seconds", "{:.0f}"),
}
SHARE = "NDCG of full", "ndcg_at_10", "{:.1%}"


@keras.utils.register_keras_serializable("benchmarks")
class OfMeanQuery(tfxc.samplers.MIDX):
    """Shared draws from the proposal of the mean query."""

    def prepare(self, step):
        return super().prepare(step._replace(all_queries=None))


def shared(kind, num_draws, settings):
    return kind(num_draws, num_codewords=settings.num_codewords, shared=True)


for num_draws in (100, 1000, 4000):
    SAMPLERS[f"shared-{num_draws}"] = partial(shared, tfxc.samplers.MIDX, num_draws)
    SAMPLERS[f"mean-query-{num_draws}"] = partial(shared, OfMeanQuery, num_draws)

if __name__ == "__main__":
    compare_over_seeds(sequential_recommendation, __doc__, COLUMNS, SHARE)
