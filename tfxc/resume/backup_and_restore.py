"""When a training is backed up, and where it goes on after a kill."""

import contextlib
import os
import signal
import sys
import threading
import warnings
from typing import Literal, NamedTuple

import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.layers import layers_of
from tfxc._keras.optimizers import steps_variable
from tfxc._keras.training import variables_of_training
from tfxc.arguments import local_folder
from tfxc.fit_callback import FitCallback
from tfxc.layers.adapted import follow_weights
from tfxc.resume.data import TrainingData
from tfxc.resume.folder import BackupFolder
from tfxc.resume.schedule import BackupSchedule
from tfxc.resume.state import (
    changed_attributes,
    digest_of,
    from_json,
    plain_attributes,
    set_attributes,
    settings_of,
    snapshot,
    to_json,
)
from tfxc.step_clock import EPOCH, StepClock, steps_or_epoch


class Position(NamedTuple):
    """Where a training stands: at the batch of an epoch that comes next, or stopped for good."""

    epoch: int
    batch: int
    has_stopped: bool = False


class BackupAndRestore(FitCallback):
    """Backs ``ExtremeClassifier.fit`` up, and goes on from the last backup when the script is run again.

    After a kill at any moment the same script continues, and ends as if it had never been interrupted, to
    the bit: weights, the optimizer's slots and counters, samplers, random states of layers (dropout),
    callbacks (their attributes that training changed and that are numbers, strings or arrays, or lists and
    dicts of such; those of this package wholly), the running loss and metrics of layers, the history and
    the order of the remaining batches are kept.

    A step waits for a copy of the weights at most: a thread writes it, aside, and renames it when it is on
    the disk. A backup begins that much earlier than ``save_freq`` steps after the one before, and training
    waits for a disk that is slower than usual: a kill costs at most ``save_freq`` steps, also in the middle
    of a backup. Of a large table a file holds the rows that changed since a whole one before, where they are
    few. Files are checksummed; the last two are kept, and the last two whole ones. Where the newest is
    damaged, a warning names it and the one before is used. A disk that is full is a warning, and training
    goes on. SIGTERM makes a last backup after the step that is running, then has the effect it had before; in
    the last step of an epoch and in validation it waits for the end of validation.
    Of a ``tf.data.Dataset`` whose length TensorFlow does not know, others are made at the ends of epochs.

    A finished training is restored, too, not repeated: to start anew, delete the folder. Each training wants
    a folder of its own: to restore a finished one into a model that has learnt more since is refused, an
    interrupted one (where a cell of a notebook runs again) is a warning with both steps.

    Data: arrays (shuffled in an order of this callback's), or a ``tf.data.Dataset`` that gives epoch e the
    same batches each time, as those of ``tfxc.data`` do, or any that is not shuffled. Where that cannot be,
    a warning says what to change; weights and schedules go on as ever.

    Args:
        directory: the local folder of this training's backups; made where there is none.
        save_freq: "epoch", or the most training steps that a kill may cost; the end of the training is kept
            in any case.

    Raises:
        ValueError: for another ``save_freq`` or a folder of remote storage; when training starts, for a
            model that is no ``ExtremeClassifier`` or is under a ``MultiWorkerMirroredStrategy``, a backup of
            another model, of a finished training that the model has gone beyond, or of one interrupted in
            an epoch that ``fit`` does not come to.
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
        self.directory = local_folder(directory)
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
        backups = [own for own in callbacks if isinstance(own, BackupAndRestore)]
        if len(backups) > 1:
            folders = [str(own.directory) for own in backups]
            raise ValueError(
                f"A training has only one BackupAndRestore, but these name the folders {folders}."
            )
        if isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise ValueError(
                "BackupAndRestore keeps the training of one process, but under a MultiWorkerMirroredStrategy "
                "several may train the model, and each would go on from a step of its own: take "
                "keras.callbacks.BackupAndRestore, with a folder that all of them see."
            )
        if not model.built:
            raise ValueError(
                "BackupAndRestore needs a built model, and a generator is not read to build one: call the "
                "model on one batch first, or start the encoder with a keras.Input."
            )

    def _open(self, model, callbacks, first_epoch):
        """Opens the folder, and reads the newest backup.

        Args:
            model: built and compiled.
            callbacks: those whose state is kept, in the order in which they are called.
            first_epoch: with which ``fit`` begins where there is no backup.
        """
        self._folder = BackupFolder(self.directory)
        with model.distribute_strategy.scope():
            self._variables = variables_of_training(model)
        seeds = [getattr(layer, "seed", None) for layer in layers_of(model)]
        self._seeds = [seed for seed in seeds if isinstance(seed, int)]
        self._class_names = digest_of(model.class_names)
        self._others = _named(callbacks)
        # An attribute that neither the start of training nor training changes is no state: the script
        # sets it. What a backup holds is state, also of a callback that lives on and has had it since.
        self._told, self._learnt = [self._snapshots()], {name: set() for name in self._others}
        self._schedule, self._is_due, self._terminated = None, False, False
        self._is_cut_short = False  # by SIGTERM, after a batch that others follow
        self._found, self._first_epoch = self._folder.newest(), first_epoch
        if self._found is not None:
            self._check()
            self._position = Position(*self._found[1]["position"])
            self._first_epoch = self._found[1]["first_epoch"]
        self._rates = self._rates_told(model)
        self._settings = self._settings_told(model)

    def _go_on(self, model, data, arguments):
        """Changes the arguments of ``fit`` so that it goes on at the position of the backup."""
        if data.has_nothing_left(self._position):
            self._begin_next_epoch()
        epochs, position = arguments.get("epochs") or 1, self._position
        self._check_end(epochs)
        self._check_nothing_is_undone(model, position.has_stopped or position.epoch >= epochs)
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
                "BackupAndRestore needs the fit of an ExtremeClassifier, which goes on in the middle of an "
                "epoch; for another model take keras.callbacks.BackupAndRestore."
            )
        self._told = [self._told[0], self._snapshots()]
        if self._found is not None:
            self._restore_variables()
            if self._position.batch == 0:
                self._restore_callbacks()
            else:
                self._warn_of_other_data()

    def on_epoch_begin(self, epoch, logs=None):
        # The others have begun an epoch: where it is the rest of one, what that did is undone.
        if self._found is not None and self._position.batch > 0:
            self._restore_variables()
            self._restore_callbacks()
        self._found = None
        self._epoch = epoch
        if self._schedule is None:
            self._schedule = BackupSchedule(
                sys.maxsize if self.save_freq == EPOCH else self.save_freq, self._now
            )

    @property
    def _now(self):
        """Training steps so far."""
        return int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch, logs=None):
        self._is_cut_short = False
        now, is_writing = self._now, self._folder.busy
        if not is_writing:
            self._schedule.end(now, self._folder.last_step)
        self._is_due |= self._terminated or (not is_writing and self._schedule.is_due(now))
        # At its last batch an epoch is not over: validation and the ends of the others come first. Where the
        # last one is not known, only SIGTERM does not wait.
        num_steps = self.params.get("steps")
        may_save = self._terminated if num_steps is None else batch + 1 < num_steps
        if self._is_due and may_save:
            self._save(Position(self._epoch, batch + 1))
        if self._schedule.has_to_wait(now):
            self._folder.wait()

    def on_epoch_end(self, epoch, logs=None):
        has_stopped = bool(self.model.stop_training)
        if has_stopped and self._is_cut_short:
            return  # the backup within the epoch is where it goes on
        is_last = has_stopped or epoch + 1 == self.params.get("epochs")
        self._is_due |= self.save_freq == EPOCH or self._terminated or is_last
        if self._is_due:
            self._save(Position(epoch + 1, 0, has_stopped), is_last)

    def _save(self, position, has_ended=False):
        """Starts a backup, once the one before is written; ``has_ended`` if it is the last of its ``fit``."""
        self._folder.wait()
        self._warn_of_errors()
        arrays = {name: variable.read_value() for name, variable in self._variables.items()}
        states = {name: to_json(self._state(name), arrays) for name in self._others}
        notes = {
            "position": position,
            "first_epoch": self._first_epoch,
            "num_batches": self.params.get("steps"),
            "has_ended": has_ended,
            "seeds": self._seeds,
            "class_names": self._class_names,
            "learning_rates": self._rates,
            "settings": self._settings,
            "callbacks": states,
        }
        self._folder.write(self._now, arrays, notes)
        self._schedule.begin(self._now)
        self._is_due = False
        if self._terminated:
            self._terminated = False  # once: a handler may let training go on, or end it in its own time
            self._is_cut_short = position.batch > 0
            self._folder.wait()
            self._warn_of_errors()
            signal.signal(signal.SIGTERM, self._handler)
            signal.raise_signal(signal.SIGTERM)

    def _snapshots(self):
        return {name: snapshot(_attributes(callback)) for name, callback in self._others.items()}

    def _state(self, name):
        callback = self._others[name]
        if hasattr(callback, "state_to_keep"):
            return callback.state_to_keep()
        attributes, learnt = _attributes(callback), self._learnt[name]
        changed = changed_attributes(attributes, *(told[name] for told in self._told))
        return changed | {key: value for key, value in attributes.items() if key in learnt}

    def _rates_told(self, model):
        """The learning rates that the script named when the training began; warns if it names others now."""
        rates = [own for name, own in self._variables.items() if name.startswith("learning_rate")]
        own = [float(rate.numpy()) for rate in rates]
        told = own if self._found is None else self._found[1]["learning_rates"]
        # A model that has done steps may have another rate for that reason, as where a cell runs again.
        if told != own and int(steps_variable(model.optimizer).numpy()) == 0:
            named, began = (", ".join(f"{rate:.6g}" for rate in each) for each in (own, told))
            warnings.warn(
                f"The script names the learning rate {named}, but the training in {self.directory} began "
                f"with {began}, and goes on with the rate of its backup. Set another by a callback, as "
                "keras.callbacks.LearningRateScheduler, from the next epoch on, or name another directory.",
                stacklevel=7,
            )
        return told

    def _settings_told(self, model):
        """What head, sampler, loss and optimizer were made with; warns if a backup was made with others."""
        parts = {
            "head": model.head,
            "sampler": model.sampler,
            "loss": model.classification_loss,
            "optimizer": model.optimizer,
        }
        own = {part: {} if owner is None else settings_of(owner) for part, owner in parts.items()}
        before = own if self._found is None else self._found[1]["settings"]
        changed = [
            f"{part} {name}={own[part].get(name)!r} in place of {before[part].get(name)!r}"
            for part in parts
            for name in {**own[part], **before[part]}
            if own[part].get(name) != before[part].get(name)
        ]
        if changed:
            warnings.warn(
                f"The training in {self.directory} goes on as the script now says, with "
                f"{'; '.join(changed)}. For another training name another directory.",
                stacklevel=7,
            )
        return own

    def _check(self):
        """That the backup is of this model and data."""
        arrays, notes = self._found
        names = notes["class_names"]  # None of a model without names
        if None not in (names, self._class_names) and names != self._class_names:
            raise ValueError(
                f"The backup in {self.directory} is of another model: it has other class names, or the same "
                "in another order. After change_classes delete it, or name another directory."
            )
        saved = {name: array for name, array in arrays.items() if not name.startswith("value ")}
        names = {*saved, *self._variables}
        # Some of layers are made when they are first used.
        names -= {name for name in saved.keys() ^ self._variables.keys() if name.startswith("metric ")}
        for name in sorted(names):
            own, kept = self._variables.get(name), saved.get(name)
            if own is None or kept is None or tuple(own.shape) != kept.shape or own.dtype != kept.dtype:
                own = "nothing" if own is None else f"{own.name} {own.dtype.name} {tuple(own.shape)}"
                kept = "nothing" if kept is None else f"{kept.dtype} {kept.shape}"
                raise ValueError(
                    f"The backup in {self.directory} is of another model: as {name} it holds {kept}, the "
                    f"model {own}. Delete it, or name another directory."
                )
        if notes["seeds"] != self._seeds:
            raise ValueError(
                f"The model has the seeds {self._seeds}, but its backup in {self.directory} has "
                f"{notes['seeds']}: call keras.utils.set_random_seed before the model is built. Now, give "
                "its sampler and head those of the backup as seed=."
            )

    def _begin_next_epoch(self):
        """Moves the position, of whose epoch no batch is left, to the next epoch."""
        self._position = Position(self._position.epoch + 1, 0)
        warnings.warn(
            f"Epoch {self._position.epoch} was interrupted after the last batch that it has: its "
            "validation is left out.",
            stacklevel=7,
        )

    def _check_end(self, epochs):
        """Refuses an end of ``fit`` before the epoch in which the training was interrupted."""
        position = self._position
        is_beyond = position.epoch >= epochs and position.batch > 0
        if is_beyond and not position.has_stopped:
            raise ValueError(
                f"The training in {self.directory} was interrupted after batch {position.batch} of epoch "
                f"{position.epoch}, which this fit, with epochs={epochs}, does not come to: the state at the "
                f"end of an earlier one is gone. Give epochs={position.epoch + 1} or more, or name another "
                "directory."
            )

    def _check_nothing_is_undone(self, model, is_finished):
        """Refuses, or warns, where the backup is of a training that a model has gone through already.

        Args:
            model: the one that the backup would be restored to.
            is_finished: whether the backup stands at the end of the training that is about to begin.
        """
        steps = steps_variable(model.optimizer)
        name = next(name for name, variable in self._variables.items() if variable is steps)
        own, saved = int(steps.numpy()), int(self._found[0][name])
        if own > saved and (is_finished or self._found[1]["has_ended"]):
            raise ValueError(
                f"The training in {self.directory} is finished, at step {saved}, and this model is at "
                f"step {own}: fit would undo what it learnt since. Name a folder for each training, or "
                "delete this one."
            )
        if own > saved:  # as where an interrupted cell of a notebook runs again
            warnings.warn(
                f"This model is at step {own}, and goes back to the backup in {self.directory}, of step "
                f"{saved}, where an interrupted training goes on. For another training name another folder.",
                stacklevel=7,
            )
        if own <= saved and is_finished:
            what = "this model is what came of it" if own == saved else "its model is restored"
            warnings.warn(
                f"The training in {self.directory} is finished, at step {saved}, and {what}: fit has nothing "
                "left to do. For another training name another folder.",
                stacklevel=7,
            )

    def _restore_variables(self):
        """Gives all variables of the training the values of the backup that was found."""
        for name, variable in self._variables.items():
            if name in self._found[0]:
                variable.assign(self._found[0][name])

    def _restore_callbacks(self):
        arrays, notes = self._found
        for name, callback in self._others.items():
            if name not in notes["callbacks"]:
                warnings.warn(f"The backup knows nothing of {name}: it starts anew.", stacklevel=2)
                continue
            state = from_json(notes["callbacks"][name], arrays)
            if hasattr(callback, "restore_state"):
                callback.restore_state(state)
            else:
                set_attributes(callback, state, StepClock)
                self._learnt[name] |= state.keys()

    def _warn_of_other_data(self):
        """Where an epoch has another number of batches than when the rest of one was left to do."""
        # None where it is not known.
        began, now = self._found[1]["num_batches"], self.params.get("steps")
        if None not in (began, now) and began != now:
            position = self._position
            warnings.warn(
                f"An epoch of this fit has {now} batches, but the training in {self.directory} was "
                f"interrupted after batch {position.batch} of {began}: in the rest of epoch "
                f"{position.epoch} some data may come twice, or not at all. Give the data it began with, or "
                "name another directory.",
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


def _named(callbacks):
    """The callbacks by their class and their number among those of the class."""
    found: dict = {}
    for callback in callbacks:
        kind = type(callback).__name__
        found[f"{kind} {sum(name.split()[0] == kind for name in found)}"] = callback
    return found


def _attributes(callback):
    state = plain_attributes(callback, StepClock)
    of_keras = {"params", *vars(keras.callbacks.Callback())}
    return {name: value for name, value in state.items() if name not in of_keras}
