"""Features, labels and texts of points in files, in the formats of the Extreme Classification Repository."""

import io
import json
import os
import re
from collections.abc import Iterator

import numpy as np
import scipy.sparse

from tfxc.arguments import positive_int
from tfxc.data.files import one_file
from tfxc.data.line_reader import LineReader
from tfxc.data.names import Names

# Digits and blanks match in one way only. Otherwise a bad line of many would take very long.
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_ID = r"\d+(?:\.0*)?"
_POINT = re.compile(
    rf"\s*+((?:{_ID}(?:\s*+,\s*+{_ID})*(?:\s*+,)?)?)((?:\s*+(?<=\s){_ID}\s*+:\s*+{_NUMBER})*)\s*+", re.ASCII
)
_PAIR = re.compile(rf"\s*({_ID})\s+({_ID})\s*", re.ASCII)
_NOTHING = np.empty(0)
_LAYOUTS = (
    "Two numbers begin a file of features or labels alone: read_extreme_classification(features, labels=) "
    "reads both. Three numbers begin a file of both features and labels. If it is a point, as in svmlight's "
    "format: write that line above it. JSON is read by read_sparse_matrix(path, num_columns=)."
)
_MAX_SIZE = np.iinfo(np.int32).max
_MAX_VALUE = np.finfo(np.float32).max


def read_sparse_matrix(
    path: str | os.PathLike[str],
    on_error: str = "raise",
    first_id: int = 0,
    num_columns: int | None = None,
    field: str = "target_ind",
) -> scipy.sparse.csr_matrix:
    """Reads a matrix of features or labels into a float32 CSR matrix [N, F].

    It has a row for each point, or for each label of label features, and a column for each feature or label.

    Args:
        path: text (`.txt`, also packed) with the header `num_rows num_columns` and a line
            `id:value id:value ...` for each row; `.npz` as SciPy writes it; `.npy`, or `.npz` of one array,
            dense [N, F]; or JSON lines (`.json`, `.jsonl`) whose objects hold ids under `field`. Values of an
            id that is repeated in a row are added.
        on_error: `"raise"`, or `"skip"` to make rows of bad lines empty, with one warning.
        first_id: the id of the first column in text and JSON, 0 or 1.
        num_columns: for JSON, which does not tell it.
        field: for JSON.

    Raises:
        ValueError: for a file of another form; for bad lines (an id outside the header's range, a value
            beyond float32), with the first ten; if the number of rows is not that of the header.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "trn_X_Xf.txt"
        >>> _ = path.write_text("2 3\\n0:0.5 2:1\\n1:2\\n")
        >>> read_sparse_matrix(path).toarray().tolist()
        [[0.5, 0.0, 1.0], [0.0, 2.0, 0.0]]
    """
    if one_file(path).kind != "json":
        return read_matrix(path, on_error, first_id)[0]
    if num_columns is None:
        raise ValueError(f"{path} does not tell the number of labels: pass num_columns=.")
    lines = LineReader(path, on_error)
    rows = _Rows(positive_int(num_columns, "num_columns"), first_id)
    for found in _fields(lines, field, list, "a list of ids"):
        problem = rows.add(np.array(found or [], np.float64))
        if problem:
            lines.reject(problem)
    lines.report()
    return rows.matrix()


def read_filter_labels(path: str | os.PathLike[str], on_error: str = "raise") -> np.ndarray:
    """Reads pairs int64 [P, 2] of a point and a label that count in no metric, `point label` a line, from 0.

    Pass them to `classification_dataset(points, ..., filter_labels=)`.

    Args:
        path: the file, such as `filter_labels_test.txt`, plain or packed. It may be empty.
        on_error: `"raise"`, or `"skip"` to leave bad lines out with one warning.

    Raises:
        ValueError: for lines that are not two ids, with the first ten.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "filter_labels_test.txt"
        >>> _ = path.write_text("0 7\\n3 7\\n")
        >>> read_filter_labels(path).tolist()
        [[0, 7], [3, 7]]
    """
    lines = LineReader(path, on_error)
    pairs = []
    for line in lines:
        match = _PAIR.fullmatch(line)
        if match is not None and max(map(float, match.groups())) <= _MAX_SIZE:
            pairs.append([int(float(own)) for own in match.groups()])
        elif line.strip():
            lines.reject(f"not 'point label', two ids from 0: {line[:60]!r}")
    lines.report()
    return np.array(pairs, np.int64).reshape(-1, 2)


