"""Fields of a run as a whole, of its data, and of the mismatch made in them."""

from l2rm_jax.config.field import Field, at_least, between

DATA = {
    "seed": Field(0, "controls initialisation, order of the data, dropout", at_least(0)),
    "method": Field(
        "l2rm",
        "l2rm, rcl, rcsl, rcsl_nc, decl, crcl, ncr, bicro, sps, cream, triplet, infonce, "
        "sigmoid, cca, or a plug-in's",
    ),
    "plugins": Field(
        (),
        "Modules that register methods, heads or detectors of your own. They are imported "
        "before anything else.",
    ),
    "precision": Field(
        "float32",
        "Matrix products of the models on a GPU or TPU: float32 (all digits) or bfloat16 "
        "(fastest). Parameters, normalisation, softmax, losses and transport are float32 in "
        "both.",
    ),
    "data.name": Field(
        "",
        '"scenes" without data.path is the built-in data set; else only a label',
    ),
    "data.path": Field(
        "",
        "directory with {train,dev,test}_ims.npy and _caps.txt, _caps.tsv or _caps.npy",
    ),
    "data.vocabulary": Field(
        "",
        'JSON file; "" builds one from train and dev and keeps it in the workdir',
    ),
    "data.word_vectors": Field(
        "",
        "start of the word embeddings: GloVe text, or FILE.npy and FILE.txt",
    ),
    "data.min_count": Field(4, "a word that occurs less often becomes <unk>"),
    "data.split_sentences": Field(
        False,
        "split sentences before words, as the authors do (NLTK punkt)",
    ),
    "data.max_words": Field(
        64,
        "tokens kept of a training caption, <start> and <end> included",
        at_least(1),
    ),
    "data.pixel_crop": Field(
        0.0,
        "Smallest side, relative to the picture, of random crops in training on pixels; 0 "
        "crops none.",
        between(0, 1),
    ),
    "data.train_images": Field(0, "train on the first n images (0 = all)"),
    "data.dev_images": Field(0, "validate on the first n images (0 = all; the authors' code: 200)"),
    "data.test_split": Field("test", '"testall" for COCO\'s 5000 images'),
    "data.filter": Field(
        "none",
        "Which training pairs to drop: none; truth (the known mismatched ones); score (those "
        "below filter_value); share (all but that share of the pairs, the best ones); "
        "judgement (those whose probability of being matched is filter_value or less).",
    ),
    "data.filter_scores": Field("", ".npy with one score per stored pair, higher = better matched"),
    "data.filter_value": Field(
        0.0,
        'threshold of filter "score" and "judgement", or share kept by "share"',
    ),
    "data.scenes_seed": Field(0, "seed of the built-in data set"),
    "data.scenes_train": Field(
        1000,
        "training pictures of the built-in data set",
        between(1, 100_000),
    ),
    "data.scenes_dev": Field(
        200,
        "validation pictures of the built-in data set",
        between(1, 100_000),
    ),
    "data.scenes_test": Field(500, "test pictures of the built-in data set", between(1, 100_000)),
    "mismatch.protocol": Field(
        "image",
        'What moves: "image" (RCL, DECL, L2RM): all captions of an image together; "caption" '
        "(NCR, BiCro): each caption by itself. Results of the two cannot be compared. "
        '"semi_paired": see paired_images.',
    ),
    "mismatch.rate": Field(0.0, "share of the images (or captions) that are permuted on purpose"),
    "mismatch.paired_images": Field(
        0,
        'With protocol "semi_paired", instead of a rate: the number of images that keep their '
        "captions. The others are permuted and known to be unpaired. triplet, infonce and "
        "rcsl then trust the paired images alone.",
        at_least(0),
    ),
    "mismatch.seed": Field(0, "controls which captions are swapped; independent of `seed`"),
    "mismatch.paired_file": Field(
        "",
        'With protocol "semi_paired", instead of paired_images: .npy with the rows of the '
        "pairs that are known to be matched, such as `known.npy` of an audit. Nothing is "
        "permuted.",
    ),
    "mismatch.file": Field("", "index .npy to use instead of generating a mismatch"),
}
