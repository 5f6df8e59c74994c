"""Limits of malloc: glibc keeps what is freed, or gives it back."""

from malloc_checks import BLOCK, needs_glibc, return_all_at_once, returned_bytes

from tfxc.malloc import keep_large_blocks, return_large_blocks

pytestmark = needs_glibc


def test_large_blocks_stay_unless_the_environment_tunes_malloc(monkeypatch):
    return_all_at_once()
    assert returned_bytes() >= BLOCK
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    keep_large_blocks()
    assert returned_bytes() >= BLOCK
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    keep_large_blocks()
    assert returned_bytes() == 0


def test_large_blocks_go_back(monkeypatch):
    keep_large_blocks()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=8")
    return_large_blocks()
    assert returned_bytes() == 0
    monkeypatch.delenv("GLIBC_TUNABLES")
    return_large_blocks()
    assert returned_bytes() >= BLOCK
    keep_large_blocks()
