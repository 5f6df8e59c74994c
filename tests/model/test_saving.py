"""A model that is saved: whole, or the file of before, and in a form that loads."""

import pytest
from classifier_checks import make_model

from tfxc._keras import keras


@pytest.mark.parametrize(("method", "name"), [("save", "model.keras"), ("save_weights", "model.weights.h5")])
def test_a_save_that_fails_leaves_the_earlier_file_whole(tmp_path, monkeypatch, method, name):
    model, path = make_model(), tmp_path / name
    getattr(model, method)(path)
    whole = path.read_bytes()

    def fail(self, filepath, **options):
        with open(filepath, "w") as file:
            file.write("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keras.Model, method, fail)
    with pytest.raises(OSError, match="No space left"):
        getattr(model, method)(path)
    assert path.read_bytes() == whole and [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "options"), [("model.h5", {}), ("model.hdf5", {}), ("model", {"save_format": "h5"})]
)
def test_a_model_is_not_saved_in_a_form_that_does_not_load(tmp_path, name, options):
    with pytest.raises(ValueError, match=r"too little of a model to load it: save to \"model.keras\""):
        make_model().save(tmp_path / name, **options)
    assert not list(tmp_path.iterdir())
