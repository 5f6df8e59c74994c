"""A class table of float32 against one of bfloat16: the sampled step, in turns, and peak memory.

    python benchmarks/bfloat16_table.py [--classes 1000000] [--memory-only]

One dense layer makes the queries (D = 64, B = 512), each with 100 uniform negatives, and ``RowwiseAdagrad``
trains the head. Memory is the peak that building the model and five steps add to a fresh process.
"""

import argparse

from _measure import in_turns, peak_memory
from _tables import add_results, keep, show
from step_time import DIM, NEGATIVES, encoder, step_of

import tfxc

DTYPES = "float32", "bfloat16"
MANY = 10_000_000


def sampled(num_classes, dtype):
    model = tfxc.ExtremeClassifier(
        encoder(),
        head=tfxc.layers.DenseHead(num_classes, table_dtype=dtype),
        sampler=tfxc.samplers.Uniform(NEGATIVES, seed=0),
    )
    model.compile(tfxc.optimizers.RowwiseAdagrad(0.1), loss=tfxc.losses.SoftmaxCrossentropy())
    return model


def train_some_steps(set_up_done, num_classes, dtype):
    del set_up_done  # the memory of the table counts, too
    step = step_of(sampled(num_classes, dtype), num_classes)
    for _ in range(5):
        step()


def times(num_classes):
    steps = {dtype: step_of(sampled(num_classes, dtype), num_classes) for dtype in DTYPES}
    seconds = in_turns(steps, rounds=100, warmup=20)
    rows = [[dtype, time * 1e3, time / seconds["float32"]] for dtype, time in seconds.items()]
    show(f"The step at {num_classes:,} classes", rows, ["table", "ms", "x float32"])


def memory(num_classes):
    rows = []
    for dtype in DTYPES:
        state = num_classes * (DIM * (2 if dtype == "bfloat16" else 4) + 4) / 2**20
        peak = peak_memory(train_some_steps, num_classes, dtype)
        rows.append([dtype, round(peak), round(state), round(peak - state)])
    columns = ["table", "peak MB", "table and accumulators MB", "beyond them MB"]
    show(f"Peak memory at {num_classes:,} classes, over the bare process", rows, columns)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--memory-only", action="store_true", help="leave the times out: on a busy machine")
    add_results(parser)
    args = parser.parse_args()
    if not args.memory_only:
        times(args.classes)
    memory(args.classes)
    memory(MANY)
    keep(args.results)


if __name__ == "__main__":
    main()
