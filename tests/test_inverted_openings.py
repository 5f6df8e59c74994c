import pytest
from inverted_openings import opening_of, repository

from tfxc._keras import IS_KERAS_3

if not IS_KERAS_3:
    pytest.skip("Keras has no part in prose", allow_module_level=True)


INVERTED = """\
Of two sums the second is larger.
What is gained there is the optimizer's.
To score every class takes a second.
Nor does an export.
Measured is the time of a step.
In front stands a layer."""
OTHERS = """\
What is a head?
How many seeds there were.
To train longer, raise `epochs`.
In batches it is faster."""


@pytest.mark.parametrize(("sentences", "is_found"), [(INVERTED, True), (OTHERS, False)])
def test_an_inverted_opening_is_found_and_no_other(sentences, is_found):
    for sentence in sentences.splitlines():
        assert bool(opening_of(sentence)) == is_found, sentence


@pytest.mark.long
def test_few_sentences_keep_their_subject_waiting():
    sentences = [sentence for _, found in repository() for sentence in found]
    inverted = [sentence for sentence in sentences if opening_of(sentence)]
    assert 1000 * len(inverted) <= 8 * len(sentences), f"{len(inverted)}: python tests/inverted_openings.py"
