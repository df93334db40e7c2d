"""General fields of a run, and fields of its data and of the mismatch added to them."""

from l2rm_jax.config.field import Field, at_least, between

DATA = {
    "seed": Field(0, "seed of initialisation, data order and dropout", at_least(0)),
    "method": Field(
        "l2rm",
        "l2rm, rcl, rcsl, rcsl_nc, decl, crcl, ncr, bicro, sps, cream, in2r, triplet, "
        "infonce, sigmoid, cca, or a method of a plug-in",
    ),
    "plugins": Field(
        (),
        "modules that register your own methods, heads or detectors",
    ),
    "precision": Field(
        "float32",
        "matrix products of the models on a GPU or TPU: float32 (full precision) or bfloat16 "
        "(fastest); all else uses float32",
    ),
    "data.name": Field(
        "",
        'label of the data set; "scenes" without data.path selects the built-in one',
    ),
    "data.path": Field(
        "",
        "directory with {train,dev,test}_ims.npy and _caps.txt, _caps.tsv or _caps.npy",
        is_path=True,
    ),
    "data.vocabulary": Field(
        "",
        'JSON file; "" builds a vocabulary from train and dev',
        is_path=True,
    ),
    "data.word_vectors": Field(
        "",
        "initial word embeddings: GloVe text, or FILE.npy with FILE.txt",
        is_path=True,
    ),
    "data.min_count": Field(4, "minimum count of a word; rarer words become <unk>"),
    "data.split_sentences": Field(
        False,
        "split captions into sentences by NLTK punkt, as the authors do",
    ),
    "data.max_words": Field(
        64,
        "maximum tokens per training caption",
        at_least(1),
    ),
    "data.pixel_crop": Field(
        0.0,
        "training on pixels: smallest side of random crops, relative to the picture; 0 "
        "disables cropping",
        between(0, 1),
    ),
    "data.train_images": Field(0, "train on the first n images (0 = all)"),
    "data.dev_images": Field(0, "validate on the first n images (0 = all)"),
    "data.test_split": Field("test", '"testall" for COCO\'s 5000 images'),
    "data.filter": Field(
        "none",
        "Training pairs to keep: none (all), truth (the matched), score (filter_value or "
        "more), share (the best filter_value of the pairs), judgement (matched with a "
        "probability above filter_value).",
    ),
    "data.scores": Field(
        "",
        "for data.filter=score and share, and train.weight=score: .npy with one score per stored "
        "pair, or per row of the imported table; higher = better",
        is_path=True,
    ),
    "data.filter_value": Field(
        0.0,
        "limit of data.filter",
    ),
    "data.scenes_seed": Field(0, "seed of the built-in data set"),
    "data.scenes_train": Field(
        1000,
        "its training pictures",
        between(1, 100_000),
    ),
    "data.scenes_dev": Field(
        200,
        "its validation pictures",
        between(1, 100_000),
    ),
    "data.scenes_test": Field(500, "its test pictures", between(1, 100_000)),
    "mismatch.protocol": Field(
        "image",
        "unit of the permutation: image (with all its captions; RCL, DECL, L2RM), caption "
        "(NCR, BiCro), or semi_paired",
    ),
    "mismatch.rate": Field(0.0, "share of images (or captions) to permute deliberately"),
    "mismatch.paired_images": Field(
        0,
        "semi_paired: number of images that keep their captions. The others are permuted and "
        "known to be unpaired; triplet, infonce and rcsl trust only the paired images.",
        at_least(0),
    ),
    "mismatch.seed": Field(0, "seed of the permutation; independent of `seed`"),
    "mismatch.paired_file": Field(
        "",
        "semi_paired: .npy with the rows of the pairs known to be matched, such as "
        "`known.npy` of an audit; nothing is permuted",
        is_path=True,
    ),
    "mismatch.file": Field(
        "", "index file (.npy) to use instead of generating a mismatch", is_path=True
    ),
}
