"""Encoders by PyTorch: models of transformers and of timm."""
