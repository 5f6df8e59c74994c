import copy

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, dense_encoder, learnable, make_model, weights_of
from long_cases import long_after

import tfxc
from tfxc._keras import SAVES_TO_FOLDERS, keras, register
from tfxc.encoders.sequence_layers import ItemEmbedding
from tfxc.samplers import MIDX, Mixture, Uniform, Unigram


@register
class Histories(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.items = keras.layers.Embedding(NUM_CLASSES + 1, DIM, name="items")
        self.dense = keras.layers.Dense(DIM)

    def call(self, history):
        return self.dense(self.items(history)[:, -1])


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
    message = rf"No space left on device \(an earlier file is as it was\): '.*{name}'"
    with pytest.raises(OSError, match=message):
        getattr(model, method)(path)
    assert path.read_bytes() == whole and [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("method", "name"), [("save", "model.keras"), ("save_weights", "model.weights.h5")])
def test_through_a_link_it_is_the_target_that_is_written(tmp_path, method, name):
    target, link = tmp_path / "disk" / "blob", tmp_path / name
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    getattr(make_model(), method)(link)
    assert link.is_symlink() and target.read_bytes() == link.read_bytes() != b"old"
    assert len(list(target.parent.iterdir())) == 1


@pytest.mark.both_keras
@pytest.mark.parametrize(
    ("name", "options"), [("model.h5", {}), ("model.hdf5", {}), ("model", {"save_format": "h5"})]
)
def test_a_model_is_not_saved_in_a_form_that_does_not_load(tmp_path, name, options):
    with pytest.raises(ValueError, match=r"too little of a model to load it: save to \"model.keras\""):
        make_model().save(tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["w.h5", "w.hdf5", "w.keras"])
def test_weights_of_bfloat16_are_not_saved_in_a_form_that_does_not_load(tmp_path, name):
    head = tfxc.layers.DenseHead(NUM_CLASSES, table_dtype="bfloat16")
    model = make_model(head=head)
    message = r"no weight of bfloat16 loads: save_weights\(\"model.weights.h5\"\)"
    with pytest.raises(ValueError, match=message):
        model.save_weights(tmp_path / name)
    assert not list(tmp_path.iterdir())
    before = head.table_variable.numpy()
    model.save_weights(tmp_path / "w.weights.h5")
    head.table_variable.assign(before + 1)
    model.load_weights(tmp_path / "w.weights.h5")
    np.testing.assert_array_equal(head.table_variable.numpy(), before)


def tied_in_half(embedding):
    layers = [keras.Input((3,), dtype="int32"), embedding, keras.layers.Flatten(), keras.layers.Dense(DIM)]
    head = tfxc.layers.DenseHead(NUM_CLASSES, tied_to="items", row_offset=1, table_dtype="bfloat16")
    return make_model(head=head, encoder=keras.Sequential(layers))


@pytest.mark.both_keras
@pytest.mark.parametrize(("method", "name"), [("save", "model.keras"), ("save_weights", "model.weights.h5")])
def test_a_table_of_bfloat16_that_tf_keras_cannot_load_is_not_saved(tmp_path, method, name):
    options = {"name": "items", "dtype": "bfloat16"}
    own = tied_in_half(ItemEmbedding(NUM_CLASSES + 1, DIM, **options))
    getattr(own, method)(tmp_path / name)
    table = own.head.table_variable.numpy()
    own.head.table_variable.assign(table + 1)
    own.load_weights(tmp_path / name) if method == "save_weights" else None
    loaded = own if method == "save_weights" else keras.models.load_model(tmp_path / name)
    np.testing.assert_array_equal(loaded.head.table_variable.numpy(), table)
    plain = tied_in_half(keras.layers.Embedding(NUM_CLASSES + 1, DIM, **options))
    if SAVES_TO_FOLDERS:
        with pytest.raises(ValueError, match="items/embeddings.*of bfloat16, from no file.*Checkpoint"):
            getattr(plain, method)(tmp_path / f"plain.{name}")
    else:
        getattr(plain, method)(tmp_path / f"plain.{name}")


@pytest.mark.skipif(SAVES_TO_FOLDERS, reason="tf-keras knows no Orbax")
def test_what_orbax_keeps_of_a_model_comes_back_whatever_the_paths_of_its_layers():
    sampler = Mixture([MIDX(3, num_codewords=4, seed=0), Unigram(3)])
    model, (x, y) = make_model(sampler, run_eagerly=True), learnable(8)
    model.fit(x, y, verbose=0)
    kept = model.get_state_tree(value_format="numpy_array")
    kept = {group: dict(sorted(values.items(), reverse=True)) for group, values in kept.items()}
    loaded = type(model).from_config(model.get_config())
    loaded.compile_from_config(model.get_compile_config())
    assert [own.path for own in loaded.variables] != [own.path for own in model.variables]
    loaded.set_state_tree(kept)
    tf.nest.map_structure(np.testing.assert_array_equal, weights_of(model), weights_of(loaded))
    history = [own.fit(x, y, verbose=0, shuffle=False).history["loss"] for own in (model, loaded)]
    assert history[0] == history[1]
    with pytest.raises(ValueError, match="holds 20 non_trainable_variables, but the model 0: .* made alike"):
        make_model().set_state_tree(kept)


@pytest.mark.both_keras
@pytest.mark.parametrize("options", [{}, {"save_format": "tf"}])
@pytest.mark.skipif(not SAVES_TO_FOLDERS, reason="Keras 3 saves to no folder")
def test_a_model_is_not_saved_to_a_folder(tmp_path, options):
    with pytest.raises(ValueError, match="a folder in TensorFlow's format.*save to .model.keras."):
        make_model().save(tmp_path / "model", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("other", long_after(2, "codewords", "mixture", "counts", "none"))
def test_of_a_sampler_that_another_took_the_place_of_nothing_is_saved(reloaded, other):
    counts = np.arange(1.0, NUM_CLASSES + 1)
    before = MIDX(4, num_codewords=8) if other == "codewords" else Unigram(4, counts=counts)
    head, names = tfxc.layers.DenseHead(NUM_CLASSES), [f"class {i}" for i in range(NUM_CLASSES)]
    model = tfxc.ExtremeClassifier(dense_encoder(), head, before, class_names=names)
    model.compile(tfxc.optimizers.LazyAdam(0.05), loss=tfxc.losses.SoftmaxCrossentropy(), run_eagerly=True)
    x, y = learnable(8)
    model.fit(x, y, verbose=0)
    model.sampler = {
        "counts": lambda: Unigram(4, counts=counts[::-1]),
        "codewords": lambda: MIDX(4, num_codewords=4),
        "mixture": lambda: Mixture([before, Uniform(4)]),
        "none": lambda: None,
    }[other]()
    model.fit(x, y, verbose=0)
    loaded = reloaded(model)
    tf.nest.map_structure(np.testing.assert_array_equal, weights_of(model), weights_of(loaded))
    changed = tfxc.change_classes(model, [*names[1:], "new"])
    assert len(weights_of(changed)) == len(weights_of(loaded))


@pytest.mark.long
@pytest.mark.both_keras
@pytest.mark.parametrize("tied_to", [None, "items"])
def test_with_a_subclassed_encoder_it_goes_on_as_it_would_have(reloaded, tied_to):
    head = tfxc.layers.DenseHead(NUM_CLASSES, use_bias=True, tied_to=tied_to, row_offset=int(bool(tied_to)))
    model = make_model(MIDX(4, num_codewords=4, seed=0), head=head, encoder=Histories())
    x, y = np.arange(60).reshape(20, 3) % NUM_CLASSES + 1, np.arange(20)
    model.fit(x, y, epochs=3, shuffle=False, verbose=0)
    loaded = reloaded(model)
    assert loaded.built and int(loaded.optimizer.iterations.numpy()) == 3
    tf.nest.map_structure(np.testing.assert_array_equal, weights_of(model), weights_of(loaded))
    losses = [each.fit(x, y, shuffle=False, verbose=0).history["loss"] for each in (model, loaded)]
    assert losses[0] == losses[1]
    tf.nest.map_structure(np.testing.assert_array_equal, weights_of(model), weights_of(loaded))


@register
class Mixed(keras.layers.Layer):
    """An encoder without ``build``, whose layers build themselves in its first call."""

    def __init__(self, **options):
        super().__init__(**options)
        self.kinds, self.dense = keras.layers.Embedding(3, DIM), keras.layers.Dense(DIM)

    def call(self, inputs):
        x, kind = inputs
        return self.dense(x) + self.kinds(kind) + tf.one_hot(kind, DIM)


@pytest.mark.both_keras
@pytest.mark.filterwarnings("ignore:`build..` was called on layer")
@pytest.mark.parametrize("method", ["train_on_batch", "predict_on_batch"])
def test_an_encoder_that_its_first_call_builds_comes_back(tmp_path, method):
    model = make_model(encoder=Mixed())
    x, y = (np.ones((4, 3), np.float32), np.arange(4) % 3), np.arange(4)
    getattr(model, method)(x, *[y] * (method == "train_on_batch"))
    for number in range(2):
        model.save(tmp_path / f"{number}.keras")
        loaded = keras.models.load_model(tmp_path / f"{number}.keras")
        tf.nest.map_structure(np.testing.assert_array_equal, weights_of(model), weights_of(loaded))
        model = loaded
    assert len(weights_of(model)) == 5
    model.train_on_batch(x, y)


@register
class Unnamed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.before = keras.layers.Embedding(NUM_CLASSES + 1, DIM)
        self.items = keras.layers.Embedding(NUM_CLASSES + 1, DIM)

    def call(self, history):
        return tf.reduce_mean(self.items(history) + self.before(history), axis=1)


@pytest.mark.long
@pytest.mark.parametrize("num_others", long_after(1, 2, 0, 1))
@pytest.mark.parametrize("kind", ["tied", pytest.param("item encoder", marks=pytest.mark.both_keras)])
def test_an_embedding_without_a_name_that_the_head_shares_is_found_again(tmp_path, kind, num_others):
    encoder, item = Unnamed(), keras.Input((), dtype="int32")
    if kind == "tied":
        head = tfxc.layers.DenseHead(NUM_CLASSES, tied_to=encoder.items, row_offset=1)
    else:
        ids = np.arange(1, NUM_CLASSES + 1, dtype=np.int32)
        head = tfxc.layers.EncodedHead(keras.Model(item, encoder.items(item)), ids)
    model = make_model(Uniform(4, seed=0), head=head, encoder=encoder)
    x, y = np.arange(60).reshape(20, 3) % NUM_CLASSES + 1, np.arange(20)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    keras.backend.clear_session()  # counts layers anew, as another process does
    for _ in range(num_others):
        keras.layers.Embedding(2, 2)
    copies = [copy.deepcopy(model)] if kind == "tied" else []
    for other in (keras.models.load_model(tmp_path / "model.keras"), *copies):
        if kind == "tied":
            assert other.head._shared.value is other.encoder.items
        else:
            assert any(layer is other.encoder.items for layer in other.head.item_encoder.layers)
        np.testing.assert_array_equal(other.predict(x, verbose=0)["ids"], model.predict(x, verbose=0)["ids"])


@pytest.mark.parametrize("other", ["sampler", "classes"])
def test_weights_that_do_not_fit_are_refused_with_what_to_do(tmp_path, other):
    path = tmp_path / "model.weights.h5"
    make_model(Uniform(3)).save_weights(path)
    sampler, classes = {"sampler": MIDX(3, num_codewords=2)}, {"head": tfxc.layers.DenseHead(7)}
    model = make_model(**(sampler if other == "sampler" else classes))
    message = r"If the sampler differs.*skip_mismatch=True\). If the classes differ: .*tfxc.change_classes"
    with pytest.raises(ValueError, match=f"(?s){message}"):
        model.load_weights(path)
