"""Fields of the model: section `model`, and a section for each head that needs one."""

from l2rm_jax.config.field import (
    ABOVE_0,
    BELOW_1,
    BELOW_1_OR_NONE,
    Allowed,
    Field,
    at_least,
    between,
)

# Larger values overflow the squared weights of the attention.
SMOOTHING = Allowed(lambda x: 0 < x <= 20, "more than 0, at most 20")
MODEL = {
    "model.head": Field(
        "sgr",
        "sgr, saf, omit, cam (SCAN), imram, chan, naaf, vse, pem, aggregate (RCSL's model), "
        "centred (IN2R's model), de (for videos), linear (for cca), or a head of a plug-in",
    ),
    "model.start": Field(
        "",
        "work directory of a run whose best model this one starts from, with the same "
        "settings of the model and vocabulary",
        is_path=True,
    ),
    "model.embed_dim": Field(
        1024,
        "size of region, word and global vectors; 0 keeps the states of pretrained encoders",
        between(0, 65536),
    ),
    "model.word_dim": Field(300, "size of word embeddings, before the GRU", between(1, 65536)),
    "model.sim_dim": Field(256, "sgr, saf: size of similarity vectors", between(1, 65536)),
    "model.sgr_steps": Field(3, "sgr: rounds of reasoning", between(1, 64)),
    "model.dropout": Field(0.4, "dropout of word embeddings and global attentions", BELOW_1),
    "model.chunk": Field(
        0,
        "captions scored at once, affects only speed and memory; 0 = chosen for the device",
        at_least(0),
    ),
    "model.matching": Field(
        "partial",
        "unmatched regions and words; omit: partial, full, prompt, naive; cam: partial, naive",
    ),
    "model.margins": Field(
        "uniform", "omit: weights of regions and words: uniform, intra, inter, norm (OMIT Eq. 7)"
    ),
    "model.match_epsilon": Field(
        0.02,
        "omit: entropic regularisation (lambda in the paper)",
        ABOVE_0,
    ),
    "model.global_vector": Field(
        "mean",
        "omit: dustbin of a caption: mean (of its words) or first (token, [CLS])",
    ),
    "model.pooling": Field(
        "mean", "pooling; vse: mean, gpo (VSE-infinity); chan, over words: mean, lse"
    ),
    "model.region_mask": Field(
        0.0,
        "share of an image's regions to drop in a training step; not for sgr, saf",
        BELOW_1,
    ),
    "model.word_noise": Field(
        0.0,
        "share of a caption's words to mask (half of them), replace or drop",
        BELOW_1,
    ),
    "model.text_encoder": Field(
        "gru",
        "gru (words, or given vectors), or the transformer in model.pretrained: bert, clip, siglip",
    ),
    "model.image_encoder": Field(
        "regions",
        "regions (given features), or a transformer on pixels: clip, siglip",
    ),
    "model.pretrained": Field(
        "",
        "directory with config.json, tokenizer.json, model.safetensors, or a name on the Hub",
        is_path=True,
    ),
    "model.pretrained_images": Field(
        "",
        'directory of the image transformer; "" is model.pretrained',
        is_path=True,
    ),
    "model.text_states": Field(
        "all",
        "states of a pretrained text encoder: all (each token is a word) or vector",
    ),
    "model.image_states": Field(
        "all",
        "states of a pretrained image encoder: all (each patch is a region) or vector",
    ),
    "model.base_dropout": Field(
        -1.0,
        "dropout of a pretrained encoder; -1: as in its config.json",
        BELOW_1_OR_NONE,
    ),
    "model.adapter_rank": Field(
        0,
        "rank of the adapters trained instead of a pretrained encoder; 0: none",
        between(0, 1024),
    ),
    "model.remat": Field(
        False,
        "recompute each pretrained layer in the backward pass, to save memory",
    ),
    "cam.direction": Field(
        "t2i",
        "t2i (words attend to regions) or i2t (regions attend to words); with "
        "model.matching=naive, SCAN's two directions",
    ),
    "imram.rounds": Field(
        3,
        "number of rounds of attention",
        between(2, 64, "as one round is the head cam"),
    ),
    "imram.smoothing": Field(
        9.0,
        "inverse temperature of the attention over regions",
        SMOOTHING,
    ),
    "naaf.threshold": Field(
        "paper",
        "update of the threshold: paper (once per batch) or code (after each caption)",
    ),
    "de.image_gru": Field(
        1024,
        "size of the GRU of frames, per direction",
        between(1, 65536),
    ),
    "de.text_gru": Field(
        512,
        "size of the GRU of words, per direction",
        between(1, 65536),
    ),
    "de.filters": Field(512, "number of filters per convolution", between(1, 65536)),
    "de.packed": Field(
        True,
        "ignore padding; with False, the vector of a video depends on it, as in the authors' code",
    ),
}
