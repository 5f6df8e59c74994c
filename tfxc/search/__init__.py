"""Which classes score best: an inverted index that goes into an exported model."""

from tfxc.search.inverted_index import InvertedIndex

__all__ = ["InvertedIndex"]
