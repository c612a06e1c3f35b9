"""The 72 published tasks: facts about each, the files on disk, and the prompts."""
