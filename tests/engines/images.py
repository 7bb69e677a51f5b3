# SPDX-License-Identifier: Apache-2.0
"""Write a tiny LLaVA with random weights as a Hugging Face folder. An image is POSITIONS positions of
the token IMAGE."""
import pathlib

IMAGE = 500
SIDE, PATCH = 56, 8
POSITIONS = (SIDE // PATCH) ** 2


def write(folder, seed=0):
    """Make the folder of a model, and return its path."""
    import safetensors.torch
    import torch
    import transformers
    from tokenizers import Tokenizer, models

    folder = pathlib.Path(folder)
    words = {f"w{token}": token for token in range(512)}
    words["<image>"] = words.pop(f"w{IMAGE}")
    tokens = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), unk_token="w0",
        eos_token="w1", pad_token="w1", additional_special_tokens=["<image>"])
    torch.manual_seed(seed)
    made = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
            image_size=SIDE, patch_size=PATCH, projection_dim=64),
        text_config=transformers.LlamaConfig(
            vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=64,
            max_position_embeddings=8192, eos_token_id=1, pad_token_id=1),
        image_token_index=IMAGE, image_seq_length=POSITIONS)).float()
    for weights in made.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.12)
    made.save_pretrained(folder)
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
