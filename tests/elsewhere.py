"""The quickstart and what else writes files, on any system that TensorFlow has: no compiled op is needed.

    python tests/elsewhere.py FOLDER [--without-linux]

With the option, a process on Linux lacks what Windows and macOS lack, and files follow the rules of Windows:
a folder cannot be opened, what is open or mapped cannot be renamed or removed, and only a file that is open
for writing is written through to the disk.
"""

import ctypes
import errno
import gc
import os
import shutil
import signal
import sys
import warnings

import numpy as np
import pyarrow
import tensorflow as tf
from wheel import quickstart

_MODULES = "fcntl", "resource", "pwd", "grp", "termios", "pty"
_CALLS = (
    *("fork", "forkpty", "register_at_fork", "posix_fallocate", "pread", "pwrite", "sendfile", "statvfs"),
    *("sched_setscheduler", "sched_getscheduler", "sched_getaffinity", "sched_param", "SCHED_IDLE", "uname"),
    *("O_DIRECT", "O_DIRECTORY", "getuid", "geteuid", "fchmod", "chown", "mkfifo", "memfd_create", "sync"),
)
_SIGNALS = "SIGKILL", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGCHLD"
_open, _fsync, _readlink, _listdir = os.open, os.fsync, os.readlink, os.listdir


def held(path):
    """Whether this process has a file, or one in a folder, open or mapped."""
    path = os.path.realpath(path)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        names = {line.split(maxsplit=5)[-1].strip() for line in maps}
    for number in _listdir("/proc/self/fd"):
        try:
            names.add(_readlink(f"/proc/self/fd/{number}"))
        except OSError:  # what listed them
            continue
    return any(name == path or name.startswith(path + os.sep) for name in names)


def refusing(call, num_paths):
    def refused(*args, **options):
        # Elsewhere `tempfile` has the system remove what is closed.
        is_temporary = sys._getframe(1).f_globals["__name__"] == "tempfile"
        for path in args[:num_paths]:
            if not is_temporary and held(path):
                raise PermissionError(errno.EACCES, "is open in this process", os.fspath(path))
        return call(*args, **options)

    return refused


def opened(path, flags, *args, **options):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "is a folder", os.fspath(path))
    return _open(path, flags, *args, **options)


def written_through(handle):
    with open(f"/proc/self/fdinfo/{handle}", encoding="utf-8") as info:
        (flags,) = (int(line.split()[1], 8) for line in info if line.startswith("flags"))
    if not flags & (os.O_WRONLY | os.O_RDWR):
        raise OSError(errno.EBADF, "is open for reading only")
    _fsync(handle)


def without_linux():
    sys.modules.update(dict.fromkeys(_MODULES))
    for owner, names in ((os, _CALLS), (signal, _SIGNALS)):
        for name in names:
            delattr(owner, name)
    os.open, os.fsync, shutil._use_fd_functions = opened, written_through, False
    for name, num_paths in (("replace", 2), ("rename", 2), ("remove", 1), ("unlink", 1), ("rmdir", 1)):
        setattr(os, name, refusing(getattr(os, name), num_paths))

    class Libraries(ctypes.CDLL):
        def __init__(self, name, *args, **options):
            super().__init__(name + "", *args, **options)  # a TypeError for the process itself

    ctypes.CDLL = Libraries


def run():
    names = {}
    exec(compile(quickstart(small=True), "README.md", "exec"), names)
    tfxc, keras, model = names["tfxc"], names["keras"], names["model"]
    x, y = names["x"][:64], names["y"][:64]
    ids = model.predict(x, verbose=0)["ids"]
    for _ in range(2):  # the second takes the place of the first
        model.export("served/1")
        model.save("model.keras")
        table = pyarrow.table({"user": [1, 1, 1, 2, 2, 2], "item": [*"abcabc"]})
        # Elsewhere nothing takes the place of a folder whose sequences are in use.
        tfxc.data.from_frame(table, user="user", item="item", directory="log").vocabulary.save("names.txt")
    np.testing.assert_array_equal(keras.models.load_model("model.keras").predict(x, verbose=0)["ids"], ids)
    served = tf.saved_model.load("served/1")
    np.testing.assert_array_equal(served.serve(x=x)["ids"], ids)
    np.testing.assert_array_equal(tfxc.data.open_sequences("log").items, [0, 1, 2, 0, 1, 2])

    encoder = keras.Sequential([keras.Input((32,)), keras.layers.Dense(8)])
    for epochs in (5, 7):  # the second training goes on where the first has ended
        history = mined = mining = backup = None
        gc.collect()  # as after the end of a process
        sampler = tfxc.samplers.HardNegatives(4, 4, num_retrieved=8, seed=1)
        mined = tfxc.ExtremeClassifier(keras.models.clone_model(encoder), tfxc.layers.DenseHead(300), sampler)
        mined.compile(tfxc.optimizers.LazyAdam(), loss=tfxc.losses.SoftmaxCrossentropy())
        mining = tfxc.callbacks.HardNegativeMining("mined", len(x), start_epoch=2, every_epochs=1)
        backup = tfxc.callbacks.BackupAndRestore("backup", save_freq=1)
        data = tfxc.data.with_example_ids(x)
        history = mined.fit(data, y, batch_size=32, epochs=epochs, verbose=0, callbacks=[mining, backup])
    assert len(history.epoch) == 7 and history.history["mining/filled"][-1] == 1, history.history


if __name__ == "__main__":
    if "--without-linux" in sys.argv:
        without_linux()
    warnings.simplefilter("error", UserWarning)  # of a file that could not be written, for one
    os.chdir(sys.argv[1])
    run()
    print("everything ran")
