"""Quality of a sequential recommender by sampler, over several seeds, with equal budgets.

The arguments after ``--`` go to examples/sequential_recommendation.py, which trains the models; an
interrupted run resumes. For example, with MovieLens-1M as lines of ``user item``, oldest first:

    python benchmarks/recommendation_quality.py --seeds 0 1 -- --data ml-1m.txt --output runs/ml-1m \\
        --format interactions --max-length 200 --epochs 24 --patience 4 \\
        --num-codewords 32 --samplers full midx-rq

Without arguments it uses the bundled novels, one epoch and one seed.
"""

import sys
from pathlib import Path

from _seeds import compare_over_seeds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import sequential_recommendation  # noqa: E402

COLUMNS = {"NDCG@10": ("ndcg_at_10", "{:.4f}"), "Recall@10": ("recall_at_10", "{:.4f}")}
SHARE = "NDCG of full", "ndcg_at_10", "{:.1%}"

if __name__ == "__main__":
    compare_over_seeds(sequential_recommendation, __doc__, COLUMNS, SHARE)
