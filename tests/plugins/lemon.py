"""A detector of one's own: the idea of LEMoN (Zhang et al., ICML 2025) in one product of vectors.

A pair fits if its image and caption do, if its caption fits the captions of similar images, and its
image the images of similar captions. Neighbours are of other folds.
"""

import numpy as np

from l2rm_jax import register_detector
from l2rm_jax.judging import FoldTask, Model, Scorer, product_similarity
from l2rm_jax.linear.rows import unit_rows

SAMPLE = 5000  # pairs of other folds among which neighbours are looked for, at most


def make_lemon(config):
    beta, count = config.own.beta, config.own.neighbours

    def nearest_mean(vectors, others, of_others):
        likeness = unit_rows(vectors) @ unit_rows(others).T
        nearest = np.argsort(-likeness, axis=1)[:, :count]
        return of_others[nearest].mean(axis=1)

    def detect(task: FoldTask) -> Scorer:
        pairs = task.pairs
        images, captions, stored = pairs.images, pairs.captions, pairs.image_of

        def model_of(fold: int) -> Model:
            model, here = task.models[fold], task.drawn[fold]
            i, c = np.sort(here.images), np.sort(here.pairs)
            other = np.flatnonzero(task.folds.of_pair != fold)[:SAMPLE]
            seen, said = images[stored[other]], captions[other]
            of_seen, of_said = model.encode_images(seen), model.encode_captions(said)
            v, t = model.encode_images(images[i]), model.encode_captions(captions[c])
            near_captions = beta * nearest_mean(images[i], seen, np.asarray(of_said))
            near_images = beta * nearest_mean(captions[c], said, np.asarray(of_seen))
            of_images = np.concatenate([v, near_captions, v], axis=1)
            of_captions = np.concatenate([t, t, near_images], axis=1)
            similarity = product_similarity(i, of_images, c, of_captions)
            return Model(similarity, temperature=0.1 * (1 + 2 * beta))

        return Scorer("lemon", model_of)

    return detect


register_detector("lemon", make_lemon, settings={"beta": 1.0, "neighbours": 30})
