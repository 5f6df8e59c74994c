"""Tags from titles by what reads them, a small Transformer or a bag of words, over several seeds.

The arguments after ``--`` go to examples/product_tags.py, which trains the models; a killed run resumes:

    python benchmarks/title_quality.py --seeds 0 1 2 -- --encoders distilbert bag --label-texts

The Transformer needs KerasHub.
"""

import sys
from pathlib import Path

from _seeds import compare_over_seeds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import product_tags  # noqa: E402

COLUMNS = {
    "processor s": ("processor_seconds", "{:.0f}"),
    **{f"P@{k}": (f"precision_at_{k}", "{:.3f}") for k in (1, 3, 5)},
}

if __name__ == "__main__":
    compare_over_seeds(product_tags, __doc__, COLUMNS, first="encoder")
