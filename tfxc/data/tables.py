"""Opens data frames and files as tables."""

import os

import pyarrow as pa

from tfxc.data.bad_rows import BadRows
from tfxc.data.files import find_files
from tfxc.data.json_tables import open_json
from tfxc.data.parquet_tables import open_parquet
from tfxc.data.table import ROWS_PER_BATCH, Table, check_columns, converted, plain_schema
from tfxc.data.text_tables import open_text


def open_table(
    frame, columns: list[str], text: list[str], bad: BadRows, encoding: str | None = None
) -> Table:
    """Opens some columns of a data frame, an Arrow table or files.

    The frame is as `from_frame` takes it. Columns in `text` stay strings when they are read from a text file:
    "007" is not 7. `bad` collects the rows of a text file that have too few or too many fields.

    Raises ValueError for another kind of frame or file, a folder without data, or a column that is missing or
    occurs twice.
    """
    if isinstance(frame, str | os.PathLike | list | tuple):
        files = find_files(frame)
        kinds = {file.kind or "parquet" for file in files}
        if len(kinds) > 1:
            raise ValueError(f"{bad.source} holds files of several kinds, {sorted(kinds)}: pass one kind.")
        if kinds == {"csv"}:
            return open_text(files, columns, text, bad, encoding)
        if kinds == {"json"}:
            return open_json(files, columns, bad.source, encoding)
        return open_parquet(files, columns, text, bad.source)
    if hasattr(frame, "collect_schema") and not hasattr(frame, "__arrow_c_stream__"):  # a LazyFrame of Polars
        check_columns(columns, frame.collect_schema().names(), bad.source)
        frame = frame.select(columns).collect()
    if not hasattr(frame, "__arrow_c_stream__") or len(getattr(frame, "shape", (0, 0))) != 2:
        raise ValueError(
            "frame must be a pandas or Polars DataFrame, an Arrow table, or the path of a Parquet, CSV, TSV "
            f"or JSON lines file, not {type(frame).__name__}."
        )
    is_data_frame = hasattr(frame, "columns") and hasattr(frame, "dtypes")  # pandas or Polars
    if is_data_frame:
        levels = {*getattr(getattr(frame, "index", None), "names", ())} - {*frame.columns}
        if not levels.isdisjoint(columns):  # of pandas' index, which are columns in its Parquet files, too
            frame = frame.reset_index([*levels.intersection(columns)])
        check_columns(columns, list(frame.columns), bad.source)
        frame = frame[columns]  # so that no other column is converted
    try:
        table = pa.table(frame)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ValueError(
            f"One of the columns {columns} mixes types, or holds what Arrow does not, such as integers of "
            f"more than 64 bits ({error}): convert it to one type, for example by astype(str)."
        ) from error
    check_columns(columns, table.schema.names, bad.source)
    schema = plain_schema(table.schema, columns)
    batches = (converted(batch, schema) for batch in table.select(columns).to_batches(ROWS_PER_BATCH))
    return Table(bad.source, schema, batches, table.num_rows)
