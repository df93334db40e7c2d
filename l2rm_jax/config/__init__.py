"""Config fields of a run: default, meaning and allowed values.

* `data`, `model`, `methods` and `training` have one table of fields each; `field` defines `Field`.
* `defaults` makes a config from them and from the settings of plug-ins, and has the functions that
  config files share.

The defaults are the L2RM authors' for Flickr30K at the paper's sizes. A file in `configs/` adapts
them to its data set. Without `--config`, the command line runs `get_config()`. The table of all
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
