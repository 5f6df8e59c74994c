import copy
import warnings

import pytest
from classifier_checks import make_model

import tfxc
from tfxc._keras.training import variables_of_training
from tfxc.resume.script import Script


@pytest.fixture(scope="module")
def begun():
    model = make_model(tfxc.samplers.Uniform(4, seed=1))
    variables = variables_of_training(model)
    script = Script(model, variables, "folder")
    return script, {name: variable.numpy() for name, variable in variables.items()}, script.notes


def test_a_backup_of_the_same_script_passes(begun):
    script, arrays, notes = begun
    with warnings.catch_warnings(action="error"):
        script.compare(arrays, copy.deepcopy(notes))


def test_another_model_is_refused(begun, monkeypatch):
    script, arrays, notes = begun
    others = {name: array for name, array in arrays.items() if name != "weight 0"}
    with pytest.raises(ValueError, match="as weight 0 it holds nothing, the model .*float32"):
        script.compare(others, notes)
    monkeypatch.setitem(script.notes, "class_names", "y")
    with pytest.raises(ValueError, match="it has other class names"):
        script.compare(arrays, {**notes, "class_names": "x"})


def test_other_options_are_told(begun):
    script, arrays, notes = begun
    changed = copy.deepcopy(notes)
    changed["settings"]["sampler"]["num_negatives"] = 9
    changed["settings"]["loss"]["reduction"] = "sum"
    changed["settings"]["optimizer"]["clipnorm"] = 1.0
    message = "sampler num_negatives=4 in place of 9; loss reduction='.*' in place of 'sum'; optimizer clipn"
    with pytest.warns(UserWarning, match=message):
        script.compare(arrays, changed)