def read_texts(
    path: str | os.PathLike[str], field: str = "title", encoding: str | None = None, on_error: str = "raise"
) -> Names:
    """Reads a text for each point or label: one a line, or a field of an object a line.

    Args:
        path: the file, such as `trn_X.txt`, `Y.txt` or `trn.json.gz`.
        field: of the objects, in a file of JSON lines.
        encoding: None for UTF-8. Older files are "latin-1".
        on_error: `"raise"`, or `"skip"` to make texts of bad lines empty, with one warning.

    Raises:
        ValueError: for a line that is not text in this encoding, or no object with a text in the field.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "lbl.json"
        >>> _ = path.write_text('{"uid": "a", "title": "Tea"}\\n{"uid": "b", "title": "Milk"}\\n')
        >>> read_texts(path)
        ['Tea', 'Milk']
    """
    lines = LineReader(path, on_error, encoding)
    is_json = lines.file.kind == "json"
    found = _fields(lines, field, str, "a text") if is_json else lines.every()
    texts = [(own or "") if is_json else (own or "").strip() for own in found]
    lines.report()
    return Names(texts)


def read_matrix(path, on_error: str, first_id: int) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    """Returns a matrix [N, F] of text or of arrays, and whether each of its rows [N] is good."""
    file = one_file(path)
    if file.suffix in (".npz", ".npy"):
        matrix = _of_numpy(file)
        return matrix, np.ones(matrix.shape[0], bool)
    (matrix,), is_good = read_rows(LineReader(path, on_error), 1, first_id)
    return matrix, is_good


def read_rows(
    lines: LineReader, num_parts: int, first_id: int = 0
) -> tuple[list[scipy.sparse.csr_matrix], np.ndarray]:
    """Reads lines ``label,... id:value ...`` after a header. With one part, and not two, there are no labels.

    Returns the parts, float32 CSR matrices [N, width], and whether each row [N] is good: bad lines are empty.
    """
    text = lines.every()
    num_rows, *widths = _header(next(text, None) or "", lines.path, num_parts)
    parts = [_Rows(width, first_id) for width in widths]
    is_good: list[bool] = []
    for line in text:
        if len(is_good) >= num_rows and line is not None and not line.strip():
            continue  # after the last row
        problem = _add(line or "", parts)
        if problem:
            lines.reject(problem)
        is_good.append(line is not None and not problem)
    if len(is_good) != num_rows:
        why = "file is truncated or damaged" if len(is_good) < num_rows else "header does not count them all"
        raise ValueError(
            f"{lines.path}: the header says {num_rows} points, but {len(is_good)} lines follow: the {why}. "
            "Fetch it again, or correct the header."
        )
    if any(part.least >= 1 and part.most == part.width for part in parts):
        lines.bad.hint = "\nId 0 never occurs: ids seem to count from 1, pass first_id=1."
    lines.report()
    return [part.matrix() for part in parts], np.array(is_good, bool)


