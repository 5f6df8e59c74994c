import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from sampler_checks import built, clustered, head_of, index_of, queries

from tfxc import class_vectors, progress
from tfxc._keras import keras
from tfxc.layers import DenseHead, EncodedHead, MACHHead
from tfxc.search import InvertedIndex, cells, faiss_index, tuning
from tfxc.search import inverted_index as module_of_index

DTYPES = ["float32", "bfloat16", "int8"]


@pytest.fixture(scope="module")
def small():
    head = head_of(clustered(60, 6), use_bias=True)
    return head, index_of(head, 6, 2)


def skewed(num_classes):
    lengths = 6 / np.sqrt(10 + np.arange(num_classes, dtype=np.float32))
    random = np.random.default_rng(0)
    return lengths[:, np.newaxis] * random.standard_normal((num_classes, 8)).astype(np.float32)


@pytest.mark.traced
def test_the_error_of_a_search_begins_with_what_is_wrong(small):
    head, index = small
    query = head.effective_query(queries(2, 6))
    for wrong in ({"exclude": [[60], [1]]}, {"allow": [[60]]}, {"num_probes": tf.constant(0)}):
        with pytest.raises(tf.errors.InvalidArgumentError, match="^An .*ed class id is outside|^num_probes"):
            index.top_k(query, 2, **wrong)


@pytest.mark.parametrize(
    ("dtype", "num_scanned"),
    long_after(4, ("int8", 0), *((dtype, 300) for dtype in DTYPES), ("float32", 0), ("bfloat16", 0)),
)
def test_fewer_bits_lose_little(dtype, num_scanned):
    vectors = skewed(3000) if num_scanned else clustered(3000, 16, num_clusters=20)
    head, query = head_of(vectors, use_bias=not num_scanned), queries(300, vectors.shape[1])
    index, effective = index_of(head, 40, 40, dtype, num_scanned), head.effective_query(query)
    found, exact = index.top_k(effective, 10, num_probes=2**40), head.top_k(query, 10)
    np.testing.assert_allclose(found.scores, exact.scores, rtol=1e-2, atol=1e-2)
    least = 0.97 if num_scanned else 0.98
    assert index.recall(head, query, 10) > (0.9999 if dtype == "float32" else least)
    allowed = index.top_k(effective, 2, allow=exact.ids[:, 3:9])
    # Of classes that score nearly alike any may come first.
    np.testing.assert_allclose(allowed.scores, exact.scores[:, 3:5], rtol=1e-2, atol=1e-2)


def test_no_queries(small):
    assert small[1].top_k(tf.zeros([0, 7]), 5).ids.shape == (0, 5)
    few_bits = index_of(small[0], 6, 2, dtype="int8")
    assert few_bits.top_k(tf.zeros([0, 7]), 3, allow=tf.zeros([0, 2], tf.int32)).ids.shape == (0, 3)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["dense", "encoded"])
def test_copies_of_the_best_are_as_good_as_these(kind):
    random = np.random.default_rng(0)
    vectors = np.repeat(random.normal(size=(20, 16)).astype(np.float32), 500, axis=0)
    head, query = head_of(random.permutation(vectors)), queries(200, 16)
    if kind == "encoded":
        same = keras.Sequential([keras.Input((16,)), keras.layers.Activation("linear")])
        head = built(EncodedHead(same, random.permutation(vectors)), None, 16)
    index = InvertedIndex()
    assert index.tune(head, query, recall=0.95) == 1 and index.num_probes == 1
    found = index.top_k(head.effective_query(query), 10)
    ids = head.top_k(query, 10).ids.numpy()
    assert np.mean([np.isin(*rows).mean() for rows in zip(ids, found.ids, strict=True)]) < 0.95


