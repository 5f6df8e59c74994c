import logging

import pytest

from tfxc.data import Vocabulary, read_text, read_tokens

BOOKS = "=== Ann ===\nDon't stop -- don't!\n'Tis 2 well-worn é’s\n\n=== Bob ===\nStop.\n"

pytestmark = pytest.mark.filterwarnings("ignore:.*the last, has no line end")


def written(tmp_path, data):
    path = tmp_path / "books.txt"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def as_words(sequences):
    return [" ".join(sequences.vocabulary.decode(sequence)) for sequence in sequences]


def test_words_and_titles(tmp_path):
    sequences = read_text(written(tmp_path, BOOKS))
    assert sequences.user_ids == ["Ann", "Bob"]
    assert as_words(sequences) == ["don't stop don't tis well worn é's", "stop"]


def test_marks_upon_letters_belong_to_the_word(tmp_path):
    sequences = read_text(written(tmp_path, "cafe\u0301 caf\u00e9 हिन्दी İzmir q\u0301'a 2\u0301"))
    assert as_words(sequences) == ["caf\u00e9 caf\u00e9 हिन्दी i\u0307zmir q\u0301'a"]


def test_ids_by_falling_frequency(tmp_path):
    sequences = read_text(written(tmp_path, "b c a c c b z a"))
    assert sequences.vocabulary.names == ["c", "a", "b", "z"]
    assert sequences.counts().tolist() == [3, 2, 2, 1]
    assert sequences.user_ids == ["books.txt"]


def test_rare_words_share_a_class(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "tfxc.data.text"):
        sequences = read_text(written(tmp_path, "b c a c c b z a"), min_count=3)
    assert sequences.vocabulary.names == ["<unk>", "c"]
    assert sequences[0].tolist() == [0, 1, 0, 1, 1, 0, 0, 0]
    assert "8 words, 4 types, of which 3 types (5 words) are <unk>" in caplog.text


def test_held_out_text(tmp_path):
    path = written(tmp_path, "a new b")
    assert read_text(path, vocabulary=Vocabulary(["<unk>", "b", "a"]))[0].tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match="the word 'new' is not in the vocabulary.*min_count=2"):
        read_text(path, vocabulary=Vocabulary(["b", "a"]))


def test_title_without_text(tmp_path):
    path = written(tmp_path, "=== Empty ===\n=== Ann ===\nword\n=== End ===\n...\n")
    with pytest.raises(ValueError, match="2 bad of 5 lines") as error:
        read_text(path)
    assert "title 'Empty'" in str(error.value) and "title 'End'" in str(error.value)
    with pytest.warns(UserWarning, match="left out"):
        sequences = read_text(path, on_error="skip")
    assert sequences.user_ids == ["Ann"] and as_words(sequences) == ["word"]


@pytest.mark.parametrize("data", ["", "12 -- 34\n"])
def test_no_words(tmp_path, data):
    with pytest.raises(ValueError, match="holds no words"):
        read_text(written(tmp_path, data))


@pytest.mark.parametrize("bad", [0, 2.5])
def test_bad_min_count(tmp_path, bad):
    with pytest.raises(ValueError, match=f"min_count must be an integer of at least 1, but got {bad}"):
        read_text(written(tmp_path, "word"), min_count=bad)


def test_tokens_as_they_stand(tmp_path):
    text = read_tokens(written(tmp_path, " The <unk> N-th \n\nthe end\n"))
    assert as_words(text) == ["The <unk> N-th <eos> <eos> the end <eos>"]
    assert text.vocabulary.names[0] == "<eos>" and text.user_ids == ["books.txt"]


def test_held_out_tokens(tmp_path):
    path = written(tmp_path, "a new b")
    vocabulary = Vocabulary(["<unk>", "b", "a", "<eos>"])
    assert read_tokens(path, vocabulary)[0].tolist() == [2, 0, 1, 3]
    with pytest.raises(ValueError, match="'new' is not in the vocabulary.*<unk> for its rare"):
        read_tokens(path, Vocabulary(["b", "a", "<eos>"]))


def test_tokens_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="holds no lines"):
        read_tokens(written(tmp_path, ""))
    with pytest.raises(ValueError, match="line 2: not UTF-8"):
        read_tokens(written(tmp_path, b"word\n\xe9\n"))
    with pytest.warns(UserWarning, match="left out"):
        assert as_words(read_tokens(written(tmp_path, b"word\n\xe9\n"), on_error="skip")) == ["word <eos>"]
