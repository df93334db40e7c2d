"""Draw the regions that the head `omit` matches with each word of a caption (OMIT Fig. 6).

l2rm --config=scenes --config.method=triplet \\
    --config.model.head=omit --config.mismatch.rate=0 --workdir=runs/omit
python -m experiments.papers.plot_plan runs/omit --out=figures --picture=3 --caption=1

Shows a test picture with its objects numbered, beside the transport plan of the run's best model.
Each column is a word and shows how its weight is spread over the regions, which are sorted by the
object they show, and over the dustbin. The last column is the share of each region that goes to the
caption's dustbin. Only `scenes` has pictures to show.
"""

from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from experiments.figure import figure_parser, save, show_scene, title
from experiments.script import start
from l2rm_jax.data import scenes
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.models import make_model
from l2rm_jax.run.config_file import read_config
from l2rm_jax.run.initialise import open_run
from l2rm_jax.run.inputs import read_data


def main() -> None:
    parser = figure_parser(__doc__, "a finished run on scenes, head omit")
    parser.add_argument("--picture", type=int, default=0, help="row of the test split")
    parser.add_argument("--caption", type=int, default=0, help="caption of the picture, from 0")
    arguments = parser.parse_args()
    config = ConfigDict(read_config(arguments.workdir))
    if config.data.name != "scenes" or config.model.head != "omit":
        raise ConfigError(
            f"{arguments.workdir}: found a run on {config.data.name} with head "
            f"{config.model.head}, expected one on scenes with head omit"
        )
    plan, words = matching_plan(config, arguments.workdir, arguments.picture, arguments.caption)
    figure = plot(config, plan, words, arguments.picture)
    save(figure, arguments.out, f"plan_{arguments.picture}_{arguments.caption}")


def matching_plan(
    config: ConfigDict, workdir: Path, picture: int, caption: int
) -> tuple[np.ndarray, list[str]]:
    """Return the plan `[regions + 1, words + 1]`, dustbins first, and the words.

    Raises:
      ConfigError: `picture` or `caption` is out of range.
    """
    replicas = Replicas(jax.local_devices()[:1])
    with open_run(config, read_data(config, workdir), workdir, replicas) as run:
        test, vocabulary = run.data.test, run.data.vocabulary
        captions = np.flatnonzero(test.caption_image == picture)
        if not 0 <= picture < len(test.images):
            raise ConfigError(f"--picture={picture}: expected 0 to {len(test.images) - 1}")
        if not 0 <= caption < len(captions):
            raise ConfigError(
                f"--caption={caption}: expected 0 to {len(captions) - 1}, a caption of picture "
                f"{picture}"
            )
        run.restore_best()
        model = make_model(config, len(vocabulary))
        row = captions[caption]
        tokens, rows = test.tokens[row], np.array([picture], np.int32)
        batch = Batch(
            images=test.images.rows(rows),
            regions=test.images.region_counts(rows),
            tokens=tokens[None],
            lengths=np.array([len(tokens)], np.int32),
            pair_index=np.array([row], np.int32),
            image_index=rows,
        )

        def plans(model, batch):
            return model.similarity_head.plans(*model.encode(batch))[0]

        def apply(state, batch):
            variables = {"params": state.params, "batch_stats": state.batch_stats}
            return nn.apply(plans, model)(variables, batch)

        plan = np.asarray(run.apply(apply, batch))[0]
    words = {index: word for word, index in vocabulary.word2idx.items()}
    return plan, [words[int(token)] for token in tokens]


def plot(config: ConfigDict, plan: np.ndarray, words: list[str], picture: int) -> Figure:
    """Plot the picture and its plan, as `matching_plan` returns it."""
    data = config.data
    world = scenes.generate(picture + 1, data.scenes_seed, "test")
    scene, shown = world.scenes[picture], world.shown[picture]
    order = np.argsort(np.where(shown == scenes.NOTHING, len(scene.things), shown), kind="stable")
    # Dustbins last. A word's column is divided by the word's weight, the dustbin's column by the
    # weight of each region.
    rows, columns = [*(1 + order), 0], [*range(1, len(words) + 1), 0]
    shares = plan[rows][:, columns]
    shares[:, :-1] /= shares[:, :-1].sum(0)
    shares[:, -1] /= plan.sum(1)[rows]

    figure = Figure(figsize=(4.2 + 0.42 * len(columns), 5.0))
    figure.suptitle(f"{title(config)}\ntest picture {picture}: the regions that match each word")
    left, right = figure.subplots(1, 2, width_ratios=[3.4, 0.42 * len(columns)])
    show_scene(left, scene, extent=(0, 1, 1, 0))
    names = [f"{n}: {thing.texture} {thing.colour} {thing.shape}".replace("plain ", "")
             for n, thing in enumerate(scene.things, 1)]  # fmt: skip
    for n, thing in enumerate(scene.things, 1):
        box = {"facecolor": "white", "edgecolor": "black", "boxstyle": "circle,pad=0.15"}
        left.text(thing.x, thing.y, str(n), ha="center", va="center", fontsize=9, bbox=box)
    left.set_xlabel("\n".join(names), fontsize=8)
    image = right.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    labels = [names[thing] if thing != scenes.NOTHING else "background" for thing in shown[order]]
    right.set_yticks(range(len(rows)), [*labels, "dustbin"], fontsize=8)
    right.set_xticks(range(len(columns)), [*words, "dustbin"], fontsize=8, rotation=60, ha="right")
    right.grid(False)
    for edge in np.flatnonzero(np.diff(shown[order])) + 0.5:  # between two objects
        right.axhline(edge, color="grey", linewidth=0.6)
    right.axhline(len(order) - 0.5, color="black", linewidth=1.2)
    right.axvline(len(words) - 0.5, color="black", linewidth=1.2)
    figure.colorbar(image, ax=right, label="share of the weight")
    return figure


if __name__ == "__main__":
    start(main)
