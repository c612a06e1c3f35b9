"""The training engine: chat templates, losses, samplers and learners. Alone imports torch and transformers."""
