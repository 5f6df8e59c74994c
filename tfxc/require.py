"""Checks that run inside a graph, and what their errors say to whoever ran it."""

import contextlib
import re

import numpy as np
import tensorflow as tf

_NUM_SHOWN = 3
_NO_ROW = re.compile(r"indices\[[\d,]*\] = -?\d+ is not in \[0, \d+\)")  # the error of TensorFlow's gather


def require(condition, *message):
    """A list of ops, none in eager mode, that check a bool scalar, for ``tf.control_dependencies``.

    If it is false, they raise an InvalidArgumentError of the message's texts and first values of its tensors.
    A graph gets a single op: ``tf.debugging.Assert`` would add a conditional, slower to trace and to run.
    """
    if tf.executing_eagerly():
        if not condition:
            raise tf.errors.InvalidArgumentError(None, None, " ".join(map(_shown, message)))
        return []
    return [tf.raw_ops.Assert(condition=condition, data=list(message))]


def at_least_one(number, name):
    return require(number >= 1, f"{name} must be at least 1, but is", number)


def in_range(ids, low, limit, what):
    """``require``: ids of any shape are in [low, limit). The error names the first bad id and its place."""
    bad = tf.where((ids < low) | (ids >= limit))[:1]
    end, size = ("n", ["with n =", limit]) if tf.is_tensor(limit) else (limit, [])
    message = [what, tf.gather_nd(ids, bad), "at position", bad, f"is outside [{low}, {end})", *size]
    return require(tf.equal(tf.size(bad), 0), *message)


def finite_rows(values, name):
    """``require``: values [N, n], a row for each query, are finite."""
    bad = tf.where(~tf.reduce_all(tf.math.is_finite(values), axis=1))[:1, 0]
    message = f"{name} must be finite, but there is NaN or infinity in the row of query"
    return require(tf.equal(tf.size(bad), 0), message, bad)


@contextlib.contextmanager
def clean_errors(position=None):
    """Raises an InvalidArgumentError anew with its own sentence, and position; the report is its cause.

    A ValueError of code that tf-keras traces loses the places of that code, which stand before its sentence.
    """
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("in user code:"):
            raise
        raise ValueError(re.split(r"\n *\w*Error: ", str(error))[-1].strip()) from error
    except tf.errors.InvalidArgumentError as error:
        sentence = sentence_of(error.message)
        # An error that is a sentence already has the report as its cause, which Keras cuts off.
        cause = error.__cause__ or error.__context__ if sentence == error.message else error
        if position is not None:
            sentence = f"{sentence.removesuffix('.')}. It was {position}."
        if sentence == error.message:
            raise error from cause
        raise tf.errors.InvalidArgumentError(error.node_def, error.op, sentence) from cause


def sentence_of(report):
    """The message of an op, out of TensorFlow's and Keras's report; any other text as it stands."""
    text = re.sub(r".*\x1b\[1m(.*?)\x1b\[0m.*", r"\1", report, flags=re.DOTALL)  # Keras prints it bold
    text = re.split(r'\s*\n  File "[^\n]*\n', text)[-1].strip()  # after the last line of the trace
    text = text.removeprefix("Graph execution error:").lstrip()  # that of an op without a trace
    text = re.sub(r"^Detected at node .*\n<stack traces unavailable>\n", "", text)
    text = re.sub(r"^Node: [^\n]*\n", "", text).split("\n\t [[{{node")[0]
    text = re.sub(r"^\d+ root error\(s\) found\.\n  \(0\) [A-Z_]+: +", "", text)  # of several replicas
    if text.startswith("raise "):  # of a Python function that a graph calls
        text = re.split(r"\n\w*Error: ", text, maxsplit=1)[-1].strip()
    asserted = re.fullmatch(r"assertion failed: \[(.*)\]", text, re.DOTALL)
    if asserted:
        text = asserted[1].replace("] [", " ")
    if _NO_ROW.fullmatch(text):
        text += (
            ". If an Embedding of the encoder looks up the inputs, its table has no such row: were they "
            "made with another vocabulary, or does the table lack a row for padding, num_classes + 1 in all?"
        )
    return text


def _shown(part):
    """Returns a text, or the first few values of a tensor, nearly as the op shows them."""
    if not tf.is_tensor(part):
        return str(part)
    values = np.ravel(part.numpy())
    first = values[:_NUM_SHOWN]
    shown = [own.decode(errors="replace") if isinstance(own, bytes) else str(own) for own in first]
    return " ".join(shown) + "..." * (len(values) > _NUM_SHOWN)
