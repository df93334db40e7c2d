"""A training run: its work directory, its state, and what a resume needs.

The training loop is `l2rm_jax/train.py`; this package holds what the loop calls.

- `run`: the run in progress (model, method, state, plan, position); `opening` opens it;
- `inputs`, `fields`: checks of the config and the data before training;
- `judgement`: the judgement of the training pairs (`judged_pairs`), kept and used; `draws` draws by
  it; `detector` and `fold_runs`: runs that judge the pairs of others;
- `pretrained`: its pretrained weights;
- `config_file`, `log`, `results`, `loss_split`, `checkpoints` (and `orbax_output`): the files of
  the work directory; `trained` reads its model, `exported` keeps that apart from the run;
- `means`: means of the step metrics over an epoch;
- `lock`, `stop_signal`: one process per work directory, and a clean stop at SIGTERM or Ctrl-C;
- `health`: warnings when the run is not learning;
- `memory_hints`: flags that need less memory of a device;
- `screen`: the first lines of a run, and the columns of its table of epochs.

May import `methods`, `evaluation` and the packages that these may import (see
`l2rm_jax/README.md`).
"""
