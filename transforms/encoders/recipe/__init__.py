"""What a model's files say of its use beyond the encoder: pooling, Dense modules, prompts, lengths."""

from layerbeam.transforms.encoders.recipe.model_folder import Model
from layerbeam.transforms.encoders.recipe.sentence_transformers import named_prompts, read_folder, read_model

__all__ = ["Model", "named_prompts", "read_folder", "read_model"]
