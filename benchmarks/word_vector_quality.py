"""Word vectors from the words around each word, by sampler, over several seeds.

The arguments after ``--`` go to examples/skip_gram.py, which trains the models; an interrupted run resumes:

    python benchmarks/word_vector_quality.py --seeds 0 1 2 -- --samplers full uniform log-uniform unigram lsh

The loss is over all words, and P@1 is the share of words whose best guess is a word beside them.
"""

import sys
from pathlib import Path

from _seeds import compare_over_seeds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import skip_gram  # noqa: E402

COLUMNS = {"loss": ("loss", "{:.3f}"), "P@1": ("precision_at_1", "{:.3f}")}

if __name__ == "__main__":
    compare_over_seeds(skip_gram, __doc__, COLUMNS)
