"""Exact perplexity of a language model by sampler, over several seeds, with equal budgets.

The arguments after ``--`` go to examples/language_model.py, which trains the models; an interrupted run
resumes. For example, with Penn Treebank as a folder of train, valid and test files:

    python benchmarks/language_quality.py --seeds 0 1 2 -- --data ptb --output runs/ptb --batch-size 32 \\
        --num-blocks 1 --epochs 6 --learning-rate 0.004 --refresh-steps 50 --samplers full midx-rq

Without arguments it uses the bundled novels and one seed.
"""

import sys
from pathlib import Path

from _seeds import compare_over_seeds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import language_model  # noqa: E402

COLUMNS = {
    "validation perplexity": ("validation_perplexity", "{:.1f}"),
    "test perplexity": ("perplexity", "{:.1f}"),
}

if __name__ == "__main__":
    compare_over_seeds(language_model, __doc__, COLUMNS, ("x full", "perplexity", "{:.3f}"))
