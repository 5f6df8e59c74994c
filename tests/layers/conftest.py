import pytest

from tfxc.layers import UniformSparseHead, head


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks of a few classes, so that small heads have many, the last one incomplete."""
    for name, value in (("_BLOCK_ELEMENTS", 24), ("_BLOCK_MIN", 3)):
        monkeypatch.setattr(head, name, value)
    for kind in (head.Head, UniformSparseHead):
        monkeypatch.setattr(kind, "max_block_size", 8)
