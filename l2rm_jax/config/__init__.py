"""Every field of a run: its default, its meaning, and the numbers that it may have.

* `data`, `model`, `methods` and `training` have the fields, a table each; `field` says what one is.
* `defaults` makes a config of them, with the settings of plug-ins, and has what all config files
  share.

The defaults are the L2RM authors' for Flickr30K at the paper's sizes. A file in `configs/` changes
what its data set needs. Without `--config`, the command line runs `get_config()`. The table of all
fields in `configs/README.md` is generated from here. May import `errors`.
"""

from l2rm_jax.config.defaults import (
    FIELDS,
    NEEDED_HEADS,
    READ_BY,
    SECTIONS,
    check_variant,
    default,
    epoch_fields,
    flat,
    get_config,
    register_settings,
    set_epochs,
    unknown_field_error,
)

__all__ = [
    "FIELDS",
    "NEEDED_HEADS",
    "READ_BY",
    "SECTIONS",
    "check_variant",
    "default",
    "epoch_fields",
    "flat",
    "get_config",
    "register_settings",
    "set_epochs",
    "unknown_field_error",
]
