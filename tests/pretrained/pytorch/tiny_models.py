"""Tiny encoders with random weights, saved as the hub holds real ones; pictures and captions."""

import io
import json
import string
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

# Without the extra `encoders`, every test module that imports this one is skipped.
torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # the tests run in two processes

import tests.pretrained.pytorch.torchvision_operators  # noqa: E402, F401

transformers = pytest.importorskip("transformers")

TEXT = "a dog runs on the grass and the man with two red balls sits in green sand of a cat"
WORDS = sorted({*TEXT.split()})
SIZE = 16  # of a picture that the fixed-size models take, in patches of 8
VISION = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
LANGUAGE = dict(VISION, hidden_size=24)
_MARKS = dict(pad_token_id=0, eos_token_id=1, bos_token_id=2)


def pictures(count: int, seed: int = 0) -> list:
    """Smooth random pictures of many shapes."""
    rng = np.random.default_rng(seed)
    shapes = rng.integers(20, 60, (count, 2))
    small = rng.integers(0, 256, (count, 4, 4, 3), np.uint8)
    return [
        Image.fromarray(colours).resize(tuple(map(int, shape)), Image.Resampling.BICUBIC)
        for colours, shape in zip(small, shapes, strict=True)
    ]


def captions(count: int, seed: int = 0) -> list[str]:
    """Random captions of 1 to 8 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(count)]


def _randomize(model):
    """Give every parameter, norms too, a random value: a norm that is left out then shows."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def save_clip(path: Path) -> Path:
    """A CLIP with 2 x 2 patches and 16 tokens."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*letters, *(f"{x}</w>" for x in letters), "<|startoftext|>", "<|endoftext|>"]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = transformers.CLIPTokenizer(vocab=ids, merges=[], model_max_length=16)
    marks = dict(bos_token_id=len(ids) - 2, eos_token_id=len(ids) - 1, pad_token_id=len(ids) - 1)
    text = dict(LANGUAGE, vocab_size=len(ids), max_position_embeddings=16, **marks)
    vision = dict(VISION, image_size=SIZE, patch_size=8)
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
    processor = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}
    )
    return _save(path, transformers.CLIPModel(config), tokenizer, processor)


def save_siglip(path: Path) -> Path:
    """A SigLIP with 2 x 2 patches, a sentencepiece tokenizer and 12 tokens."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(captions(200)),
        model_writer=model,
        vocab_size=40,
        unk_id=2,
        eos_id=1,
        bos_id=-1,
        pad_id=0,
        minloglevel=2,
    )
    path.mkdir()
    (path / "spiece.model").write_bytes(model.getvalue())
    tokenizer = transformers.SiglipTokenizer(
        str(path / "spiece.model"), model_max_length=12, model_input_names=["input_ids"]
    )
    vision = dict(VISION, hidden_size=24, image_size=SIZE, patch_size=8)
    text = dict(LANGUAGE, vocab_size=40, max_position_embeddings=12, projection_size=24, **_MARKS)
    config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    size = {"height": SIZE, "width": SIZE}
    processor = transformers.SiglipImageProcessorPil(size=size)
    return _save(path, transformers.SiglipModel(config), tokenizer, processor)


def save_siglip2(path: Path) -> Path:
    """A SigLIP 2 NaFlex: up to 9 patches in the shape of the picture, and 64 tokens."""
    vocabulary = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *string.ascii_lowercase]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = transformers.Siglip2Tokenizer(
        vocab=ids, merges=[], model_max_length=64, model_input_names=["input_ids"]
    )
    vision = dict(VISION, hidden_size=24, num_patches=9, patch_size=8)
    text = dict(
        LANGUAGE, vocab_size=len(ids), max_position_embeddings=64, projection_size=24, **_MARKS
    )
    config = transformers.Siglip2Config(text_config=text, vision_config=vision)
    processor = transformers.Siglip2ImageProcessorPil(patch_size=8, max_num_patches=9)
    return _save(path, transformers.Siglip2Model(config), tokenizer, processor)


def save_sentence_encoder(path: Path, pooling: str = "mean_tokens") -> Path:
    """A BERT with the files of sentence-transformers; at most 10 tokens."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = transformers.BertTokenizer(vocab=ids, model_max_length=32)
    config = transformers.BertConfig(**VISION, vocab_size=len(ids), max_position_embeddings=32)
    _save(path, transformers.BertModel(config, add_pooling_layer=False), tokenizer)
    steps = [
        {"type": f"sentence_transformers.models.{step}"} for step in ("Transformer", "Pooling")
    ]
    (path / "modules.json").write_text(json.dumps(steps))
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 10}')
    (path / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("mean_tokens", "max_tokens")}
    modes[f"pooling_mode_{pooling}"] = True
    (path / "1_Pooling/config.json").write_text(json.dumps(modes))
    return path


def save_backbone(path: Path, name: str, **arguments) -> Path:
    """A model of timm."""
    import timm

    model = _randomize(timm.create_model(name, **arguments))
    timm.models.save_for_hf(model, path, model_args=arguments, safe_serialization=True)
    return path


def _save(path: Path, model, *parts) -> Path:
    for part in (_randomize(model), *parts):
        part.save_pretrained(path)
    return path


SAVE = {"clip": save_clip, "siglip": save_siglip, "siglip2": save_siglip2}
