"""A head of one's own: a learned bilinear form of the mean region and the mean word.

Train it with the built-in data from the root of a clone:

l2rm --config.plugins=tests.plugins.bilinear --config.model.head=bilinear \
    --config.own.rank=16
"""

from flax import linen as nn

from l2rm_jax import register_head
from l2rm_jax.models import SimilarityHead
from l2rm_jax.models.layers import l2_normalise, masked_mean


class Bilinear(SimilarityHead):
    """Cosine of two projections, in [-1, 1].

    It defines `embed_images` and `embed_texts`, so a similarity is one product of two vectors:
    galleries are scored quickly, and a run with this head can propose candidates for another.

    Attributes:
      rank: size of the projections.
    """

    rank: int

    def setup(self):
        self.image_projection = nn.Dense(self.rank, use_bias=False)
        self.text_projection = nn.Dense(self.rank, use_bias=False)

    def embed_images(self, images):
        """Unit vectors `[I, rank]`."""
        return l2_normalise(self.image_projection(masked_mean(images.regions, images.mask)))

    def embed_texts(self, texts):
        """Unit vectors `[J, rank]`."""
        return l2_normalise(self.text_projection(masked_mean(texts.words, texts.mask)))

    def __call__(self, images, texts, train):
        return self.embed_images(images) @ self.embed_texts(texts).T


register_head("bilinear", lambda config: Bilinear(config.own.rank), settings={"rank": 8})
