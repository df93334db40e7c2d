"""Models that others have pretrained, as directories of files in the form of Hugging Face.

* `directory` opens a directory without PyTorch: `specs` reads the sizes of its transformers,
  `preparation` the preprocessing of pictures, `tokenizer` turns captions into ids, and
  `weight_files` reads the arrays, which `arrays` maps to our parameters. `hub` finds a directory by
  the name of a model. `models.pretrained` computes with these descriptions.
* `feature_encoder` is an encoder of an import, which turns pictures and captions into features.
* `pytorch/` is the adapter to models of transformers and timm: `library` has what both share,
  `packaged` writes directories of models from packages. It needs the extra `encoders`.

May import `jobs` and `errors`.
"""
