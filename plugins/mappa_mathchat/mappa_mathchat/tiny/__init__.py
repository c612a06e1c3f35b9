"""The tiny model that comes with the plugin: its demonstrations and warm start."""
