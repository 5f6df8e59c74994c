"""Time and memory to turn a table of interactions into sequences: from_frame, the line reader and Polars.

    python benchmarks/table_reading.py [--rows 10000000] [--mapped-rows 100000000] [--results result.json]

Users and items follow Zipf's law, their ids are strings, times are random, and rows are in random order. The
line reader reads the same rows as text, once. Polars groups the same Parquet file by user and sorts each
user's items by time; it does not number items. The table shows clock seconds and processor seconds, which
other programs disturb less. With --mapped-rows, a second and larger file becomes sequences on disk.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from _measure import in_turns, peak_memory
from _tables import add_results, keep, show

from tfxc.data import from_frame, read_interactions

ROWS_PER_GROUP = 1_000_000


def generated(num_rows, num_users, num_items):
    """Tables of a million rows each."""
    random = np.random.default_rng(0)
    numbers = {  # of eight digits
        name: random.permutation(size) + 10_000_000 for name, size in (("u", num_users), ("i", num_items))
    }
    for start in range(0, num_rows, ROWS_PER_GROUP):
        size = min(ROWS_PER_GROUP, num_rows - start)
        columns = {}
        for name, of_rank in numbers.items():
            rank = (len(of_rank) ** random.random(size)).astype(
                np.int64
            ) - 1  # Zipf's law: P(rank) ~ 1 / rank
            columns[name] = pc.binary_join_element_wise(name, pa.array(of_rank[rank]).cast(pa.string()), "")
        seconds = random.integers(1_700_000_000, 1_730_000_000, size)
        yield pa.table({"user": columns["u"], "item": columns["i"], "time": seconds.astype("datetime64[s]")})


def write(path, num_rows, num_users, num_items):
    with pa.parquet.ParquetWriter(path, next(generated(1, 1, 1)).schema) as writer:
        for table in generated(num_rows, num_users, num_items):
            writer.write_table(table)


def write_text(path, parquet):
    """The same rows as `user item time` with tabs, the time in seconds."""
    table = pa.parquet.read_table(parquet)
    table = table.set_column(2, "time", table["time"].cast(pa.int64()))
    options = pa.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    pa.csv.write_csv(table, path, options)


def read(path, directory=None):
    return from_frame(path, user="user", item="item", time="time", directory=directory)


def by_polars(path):
    by_time = polars.col("item").sort_by("time"), polars.col("time").sort()
    return polars.scan_parquet(path).group_by("user").agg(*by_time).collect()


def reading(set_up_done, path, directory=None):
    read(path, directory)


def polars_reading(set_up_done, path):
    by_polars(path)


def size_of(sequences):
    """MB of the arrays, with the characters of the users' ids and the items' names."""
    names = sum(part.array.nbytes for part in (sequences.user_ids, sequences.vocabulary.names))
    arrays = sequences.items.nbytes + sequences.offsets.nbytes + sequences.times.nbytes
    return (arrays + names) / 2**20


def in_memory(folder, args):
    parquet, text = str(folder / "log.parquet"), str(folder / "log.txt")
    write(parquet, args.rows, args.users, args.items)
    write_text(text, parquet)
    processor = {}

    def clocked(name, task):
        def run():
            start = time.process_time()
            task()
            processor.setdefault(name, []).append(time.process_time() - start)

        return run

    tasks = {"from_frame": lambda: read(parquet), "Polars": lambda: by_polars(parquet)}
    seconds = in_turns({name: clocked(name, task) for name, task in tasks.items()}, args.rounds, warmup=1)
    line_reader = clocked("line reader", lambda: read_interactions(text))
    seconds |= in_turns({"line reader": line_reader}, rounds=1, warmup=0)
    processor = {name: min(times) for name, times in processor.items()}
    arrays = size_of(read(parquet))
    peaks = {"from_frame": peak_memory(reading, parquet), "Polars": peak_memory(polars_reading, parquet)}
    ratios = {
        f"{what}: from_frame / {name}": times[name] / times["from_frame"]
        for what, times in (("speed", seconds), ("speed by processor time", processor))
        for name in ("line reader", "Polars")
    }
    ratios |= {"MB of the arrays": arrays, "peak memory / arrays": peaks["from_frame"] / arrays}
    rows = [[name, seconds[name], processor[name], peaks.get(name, "")] for name in seconds]
    show(f"{args.rows:,} rows into sequences", rows, ["", "s", "processor s", "peak MB"])
    show("Ratios", [*ratios.items()], ["", "value"])


def on_disk(folder, args):
    parquet, directory = str(folder / "large.parquet"), str(folder / "sequences")
    write(parquet, args.mapped_rows, args.users * 10, args.items)
    start = time.perf_counter()
    peak = peak_memory(reading, parquet, directory)
    seconds = time.perf_counter() - start
    show(f"{args.mapped_rows:,} rows into sequences on disk", [[seconds, peak]], ["s", "peak MB"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rows", type=int, default=10_000_000)
    add("--users", type=int, default=1_000_000, help="as many different ones at most; tenfold on disk")
    add("--items", type=int, default=200_000)
    add("--rounds", type=int, default=3)
    add("--mapped-rows", type=int, default=0, help="rows of the file that becomes sequences on disk")
    add("--folder", help="where the files are made, and removed; a temporary folder by default")
    add_results(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if args.rows:
            in_memory(Path(folder), args)
        if args.mapped_rows:
            on_disk(Path(folder), args)
    keep(args.results)


if __name__ == "__main__":
    main()
