"""Metrics for ranked classes."""

from tfxc.metrics.coverage import CoverageAtK
from tfxc.metrics.perplexity import perplexity
from tfxc.metrics.propensity import PSNDCGAtK, PSPAtK, propensities
from tfxc.metrics.ranking import HitRateAtK, MAPAtK, MRRAtK, NDCGAtK, PrecisionAtK, RecallAtK
from tfxc.metrics.ranking_metric import RankingMetric, relevance

__all__ = [
    "CoverageAtK",
    "HitRateAtK",
    "MAPAtK",
    "MRRAtK",
    "NDCGAtK",
    "PSNDCGAtK",
    "PSPAtK",
    "PrecisionAtK",
    "RankingMetric",
    "RecallAtK",
    "perplexity",
    "propensities",
    "relevance",
]
