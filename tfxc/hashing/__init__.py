"""Families of hash functions: locality-sensitive codes of vectors, and universal hashing of class ids."""

from tfxc.hashing.lsh import draw_dwta, draw_simhash, dwta, simhash
from tfxc.hashing.universal import UniversalHash, next_prime, universal_coefficients

__all__ = [
    "UniversalHash",
    "draw_dwta",
    "draw_simhash",
    "dwta",
    "next_prime",
    "simhash",
    "universal_coefficients",
]
