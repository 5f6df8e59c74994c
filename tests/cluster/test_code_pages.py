"""Code in memory: what is given back goes, and comes again when it runs."""

import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tfxc.cluster.code_pages import release_code_pages


def resident_file_bytes():
    fields = dict(
        line.split(":") for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    )
    return 1024 * int(fields["RssFile"].split()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="by madvise")
def test_code_that_only_imports_ran_goes_and_all_works_on():
    table = tf.Variable(tf.ones([100, 8]))
    release_code_pages()
    assert resident_file_bytes() < 64 << 20  # TensorFlow alone leaves hundreds
    assert float(tf.reduce_sum(tf.matmul(table, table, transpose_a=True))) == 6400.0


def test_on_other_systems_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    release_code_pages()
