"""The callback that backs a training up, and has it go on after a kill."""

import contextlib
import os
import signal
import sys
import threading
import warnings
from typing import Literal, NamedTuple

import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.training import variables_of_training
from tfxc.arguments import local_path
from tfxc.fit_callback import FitCallback
from tfxc.layers.adapted import follow_weights
from tfxc.resume.data import TrainingData
from tfxc.resume.folder import BackupFolder
from tfxc.resume.script import Script
from tfxc.resume.state import CallbackStates
from tfxc.step_clock import EPOCH, steps_or_epoch


class Position(NamedTuple):
    """Where a training goes on: the next batch of an epoch. ``has_stopped`` if a callback ended it."""

    epoch: int
    batch: int
    has_stopped: bool = False


class BackupSchedule:
    """Begins backups so early that each is whole before a kill would cost more than ``save_freq`` steps.

    That is twice the steps that training made while the last one was written; half of ``save_freq`` while
    this is not known. All times are training steps; the training begins, or goes on, at ``now``.
    """

    def __init__(self, save_freq, now):
        self._save_freq = self._steps_of_writing = save_freq
        self._begun = self._whole = now
        self._is_writing = False

    def is_due(self, now):
        early = min(2 * self._steps_of_writing, self._save_freq // 2)
        return now - self._begun >= self._save_freq - early

    def begin(self, now):
        self._begun, self._is_writing = now, True

    def end(self, now, whole):
        """No backup is being written. The last whole one is of step ``whole``, None if there is none."""
        if self._is_writing:
            self._steps_of_writing, self._is_writing = now - self._begun, False
        self._whole = self._whole if whole is None else whole

    def has_to_wait(self, now):
        """Whether a kill from now on would cost too much."""
        return now - self._whole >= self._save_freq


class BackupAndRestore(FitCallback):
    """Backs ``ExtremeClassifier.fit`` up, and goes on from the last backup when the script is run again.

    After a kill at any moment the same script continues, and ends as if it had never been interrupted, to
    the bit: weights, the optimizer's slots and counters, samplers, random states of layers (dropout),
    callbacks (their attributes that training changed and that are numbers, strings or arrays, or lists and
    dicts of such; those of this package wholly), the running loss and metrics, the history and the order of
    the remaining batches are kept.

    A thread writes backups: a kill costs at most ``save_freq`` steps, also amid a backup. If the newest one
    is damaged, the one before is used; if the disk is full, training goes on; a warning tells of it. SIGTERM
    makes a last backup before it has its effect. Training on data whose length TensorFlow does not know is
    otherwise backed up at the ends of epochs only. A finished training is restored, not repeated: to start
    anew, delete the folder. Each training needs its own.

    Data: arrays (shuffled in an order of this callback's own), a ``tf.data.Dataset`` that gives epoch e the
    same batches each time, like those of ``tfxc.data`` or any that is not shuffled, or data of Grain. For
    other data a warning says what to change; weights and schedules go on all the same.

    Args:
        directory: the local folder of this training's backups; made where there is none.
        save_freq: "epoch", or the most training steps that a kill may cost; the end is always kept.

    Raises:
        ValueError: for another ``save_freq`` or a folder of remote storage; when training starts, for a
            model that is no ``ExtremeClassifier`` or is under a ``MultiWorkerMirroredStrategy``, and for a
            backup of another model, of a finished training that the model has gone beyond, or of a training
            that was interrupted in an epoch that ``fit`` does not reach.
        OSError: when training starts, if the folder cannot be written.

    Example:
        >>> import tempfile
        >>> encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        >>> model = tfxc.ExtremeClassifier(encoder, head=tfxc.layers.DenseHead(50), k=5)
        >>> model.compile(tfxc.optimizers.LazyAdam(0.01), loss=tfxc.losses.SoftmaxCrossentropy())
        >>> backup = BackupAndRestore(tempfile.mkdtemp(), save_freq=100)
        >>> x, y = np.zeros([16, 4], np.float32), np.arange(16)
        >>> history = model.fit(x, y, epochs=2, callbacks=[backup], verbose=0)
    """

    def __init__(
        self, directory: str | os.PathLike[str], save_freq: int | Literal["epoch"] = "epoch"
    ) -> None:
        super().__init__()
        self.directory = local_path(directory)
        self.save_freq = steps_or_epoch(save_freq, "save_freq")
        self._folder = None

    @contextlib.contextmanager
    def during_fit(self, model, arguments):
        """Has ``fit`` go on from the newest backup, and closes the folder at its end."""
        self._require_resumable(model, arguments["callbacks"])
        data = TrainingData(model, arguments)
        # This callback comes last, to see all that the others did. Keras would append the history behind it.
        callbacks = [own for own in arguments["callbacks"] if own is not self]
        if not any(isinstance(own, keras.callbacks.History) for own in callbacks):
            callbacks.append(keras.callbacks.History())
        arguments["callbacks"] = [data, *callbacks, self]
        self._open(model, callbacks, arguments.get("initial_epoch") or 0)
        try:
            with self._watching_for_sigterm():
                if self._found is not None:
                    self._go_on(model, data, arguments)
                yield
        finally:
            model.first_batch = 0  # a fit that failed before its first epoch has not taken it
            self._folder.wait()
            self._warn_of_errors()
            self._folder = self._found = None

    def _require_resumable(self, model, callbacks):
        folders = [str(own.directory) for own in callbacks if isinstance(own, BackupAndRestore)]
        if len(folders) > 1:
            raise ValueError(f"A fit has only one BackupAndRestore, but these name the folders {folders}.")
        if isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise ValueError(
                "BackupAndRestore keeps the training of one process, but under a MultiWorkerMirroredStrategy "
                "several processes train one model: take keras.callbacks.BackupAndRestore in a shared folder."
            )
        if not model.built:
            raise ValueError(
                "BackupAndRestore needs a built model, and a generator is not read to build one: call the "
                "model on one batch first, or start the encoder with a keras.Input."
            )

    def _open(self, model, callbacks, first_epoch):
        self._folder = BackupFolder(self.directory)
        with model.distribute_strategy.scope():
            self._variables = variables_of_training(model)
        self._script = Script(model, self._variables, self.directory)
        self._states = CallbackStates(callbacks)
        self._schedule, self._is_due, self._terminated = None, False, False
        self._is_cut_short = False  # by SIGTERM, after a batch that others follow
        self._found, self._first_epoch = self._folder.newest(), first_epoch
        if self._found is not None:
            arrays, notes = self._found
            self._script.compare(arrays, notes)
            self._position, self._first_epoch = Position(*notes["position"]), notes["first_epoch"]

    def _go_on(self, model, data, arguments):
        """Changes the arguments of ``fit`` so that it goes on at the position of the backup."""
        if data.has_nothing_left(self._position):
            epoch = self._position.epoch + 1
            self._position = Position(epoch, 0)
            told = f"Epoch {epoch} was interrupted after its last batch: its validation is left out."
            warnings.warn(told, stacklevel=8)
        epochs, position = arguments.get("epochs") or 1, self._position
        if position.epoch >= epochs and position.batch > 0 and not position.has_stopped:
            raise ValueError(
                f"The training in {self.directory} was interrupted after batch {position.batch} of epoch "
                f"{position.epoch}, which this fit, with epochs={epochs}, does not reach. Earlier states are "
                f"gone. Give epochs={position.epoch + 1} or more, or name another directory."
            )
        self._script.require_nothing_undone(*self._found, position.has_stopped or position.epoch >= epochs)
        self._restore_variables()  # before training starts: layers may compute by copies of them
        follow_weights(model)
        arguments["initial_epoch"] = position.epoch
        if position.has_stopped:
            arguments["epochs"] = position.epoch
        data.start_at(position, self._first_epoch)
        model.first_batch = position.batch

    def on_train_begin(self, logs=None):
        if self._folder is None:
            raise ValueError(
                "BackupAndRestore needs the fit of an ExtremeClassifier; for another model take "
                "keras.callbacks.BackupAndRestore."
            )
        self._states.note()
        if self._found is not None:
            self._restore_variables()
            if self._position.batch == 0:
                self._states.restore(self._found[1]["callbacks"], self._found[0])
            else:
                self._warn_of_other_data()

    def on_epoch_begin(self, epoch, logs=None):
        # In the rest of an epoch, what the others did at its beginning is undone.
        if self._found is not None and self._position.batch > 0:
            self._restore_variables()
            self._states.restore(self._found[1]["callbacks"], self._found[0])
        self._found = None
        self._epoch = epoch
        if self._schedule is None:
            save_freq = sys.maxsize if self.save_freq == EPOCH else self.save_freq
            self._schedule = BackupSchedule(save_freq, self._now)

    @property
    def _now(self):
        return int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch, logs=None):
        self._is_cut_short = False
        now, is_writing = self._now, self._folder.busy
        if not is_writing:
            self._schedule.end(now, self._folder.last_step)
        self._is_due |= self._terminated or (not is_writing and self._schedule.is_due(now))
        # After its last batch an epoch is not over: validation and the hooks of others come first. If the
        # last batch is not known, only SIGTERM does not wait.
        num_steps = self.params.get("steps")
        may_save = self._terminated if num_steps is None else batch + 1 < num_steps
        if self._is_due and may_save:
            self._save(Position(self._epoch, batch + 1))
        if self._schedule.has_to_wait(now):
            self._folder.wait()

    def on_epoch_end(self, epoch, logs=None):
        has_stopped = bool(self.model.stop_training)
        if has_stopped and self._is_cut_short:
            return  # the training goes on at the backup within the epoch
        is_last = has_stopped or epoch + 1 == self.params.get("epochs")
        self._is_due |= self.save_freq == EPOCH or self._terminated or is_last
        if self._is_due:
            self._save(Position(epoch + 1, 0, has_stopped), is_last)

    def _save(self, position, has_ended=False):
        """Starts a backup when the one before is written; ``has_ended`` if it is the last of its ``fit``."""
        self._folder.wait()
        self._warn_of_errors()
        arrays = {name: variable.read_value() for name, variable in self._variables.items()}
        notes = {
            **self._script.notes,
            "position": position,
            "first_epoch": self._first_epoch,
            "num_batches": self.params.get("steps"),
            "has_ended": has_ended,
            "callbacks": self._states.taken(arrays),
        }
        self._folder.write(self._now, arrays, notes)
        self._schedule.begin(self._now)
        self._is_due = False
        if self._terminated:
            self._terminated = False  # a handler may let training go on, or end it in its own time
            self._is_cut_short = position.batch > 0
            self._folder.wait()
            self._warn_of_errors()
            signal.signal(signal.SIGTERM, self._handler)
            signal.raise_signal(signal.SIGTERM)

    def _restore_variables(self):
        for name, variable in self._variables.items():
            if name in self._found[0]:
                variable.assign(self._found[0][name])

    def _warn_of_other_data(self):
        # A number that is not known is None.
        began, now = self._found[1]["num_batches"], self.params.get("steps")
        if None not in (began, now) and began != now:
            epoch, batch, _ = self._position
            warnings.warn(
                f"An epoch of this fit has {now} batches, but the training in {self.directory} was "
                f"interrupted after batch {batch} of {began}: in the rest of epoch {epoch} some data may "
                "come twice, or not at all. Give the data it began with, or name another directory.",
                stacklevel=2,
            )

    def _warn_of_errors(self):
        error = self._folder.take_error()
        if error is not None:
            last = self._folder.last_step
            last = "there is none of this run yet" if last is None else f"the last is of step {last}"
            warnings.warn(f"A backup could not be written ({error}); {last}.", stacklevel=2)

    def _note_sigterm(self, number, frame):
        if os.getpid() == self._process:
            self._terminated = True
            return
        signal.signal(signal.SIGTERM, self._handler)  # a forked helper has no backup to make
        signal.raise_signal(signal.SIGTERM)

    @contextlib.contextmanager
    def _watching_for_sigterm(self):
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may
            return
        self._process = os.getpid()
        self._handler = signal.signal(signal.SIGTERM, self._note_sigterm)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._handler)
            if self._terminated:  # before there was a step to back up
                signal.raise_signal(signal.SIGTERM)