def test_tuning_reaches_a_recall_with_the_fewest_probes():
    head, query = head_of(clustered(4000, 8, num_clusters=60)), queries(200, 8)
    index = InvertedIndex()
    reached = index.tune(head, query, recall=0.9)
    assert reached >= 0.9 and reached == pytest.approx(index.recall(head, query))
    if index.num_probes > 1:
        index.num_probes -= 1
        assert index.recall(head, query) < 0.9
    more = index.tune(head, query, recall=1.0)
    assert more == 1 and index.num_probes >= 1
    fixed = InvertedIndex(num_cells=30)
    assert fixed.tune(head, query, recall=0.5) >= 0.5 and 30 <= fixed.num_cells < 60
    with pytest.raises(ValueError, match=r"recall must be in \(0, 1\], but got 95"):
        index.tune(head, query, recall=95)
    with pytest.raises(ValueError, match="recall must be a number, but got 'high'"):
        index.tune(head, query, recall="high")


def test_what_takes_long_tells_of_its_progress(monkeypatch, capfd):
    monkeypatch.setattr(progress, "_PATIENCE", 0)
    head, index = head_of(clustered(300, 4)), InvertedIndex()
    index.tune(head, queries(20, 4), 3)
    index.require_built_from(head)
    told = capfd.readouterr().err
    titles = "Exact best", "Lengths", "Answers", "k-means", "Cells", "Centres", "Costs", "Rows", "Compared"
    assert [title for title in titles if f"{title}: " not in told] == []


@pytest.mark.long
def test_making_it_holds_few_class_vectors_and_its_rows_once(monkeypatch):
    for module, name in ((class_vectors, "_BLOCK_ROWS"), (cells, "_CHUNK_ROWS")):
        monkeypatch.setattr(module, name, 100)
    monkeypatch.setattr(tuning, "_COMPARED", 1500)
    made, read, lay_out = [], [], module_of_index.lay_out
    monkeypatch.setattr(module_of_index, "lay_out", lambda *given: made.append(lay_out(*given)) or made[-1])
    head, index = head_of(queries(4000, 8)), InvertedIndex(num_cells=32, dtype="int8", num_scanned=0)
    vectors_of = head.class_vectors_of
    head.class_vectors_of = lambda ids: read.append(len(ids)) or vectors_of(ids)
    index.tune(head, queries(50, 8), 5, 0.5)
    index.require_built_from(head)
    index.rebuilt(head)
    assert len(read) > 100 and max(read) == 32 * 32  # those that k-means sees
    made[0].rows[3, 1] = 99
    assert (index.rows[3, 1].numpy() == 99).all()


@pytest.mark.long
def test_where_few_classes_answer_most_queries_these_are_scanned():
    head, query = head_of(skewed(20_000)), queries(200, 8)
    index, none, given = InvertedIndex(), InvertedIndex(num_scanned=0), InvertedIndex(num_scanned=700)
    for own in (index, none, given):
        assert own.tune(head, query, recall=0.95) >= 0.95
    assert 0 < index.num_scanned <= 5000 and (none.num_scanned, given.num_scanned) == (0, 700)

    def num_read(index):
        return index.num_scanned / 16 + index.num_probes * 20_000 / index.num_cells

    assert num_read(index) < num_read(none) / 2


@pytest.mark.both_keras
@pytest.mark.parametrize("dtype", long_after(1, "bfloat16", "int8"))
def test_saved_with_a_model(reloaded, dtype):
    index = index_of(head_of(clustered(300, 4)), 10, 3, dtype, num_scanned=20)
    inputs = keras.Input((4,))
    best = index(inputs)
    model = keras.Model(inputs, {"scores": best[0], "ids": best[1]})
    loaded = reloaded(model)
    layer = next(layer for layer in loaded.layers if isinstance(layer, InvertedIndex))
    assert layer.get_config() == index.get_config() and layer.num_probes == 3
    query = queries(9, 4)
    tf.nest.map_structure(np.testing.assert_array_equal, index.top_k(query, 6), layer.top_k(query, 6))
    np.testing.assert_array_equal(loaded.predict(query, verbose=0)["ids"], index.top_k(query, 10).ids)


