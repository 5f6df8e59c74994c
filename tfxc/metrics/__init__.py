"""Metrics of ranked classes."""

from tfxc.metrics.ranking import HitRateAtK, MAPAtK, MRRAtK, NDCGAtK, PrecisionAtK, RecallAtK
from tfxc.metrics.ranking_metric import RankingMetric

__all__ = ["HitRateAtK", "MAPAtK", "MRRAtK", "NDCGAtK", "PrecisionAtK", "RankingMetric", "RecallAtK"]
