import logging

import pytest
from refusal_checks import refused

from tfxc.data import Vocabulary, read_text, read_tokens

BOOKS = "=== Ann ===\nDon't stop -- don't!\n'Tis 2 well-worn é’s\n\n=== Bob ===\nStop.\n"

pytestmark = pytest.mark.filterwarnings("ignore:.*the last, has no line end")


def as_words(sequences):
    return [" ".join(sequences.vocabulary.decode(sequence)) for sequence in sequences]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOOKS, ["don't stop don't tis well worn é's", "stop"]),
        # Marks upon letters belong to the word.
        (
            "cafe\u0301 caf\u00e9 हिन्दी İzmir q\u0301'a 2\u0301",
            ["caf\u00e9 caf\u00e9 हिन्दी i\u0307zmir q\u0301'a"],
        ),
    ],
)
def test_words_and_titles(text, words, written):
    sequences = read_text(written(text))
    assert sequences.user_ids == (["Ann", "Bob"] if len(words) == 2 else ["log.csv"])
    assert as_words(sequences) == words


def test_ids_by_falling_frequency_and_rare_words_share_one(written, caplog):
    path = written("b c a c c b z a")
    sequences = read_text(path)
    assert sequences.vocabulary.names == ["c", "a", "b", "z"]
    assert sequences.counts().tolist() == [3, 2, 2, 1]
    with caplog.at_level(logging.INFO, "tfxc.data.text"):
        sequences = read_text(path, min_count=3)
    assert sequences.vocabulary.names == ["<unk>", "c"]
    assert sequences[0].tolist() == [0, 1, 0, 1, 1, 0, 0, 0]
    assert "8 words, 4 types, of which 3 types (5 words) are <unk>" in caplog.text


def test_tokens_as_they_stand(written):
    text = read_tokens(written(" The <unk> N-th \n\nthe end\n"))
    assert as_words(text) == ["The <unk> N-th <eos> <eos> the end <eos>"]
    assert text.vocabulary.names[0] == "<eos>" and text.user_ids == ["log.csv"]


@pytest.mark.parametrize(("read", "end"), [(read_text, []), (read_tokens, ["<eos>"])])
def test_held_out_text(read, end, written):
    path = written("a new b")
    ids = read(path, vocabulary=Vocabulary(["<unk>", "b", "a", *end]))[0].tolist()
    assert ids == [2, 0, 1, *[3] * len(end)]
    with pytest.raises(ValueError, match="'new' is not in the vocabulary.*min_count=2.*read_tokens, write"):
        read(path, vocabulary=Vocabulary(["b", "a", *end]))


@pytest.mark.parametrize(
    ("read", "text", "message", "words"),
    [
        (
            read_text,
            "=== Empty ===\n=== Ann ===\nword\n=== End ===\n...\n",
            "(?s)2 bad of 5 lines.*title 'Empty'.*title 'End'",
            ["word"],
        ),
        (read_tokens, b"word\n\xe9\n", "line 2: not UTF-8", ["word <eos>"]),
    ],
)
def test_bad_lines(read, text, message, words, written):
    refused(message, read, written(text))
    with pytest.warns(UserWarning, match="left out"):
        assert as_words(read(written(text), on_error="skip")) == words


def test_text_of_nothing_and_counts_of_none(written):
    for text in ("", "12 -- 34\n"):
        refused("holds no words", read_text, written(text))
    refused("holds no lines", read_tokens, written(""))
    for bad in (0, 2.5):
        with pytest.raises(ValueError, match=f"min_count must be an integer of at least 1, but got {bad}"):
            read_text(written("word"), min_count=bad)