def test_with_more_probes_than_cells_it_is_saved_with_as_many():
    index = index_of(head_of(clustered(300, 4)), 10, 3)
    index.num_probes = 10_000
    assert InvertedIndex.from_config(index.get_config()).num_probes == index.num_cells


def test_a_checkpoint_holds_it(tmp_path):
    index, other = (index_of(head_of(clustered(300, 4, seed=seed)), 10, 3) for seed in (0, 0))
    other.rows.assign(tf.zeros_like(other.rows))
    path = tf.train.Checkpoint(index=index).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(index=other).restore(path).assert_existing_objects_matched()
    query = queries(5, 4)
    np.testing.assert_array_equal(index.top_k(query, 6).scores, other.top_k(query, 6).scores)


def test_arguments_are_checked():
    for options, message in (
        ({"num_cells": 4, "num_probes": 5}, r"num_probes must be in \[1, num_cells=4\], but got 5"),
        ({"dtype": "float16"}, "dtype must be one of .* but got 'float16'"),
        ({"num_cells": 0}, "num_cells must be an integer of at least 1, but got 0"),
        ({"num_scanned": -1}, "num_scanned must be an integer of at least 0, but got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            InvertedIndex(**options)
    for prepare in (InvertedIndex.build_from, lambda index, head: index.tune(head, queries(5, 4), k=2)):
        with pytest.raises(ValueError, match=r"num_scanned must be in \[0, 30\).* but got 30"):
            prepare(InvertedIndex(num_scanned=30), head_of(clustered(30, 4)))
    for ask in InvertedIndex(), lambda query: InvertedIndex().top_k(query, 1):
        with pytest.raises(ValueError, match="The index is empty"):
            ask(tf.zeros([1, 4]))


def test_requests_are_checked(small):
    head, index = small
    query = head.effective_query(queries(2, 6))
    with pytest.raises(ValueError, match=r"width 7, .* give it head\.effective_query\(query\)"):
        index.top_k(queries(2, 6), 3)
    for shape in ([7], [2, 3, 7]):
        with pytest.raises(ValueError, match=r"query must be \[N, D\], but has shape"):
            index.top_k(tf.zeros(shape), 3)
    with pytest.raises(ValueError, match=r"k must be an integer in \[1, 60\]"):
        index.top_k(query, 61)
    with pytest.raises(ValueError, match="num_probes must be an integer of at least 1"):
        index.top_k(query, 3, num_probes=0)
    for arguments in ({"k": 2.5}, {"k": 3, "num_probes": tf.constant(2.0)}):
        with pytest.raises(ValueError, match="must be an int or an integer scalar tensor"):
            index.top_k(query, **arguments)
    with pytest.raises(tf.errors.InvalidArgumentError, match="num_probes must be at least 1"):
        index.top_k(query, 3, num_probes=tf.constant(0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="k must be at least 1"):
        index.top_k(query, tf.constant(0))
    for name in ("exclude", "allow"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{name.rstrip('e')}.* class id is outside"):
            index.top_k(query, 3, **{name: [[60], [1]]})
    with pytest.raises(ValueError, match="built already: make a new InvertedIndex"):
        index.build_from(head)


def test_counts_that_no_int32_holds_are_clamped(small):
    head, index = small
    query, many = head.effective_query(queries(2, 6)), tf.constant(2**32 + 1, tf.int64)
    found = index.top_k(query, many, num_probes=many)
    np.testing.assert_array_equal(found.ids, head.top_k(queries(2, 6), 60).ids)


@pytest.mark.long
@pytest.mark.traced
def test_a_graph_need_not_know_the_width_of_queries(small):
    head, index = small
    query = head.effective_query(queries(2, 6))
    ask = tf.function(lambda query: index.top_k(query, 3), input_signature=[tf.TensorSpec([None, None])])
    np.testing.assert_array_equal(ask(query).ids, index.top_k(query, 3).ids)


@pytest.mark.parametrize("build", [lambda head: InvertedIndex().build_from(head), faiss_index])
def test_heads_without_class_vectors_are_refused(build):
    broken = clustered(50, 4)
    broken[3] = np.inf
    for head, message in (
        (built(MACHHead(50, 5, 2), None, 8), "this MACHHead do not rank as its logits do"),
        (DenseHead(50), "build it, or the model, before the index"),
        (keras.layers.Dense(3), "built from a head, as model.head, but got Dense"),
        (head_of(broken), "vector of class 3 is not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            build(head)
    broken[:48] = np.nan  # fewer are left than are asked for
    with pytest.raises(ValueError, match="vector of class 0 is not finite"):
        InvertedIndex().tune(head_of(broken), queries(20, 4), k=5)


def test_an_index_rebuilt_finds_the_classes_there_are_now():
    queries = tf.random.stateless_normal([20, 8], [1, 2])
    head = built(DenseHead(300), None, 8)
    index = InvertedIndex(num_cells=12, num_probes=6, dtype="int8", num_scanned=40)
    with pytest.raises(ValueError, match="empty"):
        index.rebuilt(head)
    index.build_from(head)
    other = built(DenseHead(320), None, 8)
    again = index.rebuilt(other)
    assert (again.num_classes, again.num_probes, again.rows_dtype, again.num_scanned) == (320, 6, "int8", 40)
    longest = np.argsort(-np.linalg.norm(other.table.numpy(), axis=1))[:40]
    np.testing.assert_array_equal(again.scanned.numpy(), np.sort(longest))
    found = again.top_k(queries, 320, num_probes=again.num_cells).ids.numpy()
    assert all(sorted(row) == list(range(320)) for row in found)
    assert again.recall(other, queries, k=5) > 0.7


def test_a_head_of_other_classes_is_refused(small):
    _, index = small
    num_probes = index.num_probes
    for measure in (index.recall, index.tune):
        with pytest.raises(ValueError, match=r"holds 60 classes, but the head 50: .* rebuilt\(head\)"):
            measure(head_of(clustered(50, 7)), queries(5, 7))
        with pytest.raises(ValueError, match="vectors of width 7, but those of the head have 4"):
            measure(head_of(clustered(60, 4)), queries(5, 4))
    assert index.num_probes == num_probes
    with pytest.raises(ValueError, match="vectors of width 7, but those of the head have 4: make a new"):
        index.rebuilt(head_of(clustered(50, 4)))


@pytest.mark.parametrize(
    ("dtype", "vectors"),
    [
        ("float32", skewed(500)),
        ("int8", skewed(500)),
        ("int8", 50 + clustered(500, 8)),
        ("int8", np.zeros([500, 8], np.float32)),
    ],
)
def test_it_knows_the_head_it_was_built_from(dtype, vectors):
    head = head_of(vectors, use_bias=True)
    index = index_of(head, 10, 2, dtype, num_scanned=40)
    index.require_built_from(head)
    index.rebuilt(head).require_built_from(head)
    head.table.assign_add(0.2 * (vectors.max() or 1) * queries(500, 8))
    with pytest.raises(ValueError, match=r"built from other class vectors .* index\.rebuilt\(model\.head\)"):
        index.require_built_from(head)
    index.rebuilt(head).require_built_from(head)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_scanned", [0, 40])
@pytest.mark.parametrize("use_bias", [False, True])
def test_it_knows_a_head_of_which_one_class_is_another(dtype, num_scanned, use_bias):
    vectors = 0.1 * queries(500, 8) if use_bias else skewed(500)
    head = head_of(vectors, use_bias=use_bias)
    if use_bias:  # large ones hide no change
        head.bias.assign(-12 + np.random.default_rng(0).normal(size=500))
    index = index_of(head, 10, 2, dtype, num_scanned)
    index.require_built_from(head)
    for changed in [int(index.scanned[0]) if num_scanned else 7, 499]:
        head.table.assign(vectors)
        head.table[changed].assign(vectors[changed - 1])
        with pytest.raises(ValueError, match=f"other class vectors .* with class {changed}: after training"):
            index.require_built_from(head)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("use_bias", [False, True])
def test_the_head_it_was_built_from_is_never_refused(dtype, use_bias):
    random = np.random.default_rng(1)
    # Ranges beyond what 8 bits hold.
    vectors = queries(300, 6) * 10.0 ** random.uniform(-20, 8, size=(300, 1))
    vectors[::7, random.integers(6)] = 1e15
    vectors[::11] = 0
    vectors[5::13] = random.choice([1e-40, 1e-38, -3e-37, 3e-34], size=vectors[5::13].shape)
    head = head_of(vectors.astype(np.float32), use_bias=use_bias)
    if use_bias:
        head.bias.assign(-1e4 * random.random(300))
    for num_scanned in (0, 60):
        index_of(head, 8, 2, dtype, num_scanned).require_built_from(head)


def test_an_index_holds_the_class_vectors_of_now():
    tower = keras.Sequential([keras.Input((3,)), keras.layers.Dense(6)])
    head = built(EncodedHead(tower, clustered(60, 3)), None, 6)
    assert head.class_cache.age > 0
    query = queries(5, 6)
    found = index_of(head, 6, 6).top_k(query, 4)
    np.testing.assert_allclose(found.scores, head.top_k(query, 4).scores, rtol=1e-5)
    assert np.abs(found.scores).min() > 0


def test_a_number_of_probes_that_was_set_is_checked(small, monkeypatch):
    (_, index), query = small, queries(2, 7)
    monkeypatch.setattr(index, "num_probes", 2.9)
    with pytest.raises(ValueError, match=r"num_probes must be an int .* but got 2\.9"):
        index.top_k(query, 3)


@pytest.mark.traced
def test_lists_of_ids_are_traced_once(small):
    head, index = small
    query = head.effective_query(queries(2, 6))
    for own in range(4):
        assert own not in index.top_k(query, 5, exclude=[[own]], allow=[[0, 1, 2, 3, 4, 5]]).ids.numpy()
    count = index._search.value.top_k.experimental_get_tracing_count()
    index.top_k(query, 5, exclude=[[7]], allow=[[8, 1, 2, 3, 4, 5]])
    assert index._search.value.top_k.experimental_get_tracing_count() == count


def test_ids_may_be_ragged(small):
    head, index = small
    query = head.effective_query(queries(2, 6))
    for name in ("exclude", "allow"):
        ragged = index.top_k(query, 3, **{name: tf.ragged.constant([[3, 8], [4]])})
        unsigned = index.top_k(query, 3, **{name: tf.ragged.constant([[3, 8], [4]], "uint8")})
        padded = index.top_k(query, 3, **{name: [[3, 8], [4, -1]]})
        assert (ragged.ids == padded.ids).numpy().all() and (unsigned.ids == padded.ids).numpy().all()


def test_vectors_whose_length_overflows_are_refused():
    vectors = clustered(60, 4)
    vectors[7] = 1e20
    built = index_of(head_of(clustered(60, 4)), 6)
    for build in (lambda head: index_of(head, 6), built.rebuilt):
        with pytest.raises(ValueError, match="vector of class 7 is finite, but its squared length is not"):
            build(head_of(vectors))
    vectors[7] = 1e18
    assert index_of(head_of(vectors), 6).num_classes == 60


def test_more_cells_than_classes_are_as_many():
    head = head_of(clustered(9, 4))
    index = index_of(head, num_cells=50, num_probes=1)
    assert index.num_cells <= 2 * 9
    query = head.effective_query(queries(3, 4))
    np.testing.assert_array_equal(np.sort(index.top_k(query, 9).ids), np.tile(np.arange(9), [3, 1]))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_scanned_classes_lose_nothing_to_few_bits(dtype):
    head, query = head_of(clustered(400, 16)), queries(40, 16)
    index = index_of(head, 4, num_probes=1, dtype=dtype, num_scanned=399)
    best, exact = index.top_k(query, 20), head.top_k(query, 20)
    np.testing.assert_allclose(best.scores, exact.scores, atol=2e-3)
    assert np.mean(best.ids.numpy() == exact.ids.numpy()) > 0.99
