"""Processes forked from one that has imported TensorFlow, and has not started it by an op."""

import functools
import gc
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import typing
from pathlib import Path

import tensorflow as tf
from tensorflow.python.util import tf_stack

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tfxc"])


def quicken():
    """Lets TensorFlow make graphs in two thirds of the time."""
    # They are millions of objects that live on: looking through them for garbage takes a tenth of it.
    gc.set_threshold(50_000, 20, 50)
    # TensorFlow asks of each value whether it is of a protocol: Python 3.11 gathers their attributes anew.
    typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
    # By what calls each op was made is a quarter of it: all have the first one's.
    tf_stack.extract_stack = functools.cache(tf_stack.extract_stack)


def free_addresses(number):
    """Addresses of this machine that nobody uses."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(number)]
    addresses = [f"localhost:{own.getsockname()[1]}" for own in sockets]
    for own in sockets:
        own.close()
    return addresses


class Process:
    def __init__(self, program, *arguments, **environment):
        self._folder = tempfile.TemporaryDirectory()
        self._output, self._errors = (Path(self._folder.name, name) for name in ("output", "errors"))
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
        given = program, [str(argument) for argument in arguments], environment, self._output, self._errors
        self._process = _CONTEXT.Process(target=_run, args=given, daemon=True)
        self._process.start()

    def output(self, timeout=600):
        self._process.join(timeout)
        printed = self._output.read_text()
        if self._process.exitcode != 0:
            raise AssertionError(f"{self._process}: {printed}{self._errors.read_text()}")
        return printed

    def has_printed(self):
        return self._output.exists() and self._output.stat().st_size > 0

    def kill(self):
        self._process.kill()
        self._process.join()


def _run(program, arguments, environment, output, errors):
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # as most tests
    quicken()
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(str(Path(__file__).parent / program), run_name="__main__")
    else:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
