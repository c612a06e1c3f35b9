"""The small model that comes with the plugin: its tokenizer, what it was taught and how."""
