"""Cuts and flips every kind of file that this package writes: each is refused, or read as it was written.

    python tests/damage_files.py --times 300

Prints a line for each kind. The exit status is 1 if one was read and held something else.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas

import tfxc
from tfxc._keras import keras
from tfxc.data import Vocabulary, from_frame, open_sequences
from tfxc.mining.hard_negative_table import HardNegativeTable
from tfxc.resume.folder import BackupFolder


class Vocabularies:
    """Names of classes."""

    def write(self, folder):
        Vocabulary([f"name {i} é" for i in range(300)]).save(folder / "vocabulary.txt")

    def read(self, folder):
        return Vocabulary.load(folder / "vocabulary.txt").names


class SequenceFolders:
    """What ``from_frame(directory=)`` leaves."""

    def write(self, folder):
        random = np.random.default_rng(0)
        frame = {name: random.integers(40, size=500) for name in ("user", "item", "time")}
        frame["shop"] = [f"shop {i}" for i in frame["item"] % 7]
        from_frame(pandas.DataFrame(frame), "user", "item", "time", columns=["shop"], directory=folder)

    def read(self, folder):
        log = open_sequences(folder)
        rows, shop = [row.tolist() for row in log], log.columns["shop"]
        of_columns = log.times.tolist(), shop.values.tolist(), shop.vocabulary.names
        return rows, log.user_ids, log.vocabulary.names, *of_columns


class HardNegatives:
    """The table of ``HardNegativeMining``."""

    def table(self, folder):
        return HardNegativeTable(folder, (400, 8), query_dim=3, num_classes=1000)

    def write(self, folder):
        table = self.table(folder)
        table.write([np.random.default_rng(0).integers(1000, size=(400, 8))], epoch=0)

    def read(self, folder):
        table = self.table(folder)
        table.resume(epoch=1)
        return table.rows(np.arange(400)).tolist()


class Backups:
    """Those of ``BackupAndRestore``: a damaged one is passed over for the one before."""

    def write(self, folder):
        backups = BackupFolder(folder)
        backups.write(7, {"table": np.random.default_rng(0).normal(size=(300, 8))}, {"epoch": 3})
        backups.wait()

    def read(self, folder):
        arrays, notes = BackupFolder(folder).newest()
        return arrays["table"].tolist(), notes


class SavedModels:
    """``model.save``: Keras's archive."""

    def write(self, folder):
        keras.utils.set_random_seed(0)
        encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6)])
        head = tfxc.layers.DenseHead(200)
        model = tfxc.ExtremeClassifier(encoder, head, class_names=[f"class {i}" for i in range(200)])
        model.compile(tfxc.optimizers.LazyAdam(), tfxc.losses.SoftmaxCrossentropy())
        model.save(folder / "model.keras")

    def read(self, folder):
        model = keras.models.load_model(folder / "model.keras")
        return [weight.tolist() for weight in model.get_weights()], model.class_names


KINDS = (Vocabularies, SequenceFolders, HardNegatives, Backups, SavedModels)


def damaged(content, trial, random):
    content = bytearray(content)
    at = random.integers(len(content))
    if trial % 3 == 0:
        del content[at:]
    elif trial % 3 == 1:
        content[at] ^= 1 << int(random.integers(8))
    else:
        content[at : at + random.integers(1, 9)] = random.bytes(random.integers(0, 20))
    return bytes(content)


def outcomes(kind, times, seed=0):
    random, counts = np.random.default_rng(seed), [0, 0, 0]
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        whole.mkdir()
        kind.write(whole)
        wanted = kind.read(whole)
        files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
        for trial in range(times):
            copy = Path(place) / "copy"
            shutil.copytree(whole, copy)
            file = copy / files[trial // 3 % len(files)]
            file.write_bytes(damaged(file.read_bytes(), trial, random))
            try:
                outcome = 1 if kind.read(copy) == wanted else 2
            except Exception:
                outcome = 0
            counts[outcome] += 1
            shutil.rmtree(copy)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=300, help="for each kind of file")
    times, wrong = parser.parse_args().times, 0
    for kind in KINDS:
        refused, read, other = outcomes(kind(), times)
        wrong += other
        print(f"{kind.__doc__} {refused} refused, {read} read whole, {other} read as something else")
    return bool(wrong)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
