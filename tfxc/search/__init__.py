"""Search for the best classes: an inverted index that goes into an exported model, and FAISS indices."""

from tfxc.search.faiss_index import faiss_index
from tfxc.search.inverted_index import InvertedIndex

__all__ = ["InvertedIndex", "faiss_index"]
