"""However many threads a kernel runs on, and however wide its vectors, its results have the same bits."""

from pathlib import Path

import pytest
from processes import Process

DIGESTS = """
import hashlib
import tensorflow as tf
from kernel_calls import CALLS

for name, (call, *arrays) in CALLS.items():
    found = call(*map(tf.constant, arrays))
    print(hashlib.sha256(b"".join(part.numpy().tobytes() for part in found)).hexdigest(), name)
"""
AVX2 = Path(__file__).parents[2] / "build/custom_ops/x86-64-v3/_tfxc_ops.so"  # by `make setup-tests`
NARROW = {"TFXC_OPS_LIBRARY": str(AVX2)} if AVX2.exists() else {}


@pytest.mark.long
@pytest.mark.kernels
def test_neither_threads_nor_the_width_of_vectors_change_a_bit(capsys):
    other = Process(DIGESTS, TF_NUM_INTRAOP_THREADS="4", **NARROW)
    exec(DIGESTS, {})  # here on one thread, or on two: see conftest.py
    assert capsys.readouterr().out == other.output()
