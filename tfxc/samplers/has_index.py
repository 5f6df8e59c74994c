"""Which samplers have to be refreshed while a model trains."""

from tfxc.samplers.mixture import Mixture
from tfxc.samplers.sampler import Sampler
from tfxc.samplers.unigram import Unigram


def has_index(sampler: Sampler) -> bool:
    """Whether ``refresh`` changes what a sampler draws by, or a part of a ``Mixture``."""
    if isinstance(sampler, Mixture):
        return any(has_index(part) for part in sampler.samplers)
    if isinstance(sampler, Unigram) and sampler.counts is not None:
        return False  # given counts stay as they are
    return type(sampler).refresh is not Sampler.refresh
