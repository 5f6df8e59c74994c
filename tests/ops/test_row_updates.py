import re

import numpy as np
import pytest
import tensorflow as tf
from kernel_checks import EVERY_SIZE
from row_update_checks import RULES

from tfxc.ops.row_updates import (
    AdamHyper,
    lazy_adam_update,
    row_sgd_update,
    rowwise_adagrad_update,
    sum_duplicate_rows,
)

pytestmark = pytest.mark.usefixtures("path")
BY_THE_KERNEL = pytest.mark.parametrize(
    "path", [pytest.param("compiled", marks=pytest.mark.kernels)], indirect=True
)


def make(rule, shape, ids, dtype="float32", id_dtype="int32"):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape)] + [rng.uniform(0.1, 1, size=s) for s in RULES[rule][2](shape)]
    arrays = [array.astype(dtype).astype("float64") for array in arrays]
    values = rng.normal(size=(len(ids), *shape[1:])).astype(dtype)
    gradient = tf.IndexedSlices(tf.constant(values), tf.constant(ids, id_dtype))
    return arrays, values.astype("float64"), [tf.Variable(array, dtype=dtype) for array in arrays], gradient


def expect(rule, arrays, values, ids):
    for row in np.unique(ids):
        total = values[np.equal(ids, row)].sum(axis=0)
        RULES[rule][1](*(array[row : row + 1] for array in arrays), total)


def close(variables, arrays, rtol=1e-5, atol=1e-6):
    for variable, array in zip(variables, arrays, strict=True):
        np.testing.assert_allclose(variable.numpy(), array, rtol=rtol, atol=atol)


def check(rule, shape, ids, tolerance=1e-5, **types):
    arrays, values, variables, gradient = make(rule, shape, ids, **types)
    expect(rule, arrays, values, np.array(ids))
    RULES[rule][0](*variables, gradient)
    close(variables, arrays, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rule", RULES)
def test_a_gradient_of_numpy_arrays(rule):
    ids = [2, 0, 2]
    arrays, values, variables, gradient = make(rule, (4, 3), ids)
    expect(rule, arrays, values, ids)
    RULES[rule][0](*variables, tf.IndexedSlices(gradient.values.numpy(), gradient.indices.numpy()))
    close(variables, arrays)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("id_dtype", ["int32", "int64"])
@pytest.mark.parametrize("trailing", [(), (3,), (100,), (2, 3)])
def test_equals_float64_with_duplicates(rule, trailing, id_dtype):
    check(rule, (7, *trailing), [5, 0, 5, 6, 0, 5, 2], id_dtype=id_dtype)


@pytest.mark.parametrize("rule", RULES)
@EVERY_SIZE
def test_rows_of_every_size(rule, size):
    check(rule, (9, size), [5, 0, 5, 8, 5, 0])
    arrays, values, variables, gradient = make(rule, (9, size), [5, 0, 5])
    values[:] = 0.0
    values[2, -1] = 2.0
    expect(rule, arrays, values, np.array([5, 0, 5]))
    gradient = tf.IndexedSlices(tf.constant(values, tf.float32), gradient.indices)
    RULES[rule][0](*variables, gradient)
    close(variables, arrays)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("rows", "ids"), [(4, []), (4, [2]), (1, [0]), (1, [0, 0, 0])])
def test_empty_single_and_one_row_table(rule, rows, ids):
    check(rule, (rows, 5), ids)


@BY_THE_KERNEL
@pytest.mark.parametrize("rule", RULES)
def test_many_duplicates_over_several_threads(rule):
    ids = np.minimum(np.random.default_rng(1).zipf(1.2, size=30_000) - 1, 2_999)
    check(rule, (3_000, 3), ids, tolerance=2e-4)  # thousands of float32 terms in the hottest row


