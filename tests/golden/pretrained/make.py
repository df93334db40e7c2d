"""Make the small random models of this folder, and the arrays that PyTorch computes with them.

    python tests/golden/pretrained/make.py

It needs `transformers` and `torch`; the tests do not. Each folder is a directory in the form of
Hugging Face: config.json, tokenizer.json, model.safetensors. `expected.npz` beside them holds, by
float64:

* `ids`, `lengths`: captions by the tokenizer of transformers, padded; `pixels` of pictures;
* `states`, `vectors`, `image_states`, `image_vectors`: outputs of the model;
* `loss` and `grad/NAME`: the symmetric InfoNCE loss of the unit vectors at temperature 0.1, against
  the pictures, or the given `targets` where the model has no pictures; and its gradients;
* `noise/KEY`: the largest difference of the same by float32.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

HERE = Path(__file__).resolve().parent
CAPTIONS = [
    "A red cube lies behind two small blue balls.",
    "two balls",
    "a yellow cone stands in front of the cube , near a green ring on the floor of a room",
    "Blue rings, 3 of them!",
    "the cone is red and the balls are small",
]
TAU = 0.1


def bert_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=special)
    tokenizer.train_from_iterator(CAPTIONS, trainer)
    marks = [(mark, tokenizer.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=marks
    )
    tokenizer.decoder = decoders.WordPiece()
    # As the files of sentence encoders have them; a reader must switch both off.
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(16)
    return tokenizer


def clip_tokenizer() -> Tokenizer:
    start, end = "<|startoftext|>", "<|endoftext|>"
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token=end))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=118, end_of_word_suffix="</w>", special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(CAPTIONS, trainer)
    tokenizer.add_special_tokens([start, end])
    marks = [(mark, tokenizer.token_to_id(mark)) for mark in (start, end)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=marks
    )
    return tokenizer


def siglip_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<unk>", "</s>"], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(CAPTIONS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return tokenizer


STACK = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 12}
TEXT = {**STACK, "intermediate_size": 20}
IMAGE = {**STACK, "num_attention_heads": 3, "intermediate_size": 16, "image_size": 24}


def make_models() -> dict[str, tuple[transformers.PreTrainedModel, Tokenizer]]:
    tokenizers = bert_tokenizer(), clip_tokenizer(), siglip_tokenizer()
    rows = [tokenizer.get_vocab_size() for tokenizer in tokenizers]
    bert = transformers.BertConfig(**TEXT, vocab_size=rows[0] + 2, max_position_embeddings=40)
    end = tokenizers[1].token_to_id("<|endoftext|>")
    clip = transformers.CLIPConfig(
        text_config={
            **TEXT,
            "vocab_size": rows[1],
            "max_position_embeddings": 60,
            "eos_token_id": end,
        },
        vision_config={**IMAGE, "patch_size": 8, "hidden_act": "gelu"},
        projection_dim=10,
    )
    siglip = transformers.SiglipConfig(
        text_config={**TEXT, "vocab_size": rows[2], "max_position_embeddings": 56},
        vision_config={**IMAGE, "patch_size": 12},
    )
    return {
        "bert": (transformers.BertModel(bert), tokenizers[0]),
        "clip": (transformers.CLIPModel(clip), tokenizers[1]),
        "siglip": (transformers.SiglipModel(siglip), tokenizers[2]),
    }


def randomise(model: torch.nn.Module) -> None:
    """Larger numbers than a fresh model has, in every array, so that each of them matters."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        spread = 0.1 if name.endswith("bias") or "orm" in name else 0.25
        parameter.data += spread * torch.randn(parameter.shape, generator=generator)


def info_nce(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    one, other = (x / x.norm(dim=-1, keepdim=True) for x in (one, other))
    logits = one @ other.T / TAU
    target = torch.arange(len(logits))
    cross_entropy = torch.nn.functional.cross_entropy
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2


def compute(name: str, model: torch.nn.Module, inputs: dict, dtype: torch.dtype) -> dict:
    """Outputs, loss and gradients by one precision."""
    model = model.to(dtype).eval()
    model.zero_grad()
    ids, mask = inputs["ids"], inputs["mask"]
    if name == "bert":
        states = model(ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(dtype)
        vectors = (states * weights).sum(1) / weights.sum(1)
        loss = info_nce(inputs["targets"].to(dtype), vectors)
        outputs = {"states": states, "vectors": vectors}
    else:
        texts = {"input_ids": ids} | ({"attention_mask": mask} if name == "clip" else {})
        text = model.get_text_features(**texts)
        image = model.get_image_features(pixel_values=inputs["pixels"].to(dtype))
        loss = info_nce(image.pooler_output, text.pooler_output)
        outputs = {
            "states": text.last_hidden_state,
            "vectors": text.pooler_output,
            "image_states": image.last_hidden_state,
            "image_vectors": image.pooler_output,
        }
    loss.backward()
    gradients = {
        f"grad/{key}": parameter.grad
        for key, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    outputs = {**outputs, "loss": loss, **gradients}
    return {key: value.detach().double().numpy() for key, value in outputs.items()}


def expected(name: str, model: torch.nn.Module, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    positions = model.config.get_text_config().max_position_embeddings
    tokenizer.no_padding()
    tokenizer.no_truncation()
    padding = {"bert": "[PAD]", "clip": "<|endoftext|>", "siglip": "</s>"}[name]
    length = positions if name == "siglip" else None
    tokenizer.enable_padding(length=length, pad_id=tokenizer.token_to_id(padding))
    encoded = tokenizer.encode_batch(CAPTIONS)
    generator = torch.Generator().manual_seed(1)
    inputs = {
        "ids": torch.tensor([each.ids for each in encoded]),
        "mask": torch.tensor([each.attention_mask for each in encoded]),
        "targets": torch.randn(len(CAPTIONS), 12, generator=generator),
        "pixels": torch.randn(len(CAPTIONS), 3, 24, 24, generator=generator),
    }
    single = compute(name, model, inputs, torch.float32)
    double = compute(name, model, inputs, torch.float64)
    model.float()
    noise = {f"noise/{key}": np.abs(single[key] - double[key]).max() for key in double}
    lengths = inputs["mask"].sum(1)
    if name == "siglip":  # padding counts
        lengths = torch.full_like(lengths, positions)
    given = ("targets",) if name == "bert" else ("pixels",)
    arrays = {"ids": inputs["ids"].int().numpy(), "lengths": lengths.int().numpy()}
    arrays |= {key: inputs[key].numpy() for key in given} | double | noise
    halves = {key: np.float32(value) for key, value in arrays.items() if value.dtype != np.int32}
    return arrays | halves


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, (model, tokenizer) in make_models().items():
        randomise(model)
        directory = HERE / name
        model.save_pretrained(directory)
        (directory / "generation_config.json").unlink(missing_ok=True)
        (directory / "model.safetensors").chmod(0o644)
        tokenizer.save(str(directory / "tokenizer.json"))
        arrays = expected(name, model, Tokenizer.from_file(str(directory / "tokenizer.json")))
        np.savez_compressed(directory / "expected.npz", **arrays)
        if name == "bert":
            pooling = {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True}
            (directory / "1_Pooling").mkdir(exist_ok=True)
            (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (HERE / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
