"""Metrics for ranked classes."""

from tfxc.metrics.coverage import CoverageAtK
from tfxc.metrics.groups import ClassGroups
from tfxc.metrics.perplexity import perplexity
from tfxc.metrics.popularity import AveragePopularityAtK, NoveltyAtK, popularity_deciles
from tfxc.metrics.propensity import PSNDCGAtK, PSPAtK, propensities
from tfxc.metrics.ranking import HitRateAtK, MAPAtK, MRRAtK, NDCGAtK, PrecisionAtK, RecallAtK
from tfxc.metrics.ranking_metric import RankingMetric, relevance

__all__ = [
    "AveragePopularityAtK",
    "ClassGroups",
    "CoverageAtK",
    "HitRateAtK",
    "MAPAtK",
    "MRRAtK",
    "NDCGAtK",
    "NoveltyAtK",
    "PSNDCGAtK",
    "PSPAtK",
    "PrecisionAtK",
    "RankingMetric",
    "RecallAtK",
    "perplexity",
    "popularity_deciles",
    "propensities",
    "relevance",
]
