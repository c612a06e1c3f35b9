"""Models: chat templates, losses, samplers and learners. The only room that imports torch and transformers."""
