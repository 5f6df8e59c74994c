"""Search for the best classes: an inverted index that is exported, FAISS indices, and attributes."""

from tfxc.search.attributes import Attributes
from tfxc.search.faiss_index import faiss_index
from tfxc.search.inverted_index import InvertedIndex

__all__ = ["Attributes", "InvertedIndex", "faiss_index"]
