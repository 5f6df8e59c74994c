"""Which classes score best: an inverted index that goes into an exported model, and indices of FAISS."""

from tfxc.search.faiss_index import faiss_index
from tfxc.search.inverted_index import InvertedIndex

__all__ = ["InvertedIndex", "faiss_index"]