@pytest.mark.parametrize("rows", [2_048, 2_049, 2**22, 2**22 + 1])  # one, two and three digits of the sort
def test_row_ids_of_every_size(rows):
    table = tf.Variable(tf.zeros([rows]))
    ids = [rows - 1, 1, rows // 2, rows - 1, rows // 2 + 1, 1]
    row_sgd_update(table, tf.IndexedSlices(tf.constant([1.0, 2, 4, 8, 16, 32]), tf.constant(ids)), 1.0)
    touched = tf.gather(table, [1, rows // 2, rows // 2 + 1, rows - 1])
    assert touched.numpy().tolist() == [-34, -4, -16, -9]
    assert tf.math.count_nonzero(table).numpy() == 4


@BY_THE_KERNEL
@pytest.mark.parametrize("rule", RULES)
def test_a_table_of_many_pages_keeps_its_other_rows(rule):
    check(rule, (40_001, 64), [40_000, 3, 3, 20_000])  # 10 MB: moved to huge pages where the system has them


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("ids", "value", "position"), [([0, 1, 9], 9, 2), ([0, -1], -1, 1), ([4, 1], 4, 0)])
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_a_row_id_outside_is_named_and_nothing_changes(rule, ids, value, position, wrap):
    arrays, _, variables, gradient = make(rule, (4, 2), ids)
    message = rf"row id\D*{value}\D*at position\D*{position}\D*is outside \[0, 4\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        wrap(lambda: RULES[rule][0](*variables, gradient))()
    for variable, array in zip(variables, arrays, strict=True):
        np.testing.assert_array_equal(variable.numpy(), array.astype("float32"))


@pytest.mark.parametrize("rule", RULES)
def test_a_tensor_read_before_keeps_its_values(rule):
    _, _, variables, gradient = make(rule, (4, 2), [1, 1, 3])
    for _ in range(2):  # the first step finds the buffer shared, the second copy-on-read mode
        read = [variable.read_value() for variable in variables]
        before = [tensor.numpy().copy() for tensor in read]
        RULES[rule][0](*variables, gradient)
        for tensor, values, variable in zip(read, before, variables, strict=True):
            np.testing.assert_array_equal(tensor.numpy(), values)
            assert (variable.numpy()[1] != values[1]).all()


@BY_THE_KERNEL
@pytest.mark.parametrize("rule", RULES)
def test_reads_copy_after_an_update_of_some_rows_only(rule):
    def places(variable):  # of what two reads hold
        reads = [tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype) for _ in range(2)]
        return {read._numpy().ctypes.data for read in reads}

    for ids, num_places in ([0, 1, 2, 3], 1), ([1], 2):
        _, _, variables, gradient = make(rule, (4, 2), ids)
        RULES[rule][0](*variables, gradient)
        assert [len(places(variable)) for variable in variables] == [num_places] * len(variables)


@pytest.mark.parametrize("rule", RULES)
def test_same_input_same_bits(rule):
    ids = np.random.default_rng(2).integers(0, 50, size=20_000)
    results = []
    for _ in range(3):
        _, _, variables, gradient = make(rule, (50, 7), ids)
        RULES[rule][0](*variables, gradient)
        results.append(variables[0].numpy())
    assert (results[0] == results).all()


@pytest.mark.parametrize("rule", RULES)
def test_nan_stays_in_its_row(rule):
    _, _, variables, gradient = make(rule, (5, 20), [1, 3])
    values = gradient.values.numpy()
    values[0, 17] = np.nan
    RULES[rule][0](*variables, tf.IndexedSlices(tf.constant(values), gradient.indices))
    assert np.isnan(variables[0].numpy()[1]).any()
    assert np.isfinite(np.delete(variables[0].numpy(), 1, axis=0)).all()


@pytest.mark.parametrize("rule", RULES)
def test_in_a_graph_with_unknown_number_of_rows(rule):
    arrays, values, variables, gradient = make(rule, (6, 3), [4, 4, 0])
    expect(rule, arrays, values, np.array([4, 4, 0]))
    signature = [tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32)]
    step = tf.function(lambda v, i: RULES[rule][0](*variables, tf.IndexedSlices(v, i)), signature)
    step(gradient.values, gradient.indices)
    close(variables, arrays, atol=0)


