"""Cuts and flips of the files that this package writes: each is refused, or read as it was written."""

import shutil

import numpy as np
import pandas
import pytest
from classifier_checks import NUM_CLASSES, dense_encoder

import tfxc
from tfxc._keras import keras
from tfxc.data import Vocabulary, from_frame, open_sequences
from tfxc.resume.folder import BackupFolder


def write_sequences(folder):
    random = np.random.default_rng(0)
    user, item = random.integers(40, size=[2, 500])
    frame = {"user": user, "item": item, "time": range(500), "shop": [f"shop {i}" for i in item % 7]}
    from_frame(pandas.DataFrame(frame), "user", "item", "time", columns=["shop"], directory=folder)


def read_sequences(folder):
    log = open_sequences(folder)
    shop = log.columns["shop"]
    arrays = [part.tolist() for part in (*log, log.times, shop.values)]
    return arrays, log.user_ids, log.vocabulary.names, shop.vocabulary.names


def write_backup(folder):
    backups = BackupFolder(folder)
    backups.write(7, {"table": np.random.default_rng(0).normal(size=(300, 8))}, {"epoch": 3})
    backups.wait()


def read_backup(folder):
    arrays, notes = BackupFolder(folder).newest()
    return arrays["table"].tolist(), notes


def write_model(folder):
    head, names = tfxc.layers.DenseHead(NUM_CLASSES), [f"class {i}" for i in range(NUM_CLASSES)]
    model = tfxc.ExtremeClassifier(dense_encoder(), head, class_names=names)
    model.compile(tfxc.optimizers.LazyAdam(), tfxc.losses.SoftmaxCrossentropy())
    model.save(folder / "model.keras")


def read_model(folder):
    model = keras.models.load_model(folder / "model.keras")
    return [weight.tolist() for weight in model.get_weights()], model.class_names


def write_names(folder):
    Vocabulary([f"name {i} é" for i in range(300)]).save(folder / "names.txt")


def read_names(folder):
    return Vocabulary.load(folder / "names.txt").names


KINDS = {
    "names": (write_names, read_names),
    "sequences": (write_sequences, read_sequences),
    "backup": (write_backup, read_backup),
    "model": (write_model, read_model),
}


def damaged(content, trial, random):
    content, at = bytearray(content), random.integers(len(content))
    if trial % 3 == 0:
        del content[at:]
    elif trial % 3 == 1:
        content[at] ^= 1 << int(random.integers(8))
    else:
        content[at : at + random.integers(1, 9)] = random.bytes(random.integers(0, 20))
    return bytes(content)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*damaged")
@pytest.mark.parametrize("write, read", KINDS.values(), ids=KINDS)
def test_what_is_damaged_is_refused_or_read_whole(write, read, tmp_path):
    whole, random, num_refused = tmp_path / "whole", np.random.default_rng(0), 0
    whole.mkdir()
    write(whole)
    wanted = read(whole)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    for trial in range(60):
        copy = shutil.copytree(whole, tmp_path / str(trial))
        file = copy / files[trial // 3 % len(files)]
        file.write_bytes(damaged(file.read_bytes(), trial, random))
        try:
            found = read(copy)
        except Exception:
            num_refused += 1
        else:
            assert found == wanted, (trial, file)
    assert num_refused > 30
