"""A training run: its work directory, its state, and the files that a resume needs.

The training loop is `l2rm_jax/train.py`; this package holds the functions that the loop calls.

- `run`: the run in progress (model, method, state, plan, position); `initialise` opens it and sets
  the state that a run or an epoch starts from;
- `inputs`: checks of the config and the data before training;
- `judgement`: judges the training pairs, and keeps the result and the split by loss; `sampling`
  samples pairs by it; `detector` and `fold_runs`: runs that judge the pairs of another run;
- `pretrained`: the pretrained weights of a run; `choose_encoder` and `frozen_encoder`
  encode with models as they are;
- `config_file` (and the lock), `log`, `results`, `checkpoints` (with
  `checkpoint_format`): the files of the work directory; `load_trained` reads the trained model,
  and saves it apart from the run;
- `stop_signal`: a clean stop at SIGTERM or Ctrl-C;
- `health`: warnings when the run is not learning;
- `memory`: images that stay on devices, and flags that reduce the memory that a run needs.

May import `methods`, `evaluation` and the packages that these may import (see
`l2rm_jax/README.md`).
"""
