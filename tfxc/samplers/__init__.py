"""Samplers: which classes a training step scores."""

from tfxc.samplers.diagnostics import ProposalQuality, cumulative_probability, proposal_quality
from tfxc.samplers.dns import DNS
from tfxc.samplers.hard_negatives import HardNegatives
from tfxc.samplers.in_batch import InBatch
from tfxc.samplers.kernel import RFF, Sphere
from tfxc.samplers.learned_midx import LearnedMIDX
from tfxc.samplers.lsh import LSH
from tfxc.samplers.midx import MIDX
from tfxc.samplers.mixture import Mixture
from tfxc.samplers.sampler import Sampler
from tfxc.samplers.searched_hard_negatives import SearchedHardNegatives
from tfxc.samplers.softmax import Softmax
from tfxc.samplers.step import Draw, PoolCounts, Question, Step
from tfxc.samplers.uniform import LogUniform, Uniform
from tfxc.samplers.unigram import Unigram

__all__ = [
    "DNS",
    "Draw",
    "HardNegatives",
    "InBatch",
    "LSH",
    "LearnedMIDX",
    "LogUniform",
    "MIDX",
    "Mixture",
    "PoolCounts",
    "ProposalQuality",
    "Question",
    "RFF",
    "Sampler",
    "SearchedHardNegatives",
    "Softmax",
    "Sphere",
    "Step",
    "Uniform",
    "Unigram",
    "cumulative_probability",
    "proposal_quality",
]
