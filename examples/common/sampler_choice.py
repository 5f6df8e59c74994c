"""The samplers that the examples compare, by name."""

from typing import NamedTuple

from common.arguments import count
from tfxc import samplers


class Settings(NamedTuple):
    """The settings of samplers from the command line and the data.

    Attributes:
        num_negatives: draws a query.
        num_codewords: codewords a codebook, for MIDX.
        counts: training count of each class.
        num_tables: hash tables, for LSH.
        num_bits: bits of a code, for LSH.
    """

    num_negatives: int
    num_codewords: int
    counts: object
    num_tables: int = 16
    num_bits: int = 4

    @property
    def num_searched(self):
        return max(1, self.num_negatives // 5)

    @property
    def hashing(self):
        return {"num_tables": self.num_tables, "num_bits": self.num_bits}


SAMPLERS = {
    "full": lambda s: None,  # all classes
    "uniform": lambda s: samplers.Uniform(s.num_negatives),
    "log-uniform": lambda s: samplers.LogUniform(s.num_negatives),
    "unigram": lambda s: samplers.Unigram(s.num_negatives, counts=s.counts),
    "in-batch": lambda s: samplers.InBatch(s.num_negatives, counts=s.counts),
    "midx-pq": lambda s: samplers.MIDX(s.num_negatives, num_codewords=s.num_codewords, quantizer="pq"),
    "midx-rq": lambda s: samplers.MIDX(s.num_negatives, num_codewords=s.num_codewords, quantizer="rq"),
    "midx-rq-learnable": lambda s: samplers.LearnedMIDX(
        s.num_negatives, num_codewords=s.num_codewords, quantizer="rq"
    ),
    "midx-pq-learnable": lambda s: samplers.LearnedMIDX(
        s.num_negatives, num_codewords=s.num_codewords, quantizer="pq"
    ),
    "midx-searched": lambda s: samplers.Mixture(  # a fifth are the best classes of a search
        [
            samplers.MIDX(s.num_negatives - s.num_searched, num_codewords=s.num_codewords),
            samplers.SearchedHardNegatives(s.num_searched, num_uniform=0),
        ]
    ),
    "sphere": lambda s: samplers.Sphere(s.num_negatives),
    "rff": lambda s: samplers.RFF(s.num_negatives),
    "lsh": lambda s: samplers.LSH(s.num_negatives, **s.hashing),
    "lsh-label": lambda s: samplers.LSH(s.num_negatives, query="label", **s.hashing),
    "lsh-union": lambda s: samplers.LSH(s.num_negatives, candidates="union", **s.hashing),
    "dns": lambda s: samplers.DNS(s.num_negatives, num_candidates=4 * s.num_negatives),
}


def add_arguments(add):
    """The options of samplers."""
    add("--num-negatives", type=count, default=100, help="sampled classes a query")
    add("--num-codewords", type=count, default=64, help="MIDX: codewords a codebook")
    add("--num-tables", type=count, default=16, help="LSH: hash tables")
    add("--num-bits", type=count, default=4, help="LSH: bits of a code")
    add("--refresh-steps", type=count, default=200, help="steps between rebuilds of the sampler's index")


def settings(args, counts):
    """The settings of a command line."""
    return Settings(args.num_negatives, args.num_codewords, counts, args.num_tables, args.num_bits)
