# SPDX-License-Identifier: Apache-2.0
"""Write a tiny LLaVA with random weights as a Hugging Face folder. An image is POSITIONS positions of
the token IMAGE."""
import pathlib

IMAGE = 500
SIDE, PATCH = 56, 8
POSITIONS = (SIDE // PATCH) ** 2
VISION = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
          "num_attention_heads": 2, "image_size": SIDE, "patch_size": PATCH}


def _tokenizer(special):
    """A token w7 for each number but the first two, and special ones from IMAGE on."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<none>": 0, "<end>": 1, **{f"w{token}": token for token in range(2, 512)}}
    for token, name in enumerate(special, IMAGE):
        words[name] = words.pop(f"w{token}")
    made = Tokenizer(models.WordLevel(words, unk_token="<none>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<none>", eos_token="<end>", pad_token="<end>",
        additional_special_tokens=special)


def _model(folder, vision, seed, **more):
    """Write a LLaVA on this vision tower."""
    import torch
    import transformers

    torch.manual_seed(seed)
    made = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(
        vision_config=vision,
        text_config=transformers.LlamaConfig(
            vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=64,
            max_position_embeddings=8192, eos_token_id=1, pad_token_id=1),
        image_token_index=IMAGE, **more)).float()
    for weights in made.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.12)
    made.save_pretrained(folder)


def write_pixtral(folder, seed=0):
    """Make the folder of a LLaVA with Pixtral's tower, as SGLang reads it, and return its path. Each
    row of patches ends with a token of its own."""
    import transformers

    tokens = _tokenizer(["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    _model(folder, transformers.PixtralVisionConfig(**VISION), seed, vision_feature_layer=-1,
           vision_feature_select_strategy="full")
    transformers.PixtralProcessor(
        image_processor=transformers.PixtralImageProcessor(
            size={"longest_edge": SIDE}, patch_size={"height": PATCH, "width": PATCH}),
        tokenizer=tokens, patch_size=PATCH).save_pretrained(folder)
    tokens.save_pretrained(folder)
    return str(folder)


def write(folder, seed=0):
    """Make the folder of one with CLIP's tower, and return its path."""
    import safetensors.torch
    import transformers

    folder = pathlib.Path(folder)
    tokens = _tokenizer(["<image>"])
    _model(folder, transformers.CLIPVisionConfig(**VISION, projection_dim=64), seed,
           image_seq_length=POSITIONS)
    # As in published checkpoints, which is what vLLM reads.
    path = folder / "model.safetensors"
    tensors = {name.replace("vision_tower.", "vision_tower.vision_model."): weights
               for name, weights in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessor(
            size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        tokenizer=tokens, patch_size=PATCH, vision_feature_select_strategy="default",
        num_additional_image_tokens=1).save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder


def picture(seed):
    """An image of noise."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8))
