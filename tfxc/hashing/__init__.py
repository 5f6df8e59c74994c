"""Families of hash functions: locality-sensitive codes of vectors, and universal hashing of class ids."""