@pytest.mark.long
@BY_THE_KERNEL
@pytest.mark.parametrize("rule", RULES)
def test_inside_xla(rule):
    arrays, values, variables, gradient = make(rule, (6, 3), [4, 4, 0])
    expect(rule, arrays, values, np.array([4, 4, 0]))
    tf.function(lambda: RULES[rule][0](*variables, gradient), jit_compile=True)()
    close(variables, arrays, atol=0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float16", 5e-3)])
def test_other_dtypes(rule, dtype, tolerance):
    check(rule, (5, 4), [3, 0, 3], dtype=dtype, tolerance=tolerance)


SEED = [2**33 + 5, 7]


def bits_of(variable):
    return tf.bitcast(variable, tf.uint16).numpy()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("trailing", [(), (64,), (2, 5)])
def test_a_bfloat16_table_is_rounded_to_a_neighbour_and_its_slots_are_float32(rule, trailing):
    ids = [5, 0, 5, 6, 0, 5, 2]
    arrays, values, variables, gradient = make(rule, (7, *trailing), ids)
    half = tf.cast(variables[0], tf.bfloat16)
    arrays[0] = half.numpy().astype(np.float64)
    table = tf.Variable(half)
    expect(rule, arrays, values, np.array(ids))
    RULES[rule][0](table, *variables[1:], gradient, seed=SEED)
    np.testing.assert_allclose(table.numpy().astype(float), arrays[0], rtol=2.0**-7, atol=1e-6)
    close(variables[1:], arrays[1:])


# Powers of two, of one size in a row: whatever the order and however products are fused, float32 is exact.
EXACT = {
    "adam": (lambda *a, **b: lazy_adam_update(*a, AdamHyper(0.25, 0.5, 0.75, 1e-30), **b), 2),
    "sgd": (lambda *a, **b: row_sgd_update(*a, 1.0, **b), 0),
    "adagrad": (lambda *a, **b: rowwise_adagrad_update(*a, 0.25, 1e-30, **b), 1),
}


@BY_THE_KERNEL
@pytest.mark.parametrize("rule", EXACT)
@EVERY_SIZE
def test_the_compiled_rounding_is_that_of_the_reference_to_the_bit(rule, size, monkeypatch):
    rng, results = np.random.default_rng(size), []
    start = tf.constant(rng.normal(size=(300, size)), tf.bfloat16)
    ids = rng.permutation(300)[:200]
    values = rng.choice([-1.0, 1.0], (200, size)) * 2.0 ** rng.integers(-9, 3, (200, 1))
    if rule == "sgd":
        values = rng.normal(size=(200, size))  # any number: the rate is 1
    gradient = tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(ids))
    for disabled in ("0", "1"):
        monkeypatch.setenv("TFXC_DISABLE_OPS", disabled)
        table, slots = tf.Variable(start), [tf.Variable(tf.zeros([300, size])) for _ in range(EXACT[rule][1])]
        slots = [tf.Variable(tf.zeros([300]))] if rule == "adagrad" else slots
        EXACT[rule][0](table, *slots, gradient, seed=SEED)
        results.append([bits_of(table), *slots])
    assert (results[0][0] != bits_of(start)).any()
    tf.nest.map_structure(np.testing.assert_array_equal, *results)


@pytest.mark.long
def test_small_steps_on_bfloat16_add_up():
    table = tf.Variable(tf.ones([400, 8], tf.bfloat16))
    gradient = tf.IndexedSlices(tf.ones([400, 8]), tf.range(400))
    for step in range(64):
        row_sgd_update(table, gradient, 2.0**-12, seed=[0, step])  # a sixteenth of what is between neighbours
    mean = tf.reduce_mean(tf.cast(table, tf.float32)).numpy()
    np.testing.assert_allclose(mean, 1 - 64 * 2.0**-12, atol=4e-4)
    row_sgd_update(table, gradient, 0.0, seed=[1, 1])
    assert mean == tf.reduce_mean(tf.cast(table, tf.float32)).numpy()


@pytest.mark.parametrize(
    ("table", "values"), [((5, 4), (2, 1)), ((5, 4), (2,)), ((5, 4), (3, 4)), ((5, 4), (2, 4, 1)), ((), (2,))]
)
def test_a_gradient_that_does_not_fit_is_refused(table, values):
    gradient = tf.IndexedSlices(tf.zeros(values), tf.constant([0, 1]))
    with pytest.raises(ValueError, match=rf"does not fit a table of shape {re.escape(str(table))}"):
        row_sgd_update(tf.Variable(tf.zeros(table)), gradient, 0.1)


@BY_THE_KERNEL
def test_the_op_checks_what_python_cannot_see():
    table = tf.Variable(tf.zeros([5, 4]))
    step = tf.function(
        lambda values, ids: row_sgd_update(table, tf.IndexedSlices(values, ids), 0.1),
        [tf.TensorSpec(None), tf.TensorSpec(None, tf.int32)],
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit a table of shape"):
        step(tf.zeros([2, 1]), tf.constant([0, 1]))
    gradient = tf.IndexedSlices(tf.zeros([1, 4]), tf.constant([0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="slot 1 has shape"):
        rowwise_adagrad_update(table, tf.Variable(tf.zeros([4])), gradient, 0.1, 1e-8)
    message = "table of float32 or bfloat16 and slots of float32"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        rowwise_adagrad_update(table, tf.Variable(tf.zeros([5], tf.bfloat16)), gradient, 0.1, 1e-8)
    signature = [tf.TensorSpec(None, tf.int64)]
    seeded = tf.function(lambda seed: row_sgd_update(table, gradient, 0.1, seed), signature)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"seed must have shape \[2\]"):
        seeded(tf.zeros([3], tf.int64))


def test_sum_duplicate_rows():
    gradient = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0], [8.0]]), tf.constant([5, 3, 5, 0]))
    merged = sum_duplicate_rows(gradient)
    assert merged.indices.numpy().tolist() == [5, 3, 0]
    assert merged.values.numpy().tolist() == [[5.0], [2.0], [8.0]]
