"""What a compiled step has to say, before what TensorFlow says about where it said it."""

import contextlib
import re

import tensorflow as tf

_NO_ROW = re.compile(r"indices\[[\d,]*\] = -?\d+ is not in \[0, \d+\)")  # so says TensorFlow's gather


@contextlib.contextmanager
def clean_errors(place=None):
    """Raises an InvalidArgumentError anew with its own sentence alone; the whole report is its cause.

    Args:
        place: where it happened, whose ``str`` is added to the sentence; or None.

    Example:
        >>> @tf.function
        ... def step(x):
        ...     tf.debugging.Assert(x < 3, ["The number", x, "is too large."])
        >>> with clean_errors():
        ...     step(tf.constant(5))
        Traceback (most recent call last):
        ...
        tensorflow.python.framework.errors_impl.InvalidArgumentError: The number 5 is too large.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        sentence = sentence_of(error.message)
        # One that is a sentence already has the report as its cause, which Keras cuts off.
        cause = error.__cause__ or error.__context__ if sentence == error.message else error
        if place is not None:
            sentence = f"{sentence.removesuffix('.')}. It was {place}."
        if sentence == error.message:
            raise error from cause
        raise tf.errors.InvalidArgumentError(error.node_def, error.op, sentence) from cause


def sentence_of(report):
    """What an op said, out of TensorFlow's and Keras's report of it; any other text as it stands.

    Example:
        >>> sentence_of('An error:\\n\\n  File "a.py", line 1, in f\\n\\nToo large.\\n\\t [[{{node x}}]]')
        'Too large.'
    """
    text = re.sub(r".*\x1b\[1m(.*?)\x1b\[0m.*", r"\1", report, flags=re.DOTALL)  # Keras prints it bold
    text = re.split(r'\s*\n  File "[^\n]*\n', text)[-1].strip()  # after the last line of the trace
    text = text.removeprefix("Graph execution error:").lstrip()  # that of an op without a trace
    text = re.sub(r"^Node: [^\n]*\n", "", text).split("\n\t [[{{node")[0]
    if text.startswith("raise "):  # of a Python function that a graph calls
        text = re.split(r"\n\w*Error: ", text, maxsplit=1)[-1].strip()
    asserted = re.fullmatch(r"assertion failed: \[(.*)\]", text, re.DOTALL)
    if asserted:
        text = asserted[1].replace("] [", " ")
    if _NO_ROW.fullmatch(text):
        text += (
            ". Where an Embedding of the encoder looks up the inputs, it has no such row: were they made "
            "with another vocabulary, or does the table lack a row for padding, num_classes + 1 in all?"
        )
    return text
