"""Reads interactions, text and labelled points, splits them and feeds them to a model."""

from tfxc.data.batching import row_batches, with_example_ids
from tfxc.data.describe import describe
from tfxc.data.extreme_classification import (
    LabeledPoints,
    classification_dataset,
    read_extreme_classification,
    tfidf,
    write_extreme_classification,
)
from tfxc.data.filtering import CoreReport, k_core
from tfxc.data.growing_vocabulary import GrowingVocabulary
from tfxc.data.interactions import read_csv, read_interactions, read_sequences, read_sessions
from tfxc.data.names import Names
from tfxc.data.pipeline import sequence_evaluation_dataset, sequence_training_dataset, stream_dataset
from tfxc.data.sequence_folder import open_sequences
from tfxc.data.sequences import Column, Sequences
from tfxc.data.sparse_matrices import read_filter_labels, read_sparse_matrix, read_texts
from tfxc.data.splits import Split, leave_last_out, ratio_split, split_sessions, tail_split, time_split
from tfxc.data.tables import from_frame
from tfxc.data.text import read_text, read_tokens
from tfxc.data.vocabulary import Vocabulary

__all__ = [
    "Column",
    "CoreReport",
    "GrowingVocabulary",
    "LabeledPoints",
    "Names",
    "Sequences",
    "Split",
    "Vocabulary",
    "classification_dataset",
    "describe",
    "from_frame",
    "k_core",
    "leave_last_out",
    "open_sequences",
    "ratio_split",
    "read_csv",
    "read_extreme_classification",
    "read_filter_labels",
    "read_interactions",
    "read_sequences",
    "read_sessions",
    "read_sparse_matrix",
    "read_text",
    "read_texts",
    "read_tokens",
    "row_batches",
    "sequence_evaluation_dataset",
    "sequence_training_dataset",
    "split_sessions",
    "stream_dataset",
    "tail_split",
    "tfidf",
    "time_split",
    "with_example_ids",
    "write_extreme_classification",
]
