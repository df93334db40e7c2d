"""A method with the weights, options and batches of a file, and comparisons after its updates."""

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax import config as defaults
from l2rm_jax.devices.batch import Batch
from l2rm_jax.methods import base, make_method
from l2rm_jax.methods.networks import network, stack_states
from l2rm_jax.methods.pair_values import initial_state
from l2rm_jax.published.conversion import model_from_state_dict, variables_from_state_dict
from tests.golden.fidelity.arrays import NOISE_MARGIN, Arrays, difference, largest
from tests.golden.fidelity.models import gradient_error

# Options of the files, by the field of the config.
OPTIONS = {
    "loss.margin": "margin",
    "loss.tau": "tau",
    "optim.learning_rate": "lr",
    "optim.grad_clip": "grad_clip",
    "optim.weight_decay": "weight_decay",
}
# Parameters whose gradient is zero by construction: Adam turns the rounding noise into steps of
# +-lr, and the running mean of a batch normalisation behind such a bias follows it.
NOISY = (
    "embedding_common.0.bias",
    "graph_key_w.bias",
    "attn_sim_w.bias",
    "v_global_w.embedding_global.0.bias",
    "v_global_w.embedding_global.1.running_mean",
    "SAF_module.bn.running_mean",
)


class Method:
    """A method with the weights of a file, its settings, and its batches.

    Args:
      name: name of the method.
      arrays: the file.
      weights: prefixes of the weights of each network.
      size: number of pairs in a batch.
      **fields: more config fields, by key with `__` for a dot.
    """

    def __init__(self, name: str, arrays: Arrays, weights: tuple[str, ...], size: int, **fields):
        self.config = config = defaults.default()
        config.method, config.train.batch_size = name, size
        options = {
            key: float(arrays[f"opt/{option}"])
            for key, option in OPTIONS.items()
            if f"opt/{option}" in arrays and not (name == "decl" and option == "tau")
        }
        fields = {key.replace("__", "."): value for key, value in fields.items()}
        config.update_from_flattened_dict({"train.warmup_epochs": 0, **options, **fields})
        self.weights = [arrays.under(prefix) for prefix in weights]
        self.model = model_from_state_dict(self.weights[0], dropout=0.0)
        self.method = make_method(self.model, config)
        self.step = jax.jit(self.method.step)
        self.size = size

    def start(self, batch: Batch, pairs: int, epoch: int = 0, step: int = 0) -> base.TrainState:
        """Return the state with the file's weights, before any update."""
        state = initial_state(self.method, jax.random.key(0), batch, pairs)
        count = self.method.networks
        singles = [state] if count == 1 else [network(state, n) for n in range(count)]
        loaded = [
            each.replace(**jax.tree.map(jnp.asarray, variables_from_state_dict(weights)))
            for each, weights in zip(singles, self.weights, strict=True)
        ]
        whole = loaded[0] if count == 1 else stack_states(loaded)
        numbers = {"epoch": jnp.int32(epoch), "step": jnp.int32(step), "key": state.key}
        return whole.replace(**numbers)

    def batch(self, arrays: Arrays, prefix: str, first: int = 0) -> Batch:
        """Return the batch at `prefix`; its pairs are numbered from `first`."""
        images, tokens, lengths = (
            arrays[f"{prefix}{name}"] for name in ("images", "captions", "lengths")
        )
        index = first + np.arange(self.size, dtype=np.int32)
        regions = np.full(self.size, images.shape[1], np.int32)
        return Batch(images, regions, tokens, lengths, pair_index=index, image_index=index)

    def check_first_gradients(self, given: Arrays, state: base.TrainState, norm) -> None:
        """Compare the gradient of the first update of a network, before clipping.

        Adam's first moment after one update is a tenth of the clipped gradient.
        """
        _, adam = state.opt_state
        scale = 10 * max(1.0, float(norm) / self.config.optim.grad_clip)
        gradients = jax.tree.map(lambda moment: scale * moment, adam.mu)
        error = gradient_error(gradients, given, self.weights[0])
        given.add("first gradients / largest", error)

    def check_weights_after(
        self, arrays: Arrays, state: base.TrainState, updates: int, also: tuple[str, ...] = ()
    ) -> None:
        """Compare all parameters and running statistics after some updates.

        They may differ by `NOISE_MARGIN` times the authors' noise, and those in `NOISY` and `also`
        by twice the way that Adam can go. Processors differ here: one was 1.6 times the noise off
        in the bias of SGR's queries, whose gradient is tiny in NCR's file.
        """
        after, noise = arrays.under("w_after/"), arrays.under("w_after_noise/")
        way = 2 * updates * self.config.optim.learning_rate
        allowed = {
            name: np.full(
                np.shape(x),
                max(NOISE_MARGIN * noise.get(name, 0.0), way * name.endswith((*NOISY, *also))),
            )
            for name, x in after.items()
        }
        beyond = jax.tree.map(
            lambda a, b, t: difference(a, b) - float(np.max(t)),
            {"params": state.params, "batch_stats": state.batch_stats},
            variables_from_state_dict(after),
            variables_from_state_dict(allowed),
        )
        arrays.add("weights after, beyond noise", largest(jax.tree.leaves(beyond)))
