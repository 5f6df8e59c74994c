"""The record of a training run: quality by training time, checkpoints, early stopping, resuming."""

import json
import os
import sys
import time

import numpy as np
import tensorflow as tf
from tensorflow import keras

from common.arguments import count, rate, whole
from common.run_options import check_options

# Options that may change when a run resumes: the other runs, the output, the display, and the patience. The
# number of epochs may not: the learning rate decays along it.
_OF_NO_RUN = {"samplers", "heads", "encoders", "repetitions", "merge", "output", "verbose", "patience"}
# A progress bar overwrites its line, which works in a terminal only.
VERBOSE = 1 if sys.stdout.isatty() else 2


def add_arguments(add):
    """The options of a training run."""
    add("--epochs", type=count, default=1, help="passes over the training data")
    add("--patience", type=count, default=5, help="epochs without progress before a run stops")
    add("--learning-rate", type=rate, default=2e-3, help="at the start; falls to 0 along a cosine")
    add("--seed", type=whole, default=0, help="of weights, draws and the order of the data")
    add("--verbose", type=int, choices=(1, 2), default=VERBOSE, help="a progress bar, or lines")


class TrainingLog(keras.callbacks.Callback):
    """Writes a line of history, and checkpoints of the last and the best state, after each epoch; stops
    early.

    The clock stops during validation and while files are written, so the times of samplers can be compared;
    the work of a search behind training in that time does not count. An interrupted run resumes from its last
    whole epoch.

    Args:
        folder: the folder of ``history.json`` and the checkpoints.
        model: the compiled model.
        patience: training stops after so many epochs without a better ``metric``.
        metric: name of the validation metric in the logs.
        mode: "max" where a larger metric is better, or "min".
        sample: None, or a ``QualitySample`` to measure ten times an epoch; the row of the epoch has the
            results under "curve".
        num_steps: with a sample, the steps of an epoch.
        verbose: as in Keras; 2 also prints a line for each of these measurements.
        options: None, or the command line as a dict: a run with other options does not resume.
    """

    def __init__(
        self,
        folder,
        model,
        patience,
        metric="val_ndcg_at_10",
        mode="max",
        sample=None,
        num_steps=None,
        verbose=1,
        options=None,
    ):
        super().__init__()
        self.set_model(model)
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.path = os.path.join(folder, "history.json")
        self.patience = patience
        self.metric = metric
        self.best_of = {"max": max, "min": min}[mode]
        # A checkpoint of a model lacks the state of its dropout.
        states = [own for own in model.variables if getattr(own, "path", "").endswith("generator_state")]
        random = [own.value for own in states]
        self.state = tf.train.Checkpoint(model=model, optimizer=model.optimizer, random=random)
        self.last = tf.train.CheckpointManager(self.state, os.path.join(folder, "last"), max_to_keep=1)
        self.best = tf.train.CheckpointManager(self.state, os.path.join(folder, "best"), max_to_keep=1)
        self.rows = []
        self.sample = sample
        self.num_steps = num_steps
        self.verbose = verbose
        self.options = options

    def resume(self, train_set=None):
        """Restores the last whole epoch, if there is one; returns the number of finished epochs.

        Training batches of ``tfxc.data`` continue with the order of the next epoch.

        Raises:
            SystemExit: The run in the folder has other options.
        """
        check_options(self.folder, self.options or {}, _OF_NO_RUN)
        if os.path.exists(self.path) and self._restore(self.last):
            with open(self.path, encoding="utf-8") as file:
                rows = json.load(file)
            # The row of an epoch may be written, but not its state.
            self.rows = rows[: int(self.last.latest_checkpoint.rpartition("-")[2])]
        if order := getattr(train_set, "epoch_order", None):  # shuffled batches have one
            order.next = len(self.rows)
        return len(self.rows)

    def fit(self, train_set, validation_set, epochs, callbacks=(), **options):
        """Trains the model from the state that ``resume`` found to its last epoch.

        Args:
            train_set: the batches of the remaining epochs.
            validation_set: the data of the metric.
            epochs: the number of all epochs.
            callbacks: other callbacks, which run before this one.
            options: more options of Keras's ``fit``.
        """
        done = len(self.rows)
        if done >= epochs or self.done:
            return
        resumed = f", resumed after {done}" if done else ""
        print(f"\n== {os.path.basename(self.folder)}: {self.model.count_params():,} weights{resumed}")
        self.model.fit(
            train_set,
            validation_data=validation_set,
            initial_epoch=done,
            epochs=epochs,
            callbacks=[*callbacks, self],
            verbose=self.verbose,
            **options,
        )

    def restore_best(self):
        self._restore(self.best)

    def _restore(self, manager):
        """Whether there is a checkpoint. The optimizer's part waits for training, which may not follow."""
        path = manager.latest_checkpoint
        if path:
            self.state.restore(path).expect_partial()
        return path is not None

    @property
    def seconds(self):
        return self.rows[-1]["seconds"] if self.rows else 0.0

    @property
    def processor_seconds(self):
        return self.rows[-1].get("processor_seconds", 0.0) if self.rows else 0.0

    @property
    def done(self):
        """Whether the last ``patience`` epochs brought no progress."""
        return bool(self.rows) and len(self.rows) - 1 - self._best_epoch() >= self.patience

    def _best_epoch(self):
        return self.best_of(range(len(self.rows)), key=lambda epoch: self.rows[epoch][self.metric])

    def on_train_begin(self, logs=None):
        self._start_clocks()

    def _start_clocks(self):
        """Starts the clock before other callbacks, which may refresh a sampler at the start of an epoch."""
        self._start, self._paused, self._curve = clocks(), np.zeros(2), []

    def on_train_batch_end(self, batch, logs=None):
        if self.sample is None or (batch + 1) * 10 // self.num_steps == batch * 10 // self.num_steps:
            return
        self.on_test_begin()
        seconds, processor_seconds = map(float, self._test_start - self._start - self._paused)
        seconds += self.seconds
        epochs, quality = len(self.rows) + (batch + 1) / self.num_steps, self.sample.measure()
        point = {"epoch": epochs, "seconds": seconds, "quality": quality}
        self._curve.append(point | {"processor_seconds": self.processor_seconds + processor_seconds})
        if self.verbose == 2:
            print(f"epoch {epochs:.1f}: {seconds:.0f} s, {self.sample.name} {quality:.4f}", flush=True)
        self.on_test_end()

    def on_test_begin(self, logs=None):
        self._test_start = clocks()

    def on_test_end(self, logs=None):
        self._paused += clocks() - self._test_start

    def on_epoch_end(self, epoch, logs=None):
        seconds, processor_seconds = map(float, clocks() - self._start - self._paused)
        row = {"epoch": epoch + 1, "seconds": self.seconds + seconds, "curve": self._curve}
        row["processor_seconds"] = self.processor_seconds + processor_seconds
        self.rows.append(row | {name: float(value) for name, value in logs.items()})
        with open(self.path + ".writing", "w", encoding="utf-8") as file:
            json.dump(self.rows, file, indent=1)
        os.replace(self.path + ".writing", self.path)
        if self._best_epoch() == len(self.rows) - 1:
            self.best.save(len(self.rows))
        self.last.save(len(self.rows))  # the epoch is done
        self.model.stop_training = self.done
        self._start_clocks()


def clocks():
    """Clock seconds, and processor seconds over all cores."""
    return np.array([time.perf_counter(), time.process_time()])


def markdown_table(titles, rows):
    """Rows of text as a Markdown table, with the first column aligned left."""
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def seconds_an_epoch(row):
    return row["seconds"] / max(row["epochs"], 1)


def times(row):
    """Epochs, training seconds and seconds an epoch, as text."""
    return [str(row["epochs"]), f"{row['seconds']:.1f}", f"{seconds_an_epoch(row):.1f}"]
