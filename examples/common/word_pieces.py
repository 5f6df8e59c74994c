"""Texts to ids of word pieces by TensorFlow's own ops, so that an exported model takes strings."""

import unicodedata
from collections import Counter

import numpy as np
import tensorflow as tf
from tensorflow import keras

PADDING, UNKNOWN, START, END = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_LONGEST = 24  # characters of a piece; of the pieces of BERT's vocabulary a handful are longer
_IN_THE_MIDDLE = "##"
_NUM_ENDINGS = 500
# ASCII's symbols count as punctuation, as BERT has it, and each Chinese character is a word.
_ALONE = r"([!-/:-@\[-`{-~\p{P}\p{Han}])"
_BASES = {code: ord(unicodedata.normalize("NFD", chr(code))[0]) for code in range(0xC0, 0x2000)}
_ACCENTED = np.array([[code, base] for code, base in _BASES.items() if code != base], np.int32)


def words_of(texts):
    """Lower-cased words without accents, and punctuation, of texts [B]: ragged strings [B, W]."""
    plain = tf.strings.lower(texts, "utf-8")
    codes = tf.strings.unicode_decode(plain, "UTF-8")
    place = tf.searchsorted(_ACCENTED[:, 0], codes.values)
    accented, base = tf.unstack(tf.gather(_ACCENTED, tf.minimum(place, len(_ACCENTED) - 1)), axis=1)
    codes = codes.with_values(tf.where(codes.values == accented, base, codes.values))
    plain = tf.strings.regex_replace(tf.strings.unicode_encode(codes, "UTF-8"), r"\p{Mn}", "")
    return tf.strings.split(tf.strings.regex_replace(plain, _ALONE, r" \1 "))


def make_vocabulary(texts, min_count=2):
    """The pieces of texts: special ones, characters, words that occur ``min_count`` times, and usual endings.

    A rarer word falls into a word that it begins with, endings and characters.
    """
    counts = Counter(word.decode() for word in words_of(tf.constant(list(texts))).values.numpy())
    characters = sorted(set("".join(counts)))
    words = [word for word, count in counts.most_common() if count >= min_count and len(word) > 1]
    endings = Counter(word[-size:] for word in counts for size in (2, 3, 4) if len(word) > size)
    inner = [*characters, *(ending for ending, _ in endings.most_common(_NUM_ENDINGS))]
    return [*SPECIAL, *characters, *(_IN_THE_MIDDLE + own for own in inner), *words]


class WordPieces(keras.layers.Layer):
    """Texts [B] -> ids int32 [B, T], padded with 0: each word in the longest pieces, from its start on.

    A text begins with ``[CLS]`` and ends in ``[SEP]``. A word that no pieces make up is ``[UNK]``.

    Args:
        vocabulary: the pieces in id order, ``[PAD]`` first; those inside of words begin with ``##``.
        max_length: the longest T; what follows in a text is cut off.

    Reference:
        Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        2019.
    """

    def __init__(self, vocabulary, max_length):
        super().__init__(name="word_pieces")
        self.vocabulary, self.max_length = list(vocabulary), max_length
        ids = tf.range(len(self.vocabulary))
        table = tf.lookup.KeyValueTensorInitializer(tf.constant(self.vocabulary), ids)
        self.table = tf.lookup.StaticHashTable(table, default_value=-1)
        self.unknown, self.start, self.end = (self.vocabulary.index(own) for own in (UNKNOWN, START, END))

    def call(self, texts):
        words = words_of(texts)
        distinct, place = tf.unique(words.values)
        pieces = tf.gather(self._pieces_of(distinct), place)
        pieces = words.with_values(pieces).merge_dims(1, 2)[:, : self.max_length - 2]
        first = tf.fill([tf.shape(texts)[0], 1], self.start)
        return tf.concat([first, pieces, tf.fill(tf.shape(first), self.end)], 1).to_tensor(0)

    def _pieces_of(self, words):
        """Ragged ids [W, pieces] of words [W]."""
        lengths = tf.strings.length(words, "UTF8_CHAR")
        sizes = tf.range(1, _LONGEST + 1)

        def next_piece(start, pieces):
            prefix = tf.where(start > 0, _IN_THE_MIDDLE, "")[:, tf.newaxis]
            fitting = tf.minimum(sizes, (lengths - start)[:, tf.newaxis])
            begin = tf.broadcast_to(start[:, tf.newaxis], tf.shape(fitting))
            tails = tf.repeat(words[:, tf.newaxis], _LONGEST, 1)
            found = self.table.lookup(prefix + tf.strings.substr(tails, begin, fitting, "UTF8_CHAR"))
            longest = tf.argmax(tf.where(found >= 0, fitting, 0), 1)
            best = tf.gather(found, longest, batch_dims=1)
            is_done = start == lengths
            step = tf.where(best < 0, lengths, start + tf.gather(fitting, longest, batch_dims=1))
            piece = tf.where(is_done, 0, tf.where(best < 0, self.unknown, best))
            return tf.where(is_done, start, step), tf.concat([pieces, piece[:, tf.newaxis]], 1)

        nothing = tf.zeros([tf.size(words), 0], tf.int32)
        _, pieces = tf.while_loop(
            lambda start, _: tf.reduce_any(start < lengths),
            next_piece,
            (tf.zeros_like(lengths), nothing),
            shape_invariants=(lengths.shape, tf.TensorShape([None, None])),
        )
        is_unknown = tf.reduce_any(pieces == self.unknown, 1, keepdims=True)
        alone = tf.where(tf.range(tf.shape(pieces)[1]) == 0, self.unknown, 0)
        return tf.RaggedTensor.from_tensor(tf.where(is_unknown, alone, pieces), padding=0)
