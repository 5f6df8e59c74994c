import numpy as np
import pytest
from sampler_checks import clustered, head_of

from tfxc.search.cells import cut_into_cells
from tfxc.search.tiles import DTYPES, as_columns, int8_codes, int16_codes, lay_out, tile_size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_classes, num_scanned", [(1, 0), (9, 8), (500, 0), (500, 60)])
def test_rows_are_the_vectors(dtype, num_classes, num_scanned):
    vectors = clustered(num_classes, 5)
    head = head_of(vectors)
    scanned = np.random.default_rng(0).permutation(num_classes)[:num_scanned]
    cells = cut_into_cells(head, min(6, num_classes)).without(scanned)
    tiles = lay_out(head, cells, scanned, dtype)
    flat = tiles.members.reshape(-1)
    others = np.setdiff1d(np.arange(num_classes), scanned)
    np.testing.assert_array_equal(np.sort(flat[flat >= 0]), others)
    np.testing.assert_array_equal(flat[tiles.places[others]], others)
    np.testing.assert_array_equal(tiles.scanned, scanned)
    np.testing.assert_array_equal(tiles.places[scanned], flat.size + np.arange(num_scanned))
    rows = tiles.rows.reshape(-1, 5).astype(np.float32)
    assert rows.shape[0] == flat.size and not rows[flat < 0].any()
    if dtype == "int8":
        rows = rows * tiles.scales.reshape(-1, 1).astype(np.float32)
    if dtype != "float32":
        of_tile = np.repeat(np.arange(len(tiles.centres)), np.diff(tiles.offsets))
        rows = rows + np.repeat(tiles.centres[of_tile], tiles.members.shape[1], axis=0)
    # Rounded the other way, a coordinate is off by up to a whole step.
    step = np.abs(vectors).max() / 60 if dtype == "int8" else np.abs(vectors).max() / 100
    columns = as_columns(tiles.scanned_columns, tiles.scanned_scales).numpy()
    np.testing.assert_allclose(columns.T, vectors[scanned], atol=np.abs(vectors).max() / 60_000)
    rows = np.concatenate([rows, columns.T])
    np.testing.assert_allclose(rows[tiles.places], vectors, atol=1e-5 if dtype == "float32" else step)
    for cell, (start, stop) in enumerate(zip(tiles.offsets[:-1], tiles.offsets[1:], strict=True)):
        own = tiles.members[start:stop]
        members = cells.members[cells.offsets[cell] : cells.offsets[cell + 1]]
        np.testing.assert_array_equal(own[own >= 0], members)


def test_int8_codes_cancel_their_errors_along_a_direction():
    random = np.random.default_rng(0)
    vectors, directions = random.normal(size=(2, 400, 32)).astype(np.float32)
    codes, scales = int8_codes(vectors, directions)
    scales = scales.astype(np.float32)
    assert codes.dtype == np.int8 and np.abs(codes).max() == 127
    rounded = np.rint(vectors / scales[:, np.newaxis])
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    got, plain = (
        np.abs(np.sum((part * scales[:, np.newaxis] - vectors) * unit, axis=1)).mean()
        for part in (codes, rounded)
    )
    assert got < plain / 3
    assert np.abs(codes - vectors / scales[:, np.newaxis]).max() <= 1.001


def test_int16_codes_of_nothing_and_of_the_largest():
    columns = np.array([[3e38, 0.0, 1e-40, -5.0], [-3e38, 0.0, 0.0, 2.5]], np.float32)
    codes, scales = int16_codes(columns)
    assert codes.dtype == np.int16 and scales.dtype == np.float32
    errors = np.abs(as_columns(codes, scales) - columns.astype(np.float64)).max(0)
    assert (errors <= np.maximum(np.abs(columns).max(0) / 65_000, 1e-37)).all()
    codes, scales = int16_codes(np.empty([2, 0], np.float32))
    assert codes.shape == (2, 0) and scales.shape == (0,)


def test_small_cells_have_small_tiles():
    assert tile_size(1000, 100) == 8 and tile_size(12_800, 100) == 32
