import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "ops"))  # references that the tests of ops share

import fuzz_block_draw  # noqa: F401
import fuzz_candidate_log_sum_exp  # noqa: F401
import fuzz_candidate_scores  # noqa: F401
import fuzz_dense_scan  # noqa: F401
import fuzz_files  # noqa: F401
import fuzz_hash_tables  # noqa: F401
import fuzz_mach_decode  # noqa: F401
import fuzz_midx_draw  # noqa: F401
import fuzz_readers  # noqa: F401
import fuzz_row_updates  # noqa: F401
import fuzz_sparse_head  # noqa: F401
import pytest
from fuzz_targets import CALLS, TARGETS, limited_memory  # noqa: F401


def marks_of(name):
    return () if name in ("readers", "odd_files", "hard_negative_files") else pytest.mark.kernels
