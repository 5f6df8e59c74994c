"""Reads running text as sequences of words, where the next word is the next item."""

import functools
import logging
import os
import re
import sys
import unicodedata
from array import array

import numpy as np

from tfxc.arguments import positive_int
from tfxc.data.line_reader import LineReader
from tfxc.data.sequences import Sequences
from tfxc.data.vocabulary import Vocabulary, require_vocabulary

UNKNOWN = "<unk>"
END_OF_SENTENCE = "<eos>"

_TITLE = re.compile(r"=== (.+) ===")
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")  # for ASCII; the pattern with marks takes five times as long
_logger = logging.getLogger(__name__)


def read_text(
    path: str | os.PathLike[str],
    min_count: int = 1,
    vocabulary: Vocabulary | None = None,
    on_error: str = "raise",
) -> Sequences:
    """Reads whole books as sequences of lower-cased words.

    A line `=== Title ===` starts a new sequence with that title as its name. Text before the first title
    belongs to a sequence with the name of the file. A word is a run of letters with their accents and vowel
    signs, in the normal form NFC. Apostrophes may be inside (`don't`, but not the quotes of `'tis'`). All
    else only separates words.

    Class ids are in order of falling frequency (words of equal counts in alphabetical order), as a
    log-uniform sampler expects. With `min_count` above 1, all rarer words share class 0, `<unk>`, and their
    number is logged.

    Args:
        path: the file, plain or packed, such as `.gz`.
        min_count: the fewest occurrences of a word with a class of its own, at least 1.
        vocabulary: class ids to use instead, for held-out text; other words become its `<unk>`.
        on_error: `"raise"`, or `"skip"` to leave bad lines out with one warning.

    Raises:
        ValueError: for bad lines (not UTF-8, a title without text), for a word outside a given vocabulary
            that has no `<unk>`, for a file without words, for a min_count below 1.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "books.txt"
        >>> _ = path.write_text("=== Carroll ===\\nIt's a poor sort of memory,\\na poor one.\\n")
        >>> book = read_text(path)
        >>> book.user_ids, book.vocabulary.decode(book[0])[:3]
        (['Carroll'], ["it's", 'a', 'poor'])
        >>> read_text(path, min_count=2).vocabulary.names
        ['<unk>', 'a', 'poor']
    """
    min_count = positive_int(min_count, "min_count")
    titles, words, offsets, types = _read_words(LineReader(path, on_error))
    if not len(words):
        raise ValueError(f"{path} holds no words.")
    class_ids, vocabulary = _class_ids(path, words, types, vocabulary, min_count)
    return Sequences(class_ids, offsets, vocabulary, titles)


def read_tokens(
    path: str | os.PathLike[str], vocabulary: Vocabulary | None = None, on_error: str = "raise"
) -> Sequences:
    r"""Reads tokenized text, one sentence a line, as one sequence.

    Penn Treebank and WikiText come in this form. White space separates tokens, which are kept as they are.
    Every line, also an empty one, ends in the token `<eos>`. Rare tokens are to be `<unk>` in the file: there
    is no `min_count`. Class ids, other arguments and errors are those of `read_text`.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.txt"
        >>> _ = path.write_text(" no it was n't \n it <unk> N \n")
        >>> text = read_tokens(path)
        >>> text.vocabulary.decode(text[0])
        ['no', 'it', 'was', "n't", '<eos>', 'it', '<unk>', 'N', '<eos>']
    """
    lines = LineReader(path, on_error)
    types: dict[str, int] = {}
    tokens = array("i")
    for line in lines:
        tokens.extend(types.setdefault(token, len(types)) for token in (*line.split(), END_OF_SENTENCE))
    lines.report()
    if not len(tokens):
        raise ValueError(f"{path} holds no lines.")
    class_ids, vocabulary = _class_ids(path, np.asarray(tokens), list(types), vocabulary)
    return Sequences(class_ids, np.array([0, len(tokens)]), vocabulary, [os.path.basename(lines.path)])


def _class_ids(path, words, types, vocabulary, min_count=1):
    """Returns the class ids [M] of word numbers [M], and the vocabulary, which is given or by frequency."""
    require_vocabulary(vocabulary)
    counts = np.bincount(words, minlength=len(types))
    if vocabulary is None:
        ranked = sorted(zip(-counts, types, strict=True))
        kept = [word for count, word in ranked if -count >= min_count]
        vocabulary = Vocabulary(kept if min_count == 1 else [UNKNOWN, *kept])
    class_ids = vocabulary.encode(types, unknown=vocabulary.ids.get(UNKNOWN, -1))
    if (class_ids < 0).any():
        raise ValueError(
            f"{path}: the word {types[class_ids.argmin()]!r} is not in the vocabulary, which has no "
            f"{UNKNOWN} class. For the training text, give read_text min_count=2 or more; for read_tokens, "
            f"write {UNKNOWN} for rare tokens."
        )
    rare = np.array([word not in vocabulary for word in types])
    _logger.info(
        "%s: %d words, %d types, of which %d types (%d words) are %s",
        path, len(words), len(types), rare.sum(), counts[rare].sum(), UNKNOWN,
    )  # fmt: skip
    return class_ids[words], vocabulary


def _read_words(lines: LineReader):
    """Returns titles, word numbers [M], offsets and the word types in order of first appearance."""
    types: dict[str, int] = {}
    titles: list[str] = []
    starts: list[int] = []
    words = array("i")

    def start(title):
        if starts and starts[-1] == len(words):
            lines.reject(f"no words under the title {titles[-1]!r} before this line")
            del titles[-1], starts[-1]
        titles.append(title)
        starts.append(len(words))

    for line in lines:
        title = _TITLE.fullmatch(line.strip())
        if title:
            start(title[1])
            continue
        line = line.lower().replace("’", "'")
        pattern = _WORD if line.isascii() else _word_with_marks()
        found = pattern.findall(unicodedata.normalize("NFC", line))
        if found and not starts:
            start(os.path.basename(lines.path))
        words.extend(types.setdefault(word, len(types)) for word in found)
    if starts and starts[-1] == len(words):
        lines.reject(f"no words under the title {titles.pop()!r}")
        starts.pop()
    lines.report()
    return titles, np.asarray(words), np.array([*starts, len(words)], np.int64), list(types)


@functools.cache
def _word_with_marks() -> re.Pattern:
    """Returns a pattern for words of any script. Python does not count marks as letters."""
    characters = map(chr, range(sys.maxunicode + 1))
    marks = "".join(own for own in characters if unicodedata.category(own).startswith("M"))
    letters = rf"[^\W\d_]+(?:[{marks}]+[^\W\d_]*)*"
    return re.compile(f"{letters}(?:'{letters})*")
