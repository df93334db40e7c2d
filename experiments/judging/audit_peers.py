"""Scores of other tools for the pairs of images and captions, written from their definitions."""

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.linear.rows import unit_rows

NEIGHBOURS = 30
BETA = GAMMA = 5.0  # the fixed settings of LEMoN's authors
TAU_NEAR, TAU_MATCH = 0.1, 5.0
CLUSTERS, FOLDS = 30, 5
_BLOCK = 512


def lemon_score(
    images: Float[np.ndarray, "images di"],
    captions: Float[np.ndarray, "pairs dc"],
    pair_image: Int[np.ndarray, " pairs"],
    similarity: Float[np.ndarray, " pairs"],
) -> Float[np.ndarray, " pairs"]:
    """Return LEMoN's score with its fixed settings; the higher, the worse the pair.

    The distance of a pair, plus the mean distance of its caption to the captions of near images,
    plus the distance of its image to the images of near captions. Neighbours count the less, the
    farther they are and the worse they are matched themselves.

    References:
        Zhang et al., LEMoN: Label Error Detection using Multimodal Neighbors, ICML 2025.
    """
    images, captions = unit_rows(images)[pair_image], unit_rows(captions)
    distance = 1 - np.asarray(similarity)
    near_images, near_captions = np.empty((2, len(captions)))
    for start in range(0, len(captions), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(captions)))
        by_image, by_caption = 1 - images[rows] @ images.T, 1 - captions[rows] @ captions.T
        near_images[rows] = _mean_of_near(rows, by_image, by_caption, distance)
        near_captions[rows] = _mean_of_near(rows, by_caption, by_image, distance)
    return distance + BETA * near_images + GAMMA * near_captions


def _mean_of_near(rows, near, other, distance) -> Float[np.ndarray, " n"]:
    near = near.copy()
    near[np.arange(len(rows)), rows] = np.inf
    at = np.argpartition(near, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    far = np.take_along_axis(near, at, axis=1)
    weight = np.exp(-TAU_NEAR * far) * np.exp(-TAU_MATCH * distance[at])
    return (weight * np.take_along_axis(other, at, axis=1)).mean(axis=1)


def cleanlab_score(
    images: Float[np.ndarray, "images di"],
    captions: Float[np.ndarray, "pairs dc"],
    pair_image: Int[np.ndarray, " pairs"],
    seed: int = 0,
) -> Float[np.ndarray, " pairs"]:
    """Return one less cleanlab's self-confidence, with clusters of captions as classes.

    A logistic regression from the image to the cluster gives the probabilities, out of fold by
    image.
    """
    from cleanlab.rank import get_self_confidence_for_each_label
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold

    cluster = KMeans(CLUSTERS, n_init=1, random_state=seed).fit_predict(unit_rows(captions))
    features = unit_rows(images)[pair_image]
    probability = np.zeros((len(captions), CLUSTERS))
    for train, test in GroupKFold(FOLDS).split(features, cluster, pair_image):
        model = LogisticRegression(max_iter=300).fit(features[train], cluster[train])
        probability[np.ix_(test, model.classes_)] = model.predict_proba(features[test])
    return 1 - get_self_confidence_for_each_label(cluster, probability)