class _Rows:
    """Collects the rows of a sparse matrix of a given width. `least` and `most` are of all ids given."""

    def __init__(self, width: int, first_id: int):
        self.width, self._first_id = width, positive_int(first_id, "first_id", 0, 1)
        self.least, self.most = np.inf, -np.inf
        self._ids, self._values = [_NOTHING], [_NOTHING]

    def add(self, ids: np.ndarray, values: np.ndarray | None = None, what: str = "id") -> str | None:
        """Adds a row of ids, as floats. Returns what is wrong with it, and then adds an empty one."""
        own, problem = ids - self._first_id, None
        values = np.ones(len(ids)) if values is None else values
        if len(ids):
            self.least, self.most = min(self.least, own.min()), max(self.most, own.max())
            if own.max() >= self.width or own.min() < 0:
                last = self.width - 1 + self._first_id
                problem = f"{what} {ids.max():.0f} of {self.width}: ids are {self._first_id} to {last}"
            elif np.abs(values).max() > _MAX_VALUE:
                problem = f"value {values[np.abs(values).argmax()]} is beyond float32"
        self._ids.append(own[:0] if problem else own)
        self._values.append(values[:0] if problem else values)
        return problem

    def matrix(self) -> scipy.sparse.csr_matrix:
        """Returns the rows as float32 [N, width]."""
        offsets = np.cumsum([len(ids) for ids in self._ids])
        ids = np.concatenate(self._ids).astype(np.int32)
        values = np.concatenate(self._values).astype(np.float32)
        matrix = scipy.sparse.csr_matrix((values, ids, offsets), (len(offsets) - 1, self.width))
        matrix.sum_duplicates()
        return matrix


def _add(line, parts) -> str | None:
    """Adds a line to each part, and returns what is wrong with it."""
    features, has_labels = parts[0], len(parts) == 2
    match = _POINT.fullmatch(f" {line}")
    if match is None or (match[1] and not has_labels):
        for part in parts:
            part.add(_NOTHING)
        return f"not '{'label,label,... ' * has_labels}id:value id:value ...': {line[:60]!r}"
    # Ids are parsed as floats: exact below 2^31, and larger ones become inf instead of overflowing.
    label_ids = np.array([own for own in match[1].split(",") if own.strip()], np.float64)
    ids, values = np.array(match[2].replace(":", " ").split(), np.float64).reshape(-1, 2).T
    of_labels = parts[1].add(label_ids, None, "label") if has_labels else None
    of_features = features.add(ids, values, "feature" if has_labels else "id")
    return of_labels or of_features


def _header(line, path, num_parts) -> list[int]:
    expected = "num_points num_features num_labels" if num_parts == 2 else "num_rows num_columns"
    sizes = line.split()
    if len(sizes) != num_parts + 1 or not all(size.isdecimal() for size in sizes):
        raise ValueError(f"{path}: line 1 must be '{expected}', but is {line[:60]!r}. {_LAYOUTS}")
    numbers = [int(size) for size in sizes]
    if max(numbers) > _MAX_SIZE:
        raise ValueError(f"{path}: line 1 is {line[:60]!r}, but ids have 32 bits: at most {_MAX_SIZE} each.")
    return numbers


def _of_numpy(file) -> scipy.sparse.csr_matrix:
    try:
        with file.open() as raw:
            data = io.BytesIO(raw.read())
        matrix = np.load(data, allow_pickle=False)
        if file.suffix == ".npz":
            own = matrix.files
            matrix = matrix[own[0]] if len(own) == 1 else scipy.sparse.load_npz(data)
        if hasattr(matrix, "check_format"):
            matrix.check_format()  # ids out of range would be written beyond an array
        if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
            raise ValueError(f"it holds {matrix.dtype} of shape {matrix.shape}")
        with np.errstate(over="ignore"):
            matrix = scipy.sparse.csr_matrix(matrix, dtype=np.float32)
        if not np.isfinite(matrix.data).all():
            raise ValueError("it holds NaN or values beyond float32")
    except Exception as error:  # what reads damaged arrays raises errors of a dozen kinds
        raise ValueError(f"{file} must hold a matrix of numbers [N, F]: {error}. Fetch it again.") from error
    return matrix


def _fields(lines, field, kind, what) -> Iterator:
    """Yields a field of the object in each line that is not blank, or None for a bad line."""
    for line in lines.every():
        if line is None:
            yield None
            continue
        if not line.strip():
            continue
        try:
            found = json.loads(line)[field]
            are_ids = kind is not list or all(type(own) is int and abs(own) < 2**63 for own in found)
            if not isinstance(found, kind) or not are_ids:
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            lines.reject(f"no JSON object with {what} under {field!r}: {line[:60]!r}")
            found = None
        yield found
